//! Compaction beyond the pool: when no more slabs are to be had and few extents are free, the pages of mostly
//! empty ones come back into the pool ([`canvas_swap::compaction`]), which writes them out again with others.
//!
//! It is work of the reclaim thread, one extent to a request, a few at a time, as the pool has room for
//! them. When no extent is free at all, nothing can leave the pool to make room: then what comes back may
//! take it past its bound, by [`AT_ONCE`] extents at most.

use canvas_shm::mailbox::FETCHES;
use canvas_swap::compaction::{CompactionHand, Look};
use canvas_swap::extent::EXTENT_BYTES;
use canvas_swap::extents::Slabs;
use canvas_types::sync::{AtomicU64, Ordering};

use crate::channel;
use crate::job::JobKind;
use crate::room;
use crate::state::{State, new};
use crate::traits::{Beyond, Host, Owner};
use crate::unhold;

pub(crate) struct Compaction {
    hand: CompactionHand,
    /// No look before this moment: the last one found none, or there is enough.
    rests_until_ns: AtomicU64,
}

impl Compaction {
    new!(
        "At the first extent.",
        Compaction {
            hand: CompactionHand::new(),
            rests_until_ns: AtomicU64::new(0),
        }
    );
}

/// Pause after a look that found none, and after one that found room enough.
const FOUND_NONE_NS: u64 = 50_000_000;
const ENOUGH_NS: u64 = 2_000_000;
/// Extents under way at one time.
pub const AT_ONCE: u32 = 8;
/// Extents that one look goes over.
const LOOK_MAX: u32 = 1 << 14;
/// Part of our extents that should be free, and bounds of it.
const FREE_PART: u64 = 32;
const FREE_MIN: u64 = 16;
const FREE_MAX: u64 = 1024;

/// Is something under way?
pub(crate) fn works(state: &State) -> bool {
    channel::count_of(state, JobKind::Compact) > 0
}

/// Begins what is needed. True when something was begun. `in_need`: no extent is free, and a thread waits.
pub(crate) fn round(b: &impl Beyond, in_need: bool) -> bool {
    let (owner, slabs) = (b.owner(), b.slabs());
    let (used, max) = b.slabs_used_and_max();
    if used < max {
        return false;
    }
    let state = owner.state();
    let rests_until_ns = &state.compaction.rests_until_ns;
    let now = owner.now_ns();
    if state.room.writes_rest(now) || rests_until_ns.load(Ordering::Relaxed) > now {
        return false;
    }
    let book = b.book();
    let (all, free) = book.room(slabs.high());
    let wanted = (all / FREE_PART).clamp(FREE_MIN, FREE_MAX);
    if free >= wanted && !in_need {
        rests_until_ns.store(now + ENOUGH_NS, Ordering::Relaxed);
        return false;
    }
    let mut begun = false;
    loop {
        let n = channel::count_of(state, JobKind::Compact);
        let room = i64::from(n + 1) * EXTENT_BYTES as i64 <= room::pool_room_bytes(owner);
        if n >= AT_ONCE || !room && !in_need {
            return begun;
        }
        let Some(request) = channel::claim(b, FETCHES) else {
            return begun;
        };
        match book.sparse(&state.compaction.hand, LOOK_MAX, &slabs) {
            Look::Found(extent) if !channel::is_under_way(b, extent) => {
                let i = channel::begin(b, request, JobKind::Compact, extent, 0);
                if in_need && b.mailbox().urge(i) {
                    b.ring();
                }
                begun = true;
            }
            Look::Found(extent) => {
                // Once round: what is worth emptying is on its way, and has to be ended first.
                unhold(b, extent);
                channel::release(b, request);
                return begun;
            }
            Look::NotYet => {
                channel::release(b, request);
                return begun;
            }
            Look::None => {
                channel::release(b, request);
                rests_until_ns.store(now + FOUND_NONE_NS, Ordering::Relaxed);
                return begun;
            }
        }
    }
}
