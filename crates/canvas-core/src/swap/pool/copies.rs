//! The pool's state, and where the copy of an entry lies: reads its slot, gives it another one, frees it.

use core::cell::Cell;

use canvas_types::layout::NODES_MAX;
use canvas_types::sync::{AtomicI64, AtomicU8, AtomicU64, Ordering, Threads};
use canvas_types::{ExtentRef, PAGE_SIZE, PageBuf, SwapEntry};

use super::journal::Journal;
use super::nodes::{NodeBudget, NodeSlabs, Nodes};
use super::types::{CopyTarget, LoadError, PoolArrays, Releaser, STORED_MAX, SlotMem, stored_len};
use crate::swap::classes::{HEADER_BYTES, RAW_CLASS};
use crate::swap::codec::Lz;
use crate::swap::delta;
use crate::swap::digests::Digests;
use crate::swap::entry::{EntryTable, HOME_BYTES, Record};
use crate::swap::hash::{Hash, PageHash, same};
use crate::swap::slots::{PoolBudget, SlotId, SlotPool};

/// Scores of how often pages change by more than a few words.
pub(super) const REWRITES: usize = 1024;

/// The pool. The module's documentation describes it.
pub struct LocalPool<'a, L, M, B> {
    pub(super) entries: EntryTable<'a>,
    pub(super) slots: SlotPool<'a>,
    pub(super) nodes: Nodes<'a>,
    pub(super) digests: Digests<'a>,
    pub(super) hash: PageHash<'a>,
    pub(super) stored_bytes: AtomicI64,
    /// The previous copy stays where there is no room for the new one.
    pub(super) keeps_old: bool,
    /// Copies that are being overwritten.
    pub(super) journal: Journal<'a>,
    /// Where pages change by more than a few words, by groups of entries.
    pub(super) rewrites: [AtomicU8; REWRITES],
    pub(super) lz: L,
    pub(super) mem: M,
    pub(super) budget: B,
}

impl<'a, L: Lz, M: SlotMem, B: PoolBudget> LocalPool<'a, L, M, B> {
    /// An empty pool, which compares pages by `hash`.
    pub fn new(
        arrays: PoolArrays<'a>,
        hash: PageHash<'a>,
        lz: L,
        mem: M,
        budget: B,
        threads: Threads,
    ) -> Self {
        LocalPool {
            entries: EntryTable::new(arrays.entries, threads),
            slots: SlotPool::new(arrays.slab_words, arrays.class_bytes, threads.yield_now),
            nodes: Nodes::none(threads.yield_now),
            digests: Digests::new(arrays.digests),
            hash,
            stored_bytes: AtomicI64::new(0),
            keeps_old: false,
            journal: Journal::new(&[]),
            rewrites: core::array::from_fn(|_| AtomicU8::new(0)),
            lz,
            mem,
            budget,
        }
    }

    /// Allows writes to the first `words` words of the entries only, until the next call: for a pool whose memory is
    /// opened as needed.
    pub fn allow_entries(&self, words: usize) {
        self.entries.allow(words);
    }

    /// This pool, for an owner that has a page nowhere else: a store that finds no room leaves the previous copy
    /// unchanged ([`StoreError::Full`](super::StoreError::Full) says `copy_dropped: false`).
    pub fn keeping_old(mut self) -> Self {
        self.keeps_old = true;
        self
    }

    /// This pool, such that it can be recovered from its entries, its region and this journal, at whatever instruction
    /// its process ends ([`LocalPool::adopt`]). `words` has [`super::JOURNAL_WORDS`] for each thread that stores
    /// concurrently, in the same memory as entries and region.
    pub fn journaled(mut self, words: &'a [AtomicU64]) -> Self {
        self.journal = Journal::new(words);
        self
    }

    /// This pool, with some of its slabs on nodes. Only for a pool that has stored nothing yet.
    pub fn with_nodes(mut self, nodes: NodeSlabs, class_bytes: &'a [AtomicI64]) -> Self {
        let (first, each) = (nodes.first, nodes.each.max(1));
        let count = nodes.count.min(NODES_MAX);
        let whole = self.slots;
        self.slots = whole.part(0..first, class_bytes);
        self.nodes = Nodes {
            first: if count == 0 { usize::MAX } else { first },
            each,
            count,
            slots: core::array::from_fn(|i| {
                let at = first + i * each;
                whole.part(if i < count { at..at + each } else { 0..0 }, &[])
            }),
        };
        self
    }

    /// Takes the entry with this number, for an owner that numbers all entries itself ([`EntryTable::claim`]): it
    /// neither stores pages without an entry nor pages of zeros, and releases none.
    pub fn claim(&self, entry: SwapEntry) -> bool {
        self.entries.claim(entry)
    }

    /// The limit of a node.
    pub(super) fn node_budget(&self, node: usize) -> NodeBudget<'_, B> {
        NodeBudget {
            budget: &self.budget,
            node,
            charged: Cell::new(false),
        }
    }

    /// Frees a slot, on a node or not.
    pub(super) fn free(&self, slot: SlotId) -> bool {
        let memory = Releaser(&self.mem);
        match self.nodes.of(slot) {
            None => self.slots.free(slot, &self.budget, &memory),
            Some(node) => self
                .nodes
                .used()
                .get(node)
                .is_some_and(|slots| slots.free(slot, &self.node_budget(node), &memory)),
        }
    }

    /// Loads and verifies the page in a slot; `room` is working memory.
    pub(super) fn load_slot(
        &self,
        slot: SlotId,
        len: usize,
        out: &mut PageBuf,
        room: &mut [u8; STORED_MAX],
    ) -> Result<(), LoadError> {
        let mut want: Hash = [0; HEADER_BYTES];
        if len == PAGE_SIZE {
            self.mem
                .copy_out(self.slots.raw_header_offset(slot), &mut want);
            self.mem.copy_out(slot.offset(), out);
        } else {
            let payload = if slot.class() == RAW_CLASS {
                self.mem
                    .copy_out(self.slots.raw_header_offset(slot), &mut want);
                let payload = room.get_mut(..len).ok_or(LoadError::Verify)?;
                self.mem.copy_out(slot.offset(), payload);
                payload
            } else {
                let stored = room
                    .get_mut(..HEADER_BYTES + len)
                    .ok_or(LoadError::Verify)?;
                self.mem.copy_out(slot.offset(), stored);
                let (header, payload) = stored.split_at_mut(HEADER_BYTES);
                want.copy_from_slice(header);
                payload
            };
            if !self.expand(payload, out) {
                return Err(LoadError::Verify);
            }
        }
        if same(&self.hash.of(out), &want) {
            Ok(())
        } else {
            Err(LoadError::Verify)
        }
    }

    /// Restores the page of a payload that is shorter than one; false when it is damaged.
    pub(super) fn expand(&self, payload: &[u8], out: &mut PageBuf) -> bool {
        delta::expand(payload, out, |from, to| self.lz.decompress(from, to))
    }

    /// A slot for a page of `class`, for an entry that holds `old`: the old slot if it is suitable, without a lock,
    /// otherwise a new one. The old copy may be overwritten at once: while its page's new content is in the swap cache,
    /// everybody reads that, and the old copy is stale. On `None` the entry is empty; but with
    /// [`LocalPool::keeping_old`] it is unchanged.
    pub(super) fn place(&self, entry: SwapEntry, old: Record, class: usize) -> Option<CopyTarget> {
        let reused = match old {
            Record::Stored { slot, len, .. }
                if slot.class() == class && self.nodes.of(slot).is_none() =>
            {
                Some((slot, len))
            }
            _ => None,
        };
        if reused.is_none()
            && let Some(slot) = self.slots.alloc(class, &self.budget)
        {
            return Some(CopyTarget::Beside(slot));
        }
        // Without a slab for the right size, use a larger slot, or one on a node: the old one, or any.
        let reused = reused.or(match old {
            Record::Stored { slot, len, .. } if slot.class() >= class => Some((slot, len)),
            _ => None,
        });
        if let Some((slot, len)) = reused {
            self.stored_bytes
                .fetch_sub(stored_len(len), Ordering::Relaxed);
            return Some(CopyTarget::Over(slot));
        }
        if self.keeps_old {
            return self.slots.alloc_larger(class).map(CopyTarget::Beside);
        }
        // The stale copy may have been its slab's last: then the slab can serve the new class.
        self.entries.set(entry, Record::Empty);
        self.free_slot(old);
        self.slots
            .alloc(class, &self.budget)
            .or_else(|| self.slots.alloc_larger(class))
            .map(CopyTarget::Instead)
    }

    /// Frees what a record names.
    pub(super) fn free_slot(&self, record: Record) {
        match record {
            Record::Stored { slot, len, .. } => {
                let home = self.home(record);
                if self.free(slot) {
                    self.stored_bytes
                        .fetch_sub(stored_len(len), Ordering::Relaxed);
                }
                if let Some(place) = home {
                    self.budget.drop_extent_ref(place);
                }
            }
            Record::InFarTier(place) => self.budget.drop_extent_ref(place),
            _ => {}
        }
    }

    /// Offset at which the place in far memory is stored with a slot.
    pub(super) fn home_offset(&self, slot: SlotId, len: u16) -> usize {
        if slot.class() == RAW_CLASS {
            self.slots.raw_header_offset(slot) + HEADER_BYTES
        } else {
            slot.offset() + HEADER_BYTES + len as usize
        }
    }

    /// The place in far memory of a copy in the pool, if it has one.
    pub(super) fn home(&self, record: Record) -> Option<ExtentRef> {
        let Record::Stored {
            slot,
            len,
            home: true,
        } = record
        else {
            return None;
        };
        let place = self.home_at(slot, len);
        debug_assert!(place.is_some(), "written when it was promoted");
        place
    }

    /// The place that is stored with a slot.
    pub(super) fn home_at(&self, slot: SlotId, len: u16) -> Option<ExtentRef> {
        let mut bytes = [0; HOME_BYTES];
        self.mem.copy_out(self.home_offset(slot, len), &mut bytes);
        Record::home_of(bytes)
    }

    /// The entry's record is no longer needed.
    pub(super) fn drop_record(&self, entry: SwapEntry, old: Record) {
        self.forget_digest(entry, old);
        self.free_slot(old);
    }

    /// Forgets the digest of the entry's copy in far memory, if it has one.
    fn forget_digest(&self, entry: SwapEntry, old: Record) {
        if matches!(
            old,
            Record::InFarTier(_) | Record::Stored { home: true, .. }
        ) {
            self.digests.forget(entry);
        }
    }

    /// The entry's copy is about to change: forgets one in far memory, which is stale. Returns the remaining record.
    pub(super) fn drop_home(&self, entry: SwapEntry, old: Record) -> Record {
        self.forget_digest(entry, old);
        let (Some(place), Record::Stored { slot, len, .. }) = (self.home(old), old) else {
            return old;
        };
        let alone = Record::Stored {
            slot,
            len,
            home: false,
        };
        self.entries.set(entry, alone);
        self.budget.drop_extent_ref(place);
        alone
    }

    /// Whether `old`, the entry's copy, is known to be of a page with this hash.
    pub(super) fn is_copy(&self, entry: SwapEntry, old: Record, digest: &Hash) -> bool {
        match old {
            Record::Stored { .. } => self.stored_hash(old).is_some_and(|h| same(&h, digest)),
            Record::InFarTier(_) => self.digests.is(entry, digest),
            _ => false,
        }
    }

    /// The hash of a copy in the pool.
    pub(super) fn stored_hash(&self, record: Record) -> Option<Hash> {
        let Record::Stored { slot, .. } = record else {
            return None;
        };
        let mut found: Hash = [0; HEADER_BYTES];
        let off = if slot.class() == RAW_CLASS {
            self.slots.raw_header_offset(slot)
        } else {
            slot.offset()
        };
        self.mem.copy_out(off, &mut found);
        Some(found)
    }

    /// From now on the entry's copy is in `slot`.
    pub(super) fn names(&self, entry: SwapEntry, slot: SlotId, len: u16) {
        let stored = Record::Stored {
            slot,
            len,
            home: false,
        };
        self.entries.set(entry, stored);
        self.stored_bytes
            .fetch_add(stored_len(len), Ordering::Relaxed);
    }

    /// Writes a page to a slot of the raw class.
    pub(super) fn put_raw(&self, slot: SlotId, page: &PageBuf, digest: &Hash) {
        self.mem.copy_in(self.slots.raw_header_offset(slot), digest);
        self.mem.copy_in(slot.offset(), page);
    }

    /// The pool's memory.
    pub fn mem(&self) -> &M {
        &self.mem
    }

    /// The entry's record, for tools and tests.
    pub fn record(&self, entry: SwapEntry) -> Record {
        self.entries.get(entry)
    }
}
