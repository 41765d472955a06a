//! The processes of a tenant, and the floor of each: the pages that it keeps when others need memory.

use canvas_shm::{ProcSlot, Segment};
use core::sync::atomic::Ordering;

use crate::pager::floor::LEAST_PAGES;

/// The processes of the tenant.
pub fn live_slots(seg: &Segment) -> impl Iterator<Item = &ProcSlot> + Clone {
    let taken = |p: &&ProcSlot| p.identity().is_some();
    seg.procs_used().iter().filter(taken)
}

/// Pages that a process holds beyond its floor.
pub fn surplus(seg: &Segment, p: &ProcSlot) -> i64 {
    p.held_pages() - floor_of(seg, p)
}

/// Pages that a process wants to keep, of those that it holds.
pub(super) fn demand_of(p: &ProcSlot) -> i64 {
    let demand = p.demand_pages.load(Ordering::Relaxed).max(LEAST_PAGES);
    demand.min(p.held_pages())
}

fn floor_of(seg: &Segment, p: &ProcSlot) -> i64 {
    let level = seg.floor_level_pages.load(Ordering::Relaxed);
    demand_of(p).min(level.max(LEAST_PAGES))
}
