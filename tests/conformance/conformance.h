/* The frame of the conformance suite: cases with one expectation each, in processes of their own (README.md).
 *
 * A program that includes this file has a main: without arguments, or with names of cases, it runs them and
 * prints "ok NAME", "FAIL NAME: why" or "skip NAME: why" for each; --list prints the names. */
#ifndef CANVAS_CONFORMANCE_H
#define CANVAS_CONFORMANCE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <linux/close_range.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define RW (PROT_READ | PROT_WRITE)
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)
#define CASES_MAX 256
#define CASE_TIMEOUT_S 60
#define EXIT_SKIP 77

enum users { EVERYBODY, ROOT_ALONE, USER_ALONE };

static struct {
    const char *name;
    void (*run)(void);
    enum users users;
} cases[CASES_MAX];
static int case_count;

static inline void case_add(const char *name, void (*run)(void), enum users users) {
    if (case_count == CASES_MAX) {
        fprintf(stderr, "more than %d cases: make a second file\n", CASES_MAX);
        exit(2);
    }
    cases[case_count].name = name;
    cases[case_count].run = run;
    cases[case_count++].users = users;
}

#define CASE_FOR(users, name)                                                                                          \
    static void case_##name(void);                                                                                     \
    __attribute__((constructor)) static void add_##name(void) { case_add(#name, case_##name, users); }                 \
    static void case_##name(void)
/* CASE(name) { ... } is run as root and as an ordinary user; the others by one of them. */
#define CASE(name) CASE_FOR(EVERYBODY, name)
#define ROOT_CASE(name) CASE_FOR(ROOT_ALONE, name)
#define USER_CASE(name) CASE_FOR(USER_ALONE, name)

/* Ends the process, and with it the case, with a line that has the reason. */
static inline void __attribute__((noreturn, format(printf, 2, 3))) over(int code, const char *format, ...) {
    char line[1024];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(line, sizeof line - 1, format, ap);
    va_end(ap);
    n = n < 0 ? 0 : n > (int)sizeof line - 2 ? (int)sizeof line - 2 : n;
    line[n++] = '\n';
    ssize_t done = write(2, line, n);
    (void)done;
    _exit(code);
}
#define FAIL(format, ...) over(1, "line %d: " format, __LINE__, ##__VA_ARGS__)
/* For features that the kernel or the machine lacks, never for those that canvas lacks: they are in `gaps`. */
#define SKIP(format, ...) over(EXIT_SKIP, format, ##__VA_ARGS__)

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        if (!(condition))                                                                                              \
            FAIL("%s does not hold (%s)", #condition, strerror(errno));                                                \
    } while (0)
/* The two numbers are equal. */
#define EXPECT_EQ(got, want)                                                                                           \
    do {                                                                                                               \
        long got_ = (long)(got), want_ = (long)(want);                                                                 \
        if (got_ != want_)                                                                                             \
            FAIL("%s is %ld, and not %ld", #got, got_, want_);                                                         \
    } while (0)
/* The call succeeds; its value. */
#define OK(call)                                                                                                       \
    ({                                                                                                                 \
        errno = 0;                                                                                                     \
        __typeof__(call) ok_ = (call);                                                                                 \
        if ((long)ok_ == -1)                                                                                           \
            FAIL("%s: %s", #call, strerror(errno));                                                                    \
        ok_;                                                                                                           \
    })
/* The call fails with this error. */
#define EXPECT_ERROR(call, error)                                                                                      \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        long got_ = (long)(call);                                                                                      \
        if (got_ != -1)                                                                                                \
            FAIL("%s gives %ld, and not %s", #call, got_, #error);                                                     \
        if (errno != (error))                                                                                          \
            FAIL("%s gives %s, and not %s", #call, strerrorname_np(errno), #error);                                    \
    } while (0)
/* Skips where this kernel (or its settings) does not have the call. */
#define NEEDS(call)                                                                                                    \
    ({                                                                                                                 \
        errno = 0;                                                                                                     \
        __typeof__(call) needs_ = (call);                                                                              \
        if ((long)needs_ == -1 && (errno == ENOSYS || errno == EOPNOTSUPP))                                            \
            SKIP("this kernel has no %s", #call);                                                                      \
        if ((long)needs_ == -1)                                                                                        \
            FAIL("%s: %s", #call, strerror(errno));                                                                    \
        needs_;                                                                                                        \
    })

/* A child by fork that runs the block and exits with 0; its pid. */
#define CHILD(...)                                                                                                     \
    ({                                                                                                                 \
        pid_t child_ = OK(fork());                                                                                     \
        if (child_ == 0) {                                                                                             \
            __VA_ARGS__;                                                                                               \
            _exit(0);                                                                                                  \
        }                                                                                                              \
        child_;                                                                                                        \
    })
static inline int status_of(pid_t pid) {
    int status = -1;
    while (waitpid(pid, &status, __WALL) == -1 && errno == EINTR)
        ;
    return status;
}
#define EXPECT_EXIT(pid, code)                                                                                         \
    do {                                                                                                               \
        int status_ = status_of(pid);                                                                                  \
        if (!WIFEXITED(status_) || WEXITSTATUS(status_) != (code))                                                     \
            FAIL("the child ended with %s %d, and not with exit code %d", WIFEXITED(status_) ? "exit code" : "signal", \
                 WIFEXITED(status_) ? WEXITSTATUS(status_) : WTERMSIG(status_), code);                                 \
    } while (0)
#define EXPECT_SIGNAL(pid, number)                                                                                     \
    do {                                                                                                               \
        int status_ = status_of(pid);                                                                                  \
        if (!WIFSIGNALED(status_) || WTERMSIG(status_) != (number))                                                    \
            FAIL("the child ended with %s %d, and not with %s", WIFEXITED(status_) ? "exit code" : "signal",           \
                 WIFEXITED(status_) ? WEXITSTATUS(status_) : WTERMSIG(status_), #number);                              \
    } while (0)

/* The system call by an instruction of this program, as code outside of libc makes it: a result, or -errno. */
static inline long raw6(long n, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#define RAW_(n, a, b, c, d, e, f, ...) raw6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define RAW(...) RAW_(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)

/* Whether canvas manages the process. Only helpers of this file may ask: a case expects one result. */
static inline int managed(void) { return getenv("CANVAS_SEGMENT_FD") != NULL; }

/* Private anonymous pages of zeros before an unmapped page. Another page behind that one keeps later calls out of
 * it. */
static inline char *pages(size_t count) {
    char *p = OK((char *)mmap(NULL, (count + 2) * PAGE, RW, PRIVATE, -1, 0));
    OK(munmap(p + count * PAGE, PAGE));
    return p;
}

/* Whether the slow suite runs the cases: they may take longer then. */
static inline int is_slow(void) {
    const char *said = getenv("CONFORMANCE_SLOW");
    return said && *said;
}

/* Without optimisation most of the time would be spent in these loops. */
#define FAST __attribute__((optimize("O2")))

/* Fills `p` with bytes that depend on their position. */
FAST static inline void fill(void *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)p)[i] = (unsigned char)(i * 31 + i / PAGE + 1);
}
FAST static inline int is_filled(const void *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)p)[i] != (unsigned char)(i * 31 + i / PAGE + 1))
            return 0;
    return 1;
}

static inline void sleep_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t) == -1 && errno == EINTR)
        ;
}

/* Evicts the pages of [p, p + bytes); returns whether that succeeded. Without canvas does nothing, and returns 1. */
static inline int try_away(const void *p, size_t bytes) {
    static char *kept;
    if (!managed())
        return 1;
    /* A process keeps its last 256 KiB. */
    if (!kept) {
        kept = pages(256);
        for (size_t i = 0; i < 256; i++)
            kept[i * PAGE] = 1;
    }
    char *begin = (char *)((uintptr_t)p & -PAGE);
    size_t length = (((uintptr_t)p + bytes + PAGE - 1) & -PAGE) - (uintptr_t)begin;
    unsigned char there[length / PAGE];
    for (int tries = 0; tries < 600; tries++) {
        madvise(begin, length, MADV_PAGEOUT);
        size_t left = 0;
        if (mincore(begin, length, there) == 0)
            for (size_t i = 0; i < length / PAGE; i++)
                left += there[i] & 1;
        if (left == 0)
            return 1;
        sleep_ms(tries < 10 ? 1 : 5);
    }
    return 0;
}
#define away(p, bytes)                                                                                                 \
    do {                                                                                                               \
        if (!try_away(p, bytes))                                                                                       \
            FAIL("pages of %s did not leave", #p);                                                                     \
    } while (0)
/* Evicted pages with bytes that depend on their position. */
static inline char *absent(size_t count) {
    char *p = pages(count);
    fill(p, count * PAGE);
    away(p, count * PAGE);
    return p;
}
/* Memory for one object that begins `before` bytes ahead of the end of the first of two absent pages. */
static inline void *astride(size_t before) { return absent(2) + PAGE - before; }
/* An address at which nothing is mapped, one page, between pages that are. */
/* si_code of the SIGSEGV that a touch gives, or 0. */
static sigjmp_buf touch_back;
static volatile int touch_code;
static inline void touch_caught(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    touch_code = info->si_code;
    siglongjmp(touch_back, 1);
}
static inline int touch(volatile char *p, int write) {
    struct sigaction action = {.sa_sigaction = touch_caught, .sa_flags = SA_SIGINFO};
    OK(sigaction(SIGSEGV, &action, NULL));
    touch_code = 0;
    if (sigsetjmp(touch_back, 1) == 0) {
        if (write)
            *p = 1;
        else
            (void)*p;
    }
    return touch_code;
}

static inline char *hole(void) {
    char *p = pages(3);
    OK(munmap(p + PAGE, PAGE));
    return p + PAGE;
}
/* `bytes` bytes right before an unmapped page; all of their pages are absent. */
static inline char *before_hole(size_t bytes) {
    size_t count = (bytes + PAGE - 1) / PAGE;
    return absent(count) + count * PAGE - bytes;
}

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path);
}

/* Runs one case in its own process, directory and session; prints its line; returns its exit code. */
static inline int case_in_process(int number, const char *self) {
    char dir[] = "./case-XXXXXX", text[2048], line[600];
    if (!mkdtemp(dir)) {
        printf("FAIL %s: mkdtemp: %s\n", cases[number].name, strerror(errno));
        return 1;
    }
    snprintf(line, sizeof line, "%s.out", dir);
    int out = open(line, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    unlink(line);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        if (chdir(dir) || dup2(out, 1) == -1 || dup2(out, 2) == -1)
            _exit(2);
        /* Descriptors that the caller left open do not matter to the case. */
        close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
        execl(self, self, "--case", cases[number].name, NULL);
        _exit(2);
    }
    int status = 0, hung = 1;
    for (long waited = 0; pid > 0 && hung && waited < CASE_TIMEOUT_S * 1000L; waited += 2) {
        siginfo_t ended = {0};
        waitid(P_PID, pid, &ended, WEXITED | WNOHANG | WNOWAIT);
        hung = ended.si_pid != pid;
        if (hung)
            sleep_ms(2);
    }
    if (pid > 0) {
        kill(-pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    /* The last line of its output has the reason. */
    ssize_t n = pread(out, text, sizeof text - 1, 0);
    close(out);
    text[n > 0 ? n : 0] = 0;
    for (char *c = text; *c; c++)
        if (*c == '\n' && c[1] == 0)
            *c = 0;
    char *last = strrchr(text, '\n') ? strrchr(text, '\n') + 1 : text;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (!hung && code == 0)
        printf("ok %s\n", cases[number].name);
    else if (!hung && code == EXIT_SKIP)
        printf("skip %s: %s\n", cases[number].name, last);
    else if (hung)
        printf("FAIL %s: not finished after %d s %s\n", cases[number].name, CASE_TIMEOUT_S, last);
    else if (!WIFEXITED(status))
        printf("FAIL %s: ended by signal %d %s\n", cases[number].name, WTERMSIG(status), last);
    else
        printf("FAIL %s: %s%.0d\n", cases[number].name, *last ? last : "exit code ", *last ? 0 : code);
    fflush(stdout);
    return hung ? 1 : code == EXIT_SKIP ? 0 : code;
}

int main(int argc, char **argv) {
    char self[512];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    if (argc == 3 && !strcmp(argv[1], "--case")) {
        for (int i = 0; i < case_count; i++)
            if (!strcmp(cases[i].name, argv[2])) {
                cases[i].run();
                return 0;
            }
        return 2;
    }
    int wrong = 0, list = argc == 2 && !strcmp(argv[1], "--list");
    enum users other = geteuid() == 0 ? USER_ALONE : ROOT_ALONE;
    for (int i = 0; i < case_count; i++) {
        int wanted = argc == 1;
        for (int a = 1; a < argc; a++)
            wanted |= !strcmp(cases[i].name, argv[a]);
        if (list)
            printf("%s\n", cases[i].name);
        else if (wanted && cases[i].users != other)
            wrong |= case_in_process(i, self);
    }
    return wrong ? 1 : 0;
}
#endif
