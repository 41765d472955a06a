//! Writes pages to their slots, in the pool or on a node.

use canvas_types::sync::Ordering;
use canvas_types::{PAGE_SIZE, PageBuf, SwapEntry, score};

use super::copies::{LocalPool, REWRITES};
use super::types::{CopyTarget, Kind, Releaser, STORED_MAX, Scratch, SlotMem, stored_len};
use crate::swap::classes::{CLASS_BYTES, COMPRESSED_MAX, HEADER_BYTES, RAW_CLASS, class_for};
use crate::swap::codec::Lz;
use crate::swap::delta::{self, Delta};
use crate::swap::entry::Record;
use crate::swap::hash::Hash;
use crate::swap::slots::{PoolBudget, SlotId};
use canvas_types::LzScratch;

/// Neighbouring entries of one score ([`REWRITES`]): they were allocated consecutively, so their pages were evicted
/// together and are stored together.
const REWRITES_ENTRIES: usize = 256;
/// A vain search for differing words costs half of what it saves when they are few.
const DELTA_WEIGHT: u8 = 2;

/// The payload of a page that [`LocalPool::compress`] and similar functions have made in `stored`.
fn payload<'s>(
    kind: Kind,
    len: usize,
    page: &'s PageBuf,
    stored: &'s [u8; STORED_MAX],
) -> &'s [u8] {
    match kind {
        Kind::Raw => page,
        _ => &stored[HEADER_BYTES..HEADER_BYTES + len],
    }
}

impl<L: Lz, M: SlotMem, B: PoolBudget> LocalPool<'_, L, M, B> {
    /// Writes a page whose entry holds `old`: as a few words after the previous copy, or compressed again. On `None`
    /// (full) the entry is empty, or unchanged ([`LocalPool::keeping_old`]).
    pub(super) fn write(
        &self,
        entry: SwapEntry,
        old: Record,
        page: &PageBuf,
        digest: &Hash,
        scratch: &mut Scratch,
    ) -> Option<Kind> {
        let old = self.drop_home(entry, old);
        if self.nodes.are_there() && self.write_to_node(entry, old, page, digest) {
            return Some(Kind::OnNode);
        }
        let (kind, len) = match self.difference(entry, old, page, scratch) {
            Some(PAGE_SIZE) => (Kind::Raw, PAGE_SIZE),
            Some(len) => (Kind::Delta, len),
            None => self.compress(page, &mut scratch.stored, &mut scratch.lz),
        };
        let class = match kind {
            Kind::Raw => RAW_CLASS,
            _ => class_for(HEADER_BYTES + len),
        };
        let placed = self.place(entry, old, class)?;
        let (CopyTarget::Beside(slot) | CopyTarget::Over(slot) | CopyTarget::Instead(slot)) =
            placed;
        let stored = &mut scratch.stored;
        let put = |stored| self.put(entry, slot, digest, kind, len, page, stored);
        match placed {
            CopyTarget::Over(_) => {
                let record = Record::Stored {
                    slot,
                    len: len as u16,
                    home: false,
                };
                // While it is written, the slot holds neither the old copy nor the new one.
                let payload = payload(kind, len, page, stored);
                let noted = self.journal.note(entry, record, digest, payload);
                put(stored);
                noted.done();
            }
            CopyTarget::Beside(_) => {
                put(stored);
                // Free it only now that no entry names it: its next owner may write to it at once.
                self.free_slot(old);
            }
            CopyTarget::Instead(_) => put(stored),
        }
        Some(kind)
    }

    /// Writes a page whose entry holds `old` to a node: where it is already, otherwise to the first with room. False,
    /// with nothing changed, when no node has room.
    fn write_to_node(&self, entry: SwapEntry, old: Record, page: &PageBuf, digest: &Hash) -> bool {
        if let Record::Stored { slot, len, .. } = old
            && let Some(node) = self.nodes.of(slot)
            && !self.budget.node_is_over(node)
        {
            self.stored_bytes
                .fetch_sub(stored_len(len), Ordering::Relaxed);
            self.put_raw(slot, page, digest);
            self.names(entry, slot, PAGE_SIZE as u16);
            return true;
        }
        let stored = (0..self.nodes.count).find_map(|node| self.store_on(node, page, digest));
        let Some(slot) = stored else {
            return false;
        };
        self.free_slot(old);
        self.names(entry, slot, PAGE_SIZE as u16);
        true
    }

    /// A slot on a node, with the page in it.
    fn store_on(&self, node: usize, page: &PageBuf, digest: &Hash) -> Option<SlotId> {
        if self.budget.node_is_over(node) {
            return None;
        }
        let (slots, budget) = (&self.nodes.slots[node], self.node_budget(node));
        let slot = slots.alloc(RAW_CLASS, &budget)?;
        self.put_raw(slot, page, digest);
        if budget.charged.get() && !self.budget.lies_on_node(node, slot.offset()) {
            // Release its memory at once, because it is ordinary memory of this host.
            slots.free(slot, &budget, &Releaser(&self.mem));
            slots.trim(&budget, &Releaser(&self.mem));
            return None;
        }
        Some(slot)
    }

    /// Writes the form of a page that [`LocalPool::compress`] and similar functions have made in `stored`, `len` bytes
    /// of payload, to a slot, and lets the entry name it.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn put(
        &self,
        entry: SwapEntry,
        slot: SlotId,
        digest: &Hash,
        kind: Kind,
        len: usize,
        page: &PageBuf,
        stored: &mut [u8; STORED_MAX],
    ) {
        if slot.class() == RAW_CLASS {
            self.mem.copy_in(self.slots.raw_header_offset(slot), digest);
            self.mem
                .copy_in(slot.offset(), payload(kind, len, page, stored));
        } else {
            stored[..HEADER_BYTES].copy_from_slice(digest);
            self.mem
                .copy_in(slot.offset(), &stored[..HEADER_BYTES + len]);
        }
        self.names(entry, slot, len as u16);
    }

    /// Compresses a page after the header in `stored`, if it shrinks enough; returns the bytes of payload.
    pub(super) fn compress(
        &self,
        page: &PageBuf,
        stored: &mut [u8; STORED_MAX],
        lz: &mut LzScratch,
    ) -> (Kind, usize) {
        let room = &mut stored[HEADER_BYTES..HEADER_BYTES + COMPRESSED_MAX];
        let (room, _) = room.split_at_mut(COMPRESSED_MAX - delta::COUNT_BYTES);
        match self.lz.compress(page, room, lz) {
            Some(len) if len <= COMPRESSED_MAX - delta::COUNT_BYTES => {
                let end = HEADER_BYTES + len + delta::COUNT_BYTES;
                delta::write_none(&mut stored[HEADER_BYTES + len..end]);
                (Kind::Compressed, len + delta::COUNT_BYTES)
            }
            _ => (Kind::Raw, PAGE_SIZE),
        }
    }

    /// Makes a payload of the previous copy and the words that differ from it, after the header in `scratch`; returns
    /// its length. A raw copy that differs little is of a page that still does not shrink: its length is that of a
    /// page. `None` when there is no such copy, too much differs, that is expected, or the slot has no room for the
    /// words: a larger one would cost the memory that compression saves.
    fn difference(
        &self,
        entry: SwapEntry,
        old: Record,
        page: &PageBuf,
        scratch: &mut Scratch,
    ) -> Option<usize> {
        let Record::Stored { slot, len, .. } = old else {
            return None;
        };
        // A raw copy on a node may be of a page that shrinks.
        if self.nodes.of(slot).is_some() {
            return None;
        }
        let rewrites = &self.rewrites[entry.0 as usize / REWRITES_ENTRIES % REWRITES];
        // The first byte of the page: any number that changes with the page.
        if score::is_high(rewrites) && !score::is_probe(entry.0, page[0]) {
            return None;
        }
        // A damaged copy is no longer needed, so nobody need know of it.
        let base_len = self.base(slot, usize::from(len), scratch)?;
        let Some(words) = Delta::between(&scratch.base, page) else {
            score::raise(rewrites, 1);
            return None;
        };
        score::lower(rewrites, DELTA_WEIGHT);
        let Some(base_len) = base_len else {
            return Some(PAGE_SIZE);
        };
        let len = base_len + words.bytes();
        let room = match slot.class() {
            RAW_CLASS => COMPRESSED_MAX,
            class => usize::from(CLASS_BYTES[class]) - HEADER_BYTES,
        };
        if len > room {
            return None;
        }
        words.write(
            page,
            &mut scratch.stored[HEADER_BYTES + base_len..HEADER_BYTES + len],
        );
        Some(len)
    }

    /// Reads the page from which a copy was compressed into the scratch, where its compressed form stays after the
    /// header; returns that form's length, none when the copy is raw. `None` when it is damaged.
    fn base(&self, slot: SlotId, len: usize, scratch: &mut Scratch) -> Option<Option<usize>> {
        if len == PAGE_SIZE {
            self.mem.copy_out(slot.offset(), &mut scratch.base);
            return Some(None);
        }
        let stored = scratch.stored.get_mut(HEADER_BYTES..HEADER_BYTES + len)?;
        let at = match slot.class() {
            RAW_CLASS => slot.offset(),
            _ => slot.offset() + HEADER_BYTES,
        };
        self.mem.copy_out(at, stored);
        let (compressed, _) = delta::split(stored)?;
        self.lz
            .decompress(compressed, &mut scratch.base)
            .then_some(Some(compressed.len()))
    }
}
