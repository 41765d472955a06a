//! Demotion: when the pool is past its mark, the reclaim thread packs its oldest pages, as they are stored, into an
//! extent ([`crate::swap::extent`]) and posts it to the agent. Until the agent reports that it is durable the pool
//! keeps its copies; then those that are unchanged are demoted.

use crate::swap::extent::{EXTENT_BYTES, Packer, record_bytes};
use canvas_shm::Counter;
use canvas_shm::mailbox::WRITES;
use canvas_types::sync::Ordering;

use crate::far::channel;
use crate::far::compact;
use crate::far::completion::finish_all;
use crate::far::job::JobKind;
use crate::far::resident_copies;
use crate::far::room;
use crate::far::traits::{FarStore, Host, Owner, PageOutcome, Pages, PoolPeer, Request};

/// Pause after such a search.
const FOUND_NONE_NS: u64 = 2_000_000;

/// Pages that one round of the hand visits.
const SCAN_MAX: usize = 1 << 18;

/// The reclaim thread's round: completes requests that have ended, and writes the pool's excess. True when it did
/// something.
pub fn background_round(far: &impl FarStore) -> bool {
    let owner = far.owner();
    let state = owner.state();
    let mut worked = finish_all(far);
    loop {
        if room::is_over(owner) {
            owner.pool().trim();
        }
        let excess = room::excess_bytes(far);
        if excess <= 0 {
            break;
        }
        // The cheapest first: copies that are also far; pages that must be written; copies that would have to be
        // compressed again.
        let gone = resident_copies::demote(owner, excess as usize)
            || state.demotion.found_none_until_ns.load(Ordering::Relaxed) < owner.now_ns()
                && write_some(far, Some(SCAN_MAX))
            || state.writes.is_closed() && leave_unwritten(owner, excess as usize)
            || state.writes.bytes() == 0 && resident_copies::give_up(owner, excess as usize);
        if !gone {
            break;
        }
        worked = true;
    }
    compact::round(far, false) || worked
}

/// Writes the pages evicted longest ago, whether the pool is full or not, because another process asks for `bytes` of
/// it. True when something is under way.
pub fn write_for_others(far: &impl FarStore, bytes: i64) -> bool {
    let writes = &far.owner().state().writes;
    finish_all(far);
    while writes.bytes() < bytes && write_some(far, Some(SCAN_MAX)) {}
    writes.bytes() > 0
}

/// How long the reclaim thread may sleep: writes under way are completed when it wakes.
pub fn idle_ns(owner: &impl Owner) -> u64 {
    let state = owner.state();
    if state.writes.bytes() > 0 || compact::works(state) {
        300_000
    } else {
        u64::MAX
    }
}

/// The pool is full: waits until something is demoted. False when nothing will be. Waits for unreachable donors as
/// reads do, including pauses between two attempts: one of several may have died, and another takes its place within
/// seconds.
#[cold]
pub fn make_room(far: &impl FarStore) -> bool {
    /// Pause between two polls.
    const POLL_NS: u64 = 10_000;
    /// Pause between two polls while donors are away.
    const AWAY_POLL_NS: u64 = 1_000_000;
    /// How long to wait for other processes, when they have all of the pool; and how long for the one with the largest
    /// part, before all are asked.
    const OTHERS_WAIT_NS: u64 = 1_000_000_000;
    const LARGEST_WAIT_NS: u64 = 20_000_000;
    /// How often to search for pages where there appear to be none: between two searches of one thread others may have
    /// used all of them, or hold them.
    const SEARCHES_MAX: u32 = 100;
    let owner = far.owner();
    let state = owner.state();
    let writes = &state.writes;
    let mut searches = 0;
    let begun = owner.now_ns();
    let wait_ns = far.wait_ns_max();
    let made_before = writes.made();
    let used_before = owner.pool_bytes();
    let mut asked = false;
    loop {
        finish_all(far);
        if writes.made() != made_before || owner.pool_bytes() < used_before {
            return true;
        }
        if writes.is_stalled() {
            return false;
        }
        // As many as there are requests for.
        let found = loop {
            match write_next(far, None) {
                Wrote::Some => {}
                none => break none,
            }
        };
        if writes.have_failed() {
            compact::round(far, true);
        }
        let now = owner.now_ns();
        let waited_ns = now - begun;
        // An agent that died may have kept requests of a process that died: the next agent releases them.
        let under_way =
            writes.bytes() > 0 || compact::works(state) || matches!(found, Wrote::NoRequest);
        let pauses = matches!(found, Wrote::Paused) && writes.is_newly_closed(now, wait_ns);
        if under_way || pauses {
            // A process with less than another need not make do with only that.
            if !asked {
                owner.ask_for_pool(PoolPeer::Larger);
                asked = true;
            }
            if waited_ns > wait_ns {
                writes.stall(under_way);
                writes.note_failed();
                return false;
            }
        } else {
            let peer = if waited_ns < LARGEST_WAIT_NS {
                PoolPeer::Largest
            } else {
                PoolPeer::All
            };
            let others_may_give = owner.ask_for_pool(peer) && waited_ns <= OTHERS_WAIT_NS;
            if !others_may_give {
                if searches == SEARCHES_MAX || !matches!(found, Wrote::FoundNone) {
                    return false;
                }
                searches += 1;
            }
        }
        owner.pause(if pauses { AWAY_POLL_NS } else { POLL_NS });
    }
}

/// The pool is full, and nothing can be written to far memory ([`room::is_closed`]): demotes copies that are also far,
/// and tries a write again if that is due. Does not wait. True when a store may fit now.
#[cold]
pub fn make_room_unwritten(far: &impl FarStore) -> bool {
    let owner = far.owner();
    let writes = &owner.state().writes;
    let made_before = writes.made();
    finish_all(far);
    if writes.made() != made_before || leave_unwritten(owner, EXTENT_BYTES) {
        return true;
    }
    if writes.bytes() == 0 {
        write_some(far, Some(SCAN_MAX));
    }
    false
}

/// Frees about `bytes` of slots of pages that are also far. True when there were any.
fn leave_unwritten<O: Owner>(owner: &O, bytes: usize) -> bool {
    /// Pages that one search visits, and the pause after one that found none.
    const PAGES_MAX: usize = 1 << 14;
    const NONE_NS: u64 = 2_000_000;
    let none_until_ns = &owner.state().demotion.no_homes_until_ns;
    let now = owner.now_ns();
    if none_until_ns.load(Ordering::Relaxed) > now {
        return false;
    }
    let pool = owner.pool();
    let (mut freed, mut pages) = (0, 0);
    owner.oldest(Some(PAGES_MAX), |page, seen| {
        if freed >= bytes {
            return false;
        }
        let entry = O::entry(seen);
        // Only a hint, before the page is claimed: the entry may belong to another page by now.
        if pool.home_ref(entry).is_none() || !owner.claim(page, seen) {
            return true;
        }
        let gone = pool.demote_home(entry);
        freed += gone.unwrap_or(0);
        pages += u64::from(gone.is_some());
        let outcome = gone.map_or(PageOutcome::Unchanged, |_| PageOutcome::InFarTier);
        owner.publish(page, seen, outcome);
        true
    });
    owner.count(Counter::PagesDemotedUnwritten, pages);
    if pages == 0 {
        none_until_ns.store(now + NONE_NS, Ordering::Relaxed);
    }
    pages > 0
}

/// Without far memory: other processes in the tenant may hold more of the pool than they need. True when one has given
/// something back.
#[cold]
pub fn others_give(owner: &impl Owner) -> bool {
    /// Pause after asking in vain, and pause between two checks.
    const VAIN_NS: u64 = 20_000_000;
    const POLL_NS: u64 = 50_000;
    let vain_until_ns = &owner.state().demotion.vain_until_ns;
    let (begun, before) = (owner.now_ns(), owner.pool_bytes());
    if begun < vain_until_ns.load(Ordering::Relaxed) {
        return false;
    }
    if owner.ask_for_pool(PoolPeer::All) {
        while owner.now_ns() < begun + VAIN_NS {
            owner.pause(POLL_NS);
            if owner.pool_bytes() < before {
                return true;
            }
        }
    }
    vain_until_ns.store(owner.now_ns() + VAIN_NS, Ordering::Relaxed);
    false
}

/// Packs and posts one extent. False when there is nothing to write, no place for it, or no request free.
fn write_some(far: &impl FarStore, scan_max: Option<usize>) -> bool {
    matches!(write_next(far, scan_max), Wrote::Some)
}

/// As [`write_some`], with the reason why nothing was written; that there is nothing to write is remembered for a
/// while.
fn write_next(far: &impl FarStore, scan_max: Option<usize>) -> Wrote {
    let owner = far.owner();
    let wrote = write_oldest(far, scan_max);
    if matches!(wrote, Wrote::FoundNone) {
        let until = owner.now_ns() + FOUND_NONE_NS;
        let found_none_until_ns = &owner.state().demotion.found_none_until_ns;
        found_none_until_ns.store(until, Ordering::Relaxed);
    }
    wrote
}

/// The result of a search for pages to write.
enum Wrote {
    /// An extent is under way, or pages were demoted without a write.
    Some,
    /// Writes pause, because the last one failed.
    Paused,
    /// No request is free.
    NoRequest,
    /// There is no place to write to.
    NoExtent,
    /// There is nothing to write.
    FoundNone,
}

fn write_oldest(far: &impl FarStore, scan_max: Option<usize>) -> Wrote {
    let owner = far.owner();
    let state = owner.state();
    if state.writes.are_paused(owner.now_ns()) {
        return Wrote::Paused;
    }
    let Some(mut request) = channel::claim(far, WRITES) else {
        return Wrote::NoRequest;
    };
    let Some(extent) = far.book().take(&far.slabs()) else {
        state.writes.note_failed();
        channel::release(far, request);
        return Wrote::NoExtent;
    };
    let packed = pack(far, &mut request, scan_max);
    if packed.demoted > 0 {
        owner.count(Counter::PagesDemotedUnwritten, packed.demoted);
        state.writes.note_made();
    }
    if packed.records == 0 {
        far.unhold(extent);
        channel::release(far, request);
        return match packed.demoted {
            0 => Wrote::FoundNone,
            _ => Wrote::Some,
        };
    }
    state.writes.add_bytes(packed.bytes);
    channel::begin(far, request, JobKind::Demote, extent, packed.bytes);
    Wrote::Some
}

/// The result of a search over the pool's oldest pages.
#[derive(Default)]
struct Packed {
    /// Records in the buffer, and bytes of their slots.
    records: usize,
    bytes: i64,
    /// Pages that were demoted already, because they are also far.
    demoted: u64,
}

/// Fills the buffer of a request. Pages that need no write are demoted at once; when that made as much room as an
/// extent would have, the buffer may stay empty.
fn pack<F: FarStore>(far: &F, request: &mut Request, scan_max: Option<usize>) -> Packed {
    let owner = far.owner();
    let pool = owner.pool();
    far.fill(request, |buffer| {
        let mut packer = Packer::new(buffer);
        let mut packed = Packed::default();
        let mut demoted_bytes = 0;
        owner.oldest(scan_max, |page, seen| {
            if demoted_bytes >= EXTENT_BYTES && packed.records == 0 {
                return false;
            }
            if !owner.claim(page, seen) {
                return true;
            }
            let entry = F::Owner::entry(seen);
            let (mut outcome, mut fits) = (PageOutcome::Unchanged, true);
            if let Some(freed) = pool.demote_home(entry) {
                demoted_bytes += freed;
                packed.demoted += 1;
                owner.publish(page, seen, PageOutcome::InFarTier);
                return true;
            }
            match pool.stored_len(entry) {
                Some(len) => {
                    fits = packer
                        .add(page, entry, len, |bytes| {
                            pool.copy_stored(entry, bytes);
                        })
                        .is_some();
                    packed.records += usize::from(fits);
                    packed.bytes += i64::from(fits) * record_bytes(len as usize) as i64;
                }
                // Filled with one value, or already far: not visited again.
                None => outcome = PageOutcome::InFarTier,
            }
            owner.publish(page, seen, outcome);
            fits
        });
        packer.finish();
        packed
    })
}
