/* Scans ranges of a B+ tree whose leaves are scattered, and asks canvas for the leaves that come next.
 *
 * A node is a page. A leaf's neighbours in memory are not its neighbours in the tree, as after years of use, so
 * readahead cannot help; but the node above lists the leaves that follow. Without canvas, or with `plain` as the third
 * argument, the answer is the same.
 *
 * btree_scan MIB ROUNDS [plain]          (cc btree_scan.c -lcanvas-api)
 */
#include <canvas.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define KEYS 254
#define CHILDREN 1000
/* How many leaves ahead the program hints, and how many with one call. */
#define AHEAD 64
#define TOLD_AT_ONCE 16

/* A page each. */
struct leaf {
    uint64_t first;
    uint64_t count;
    uint64_t keys[KEYS], values[KEYS];
    char pad[4096 - 16 - 2 * KEYS * 8];
};
struct inner {
    uint64_t count;
    uint32_t children[CHILDREN];
    char pad[4096 - 8 - CHILDREN * 4];
};

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: btree_scan MIB ROUNDS [plain]\n");
        return 2;
    }
    size_t count = strtoull(argv[1], NULL, 0) * 256, rounds = strtoull(argv[2], NULL, 0);
    int asks = argc < 4 || strcmp(argv[3], "plain") != 0;
    size_t inners = (count + CHILDREN - 1) / CHILDREN;
    struct leaf *leaves = mmap(NULL, count * sizeof *leaves, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct inner *tree = calloc(inners ? inners : 1, sizeof *tree);
    uint32_t *places = malloc(count * sizeof *places + 1);
    if (leaves == MAP_FAILED || !tree || !places || count == 0) {
        perror("btree_scan");
        return 1;
    }
    for (size_t i = 0; i < count; i++)
        places[i] = (uint32_t)i;
    for (size_t i = count - 1; i > 0; i--) {
        size_t other = mix(i) % (i + 1);
        uint32_t kept = places[i];
        places[i] = places[other];
        places[other] = kept;
    }
    for (size_t i = 0; i < count; i++) {
        struct leaf *leaf = &leaves[places[i]];
        leaf->first = i * KEYS;
        leaf->count = KEYS;
        for (size_t k = 0; k < KEYS; k++) {
            leaf->keys[k] = leaf->first + k;
            leaf->values[k] = mix(leaf->keys[k]) & 0xffffffff;
        }
        struct inner *above = &tree[i / CHILDREN];
        above->children[above->count++] = places[i];
    }
    free(places);
    if (asks && canvas_region(leaves, count * sizeof *leaves, CANVAS_REGION_RANDOM, 0, 0) == -ENOSYS)
        asks = 0;
    uint64_t sum = 0, accepted = 0, refused = 0;
    for (size_t round = 0; round < rounds; round++) {
        double began_ms = now_ms();
        size_t told = 0;
        for (size_t i = 0; i < count; i++) {
            while (asks && told < count && told < i + AHEAD) {
                struct canvas_range next[TOLD_AT_ONCE];
                size_t n = 0;
                for (size_t at = told; n < TOLD_AT_ONCE && at < count; at++)
                    next[n++] = (struct canvas_range){&leaves[tree[at / CHILDREN].children[at % CHILDREN]], sizeof *leaves};
                long pages = canvas_prefetchv(next, n);
                /* -EAGAIN: the queue is full, and the pages would come too late. */
                *(pages < 0 ? &refused : &accepted) += pages < 0 ? 1 : (uint64_t)pages;
                told += n;
            }
            const struct leaf *leaf = &leaves[tree[i / CHILDREN].children[i % CHILDREN]];
            if (leaf->first != i * KEYS || leaf->count != KEYS) {
                fprintf(stderr, "leaf %zu is wrong\n", i);
                return 1;
            }
            for (size_t k = 0; k < leaf->count; k++)
                sum = mix(sum + leaf->keys[k]) + leaf->values[k];
        }
        fprintf(stderr, "round %zu: %.1f ms\n", round, now_ms() - began_ms);
    }
    printf("sum %016llx\n", (unsigned long long)sum);
    fprintf(stderr, "%s: %llu pages asked for, %llu hints refused\n", asks ? "canvas is here" : "without hints",
            (unsigned long long)accepted, (unsigned long long)refused);
    return 0;
}
