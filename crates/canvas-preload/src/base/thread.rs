//! Which thread this is, roughly: without thread-local data, which not every thread here has.

use canvas_types::PAGE_SIZE;
use canvas_types::sync::Threads;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a signal stack of canvas's: two nested frames with AVX-512 state, and a program's handler.
pub const SIGNAL_STACK_BYTES: usize = 64 << 10;
/// Signal stacks of canvas's that lie side by side.
pub const SIGNAL_STACKS: usize = 8192;

static SIGNAL_STACKS_AT: AtomicUsize = AtomicUsize::new(0);

/// The signal stacks lie at `base` from now on.
pub fn signal_stacks_at(base: usize) {
    SIGNAL_STACKS_AT.store(base, Ordering::Release);
}

/// Where the first signal stack begins; 0 before there are any.
pub fn signal_stacks() -> usize {
    SIGNAL_STACKS_AT.load(Ordering::Relaxed)
}

/// Which of the signal stacks `addr` lies on.
#[inline(always)]
pub fn signal_stack(addr: usize) -> Option<usize> {
    let base = signal_stacks();
    let at = addr.wrapping_sub(base);
    (base != 0 && at < SIGNAL_STACKS * SIGNAL_STACK_BYTES).then_some(at / SIGNAL_STACK_BYTES)
}

/// Bytes of the stack of a thread of canvas's.
pub const OWN_STACK_BYTES: usize = 256 << 10;

/// A thread that serves the faults of others.
struct Server {
    /// Where its stack was when it began; 0 for none.
    at: AtomicUsize,
    /// The thread that it serves now.
    served: AtomicUsize,
}

/// Threads that can serve others' faults at one time.
pub const SERVERS: usize = 2;
static SERVING: [Server; SERVERS] = [const {
    Server {
        at: AtomicUsize::new(0),
        served: AtomicUsize::new(0),
    }
}; SERVERS];

/// The calling thread begins to serve others' faults, as number `server`. Its stack is of
/// [`OWN_STACK_BYTES`].
#[inline(never)]
pub fn serve_others(server: usize) {
    let here = 0u8;
    SERVING[server]
        .at
        .store(&raw const here as usize, Ordering::Relaxed);
}

/// The calling thread, number `server`, serves the thread `tid` from now on.
pub fn serve(server: usize, tid: usize) {
    SERVING[server].served.store(tid, Ordering::Relaxed);
}

/// The thread that is served by the one whose stack `addr` lies on.
#[inline(always)]
fn served(addr: usize) -> Option<usize> {
    // Where it began is its stack's upper end, to within a page.
    SERVING.iter().find_map(|s| {
        let begun = s.at.load(Ordering::Relaxed);
        (begun != 0 && (begun + PAGE_SIZE).wrapping_sub(addr) < OWN_STACK_BYTES)
            .then(|| s.served.load(Ordering::Relaxed))
    })
}

/// A number that differs between threads, from where their stacks lie. Signal stacks lie closer to
/// each other than others, so they are told apart by their own size; a thread that serves others'
/// faults counts as the one that it serves.
#[inline(always)]
pub fn thread_hash() -> usize {
    let here = 0u8;
    let at = &raw const here as usize;
    let thread = signal_stack(at).or_else(|| served(at)).unwrap_or(at >> 18);
    thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
}

/// The calling thread's number, or that of the thread whose fault it serves.
pub fn faulting_tid() -> u32 {
    let here = 0u8;
    served(&raw const here as usize).map_or_else(canvas_sys::proc::tid, |tid| tid as u32)
}

/// What the allocators ask of threads. Their shelves go by thread, not by processor: the number of the
/// processor costs a look at it each time (it is in thread-local data of libc's, or behind the vDSO), and may
/// be another one by the time that it is used; the thread's is known from its stack.
pub const THREADS: Threads = Threads {
    yield_now: canvas_sys::gate::yield_now,
    number: thread_hash,
};
