//! What a pool is made of, and what its calls return.

use canvas_types::sync::{AtomicI64, AtomicU64};
use canvas_types::{ExtentRef, PAGE_SIZE, PageBuf, SwapEntry};

use crate::swap::classes::{COMPRESSED_MAX, HEADER_BYTES};
use crate::swap::slots::{PoolBudget, SlabRelease, SlotId};
use canvas_types::LzScratch;

/// The region of memory that holds the slots: at least [`crate::swap::classes::region_bytes`] for the pool's slabs,
/// backed only where it is written. Ranges in use by concurrent calls never overlap.
pub trait SlotMem {
    /// Copies `dst.len()` bytes out, from offset `off`.
    fn copy_out(&self, off: usize, dst: &mut [u8]);
    /// Copies `src` in, at offset `off`.
    fn copy_in(&self, off: usize, src: &[u8]);
    /// The range is unused and may be discarded (madvise). Multiple of a slab.
    fn release(&self, off: usize, len: usize);
}

/// The region, to slabs that release parts of it.
pub(super) struct Releaser<'m, M>(pub(super) &'m M);

impl<M: SlotMem> SlabRelease for Releaser<'_, M> {
    fn release_range(&self, off: usize, len: usize) {
        self.0.release(off, len);
    }
}

/// The budget, allowing charges past its limit.
pub(super) struct PastBound<'b, B>(pub(super) &'b B);

impl<B: PoolBudget> PoolBudget for PastBound<'_, B> {
    fn charge(&self, bytes: i64) -> bool {
        self.0.charge_past_bound(bytes)
    }
    fn open_slab(&self, slab: u32) -> bool {
        self.0.open_slab(slab)
    }
}

/// Working memory of one thread's calls. All-zero memory is valid.
#[repr(C, align(64))]
pub struct Scratch {
    /// Working memory of the compressor.
    pub lz: LzScratch,
    /// The page from which a stored copy was compressed.
    pub(super) base: PageBuf,
    /// Header and payload, as stored.
    pub(super) stored: [u8; STORED_MAX],
}

/// Header and the longest compressed payload, rounded up to the alignment.
pub(super) const STORED_MAX: usize = (HEADER_BYTES + COMPRESSED_MAX).next_multiple_of(64);

impl Scratch {
    /// Zeroed working memory.
    pub const fn new() -> Scratch {
        Scratch {
            lz: LzScratch::new(),
            base: [0; PAGE_SIZE],
            stored: [0; STORED_MAX],
        }
    }
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}

/// Why a page could not be loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadError {
    /// The stored bytes are damaged. The output holds unspecified bytes.
    Verify,
    /// The entry holds no far copy (reserved only, or not allocated): a bug of the caller.
    NoCopy,
    /// The copy is not in the pool: the caller reads the extent, and completes the load with
    /// [`super::LocalPool::decode`].
    InFarTier(ExtentRef),
}

/// How a page was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The far copy was current: nothing was compressed or written.
    Clean,
    /// Zeros: nothing is stored, and there is no entry.
    Zero,
    /// One repeated value, held in the entry.
    SameFilled,
    /// The page was compressed.
    Compressed,
    /// Differing words were appended to the previous compressed page ([`crate::swap::delta`]).
    Delta,
    /// Uncompressed, because it does not shrink enough.
    Raw,
    /// Uncompressed, in memory of a node ([`super::NodeSlabs`]).
    OnNode,
}

/// Where the entry of a stored page came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryFrom {
    /// There is no entry.
    Nowhere,
    /// The page had it: Canvas's reservation, without a lock.
    Page,
    /// A magazine of the allocator, without its lock: it was one of a batch.
    Magazine,
    /// The allocator, under its lock.
    Lock,
}

/// The result of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The page's entry from now on; none for a page of zeros.
    pub entry: SwapEntry,
    /// How it was stored.
    pub kind: Kind,
    /// Where the entry came from.
    pub entry_from: EntryFrom,
}

/// Why a page was not stored. The page stays in memory. If it had an entry, that stays reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// The far limit is reached.
    Full {
        /// The page's earlier far copy, by now stale, was dropped: the page word must not claim one.
        copy_dropped: bool,
    },
    /// All entries are in use. The page had none.
    NoEntry,
}

/// What happened to a copy that was only a cache ([`super::LocalPool::free_cached_copy`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreedCopy {
    /// Nothing: it has no slot in the pool.
    Nothing,
    /// The copy in far memory is left; this many bytes of slots were freed.
    Demoted(usize),
    /// There is no far copy any more, the entry stays reserved; this many bytes of slots were freed.
    Dropped(usize),
}

/// Statistics of a pool; not read atomically together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolStats {
    /// Entries allocated, reserved ones included.
    pub entries_live: u64,
    /// Entries ever touched.
    pub entries_high: u64,
    /// Headers and payloads stored.
    pub stored_bytes: i64,
    /// Bytes of the slots that hold them.
    pub slot_bytes: i64,
    /// Slabs that hold slots in use.
    pub slabs_in_use: u64,
    /// Empty slabs kept for reuse.
    pub slabs_empty: u64,
    /// Bytes charged to the budget.
    pub charged_bytes: i64,
    /// Bytes of the slots on nodes, which the slot and slab statistics and the charge above leave out.
    pub node_slot_bytes: i64,
    /// Bytes charged to the nodes' limits.
    pub node_charged_bytes: i64,
}

/// The arrays of a pool, all zero at first.
#[derive(Clone, Copy)]
pub struct PoolArrays<'a> {
    /// One word for each swap entry; the first is unused.
    pub entries: &'a [AtomicU64],
    /// [`crate::swap::slots::SLAB_WORDS`] words for each slab.
    pub slab_words: &'a [AtomicU64],
    /// Bytes in slots, by class; may be shared with other pools.
    pub class_bytes: &'a [AtomicI64],
    /// Hashes of copies in far memory ([`crate::swap::digests::words_for`]).
    pub digests: &'a [AtomicU64],
}

/// Result of demoting a page from a node ([`super::LocalPool::demote_from_node`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeDemotion {
    /// The copy is in the pool now.
    Yes,
    /// The pool has no room for it: it stays.
    NoRoom,
    /// The copy is on no node, or is damaged, which its load will report.
    NotThis,
}

/// Bytes stored for a payload.
#[inline]
pub(super) fn stored_len(payload: u16) -> i64 {
    HEADER_BYTES as i64 + payload as i64
}

/// Where a page's new copy goes.
#[derive(Clone, Copy)]
pub(super) enum CopyTarget {
    /// To a new slot; the old copy is there until the entry names the new one.
    Beside(SlotId),
    /// Over the old copy.
    Over(SlotId),
    /// To a new slot; the old copy is gone.
    Instead(SlotId),
}
