//! Faults that are reported to the program while it reads them (`canvas_faults_next`).

use canvas_core::pager::api::faults::{Fault, Ring};
use canvas_sys::proc;
use canvas_types::sync::RawSpin;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::api::told;
use crate::runtime::{thread, time};

/// After this time without a reader, faults are no longer kept.
const SILENT_NS: u64 = 10_000_000_000;

state! {
    /// Faults for the program to read.
    static FAULTS: Faults {
        ring: Ring = Ring::new(),
        reader: RawSpin = RawSpin::new(),
        /// A reader exists.
        listens: AtomicBool = AtomicBool::new(false),
        /// When a reader last asked.
        asked_ns: AtomicU64 = AtomicU64::new(0),
        /// Threads that wait for a fault.
        waiters: AtomicU32 = AtomicU32::new(0),
        /// The word that they wait on.
        came: AtomicU32 = AtomicU32::new(0),
    }
}

/// In a fork's child: no thread waits.
pub fn after_fork_in_child() {
    stop();
    FAULTS.waiters.store(0, Ordering::Relaxed);
}

/// Records a fault at `address`, by the instruction at `ip` (0 if unknown), that brought in its page and nothing beside
/// it.
#[inline]
pub fn push(address: usize, ip: usize) {
    if FAULTS.listens.load(Ordering::Relaxed) {
        add(address, ip);
    }
}

#[cold]
fn add(address: usize, ip: usize) {
    let time_ns = time::now_ns();
    if time_ns > FAULTS.asked_ns.load(Ordering::Relaxed) + SILENT_NS
        && FAULTS.waiters.load(Ordering::Relaxed) == 0
    {
        stop();
        return;
    }
    let tid = thread::faulting_tid();
    FAULTS.ring.push(Fault {
        address: address as u64,
        ip: ip as u64,
        tid,
        kind: told::kind_of(tid).map_or(0, |kind| kind as u32),
        time_ns,
    });
    if FAULTS.waiters.load(Ordering::SeqCst) != 0 {
        FAULTS.came.fetch_add(1, Ordering::Release);
        proc::futex_wake(&FAULTS.came, 1);
    }
}

/// Takes the oldest faults; returns how many. Faults are kept from the first call on. The caller is inside
/// `freeze::enter`.
pub fn take(out: &mut [Fault]) -> usize {
    let _reader = FAULTS.reader.lock(canvas_sys::gate::yield_now);
    FAULTS.asked_ns.store(time::now_ns(), Ordering::Relaxed);
    if !FAULTS.listens.load(Ordering::Relaxed) {
        FAULTS.ring.skip_all();
        FAULTS.listens.store(true, Ordering::Relaxed);
    }
    FAULTS.ring.take(out)
}

/// Waits at most `timeout_ns` for a fault; a signal handler also ends the wait. The caller is not inside
/// `freeze::enter`, and has found no fault after [`begin_wait`] returned `seen`.
pub fn wait(seen: u32, timeout_ns: u64) {
    proc::futex_wait(&FAULTS.came, seen, timeout_ns);
}

/// Announces that a thread is about to wait: faults from now on wake it.
pub fn begin_wait() -> u32 {
    FAULTS.waiters.fetch_add(1, Ordering::SeqCst);
    FAULTS.came.load(Ordering::Acquire)
}

/// Ends the wait of a thread.
pub fn end_wait() {
    FAULTS.waiters.fetch_sub(1, Ordering::SeqCst);
    FAULTS.asked_ns.store(time::now_ns(), Ordering::Relaxed);
}

/// Number of faults ever kept, and how many of them no reader got.
pub fn counts() -> (u64, u64) {
    FAULTS.ring.counts()
}

/// Stops keeping faults.
pub fn stop() {
    FAULTS.listens.store(false, Ordering::Relaxed);
}
