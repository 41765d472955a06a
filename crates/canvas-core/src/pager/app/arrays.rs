//! Deltas by thread and array. Many arrays at one time, or faults elsewhere in between, do not hide them.

use canvas_shm::Counter;
use canvas_types::PageId;
use canvas_types::sync::{AtomicU32, Ordering};

use crate::pager::prefetch::streams::ThreadStreams;
use crate::pager::prefetch::{Area, Done, Fault, MemoryView, Plan, Planner, Prefetcher};

/// Pages left unmapped that are remembered.
const LEFT: usize = 256;
/// Mappings of at least this many pages (1 MiB) count as arrays, as in the paper.
const ARRAY_PAGES_MIN: u32 = 256;
/// Counts the plans.
const PLANNER: Planner = Planner {
    issued: Counter::AppIssuedArrays,
    used: None,
};

/// Streams and deltas by thread and array.
pub struct Arrays {
    streams: ThreadStreams,
    /// Pages that plans left unmapped, newer ones overwriting older ones.
    left: [AtomicU32; LEFT],
}

impl Arrays {
    /// Creates tables without streams.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Arrays {
        Arrays {
            streams: ThreadStreams::new(),
            left: [const { AtomicU32::new(0) }; LEFT],
        }
    }
}

impl Arrays {
    /// Whether this is a plan of arrays, or for a page that such a plan left unmapped.
    #[inline]
    pub fn made(plan: &Plan) -> bool {
        plan.planner == Some(&PLANNER)
    }
}

impl Prefetcher for Arrays {
    fn plan(&self, fault: &Fault<'_, impl MemoryView>) -> Plan {
        let is_array = |a: &Area| a.end.saturating_sub(a.start) >= ARRAY_PAGES_MIN;
        let Some(area) = fault.around.area_of(fault.page).filter(is_array) else {
            return Plan::NONE;
        };
        let key = fault.thread ^ area.start.wrapping_mul(0x9e37_79b1).rotate_left(13);
        let mut plan = self.streams.on_fault(key, fault.page, fault.kind);
        if !plan.is_of_stream() {
            return Plan::NONE;
        }
        plan.planner = Some(&PLANNER);
        // Pages that form no stream do not need their neighbours beyond the pool.
        plan.alone = !plan.stream;
        plan
    }

    fn on_left(&self, page: PageId, plan: &Plan) {
        if Arrays::made(plan) {
            self.left[page.index() % LEFT].store(page.0, Ordering::Relaxed);
        }
    }

    fn carried_out(&self, plan: &Plan, done: &Done) {
        if Arrays::made(plan) {
            self.streams.carried_out(plan, done);
        }
    }

    fn on_used(&self, plan: &Plan) {
        if Arrays::made(plan) {
            self.streams.on_used(plan);
        }
    }

    fn on_unused(&self, page: PageId) -> Option<u32> {
        let left = &self.left[page.index() % LEFT];
        if page.0 == 0 || left.load(Ordering::Relaxed) != page.0 {
            return None;
        }
        left.store(0, Ordering::Relaxed);
        self.streams.on_unused(page)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::pager::prefetch::choice::Prefetchers;
    use crate::pager::prefetch::testing::AllFar;
    use crate::pager::prefetch::{FaultKind, SAMPLE_EVERY};

    /// Faults of one thread in eight arrays in turn, each with its own stride: more arrays than streams tracked per
    /// thread.
    #[test]
    fn many_arrays_of_one_thread_are_told_apart() {
        let around = AllFar(|page| {
            let start = page & !0xffff;
            let end = start + 0x1_0000;
            Some(Area { start, end })
        });
        let (below, above) = (Box::new(Prefetchers::new()), Box::new(Arrays::new()));
        let mut rng = fastrand::Rng::with_seed(11);
        let (mut low, mut arrays, mut at) = (0, 0, [0u32; 8]);
        for _ in 0..8000 {
            let array = rng.u32(0..8);
            let stride = 40 + array;
            let page = (array + 1) * 0x2_0000 + at[array as usize] * stride;
            at[array as usize] += 1;
            let fault = around.fault(page, FaultKind::Demand);
            low += below.plan(&fault).count;
            let plan = above.plan(&fault);
            arrays += plan.count;
            assert!(plan.count == 0 || Arrays::made(&plan) && plan.stride as u32 == stride);
        }
        assert!(arrays > 7000 && low < 6000, "{arrays} and {low}");
    }

    #[test]
    fn what_an_array_s_plan_left_and_nobody_used_counts_once() {
        let arrays = Box::new(Arrays::new());
        arrays.on_left(PageId(77), &Plan::NONE);
        assert_eq!(
            arrays.on_unused(PageId(77)),
            None,
            "not of a plan of arrays"
        );
        let mut plan = Plan::NONE;
        plan.planner = Some(&PLANNER);
        arrays.on_left(PageId(77), &plan);
        assert_eq!(arrays.on_unused(PageId(77)), Some(SAMPLE_EVERY));
        assert_eq!(arrays.on_unused(PageId(77)), None);
    }
}
