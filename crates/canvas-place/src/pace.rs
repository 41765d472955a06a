//! How long a donor usually takes to answer a read, and so when to stop waiting for it alone.
//!
//! The 99th percentile is tracked in one number by "frugal streaming" (Ma, Muthukrishnan, Sandler,
//! "Frugal Streaming for Estimating Quantiles", 2013), with steps in proportion to the estimate: an
//! answer above it raises it by 99 steps, one below lowers it by one.

/// A read is asked of another copy as well after this many times the percentile,
const TIMES: u64 = 8;
/// but not sooner than this: a scheduler's whim on either host is no silence,
pub const HEDGE_NS_MIN: u64 = 20_000_000;
/// and not later: a donor that is always slower than this is slower than most disks.
pub const HEDGE_NS_MAX: u64 = 200_000_000;
/// A step is the estimate divided by this.
const STEPS: u64 = 1024;

/// The answers of one donor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    p99_ns: u64,
}

impl Default for Pace {
    /// Before the first answer: 1 ms.
    fn default() -> Pace {
        Pace { p99_ns: 1_000_000 }
    }
}

impl Pace {
    /// An answer came after so long.
    pub fn answered(&mut self, ns: u64) {
        let step = self.p99_ns / STEPS + 1;
        self.p99_ns = if ns > self.p99_ns {
            // Rare answers far above it count like others: a stop of the donor says nothing about
            // its pace.
            self.p99_ns.saturating_add(99 * step).min(ns)
        } else {
            (self.p99_ns - step.min(self.p99_ns)).max(ns)
        };
    }

    /// The smoothed 99th percentile, in ns.
    pub fn p99_ns(&self) -> u64 {
        self.p99_ns
    }

    /// After so long without an answer another copy is asked as well, in ns.
    pub fn hedge_ns(&self) -> u64 {
        (self.p99_ns.saturating_mul(TIMES)).clamp(HEDGE_NS_MIN, HEDGE_NS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_follows_the_percentile(seed: u64, scale in 10_000..3_000_000u64) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut pace = Pace::default();
            for _ in 0..20_000 {
                pace.answered(rng.u64(0..scale));
            }
            // True value: 0.99 x scale.
            let p99 = pace.p99_ns() as f64 / scale as f64;
            prop_assert!((0.85..1.15).contains(&p99), "{p99}");
        }

        #[test]
        fn the_bound_stays_in_its_bounds(answers in prop::collection::vec(any::<u64>(), 0..300)) {
            let mut pace = Pace::default();
            for ns in answers {
                pace.answered(ns);
                prop_assert!((HEDGE_NS_MIN..=HEDGE_NS_MAX).contains(&pace.hedge_ns()));
            }
        }
    }

    #[test]
    fn one_stop_does_not_change_the_pace() {
        let mut pace = Pace::default();
        for _ in 0..10_000 {
            pace.answered(100_000);
        }
        assert_eq!(pace.hedge_ns(), HEDGE_NS_MIN);
        pace.answered(900_000_000);
        assert_eq!(pace.hedge_ns(), HEDGE_NS_MIN);
    }
}
