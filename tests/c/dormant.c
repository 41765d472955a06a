/* Memory that is idle until requested: fills it, then, for each line of its input, checks every byte and prints how
 * many of its faults waited for a disk. Half of each page is random. Needs nothing of canvas. usage: dormant MIB */
#include "random.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { WORDS = 512 };

static uint64_t word(uint64_t page, int i) {
    return i % 2 ? mix64(page * 4099 + i) : page + 1;
}

static long waits(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_majflt;
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    uint64_t pages = strtoull(argv[1], NULL, 10) << 8;
    uint64_t *all = mmap(NULL, pages * WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 3;
    madvise(all, pages * WORDS * 8, MADV_NOHUGEPAGE);
    for (uint64_t i = 0; i < pages * WORDS; i++)
        all[i] = word(i / WORDS, i % WORDS);
    printf("ready\n");
    fflush(stdout);
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        long before = waits();
        for (uint64_t i = 0; i < pages * WORDS; i++) {
            if (all[i] != word(i / WORDS, i % WORDS)) {
                printf("word %lu is wrong\n", (unsigned long)i);
                return 1;
            }
        }
        printf("right after %ld waits\n", waits() - before);
        fflush(stdout);
    }
    return 0;
}
