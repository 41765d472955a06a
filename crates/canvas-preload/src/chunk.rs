//! One lock for the pages of a chunk, between those who make pages present and the reclaimer that
//! write-protects a span of the chunk.
//!
//! Write-protecting scattered victims one by one costs a TLB shootdown each (about 10 us on a
//! VM); one call over a span costs one. The span may cover absent pages, and none of them may
//! become present in between: it would stay protected, and the kernel's own write to it (a
//! `read(2)` into a pinned page) would fail. Fills hold the lock shared from before the copy until
//! the page is published; reclaim holds it exclusively while it protects.

use canvas_pager::table::CHUNK_PAGES;
use canvas_sys::gate::yield_now;
use canvas_types::sync::backoff;
use core::sync::atomic::{AtomicI32, Ordering};

const LOCKS: usize = 4096;
static LOCK: [AtomicI32; LOCKS] = [const { AtomicI32::new(0) }; LOCKS];

fn lock_of(page: u32) -> &'static AtomicI32 {
    &LOCK[(page as usize / CHUNK_PAGES) % LOCKS]
}

/// Shared hold.
pub struct Shared(&'static AtomicI32);
/// Exclusive hold.
pub struct Exclusive(&'static AtomicI32);

/// For making pages of `page`'s chunk present.
#[inline]
pub fn shared(page: u32) -> Shared {
    let lock = lock_of(page);
    let mut spins = 0;
    loop {
        let v = lock.load(Ordering::Relaxed);
        if v >= 0
            && lock
                .compare_exchange_weak(v, v + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        {
            return Shared(lock);
        }
        backoff(&mut spins, yield_now);
    }
}

/// For write-protecting spans of `page`'s chunk.
pub fn exclusive(page: u32) -> Exclusive {
    let lock = lock_of(page);
    let mut spins = 0;
    loop {
        if lock
            .compare_exchange_weak(0, -1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
        {
            return Exclusive(lock);
        }
        backoff(&mut spins, yield_now);
    }
}

impl Drop for Shared {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}
impl Drop for Exclusive {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}
