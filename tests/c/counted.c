/* Performs a known number of operations on memory, to compare with canvas's counters. usage: counted PAGES TAG
 * FORKS
 *
 * Fills pages with tags of the same low bits (common.h), evicts them by MADV_PAGEOUT, and reads them; then forks
 * processes that end at once.
 */
#include "common.h"

int main(int argc, char **argv) {
    CHECK(argc == 4, "usage: counted PAGES TAG FORKS");
    size_t pages = (size_t)atol(argv[1]);
    uint64_t tag = strtoull(argv[2], NULL, 10);
    if (pages) {
        char *area = map_pages(pages, PROT_READ | PROT_WRITE);
        for (size_t i = 0; i < pages; i++)
            pattern_fill((volatile uint64_t *)(area + i * PAGE), tag ? tag + 8 * i : 0);
        CHECK(madvise(area, pages * PAGE, MADV_PAGEOUT) == 0, "MADV_PAGEOUT: %s", strerror(errno));
        unsigned char *there = malloc(pages);
        for (size_t left = 1; left;) {
            usleep(10 * 1000);
            CHECK(mincore(area, pages * PAGE, there) == 0, "mincore: %s", strerror(errno));
            left = 0;
            for (size_t i = 0; i < pages; i++)
                left += there[i] & 1;
        }
        free(there);
        for (size_t i = 0; i < pages; i++)
            CHECK(pattern_check((volatile uint64_t *)(area + i * PAGE), tag ? tag + 8 * i : 0) < 0, "page %zu", i);
    }
    for (long i = 0; i < atol(argv[3]); i++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork: %s", strerror(errno));
        if (child == 0)
            _exit(0);
        CHECK(waitpid(child, NULL, 0) == child, "waitpid: %s", strerror(errno));
    }
    /* Long enough for canvas to measure this process's memory. */
    usleep(500 * 1000);
    puts("done");
    return 0;
}
