/* Edge cases of SIGBUS, SIGSYS, SIGSEGV and signal stacks in the manual. usage: signal_edges WHAT BALLAST_MIB */
#include "common.h"
#include <ucontext.h>

static struct ballast ballast;
static volatile sig_atomic_t hits, last_code;
static void *volatile last_addr;
static volatile uintptr_t ran_at;
static volatile char *volatile null;

static void count(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)context;
    char here;
    ran_at = (uintptr_t)&here;
    hits++;
    last_code = info->si_code;
    last_addr = info->si_addr;
}

static void handle(int sig, void (*f)(int, siginfo_t *, void *), int flags) {
    struct sigaction sa = {.sa_sigaction = f, .sa_flags = SA_SIGINFO | flags};
    CHECK(sigaction(sig, &sa, NULL) == 0, "sigaction: %s", strerror(errno));
}

static int status_of(void (*f)(int), int arg) {
    pid_t pid = fork();
    CHECK(pid >= 0, "fork: %s", strerror(errno));
    if (pid == 0) {
        f(arg);
        _exit(7);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* A page beyond the end of a file: SIGBUS by the kernel. */
static char *beyond_the_file(void) {
    int fd = memfd_create("short", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, PAGE) == 0, "memfd");
    char *at = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && ftruncate(fd, 0) == 0, "mmap");
    close(fd);
    return at;
}

static void altstack_errors(void) {
    static char room[65536];
    stack_t got, ss = {.ss_sp = room, .ss_size = sizeof room};
    CHECK(sigaltstack(NULL, &got) == 0 && got.ss_flags == SS_DISABLE && got.ss_sp == NULL && got.ss_size == 0,
          "at first: flags %#x", got.ss_flags);
    for (int on = 0; on < 2; on++) {
        for (int flags = 3; flags < 16; flags++) {
            stack_t wrong = {.ss_sp = room, .ss_size = sizeof room, .ss_flags = flags};
            CHECK(sigaltstack(&wrong, &got) == -1 && errno == EINVAL, "flags %#x: %s", flags, strerror(errno));
        }
        stack_t small = {.ss_sp = room, .ss_size = 2047}, off = {.ss_flags = SS_DISABLE};
        CHECK(sigaltstack(&small, NULL) == -1 && errno == ENOMEM, "too small: %s", strerror(errno));
        CHECK(sigaltstack(NULL, &got) == 0 && got.ss_flags == (on ? 0 : SS_DISABLE), "after errors: %#x", got.ss_flags);
        if (on)
            CHECK(sigaltstack(&off, &got) == 0 && got.ss_sp == room && got.ss_size == sizeof room, "off");
        else
            CHECK(sigaltstack(&ss, &got) == 0 && got.ss_flags == SS_DISABLE, "on: %s", strerror(errno));
    }
    CHECK(sigaltstack(NULL, &got) == 0 && got.ss_flags == SS_DISABLE && got.ss_sp == NULL, "at last: %#x", got.ss_flags);
    ss.ss_flags = (int)(1U << 31); /* SS_AUTODISARM */
    CHECK(sigaltstack(&ss, NULL) == 0 && sigaltstack(NULL, &got) == 0 && got.ss_flags == ss.ss_flags, "autodisarm");
    ss.ss_flags = SS_ONSTACK; /* as good as none */
    CHECK(sigaltstack(&ss, NULL) == 0, "SS_ONSTACK: %s", strerror(errno));
}

static void within(int sig, siginfo_t *info, void *context) {
    count(sig, info, context);
    static char other[65536];
    stack_t got, ss = {.ss_sp = other, .ss_size = sizeof other}, off = {.ss_flags = SS_DISABLE};
    CHECK(sigaltstack(NULL, &got) == 0 && got.ss_flags == SS_ONSTACK, "on the stack: flags %#x", got.ss_flags);
    CHECK(sigaltstack(&ss, NULL) == -1 && errno == EPERM, "another stack: %s", strerror(errno));
    CHECK(sigaltstack(&off, NULL) == -1 && errno == EPERM, "off: %s", strerror(errno));
}

static void altstack(void) {
    altstack_errors();
    handle(SIGUSR1, within, SA_ONSTACK);
    CHECK(raise(SIGUSR1) == 0 && hits == 1, "raise");
}

/* The mask and the pending signals. */
static sigset_t set_of(int a, int b) {
    sigset_t s;
    sigemptyset(&s);
    sigaddset(&s, a);
    if (b)
        sigaddset(&s, b);
    return s;
}

static void *raise_in_thread(void *sig) {
    ballast_sweep(&ballast);
    CHECK(kill(getpid(), *(int *)sig) == 0, "kill");
    return NULL;
}

static void blocked_in(int sig) {
    sigset_t set = set_of(sig, 0), now, before;
    CHECK(sigprocmask(SIG_BLOCK, &set, &before) == 0, "sigprocmask");
    handle(sig, count, 0);
    hits = 0;
    for (int how = 0; how < 4; how++) {
        if (how == 0)
            CHECK(kill(getpid(), sig) == 0, "kill");
        else if (how == 1)
            CHECK(raise(sig) == 0, "raise");
        else if (how == 2)
            CHECK(sigqueue(getpid(), sig, (union sigval){.sival_int = 77}) == 0, "sigqueue");
        else {
            pthread_t t;
            CHECK(pthread_create(&t, NULL, raise_in_thread, &sig) == 0 && pthread_join(t, NULL) == 0, "thread");
        }
        ballast_sweep(&ballast);
        CHECK(hits == 0, "%d: blocked and delivered", how);
        CHECK(sigpending(&now) == 0 && sigismember(&now, sig) == 1, "%d: not pending", how);
        siginfo_t info;
        CHECK(sigwaitinfo(&set, &info) == sig && info.si_signo == sig && info.si_pid == getpid(), "%d: sigwaitinfo", how);
        if (how == 2)
            CHECK(info.si_code == SI_QUEUE && info.si_value.sival_int == 77, "value %d", info.si_value.sival_int);
        CHECK(sigpending(&now) == 0 && sigismember(&now, sig) == 0, "%d: pending still", how);
        struct timespec none = {0};
        CHECK(sigtimedwait(&set, NULL, &none) == -1 && errno == EAGAIN, "%d: %s", how, strerror(errno));
    }
    /* When unblocked it is delivered; several count as one. */
    kill(getpid(), sig);
    kill(getpid(), sig);
    CHECK(hits == 0, "early");
    CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0 && hits == 1, "%d after it was opened", (int)hits);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0, "block");
    kill(getpid(), sig);
    CHECK(sigsuspend(&before) == -1 && errno == EINTR && hits == 2, "sigsuspend: %d", (int)hits);
    CHECK(sigprocmask(SIG_BLOCK, NULL, &now) == 0 && sigismember(&now, sig) == 1, "not blocked any more");
    /* A signal ignored meanwhile is discarded, and a child has none pending. */
    kill(getpid(), sig);
    signal(sig, SIG_IGN);
    CHECK(sigpending(&now) == 0 && sigismember(&now, sig) == 0, "ignored, and pending");
    handle(sig, count, 0);
    kill(getpid(), sig);
    pid_t pid = fork();
    if (pid == 0) {
        int none = sigpending(&now) == 0 && sigismember(&now, sig) == 0;
        int blocked = sigprocmask(SIG_SETMASK, NULL, &now) == 0 && sigismember(&now, sig) == 1;
        sigprocmask(SIG_UNBLOCK, &set, NULL);
        ballast_sweep(&ballast);
        _exit(none && blocked && hits == 2 ? 0 : 1);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "child: %#x", status);
    CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0 && hits == 3, "%d at last", (int)hits);
}

static void *waits_for(void *arg) {
    int sig;
    CHECK(sigwait(arg, &sig) == 0, "sigwait");
    return (void *)(intptr_t)sig;
}

static void blocked(void) {
    blocked_in(SIGBUS);
    blocked_in(SIGSYS);
    /* All threads block it, one waits for it. */
    sigset_t set = set_of(SIGBUS, SIGSYS);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0, "block");
    for (int i = 0; i < 40; i++) {
        int sig = i % 2 ? SIGBUS : SIGSYS;
        pthread_t t;
        CHECK(pthread_create(&t, NULL, waits_for, &set) == 0, "thread");
        if (i % 3 == 0)
            usleep(2000);
        kill(getpid(), sig);
        void *got;
        CHECK(pthread_join(t, &got) == 0 && (intptr_t)got == sig, "sigwait got %ld", (long)(intptr_t)got);
    }
    CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0, "unblock");
    /* SIGSEGV is left to the kernel. */
    blocked_in(SIGSEGV);
}

static void fault_blocked(int sig) {
    sigset_t set = set_of(sig, 0);
    handle(sig, count, 0);
    sigprocmask(SIG_BLOCK, &set, NULL);
    if (sig == SIGBUS)
        (void)*(volatile char *)beyond_the_file();
    else
        (void)*null;
}

static void fault_ignored(int sig) {
    signal(sig, SIG_IGN);
    if (sig == SIGBUS)
        (void)*(volatile char *)beyond_the_file();
    else
        (void)*null;
}

static void report_and_raise(int sig, siginfo_t *info, void *context) {
    count(sig, info, context);
    if (hits > 3)
        _exit(9);
    if (info->si_code <= 0)
        raise(sig);
    /* The fault repeats by itself. */
}

static void reporter(int sig) {
    handle(sig, report_and_raise, SA_RESETHAND);
    (void)*(volatile char *)(sig == SIGBUS ? beyond_the_file() : (char *)null);
}

static void reporter_sent(int sig) {
    handle(sig, report_and_raise, (int)SA_RESETHAND);
    kill(getpid(), sig);
    pause();
}

static volatile sig_atomic_t depth, deepest;
static void nested(int sig, siginfo_t *info, void *context) {
    count(sig, info, context);
    depth++;
    if (depth > deepest)
        deepest = depth;
    if (hits < 3)
        raise(sig);
    sigset_t now;
    sigprocmask(SIG_SETMASK, NULL, &now);
    CHECK(sigismember(&now, SIGUSR2) == 1, "sa_mask is not in force");
    depth--;
}

static void flags(void) {
    static const int three[] = {SIGBUS, SIGSYS, SIGSEGV};
    for (int i = 0; i < 3; i++) {
        int sig = three[i];
        CHECK(status_of(reporter_sent, sig) == 1000 + sig, "%d: SA_RESETHAND, sent", sig);
        if (sig != SIGSYS) {
            CHECK(status_of(reporter, sig) == 1000 + sig, "%d: SA_RESETHAND, a fault", sig);
            CHECK(status_of(fault_blocked, sig) == 1000 + sig, "%d: a fault while blocked", sig);
            CHECK(status_of(fault_ignored, sig) == 1000 + sig, "%d: a fault while ignored", sig);
        }
        struct sigaction sa = {.sa_sigaction = nested, .sa_flags = SA_SIGINFO | SA_NODEFER}, got;
        sigemptyset(&sa.sa_mask);
        sigaddset(&sa.sa_mask, SIGUSR2);
        hits = deepest = 0;
        CHECK(sigaction(sig, &sa, NULL) == 0 && raise(sig) == 0, "raise");
        CHECK(hits == 3 && deepest == 3, "%d: SA_NODEFER: %d, %d deep", sig, (int)hits, (int)deepest);
        sa.sa_flags = SA_SIGINFO;
        hits = deepest = 0;
        CHECK(sigaction(sig, &sa, &got) == 0 && raise(sig) == 0, "raise");
        CHECK(hits == 3 && deepest == 1, "%d: deferred: %d, %d deep", sig, (int)hits, (int)deepest);
        CHECK((got.sa_flags & ~0x04000000) == (SA_SIGINFO | SA_NODEFER) && got.sa_sigaction == nested, "flags %#x", got.sa_flags);
        handle(sig, count, SA_RESETHAND | SA_ONSTACK);
        hits = 0;
        CHECK(raise(sig) == 0 && hits == 1, "raise");
        CHECK(sigaction(sig, NULL, &got) == 0 && got.sa_handler == SIG_DFL, "%d: not reset", sig);
        CHECK(((unsigned)got.sa_flags & (SA_RESETHAND | SA_ONSTACK)) == (SA_RESETHAND | SA_ONSTACK), "%d: flags %#x", sig, got.sa_flags);
    }
}

static void *send_bus(void *arg) {
    usleep(100000);
    pthread_kill(*(pthread_t *)arg, SIGBUS);
    usleep(100000);
    ssize_t done = write(((int *)arg)[4], "x", 1);
    (void)done;
    return NULL;
}

/* A read(2) interrupted by SIGBUS restarts or not, as its action says. */
static void restart(void) {
    for (int with = 0; with < 3; with++) {
        int ends[2];
        CHECK(pipe(ends) == 0, "pipe");
        union {
            pthread_t t;
            int fds[6];
        } self = {0};
        self.t = pthread_self();
        self.fds[4] = ends[1];
        if (with == 2)
            signal(SIGBUS, SIG_IGN);
        else
            handle(SIGBUS, count, with ? SA_RESTART : 0);
        pthread_t t;
        char c;
        hits = 0;
        CHECK(pthread_create(&t, NULL, send_bus, &self) == 0, "thread");
        ssize_t n = read(ends[0], &c, 1);
        CHECK(with ? n == 1 : (n == -1 && errno == EINTR), "%d: read gives %zd", with, n);
        CHECK(hits == (with < 2), "%d: %d signals", with, (int)hits);
        pthread_join(t, NULL);
        close(ends[0]);
        close(ends[1]);
    }
}

/* The stack that handlers run on. */
static volatile uintptr_t low, high;
static void big(int sig, siginfo_t *info, void *context) {
    count(sig, info, context);
    volatile char locals[256 << 10];
    for (size_t i = 0; i < sizeof locals; i += 1024)
        locals[i] = (char)(i >> 10);
    for (size_t i = 0; i < sizeof locals; i += 1024)
        CHECK(locals[i] == (char)(i >> 10), "a local is lost");
    low = (uintptr_t)locals;
    high = (uintptr_t)context;
}

static double third(double x) { return x / 3; }

static void *big_in_thread(void *arg) {
    (void)arg;
    char here;
    static const int all[] = {SIGUSR1, SIGBUS, SIGSYS, SIGSEGV, SIGTERM};
    for (int round = 0; round < 50; round++)
        for (int i = 0; i < 5; i++) {
            volatile double before = third(round + i);
            int hit = hits;
            CHECK(raise(all[i]) == 0 && hits == hit + 1, "raise");
            CHECK(before == third(round + i), "registers");
            uintptr_t at = (uintptr_t)&here;
            CHECK(at > low && at - low < 1 << 20 && high < at && at - high < 65536, "%d: the handler ran at %#lx, we are at %#lx",
                  all[i], (long)low, (long)at);
        }
    ballast_sweep(&ballast);
    return NULL;
}

static sigjmp_buf back;
static void jump(int sig, siginfo_t *info, void *context) {
    count(sig, info, context);
    siglongjmp(back, 1);
}

/* A handler with SA_ONSTACK in a thread without such a stack runs on the interrupted stack. */
static void locals(void) {
    static const int all[] = {SIGUSR1, SIGBUS, SIGSYS, SIGSEGV, SIGTERM};
    for (int i = 0; i < 5; i++)
        handle(all[i], big, i == 4 ? 0 : SA_ONSTACK);
    big_in_thread(NULL);
    for (int i = 0; i < 3; i++) {
        pthread_t t;
        CHECK(pthread_create(&t, NULL, big_in_thread, NULL) == 0 && pthread_join(t, NULL) == 0, "thread");
    }
    /* Leaves it by a jump, often. */
    handle(SIGUSR1, jump, SA_ONSTACK);
    for (volatile int i = 0; i < 2000; i++)
        if (sigsetjmp(back, 1) == 0) {
            raise(SIGUSR1);
            fail("the handler returned");
        }
}

/* Coroutines on stacks from malloc, and handlers that do not know about them. */
static ucontext_t here, there[8];
/* Deeper and deeper: the stack right below was never touched, or not for long. */
static void __attribute__((noinline)) deeper(int n, int i) {
    volatile char room[5000];
    room[0] = (char)i;
    int hit = hits;
    raise(i % 2 ? SIGUSR1 : SIGALRM);
    CHECK(hits == hit + 1, "%d: no signal", n);
    if (i % 40 < 39)
        deeper(n, i + 1);
    else
        swapcontext(&there[n], &here);
    CHECK(room[0] == (char)i, "%d: a local is lost", n);
}

static void coroutine(int n) {
    for (int i = 0;; i += 40)
        deeper(n, i);
}

static void coroutines(void) {
    handle(SIGUSR1, count, 0);
    handle(SIGALRM, count, SA_RESTART);
    for (int n = 0; n < 8; n++) {
        getcontext(&there[n]);
        there[n].uc_stack = (stack_t){.ss_sp = malloc(256 << 10), .ss_size = 256 << 10};
        makecontext(&there[n], (void (*)(void))coroutine, 1, n);
    }
    for (int round = 0; round < 40; round++) {
        for (int n = 0; n < 8; n++)
            swapcontext(&here, &there[n]);
        if (round % 4 == 0)
            ballast_sweep(&ballast);
    }
    struct sigaction got;
    CHECK(sigaction(SIGUSR1, NULL, &got) == 0 && (got.sa_flags & ~0x04000000) == SA_SIGINFO && got.sa_sigaction == count,
          "read back: %#x", got.sa_flags);
    /* On a stack that the kernel provides the handler still runs there. */
    char local;
    raise(SIGUSR1);
    CHECK(ran_at < (uintptr_t)&local && (uintptr_t)&local - ran_at < 65536, "the handler ran elsewhere");
}

/* Bytes of a small signal stack that a fault needs besides the kernel's frame. */
#define SMALL 8192
static unsigned char small[SMALL + 2 * PAGE];
static volatile size_t frame_bytes;
static void touch_some(int sig, siginfo_t *info, void *context) {
    count(sig, info, context);
    frame_bytes = (size_t)(small + PAGE + SMALL - (unsigned char *)context);
    static size_t p;
    for (int i = 0; i < 64; i++) {
        p = (p + 131) % ballast.pages;
        CHECK(pattern_check(ballast.base + p * WORDS, ballast.tag + p + 1) < 0, "page %zu", p);
    }
}

static void *on_small(void *arg) {
    (void)arg;
    unsigned char *low_end = small + PAGE;
    memset(small, 0xa5, sizeof small);
    stack_t ss = {.ss_sp = low_end, .ss_size = SMALL}, off = {.ss_flags = SS_DISABLE};
    CHECK(sigaltstack(&ss, NULL) == 0, "sigaltstack: %s", strerror(errno));
    ballast_sweep(&ballast); /* faults of the thread itself, whose frames lie there */
    size_t used = 0;
    while (used < SMALL && low_end[used] == 0xa5)
        used++;
    used = SMALL - used;
    CHECK(used <= 6144, "a fault takes %zu bytes of %d", used, SMALL);
    CHECK(small[PAGE - 1] == 0xa5, "below the stack");
    handle(SIGUSR2, touch_some, SA_ONSTACK);
    for (int i = 0; i < 20; i++)
        CHECK(raise(SIGUSR2) == 0, "raise"); /* a fault within a handler: two frames */
    CHECK(small[PAGE - 1] == 0xa5, "below the stack, from a handler");
    CHECK(sigaltstack(&off, NULL) == 0, "off");
    return NULL;
}

static void small_stack(void) {
    on_small(NULL);
    pthread_t t;
    CHECK(pthread_create(&t, NULL, on_small, NULL) == 0 && pthread_join(t, NULL) == 0, "thread");
}

/* More threads over the generations than there are signal stacks: ended threads return theirs. */
static void *idle(void *arg) {
    pause();
    return arg;
}

static void *last_thread(void *arg) {
    sigset_t now;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &now) == 0 && sigismember(&now, SIGBUS) == 1, "the last thread's mask is lost");
    coroutines();
    return arg;
}

#define GENERATIONS 300
#define THREADS 32
static void generations(void) {
    int ends[2];
    char done = 0;
    pthread_t t[THREADS + 1];
    CHECK(pipe(ends) == 0, "pipe");
    sigset_t both = set_of(SIGBUS, SIGSYS);
    CHECK(sigprocmask(SIG_BLOCK, &both, NULL) == 0, "block");
    for (int i = 0; i < GENERATIONS; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork %d: %s", i, strerror(errno));
        if (pid != 0 && i > 0)
            _exit(0);
        if (pid != 0) {
            close(ends[1]);
            CHECK(read(ends[0], &done, 1) == 1, "the last generation failed");
            return;
        }
        for (int k = 0; k < THREADS && i < GENERATIONS - 1; k++)
            CHECK(pthread_create(&t[k], NULL, idle, NULL) == 0, "thread");
    }
    CHECK(pthread_create(&t[THREADS], NULL, last_thread, NULL) == 0 && pthread_join(t[THREADS], NULL) == 0, "thread");
    CHECK(write(ends[1], "x", 1) == 1, "write");
    _exit(0);
}

/* sigaction from two threads while a third one forks: no child hangs. */
static volatile int stop;
static void *changes(void *arg) {
    while (!stop) {
        handle(SIGBUS, count, SA_RESTART);
        signal(SIGSYS, SIG_IGN);
    }
    return arg;
}
static void forks_meanwhile(void) {
    pthread_t t[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&t[i], NULL, changes, NULL) == 0, "thread");
    for (int i = 0; i < 100; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork: %s", strerror(errno));
        if (pid == 0) {
            alarm(20);
            handle(SIGBUS, count, 0);
            signal(SIGSYS, SIG_DFL);
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "child %d: %#x", i, status);
    }
    stop = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
}

int main(int argc, char **argv) {
    CHECK(argc == 3, "usage: signal_edges WHAT BALLAST_MIB");
    ballast_make(&ballast, (size_t)atol(argv[2]), 3);
    ballast_sweep(&ballast);
    static const struct {
        const char *name;
        void (*part)(void);
    } parts[] = {{"altstack", altstack}, {"blocked", blocked}, {"flags", flags}, {"restart", restart},
                 {"locals", locals}, {"coroutines", coroutines}, {"small-stack", small_stack},
                 {"generations", generations}, {"forks", forks_meanwhile}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strcmp(argv[1], parts[i].name)) {
            parts[i].part();
            ballast_sweep(&ballast);
            printf("signal_edges %s: right\n", argv[1]);
            return 0;
        }
    fail("unknown part %s", argv[1]);
}
