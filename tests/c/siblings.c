/* Two programs under one limit: one uses all its memory and grows, and one sleeps. The sleeper's pages must be
 * evicted, although the other's memory came in earlier.
 *
 * usage: siblings BUSY_MIB IDLE_MIB GROWTH_MIB
 *
 * Prints how often a page of the busy one was gone before it was used again, and how many of its pages the idle one
 * has in the end, both as the kernel counts them.
 */
#include "children.h"

/* Number of pages of a range that the kernel has in memory. */
static size_t present(const volatile void *at, size_t pages) {
    int fd = open("/proc/self/pagemap", O_RDONLY);
    CHECK(fd >= 0, "%s", strerror(errno));
    size_t n = 0;
    uint64_t entries[512];
    for (size_t p = 0; p < pages;) {
        size_t some = pages - p < 512 ? pages - p : 512;
        off_t place = (off_t)(((uintptr_t)at / PAGE + p) * sizeof *entries);
        ssize_t got = pread(fd, entries, some * sizeof *entries, place);
        CHECK(got > 0, "%s", strerror(errno));
        size_t end = p + (size_t)got / sizeof *entries;
        for (size_t i = 0; p < end; i++, p++)
            n += entries[i] >> 63;
    }
    close(fd);
    return n;
}

static void fill(volatile uint64_t *base, size_t from, size_t to) {
    for (size_t p = from; p < to; p++)
        pattern_fill(base + p * WORDS, 99 + p);
}

static void check(volatile uint64_t *base, size_t pages) {
    for (size_t p = 0; p < pages; p++)
        CHECK(pattern_check(base + p * WORDS, 99 + p) < 0, "page %zu is wrong", p);
}

static void busy(size_t pages, size_t growth) {
    volatile uint64_t *base = map_pages(pages + growth, PROT_READ | PROT_WRITE);
    fill(base, 0, pages);
    say(1);
    fcntl(0, F_SETFL, O_NONBLOCK);
    char byte;
    uint64_t sum = 0;
    size_t lost = 0;
    while (read(0, &byte, 1) != 1)
        for (size_t p = 0; p < pages; p++)
            sum += base[p * WORDS];
    for (size_t p = pages; p < pages + growth; p++) {
        fill(base, p, p + 1);
        if (p % 64 == 0)
            lost += p - present(base, p);
        if (p % 16 == 0)
            for (size_t q = 0; q < p; q++)
                sum += base[q * WORDS];
    }
    lost += pages + growth - present(base, pages + growth);
    fprintf(stderr, "busy lost %zu of %zu (%d)\n", lost, pages + growth, (int)(sum & 1));
    check(base, pages + growth);
    say(1);
}

static void idle(size_t pages) {
    volatile uint64_t *base = map_pages(pages, PROT_READ | PROT_WRITE);
    fill(base, 0, pages);
    say(1);
    hear(0);
    fprintf(stderr, "idle lost %zu of %zu\n", pages - present(base, pages), pages);
    check(base, pages);
    say(1);
}

int main(int argc, char **argv) {
    CHECK(argc == 4, "usage: siblings BUSY_MIB IDLE_MIB GROWTH_MIB");
    if (strcmp(argv[1], "busy") == 0) {
        busy((size_t)atol(argv[2]) << 8, (size_t)atol(argv[3]) << 8);
        return 0;
    }
    if (strcmp(argv[1], "idle") == 0) {
        idle((size_t)atol(argv[2]) << 8);
        return 0;
    }
    double begun = now_s();
    struct child b = start("/proc/self/exe", "busy", argv[1], argv[3]);
    hear(b.from);
    struct child i = start("/proc/self/exe", "idle", argv[2], "0");
    hear(i.from);
    /* It sleeps for as long as the other one has existed, however slow this machine is, and slightly longer. */
    usleep((useconds_t)((now_s() - begun + 1) * 1e6));
    say(b.to);
    hear(b.from);
    say(i.to);
    hear(i.from);
    end(b);
    end(i);
    puts("siblings right");
    return 0;
}
