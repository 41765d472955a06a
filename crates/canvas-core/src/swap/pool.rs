//! The local compressed pool: far pages in this process's own memory, compressed.
//!
//! It combines the entry table, the slot allocator and the codec. All calls take `&self` and may run in several threads
//! at once, on different entries; calls on one entry must be serialised, which the page word's busy states ensure. The
//! pool must not be forked in the middle of a call that changes it: hold [`LocalPool::fork_guard`] over the fork with
//! no store under way.
//! The tests make one over plain memory: `tests/all/pools/mod.rs`.

mod journal;
mod nodes;
mod recover;
mod write;

pub use journal::JOURNAL_WORDS;
pub use recover::Adopted;

use journal::Journal;
pub use nodes::{NODE_PAGE_BYTES, NodeSlabs, Sank};

use crate::swap::classes::{
    CLASS_BYTES, CLASSES, COMPRESSED_MAX, HEADER_BYTES, RAW_CLASS, class_for,
};
use crate::swap::codec::{Content, classify, fill};
use crate::swap::digests::Digests;
use crate::swap::entry::{Allocated, EntryTable, HOME_BYTES, Record};
use crate::swap::fsm::{Alloc, on_swap_out};
use crate::swap::hash::{Hash, PageHash, same};
use crate::swap::slots::{SLAB_CHARGE_BYTES, SlabRelease, SlotForkGuard, SlotId, SlotPool};
use crate::swap::{Lz, LzScratch, PoolBudget};
use canvas_types::layout::NODES_MAX;
use canvas_types::sync::{AtomicI64, AtomicU8, AtomicU64, Ordering, RawGuard, Threads};
use canvas_types::{DeepPlace, PAGE_SIZE, PageBuf, SwapEntry};

/// The region of memory that holds the slots: at least [`crate::swap::classes::region_bytes`] for the pool's slabs, backed
/// only where it is written. Ranges in use by concurrent calls never overlap.
pub trait SlotMem {
    /// Copies `dst.len()` bytes out, from offset `off`.
    fn copy_out(&self, off: usize, dst: &mut [u8]);
    /// Copies `src` in, at offset `off`.
    fn copy_in(&self, off: usize, src: &[u8]);
    /// The range is unused and may be discarded (madvise). Multiple of a slab.
    fn release(&self, off: usize, len: usize);
}

struct Releaser<'m, M>(&'m M);

impl<M: SlotMem> SlabRelease for Releaser<'_, M> {
    fn release_range(&self, off: usize, len: usize) {
        self.0.release(off, len);
    }
}

/// The budget, allowing charges past its limit.
struct PastBound<'b, B>(&'b B);

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
    base: PageBuf,
    /// Header and payload, as stored.
    stored: [u8; STORED_MAX],
}

/// Header and the longest compressed payload, rounded up to the alignment.
const STORED_MAX: usize = (HEADER_BYTES + COMPRESSED_MAX).next_multiple_of(64);

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
    /// The copy is not in the pool: the caller reads the extent, and completes the load with [`LocalPool::decode`].
    Deep(DeepPlace),
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
    /// Uncompressed, in memory of a node ([`NodeSlabs`]).
    OnNode,
}

/// Where the entry of a stored page came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryFrom {
    /// There is no entry.
    Nowhere,
    /// The page had it: Canvas's reservation, without a lock.
    Page,
    /// The allocator, without its lock: it was one of a batch.
    Stock,
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
    /// A slot of the pool was allocated, under its class's lock; otherwise the copy is where the previous one was, or
    /// needs no slot.
    pub slot_taken: bool,
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

/// What happened to a copy that was only a cache ([`LocalPool::spare`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spared {
    /// Nothing: it has no slot in the pool.
    Nothing,
    /// The copy in far memory is left; this many bytes of slots were freed.
    Sunk(usize),
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

/// The pool. The module's documentation describes it.
pub struct LocalPool<'a, L, M, B> {
    entries: EntryTable<'a>,
    slots: SlotPool<'a>,
    nodes: nodes::Nodes<'a>,
    digests: Digests<'a>,
    hash: PageHash<'a>,
    stored_bytes: AtomicI64,
    /// The previous copy stays where there is no room for the new one.
    keeps_old: bool,
    /// Copies that are being overwritten.
    journal: Journal<'a>,
    /// Where pages change by more than a few words, by groups of entries.
    rewrites: [AtomicU8; write::REWRITES],
    lz: L,
    mem: M,
    budget: B,
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
            nodes: nodes::Nodes::none(threads.yield_now),
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
    /// unchanged ([`StoreError::Full`] says `copy_dropped: false`).
    pub fn keeping_old(mut self) -> Self {
        self.keeps_old = true;
        self
    }

    /// This pool, such that it can be recovered from its entries, its region and this journal, at whatever instruction
    /// its process ends ([`LocalPool::adopt`]). `words` has [`JOURNAL_WORDS`] for each thread that stores concurrently,
    /// in the same memory as entries and region.
    pub fn journaled(mut self, words: &'a [AtomicU64]) -> Self {
        self.journal = Journal::new(words);
        self
    }

    /// Takes the entry with this number, for an owner that numbers all entries itself ([`EntryTable::claim`]): it
    /// neither stores pages without an entry nor pages of zeros, and releases none.
    pub fn claim(&self, entry: SwapEntry) -> bool {
        self.entries.claim(entry)
    }

    /// Loads a page. No entry means a page of zeros. The far copy stays. After an error, `out` holds unspecified bytes.
    pub fn load(
        &self,
        entry: SwapEntry,
        out: &mut PageBuf,
        scratch: &mut Scratch,
    ) -> Result<(), LoadError> {
        if !entry.is_some() {
            out.fill(0);
            return Ok(());
        }
        match self.entries.get(entry) {
            Record::Free | Record::Empty => Err(LoadError::NoCopy),
            Record::Lost => Err(LoadError::Verify),
            Record::SameFilled(pattern) => {
                fill(out, pattern);
                Ok(())
            }
            Record::Stored { slot, len, .. } => {
                if self.nodes.of(slot).is_some() {
                    self.budget.loaded_from_node();
                }
                self.load_slot(slot, len as usize, out, &mut scratch.stored)
            }
            Record::Deep(place) => Err(LoadError::Deep(place)),
        }
    }

    /// Loads a page from the bytes of its record, hash and payload, as [`LocalPool::copy_stored`] returned them. They
    /// may be damaged in any way. The hash is remembered for the next store.
    pub fn decode(
        &self,
        entry: SwapEntry,
        stored: &[u8],
        out: &mut PageBuf,
    ) -> Result<(), LoadError> {
        let (want, payload) = stored
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(LoadError::Verify)?;
        if payload.len() == PAGE_SIZE {
            out.copy_from_slice(payload);
        } else if !self.expand(payload, out) {
            return Err(LoadError::Verify);
        }
        if same(&self.hash.of(out), want) {
            self.digests.put(entry, want);
            Ok(())
        } else {
            Err(LoadError::Verify)
        }
    }

    fn load_slot(
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

    /// Stores `page` as the far copy of the page that owns `reserved` (which may be none). `has_far_copy`: the entry
    /// holds an earlier copy of the same page; if it is equal, nothing is compressed or written. The page must not
    /// change during the call.
    pub fn store(
        &self,
        reserved: SwapEntry,
        has_far_copy: bool,
        page: &PageBuf,
        scratch: &mut Scratch,
    ) -> Result<Outcome, StoreError> {
        let old = self.entries.get(reserved);
        let unchanged = Outcome {
            entry: reserved,
            kind: Kind::Clean,
            entry_from: EntryFrom::Page,
            slot_taken: false,
        };
        match classify(page) {
            Content::Zero => {
                self.release(reserved);
                Ok(Outcome {
                    entry: SwapEntry::NONE,
                    kind: Kind::Zero,
                    entry_from: EntryFrom::Nowhere,
                    slot_taken: false,
                })
            }
            Content::SameFilled(pattern) if Record::pattern_fits(pattern) => {
                if has_far_copy && old == Record::SameFilled(pattern) {
                    return Ok(unchanged);
                }
                let (entry, entry_from) = self.take_entry(reserved)?;
                self.entries.set(entry, Record::SameFilled(pattern));
                self.drop_record(entry, old);
                Ok(Outcome {
                    entry,
                    kind: Kind::SameFilled,
                    entry_from,
                    slot_taken: false,
                })
            }
            Content::SameFilled(_) | Content::Data => {
                let digest = self.hash.of(page);
                if has_far_copy && self.is_copy(reserved, old, &digest) {
                    return Ok(unchanged);
                }
                let (entry, entry_from) = self.take_entry(reserved)?;
                match self.write(entry, old, page, &digest, scratch) {
                    Some((kind, slot_taken)) => Ok(Outcome {
                        entry,
                        kind,
                        entry_from,
                        slot_taken,
                    }),
                    None if entry_from != EntryFrom::Page => {
                        self.entries.free(entry);
                        Err(StoreError::Full {
                            copy_dropped: false,
                        })
                    }
                    None => Err(StoreError::Full {
                        copy_dropped: !self.keeps_old
                            && !matches!(old, Record::Empty | Record::Free),
                    }),
                }
            }
        }
    }

    /// The page's entry, or a new one: here Canvas's one-to-one reservation saves an allocation.
    fn take_entry(&self, reserved: SwapEntry) -> Result<(SwapEntry, EntryFrom), StoreError> {
        match on_swap_out(reserved.is_some()) {
            Alloc::Reserved => Ok((reserved, EntryFrom::Page)),
            Alloc::Locked => match self.entries.alloc() {
                Some(Allocated { entry, locked }) if locked => Ok((entry, EntryFrom::Lock)),
                Some(Allocated { entry, .. }) => Ok((entry, EntryFrom::Stock)),
                None => Err(StoreError::NoEntry),
            },
        }
    }

    /// A slot for a page of `class`, for an entry that holds `old`: the old slot if it is suitable, without a lock,
    /// otherwise a new one. The old copy may be overwritten at once: while its page's new content is in the swap cache,
    /// everybody reads that, and the old copy is stale. On `None` the entry is empty; but with
    /// [`LocalPool::keeping_old`] it is unchanged.
    fn place(&self, entry: SwapEntry, old: Record, class: usize) -> Option<Placed> {
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
            return Some(Placed::Beside(slot));
        }
        // Without a slab for the right size, use a larger slot, or one on a node: the old one, or any.
        let reused = reused.or(match old {
            Record::Stored { slot, len, .. } if slot.class() >= class => Some((slot, len)),
            _ => None,
        });
        if let Some((slot, len)) = reused {
            self.stored_bytes
                .fetch_sub(stored_len(len), Ordering::Relaxed);
            return Some(Placed::Over(slot));
        }
        if self.keeps_old {
            return self.slots.alloc_larger(class).map(Placed::Beside);
        }
        // The stale copy may have been its slab's last: then the slab can serve the new class.
        self.entries.set(entry, Record::Empty);
        self.free_slot(old);
        self.slots
            .alloc(class, &self.budget)
            .or_else(|| self.slots.alloc_larger(class))
            .map(Placed::Instead)
    }

    fn free_slot(&self, record: Record) {
        match record {
            Record::Stored { slot, len, .. } => {
                let home = self.home(record);
                if self.free(slot) {
                    self.stored_bytes
                        .fetch_sub(stored_len(len), Ordering::Relaxed);
                }
                if let Some(place) = home {
                    self.budget.deep_gone(place);
                }
            }
            Record::Deep(place) => self.budget.deep_gone(place),
            _ => {}
        }
    }

    /// Offset at which the place in far memory is stored with a slot.
    fn home_offset(&self, slot: SlotId, len: u16) -> usize {
        if slot.class() == RAW_CLASS {
            self.slots.raw_header_offset(slot) + HEADER_BYTES
        } else {
            slot.offset() + HEADER_BYTES + len as usize
        }
    }

    /// The place in far memory of a copy in the pool, if it has one.
    fn home(&self, record: Record) -> Option<DeepPlace> {
        let Record::Stored {
            slot,
            len,
            home: true,
        } = record
        else {
            return None;
        };
        let place = self.home_at(slot, len);
        debug_assert!(place.is_some(), "written when it was raised");
        place
    }

    fn home_at(&self, slot: SlotId, len: u16) -> Option<DeepPlace> {
        let mut bytes = [0; HOME_BYTES];
        self.mem.copy_out(self.home_offset(slot, len), &mut bytes);
        Record::home_of(bytes)
    }

    /// The entry's record is no longer needed.
    fn drop_record(&self, entry: SwapEntry, old: Record) {
        self.forget_deep(entry, old);
        self.free_slot(old);
    }

    /// Forgets the digest of the entry's copy in far memory, if it has one.
    fn forget_deep(&self, entry: SwapEntry, old: Record) {
        if matches!(old, Record::Deep(_) | Record::Stored { home: true, .. }) {
            self.digests.forget(entry);
        }
    }

    /// The entry's copy is about to change: forgets one in far memory, which is stale. Returns the remaining record.
    fn only_here(&self, entry: SwapEntry, old: Record) -> Record {
        self.forget_deep(entry, old);
        let (Some(place), Record::Stored { slot, len, .. }) = (self.home(old), old) else {
            return old;
        };
        let alone = Record::Stored {
            slot,
            len,
            home: false,
        };
        self.entries.set(entry, alone);
        self.budget.deep_gone(place);
        alone
    }

    /// Whether `old`, the entry's copy, is known to be of a page with this hash.
    fn is_copy(&self, entry: SwapEntry, old: Record, digest: &Hash) -> bool {
        match old {
            Record::Stored { .. } => self.stored_hash(old).is_some_and(|h| same(&h, digest)),
            Record::Deep(_) => self.digests.is(entry, digest),
            _ => false,
        }
    }

    fn stored_hash(&self, record: Record) -> Option<Hash> {
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

    /// Bytes of payload of a copy in the pool; `None` when the entry has none there.
    pub fn stored_len(&self, entry: SwapEntry) -> Option<u16> {
        match self.entries.get(entry) {
            Record::Stored { len, .. } => Some(len),
            _ => None,
        }
    }

    /// The place in far memory of a copy in the pool; `None` when it has none.
    pub fn home_place(&self, entry: SwapEntry) -> Option<DeepPlace> {
        self.home(self.entries.get(entry))
    }

    /// The place of a copy that is only in far memory; `None` when the entry has none there.
    pub fn deep_place(&self, entry: SwapEntry) -> Option<DeepPlace> {
        match self.entries.get(entry) {
            Record::Deep(place) => Some(place),
            _ => None,
        }
    }

    /// Copies a copy in the pool as it is stored, hash and payload: [`LocalPool::stored_len`] and [`HEADER_BYTES`]
    /// bytes. False when the entry has none of this length.
    pub fn copy_stored(&self, entry: SwapEntry, out: &mut [u8]) -> bool {
        let Record::Stored { slot, len, .. } = self.entries.get(entry) else {
            return false;
        };
        if out.len() != HEADER_BYTES + len as usize {
            return false;
        }
        if slot.class() == RAW_CLASS {
            let (header, payload) = out.split_at_mut(HEADER_BYTES);
            self.mem
                .copy_out(self.slots.raw_header_offset(slot), header);
            self.mem.copy_out(slot.offset(), payload);
        } else {
            self.mem.copy_out(slot.offset(), out);
        }
        true
    }

    /// Demotes the copy in the pool, which is at `place` as well, with this hash: frees its slot. False, with nothing
    /// changed, when the entry holds another copy by now.
    pub fn demote(&self, entry: SwapEntry, digest: &Hash, place: DeepPlace) -> bool {
        let old = self.entries.get(entry);
        if !matches!(old, Record::Stored { len, .. } if len == place.len)
            || !self.stored_hash(old).is_some_and(|h| same(&h, digest))
        {
            return false;
        }
        self.entries.set(entry, Record::Deep(place));
        self.free_slot(old);
        true
    }

    /// Frees the slot of a copy that is also in far memory, so that only that one is left. Returns the bytes of the
    /// slot; `None`, with nothing changed, when there is no other copy.
    pub fn demote_home(&self, entry: SwapEntry) -> Option<usize> {
        let old = self.entries.get(entry);
        let (Some(place), Record::Stored { slot, len, .. }) = (self.home(old), old) else {
            return None;
        };
        // For a page that is local meanwhile; useless, and harmless, for one that is far.
        if let Some(hash) = self.stored_hash(old) {
            self.digests.put(entry, &hash);
        }
        self.entries.set(entry, Record::Deep(place));
        self.free_slot(Record::Stored {
            slot,
            len,
            home: false,
        });
        Some(CLASS_BYTES[slot.class()] as usize)
    }

    /// Frees the slot of a page that is in local memory. A copy in far memory stays, since it takes no slot, so that
    /// the page is still known to be clean.
    pub fn spare(&self, entry: SwapEntry) -> Spared {
        if let Some(bytes) = self.demote_home(entry) {
            return Spared::Sunk(bytes);
        }
        let old = self.entries.get(entry);
        let Record::Stored { slot, .. } = old else {
            return Spared::Nothing;
        };
        self.entries.set(entry, Record::Empty);
        self.drop_record(entry, old);
        Spared::Dropped(CLASS_BYTES[slot.class()] as usize)
    }

    /// Promotes the copy at `place` into the pool; `stored` is its content, hash and payload. `keeps`: the entry keeps
    /// naming the place as well, so that the copy can leave the pool again without a write
    /// ([`LocalPool::demote_home`]). False, with nothing changed, when the entry holds another copy by now, or the pool
    /// is full.
    pub fn promote(&self, entry: SwapEntry, place: DeepPlace, stored: &[u8], keeps: bool) -> bool {
        self.promote_on(&self.budget, entry, place, stored, keeps)
    }

    /// Removes the copy at `place`, of a page that is far: promotes it as [`LocalPool::promote`] does, or keeps only
    /// the one in the pool. `past_bound`: even if the pool has no room. False, with nothing changed, when the entry has
    /// no copy there by now, or the pool is full.
    pub fn vacate(
        &self,
        entry: SwapEntry,
        place: DeepPlace,
        stored: &[u8],
        past_bound: bool,
    ) -> bool {
        let old = self.entries.get(entry);
        if self.home(old) == Some(place) {
            self.only_here(entry, old);
            return true;
        }
        if past_bound {
            self.promote_on(&PastBound(&self.budget), entry, place, stored, false)
        } else {
            self.promote_on(&self.budget, entry, place, stored, false)
        }
    }

    fn promote_on(
        &self,
        budget: &impl PoolBudget,
        entry: SwapEntry,
        place: DeepPlace,
        stored: &[u8],
        keeps: bool,
    ) -> bool {
        let old = self.entries.get(entry);
        let len = place.len as usize;
        if old != Record::Deep(place) || stored.len() != HEADER_BYTES + len {
            return false;
        }
        let class = if len == PAGE_SIZE {
            RAW_CLASS
        } else {
            class_for(stored.len() + if keeps { HOME_BYTES } else { 0 })
        };
        let Some(slot) = self.slots.alloc(class, budget) else {
            return false;
        };
        let (header, payload) = stored.split_at(HEADER_BYTES);
        if slot.class() == RAW_CLASS {
            self.mem.copy_in(self.slots.raw_header_offset(slot), header);
            self.mem.copy_in(slot.offset(), payload);
        } else {
            self.mem.copy_in(slot.offset(), stored);
        }
        if keeps {
            let at = self.home_offset(slot, place.len);
            self.mem.copy_in(at, &Record::home_bytes(place));
        }
        self.entries.set(
            entry,
            Record::Stored {
                slot,
                len: place.len,
                home: keeps,
            },
        );
        self.stored_bytes
            .fetch_add(stored_len(place.len), Ordering::Relaxed);
        if !keeps {
            self.free_slot(old);
        }
        true
    }

    /// Drops the far copy and keeps the entry reserved; true when there was a copy.
    pub fn drop_copy(&self, entry: SwapEntry) -> bool {
        match self.entries.get(entry) {
            Record::Free | Record::Empty => false,
            old => {
                self.entries.set(entry, Record::Empty);
                self.drop_record(entry, old);
                true
            }
        }
    }

    /// As [`LocalPool::drop_copy`], for a copy that is only in the pool: one in far memory would have to be written
    /// there again.
    pub fn drop_pooled_copy(&self, entry: SwapEntry) -> bool {
        matches!(self.entries.get(entry), Record::Stored { home: false, .. })
            && self.drop_copy(entry)
    }

    /// Drops the far copy and frees the entry; true when the entry was allocated.
    pub fn release(&self, entry: SwapEntry) -> bool {
        match self.entries.get(entry) {
            Record::Free => false,
            old => {
                self.drop_record(entry, old);
                self.entries.free(entry)
            }
        }
    }

    /// Gives all empty slabs back, including those on nodes; for quiet moments and for pressure on the tenant's far
    /// limit.
    pub fn trim(&self) {
        self.slots.trim(&self.budget, &Releaser(&self.mem));
        self.trim_nodes();
    }

    /// Bytes charged for empty slabs, which [`LocalPool::trim`] gives back.
    pub fn empty_bytes(&self) -> i64 {
        self.slots.slabs_empty() as i64 * SLAB_CHARGE_BYTES
    }

    /// Bytes charged to the budget.
    pub fn charged_bytes(&self) -> i64 {
        self.slots.charged_bytes()
    }

    /// The pool's memory.
    pub fn mem(&self) -> &M {
        &self.mem
    }

    /// The entry's record, for tools and tests.
    pub fn record(&self, entry: SwapEntry) -> Record {
        self.entries.get(entry)
    }

    /// The pool's statistics; not consistent while other threads store.
    pub fn stats(&self) -> PoolStats {
        PoolStats {
            entries_live: self.entries.live(),
            entries_high: self.entries.high_water(),
            stored_bytes: self.stored_bytes.load(Ordering::Relaxed),
            slot_bytes: (0..CLASSES)
                .map(|c| self.slots.class_live(c) as i64 * CLASS_BYTES[c] as i64)
                .sum(),
            slabs_in_use: self.slots.slabs_in_use(),
            slabs_empty: self.slots.slabs_empty(),
            charged_bytes: self.slots.charged_bytes(),
            node_slot_bytes: self.nodes.sum(|n| n.class_live(RAW_CLASS) as i64) * PAGE_SIZE as i64,
            node_charged_bytes: self.nodes.sum(SlotPool::charged_bytes),
        }
    }

    /// Contended acquisitions of the allocators' locks, modulo 2^32.
    pub fn lock_waits(&self) -> u32 {
        let entries = self.entries.lock_waits();
        let nodes = self.nodes.used().iter().map(SlotPool::lock_waits);
        nodes.fold(
            entries.wrapping_add(self.slots.lock_waits()),
            u32::wrapping_add,
        )
    }

    /// Locks the allocators across a fork. No store, drop or release may be under way in another thread, or the child
    /// loses its copy of that entry (its slot stays in use). Afterwards the child must charge
    /// [`PoolStats::charged_bytes`] for its copy, and call [`LocalPool::publish_class_bytes`].
    pub fn fork_guard(&self) -> PoolForkGuard<'_> {
        PoolForkGuard {
            _entries: self.entries.fork_guard(),
            _slots: self.slots.fork_guard(),
            _nodes: self.nodes.fork_guard(),
        }
    }

    /// Adds (`sign` 1) or removes (`sign` -1) this pool's part of the shared `class_bytes`.
    pub fn publish_class_bytes(&self, sign: i64) {
        self.slots.publish_class_bytes(sign);
    }
}

/// Bytes stored for a payload.
#[inline]
fn stored_len(payload: u16) -> i64 {
    HEADER_BYTES as i64 + payload as i64
}

/// Where a page's new copy goes.
#[derive(Clone, Copy)]
enum Placed {
    /// To a new slot; the old copy is there until the entry names the new one.
    Beside(SlotId),
    /// Over the old copy.
    Over(SlotId),
    /// To a new slot; the old copy is gone.
    Instead(SlotId),
}

/// Holds all locks of a [`LocalPool`].
pub struct PoolForkGuard<'p> {
    _entries: RawGuard<'p>,
    _slots: SlotForkGuard<'p>,
    _nodes: [Option<SlotForkGuard<'p>>; NODES_MAX],
}
