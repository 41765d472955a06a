/* Reads random pages while the program repeatedly does to its descriptors what canvas's must survive: sockets and
 * RDMA devices that the program does not own, but finds in /proc/self/fd. Checks every page read.
 *
 * usage: far_devices MIB WHAT TIMES SEED
 *
 * nothing: only reads; fork: a child reads as well; close: closes them, by libc and by raw system calls; replace:
 * puts a pipe in their places, which must stay empty; unshare: does so in a thread with its own descriptor table;
 * filter: installs, once, a filter that kills on calls of the device's driver.
 */
#include "common.h"
#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define FOUND_MAX 64
#define READS 400
/* _IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr) of rdma/rdma_user_ioctl_cmds.h. */
#define RDMA_VERBS_IOCTL 0xc0181b01u

static volatile uint64_t *pages;
static size_t count;
static uint64_t seed;
static int pipe_fds[2];

static uint64_t tag_of(size_t page) {
    /* Mostly incompressible, so that pages leave the pool. */
    return (mix64(seed * 0x9e3779b97f4a7c15ULL + page) & ~7ULL) | (page % 8 ? 4 : 0);
}

static void check(size_t page) {
    int bad = pattern_check(pages + page * WORDS, tag_of(page));
    CHECK(bad < 0, "seed %lu page %zu word %d is wrong", (unsigned long)seed, page, bad);
}

static void read_some(struct rng *rng, unsigned n) {
    for (unsigned i = 0; i < n; i++)
        check(rng_below(rng, count));
}

/* A raw system call, which no hook sees. */
static long behind_its_back(long nr, long a, long b) {
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(nr), "D"(a), "S"(b), "d"(0) : "rcx", "r11", "memory");
    return r;
}

static unsigned not_ours(int *found) {
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    CHECK(dir, "/proc/self/fd: %s", strerror(errno));
    for (struct dirent *e; (e = readdir(dir)) && n < FOUND_MAX;) {
        char path[300], to[300];
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        ssize_t len = readlink(path, to, sizeof to - 1);
        if (len < 0)
            continue;
        to[len] = 0;
        if (strstr(to, "socket:") == to || strstr(to, "/dev/infiniband/") == to || strstr(to, "infiniband"))
            found[n++] = atoi(e->d_name);
    }
    closedir(dir);
    return n;
}

static void replace_all(void) {
    int found[FOUND_MAX];
    unsigned n = not_ours(found);
    for (unsigned i = 0; i < n; i++)
        behind_its_back(SYS_dup2, pipe_fds[1], found[i]);
}

static void pipe_is_empty(void) {
    char byte;
    CHECK(read(pipe_fds[0], &byte, 1) < 0 && errno == EAGAIN, "a stranger got a byte");
}

static void *inside(void *arg) {
    struct rng rng = {mix64(seed + *(unsigned *)arg)};
    CHECK(unshare(CLONE_FILES) == 0, "unshare: %s", strerror(errno));
    replace_all();
    read_some(&rng, READS);
    pipe_is_empty();
    return NULL;
}

static void forbid(void) {
    struct sock_filter ops[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 3, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 90, 2, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, RDMA_VERBS_IOCTL, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {.len = sizeof ops / sizeof *ops, .filter = ops};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs: %s", strerror(errno));
    /* All threads, including those of the library. */
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &prog) == 0, "seccomp: %s",
          strerror(errno));
}

static void act(const char *what, unsigned turn, struct rng *rng) {
    if (!strcmp(what, "fork")) {
        pid_t child = fork();
        CHECK(child >= 0, "fork: %s", strerror(errno));
        if (child == 0) {
            struct rng its = {mix64(seed + turn)};
            read_some(&its, READS);
            _exit(0);
        }
        read_some(rng, READS);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ended with %x", status);
    } else if (!strcmp(what, "close")) {
        int found[FOUND_MAX];
        unsigned n = not_ours(found);
        for (unsigned i = 0; i < n; i++) {
            close(found[i]);
            behind_its_back(SYS_close, found[i], 0);
        }
    } else if (!strcmp(what, "replace")) {
        replace_all();
    } else if (!strcmp(what, "unshare")) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, inside, &turn) == 0, "pthread_create");
        read_some(rng, READS);
        pthread_join(thread, NULL);
    } else if (!strcmp(what, "filter")) {
        if (turn == 2)
            forbid();
    } else {
        CHECK(!strcmp(what, "nothing"), "unknown: %s", what);
    }
    read_some(rng, READS);
    if (!strcmp(what, "replace"))
        pipe_is_empty();
}

int main(int argc, char **argv) {
    CHECK(argc == 5, "usage: far_devices MIB WHAT TIMES SEED");
    count = strtoul(argv[1], NULL, 10) << 8;
    unsigned times = (unsigned)strtoul(argv[3], NULL, 10);
    seed = strtoull(argv[4], NULL, 10);
    CHECK(pipe2(pipe_fds, O_NONBLOCK) == 0, "pipe2: %s", strerror(errno));
    pages = map_pages(count, PROT_READ | PROT_WRITE);
    for (size_t p = 0; p < count; p++)
        pattern_fill(pages + p * WORDS, tag_of(p));
    struct rng rng = {mix64(seed + 1)};
    read_some(&rng, 3 * READS);
    for (unsigned turn = 0; turn < times; turn++)
        act(argv[2], turn, &rng);
    for (size_t p = 0; p < count; p++)
        check(p);
    printf("every byte right, %u times\n", times);
    return 0;
}
