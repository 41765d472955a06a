/* Signals: of sigaction(2), sigprocmask(2), sigaltstack(2), signalfd(2), timer_create(2), kill(2) and their neighbours. */
#include "conformance.h"

#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <ucontext.h>

static volatile sig_atomic_t count, last;
static siginfo_t info_of_last;
static void counts(int number) {
    count++;
    last = number;
}
static void informs(int number, siginfo_t *info, void *context) {
    (void)context;
    count++;
    last = number;
    info_of_last = *info;
}
static void handle(int number, int flags) {
    struct sigaction *a = astride(16);
    memset(a, 0, sizeof *a);
    a->sa_sigaction = informs;
    a->sa_flags = flags | SA_SIGINFO;
    away(a, sizeof *a);
    OK(sigaction(number, a, NULL));
}
/* A set with these signals on an absent page. */
static sigset_t *set_of(int one, int two) {
    sigset_t *s = astride(4);
    sigemptyset(s);
    sigaddset(s, one);
    if (two)
        sigaddset(s, two);
    away(s, sizeof *s);
    return s;
}
static sigset_t *no_set(void) {
    sigset_t *s = astride(4);
    memset(s, 0x55, sizeof *s);
    away(s, sizeof *s);
    return s;
}

#define EACH_SIGNAL(X, name) X(name##_bus, SIGBUS) X(name##_sys, SIGSYS) X(name##_usr1, SIGUSR1) X(name##_rt, SIGRTMIN + 3)

#define BLOCKED(name, number)                                                                                          \
    CASE(name) {                                                                                                       \
        handle(number, 0);                                                                                             \
        OK(sigprocmask(SIG_BLOCK, set_of(number, 0), NULL));                                                           \
        OK(kill(getpid(), number));                                                                                    \
        EXPECT_EQ(count, 0);                                                                                           \
        sigset_t *got = no_set();                                                                                      \
        OK(sigpending(got));                                                                                           \
        EXPECT(sigismember(got, number));                                                                              \
        OK(sigprocmask(SIG_UNBLOCK, set_of(number, 0), NULL));                                                         \
        EXPECT_EQ(count, 1);                                                                                           \
        EXPECT_EQ(last, number);                                                                                       \
        EXPECT_EQ(info_of_last.si_code, SI_USER);                                                                      \
        EXPECT_EQ(info_of_last.si_pid, getpid());                                                                      \
    }
EACH_SIGNAL(BLOCKED, blocked_stays_pending)

#define ACTION_READ_BACK(name, number)                                                                                 \
    CASE(name) {                                                                                                       \
        struct sigaction *old = astride(16);                                                                           \
        OK(sigaction(number, NULL, old));                                                                              \
        EXPECT(old->sa_handler == SIG_DFL);                                                                            \
        handle(number, SA_RESTART | SA_NODEFER);                                                                       \
        memset(old, 0x55, sizeof *old);                                                                                \
        away(old, sizeof *old);                                                                                        \
        OK(sigaction(number, NULL, old));                                                                              \
        EXPECT(old->sa_sigaction == informs);                                                                          \
        EXPECT_EQ(old->sa_flags & (SA_RESTART | SA_NODEFER | SA_SIGINFO | SA_ONSTACK | SA_RESETHAND),                  \
                  SA_RESTART | SA_NODEFER | SA_SIGINFO);                                                               \
        OK(raise(number));                                                                                             \
        EXPECT_EQ(count, 1);                                                                                           \
    }
EACH_SIGNAL(ACTION_READ_BACK, action_read_back)

#define IGNORED(name, number)                                                                                          \
    CASE(name) {                                                                                                       \
        signal(number, SIG_IGN);                                                                                       \
        OK(kill(getpid(), number));                                                                                    \
        OK(raise(number));                                                                                             \
        char *p = absent(4);                                                                                           \
        EXPECT(is_filled(p, 4 * PAGE));                                                                                \
    }
EACH_SIGNAL(IGNORED, ignored)

#define DEFAULT_ENDS(name, number)                                                                                     \
    CASE(name) {                                                                                                       \
        struct rlimit none = {0, 0};                                                                                   \
        OK(setrlimit(RLIMIT_CORE, &none));                                                                             \
        EXPECT_SIGNAL(CHILD({                                                                                          \
                          kill(getpid(), number);                                                                      \
                          pause();                                                                                     \
                      }),                                                                                              \
                      number);                                                                                         \
    }
EACH_SIGNAL(DEFAULT_ENDS, default_ends)

#define RESETS(name, number)                                                                                           \
    CASE(name) {                                                                                                       \
        handle(number, SA_RESETHAND);                                                                                  \
        OK(raise(number));                                                                                             \
        EXPECT_EQ(count, 1);                                                                                           \
        struct sigaction now;                                                                                          \
        OK(sigaction(number, NULL, &now));                                                                             \
        EXPECT(now.sa_handler == SIG_DFL);                                                                             \
    }
EACH_SIGNAL(RESETS, reset_after_one)

#define WAITED_FOR(name, number)                                                                                       \
    CASE(name) {                                                                                                       \
        OK(sigprocmask(SIG_BLOCK, set_of(number, 0), NULL));                                                           \
        OK(kill(getpid(), number));                                                                                    \
        siginfo_t *info = astride(60);                                                                                 \
        EXPECT_EQ(sigwaitinfo(set_of(number, 0), info), number);                                                       \
        EXPECT_EQ(info->si_signo, number);                                                                             \
        EXPECT_EQ(info->si_pid, getpid());                                                                             \
    }
EACH_SIGNAL(WAITED_FOR, waited_for)

#define READ_BY_SIGNALFD(name, number)                                                                                 \
    CASE(name) {                                                                                                       \
        OK(sigprocmask(SIG_BLOCK, set_of(number, 0), NULL));                                                           \
        int fd = OK(signalfd(-1, set_of(number, 0), SFD_NONBLOCK));                                                    \
        OK(kill(getpid(), number));                                                                                    \
        struct signalfd_siginfo *info = astride(60);                                                                   \
        EXPECT_EQ(read(fd, info, sizeof *info), sizeof *info);                                                         \
        EXPECT_EQ(info->ssi_signo, number);                                                                            \
        EXPECT_ERROR(read(fd, info, sizeof *info), EAGAIN);                                                            \
    }
EACH_SIGNAL(READ_BY_SIGNALFD, read_by_signalfd)

#define IN_SA_MASK(name, number)                                                                                       \
    static void name##_handler(int n) {                                                                                \
        (void)n;                                                                                                       \
        kill(getpid(), number);                                                                                        \
        last = count;                                                                                                  \
    }                                                                                                                  \
    CASE(name) {                                                                                                       \
        struct sigaction a = {.sa_handler = name##_handler};                                                           \
        sigaddset(&a.sa_mask, number);                                                                                 \
        signal(number, counts);                                                                                        \
        OK(sigaction(SIGUSR2, &a, NULL));                                                                              \
        last = -1;                                                                                                     \
        OK(raise(SIGUSR2));                                                                                            \
        EXPECT_EQ(count, 1);                                                                                           \
        EXPECT_EQ(last, number);                                                                                       \
    }
EACH_SIGNAL(IN_SA_MASK, held_by_sa_mask)

CASE(mask_read_back) {
    sigset_t *old = no_set();
    OK(sigprocmask(SIG_SETMASK, set_of(SIGBUS, SIGUSR1), NULL));
    OK(sigprocmask(SIG_SETMASK, NULL, old));
    for (int i = 1; i < 32; i++)
        EXPECT_EQ(sigismember(old, i), i == SIGBUS || i == SIGUSR1);
}
CASE(mask_of_the_unblockable) {
    sigset_t *s = no_set();
    sigfillset(s);
    away(s, sizeof *s);
    OK(sigprocmask(SIG_SETMASK, s, NULL));
    OK(sigprocmask(SIG_SETMASK, NULL, s));
    EXPECT(!sigismember(s, SIGKILL) && !sigismember(s, SIGSTOP));
    char *p = absent(4);
    EXPECT(is_filled(p, 4 * PAGE));
}
CASE(mask_of_a_wrong_how) { EXPECT_ERROR(syscall(SYS_rt_sigprocmask, 7, set_of(SIGUSR1, 0), NULL, 8), EINVAL); }
CASE(mask_of_a_wrong_size) { EXPECT_ERROR(syscall(SYS_rt_sigprocmask, SIG_BLOCK, set_of(SIGUSR1, 0), NULL, 4), EINVAL); }
CASE(mask_in_a_hole) { EXPECT_ERROR(syscall(SYS_rt_sigprocmask, SIG_BLOCK, hole(), NULL, 8), EFAULT); }
CASE(mask_old_in_a_hole) { EXPECT_ERROR(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, hole(), 8), EFAULT); }
CASE(mask_probes_an_address) { EXPECT_ERROR(syscall(SYS_rt_sigprocmask, -1, (void *)4096, NULL, 8), EFAULT); }
CASE(mask_probes_a_good_address) { EXPECT_ERROR(syscall(SYS_rt_sigprocmask, -1, absent(1), NULL, 8), EINVAL); }
CASE(action_of_no_signal) {
    struct sigaction a = {.sa_handler = counts};
    EXPECT_ERROR(sigaction(0, &a, NULL), EINVAL);
    EXPECT_ERROR(sigaction(65, &a, NULL), EINVAL);
}
CASE(action_of_kill_and_stop) {
    struct sigaction a = {.sa_handler = counts};
    EXPECT_ERROR(sigaction(SIGKILL, &a, NULL), EINVAL);
    EXPECT_ERROR(sigaction(SIGSTOP, &a, NULL), EINVAL);
}
CASE(action_in_a_hole) { EXPECT_ERROR(syscall(SYS_rt_sigaction, SIGUSR1, hole(), NULL, 8), EFAULT); }
CASE(action_old_in_a_hole) { EXPECT_ERROR(syscall(SYS_rt_sigaction, SIGUSR1, NULL, hole(), 8), EFAULT); }
CASE(action_of_bus_in_a_hole) { EXPECT_ERROR(syscall(SYS_rt_sigaction, SIGBUS, hole(), NULL, 8), EFAULT); }
CASE(action_of_a_wrong_size) { EXPECT_ERROR(syscall(SYS_rt_sigaction, SIGUSR1, NULL, NULL, 4), EINVAL); }
CASE(pending_to_a_hole) { EXPECT_ERROR(syscall(SYS_rt_sigpending, hole(), 8), EFAULT); }
CASE(suspend_mask_in_a_hole) { EXPECT_ERROR(syscall(SYS_rt_sigsuspend, hole(), 8), EFAULT); }
CASE(suspend_lets_in) {
    handle(SIGUSR1, 0);
    OK(sigprocmask(SIG_BLOCK, set_of(SIGUSR1, SIGBUS), NULL));
    OK(raise(SIGUSR1));
    EXPECT_ERROR(sigsuspend(set_of(SIGUSR2, 0)), EINTR);
    EXPECT_EQ(count, 1);
    sigset_t now;
    OK(sigprocmask(SIG_SETMASK, NULL, &now));
    EXPECT(sigismember(&now, SIGUSR1) && sigismember(&now, SIGBUS) && !sigismember(&now, SIGUSR2));
}
CASE(suspend_holds_back_bus) {
    handle(SIGUSR1, 0);
    handle(SIGBUS, 0);
    OK(sigprocmask(SIG_BLOCK, set_of(SIGUSR1, SIGBUS), NULL));
    OK(raise(SIGUSR1));
    OK(kill(getpid(), SIGBUS));
    EXPECT_ERROR(sigsuspend(set_of(SIGBUS, 0)), EINTR);
    EXPECT_EQ(count, 1);
    EXPECT_EQ(last, SIGUSR1);
}
CASE(timedwait_times_out) {
    struct timespec *t = astride(8);
    t->tv_sec = 0, t->tv_nsec = 1000000;
    away(t, sizeof *t);
    OK(sigprocmask(SIG_BLOCK, set_of(SIGUSR1, 0), NULL));
    EXPECT_ERROR(sigtimedwait(set_of(SIGUSR1, 0), NULL, t), EAGAIN);
}
CASE(timedwait_of_a_wrong_time) {
    struct timespec *t = astride(8);
    t->tv_sec = 0, t->tv_nsec = -1;
    EXPECT_ERROR(sigtimedwait(set_of(SIGUSR1, 0), NULL, t), EINVAL);
}
CASE(timedwait_time_in_a_hole) { EXPECT_ERROR(sigtimedwait(set_of(SIGUSR1, 0), NULL, (void *)hole()), EFAULT); }
CASE(timedwait_set_in_a_hole) { EXPECT_ERROR(sigwaitinfo((void *)hole(), NULL), EFAULT); }
CASE(timedwait_information_to_a_hole) {
    OK(sigprocmask(SIG_BLOCK, set_of(SIGUSR1, 0), NULL));
    OK(raise(SIGUSR1));
    EXPECT_ERROR(sigwaitinfo(set_of(SIGUSR1, 0), (void *)hole()), EFAULT);
}
CASE(queue_of_a_value) {
    handle(SIGRTMIN, 0);
    union sigval v = {.sival_int = 4711};
    OK(sigqueue(getpid(), SIGRTMIN, v));
    EXPECT_EQ(info_of_last.si_value.sival_int, 4711);
    EXPECT_EQ(info_of_last.si_code, SI_QUEUE);
}
CASE(queue_of_bus) {
    handle(SIGBUS, 0);
    union sigval v = {.sival_int = 4711};
    OK(sigqueue(getpid(), SIGBUS, v));
    EXPECT_EQ(count, 1);
    EXPECT_EQ(info_of_last.si_value.sival_int, 4711);
}
CASE(queueinfo_away) {
    handle(SIGRTMIN, 0);
    siginfo_t *info = astride(30);
    memset(info, 0, sizeof *info);
    info->si_code = SI_QUEUE, info->si_pid = getpid();
    away(info, sizeof *info);
    OK(syscall(SYS_rt_sigqueueinfo, getpid(), SIGRTMIN, info));
    EXPECT_EQ(count, 1);
    OK(syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), SIGRTMIN, info));
    EXPECT_EQ(count, 2);
    EXPECT_ERROR(syscall(SYS_rt_sigqueueinfo, getpid(), SIGRTMIN, hole()), EFAULT);
}
CASE(real_time_signals_queue) {
    handle(SIGRTMIN, 0);
    OK(sigprocmask(SIG_BLOCK, set_of(SIGRTMIN, 0), NULL));
    for (int i = 0; i < 5; i++)
        OK(raise(SIGRTMIN));
    OK(sigprocmask(SIG_UNBLOCK, set_of(SIGRTMIN, 0), NULL));
    EXPECT_EQ(count, 5);
}
CASE(kill_of_nobody) { EXPECT_ERROR(kill(0x3ffffff, 0), ESRCH); }
CASE(kill_of_no_signal) {
    EXPECT_ERROR(kill(getpid(), 65), EINVAL);
    OK(kill(getpid(), 0));
}
USER_CASE(kill_of_another_user) { EXPECT_ERROR(kill(1, SIGTERM), EPERM); }
CASE(tgkill_and_tkill) {
    handle(SIGUSR1, 0);
    OK(syscall(SYS_tgkill, getpid(), gettid(), SIGUSR1));
    OK(syscall(SYS_tkill, gettid(), SIGUSR1));
    EXPECT_EQ(count, 2);
    EXPECT_EQ(info_of_last.si_code, SI_TKILL);
    EXPECT_ERROR(syscall(SYS_tgkill, getpid(), 0x3ffffff, SIGUSR1), ESRCH);
}
CASE(pidfd_sends) {
    handle(SIGUSR1, 0);
    int fd = NEEDS((int)syscall(SYS_pidfd_open, getpid(), 0));
    siginfo_t *info = astride(30);
    memset(info, 0, sizeof *info);
    info->si_signo = SIGUSR1, info->si_code = SI_QUEUE, info->si_pid = getpid();
    away(info, sizeof *info);
    OK(syscall(SYS_pidfd_send_signal, fd, SIGUSR1, info, 0));
    EXPECT_EQ(count, 1);
    EXPECT_ERROR(syscall(SYS_pidfd_send_signal, fd, SIGUSR1, hole(), 0), EFAULT);
}
CASE(segv_tells_the_address) {
    char *p = pages(1);
    OK(mprotect(p, PAGE, PROT_READ));
    pid_t child = CHILD({
        struct sigaction a = {.sa_sigaction = informs, .sa_flags = SA_SIGINFO | SA_RESETHAND};
        OK(sigaction(SIGSEGV, &a, NULL));
        p[5] = 1;
    });
    EXPECT_SIGNAL(child, SIGSEGV);
}
static char *expected;
static void checks_address(int n, siginfo_t *info, void *c) {
    (void)n, (void)c;
    _exit(info->si_addr == expected && info->si_code == SEGV_ACCERR ? 42 : 1);
}
CASE(segv_address_and_code) {
    expected = absent(1) + 5;
    OK(mprotect(expected - 5, PAGE, PROT_READ));
    struct sigaction a = {.sa_sigaction = checks_address, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGSEGV, &a, NULL));
    EXPECT_EXIT(CHILD(*expected = 1), 42);
}
CASE(bus_error_of_a_file_is_told) {
    int fd = OK(memfd_create("x", 0));
    char *p = OK((char *)mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0));
    EXPECT_SIGNAL(CHILD(*p = 1), SIGBUS);
}
static sigjmp_buf *jump;
static void jumps(int n, siginfo_t *info, void *c) {
    (void)n, (void)c;
    info_of_last = *info;
    siglongjmp(*jump, 1);
}
CASE(bus_error_of_a_file_is_handled) {
    static sigjmp_buf here;
    jump = &here;
    int fd = OK(memfd_create("x", 0));
    char *p = OK((char *)mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0));
    struct sigaction a = {.sa_sigaction = jumps, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGBUS, &a, NULL));
    for (volatile int i = 0; i < 20; i++) {
        if (sigsetjmp(here, 1) == 0) {
            p[i] = 1;
            FAIL("no signal");
        }
        EXPECT_EQ(info_of_last.si_code, BUS_ADRERR);
        EXPECT(info_of_last.si_addr == p + i);
        EXPECT(is_filled(absent(1), PAGE));
    }
}
CASE(bus_error_while_blocked_ends) {
    int fd = OK(memfd_create("x", 0));
    char *p = OK((char *)mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0));
    EXPECT_SIGNAL(CHILD({
                      handle(SIGBUS, 0);
                      OK(sigprocmask(SIG_BLOCK, set_of(SIGBUS, 0), NULL));
                      *p = 1;
                  }),
                  SIGBUS);
}
CASE(bus_error_while_ignored_ends) {
    int fd = OK(memfd_create("x", 0));
    char *p = OK((char *)mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0));
    EXPECT_SIGNAL(CHILD({
                      signal(SIGBUS, SIG_IGN);
                      *p = 1;
                  }),
                  SIGBUS);
}
CASE(blocked_faults_are_served) {
    sigset_t all;
    sigfillset(&all);
    char *p = absent(16);
    OK(sigprocmask(SIG_SETMASK, &all, NULL));
    EXPECT(is_filled(p, 16 * PAGE));
}
CASE(raw_mask_faults_are_served) {
    static uint64_t all = ~0UL;
    char *p = absent(16);
    EXPECT_EQ(RAW(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, 8), 0);
    EXPECT(is_filled(p, 16 * PAGE));
}
CASE(faults_in_a_handler_are_served) {
    handle(SIGUSR1, 0);
    char *p = absent(16);
    OK(raise(SIGUSR1));
    EXPECT(is_filled(p, 16 * PAGE));
}

static void on_stack(int n) {
    (void)n;
    char local;
    stack_t now;
    sigaltstack(NULL, &now);
    last = now.ss_flags == SS_ONSTACK && &local > (char *)now.ss_sp && &local < (char *)now.ss_sp + now.ss_size;
    count++;
}
CASE(altstack_is_used) {
    stack_t *s = astride(12);
    s->ss_sp = absent(8), s->ss_size = 8 * PAGE, s->ss_flags = 0;
    away(s, sizeof *s);
    OK(sigaltstack(s, NULL));
    struct sigaction a = {.sa_handler = on_stack, .sa_flags = SA_ONSTACK};
    OK(sigaction(SIGUSR1, &a, NULL));
    OK(raise(SIGUSR1));
    EXPECT_EQ(count, 1);
    EXPECT_EQ(last, 1);
}
CASE(altstack_read_back) {
    stack_t *s = astride(12), *old = astride(12);
    OK(sigaltstack(NULL, old));
    EXPECT_EQ(old->ss_flags, SS_DISABLE);
    s->ss_sp = absent(8), s->ss_size = 8 * PAGE, s->ss_flags = 0;
    away(s, sizeof *s);
    away(old, sizeof *old);
    OK(sigaltstack(s, old));
    EXPECT_EQ(old->ss_flags, SS_DISABLE);
    away(old, sizeof *old);
    OK(sigaltstack(NULL, old));
    EXPECT(old->ss_sp == s->ss_sp && old->ss_size == s->ss_size);
    EXPECT_EQ(old->ss_flags, 0);
    s->ss_flags = SS_DISABLE;
    OK(sigaltstack(s, NULL));
    OK(sigaltstack(NULL, old));
    EXPECT_EQ(old->ss_flags, SS_DISABLE);
}
CASE(altstack_too_small) {
    stack_t s = {.ss_sp = absent(1), .ss_size = 100};
    EXPECT_ERROR(sigaltstack(&s, NULL), ENOMEM);
}
CASE(altstack_wrong_flag) {
    stack_t s = {.ss_sp = absent(8), .ss_size = 8 * PAGE, .ss_flags = 4};
    EXPECT_ERROR(sigaltstack(&s, NULL), EINVAL);
}
CASE(altstack_in_a_hole) { EXPECT_ERROR(syscall(SYS_sigaltstack, hole(), NULL), EFAULT); }
CASE(altstack_old_in_a_hole) { EXPECT_ERROR(syscall(SYS_sigaltstack, NULL, hole()), EFAULT); }
static void changes(int n) {
    (void)n;
    stack_t s = {.ss_flags = SS_DISABLE};
    errno = 0;
    last = sigaltstack(&s, NULL) == -1 && errno == EPERM;
}
CASE(altstack_changed_while_used) {
    stack_t s = {.ss_sp = absent(8), .ss_size = 8 * PAGE};
    OK(sigaltstack(&s, NULL));
    struct sigaction a = {.sa_handler = changes, .sa_flags = SA_ONSTACK};
    OK(sigaction(SIGUSR1, &a, NULL));
    OK(raise(SIGUSR1));
    EXPECT_EQ(last, 1);
}
__attribute__((noinline)) static void recurses(char *deep) {
    char more[1024];
    memset(more, 1, sizeof more);
    if (deep)
        recurses(more);
    deep[0] = more[0];
}
static void overflowed(int n) {
    (void)n;
    _exit(42);
}
CASE(stack_overflow_is_handled) {
    EXPECT_EXIT(CHILD({
                    stack_t s = {.ss_sp = absent(8), .ss_size = 8 * PAGE};
                    OK(sigaltstack(&s, NULL));
                    struct sigaction a = {.sa_handler = overflowed, .sa_flags = SA_ONSTACK};
                    OK(sigaction(SIGSEGV, &a, NULL));
                    struct rlimit r = {1 << 20, 1 << 20};
                    OK(setrlimit(RLIMIT_STACK, &r));
                    char c;
                    recurses(&c);
                }),
                42);
}
static void deep_locals(int n) {
    (void)n;
    volatile char much[256 << 10];
    for (size_t i = 0; i < sizeof much; i += 512)
        much[i] = 1;
    count++;
}
CASE(onstack_without_a_stack_has_room) {
    struct sigaction a = {.sa_handler = deep_locals, .sa_flags = SA_ONSTACK};
    OK(sigaction(SIGUSR1, &a, NULL));
    OK(raise(SIGUSR1));
    EXPECT_EQ(count, 1);
}
CASE(restart_of_a_read) {
    int fd[2];
    OK(pipe(fd));
    handle(SIGUSR1, SA_RESTART);
    pid_t parent = getpid(), child = CHILD({
        sleep_ms(50);
        kill(parent, SIGUSR1);
        sleep_ms(50);
        EXPECT_EQ(write(fd[1], "x", 1), 1);
    });
    EXPECT_EQ(read(fd[0], absent(1), 1), 1);
    EXPECT_EQ(count, 1);
    EXPECT_EXIT(child, 0);
}
CASE(interruption_of_a_read) {
    int fd[2];
    OK(pipe(fd));
    handle(SIGUSR1, 0);
    pid_t parent = getpid();
    CHILD({
        for (int i = 0; i < 1000; i++) {
            sleep_ms(10);
            kill(parent, SIGUSR1);
        }
    });
    EXPECT_ERROR(read(fd[0], absent(1), 1), EINTR);
}
CASE(interruption_of_nanosleep_tells_the_rest) {
    handle(SIGALRM, 0);
    struct timespec *want = astride(8), *rest = astride(8);
    want->tv_sec = 20, want->tv_nsec = 0;
    away(want, sizeof *want);
    struct itimerval *t = astride(16);
    memset(t, 0, sizeof *t);
    t->it_value.tv_usec = 20000;
    away(t, sizeof *t);
    OK(setitimer(ITIMER_REAL, t, NULL));
    EXPECT_ERROR(nanosleep(want, rest), EINTR);
    EXPECT(rest->tv_sec < 20 && rest->tv_sec >= 0);
}
CASE(nanosleep_in_a_hole) { EXPECT_ERROR(nanosleep((void *)hole(), NULL), EFAULT); }
CASE(nanosleep_of_a_wrong_time) {
    struct timespec *t = astride(8);
    t->tv_sec = -1;
    EXPECT_ERROR(nanosleep(t, NULL), EINVAL);
}
CASE(timer_signals) {
    handle(SIGRTMIN + 1, 0);
    struct sigevent *e = astride(30);
    memset(e, 0, sizeof *e);
    e->sigev_notify = SIGEV_SIGNAL, e->sigev_signo = SIGRTMIN + 1, e->sigev_value.sival_int = 5;
    away(e, sizeof *e);
    timer_t id;
    OK(timer_create(CLOCK_MONOTONIC, e, &id));
    struct itimerspec *t = astride(16);
    memset(t, 0, sizeof *t);
    t->it_value.tv_nsec = 1000000;
    away(t, sizeof *t);
    OK(timer_settime(id, 0, t, NULL));
    while (!count)
        sleep_ms(1);
    EXPECT_EQ(info_of_last.si_code, SI_TIMER);
    EXPECT_EQ(info_of_last.si_value.sival_int, 5);
    OK(timer_gettime(id, t));
    EXPECT_EQ(t->it_value.tv_sec, 0);
    OK(timer_delete(id));
}
CASE(timer_raw_id_away) {
    int *id = astride(2);
    OK(syscall(SYS_timer_create, CLOCK_MONOTONIC, NULL, id));
    EXPECT_ERROR(syscall(SYS_timer_create, CLOCK_MONOTONIC, hole(), id), EFAULT);
    EXPECT_ERROR(syscall(SYS_timer_create, CLOCK_MONOTONIC, NULL, hole()), EFAULT);
    EXPECT_ERROR(syscall(SYS_timer_settime, *id, 0, hole(), NULL), EFAULT);
}
CASE(timerfd_away) {
    int fd = OK(timerfd_create(CLOCK_MONOTONIC, 0));
    struct itimerspec *t = astride(16);
    memset(t, 0, sizeof *t);
    t->it_value.tv_nsec = 1000000;
    away(t, sizeof *t);
    OK(timerfd_settime(fd, 0, t, NULL));
    uint64_t *n = astride(4);
    EXPECT_EQ(read(fd, n, 8), 8);
    EXPECT_EQ(*n, 1);
    OK(timerfd_gettime(fd, t));
    EXPECT_ERROR(timerfd_settime(fd, 0, (void *)hole(), NULL), EFAULT);
}
CASE(itimer_in_a_hole) {
    EXPECT_ERROR(syscall(SYS_setitimer, ITIMER_REAL, hole(), NULL), EFAULT);
    EXPECT_ERROR(syscall(SYS_getitimer, ITIMER_REAL, hole()), EFAULT);
}
CASE(clocks_to_absent_pages) {
    struct timespec *t = astride(8);
    OK(syscall(SYS_clock_gettime, CLOCK_REALTIME, t));
    EXPECT(t->tv_sec > 1000000000);
    OK(syscall(SYS_clock_getres, CLOCK_REALTIME, astride(8)));
    OK(syscall(SYS_gettimeofday, astride(8), NULL));
    EXPECT_ERROR(syscall(SYS_clock_gettime, CLOCK_REALTIME, hole()), EFAULT);
    EXPECT(syscall(SYS_time, astride(4)) > 1000000000);
}
CASE(stop_and_continue) {
    pid_t child = CHILD({
        for (;;)
            pause();
    });
    OK(kill(child, SIGSTOP));
    int *status = astride(2);
    EXPECT_EQ(waitpid(child, status, WUNTRACED), child);
    EXPECT(WIFSTOPPED(*status) && WSTOPSIG(*status) == SIGSTOP);
    OK(kill(child, SIGCONT));
    EXPECT_EQ(waitpid(child, status, WCONTINUED), child);
    EXPECT(WIFCONTINUED(*status));
    OK(kill(child, SIGTERM));
    EXPECT_SIGNAL(child, SIGTERM);
}
CASE(context_of_a_handler_may_be_changed) {
    /* A handler that steps over the faulting instruction continues behind it, with the program's registers. */
    handle(SIGUSR1, 0);
    register unsigned long kept __asm__("rbx") = 0x1234567890abcdef;
    __asm__ volatile("" : "+r"(kept));
    char *p = absent(32);
    OK(raise(SIGUSR1));
    EXPECT(is_filled(p, 32 * PAGE));
    __asm__ volatile("" : "+r"(kept));
    EXPECT(kept == 0x1234567890abcdef);
}
CASE(pending_over_exec) {
    /* Blocked and pending signals stay so. */
    OK(sigprocmask(SIG_BLOCK, set_of(SIGUSR1, SIGBUS), NULL));
    OK(kill(getpid(), SIGUSR1));
    OK(kill(getpid(), SIGBUS));
    execlp("grep", "grep", "-qE", "^ShdPnd:\\s*0000000000000240", "/proc/self/status", NULL);
}
CASE(seen_as_pending_over_exec) {
    OK(sigprocmask(SIG_BLOCK, set_of(SIGUSR1, SIGBUS), NULL));
    OK(kill(getpid(), SIGUSR1));
    OK(kill(getpid(), SIGBUS));
    EXPECT_ERROR(execl("/no such file", "", NULL), ENOENT);
    execlp("python3", "python3", "-c",
           "import signal as s; assert s.sigpending() == {s.SIGUSR1, s.SIGBUS}\n"
           "assert s.sigwait([s.SIGBUS]) == s.SIGBUS and s.sigpending() == {s.SIGUSR1}", NULL);
}
CASE(mask_over_exec) {
    OK(sigprocmask(SIG_SETMASK, set_of(SIGUSR1, SIGBUS), NULL));
    execlp("python3", "python3", "-c",
           "import signal as s; assert s.pthread_sigmask(s.SIG_BLOCK, []) == {s.SIGUSR1, s.SIGBUS}", NULL);
}
CASE(ignored_over_exec) {
    signal(SIGUSR1, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    execlp("grep", "grep", "-qE", "^SigIgn:\\s*[0-9a-f]*1200$", "/proc/self/status", NULL);
}
CASE(ignored_bus_over_exec) {
    signal(SIGBUS, SIG_IGN);
    execlp("python3", "python3", "-c",
           "import signal as s; assert s.getsignal(s.SIGBUS) == s.SIG_IGN; s.raise_signal(s.SIGBUS)", NULL);
}
CASE(ignored_sys_over_exec) {
    signal(SIGSYS, SIG_IGN);
    EXPECT_ERROR(execl("/no such file", "", NULL), ENOENT);
    execlp("python3", "python3", "-c",
           "import signal as s; assert s.getsignal(s.SIGSYS) == s.SIG_IGN; s.raise_signal(s.SIGSYS)", NULL);
}
CASE(ignored_bus_over_an_exec_that_fails) {
    signal(SIGBUS, SIG_IGN);
    char *p = absent(4);
    EXPECT_ERROR(execl("/no such file", "", NULL), ENOENT);
    EXPECT(is_filled(p, 4 * PAGE));
}
CASE(ignored_bus_over_posix_spawn) {
    signal(SIGBUS, SIG_IGN);
    pid_t child;
    char *words[] = {"python3", "-c", "import signal as s; assert s.getsignal(s.SIGBUS) == s.SIG_IGN", NULL};
    EXPECT_EQ(posix_spawnp(&child, words[0], NULL, NULL, words, environ), 0);
    EXPECT_EXIT(child, 0);
}
static void *reads(void *got) { return (void *)(long)pthread_sigmask(SIG_SETMASK, NULL, got); }
CASE(mask_of_a_thread_is_its_own) {
    OK(sigprocmask(SIG_SETMASK, set_of(SIGBUS, 0), NULL));
    pthread_t t;
    sigset_t *got = no_set();
    EXPECT_EQ(pthread_create(&t, NULL, reads, got), 0);
    pthread_join(t, NULL);
    EXPECT(sigismember(got, SIGBUS));
}
