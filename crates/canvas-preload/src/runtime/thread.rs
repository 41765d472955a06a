//! Identifies threads approximately, without thread-local data, which not every thread here has.

use canvas_types::PAGE_SIZE;
use canvas_types::sync::Threads;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a signal stack of canvas: two nested frames with AVX-512 state, and a program's handler.
pub const SIGNAL_STACK_BYTES: usize = 64 << 10;
/// Number of adjacent signal stacks of canvas.
pub const SIGNAL_STACKS: usize = 8192;

state! {
    /// Where canvas's own stacks are: a stack's address identifies its thread. Each fault reads this, so that no state
    /// that is written shares its cache line.
    #[repr(align(64))]
    static STACKS: Stacks {
        /// Address of the first signal stack; 0 before there are any.
        signal: AtomicUsize = AtomicUsize::new(0),
        serving: [Server; SERVERS] = [const {
            Server {
                at: AtomicUsize::new(0),
                served: AtomicUsize::new(0),
            }
        }; SERVERS],
    }
}

/// Sets the address of the signal stacks.
///
/// # Safety
///
/// All of them must be mapped there, for good, and nothing else may use them.
pub unsafe fn signal_stacks_at(base: usize) {
    STACKS.signal.store(base, Ordering::Release);
}

/// Address of the first signal stack; 0 before there are any.
pub fn signal_stacks() -> usize {
    STACKS.signal.load(Ordering::Relaxed)
}

/// Index of the signal stack that `addr` lies on.
#[inline(always)]
pub fn signal_stack(addr: usize) -> Option<usize> {
    let base = signal_stacks();
    let at = addr.wrapping_sub(base);
    (base != 0 && at < SIGNAL_STACKS * SIGNAL_STACK_BYTES).then_some(at / SIGNAL_STACK_BYTES)
}

/// Bytes of the stack of a thread of canvas.
pub const OWN_STACK_BYTES: usize = 256 << 10;

/// A thread that serves faults of other threads.
struct Server {
    /// Its stack address at start; 0 for none.
    at: AtomicUsize,
    /// The thread that it is serving now.
    served: AtomicUsize,
}

/// Maximum threads that serve others' faults.
pub const SERVERS: usize = 2;

/// Registers the calling thread as server number `server`. Its stack has [`OWN_STACK_BYTES`].
#[inline(never)]
pub fn serve_others(server: usize) {
    let here = 0u8;
    STACKS.serving[server]
        .at
        .store(&raw const here as usize, Ordering::Relaxed);
}

/// Records that the calling thread, server number `server`, now serves the thread `tid`.
pub fn serve(server: usize, tid: usize) {
    STACKS.serving[server].served.store(tid, Ordering::Relaxed);
}

/// The thread that is being served by the one whose stack `addr` lies on.
#[inline(always)]
fn served(addr: usize) -> Option<usize> {
    // Its address at start is the upper end of its stack, to within a page.
    STACKS.serving.iter().find_map(|s| {
        let begun = s.at.load(Ordering::Relaxed);
        (begun != 0 && (begun + PAGE_SIZE).wrapping_sub(addr) < OWN_STACK_BYTES)
            .then(|| s.served.load(Ordering::Relaxed))
    })
}

/// A number that distinguishes threads, derived from the addresses of their stacks. Signal stacks are closer together
/// than others, so they are numbered by their own size; a thread that serves others' faults counts as the one that it
/// serves.
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

/// What the allocators need of threads. Magazines are per thread, not per CPU: reading the CPU's number costs an access
/// each time (to thread-local data of libc, or through the vDSO), and the number may be outdated when it is used; the
/// thread's number follows from its stack.
pub const THREADS: Threads = Threads {
    yield_now: canvas_sys::gate::yield_now,
    number: thread_hash,
};
