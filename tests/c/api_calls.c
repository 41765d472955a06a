/* Every call of canvas.h, right and wrong. Without canvas all of them answer -ENOSYS.
 *
 * api_calls MIB THREAD_MODE
 */
#include "common.h"

#include <canvas.h>
#include <sys/syscall.h>

static char *base;
static size_t pages;

static struct canvas_stats now(void) {
    struct canvas_stats s;
    long n = canvas_stats(&s, sizeof s);
    CHECK(n == sizeof s, "canvas_stats: %ld", n);
    return s;
}

static void is(const char *what, long got, long want) {
    CHECK(got == want, "%s: %ld, and not %ld", what, got, want);
}

static void touch(size_t page) {
    int wrong = pattern_check((uint64_t *)(base + page * PAGE), mix64(page) | 8);
    CHECK(wrong < 0, "page %zu, word %d is wrong", page, wrong);
}

static void without_canvas(void) {
    struct canvas_range range = {base, PAGE};
    struct canvas_fault fault;
    struct canvas_stats stats;
    is("canvas_prefetch", canvas_prefetch(base, PAGE), -ENOSYS);
    is("canvas_prefetchv", canvas_prefetchv(&range, 1), -ENOSYS);
    is("canvas_thread_kind", canvas_thread_kind(0, CANVAS_THREAD_GC), -ENOSYS);
    is("canvas_region", canvas_region(base, PAGE, CANVAS_REGION_RANDOM, 0, 0), -ENOSYS);
    is("canvas_faults_next", canvas_faults_next(&fault, 1, -1), -ENOSYS);
    is("canvas_stats", canvas_stats(&stats, sizeof stats), -ENOSYS);
}

static void misuse(void) {
    char *gone = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(gone + PAGE, PAGE);
    struct canvas_range ranges[65] = {{base, PAGE}, {NULL, 1}};
    struct canvas_fault fault;
    struct canvas_stats s;
    is("null", canvas_prefetch(NULL, 1), -EINVAL);
    is("nothing", canvas_prefetch(NULL, 0), 0);
    is("no bytes", canvas_prefetch(base, 0), 0);
    is("a range that wraps", canvas_prefetch(base, SIZE_MAX), -EINVAL);
    is("a hole", canvas_prefetch(gone + PAGE, PAGE), 0);
    is("the stack", canvas_prefetch(&fault, sizeof fault), 0);
    is("the kernel's", canvas_prefetch((void *)-PAGE, PAGE - 1), 0);
    CHECK(canvas_prefetch(base + 1, SIZE_MAX / 4) >= 0, "odd and huge");
    is("65 ranges", canvas_prefetchv(ranges, 65), -EINVAL);
    is("one of two is null", canvas_prefetchv(ranges, 2), -EINVAL);
    is("no array", canvas_prefetchv(NULL, 1), -EINVAL);
    is("no ranges", canvas_prefetchv(NULL, 0), 0);
    is("no such kind", canvas_thread_kind(0, 5), -EINVAL);
    is("a negative kind", canvas_thread_kind(0, -1), -EINVAL);
    is("a negative thread", canvas_thread_kind(-4, 1), -EINVAL);
    is("another process's thread", canvas_thread_kind(getppid(), 1), -ESRCH);
    is("no such region", canvas_region(base, PAGE, 5, 0, 0), -EINVAL);
    is("a base without references", canvas_region(base, PAGE, CANVAS_REGION_REFS64, 8, 0), -EINVAL);
    is("a long shift", canvas_region(base, PAGE, CANVAS_REGION_REFS32, 8, 32), -EINVAL);
    is("a region with a hole", canvas_region(gone, 4 * PAGE, CANVAS_REGION_ARRAY, 0, 0), -ENOMEM);
    is("a region of the stack", canvas_region(&fault, sizeof fault, CANVAS_REGION_ARRAY, 0, 0), -ENOMEM);
    is("a null region", canvas_region(NULL, PAGE, CANVAS_REGION_ARRAY, 0, 0), -EINVAL);
    is("no buffer", canvas_faults_next(NULL, 1, 0), -EINVAL);
    is("no room", canvas_faults_next(&fault, 0, 0), -EINVAL);
    is("a negative time", canvas_faults_next(&fault, 1, -2), -EINVAL);
    is("no statistics", canvas_stats(NULL, 8), -EINVAL);
    is("little room", canvas_stats(&s, 7), -EINVAL);
    memset(&s, 0x55, sizeof s);
    is("two fields", canvas_stats(&s, 20), 16);
    is("what lies behind them", s.pool_bytes == 0x5555555555555555, 1);
    /* More regions than the table holds; then munmap makes canvas forget all of them. */
    size_t many = 3 * 4097;
    char *all = mmap(NULL, many * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int round = 0; round < 2; round++) {
        long answer = 0;
        size_t told = 0;
        for (; answer == 0 && told < 4097; told++)
            answer = canvas_region(all + 3 * told * PAGE, PAGE, CANVAS_REGION_REFS32, told, 3);
        is("the last region", answer, -ENOSPC);
        is("regions", (long)told, 4097);
        munmap(all, many * PAGE);
        all = mmap(all, many * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }
    munmap(all, many * PAGE);
}

/* Far pages brought in by a hint cause no faults. */
static void prefetch(void) {
    struct canvas_stats before = now();
    long wanted = canvas_prefetch(base + 100, 200 * PAGE);
    CHECK(wanted > 150 && wanted <= 201, "%ld pages accepted", wanted);
    for (int i = 0; now().hint_pages_in < before.hint_pages_in + (uint64_t)wanted && i < 5000; i++)
        usleep(1000);
    uint64_t came = now().hint_pages_in - before.hint_pages_in, faults = now().faults_far;
    CHECK(came >= (uint64_t)wanted * 9 / 10, "%lu of %ld pages came in", came, wanted);
    for (size_t p = 1; p < 200; p++)
        touch(p);
    CHECK(now().faults_far - faults <= 20, "%lu faults after the hint", now().faults_far - faults);
    /* Three ranges, in order. */
    struct canvas_range ranges[3];
    for (size_t i = 0; i < 3; i++)
        ranges[i] = (struct canvas_range){base + (400 + 100 * i) * PAGE, 50 * PAGE};
    before = now();
    wanted = canvas_prefetchv(ranges, 3);
    CHECK(wanted > 100 && wanted <= 150, "%ld pages of three ranges accepted", wanted);
    for (int i = 0; now().hint_pages_in < before.hint_pages_in + (uint64_t)wanted && i < 5000; i++)
        usleep(1000);
    CHECK(now().hint_pages_in - before.hint_pages_in >= 100, "three ranges brought in too little");
}

/* Reads far pages in order; returns the numbers of pages prefetched and of faults. */
static struct canvas_stats read_in_order(size_t from, size_t n) {
    struct canvas_stats before = now();
    for (size_t p = from; p < from + n; p++)
        touch(p);
    struct canvas_stats after = now();
    after.prefetch_issued -= before.prefetch_issued;
    after.faults_far -= before.faults_far;
    return after;
}

static void regions(void) {
    is("random", canvas_region(base + 1000 * PAGE, 400 * PAGE, CANVAS_REGION_RANDOM, 0, 0), 0);
    is("array", canvas_region(base + 2000 * PAGE, 400 * PAGE, CANVAS_REGION_ARRAY, 0, 0), 0);
    struct canvas_stats random = read_in_order(1000, 400), array = read_in_order(2000, 400);
    CHECK(random.prefetch_issued == 0 && random.faults_far > 300, "random: %lu prefetched, %lu faults",
          random.prefetch_issued, random.faults_far);
    CHECK(array.prefetch_issued > 300 && array.faults_far < 100, "array: %lu prefetched, %lu faults",
          array.prefetch_issued, array.faults_far);
    is("normal", canvas_region(base + 1000 * PAGE, 400 * PAGE, CANVAS_REGION_NORMAL, 0, 0), 0);
    is("references", canvas_region(base, 400 * PAGE, CANVAS_REGION_REFS32, (uint64_t)base, 3), 0);
}

static void *waiter(void *got) {
    struct canvas_fault fault;
    *(long *)got = canvas_faults_next(&fault, 1, -1);
    return NULL;
}

/* Number of faults on the memory under test. The rest of the program (heap, data) may be evicted at any time too,
 * and then it faults. */
static int of_base(const struct canvas_fault *f, long n) {
    int ours = 0;
    for (long i = 0; i < n; i++)
        ours += f[i].address - (uintptr_t)base < pages * PAGE;
    return ours;
}

/* A thread that only faults: its faults are reported with all their fields. */
static void faults(int thread_mode) {
    extern char __executable_start, etext;
    struct canvas_fault f[2000];
    is("the first call", canvas_faults_next(f, 2000, 0), 0);
    is("in vain", of_base(f, canvas_faults_next(f, 2000, 20)), 0);
    is("this thread", canvas_thread_kind(0, CANVAS_THREAD_GC), 0);
    size_t from = pages / 4;
    is("random", canvas_region(base + from * PAGE, 2500 * PAGE, CANVAS_REGION_RANDOM, 0, 0), 0);
    for (size_t p = from; p < from + 20; p++)
        touch(p);
    long n = canvas_faults_next(f, 2000, 0);
    CHECK(n >= 15, "%ld faults were told of 20", n);
    uint64_t last = 0;
    int ours = 0;
    for (long i = 0; i < n; i++) {
        size_t page = (f[i].address - (uintptr_t)base) / PAGE;
        if (page < from || page >= from + 20)
            continue; /* the reclaim of the rest of this program's memory */
        ours++;
        CHECK(f[i].tid == (uint32_t)syscall(SYS_gettid), "thread %u", f[i].tid);
        CHECK(f[i].kind == CANVAS_THREAD_GC, "kind %u", f[i].kind);
        CHECK(f[i].time_ns >= last, "times go backward");
        last = f[i].time_ns;
        uintptr_t ip = f[i].ip;
        CHECK(thread_mode ? ip == 0 : ip >= (uintptr_t)&__executable_start && ip < (uintptr_t)&etext,
              "the instruction is at %#lx", (long)ip);
    }
    CHECK(ours >= 15, "%d faults of 20 are ours", ours);
    /* Nothing reads the queue: the newest faults are kept, the others counted. */
    for (size_t p = from + 20; p < from + 2020; p++)
        touch(p);
    uint64_t dropped = now().faults_dropped;
    n = canvas_faults_next(f, 2000, 0);
    /* While the queue is read, the buffer itself may fault. */
    int kept = of_base(f, n);
    CHECK(kept > 900 && kept <= 1024, "%d faults were kept of 2000", kept);
    dropped = now().faults_dropped - dropped;
    CHECK(dropped > 700 && dropped < 1100, "%lu faults were dropped of 2000", dropped);
    /* A waiting reader is woken. */
    pthread_t thread;
    long got = 0;
    CHECK(pthread_create(&thread, NULL, waiter, &got) == 0, "pthread_create");
    usleep(50000);
    for (size_t p = from + 2020; p < from + 2100; p++)
        touch(p);
    pthread_join(thread, NULL);
    is("a thread that waited", got, 1);
    is("forgotten", canvas_thread_kind(0, CANVAS_THREAD_UNKNOWN), 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 3, "usage: api_calls MIB THREAD_MODE");
    pages = strtoull(argv[1], NULL, 0) << 8;
    base = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED, "mmap: %s", strerror(errno));
    if (canvas_version() == -ENOSYS) {
        without_canvas();
        printf("without canvas\n");
        return 0;
    }
    is("the version", canvas_version(), CANVAS_API_VERSION);
    for (size_t p = 0; p < pages; p++)
        pattern_fill((uint64_t *)(base + p * PAGE), mix64(p) | 8);
    misuse();
    /* Pages requested by the misuse come in, and are evicted again. */
    usleep(300000);
    CHECK(madvise(base, pages / 2 * PAGE, MADV_PAGEOUT) == 0, "madvise: %s", strerror(errno));
    usleep(300000);
    for (size_t p = pages / 2; p < pages; p++)
        touch(p);
    prefetch();
    regions();
    faults(atoi(argv[2]));
    pid_t child = fork();
    if (child == 0) {
        is("the child's version", canvas_version(), CANVAS_API_VERSION);
        CHECK(canvas_prefetch(base, 100 * PAGE) >= 0, "a hint in the child");
        for (size_t p = 0; p < pages / 4; p++)
            touch(p);
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "the child ended with %#x", status);
    printf("right\n");
    return 0;
}
