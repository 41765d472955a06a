//! Working memory of fills and of reclaim: what one operation holds while it runs.

use canvas_types::{PageBuf, PageId};

use super::spans::Range;
use super::state::BLOCK_LOCKS;
use crate::far::fetch::Stored;
use crate::pager::clock::VictimBatch;
use crate::pager::slot::SlotRef;
use crate::swap::Scratch;

/// Pages that a fill decodes before it maps them.
pub const STAGING_PAGES: usize = 16;

/// Working memory for bringing pages in. All zeros is valid.
#[repr(C, align(4096))]
pub struct Fill {
    /// Decoded pages.
    pub staging: [PageBuf; STAGING_PAGES],
    /// Scratch memory of the pool.
    pub scratch: Scratch,
    /// What was read from beyond the pool.
    pub stored: Stored,
}

/// Pages that one batch of reclaim unmaps at most.
pub const BATCH_PAGES: usize = crate::pager::clock::BATCH_PAGES;

/// Working memory for unmapping and writing out. All zeros is an empty one.
#[repr(C, align(4096))]
pub struct Batch {
    /// What the policy chose.
    pub victims: VictimBatch,
    /// Scratch memory of the pool.
    pub scratch: Scratch,
    /// Swap cache slots for the batch.
    pub(super) slots: [SlotRef; BATCH_PAGES],
    /// Pages of the batch that go through the swap cache, in the order of `slots`.
    pub(super) pages: [PageId; BATCH_PAGES],
    /// Pages of the batch whose far copies are up to date.
    pub(super) clean: [PageId; BATCH_PAGES],
    /// What is write-protected.
    pub(super) protected: Protected,
    /// Ranges to discard.
    pub(super) ranges: [Range; BATCH_PAGES],
}

/// Most bystanders of one batch.
pub(super) const BYSTANDERS: usize = 512;
/// Most spans with bystanders of one batch.
pub(super) const SPANS: usize = 32;
/// What one batch has write-protected. All zeros is an empty one.
pub struct Protected {
    /// Spans to release: first page and end.
    pub(super) spans: [(u32, u32); SPANS],
    pub(super) span_count: usize,
    pub(super) bystanders: [PageId; BYSTANDERS],
    pub(super) bystander_count: usize,
    /// Block locks held, one bit each.
    pub(super) blocks: [u64; BLOCK_LOCKS / 64],
}
