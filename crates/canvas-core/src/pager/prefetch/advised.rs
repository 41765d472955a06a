//! The program's advice on a region, which takes precedence over what faults teach.

use canvas_types::PageId;

use super::{
    FaultKind, PROVEN_HITS, Plan, Prefetcher, SAMPLE_EVERY, STREAM_PAGES, WINDOW_MAX, get, put,
};

/// How the program says that it uses a region (madvise).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Advice {
    /// It has not said.
    #[default]
    Normal,
    /// In no order: neighbours of a page are not wanted.
    Random,
    /// From its first page to its last.
    Sequential,
}

impl Plan {
    /// A plan for a fault of this kind that brings in nothing beside it.
    pub(super) fn alone(kind: FaultKind) -> Plan {
        Plan {
            stands_for: match kind {
                FaultKind::PrefetchHit => SAMPLE_EVERY,
                _ => 0,
            },
            ..Plan::NONE
        }
    }
}

impl Prefetcher {
    /// Like [`Prefetcher::on_fault`], in a region that is used from its first page to its last: a stream counts as
    /// proven from its first fault on, so its window is the widest at once.
    pub fn on_sequential(&self, thread_hash: u32, page: PageId, kind: FaultKind) -> Plan {
        let set = self.set(thread_hash);
        let Some(_held) = set.lock.try_lock() else {
            return Plan::NONE;
        };
        let now = set.tick();
        let forward = set
            .ways
            .iter()
            .position(|w| w.stride() == 1 && w.expects(page.0));
        let i = forward.unwrap_or_else(|| {
            let age = |i: &usize| match get(&set.ways[*i].used) {
                0 => u32::MAX,
                used => now.wrapping_sub(used),
            };
            (0..set.ways.len()).max_by_key(age).unwrap_or(0)
        });
        let way = &set.ways[i];
        if forward.is_none() {
            way.restart(page.0.saturating_sub(1), now);
            put(&way.stride, 1);
            put(&way.frontier, page.0);
            put(&way.weight, SAMPLE_EVERY);
        }
        put(&way.hits, get(&way.hits).max(PROVEN_HITS));
        put(&way.covered, get(&way.covered).max(STREAM_PAGES));
        put(&way.window, WINDOW_MAX);
        // A page that was passed untouched means nothing here: the program has said that it will come to all of them.
        put(&way.marked, 0);
        let plan = self.advance(way, page, kind, now);
        Plan {
            way: i as u8,
            ..plan
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::super::choice::{Prefetchers, Surroundings};
    use super::super::readahead::Area;
    use super::*;
    use canvas_types::Prefetch;
    use std::boxed::Box;
    use std::collections::BTreeSet;

    struct Told(Advice);
    impl Surroundings for Told {
        fn area_of(&self, _: PageId) -> Option<Area> {
            let (start, end) = (0, 1 << 20);
            Some(Area { start, end })
        }
        fn is_far(&self, _: PageId) -> bool {
            true
        }
        fn epoch(&self) -> u8 {
            0
        }
        fn advice(&self, _: PageId) -> Advice {
            self.0
        }
    }

    const ALL: [Prefetch; 5] = [
        Prefetch::Streams,
        Prefetch::Leap,
        Prefetch::Readahead,
        Prefetch::None,
        Prefetch::Auto,
    ];

    #[test]
    fn nothing_comes_in_beside_a_page_that_is_used_at_random() {
        for who in ALL {
            let all = Box::new(Prefetchers::new());
            all.choose(who);
            // In order nevertheless; the program's advice takes precedence.
            for page in 1000..1500 {
                let plan = all.on_fault(1, PageId(page), FaultKind::Demand, &Told(Advice::Random));
                assert_eq!(plan, Plan::NONE, "{who:?}");
            }
            let hit = FaultKind::PrefetchHit;
            let plan = all.on_fault(1, PageId(1), hit, &Told(Advice::Random));
            assert!(plan.count == 0 && plan.stands_for > 0);
        }
    }

    #[test]
    fn the_first_fault_of_a_sequential_region_brings_in_the_widest_window_forward() {
        for who in [Prefetch::Streams, Prefetch::Auto] {
            let all = Box::new(Prefetchers::new());
            all.choose(who);
            let told = Told(Advice::Sequential);
            let plan = all.on_fault(1, PageId(640), FaultKind::Demand, &told);
            assert_eq!((plan.start.0, plan.stride), (641, 1), "{who:?}");
            assert!(plan.count >= WINDOW_MAX - 1 && plan.stream);
        }
    }

    #[test]
    fn without_prefetching_a_sequential_region_has_none() {
        let all = Box::new(Prefetchers::new());
        all.choose(Prefetch::None);
        let told = Told(Advice::Sequential);
        for page in 0..500 {
            let plan = all.on_fault(1, PageId(page), FaultKind::Demand, &told);
            assert_eq!(plan.count, 0);
        }
    }

    /// Reads pages in order as the fault path does, one window after the other; returns the pages that no plan brought
    /// in.
    #[test]
    fn a_sequential_region_is_read_with_few_demand_faults_wherever_it_begins() {
        let all = Box::new(Prefetchers::new());
        let told = Told(Advice::Sequential);
        for begin in [10_000u32, 50_017, 90_063] {
            let (mut here, mut left) = (BTreeSet::new(), BTreeSet::new());
            let mut demands = 0;
            for page in begin..begin + 2000 {
                let kind = match (here.contains(&page), left.remove(&page)) {
                    (true, _) => continue,
                    (_, true) => FaultKind::PrefetchHit,
                    _ => FaultKind::Demand,
                };
                demands += u32::from(kind == FaultKind::Demand);
                let plan = all.on_fault(1, PageId(page), kind, &told);
                let unmapped = plan.unmapped(plan.count, |p| !here.contains(&p.0));
                for i in 0..plan.count {
                    let p = plan.page(i).unwrap().0;
                    match unmapped.contains(i) {
                        true => left.insert(p),
                        false => here.insert(p),
                    };
                }
            }
            assert!(demands <= 2, "{demands} demand faults from {begin} on");
        }
    }
}
