//! The table of swap entries and its lock-protected allocator (Canvas §5.1).
//!
//! One `u64` an entry, in memory that the caller provides and that is zero at start; index 0 is no
//! entry. Memory is touched only as entries are handed out: fresh entries come from a high-water
//! mark, freed ones from a list threaded through their own words.
//!
//! ```text
//!  63                                                    4 3   0
//! ┌───────────────────────────────────────────────────────┬─────┐
//! │ free: next free entry (32) · empty: 0                 │ tag │
//! │ same-filled: 60 bits of the pattern                   │     │
//! │ stored: slot (40) | payload bytes << 40 (13) | home << 53 │  │
//! │ deep: extent (32) | offset / 16 << 32 (11) | payload << 43 (13) │
//! └───────────────────────────────────────────────────────┴─────┘
//! ```
//!
//! [`EntryTable::alloc`] and [`EntryTable::free`] take the lock; a page pays for that once, at its
//! first swap-out, and from then on its owner works on the entry with plain loads and stores.

use canvas_types::sync::{AtomicU32, AtomicU64, Ordering, RawGuard, RawSpin};
use canvas_types::{DeepPlace, SwapEntry};

use crate::slots::SlotId;

/// Bytes of a place beyond the pool, kept with a slot.
pub const HOME_BYTES: usize = 8;

const TAG_BITS: u32 = 4;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
const TAG_FREE: u64 = 1;
const TAG_EMPTY: u64 = 2;
/// Pattern is the field, sign-extended from 60 bits: small numbers, -1.
const TAG_SAME_LOW: u64 = 3;
/// Pattern is the field shifted left by 4: most floating-point constants.
const TAG_SAME_HIGH: u64 = 4;
/// Pattern is the field's 32 bits, twice: repeated bytes, halfwords and words.
const TAG_SAME_TWICE: u64 = 5;
const TAG_STORED: u64 = 6;
const TAG_DEEP: u64 = 7;

const SLOT_BITS: u32 = 40;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const LEN_MASK: u64 = (1 << 13) - 1;
const HOME_BIT: u64 = 1 << 53;
const UNIT: u32 = 16;
const OFFSET_SHIFT: u32 = 32;
const OFFSET_MASK: u64 = (1 << 11) - 1;
const DEEP_LEN_SHIFT: u32 = 43;
const _: () = assert!(crate::extent::EXTENT_BYTES / UNIT as usize - 1 == OFFSET_MASK as usize);

/// What an entry holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// Not allocated (or not an index of the table).
    Free,
    /// Reserved for its page; no far copy.
    Empty,
    /// The page is this 64-bit value, repeated; nothing else is stored.
    SameFilled(u64),
    /// The far copy lies in a slot.
    Stored {
        /// The slot of the pool that holds the bytes.
        slot: SlotId,
        /// Bytes of payload, without the header; a whole page means it is not compressed.
        len: u16,
        /// The same copy lies beyond the pool, too: where, is kept with the slot.
        home: bool,
    },
    /// The far copy lies beyond the pool, in an extent.
    Deep(DeepPlace),
}

impl Record {
    /// The word for this record; `None` for [`Record::Free`] and for patterns that do not fit.
    #[inline]
    fn encode(self) -> Option<u64> {
        match self {
            Record::Free => None,
            Record::Empty => Some(TAG_EMPTY),
            Record::SameFilled(p) => {
                if ((p << TAG_BITS) as i64 >> TAG_BITS) as u64 == p {
                    Some((p << TAG_BITS) | TAG_SAME_LOW)
                } else if p & TAG_MASK == 0 {
                    Some(p | TAG_SAME_HIGH)
                } else if p >> 32 == p & 0xffff_ffff {
                    Some(((p & 0xffff_ffff) << TAG_BITS) | TAG_SAME_TWICE)
                } else {
                    None
                }
            }
            Record::Stored { slot, len, home } => {
                debug_assert!(slot.0 <= SLOT_MASK && len as u64 <= LEN_MASK);
                let home = if home { HOME_BIT } else { 0 };
                let field = slot.0 | ((len as u64) << SLOT_BITS) | home;
                Some((field << TAG_BITS) | TAG_STORED)
            }
            Record::Deep(p) => {
                debug_assert!(p.offset.is_multiple_of(UNIT));
                debug_assert!(
                    u64::from(p.offset / UNIT) <= OFFSET_MASK && p.len as u64 <= LEN_MASK
                );
                let field = u64::from(p.extent)
                    | (u64::from(p.offset / UNIT) << OFFSET_SHIFT)
                    | ((p.len as u64) << DEEP_LEN_SHIFT);
                Some((field << TAG_BITS) | TAG_DEEP)
            }
        }
    }
    /// The record in a word of the table.
    #[inline]
    pub fn decode(word: u64) -> Record {
        let field = word >> TAG_BITS;
        match word & TAG_MASK {
            TAG_EMPTY => Record::Empty,
            TAG_SAME_LOW => Record::SameFilled((word as i64 >> TAG_BITS) as u64),
            TAG_SAME_HIGH => Record::SameFilled(word & !TAG_MASK),
            TAG_SAME_TWICE => Record::SameFilled(field | (field << 32)),
            TAG_STORED => Record::Stored {
                slot: SlotId(field & SLOT_MASK),
                len: (field >> SLOT_BITS & LEN_MASK) as u16,
                home: field & HOME_BIT != 0,
            },
            TAG_DEEP => Record::Deep(DeepPlace {
                extent: field as u32,
                offset: (field >> OFFSET_SHIFT & OFFSET_MASK) as u32 * UNIT,
                len: (field >> DEEP_LEN_SHIFT & LEN_MASK) as u16,
            }),
            _ => Record::Free,
        }
    }
    /// A place beyond the pool, as it is kept with a slot.
    #[inline]
    pub fn home_bytes(place: DeepPlace) -> [u8; HOME_BYTES] {
        let word = Record::Deep(place).encode().unwrap_or_default();
        word.to_le_bytes()
    }
    /// The place in such bytes.
    #[inline]
    pub fn home_of(bytes: [u8; HOME_BYTES]) -> Option<DeepPlace> {
        match Record::decode(u64::from_le_bytes(bytes)) {
            Record::Deep(place) => Some(place),
            _ => None,
        }
    }
    /// True when a page filled with `pattern` needs no slot.
    #[inline]
    pub fn pattern_fits(pattern: u64) -> bool {
        Record::SameFilled(pattern).encode().is_some()
    }
}

/// The entries of one process.
pub struct EntryTable<'a> {
    words: &'a [AtomicU64],
    lock: RawSpin,
    /// First entry of the free list, 0 when empty; guarded by `lock`, as are all but `capacity`.
    free_head: AtomicU32,
    /// Entries ever handed out: indices up to this one have been touched.
    high: AtomicU32,
    live: AtomicU64,
    capacity: u64,
    yield_now: fn(),
}

impl<'a> EntryTable<'a> {
    /// A table over `words`, which must be all zero. Entry `i` is `words[i]`; `words[0]` is unused.
    /// `yield_now` is called while waiting long for the lock.
    pub fn new(words: &'a [AtomicU64], yield_now: fn()) -> EntryTable<'a> {
        let usable = words.len().saturating_sub(1).min(u32::MAX as usize - 1);
        EntryTable {
            words,
            lock: RawSpin::new(),
            free_head: AtomicU32::new(0),
            high: AtomicU32::new(0),
            live: AtomicU64::new(0),
            capacity: usable as u64,
            yield_now,
        }
    }
    /// Allocates an entry, [`Record::Empty`]: the path with the lock. `None` when the capacity is
    /// reached.
    pub fn alloc(&self) -> Option<SwapEntry> {
        let _held = self.lock.lock(self.yield_now);
        let live = self.live.load(Ordering::Relaxed);
        if live >= self.capacity {
            return None;
        }
        let head = self.free_head.load(Ordering::Relaxed);
        let index = if head != 0 {
            let next = self.words[head as usize].load(Ordering::Relaxed) >> TAG_BITS;
            self.free_head.store(next as u32, Ordering::Relaxed);
            head
        } else {
            let fresh = self.high.load(Ordering::Relaxed) + 1;
            if fresh as usize >= self.words.len() {
                return None;
            }
            self.high.store(fresh, Ordering::Relaxed);
            fresh
        };
        self.words[index as usize].store(TAG_EMPTY, Ordering::Relaxed);
        self.live.store(live + 1, Ordering::Relaxed);
        Some(SwapEntry(index))
    }
    /// Gives an entry back; its slot, if any, must have been freed before. False, with nothing
    /// changed, when the entry is not allocated.
    pub fn free(&self, entry: SwapEntry) -> bool {
        let Some(word) = self.word(entry) else {
            return false;
        };
        let _held = self.lock.lock(self.yield_now);
        if Record::decode(word.load(Ordering::Relaxed)) == Record::Free {
            return false;
        }
        let next = self.free_head.load(Ordering::Relaxed) as u64;
        word.store((next << TAG_BITS) | TAG_FREE, Ordering::Relaxed);
        self.free_head.store(entry.0, Ordering::Relaxed);
        self.live
            .store(self.live.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        true
    }
    /// What the entry holds. Lock-free; stable only for the entry's owner.
    #[inline]
    pub fn get(&self, entry: SwapEntry) -> Record {
        match self.word(entry) {
            Some(w) => Record::decode(w.load(Ordering::Acquire)),
            None => Record::Free,
        }
    }
    /// Changes what an allocated entry holds; only its owner may. False, with nothing changed, when
    /// the record cannot be encoded ([`Record::Free`], or a pattern too wide) or there is no such
    /// entry.
    #[inline]
    pub fn set(&self, entry: SwapEntry, record: Record) -> bool {
        match (self.word(entry), record.encode()) {
            (Some(w), Some(value)) => {
                debug_assert!(Record::decode(w.load(Ordering::Relaxed)) != Record::Free);
                w.store(value, Ordering::Release);
                true
            }
            _ => false,
        }
    }
    #[inline]
    fn word(&self, entry: SwapEntry) -> Option<&AtomicU64> {
        if entry.is_some() {
            self.words.get(entry.0 as usize)
        } else {
            None
        }
    }
    /// Entries allocated now.
    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }
    /// Entries ever touched: the table's memory in use is this many words.
    pub fn high_water(&self) -> u64 {
        self.high.load(Ordering::Relaxed) as u64
    }
    /// Keeps the allocator still across a fork, so that the child's copy of the lock is its own.
    pub fn fork_guard(&self) -> RawGuard<'_> {
        self.lock.lock(self.yield_now)
    }
}
