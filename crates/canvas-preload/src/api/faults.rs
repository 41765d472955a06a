//! Faults that are handed to the program, as long as it reads them (`canvas_faults_next`).

use canvas_pager::api::faults::{Fault, Ring};
use canvas_sys::proc;
use canvas_types::sync::RawSpin;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::api::told;
use crate::base::{thread, time};

/// Nobody has asked for so long: nothing is kept any more.
const SILENT_NS: u64 = 10_000_000_000;

static RING: Ring = Ring::new();
static READER: RawSpin = RawSpin::new();
/// Somebody reads.
static LISTENS: AtomicBool = AtomicBool::new(false);
/// When somebody last asked.
static ASKED_NS: AtomicU64 = AtomicU64::new(0);
/// Threads that wait for a fault, and what they wait on.
static WAITERS: AtomicU32 = AtomicU32::new(0);
static CAME: AtomicU32 = AtomicU32::new(0);

/// A fault at `address`, by the instruction at `ip` (0 where that is not known), had to bring its page in, and nothing
/// came in beside it.
#[inline]
pub fn push(address: usize, ip: usize) {
    if LISTENS.load(Ordering::Relaxed) {
        add(address, ip);
    }
}

#[cold]
fn add(address: usize, ip: usize) {
    let time_ns = time::now_ns();
    if time_ns > ASKED_NS.load(Ordering::Relaxed) + SILENT_NS
        && WAITERS.load(Ordering::Relaxed) == 0
    {
        stop();
        return;
    }
    let tid = thread::faulting_tid();
    RING.push(Fault {
        address: address as u64,
        ip: ip as u64,
        tid,
        kind: told::kind_of(tid).map_or(0, |kind| kind as u32),
        time_ns,
    });
    if WAITERS.load(Ordering::SeqCst) != 0 {
        CAME.fetch_add(1, Ordering::Release);
        proc::futex_wake(&CAME, 1);
    }
}

/// Takes the oldest faults; how many. From the first call on they are kept. The caller is inside.
pub fn take(out: &mut [Fault]) -> usize {
    let _reader = READER.lock(canvas_sys::gate::yield_now);
    ASKED_NS.store(time::now_ns(), Ordering::Relaxed);
    if !LISTENS.load(Ordering::Relaxed) {
        RING.skip_all();
        LISTENS.store(true, Ordering::Relaxed);
    }
    RING.take(out)
}

/// Waits until a fault comes, `timeout_ns` at most; a signal's handler ends it as well. The caller is not inside,
/// and has looked in vain after [`begin_wait`] gave `seen`.
pub fn wait(seen: u32, timeout_ns: u64) {
    proc::futex_wait(&CAME, seen, timeout_ns);
}

/// A thread is about to wait: faults from now on wake it.
pub fn begin_wait() -> u32 {
    WAITERS.fetch_add(1, Ordering::SeqCst);
    CAME.load(Ordering::Acquire)
}

/// It waits no more.
pub fn end_wait() {
    WAITERS.fetch_sub(1, Ordering::SeqCst);
    ASKED_NS.store(time::now_ns(), Ordering::Relaxed);
}

/// Faults that were kept, ever, and those of them that nobody read.
pub fn counts() -> (u64, u64) {
    RING.counts()
}

/// Nothing is kept any more.
pub fn stop() {
    LISTENS.store(false, Ordering::Relaxed);
}

/// In a fork's child: nobody waits.
pub fn after_fork_in_child() {
    stop();
    WAITERS.store(0, Ordering::Relaxed);
}
