//! When a page has a swap entry: the state machine of Canvas fig. 7, and its decisions.
//!
//! Pages start with a lifelong reservation: the entry allocated at the first swap-out stays the page's, so later
//! swap-outs take no lock (space for time). Past [`PRESSURE_ENTER_PERCENT`] of the far limit, *hot* resident pages lose
//! theirs (time for space).
//!
//! The pager stores no state of this machine: it follows from the page word (resident or far, with or without an entry,
//! hot or not). The decisions are [`on_swap_out`], [`on_swap_in`] and [`on_pass`]; [`step`] is the whole machine, built
//! on them.
//!
//! Beyond the figure, a page may release its entry as it comes in: where far memory is nearly full, and always with
//! reservations switched off, which is how Linux allocates entries and what Canvas compares itself with (§3, fig. 4;
//! table 4).

/// Percent of the far limit at which hot pages begin to lose their entries (§5.1).
pub const PRESSURE_ENTER_PERCENT: u64 = 75;
/// Percent at which that ends; lower, so that one freed slab does not end it.
pub const PRESSURE_LEAVE_PERCENT: u64 = 70;
/// Percent above which a page that comes in releases its far copy.
pub const NEARLY_FULL_PERCENT: u64 = 90;

/// The states of fig. 7, with its numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PageState {
    /// Never swapped out.
    Init = 1,
    /// About to be swapped out, owns no entry.
    ColdNoEntry = 2,
    /// Resident and hot; its entry was removed.
    HotNoEntry = 3,
    /// The page is swapped out: its entry holds its only copy.
    InRemote = 4,
    /// Resident and still owns the entry it came from.
    ColdWithEntry = 5,
}

impl PageState {
    /// All states, by number.
    pub const ALL: [PageState; 5] = [
        PageState::Init,
        PageState::ColdNoEntry,
        PageState::HotNoEntry,
        PageState::InRemote,
        PageState::ColdWithEntry,
    ];

    /// Whether the page owns an entry. (A page of zeros is remote without one; the machine treats that as a swap-in
    /// without an entry.)
    pub fn has_entry(self) -> bool {
        matches!(self, PageState::InRemote | PageState::ColdWithEntry)
    }
    /// Whether the page is in local memory.
    pub fn is_local(self) -> bool {
        self != PageState::InRemote
    }
}

/// What happens to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Reclaim chose the page.
    Evict,
    /// A fault or a prefetch brought it back; without an entry when it was a page of zeros, which
    /// stores nothing.
    SwapIn {
        /// The page came back from an entry.
        has_entry: bool,
        /// Whether it may keep it: reservations are on, and far memory is not nearly full.
        reserve: bool,
    },
    /// Reclaim passed over the resident page.
    Pass {
        /// The page was found in use on consecutive passes.
        hot: bool,
        /// Far memory is under pressure.
        pressure: bool,
    },
}

/// What to do on an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Nothing.
    None,
    /// Allocate an entry and write the page there; one allocation in a batch takes the lock.
    SwapOutLocked,
    /// Write the page to the entry it owns.
    SwapOutReserved,
    /// Remove the entry and free it, with its far copy.
    DropReservation,
}

/// Where a swap-out gets its entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alloc {
    /// From the allocator, which takes its lock for a batch of entries.
    Locked,
    /// From the page, without a lock.
    Reserved,
}

/// What happens to a resident page's reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reservation {
    /// It stays unchanged.
    Keep,
    /// It is removed.
    Drop,
}

/// Where the swap-out of a page gets its entry.
#[inline]
pub fn on_swap_out(has_entry: bool) -> Alloc {
    if has_entry {
        Alloc::Reserved
    } else {
        Alloc::Locked
    }
}

/// What happens to the entry from which a page came in. `reserve`: it may be kept.
#[inline]
pub fn on_swap_in(has_entry: bool, reserve: bool) -> Reservation {
    if has_entry && !reserve {
        Reservation::Drop
    } else {
        Reservation::Keep
    }
}

/// What happens to the reservation of a resident page that reclaim passes over.
#[inline]
pub fn on_pass(hot: bool, pressure: bool, has_entry: bool) -> Reservation {
    if hot && pressure && has_entry {
        Reservation::Drop
    } else {
        Reservation::Keep
    }
}

/// Whether far memory is under pressure, given whether it was, with `used` of `limit` (any one unit).
#[inline]
pub fn pressure(was: bool, used: u64, limit: u64) -> bool {
    let percent = if was {
        PRESSURE_LEAVE_PERCENT
    } else {
        PRESSURE_ENTER_PERCENT
    };
    used as u128 * 100 >= limit as u128 * percent as u128
}

/// Whether far memory is nearly full, with `used` of `limit`.
#[inline]
pub fn nearly_full(used: u64, limit: u64) -> bool {
    used as u128 * 100 > limit as u128 * NEARLY_FULL_PERCENT as u128
}

/// One step of fig. 7; `None` for an event that cannot happen in that state.
pub fn step(state: PageState, event: Event) -> Option<(PageState, Action)> {
    use PageState::*;
    match event {
        Event::Evict if state.is_local() => match on_swap_out(state.has_entry()) {
            Alloc::Reserved => Some((InRemote, Action::SwapOutReserved)),
            Alloc::Locked => Some((InRemote, Action::SwapOutLocked)),
        },
        Event::SwapIn { has_entry, reserve } if state == InRemote => {
            Some(match on_swap_in(has_entry, reserve) {
                Reservation::Drop => (ColdNoEntry, Action::DropReservation),
                Reservation::Keep if has_entry => (ColdWithEntry, Action::None),
                Reservation::Keep => (ColdNoEntry, Action::None),
            })
        }
        Event::Pass { hot, pressure } if state.is_local() => {
            match on_pass(hot, pressure, state.has_entry()) {
                Reservation::Drop => Some((HotNoEntry, Action::DropReservation)),
                // A hot page that went cold waits for eviction like a new one; one that owns an entry, hot or not,
                // loses nothing without pressure.
                Reservation::Keep => Some((
                    if state == HotNoEntry && !hot {
                        ColdNoEntry
                    } else {
                        state
                    },
                    Action::None,
                )),
            }
        }
        _ => None,
    }
}
