/* canvas.h: hints from a program to canvas about its memory, and figures in return. Version 1.0.
 *
 * A program under `canvas run` works without any of this. A program that knows which pages it will need can have
 * them brought in before it touches them.
 *
 * Link with -lcanvas-api (pkg-config canvas-api). That small library finds the calls in the library that `canvas run`
 * loads into the process, once, at run time and by name, and passes calls on to it. Without canvas, or where canvas
 * does not manage the process, each call returns -ENOSYS and does nothing. Finding the calls at run time works in
 * static archives, in plugins (Python, the JVM) and with any order of libraries, where binding to symbols of the same
 * name would not. The same program runs with and without canvas, and with later versions.
 *
 * All calls return a non-negative number or a negative errno, and do not set errno. Any number of threads may call
 * them at the same time. No call waits for a page or for other threads, except canvas_faults_next, up to its timeout.
 * Do not call them in signal handlers.
 */
#ifndef CANVAS_H
#define CANVAS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Major version in the upper 16 bits. A program and a canvas of equal major versions work together. */
#define CANVAS_API_VERSION 0x00010000

/* The version of the canvas that manages this process, or -ENOSYS. */
long canvas_version(void);

/* Brings in the pages of the range that are not in local memory, soon, in the background, in ascending order. The
 * range may begin and end anywhere. Returns how many pages were queued: 0 when all are local or none is managed, at
 * most an eighth of the local limit, which is also the most that can be queued at one time.
 * -EAGAIN: the queue is full (nothing was accepted); -EINVAL: addr is null, or the range wraps. */
long canvas_prefetch(const void *addr, size_t len);

struct canvas_range {
    const void *addr;
    size_t len;
};
#define CANVAS_RANGES_MAX 64

/* canvas_prefetch for up to CANVAS_RANGES_MAX ranges, in order, until the queue is full. Returns the pages that were
 * queued.
 * -EAGAIN: not even the first range was accepted; -EINVAL: a range is invalid, or n is too large (nothing was
 * accepted). */
long canvas_prefetchv(const struct canvas_range *ranges, size_t n);

/* Kinds of threads. */
#define CANVAS_THREAD_UNKNOWN 0 /* forgets the thread's kind */
#define CANVAS_THREAD_APP 1     /* the program's own work */
#define CANVAS_THREAD_GC 2      /* collects garbage */
#define CANVAS_THREAD_JIT 3     /* compiles */
#define CANVAS_THREAD_RUNTIME 4 /* other work of a language's runtime */

/* Sets what the thread tid of this process is for, until it ends; 0 is the calling thread.
 * -ESRCH: there is no such thread; -EINVAL: no such kind; -ENOSPC: some 1000 threads have a kind already. */
long canvas_thread_kind(pid_t tid, int kind);

/* Contents of regions. */
#define CANVAS_REGION_NORMAL 0 /* forgets the region's kind */
#define CANVAS_REGION_ARRAY 1  /* used from beginning to end: prefetched at once, as far as that helps */
#define CANVAS_REGION_REFS64 2 /* holds addresses of 64 bits */
#define CANVAS_REGION_REFS32 3 /* holds numbers r of 32 bits, each the address base + (r << shift) */
#define CANVAS_REGION_RANDOM 4 /* used in no order: a page's neighbours are not prefetched */

/* Sets what the pages that the range touches contain, until they are unmapped or set again. base and shift are 0
 * except for CANVAS_REGION_REFS32.
 * -ENOMEM: part of the range is not mapped, or not managed by canvas; -EINVAL: no such kind, shift of 32 or more, or
 * an invalid range; -ENOSPC: more than 4096 regions. */
long canvas_region(const void *addr, size_t len, int kind, uint64_t base, unsigned shift);

/* A fault on an evicted page for which canvas found nothing to prefetch. */
struct canvas_fault {
    uint64_t address; /* the address touched, or its page if only that is known */
    uint64_t ip;      /* the instruction; 0 if unknown (thread mode, system calls) */
    uint32_t tid;     /* the thread */
    uint32_t kind;    /* CANVAS_THREAD_*, as set by canvas_thread_kind */
    uint64_t time_ns; /* CLOCK_MONOTONIC */
};

/* Takes up to n of the oldest faults. canvas keeps the newest 1024, from the first call on, until there was no call
 * for 10 s. If there is no fault, waits up to timeout_ms (0: not at all; -1: for ever), and may return 0 earlier.
 * Returns the number of faults. -EINVAL: buf is null, n is 0, or the timeout is below -1. */
long canvas_faults_next(struct canvas_fault *buf, size_t n, int timeout_ms);

/* Figures of the whole run, except where "this process" is named. New fields are added at the end. */
struct canvas_stats {
    uint64_t local_bytes;       /* local memory in use */
    uint64_t local_limit_bytes; /* its limit; UINT64_MAX without one */
    uint64_t pool_bytes;        /* compressed pages in the pool */
    uint64_t resident_bytes;    /* of this process: managed memory that is mapped */
    uint64_t far_bytes;         /* of this process: evicted memory, in the pool or beyond it */
    uint64_t faults_far;        /* faults on evicted pages */
    uint64_t pages_in;          /* pages brought in, by faults, prefetch and hints */
    uint64_t pages_out;         /* pages evicted */
    uint64_t prefetch_issued;   /* pages that canvas prefetched */
    uint64_t prefetch_used;     /* of these, found used */
    uint64_t hint_pages_in;     /* pages brought in by hints */
    uint64_t hint_pages_out;    /* pages evicted by hints */
    uint64_t hints_dropped;     /* hints, or parts of one, that were not carried out */
    uint64_t faults_forwarded;  /* of this process: faults for canvas_faults_next */
    uint64_t faults_dropped;    /* of these, overwritten before they were read */
};

/* Fills the first size bytes of *stats. Returns the bytes written, in whole fields; an earlier canvas may write fewer.
 * -EINVAL: stats is null, or size is below 8. */
long canvas_stats(struct canvas_stats *stats, size_t size);

#ifdef __cplusplus
}
#endif
#endif
