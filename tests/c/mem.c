/* Special promises of memory calls, and processes. usage: mem WHAT MIB [MORE] */
#include "common.h"
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/syscall.h>
#include <ucontext.h>

#ifndef SYS_close_range /* glibc 2.31 does not name it */
#define SYS_close_range 436
#endif

static size_t mib;
static struct ballast ballast;

static void lock(void) {
    uint64_t *p = map_pages(16, PROT_READ | PROT_WRITE);
    for (size_t i = 0; i < 16; i++)
        pattern_fill(p + i * WORDS, i + 40);
    CHECK(mlock(p, 8 * PAGE) == 0, "mlock of 32 KiB: %s", strerror(errno));
    ballast_sweep(&ballast);
    unsigned char vec[16];
    CHECK(mincore(p, 8 * PAGE, vec) == 0, "mincore: %s", strerror(errno));
    for (int i = 0; i < 8; i++)
        CHECK(vec[i] & 1, "locked page %d is not resident", i);
    for (size_t i = 0; i < 16; i++)
        CHECK(pattern_check(p + i * WORDS, i + 40) < 0, "page %zu", i);
    CHECK(munlock(p, 8 * PAGE) == 0, "munlock: %s", strerror(errno));
    /* Call by call, until the user's limit or the limit on locked memory. */
    size_t many = mib * 256;
    uint64_t *m = map_pages(many, PROT_READ | PROT_WRITE);
    for (size_t i = 0; i < many; i += 16)
        CHECK(mlock(m + i * WORDS, 16 * PAGE) == 0 || errno == ENOMEM, "mlock: %s", strerror(errno));
    ballast_sweep(&ballast);
    CHECK(munmap(m, many * PAGE) == 0, "munmap: %s", strerror(errno));
    int rc = mlockall(MCL_CURRENT | MCL_FUTURE);
    CHECK(rc == 0 || errno == ENOMEM || errno == EPERM, "mlockall: %s", strerror(errno));
    uint64_t *q = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(q != MAP_FAILED || errno == EAGAIN || errno == ENOMEM, "mmap after mlockall: %s", strerror(errno));
    if (q != MAP_FAILED)
        pattern_fill(q, 5);
    ballast_sweep(&ballast);
    CHECK(munlockall() == 0, "munlockall: %s", strerror(errno));
    CHECK(mlock((void *)0x10000, PAGE) == -1 && errno == ENOMEM, "mlock of nothing: %s", strerror(errno));
}

/* The address-space limit counts the program's mappings, not canvas's reservation. */
static void rlimit(void) {
    struct rlimit r = {.rlim_cur = (mib * 2 + 256) << 20, .rlim_max = (mib * 2 + 256) << 20}, got;
    CHECK(setrlimit(RLIMIT_AS, &r) == 0, "setrlimit: %s", strerror(errno));
    CHECK(getrlimit(RLIMIT_AS, &got) == 0 && got.rlim_cur == r.rlim_cur, "getrlimit reads back %lu", (unsigned long)got.rlim_cur);
    void *small = mmap(NULL, 32 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(small != MAP_FAILED, "32 MiB within RLIMIT_AS: %s", strerror(errno));
    void *big = mmap(NULL, (mib * 2 + 300) << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(big == MAP_FAILED && errno == ENOMEM, "a mapping past RLIMIT_AS gave %p", big);
    CHECK(munmap(small, 32 << 20) == 0, "munmap");
    for (int i = 0; i < 300; i++) { /* what is unmapped does not count */
        small = mmap(NULL, 32 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(small != MAP_FAILED, "round %d: %s", i, strerror(errno));
        CHECK(munmap(small, 32 << 20) == 0, "munmap");
    }
    CHECK(malloc((mib * 2 + 300) << 20) == NULL, "malloc past RLIMIT_AS");
}

static void brk_area(void) {
    size_t n = 4096; /* 16 MiB */
    char *start = sbrk(0);
    CHECK(sbrk((intptr_t)(n * PAGE)) == start, "sbrk: %s", strerror(errno));
    uint64_t *p = (uint64_t *)(((uintptr_t)start + PAGE - 1) & ~(PAGE - 1));
    for (size_t i = 0; i + 1 < n; i++) {
        CHECK(p[i * WORDS + 5] == 0, "new break page %zu is not zero", i);
        pattern_fill(p + i * WORDS, i + 1);
    }
    ballast_sweep(&ballast);
    for (size_t i = 0; i + 1 < n; i++)
        CHECK(pattern_check(p + i * WORDS, i + 1) < 0, "break page %zu", i);
    CHECK(sbrk(-(intptr_t)(n / 2 * PAGE)) == start + n * PAGE, "sbrk: %s", strerror(errno));
    CHECK(sbrk(0) == start + n / 2 * PAGE, "sbrk(0)");
    CHECK(sbrk((intptr_t)(n / 2 * PAGE)) == start + n / 2 * PAGE, "sbrk: %s", strerror(errno));
    for (size_t i = 0; i + 1 < n / 2; i++)
        CHECK(pattern_check(p + i * WORDS, i + 1) < 0, "break page %zu", i);
    for (size_t i = n / 2 + 1; i + 1 < n; i++)
        CHECK(p[i * WORDS + 5] == 0, "break page %zu came back with old contents", i);
    CHECK(brk(start) == 0 && sbrk(0) == start, "brk: %s", strerror(errno));
}

/* The far limit: mmap returns ENOMEM at some point, and all stored data is right. */
static void enomem(void) {
    size_t chunk = 256, most = (mib << 8) / chunk, n = 0; /* chunks of 1 MiB that do not compress */
    uint64_t **chunks = mmap(NULL, most * sizeof *chunks + PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (; n < most; n++) {
        uint64_t *p = mmap(NULL, chunk * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            CHECK(errno == ENOMEM, "mmap: %s", strerror(errno));
            break;
        }
        chunks[n] = p;
        for (size_t i = 0; i < chunk; i++)
            pattern_fill(p + i * WORDS, (n * chunk + i + 1) << 3);
    }
    printf("chunks %zu of %zu\n", n, most);
    for (int round = 0; round < 2; round++)
        for (size_t c = 0; c < n; c++)
            for (size_t i = 0; i < chunk; i++)
                CHECK(pattern_check(chunks[c] + i * WORDS, (c * chunk + i + 1) << 3) < 0, "chunk %zu page %zu", c, i);
    for (size_t c = n / 2; c < n; c++)
        CHECK(munmap(chunks[c], chunk * PAGE) == 0, "munmap: %s", strerror(errno));
    size_t again = 0;
    for (size_t c = n / 2; c < n; c++) {
        uint64_t *p = mmap(NULL, chunk * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            /* Room is made ahead of need, in the background, which takes a moment. */
            if (again == 0 && c == n / 2) {
                usleep(300000);
                p = mmap(NULL, chunk * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            }
            if (p == MAP_FAILED)
                break;
        }
        for (size_t i = 0; i < chunk; i++)
            pattern_fill(p + i * WORDS, (n * 1000 + i + 1) << 3);
        again++;
    }
    CHECK(n == most || again > 0, "no mapping was granted after half of them were freed");
    for (size_t c = 0; c < n / 2; c++)
        for (size_t i = 0; i < chunk; i++)
            CHECK(pattern_check(chunks[c] + i * WORDS, (c * chunk + i + 1) << 3) < 0, "later: chunk %zu page %zu", c, i);
}

static uint64_t *thread_memory(size_t id, size_t pages) {
    uint64_t *p = malloc(pages * PAGE + PAGE);
    CHECK(p, "malloc");
    uint64_t *a = (uint64_t *)(((uintptr_t)p + PAGE - 1) & ~(PAGE - 1));
    for (size_t i = 0; i < pages; i++)
        pattern_fill(a + i * WORDS, id * 1000 + i + 1);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < pages; i++)
            CHECK(pattern_check(a + i * WORDS, id * 1000 + i + 1) < 0, "thread %zu page %zu", id, i);
        sched_yield();
    }
    return p;
}

static void *one_thread(void *arg) {
    size_t id = (size_t)arg;
    uint64_t *p = thread_memory(id, (mib << 8) / 300);
    size_t b = id * 37 % ballast.pages;
    CHECK(pattern_check(ballast.base + b * WORDS, ballast.tag + b + 1) < 0, "ballast page %zu", b);
    free(p);
    return NULL;
}

static void threads(void) {
    pthread_t t[300];
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, 128 << 10);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 300; i++)
            CHECK(pthread_create(&t[i], &a, one_thread, (void *)i) == 0, "thread %zu", i);
        for (int i = 0; i < 300; i++)
            pthread_join(t[i], NULL);
    }
}

/* Coroutines and threads on stacks that the program mapped itself. */
static ucontext_t main_context, contexts[100];
static volatile long rounds_done;

static long deep(int n, long x) {
    volatile char here[512];
    memset((char *)here, (int)x, sizeof here);
    return n == 0 ? here[100] : deep(n - 1, x + 1) + here[511];
}

static void coroutine(int id) {
    volatile long own[200];
    for (int i = 0; i < 200; i++)
        own[i] = id * 1000L + i;
    for (int round = 0; round < 20; round++) {
        deep(40, id);
        swapcontext(&contexts[id], &main_context);
        for (int i = 0; i < 200; i++)
            CHECK(own[i] == id * 1000L + i, "coroutine %d lost word %d of its stack", id, i);
        rounds_done++;
    }
}

static void *deep_thread(void *arg) {
    volatile long own[1000];
    for (int i = 0; i < 1000; i++)
        own[i] = (long)arg + i;
    for (int round = 0; round < 3; round++) {
        ballast_sweep(&ballast);
        deep(60, (long)arg);
        for (int i = 0; i < 1000; i++)
            CHECK(own[i] == (long)arg + i, "thread %ld lost word %d of its stack", (long)arg, i);
    }
    return NULL;
}

static void stacks(void) {
    size_t bytes = 128 << 10;
    for (int i = 0; i < 100; i++) {
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = map_pages(bytes / PAGE, PROT_READ | PROT_WRITE);
        contexts[i].uc_stack.ss_size = bytes;
        contexts[i].uc_link = &main_context;
        makecontext(&contexts[i], (void (*)(void))coroutine, 1, i);
    }
    for (int round = 0; round < 21; round++) {
        for (int i = 0; i < 100; i++)
            swapcontext(&main_context, &contexts[i]);
        if (round % 5 == 0)
            ballast_sweep(&ballast);
    }
    CHECK(rounds_done == 2000, "%ld rounds", rounds_done);
    pthread_t t[4];
    for (long i = 0; i < 4; i++) {
        pthread_attr_t a;
        pthread_attr_init(&a);
        CHECK(pthread_attr_setstack(&a, map_pages(bytes / PAGE, PROT_READ | PROT_WRITE), bytes) == 0, "setstack");
        CHECK(pthread_create(&t[i], &a, deep_thread, (void *)i) == 0, "pthread_create");
    }
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
}

static long raw_fork(int how) {
    long rc;
    if (how == 0)
        return fork();
    if (how == 1)
        return syscall(SYS_fork);
    if (how == 2)
        return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (how == 4) { /* arguments in far memory; 11 words: the kernel's second form and what came after */
        uint64_t *args = map_pages(1, PROT_READ | PROT_WRITE);
        memset(args, 0, PAGE);
        args[4] = SIGCHLD;
        ballast_sweep(&ballast);
        return syscall(SYS_clone3, args, 88);
    }
    __asm__ volatile("syscall" : "=a"(rc) : "a"(SYS_fork) : "rcx", "r11", "memory");
    return rc;
}

/* A file mapped over private memory, and moved away by growing, is there in a child forked later. */
static void fork_after_move(void) {
    size_t n = 8;
    volatile uint64_t *p = map_pages(4 * n, PROT_READ | PROT_WRITE);
    int fd = memfd_create("moved", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)(2 * n * PAGE)) == 0, "memfd: %s", strerror(errno));
    CHECK(mmap((void *)p, n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0) == p, "mmap: %s", strerror(errno));
    for (size_t i = 0; i < n; i++)
        pattern_fill(p + i * WORDS, i + 30);
    for (int round = 0; round < 2; round++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork: %s", strerror(errno));
        if (pid == 0) {
            for (size_t i = 0; i < n; i++)
                CHECK(pattern_check(p + i * WORDS, i + 30) < 0, "round %d: child's page %zu of a moved file", round, i);
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "round %d: child's status %#x", round, status);
        if (round == 0) {
            p = mremap((void *)p, n * PAGE, 2 * n * PAGE, MREMAP_MAYMOVE);
            CHECK(p != MAP_FAILED, "mremap: %s", strerror(errno));
        }
    }
    close(fd);
}

/* Every way to fork, generations deep; madvise's fork advice; closed descriptors. */
static void forks(void) {
    fork_after_move();
    uint64_t *wipe = map_pages(8, PROT_READ | PROT_WRITE), *gone = map_pages(8, PROT_READ | PROT_WRITE);
    for (size_t i = 0; i < 8; i++) {
        pattern_fill(wipe + i * WORDS, i + 1);
        pattern_fill(gone + i * WORDS, i + 9);
    }
    CHECK(madvise(wipe, 8 * PAGE, MADV_WIPEONFORK) == 0, "MADV_WIPEONFORK: %s", strerror(errno));
    CHECK(madvise(gone, 8 * PAGE, MADV_DONTFORK) == 0, "MADV_DONTFORK: %s", strerror(errno));
    ballast_sweep(&ballast);
    volatile int *reached = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(reached != MAP_FAILED, "mmap: %s", strerror(errno));
    for (int how = 0; how < 5; how++) {
        *reached = 0;
        pid_t pid = (pid_t)raw_fork(how);
        CHECK(pid >= 0, "fork way %d: %s", how, strerror(errno));
        if (pid == 0) {
            for (size_t i = 0; i < 8; i++)
                CHECK(pattern_check(wipe + i * WORDS, 0) < 0, "way %d: MADV_WIPEONFORK page %zu is not zero", how, i);
            ballast_sweep(&ballast);
            for (size_t p = (size_t)how; p < ballast.pages; p += 3)
                pattern_fill(ballast.base + p * WORDS, p);
            pid_t next = fork();
            CHECK(next >= 0, "fork: %s", strerror(errno));
            if (next == 0) {
                for (size_t p = 0; p < ballast.pages; p++)
                    CHECK(pattern_check(ballast.base + p * WORDS, p % 3 == (size_t)how % 3 && p >= (size_t)how ? p : ballast.tag + p + 1) < 0,
                          "way %d: grandchild page %zu", how, p);
                _exit(0);
            }
            int status;
            CHECK(waitpid(next, &status, 0) == next && status == 0, "grandchild: %#x", status);
            *reached = 1;
            (void)*(volatile uint64_t *)gone; /* must end in SIGSEGV */
            _exit(3);
        }
        for (size_t p = 0; p < ballast.pages; p += 5) { /* the parent goes on writing meanwhile */
            pattern_fill(ballast.base + p * WORDS, p + 7);
            pattern_fill(ballast.base + p * WORDS, ballast.tag + p + 1);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "way %d: child's status %#x; a MADV_DONTFORK page should have ended it", how, status);
        /* Way 3 is known gap G1: the child has no managed range, and its first touch kills it. */
        CHECK(*reached || how == 3, "way %d: the child ended before its MADV_DONTFORK page", how);
        ballast_sweep(&ballast);
    }
    for (size_t i = 0; i < 8; i++)
        CHECK(pattern_check(wipe + i * WORDS, i + 1) < 0 && pattern_check(gone + i * WORDS, i + 9) < 0, "page %zu", i);
    for (int i = 0; i < 50; i++) {
        pid_t pid = i % 2 ? fork() : vfork();
        CHECK(pid >= 0, "fork %d: %s", i, strerror(errno));
        if (pid == 0)
            _exit(5);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 5, "status %#x", status);
    }
}

/* A program that closes every descriptor it does not know continues, and so do its children. */
static void closes(void) {
    for (int round = 0; round < 3; round++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork: %s", strerror(errno));
        if (pid == 0) {
            if (round == 0)
                for (int fd = 3; fd < 20000; fd++)
                    close(fd);
            else if (round == 1)
                syscall(SYS_close_range, 3, ~0U, 0);
            else
                for (int fd = 3; fd < 2000; fd++)
                    dup2(2, fd);
            ballast_sweep(&ballast);
            struct ballast more;
            ballast_make(&more, mib / 2 + 1, 77);
            pid_t next = fork();
            if (next == 0) {
                ballast_sweep(&ballast);
                ballast_sweep(&more);
                execl("/proc/self/exe", "mem", "nothing", "8", NULL);
                _exit(9);
            }
            int status;
            CHECK(waitpid(next, &status, 0) == next && status == 0, "round %d: grandchild %#x", round, status);
            ballast_sweep(&more);
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "round %d: child %#x", round, status);
    }
}

/* An exec tree that shares one budget: `MORE` children, each with MIB of its own. */
static void tree(int children) {
    for (int i = 0; i < children; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork: %s", strerror(errno));
        if (pid == 0) {
            char text[20];
            snprintf(text, sizeof text, "%zu", mib);
            execl("/proc/self/exe", "mem", "leaf", text, NULL);
            _exit(9);
        }
    }
    for (int i = 0; i < children; i++) {
        int status;
        pid_t pid = wait(&status);
        CHECK(pid > 0 && status == 0, "a child of the tree ended with %#x", status);
    }
}

/* Calls with a thousand buffers each, all in far memory: they must release the pages that they pin, or soon nothing
 * can be evicted any more. */
static void vectors(void) {
    struct iovec v[1000];
    int out = open("/dev/null", O_WRONLY), in = open("/dev/zero", O_RDONLY);
    CHECK(out >= 0 && in >= 0, "open: %s", strerror(errno));
    for (int round = 0; round < 60; round++) {
        for (int i = 0; i < 1000; i++) {
            size_t p = (size_t)(round * 1000 + i) * 7919 % ballast.pages;
            v[i].iov_base = (char *)(ballast.base + p * WORDS) + 8;
            v[i].iov_len = 64;
        }
        CHECK(writev(out, v, 1000) == 64000, "writev: %s", strerror(errno));
        for (int i = 0; i < 1000; i++) {
            size_t p = ((size_t)v[i].iov_base - (size_t)ballast.base) / PAGE;
            /* Page p's words 10 and on: zeros come in, the pattern goes back. */
            v[i].iov_base = (char *)(ballast.base + p * WORDS) + 80;
            v[i].iov_len = 8;
        }
        CHECK(readv(in, v, 1000) == 8000, "readv: %s", strerror(errno));
        for (int i = 0; i < 1000; i++) {
            size_t p = ((size_t)v[i].iov_base - (size_t)ballast.base) / PAGE;
            CHECK(ballast.base[p * WORDS + 10] == 0, "readv did not reach page %zu", p);
            ballast.base[p * WORDS + 10] = pattern_word(ballast.tag + p + 1, 10);
        }
    }
    close(out);
    close(in);
}

/* More waiters on one page than a page word can count pins. */
struct gate {
    pthread_mutex_t m;
    pthread_cond_t c;
    int waiting, open;
};

static void *wait_at_gate(void *arg) {
    struct gate *g = arg;
    pthread_mutex_lock(&g->m);
    g->waiting++;
    while (!g->open)
        pthread_cond_wait(&g->c, &g->m);
    pthread_mutex_unlock(&g->m);
    return NULL;
}

static void waiters(void) {
    static pthread_t t[320];
    struct gate *g = (struct gate *)map_pages(1, PROT_READ | PROT_WRITE);
    pthread_mutex_init(&g->m, NULL);
    pthread_cond_init(&g->c, NULL);
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, 64 << 10);
    for (int i = 0; i < 320; i++)
        CHECK(pthread_create(&t[i], &a, wait_at_gate, g) == 0, "thread %d", i);
    for (int n = 0; n < 320;) {
        pthread_mutex_lock(&g->m);
        n = g->waiting;
        pthread_mutex_unlock(&g->m);
    }
    ballast_sweep(&ballast);
    pthread_mutex_lock(&g->m);
    g->open = 1;
    pthread_cond_broadcast(&g->c);
    pthread_mutex_unlock(&g->m);
    for (int i = 0; i < 320; i++)
        pthread_join(t[i], NULL);
}

/* The stored copies of this process's pages are damaged: each page reads right or not at all. */
static sigjmp_buf damage_jump;
static volatile uintptr_t damage_at;
static volatile long damage_seen;

static void on_damage(int sig, siginfo_t *info, void *context) {
    (void)context;
    if (((uintptr_t)info->si_addr & ~(uintptr_t)(PAGE - 1)) != damage_at)
        fail("signal %d at %p, expected page %p", sig, info->si_addr, (void *)damage_at);
    damage_seen++;
    siglongjmp(damage_jump, 1);
}

/* Finds the mapping in which libcanvas keeps the compressed pool (canvas-preload, areas.rs) by its size. The kernel
 * lists it in adjacent parts: those writable so far, and those only readable. */
static char *find_pool(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps, "maps: %s", strerror(errno));
    char line[512];
    unsigned long start = 0, until = 0, begin, end;
    while (until - start != 4UL << 40 && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx r", &begin, &end) == 2) {
            if (begin != until)
                start = begin;
            until = end;
        }
    fclose(maps);
    CHECK(until - start == 4UL << 40, "no pool is mapped");
    return (char *)start;
}

static void damage(void) {
    char *pool = find_pool(); /* the first 256 MiB of it are searched */
    int map = open("/proc/self/pagemap", O_RDONLY);
    CHECK(map >= 0, "pagemap: %s", strerror(errno));
    ballast_sweep(&ballast);
    long flipped = 0;
    for (size_t p = 0; p < 65536; p++) {
        uint64_t entry = 0;
        off_t at = (off_t)(((uintptr_t)pool / PAGE + p) * 8);
        if (pread(map, &entry, 8, at) != 8 || !(entry >> 63))
            continue;
        for (size_t i = 40; i < PAGE; i += 256)
            pool[p * PAGE + i] ^= 0x55;
        flipped++;
    }
    close(map);
    CHECK(flipped > 0, "no stored page was found");
    struct sigaction sa = {.sa_sigaction = on_damage, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGBUS, &sa, NULL);
    volatile long right = 0;
    for (int round = 0; round < 2; round++)
        for (volatile size_t p = 0; p < ballast.pages; p++) {
            volatile uint64_t *page = ballast.base + p * WORDS;
            damage_at = (uintptr_t)page;
            if (sigsetjmp(damage_jump, 1) == 0) {
                CHECK(pattern_check(page, ballast.tag + p + 1) < 0, "page %zu is foreign", (size_t)p);
                right++;
            }
        }
    CHECK(damage_seen > 0, "no damaged page was noticed");
    /* Not printf: its buffer is on the heap, whose stored pages were damaged too. */
    char line[64];
    int len = snprintf(line, sizeof line, "pages right %ld, refused %ld\n", right, damage_seen);
    CHECK(write(1, line, (size_t)len) == len, "write: %s", strerror(errno));
}

/* More than both memories hold, in a mapping that was granted while there was room. */
static void overfull(void) {
    size_t n = mib << 8;
    uint64_t *p = map_pages(n, PROT_READ | PROT_WRITE);
    printf("mapped\n");
    fflush(stdout);
    for (size_t i = 0; i < n; i++)
        pattern_fill(p + i * WORDS, (i + 1) << 3);
    printf("all of it fitted\n");
}

/* A child does not have the far pages; its end must not take them from the parent. */
static void dontfork(void) {
    CHECK(madvise(ballast.base, ballast.pages * PAGE, MADV_DONTFORK) == 0, "madvise: %s", strerror(errno));
    for (int i = 0; i < 4; i++) {
        ballast_sweep(&ballast);
        pid_t pid = fork();
        CHECK(pid >= 0, "fork: %s", strerror(errno));
        if (pid == 0)
            _exit(0);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "child: %#x", status);
        ballast_sweep(&ballast);
    }
}

static void leaf(void) {
    for (int i = 0; i < 6; i++) {
        ballast_sweep(&ballast);
        for (size_t p = 0; p < ballast.pages; p += 2)
            pattern_fill(ballast.base + p * WORDS, ballast.tag + p + 1);
    }
}

int main(int argc, char **argv) {
    CHECK(argc >= 3, "usage: mem WHAT MIB [MORE]");
    mib = (size_t)atol(argv[2]);
    const char *what = argv[1];
    if (!strcmp(what, "enomem")) {
        enomem();
        printf("mem enomem: right\n");
        return 0;
    }
    if (!strcmp(what, "overfull")) {
        overfull();
        return 0;
    }
    ballast_make(&ballast, mib, 9);
    if (!strcmp(what, "damage")) {
        damage();
        return 0;
    }
    if (!strcmp(what, "lock"))
        lock();
    else if (!strcmp(what, "rlimit"))
        rlimit();
    else if (!strcmp(what, "brk"))
        brk_area();
    else if (!strcmp(what, "dontfork"))
        dontfork();
    else if (!strcmp(what, "threads"))
        threads();
    else if (!strcmp(what, "vectors"))
        vectors();
    else if (!strcmp(what, "waiters"))
        waiters();
    else if (!strcmp(what, "stacks"))
        stacks();
    else if (!strcmp(what, "forks"))
        forks();
    else if (!strcmp(what, "closes"))
        closes();
    else if (!strcmp(what, "tree"))
        tree(atoi(argv[3]));
    else if (!strcmp(what, "leaf"))
        leaf();
    else if (strcmp(what, "nothing"))
        fail("unknown part %s", what);
    ballast_sweep(&ballast);
    printf("mem %s: right\n", what);
    return 0;
}
