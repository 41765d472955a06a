/* Waiting for events: of poll(2), select(2), epoll(7), eventfd(2), futex(2). */
#include "conformance.h"

#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>

static int ready(void) { return OK(eventfd(1, EFD_NONBLOCK)); }
static int never(void) { return OK(eventfd(0, EFD_NONBLOCK)); }
static struct timespec *span(long ms) {
    struct timespec *t = astride(8);
    t->tv_sec = ms / 1000, t->tv_nsec = ms % 1000 * 1000000;
    away(t, sizeof *t);
    return t;
}
static sigset_t *mask_of(int signal) {
    sigset_t *s = astride(4);
    sigemptyset(s);
    if (signal)
        sigaddset(s, signal);
    away(s, sizeof *s);
    return s;
}
static volatile int count;
static void counts(int n) {
    (void)n;
    count++;
}
/* Two descriptors to poll, across two absent pages. */
static struct pollfd *two(int a, int b) {
    struct pollfd *p = astride(8);
    p[0] = (struct pollfd){.fd = a, .events = POLLIN}, p[1] = (struct pollfd){.fd = b, .events = POLLIN};
    away(p, 2 * sizeof *p);
    return p;
}

CASE(poll_tells_who_is_ready) {
    struct pollfd *p = two(never(), ready());
    EXPECT_EQ(poll(p, 2, 10000), 1);
    EXPECT_EQ(p[0].revents, 0);
    EXPECT_EQ(p[1].revents, POLLIN);
}
CASE(poll_times_out) { EXPECT_EQ(poll(two(never(), never()), 2, 5), 0); }
CASE(poll_of_a_closed_descriptor) {
    struct pollfd *p = two(never(), 900);
    EXPECT_EQ(poll(p, 2, 10000), 1);
    EXPECT_EQ(p[1].revents, POLLNVAL);
}
CASE(poll_in_a_hole) { EXPECT_ERROR(poll((void *)hole(), 1, 0), EFAULT); }
CASE(poll_ends_in_a_hole) {
    struct pollfd *p = (struct pollfd *)before_hole(sizeof *p);
    EXPECT_ERROR(poll(p, 2, 0), EFAULT);
}
CASE(poll_of_too_many) {
    struct rlimit r = {100, 100};
    OK(setrlimit(RLIMIT_NOFILE, &r));
    EXPECT_ERROR(poll((void *)absent(1), 200, 0), EINVAL);
}
CASE(poll_of_thousands) {
    struct pollfd *p = (struct pollfd *)pages(8);
    int fd = ready();
    for (int i = 0; i < 1000; i++)
        p[i] = (struct pollfd){.fd = i % 2 ? fd : -1, .events = POLLIN};
    away(p, 2 * PAGE);
    EXPECT_EQ(poll(p, 1000, 1000), 500);
}
CASE(ppoll_with_time_and_mask_away) {
    EXPECT_EQ(ppoll(two(never(), never()), 2, span(5), mask_of(SIGUSR1)), 0);
    EXPECT_EQ(ppoll(two(never(), ready()), 2, span(5000), mask_of(0)), 1);
}
CASE(ppoll_lets_a_signal_in) {
    signal(SIGUSR1, counts);
    OK(sigprocmask(SIG_BLOCK, mask_of(SIGUSR1), NULL));
    OK(raise(SIGUSR1));
    EXPECT_EQ(count, 0);
    EXPECT_ERROR(ppoll(two(never(), never()), 2, span(10000), mask_of(0)), EINTR);
    EXPECT_EQ(count, 1);
}
CASE(ppoll_holds_a_signal_back) {
    signal(SIGBUS, counts);
    OK(kill(getpid(), SIGBUS));
    EXPECT_EQ(count, 1);
    sigset_t *all = mask_of(SIGBUS);
    pid_t parent = getpid(), child = CHILD({
        sleep_ms(20);
        kill(parent, SIGBUS);
    });
    EXPECT_EQ(ppoll(two(never(), never()), 2, span(100), all), 0);
    EXPECT_EXIT(child, 0);
    EXPECT_EQ(count, 2);
}
CASE(ppoll_mask_in_a_hole) { EXPECT_ERROR(ppoll(two(ready(), ready()), 2, NULL, (void *)hole()), EFAULT); }
CASE(ppoll_time_in_a_hole) { EXPECT_ERROR(syscall(SYS_ppoll, two(ready(), ready()), 2, hole(), NULL, 8), EFAULT); }
CASE(ppoll_wrong_time) {
    struct timespec *t = span(0);
    t->tv_nsec = -1;
    EXPECT_ERROR(ppoll(two(ready(), ready()), 2, t, NULL), EINVAL);
}
CASE(ppoll_wrong_size_of_mask) {
    EXPECT_ERROR(syscall(SYS_ppoll, two(ready(), ready()), 2, NULL, mask_of(0), 4), EINVAL);
}
CASE(select_tells_who_is_ready) {
    fd_set *r = astride(64);
    int a = ready(), b = never();
    FD_ZERO(r);
    FD_SET(a, r);
    FD_SET(b, r);
    away(r, sizeof *r);
    struct timeval *t = astride(8);
    t->tv_sec = 10, t->tv_usec = 0;
    away(t, sizeof *t);
    EXPECT_EQ(select(b + 1, r, NULL, NULL, t), 1);
    EXPECT(FD_ISSET(a, r) && !FD_ISSET(b, r));
    EXPECT(t->tv_sec <= 10);
}
CASE(select_of_a_closed_descriptor) {
    fd_set *r = astride(64);
    FD_ZERO(r);
    FD_SET(50, r);
    OK(dup2(0, 60));
    EXPECT_ERROR(select(51, r, NULL, NULL, NULL), EBADF);
}
CASE(select_set_in_a_hole) { EXPECT_ERROR(syscall(SYS_select, 10, hole(), NULL, NULL, NULL), EFAULT); }
CASE(select_time_in_a_hole) { EXPECT_ERROR(syscall(SYS_select, 0, NULL, NULL, NULL, hole()), EFAULT); }
CASE(select_negative_count) { EXPECT_ERROR(select(-1, NULL, NULL, NULL, NULL), EINVAL); }
CASE(select_of_thousands) {
    struct rlimit r;
    OK(getrlimit(RLIMIT_NOFILE, &r));
    if (r.rlim_max < 4096)
        SKIP("RLIMIT_NOFILE is %lu at most", (unsigned long)r.rlim_max);
    r.rlim_cur = 4096;
    OK(setrlimit(RLIMIT_NOFILE, &r));
    int fd = OK(dup2(ready(), 3000));
    unsigned char *set = (unsigned char *)absent(2) + PAGE - 256;
    memset(set, 0, 512);
    set[fd / 8] |= 1 << fd % 8;
    away(set, 512);
    EXPECT_EQ(syscall(SYS_select, 3001, set, NULL, NULL, NULL), 1);
    EXPECT(set[fd / 8] & 1 << fd % 8);
}
CASE(pselect_with_its_mask_away) {
    fd_set *r = astride(64);
    int a = ready();
    FD_ZERO(r);
    FD_SET(a, r);
    away(r, sizeof *r);
    EXPECT_EQ(pselect(a + 1, r, NULL, NULL, span(10000), mask_of(SIGUSR1)), 1);
}
CASE(pselect_lets_a_signal_in) {
    signal(SIGUSR1, counts);
    OK(sigprocmask(SIG_BLOCK, mask_of(SIGUSR1), NULL));
    OK(raise(SIGUSR1));
    EXPECT_ERROR(pselect(0, NULL, NULL, NULL, span(10000), mask_of(0)), EINTR);
    EXPECT_EQ(count, 1);
}
CASE(pselect_argument_in_a_hole) {
    EXPECT_ERROR(syscall(SYS_pselect6, 0, NULL, NULL, NULL, NULL, hole()), EFAULT);
}
CASE(pselect_mask_in_a_hole) {
    struct {
        void *mask;
        size_t size;
    } *argument = astride(8);
    argument->mask = hole(), argument->size = 8;
    away(argument, sizeof *argument);
    EXPECT_ERROR(syscall(SYS_pselect6, 0, NULL, NULL, NULL, NULL, argument), EFAULT);
}
static int watching(int fd, void *data) {
    int e = OK(epoll_create1(0));
    struct epoll_event *v = astride(6);
    v->events = EPOLLIN, v->data.ptr = data;
    away(v, sizeof *v);
    OK(epoll_ctl(e, EPOLL_CTL_ADD, fd, v));
    return e;
}
CASE(epoll_tells_who_is_ready) {
    struct epoll_event *v = astride(6);
    EXPECT_EQ(epoll_wait(watching(ready(), (void *)0x123456789aUL), v, 5, 10000), 1);
    EXPECT_EQ(v->events, EPOLLIN);
    EXPECT(v->data.ptr == (void *)0x123456789aUL);
}
CASE(epoll_times_out) { EXPECT_EQ(epoll_wait(watching(never(), NULL), astride(6), 5, 5), 0); }
CASE(epoll_to_a_hole) { EXPECT_ERROR(epoll_wait(watching(ready(), NULL), (void *)hole(), 5, 10000), EFAULT); }
CASE(epoll_of_no_events) { EXPECT_ERROR(epoll_wait(watching(ready(), NULL), (void *)absent(1), 0, 0), EINVAL); }
CASE(epoll_ctl_in_a_hole) {
    EXPECT_ERROR(epoll_ctl(OK(epoll_create1(0)), EPOLL_CTL_ADD, ready(), (void *)hole()), EFAULT);
}
CASE(epoll_ctl_of_a_file) {
    int fd = OK(open("file", O_CREAT | O_RDWR, 0600));
    EXPECT_ERROR(epoll_ctl(OK(epoll_create1(0)), EPOLL_CTL_ADD, fd, (void *)absent(1)), EPERM);
}
CASE(epoll_ctl_twice) {
    int fd = ready();
    EXPECT_ERROR(epoll_ctl(watching(fd, NULL), EPOLL_CTL_ADD, fd, (void *)pages(1)), EEXIST);
}
CASE(epoll_create_unknown_flag) { EXPECT_ERROR(epoll_create1(7), EINVAL); }
CASE(epoll_pwait_lets_a_signal_in) {
    signal(SIGUSR1, counts);
    OK(sigprocmask(SIG_BLOCK, mask_of(SIGUSR1), NULL));
    OK(raise(SIGUSR1));
    EXPECT_ERROR(epoll_pwait(watching(never(), NULL), (void *)absent(1), 5, 10000, mask_of(0)), EINTR);
    EXPECT_EQ(count, 1);
}
CASE(epoll_pwait_mask_in_a_hole) {
    EXPECT_ERROR(syscall(SYS_epoll_pwait, watching(never(), NULL), absent(1), 5, 0, hole(), 8), EFAULT);
}
CASE(epoll_pwait_wrong_size_of_mask) {
    EXPECT_ERROR(syscall(SYS_epoll_pwait, watching(never(), NULL), absent(1), 5, 0, mask_of(0), 4), EINVAL);
}
CASE(epoll_pwait2_with_its_time_away) {
#ifdef SYS_epoll_pwait2
    EXPECT_EQ(NEEDS(syscall(SYS_epoll_pwait2, watching(never(), NULL), absent(1), 5, span(5), mask_of(SIGUSR1), 8)), 0);
    EXPECT_ERROR(syscall(SYS_epoll_pwait2, watching(never(), NULL), absent(1), 5, hole(), NULL, 8), EFAULT);
#endif
}
CASE(eventfd_reads_to_absent_pages) {
    uint64_t *n = astride(4);
    EXPECT_EQ(read(OK(eventfd(5, 0)), n, 8), 8);
    EXPECT_EQ(*n, 5);
    EXPECT_ERROR(read(ready(), n, 4), EINVAL);
}

static long futex(void *word, int op, unsigned value, void *time, void *word2, unsigned value3) {
    return syscall(SYS_futex, word, op, value, time, word2, value3);
}
CASE(futex_wait_of_another_value) {
    int *word = (int *)absent(1);
    EXPECT_ERROR(futex(word, FUTEX_WAIT_PRIVATE, *word + 1, NULL, NULL, 0), EAGAIN);
}
CASE(futex_wait_times_out) {
    int *word = (int *)absent(1), value = *word;
    away(word, 4);
    EXPECT_ERROR(futex(word, FUTEX_WAIT_PRIVATE, value, span(5), NULL, 0), ETIMEDOUT);
}
CASE(futex_wait_in_a_hole) { EXPECT_ERROR(futex(hole(), FUTEX_WAIT, 0, NULL, NULL, 0), EFAULT); }
CASE(futex_wait_private_in_a_hole) { EXPECT_ERROR(futex(hole(), FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0), EFAULT); }
CASE(futex_wait_at_an_odd_address) { EXPECT_ERROR(futex(absent(1) + 1, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0), EINVAL); }
CASE(futex_time_in_a_hole) {
    EXPECT_ERROR(futex(pages(1), FUTEX_WAIT_PRIVATE, 0, hole(), NULL, 0), EFAULT);
}
CASE(futex_unknown_operation) { EXPECT_ERROR(futex(absent(1), 77, 0, NULL, NULL, 0), ENOSYS); }
CASE(futex_wake_of_nobody) { EXPECT_EQ(OK(futex(absent(1), FUTEX_WAKE, 5, NULL, NULL, 0)), 0); }
static void *waits(void *word) {
    int value = *(int *)word;
    /* The page is evicted while the waiter is in the kernel, too. */
    return (void *)futex(word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}
CASE(futex_wakes_a_thread) {
    int *word = (int *)absent(1);
    pthread_t t;
    EXPECT_EQ(pthread_create(&t, NULL, waits, word), 0);
    while (futex(word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) != 1)
        sleep_ms(1);
    void *result;
    pthread_join(t, &result);
    EXPECT_EQ((long)result, 0);
}
CASE(futex_wakes_another_process) {
    int *word = OK((int *)mmap(NULL, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pid_t child = CHILD(EXPECT_EQ(futex(word, FUTEX_WAIT, 0, NULL, NULL, 0), 0));
    while (futex(word, FUTEX_WAKE, 1, NULL, NULL, 0) != 1)
        sleep_ms(1);
    EXPECT_EXIT(child, 0);
}
CASE(futex_requeues) {
    int *word = (int *)absent(1), *other = (int *)absent(1);
    pthread_t t;
    EXPECT_EQ(pthread_create(&t, NULL, waits, word), 0);
    while (futex(word, FUTEX_CMP_REQUEUE_PRIVATE, 0, (void *)1L, other, *word) != 1)
        sleep_ms(1);
    EXPECT_EQ(futex(other, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0), 1);
    pthread_join(t, NULL);
}
CASE(futex_wake_op_changes_an_absent_word) {
    int *word = (int *)absent(1), *other = (int *)absent(1), before = *other;
    away(other, 4);
    OK(futex(word, FUTEX_WAKE_OP_PRIVATE, 1, (void *)1L, other, FUTEX_OP(FUTEX_OP_ADD, 5, FUTEX_OP_CMP_EQ, 0)));
    EXPECT_EQ(*other, before + 5);
}
CASE(futex_pi_of_an_absent_word) {
    int *word = (int *)pages(1);
    *word = 0;
    away(word, 4);
    OK(futex(word, FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0));
    EXPECT_EQ(*word & FUTEX_TID_MASK, gettid());
    away(word, 4);
    EXPECT_ERROR(futex(word, FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0), EDEADLK);
    OK(futex(word, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0));
    EXPECT_EQ(*word, 0);
}
CASE(futex_waitv_away) {
    struct {
        uint64_t value, word;
        uint32_t flags, reserved;
    } *v = astride(16);
    int *word = (int *)absent(1);
    v->value = *word + 1, v->word = (uint64_t)word, v->flags = 2 | 128, v->reserved = 0;
    away(v, sizeof *v);
    away(word, 4);
    errno = 0;
    if (syscall(449, v, 1, 0, NULL, CLOCK_MONOTONIC) == -1 && errno == ENOSYS)
        SKIP("this kernel has no futex_waitv");
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_ERROR(syscall(449, hole(), 1, 0, NULL, CLOCK_MONOTONIC), EFAULT);
}
struct link {
    struct link *next;
};
static struct {
    struct link list;
    long offset;
    struct link *pending;
} *robust;
static int *robust_word;
static void *dies_with_a_lock(void *unused) {
    (void)unused;
    struct link *entry = (struct link *)(robust_word + 2);
    entry->next = (void *)robust;
    robust->list.next = entry, robust->offset = -8, robust->pending = NULL;
    *robust_word = gettid();
    OK(syscall(SYS_set_robust_list, robust, 24));
    try_away(robust, 24);
    try_away(robust_word, 24);
    RAW(SYS_exit, 0);
    return NULL;
}
CASE(robust_list_of_a_dead_thread) {
    pthread_t t;
    robust = (void *)absent(1), robust_word = (int *)absent(1);
    EXPECT_EQ(pthread_create(&t, NULL, dies_with_a_lock, NULL), 0);
    pthread_join(t, NULL);
    EXPECT_EQ((unsigned)*robust_word & FUTEX_OWNER_DIED, FUTEX_OWNER_DIED);
}
CASE(robust_list_wrong_size) { EXPECT_ERROR(syscall(SYS_set_robust_list, absent(1), 23), EINVAL); }
CASE(robust_list_read_back) {
    void **head = astride(4);
    size_t *size = astride(4);
    OK(syscall(SYS_set_robust_list, head, 24));
    OK(syscall(SYS_get_robust_list, 0, head, size));
    EXPECT_EQ(*size, 24);
    EXPECT(*head == (void *)head);
    syscall(SYS_set_robust_list, NULL, 24);
}
CASE(robust_mutex_of_a_dead_process) {
    pthread_mutex_t *m = OK((void *)mmap(NULL, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    EXPECT_EQ(pthread_mutex_init(m, &a), 0);
    EXPECT_EXIT(CHILD(pthread_mutex_lock(m)), 0);
    EXPECT_EQ(pthread_mutex_lock(m), EOWNERDEAD);
}
