/* Processes that share anonymous memory with an oracle for every byte, some of them killed at any moment.
 *
 * usage: shared SEED WORKERS PAGES SECONDS KILL_EVERY_US
 *
 * Each worker is a process of two threads, each of which owns a slot in each page. It writes a new version to the
 * slot of a random page, by stores or by read(2), after it has checked the last version there, by loads or by
 * write(2). Workers fork children that check what their parents wrote, and share small mappings with them for a
 * while. With KILL_EVERY_US the parent repeatedly kills a random worker and starts another in its place. At the end
 * every byte of every page is checked by the parent, and by a child that has never touched one.
 *
 * The oracle is in a memory file, which no system under test manages. A worker records there what it is about to
 * write: after it is killed each word must have the old version or the new one.
 */
#include "common.h"
#include <sys/prctl.h>
#include <sys/syscall.h>

/* Worker w's threads own slots w and w + WORKERS_MAX. */
#define WORKERS_MAX 8
#define SLOTS (2 * WORKERS_MAX)
#define SLOT_WORDS (WORDS / SLOTS)
#define SLOT_BYTES (SLOT_WORDS * 8)

struct oracle {
    volatile uint64_t stop, ops, calls, children, mappings;
    /* Page that a worker writes to, plus one. */
    volatile uint32_t pending[SLOTS];
    volatile uint32_t version[][SLOTS];
};

static struct oracle *oracle;
static volatile uint64_t (*pages)[WORDS];
static size_t page_count;
static unsigned workers;

static uint64_t want(size_t page, unsigned w, uint32_t version, unsigned i) {
    if (version == 0)
        return 0;
    switch ((page + version) & 3) {
    case 0:
        return mix64(page << 40 ^ (uint64_t)w << 32 ^ version ^ (uint64_t)i << 50);
    case 1:
        return version % 3 ? version : 0;
    case 2:
        return i ? 0 : mix64(version);
    default:
        return (i & 1) ? page : mix64(version + i + w) & 0xffffff;
    }
}

static volatile uint64_t *slot_of(size_t page, unsigned w) { return &pages[page][w * SLOT_WORDS]; }

static void check_words(const volatile uint64_t *at, size_t page, unsigned w, uint32_t v, const char *how) {
    for (unsigned i = 0; i < SLOT_WORDS; i++) {
        uint64_t got = at[i];
        CHECK(got == want(page, w, v, i),
              "page %zu, worker %u, version %u, word %u: %llx instead of %llx (%s)", page, w, v, i,
              (unsigned long long)got, (unsigned long long)want(page, w, v, i), how);
    }
}

/* Completes the write of a killed worker. */
static void repair(unsigned w) {
    uint32_t pending = oracle->pending[w];
    if (!pending)
        return;
    size_t page = pending - 1;
    uint32_t v = oracle->version[page][w];
    volatile uint64_t *slot = slot_of(page, w);
    for (unsigned i = 0; i < SLOT_WORDS; i++) {
        uint64_t got = slot[i];
        CHECK(got == want(page, w, v, i) || got == want(page, w, v + 1, i),
              "page %zu, worker %u, word %u after a kill: %llx is neither version %u nor the next", page, w,
              i, (unsigned long long)got, v);
        slot[i] = want(page, w, v + 1, i);
    }
    oracle->version[page][w] = v + 1;
    oracle->pending[w] = 0;
}

static void one_step(struct rng *rng, unsigned w, int file) {
    size_t page = rng_below(rng, page_count);
    uint32_t v = oracle->version[page][w];
    volatile uint64_t *slot = slot_of(page, w);
    uint64_t copy[SLOT_WORDS];
    off_t at = (off_t)w * SLOT_BYTES;
    int by_call = rng_below(rng, 8) == 0;
    if (by_call) {
        /* The kernel reads the slot. */
        ssize_t n = pwrite(file, (void *)slot, SLOT_BYTES, at);
        CHECK(n == (ssize_t)SLOT_BYTES, "pwrite of page %zu: %zd, %s", page, n, strerror(errno));
        n = pread(file, copy, SLOT_BYTES, at);
        CHECK(n == (ssize_t)SLOT_BYTES, "pread: %zd", n);
        check_words(copy, page, w, v, "by write(2)");
        oracle->calls++;
    } else {
        check_words(slot, page, w, v, "by loads");
    }
    oracle->pending[w] = (uint32_t)page + 1;
    for (unsigned i = 0; i < SLOT_WORDS; i++)
        copy[i] = want(page, w, v + 1, i);
    if (by_call) {
        ssize_t n = pwrite(file, copy, SLOT_BYTES, at);
        CHECK(n == (ssize_t)SLOT_BYTES, "pwrite: %zd", n);
        n = pread(file, (void *)slot, SLOT_BYTES, at);
        CHECK(n == (ssize_t)SLOT_BYTES, "pread into page %zu: %zd, %s", page, n, strerror(errno));
    } else {
        for (unsigned i = 0; i < SLOT_WORDS; i++)
            slot[i] = copy[i];
    }
    oracle->version[page][w] = v + 1;
    oracle->pending[w] = 0;
    oracle->ops++;
}

struct thread {
    uint64_t seed;
    unsigned slot;
};

/* Reads pages that no process writes meanwhile. */
static void *reads(void *arg) {
    struct thread *t = arg;
    struct rng rng = {mix64(t->seed)};
    for (;;) {
        size_t page = rng_below(&rng, page_count);
        check_words(slot_of(page, t->slot), page, t->slot, oracle->version[page][t->slot], "before exec");
    }
    return NULL;
}

static void wait_for(pid_t child, const char *what) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child, "waitpid: %s", strerror(errno));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: status %x", what, status);
}

/* A child sees what its parent wrote, the parent what the child writes. */
static void with_child(struct rng *rng, unsigned w) {
    size_t n = 1 + rng_below(rng, 40);
    volatile uint64_t *own = mmap(NULL, n * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED, "mmap: %s", strerror(errno));
    for (size_t p = 0; p < n; p++)
        own[p * WORDS + 1] = p + 7;
    pid_t parent = getpid(), child = fork();
    CHECK(child >= 0, "fork: %s", strerror(errno));
    if (child == 0) {
        /* The successor of a killed worker writes to its slots. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(0);
        for (int k = 0; k < 20; k++) {
            size_t page = rng_below(rng, page_count);
            check_words(slot_of(page, w), page, w, oracle->version[page][w], "in a child");
        }
        for (size_t p = 0; p < n; p++) {
            CHECK(own[p * WORDS + 1] == p + 7, "a small mapping's page %zu in the child", p);
            own[p * WORDS + 2] = p + 9;
        }
        if (rng_below(rng, 4) == 0) {
            /* Ends a thread in the middle of its work. */
            struct thread t = {rng_next(rng), w};
            pthread_t reader;
            if (rng_below(rng, 2)) {
                int e = pthread_create(&reader, NULL, reads, &t);
                CHECK(e == 0, "pthread_create: %s", strerror(e));
                usleep((unsigned)rng_below(rng, 3000));
            }
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        _exit(0);
    }
    wait_for(child, "a child");
    for (size_t p = 0; p < n; p++) {
        CHECK(own[p * WORDS + 1] == p + 7 && own[p * WORDS + 2] == p + 9, "a small mapping's page %zu", p);
        CHECK(own[p * WORDS + 3] == 0, "a new page is not of zeros");
    }
    if (n > 2 && rng_below(rng, 2)) {
        CHECK(munmap((void *)own, PAGE) == 0, "munmap: %s", strerror(errno));
        CHECK(own[WORDS + 2] == 10, "the rest of a small mapping");
        CHECK(munmap((void *)(own + WORDS), (n - 1) * PAGE) == 0, "munmap: %s", strerror(errno));
    } else {
        CHECK(munmap((void *)own, n * PAGE) == 0, "munmap: %s", strerror(errno));
    }
    oracle->children++;
    oracle->mappings++;
}

static void *work(void *arg) {
    struct thread *t = arg;
    struct rng rng = {mix64(t->seed * 131 + t->slot)};
    int file = (int)syscall(SYS_memfd_create, "scratch", 0);
    CHECK(file >= 0, "memfd_create: %s", strerror(errno));
    repair(t->slot);
    while (!oracle->stop) {
        if (rng_below(&rng, 5000) == 0)
            with_child(&rng, t->slot);
        else
            one_step(&rng, t->slot, file);
    }
    return NULL;
}

static void __attribute__((noreturn)) worker(uint64_t seed, unsigned w) {
    struct thread both[2] = {{seed, w}, {seed, w + WORKERS_MAX}};
    pthread_t other;
    int e = pthread_create(&other, NULL, work, &both[1]);
    CHECK(e == 0, "pthread_create: %s", strerror(e));
    work(&both[0]);
    e = pthread_join(other, NULL);
    CHECK(e == 0, "pthread_join: %s", strerror(e));
    _exit(0);
}

static void check_all(const char *who) {
    for (size_t page = 0; page < page_count; page++)
        for (unsigned w = 0; w < SLOTS; w++)
            check_words(slot_of(page, w), page, w, oracle->version[page][w], who);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    CHECK(argc == 6, "usage: shared SEED WORKERS PAGES SECONDS KILL_EVERY_US");
    uint64_t seed = strtoull(argv[1], NULL, 0);
    workers = (unsigned)atoi(argv[2]);
    page_count = (size_t)atol(argv[3]);
    double seconds = atof(argv[4]);
    long kill_every_us = atol(argv[5]);
    CHECK(workers >= 1 && workers <= WORKERS_MAX, "1 to %d workers", WORKERS_MAX);
    size_t bytes = sizeof(struct oracle) + page_count * SLOTS * 4;
    int file = (int)syscall(SYS_memfd_create, "oracle", 0);
    CHECK(file >= 0 && ftruncate(file, (off_t)bytes) == 0, "memfd: %s", strerror(errno));
    oracle = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(oracle != MAP_FAILED, "mmap: %s", strerror(errno));
    pages = mmap(NULL, page_count * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED, "mmap: %s", strerror(errno));
    pid_t pids[WORKERS_MAX];
    struct rng rng = {mix64(seed)};
    uint64_t started = 0, killed = 0;
    for (unsigned w = 0; w < workers; w++) {
        pids[w] = fork();
        if (pids[w] == 0)
            worker(seed + started * 1000, w);
        started++;
    }
    double end = now() + seconds;
    while (now() < end) {
        if (kill_every_us == 0) {
            usleep(10000);
            int status;
            CHECK(waitpid(-1, &status, WNOHANG) == 0, "a worker has ended: %x", status);
            continue;
        }
        usleep((unsigned)rng_below(&rng, (uint64_t)kill_every_us * 2));
        unsigned w = (unsigned)rng_below(&rng, workers);
        kill(pids[w], SIGKILL);
        int status = 0;
        CHECK(waitpid(pids[w], &status, 0) == pids[w], "waitpid: %s", strerror(errno));
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "worker %u: status %x", w, status);
        killed++;
        pids[w] = fork();
        CHECK(pids[w] >= 0, "fork: %s", strerror(errno));
        if (pids[w] == 0)
            worker(seed + started * 1000, w);
        started++;
    }
    oracle->stop = 1;
    for (unsigned w = 0; w < workers; w++)
        wait_for(pids[w], "a worker");
    check_all("by the parent");
    pid_t last = fork();
    if (last == 0) {
        check_all("by a new child");
        _exit(0);
    }
    wait_for(last, "the last child");
    CHECK(munmap((void *)pages, page_count * PAGE) == 0, "munmap: %s", strerror(errno));
    fprintf(stderr, "shared: %llu writes, %llu by calls, %llu children, %llu killed\n",
            (unsigned long long)oracle->ops, (unsigned long long)oracle->calls,
            (unsigned long long)oracle->children, (unsigned long long)killed);
    printf("shared seed %llu: every byte right\n", (unsigned long long)seed);
    return 0;
}
