/* Threads that do everything to private memory at once, with an oracle for every byte.
 *
 * usage: hammer SEED THREADS OPS MIB [no-fork] [only=LETTERS]
 *
 * LETTERS narrows down what happens besides mapping, writing and verifying: u munmap, r mremap,
 * p mprotect, a madvise, o MAP_FIXED over, s forbidden accesses, l malloc, c pages of all threads,
 * k fork, x exec, y system calls.
 *
 * Each thread owns regions whose pages' contents follow from a tag kept in a shadow. The shadow
 * lies in MAP_SHARED memory, which the system under test does not manage. Pages shared by all
 * threads are guarded by one lock a page, also in the shadow. A forked child checks all that its
 * thread owned at the fork against a copy of the shadow while the parent goes on writing.
 *
 * Prints one line of totals; exits with 1 and a sentence about the first wrong byte.
 */
#include "common.h"
#include "hammer_calls.h"
#include <spawn.h>

#define REGIONS 24
#define REGION_PAGES 1024
#define BLOCKS 64
#define PATCHES 3

enum { RW = 0, RO = 1, NONE = 2 };
static const int prot_of[] = {PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE};

/* Expected contents of a page. */
struct shadow {
    uint64_t tag;         /* pattern; 0 is zeros */
    uint64_t base;        /* what MADV_DONTNEED brings back: 0, or the file page's tag */
    uint16_t patch_at[PATCHES];
    uint8_t patches;
    uint8_t prot;
    uint8_t maybe_free;   /* MADV_FREE was called and nothing written since */
    uint8_t last_op;
    uint32_t op;          /* number of the operation that last changed the page */
    uint64_t patch_value[PATCHES];
};

struct region {
    volatile uint64_t *base;
    size_t pages; /* 0: free slot */
    struct shadow *shadow;
};

struct block { /* from malloc */
    unsigned char *p;
    size_t size;
    uint64_t seed;
};

struct worker {
    pthread_t thread;
    int id;
    struct rng rng;
    uint32_t op;
    struct region regions[REGIONS];
    struct shadow *snapshot;
    size_t owned_pages;
    struct block blocks[BLOCKS];
    pid_t child;
    uint64_t forks, segvs, syscalls, verified, remaps;
    sigjmp_buf jump;
    volatile uintptr_t fault_at;
};

struct common_page {
    uint32_t lock;
    uint32_t pad;
    uint64_t tag;
};

static uint64_t seed;
static int thread_count;
static long ops;
static size_t budget_pages;
static const char *only;
static volatile uint64_t *common_base, *fixed_base;
static struct common_page *common_shadow;
static size_t common_pages;
static __thread struct worker *self;
static struct hammer_files files;

static void bad_page(struct worker *w, const char *who, struct region *r, size_t page,
                     const struct shadow *s, int word, uint64_t got, uint64_t want) {
    fail("%s: seed %lu thread %d op %u: region %p page %zu (%p) word %d is %016lx, expected "
         "%016lx; tag %lx base %lx prot %d free %d, last changed by '%c' in op %u",
         who, (unsigned long)seed, w->id, w->op, (void *)r->base, page,
         (void *)(r->base + page * WORDS), word, (unsigned long)got, (unsigned long)want,
         (unsigned long)s->tag, (unsigned long)s->base, s->prot, s->maybe_free, s->last_op, s->op);
}

static uint64_t want_word(const struct shadow *s, uint64_t tag, unsigned i) {
    for (int k = s->patches - 1; k >= 0; k--)
        if (s->patch_at[k] == i)
            return s->patch_value[k];
    return pattern_word(tag, i);
}

/* First wrong word under the assumption that the page's pattern is `tag`, or -1. */
static int mismatch(const volatile uint64_t *p, const struct shadow *s, uint64_t tag) {
    if (s->patches == 0)
        return pattern_check(p, tag);
    for (unsigned i = 0; i < WORDS; i++)
        if (p[i] != want_word(s, tag, i))
            return (int)i;
    return -1;
}

static void verify_page(struct worker *w, const char *who, struct region *r, struct shadow *shadow,
                        size_t page) {
    struct shadow *s = &shadow[page];
    const volatile uint64_t *p = r->base + page * WORDS;
    if (s->prot == NONE)
        return;
    w->verified++;
    int at = mismatch(p, s, s->tag);
    if (at < 0)
        return;
    if (s->maybe_free) {
        /* Freed in between: zeros from now on. Reads may race with the freeing, so check again. */
        struct shadow zero = *s;
        zero.patches = 0;
        if (mismatch(p, &zero, 0) < 0) {
            *s = zero;
            s->tag = 0;
            return;
        }
    }
    uint64_t got = p[at];
    bad_page(w, who, r, page, s, at, got, want_word(s, s->tag, (unsigned)at));
}

static void verify_region(struct worker *w, const char *who, struct region *r,
                          struct shadow *shadow) {
    for (size_t i = 0; i < r->pages; i++)
        verify_page(w, who, r, shadow, i);
}

static void set_page(struct worker *w, struct shadow *s, uint64_t tag, char op) {
    s->tag = tag;
    s->patches = 0;
    s->maybe_free = 0;
    s->last_op = (uint8_t)op;
    s->op = w->op;
}

static uint64_t new_tag(struct worker *w) {
    return (rng_next(&w->rng) & 0xffffffffffffULL) | ((uint64_t)(w->id + 1) << 48);
}

static void write_page(struct worker *w, struct region *r, size_t page) {
    struct shadow *s = &r->shadow[page];
    volatile uint64_t *p = r->base + page * WORDS;
    if (s->prot != RW)
        return;
    unsigned kind = (unsigned)rng_below(&w->rng, 4);
    if (kind == 0 && s->patches < PATCHES) {
        unsigned i = (unsigned)rng_below(&w->rng, WORDS);
        uint64_t value = rng_next(&w->rng);
        p[i] = value;
        s->patch_at[s->patches] = (uint16_t)i;
        s->patch_value[s->patches] = value;
        s->patches++;
        if (s->maybe_free) {
            /* The write settled it: the rest is the old contents or zeros. */
            struct shadow zero = *s;
            zero.patches = 1;
            zero.patch_at[0] = (uint16_t)i;
            zero.patch_value[0] = value;
            s->maybe_free = 0;
            if (mismatch(p, s, s->tag) >= 0 && mismatch(p, &zero, 0) < 0) {
                *s = zero;
                s->maybe_free = 0;
                s->tag = 0;
            }
        }
        s->last_op = 'p';
        s->op = w->op;
        return;
    }
    uint64_t tag = kind == 1 && rng_below(&w->rng, 4) == 0 ? 0 : new_tag(w);
    pattern_fill(p, tag);
    set_page(w, s, tag, 'w');
}

/* -- regions ------------------------------------------------------------------------------- */

static struct region *free_slot(struct worker *w) {
    for (int i = 0; i < REGIONS; i++)
        if (w->regions[i].pages == 0)
            return &w->regions[i];
    return NULL;
}

static struct region *some_region(struct worker *w) {
    int from = (int)rng_below(&w->rng, REGIONS);
    for (int i = 0; i < REGIONS; i++) {
        struct region *r = &w->regions[(from + i) % REGIONS];
        if (r->pages)
            return r;
    }
    return NULL;
}

static void fresh_shadow(struct worker *w, struct region *r, size_t from, size_t to, uint8_t prot,
                         char op) {
    for (size_t i = from; i < to; i++) {
        memset(&r->shadow[i], 0, sizeof r->shadow[i]);
        set_page(w, &r->shadow[i], 0, op);
        r->shadow[i].prot = prot;
    }
}

static void drop_region(struct worker *w, struct region *r) {
    w->owned_pages -= r->pages;
    r->pages = 0;
    r->base = NULL;
}

static size_t some_size(struct worker *w) {
    switch (rng_below(&w->rng, 8)) {
    case 0:
        return 1 + rng_below(&w->rng, 4);
    case 1:
    case 2:
        return 256 + rng_below(&w->rng, REGION_PAGES - 256);
    default:
        return 1 + rng_below(&w->rng, 200);
    }
}

static void do_map(struct worker *w) {
    struct region *r = free_slot(w);
    size_t n = some_size(w);
    if (!r || w->owned_pages + n > budget_pages)
        return;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    uint8_t prot = rng_below(&w->rng, 8) == 0 ? NONE : RW;
    switch (rng_below(&w->rng, 6)) {
    case 0:
        flags |= MAP_NORESERVE;
        break;
    case 1:
        flags |= MAP_POPULATE;
        break;
    }
    void *hint = rng_below(&w->rng, 4) == 0 ? (void *)(0x100000000000UL + rng_below(&w->rng, 1 << 20) * PAGE) : NULL;
    void *p = mmap(hint, n * PAGE, prot_of[prot], flags, -1, 0);
    CHECK(p != MAP_FAILED, "mmap: %s", strerror(errno));
    r->base = p;
    r->pages = n;
    w->owned_pages += n;
    fresh_shadow(w, r, 0, n, prot, 'm');
}

/* Picks a sub-range of a region: [*from, *to). */
static void some_range(struct worker *w, struct region *r, size_t *from, size_t *to) {
    size_t a = rng_below(&w->rng, r->pages);
    size_t n = 1 + rng_below(&w->rng, rng_below(&w->rng, 3) ? 16 : r->pages);
    *from = a;
    *to = a + n > r->pages ? r->pages : a + n;
}

static void do_unmap(struct worker *w) {
    struct region *r = some_region(w);
    if (!r)
        return;
    if (rng_below(&w->rng, 3) == 0) {
        CHECK(munmap((void *)r->base, r->pages * PAGE) == 0, "munmap: %s", strerror(errno));
        drop_region(w, r);
        return;
    }
    size_t a, b;
    some_range(w, r, &a, &b);
    struct region *tail = b < r->pages ? free_slot(w) : NULL;
    if (a > 0 && b < r->pages && !tail)
        return;
    CHECK(munmap((void *)(r->base + a * WORDS), (b - a) * PAGE) == 0, "munmap: %s", strerror(errno));
    w->owned_pages -= b - a;
    size_t rest = r->pages - b;
    if (a == 0) {
        memmove(r->shadow, r->shadow + b, rest * sizeof *r->shadow);
        r->base += b * WORDS;
        r->pages = rest;
        return;
    }
    if (rest) {
        tail->base = r->base + b * WORDS;
        tail->pages = rest;
        memcpy(tail->shadow, r->shadow + b, rest * sizeof *r->shadow);
    }
    r->pages = a;
}

static int uniform(struct region *r, size_t a, size_t b) {
    for (size_t i = a; i < b; i++)
        if (r->shadow[i].prot != r->shadow[a].prot || r->shadow[i].base != 0)
            return 0;
    return 1;
}

/* mremap refuses ranges that span several kernel mappings, so a refusal is allowed when pages of the range may have
 * had different histories; a success must be right. */
static void do_remap(struct worker *w) {
    struct region *r = some_region(w);
    if (!r || !uniform(r, 0, r->pages))
        return;
    size_t old = r->pages;
    void *p;
    switch (rng_below(&w->rng, 5)) {
    case 0: { /* grow */
        size_t n = old + 1 + rng_below(&w->rng, 100);
        if (n > REGION_PAGES || w->owned_pages + n - old > budget_pages)
            return;
        int flags = rng_below(&w->rng, 3) ? MREMAP_MAYMOVE : 0;
        p = mremap((void *)r->base, old * PAGE, n * PAGE, flags);
        if (p == MAP_FAILED)
            return;
        r->base = p;
        r->pages = n;
        w->owned_pages += n - old;
        fresh_shadow(w, r, old, n, r->shadow[0].prot, 'g');
        break;
    }
    case 1: { /* shrink */
        size_t n = 1 + rng_below(&w->rng, old);
        p = mremap((void *)r->base, old * PAGE, n * PAGE, 0);
        if (p == MAP_FAILED)
            return;
        CHECK(p == (void *)r->base, "shrinking moved the mapping");
        w->owned_pages -= old - n;
        r->pages = n;
        break;
    }
    case 2: { /* to a place of our choice, over an existing mapping */
        size_t n = rng_below(&w->rng, 2) ? old : 1 + rng_below(&w->rng, old + 20);
        if (n > REGION_PAGES || w->owned_pages + n > budget_pages + old)
            return;
        uint64_t *place = map_pages(n, PROT_READ | PROT_WRITE);
        place[0] = 7;
        place[(n - 1) * WORDS] = 7;
        p = mremap((void *)r->base, old * PAGE, n * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
        if (p == MAP_FAILED) {
            munmap(place, n * PAGE);
            return;
        }
        CHECK(p == place, "MREMAP_FIXED went elsewhere");
        r->base = p;
        r->pages = n;
        w->owned_pages += n - old;
        if (n > old)
            fresh_shadow(w, r, old, n, r->shadow[0].prot, 'x');
        break;
    }
    case 3: { /* a sub-range leaves its region */
        size_t a, b;
        some_range(w, r, &a, &b);
        struct region *to = free_slot(w);
        if (!to || a == 0 || b != old)
            return;
        uint64_t *place = map_pages(b - a, PROT_NONE);
        p = mremap((void *)(r->base + a * WORDS), (b - a) * PAGE, (b - a) * PAGE,
                   MREMAP_MAYMOVE | MREMAP_FIXED, place);
        if (p == MAP_FAILED) {
            munmap(place, (b - a) * PAGE);
            return;
        }
        to->base = p;
        to->pages = b - a;
        memcpy(to->shadow, r->shadow + a, (b - a) * sizeof *r->shadow);
        r->pages = a;
        break;
    }
    default: { /* the old place stays mapped and reads as zeros */
        struct region *to = free_slot(w);
        if (!to || w->owned_pages + old > budget_pages)
            return;
        p = mremap((void *)r->base, old * PAGE, old * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
        if (p == MAP_FAILED)
            return;
        CHECK(p != (void *)r->base, "MREMAP_DONTUNMAP stayed in place");
        to->base = p;
        to->pages = old;
        memcpy(to->shadow, r->shadow, old * sizeof *r->shadow);
        fresh_shadow(w, r, 0, old, to->shadow[0].prot, 'd');
        w->owned_pages += old;
        break;
    }
    }
    w->remaps++;
}

static void do_protect(struct worker *w) {
    struct region *r = some_region(w);
    if (!r)
        return;
    size_t a, b;
    some_range(w, r, &a, &b);
    uint8_t prot = (uint8_t)(rng_below(&w->rng, 4) ? RW : 1 + rng_below(&w->rng, 2));
    CHECK(mprotect((void *)(r->base + a * WORDS), (b - a) * PAGE, prot_of[prot]) == 0,
          "mprotect: %s", strerror(errno));
    for (size_t i = a; i < b; i++)
        r->shadow[i].prot = prot;
}

static void do_advise(struct worker *w) {
    struct region *r = some_region(w);
    if (!r)
        return;
    static const int advice[] = {MADV_DONTNEED, MADV_DONTNEED,   MADV_FREE,
                                 MADV_WILLNEED, MADV_HUGEPAGE,   MADV_NOHUGEPAGE,
                                 MADV_RANDOM,   MADV_SEQUENTIAL, MADV_NORMAL,
                                 MADV_COLD,     MADV_PAGEOUT};
    int what = advice[rng_below(&w->rng, sizeof advice / sizeof *advice)];
    size_t a, b;
    some_range(w, r, &a, &b);
    int rc = madvise((void *)(r->base + a * WORDS), (b - a) * PAGE, what);
    if (what == MADV_DONTNEED) {
        CHECK(rc == 0, "madvise(DONTNEED): %s", strerror(errno));
        for (size_t i = a; i < b; i++)
            set_page(w, &r->shadow[i], r->shadow[i].base, 'D');
    } else if (what == MADV_FREE) {
        /* Refused on file mappings, after the pages before them were marked. */
        for (size_t i = a; i < b && r->shadow[i].base == 0; i++) {
            r->shadow[i].maybe_free = 1;
            r->shadow[i].last_op = 'F';
        }
    }
}

/* Maps over a part of a region: anonymous memory, or a private file. */
static void do_fixed(struct worker *w) {
    struct region *r = some_region(w);
    if (!r)
        return;
    size_t a, b;
    some_range(w, r, &a, &b);
    void *at = (void *)(r->base + a * WORDS);
    void *p;
    if (rng_below(&w->rng, 3)) {
        p = mmap(at, (b - a) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(p == at, "mmap(MAP_FIXED): %s", strerror(errno));
        fresh_shadow(w, r, a, b, RW, 'o');
    } else {
        if (b - a > FILE_PAGES)
            b = a + FILE_PAGES;
        size_t off = rng_below(&w->rng, FILE_PAGES - (b - a) + 1);
        p = mmap(at, (b - a) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, files.pattern_fd,
                 (off_t)(off * PAGE));
        CHECK(p == at, "mmap(file, MAP_FIXED): %s", strerror(errno));
        fresh_shadow(w, r, a, b, RW, 'f');
        for (size_t i = a; i < b; i++)
            r->shadow[i].tag = r->shadow[i].base = file_tag(off + i - a);
    }
    p = mmap(at, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(p == MAP_FAILED && errno == EEXIST, "MAP_FIXED_NOREPLACE over a mapping gave %p, %s", p,
          strerror(errno));
}

/* -- faults that belong to the program ----------------------------------------------------- */

static void on_segv(int sig, siginfo_t *info, void *context) {
    (void)context;
    if (!self || !self->fault_at)
        fail("unexpected signal %d at %p (seed %lu)", sig, info->si_addr, (unsigned long)seed);
    if ((uintptr_t)info->si_addr != self->fault_at)
        fail("seed %lu thread %d op %u: si_addr is %p, expected %p", (unsigned long)seed, self->id,
             self->op, info->si_addr, (void *)self->fault_at);
    self->fault_at = 0;
    siglongjmp(self->jump, 1);
}

static void do_forbidden(struct worker *w) {
    struct region *r = some_region(w);
    if (!r)
        return;
    size_t page = rng_below(&w->rng, r->pages);
    for (size_t i = 0; i < r->pages && r->shadow[page].prot == RW; i++)
        page = (page + 1) % r->pages;
    struct shadow *s = &r->shadow[page];
    if (s->prot == RW)
        return;
    volatile uint64_t *p = r->base + page * WORDS + rng_below(&w->rng, WORDS);
    w->fault_at = (uintptr_t)p;
    if (sigsetjmp(w->jump, 1) == 0) {
        if (s->prot == NONE && rng_below(&w->rng, 2))
            (void)*p;
        else
            *p = 1;
        fail("seed %lu thread %d op %u: access to a %s page did not fault", (unsigned long)seed, w->id,
             w->op, s->prot == NONE ? "PROT_NONE" : "PROT_READ");
    }
    w->segvs++;
}

/* -- malloc ---------------------------------------------------------------------------------- */

static void block_check(struct worker *w, struct block *b, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (b->p[i] != (unsigned char)(mix64(b->seed + i / 8) >> (i % 8 * 8)))
            fail("seed %lu thread %d op %u: malloc block %p byte %zu of %zu is wrong",
                 (unsigned long)seed, w->id, w->op, (void *)b->p, i, size);
}

static void block_fill(struct block *b, size_t from) {
    for (size_t i = from; i < b->size; i++)
        b->p[i] = (unsigned char)(mix64(b->seed + i / 8) >> (i % 8 * 8));
}

static void do_malloc(struct worker *w) {
    struct block *b = &w->blocks[rng_below(&w->rng, BLOCKS)];
    size_t size = 1 + rng_below(&w->rng, rng_below(&w->rng, 4) ? 3000 : 400000);
    if (b->p) {
        block_check(w, b, b->size);
        if (rng_below(&w->rng, 2)) {
            free(b->p);
            b->p = NULL;
            return;
        }
        size_t old = b->size;
        b->p = realloc(b->p, size);
        CHECK(b->p, "realloc: %s", strerror(errno));
        b->size = size;
        block_check(w, b, old < size ? old : size);
        block_fill(b, old < size ? old : size);
        return;
    }
    b->size = size;
    b->seed = rng_next(&w->rng);
    b->p = malloc(size);
    CHECK(b->p, "malloc: %s", strerror(errno));
    block_fill(b, 0);
}

/* -- pages of all threads -------------------------------------------------------------------- */

static void do_common(struct worker *w) {
    size_t page = rng_below(&w->rng, common_pages);
    struct common_page *s = &common_shadow[page];
    volatile uint64_t *p = common_base + page * WORDS;
    while (__atomic_exchange_n(&s->lock, 1, __ATOMIC_ACQUIRE))
        sched_yield();
    int bad = pattern_check(p, s->tag);
    if (bad >= 0)
        fail("seed %lu thread %d op %u: common page %zu (%p) word %d is %016lx, expected %016lx",
             (unsigned long)seed, w->id, w->op, page, (void *)p, bad, (unsigned long)p[bad],
             (unsigned long)pattern_word(s->tag, (unsigned)bad));
    if (rng_below(&w->rng, 2)) {
        s->tag = new_tag(w);
        pattern_fill(p, s->tag);
    }
    __atomic_store_n(&s->lock, 0, __ATOMIC_RELEASE);
    /* Read-only pages, accessed by all threads at once and without a lock. */
    page = rng_below(&w->rng, common_pages);
    bad = pattern_check(fixed_base + page * WORDS, 0x1000 + page);
    CHECK(bad < 0, "seed %lu: read-only common page %zu word %d is wrong", (unsigned long)seed, page, bad);
}

/* -- fork -------------------------------------------------------------------------------------- */

static void reap(struct worker *w) {
    if (!w->child)
        return;
    int status = 0;
    CHECK(waitpid(w->child, &status, 0) == w->child, "waitpid: %s", strerror(errno));
    CHECK(status == 0, "seed %lu thread %d: a forked child ended with status %#x", (unsigned long)seed,
          w->id, status);
    w->child = 0;
}

static void __attribute__((noreturn)) child_main(struct worker *w, int depth) {
    struct shadow *s = w->snapshot;
    for (int i = 0; i < REGIONS; i++) {
        struct region *r = &w->regions[i];
        verify_region(w, depth ? "grandchild" : "child", r, s);
        s += r->pages;
    }
    for (size_t p = 0; p < common_pages; p += 7)
        CHECK(pattern_check(fixed_base + p * WORDS, 0x1000 + p) < 0, "child: read-only page %zu", p);
    for (int i = 0; i < BLOCKS; i++)
        if (w->blocks[i].p)
            block_check(w, &w->blocks[i], w->blocks[i].size);
    if (depth == 0 && rng_below(&w->rng, 3) == 0) {
        pid_t pid = fork();
        CHECK(pid >= 0, "fork in a child: %s", strerror(errno));
        if (pid == 0)
            child_main(w, 1);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "grandchild: status %#x", status);
    }
    /* The child writes over its copies, then checks all again. Parent and grandchild read the snapshot too, so the
     * child keeps its own record. */
    size_t total = 1;
    for (int i = 0; i < REGIONS; i++)
        total += w->regions[i].pages;
    s = map_pages(total * sizeof *s / PAGE + 1, PROT_READ | PROT_WRITE);
    memcpy(s, w->snapshot, (total - 1) * sizeof *s);
    for (int i = 0; i < REGIONS; i++) {
        struct region *r = &w->regions[i];
        r->shadow = s;
        for (size_t p = 0; p < r->pages; p++)
            if (rng_below(&w->rng, 4) == 0)
                write_page(w, r, p);
        s += r->pages;
    }
    uint64_t *fresh = map_pages(64, PROT_READ | PROT_WRITE);
    for (unsigned p = 0; p < 64; p++)
        pattern_fill(fresh + p * WORDS, 0x77 + p);
    for (int i = 0; i < REGIONS; i++)
        verify_region(w, "child after writing", &w->regions[i], w->regions[i].shadow);
    for (unsigned p = 0; p < 64; p++)
        CHECK(pattern_check(fresh + p * WORDS, 0x77 + p) < 0, "child: new page %u", p);
    _exit(0);
}

static void do_fork(struct worker *w) {
    reap(w);
    struct shadow *s = w->snapshot;
    for (int i = 0; i < REGIONS; i++) {
        memcpy(s, w->regions[i].shadow, w->regions[i].pages * sizeof *s);
        s += w->regions[i].pages;
    }
    /* Workers are in shared memory: the child uses its own copy, made before the fork. */
    struct worker mine = *w;
    pid_t pid = fork();
    CHECK(pid >= 0, "fork: %s", strerror(errno));
    if (pid == 0) {
        self = &mine;
        child_main(&mine, 0);
    }
    w->child = pid;
    w->forks++;
}

/* Strings and vectors in far memory as arguments of a new program. */
static void do_spawn(struct worker *w) {
    char **argv = (char **)map_pages(3, PROT_READ | PROT_WRITE);
    char *text = (char *)argv + PAGE;
    char **envp = (char **)((char *)argv + 2 * PAGE);
    strcpy(text, "/proc/self/exe");
    strcpy(text + 100, "echo-check");
    snprintf(text + 200, 100, "%lu", (unsigned long)w->op);
    argv[0] = text + 100;
    argv[1] = text + 200;
    argv[2] = NULL;
    int n = 0;
    for (char **e = environ; *e && n < 200; e++)
        envp[n++] = *e;
    snprintf(text + 300, 100, "HAMMER=%u", w->op);
    envp[n++] = text + 300;
    envp[n] = NULL;
    madvise(argv, 3 * PAGE, MADV_PAGEOUT);
    for (int i = 0; i < 20; i++)
        do_common(w);
    pid_t pid;
    int how = (int)rng_below(&w->rng, 3);
    if (how == 0) {
        int rc = posix_spawn(&pid, text, NULL, NULL, argv, envp);
        CHECK(rc == 0, "posix_spawn: %s", strerror(rc));
    } else {
        pid = how == 1 ? fork() : vfork();
        CHECK(pid >= 0, "fork for exec: %s", strerror(errno));
        if (pid == 0) {
            execve(text, argv, envp);
            _exit(99);
        }
    }
    int *status = (int *)((char *)argv + 3000);
    CHECK(waitpid(pid, status, 0) == pid && WIFEXITED(*status), "spawned program: status %#x", *status);
    CHECK(WEXITSTATUS(*status) == (int)(w->op % 50) + 1, "way %d: spawned program gave %d, expected %d",
          how, WEXITSTATUS(*status), (int)(w->op % 50) + 1);
    munmap(argv, 3 * PAGE);
}

/* -- system calls over region pages ------------------------------------------------------------ */

static void do_syscall(struct worker *w) {
    struct region *r = some_region(w);
    if (!r)
        return;
    size_t a, b;
    some_range(w, r, &a, &b);
    while (b > a && (r->shadow[b - 1].prot != RW || r->shadow[b - 1].maybe_free))
        b--;
    size_t from = b;
    while (from > a && r->shadow[from - 1].prot == RW && !r->shadow[from - 1].maybe_free)
        from--;
    if (b == from)
        return;
    if (b - from > FILE_PAGES)
        from = b - FILE_PAGES;
    uint64_t tags[FILE_PAGES];
    memset(tags, 0, sizeof tags);
    for (size_t i = from; i < b; i++) {
        if (r->shadow[i].patches) { /* calls.h knows whole patterns only */
            pattern_fill(r->base + i * WORDS, r->shadow[i].tag);
            set_page(w, &r->shadow[i], r->shadow[i].tag, 's');
        }
        tags[i - from] = r->shadow[i].tag;
    }
    w->syscalls++;
    if (!hammer_call(&files, &w->rng, (char *)(r->base + from * WORDS), b - from, tags))
        return;
    for (size_t i = from; i < b; i++)
        if (tags[i - from] != r->shadow[i].tag)
            set_page(w, &r->shadow[i], tags[i - from], 'c');
}

static int wanted(char what) { return only ? strchr(only, what) != NULL : 1; }

static void *work(void *arg) {
    struct worker *w = arg;
    self = w;
    hammer_thread_start(&w->rng);
    for (long i = 0; i < ops; i++) {
        w->op++;
        unsigned d = (unsigned)rng_below(&w->rng, 1000);
        if (d < 60)
            do_map(w);
        else if (d < 90)
            wanted('u') ? do_unmap(w) : (void)0;
        else if (d < 130)
            wanted('r') ? do_remap(w) : (void)0;
        else if (d < 170)
            wanted('p') ? do_protect(w) : (void)0;
        else if (d < 220)
            wanted('a') ? do_advise(w) : (void)0;
        else if (d < 240)
            wanted('o') ? do_fixed(w) : (void)0;
        else if (d < 260)
            wanted('s') ? do_forbidden(w) : (void)0;
        else if (d < 330)
            wanted('l') ? do_malloc(w) : (void)0;
        else if (d < 450)
            wanted('c') ? do_common(w) : (void)0;
        else if (d < 453)
            wanted('k') ? do_fork(w) : (void)0;
        else if (d < 455)
            wanted('x') ? do_spawn(w) : (void)0;
        else if (d < 600)
            wanted('y') ? do_syscall(w) : (void)0;
        else {
            struct region *r = some_region(w);
            if (!r)
                continue;
            size_t a, b;
            some_range(w, r, &a, &b);
            if (d < 850)
                for (size_t p = a; p < b; p++)
                    write_page(w, r, p);
            else
                for (size_t p = a; p < b; p++)
                    verify_page(w, "verify", r, r->shadow, p);
        }
    }
    reap(w);
    for (int i = 0; i < REGIONS; i++)
        verify_region(w, "at the end", &w->regions[i], w->regions[i].shadow);
    for (int i = 0; i < BLOCKS; i++)
        if (w->blocks[i].p)
            block_check(w, &w->blocks[i], w->blocks[i].size);
    hammer_thread_end();
    return NULL;
}

static void *shared_pages(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "shadow: %s", strerror(errno));
    return p;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[0], "echo-check") == 0) {
        const char *e = getenv("HAMMER");
        unsigned long op = strtoul(argv[1], NULL, 10);
        return e && strtoul(e, NULL, 10) == op ? (int)(op % 50) + 1 : 98;
    }
    if (argc < 5)
        fail("usage: hammer SEED THREADS OPS MIB [no-fork] [only=LETTERS]");
    seed = strtoul(argv[1], NULL, 0);
    thread_count = atoi(argv[2]);
    ops = atol(argv[3]);
    size_t pages = (size_t)atol(argv[4]) << 8;
    for (int i = 5; i < argc; i++)
        if (!strcmp(argv[i], "no-fork"))
            only = "urpaoslcy";
        else if (!strncmp(argv[i], "only=", 5))
            only = argv[i] + 5;
    common_pages = pages / 8;
    budget_pages = (pages - 2 * common_pages) / (size_t)thread_count;
    if (budget_pages > REGIONS * REGION_PAGES)
        budget_pages = REGIONS * REGION_PAGES;
    hammer_files_open(&files);
    struct sigaction sa = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &sa, NULL);
    common_shadow = shared_pages(common_pages * sizeof *common_shadow);
    common_base = map_pages(common_pages, PROT_READ | PROT_WRITE);
    fixed_base = map_pages(common_pages, PROT_READ | PROT_WRITE);
    for (size_t p = 0; p < common_pages; p++)
        pattern_fill(fixed_base + p * WORDS, 0x1000 + p);
    struct worker *workers = shared_pages((size_t)thread_count * sizeof *workers);
    for (int t = 0; t < thread_count; t++) {
        struct worker *w = &workers[t];
        w->id = t;
        w->rng.s = mix64(seed * 1000 + (uint64_t)t);
        for (int i = 0; i < REGIONS; i++)
            w->regions[i].shadow = shared_pages(REGION_PAGES * sizeof(struct shadow));
        w->snapshot = shared_pages(REGIONS * REGION_PAGES * sizeof(struct shadow));
        CHECK(pthread_create(&w->thread, NULL, work, w) == 0, "pthread_create");
    }
    uint64_t n[5] = {0};
    for (int t = 0; t < thread_count; t++) {
        struct worker *w = &workers[t];
        pthread_join(w->thread, NULL);
        n[0] += w->forks, n[1] += w->segvs, n[2] += w->syscalls, n[3] += w->verified, n[4] += w->remaps;
    }
    for (size_t p = 0; p < common_pages; p++)
        CHECK(pattern_check(common_base + p * WORDS, common_shadow[p].tag) < 0, "common page %zu", p);
    printf("hammer seed %lu: forks %lu segvs %lu syscalls %lu pages verified %lu remaps %lu\n",
           (unsigned long)seed, n[0], n[1], n[2], n[3], n[4]);
    CHECK(only || (n[1] && n[2] && n[4]), "an operation never happened; more ops are needed");
    return 0;
}
