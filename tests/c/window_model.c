/* Mapping calls against a naive oracle: one thread, an arena of pages, random calls.
 *
 * usage: window_model SEED OPS BALLAST_MIB [LOGFILE]
 *
 * The oracle has for each page whether it is mapped, its protection and its contents. Every call's result (value or
 * errno) goes into a log or its hash, addresses as offsets, so that a plain run and a run under canvas can be
 * compared line by line; the contents are checked against the oracle in both. Sweeps of ballast evict the arena
 * from local memory.
 */
#include "common.h"

#define ARENA 768
#define OUTSIDE (ARENA + 256)

enum { HOLE = 0, R_W = 1, R_O = 2, NO = 3 };

struct page {
    uint64_t tag;
    uint64_t word; /* value of word `at` when `at` >= 0: a single word over the pattern */
    int at;
    uint8_t state;
    uint32_t origin; /* one number per call that made it: pages of one kernel mapping share it */
    uint32_t op;
};

static struct page oracle[ARENA];
static char *arena;
static struct rng rng;
static long op;
static uint64_t seed, log_hash;
static uint32_t origins;
static FILE *log_file;
static sigjmp_buf jump;
static volatile int guarded;
static int file_fd;

static void on_fault(int sig, siginfo_t *info, void *context) {
    (void)context;
    if (!guarded)
        fail("seed %lu op %ld: unexpected signal %d at %p", (unsigned long)seed, op, sig, info->si_addr);
    guarded = 0;
    siglongjmp(jump, sig);
}

static void record(const char *what, size_t a, size_t b, long result) {
    char line[160];
    int n = snprintf(line, sizeof line, "%ld %s %zu %zu -> %ld\n", op, what, a, b, result);
    for (int i = 0; i < n; i++)
        log_hash = (log_hash ^ (unsigned char)line[i]) * 0x100000001b3ULL;
    if (log_file)
        fwrite(line, 1, (size_t)n, log_file);
}

static char *at(size_t page) { return arena + page * PAGE; }

static void bad(size_t page, const char *why, uint64_t got, uint64_t want, unsigned word) {
    struct page *o = &oracle[page];
    fail("window_model: seed %lu op %ld: page %zu (%p): %s: word %u is %016lx, expected %016lx; state %d "
         "tag %lx origin %u changed in op %u",
         (unsigned long)seed, op, page, (void *)at(page), why, word, (unsigned long)got, (unsigned long)want,
         o->state, (unsigned long)o->tag, o->origin, o->op);
}

static void check_page(size_t page) {
    struct page *o = &oracle[page];
    volatile uint64_t *p = (volatile uint64_t *)at(page);
    int readable = o->state == R_W || o->state == R_O;
    guarded = 1;
    int sig = sigsetjmp(jump, 1);
    if (sig == 0) {
        uint64_t first = p[0];
        guarded = 0;
        if (!readable)
            bad(page, "a hole or PROT_NONE page could be read", first, 0, 0);
        for (unsigned i = 0; i < WORDS; i++) {
            uint64_t want = (int)i == o->at ? o->word : pattern_word(o->tag, i);
            uint64_t got = p[i];
            if (got != want)
                bad(page, "wrong contents", got, want, i);
        }
    } else if (readable)
        bad(page, "a readable page gave a signal", (uint64_t)sig, 0, 0);
}

static void write_page(size_t page) {
    struct page *o = &oracle[page];
    volatile uint64_t *p = (volatile uint64_t *)at(page);
    volatile uint64_t tag = rng_below(&rng, 8) == 0 ? 0 : rng_next(&rng) >> 8;
    int one_word = rng_below(&rng, 3) == 0;
    unsigned i = (unsigned)rng_below(&rng, WORDS);
    guarded = 1;
    int sig = sigsetjmp(jump, 1);
    if (sig == 0) {
        if (one_word)
            p[i] = tag;
        else
            pattern_fill(p, tag);
        guarded = 0;
        if (o->state != R_W)
            bad(page, "a page could be written that must not", 0, 0, i);
        if (one_word) {
            if (o->at >= 0 && o->at != (int)i) /* the oracle remembers one word: rewrite the other */
                p[o->at] = pattern_word(o->tag, (unsigned)o->at);
            o->at = (int)i;
            o->word = tag;
        } else {
            o->tag = tag;
            o->at = -1;
        }
        o->op = (uint32_t)op;
    } else if (o->state == R_W)
        bad(page, "a writable page gave a signal", (uint64_t)sig, 0, i);
}

static void set(size_t a, size_t b, uint8_t state, uint32_t origin) {
    for (size_t i = a; i < b; i++) {
        memset(&oracle[i], 0, sizeof oracle[i]);
        oracle[i].state = state;
        oracle[i].at = -1;
        oracle[i].origin = origin;
        oracle[i].op = (uint32_t)op;
    }
}

static void range(size_t *a, size_t *b) {
    size_t n = rng_below(&rng, 3) ? 1 + rng_below(&rng, 24) : 1 + rng_below(&rng, ARENA / 3);
    *a = rng_below(&rng, ARENA);
    *b = *a + n > ARENA ? ARENA : *a + n;
}

/* First page of [a, b) that is a hole, or b. */
static size_t first_hole(size_t a, size_t b) {
    while (a < b && oracle[a].state != HOLE)
        a++;
    return a;
}

static int one_mapping(size_t a, size_t b) {
    for (size_t i = a; i < b; i++)
        if (oracle[i].origin != oracle[a].origin || oracle[i].state != oracle[a].state ||
            oracle[i].state == HOLE)
            return 0;
    return 1;
}

static long result_of(long rc) { return rc == -1 ? -errno : rc; }

static long place_of(void *p) {
    if (p == MAP_FAILED)
        return -errno;
    return ((char *)p - arena) / (long)PAGE;
}

static const int prots[] = {0, PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE};

static void do_map(void) {
    size_t a, b;
    range(&a, &b);
    uint8_t state = (uint8_t)(rng_below(&rng, 6) ? R_W : 2 + rng_below(&rng, 2));
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (rng_below(&rng, 4) == 0) {
        void *p = mmap(at(a), (b - a) * PAGE, prots[state], flags | MAP_FIXED_NOREPLACE, -1, 0);
        int taken = 0;
        for (size_t i = a; i < b; i++)
            taken |= oracle[i].state != HOLE;
        record("noreplace", a, b, place_of(p));
        CHECK((p == MAP_FAILED) == taken, "seed %lu op %ld: MAP_FIXED_NOREPLACE [%zu, %zu) gave %p", (unsigned long)seed, op, a, b, p);
        if (taken)
            return;
    } else if (rng_below(&rng, 8) == 0 && state == R_W) {
        void *p = mmap(at(a), (b - a) * PAGE, prots[state], MAP_PRIVATE | MAP_FIXED, file_fd, 0);
        record("file", a, b, place_of(p));
        CHECK(p == at(a), "seed %lu op %ld: mmap of a file: %s", (unsigned long)seed, op, strerror(errno));
        /* The file has zeros: contents are like anonymous memory's, the mapping is not. */
    } else {
        if (rng_below(&rng, 5) == 0)
            flags |= MAP_POPULATE;
        void *p = mmap(at(a), (b - a) * PAGE, prots[state], flags | MAP_FIXED, -1, 0);
        record("map", a, b, place_of(p));
        CHECK(p == at(a), "seed %lu op %ld: mmap(MAP_FIXED): %s", (unsigned long)seed, op, strerror(errno));
    }
    set(a, b, state, ++origins);
}

static void do_unmap(void) {
    size_t a, b;
    range(&a, &b);
    record("munmap", a, b, result_of(munmap(at(a), (b - a) * PAGE)));
    set(a, b, HOLE, 0);
}

/* The calls that split kernel mappings: each piece inside [a, b) gets its own number. */
static void split(size_t a, size_t b) {
    uint32_t last = 0, fresh = 0;
    for (size_t i = a; i < b; i++) {
        if (i == a || oracle[i].origin != last)
            fresh = ++origins;
        last = oracle[i].origin;
        oracle[i].origin = fresh;
    }
}

static void do_protect(void) {
    size_t a, b;
    range(&a, &b);
    uint8_t state = (uint8_t)(rng_below(&rng, 3) ? R_W : 2 + rng_below(&rng, 2));
    long rc = result_of(mprotect(at(a), (b - a) * PAGE, prots[state]));
    record("mprotect", a, b, rc);
    size_t end = first_hole(a, b);
    CHECK(rc == (end == b ? 0 : -ENOMEM), "seed %lu op %ld: mprotect [%zu, %zu) gave %ld, first hole %zu",
          (unsigned long)seed, op, a, b, rc, end);
    /* The pages before a hole are changed nevertheless. */
    for (size_t i = a; i < end; i++)
        oracle[i].state = state;
    split(a, end);
}

static void do_advise(void) {
    size_t a, b;
    range(&a, &b);
    static const int what[] = {MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_WILLNEED, MADV_NORMAL,
                               MADV_RANDOM,   MADV_SEQUENTIAL, MADV_COLD,   MADV_PAGEOUT,  12345};
    int advice = what[rng_below(&rng, sizeof what / sizeof *what)];
    long rc = result_of(madvise(at(a), (b - a) * PAGE, advice));
    if (advice == 12345) {
        record("advise-bad", a, b, rc);
        CHECK(rc == -EINVAL, "seed %lu op %ld: unknown advice gave %ld", (unsigned long)seed, op, rc);
        return;
    }
    if (advice == MADV_NORMAL || advice == MADV_RANDOM || advice == MADV_SEQUENTIAL)
        split(a, b); /* flags of the mapping */
    if (advice != MADV_DONTNEED)
        return; /* hints: kernels differ in what they answer */
    record("dontneed", a, b, rc);
    CHECK(rc == (first_hole(a, b) == b ? 0 : -ENOMEM), "seed %lu op %ld: MADV_DONTNEED [%zu, %zu) gave %ld",
          (unsigned long)seed, op, a, b, rc);
    for (size_t i = a; i < b; i++)
        if (oracle[i].state != HOLE) {
            oracle[i].tag = 0;
            oracle[i].at = -1;
            oracle[i].op = (uint32_t)op;
        }
}

static void do_remap(void) {
    size_t a, b;
    range(&a, &b);
    for (b = a + 1; b < ARENA && oracle[b].origin == oracle[a].origin && oracle[b].state == oracle[a].state; b++)
        ;
    if (!one_mapping(a, b))
        return;
    if (b - a > 1 && rng_below(&rng, 2))
        b = a + 1 + rng_below(&rng, b - a);
    size_t n = b - a;
    switch (rng_below(&rng, 3)) {
    case 0: { /* shrink */
        size_t m = 1 + rng_below(&rng, n);
        void *p = mremap(at(a), n * PAGE, m * PAGE, 0);
        record("shrink", a, m, place_of(p));
        CHECK(p == at(a), "seed %lu op %ld: shrink: %s", (unsigned long)seed, op, strerror(errno));
        set(a + m, b, HOLE, 0);
        return;
    }
    case 1: { /* grow in place: only when the mapping ends here and a hole follows */
        size_t m = n + 1 + rng_below(&rng, 16);
        if (a + m > ARENA)
            return;
        int mid = b < ARENA && oracle[b].state != HOLE && oracle[b].origin == oracle[a].origin;
        int free_after = 1;
        for (size_t i = b; i < a + m; i++)
            free_after &= oracle[i].state == HOLE;
        void *p = mremap(at(a), n * PAGE, m * PAGE, 0);
        record("grow", a, m, place_of(p));
        if (mid || !free_after) {
            CHECK(p == MAP_FAILED, "seed %lu op %ld: grew over a mapping", (unsigned long)seed, op);
            return;
        }
        CHECK(p == at(a), "seed %lu op %ld: growing [%zu, %zu) to %zu pages into a hole: %s",
              (unsigned long)seed, op, a, b, m, strerror(errno));
        set(b, a + m, oracle[a].state, oracle[a].origin);
        return;
    }
    default: { /* move to a fixed place */
        size_t m = rng_below(&rng, 2) ? n : 1 + rng_below(&rng, n + 8);
        size_t to = rng_below(&rng, ARENA);
        if (to + m > ARENA)
            return;
        void *p = mremap(at(a), n * PAGE, m * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at(to));
        record("move", a * 10000 + to, n * 10000 + m, place_of(p));
        int overlap = to < a + n && a < to + m;
        if (overlap) {
            CHECK(p == MAP_FAILED, "seed %lu op %ld: overlapping move succeeded", (unsigned long)seed, op);
            return;
        }
        CHECK(p == at(to), "seed %lu op %ld: moving [%zu, +%zu) to %zu +%zu: %s", (unsigned long)seed, op, a, n, to,
              m, strerror(errno));
        struct page moved[ARENA];
        memcpy(moved, oracle + a, n * sizeof *moved);
        uint32_t origin = ++origins;
        uint8_t state = oracle[a].state;
        set(a, b, HOLE, 0);
        set(to, to + m, state, origin);
        for (size_t i = 0; i < n && i < m; i++) {
            oracle[to + i] = moved[i];
            oracle[to + i].origin = origin;
        }
    }
    }
}

/* Arguments that must be refused, with equal errors. */
static void do_wrong(void) {
    size_t a, b;
    range(&a, &b);
    switch (rng_below(&rng, 7)) {
    case 0:
        record("munmap-unaligned", a, b, result_of(munmap(at(a) + 7, PAGE)));
        return;
    case 1:
        record("munmap-zero", a, b, result_of(munmap(at(a), 0)));
        return;
    case 2:
        record("mmap-zero", a, b, place_of(mmap(at(a), 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)));
        return;
    case 3:
        record("mmap-unaligned", a, b, place_of(mmap(at(a) + 8, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)));
        return;
    case 4:
        record("mprotect-unaligned", a, b, result_of(mprotect(at(a) + 9, PAGE, PROT_READ)));
        return;
    case 5:
        record("mremap-flags", a, b, place_of(mremap(at(a), PAGE, PAGE, MREMAP_FIXED, at(b))));
        return;
    default:
        record("madvise-unaligned", a, b, result_of(madvise(at(a) + 11, PAGE, MADV_DONTNEED)));
        return;
    }
}

/* A mapping at an address that the system chooses, which must never be in the arena. It is larger than the arena,
 * so that no hole there can hold it. */
static void do_elsewhere(void) {
    size_t n = OUTSIDE + rng_below(&rng, 64);
    char *p = mmap(NULL, n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    record("elsewhere", n, 0, p != MAP_FAILED);
    CHECK(p != MAP_FAILED, "mmap: %s", strerror(errno));
    CHECK(p + n * PAGE <= arena - PAGE || p >= at(ARENA) + PAGE, "seed %lu op %ld: a new mapping lies on the arena",
          (unsigned long)seed, op);
    size_t page = rng_below(&rng, n);
    CHECK(*(volatile uint64_t *)(p + page * PAGE) == 0, "a new mapping is not zero");
    pattern_fill((uint64_t *)(p + page * PAGE), 99);
    char *q = mremap(p, n * PAGE, (n + 64) * PAGE, MREMAP_MAYMOVE);
    CHECK(q != MAP_FAILED, "mremap: %s", strerror(errno));
    CHECK(pattern_check((uint64_t *)(q + page * PAGE), 99) < 0, "seed %lu op %ld: growing lost a page", (unsigned long)seed, op);
    CHECK(munmap(q, (n + 64) * PAGE) == 0, "munmap: %s", strerror(errno));
}

int main(int argc, char **argv) {
    CHECK(argc >= 4, "usage: window_model SEED OPS BALLAST_MIB [LOGFILE]");
    seed = strtoul(argv[1], NULL, 0);
    long ops = atol(argv[2]);
    struct ballast ballast;
    ballast_make(&ballast, (size_t)atol(argv[3]), seed);
    if (argc > 4)
        log_file = fopen(argv[4], "w");
    rng.s = mix64(seed + 17);
    file_fd = memfd_create("zeros", MFD_CLOEXEC);
    CHECK(file_fd >= 0 && ftruncate(file_fd, ARENA * PAGE) == 0, "%s", strerror(errno));
    static char alt[65536];
    stack_t ss = {.ss_sp = alt, .ss_size = sizeof alt};
    sigaltstack(&ss, NULL);
    struct sigaction sa = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    sigaction(SIGSEGV, &sa, NULL);
    sigaction(SIGBUS, &sa, NULL);
    /* Guards on both sides, so that nothing merges with the arena and nothing grows into it. */
    char *whole = map_pages(ARENA + 2, PROT_NONE);
    arena = whole + PAGE;
    CHECK(munmap(arena, ARENA * PAGE) == 0, "munmap: %s", strerror(errno));
    set(0, ARENA, HOLE, 0);
    long counts[8] = {0};
    for (op = 1; op <= ops; op++) {
        unsigned d = (unsigned)rng_below(&rng, 100);
        if (d < 12)
            counts[0]++, do_map();
        else if (d < 18)
            counts[1]++, do_unmap();
        else if (d < 24)
            counts[2]++, do_protect();
        else if (d < 31)
            counts[3]++, do_advise();
        else if (d < 39)
            counts[4]++, do_remap();
        else if (d < 41)
            counts[5]++, do_wrong();
        else if (d < 42)
            counts[6]++, do_elsewhere();
        else if (d < 75)
            for (int i = 0; i < 4; i++)
                write_page(rng_below(&rng, ARENA));
        else
            for (int i = 0; i < 6; i++)
                check_page(rng_below(&rng, ARENA));
        if (op % 2000 == 0) {
            ballast_sweep(&ballast);
            for (size_t p = 0; p < ARENA; p++)
                check_page(p);
        }
    }
    for (size_t p = 0; p < ARENA; p++)
        check_page(p);
    if (log_file)
        fclose(log_file);
    printf("window_model seed %lu ops %ld log %016lx\n", (unsigned long)seed, ops, (unsigned long)log_hash);
    for (int i = 0; i < 7; i++)
        CHECK(ops < 10000 || counts[i] > 0, "operation %d never ran", i);
    return 0;
}
