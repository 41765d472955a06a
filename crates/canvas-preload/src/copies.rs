//! Copies in the pool of pages that are in local memory: a cache, and so the first to go when the pool, ours
//! or that of a relative or neighbour in the tenant, has no room.
//!
//! A page that is taken here is held Evicting for the moment, as a bystander of reclaim is; it stays where
//! it is.

use canvas_backend::Spared;
use canvas_pager::copies::CopyHand;
use canvas_pager::word::{self, State, Word, flag};
use canvas_shm::Counter;
use canvas_swap::extent::EXTENT_BYTES;
use canvas_sys::proc;
use canvas_types::SwapEntry;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::pool::pool;
use crate::state::count;
use crate::{areas, deep, state};

static HAND: CopyHand = CopyHand::new();
/// No look before this moment: the last one found none, of either kind.
static NONE_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
static NO_HOMES_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// Pause after it.
const NONE_NS: u64 = 2_000_000;
/// Words that one look goes over.
const LOOK_MAX: usize = 1 << 18;

/// What a look came to.
#[derive(Default)]
struct Gone {
    bytes: usize,
    sunk: u64,
    dropped: u64,
}

/// Lets `spare` have the entries of resident pages until `enough` of it is gone.
fn sweep(spare: impl Fn(SwapEntry) -> Spared, enough: impl Fn(&Gone) -> bool) -> Gone {
    let mut gone = Gone::default();
    HAND.scan(&areas::table(), LOOK_MAX, |page, cur| {
        if enough(&gone) {
            return false;
        }
        // Only a hint, before the page is held: the entry may be another's by now.
        if pool().stored_len(cur.entry()).is_none() {
            return true;
        }
        let w = areas::word(page);
        if !word::transition(w, cur, cur.with_state(State::Evicting)) {
            return true;
        }
        let spared = spare(cur.entry());
        word::publish(w, without(cur, spared));
        match spared {
            Spared::Nothing => {}
            Spared::Sunk(bytes) => {
                gone.sunk += 1;
                gone.bytes += bytes;
            }
            Spared::Dropped(bytes) => {
                gone.dropped += 1;
                gone.bytes += bytes;
            }
        }
        true
    });
    count(Counter::PagesSunkUnwritten, gone.sunk);
    count(Counter::PoolCopiesDropped, gone.dropped);
    gone
}

/// The word of a resident page after that.
fn without(cur: Word, spared: Spared) -> Word {
    match spared {
        Spared::Dropped(_) => cur.clear(flag::FAR_COPY),
        Spared::Nothing | Spared::Sunk(_) => cur,
    }
}

/// The same, not again soon where there was nothing; bytes of slots.
fn sweep_at(
    rest: &AtomicU64,
    spare: impl Fn(SwapEntry) -> Spared,
    enough: impl Fn(&Gone) -> bool,
) -> usize {
    let now = proc::now_ns();
    if rest.load(Ordering::Relaxed) > now {
        return 0;
    }
    let bytes = sweep(spare, enough).bytes;
    if bytes == 0 {
        rest.store(now + NONE_NS, Ordering::Relaxed);
    }
    bytes
}

/// Frees about `bytes` of slots of copies that lie beyond the pool, too: nothing is lost. True when there
/// were any.
pub fn sink(bytes: usize) -> bool {
    let spare = |entry| match pool().sink_home(entry) {
        Some(bytes) => Spared::Sunk(bytes),
        None => Spared::Nothing,
    };
    sweep_at(&NO_HOMES_UNTIL_NS, spare, |gone| gone.bytes >= bytes) > 0
}

/// Frees about `bytes` of slots, of whatever copies of resident pages there are. True when there were any.
pub fn give_up(bytes: usize) -> bool {
    let spare = |entry| pool().spare(entry);
    sweep_at(&NONE_UNTIL_NS, spare, |gone| gone.bytes >= bytes) > 0
}

/// The pool is full: frees as much as an extent takes. True when a store may fit now. Not at the far limit:
/// that is to be noticed, and not put off by a few pages at a time.
#[cold]
pub fn make_room() -> bool {
    deep::takes_more() && give_up(EXTENT_BYTES)
}

/// Gives back what others in the tenant ask for, if they do: empty slabs, then those that copies of resident
/// pages are in, then those of the pages that were swapped out longest ago, when they have been written.
/// True when something was given, or will be.
pub fn give_to_others() -> bool {
    let wanted = &state::slot().pool_wanted_bytes;
    let bytes = wanted.load(Ordering::Relaxed);
    if bytes <= 0 {
        return false;
    }
    let before = pool().charged_bytes();
    let given = || before - pool().charged_bytes();
    pool().trim();
    if given() < bytes {
        let spare = |entry| pool().spare(entry);
        sweep_at(&NONE_UNTIL_NS, spare, |_| pool().empty_bytes() >= bytes);
        pool().trim();
    }
    let mut worked = given() > 0;
    if given() < bytes {
        worked |= deep::write_for_others(bytes);
    }
    wanted.store(0, Ordering::Relaxed);
    worked
}
