//! The pool's calls: stores and loads pages, and moves their copies between a node, the pool and far memory.

use canvas_types::layout::NODES_MAX;
use canvas_types::sync::{Ordering, RawGuard};
use canvas_types::{ExtentRef, PAGE_SIZE, PageBuf, SwapEntry};

use super::copies::LocalPool;
use super::nodes::NODE_PAGE_BYTES;
use super::types::{
    EntryFrom, FreedCopy, Kind, LoadError, NodeDemotion, Outcome, PastBound, PoolStats, Releaser,
    Scratch, SlotMem, StoreError, stored_len,
};
use crate::swap::classes::{CLASS_BYTES, CLASSES, HEADER_BYTES, RAW_CLASS, class_for};
use crate::swap::codec::{Content, Lz, classify, fill};
use crate::swap::entry::{Allocated, HOME_BYTES, Record};
use crate::swap::fsm::{Alloc, on_swap_out};
use crate::swap::hash::{Hash, same};
use crate::swap::slots::{PoolBudget, SLAB_CHARGE_BYTES, SlotForkGuard, SlotPool};

impl<L: Lz, M: SlotMem, B: PoolBudget> LocalPool<'_, L, M, B> {
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
            Record::InFarTier(place) => Err(LoadError::InFarTier(place)),
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
        };
        match classify(page) {
            Content::Zero => {
                self.release(reserved);
                Ok(Outcome {
                    entry: SwapEntry::NONE,
                    kind: Kind::Zero,
                    entry_from: EntryFrom::Nowhere,
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
                })
            }
            Content::SameFilled(_) | Content::Data => {
                let digest = self.hash.of(page);
                if has_far_copy && self.is_copy(reserved, old, &digest) {
                    return Ok(unchanged);
                }
                let (entry, entry_from) = self.take_entry(reserved)?;
                match self.write(entry, old, page, &digest, scratch) {
                    Some(kind) => Ok(Outcome {
                        entry,
                        kind,
                        entry_from,
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
                Some(Allocated { entry, .. }) => Ok((entry, EntryFrom::Magazine)),
                None => Err(StoreError::NoEntry),
            },
        }
    }

    /// Bytes of payload of a copy in the pool; `None` when the entry has none there.
    pub fn stored_len(&self, entry: SwapEntry) -> Option<u16> {
        match self.entries.get(entry) {
            Record::Stored { len, .. } => Some(len),
            _ => None,
        }
    }

    /// The place in far memory of a copy in the pool; `None` when it has none.
    pub fn home_ref(&self, entry: SwapEntry) -> Option<ExtentRef> {
        self.home(self.entries.get(entry))
    }

    /// The place of a copy that is only in far memory; `None` when the entry has none there.
    pub fn extent_ref(&self, entry: SwapEntry) -> Option<ExtentRef> {
        match self.entries.get(entry) {
            Record::InFarTier(place) => Some(place),
            _ => None,
        }
    }

    /// Copies an entry's stored form, header and payload, to `out`, which has [`LocalPool::stored_len`] plus
    /// [`HEADER_BYTES`] bytes. False when the entry has no pooled copy of this length.
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
    pub fn demote(&self, entry: SwapEntry, digest: &Hash, place: ExtentRef) -> bool {
        let old = self.entries.get(entry);
        if !matches!(old, Record::Stored { len, .. } if len == place.len)
            || !self.stored_hash(old).is_some_and(|h| same(&h, digest))
        {
            return false;
        }
        self.entries.set(entry, Record::InFarTier(place));
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
        self.entries.set(entry, Record::InFarTier(place));
        self.free_slot(Record::Stored {
            slot,
            len,
            home: false,
        });
        Some(CLASS_BYTES[slot.class()] as usize)
    }

    /// Frees the slot of a page that is in local memory. A copy in far memory stays, since it takes no slot, so that
    /// the page is still known to be clean.
    pub fn free_cached_copy(&self, entry: SwapEntry) -> FreedCopy {
        if let Some(bytes) = self.demote_home(entry) {
            return FreedCopy::Demoted(bytes);
        }
        let old = self.entries.get(entry);
        let Record::Stored { slot, .. } = old else {
            return FreedCopy::Nothing;
        };
        self.entries.set(entry, Record::Empty);
        self.drop_record(entry, old);
        FreedCopy::Dropped(CLASS_BYTES[slot.class()] as usize)
    }

    /// Promotes the copy at `place` into the pool; `stored` is its content, hash and payload. `keeps`: the entry keeps
    /// naming the place as well, so that the copy can leave the pool again without a write
    /// ([`LocalPool::demote_home`]). False, with nothing changed, when the entry holds another copy by now, or the pool
    /// is full.
    pub fn promote(&self, entry: SwapEntry, place: ExtentRef, stored: &[u8], keeps: bool) -> bool {
        self.promote_on(&self.budget, entry, place, stored, keeps)
    }

    /// Removes the copy at `place`, of a page that is far: promotes it as [`LocalPool::promote`] does, or keeps only
    /// the one in the pool. `past_bound`: even if the pool has no room. False, with nothing changed, when the entry has
    /// no copy there by now, or the pool is full.
    pub fn vacate(
        &self,
        entry: SwapEntry,
        place: ExtentRef,
        stored: &[u8],
        past_bound: bool,
    ) -> bool {
        let old = self.entries.get(entry);
        if self.home(old) == Some(place) {
            self.drop_home(entry, old);
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
        place: ExtentRef,
        stored: &[u8],
        keeps: bool,
    ) -> bool {
        let old = self.entries.get(entry);
        let len = place.len as usize;
        if old != Record::InFarTier(place) || stored.len() != HEADER_BYTES + len {
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

    /// Releases the nodes' empty slabs.
    pub fn trim_nodes(&self) {
        for (node, slots) in self.nodes.used().iter().enumerate() {
            slots.trim(&self.node_budget(node), &Releaser(&self.mem));
        }
    }

    /// Moves a copy from its node into the pool, verified and compressed.
    pub fn demote_from_node(&self, entry: SwapEntry, scratch: &mut Scratch) -> NodeDemotion {
        let old = self.entries.get(entry);
        let Record::Stored { slot, len, .. } = old else {
            return NodeDemotion::NotThis;
        };
        if self.nodes.of(slot).is_none() {
            return NodeDemotion::NotThis;
        }
        let Scratch { lz, base, stored } = scratch;
        let loaded = self.load_slot(slot, usize::from(len), base, stored);
        let (Ok(()), Some(digest)) = (loaded, self.stored_hash(old)) else {
            return NodeDemotion::NotThis;
        };
        let (kind, len) = self.compress(base, stored, lz);
        let class = match kind {
            Kind::Raw => RAW_CLASS,
            _ => class_for(HEADER_BYTES + len),
        };
        let room = self.slots.alloc(class, &self.budget);
        let Some(room) = room.or_else(|| self.slots.alloc_larger(class)) else {
            return NodeDemotion::NoRoom;
        };
        self.put(entry, room, &digest, kind, len, base, stored);
        self.free_slot(old);
        NodeDemotion::Yes
    }

    /// The node of the entry's copy, by its index among the pool's nodes.
    #[inline]
    pub fn node_of(&self, entry: SwapEntry) -> Option<usize> {
        if !self.nodes.are_there() {
            return None;
        }
        match self.entries.get(entry) {
            Record::Stored { slot, .. } => self.nodes.of(slot),
            _ => None,
        }
    }

    /// Bytes charged to a node.
    pub fn node_charged_bytes(&self, node: usize) -> i64 {
        let slots = self.nodes.used().get(node);
        slots.map_or(0, SlotPool::charged_bytes)
    }

    /// Part of that charge that holds no page.
    pub fn node_free_bytes(&self, node: usize) -> i64 {
        self.nodes.used().get(node).map_or(0, |slots| {
            let pages = slots.class_live(RAW_CLASS) as i64;
            slots.charged_bytes() - pages * NODE_PAGE_BYTES
        })
    }

    /// Bytes charged for empty slabs, which [`LocalPool::trim`] gives back.
    pub fn empty_bytes(&self) -> i64 {
        self.slots.slabs_empty() as i64 * SLAB_CHARGE_BYTES
    }

    /// Bytes charged to the budget.
    pub fn charged_bytes(&self) -> i64 {
        self.slots.charged_bytes()
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

/// Holds all locks of a [`LocalPool`].
pub struct PoolForkGuard<'p> {
    _entries: RawGuard<'p>,
    _slots: SlotForkGuard<'p>,
    _nodes: [Option<SlotForkGuard<'p>>; NODES_MAX],
}
