/* Shared by the C test programs: page patterns that can be recomputed, random numbers, failure.
 *
 * A page's contents are a function of its tag. Tag 0 is a page of zeros. The tag's low bits pick
 * how well the page compresses, so that every stored class, same-filled pages and raw pages occur.
 */
#ifndef CANVAS_TEST_COMMON_H
#define CANVAS_TEST_COMMON_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "random.h"

#define PAGE 4096UL
#define WORDS (PAGE / 8)

static inline uint64_t pattern_word(uint64_t tag, unsigned i) {
    if (tag == 0)
        return 0;
    switch (tag & 7) {
    case 0: /* incompressible */
        return mix64(tag * 512 + i);
    case 1: /* same-filled */
        return mix64(tag) | 1;
    case 2: /* one word in a page of zeros */
        return i == (mix64(tag) & 511) ? tag : 0;
    case 3: /* about 4:1 */
        return (i & 3) ? (mix64(tag) & 0xffff) : mix64(tag * 512 + i);
    default: /* about 2:1 to 2.5:1 */
        return (i & 1) ? (tag & 0xff00ff) : mix64(tag * 512 + i) & 0xffffffffffffULL;
    }
}

static inline void pattern_fill(volatile uint64_t *page, uint64_t tag) {
    for (unsigned i = 0; i < WORDS; i++)
        page[i] = pattern_word(tag, i);
}

/* Index of the first wrong word, or -1. */
static inline int pattern_check(const volatile uint64_t *page, uint64_t tag) {
    for (unsigned i = 0; i < WORDS; i++)
        if (page[i] != pattern_word(tag, i))
            return (int)i;
    return -1;
}

/* Prints to stderr with write(2) only (usable in a forked child) and exits with 1. */
static inline void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...) {
    char line[2048];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(line, sizeof line - 1, format, ap);
    va_end(ap);
    if (n < 0)
        n = 0;
    if ((size_t)n > sizeof line - 2)
        n = sizeof line - 2;
    line[n++] = '\n';
    ssize_t done = write(2, line, (size_t)n);
    (void)done;
    _exit(1);
}

#define CHECK(condition, format, ...)                                                              \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail("%s:%d: %s: " format, __FILE__, __LINE__, #condition, ##__VA_ARGS__);             \
    } while (0)

/* A private anonymous mapping; ends the program if there is none. */
static inline void *map_pages(size_t pages, int prot) {
    void *p = mmap(NULL, pages * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap of %zu pages: %s", pages, strerror(errno));
    return p;
}

/* Ballast: pages written once and swept, which evicts everything else from local memory. */
struct ballast {
    volatile uint64_t *base;
    size_t pages;
    uint64_t tag;
};

static inline void ballast_make(struct ballast *b, size_t mib, uint64_t seed) {
    b->pages = mib << 8;
    b->tag = mix64(seed) << 8;
    b->base = map_pages(b->pages, PROT_READ | PROT_WRITE);
    for (size_t p = 0; p < b->pages; p++)
        pattern_fill(b->base + p * WORDS, b->tag + p + 1);
}

static inline void ballast_sweep(struct ballast *b) {
    for (size_t p = 0; p < b->pages; p++) {
        int bad = pattern_check(b->base + p * WORDS, b->tag + p + 1);
        CHECK(bad < 0, "ballast page %zu word %d is %016lx, expected %016lx", p, bad,
              (unsigned long)b->base[p * WORDS + (size_t)bad],
              (unsigned long)pattern_word(b->tag + p + 1, (unsigned)bad));
    }
}

static inline double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
#endif
