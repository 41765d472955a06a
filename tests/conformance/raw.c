/* Raw system calls that canvas hooks in libc, as made by runtimes that do not use libc. */
#include "conformance.h"

#include <signal.h>
#include <sys/uio.h>

#define EXPECT_RAW(call, number) EXPECT_EQ(call, -(number))

/* A copy that is evicted. */
static void *sent(const void *from, size_t bytes) {
    char *p = absent(1);
    memcpy(p, from, bytes);
    away(p, bytes);
    return p;
}
static char *text(const char *s) { return sent(s, strlen(s) + 1); }
static int resident(char *p) {
    unsigned char there;
    OK(mincore(p, PAGE, &there));
    return there & 1;
}

CASE(mmap_over_memory) {
    char *p = absent(3);
    EXPECT((char *)RAW(SYS_mmap, p + PAGE, PAGE, RW, PRIVATE | MAP_FIXED, -1, 0) == p + PAGE);
    EXPECT_EQ(p[PAGE], 0);
    EXPECT(is_filled(p, PAGE));
}
CASE(mmap_over_memory_leaves_and_comes_back) {
    char *p = absent(3);
    EXPECT((char *)RAW(SYS_mmap, p + PAGE, PAGE, RW, PRIVATE | MAP_FIXED, -1, 0) == p + PAGE);
    fill(p, 3 * PAGE);
    away(p, 3 * PAGE);
    EXPECT(is_filled(p, 3 * PAGE));
}
CASE(munmap_of_a_part) {
    char *p = absent(3);
    EXPECT_EQ(RAW(SYS_munmap, p + PAGE, PAGE), 0);
    EXPECT_RAW(RAW(SYS_mprotect, p, 3 * PAGE, RW), ENOMEM);
    EXPECT(is_filled(p, PAGE));
}
CASE(mremap_moves) {
    char *p = absent(4), *q = (char *)RAW(SYS_mremap, p, 4 * PAGE, 64 * PAGE, MREMAP_MAYMOVE);
    EXPECT(is_filled(q, 4 * PAGE));
    EXPECT_EQ(q[63 * PAGE], 0);
}
CASE(mremap_to_a_place) {
    char *p = absent(4), *q = pages(4);
    EXPECT((char *)RAW(SYS_mremap, p, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, q) == q);
    EXPECT(is_filled(q, 4 * PAGE));
    EXPECT_EQ(touch(p, 0), SEGV_MAPERR);
}
CASE(mremap_with_all_signals_blocked) {
    sigset_t all, before;
    sigfillset(&all);
    OK(sigprocmask(SIG_SETMASK, &all, &before));
    char *p = absent(4), *q = (char *)RAW(SYS_mremap, p, 4 * PAGE, 64 * PAGE, MREMAP_MAYMOVE);
    EXPECT(is_filled(q, 4 * PAGE));
    OK(sigprocmask(SIG_SETMASK, &before, NULL));
}
static void *moves(void *p) { return (void *)RAW(SYS_mremap, p, 4 * PAGE, 64 * PAGE, MREMAP_MAYMOVE); }
CASE(mremap_by_a_thread) {
    pthread_t t;
    void *q;
    EXPECT_EQ(pthread_create(&t, NULL, moves, absent(4)), 0);
    EXPECT_EQ(pthread_join(t, &q), 0);
    EXPECT(is_filled(q, 4 * PAGE));
}
static char *moved;
static void moves_too(int number) {
    (void)number;
    moved = moves(moved);
}
CASE(mremap_in_a_handler) {
    static char stack[64 << 10];
    stack_t own = {.ss_sp = stack, .ss_size = sizeof stack};
    OK(sigaltstack(&own, NULL));
    struct sigaction action = {.sa_handler = moves_too, .sa_flags = SA_ONSTACK};
    sigfillset(&action.sa_mask);
    OK(sigaction(SIGUSR1, &action, NULL));
    moved = absent(4);
    OK(raise(SIGUSR1));
    EXPECT(is_filled(moved, 4 * PAGE));
}
CASE(mprotect_protects) {
    char *p = absent(2);
    EXPECT_EQ(RAW(SYS_mprotect, p, 2 * PAGE, PROT_READ), 0);
    int zero = OK(open("/dev/zero", O_RDONLY));
    EXPECT_ERROR(read(zero, p, 1), EFAULT);
    EXPECT(is_filled(p, 2 * PAGE));
}
CASE(pkey_mprotect_without_a_key) {
    char *p = absent(2);
    EXPECT_EQ(RAW(SYS_pkey_mprotect, p, 2 * PAGE, PROT_READ, -1), 0);
    int zero = OK(open("/dev/zero", O_RDONLY));
    EXPECT_ERROR(read(zero, p, 1), EFAULT);
    EXPECT(is_filled(p, 2 * PAGE));
}
CASE(madvise_drops) {
    char *p = absent(3);
    EXPECT_EQ(RAW(SYS_madvise, p + PAGE, PAGE, MADV_DONTNEED), 0);
    EXPECT_EQ(p[PAGE], 0);
    EXPECT(is_filled(p, PAGE));
}
CASE(process_madvise_of_oneself) {
    int self = NEEDS(syscall(SYS_pidfd_open, getpid(), 0));
    char *p = absent(4);
    EXPECT(is_filled(p, 4 * PAGE));
    struct iovec v[] = {{p, PAGE}, {p + 2 * PAGE, 2 * PAGE}};
    EXPECT_EQ(RAW(SYS_process_madvise, self, sent(v, sizeof v), 2, MADV_COLD, 0), 3 * PAGE);
    EXPECT(is_filled(p, 4 * PAGE));
}
CASE(process_madvise_with_a_native_vector) {
    int self = NEEDS(syscall(SYS_pidfd_open, getpid(), 0));
    static struct iovec v;
    char *p = absent(4);
    v.iov_base = p, v.iov_len = 4 * PAGE;
    EXPECT_EQ(RAW(SYS_process_madvise, self, &v, 1, MADV_COLD, 0), 4 * PAGE);
    EXPECT(is_filled(p, 4 * PAGE));
    /* Since Linux 6.13 a process may drop its own pages in this way; if it is refused, all pages are there. */
    long dropped = RAW(SYS_process_madvise, self, &v, 1, MADV_DONTNEED, 0);
    EXPECT(dropped == -EINVAL || dropped == 4 * PAGE);
    EXPECT(dropped < 0 ? is_filled(p, 4 * PAGE) : p[0] == 0 && p[3 * PAGE] == 0);
}
CASE(mlock_and_munlock) {
    char *p = absent(4);
    EXPECT_EQ(RAW(SYS_mlock, p, PAGE), 0);
    EXPECT(resident(p));
    EXPECT_RAW(RAW(SYS_madvise, p, PAGE, MADV_DONTNEED), EINVAL);
    EXPECT_EQ(RAW(SYS_munlock, p, PAGE), 0);
    EXPECT_EQ(RAW(SYS_mlock2, p + PAGE, PAGE, MLOCK_ONFAULT), 0);
    EXPECT(resident(p + PAGE));
    EXPECT(is_filled(p, 4 * PAGE));
}
CASE(mincore_of_absent_pages) {
    char *p = absent(2);
    unsigned char *there = (void *)absent(1);
    EXPECT(is_filled(p, PAGE));
    EXPECT_EQ(RAW(SYS_mincore, p, 2 * PAGE, there), 0);
    EXPECT_EQ(there[0] & 1, 1);
}
CASE(msync_checks) {
    EXPECT_RAW(RAW(SYS_msync, pages(1), PAGE, MS_SYNC | MS_ASYNC), EINVAL);
    EXPECT_RAW(RAW(SYS_msync, hole(), PAGE, MS_SYNC), ENOMEM);
}
CASE(mseal_keeps_place) {
    char *p = absent(1);
    long sealed = RAW(462, p, PAGE, 0);
    if (sealed == -ENOSYS)
        SKIP("no mseal");
    EXPECT_EQ(sealed, 0);
    EXPECT_RAW(RAW(SYS_munmap, p, PAGE), EPERM);
    EXPECT(is_filled(p, PAGE));
}

static volatile int got;
static void handler(int number) { got = number; }
CASE(sigaltstack_away) {
    stack_t stack = {.ss_sp = absent(16), .ss_size = 16 * PAGE}, *old = (void *)absent(1);
    EXPECT_EQ(RAW(SYS_sigaltstack, sent(&stack, sizeof stack), old), 0);
    EXPECT(old->ss_flags == SS_DISABLE);
    EXPECT_EQ(RAW(SYS_sigaltstack, NULL, old), 0);
    EXPECT(old->ss_sp == stack.ss_sp && old->ss_size == stack.ss_size);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    OK(sigaction(SIGUSR1, &action, NULL));
    OK(raise(SIGUSR1));
    EXPECT_EQ(got, SIGUSR1);
    EXPECT(is_filled(absent(4), 4 * PAGE));
}
CASE(sigaltstack_with_a_native_structure) {
    static stack_t stack;
    stack.ss_sp = absent(16), stack.ss_size = 16 * PAGE;
    EXPECT_EQ(RAW(SYS_sigaltstack, &stack, NULL), 0);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    OK(sigaction(SIGUSR1, &action, NULL));
    away(stack.ss_sp, stack.ss_size);
    OK(raise(SIGUSR1));
    EXPECT_EQ(got, SIGUSR1);
}
CASE(sigaction_away) {
    struct sigaction *old = (void *)absent(1);
    struct sigaction action = {.sa_handler = handler};
    OK(sigaction(SIGUSR1, &action, NULL));
    EXPECT_EQ(RAW(SYS_rt_sigaction, SIGUSR1, NULL, old, 8), 0);
    EXPECT(old->sa_handler == handler);
}
CASE(prlimit_away) {
    struct rlimit files = {64, 64}, *old = (void *)absent(1);
    EXPECT_EQ(RAW(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, old), 0);
    EXPECT(old->rlim_cur > 0);
    EXPECT_EQ(RAW(SYS_prlimit64, 0, RLIMIT_NOFILE, sent(&files, sizeof files), NULL), 0);
    struct rlimit now;
    OK(getrlimit(RLIMIT_NOFILE, &now));
    EXPECT(now.rlim_cur == 64 && now.rlim_max == 64);
}
CASE(prlimit_of_data_holds) {
    struct rlimit data = {1 << 20, RLIM_INFINITY};
    EXPECT_EQ(RAW(SYS_prlimit64, 0, RLIMIT_DATA, sent(&data, sizeof data), NULL), 0);
    EXPECT_ERROR(mmap(NULL, 64 << 20, RW, PRIVATE, -1, 0), ENOMEM);
}
CASE(prlimit_with_a_native_structure) {
    static struct rlimit data = {1 << 20, RLIM_INFINITY};
    EXPECT_EQ(RAW(SYS_prlimit64, 0, RLIMIT_DATA, &data, NULL), 0);
    EXPECT_ERROR(mmap(NULL, 64 << 20, RW, PRIVATE, -1, 0), ENOMEM);
    struct rlimit now;
    OK(getrlimit(RLIMIT_DATA, &now));
    EXPECT_EQ(now.rlim_cur, 1 << 20);
}
CASE(execveat_with_native_strings) {
    static char *words[] = {"sh", "-c", "test \"$A\" = 5 && exit 42", NULL}, *env[] = {"A=5", NULL};
    int dir = OK(open("/bin", O_PATH));
    EXPECT_EXIT(CHILD(RAW(SYS_execveat, dir, "sh", words, env, 0)), 42);
}
CASE(execveat_away) {
    char *words[] = {text("sh"), text("-c"), text("test \"$A\" = 5 && exit 42"), NULL}, *env[] = {text("A=5"), NULL};
    void *arguments = sent(words, sizeof words), *environment = sent(env, sizeof env);
    int dir = OK(open("/bin", O_PATH));
    EXPECT_EXIT(CHILD(RAW(SYS_execveat, dir, text("sh"), arguments, environment, 0)), 42);
}
