//! Compaction beyond the pool: when no more slabs are to be had and few extents are free, the pages of mostly
//! empty ones come back into the pool ([`canvas_swap::compaction`]), which writes them out again with others.
//!
//! It is work of the reclaim thread, one extent to a request, a few at a time, as the pool has room for
//! them. When no extent is free at all, nothing can leave the pool to make room: then what comes back may
//! take it past its bound, by [`AT_ONCE`] extents at most.

use canvas_pager::word::{self, State, flag};
use canvas_shm::far::{EXTENT_BYTES, Far};
use canvas_shm::mailbox::FETCHES;
use canvas_swap::compaction::{CompactionHand, Look};
use canvas_swap::extent::Line;
use canvas_swap::extents::Slabs;
use canvas_sys::proc;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::pool::pool;
use crate::{areas, deep};

static HAND: CompactionHand = CompactionHand::new();
/// A bit for each request that brings an extent back for this.
static UNDER_WAY: AtomicU64 = AtomicU64::new(0);
/// No look before this moment: the last one found none, or there is enough.
static RESTS_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// Pause after a look that found none, and after one that found room enough.
const FOUND_NONE_NS: u64 = 50_000_000;
const ENOUGH_NS: u64 = 2_000_000;
/// Extents under way at one time.
const AT_ONCE: u32 = 8;
/// Extents that one look goes over.
const LOOK_MAX: u32 = 1 << 14;
/// Part of our extents that should be free, and bounds of it.
const FREE_PART: u64 = 32;
const FREE_MIN: u64 = 16;
const FREE_MAX: u64 = 1024;

/// Is this request's extent under way for compaction?
pub fn is_for_us(i: usize) -> bool {
    UNDER_WAY.load(Ordering::Relaxed) & 1 << i != 0
}

/// Request `i` has ended or is given up; whoever calls has its job.
pub fn over(i: usize) {
    UNDER_WAY.fetch_and(!(1 << i), Ordering::Relaxed);
}

/// In a fork's child: the parent's are not ours.
pub fn forget() {
    UNDER_WAY.store(0, Ordering::Relaxed);
}

/// Is something under way?
pub fn works() -> bool {
    UNDER_WAY.load(Ordering::Relaxed) != 0
}

/// Begins what is needed. True when something was begun. `in_need`: no extent is free, and a thread waits.
pub fn round(f: &'static Far, in_need: bool) -> bool {
    let slabs = deep::OurSlabs(f);
    let (used, max) = deep::slabs_used_and_max(f);
    if used < max {
        return false;
    }
    let now = proc::now_ns();
    if deep::writes_rest(now) || RESTS_UNTIL_NS.load(Ordering::Relaxed) > now {
        return false;
    }
    let book = deep::book();
    let (all, free) = book.room(slabs.high());
    let wanted = (all / FREE_PART).clamp(FREE_MIN, FREE_MAX);
    if free >= wanted && !in_need {
        RESTS_UNTIL_NS.store(now + ENOUGH_NS, Ordering::Relaxed);
        return false;
    }
    let mut begun = false;
    loop {
        let n = UNDER_WAY.load(Ordering::Relaxed).count_ones();
        let room = i64::from(n + 1) * EXTENT_BYTES as i64 <= deep::pool_room_bytes();
        if n >= AT_ONCE || !room && !in_need {
            return begun;
        }
        let m = deep::our_mailbox(f);
        let Some(i) = m.claim(FETCHES) else {
            return begun;
        };
        match book.sparse(&HAND, LOOK_MAX, &slabs) {
            Look::Found(extent) if !deep::is_under_way(extent) => {
                UNDER_WAY.fetch_or(1 << i, Ordering::Relaxed);
                deep::post_fetch(f, i, extent);
                if in_need && m.urge(i) {
                    deep::ring(f);
                }
                begun = true;
            }
            Look::Found(extent) => {
                // Once round: what is worth emptying is on its way, and has to be ended first.
                deep::unhold(extent);
                m.release(i);
                return begun;
            }
            Look::NotYet => {
                m.release(i);
                return begun;
            }
            Look::None => {
                m.release(i);
                RESTS_UNTIL_NS.store(now + FOUND_NONE_NS, Ordering::Relaxed);
                return begun;
            }
        }
    }
}

/// A page of an extent that came back for this leaves it: for the pool, if it is far; if it is in local
/// memory, what lies there is given up, and written again when the page goes.
pub fn vacate(line: &Line, extent: u32, stored: &[u8], past_bound: bool) -> bool {
    let Some(w) = areas::table().words.get(line.page as usize) else {
        return false;
    };
    let (cur, place) = (word::load(w), line.place(extent));
    let busy = match cur.state() {
        State::Far => State::Filling,
        State::Resident => State::Evicting,
        _ => return false,
    };
    if cur.entry() != line.entry || !word::transition(w, cur, cur.with_state(busy)) {
        return false;
    }
    let far = cur.state() == State::Far;
    let (left, next) = if far || pool().home_place(line.entry) == Some(place) {
        let left = pool().vacate(line.entry, place, stored, past_bound);
        let next = if left && far {
            cur.clear(flag::DEEP)
        } else {
            cur
        };
        (left, next)
    } else if pool().deep_place(line.entry) == Some(place) {
        pool().drop_copy(line.entry);
        (true, cur.clear(flag::FAR_COPY))
    } else {
        (false, cur)
    };
    word::publish(w, next);
    left
}
