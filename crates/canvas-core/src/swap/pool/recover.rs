//! Recovery of a pool whose process ended at any instruction, by its successor.
//!
//! Only what the entries name counts: all other state of the pool is rebuilt from them. That is correct because a copy
//! is in its slot before its entry names it, because no slot is free before its entry names another one, and because an
//! overwrite of an old copy is first recorded in the journal. So an entry names its previous copy or its new one, and
//! never another's.
//!
//! Call [`LocalPool::redo`], then [`LocalPool::adopt`] for each entry, then [`LocalPool::finish_recovery`]; nothing
//! else may be called before.

use canvas_types::sync::Ordering;
use canvas_types::{ExtentRef, PAGE_SIZE, SwapEntry};

use super::copies::LocalPool;
use super::types::{PastBound, Releaser, SlotMem, stored_len};
use crate::swap::classes::{CLASS_BYTES, COMPRESSED_MAX, HEADER_BYTES, RAW_CLASS};
use crate::swap::codec::Lz;
use crate::swap::entry::{HOME_BYTES, Record};
use crate::swap::extent::is_valid_ref;
use crate::swap::slots::{Claimed, PoolBudget, SlotId};

/// What an entry contained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Adopted {
    /// No copy.
    Nothing,
    /// One repeated value.
    SameFilled,
    /// A copy in the pool, and its place in far memory, if it has one there as well.
    InPool(Option<ExtentRef>),
    /// A copy in far memory.
    InFarTier(ExtentRef),
    /// Nothing valid: it is [`Record::Lost`] from now on.
    Lost,
    /// The slot of an entry that was adopted before: this one is [`Record::Lost`] from now on, and since nobody can
    /// tell whose copy it is, the other one must be, too ([`LocalPool::disown`]).
    Duplicate(SlotId),
}

impl<L: Lz, M: SlotMem, B: PoolBudget> LocalPool<'_, L, M, B> {
    /// Completes the overwrites in the journal.
    pub fn redo(&self) {
        self.journal.take_all(|entry, record, digest, payload| {
            let Record::Stored { slot, len, .. } = record else {
                return;
            };
            // Otherwise it is no note of this pool.
            let is_over = |r: Record| matches!(r, Record::Stored { slot: now, .. } if now == slot);
            if !is_over(self.entries.get(entry)) || !self.makes_sense(slot, len, false) {
                return;
            }
            let (head, at) = match slot.class() {
                RAW_CLASS => (self.slots.raw_header_offset(slot), slot.offset()),
                _ => (slot.offset(), slot.offset() + HEADER_BYTES),
            };
            self.mem.copy_in(head, digest);
            self.mem.copy_in(at, payload);
            self.entries.set(entry, record);
        });
    }

    /// Adopts an entry as it was left.
    pub fn adopt(&self, entry: SwapEntry) -> Adopted {
        let lost = || {
            self.entries.lose(entry);
            Adopted::Lost
        };
        match self.entries.get(entry) {
            Record::Free if self.entries.is_nonsense(entry) => lost(),
            Record::Free | Record::Empty => Adopted::Nothing,
            Record::SameFilled(_) => Adopted::SameFilled,
            Record::Lost => Adopted::Lost,
            Record::InFarTier(place) if is_valid_ref(place) => Adopted::InFarTier(place),
            Record::InFarTier(_) => lost(),
            Record::Stored { slot, len, home } => {
                if !self.makes_sense(slot, len, home) {
                    return lost();
                }
                let mut place = None;
                if home {
                    let home = self.home_at(slot, len);
                    place = home.filter(|home| home.len == len && is_valid_ref(*home));
                    if place.is_none() {
                        return lost();
                    }
                }
                match self.slots.claim_slot(slot) {
                    Claimed::Yes => {
                        self.stored_bytes
                            .fetch_add(stored_len(len), Ordering::Relaxed);
                        Adopted::InPool(place)
                    }
                    Claimed::Before => {
                        lost();
                        Adopted::Duplicate(slot)
                    }
                    Claimed::Never => lost(),
                }
            }
        }
    }

    /// Marks the entry as lost: its copy cannot be told from another's ([`Adopted::Duplicate`]), or is at an invalid
    /// place.
    pub fn disown(&self, entry: SwapEntry) {
        if let Record::Stored { slot, len, .. } = self.entries.get(entry) {
            self.slots.disclaim_slot(slot);
            self.stored_bytes
                .fetch_sub(stored_len(len), Ordering::Relaxed);
        }
        self.entries.lose(entry);
    }

    /// All entries are adopted: everything that none of them names becomes free.
    pub fn finish_recovery(&self) {
        self.slots
            .rebuild(&PastBound(&self.budget), &Releaser(&self.mem));
    }

    /// Whether a copy of `len` bytes can be in this slot.
    fn makes_sense(&self, slot: SlotId, len: u16, home: bool) -> bool {
        let len = usize::from(len);
        let more = if home { HOME_BYTES } else { 0 };
        self.slots.has(slot)
            && match slot.class() {
                RAW_CLASS => len == PAGE_SIZE || len <= COMPRESSED_MAX,
                class => HEADER_BYTES + len + more <= CLASS_BYTES[class].into(),
            }
    }
}
