/* Traverses a list or a search tree with nodes in random order in memory, repeatedly.
 *
 * usage: linked list|tree MIB NODE_BYTES ROUNDS SEED
 *
 * Each node has a number that follows from its place in the order, which is checked. Prints the time of each round
 * in ms. `list` follows one pointer per node; `tree` is traversed in order, left before right.
 */
#include "common.h"
#include "random.h"

#include <string.h>
#include <sys/mman.h>

struct node {
    struct node *next, *right;
    uint64_t number;
};

static char *memory;
static size_t count, node_bytes, visited;
static uint64_t sum;

static struct node *node_at(size_t place) { return (struct node *)(memory + place * node_bytes); }

static uint64_t number_of(size_t i) { return mix64(i + 1); }

static void visit(struct node *n) {
    CHECK(n->number == number_of(visited), "node %zu holds %lx", visited, (unsigned long)n->number);
    sum += n->number;
    visited++;
}

/* The nodes order[from..to) as a tree; `next` is left. */
static struct node *tree_of(const uint32_t *order, size_t from, size_t to) {
    if (from == to)
        return NULL;
    size_t middle = from + (to - from) / 2;
    struct node *n = node_at(order[middle]);
    n->number = number_of(middle);
    n->next = tree_of(order, from, middle);
    n->right = tree_of(order, middle + 1, to);
    return n;
}

static void walk(struct node *n) {
    if (n == NULL)
        return;
    walk(n->next);
    visit(n);
    walk(n->right);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

int main(int argc, char **argv) {
    CHECK(argc == 6, "usage: linked list|tree MIB NODE_BYTES ROUNDS SEED");
    int is_tree = strcmp(argv[1], "tree") == 0;
    node_bytes = strtoul(argv[3], NULL, 10);
    size_t bytes = strtoul(argv[2], NULL, 10) << 20;
    count = bytes / node_bytes;
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    struct rng rng = {strtoull(argv[5], NULL, 10)};
    /* The order itself is not under test, so it is not paged. */
    uint32_t *order = mmap(NULL, count * 4, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(order != MAP_FAILED, "mmap");
    for (size_t i = 0; i < count; i++)
        order[i] = (uint32_t)i;
    for (size_t i = count; i > 1; i--) {
        size_t j = rng_below(&rng, i);
        uint32_t other = order[i - 1];
        order[i - 1] = order[j];
        order[j] = other;
    }
    struct node *first;
    if (is_tree) {
        first = tree_of(order, 0, count);
    } else {
        for (size_t i = 0; i < count; i++) {
            struct node *n = node_at(order[i]);
            n->number = number_of(i);
            n->next = i + 1 < count ? node_at(order[i + 1]) : NULL;
        }
        first = node_at(order[0]);
    }
    /* Data that keeps the node from compressing to nothing. */
    for (size_t i = 0; i < count && node_bytes > 64; i++) {
        uint64_t *words = (uint64_t *)node_at(i);
        for (size_t w = 8; w < node_bytes / 16; w++)
            words[w] = mix64(i * 1000 + w);
    }
    printf("ready\n");
    fflush(stdout);
    unsigned long rounds = strtoul(argv[4], NULL, 10);
    for (unsigned long r = 0; r < rounds; r++) {
        double began = now_ms();
        visited = 0;
        if (is_tree)
            walk(first);
        else
            for (struct node *n = first; n; n = n->next)
                visit(n);
        CHECK(visited == count, "%zu of %zu nodes", visited, count);
        printf("round %lu: %.1f ms\n", r, now_ms() - began);
        fflush(stdout);
    }
    printf("sum %lx\n", (unsigned long)sum);
    return 0;
}
