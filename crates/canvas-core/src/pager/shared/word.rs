//! The word of a shared page: state, owner and the entry of its far copy.
//!
//! ```text
//!  63                          14 13            4   3 2     0
//! ┌──────────────────────────────┬───────────────┬───┬───────┐
//! │ entry                        │ owner         │ R │ state │
//! └──────────────────────────────┴───────────────┴───┴───────┘
//! ```
//!
//! The words lie in memory that all processes of the tenant share. A word of zero is a page that was never touched. The
//! owner (a process slot) is meaningful only in the Filling states.

use canvas_types::sync::{AtomicU64, Ordering};

/// Where a shared page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// Never touched: reads as zeros.
    Untouched = 0,
    /// Busy: the owner handles a first touch.
    FillingNew = 1,
    /// In memory, for all mappers.
    Resident = 2,
    /// Busy: the lock holder is evicting it.
    Evicting = 3,
    /// Only the far copy exists; without an entry the page is zeros.
    Far = 4,
    /// Busy: the owner is bringing the far copy in.
    FillingFar = 5,
    /// The far copy failed verification: a touch delivers SIGBUS.
    Poisoned = 6,
}

impl State {
    /// Decodes the low three bits of a word.
    pub fn of(raw: u64) -> State {
        match raw & 0x7 {
            0 => State::Untouched,
            1 => State::FillingNew,
            2 => State::Resident,
            3 => State::Evicting,
            4 => State::Far,
            5 => State::FillingFar,
            _ => State::Poisoned,
        }
    }
    /// The legal transitions, except those of a region that no process maps any more.
    pub fn may_become(self, next: State) -> bool {
        use State::*;
        match self {
            Untouched => next == FillingNew,
            FillingNew => matches!(next, Resident | Untouched),
            Resident => next == Evicting,
            Evicting => matches!(next, Resident | Far),
            Far => next == FillingFar,
            FillingFar => matches!(next, Resident | Far | Poisoned),
            Poisoned => false,
        }
    }
}

/// Where a far copy lies; the store defines what the bits mean. Zero: there is none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Entry(pub u64);

/// Bits of an entry.
pub const ENTRY_BITS: u32 = 50;

impl Entry {
    /// The entry of a page without a far copy.
    pub const NONE: Entry = Entry(0);
    /// Whether there is a copy.
    pub fn is_some(self) -> bool {
        self != Entry::NONE
    }
}

/// Of a resident page: filled since the eviction hand last passed. Of a far page: evicted since the hand passed that
/// moves copies beyond the store.
const REFERENCED: u64 = 1 << 3;
const OWNER_SHIFT: u32 = 4;
const OWNER_BITS: u32 = 10;
const OWNER_MASK: u64 = ((1 << OWNER_BITS) - 1) << OWNER_SHIFT;
const ENTRY_SHIFT: u32 = OWNER_SHIFT + OWNER_BITS;

const _: () = assert!(ENTRY_SHIFT + ENTRY_BITS == u64::BITS);

/// A word's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word(pub u64);

impl Word {
    /// Builds a word from its parts.
    pub fn new(state: State, owner: u16, entry: Entry) -> Word {
        debug_assert!(entry.0 < 1 << ENTRY_BITS && u32::from(owner) < 1 << OWNER_BITS);
        Word(entry.0 << ENTRY_SHIFT | u64::from(owner) << OWNER_SHIFT | state as u64)
    }
    /// The page's state, from the word's low bits.
    pub fn state(self) -> State {
        State::of(self.0)
    }
    /// The process slot that fills the page.
    pub fn owner(self) -> u16 {
        ((self.0 & OWNER_MASK) >> OWNER_SHIFT) as u16
    }
    /// The far copy.
    pub fn entry(self) -> Entry {
        Entry(self.0 >> ENTRY_SHIFT)
    }
    /// This word with another copy.
    pub fn with_entry(self, entry: Entry) -> Word {
        debug_assert!(entry.0 < 1 << ENTRY_BITS);
        Word(entry.0 << ENTRY_SHIFT | self.0 & ((1 << ENTRY_SHIFT) - 1))
    }
    /// Whether the referenced bit is set.
    pub fn is_referenced(self) -> bool {
        self.0 & REFERENCED != 0
    }
    /// This word with the referenced bit set.
    pub fn referenced(self) -> Word {
        Word(self.0 | REFERENCED)
    }
    /// This word with the referenced bit cleared.
    pub fn unreferenced(self) -> Word {
        Word(self.0 & !REFERENCED)
    }
    /// Whether `owner` is filling the page.
    pub fn is_filled_by(self, owner: u16) -> bool {
        matches!(self.state(), State::FillingNew | State::FillingFar) && self.owner() == owner
    }
    /// The word after a fill has ended: Resident if `is_present`, else the state before the fill.
    pub fn filled(self, is_present: bool) -> Word {
        let state = match (is_present, self.state()) {
            (true, _) => State::Resident,
            (false, State::FillingNew) => State::Untouched,
            (false, _) => State::Far,
        };
        let word = Word::new(state, 0, self.entry());
        if is_present { word.referenced() } else { word }
    }
}

/// Reads a word.
pub fn load(w: &AtomicU64) -> Word {
    Word(w.load(Ordering::Acquire))
}

/// Moves a word from `old` to `new`; returns false if another thread was faster.
pub fn transition(w: &AtomicU64, old: Word, new: Word) -> bool {
    debug_assert!(old.state() == new.state() || old.state().may_become(new.state()));
    w.compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::Relaxed)
        .is_ok()
}
