//! Copies in the pool of pages that are in local memory: a cache, and therefore the first to be freed when this
//! process's pool, or that of a relative or neighbour in the tenant, has no room.
//!
//! A page that is processed here is claimed briefly, as by reclaim; it stays local.

use crate::swap::FreedCopy;
use crate::swap::extent::EXTENT_BYTES;
use canvas_shm::Counter;
use canvas_types::SwapEntry;
use canvas_types::sync::{AtomicU64, Ordering};

use crate::far::room;
use crate::far::traits::{FarStore, Host, Owner, PageOutcome};

/// Pause after a search that found none.
const NONE_NS: u64 = 2_000_000;
/// Pause after a search for copies that are also far, which found less than requested: this many times its duration.
/// Few hits among many pages are not worth more processor time.
const FEW_TIMES: u64 = 20;
/// Pages that such a search visits: some 60 us, because the thread that waits for the processor may be handling a
/// fault.
const HOMES_SCAN_MAX: usize = 1 << 14;
/// Pages that a search for copies to drop visits.
const SCAN_MAX: usize = 1 << 18;

/// The result of a search.
#[derive(Default)]
struct Gone {
    bytes: usize,
    demoted: u64,
    dropped: u64,
}

/// Passes the entries of resident pages to `free_copy` until `enough` returns true.
fn sweep<O: Owner>(
    owner: &O,
    scan_max: usize,
    free_copy: impl Fn(SwapEntry) -> FreedCopy,
    enough: impl Fn(&Gone) -> bool,
) -> Gone {
    let mut gone = Gone::default();
    owner.with_copies(scan_max, |page, seen| {
        if enough(&gone) {
            return false;
        }
        let entry = O::entry(seen);
        // Only a hint, before the page is claimed: the entry may belong to another page by now.
        let pool = owner.pool();
        let is_there = pool.stored_len(entry).is_some() && pool.node_of(entry).is_none();
        if !is_there || !owner.claim(page, seen) {
            return true;
        }
        let freed = free_copy(entry);
        owner.publish(page, seen, without(freed));
        match freed {
            FreedCopy::Nothing => {}
            FreedCopy::Demoted(bytes) => {
                gone.demoted += 1;
                gone.bytes += bytes;
            }
            FreedCopy::Dropped(bytes) => {
                gone.dropped += 1;
                gone.bytes += bytes;
            }
        }
        true
    });
    owner.count(Counter::PagesDemotedUnwritten, gone.demoted);
    owner.count(Counter::PoolCopiesDropped, gone.dropped);
    gone
}

/// What a resident page becomes after that.
fn without(freed: FreedCopy) -> PageOutcome {
    match freed {
        FreedCopy::Dropped(_) => PageOutcome::NoCopy,
        FreedCopy::Nothing | FreedCopy::Demoted(_) => PageOutcome::Unchanged,
    }
}

/// As [`sweep`], with a pause after a search that found nothing; returns bytes of slots.
fn sweep_at(
    owner: &impl Owner,
    (rest, scan_max): (&AtomicU64, usize),
    free_copy: impl Fn(SwapEntry) -> FreedCopy,
    enough: impl Fn(&Gone) -> bool,
) -> usize {
    let now = owner.now_ns();
    if rest.load(Ordering::Relaxed) > now {
        return 0;
    }
    let bytes = sweep(owner, scan_max, free_copy, enough).bytes;
    if bytes == 0 {
        rest.store(owner.now_ns() + NONE_NS, Ordering::Relaxed);
    }
    bytes
}

/// Frees about `bytes` of slots of copies that are also far: nothing is lost. True when there were any.
pub(crate) fn demote(owner: &impl Owner, bytes: usize) -> bool {
    let free_copy = |entry| match owner.pool().demote_home(entry) {
        Some(bytes) => FreedCopy::Demoted(bytes),
        None => FreedCopy::Nothing,
    };
    let rest = &owner.state().copies.no_homes_until_ns;
    let begun = owner.now_ns();
    let freed = sweep_at(owner, (rest, HOMES_SCAN_MAX), free_copy, |gone| {
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

/// Which slots of resident pages may be freed: while nothing can be written to far memory, only those whose copy is
/// also there, since without its copy a page could not be evicted again.
fn free_copy<O: Owner>(owner: &O) -> impl Fn(SwapEntry) -> FreedCopy + '_ {
    let is_closed = room::is_closed(owner);
    move |entry| match owner.pool().demote_home(entry) {
        Some(bytes) => FreedCopy::Demoted(bytes),
        None if is_closed => FreedCopy::Nothing,
        None => owner.pool().free_cached_copy(entry),
    }
}

/// Frees about `bytes` of slots of any copies of resident pages. True when there were any.
pub(crate) fn give_up(owner: &impl Owner, bytes: usize) -> bool {
    let free_copy = free_copy(owner);
    let rest = &owner.state().copies.none_until_ns;
    sweep_at(owner, (rest, SCAN_MAX), free_copy, |gone| {
        gone.bytes >= bytes
    }) > 0
}

/// Gives back about `bytes` of the pool's slabs, if that is possible at once: empty ones, then those with copies of
/// resident pages. Returns the bytes given back.
pub fn give_slabs(owner: &impl Owner, bytes: i64) -> i64 {
    let pool = owner.pool();
    let before = pool.charged_bytes();
    pool.trim();
    if before - pool.charged_bytes() < bytes {
        let free_copy = free_copy(owner);
        let rest = &owner.state().copies.none_until_ns;
        sweep_at(owner, (rest, SCAN_MAX), free_copy, |_| {
            pool.empty_bytes() >= bytes
        });
        pool.trim();
    }
    before - pool.charged_bytes()
}

/// The pool is full: frees as much as an extent takes. True when a store may fit now. Not at the far limit, which must
/// be noticed, and not postponed by a few pages at a time.
#[cold]
pub fn make_room(owner: &impl Owner) -> bool {
    room::takes_more(owner) && give_up(owner, EXTENT_BYTES)
}

/// As [`room::pool_has_room`], where local memory is free and promoted pages soon move on to it: room within our own slabs
/// counts, and so does what copies of resident pages can free.
pub fn pool_makes_way(far: &impl FarStore) -> bool {
    const BYTES: usize = 2 * EXTENT_BYTES;
    let owner = far.owner();
    let percent = far.demote_percent().saturating_sub(10) as i64;
    let left = room::pool_room_bytes(owner) - owner.pool_bound_bytes() / 100 * (100 - percent);
    left > 0 || demote(owner, BYTES) || give_up(owner, BYTES)
}
