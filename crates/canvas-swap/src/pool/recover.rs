//! A pool whose process ended at any instruction, told whole again by its successor.
//!
//! What counts is what the entries name: all else of the pool's state is made anew from them. That holds
//! because a copy is in its slot before its entry names it, because no slot is free before its entry names
//! another one, and because what is written over an old copy is in the journal first. So an entry names its
//! copy of before or its new one, and never another's.
//!
//! [`LocalPool::redo`], then [`LocalPool::adopt`] for each entry, then [`LocalPool::settle`]; nothing else
//! may be called before.

use canvas_types::sync::Ordering;
use canvas_types::{DeepPlace, PAGE_SIZE, SwapEntry};

use super::{LocalPool, PastBound, Releaser, SlotMem, stored_len};
use crate::classes::{CLASS_BYTES, COMPRESSED_MAX, HEADER_BYTES, RAW_CLASS};
use crate::entry::{HOME_BYTES, Record};
use crate::extent::is_place;
use crate::slots::{Claimed, SlotId};
use crate::{Lz, PoolBudget};

/// What was found in an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Adopted {
    /// No copy.
    Nothing,
    /// One repeated value.
    SameFilled,
    /// A copy in the pool, and where it lies beyond it as well.
    Here(Option<DeepPlace>),
    /// A copy beyond the pool.
    Beyond(DeepPlace),
    /// What names no copy: it is [`Record::Lost`] from now on.
    Lost,
    /// The slot of an entry that was adopted before: this one is [`Record::Lost`] from now on, and as nobody
    /// can tell whose copy it is, the other one is to be, too ([`LocalPool::disown`]).
    Twice(SlotId),
}

impl<L: Lz, M: SlotMem, B: PoolBudget> LocalPool<'_, L, M, B> {
    /// Ends what was being written over old copies.
    pub fn redo(&self) {
        self.journal.take_all(|entry, record, digest, payload| {
            let Record::Stored { slot, len, .. } = record else {
                return;
            };
            // Else it is no note of this pool's.
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

    /// Takes an entry over as it was left.
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
            Record::Deep(place) if is_place(place) => Adopted::Beyond(place),
            Record::Deep(_) => lost(),
            Record::Stored { slot, len, home } => {
                if !self.makes_sense(slot, len, home) {
                    return lost();
                }
                let mut place = None;
                if home {
                    let home = self.home_at(slot, len);
                    place = home.filter(|home| home.len == len && is_place(*home));
                    if place.is_none() {
                        return lost();
                    }
                }
                match self.slots.claim_slot(slot) {
                    Claimed::Yes => {
                        self.stored_bytes
                            .fetch_add(stored_len(len), Ordering::Relaxed);
                        Adopted::Here(place)
                    }
                    Claimed::Before => {
                        lost();
                        Adopted::Twice(slot)
                    }
                    Claimed::Never => lost(),
                }
            }
        }
    }

    /// The entry's copy is not to be told from another's ([`Adopted::Twice`]), or lies where nothing is.
    pub fn disown(&self, entry: SwapEntry) {
        if let Record::Stored { slot, len, .. } = self.entries.get(entry) {
            self.slots.disclaim_slot(slot);
            self.stored_bytes
                .fetch_sub(stored_len(len), Ordering::Relaxed);
        }
        self.entries.lose(entry);
    }

    /// All entries are adopted: what none of them names is free, and holds nothing.
    pub fn settle(&self) {
        self.slots
            .settle(&PastBound(&self.budget), &Releaser(&self.mem));
    }

    /// Can a copy of so many bytes lie in such a slot?
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
