//! Keeps fork apart from everything that changes the pager's state.
//!
//! Each operation (a fault's resolution, a mapping call, a batch of reclaim) is *inside* from
//! [`enter`] to the guard's drop, with all signals blocked, so that none can nest in another of
//! the same thread. Fork freezes: it waits until nobody is inside and keeps others out, so the
//! child's copy of all tables and locks is consistent. Readers touch one of a few counters.

use canvas_sys::gate::yield_now;
use canvas_sys::{proc, signal};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

const STRIPES: usize = 16;

#[repr(align(128))]
struct Stripe(AtomicI32);

static INSIDE: [Stripe; STRIPES] = [const { Stripe(AtomicI32::new(0)) }; STRIPES];
static FROZEN: AtomicU32 = AtomicU32::new(0);

/// A number that differs between threads, from where their stacks lie.
#[inline(always)]
pub fn thread_hash() -> usize {
    let here = 0u8;
    let at = &raw const here as usize;
    (at >> 18).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
}

/// Inside until dropped.
pub struct Inside {
    stripe: &'static AtomicI32,
    /// The mask to restore, when we blocked the signals ourselves.
    mask: Option<u64>,
}

fn enter_with(mask: Option<u64>) -> Inside {
    let stripe = &INSIDE[thread_hash() % STRIPES].0;
    loop {
        stripe.fetch_add(1, Ordering::SeqCst);
        if FROZEN.load(Ordering::SeqCst) == 0 {
            return Inside { stripe, mask };
        }
        let by = FROZEN.load(Ordering::SeqCst);
        if by > 1 && by == proc::tid() {
            // A signal's handler on the thread that is about to call exec.
            return Inside { stripe, mask };
        }
        stripe.fetch_sub(1, Ordering::SeqCst);
        proc::futex_wait(&FROZEN, by, 10_000_000);
    }
}

/// Enters from ordinary code: blocks all signals first.
pub fn enter() -> Inside {
    let old = signal::set_mask(u64::MAX);
    enter_with(Some(old))
}

/// Enters from code that runs with all signals blocked (our handlers and threads).
#[inline]
pub fn enter_masked() -> Inside {
    enter_with(None)
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        self.stripe.fetch_sub(1, Ordering::SeqCst);
        if let Some(mask) = self.mask {
            signal::set_mask(mask);
        }
    }
}

/// Keeps everybody out until dropped (in the parent) or [`Frozen::forget_in_child`].
pub struct Frozen;

/// Freezes. The caller has all signals blocked and is not inside.
pub fn freeze() -> Frozen {
    freeze_as(1)
}

/// The same before exec, which ends the other threads where they are. This thread's signals may be open again
/// until then: its own operations go on.
pub fn freeze_for_exec() -> Frozen {
    freeze_as(proc::tid())
}

fn freeze_as(by: u32) -> Frozen {
    while let Err(other) = FROZEN.compare_exchange(0, by, Ordering::SeqCst, Ordering::Relaxed) {
        proc::futex_wait(&FROZEN, other, 10_000_000);
    }
    for s in &INSIDE {
        while s.0.load(Ordering::SeqCst) != 0 {
            yield_now();
        }
    }
    Frozen
}

impl Drop for Frozen {
    fn drop(&mut self) {
        FROZEN.store(0, Ordering::SeqCst);
        proc::futex_wake(&FROZEN, u32::MAX >> 1);
    }
}
