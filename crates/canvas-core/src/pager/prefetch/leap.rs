//! Leap (Al Maruf and Chowdhury, ATC '20): the majority of a process's last fault deltas.
//!
//! Every fault on a far page, or on one in the swap cache, appends its delta from the previous fault to a history of
//! [`HISTORY`] deltas, one per process. A fault on a far page looks for the majority delta of the last [`FIRST_WINDOW`]
//! deltas, then of twice as many, and so on (the paper's FindTrend; the first window is a quarter of the history, as in
//! the authors' code). The hits on prefetched pages since the last prefetch decide how many pages follow (the paper's
//! GetPrefetchWindowSize): one more than the hits, rounded up to a power of two, at most [`WINDOW_MAX`]; without hits
//! one page if the fault follows the trend, else none; never less than half of the last window. The pages are the next
//! ones along the majority delta or, without a majority, the ones around the fault along the last one.
//!
//! Here deltas are of addresses (pages of the managed range). The paper's are offsets in swap space, which correspond
//! to addresses as long as pages are swapped out in order.

use canvas_types::PageId;
use canvas_types::sync::{AtomicU32, Ordering, RawSpin};

use super::{Fault, FaultKind, MemoryView, Plan, Prefetcher, get, majority, next_page, put};

/// Deltas kept (the paper's H_size).
pub const HISTORY: usize = 32;
/// Deltas examined first (H_size / N_split).
const FIRST_WINDOW: usize = HISTORY / 4;
/// Most pages prefetched at a time (the paper's PW_size max).
pub const WINDOW_MAX: u32 = 8;

/// Leap's state for one process, usable as a static.
pub struct Leap {
    /// Hits since the last prefetch. Outside the lock, so that none is lost.
    hits: AtomicU32,
    lock: RawSpin,
    /// Page of the last fault.
    last: AtomicU32,
    /// Faults so far; the first has no delta.
    faults: AtomicU32,
    /// Deltas (i32), a ring: that of the `n`-th fault is at `n % HISTORY`.
    history: [AtomicU32; HISTORY],
    /// Pages of the last plan.
    window: AtomicU32,
    /// The last majority delta (i32), 0 for none so far.
    trend: AtomicU32,
}

impl Leap {
    /// Creates a history without faults.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Leap {
        Leap {
            hits: AtomicU32::new(0),
            lock: RawSpin::new(),
            last: AtomicU32::new(0),
            faults: AtomicU32::new(0),
            history: [const { AtomicU32::new(0) }; HISTORY],
            window: AtomicU32::new(0),
            trend: AtomicU32::new(0),
        }
    }
}

impl Prefetcher for Leap {
    fn plan(&self, fault: &Fault<'_, impl MemoryView>) -> Plan {
        self.on_fault(fault.page, fault.kind)
    }
}

impl Leap {
    fn on_fault(&self, page: PageId, kind: FaultKind) -> Plan {
        if matches!(kind, FaultKind::PrefetchHit | FaultKind::PrefetchLate) {
            self.hits.fetch_add(1, Ordering::Relaxed);
        }
        let Some(_held) = self.lock.try_lock() else {
            return Plan::NONE;
        };
        let delta = self.record(page.0);
        if kind != FaultKind::Demand {
            return Plan::NONE;
        }
        let trend = self.majority();
        let follows = trend.is_some() && trend == delta;
        let window = window(
            self.hits.swap(0, Ordering::Relaxed),
            follows,
            get(&self.window),
        );
        put(&self.window, window);
        if let Some(delta) = trend {
            put(&self.trend, delta as u32);
        }
        let stride = get(&self.trend) as i32;
        if window == 0 || stride == 0 {
            return Plan::NONE;
        }
        let before = match trend {
            Some(_) => 0,
            None => i64::from(window / 2),
        };
        let from = i64::from(page.0) - before * i64::from(stride);
        let start = if before == 0 {
            next_page(page.0, i64::from(stride), 1)
        } else if (0..=i64::from(u32::MAX)).contains(&from) {
            from as u32
        } else {
            return Plan::NONE;
        };
        Plan {
            start: PageId(start),
            stride,
            // The fault lies among the pages around it and is no prefetch.
            count: window + u32::from(before > 0),
            sample_every: 1,
            ..Plan::NONE
        }
    }

    /// Appends a fault; returns its delta, except for the first fault.
    fn record(&self, page: u32) -> Option<i32> {
        let n = get(&self.faults);
        let delta = page.wrapping_sub(get(&self.last));
        put(&self.last, page);
        // At the maximum, continue from a count with a full history, so that it never looks empty again.
        let next = n.checked_add(1).unwrap_or(2 * HISTORY as u32);
        put(&self.faults, next);
        if n == 0 {
            return None;
        }
        put(&self.history[n as usize % HISTORY], delta);
        Some(delta as i32)
    }

    /// FindTrend: the delta of more than half of the last 8, 16 or 32; `None` if no window has one, or it is 0.
    fn majority(&self) -> Option<i32> {
        let last = (get(&self.faults) as usize).checked_sub(1)?;
        let at = |i: usize| get(&self.history[(last - i) % HISTORY]);
        let mut span = FIRST_WINDOW;
        while span <= HISTORY.min(last) {
            if let Some(delta) = majority(span, at) {
                return (delta != 0).then_some(delta as i32);
            }
            span *= 2;
        }
        None
    }
}

/// GetPrefetchWindowSize, given the last window.
fn window(hits: u32, follows: bool, last: u32) -> u32 {
    let window = match hits {
        0 => u32::from(follows),
        // Larger counts need no rounding.
        n => (n.min(WINDOW_MAX) + 1).next_power_of_two().min(WINDOW_MAX),
    };
    window.max(last / 2)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The paper's two algorithms as written there, over all deltas ever.
    #[derive(Default)]
    struct Oracle {
        pages: Vec<i64>,
        hits: u32,
        window: u32,
        trend: Option<i64>,
    }

    impl Oracle {
        fn find_trend(&self) -> Option<i64> {
            let deltas: Vec<i64> = self.pages.windows(2).map(|w| w[1] - w[0]).collect();
            for span in [8, 16, 32] {
                if deltas.len() < span {
                    return None;
                }
                let recent = &deltas[deltas.len() - span..];
                for d in recent {
                    if recent.iter().filter(|o| *o == d).count() > span / 2 {
                        return (*d != 0).then_some(*d);
                    }
                }
            }
            None
        }

        /// Pages that Leap would read besides the faulting one.
        fn fault(&mut self, page: i64, kind: FaultKind) -> Vec<i64> {
            self.pages.push(page);
            if kind != FaultKind::Demand {
                self.hits += u32::from(kind != FaultKind::VictimHit);
                return Vec::new();
            }
            let now = self.find_trend();
            let last = self.pages.windows(2).last().map(|w| w[1] - w[0]);
            let mut window = match self.hits {
                0 if now.is_some() && last == now => 1,
                0 => 0,
                1 => 2,
                2..=3 => 4,
                _ => 8,
            };
            window = window.max(self.window / 2);
            (self.hits, self.window) = (0, window);
            self.trend = now.or(self.trend);
            let Some(delta) = self.trend else {
                return Vec::new();
            };
            let n = i64::from(window);
            let steps: Vec<i64> = match now {
                Some(_) => (1..=n).collect(),
                None if window == 0 => Vec::new(),
                None if window == 1 => vec![1],
                None => (-n / 2..=n - n / 2).filter(|i| *i != 0).collect(),
            };
            steps.iter().map(|i| page + i * delta).collect()
        }
    }

    /// What the caller would bring in.
    fn planned(plan: &Plan, page: u32) -> Vec<i64> {
        (0..plan.count)
            .filter_map(|i| plan.page(i))
            .filter(|p| p.0 != page)
            .map(|p| i64::from(p.0))
            .collect()
    }

    fn kind() -> impl Strategy<Value = FaultKind> {
        prop_oneof![
            4 => Just(FaultKind::Demand),
            3 => Just(FaultKind::PrefetchHit),
            1 => Just(FaultKind::PrefetchLate),
            1 => Just(FaultKind::VictimHit),
        ]
    }

    proptest! {
        #[test]
        fn does_what_the_paper_says(
            // Runs of one stride with stray faults in between: trends come, go and change.
            runs in prop::collection::vec((-40i64..40, 1usize..30, any::<bool>()), 1..12),
            kinds in prop::collection::vec(kind(), 400),
            strays in prop::collection::vec(0u32..4, 400),
        ) {
            let (leap, mut oracle) = (Leap::new(), Oracle::default());
            let mut page = 1_000_000i64;
            let (mut kinds, mut strays) = (kinds.into_iter(), strays.into_iter());
            for (stride, n, noisy) in runs {
                for i in 0..n {
                    page += stride;
                    let stray = strays.next().unwrap_or(1) == 0;
                    let at = if noisy && stray { page + 5000 + 7 * i as i64 } else { page };
                    let kind = kinds.next().unwrap_or(FaultKind::Demand);
                    let want = oracle.fault(at, kind);
                    let plan = leap.on_fault(PageId(at as u32), kind);
                    prop_assert_eq!(planned(&plan, at as u32), want);
                    prop_assert!(plan.count == 0 || plan.sample_every == 1);
                }
            }
        }
    }

    #[test]
    fn a_trend_is_followed_and_hits_widen_the_window() {
        let leap = Leap::new();
        let plans: Vec<u32> = (0..12)
            .map(|i| leap.on_fault(PageId(500 + 3 * i), FaultKind::Demand).count)
            .collect();
        // Eight deltas take nine faults; without hits one page follows.
        assert_eq!(plans, [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]);
        leap.on_fault(PageId(536), FaultKind::PrefetchHit);
        let plan = leap.on_fault(PageId(539), FaultKind::Demand);
        assert_eq!((plan.start, plan.stride, plan.count), (PageId(542), 3, 2));
        for i in 0..6 {
            leap.on_fault(PageId(542 + 3 * i), FaultKind::PrefetchHit);
        }
        assert_eq!(leap.on_fault(PageId(560), FaultKind::Demand).count, 8);
        // No hits, and no trend followed: half, and half again, around the fault.
        let shrinking: Vec<u32> = [9_000, 70_000, 1, 400_000, 33]
            .map(|p| leap.on_fault(PageId(p), FaultKind::Demand).count)
            .to_vec();
        assert_eq!(shrinking[..2], [4, 2]);
        assert_eq!(shrinking[4], 0);
    }

    #[test]
    fn random_faults_ask_for_nothing() {
        let (leap, mut x) = (Leap::new(), 12345u32);
        for _ in 0..1000 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            assert_eq!(leap.on_fault(PageId(x >> 4), FaultKind::Demand).count, 0);
        }
    }
}
