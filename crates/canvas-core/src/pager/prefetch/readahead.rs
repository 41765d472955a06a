//! The kernel's own policy: `swap_vma_readahead` of Linux's mm/swap_state.c, with a page cluster of 3 (the default).
//!
//! Each mapping remembers its last fault on a swapped page, the window of that fault, and the hits on pages read ahead
//! since. A fault on a far page reads a window of `hits + 2` pages, rounded up to a power of two (at least 4, at most
//! [`WINDOW_MAX`]); without hits it is 2 next to the last fault's page, else 1, the page alone; never less than half of
//! the last window. The window includes the faulting page: it begins there if the last fault was on the page before,
//! ends there if it was on the page after, and lies around it otherwise. It is cut at the ends of the mapping and at
//! the border of the 2 MiB that one page table covers.

use canvas_types::PageId;
use canvas_types::layout::BLOCK_PAGES;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};

use super::{Area, Fault, FaultKind, MemoryView, Plan, Prefetcher};

/// Most pages of a window, including the faulting one (1 << page_cluster).
pub const WINDOW_MAX: u32 = 8;
/// Mappings that are remembered; two that share a cell overwrite each other.
const AREAS: usize = 1024;
/// Most hits counted (SWAP_RA_HITS_MAX).
const HITS_MAX: u32 = 63;
/// Hits that a mapping begins with, "to start up with a small window".
const HITS_FIRST: u32 = 4;

/// What is remembered of a mapping.
#[derive(Clone, Copy)]
struct MappingState {
    /// Page of the last fault.
    page: u32,
    window: u32,
    hits: u32,
}

impl MappingState {
    fn pack(self) -> u64 {
        u64::from(self.page) << 32 | u64::from(self.window) << 8 | u64::from(self.hits)
    }
    fn unpack(v: u64) -> MappingState {
        MappingState {
            page: (v >> 32) as u32,
            window: (v >> 8) as u32 & 0xff,
            hits: v as u32 & 0xff,
        }
    }
}

struct MappingCell {
    /// The mapping's first page, plus one; 0 for none.
    owner: AtomicU32,
    memory: AtomicU64,
}

/// The state of all mappings of a process: 16 KiB, usable as a static. Threads that fault in one mapping at the same
/// time may lose a hit, as in the kernel.
pub struct Readahead {
    cells: [MappingCell; AREAS],
}

impl MappingCell {
    const fn new() -> MappingCell {
        MappingCell {
            owner: AtomicU32::new(0),
            memory: AtomicU64::new(0),
        }
    }
}

impl Readahead {
    /// Creates a state that has seen no faults.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Readahead {
        Readahead {
            cells: [const { MappingCell::new() }; AREAS],
        }
    }
}

impl Prefetcher for Readahead {
    /// Without a known mapping, plans and learns nothing.
    fn plan(&self, fault: &Fault<'_, impl MemoryView>) -> Plan {
        match fault.around.area_of(fault.page) {
            Some(area) => self.on_fault(fault.page, fault.kind, area),
            None => Plan::NONE,
        }
    }
}

impl Readahead {
    /// Handles a fault on a page of `area`.
    fn on_fault(&self, page: PageId, kind: FaultKind, area: Area) -> Plan {
        let page = page.0;
        let cell = &self.cells[(area.start.wrapping_mul(0x9e37_79b1) >> 16) as usize % AREAS];
        let before = if cell.owner.swap(area.start + 1, Ordering::Relaxed) == area.start + 1 {
            MappingState::unpack(cell.memory.load(Ordering::Relaxed))
        } else {
            MappingState {
                page: 0,
                window: 0,
                hits: HITS_FIRST,
            }
        };
        let remember = |window, hits| {
            let memory = MappingState { page, window, hits };
            cell.memory.store(memory.pack(), Ordering::Relaxed);
        };
        if kind != FaultKind::Demand {
            let hit = u32::from(kind != FaultKind::VictimHit);
            remember(before.window, (before.hits + hit).min(HITS_MAX));
            return Plan::NONE;
        }
        let window = window(before, page);
        remember(window, 0);
        // In i64, because the window may extend beyond either end of the address space before it is cut.
        let (at, n) = (i64::from(page), i64::from(window));
        let left = if at == i64::from(before.page) + 1 {
            at
        } else if at + 1 == i64::from(before.page) {
            at - n + 1
        } else {
            at - (n - 1) / 2
        };
        let table = i64::from(page) / BLOCK_PAGES as i64 * BLOCK_PAGES as i64;
        let start = left.max(i64::from(area.start)).max(table);
        let end = (left + n)
            .min(i64::from(area.end))
            .min(table + BLOCK_PAGES as i64);
        if window == 1 || end - start < 2 {
            return Plan::NONE;
        }
        Plan {
            start: PageId(start as u32),
            stride: 1,
            count: (end - start) as u32,
            sample_every: 1,
            ..Plan::NONE
        }
    }
}

/// Pages of the next window, by the kernel's `__swapin_nr_pages` (mm/swap_state.c).
fn window(before: MappingState, page: u32) -> u32 {
    let pages = match before.hits {
        0 if page.abs_diff(before.page) == 1 => 2,
        0 => 1,
        hits => (hits + 2).next_power_of_two(),
    };
    pages.min(WINDOW_MAX).max(before.window / 2)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::pager::prefetch::testing::AllFar;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// The kernel's description, with a map of mappings and no packing.
    #[derive(Default)]
    struct Oracle(HashMap<u32, (i64, u32, u32)>);

    impl Oracle {
        fn fault(&mut self, page: u32, kind: FaultKind, area: Area) -> Vec<u32> {
            let (last, last_window, hits) = *self.0.entry(area.start).or_insert((0, 0, HITS_FIRST));
            let page = i64::from(page);
            if kind != FaultKind::Demand {
                let hits = if kind == FaultKind::VictimHit {
                    hits
                } else {
                    63.min(hits + 1)
                };
                self.0.insert(area.start, (page, last_window, hits));
                return Vec::new();
            }
            let neighbour = page == last + 1 || page == last - 1;
            let mut pages = hits + 2;
            if hits == 0 {
                pages = if neighbour { 2 } else { 1 };
            } else {
                let mut roundup = 4;
                while roundup < pages {
                    roundup *= 2;
                }
                pages = roundup;
            }
            pages = pages.min(8);
            pages = pages.max(last_window / 2);
            self.0.insert(area.start, (page, pages, 0));
            let n = i64::from(pages);
            let range = if page == last + 1 {
                page..page + n
            } else if page == last - 1 {
                page - n + 1..page + 1
            } else {
                let left = (n - 1) / 2;
                page - left..page + n - left
            };
            range
                .filter(|p| *p != page && *p / 512 == page / 512 && *p >= 0)
                .map(|p| p as u32)
                .filter(|p| (area.start..area.end).contains(p))
                .collect()
        }
    }

    fn planned(plan: &Plan, page: u32) -> Vec<u32> {
        (0..plan.count)
            .filter_map(|i| plan.page(i))
            .map(|p| p.0)
            .filter(|p| *p != page)
            .collect()
    }

    proptest! {
        #[test]
        fn does_what_the_kernel_does(
            faults in prop::collection::vec((0usize..3, -1i64..3, 0u32..4000, 0u8..9), 1..300),
        ) {
            // Mappings in cells of their own, one at address 0, one shorter than a window.
            let areas = [(0, 700), (5000, 5005), (100_000, 104_000)]
                .map(|(start, end)| Area { start, end });
            let (policy, mut oracle) = (Readahead::new(), Oracle::default());
            let mut last = areas.map(|a| a.start);
            for (which, step, jump, kind) in faults {
                let area = areas[which];
                let len = area.end - area.start;
                let next = if step == 0 {
                    area.start + jump % len
                } else {
                    (i64::from(last[which]) + step)
                        .clamp(i64::from(area.start), i64::from(area.end) - 1) as u32
                };
                last[which] = next;
                let kind = match kind {
                    0..=4 => FaultKind::Demand,
                    5..=6 => FaultKind::PrefetchHit,
                    7 => FaultKind::PrefetchLate,
                    _ => FaultKind::VictimHit,
                };
                let plan = policy.on_fault(PageId(next), kind, area);
                prop_assert_eq!(planned(&plan, next), oracle.fault(next, kind, area));
            }
        }
    }

    #[test]
    fn without_a_mapping_nothing_is_planned_or_learnt() {
        let policy = Readahead::new();
        let (nowhere, somewhere) = (
            AllFar(|_| None),
            AllFar(|_| Some(Area { start: 0, end: 99 })),
        );
        for (around, pages) in [(&nowhere, 0), (&somewhere, 8), (&nowhere, 0)] {
            assert_eq!(
                policy.plan(&around.fault(50, FaultKind::Demand)).count,
                pages
            );
        }
    }

    #[test]
    fn the_window_follows_the_hits() {
        let (policy, area) = (
            Readahead::new(),
            Area {
                start: 1024,
                end: 9000,
            },
        );
        let fault = |page, kind| {
            let plan = policy.on_fault(PageId(page), kind, area);
            (plan.start.0, plan.count)
        };
        // Four hits to begin with, somewhere in the middle: 3 before, 4 behind.
        assert_eq!(fault(3000, FaultKind::Demand), (2997, 8));
        // No hits: half, a quarter, the page alone.
        assert_eq!(fault(4000, FaultKind::Demand), (3999, 4));
        assert_eq!(fault(5000, FaultKind::Demand), (5000, 2));
        assert_eq!(fault(6000, FaultKind::Demand), (0, 0));
        // A neighbour: two pages, upwards or downwards.
        assert_eq!(fault(6001, FaultKind::Demand), (6001, 2));
        assert_eq!(fault(6000, FaultKind::Demand), (5999, 2));
        // Hits widen the window.
        for page in 5996..5999 {
            assert_eq!(fault(page, FaultKind::PrefetchHit), (0, 0));
        }
        assert_eq!(fault(5999, FaultKind::Demand), (5999, 8));
        // The mapping's end and the page table's border cut it.
        fault(8998, FaultKind::PrefetchHit);
        assert_eq!(fault(8999, FaultKind::Demand), (0, 0));
        fault(1024 + 510, FaultKind::PrefetchHit);
        fault(1024 + 510, FaultKind::PrefetchHit);
        assert_eq!(fault(1024 + 511, FaultKind::Demand), (0, 0));
    }
}
