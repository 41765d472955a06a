//! Direct reclaim ahead of need: when recently evicted pages were mostly clean, a thread that charges memory past the
//! background mark frees a batch itself.
//!
//! A clean page needs no protection, copy or hash, only its part of one call per batch. For so little work a second CPU
//! costs more than it gives: each batch that the reclaim thread unmaps interrupts the program's CPU, and page tables,
//! charges and free pages move between the two. About one fault in a hundred reclaims, which the 99th percentile does
//! not show. Pages that must be copied and compressed are left to the reclaim thread, where they do not delay the
//! program.

use canvas_core::pager::dirty_share::DirtyShare;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::paging::reclaim::{self, ROUND_PAGES, Whose};
use crate::paging::{accounting, cache};

static DIRTY_SHARE: DirtyShare = DirtyShare::new();
/// A thread is reclaiming here.
static BUSY: AtomicBool = AtomicBool::new(false);

/// Records how many pages of a batch left dirty and clean, whichever thread evicted it.
pub fn note_batch(dirty: usize, clean: usize) {
    DIRTY_SHARE.note(dirty as u32, clean as u32);
}

/// Whether faulting threads reclaim.
#[inline]
pub fn is_on() -> bool {
    DIRTY_SHARE.is_low()
}

/// Frees a batch; returns false if the reclaim thread must do it. The caller is inside `freeze::enter` with signals
/// blocked.
pub fn reclaim() -> bool {
    let slots = cache::slots();
    // With this few slots left it is time to write out, which is the reclaim thread's work.
    if !is_on() || slots.available() < slots.capacity() / 8 || BUSY.swap(true, Ordering::Acquire) {
        return false;
    }
    let excess = accounting::excess();
    let done = match excess {
        1.. => reclaim::run(excess.min(ROUND_PAGES) as u32, Whose::InLine),
        _ => 0,
    };
    BUSY.store(false, Ordering::Release);
    // If room is still short, other processes hold the rest; the reclaim thread asks them for it.
    done > 0 && !accounting::short_of_room()
}

/// In a fork's child: the thread that was reclaiming does not exist.
pub fn after_fork_in_child() {
    BUSY.store(false, Ordering::Relaxed);
}
