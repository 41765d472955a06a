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
//! A page needs [`EntryTable::alloc`] once, at its first swap-out; from then on its owner works on the
//! entry with plain loads and stores. The lock is taken for [`BATCH`] entries at a time: a thread
//! takes and gives back single ones at its shelf of a [`Stock`]. Nobody is told that there is no
//! entry while one lies on a shelf; up to `BATCH` may be on their way there in each thread that has
//! just taken the lock.

use canvas_types::stock::Stock;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering, RawGuard, RawSpin, Threads};
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

/// Entries that go from the list to a shelf, and back, under one lock.
pub const BATCH: usize = if cfg!(feature = "shuttle") { 2 } else { 16 };

/// An entry that was just allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocated {
    /// The entry, [`Record::Empty`].
    pub entry: SwapEntry,
    /// The lock was taken for it; else it lay on a shelf.
    pub locked: bool,
}

/// The entries of one process.
pub struct EntryTable<'a> {
    words: &'a [AtomicU64],
    lock: RawSpin,
    /// First entry of the free list, 0 when empty; guarded by `lock`, as are `high` and `out`.
    free_head: AtomicU32,
    /// Entries that ever left the list: no index beyond this one has been touched.
    high: AtomicU32,
    /// Entries allocated or on a shelf.
    out: AtomicU64,
    capacity: u64,
    /// Free entries, without a lock.
    stock: Stock<BATCH>,
    threads: Threads,
}

impl<'a> EntryTable<'a> {
    /// A table over `words`, which must be all zero. Entry `i` is `words[i]`; `words[0]` is unused.
    pub fn new(words: &'a [AtomicU64], threads: Threads) -> EntryTable<'a> {
        let usable = words.len().saturating_sub(1).min(u32::MAX as usize - 1);
        EntryTable {
            words,
            lock: RawSpin::new(),
            free_head: AtomicU32::new(0),
            high: AtomicU32::new(0),
            out: AtomicU64::new(0),
            capacity: usable as u64,
            stock: Stock::new(),
            threads,
        }
    }
    /// Allocates an entry. `None` when the capacity is reached.
    pub fn alloc(&self) -> Option<Allocated> {
        let me = (self.threads.number)();
        if let Some(index) = self.stock.take(me) {
            return Some(self.hand_out(index, false));
        }
        let mut batch = [0; BATCH];
        let n = self.take_batch(&mut batch);
        let Some((first, rest)) = batch[..n].split_first() else {
            let index = self.stock.take_any(me)?;
            return Some(self.hand_out(index, true));
        };
        // Others of this thread's number may have filled the shelf meanwhile.
        let kept = rest.iter().take_while(|i| self.stock.put(me, **i)).count();
        if kept < rest.len() {
            self.give_back(&rest[kept..]);
        }
        Some(self.hand_out(*first, true))
    }
    fn hand_out(&self, index: u32, locked: bool) -> Allocated {
        self.words[index as usize].store(TAG_EMPTY, Ordering::Relaxed);
        Allocated {
            entry: SwapEntry(index),
            locked,
        }
    }
    /// Takes free entries from the list, and fresh ones; returns how many.
    fn take_batch(&self, batch: &mut [u32; BATCH]) -> usize {
        let _held = self.lock.lock(self.threads.yield_now);
        let out = self.out.load(Ordering::Relaxed);
        let most = (self.capacity - out).min(BATCH as u64) as usize;
        let mut head = self.free_head.load(Ordering::Relaxed);
        let mut high = self.high.load(Ordering::Relaxed);
        for index in &mut batch[..most] {
            *index = if head != 0 {
                let next = self.words[head as usize].load(Ordering::Relaxed) >> TAG_BITS;
                core::mem::replace(&mut head, next as u32)
            } else {
                high += 1;
                high
            };
        }
        self.free_head.store(head, Ordering::Relaxed);
        self.high.store(high, Ordering::Relaxed);
        self.out.store(out + most as u64, Ordering::Relaxed);
        most
    }
    /// Puts free entries back onto the list.
    fn give_back(&self, batch: &[u32]) {
        let _held = self.lock.lock(self.threads.yield_now);
        let mut head = self.free_head.load(Ordering::Relaxed);
        for index in batch {
            self.words[*index as usize]
                .store((u64::from(head) << TAG_BITS) | TAG_FREE, Ordering::Relaxed);
            head = *index;
        }
        self.free_head.store(head, Ordering::Relaxed);
        let out = self.out.load(Ordering::Relaxed) - batch.len() as u64;
        self.out.store(out, Ordering::Relaxed);
    }
    /// Gives an entry back; its slot, if any, must have been freed before. False, with nothing
    /// changed, when the entry is not allocated.
    pub fn free(&self, entry: SwapEntry) -> bool {
        let Some(word) = self.word(entry) else {
            return false;
        };
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            if Record::decode(seen) == Record::Free {
                return false;
            }
            match word.compare_exchange(seen, TAG_FREE, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        let me = (self.threads.number)();
        if !self.stock.put(me, entry.0) {
            // The shelf is full: all of it goes, for one lock.
            let mut batch = [entry.0; BATCH + 1];
            let mut n = 1;
            while n < batch.len()
                && let Some(index) = self.stock.take(me)
            {
                batch[n] = index;
                n += 1;
            }
            self.give_back(&batch[..n]);
        }
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
    /// Entries allocated now; not of one moment while other threads are at it.
    pub fn live(&self) -> u64 {
        let out = self.out.load(Ordering::Relaxed);
        out.saturating_sub(u64::from(self.stock.len()))
    }
    /// Entries that ever left the list: the table's memory in use is at most this many words.
    pub fn high_water(&self) -> u64 {
        self.high.load(Ordering::Relaxed) as u64
    }
    /// How often the lock was found taken, modulo 2^32.
    pub fn lock_waits(&self) -> u32 {
        self.lock.waits()
    }
    /// Keeps the list still across a fork, so that the child's copy of the lock is its own. The
    /// shelves need no lock: what lies there is whole at any moment.
    pub fn fork_guard(&self) -> RawGuard<'_> {
        self.lock.lock(self.threads.yield_now)
    }
}
