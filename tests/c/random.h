/* Random numbers, shared by the test programs and the benchmarks. */
#ifndef CANVAS_RANDOM_H
#define CANVAS_RANDOM_H
#include <stdint.h>

static inline uint64_t mix64(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ (x >> 33);
}

struct rng {
    uint64_t s;
};

static inline uint64_t rng_next(struct rng *r) {
    r->s += 0x9e3779b97f4a7c15ULL;
    return mix64(r->s);
}

/* 0 <= result < n */
static inline uint64_t rng_below(struct rng *r, uint64_t n) {
    return (uint64_t)(((unsigned __int128)rng_next(r) * n) >> 64);
}
#endif
