/* A program that sleeps with pages in the swap cache only, and another one that needs all memory.
 *
 * usage: asleep BUSY_MIB IDLE_MIB SECONDS
 *
 * Prints the processor time of the sleeper's threads while it slept, and the time of a fixed piece of work on this
 * machine at present.
 */
#include "children.h"

/* Processor time of this process, all threads, in ns. */
static uint64_t used_ns(void) {
    struct timespec t;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0, "%s", strerror(errno));
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static void fill(volatile uint64_t *base, size_t pages) {
    for (size_t p = 0; p < pages; p++)
        pattern_fill(base + p * WORDS, 99 + p);
}

static void check(volatile uint64_t *base, size_t pages) {
    for (size_t p = 0; p < pages; p++)
        CHECK(pattern_check(base + p * WORDS, 99 + p) < 0, "page %zu is wrong", p);
}

/* Goes through its memory, again for each command. */
static void busy(size_t pages, double seconds) {
    volatile uint64_t *base = map_pages(pages, PROT_READ | PROT_WRITE);
    fill(base, pages);
    say(1);
    for (int turn = 0; turn < 2; turn++) {
        hear(0);
        double until = now_s() + seconds;
        while (now_s() < until)
            check(base, pages);
        say(1);
    }
}

/* Time of the kernel to free 64 MiB, in us: a machine with slow memory is slow at scanning it. */
static unsigned long long yardstick_us(void) {
    const size_t pages = 16384;
    uint64_t before = used_ns();
    /* Shared memory is left to the kernel, also under canvas. */
    volatile char *base = mmap(NULL, pages << 12, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED, "%s", strerror(errno));
    for (size_t p = 0; p < pages; p++)
        base[p << 12] = 1;
    return (used_ns() - before) / 1000;
}

static void idle(size_t pages) {
    volatile uint64_t *base = map_pages(pages, PROT_READ | PROT_WRITE);
    fill(base, pages);
    say(1);
    hear(0);
    /* Pages prefetched after the first few of a run are in the swap cache. */
    uint64_t sum = 0;
    for (size_t p = 0; p + 64 < pages; p += 64)
        for (size_t q = p; q < p + 4; q++)
            sum += base[q * WORDS];
    say(1);
    uint64_t before = used_ns();
    hear(0);
    unsigned long long used_us = (used_ns() - before) / 1000;
    fprintf(stderr, "asleep used %llu us of %llu (%d)\n", used_us, yardstick_us(), (int)(sum & 1));
    check(base, pages);
    say(1);
}

int main(int argc, char **argv) {
    CHECK(argc == 4, "usage: asleep BUSY_MIB IDLE_MIB SECONDS");
    if (strcmp(argv[1], "busy") == 0) {
        busy((size_t)atol(argv[2]) << 8, atof(argv[3]));
        return 0;
    }
    if (strcmp(argv[1], "idle") == 0) {
        idle((size_t)atol(argv[2]) << 8);
        return 0;
    }
    struct child i = start("/proc/self/exe", "idle", argv[2], "0");
    hear(i.from);
    struct child b = start("/proc/self/exe", "busy", argv[1], argv[3]);
    hear(b.from);
    say(b.to);
    hear(b.from);
    say(i.to);
    hear(i.from);
    say(b.to);
    hear(b.from);
    say(i.to);
    hear(i.from);
    end(b);
    end(i);
    puts("asleep right");
    return 0;
}
