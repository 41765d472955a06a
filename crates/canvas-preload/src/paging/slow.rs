//! Records what slow faults waited for ([`canvas_shm::slow`]).
//!
//! There is no thread-local data: each wait stores its time under the thread's number, and a fault that was slow looks
//! up which waits happened during it. A fast fault pays only for a comparison. Threads that share a number may get each
//! other's causes.

use canvas_shm::Counter;
use canvas_shm::segment::STRIPES;
use canvas_shm::slow::{CAUSES, Cause, SLOW_NS, SlowFault};
use canvas_sys::{gate, proc};
use canvas_types::PAGE_SIZE;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::runtime::{state, thread, time};

/// Waits kept per thread.
const WAITS: usize = 8;
/// Threads that are distinguished.
const THREADS: usize = 256;
/// Waits of one cause with a shorter gap count as one.
const GAP_NS: u64 = 200_000;

struct Wait {
    cause: AtomicU8,
    from_ns: AtomicU64,
    to_ns: AtomicU64,
}

struct Waits {
    newest: AtomicU64,
    all: [Wait; WAITS],
}

static OF_THREADS: [Waits; THREADS] = [const {
    Waits {
        newest: AtomicU64::new(0),
        all: [const {
            Wait {
                cause: AtomicU8::new(0),
                from_ns: AtomicU64::new(0),
                to_ns: AtomicU64::new(0),
            }
        }; WAITS],
    }
}; THREADS];

fn mine() -> &'static Waits {
    &OF_THREADS[thread::thread_hash() % THREADS]
}

/// Records that the calling thread has waited for `cause` since `from_ns` (CLOCK_MONOTONIC).
#[cold]
pub fn waited(cause: Cause, from_ns: u64) {
    let (waits, to_ns) = (mine(), time::now_ns());
    let newest = waits.newest.load(Ordering::Relaxed);
    let last = &waits.all[newest as usize % WAITS];
    let close = from_ns.saturating_sub(last.to_ns.load(Ordering::Relaxed)) < GAP_NS;
    if close && last.cause.load(Ordering::Relaxed) == cause as u8 {
        last.to_ns.store(to_ns, Ordering::Relaxed);
        return;
    }
    let next = &waits.all[(newest + 1) as usize % WAITS];
    next.cause.store(cause as u8, Ordering::Relaxed);
    next.from_ns.store(from_ns, Ordering::Relaxed);
    next.to_ns.store(to_ns, Ordering::Relaxed);
    waits.newest.store(newest + 1, Ordering::Relaxed);
}

/// Calls `f`, which may wait for `cause`.
#[cold]
pub fn during<R>(cause: Cause, f: impl FnOnce() -> R) -> R {
    let from_ns = time::now_ns();
    let r = f();
    if matches!(cause, Cause::OtherProcesses | Cause::PoolFull) {
        state::count(
            Counter::FaultSleepNs,
            time::now_ns().saturating_sub(from_ns),
        );
    }
    waited(cause, from_ns);
    r
}

macro_rules! yields {
    ($($name:ident: $cause:ident,)*) => {$(
        /// Yields once while waiting, like [`gate::yield_now`].
        pub fn $name() {
            during(Cause::$cause, gate::yield_now);
        }
    )*};
}
yields! {
    yield_to_chunk: ChunkLock,
    yield_to_mapping: MappingLock,
    yield_to_context: FillContext,
    yield_to_page: BusyPage,
}

/// The CPU time of one fault in this many is measured, because that takes a system call.
const CPU_SAMPLED: u64 = 32;

/// When a fault began (CLOCK_MONOTONIC).
#[derive(Clone, Copy)]
pub struct Begun {
    ns: u64,
    /// The thread's CPU time, if it is measured.
    cpu_ns: Option<u64>,
}

impl Begun {
    /// Starts a fault's time.
    #[inline]
    pub fn now() -> Begun {
        let ns = time::now_ns();
        // Sample by the clock's low digits, which are unpredictable.
        let is_sampled = ns.wrapping_mul(0x9e37_79b9_7f4a_7c15) < u64::MAX / CPU_SAMPLED;
        Begun {
            ns,
            cpu_ns: is_sampled.then(proc::thread_ns),
        }
    }
}

/// Records a fault at `addr` that has just been resolved.
#[inline]
pub fn note_fault(addr: usize, begun: Begun) {
    let (begun_ns, now) = (begun.ns, time::now_ns());
    if let Some(before) = begun.cpu_ns {
        let cpu_ns = proc::thread_ns().saturating_sub(before);
        state::count(Counter::FaultCpuNs, cpu_ns * CPU_SAMPLED);
    }
    let took = now.saturating_sub(begun_ns);
    let stripe = &state::seg().stripes[thread::thread_hash() % STRIPES];
    stripe.fault_ns.record(took);
    state::slot().note_stall(begun_ns, now);
    if took >= SLOW_NS {
        note_slow(addr & !(PAGE_SIZE - 1), begun_ns, now);
    }
}

#[cold]
fn note_slow(page: usize, from_ns: u64, to_ns: u64) {
    let all = &mine().all;
    let waits: [(u64, u64); WAITS] = core::array::from_fn(|i| {
        let from = all[i].from_ns.load(Ordering::Relaxed).max(from_ns);
        (
            from,
            all[i].to_ns.load(Ordering::Relaxed).min(to_ns).max(from),
        )
    });
    let mut ns = [0u64; CAUSES];
    for (i, (from, to)) in waits.iter().enumerate() {
        // A wait nested in another one is the cause of both.
        let within = waits.iter().enumerate().filter(|(k, (f, t))| {
            let shorter = t - f < to - from || (t - f == to - from && *k > i);
            *k != i && f >= from && t <= to && shorter
        });
        let others: u64 = within.map(|(_, (f, t))| t - f).sum();
        let cause = all[i].cause.load(Ordering::Relaxed) as usize;
        if let Some(sum) = ns.get_mut(cause) {
            *sum += (to - from).saturating_sub(others);
        }
    }
    // Time that no wait explains counts as `Elsewhere`.
    let known = ns.iter().sum::<u64>();
    ns[Cause::Elsewhere as usize] = (to_ns - from_ns).saturating_sub(known);
    let most = (0..CAUSES).max_by_key(|i| ns[*i]).unwrap_or(0);
    state::seg().slow.note(&SlowFault {
        page: page as u64,
        cause: Cause::ALL[most],
        pid: proc::pid(),
        ns: to_ns - from_ns,
        when_ns: to_ns,
    });
}
