//! Compaction of far memory: when no more slabs are available and few extents are free, the pages of mostly empty
//! extents are promoted to the pool ([`crate::swap::compaction`]), which writes them out again together with others.
//! Where few far pages are left, whole slabs are emptied in this way and given back.
//!
//! The reclaim thread does this, one extent to a request, a few at a time, as the pool has room for them. When no
//! extent is free at all, no page can be demoted to make room: then compaction may take the pool past its limit, by at
//! most [`AT_ONCE`] extents.

use crate::swap::compaction::SearchOutcome;
use crate::swap::extent::EXTENT_BYTES;
use crate::swap::extents::Slabs;
use canvas_shm::mailbox::FETCHES;
use canvas_types::sync::Ordering;

use crate::far::channel;
use crate::far::job::JobKind;
use crate::far::room;
use crate::far::state::State;
use crate::far::traits::{FarStore, Host, Owner};

/// Pause after a search that found none, and after one that found enough room.
const FOUND_NONE_NS: u64 = 50_000_000;
const ENOUGH_NS: u64 = 2_000_000;
/// Most extents under way at one time.
pub const AT_ONCE: u32 = 8;
/// Extents that one search visits.
const SCAN_MAX: u32 = 1 << 14;
/// Part of this process's extents that should be free, and its bounds.
const FREE_PART: u64 = 32;
const FREE_MIN: u64 = 16;
const FREE_MAX: u64 = 1024;

/// Pause between two searches for slabs to give back, and after a slab that could not be emptied.
const GIVE_BACK_NS: u64 = 500_000_000;
const STAYS_NS: u64 = 10_000_000_000;
/// A slab is emptied when all pages fill at most this many sixteenths of the other slabs: where nothing was written
/// since the last search, and otherwise. Rewritten pages soon free extents by themselves.
const PART_QUIET: u64 = 12;
const PART_BUSY: u64 = 8;
/// Passes over the slab: an extent that was read or written during one may be moved in the next.
const PASSES_MAX: u32 = 4;
/// Extents of the emptied slab under way at one time.
const EMPTIED_AT_ONCE: u32 = 4;

/// Whether compaction is under way.
pub(crate) fn works(state: &State) -> bool {
    channel::count_of(state, JobKind::Compact) > 0
}

/// Whether pages in the owner's cache, which can be moved when they are far again, keep a slab from being given back.
/// True once each time.
pub fn waits_for_cached(owner: &impl Owner) -> bool {
    let waits = &owner.state().compaction.give_back.waits;
    waits.load(Ordering::Relaxed) && waits.swap(false, Ordering::Relaxed)
}

/// Starts what is needed. True when something was started. `in_need`: no extent is free, and a thread waits.
pub(crate) fn round(far: &impl FarStore, in_need: bool) -> bool {
    let (owner, slabs) = (far.owner(), far.slabs());
    let (used, max) = far.slabs_used_and_max();
    let state = owner.state();
    let paused_until_ns = &state.compaction.paused_until_ns;
    let now = owner.now_ns();
    if state.writes.are_paused(now) {
        return false;
    }
    if !in_need && (used < max || far.book().emptied().is_some()) {
        return give_back(far);
    }
    if used < max || paused_until_ns.load(Ordering::Relaxed) > now {
        return false;
    }
    let book = far.book();
    let (all, free) = book.room(slabs.high());
    let wanted = (all / FREE_PART).clamp(FREE_MIN, FREE_MAX);
    if free >= wanted && !in_need {
        paused_until_ns.store(now + ENOUGH_NS, Ordering::Relaxed);
        return give_back(far);
    }
    let mut begun = false;
    loop {
        let n = channel::count_of(state, JobKind::Compact);
        let room = i64::from(n + 1) * EXTENT_BYTES as i64 <= room::pool_room_bytes(owner);
        if n >= AT_ONCE || !room && !in_need {
            return begun;
        }
        let Some(request) = channel::claim(far, FETCHES) else {
            return begun;
        };
        match book.sparse(&state.compaction.hand, SCAN_MAX, &slabs) {
            SearchOutcome::Found(extent) if !channel::is_under_way(far, extent) => {
                let i = channel::begin(far, request, JobKind::Compact, extent, 0);
                if in_need && far.mailbox().escalate(i) {
                    far.notify_agent();
                }
                begun = true;
            }
            SearchOutcome::Found(extent) => {
                // The search has wrapped around: all worthwhile extents are on their way, and must end first.
                far.unhold(extent);
                channel::release(far, request);
                return begun;
            }
            SearchOutcome::NotYet => {
                channel::release(far, request);
                return begun;
            }
            SearchOutcome::None => {
                channel::release(far, request);
                paused_until_ns.store(now + FOUND_NONE_NS, Ordering::Relaxed);
                return begun;
            }
        }
    }
}

/// Gives back empty slabs, and empties one if few far pages are left. True when something was started.
fn give_back(far: &impl FarStore) -> bool {
    let (owner, slabs, book) = (far.owner(), far.slabs(), far.book());
    let (state, now) = (owner.state(), owner.now_ns());
    let g = &state.compaction.give_back;
    let rest = |ns| g.paused_until_ns.store(now + ns, Ordering::Relaxed);
    if g.paused_until_ns.load(Ordering::Relaxed) > now {
        return false;
    }
    let Some(slab) = book.emptied() else {
        rest(GIVE_BACK_NS);
        let made = state.writes.made();
        let is_quiet = g.made.swap(made, Ordering::Relaxed) == made;
        let part = if is_quiet { PART_QUIET } else { PART_BUSY };
        book.give_up_empty(&slabs);
        let begins = !state.writes.is_closed() && book.begin_emptying(part, &slabs);
        if begins {
            g.at.store(0, Ordering::Relaxed);
            g.passes.store(0, Ordering::Relaxed);
            rest(0);
        }
        return begins;
    };
    let mut begun = false;
    loop {
        let n = channel::count_of(state, JobKind::Compact);
        let room = i64::from(n + 1) * EXTENT_BYTES as i64 <= room::pool_room_bytes(owner);
        if n >= EMPTIED_AT_ONCE || !room {
            return begun;
        }
        let Some(request) = channel::claim(far, FETCHES) else {
            return begun;
        };
        let Some((extent, at)) = book.next_kept(slab, g.at.load(Ordering::Relaxed), &slabs) else {
            channel::release(far, request);
            if n > 0 {
                // The last ones of this pass.
                return begun;
            }
            g.at.store(0, Ordering::Relaxed);
            book.give_up_empty(&slabs);
            rest(GIVE_BACK_NS);
            g.waits.store(book.emptied().is_some(), Ordering::Relaxed);
            if book.emptied().is_some() && g.passes.fetch_add(1, Ordering::Relaxed) >= PASSES_MAX {
                book.end_emptying(slab);
                rest(STAYS_NS);
            }
            return begun;
        };
        g.at.store(at + 1, Ordering::Relaxed);
        if channel::is_under_way(far, extent) {
            far.unhold(extent);
            channel::release(far, request);
        } else {
            channel::begin(far, request, JobKind::Compact, extent, 0);
            begun = true;
        }
    }
}
