//! Excludes fork from everything that changes the pager's state.
//!
//! Each operation (resolving a fault, a mapping call, a batch of reclaim) is *inside* from [`enter`] to the guard's
//! drop, with all signals blocked, so that no operation nests in another of the same thread. Fork freezes: it waits
//! until no thread is inside and keeps others out, so that the child's copy of all tables and locks is consistent. To
//! be inside costs an update of one of a few counters.

use crate::paging::slow;
use crate::runtime::thread::thread_hash;
use crate::tenant::far_area;
use canvas_core::pager::locks::{self, Gate};
use canvas_shm::slow::Cause;
use canvas_sys::gate::yield_now;
use canvas_sys::{proc, signal};
use core::sync::atomic::AtomicU32;

const STRIPES: usize = 16;

static GATE: Gate<STRIPES> = Gate::new();

/// Inside until dropped. Dropping also restores the signal mask if `enter` blocked the signals.
pub struct Inside {
    // In this order: the gate is left before signals are unblocked.
    _gate: locks::Inside<'static>,
    _mask: Option<Mask>,
}

struct Mask(u64);

impl Drop for Mask {
    #[inline]
    fn drop(&mut self) {
        signal::set_mask(self.0);
    }
}

fn wait(word: &AtomicU32, value: u32) {
    slow::during(Cause::ForkGate, || {
        proc::futex_wait(word, value, 10_000_000)
    });
}

#[inline]
fn enter_with(mask: Option<Mask>) -> Inside {
    // A signal handler on the thread that is about to call exec may pass.
    let passes = |by| by > 1 && by == proc::tid();
    Inside {
        _gate: GATE.enter(thread_hash(), passes, wait),
        _mask: mask,
    }
}

/// Enters from ordinary code: blocks all signals first.
pub fn enter() -> Inside {
    let old = signal::set_mask(u64::MAX);
    enter_with(Some(Mask(old)))
}

/// Enters from code that runs with all signals blocked (canvas's handlers and threads).
#[inline]
pub fn enter_masked() -> Inside {
    enter_with(None)
}

/// Keeps all threads out until dropped.
pub struct Frozen;

/// Freezes. The caller has all signals blocked and is not inside.
///
/// Returns `None` if a thread has been inside for longer than any operation takes: a vfork child that was killed
/// inside, in our memory. Nobody can complete what it was doing.
pub fn freeze() -> Option<Frozen> {
    freeze_as(1)
}

/// Like [`freeze`], before exec, which ends all other threads wherever they are. This thread may unblock its signals
/// until then, and its own operations continue.
pub fn freeze_for_exec() -> Option<Frozen> {
    freeze_as(proc::tid())
}

/// How long an operation can be inside: three reads beyond the pool (its own, one of another thread that has the page,
/// one to make room), plus delays on a busy host.
fn patience_ns() -> u64 {
    const BUSY_NS: u64 = 10_000_000_000;
    BUSY_NS + 3 * far_area::longest_wait_ns()
}

fn freeze_as(by: u32) -> Option<Frozen> {
    GATE.close(by, wait);
    let frozen = Frozen;
    let mut since_ns = 0;
    let left = GATE.drain(|| {
        yield_now();
        let now_ns = proc::now_ns();
        if since_ns == 0 {
            since_ns = now_ns;
        }
        now_ns <= since_ns + patience_ns()
    });
    left.then_some(frozen)
}

impl Drop for Frozen {
    fn drop(&mut self) {
        proc::futex_wake(GATE.open(), u32::MAX >> 1);
    }
}
