/* libcanvas-api: passes the calls of canvas.h on to the library that `canvas run` has loaded, if it has. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "canvas.h"

#include <dlfcn.h>
#include <errno.h>

/* What that library has. New calls are added at the end; `bytes` says how far it goes. */
struct canvas_calls {
    size_t bytes;
    uint32_t version;
    long (*prefetch)(const void *, size_t);
    long (*prefetchv)(const struct canvas_range *, size_t);
    long (*thread_kind)(int, int);
    long (*region)(const void *, size_t, int, uint64_t, unsigned);
    long (*faults_next)(struct canvas_fault *, size_t, int);
    long (*stats)(struct canvas_stats *, size_t);
};

typedef const struct canvas_calls *(*lookup)(uint32_t);

static const struct canvas_calls NONE;

/* The calls, found once. A process that is not managed stays so until it runs another program. */
static const struct canvas_calls *calls(void) {
    static const struct canvas_calls *found;
    const struct canvas_calls *now = __atomic_load_n(&found, __ATOMIC_ACQUIRE);
    if (now)
        return now;
    lookup by_version;
    *(void **)&by_version = dlsym(RTLD_DEFAULT, "canvas_calls");
    now = by_version ? by_version(CANVAS_API_VERSION) : NULL;
    if (!now)
        now = &NONE;
    __atomic_store_n(&found, now, __ATOMIC_RELEASE);
    return now;
}

#define PASS(call, ...)                                                                                                \
    do {                                                                                                               \
        const struct canvas_calls *c = calls();                                                                        \
        return c->bytes >= offsetof(struct canvas_calls, call) + sizeof c->call ? c->call(__VA_ARGS__) : -ENOSYS;      \
    } while (0)

long canvas_version(void) {
    const struct canvas_calls *c = calls();
    return c->bytes ? (long)c->version : -ENOSYS;
}

long canvas_prefetch(const void *addr, size_t len) { PASS(prefetch, addr, len); }

long canvas_prefetchv(const struct canvas_range *ranges, size_t n) { PASS(prefetchv, ranges, n); }

long canvas_thread_kind(pid_t tid, int kind) { PASS(thread_kind, tid, kind); }

long canvas_region(const void *addr, size_t len, int kind, uint64_t base, unsigned shift) {
    PASS(region, addr, len, kind, base, shift);
}

long canvas_faults_next(struct canvas_fault *buf, size_t n, int timeout_ms) { PASS(faults_next, buf, n, timeout_ms); }

long canvas_stats(struct canvas_stats *stats, size_t size) { PASS(stats, stats, size); }
