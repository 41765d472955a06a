/* Pages whose contents follow from their number and version, read and written at random until the test says stop;
 * checks every page that it touches, and all of them at the end.
 *
 * usage: far_pages MIB STATUS_FILE SEED
 *
 * Creates STATUS_FILE and shares it: the test reads counts and the longest access from it at any time, and writes
 * there when to stop. The versions are in shared memory, which is never paged, so that the oracle is independent of
 * the code under test.
 */
#include "common.h"

#include <fcntl.h>
#include <pthread.h>

#define THREADS 2

/* Words of the status file, as in tests/net/load.py. */
struct status {
    uint64_t ready;      /* all pages are written */
    uint64_t reads;      /* pages checked */
    uint64_t writes;     /* pages written */
    uint64_t longest_ns; /* longest access; the test sets it back to 0 */
    uint64_t stop;       /* set by the test */
};

static volatile struct status *status;
static volatile uint64_t *pages;
static uint32_t *versions;
static size_t count;
static uint64_t seed;

static uint64_t tag_of(size_t page) {
    return mix64(seed * 0x9e3779b97f4a7c15ULL + page) / 2 + versions[page];
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void took(uint64_t ns) {
    uint64_t old = __atomic_load_n(&status->longest_ns, __ATOMIC_RELAXED);
    while (ns > old && !__atomic_compare_exchange_n(&status->longest_ns, &old, ns, 0,
                                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static void check(size_t page) {
    int bad = pattern_check(pages + page * WORDS, tag_of(page));
    CHECK(bad < 0, "seed %lu page %zu version %u word %d is %016lx, expected %016lx",
          (unsigned long)seed, page, versions[page], bad,
          (unsigned long)pages[page * WORDS + (size_t)bad],
          (unsigned long)pattern_word(tag_of(page), (unsigned)bad));
    __atomic_add_fetch(&status->reads, 1, __ATOMIC_RELAXED);
}

static void *work(void *arg) {
    size_t me = (size_t)arg;
    struct rng rng = {mix64(seed + 77 * (me + 1))};
    for (unsigned n = 0; !__atomic_load_n(&status->stop, __ATOMIC_RELAXED); n++) {
        size_t page = rng_below(&rng, count / THREADS) * THREADS + me;
        uint64_t begun = now_ns();
        check(page);
        if (rng_below(&rng, 4) == 0) {
            versions[page]++;
            pattern_fill(pages + page * WORDS, tag_of(page));
            __atomic_add_fetch(&status->writes, 1, __ATOMIC_RELAXED);
        }
        took(now_ns() - begun);
        if (n % 8 == 0)
            usleep(200);
    }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 4, "usage: far_pages MIB STATUS_FILE SEED");
    count = strtoul(argv[1], NULL, 10) << 8;
    seed = strtoull(argv[3], NULL, 10);
    int fd = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0 && ftruncate(fd, PAGE) == 0, "%s: %s", argv[2], strerror(errno));
    status = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(status != MAP_FAILED, "mmap: %s", strerror(errno));
    versions = mmap(NULL, count * sizeof *versions, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(versions != MAP_FAILED, "mmap: %s", strerror(errno));
    pages = map_pages(count, PROT_READ | PROT_WRITE);
    for (size_t p = 0; p < count; p++)
        pattern_fill(pages + p * WORDS, tag_of(p));
    __atomic_store_n(&status->ready, 1, __ATOMIC_RELEASE);
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0, "pthread_create");
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (size_t p = 0; p < count; p++)
        check(p);
    printf("every byte right: %lu pages read, %lu written\n", (unsigned long)status->reads,
           (unsigned long)status->writes);
    return 0;
}
