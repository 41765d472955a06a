//! Working memory of fills and reclaims: a fixed number of contexts in canvas's own memory, taken
//! for the length of one operation. With all taken, the next one waits: memory stays bounded.

use canvas_backend::Scratch;
use canvas_pager::clock::VictimBatch;
use canvas_pager::slot::Place;
use canvas_sys::gate::yield_now;
use canvas_types::PageBuf;
use canvas_types::sync::backoff;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::deep::Stored;
use crate::protect::Protected;
use crate::{areas, freeze};

/// Pages that a fill decodes before it maps them.
pub const STAGING_PAGES: usize = 16;
/// Pages that a batch of reclaim unmaps at most.
pub const BATCH_PAGES: usize = canvas_pager::clock::BATCH_PAGES;

/// For bringing pages in.
#[repr(C, align(4096))]
pub struct Fill {
    /// Decoded pages.
    pub staging: [PageBuf; STAGING_PAGES],
    /// The pool's.
    pub scratch: Scratch,
    /// What was read from beyond the pool.
    pub stored: Stored,
}

/// For unmapping and writing out.
#[repr(C, align(4096))]
pub struct Reclaim {
    /// What the policy chose.
    pub batch: VictimBatch,
    /// Swap cache slots for the batch.
    pub slots: [Place; BATCH_PAGES],
    /// Pages of the batch, in the slots' order.
    pub pages: [u32; BATCH_PAGES],
    /// What is write-protected.
    pub protected: Protected,
    /// Ranges to discard.
    pub ranges: [libc::iovec; BATCH_PAGES],
    /// The pool's.
    pub scratch: Scratch,
}

/// Fills at one time, each of which may have a read beyond the pool under way.
const FILLS: usize = canvas_shm::mailbox::DEMANDS.count_ones() as usize;
const RECLAIMS: usize = 4;
const FILL_STEP: usize = 1 << 20;
const _: () = assert!(
    core::mem::size_of::<Fill>() <= FILL_STEP && core::mem::size_of::<Reclaim>() <= FILL_STEP
);

static FILL_TAKEN: [AtomicBool; FILLS] = [const { AtomicBool::new(false) }; FILLS];
static RECLAIM_TAKEN: [AtomicBool; RECLAIMS] = [const { AtomicBool::new(false) }; RECLAIMS];

/// A context, the caller's until dropped.
pub struct Held<T: 'static> {
    at: &'static mut T,
    taken: &'static AtomicBool,
}

impl<T> Deref for Held<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.at
    }
}
impl<T> DerefMut for Held<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.at
    }
}
impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        self.taken.store(false, Ordering::Release);
    }
}

fn hold<T>(taken: &'static [AtomicBool], base: usize) -> Held<T> {
    let first = freeze::thread_hash();
    let mut spins = 0;
    loop {
        for k in 0..taken.len() {
            let i = (first + k) % taken.len();
            if !taken[i].load(Ordering::Relaxed) && !taken[i].swap(true, Ordering::Acquire) {
                // SAFETY: the area is mapped and zero at first, which is valid for both types;
                // the flag just taken makes this the only reference.
                let at = unsafe { &mut *((base + i * FILL_STEP) as *mut T) };
                return Held {
                    at,
                    taken: &taken[i],
                };
            }
        }
        backoff(&mut spins, yield_now);
    }
}

/// A context for bringing pages in.
#[inline]
pub fn fill() -> Held<Fill> {
    hold(&FILL_TAKEN, areas::CONTEXTS)
}

/// A context for reclaim.
pub fn reclaim() -> Held<Reclaim> {
    hold(&RECLAIM_TAKEN, areas::CONTEXTS + FILLS * FILL_STEP)
}
