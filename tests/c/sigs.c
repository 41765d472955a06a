/* Signals in a program with far memory. usage: sigs WHAT BALLAST_MIB
 *
 * Each part first evicts its own data with ballast, then checks that signals behave as without far memory.
 */
#include "common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <ucontext.h>

static struct ballast ballast;
static sigjmp_buf *far_jump; /* in far memory */
static volatile sig_atomic_t hits;
static void *volatile last_addr;
static volatile int last_code;
static uint64_t *far_page;

/* The handler touches far memory itself. */
static void touch_far(void) {
    size_t p = (size_t)(hits * 131) % ballast.pages;
    CHECK(pattern_check(ballast.base + p * WORDS, ballast.tag + p + 1) < 0, "handler: ballast page %zu", p);
}

static void on_segv_fix(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)context;
    hits++;
    last_addr = info->si_addr;
    last_code = info->si_code;
    touch_far();
    void *page = (void *)((uintptr_t)info->si_addr & ~(PAGE - 1));
    if (mprotect(page, PAGE, PROT_READ | PROT_WRITE) != 0)
        siglongjmp(*far_jump, 1);
}

static void on_jump(int sig, siginfo_t *info, void *context) {
    (void)context;
    hits++;
    last_addr = info->si_addr;
    last_code = info->si_code;
    touch_far();
    siglongjmp(*far_jump, sig);
}

static void handle(int sig, void (*f)(int, siginfo_t *, void *), int flags) {
    struct sigaction sa = {.sa_sigaction = f, .sa_flags = SA_SIGINFO | flags};
    CHECK(sigaction(sig, &sa, NULL) == 0, "sigaction: %s", strerror(errno));
}

/* A program's own write barrier: PROT_NONE pages opened one by one by its handler. */
static void segv(void) {
    handle(SIGSEGV, on_segv_fix, 0);
    size_t n = 2000;
    uint64_t *area = map_pages(n, PROT_READ | PROT_WRITE);
    for (size_t i = 0; i < n; i++)
        pattern_fill(area + i * WORDS, i + 1);
    CHECK(mprotect(area, n * PAGE, PROT_NONE) == 0, "mprotect");
    ballast_sweep(&ballast);
    for (size_t i = 0; i < n; i++) {
        volatile uint64_t *p = area + i * WORDS + i % WORDS;
        if (i % 2)
            CHECK(*p == pattern_word(i + 1, i % WORDS), "page %zu after its fault", i);
        else
            *p = pattern_word(i + 1, i % WORDS);
        CHECK(last_addr == (void *)p && last_code == SEGV_ACCERR, "page %zu: si_addr %p for %p, si_code %d", i,
              last_addr, (void *)p, last_code);
        CHECK(hits == (int)i + 1, "%d faults after %zu pages", (int)hits, i + 1);
    }
    for (size_t i = 0; i < n; i++)
        CHECK(pattern_check(area + i * WORDS, i + 1) < 0, "page %zu", i);
    CHECK(hits == (int)n, "%d faults for %zu pages", (int)hits, n);
    /* Holes: the address must be reported as unmapped, in the managed range and at null. */
    munmap(area + 10 * WORDS, PAGE);
    volatile uint64_t *wrong[] = {area + 10 * WORDS + 3, (uint64_t *)16, (uint64_t *)0x123450000UL};
    for (int i = 0; i < 3; i++)
        for (int again = 0; again < 20; again++) {
            if (sigsetjmp(*far_jump, 1) == 0) {
                *wrong[i] = 1;
                fail("a write to %p did not fault", (void *)wrong[i]);
            }
            CHECK(last_addr == (void *)wrong[i] && last_code == SEGV_MAPERR, "si_addr %p for %p, si_code %d",
                  last_addr, (void *)wrong[i], last_code);
        }
}

static void *block_thread(void *arg) {
    int raw = (int)(uintptr_t)arg;
    sigset_t all, old, now;
    sigfillset(&all);
    if (raw) {
        long rc;
        register long r10 __asm__("r10") = 8;
        __asm__ volatile("syscall" : "=a"(rc) : "a"(SYS_rt_sigprocmask), "D"(SIG_BLOCK), "S"(&all), "d"(&old), "r"(r10)
                         : "rcx", "r11", "memory");
        CHECK(rc == 0, "raw rt_sigprocmask: %ld", rc);
    } else
        CHECK(pthread_sigmask(SIG_BLOCK, &all, &old) == 0, "pthread_sigmask");
    ballast_sweep(&ballast);
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0, "pthread_sigmask");
    CHECK(sigismember(&now, SIGUSR1) && sigismember(&now, SIGTERM), "the mask was not set");
    if (!raw) /* what the program set is what it reads back */
        CHECK(sigismember(&now, SIGBUS) == 1, "SIGBUS reads as not blocked after sigfillset");
    CHECK(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0, "pthread_sigmask");
    ballast_sweep(&ballast);
    return NULL;
}

static void blockall(void) {
    pthread_t t[4];
    block_thread((void *)0);
    sigset_t all, old;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, &old) == 0, "pthread_sigmask");
    /* Blocking by a raw system call is a known gap of signal mode (G15). */
    int raw = getenv("CANVAS_TEST_NO_RAW_MASK") == NULL;
    for (uintptr_t i = 0; i < 4; i++) /* threads inherit the full mask */
        CHECK(pthread_create(&t[i], NULL, block_thread, (void *)(raw ? i & 1 : 0)) == 0, "pthread_create");
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    /* A handler that runs with all signals blocked. */
    CHECK(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0, "pthread_sigmask");
    struct sigaction sa = {.sa_sigaction = on_jump, .sa_flags = SA_SIGINFO};
    sigfillset(&sa.sa_mask);
    CHECK(sigaction(SIGUSR1, &sa, NULL) == 0, "sigaction");
    for (int i = 0; i < 200; i++)
        if (sigsetjmp(*far_jump, 1) == 0) {
            raise(SIGUSR1);
            fail("the handler returned");
        }
    struct sigaction got;
    CHECK(sigaction(SIGUSR1, NULL, &got) == 0 && got.sa_sigaction == on_jump && sigismember(&got.sa_mask, SIGBUS) == 1,
          "sigaction does not read back what was set");
    /* A blocked signal stays pending. */
    hits = 0;
    CHECK(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0, "pthread_sigmask");
    raise(SIGUSR1);
    ballast_sweep(&ballast);
    CHECK(hits == 0, "a blocked signal was delivered");
    if (sigsetjmp(*far_jump, 0) == 0) {
        CHECK(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0, "pthread_sigmask");
        fail("a pending signal was lost");
    }
    CHECK(hits == 1, "hits %d", (int)hits);
}

/* SIGBUS is used by canvas in signal mode, yet a program's handler for it must work. */
static void sigbus(void) {
    struct sigaction old;
    CHECK(sigaction(SIGBUS, NULL, &old) == 0 && old.sa_handler == SIG_DFL, "SIGBUS does not start as SIG_DFL");
    for (int with_handler = 0; with_handler < 2; with_handler++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork: %s", strerror(errno));
        if (pid == 0) { /* no handler: dies of it; ignored by kill(2) when SIG_IGN */
            if (with_handler) {
                signal(SIGBUS, SIG_IGN);
                kill(getpid(), SIGBUS);
                ballast_sweep(&ballast);
                _exit(7);
            }
            kill(getpid(), SIGBUS);
            for (;;)
                pause();
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
        if (with_handler)
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7, "with SIG_IGN: status %#x", status);
        else
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS, "by default: status %#x", status);
    }
    handle(SIGBUS, on_jump, 0);
    CHECK(sigaction(SIGBUS, NULL, &old) == 0 && old.sa_sigaction == on_jump, "sigaction reads back another handler");
    int fd = memfd_create("short", MFD_CLOEXEC);
    CHECK(ftruncate(fd, 8 * PAGE) == 0, "ftruncate");
    char *file = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(file != MAP_FAILED, "mmap: %s", strerror(errno));
    memset(file, 1, 8 * PAGE);
    CHECK(ftruncate(fd, 2 * PAGE) == 0, "ftruncate");
    for (int i = 0; i < 300; i++) {
        char *at = file + (2 + i % 6) * PAGE + i;
        if (sigsetjmp(*far_jump, 1) == 0) {
            (void)*(volatile char *)at;
            fail("an access past the file's end did not fault");
        }
        CHECK(last_addr == at && last_code == BUS_ADRERR, "si_addr %p for %p, si_code %d", last_addr, (void *)at, last_code);
        CHECK(hits == i + 1, "hits %d after %d", (int)hits, i + 1);
        if (i % 100 == 0)
            ballast_sweep(&ballast);
    }
    hits = 0;
    if (sigsetjmp(*far_jump, 1) == 0) {
        kill(getpid(), SIGBUS);
        fail("kill(SIGBUS) did not reach the handler");
    }
    CHECK(hits == 1, "hits %d", (int)hits);
    ballast_sweep(&ballast);
    CHECK(hits == 1, "far accesses reached the program's SIGBUS handler");
    handle(SIGSYS, on_jump, 0);
    if (sigsetjmp(*far_jump, 1) == 0) {
        raise(SIGSYS);
        fail("raise(SIGSYS) did not reach the handler");
    }
    ballast_sweep(&ballast);
}

static volatile sig_atomic_t alarms;

static void on_alarm(int sig) {
    (void)sig;
    alarms++;
    size_t p = (size_t)alarms * 977 % ballast.pages;
    CHECK(pattern_check(ballast.base + p * WORDS, ballast.tag + p + 1) < 0, "alarm: ballast page %zu", p);
    far_page[alarms % WORDS]++;
}

static void waits(void) {
    /* Timer signals at any point of the fault path. */
    signal(SIGALRM, on_alarm);
    struct itimerval *it = (struct itimerval *)((char *)far_page + 2048);
    far_page[0] = 0;
    memset(far_page, 0, 2048);
    it->it_interval.tv_usec = it->it_value.tv_usec = 700;
    it->it_interval.tv_sec = it->it_value.tv_sec = 0;
    CHECK(setitimer(ITIMER_REAL, it, NULL) == 0, "setitimer");
    for (int i = 0; i < 6; i++)
        ballast_sweep(&ballast);
    while (alarms < 50)
        ballast_sweep(&ballast);
    memset(it, 0, sizeof *it);
    CHECK(setitimer(ITIMER_REAL, it, NULL) == 0, "setitimer");
    /* sigsuspend with a far mask. */
    sigset_t *mask = (sigset_t *)((char *)far_page + 3000), *old = mask + 1;
    sigemptyset(mask);
    sigaddset(mask, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, mask, old) == 0, "sigprocmask");
    signal(SIGUSR1, on_alarm);
    int before = alarms;
    for (int i = 0; i < 20; i++) {
        kill(getpid(), SIGUSR1);
        madvise(far_page, PAGE, MADV_PAGEOUT);
        if (i % 10 == 0)
            ballast_sweep(&ballast);
        CHECK(sigsuspend(old) == -1 && errno == EINTR, "sigsuspend: %s", strerror(errno));
        CHECK(alarms == before + i + 1, "sigsuspend: %d signals after %d", (int)alarms - before, i + 1);
    }
    /* signalfd into a far buffer. */
    int fd = signalfd(-1, mask, SFD_CLOEXEC);
    CHECK(fd >= 0, "signalfd: %s", strerror(errno));
    for (int i = 0; i < 20; i++) {
        kill(getpid(), SIGUSR1);
        struct signalfd_siginfo *si = (struct signalfd_siginfo *)(ballast.base + (size_t)(i * 37 % 100) * WORDS);
        struct signalfd_siginfo saved = *si;
        if (i % 10 == 0)
            ballast_sweep(&ballast);
        CHECK(read(fd, si, sizeof *si) == sizeof *si, "read(signalfd): %s", strerror(errno));
        CHECK(si->ssi_signo == SIGUSR1 && si->ssi_pid == (uint32_t)getpid(), "signalfd: signal %u", si->ssi_signo);
        *si = saved;
    }
    CHECK(alarms == before + 20, "signalfd's signals ran the handler");
    ballast_sweep(&ballast);
}

/* Filters of the program that trap: the signal is the program's, whichever code made the call. */
#define TRAP_DATA 7

static int filter_calls(const int *calls, int n, uint32_t answer) {
    struct sock_filter ops[16] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    int len = 1;
    for (int i = 0; i < n; i++) {
        ops[len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)calls[i], 0, 1);
        ops[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer);
    }
    ops[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    /* The filter is in far memory: the kernel reads it through two pointers. */
    struct sock_filter *far_ops = (struct sock_filter *)far_page;
    struct sock_fprog *prog = (struct sock_fprog *)((char *)far_page + 2048);
    memcpy(far_ops, ops, (size_t)len * sizeof *ops);
    *prog = (struct sock_fprog){.len = (unsigned short)len, .filter = far_ops};
    ballast_sweep(&ballast);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs: %s", strerror(errno));
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, prog);
}

static volatile int trapped_nr;

static void on_trap(int sig, siginfo_t *info, void *context) {
    (void)sig;
    ucontext_t *uc = context;
    hits++;
    trapped_nr = info->si_syscall;
    CHECK(info->si_code == 1 && info->si_errno == TRAP_DATA, "si_code %d, si_errno %d", info->si_code, info->si_errno);
    CHECK(uc->uc_mcontext.gregs[REG_RAX] == info->si_syscall, "rax %lld", uc->uc_mcontext.gregs[REG_RAX]);
    touch_far();
    uc->uc_mcontext.gregs[REG_RAX] = 4242;
}

static long raw_call(long nr, void *a) {
    long rc;
    __asm__ volatile("syscall" : "=a"(rc) : "a"(nr), "D"(a), "S"(0), "d"(0) : "rcx", "r11", "memory");
    return rc;
}

static void trap(void) {
    static const int calls[] = {SYS_getppid, SYS_uname, SYS_times};
    handle(SIGSYS, on_trap, 0);
    CHECK(filter_calls(calls, 3, SECCOMP_RET_TRAP | TRAP_DATA) == 0, "seccomp: %s", strerror(errno));
    struct utsname *name = (struct utsname *)(ballast.base + 50 * WORDS);
    struct sysinfo *info = (struct sysinfo *)((char *)far_page + 1024);
    for (int i = 0; i < 60; i++) {
        int before = hits;
        /* By libc, without and with a far buffer; and by a raw system call. */
        CHECK(syscall(SYS_getppid) == 4242 && trapped_nr == SYS_getppid, "getppid");
        CHECK(uname(name) == 4242 && trapped_nr == SYS_uname, "uname");
        CHECK(raw_call(SYS_uname, name) == 4242 && trapped_nr == SYS_uname, "raw uname");
        CHECK(raw_call(SYS_times, NULL) == 4242 && trapped_nr == SYS_times, "raw times");
        CHECK(hits == before + 4, "%d traps", (int)hits - before);
        /* A call that the filter does not trap. */
        CHECK(raw_call(SYS_sysinfo, info) == 0 && info->totalram > 0, "raw sysinfo");
        CHECK(hits == before + 4, "another call was trapped");
        if (i % 20 == 0)
            ballast_sweep(&ballast);
    }
    for (int how = 0; how < 2; how++) { /* without a handler, or ignored: the end */
        pid_t pid = fork();
        CHECK(pid >= 0, "fork: %s", strerror(errno));
        if (pid == 0) {
            signal(SIGSYS, how ? SIG_IGN : SIG_DFL);
            ballast_sweep(&ballast);
            syscall(SYS_getppid);
            _exit(7);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS, "%d: status %#x", how, status);
    }
}

#define FRAME_PAGES 16
static uintptr_t frame_low;

static void on_frame(int sig) {
    (void)sig;
    volatile char here[(FRAME_PAGES - 8) * PAGE];
    for (size_t i = 0; i < sizeof here; i += 512)
        here[i] = (char)i;
    CHECK((uintptr_t)here >= frame_low && (uintptr_t)here < frame_low + FRAME_PAGES * PAGE,
          "the handler ran at %p, off its stack", (void *)here);
    hits++;
}

/* Writes to pages of ballast in random order: a sweep alone would spare pages that were used twice, and clean pages
 * do not fill the swap cache. */
static void push_out(void) {
    static size_t at;
    for (size_t i = 0; i < ballast.pages / 2; i++) {
        at = (at + 7919) % ballast.pages;
        volatile uint64_t *word = ballast.base + at * WORDS;
        *word = *word;
    }
}

/* A signal stack that was far, and was only read since: the kernel is the first to write there. */
static void frames(void) {
    struct sigaction sa = {.sa_handler = on_frame, .sa_flags = SA_ONSTACK};
    CHECK(sigaction(SIGUSR2, &sa, NULL) == 0, "sigaction: %s", strerror(errno));
    for (int round = 0; round < 12; round++) {
        uint64_t *stack = map_pages(FRAME_PAGES, PROT_READ | PROT_WRITE);
        for (size_t p = 0; p < FRAME_PAGES; p++)
            pattern_fill(stack + p * WORDS, (uint64_t)round * 100 + p + 1);
        push_out();
        for (size_t p = 0; p < FRAME_PAGES; p++)
            CHECK(pattern_check(stack + p * WORDS, (uint64_t)round * 100 + p + 1) < 0, "stack page %zu", p);
        frame_low = (uintptr_t)stack;
        stack_t ss = {.ss_sp = stack, .ss_size = FRAME_PAGES * PAGE}, off = {.ss_flags = SS_DISABLE};
        CHECK(sigaltstack(&ss, NULL) == 0, "sigaltstack: %s", strerror(errno));
        int before = hits;
        CHECK(raise(SIGUSR2) == 0 && hits == before + 1, "the handler did not run");
        push_out();
        CHECK(raise(SIGUSR2) == 0 && hits == before + 2, "the handler did not run again");
        CHECK(sigaltstack(&off, NULL) == 0, "sigaltstack: %s", strerror(errno));
        CHECK(munmap(stack, FRAME_PAGES * PAGE) == 0, "munmap: %s", strerror(errno));
    }
}

/* The kernel ignores discards: pages that cannot be evicted must stay, and stay right. */
static void kept(void) {
    static const int calls[] = {SYS_madvise, SYS_process_madvise};
    size_t n = ballast.pages / 2;
    uint64_t *area = map_pages(n, PROT_READ | PROT_WRITE);
    CHECK(filter_calls(calls, 2, SECCOMP_RET_ERRNO | EPERM) == 0, "seccomp: %s", strerror(errno));
    /* Beyond its limit the program continues slowly: it does what a few seconds allow. */
    double end = now_s() + 2;
    for (uint64_t round = 1; round <= 3; round++) {
        size_t filled = 0;
        while (filled < n && (filled < 1 || now_s() < end)) {
            pattern_fill(area + filled * WORDS, round * n + filled);
            filled++;
        }
        for (size_t p = 0; p < ballast.pages && now_s() < end; p++)
            CHECK(pattern_check(ballast.base + p * WORDS, ballast.tag + p + 1) < 0, "ballast page %zu", p);
        for (size_t i = 0; i < filled; i++)
            CHECK(pattern_check(area + i * WORDS, round * n + i) < 0, "round %d, page %zu", (int)round, i);
    }
    printf("sigs kept: right\n");
    fflush(stdout);
    _exit(0);
}

/* A filter that forbids calls which canvas needs: reported when it is installed. */
static void forbid(void) {
    static const int calls[] = {SYS_ioctl};
    CHECK(filter_calls(calls, 1, SECCOMP_RET_KILL_PROCESS) == 0, "seccomp: %s", strerror(errno));
    ssize_t done = write(1, "forbidden\n", 10);
    (void)done;
}

/* A filter under which a child could not be managed: fork fails, and this process continues. */
static void childless(unsigned answer) {
    static const int calls[] = {SYS_userfaultfd};
    CHECK(filter_calls(calls, 1, answer) == 0, "seccomp: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) {
        ballast_sweep(&ballast);
        _exit(0);
    }
    int status = 0;
    if (child > 0)
        CHECK(waitpid(child, &status, 0) == child, "waitpid: %s", strerror(errno));
    printf("fork: %s, its end %d\n", child < 0 ? strerrorname_np(errno) : "done", status);
}

int main(int argc, char **argv) {
    CHECK(argc == 3, "usage: sigs WHAT BALLAST_MIB");
    far_jump = map_pages(1, PROT_READ | PROT_WRITE);
    memset(far_jump, 0, sizeof *far_jump);
    far_page = map_pages(1, PROT_READ | PROT_WRITE);
    memset(far_page, 0, PAGE);
    ballast_make(&ballast, (size_t)atol(argv[2]), 3);
    ballast_sweep(&ballast);
    if (!strcmp(argv[1], "segv"))
        segv();
    else if (!strcmp(argv[1], "blockall"))
        blockall();
    else if (!strcmp(argv[1], "sigbus"))
        sigbus();
    else if (!strcmp(argv[1], "waits"))
        waits();
    else if (!strcmp(argv[1], "trap"))
        trap();
    else if (!strcmp(argv[1], "frames"))
        frames();
    else if (!strcmp(argv[1], "kept"))
        kept();
    else if (!strcmp(argv[1], "forbid"))
        forbid();
    else if (!strcmp(argv[1], "childless"))
        childless(SECCOMP_RET_ERRNO | EPERM);
    else if (!strcmp(argv[1], "childless-killed"))
        childless(SECCOMP_RET_KILL_PROCESS);
    else
        fail("unknown part %s", argv[1]);
    ballast_sweep(&ballast);
    printf("sigs %s: right\n", argv[1]);
    return 0;
}
