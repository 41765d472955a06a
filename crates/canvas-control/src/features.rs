//! Page features: properties of a program's pages, and what paging costs the program.
//!
//! xDM chooses backends by such features (its table of features and knobs: fragment, load/store,
//! sequential/random and hot/cold ratios, anonymous or file pages); `--slo` is enforced by slowdown
//! and pressure. No pages are scanned: every feature follows from sums that processes keep while
//! they page.

use std::collections::BTreeMap;

use canvas_shm::segment::REFAULT_BUCKETS;
use serde::{Deserialize, Serialize};

/// Pages per block (2 MiB).
const BLOCK_PAGES: u64 = canvas_types::layout::BLOCK_PAGES as u64;
/// Buckets of [`Sums::refaults`] for pages that came back before as much as local memory holds was
/// evicted: twice the local memory would have kept them.
const HOT_BUCKETS: usize = 5;

/// The largest slowdown reported: practically all time goes to paging.
const SLOWDOWN_MAX: f64 = 100.0;

/// Sums of a run so far, from which features follow. Sums only grow; fields marked "Level" are
/// current values.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
#[serde(default)]
pub struct Sums {
    /// Pages swapped in.
    pub pages_in: u64,
    /// Of these, pages of a stream.
    pub pages_in_stream: u64,
    /// Pages evicted.
    pub pages_out: u64,
    /// Of these, pages that had not been written to.
    pub pages_out_clean: u64,
    /// Faults on evicted pages, by reuse distance ([`canvas_shm::segment::refault_bucket`]).
    pub refaults: Vec<u64>,
    /// Faults whose time was measured.
    pub faults: u64,
    /// Their time, in ns.
    pub fault_ns: u64,
    /// Time that their threads slept, in ns; where another thread resolves a fault, until the
    /// faulting thread is awake.
    pub fault_sleep_ns: u64,
    /// Processor time of the faults, in ns.
    pub fault_cpu_ns: u64,
    /// Processor time that the kernel needs per fault, before it delivers the fault and after it is
    /// resolved.
    pub delivery_ns: u64,
    /// Processor time of the processes, in ns.
    pub cpu_ns: u64,
    /// Of that, time of the reclaim threads.
    pub reclaim_ns: u64,
    /// Of that, time in which no processor was idle, so that the program could have used it.
    pub reclaim_wanted_ns: u64,
    /// For each process, the time with at least one thread in a fault, in ns.
    pub stalled_ns: BTreeMap<u64, u64>,
    /// Level: pages that exist, wherever they are.
    pub touched_pages: u64,
    /// Level: blocks with at least one of these pages.
    pub touched_blocks: u64,
    /// Level: pages in the pool, except those that take no space there.
    pub stored_pages: u64,
    /// Level: bytes that these pages take in the pool.
    pub stored_bytes: u64,
    /// Level: anonymous memory of the processes, wherever it is.
    pub anon_bytes: u64,
    /// Level: file memory, as mapped and resident in each process.
    pub file_bytes: u64,
}

/// Features. Ratios run from 0 to 1; `None` where there is no data.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
pub struct Features {
    /// Part of the used 2 MiB blocks that was never touched.
    pub fragment_ratio: Option<f64>,
    /// Part of evicted pages that had been written to.
    pub store_ratio: Option<f64>,
    /// Part of the pages swapped in that belonged to a stream.
    pub sequential_ratio: Option<f64>,
    /// Part of faults on evicted pages that came before as much as local memory holds was evicted.
    pub hot_ratio: Option<f64>,
    /// Compression ratio of the pages in the pool, at least 1.
    pub compression: Option<f64>,
    /// Part of the processes' memory that belongs to files.
    pub file_ratio: Option<f64>,
    /// Time spent on paging over the time that the program would need without it: 0.02 is 2 %
    /// slower.
    pub slowdown: Option<f64>,
    /// Part of the time with at least one thread in a fault, of the process where it is largest.
    pub stall_ratio: Option<f64>,
}

/// `part / whole` to four digits, at most 1; `None` if the whole is 0.
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole != 0).then(|| four_digits((part as f64 / whole as f64).min(1.0)))
}

fn four_digits(x: f64) -> f64 {
    (x * 1e4).round() / 1e4
}

impl Sums {
    /// The growth of the sums since `before`, an earlier sample; levels as they are now.
    pub fn since(&self, before: &Sums) -> Sums {
        let less = |now: u64, then: u64| now.saturating_sub(then);
        let then = |i: usize| before.refaults.get(i).copied().unwrap_or(0);
        Sums {
            pages_in: less(self.pages_in, before.pages_in),
            pages_in_stream: less(self.pages_in_stream, before.pages_in_stream),
            pages_out: less(self.pages_out, before.pages_out),
            pages_out_clean: less(self.pages_out_clean, before.pages_out_clean),
            refaults: (self.refaults.iter().enumerate())
                .map(|(i, n)| less(*n, then(i)))
                .collect(),
            faults: less(self.faults, before.faults),
            fault_ns: less(self.fault_ns, before.fault_ns),
            fault_sleep_ns: less(self.fault_sleep_ns, before.fault_sleep_ns),
            fault_cpu_ns: less(self.fault_cpu_ns, before.fault_cpu_ns),
            cpu_ns: less(self.cpu_ns, before.cpu_ns),
            reclaim_ns: less(self.reclaim_ns, before.reclaim_ns),
            reclaim_wanted_ns: less(self.reclaim_wanted_ns, before.reclaim_wanted_ns),
            stalled_ns: (self.stalled_ns.iter())
                .map(|(pid, ns)| (*pid, less(*ns, *before.stalled_ns.get(pid).unwrap_or(&0))))
                .collect(),
            ..self.clone()
        }
    }

    /// The features of a period of `elapsed_ns`, in which the sums grew to these values.
    pub fn features(&self, elapsed_ns: u64) -> Features {
        let not = |r: Option<f64>| r.map(|r| four_digits(1.0 - r));
        let hot = self.refaults.iter().take(HOT_BUCKETS);
        let refaults = self.refaults.iter().take(REFAULT_BUCKETS);
        let stored = self
            .stored_pages
            .saturating_mul(canvas_types::PAGE_SIZE as u64);
        let whole_blocks = self.touched_blocks.saturating_mul(BLOCK_PAGES);
        Features {
            fragment_ratio: not(ratio(self.touched_pages, whole_blocks)),
            store_ratio: not(ratio(self.pages_out_clean, self.pages_out)),
            sequential_ratio: ratio(self.pages_in_stream, self.pages_in),
            hot_ratio: ratio(saturating_sum(hot), saturating_sum(refaults)),
            compression: (self.stored_bytes != 0)
                .then(|| four_digits((stored as f64 / self.stored_bytes as f64).max(1.0))),
            file_ratio: ratio(
                self.file_bytes,
                self.anon_bytes.saturating_add(self.file_bytes),
            ),
            slowdown: self.slowdown(),
            stall_ratio: self
                .stalled_ns
                .values()
                .max()
                .and_then(|ns| ratio(*ns, elapsed_ns)),
        }
    }

    /// Processor time of faults, including the kernel's part, in ns of all threads. Wall time would
    /// include waiting for a processor, which is not paging.
    fn faults_ns(&self) -> u64 {
        let kernels = self.faults.saturating_mul(self.delivery_ns);
        self.fault_cpu_ns.saturating_add(kernels)
    }

    /// Time that paging takes from the program, in ns: work and sleep in faults, and reclaim while
    /// no processor was idle.
    pub fn paging_ns(&self) -> u64 {
        let reclaim_ns = self.reclaim_wanted_ns.min(self.reclaim_ns);
        self.faults_ns()
            .saturating_add(self.fault_sleep_ns)
            .saturating_add(reclaim_ns)
    }

    /// Processor time without reclaim, in ns.
    fn worked_ns(&self) -> u64 {
        self.cpu_ns.saturating_sub(self.reclaim_ns)
    }

    /// Processor time that was left for the program's own work, in ns.
    pub fn rest_ns(&self) -> u64 {
        self.worked_ns().saturating_sub(self.faults_ns())
    }

    /// (S + W + R) / (A - S): S is the processor time of faults, including the kernel's part; W the
    /// sleep in faults; R the time of reclaim while no processor was idle; A the processor time
    /// without reclaim.
    fn slowdown(&self) -> Option<f64> {
        let (all, paging) = (self.worked_ns(), self.paging_ns());
        // Below this the clocks are too coarse, both for paging and for the rest.
        let rest = self.rest_ns().max(all / 100);
        (all >= 1_000_000).then(|| four_digits((paging as f64 / rest as f64).min(SLOWDOWN_MAX)))
    }
}

fn saturating_sum<'a>(of: impl Iterator<Item = &'a u64>) -> u64 {
    of.fold(0, |sum: u64, n| sum.saturating_add(*n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sums() -> Sums {
        Sums {
            pages_in: 100,
            pages_in_stream: 25,
            pages_out: 200,
            pages_out_clean: 150,
            refaults: vec![10, 0, 20, 0, 30, 0, 0, 40, 0],
            faults: 1000,
            fault_ns: 9_000_000,
            fault_sleep_ns: 0,
            fault_cpu_ns: 4_000_000,
            delivery_ns: 2000,
            cpu_ns: 130_000_000,
            reclaim_ns: 4_000_000,
            reclaim_wanted_ns: 0,
            stalled_ns: BTreeMap::from([(7, 4_000_000), (8, 1_000_000)]),
            touched_pages: 384,
            touched_blocks: 1,
            stored_pages: 30,
            stored_bytes: 40_960,
            anon_bytes: 3 << 20,
            file_bytes: 1 << 20,
        }
    }

    #[test]
    fn features_follow_from_sums() {
        let f = sums().features(40_000_000);
        assert_eq!(f.fragment_ratio, Some(0.25));
        assert_eq!(f.store_ratio, Some(0.25));
        assert_eq!(f.sequential_ratio, Some(0.25));
        assert_eq!(f.hot_ratio, Some(0.6));
        assert_eq!(f.compression, Some(3.0));
        assert_eq!(f.file_ratio, Some(0.25));
        assert_eq!(f.stall_ratio, Some(0.1));
        // 4 ms, and 2 of the kernel, relative to 120 of 130 less 4.
        assert_eq!(f.slowdown, Some(0.05));
    }

    #[test]
    fn what_is_slept_is_in_no_processor_and_what_a_processor_was_waited_for_counts_as_nothing() {
        let slow = Sums {
            fault_ns: 600_000_000,
            fault_sleep_ns: 60_000_000,
            ..sums()
        };
        assert_eq!(slow.features(1).slowdown, Some(0.55));
    }

    #[test]
    fn reclaim_slows_where_no_processor_is_idle() {
        let busy = Sums {
            reclaim_wanted_ns: 3_000_000,
            ..sums()
        };
        assert_eq!(busy.features(1).slowdown, Some(0.075));
        // Never more than reclaim used.
        let more = Sums {
            reclaim_wanted_ns: u64::MAX,
            ..sums()
        };
        assert_eq!(more.features(1).slowdown, Some(0.0833));
    }

    #[test]
    fn nothing_tells_nothing() {
        assert_eq!(Sums::default().features(0), Features::default());
        let now = sums();
        let still = now.since(&now).features(1_000_000);
        assert_eq!(
            (still.store_ratio, still.hot_ratio, still.slowdown),
            (None, None, None)
        );
        assert_eq!(still.stall_ratio, Some(0.0));
        // Levels are not subtracted.
        assert_eq!(still.fragment_ratio, Some(0.25));
    }

    #[test]
    fn an_older_run_says_less() {
        let some: Sums = serde_json::from_str(r#"{"pages_out":4,"pages_out_clean":1}"#).unwrap();
        assert_eq!(some.features(1).store_ratio, Some(0.75));
    }

    proptest! {
        /// A program can write any number into its segment.
        #[test]
        fn whatever_the_sums_are_ratios_are_ratios(
            n in proptest::array::uniform16(any::<u64>()), refaults: Vec<u64>, elapsed_ns: u64,
        ) {
            let sums = Sums {
                pages_in: n[0], pages_in_stream: n[1], pages_out: n[2], pages_out_clean: n[3],
                refaults, faults: n[4], fault_ns: n[5], fault_sleep_ns: n[6], delivery_ns: n[7], fault_cpu_ns: n[8],
                cpu_ns: n[8], reclaim_ns: n[9], reclaim_wanted_ns: n[2], stalled_ns: BTreeMap::from([(1, n[10])]),
                touched_pages: n[11], touched_blocks: n[12], stored_pages: n[13], stored_bytes: n[14],
                anon_bytes: n[15], file_bytes: n[0],
            };
            let f = sums.features(elapsed_ns);
            for r in [f.fragment_ratio, f.store_ratio, f.sequential_ratio, f.hot_ratio, f.file_ratio,
                f.stall_ratio].into_iter().flatten() {
                prop_assert!((0.0..=1.0).contains(&r));
            }
            prop_assert!(f.slowdown.is_none_or(|s| (0.0..=SLOWDOWN_MAX).contains(&s)));
            prop_assert!(f.compression.is_none_or(|c| c.is_finite() && c >= 1.0));
        }
    }
}
