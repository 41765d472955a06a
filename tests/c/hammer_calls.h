/* System calls with arguments in far memory, for hammer.c.
 *
 * Each call gets pages that hold whole patterns, with their tags; it may change contents and then updates the tags.
 * Structures (iovec, msghdr, paths, timespec ...) are in a scratch area of the thread, private memory too, which is
 * touched rarely enough to be far at times.
 */
#ifndef CANVAS_TEST_HAMMER_CALLS_H
#define CANVAS_TEST_HAMMER_CALLS_H
#include "common.h"
#include <dirent.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <sys/utsname.h>

#define FILE_PAGES 64
#define SCRATCH_PAGES 128

struct hammer_files {
    int pattern_fd; /* FILE_PAGES pages of known patterns, read only by agreement */
    char dir[256];
    char path[300];
};

static __thread char *scratch;
static __thread int tmp_fd, pair[2], epoll_fd;
static __thread volatile sig_atomic_t alt_runs;
static __thread uintptr_t alt_low, alt_high;
static __thread int alt_wrong;

static uint64_t file_tag(size_t page) { return 0xf11e0000 + page * 5 + 1; }

static void hammer_files_open(struct hammer_files *f) {
    const char *t = getenv("TMPDIR");
    snprintf(f->dir, sizeof f->dir, "%s/hammer-XXXXXX", t ? t : "/tmp");
    CHECK(mkdtemp(f->dir), "%s: %s", f->dir, strerror(errno));
    snprintf(f->path, sizeof f->path, "%s/pattern", f->dir);
    f->pattern_fd = open(f->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    CHECK(f->pattern_fd >= 0, "%s: %s", f->path, strerror(errno));
    static uint64_t page[WORDS];
    for (size_t i = 0; i < FILE_PAGES; i++) {
        pattern_fill(page, file_tag(i));
        CHECK(pwrite(f->pattern_fd, page, PAGE, (off_t)(i * PAGE)) == (ssize_t)PAGE, "pwrite");
    }
}

static void hammer_thread_start(struct rng *r) {
    scratch = map_pages(SCRATCH_PAGES, PROT_READ | PROT_WRITE);
    for (size_t p = 0; p < SCRATCH_PAGES; p++)
        pattern_fill((uint64_t *)(scratch + p * PAGE), rng_next(r));
    tmp_fd = memfd_create("hammer", MFD_CLOEXEC);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    CHECK(tmp_fd >= 0 && epoll_fd >= 0, "%s", strerror(errno));
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "%s", strerror(errno));
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.u64 = 0x1234567812345678};
    CHECK(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, pair[0], &e) == 0, "%s", strerror(errno));
}

static void hammer_thread_end(void) {
    close(tmp_fd);
    close(epoll_fd);
    close(pair[0]);
    close(pair[1]);
    munmap(scratch, SCRATCH_PAGES * PAGE);
}

/* A system call made by an instruction of this program, which no hooked library sees. */
static long raw6(long n, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

/* All of `n` bytes by repeated calls: signals and buffers may cut a transfer short. */
#define ALL(call, n)                                                                               \
    do {                                                                                           \
        size_t done = 0;                                                                           \
        while (done < (size_t)(n)) {                                                               \
            ssize_t got = (call);                                                                  \
            if (got < 0 && errno == EINTR)                                                         \
                continue;                                                                          \
            CHECK(got > 0, #call " gave %zd: %s", got, strerror(errno));                           \
            done += (size_t)got;                                                                   \
        }                                                                                          \
    } while (0)

static void compare_file(const uint64_t *tags, size_t n) {
    uint64_t page[WORDS]; /* on the stack, which is never far */
    for (size_t i = 0; i < n; i++) {
        ALL(pread(tmp_fd, (char *)page + done, PAGE - done, (off_t)(i * PAGE + done)), PAGE);
        int bad = pattern_check(page, tags[i]);
        CHECK(bad < 0, "the kernel read other bytes from far page %zu: word %d is %016lx, expected %016lx", i,
              bad, (unsigned long)page[bad], (unsigned long)pattern_word(tags[i], (unsigned)bad));
    }
}

static void on_alt(int sig) {
    (void)sig;
    volatile char here[3000];
    here[0] = 1;
    here[2999] = 2;
    uintptr_t at = (uintptr_t)&here[0];
    if (at < alt_low || at >= alt_high)
        alt_wrong = 1;
    alt_runs++;
}

static void call_altstack(void) {
    size_t size = 64 * 1024;
    char *stack = map_pages(size / PAGE, PROT_READ | PROT_WRITE);
    memset(stack, 0x5a, size);
    madvise(stack, size, MADV_PAGEOUT);
    alt_low = (uintptr_t)stack;
    alt_high = alt_low + size;
    stack_t *ss = (stack_t *)(scratch + 17 * PAGE + 64), *old = ss + 1;
    ss->ss_sp = stack;
    ss->ss_size = size;
    ss->ss_flags = 0;
    CHECK(sigaltstack(ss, old) == 0, "sigaltstack: %s", strerror(errno));
    struct sigaction *sa = (struct sigaction *)(scratch + 18 * PAGE + 128);
    memset(sa, 0, sizeof *sa);
    sa->sa_handler = on_alt;
    sa->sa_flags = SA_ONSTACK;
    CHECK(sigaction(SIGUSR2, sa, NULL) == 0, "sigaction: %s", strerror(errno));
    int before = alt_runs;
    CHECK(pthread_kill(pthread_self(), SIGUSR2) == 0, "pthread_kill");
    CHECK(alt_runs == before + 1, "the handler did not run");
    CHECK(!alt_wrong, "the handler did not run on the alternate stack");
    ss->ss_flags = SS_DISABLE;
    CHECK(sigaltstack(old->ss_sp && !(old->ss_flags & SS_DISABLE) ? old : ss, NULL) == 0, "sigaltstack back: %s", strerror(errno));
    munmap(stack, size);
}

static void call_names(struct hammer_files *f, char *area, int raw) {
    char *path = area + 100;
    struct stat *st = (struct stat *)(area + 1024);
    strcpy(path, f->path);
    memset(st, 0x77, sizeof *st);
    if (raw)
        CHECK(raw6(SYS_newfstatat, AT_FDCWD, (long)path, (long)st, 0, 0, 0) == 0, "raw newfstatat");
    else
        CHECK(stat(path, st) == 0, "stat(%s): %s", path, strerror(errno));
    CHECK(st->st_size == FILE_PAGES * PAGE, "stat: size %ld", (long)st->st_size);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0, "open: %s", strerror(errno));
    CHECK(fstat(fd, st) == 0 && st->st_size == FILE_PAGES * PAGE, "fstat");
    close(fd);
    CHECK(access(path, R_OK) == 0, "access: %s", strerror(errno));
    strcpy(path, "/proc/self/exe");
    memset(area + 2000, 0, 1000);
    ssize_t n = readlink(path, area + 2000, 1000);
    CHECK(n > 0 && area[2000] == '/', "readlink: %zd", n);
    strcpy(path, f->dir);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(fd >= 0, "open(dir): %s", strerror(errno));
    long got = syscall(SYS_getdents64, fd, area + 2048, 2000L);
    CHECK(got > 0, "getdents64: %ld %s", got, strerror(errno));
    int found = 0;
    for (long at = 0; at < got;) {
        struct dirent64 *d = (struct dirent64 *)(area + 2048 + at);
        found += strcmp(d->d_name, "pattern") == 0;
        at += d->d_reclen;
    }
    CHECK(found == 1, "getdents64 listed the file %d times", found);
    close(fd);
    CHECK(getcwd(area + 100, 1500) && area[100] == '/', "getcwd");
    struct utsname *u = (struct utsname *)(area + 2048);
    CHECK(uname(u) == 0 && strcmp(u->sysname, "Linux") == 0, "uname");
}

static void call_waits(char *area, int raw) {
    uint32_t *word = (uint32_t *)(area + 512);
    struct timespec *t = (struct timespec *)(area + 768);
    *word = 5;
    t->tv_sec = 0;
    t->tv_nsec = 20000;
    long rc = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 4, t, NULL, 0);
    CHECK(rc == -1 && errno == EAGAIN, "futex with another value: %ld %s", rc, strerror(errno));
    if (raw) {
        rc = raw6(SYS_futex, (long)word, FUTEX_WAIT_PRIVATE, 5, (long)t, 0, 0);
        CHECK(rc == -ETIMEDOUT, "raw futex with a timeout: %ld", rc);
    } else {
        rc = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 5, t, NULL, 0);
        CHECK(rc == -1 && errno == ETIMEDOUT, "futex with a timeout: %ld %s", rc, strerror(errno));
    }
    CHECK(nanosleep(t, t + 1) == 0, "nanosleep: %s", strerror(errno));
    CHECK(clock_gettime(CLOCK_MONOTONIC, t + 2) == 0 && t[2].tv_sec > 0, "clock_gettime");
    CHECK(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, t + 3) == 0 && t[3].tv_sec >= t[2].tv_sec, "clock_gettime");
    struct pollfd *p = (struct pollfd *)(area + 1024);
    p[0].fd = pair[0];
    p[0].events = POLLIN | POLLOUT;
    p[1].fd = pair[1];
    p[1].events = POLLIN;
    CHECK(poll(p, 2, 0) == 1 && p[0].revents == POLLOUT && p[1].revents == 0, "poll: %d %d", p[0].revents, p[1].revents);
    CHECK(ppoll(p, 2, t, NULL) == 1 && p[0].revents == POLLOUT, "ppoll");
    struct epoll_event *e = (struct epoll_event *)(area + 1200);
    CHECK(epoll_wait(epoll_fd, e, 4, 0) == 1 && e->data.u64 == 0x1234567812345678, "epoll_wait");
    fd_set *set = (fd_set *)(area + 1536);
    if (pair[0] < FD_SETSIZE) {
        FD_ZERO(set);
        FD_SET(pair[0], set);
        struct timeval *tv = (struct timeval *)(area + 1900);
        tv->tv_sec = tv->tv_usec = 0;
        CHECK(select(pair[0] + 1, NULL, set, NULL, tv) == 1 && FD_ISSET(pair[0], set), "select");
    }
    sigset_t *mask = (sigset_t *)(area + 2048);
    sigemptyset(mask);
    sigaddset(mask, SIGUSR1);
    CHECK(pthread_sigmask(SIG_BLOCK, mask, mask + 1) == 0, "pthread_sigmask");
    CHECK(pthread_kill(pthread_self(), SIGUSR1) == 0, "pthread_kill");
    siginfo_t *info = (siginfo_t *)(area + 2560);
    CHECK(sigpending(mask + 2) == 0 && sigismember(mask + 2, SIGUSR1), "sigpending");
    CHECK(sigtimedwait(mask, info, t) == SIGUSR1 && info->si_signo == SIGUSR1, "sigtimedwait: %s", strerror(errno));
    CHECK(pthread_sigmask(SIG_SETMASK, mask + 1, NULL) == 0, "pthread_sigmask");
    struct rlimit *limit = (struct rlimit *)(area + 3000);
    CHECK(getrlimit(RLIMIT_NOFILE, limit) == 0 && limit->rlim_cur > 0, "getrlimit");
    struct sysinfo *si = (struct sysinfo *)(area + 3200);
    CHECK(sysinfo(si) == 0 && si->totalram > 0, "sysinfo");
    struct rusage *ru = (struct rusage *)(area + 3600);
    CHECK(getrusage(RUSAGE_SELF, ru) == 0, "getrusage");
}

static void call_pipes(char *area, char *base, size_t n, uint64_t *tags, size_t i, size_t j) {
    int *fds = (int *)(area + 64);
    CHECK(pipe2(fds, O_CLOEXEC) == 0, "pipe2: %s", strerror(errno));
    int in = fds[0], out = fds[1];
    ALL(write(out, base + i * PAGE + done, PAGE - done), PAGE);
    int *waiting = fds + 4;
    CHECK(ioctl(in, FIONREAD, waiting) == 0 && *waiting == (int)PAGE, "FIONREAD: %d", *waiting);
    ALL(read(in, base + j * PAGE + done, PAGE - done), PAGE);
    tags[j] = tags[i];
    close(in);
    close(out);
    (void)n;
}

static void call_messages(char *area, struct rng *r, char *base, size_t n, uint64_t *tags) {
    if (n > 8)
        n = 8;
    struct msghdr *m = (struct msghdr *)(area + 256);
    struct iovec *v = (struct iovec *)(area + 512);
    memset(m, 0, sizeof *m);
    m->msg_iov = v;
    m->msg_iovlen = n;
    for (size_t i = 0; i < n; i++) {
        v[i].iov_base = base + i * PAGE;
        v[i].iov_len = PAGE;
    }
    /* Also passes a descriptor in far control memory. */
    struct cmsghdr *c = (struct cmsghdr *)(area + 1024);
    memset(c, 0, 256);
    m->msg_control = c;
    m->msg_controllen = CMSG_SPACE(sizeof(int));
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &tmp_fd, sizeof(int));
    ssize_t sent = sendmsg(pair[0], m, 0);
    CHECK(sent == (ssize_t)(n * PAGE), "sendmsg: %zd %s", sent, strerror(errno));
    uint64_t old[8];
    memcpy(old, tags, n * sizeof *old);
    size_t turn = rng_below(r, n);
    for (size_t i = 0; i < n; i++) {
        v[i].iov_base = base + (i + turn) % n * PAGE;
        tags[(i + turn) % n] = old[i];
    }
    memset(c, 0, 256);
    m->msg_controllen = 200;
    ssize_t got = recvmsg(pair[1], m, MSG_WAITALL | MSG_CMSG_CLOEXEC);
    CHECK(got == sent, "recvmsg: %zd of %zd, %s", got, sent, strerror(errno));
    CHECK(c->cmsg_type == SCM_RIGHTS, "no descriptor came along");
    int fd;
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
    close(fd);
    struct mmsghdr *mm = (struct mmsghdr *)(area + 2048);
    memset(mm, 0, 2 * sizeof *mm);
    mm[0].msg_hdr.msg_iov = v;
    mm[0].msg_hdr.msg_iovlen = 1;
    v[0].iov_base = base;
    v[0].iov_len = PAGE;
    CHECK(sendmmsg(pair[0], mm, 1, 0) == 1 && mm[0].msg_len == PAGE, "sendmmsg: %s", strerror(errno));
    v[0].iov_base = base + (n - 1) * PAGE;
    CHECK(recvmmsg(pair[1], mm, 1, MSG_WAITALL, NULL) == 1 && mm[0].msg_len == PAGE, "recvmmsg: %s", strerror(errno));
    tags[n - 1] = tags[0];
}

/* Makes one call over the `n` pages at `base`; returns true when tags changed. */
static int hammer_call(struct hammer_files *f, struct rng *r, char *base, size_t n, uint64_t *tags) {
    char *area = scratch + rng_below(r, SCRATCH_PAGES - 1) * PAGE;
    size_t i = rng_below(r, n), j = rng_below(r, n);
    int raw = rng_below(r, 4) == 0;
    size_t from = rng_below(r, FILE_PAGES - n + 1);
    switch (rng_below(r, 14)) {
    case 0:
        if (raw)
            CHECK(raw6(SYS_pwrite64, tmp_fd, (long)base, (long)(n * PAGE), 0, 0, 0) == (long)(n * PAGE), "raw pwrite");
        else
            ALL(pwrite(tmp_fd, base + done, n * PAGE - done, (off_t)done), n * PAGE);
        compare_file(tags, n);
        return 0;
    case 1:
        if (raw) {
            long got = raw6(SYS_pread64, f->pattern_fd, (long)base, (long)(n * PAGE), (long)(from * PAGE), 0, 0);
            CHECK(got == (long)(n * PAGE), "raw pread of %zu pages gave %ld", n, got);
        } else
            ALL(pread(f->pattern_fd, base + done, n * PAGE - done, (off_t)(from * PAGE + done)), n * PAGE);
        for (size_t k = 0; k < n; k++)
            tags[k] = file_tag(from + k);
        return 1;
    case 2: { /* pages in reverse order by one vector */
        struct iovec *v = (struct iovec *)(area + 1024);
        for (size_t k = 0; k < n; k++) {
            v[k].iov_base = base + (n - 1 - k) * PAGE;
            v[k].iov_len = PAGE;
            tags[n - 1 - k] = file_tag(from + k);
        }
        CHECK(preadv(f->pattern_fd, v, (int)n, (off_t)(from * PAGE)) == (ssize_t)(n * PAGE), "preadv: %s", strerror(errno));
        return 1;
    }
    case 3: {
        struct iovec *v = (struct iovec *)(area + 1024);
        for (size_t k = 0; k < n; k++) {
            v[k].iov_base = base + k * PAGE;
            v[k].iov_len = PAGE;
        }
        CHECK(lseek(tmp_fd, 0, SEEK_SET) == 0, "lseek");
        long rc = raw ? raw6(SYS_writev, tmp_fd, (long)v, (long)n, 0, 0, 0) : writev(tmp_fd, v, (int)n);
        CHECK(rc == (long)(n * PAGE), "writev: %ld %s", rc, strerror(errno));
        compare_file(tags, n);
        return 0;
    }
    case 4:
    case 5:
        call_messages(area, r, base, n, tags);
        return 1;
    case 6:
        if (i != j) {
            call_pipes(area, base, n, tags, i, j);
            return 1;
        }
        return 0;
    case 7: {
        uint64_t before = *(uint64_t *)(base + i * PAGE + 800);
        CHECK(getrandom(base + i * PAGE, PAGE, 0) == (ssize_t)PAGE, "getrandom: %s", strerror(errno));
        CHECK(before != *(uint64_t *)(base + i * PAGE + 800), "getrandom changed nothing");
        tags[i] = rng_next(r) | 1;
        pattern_fill((uint64_t *)(base + i * PAGE), tags[i]);
        return 1;
    }
    case 8:
    case 9:
        call_names(f, area, raw);
        return 0;
    case 10:
    case 11:
        call_waits(area, raw);
        return 0;
    case 12:
        call_altstack();
        return 0;
    default: { /* a length that ends inside a page, at an odd address */
        size_t len = 1 + rng_below(r, n * PAGE - 1);
        size_t off = rng_below(r, n * PAGE - len + 1);
        ALL(pwrite(tmp_fd, base + off + done, len - done, (off_t)(off + done)), len);
        memset(base + off, 0xee, len);
        ALL(pread(tmp_fd, base + off + done, len - done, (off_t)(off + done)), len);
        return 0;
    }
    }
}
#endif
