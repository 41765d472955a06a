/* canvas.h: what a program can tell canvas of its memory, and ask it. Version 1.0.
 *
 * A program that is run by `canvas run` works without any of this. With it, one that knows what it will need can
 * have it brought in ahead.
 *
 * Link with -lcanvas-api (pkg-config canvas-api). This small library has no work of its own: it looks for the calls
 * of the library that `canvas run` loads into the program, once, by name, and passes calls on to it. Without canvas,
 * or where canvas does not manage the process, each call returns -ENOSYS and does nothing. The calls are looked up at
 * run time, and not bound by the linker to symbols of the same name, because that works as well where the linker's
 * order of libraries does not hold: in static archives, in plugins that are loaded for themselves alone (Python, the
 * JVM), and with any options of the linker. The same program runs with and without canvas, and with later versions.
 *
 * All calls return a number that is not negative, or a negative errno. They do not set errno, may be called by any
 * number of threads at one time, and none waits for a page or for other threads, but canvas_faults_next as long as
 * it is told to. They may not be called in handlers of signals.
 */
#ifndef CANVAS_H
#define CANVAS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Major version in the upper 16 bits. What has the same major version works together. */
#define CANVAS_API_VERSION 0x00010000

/* The version of the canvas that manages this process, or -ENOSYS. */
long canvas_version(void);

/* What of the range is not in local memory is brought in, soon, in the background, from its beginning on; the range
 * may begin and end anywhere. Returns how many pages are to come: 0 when all are there or none is canvas's, at most
 * an eighth of the local limit, which is also the most that may wait at one time.
 * -EAGAIN: too much waits already (nothing was accepted); -EINVAL: addr is null, or the range wraps. */
long canvas_prefetch(const void *addr, size_t len);

struct canvas_range {
    const void *addr;
    size_t len;
};
#define CANVAS_RANGES_MAX 64

/* The same for up to CANVAS_RANGES_MAX ranges, in order. Returns the pages of those that were accepted, which are the
 * first ones; -EAGAIN: not even the first one was; -EINVAL: one of them is no range, or n is too large (nothing was
 * accepted). */
long canvas_prefetchv(const struct canvas_range *ranges, size_t n);

/* Kinds of threads. */
#define CANVAS_THREAD_UNKNOWN 0 /* forgets what was told */
#define CANVAS_THREAD_APP 1     /* the program's own work */
#define CANVAS_THREAD_GC 2      /* collects garbage */
#define CANVAS_THREAD_JIT 3     /* compiles */
#define CANVAS_THREAD_RUNTIME 4 /* other work of a language's runtime */

/* Tells what the thread tid of this process is for; 0 is the calling one. It is forgotten when the thread ends.
 * -ESRCH: there is no such thread; -EINVAL: no such kind; -ENOSPC: too many threads (some 1000) were told of. */
long canvas_thread_kind(pid_t tid, int kind);

/* Contents of regions. */
#define CANVAS_REGION_NORMAL 0 /* forgets what was told */
#define CANVAS_REGION_ARRAY 1  /* used from its beginning to its end: read ahead at once, as far as is any good */
#define CANVAS_REGION_REFS64 2 /* has addresses of 64 bits */
#define CANVAS_REGION_REFS32 3 /* has numbers r of 32 bits, each the address base + (r << shift) */
#define CANVAS_REGION_RANDOM 4 /* used in no order: what lies beside a page is not read ahead */

/* Tells what is in the pages that the range touches, in place of what was told of them before. It holds until they
 * are unmapped. base and shift are 0 but for CANVAS_REGION_REFS32.
 * -ENOMEM: some of it is not mapped, or not managed by canvas; -EINVAL: no such kind, shift of 32 or more, or no
 * range; -ENOSPC: more than 4096 regions. */
long canvas_region(const void *addr, size_t len, int kind, uint64_t base, unsigned shift);

/* A fault that had to bring its page in, and beside which canvas found nothing to read ahead. */
struct canvas_fault {
    uint64_t address; /* what was touched, or its page where only that is known */
    uint64_t ip;      /* the instruction; 0 where it is not known (thread mode, system calls) */
    uint32_t tid;     /* the thread */
    uint32_t kind;    /* CANVAS_THREAD_*, as it was told */
    uint64_t time_ns; /* CLOCK_MONOTONIC */
};

/* Takes up to n of the oldest faults. They are kept from the first call on, the newest 1024, until nobody has asked
 * for 10 s. Without any it waits for timeout_ms (0: not at all; -1: for ever); it may return 0 earlier.
 * Returns how many; -EINVAL: buf is null, n is 0, or the timeout is below -1. */
long canvas_faults_next(struct canvas_fault *buf, size_t n, int timeout_ms);

/* Of the whole run, but for what is said to be of this process. New fields are added at the end. */
struct canvas_stats {
    uint64_t local_bytes;       /* local memory in use */
    uint64_t local_limit_bytes; /* its limit; UINT64_MAX without one */
    uint64_t pool_bytes;        /* compressed pages in the pool */
    uint64_t resident_bytes;    /* of this process: managed memory that is mapped */
    uint64_t far_bytes;         /* of this process: memory of which only a far copy is left */
    uint64_t faults_far;        /* faults that had to bring a page in */
    uint64_t pages_in;          /* pages brought in, for whatever reason */
    uint64_t pages_out;         /* pages that left */
    uint64_t prefetch_issued;   /* pages that canvas read ahead */
    uint64_t prefetch_used;     /* of these, found used */
    uint64_t hint_pages_in;     /* pages that came because the program said so */
    uint64_t hint_pages_out;    /* pages that left because the program said so */
    uint64_t hints_dropped;     /* hints, or rests of one, that were not done */
    uint64_t faults_forwarded;  /* of this process: faults for canvas_faults_next */
    uint64_t faults_dropped;    /* of these, lost, because nobody read them in time */
};

/* Writes what there is to the first size bytes of *stats. Returns the bytes written, whole fields, which may be fewer
 * (an earlier canvas); -EINVAL: stats is null, or size is below 8. */
long canvas_stats(struct canvas_stats *stats, size_t size);

#ifdef __cplusplus
}
#endif
#endif
