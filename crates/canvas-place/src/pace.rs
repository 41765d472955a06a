//! How long a donor usually takes to answer a read, and so when to stop waiting for it alone.
//!
//! The 99th percentile is tracked in one number by "frugal streaming" (Ma, Muthukrishnan, Sandler,
//! "Frugal Streaming for Estimating Quantiles", 2013), with steps in proportion to the estimate: an
//! answer above it raises it by 99 steps, one below lowers it by one. The median, by which an operator tells which
//! donor is slow, is tracked so as well, with steps of one size.

/// A read is asked of another copy as well after this many times the percentile,
const TIMES: u64 = 8;
/// but not sooner than this: a scheduler's whim on either host is no silence,
pub const HEDGE_NS_MIN: u64 = 20_000_000;
/// and not later: a donor that is always slower than this is slower than most disks.
pub const HEDGE_NS_MAX: u64 = 200_000_000;
/// A step is the estimate divided by this.
const STEPS: u64 = 1024;
/// The same of the median, which is to follow a donor that becomes slow within a few hundred answers.
const MEDIAN_STEPS: u64 = 32;

/// The answers of one donor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    p99_ns: u64,
    p50_ns: u64,
    answers: u64,
}

impl Default for Pace {
    /// Before the first answer: 1 ms.
    fn default() -> Pace {
        Pace {
            p99_ns: 1_000_000,
            p50_ns: 0,
            answers: 0,
        }
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
        self.answers += 1;
        let step = self.p50_ns / MEDIAN_STEPS + 1;
        self.p50_ns = match self.answers {
            1 => ns,
            _ if ns > self.p50_ns => self.p50_ns.saturating_add(step).min(ns),
            _ => (self.p50_ns - step.min(self.p50_ns)).max(ns),
        };
    }

    /// The smoothed median and 99th percentile, in ns; `None` before the first answer.
    pub fn p50_and_p99_ns(&self) -> Option<(u64, u64)> {
        (self.answers > 0).then_some((self.p50_ns, self.p99_ns.max(self.p50_ns)))
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

/// For how long what was asked has answered nobody. Time in which nobody waited for it says nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct Silence {
    waiting: usize,
    since_ns: u64,
}

impl Silence {
    /// Somebody waits for it from now on.
    pub fn asked(&mut self, now_ns: u64) {
        if self.waiting == 0 {
            self.since_ns = now_ns;
        }
        self.waiting += 1;
    }

    /// It has answered somebody.
    pub fn answered(&mut self, now_ns: u64) {
        self.waiting = self.waiting.saturating_sub(1);
        self.since_ns = now_ns;
    }

    /// So long, in ns; 0 while nobody waits.
    pub fn ns(&self, now_ns: u64) -> u64 {
        match self.waiting {
            0 => 0,
            _ => now_ns.saturating_sub(self.since_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_was_not_asked_for_long_is_not_silent() {
        let mut silence = Silence::default();
        silence.asked(0);
        silence.answered(1_000_000);
        silence.asked(5 * HEDGE_NS_MAX);
        let later_ns = 5 * HEDGE_NS_MAX + HEDGE_NS_MIN;
        assert_eq!(silence.ns(later_ns), HEDGE_NS_MIN);
        silence.asked(later_ns);
        assert_eq!(silence.ns(6 * HEDGE_NS_MAX), HEDGE_NS_MAX);
    }

    #[test]
    fn the_median_follows_a_donor_that_becomes_slow_and_fast_again() {
        let mut pace = Pace::default();
        assert_eq!(pace.p50_and_p99_ns(), None);
        let mut rng = fastrand::Rng::with_seed(7);
        for (median, wild) in [
            (100_000, 9_000_000),
            (20_000_000, 1_000),
            (100_000, 9_000_000),
        ] {
            for _ in 0..400 {
                let usual = median + rng.u64(0..=median / 5) - median / 10;
                pace.answered(if rng.u32(0..10) == 0 { wild } else { usual });
            }
            let (p50, p99) = pace.p50_and_p99_ns().unwrap();
            assert!(
                (median * 8 / 10..median * 12 / 10).contains(&p50),
                "{p50} of {median}"
            );
            assert!(p50 <= p99);
        }
    }

    proptest! {
        /// Against all that was said: the last answer, or the first request after nobody waited, whichever is later.
        #[test]
        fn silence_is_as_all_that_was_said_has_it(said in prop::collection::vec((any::<bool>(), 0..1_000u64), 0..60)) {
            let (mut silence, mut now_ns) = (Silence::default(), 0);
            let mut kept: Vec<(bool, u64)> = Vec::new();
            for (asks, after_ns) in said {
                now_ns += after_ns;
                let waiting = |kept: &[(bool, u64)]| {
                    let asked = kept.iter().filter(|(asks, _)| *asks).count();
                    2 * asked - kept.len()
                };
                if asks {
                    silence.asked(now_ns);
                } else if waiting(&kept) > 0 {
                    silence.answered(now_ns);
                } else {
                    continue;
                }
                kept.push((asks, now_ns));
                let begins = |i: &usize| !kept[*i].0 || waiting(&kept[..*i]) == 0;
                let since_ns = (0..kept.len()).rev().find(begins).map(|i| kept[i].1);
                let expected = if waiting(&kept) == 0 { 0 } else { now_ns + 7 - since_ns.unwrap() };
                prop_assert_eq!(silence.ns(now_ns + 7), expected);
            }
        }

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
    fn answers_of_any_length_are_taken() {
        let mut pace = Pace::default();
        for ns in [u64::MAX - 1, u64::MAX, 0, u64::MAX] {
            pace.answered(ns);
        }
        assert!(pace.p50_and_p99_ns().is_some());
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
