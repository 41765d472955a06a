//! The table of swap entries and its lock-protected allocator (Canvas §5.1).
//!
//! One `u64` for each entry, in memory that the caller provides and that is zero at start; index 0 is no entry. Memory
//! is touched only as entries are allocated: new entries come from a high-water mark, freed ones from a list threaded
//! through their own words. It is a list of chains, each of which one thread freed at once: under the lock only the
//! word of a chain's head is touched.
//!
//! ```text
//!  63                                                    4 3   0
//! ┌───────────────────────────────────────────────────────┬─────┐
//! │ free: next of its chain (32) · empty: 0               │ tag │
//! │ same-filled: 60 bits of the pattern                   │     │
//! │ stored: slot (40) | payload bytes << 40 (13) | home << 53 │  │
//! │ far:  extent (32) | offset / 16 << 32 (11) | payload << 43 (13) │
//! │ lost: 1, with the tag of a word that was never touched │
//! └───────────────────────────────────────────────────────┴─────┘
//! head of a chain: next chain << 33 (31) | next of its own >> 2 << 4 (29) | 8 | its low bits (2)
//! ```
//!
//! A page needs [`EntryTable::alloc`] once, at its first swap-out; from then on its owner uses plain loads and stores
//! on the entry. The lock is taken for [`BATCH`] entries at a time: a thread allocates and frees single ones from its
//! magazine ([`Magazines`]). Allocation never fails while an entry is in a magazine; up to `BATCH` may be on their way
//! there in each thread that has just taken the lock.

use canvas_types::magazine::Magazines;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering, RawGuard, RawSpin, Threads};
use canvas_types::{ExtentRef, SwapEntry};

use crate::swap::slots::SlotId;

/// Bytes of a place in far memory, stored with a slot.
pub const HOME_BYTES: usize = 8;

const TAG_BITS: u32 = 4;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
const TAG_FREE: u64 = 1;
const TAG_EMPTY: u64 = 2;
/// The pattern is the field, sign-extended from 60 bits: small numbers, -1.
const TAG_SAME_LOW: u64 = 3;
/// The pattern is the field shifted left by 4: most floating-point constants.
const TAG_SAME_HIGH: u64 = 4;
/// The pattern is the field's 32 bits, twice: repeated bytes, halfwords and words.
const TAG_SAME_TWICE: u64 = 5;
const TAG_STORED: u64 = 6;
const TAG_FAR_TIER: u64 = 7;
/// The copy is damaged: a combination of tag and field that no other word has.
const WORD_LOST: u64 = 1 << TAG_BITS;

/// Marks the head of a chain of free entries: this bit of the tag, with any of the lower ones.
const TAG_HEAD: u64 = 8;
const CHAIN_SHIFT: u32 = 33;
/// Most entries that a head can name.
const ENTRIES_MAX: usize = 1 << 31;

/// The word of a chain's head: the next entry of the chain, and the next chain; 0 for none.
#[inline]
fn head_word(next: u32, chain: u32) -> u64 {
    debug_assert!((next as usize) < ENTRIES_MAX && (chain as usize) < ENTRIES_MAX);
    let (high, low) = (u64::from(next) >> 2, u64::from(next) & 3);
    (u64::from(chain) << CHAIN_SHIFT) | (high << TAG_BITS) | TAG_HEAD | low
}

/// The next entry of the chain, from the word of its head.
#[inline]
fn after_head(word: u64) -> u32 {
    let high = (word & ((1 << CHAIN_SHIFT) - 1)) >> TAG_BITS;
    (high << 2 | word & 3) as u32
}

const SLOT_BITS: u32 = 40;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const LEN_MASK: u64 = (1 << 13) - 1;
const HOME_BIT: u64 = 1 << 53;
const UNIT: u32 = 16;
const OFFSET_SHIFT: u32 = 32;
const OFFSET_MASK: u64 = (1 << 11) - 1;
const FAR_LEN_SHIFT: u32 = 43;
const _: () =
    assert!(crate::swap::extent::EXTENT_BYTES / UNIT as usize - 1 == OFFSET_MASK as usize);

/// What an entry holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// Not allocated (or not an index of the table).
    Free,
    /// Reserved for its page; no far copy.
    Empty,
    /// The page is this 64-bit value, repeated; nothing else is stored.
    SameFilled(u64),
    /// The far copy is in a slot.
    Stored {
        /// The slot of the pool that holds the bytes.
        slot: SlotId,
        /// Bytes of payload, without the header; a whole page means it is not compressed.
        len: u16,
        /// The same copy is in far memory as well; its place is stored with the slot.
        home: bool,
    },
    /// The far copy is in far memory, in an extent.
    InFarTier(ExtentRef),
    /// There was a far copy, and it is damaged.
    Lost,
}

impl Record {
    /// Encodes this record; `None` for [`Record::Free`] and for patterns that do not fit.
    #[inline]
    fn encode(self) -> Option<u64> {
        match self {
            Record::Free => None,
            Record::Empty => Some(TAG_EMPTY),
            Record::Lost => Some(WORD_LOST),
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
            Record::InFarTier(p) => {
                debug_assert!(p.offset.is_multiple_of(UNIT));
                debug_assert!(
                    u64::from(p.offset / UNIT) <= OFFSET_MASK && p.len as u64 <= LEN_MASK
                );
                let field = u64::from(p.extent)
                    | (u64::from(p.offset / UNIT) << OFFSET_SHIFT)
                    | ((p.len as u64) << FAR_LEN_SHIFT);
                Some((field << TAG_BITS) | TAG_FAR_TIER)
            }
        }
    }
    /// The table word of this record.
    #[inline]
    pub(crate) fn word(self) -> Option<u64> {
        self.encode()
    }
    /// Decodes a word of the table.
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
            TAG_FAR_TIER => Record::InFarTier(ExtentRef {
                extent: field as u32,
                offset: (field >> OFFSET_SHIFT & OFFSET_MASK) as u32 * UNIT,
                len: (field >> FAR_LEN_SHIFT & LEN_MASK) as u16,
            }),
            _ if word == WORD_LOST => Record::Lost,
            _ => Record::Free,
        }
    }
    /// Encodes a place in far memory, to be stored with a slot.
    #[inline]
    pub fn home_bytes(place: ExtentRef) -> [u8; HOME_BYTES] {
        let word = Record::InFarTier(place).encode().unwrap_or_default();
        word.to_le_bytes()
    }
    /// Decodes such bytes.
    #[inline]
    pub fn home_of(bytes: [u8; HOME_BYTES]) -> Option<ExtentRef> {
        match Record::decode(u64::from_le_bytes(bytes)) {
            Record::InFarTier(place) => Some(place),
            _ => None,
        }
    }
    /// Whether a page filled with `pattern` needs no slot.
    #[inline]
    pub fn pattern_fits(pattern: u64) -> bool {
        Record::SameFilled(pattern).encode().is_some()
    }
}

/// Entries that move between the list and a magazine under one lock.
pub const BATCH: usize = if cfg!(feature = "shuttle") { 2 } else { 16 };

/// A newly allocated entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocated {
    /// The entry, [`Record::Empty`].
    pub entry: SwapEntry,
    /// The lock was taken for it; otherwise it came from a magazine.
    pub locked: bool,
}

/// The entries of one process.
pub struct EntryTable<'a> {
    words: &'a [AtomicU64],
    lock: RawSpin,
    /// Head of the first chain of free entries, 0 when there is none; guarded by `lock`, as is `high`.
    free_head: AtomicU32,
    /// Entries that were ever allocated or in a magazine: no index beyond this one has been touched.
    high: AtomicU32,
    /// Entries in chains.
    chained: AtomicU64,
    /// New entries may be allocated up to this one.
    capacity: AtomicU32,
    /// Magazines of free entries, without a lock.
    magazines: Magazines<BATCH>,
    threads: Threads,
}

impl<'a> EntryTable<'a> {
    /// A table over `words`, which must be all zero. Entry `i` is `words[i]`; `words[0]` is unused.
    pub fn new(words: &'a [AtomicU64], threads: Threads) -> EntryTable<'a> {
        let usable = words.len().saturating_sub(1).min(ENTRIES_MAX - 1);
        EntryTable {
            words,
            lock: RawSpin::new(),
            free_head: AtomicU32::new(0),
            high: AtomicU32::new(0),
            chained: AtomicU64::new(0),
            capacity: AtomicU32::new(usable as u32),
            magazines: Magazines::new(),
            threads,
        }
    }
    /// Allows writes to the first `words` words only, until the next call.
    pub fn allow(&self, words: usize) {
        let usable = words.min(self.words.len()).saturating_sub(1);
        self.capacity
            .store(usable.min(ENTRIES_MAX - 1) as u32, Ordering::Relaxed);
    }
    /// Allocates an entry. `None` when the capacity is reached.
    pub fn alloc(&self) -> Option<Allocated> {
        let me = (self.threads.number)();
        if let Some(index) = self.magazines.take(me) {
            return Some(self.hand_out(index, false));
        }
        let mut batch = [0; BATCH + 1];
        let n = self.take_batch(&mut batch);
        let Some((first, rest)) = batch[..n].split_first() else {
            let index = self.magazines.take_any(me)?;
            return Some(self.hand_out(index, true));
        };
        // Other threads with this thread's number may have filled the magazine meanwhile.
        let kept = rest
            .iter()
            .take_while(|i| self.magazines.put(me, **i))
            .count();
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
    /// Takes the entry with this number, for an owner that numbers all entries of the table itself: no entry may be
    /// allocated or freed then. It is empty at first; one that was taken before stays unchanged. False when there is no
    /// such entry.
    pub fn claim(&self, entry: SwapEntry) -> bool {
        let Some(word) = self.word(entry) else {
            return false;
        };
        // Words of free entries that were allocated once are not zero: they stay unchanged.
        let _ = word.compare_exchange(0, TAG_EMPTY, Ordering::Relaxed, Ordering::Relaxed);
        true
    }
    /// Takes a chain of free entries, or new ones; returns how many.
    fn take_batch(&self, batch: &mut [u32; BATCH + 1]) -> usize {
        let (head, word) = {
            let _held = self.lock.lock(self.threads.yield_now);
            let head = self.free_head.load(Ordering::Relaxed);
            if head == 0 {
                let high = self.high.load(Ordering::Relaxed);
                let room = self.capacity.load(Ordering::Relaxed).saturating_sub(high);
                let n = room.min(BATCH as u32);
                self.high.store(high + n, Ordering::Relaxed);
                for (index, place) in (high + 1..=high + n).zip(batch) {
                    *place = index;
                }
                return n as usize;
            }
            let word = self.words[head as usize].load(Ordering::Relaxed);
            let chain = (word >> CHAIN_SHIFT) as u32;
            self.free_head.store(chain, Ordering::Relaxed);
            (head, word)
        };
        // The chain belongs to this thread now.
        batch[0] = head;
        let (mut n, mut next) = (1, after_head(word));
        while next != 0 {
            batch[n] = next;
            next = (self.words[next as usize].load(Ordering::Relaxed) >> TAG_BITS) as u32;
            n += 1;
        }
        self.chained.fetch_sub(n as u64, Ordering::Relaxed);
        n
    }
    /// Puts free entries, at most [`BATCH`] + 1, onto the list as a chain.
    fn give_back(&self, batch: &[u32]) {
        let Some((head, rest)) = batch.split_first() else {
            return;
        };
        let mut next = 0;
        for index in rest.iter().rev() {
            self.words[*index as usize]
                .store((u64::from(next) << TAG_BITS) | TAG_FREE, Ordering::Relaxed);
            next = *index;
        }
        self.chained
            .fetch_add(batch.len() as u64, Ordering::Relaxed);
        let _held = self.lock.lock(self.threads.yield_now);
        let chain = self.free_head.load(Ordering::Relaxed);
        self.words[*head as usize].store(head_word(next, chain), Ordering::Relaxed);
        self.free_head.store(*head, Ordering::Relaxed);
    }
    /// Frees an entry; its slot, if any, must have been freed before. False, with nothing changed, when the entry is
    /// not allocated.
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
        if !self.magazines.put(me, entry.0) {
            // The magazine is full: return all of it under one lock.
            let mut batch = [entry.0; BATCH + 1];
            let mut n = 1;
            while n < batch.len()
                && let Some(index) = self.magazines.take(me)
            {
                batch[n] = index;
                n += 1;
            }
            self.give_back(&batch[..n]);
        }
        true
    }
    /// The entry's record. Lock-free; stable only for the entry's owner.
    #[inline]
    pub fn get(&self, entry: SwapEntry) -> Record {
        match self.word(entry) {
            Some(w) => Record::decode(w.load(Ordering::Acquire)),
            None => Record::Free,
        }
    }
    /// Whether the entry's word is one that its owner never wrote. For an owner that numbers all entries itself
    /// ([`EntryTable::claim`]), and took over the table of a predecessor.
    pub(crate) fn is_nonsense(&self, entry: SwapEntry) -> bool {
        self.word(entry).is_some_and(|w| {
            let word = w.load(Ordering::Relaxed);
            word != 0 && Record::decode(word) == Record::Free
        })
    }
    /// Marks the entry's copy as damaged, whatever its word is.
    pub(crate) fn lose(&self, entry: SwapEntry) {
        if let Some(word) = self.word(entry) {
            word.store(WORD_LOST, Ordering::Release);
        }
    }
    /// Sets the record of an allocated entry; only its owner may. False, with nothing changed, when the record cannot
    /// be encoded ([`Record::Free`], or a pattern too wide) or there is no such entry.
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
    /// Allocated entries; not a consistent number while other threads allocate.
    pub fn live(&self) -> u64 {
        self.high_water()
            .saturating_sub(self.chained.load(Ordering::Relaxed))
            .saturating_sub(u64::from(self.magazines.len()))
    }
    /// Entries that were ever allocated or in a magazine: at most this many words are in use.
    pub fn high_water(&self) -> u64 {
        self.high.load(Ordering::Relaxed) as u64
    }
    /// Locks the list across a fork, so that the child's copy is consistent. Magazines need no lock: they are
    /// consistent at any moment.
    pub fn fork_guard(&self) -> RawGuard<'_> {
        self.lock.lock(self.threads.yield_now)
    }
}
