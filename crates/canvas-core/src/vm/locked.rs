//! Counts the tenant's pages that can never be evicted: those whose words are marked as locked.

use core::sync::atomic::Ordering;

use canvas_shm::{ProcSlot, Segment};

use super::floors::live_slots;

/// Most locked pages: three quarters of the local limit. The rest is needed to run everything else.
pub fn most(seg: &Segment) -> i64 {
    seg.local_limit_pages()
        .map_or(i64::MAX, |limit| limit / 4 * 3)
}

/// Locked pages of all processes now.
pub fn pages(seg: &Segment) -> i64 {
    live_slots(seg)
        .map(|p| p.locked_pages.load(Ordering::SeqCst))
        .fold(0, i64::saturating_add)
}

/// Whether `more` pages can be locked.
pub fn has_room(seg: &Segment, more: i64) -> bool {
    pages(seg).saturating_add(more) <= most(seg)
}

/// Counts `more` pages of `slot` as locked before they are marked; returns false, without counting, if there is no
/// room. If two processes try at the same time, both may be refused.
pub fn take(seg: &Segment, slot: &ProcSlot, more: i64) -> bool {
    note(slot, more);
    let has_room = pages(seg) <= most(seg);
    if !has_room {
        note(slot, -more);
    }
    has_room
}

/// Counts `more` pages of `slot` as locked; a negative number as unlocked.
pub fn note(slot: &ProcSlot, more: i64) {
    slot.locked_pages.fetch_add(more, Ordering::SeqCst);
}
