/* Memory that does not fit: fills it, changes some of it in rounds, and checks every byte each time. Half of each
 * page is random, the other half repeats. Needs nothing of canvas. usage: swapped MIB ROUNDS */
#include "random.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { WORDS = 512 };

static uint64_t word(uint64_t page, uint32_t version, int i) {
    return i % 2 ? mix64(page * 4099 + version * 7919 + i) : page << 32 | version;
}

static void put(uint64_t *p, uint64_t page, uint32_t version) {
    for (int i = 0; i < WORDS; i++)
        p[i] = word(page, version, i);
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    uint64_t pages = strtoull(argv[1], NULL, 10) << 8;
    int rounds = atoi(argv[2]);
    uint64_t *all = mmap(NULL, pages * WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint32_t *versions = calloc(pages, sizeof *versions);
    if (all == MAP_FAILED || !versions)
        return 3;
    for (uint64_t page = 0; page < pages; page++)
        put(all + page * WORDS, page, 0);
    struct rng rng = {.s = 7};
    for (int round = 0; round < rounds; round++) {
        for (uint64_t page = 0; page < pages; page++) {
            uint64_t *p = all + page * WORDS;
            for (int i = 0; i < WORDS; i++) {
                if (p[i] != word(page, versions[page], i)) {
                    printf("word %d of page %lu is wrong in round %d\n", i, (unsigned long)page, round);
                    return 1;
                }
            }
            if (rng_below(&rng, 4) == 0)
                put(p, page, ++versions[page]);
        }
        printf("round %d is right\n", round);
        fflush(stdout);
    }
    return 0;
}
