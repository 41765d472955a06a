//! One 8-byte word per page: state, flags, pins and the swap entry that the page owns.
//!
//! ```text
//!  63            32 31     24 23     16 15          8 7    4 3     0
//! ┌────────────────┬─────────┬─────────┬─────────────┬──────┬───────┐
//! │ swap entry     │ epoch   │ pins    │ flags       │ heat │ state │
//! └────────────────┴─────────┴─────────┴─────────────┴──────┴───────┘
//! ```
//!
//! A word of zero is a page that was never touched, or has been discarded: it reads as zeros. A *busy* state belongs to
//! the thread that made the transition; all other threads wait. [`State::may_become`] lists which transitions are
//! legal.

use canvas_types::SwapEntry;
use canvas_types::sync::{AtomicU64, Ordering};

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// Never touched, or discarded: reads as zeros.
    Untouched = 0,
    /// Mapped in the managed range.
    Resident = 1,
    /// In the swap cache: unmapped from the managed range, its contents are in a slot ([`crate::pager::slot`]).
    Cached = 2,
    /// Only the far copy exists. Entry [`SwapEntry::NONE`] means a page of zeros.
    Far = 3,
    /// Busy: a fault or a prefetch brings it in.
    Filling = 4,
    /// Busy: reclaim unmaps it into the swap cache.
    Evicting = 5,
    /// Busy: a mapping call (munmap, mremap, madvise, mprotect, fork) works on it.
    Mapping = 6,
    /// The far copy failed verification: a touch delivers SIGBUS.
    Poisoned = 7,
}

impl State {
    /// Decodes the low four bits of a word.
    #[inline(always)]
    pub fn of(raw: u64) -> State {
        match raw & 0xf {
            0 => State::Untouched,
            1 => State::Resident,
            2 => State::Cached,
            3 => State::Far,
            4 => State::Filling,
            5 => State::Evicting,
            6 => State::Mapping,
            _ => State::Poisoned,
        }
    }
    /// Whether this is a busy state, which belongs to one thread until it leaves it.
    #[inline(always)]
    pub fn is_busy(self) -> bool {
        matches!(self, State::Filling | State::Evicting | State::Mapping)
    }
    /// The legal transitions; the model test and debug builds check them.
    pub fn may_become(self, next: State) -> bool {
        use State::*;
        match self {
            Untouched => matches!(next, Filling | Mapping),
            Resident => matches!(next, Evicting | Mapping),
            // The writer publishes Far from the stable copy in the swap cache, without a busy state.
            Cached => matches!(next, Filling | Mapping | Far),
            Far => matches!(next, Filling | Mapping),
            // A failed fill returns the page to its previous state.
            Filling => matches!(next, Resident | Cached | Far | Untouched | Poisoned),
            // To Far directly, without the swap cache, if its far copy is known to be up to date.
            Evicting => matches!(next, Cached | Far | Resident),
            Mapping => matches!(next, Untouched | Resident | Cached | Far | Poisoned),
            Poisoned => matches!(next, Mapping),
        }
    }
}

/// Flag bits of a word.
pub mod flag {
    /// Prefetched and not known to be used yet.
    pub const PREFETCHED: u64 = 1 << 8;
    /// Of a local page: used (faulted in, or a swap-cache hit) since the clock hand last passed. Of a far page: came
    /// back to the pool with a neighbour since the demotion scan last passed.
    pub const REFERENCED: u64 = 1 << 9;
    /// The kernel refused to unmap it (unusual protection, pinned by a driver); cleared by mprotect.
    pub const STUCK: u64 = 1 << 10;
    /// Locked by mlock: never evicted.
    pub const LOCKED: u64 = 1 << 11;
    /// The entry holds a far copy that was the page's content when it last became resident.
    pub const FAR_COPY: u64 = 1 << 12;
    /// Far, with its copy beyond the pool. This is a hint; the swap entry is authoritative.
    pub const IN_FAR_TIER: u64 = 1 << 13;
    /// Resident, and write-protected since it was filled: nothing has written to it. Shares its bit with
    /// [`IN_FAR_TIER`], which is for far pages. While it is set no write goes unseen; while it is clear, and the page
    /// is in no busy state, the kernel can write to the page.
    pub const PROTECTED: u64 = 1 << 13;
    /// Filled as part of a sequential stream: evicted first.
    pub const STREAM: u64 = 1 << 14;
    /// Chosen for touch sampling by `trace`.
    pub const SAMPLED: u64 = 1 << 15;
    /// Both flags together, on a page in the swap cache: proactive swap-in left it there, so that its use is seen.
    pub const PROACTIVE: u64 = PREFETCHED | REFERENCED;
}

const HEAT_SHIFT: u32 = 4;
const HEAT_MASK: u64 = 0xf << HEAT_SHIFT;
const PIN_SHIFT: u32 = 16;
const PIN_MASK: u64 = 0xff << PIN_SHIFT;
const EPOCH_SHIFT: u32 = 24;
const EPOCH_MASK: u64 = 0xff << EPOCH_SHIFT;
const ENTRY_SHIFT: u32 = 32;

/// Highest heat a page can have.
pub const HEAT_MAX: u64 = 15;
/// Highest pin count of a word; a page pinned this often accepts no more pins.
pub const PINS_MAX: u64 = 255;

/// A word's value, decoded on demand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(pub u64);

impl core::fmt::Debug for Word {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (flags, entry) = ((self.0 >> 8) & 0xff, self.entry().0);
        write!(
            f,
            "{:?} heat {} flags {flags:#04x} pins {}",
            self.state(),
            self.heat(),
            self.pins()
        )?;
        write!(f, " epoch {} entry {entry}", self.epoch())
    }
}

impl Word {
    /// The page's state, from the word's low four bits.
    #[inline(always)]
    pub fn state(self) -> State {
        State::of(self.0)
    }
    /// The same word in another state.
    #[inline(always)]
    pub fn with_state(self, s: State) -> Word {
        Word((self.0 & !0xf) | s as u64)
    }
    /// The entry that the page owns.
    #[inline(always)]
    pub fn entry(self) -> SwapEntry {
        SwapEntry((self.0 >> ENTRY_SHIFT) as u32)
    }
    /// The same word with another entry.
    #[inline(always)]
    pub fn with_entry(self, e: SwapEntry) -> Word {
        Word((self.0 & 0xffff_ffff) | ((e.0 as u64) << ENTRY_SHIFT))
    }
    /// Whether any of `mask`'s flags is set.
    #[inline(always)]
    pub fn has(self, mask: u64) -> bool {
        self.0 & mask != 0
    }
    /// Whether all of `mask`'s flags are set.
    #[inline(always)]
    pub fn has_all(self, mask: u64) -> bool {
        self.0 & mask == mask
    }
    /// The same word with `mask`'s flags set.
    #[inline(always)]
    pub fn set(self, mask: u64) -> Word {
        Word(self.0 | mask)
    }
    /// The same word with `mask`'s flags cleared.
    #[inline(always)]
    pub fn clear(self, mask: u64) -> Word {
        Word(self.0 & !mask)
    }
    /// Heat, 0 to [`HEAT_MAX`].
    #[inline(always)]
    pub fn heat(self) -> u64 {
        (self.0 & HEAT_MASK) >> HEAT_SHIFT
    }
    /// The same word with this heat (saturating).
    #[inline(always)]
    pub fn with_heat(self, h: u64) -> Word {
        Word((self.0 & !HEAT_MASK) | (h.min(HEAT_MAX) << HEAT_SHIFT))
    }
    /// Pins held by system calls in progress.
    #[inline(always)]
    pub fn pins(self) -> u64 {
        (self.0 & PIN_MASK) >> PIN_SHIFT
    }
    /// The same word with this many pins.
    #[inline(always)]
    pub fn with_pins(self, n: u64) -> Word {
        debug_assert!(n <= PINS_MAX);
        Word((self.0 & !PIN_MASK) | (n << PIN_SHIFT))
    }
    /// Coarse eviction time, for the refault distance.
    #[inline(always)]
    pub fn epoch(self) -> u8 {
        ((self.0 & EPOCH_MASK) >> EPOCH_SHIFT) as u8
    }
    /// The same word with this eviction time.
    #[inline(always)]
    pub fn with_epoch(self, e: u8) -> Word {
        Word((self.0 & !EPOCH_MASK) | ((e as u64) << EPOCH_SHIFT))
    }
    /// Whether a page that is resident, or being evicted, certainly equals its far copy.
    #[inline(always)]
    pub fn is_clean(self) -> bool {
        const BOTH: u64 = flag::PROTECTED | flag::FAR_COPY;
        matches!(self.state(), State::Resident | State::Evicting)
            && self.0 & BOTH == BOTH
            && self.entry().is_some()
    }
    /// Whether reclaim may take it now.
    #[inline(always)]
    pub fn evictable(self) -> bool {
        self.state() == State::Resident && self.0 & (PIN_MASK | flag::STUCK | flag::LOCKED) == 0
    }
}

/// Reads a word.
#[inline(always)]
pub fn load(w: &AtomicU64) -> Word {
    Word(w.load(Ordering::Acquire))
}

/// Moves a word from `old` to `new`; returns false if another thread was faster.
#[inline(always)]
pub fn transition(w: &AtomicU64, old: Word, new: Word) -> bool {
    debug_assert!(old.state() == new.state() || old.state().may_become(new.state()));
    w.compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

/// Publishes the end of a busy state. The owner may change all of a busy word except the pins: a system call may end
/// and drop its pin while a mapping call works on the page. So the pins of `new` are ignored, and the word keeps its
/// own.
#[inline(always)]
pub fn publish(w: &AtomicU64, new: Word) {
    let mut cur = load(w);
    debug_assert!(cur.state().is_busy());
    debug_assert!(cur.state().may_become(new.state()));
    while let Err(now) = w.compare_exchange_weak(
        cur.0,
        new.with_pins(cur.pins()).0,
        Ordering::AcqRel,
        Ordering::Acquire,
    ) {
        cur = Word(now);
    }
}

/// Pins a page that is resident and writable; returns false for any other page (the caller resolves it first). At
/// [`PINS_MAX`] the count sticks (if hundreds of threads wait on one futex): the page stays pinned.
#[inline(always)]
pub fn pin(w: &AtomicU64) -> bool {
    let mut cur = load(w);
    loop {
        if cur.state() != State::Resident || cur.has(flag::PROTECTED) {
            return false;
        }
        if cur.pins() == PINS_MAX {
            return true;
        }
        match w.compare_exchange_weak(
            cur.0,
            cur.with_pins(cur.pins() + 1).0,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return true,
            Err(now) => cur = Word(now),
        }
    }
}

/// Drops a pin, whatever the page's state is now: a mapping call may have discarded the page meanwhile, but pins stay
/// with the word until they are dropped.
#[inline(always)]
pub fn unpin(w: &AtomicU64) {
    let mut cur = load(w);
    loop {
        if cur.pins() == 0 || cur.pins() == PINS_MAX {
            return;
        }
        match w.compare_exchange_weak(
            cur.0,
            cur.with_pins(cur.pins() - 1).0,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return,
            Err(now) => cur = Word(now),
        }
    }
}
