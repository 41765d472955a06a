/* The synthetic program: a heap of data about 2.5:1 compressible, touched in one pattern.
 *
 * usage: pattern randread|randwrite|zipfread|seqread|fill MIB SECONDS THREADS SEED
 *
 * The heap is filled first; except for `fill`, whose filling is what is timed, that is not part of
 * the measurement, nor is a warm-up of a quarter of the time. Every word read is checked. Prints
 * one JSON object: operations (pages touched) a second, ns an operation, latency percentiles.
 */
#include "data.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum pattern { RANDREAD, RANDWRITE, ZIPFREAD, SEQREAD, FILL };
static const char *names[] = {"randread", "randwrite", "zipfread", "seqread", "fill"};

static unsigned char *heap;
static size_t pages;
static enum pattern pattern;
static int thread_count;
static uint64_t seed;
static atomic_int phase; /* 0 wait, 1 warm-up, 2 measured, 3 over */
static double zipf_zetan, zipf_alpha, zipf_eta;
#define THETA 0.99
#define FLIP 0x0101010101010101ULL

struct worker {
    pthread_t thread;
    int id;
    uint64_t ops;
    uint64_t began_ns, ended_ns;
    struct histogram times;
};

static void fill_page(size_t p) {
    unsigned char *at = heap + p * PAGE;
    memcpy(at, templates[p % TEMPLATES], PAGE);
    *(uint64_t *)at = p;
}

static void wrong(size_t p, unsigned word, uint64_t got) {
    die("page %zu word %u is %016lx: the data is wrong", p, word, (unsigned long)got);
}

static double power(double base, double e) { return __builtin_pow(base, e); }

static void zipf_make(size_t n) {
    for (size_t i = 1; i <= n; i++)
        zipf_zetan += 1 / power((double)i, THETA);
    zipf_alpha = 1 / (1 - THETA);
    zipf_eta = (1 - power(2.0 / (double)n, 1 - THETA)) / (1 - (1 + power(0.5, THETA)) / zipf_zetan);
}

static size_t zipf_next(struct rng *r, size_t n) {
    double u = (double)(rng_next(r) >> 11) / 9007199254740992.0, uz = u * zipf_zetan;
    size_t rank = uz < 1 ? 0 : uz < 1 + power(0.5, THETA) ? 1 : (size_t)((double)n * power(zipf_eta * u - zipf_eta + 1, zipf_alpha));
    return (size_t)(mix64(rank + seed) % n); /* scattered */
}

static inline uint64_t expected(size_t p, unsigned word) {
    return word == 0 ? p : ((uint64_t *)templates[p % TEMPLATES])[word];
}

static inline void touch(size_t p, struct rng *r) {
    volatile uint64_t *at = (volatile uint64_t *)(heap + p * PAGE);
    if (pattern == SEQREAD) {
        for (unsigned w = 1; w < 512; w += 64) {
            uint64_t got = at[w];
            if (got != expected(p, w))
                wrong(p, w, got);
        }
        return;
    }
    unsigned w = (unsigned)rng_next(r) & 511;
    uint64_t got = at[w], want = expected(p, w);
    if (got != want && (pattern != RANDWRITE || got != (want ^ FLIP)))
        wrong(p, w, got);
    if (pattern == RANDWRITE)
        at[w] = got ^ FLIP;
}

static void *work(void *arg) {
    struct worker *w = arg;
    struct rng r = {mix64(seed + (uint64_t)w->id)};
    int measured = 0;
    size_t next = pages / (size_t)thread_count * (size_t)w->id;
    uint64_t before = now_ns();
    for (;;) {
        int now = atomic_load_explicit(&phase, memory_order_relaxed);
        if (now == 3)
            break;
        if (now == 2 && !measured) {
            measured = 1;
            w->ops = 0;
            w->began_ns = before = now_ns();
        }
        size_t p;
        if (pattern == SEQREAD) {
            p = next;
            next = next + 1 == pages ? 0 : next + 1;
        } else
            p = pattern == ZIPFREAD ? zipf_next(&r, pages) : rng_below(&r, pages);
        touch(p, &r);
        w->ops++;
        uint64_t after = now_ns();
        if (measured)
            histogram_add(&w->times, after - before);
        before = after;
    }
    w->ended_ns = before;
    return NULL;
}

static void *fill_part(void *arg) {
    struct worker *w = arg;
    size_t from = pages / (size_t)thread_count * (size_t)w->id;
    size_t to = w->id == thread_count - 1 ? pages : from + pages / (size_t)thread_count;
    uint64_t before = now_ns();
    w->began_ns = before;
    for (size_t p = from; p < to; p++) {
        fill_page(p);
        uint64_t after = now_ns();
        histogram_add(&w->times, after - before);
        before = after;
    }
    w->ops = to - from;
    w->ended_ns = before;
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 6)
        die("usage: pattern randread|randwrite|zipfread|seqread|fill MIB SECONDS THREADS SEED");
    for (pattern = 0; pattern <= FILL && strcmp(names[pattern], argv[1]); pattern++)
        ;
    if (pattern > FILL)
        die("unknown pattern %s", argv[1]);
    pages = strtoul(argv[2], NULL, 10) << 8;
    double seconds = strtod(argv[3], NULL);
    thread_count = atoi(argv[4]);
    seed = strtoul(argv[5], NULL, 10);
    templates_make(99);
    if (pattern == ZIPFREAD)
        zipf_make(pages);
    heap = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (heap == MAP_FAILED)
        die("mmap: %s", strerror(errno));
    /* The same footing for all: without huge pages, which the limited runs cannot have. */
    madvise(heap, pages * PAGE, MADV_NOHUGEPAGE);
    struct worker *workers = calloc((size_t)thread_count, sizeof *workers);
    if (!workers)
        die("calloc: %s", strerror(errno));
    struct rusage u0, u1;
    if (pattern == FILL) {
        getrusage(RUSAGE_SELF, &u0);
        for (int t = 0; t < thread_count; t++) {
            workers[t].id = t;
            pthread_create(&workers[t].thread, NULL, fill_part, &workers[t]);
        }
    } else {
        for (size_t p = 0; p < pages; p++)
            fill_page(p);
        atomic_store(&phase, 1);
        for (int t = 0; t < thread_count; t++) {
            workers[t].id = t;
            pthread_create(&workers[t].thread, NULL, work, &workers[t]);
        }
        usleep((useconds_t)(seconds * 250000));
        getrusage(RUSAGE_SELF, &u0);
        atomic_store(&phase, 2);
        usleep((useconds_t)(seconds * 1000000));
        atomic_store(&phase, 3);
    }
    struct histogram *all = calloc(1, sizeof *all);
    uint64_t ops = 0, began = UINT64_MAX, ended = 0;
    for (int t = 0; t < thread_count; t++) {
        pthread_join(workers[t].thread, NULL);
        histogram_merge(all, &workers[t].times);
        ops += workers[t].ops;
        if (workers[t].began_ns && workers[t].began_ns < began)
            began = workers[t].began_ns;
        if (workers[t].ended_ns > ended)
            ended = workers[t].ended_ns;
    }
    getrusage(RUSAGE_SELF, &u1);
    double span_s = (double)(ended - began) / 1e9;
    if (pattern == FILL) /* what was filled must be there */
        for (size_t p = 0; p < pages; p += 97)
            if (*(uint64_t *)(heap + p * PAGE) != p)
                wrong(p, 0, *(uint64_t *)(heap + p * PAGE));
    printf("{\"pattern\": \"%s\", \"threads\": %d, \"ops\": %lu, \"ops_per_s\": %.0f, \"ns_per_op\": %.1f, "
           "\"p50_ns\": %lu, \"p90_ns\": %lu, \"p99_ns\": %lu, \"max_ns\": %lu, \"major_faults\": %ld, "
           "\"minor_faults\": %ld}\n",
           names[pattern], thread_count, (unsigned long)ops, (double)ops / span_s,
           span_s * 1e9 * thread_count / (double)ops, (unsigned long)histogram_at(all, 0.5),
           (unsigned long)histogram_at(all, 0.9), (unsigned long)histogram_at(all, 0.99), (unsigned long)all->max,
           u1.ru_majflt - u0.ru_majflt, u1.ru_minflt - u0.ru_minflt);
    return 0;
}
