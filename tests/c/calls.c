/* System calls as the kernel answers them: what is printed must be the same with canvas and without.
 *
 * calls bad: bad pointers to every call that canvas handles
 */
#include "common.h"

#include <linux/filter.h>
#include <linux/sched.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

/* An unreadable or unwritable address, with its name. */
struct bad {
    const char *name;
    char *at;
};

static void said(const char *call, const char *where, long r) {
    printf("%s %s: %s\n", call, where, r < 0 ? strerrorname_np(errno) : "done");
}

#define SAY(call, ...) said(call, b->name, syscall(__VA_ARGS__))

/* Passes an address that the call reads. */
static void bad_to_read(const struct bad *b, int epoll, int file) {
    char *at = b->at, *echo[] = {"/bin/true", NULL};
    SAY("sigaction", SYS_rt_sigaction, SIGUSR1, at, NULL, 8);
    SAY("sigaction of SIGBUS", SYS_rt_sigaction, SIGBUS, at, NULL, 8);
    SAY("sigprocmask", SYS_rt_sigprocmask, SIG_BLOCK, at, NULL, 8);
    SAY("sigprocmask of no kind", SYS_rt_sigprocmask, -1, at, NULL, 8);
    SAY("sigprocmask of no size", SYS_rt_sigprocmask, SIG_BLOCK, at, NULL, 4);
    SAY("sigsuspend", SYS_rt_sigsuspend, at, 8);
    SAY("sigsuspend of no size", SYS_rt_sigsuspend, at, 4);
    SAY("sigaltstack", SYS_sigaltstack, at, NULL);
    struct timespec none = {0, 0};
    SAY("ppoll", SYS_ppoll, NULL, 0, &none, at, 8);
    struct epoll_event event;
    SAY("epoll_pwait", SYS_epoll_pwait, epoll, &event, 1, 0, at, 8);
    struct { void *set; size_t size; } pair = {at, 8};
    SAY("pselect6's set", SYS_pselect6, 0, NULL, NULL, NULL, &none, &pair);
    SAY("pselect6's pair", SYS_pselect6, 0, NULL, NULL, NULL, &none, at);
    SAY("setrlimit", SYS_setrlimit, RLIMIT_CORE, at);
    SAY("prlimit of RLIMIT_AS", SYS_prlimit64, 0, RLIMIT_AS, at, NULL);
    SAY("seccomp", SYS_seccomp, 1, 0, at);
    struct sock_fprog program = {2, (struct sock_filter *)at};
    SAY("seccomp's filter", SYS_seccomp, 1, 0, &program);
    SAY("prctl of a filter", SYS_prctl, PR_SET_SECCOMP, 2, at, 0, 0);
    SAY("prctl of a name", SYS_prctl, PR_SET_NAME, at, 0, 0, 0);
    SAY("clone3", SYS_clone3, at, 88);
    SAY("execve", SYS_execve, at, echo, echo);
    SAY("execve's argv", SYS_execve, "/bin/true", at, echo);
    SAY("execve's envp", SYS_execve, "/bin/true", echo, at);
    char *strings[] = {"/bin/true", at, NULL};
    SAY("execve's argument", SYS_execve, "/bin/true", strings, echo);
    SAY("execve's variable", SYS_execve, "/bin/true", echo, strings);
    SAY("execve of no file", SYS_execve, "/no/such", strings, at);
    SAY("execveat", SYS_execveat, AT_FDCWD, at, echo, echo, 0);
    SAY("open", SYS_open, at, O_RDONLY);
    SAY("writev", SYS_writev, file, at, 1);
    struct iovec one = {at, 16};
    SAY("writev's buffer", SYS_writev, file, &one, 1);
    SAY("sendmsg", SYS_sendmsg, file, at, 0);
    SAY("nanosleep", SYS_nanosleep, at, NULL);
}

/* Passes an address that the call writes. */
static void bad_to_write(const struct bad *b, int fd) {
    char *at = b->at;
    struct timespec none = {0, 0};
    SAY("old sigaction", SYS_rt_sigaction, SIGUSR1, NULL, at, 8);
    SAY("old sigaction of SIGSYS", SYS_rt_sigaction, SIGSYS, NULL, at, 8);
    SAY("old sigprocmask", SYS_rt_sigprocmask, SIG_BLOCK, NULL, at, 8);
    SAY("old sigaltstack", SYS_sigaltstack, NULL, at);
    SAY("getrlimit", SYS_getrlimit, RLIMIT_CORE, at);
    SAY("old prlimit of RLIMIT_DATA", SYS_prlimit64, 0, RLIMIT_DATA, NULL, at);
    char *two = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SAY("mincore", SYS_mincore, two, 2 * PAGE, at);
    munmap(two, 2 * PAGE);
    SAY("read", SYS_read, fd, at, 1);
    SAY("pipe", SYS_pipe2, at, 0);
    SAY("prctl of a name there", SYS_prctl, PR_GET_NAME, at, 0, 0, 0);
    SAY("clock_gettime", SYS_clock_gettime, CLOCK_REALTIME, at);
    SAY("getsockname", SYS_getsockname, 0, at, at);
    SAY("ppoll's descriptors", SYS_ppoll, at, 1, &none, NULL, 8);
}

static void bad_pointers(void) {
    char *pages = map_pages(6, PROT_READ | PROT_WRITE);
    for (int i = 0; i < 6; i++)
        memset(pages + i * PAGE, 'x', PAGE);
    CHECK(mprotect(pages + PAGE, PAGE, PROT_NONE) == 0, "mprotect");
    CHECK(munmap(pages + 3 * PAGE, PAGE) == 0, "munmap");
    CHECK(mprotect(pages + 5 * PAGE, PAGE, PROT_READ) == 0, "mprotect");
    struct bad all[] = {
        {"low", (char *)4096},
        {"odd", (char *)12345},
        {"the kernel's", (char *)0xffff888000000000},
        {"the last", (char *)-8},
        {"inaccessible", pages + PAGE},
        {"half inaccessible", pages + PAGE - 4},
        {"a hole", pages + 3 * PAGE + 16},
        {"half a hole", pages + 3 * PAGE - 4},
        {"only readable", pages + 5 * PAGE},
    };
    const int n = sizeof all / sizeof *all;
    int epoll = epoll_create1(0), file = memfd_create("calls", 0);
    int fd = open("/proc/self/stat", O_RDONLY);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
    for (int i = 0; i < n - 1; i++)
        bad_to_read(&all[i], epoll, file);
    for (int i = 0; i < n; i++)
        bad_to_write(&all[i], fd);
    fflush(stdout);
}

/* Memory that causes evictions while the calls are made. */
#define BALLAST (48UL << 20)

static uint64_t *ballast(void) {
    uint64_t *at = map_pages(BALLAST / PAGE, PROT_READ | PROT_WRITE);
    for (size_t p = 0; p < BALLAST / PAGE; p++)
        pattern_fill(at + p * WORDS, p + 1);
    return at;
}

static void ballast_check(const uint64_t *at) {
    for (size_t p = 0; p < BALLAST / PAGE; p++)
        CHECK(pattern_check(at + p * WORDS, p + 1) < 0, "page %zu is wrong", p);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOFBF, 1 << 20);
    uint64_t *pages = ballast();
    const char *part = argc > 1 ? argv[1] : "";
    if (strcmp(part, "bad") == 0)
        bad_pointers();
    else
        fail("calls: no such part: %s", part);
    ballast_check(pages);
    return 0;
}
