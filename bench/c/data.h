/* Data that lz4 shrinks about 2.5:1, cheap to make and to check. */
#ifndef CANVAS_BENCH_DATA_H
#define CANVAS_BENCH_DATA_H
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../tests/c/random.h"

#define PAGE 4096UL
#define TEMPLATES 256

static unsigned char templates[TEMPLATES][PAGE] __attribute__((aligned(4096)));

/* Runs of 19 random bytes between runs of 45 that repeat earlier ones of the same page. */
static void templates_make(uint64_t seed) {
    struct rng r = {seed};
    for (int t = 0; t < TEMPLATES; t++) {
        unsigned char common[4][45];
        for (int c = 0; c < 4; c++)
            for (int i = 0; i < 45; i++)
                common[c][i] = (unsigned char)rng_next(&r);
        for (size_t at = 0; at < PAGE; at += 64) {
            for (int i = 0; i < 19; i++)
                templates[t][at + i] = (unsigned char)rng_next(&r);
            memcpy(templates[t] + at + 19, common[rng_below(&r, 4)], 45);
        }
    }
}

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static inline void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(1);
}

/* Times in ns, 8 buckets an octave: at most 12 % wide. */
#define BUCKETS 320
struct histogram {
    uint64_t n[BUCKETS], max, count;
};

static inline void histogram_add(struct histogram *h, uint64_t ns) {
    unsigned octave = ns < 8 ? 0 : 63 - (unsigned)__builtin_clzll(ns) - 2;
    unsigned at = ns < 8 ? (unsigned)ns : octave * 8 + (unsigned)((ns >> (octave - 1)) & 7);
    if (at >= BUCKETS)
        at = BUCKETS - 1;
    h->n[at]++;
    h->count++;
    if (ns > h->max)
        h->max = ns;
}

static inline void histogram_merge(struct histogram *to, const struct histogram *from) {
    for (int i = 0; i < BUCKETS; i++)
        to->n[i] += from->n[i];
    to->count += from->count;
    if (from->max > to->max)
        to->max = from->max;
}

static inline uint64_t histogram_at(const struct histogram *h, double share) {
    uint64_t want = (uint64_t)((double)h->count * share), seen = 0;
    for (unsigned i = 0; i < BUCKETS; i++) {
        seen += h->n[i];
        if (seen > want) {
            if (i < 8)
                return i;
            unsigned octave = i / 8;
            return (8ULL + (i & 7)) << (octave - 1);
        }
    }
    return h->max;
}
#endif
