//! How far ahead extents are fetched: streams fetch further ahead while they have to wait, and the agent
//! learns how long before their use pages were asked for ([`canvas_shm::far::FarStats::ahead_ns`]).

use canvas_pager::word::{self, State, flag};
use canvas_types::{PAGE_SIZE, SwapEntry};
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::pool::pool;
use crate::{areas, deep, sig, state};

/// Extents asked for ahead that are remembered.
const PLACES: usize = 128;
const US_MASK: u64 = 0xffff_ffff;
/// By extent, the later over the earlier: its number (32 bits), and when it was asked for (us, 32 bits).
/// 0 is none, and extent 0 at the clock's turn.
static ASKED: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

/// An extent is asked for ahead.
pub fn asked_for(extent: u32) {
    let now_us = sig::now_ns() / 1000;
    ASKED[extent as usize % PLACES].store(
        u64::from(extent) << 32 | now_us & US_MASK,
        Ordering::Relaxed,
    );
}

/// A page was brought in from the pool: if it came there with an extent that was read ahead lately, this is
/// how far ahead that was. Every page counts: an extent is too late when most of its pages were needed before.
pub fn used(entry: SwapEntry) {
    let Some(f) = deep::far() else { return };
    let Some(place) = pool().home_place(entry) else {
        return;
    };
    let at = &ASKED[place.extent as usize % PLACES];
    let seen = at.load(Ordering::Relaxed);
    if seen == 0 || (seen >> 32) as u32 != place.extent {
        return;
    }
    let us = (sig::now_ns() / 1000).wrapping_sub(seen) & US_MASK;
    f.stats.ahead_ns.record(us * 1000);
}

/// How many pages a stream is ahead of what is mapped for it with its fetches: [`PAGES_MIN`] while they come in
/// time, more while it has to wait for them. On a link that others use too, what is under way of it is all that
/// its share can be taken with.
static PAGES: AtomicI64 = AtomicI64::new(PAGES_MIN);
const PAGES_MIN: i64 = 64;
/// Some twenty extents: there are requests for 24.
const PAGES_MAX: i64 = 256;
/// For each extent that is waited for; it falls by one for each that came in time.
const PAGES_STEP: i64 = 16;

/// An extent that was fetched is there, or (`late`) a thread waits for it.
pub fn learn(late: bool) {
    let now = PAGES.load(Ordering::Relaxed);
    let next = if late {
        // What was fetched must stay in the pool until it is used.
        let pool = state::seg().config.pool_bytes.load(Ordering::Relaxed) / PAGE_SIZE as u64;
        let most = (pool / 8).min(PAGES_MAX as u64) as i64;
        (now + PAGES_STEP).min(most.max(PAGES_MIN))
    } else {
        (now - 1).max(PAGES_MIN)
    };
    // Two at once count as one.
    PAGES.store(next, Ordering::Relaxed);
}

/// Fetches what a stream needs after the `n` pages from `start` on, so that they lie in the pool when
/// they are mapped ahead.
pub fn fetch(start: u32, stride: i32, n: u32) {
    if deep::far().is_none() {
        return;
    }
    let words = areas::table().words;
    let ahead = PAGES.load(Ordering::Relaxed);
    // What was passed over when that grew is looked at again.
    let from = (ahead - PAGES_STEP).max(PAGES_MIN);
    for i in from..ahead + i64::from(n) {
        let page = i64::from(start) + i * i64::from(stride);
        let Some(w) = usize::try_from(page).ok().and_then(|p| words.get(p)) else {
            return;
        };
        let cur = word::load(w);
        if cur.state() != State::Far
            || !cur.has(flag::DEEP)
            || !word::transition(w, cur, cur.with_state(State::Filling))
        {
            continue;
        }
        if let Some(place) = pool().deep_place(cur.entry()) {
            deep::fetch(place.extent);
        }
        word::publish(w, cur);
    }
}
