//! Counts the tenant's pages that can never be evicted: those whose words are marked as locked.

use core::sync::atomic::Ordering;

use crate::base::{state, tenant::live_slots};

/// Maximum number of locked pages: three quarters of the local limit. The rest is needed to run everything else.
pub fn most() -> i64 {
    state::seg()
        .local_limit_pages()
        .map_or(i64::MAX, |limit| limit / 4 * 3)
}

/// Locked pages of all processes now.
pub fn pages() -> i64 {
    live_slots()
        .map(|p| p.locked_pages.load(Ordering::SeqCst))
        .fold(0, i64::saturating_add)
}

/// Whether `more` pages can be locked.
pub fn has_room(more: i64) -> bool {
    pages().saturating_add(more) <= most()
}

/// Counts `more` pages as locked before they are marked; returns false, without counting, if there is no room. If two
/// processes try at the same time, both may be refused.
pub fn take(more: i64) -> bool {
    note(more);
    let has_room = pages() <= most();
    if !has_room {
        note(-more);
    }
    has_room
}

/// Counts `more` pages as locked; a negative number as unlocked.
pub fn note(more: i64) {
    state::slot().locked_pages.fetch_add(more, Ordering::SeqCst);
}
