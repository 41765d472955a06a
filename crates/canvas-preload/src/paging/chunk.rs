//! One lock per chunk of pages, between threads that make pages present and the reclaimer that write-protects a span of
//! the chunk.
//!
//! Write-protecting scattered victims one by one costs a TLB shootdown each (about 10 us on a VM); one call over a span
//! costs one. A span may cover absent pages, and none of them may become present meanwhile: it would stay protected,
//! and a write by the kernel itself (a `read(2)` into a pinned page) would fail. A fill holds the lock shared from
//! before the copy until the page is published; reclaim holds it exclusively while it protects.

use canvas_core::pager::locks::{Exclusive, Shared, SharedLock};
use canvas_core::pager::table::CHUNK_PAGES;
use canvas_sys::gate::yield_now;

use crate::base::slow;
use canvas_types::PageId;

const LOCKS: usize = 4096;
static LOCK: [SharedLock; LOCKS] = [const { SharedLock::new() }; LOCKS];

fn lock_of(page: PageId) -> &'static SharedLock {
    &LOCK[(page.index() / CHUNK_PAGES) % LOCKS]
}

/// Locks the chunk of `page` for making its pages present.
#[inline]
pub fn shared(page: PageId) -> Shared<'static> {
    lock_of(page).shared(slow::yield_to_chunk)
}

/// Locks the chunk of `page` for write-protecting spans of it.
pub fn exclusive(page: PageId) -> Exclusive<'static> {
    lock_of(page).exclusive(yield_now)
}
