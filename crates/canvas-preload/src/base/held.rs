//! How much of this process's memory stays whatever happens: pages whose words are marked as locked.

use core::sync::atomic::{AtomicI64, Ordering};

use crate::base::state;

static PAGES: AtomicI64 = AtomicI64::new(0);

/// How many pages can stay at most: three quarters of the local limit. What is left is to run the rest with.
pub fn most() -> i64 {
    state::seg()
        .local_limit_pages()
        .map_or(i64::MAX, |limit| limit / 4 * 3)
}

/// How many stay now.
pub fn pages() -> i64 {
    PAGES.load(Ordering::Relaxed)
}

/// Can `more` stay besides?
pub fn has_room(more: i64) -> bool {
    pages().saturating_add(more) <= most()
}

/// Notes that `more` pages were marked as locked; a negative number of them was freed.
pub fn note(more: i64) {
    PAGES.fetch_add(more, Ordering::Relaxed);
}
