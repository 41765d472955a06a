//! Counts blocks and their touched pages: which blocks a mapping call may skip, and how large the tenant's memory is.

use canvas_types::sync::{AtomicI64, Ordering};

use crate::own_memory::areas;
use crate::runtime::state;

/// Blocks with a touched page; a fork's child starts with its parent's.
static TOUCHED_BLOCKS: AtomicI64 = AtomicI64::new(0);

/// Counts `n` more pages of a block as touched.
#[inline]
pub fn note_touched(block: usize, n: u32) {
    if n > 0 && areas::touched_in_block()[block].fetch_add(n, Ordering::Relaxed) == 0 {
        note_blocks(1);
    }
}

/// Counts `n` touched pages of a block as untouched again.
#[inline]
pub fn note_untouched(block: usize, n: u32) {
    if n > 0 && areas::touched_in_block()[block].fetch_sub(n, Ordering::Relaxed) == n {
        note_blocks(-1);
    }
}

fn note_blocks(n: i64) {
    TOUCHED_BLOCKS.fetch_add(n, Ordering::Relaxed);
    state::slot().touched_blocks.fetch_add(n, Ordering::Relaxed);
}

/// In a fork's child, which has its own slot and a copy of its parent's memory.
pub fn after_fork_in_child() {
    let blocks = TOUCHED_BLOCKS.load(Ordering::Relaxed);
    state::slot()
        .touched_blocks
        .store(blocks, Ordering::Relaxed);
}
