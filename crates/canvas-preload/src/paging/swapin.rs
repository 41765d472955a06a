//! Proactive swap-in: when the tenant's limit was raised, what left last comes back in batches,
//! by the reclaim thread, before it is touched.

use canvas_pager::swapin::SwapInHand;
use canvas_shm::Counter;
use canvas_types::PageId;
use core::sync::atomic::Ordering;

use crate::base::{
    areas, state,
    state::{EPOCH, count},
};
use crate::paging::{accounting, fault};

static HAND: SwapInHand = SwapInHand::new();
/// Pages of a batch.
const BATCH: usize = 64;
/// Words that one round looks at.
const LOOK_MAX: usize = 1 << 16;

/// At start-up: what the limit is raised from. The reclaim thread may look for the first time long after
/// that, when it is kept from running, or is kept busy.
pub fn start() {
    HAND.start(state::seg().config.local_bytes.load(Ordering::Relaxed));
}

/// The reclaim thread's round, when it has nothing to reclaim. False when there is nothing to bring in.
pub fn background_round() -> bool {
    HAND.look(state::seg().config.local_bytes.load(Ordering::Relaxed));
    if !HAND.goes_on() {
        return false;
    }
    // Not so near to the limit that reclaim begins.
    let room = accounting::limit().map_or(0, |limit| {
        limit - 2 * accounting::gaps(limit).1 - state::seg().local_pages.load(Ordering::Relaxed)
    });
    if room < BATCH as i64 {
        HAND.end();
        return false;
    }
    let table = areas::table();
    let mut pages = [PageId::default(); BATCH];
    let n = HAND.next(
        table.words,
        table.blocks(),
        areas::all_resident,
        EPOCH.now(),
        LOOK_MAX,
        &mut pages,
    );
    count(
        Counter::PagesProactive,
        u64::from(fault::swap_in(&pages[..n])),
    );
    true
}
