//! Access to managed pages, and the pages that are open beyond the program's break.

use canvas_sys::{Errno, mem};
use canvas_types::layout::{BRK_BYTES, WINDOW_PAGES};
use canvas_types::{PAGE_SIZE, PageId};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::far_tier::pool::pool;
use crate::own_memory::areas;
use crate::paging::regions::{Lists, addr_of, lock};

pub(crate) const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// First page that mmap may use: the break area lies below.
pub(crate) const MMAP_FIRST: u32 = (BRK_BYTES / PAGE_SIZE) as u32;

state! {
    /// The program's break. Changes only under the mapping lock.
    pub(super) static BREAK: Break {
        /// Bytes of the managed range below it.
        pub(super) now: AtomicUsize = AtomicUsize::new(0),
        /// One past the last page that is open beyond it; not beyond it if none is.
        pub(super) open_until: AtomicU32 = AtomicU32::new(0),
    }
}

/// Protects managed pages, and nothing else. Opens the words of pages that become accessible; ENOMEM if the host has no
/// memory for them.
pub(crate) fn protect(start: u32, end: u32, prot: i32) -> Result<(), Errno> {
    assert!(start <= end && end as usize <= WINDOW_PAGES);
    if prot != libc::PROT_NONE
        && let Some(entries) = areas::open_pages(start, end)?
    {
        pool().allow_entries(entries);
    }
    // SAFETY: pages of the managed range (asserted), in which nothing of Rust's lies: their access is the program's to
    // choose. Pages that canvas cannot read then are marked (STUCK) by whoever calls this, and chosen by nobody.
    unsafe { mem::protect(addr_of(start), (end - start) as usize * PAGE_SIZE, prot) }
}

/// One past the last page below a break at `offset`.
pub(crate) fn end_page(offset: usize) -> u32 {
    offset.div_ceil(PAGE_SIZE) as u32
}

/// Closes the pages that are open beyond the break, which is at page `end`.
pub(crate) fn close(end: u32) -> Result<(), Errno> {
    let until = BREAK.open_until.swap(0, Ordering::Relaxed);
    if until <= end {
        return Ok(());
    }
    protect(end, until, libc::PROT_NONE)
}

/// Before something else is mapped from `start` on: closes the pages open beyond the break if they may lie there.
pub(crate) fn make_way(_held: &mut Lists, start: u32) -> Result<(), Errno> {
    if start >= MMAP_FIRST {
        return Ok(());
    }
    close(end_page(BREAK.now.load(Ordering::Relaxed)))
}

/// Handles an access to `page`, which is not mapped. Returns true if it was open nevertheless, and closes it: when
/// repeated, the access ends like one to any page that is not mapped. The caller is inside `freeze::enter`.
pub fn close_open(page: PageId) -> bool {
    if page.0 >= BREAK.open_until.load(Ordering::Relaxed) {
        return false;
    }
    let _held = lock();
    let end = end_page(BREAK.now.load(Ordering::Relaxed));
    let is_open = (end..BREAK.open_until.load(Ordering::Relaxed)).contains(&page.0);
    is_open && close(end).is_ok()
}
