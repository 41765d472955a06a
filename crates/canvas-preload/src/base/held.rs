//! How much of the tenant's memory stays whatever happens: pages whose words are marked as locked.

use core::sync::atomic::Ordering;

use crate::base::{state, tenant::live_slots};

/// How many pages can stay at most: three quarters of the local limit. What is left is to run the rest with.
pub fn most() -> i64 {
    state::seg()
        .local_limit_pages()
        .map_or(i64::MAX, |limit| limit / 4 * 3)
}

/// How many stay now, of all processes.
pub fn pages() -> i64 {
    live_slots()
        .map(|p| p.locked_pages.load(Ordering::SeqCst))
        .fold(0, i64::saturating_add)
}

/// Can `more` stay besides?
pub fn has_room(more: i64) -> bool {
    pages().saturating_add(more) <= most()
}

/// Notes that `more` pages are about to be marked as locked; false, with nothing noted, when they cannot stay. Of
/// processes that try at one time both may be refused.
pub fn take(more: i64) -> bool {
    note(more);
    let has_room = pages() <= most();
    if !has_room {
        note(-more);
    }
    has_room
}

/// Notes that `more` pages were marked as locked; a negative number of them was freed.
pub fn note(more: i64) {
    state::slot().locked_pages.fetch_add(more, Ordering::SeqCst);
}
