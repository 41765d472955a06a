//! Far pages in memory of NUMA nodes. When a node is nearly full, the reclaim thread demotes those pages into the
//! compressed pool that were evicted from local memory longest ago. Nothing is needed in the other direction: stores
//! try a node first.

use canvas_core::far::{PageOutcome, Pages};
use canvas_core::pager::copies;
use canvas_core::pager::demotion::DemotionScan;
use canvas_core::pager::word::Word;
use canvas_core::swap::FreedCopy;
use canvas_core::swap::pool::{NODE_PAGE_BYTES, NodeDemotion};
use canvas_core::vm::context::Batch;
use canvas_core::vm::reclaim;
use canvas_shm::Counter;
use canvas_shm::nodes::NodeBook;
use canvas_sys::proc;
use canvas_types::layout::NODES_MAX;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::far_tier::{ours::Ours, pool::pool};
use crate::own_memory::areas;
use crate::paging::context;
use crate::runtime::{
    state,
    state::{PROCESS, count},
};

/// Pages that one round moves at most.
const ROUND_PAGES: i64 = 64;
/// Page words that one round examines.
const LOOK_MAX: usize = 1 << 18;
/// Pause after a round that found none, and after one for which the pool had no room.
const FOUND_NONE_NS: u64 = 2_000_000;
const POOL_FULL_NS: u64 = 10_000_000;

state! {
    /// Where demotion from nodes goes on, and when.
    static NEXT: Next {
        oldest: DemotionScan = DemotionScan::new(),
        /// The next page that may have a copy.
        copies: AtomicU32 = AtomicU32::new(0),
        not_before_ns: AtomicU64 = AtomicU64::new(0),
    }
}

/// By how many of this process's pages each node is too full.
#[derive(Default)]
struct Excess([Cell<i64>; NODES_MAX]);

impl Excess {
    fn now(nodes: &[NodeBook]) -> Excess {
        let excess = Excess::default();
        for ((place, node), pages) in nodes.iter().enumerate().zip(&excess.0) {
            let (charged, free) = (
                pool().node_charged_bytes(place),
                pool().node_free_bytes(place),
            );
            let (there, bound) = (node.bytes.load(Ordering::Relaxed), node.bound());
            // Free room in our own slabs suffices, unless the bound itself was lowered: the bound counts whole slabs.
            let past_mark = there.saturating_sub(free).saturating_sub(bound / 16 * 15);
            let over = there.saturating_sub(bound).min(charged);
            let bytes = past_mark.max(over).min(charged - free);
            pages.set((bytes.max(0) + NODE_PAGE_BYTES - 1) / NODE_PAGE_BYTES);
        }
        excess
    }
    fn any(&self) -> bool {
        self.0.iter().any(|n| n.get() > 0)
    }
    /// The excess of the node that holds the page's copy, if there is any.
    fn of(&self, seen: Word) -> Option<&Cell<i64>> {
        let pages = &self.0[pool().node_of(seen.entry())?];
        (pages.get() > 0).then_some(pages)
    }
}

/// Runs one round of the reclaim thread's part. Returns whether it did anything.
pub fn background_round() -> bool {
    let nodes = state::seg().nodes();
    if nodes.is_empty() {
        return false;
    }
    let is_over = nodes.iter().any(NodeBook::is_over);
    if is_over {
        pool().trim_nodes();
    }
    let excess = Excess::now(nodes);
    let now = proc::now_ns();
    if !excess.any() || now < NEXT.not_before_ns.load(Ordering::Relaxed) {
        return false;
    }
    let mut ctx = context::reclaim();
    let (sunk, pool_is_full) = sink_oldest(&mut ctx, &excess);
    // Copies of pages in local memory are cheapest to lose, but save writing them again. Pages in the swap cache must
    // become far first.
    let worked = sunk > 0
        || drop_copies(&excess) > 0
        || is_over && reclaim::write_out(&PROCESS, &mut ctx, ROUND_PAGES as u32 / 2) > 0;
    if is_over {
        pool().trim_nodes();
    }
    if !worked || pool_is_full {
        let pause_ns = if pool_is_full {
            POOL_FULL_NS
        } else {
            FOUND_NONE_NS
        };
        NEXT.not_before_ns.store(now + pause_ns, Ordering::Relaxed);
    }
    worked
}

/// Moves the pages that left local memory longest ago into the pool. Returns how many, and whether the pool is full.
fn sink_oldest(ctx: &mut Batch, excess: &Excess) -> (i64, bool) {
    let far = areas::far_pages();
    let (mut sunk, mut is_full) = (0, false);
    let other = |seen: Word| excess.of(seen).is_none();
    let hand = &NEXT.oldest;
    hand.scan(&far, Some(LOOK_MAX), other, |page, seen| {
        let (false, true, Some(left)) = (is_full, sunk < ROUND_PAGES, excess.of(seen)) else {
            return !is_full && sunk < ROUND_PAGES;
        };
        if !Ours.claim(page, seen) {
            return true;
        }
        match pool().demote_from_node(seen.entry(), &mut ctx.scratch) {
            NodeDemotion::Yes => {
                sunk += 1;
                left.set(left.get() - 1);
            }
            NodeDemotion::NoRoom => is_full = true,
            // The page has come back and left again meanwhile, or its next load will find that it is damaged.
            NodeDemotion::NotThis => {}
        }
        Ours.publish(page, seen, PageOutcome::Unchanged);
        !is_full
    });
    count(Counter::NodePagesDemoted, sunk as u64);
    (sunk, is_full)
}

/// Drops copies of pages that are in local memory; returns how many.
fn drop_copies(excess: &Excess) -> i64 {
    let mut dropped = 0;
    copies::scan(&NEXT.copies, &areas::table(), LOOK_MAX, |page, seen| {
        if dropped == ROUND_PAGES || !excess.any() {
            return false;
        }
        let Some(left) = excess.of(seen) else {
            return true;
        };
        if Ours.claim(page, seen) {
            let outcome = match pool().free_cached_copy(seen.entry()) {
                FreedCopy::Dropped(_) => {
                    dropped += 1;
                    left.set(left.get() - 1);
                    PageOutcome::NoCopy
                }
                FreedCopy::Nothing | FreedCopy::Demoted(_) => PageOutcome::Unchanged,
            };
            Ours.publish(page, seen, outcome);
        }
        true
    });
    count(Counter::PoolCopiesDropped, dropped as u64);
    dropped
}
