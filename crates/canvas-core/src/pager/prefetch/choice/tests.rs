use super::*;
use crate::pager::prefetch::streams::WINDOW_MAX;
use crate::pager::prefetch::testing::AllFar;
use crate::pager::prefetch::{Area, SAMPLE_EVERY};
use std::collections::BTreeSet;

/// Memory of one mapping.
static HERE: AllFar = AllFar(|_| {
    let (start, end) = (0, 1 << 20);
    Some(Area { start, end })
});

fn fault(page: u32, kind: FaultKind, advice: Advice) -> Fault<'static, AllFar> {
    Fault {
        advice,
        ..HERE.fault(page, kind)
    }
}

fn prefetchers(who: Prefetch) -> Box<Prefetchers> {
    let all = Box::new(Prefetchers::new());
    all.choose(who);
    all
}

/// Faults on the pages from 10,000 on, answered as a caller does; returns the pages planned, and whether the stream
/// was seen.
fn sequence(who: Prefetch) -> (u32, bool) {
    let all = prefetchers(who);
    let (mut planned, mut stream) = (0, false);
    let mut cached = BTreeSet::new();
    for page in 10_000..12_000 {
        let kind = if cached.remove(&page) {
            FaultKind::PrefetchHit
        } else {
            FaultKind::Demand
        };
        let plan = all.plan(&fault(page, kind, Advice::Normal));
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
        assert_eq!(prefetchers(who).on_unused(PageId(77)), Some(1));
    }
    assert_eq!(sequence(Prefetch::None), (0, true));
}

#[test]
fn the_streams_decide_unless_told_otherwise() {
    let (all, own) = (
        prefetchers(Prefetch::Streams),
        Box::new(ThreadStreams::new()),
    );
    for page in (0..3000).chain((0..900).map(|i| 50_000 + 7 * i)) {
        let plan = all.plan(&fault(page, FaultKind::Demand, Advice::Normal));
        assert_eq!(plan, own.on_fault(1, PageId(page), FaultKind::Demand));
    }
    assert_eq!(all.on_unused(PageId(9)), Some(SAMPLE_EVERY));
}

/// The streams do not hear of a plan beside them, and who made it does.
#[test]
fn what_came_in_beside_the_streams_does_not_count_for_them() {
    let all = prefetchers(Prefetch::Auto);
    // Sixteen neighbours in each of some places, in no order that a stream would expect.
    let mut pages: Vec<u32> = (0..40 * 16).map(|i| i / 16 * 1024 + i % 16).collect();
    let mut rng = fastrand::Rng::with_seed(9);
    let plans = std::iter::from_fn(|| {
        rng.shuffle(&mut pages);
        Some(pages.clone())
    });
    let (plan, left) = plans
        .take(50)
        .flatten()
        .find_map(|page| {
            let plan = all.plan(&fault(page, FaultKind::Demand, Advice::Normal));
            let last = plan.page(plan.count.max(1) - 1)?;
            (plan.planner.is_some() && last.0 != page).then_some((plan, last))
        })
        .expect("neighbours come in beside a fault");
    let done = Done {
        reached: plan.count,
        issued: plan.count - 1,
        marked: 1,
    };
    all.carried_out(&plan, &done);
    for _ in 0..100 {
        assert_eq!(all.on_unused(left), Some(plan.count - 1));
    }
    let hit = all.plan(&fault(left.0, FaultKind::PrefetchHit, Advice::Normal));
    for _ in 0..100 {
        all.on_used(&hit);
    }
    assert_eq!(
        (hit.planner, hit.stands_for),
        (plan.planner, plan.count - 1)
    );
    assert_eq!(all.streams.accuracy_percent(), None);
}

#[test]
fn nothing_comes_in_beside_a_page_that_is_used_at_random() {
    for who in Prefetch::ALL {
        let all = prefetchers(who);
        // In order nevertheless; the program's advice takes precedence.
        for page in 1000..1500 {
            let plan = all.plan(&fault(page, FaultKind::Demand, Advice::Random));
            assert_eq!(plan, Plan::NONE, "{who:?}");
        }
        let plan = all.plan(&fault(1, FaultKind::PrefetchHit, Advice::Random));
        assert!(plan.count == 0 && plan.stands_for > 0);
    }
}

#[test]
fn the_first_fault_of_a_sequential_region_brings_in_the_widest_window_forward() {
    for who in [Prefetch::Streams, Prefetch::Auto] {
        let all = prefetchers(who);
        let plan = all.plan(&fault(640, FaultKind::Demand, Advice::Sequential));
        assert_eq!((plan.start.0, plan.stride), (641, 1), "{who:?}");
        assert!(plan.count >= WINDOW_MAX - 1 && plan.stream);
    }
}

#[test]
fn without_prefetching_a_sequential_region_has_none() {
    let all = prefetchers(Prefetch::None);
    for page in 0..500 {
        let plan = all.plan(&fault(page, FaultKind::Demand, Advice::Sequential));
        assert_eq!(plan.count, 0);
    }
}

/// Reads pages in order as the fault path does, one window after the other, from several beginnings on.
#[test]
fn a_sequential_region_is_read_with_few_demand_faults_wherever_it_begins() {
    let all = prefetchers(Prefetch::Streams);
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
            let plan = all.plan(&fault(page, kind, Advice::Sequential));
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
