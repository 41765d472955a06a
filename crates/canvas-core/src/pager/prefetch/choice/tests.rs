use super::*;
use crate::pager::prefetch::streams::WINDOW_MAX;
use std::collections::BTreeSet;

const AREA: Area = Area {
    start: 0,
    end: 1 << 20,
};

/// One mapping, or no known mapping; all pages are far.
struct Here(Option<Area>);
impl Surroundings for Here {
    fn area_of(&self, _: PageId) -> Option<Area> {
        self.0
    }
    fn is_far(&self, _: PageId) -> bool {
        true
    }
    fn epoch(&self) -> u8 {
        0
    }
}

/// Faults on the pages from 10,000 on, answered as a caller does; returns the pages planned, and whether the stream
/// was seen.
fn sequence(who: Prefetch) -> (u32, bool) {
    let all = Box::new(Prefetchers::new());
    all.choose(who);
    let (mut planned, mut stream) = (0, false);
    let mut cached = BTreeSet::new();
    for page in 10_000..12_000 {
        let kind = if cached.remove(&page) {
            FaultKind::PrefetchHit
        } else {
            FaultKind::Demand
        };
        let plan = all.on_fault(1, PageId(page), kind, &Here(Some(AREA)));
        assert_eq!(plan.stands_for, u32::from(kind == FaultKind::PrefetchHit));
        stream |= plan.stream;
        for p in (0..plan.count).filter_map(|i| plan.page(i)) {
            assert!(plan.sample_every == 1);
            planned += u32::from(p.0 > page && cached.insert(p.0));
        }
    }
    (planned, stream)
}

#[test]
fn each_plans_for_itself_and_streams_are_always_seen() {
    for who in [Prefetch::Leap, Prefetch::Readahead] {
        let (planned, stream) = sequence(who);
        assert!(planned > 1500 && stream, "{who:?}: {planned}");
    }
    assert_eq!(sequence(Prefetch::None), (0, true));
}

/// Faults of one thread in eight arrays in turn, each with its own stride: more arrays than streams tracked per
/// thread.
#[test]
fn many_arrays_of_one_thread_are_told_apart() {
    struct Arrays;
    impl Surroundings for Arrays {
        fn area_of(&self, page: PageId) -> Option<Area> {
            let start = page.0 & !0xffff;
            Some(Area {
                start,
                end: start + 0x1_0000,
            })
        }
        fn is_far(&self, _: PageId) -> bool {
            true
        }
        fn epoch(&self) -> u8 {
            0
        }
    }
    let all = Box::new(Prefetchers::new());
    let mut rng = fastrand::Rng::with_seed(11);
    let (mut low, mut arrays, mut at) = (0, 0, [0u32; 8]);
    for _ in 0..8000 {
        let array = rng.u32(0..8);
        let stride = 40 + array;
        let page = PageId((array + 1) * 0x2_0000 + at[array as usize] * stride);
        at[array as usize] += 1;
        let kind = FaultKind::Demand;
        low += all.on_fault(1, page, kind, &Arrays).count;
        let plan = all.on_forwarded(1, page, kind, &Arrays);
        arrays += plan.count;
        assert!(plan.count == 0 || plan.is_of_array() && plan.stride as u32 == stride);
    }
    assert!(arrays > 7000 && low < 6000, "{arrays} and {low}");
}

#[test]
fn what_an_array_s_plan_left_and_nobody_used_counts_against_arrays_alone() {
    let all = Box::new(Prefetchers::new());
    let plan = Plan {
        way: OF_ARRAY,
        ..Plan::NONE
    };
    all.on_left(PageId(77), &plan);
    assert_eq!(all.on_unused(PageId(77)), SAMPLE_EVERY);
    // Counted only once.
    all.choose(Prefetch::Leap);
    assert_eq!(all.on_unused(PageId(77)), 1);
}

#[test]
fn without_a_mapping_readahead_stays_quiet() {
    let all = Box::new(Prefetchers::new());
    all.choose(Prefetch::Readahead);
    assert_eq!(
        all.on_fault(1, PageId(5), FaultKind::Demand, &Here(None))
            .count,
        0
    );
    assert!(
        all.on_fault(1, PageId(5), FaultKind::Demand, &Here(Some(AREA)))
            .count
            > 0
    );
}

#[test]
fn the_streams_decide_unless_told_otherwise() {
    let (all, own) = (Box::new(Prefetchers::new()), Box::new(Prefetcher::new()));
    for page in (0..3000).chain((0..900).map(|i| 50_000 + 7 * i)) {
        let ask = all.on_fault(3, PageId(page), FaultKind::Demand, &Here(None));
        assert_eq!(ask, own.on_fault(3, PageId(page), FaultKind::Demand));
    }
    assert_eq!(all.on_unused(PageId(9)), SAMPLE_EVERY);
}

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
