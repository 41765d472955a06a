//! Copies in the pool of pages that are in local memory: a cache, and so the first to go when the pool, ours
//! or that of a relative or neighbour in the tenant, has no room.
//!
//! A page that is taken here is claimed for the moment, as a bystander of reclaim is; it stays where it is.

use canvas_shm::Counter;
use canvas_swap::Spared;
use canvas_swap::extent::EXTENT_BYTES;
use canvas_types::SwapEntry;
use canvas_types::sync::{AtomicU64, Ordering};

use crate::room;
use crate::state::new;
use crate::traits::{Becomes, Owner};

/// No look before these moments: the last one found none, or, of those that lie beyond the pool too, too few.
pub(crate) struct Rests {
    none_until_ns: AtomicU64,
    no_homes_until_ns: AtomicU64,
}

impl Rests {
    new!(
        "None.",
        Rests {
            none_until_ns: AtomicU64::new(0),
            no_homes_until_ns: AtomicU64::new(0),
        }
    );
}

/// Pause after it.
const NONE_NS: u64 = 2_000_000;
/// After a look for copies that lie beyond the pool too, which found less than was asked for, this many times what it
/// took: so few of many pages are not worth more of the processor.
const FEW_TIMES: u64 = 20;
/// Pages that such a look goes over: some 60 us, as whoever waits for the processor may be a fault.
const HOMES_LOOK_MAX: usize = 1 << 14;
/// Pages that one look for what is given up goes over.
const LOOK_MAX: usize = 1 << 18;

/// What a look came to.
#[derive(Default)]
struct Gone {
    bytes: usize,
    demoted: u64,
    dropped: u64,
}

/// Lets `spare` have the entries of resident pages until `enough` of it is gone.
fn sweep<O: Owner>(
    owner: &O,
    look_max: usize,
    spare: impl Fn(SwapEntry) -> Spared,
    enough: impl Fn(&Gone) -> bool,
) -> Gone {
    let mut gone = Gone::default();
    owner.with_copies(look_max, |page, seen| {
        if enough(&gone) {
            return false;
        }
        let entry = O::entry(seen);
        // Only a hint, before the page is claimed: the entry may be another's by now.
        let pool = owner.pool();
        let is_there = pool.stored_len(entry).is_some() && pool.node_of(entry).is_none();
        if !is_there || !owner.claim(page, seen) {
            return true;
        }
        let spared = spare(entry);
        owner.publish(page, seen, without(spared));
        match spared {
            Spared::Nothing => {}
            Spared::Sunk(bytes) => {
                gone.demoted += 1;
                gone.bytes += bytes;
            }
            Spared::Dropped(bytes) => {
                gone.dropped += 1;
                gone.bytes += bytes;
            }
        }
        true
    });
    owner.count(Counter::PagesSunkUnwritten, gone.demoted);
    owner.count(Counter::PoolCopiesDropped, gone.dropped);
    gone
}

/// What a resident page is after that.
fn without(spared: Spared) -> Becomes {
    match spared {
        Spared::Dropped(_) => Becomes::NoCopy,
        Spared::Nothing | Spared::Sunk(_) => Becomes::AsBefore,
    }
}

/// The same, not again soon where there was nothing; bytes of slots.
fn sweep_at(
    owner: &impl Owner,
    (rest, look_max): (&AtomicU64, usize),
    spare: impl Fn(SwapEntry) -> Spared,
    enough: impl Fn(&Gone) -> bool,
) -> usize {
    let now = owner.now_ns();
    if rest.load(Ordering::Relaxed) > now {
        return 0;
    }
    let bytes = sweep(owner, look_max, spare, enough).bytes;
    if bytes == 0 {
        rest.store(owner.now_ns() + NONE_NS, Ordering::Relaxed);
    }
    bytes
}

/// Frees about `bytes` of slots of copies that lie beyond the pool, too: nothing is lost. True when there
/// were any.
pub(crate) fn demote(owner: &impl Owner, bytes: usize) -> bool {
    let spare = |entry| match owner.pool().demote_home(entry) {
        Some(bytes) => Spared::Sunk(bytes),
        None => Spared::Nothing,
    };
    let rest = &owner.state().copies.no_homes_until_ns;
    let begun = owner.now_ns();
    let freed = sweep_at(owner, (rest, HOMES_LOOK_MAX), spare, |gone| {
        gone.bytes >= bytes
    });
    if (1..bytes).contains(&freed) {
        let now = owner.now_ns();
        rest.store(
            now + FEW_TIMES * now.saturating_sub(begun),
            Ordering::Relaxed,
        );
    }
    freed > 0
}

/// What is freed of the slots of resident pages: while nothing can be written beyond the pool, only what lies there as
/// well, since without its copy a page could not leave local memory again.
fn spare<O: Owner>(owner: &O) -> impl Fn(SwapEntry) -> Spared + '_ {
    let is_closed = room::is_closed(owner);
    move |entry| match owner.pool().demote_home(entry) {
        Some(bytes) => Spared::Sunk(bytes),
        None if is_closed => Spared::Nothing,
        None => owner.pool().spare(entry),
    }
}

/// Frees about `bytes` of slots, of whatever copies of resident pages there are. True when there were any.
pub(crate) fn give_up(owner: &impl Owner, bytes: usize) -> bool {
    let spare = spare(owner);
    let rest = &owner.state().copies.none_until_ns;
    sweep_at(owner, (rest, LOOK_MAX), spare, |gone| gone.bytes >= bytes) > 0
}

/// Gives back slabs of the pool with so many bytes, if that can be done at once: empty ones, then those that
/// copies of resident pages are in. The bytes that were given.
pub fn give_slabs(owner: &impl Owner, bytes: i64) -> i64 {
    let pool = owner.pool();
    let before = pool.charged_bytes();
    pool.trim();
    if before - pool.charged_bytes() < bytes {
        let spare = spare(owner);
        let rest = &owner.state().copies.none_until_ns;
        sweep_at(owner, (rest, LOOK_MAX), spare, |_| {
            pool.empty_bytes() >= bytes
        });
        pool.trim();
    }
    before - pool.charged_bytes()
}

/// The pool is full: frees as much as an extent takes. True when a store may fit now. Not at the far limit:
/// that is to be noticed, and not put off by a few pages at a time.
#[cold]
pub fn make_room(owner: &impl Owner) -> bool {
    room::takes_more(owner) && give_up(owner, EXTENT_BYTES)
}
