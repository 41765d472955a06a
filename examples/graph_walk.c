/* Walks at random through a graph that is larger than memory, and asks canvas for the nodes that come next.
 *
 * Eight groups of walkers take turns. A group knows its next nodes after a step, and needs them at its next turn: in
 * between, canvas brings them in. Without canvas, or with `plain` as the third argument, the answer is the same.
 *
 * graph_walk MIB STEPS [plain]          (cc graph_walk.c -lcanvas-api)
 */
#include <canvas.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define GROUPS 8
#define WALKERS 16

/* A page. */
struct node {
    uint32_t next[8];
    uint64_t data[508];
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
        fprintf(stderr, "usage: graph_walk MIB STEPS [plain]\n");
        return 2;
    }
    size_t count = strtoull(argv[1], NULL, 0) * 256, steps = strtoull(argv[2], NULL, 0);
    int asks = argc < 4 || strcmp(argv[3], "plain") != 0;
    struct node *nodes = mmap(NULL, count * sizeof *nodes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (nodes == MAP_FAILED || count == 0) {
        perror("graph_walk");
        return 1;
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < 8; k++)
            nodes[i].next[k] = (uint32_t)(mix(i * 8 + k + 1) % count);
        for (size_t k = 0; k < 508; k++)
            nodes[i].data[k] = mix(i ^ (k << 40)) & 0xffffffff;
    }
    /* A node's neighbours in memory are not needed with it. */
    if (asks && canvas_region(nodes, count * sizeof *nodes, CANVAS_REGION_RANDOM, 0, 0) == -ENOSYS)
        asks = 0;
    uint32_t at[GROUPS][WALKERS];
    for (size_t g = 0; g < GROUPS; g++)
        for (size_t w = 0; w < WALKERS; w++)
            at[g][w] = (uint32_t)(mix(g * WALKERS + w) % count);
    uint64_t sum = 0, accepted = 0, refused = 0;
    double began_ms = now_ms();
    for (size_t step = 0; step < steps; step++) {
        uint32_t *group = at[step % GROUPS];
        struct canvas_range next[WALKERS];
        for (size_t w = 0; w < WALKERS; w++) {
            const struct node *n = &nodes[group[w]];
            uint64_t here = 0;
            /* The work on a node takes longer than canvas takes to bring one in. */
            for (size_t pass = 0; pass < 16; pass++)
                for (size_t k = 0; k < 508; k++)
                    here = mix(here + n->data[k]);
            sum = mix(sum + here);
            group[w] = n->next[(here ^ mix(step * WALKERS + w)) % 8];
            next[w] = (struct canvas_range){&nodes[group[w]], sizeof *n};
        }
        if (asks) {
            long pages = canvas_prefetchv(next, WALKERS);
            /* -EAGAIN: the queue is full, and the pages would come too late. */
            *(pages < 0 ? &refused : &accepted) += pages < 0 ? 1 : (uint64_t)pages;
        }
    }
    printf("sum %016llx\n", (unsigned long long)sum);
    fprintf(stderr, "round 0: %.1f ms\n", now_ms() - began_ms);
    fprintf(stderr, "%s: %llu pages asked for, %llu hints refused\n", asks ? "canvas is here" : "without hints",
            (unsigned long long)accepted, (unsigned long long)refused);
    return 0;
}
