use super::*;
use canvas_testing::random::scaled;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A program whose touches of prefetched pages cause no fault, as with mapped pages.
struct Program {
    streams: Box<ThreadStreams>,
    here: BTreeSet<u32>,
    unmapped: BTreeSet<u32>,
    faults: u32,
    prefetched: u32,
    used: u32,
    /// Used pages, estimated from the sampled ones.
    estimate: u32,
    stream: u32,
    behind: Vec<u32>,
}

impl Program {
    fn new() -> Program {
        Program {
            streams: Box::new(ThreadStreams::new()),
            here: BTreeSet::new(),
            unmapped: BTreeSet::new(),
            faults: 0,
            prefetched: 0,
            used: 0,
            estimate: 0,
            stream: 0,
            behind: Vec::new(),
        }
    }
    fn touch(&mut self, thread: u32, page: u32) -> Plan {
        let kind = if self.unmapped.remove(&page) {
            self.streams.on_used(&Plan::NONE);
            FaultKind::PrefetchHit
        } else if self.here.remove(&page) {
            self.used += 1;
            return Plan::NONE;
        } else {
            FaultKind::Demand
        };
        self.used += u32::from(kind == FaultKind::PrefetchHit);
        let hit = kind == FaultKind::PrefetchHit;
        self.faults += u32::from(kind == FaultKind::Demand);
        let plan = self.streams.on_fault(thread, PageId(page), kind);
        self.stream += u32::from(plan.stream);
        assert_eq!(plan.stands_for > 0, hit);
        self.estimate += plan.stands_for;
        self.behind.extend(plan.behind.map(|p| p.0));
        let unmapped = plan.unmapped(plan.count, |_| true);
        for i in 0..plan.count {
            let Some(p) = plan.page(i) else { break };
            assert_ne!(p.0, page, "the faulting page is not planned");
            self.prefetched += 1;
            if unmapped.contains(i) {
                self.unmapped.insert(p.0)
            } else {
                self.here.insert(p.0)
            };
        }
        plan
    }
    /// Evicts everything that was prefetched and not touched.
    fn evict(&mut self) {
        for page in std::mem::take(&mut self.unmapped) {
            self.streams.on_unused(PageId(page));
        }
        self.here.clear();
    }
}

#[test]
fn a_sequence_is_found_at_the_second_fault() {
    for step in [1i64, -1] {
        let mut p = Program::new();
        assert_eq!(p.touch(1, 50_000).count, 0);
        let plan = p.touch(1, (50_000 + step) as u32);
        assert_eq!(
            (plan.start.0, plan.stride, plan.count),
            ((50_000 + 2 * step) as u32, step as i32, 2)
        );
    }
}

#[test]
fn a_stride_is_found_at_the_third_fault() {
    for stride in [2i64, 3, 17, -5, 200] {
        let mut p = Program::new();
        let at = |i: i64| (1_000_000 + i * stride) as u32;
        assert_eq!(p.touch(1, at(0)).count + p.touch(1, at(1)).count, 0);
        let plan = p.touch(1, at(2));
        assert_eq!((plan.start.0, i64::from(plan.stride)), (at(3), stride));
        assert!(plan.count > 0);
    }
}

#[test]
fn a_long_sequence_faults_rarely_and_wastes_little() {
    for step in [1i64, -1, 4] {
        let mut p = Program::new();
        for i in 0..10_000i64 {
            p.touch(1, (1_000_000 + i * step) as u32);
        }
        assert!(p.faults < 12, "step {step}: {} faults", p.faults);
        assert!(
            p.prefetched - p.used <= 2 * WINDOW_MAX,
            "step {step}: {} unused",
            p.prefetched - p.used
        );
        assert!(p.stream > 0);
        let off = p.estimate.abs_diff(p.used);
        assert!(off * 20 < p.used, "estimate {} of {}", p.estimate, p.used);
    }
}

#[test]
fn a_stream_reports_each_chunk_that_it_leaves() {
    let mut p = Program::new();
    (0..6400u32).for_each(|i| {
        p.touch(1, i);
    });
    let chunks: Vec<u32> = p.behind.iter().map(|p| p / CHUNK_PAGES as u32).collect();
    let distinct: BTreeSet<_> = chunks.iter().copied().collect();
    assert_eq!(distinct.len(), chunks.len(), "none twice");
    assert!(distinct.len() >= 95 && chunks.windows(2).all(|w| w[0] < w[1]));
}

#[test]
fn interleaved_streams_are_told_apart() {
    let mut p = Program::new();
    for i in 0..2000 {
        for base in [0, 100_000, 200_000] {
            p.touch(1, base + i);
        }
    }
    assert!(p.faults < 40, "{} faults of 6000", p.faults);
}

#[test]
fn threads_are_told_apart() {
    let mut p = Program::new();
    for i in 0..2000 {
        for thread in 0..8 {
            p.touch(thread, thread * 1_000_000 + i * (1 + thread % 3));
        }
    }
    assert!(p.faults < 8 * 40, "{} faults of 16000", p.faults);
}

#[test]
fn leap_finds_the_majority_in_noise() {
    let set = Set::new();
    for d in [600i64, 600, 9_000, 600, 600, -77_000, 600, 600] {
        set.stray_fault((get(&set.stray) as i64 + d) as u32);
    }
    assert_eq!(set.majority(), Some(600));
    for d in [11u32, 222, 3333, 44444, 5, 66, 777, 8888].repeat(4) {
        set.stray_fault(get(&set.stray).wrapping_add(d));
    }
    assert_eq!(set.majority(), None);
}

#[test]
fn long_strides_are_voted_for() {
    let mut p = Program::new();
    for i in 0..400u32 {
        p.touch(1, 1_000_000 + i * 1000);
    }
    assert!(p.faults < 100, "{} faults of 400", p.faults);
    assert!(
        p.prefetched - p.used <= WINDOW_MAX,
        "only the stream's end is wasted"
    );
}

#[test]
fn first_touch_doubles_on_sequences_only() {
    let p = ThreadStreams::new();
    let mut page = 64 * 100;
    let mut counts = Vec::new();
    for _ in 0..9 {
        let plan = p.first_touch_plan(1, PageId(page));
        counts.push(plan.count);
        page += plan.count + 1;
    }
    assert_eq!(counts[..4], [0, 1, 2, 4]);
    assert!(
        counts.iter().enumerate().all(|(i, c)| *c <= 1 << i),
        "{counts:?}"
    );
    assert!(counts.iter().all(|c| *c <= WINDOW_MAX) && counts[8] > WINDOW_MAX / 2);
    assert_eq!(
        page % CHUNK_PAGES as u32,
        0,
        "long fills end with the chunk"
    );
    for i in 0..100 {
        assert_eq!(
            p.first_touch_plan(2, PageId(1_000_000 + i * 5003 % 77777))
                .count,
            0
        );
    }
    let (mut page, mut sum) = (500_000, 0);
    for _ in 0..8 {
        let plan = p.first_touch_plan(3, PageId(page));
        assert!(plan.count == 0 || plan.stride == -1);
        page -= plan.count + 1;
        sum += plan.count;
    }
    assert!(sum > 60, "downwards too");
}

/// A stream that either touches each plan's marked page, or skips it: the fault after a plan is on that page, or past
/// it.
fn last_windows(touches_the_mark: bool) -> (u32, u32) {
    let p = Box::new(ThreadStreams::new());
    let mut page = 1000;
    p.on_fault(1, PageId(page), FaultKind::Demand);
    let (mut most, mut last) = (0, 0);
    for round in 0..12 {
        // Proven first in both cases.
        let hit = touches_the_mark || round < 8;
        page += if round == 0 { 1 } else { 0 };
        let kind = if hit && round > 0 {
            FaultKind::PrefetchHit
        } else {
            FaultKind::Demand
        };
        let plan = p.on_fault(1, PageId(page), kind);
        let done = Done {
            reached: plan.count,
            issued: plan.count,
            marked: u32::from(plan.count > 0),
        };
        p.carried_out(&plan, &done);
        (most, last) = (most.max(plan.count), plan.count);
        let end = plan.start.0 + plan.count.max(1);
        let passes = !(touches_the_mark || round + 1 < 8);
        page = if passes { end + 1 } else { end - 1 };
    }
    (most, last)
}

#[test]
fn a_stream_that_passes_its_marked_page_loses_its_window() {
    let (most, last) = last_windows(true);
    assert!(most >= 32 && last >= 32, "{most} {last}");
    let (most, last) = last_windows(false);
    assert!(most >= 32 && last <= most / 4, "{most} {last}");
}

#[test]
fn a_plan_that_was_cut_moves_the_frontier_back() {
    let p = Box::new(ThreadStreams::new());
    p.on_fault(1, PageId(10), FaultKind::Demand);
    let mut plan = p.on_fault(1, PageId(11), FaultKind::Demand);
    while plan.count < 8 {
        let next = plan.start.0 + plan.count;
        plan = p.on_fault(1, PageId(next), FaultKind::Demand);
    }
    // Only two pages were brought in: the third is the stream's next page, not one that it skipped to.
    let done = Done {
        reached: 2,
        issued: 2,
        marked: 0,
    };
    p.carried_out(&plan, &done);
    let next = p.on_fault(1, PageId(plan.start.0 + 2), FaultKind::Demand);
    assert_eq!(next.start.0, plan.start.0 + 3);
    assert!(next.count >= plan.count, "{next:?} after {plan:?}");
}

#[test]
fn a_hit_stands_for_what_was_brought_in() {
    let p = Box::new(ThreadStreams::new());
    let mut plan = Plan::NONE;
    let mut next = 70_000;
    while plan.count < 16 {
        plan = p.on_fault(1, PageId(next), FaultKind::Demand);
        next = plan.page(plan.count.max(1) - 1).map_or(next, |p| p.0) + 1;
    }
    // Only six pages of the plan were far, and the last of them is marked.
    let done = Done {
        reached: plan.count,
        issued: 6,
        marked: 1,
    };
    p.carried_out(&plan, &done);
    let marked = PageId(plan.start.0 + plan.count - 2);
    assert_eq!(
        p.on_fault(1, marked, FaultKind::PrefetchHit).stands_for,
        6,
        "{plan:?}"
    );
}

#[test]
fn a_sample_is_left_unmapped() {
    let plan = Plan {
        start: PageId(8),
        stride: 1,
        count: 64,
        sample_every: SAMPLE_EVERY,
        ..Plan::NONE
    };
    let left = |plan: &Plan, n, far: fn(PageId) -> bool| -> Vec<u32> {
        let unmapped = plan.unmapped(n, far);
        (0..n).filter(|i| unmapped.contains(*i)).collect()
    };
    assert_eq!(left(&plan, 64, |_| true), [7, 15, 23, 31, 39, 47, 55, 63]);
    assert_eq!(
        left(&plan, 20, |p| p.0 < 8 + 14),
        [7, 13, 15],
        "the last one that is far too"
    );
    assert_eq!(left(&plan, 20, |_| false), [7, 15]);
    let unsampled = Plan {
        sample_every: 0,
        ..plan
    };
    assert_eq!(left(&unsampled, 64, |_| panic!("nobody asks")), [0; 0]);
    assert_eq!(plan.page(64), None);
    let down = Plan {
        start: PageId(1),
        stride: -1,
        count: 4,
        ..plan
    };
    assert_eq!(
        [down.page(0), down.page(1), down.page(2)],
        [Some(PageId(1)), Some(PageId(0)), None]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(scaled(64)))]

    /// Random faults over much memory: next to nothing is prefetched.
    #[test]
    fn random_faults_stay_quiet(seed: u64) {
        let mut p = Program::new();
        let mut x = seed | 1;
        for i in 0..4000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            p.touch(1, (x >> 40) as u32 % 1_000_000);
            if i % 64 == 0 { p.evict(); }
        }
        prop_assert!(p.prefetched < 200, "{} prefetched", p.prefetched);
    }

    /// Short runs of neighbours that never continue: prefetching stops once it has seen enough.
    #[test]
    fn useless_prefetch_is_gated(seed: u64) {
        let mut p = Program::new();
        let mut x = seed | 1;
        let mut early = 0;
        for i in 0..4000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let page = (x >> 40) as u32 % 1_000_000;
            p.touch(1, page);
            p.touch(1, page + 1);
            if i % 8 == 0 { p.evict(); }
            if i == 400 { early = p.prefetched; }
        }
        let late = p.prefetched - early;
        prop_assert!(late < 3600 / 4, "{early} of the first 400, then {late}");
        prop_assert!(late > 0, "it keeps measuring");
    }
}
