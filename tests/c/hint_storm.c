/* Threads give advice for random parts of memory, right and wrong, while another one unmaps, maps, fills and checks
 * it, and while the process forks: no byte is lost, and every call returns.
 *
 * hint_storm SEED ROUNDS
 */
#include "common.h"

#define PIECES 16
#define PIECE_PAGES 512UL
#define ALL (PIECES * PIECE_PAGES)
#define HINTERS 4

static char *base;
static volatile int over;
static uint64_t tags[ALL];

static void *hinter(void *seed) {
    static const int ADVICE[] = {MADV_WILLNEED, MADV_WILLNEED, MADV_COLD, MADV_PAGEOUT, MADV_RANDOM,
                                 MADV_SEQUENTIAL, MADV_NORMAL};
    uint64_t n = (uint64_t)(uintptr_t)seed << 32;
    while (!over) {
        uint64_t r = mix64(n++);
        size_t page = r % ALL, pages = (r >> 20) % 1024 + 1;
        int advice = ADVICE[(r >> 40) % (sizeof ADVICE / sizeof *ADVICE)];
        if (page + pages > ALL)
            pages = ALL - page;
        int answer = madvise(base + page * PAGE, pages * PAGE, advice);
        /* The range is unmapped for a moment. */
        CHECK(answer == 0 || errno == ENOMEM, "madvise %d: %s", advice, strerror(errno));
    }
    return NULL;
}

static void fill(size_t from, size_t pages, uint64_t tag) {
    for (size_t p = from; p < from + pages; p++) {
        tags[p] = mix64(tag + p) | 8;
        pattern_fill((uint64_t *)(base + p * PAGE), tags[p]);
    }
}

static void check(size_t from, size_t pages) {
    for (size_t p = from; p < from + pages; p++) {
        int wrong = pattern_check((uint64_t *)(base + p * PAGE), tags[p]);
        CHECK(wrong < 0, "page %zu, word %d is wrong", p, wrong);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 3, "usage: hint_storm SEED ROUNDS");
    uint64_t seed = strtoull(argv[1], NULL, 0), rounds = strtoull(argv[2], NULL, 0);
    base = mmap(NULL, ALL * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED, "mmap: %s", strerror(errno));
    fill(0, ALL, seed);
    pthread_t threads[HINTERS];
    for (uintptr_t i = 0; i < HINTERS; i++)
        CHECK(pthread_create(&threads[i], NULL, hinter, (void *)(seed + i)) == 0, "pthread_create");
    for (uint64_t i = 0; i < rounds; i++) {
        size_t from = mix64(seed * 977 + i) % PIECES * PIECE_PAGES;
        check(from, PIECE_PAGES);
        CHECK(munmap(base + from * PAGE, PIECE_PAGES * PAGE) == 0, "munmap: %s", strerror(errno));
        void *again = mmap(base + from * PAGE, PIECE_PAGES * PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(again == base + from * PAGE, "mmap: %s", strerror(errno));
        fill(from, PIECE_PAGES, seed + i);
        if (i % 16 == 7) {
            pid_t child = fork();
            CHECK(child >= 0, "fork: %s", strerror(errno));
            if (child == 0) {
                /* The child has the memory, but none of the hints. */
                CHECK(madvise(base, ALL * PAGE / 2, MADV_WILLNEED) == 0, "in the child: %s", strerror(errno));
                check(0, ALL);
                fill(from, 64, seed + i + 1);
                CHECK(madvise(base, ALL * PAGE, MADV_PAGEOUT) == 0, "in the child: %s", strerror(errno));
                check(from, 64);
                _exit(0);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ended with %#x", status);
        }
    }
    over = 1;
    for (int i = 0; i < HINTERS; i++)
        pthread_join(threads[i], NULL);
    check(0, ALL);
    printf("right\n");
    return 0;
}
