//! Reclaim in line: a thread that takes memory past the mark frees a batch by itself, ahead of need, if pages
//! leave clean of late.
//!
//! A clean page needs no protection, no copy and no hash, only its part of one call for all. For that little
//! work a second processor costs more than it gives: each batch that the reclaim thread unmaps interrupts the
//! program's processor, and page tables, charges and free pages travel between the two. One fault in some
//! hundred does it, which the 99th percentile does not show. What must be copied and compressed is left to the
//! reclaim thread, where it does not hold up the program.

use canvas_pager::dirty_share::DirtyShare;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::paging::reclaim::{self, ROUND_PAGES, Whose};
use crate::paging::{accounting, cache};

static DIRTY_SHARE: DirtyShare = DirtyShare::new();
/// Some thread does it.
static BUSY: AtomicBool = AtomicBool::new(false);

/// Notes how a batch left, whoever took it.
pub fn note_batch(dirty: usize, clean: usize) {
    DIRTY_SHARE.note(dirty as u32, clean as u32);
}

/// Is it done here?
#[inline]
pub fn is_on() -> bool {
    DIRTY_SHARE.is_low()
}

/// Frees a batch; false when it is the reclaim thread's to do. The caller is inside with signals blocked.
pub fn reclaim() -> bool {
    let slots = cache::slots();
    // So few are left when it is time to write out, which is the reclaim thread's work.
    if !is_on() || slots.available() < slots.capacity() / 8 || BUSY.swap(true, Ordering::Acquire) {
        return false;
    }
    let excess = accounting::excess();
    let done = match excess {
        1.. => reclaim::run(excess.min(ROUND_PAGES) as u32, Whose::InLine),
        _ => 0,
    };
    BUSY.store(false, Ordering::Release);
    // What is to go besides is others', whom the reclaim thread asks.
    done > 0 && !accounting::short_of_room()
}

/// In a fork's child: the thread that did it is not there.
pub fn after_fork_in_child() {
    BUSY.store(false, Ordering::Relaxed);
}
