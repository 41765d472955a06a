//! How long a donor usually takes to answer a read, and so when to ask another copy as well.
//!
//! One number tracks the 99th percentile by "frugal streaming" (Ma, Muthukrishnan, Sandler, "Frugal Streaming for
//! Estimating Quantiles", 2013), with steps in proportion to the estimate: an answer above it raises it by 99 steps,
//! one below lowers it by one. The median, which shows an operator which donor is slow, is of the last few answers,
//! since there may be only one in a second.

/// A read is hedged after this many times the percentile,
const TIMES: u64 = 8;
/// but not sooner than this, because a scheduling delay on either host is not silence,
pub const HEDGE_NS_MIN: u64 = 20_000_000;
/// and not later: a donor that is always slower than this is slower than most disks.
pub const HEDGE_NS_MAX: u64 = 200_000_000;
/// A step is the estimate divided by this.
const STEPS: u64 = 1024;
/// Answers over which the median is taken.
const RECENT: usize = 11;

/// Latencies of the last few answers of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Recent {
    ns: [u64; RECENT],
    answers: usize,
    /// When the last counted answer came.
    came_ns: u64,
}

impl Recent {
    /// Adds an answer that took `ns`. Of answers that were under way together only the first counts, because one stop
    /// of the donor delays them all.
    pub fn on_answer(&mut self, ns: u64, now_ns: u64) {
        if now_ns.saturating_sub(ns) >= self.came_ns {
            self.came_ns = now_ns;
            self.ns[self.answers % RECENT] = ns;
            self.answers += 1;
        }
    }

    /// The median; `None` before the second answer, because the first of a connection proves little.
    pub fn median_ns(&self) -> Option<u64> {
        let mut ns = self.ns;
        let ns = &mut ns[..self.answers.min(RECENT)];
        ns.sort_unstable();
        (ns.len() > 1).then(|| ns[(ns.len() - 1) / 2])
    }
}

/// The latency of one donor's answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    p99_ns: u64,
    recent: Recent,
}

impl Default for Pace {
    /// Before the first answer: 1 ms.
    fn default() -> Pace {
        Pace {
            p99_ns: 1_000_000,
            recent: Recent::default(),
        }
    }
}

impl Pace {
    /// Adds an answer that took `ns`.
    pub fn on_answer(&mut self, ns: u64, now_ns: u64) {
        let step = self.p99_ns / STEPS + 1;
        self.p99_ns = if ns > self.p99_ns {
            // A rare answer far above the estimate raises it like any other: a stop of the donor says nothing about its
            // pace.
            self.p99_ns.saturating_add(99 * step).min(ns)
        } else {
            (self.p99_ns - step.min(self.p99_ns)).max(ns)
        };
        self.recent.on_answer(ns, now_ns);
    }

    /// The median of the last few answers and the smoothed 99th percentile, in ns; `None` before the second answer.
    pub fn p50_and_p99_ns(&self) -> Option<(u64, u64)> {
        let p50_ns = self.recent.median_ns()?;
        Some((p50_ns, self.p99_ns.max(p50_ns)))
    }

    /// The smoothed 99th percentile, in ns.
    pub fn p99_ns(&self) -> u64 {
        self.p99_ns
    }

    /// Time without an answer after which another copy is asked as well, in ns.
    pub fn hedge_ns(&self) -> u64 {
        (self.p99_ns.saturating_mul(TIMES)).clamp(HEDGE_NS_MIN, HEDGE_NS_MAX)
    }
}

/// How long a resource has answered nobody. Time in which nobody waited for it does not count.
#[derive(Clone, Copy, Default, Debug)]
pub struct Silence {
    waiting: usize,
    since_ns: u64,
}

impl Silence {
    /// A request has begun to wait.
    pub fn on_sent(&mut self, now_ns: u64) {
        if self.waiting == 0 {
            self.since_ns = now_ns;
        }
        self.waiting += 1;
    }

    /// A request was answered.
    pub fn on_answer(&mut self, now_ns: u64) {
        self.waiting = self.waiting.saturating_sub(1);
        self.since_ns = now_ns;
    }

    /// The silence in ns; 0 while nobody waits.
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
        silence.on_sent(0);
        silence.on_answer(1_000_000);
        silence.on_sent(5 * HEDGE_NS_MAX);
        let later_ns = 5 * HEDGE_NS_MAX + HEDGE_NS_MIN;
        assert_eq!(silence.ns(later_ns), HEDGE_NS_MIN);
        silence.on_sent(later_ns);
        assert_eq!(silence.ns(6 * HEDGE_NS_MAX), HEDGE_NS_MAX);
    }

    #[test]
    fn the_median_follows_a_donor_that_becomes_slow_and_fast_again() {
        let (mut pace, mut now_ns) = (Pace::default(), 0);
        assert_eq!(pace.p50_and_p99_ns(), None);
        let mut takes = |ns: u64, answers: u64| {
            for _ in 0..answers {
                now_ns += 1_000_000_000;
                pace.on_answer(ns, now_ns);
            }
            pace.p50_and_p99_ns().unwrap()
        };
        assert_eq!(takes(100_000, 10_000).0, 100_000);
        // A brief delay of the donor or the network changes nothing.
        assert_eq!(takes(50_000_000, RECENT as u64 / 2).0, 100_000);
        let (p50, p99) = takes(50_000_000, 1);
        assert_eq!(p50, 50_000_000);
        assert!(p50 <= p99);
        assert_eq!(takes(100_000, RECENT as u64).0, 100_000);
    }

    #[test]
    fn a_stop_counts_once_however_many_wait() {
        let (mut recent, mut now_ns) = (Recent::default(), 0);
        for _ in 0..RECENT {
            now_ns += 1_000_000;
            recent.on_answer(100_000, now_ns);
        }
        // All were asked before the first answer came.
        for i in 0..4 * RECENT as u64 {
            recent.on_answer(20_000_000 + i, now_ns + 20_000_000 + i);
        }
        assert_eq!(recent.median_ns(), Some(100_000));
    }

    proptest! {
        #[test]
        fn the_median_is_of_the_last_few(answers in prop::collection::vec(any::<u32>(), 0..40)) {
            let (mut recent, mut now_ns) = (Recent::default(), 0);
            for ns in &answers {
                now_ns += u64::from(*ns);
                recent.on_answer(u64::from(*ns), now_ns);
            }
            let mut last = answers[answers.len().saturating_sub(RECENT)..].to_vec();
            last.sort_unstable();
            let expected = (last.len() > 1).then(|| u64::from(last[(last.len() - 1) / 2]));
            prop_assert_eq!(recent.median_ns(), expected);
        }

        /// Compared with the full history: silence starts at the last answer, or at the first request after nobody
        /// waited, whichever is later.
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
                    silence.on_sent(now_ns);
                } else if waiting(&kept) > 0 {
                    silence.on_answer(now_ns);
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
                pace.on_answer(rng.u64(0..scale), 0);
            }
            // True value: 0.99 x scale.
            let p99 = pace.p99_ns() as f64 / scale as f64;
            prop_assert!((0.85..1.15).contains(&p99), "{p99}");
        }

        #[test]
        fn the_bound_stays_in_its_bounds(answers in prop::collection::vec(any::<u64>(), 0..300)) {
            let mut pace = Pace::default();
            for ns in answers {
                pace.on_answer(ns, 0);
                prop_assert!((HEDGE_NS_MIN..=HEDGE_NS_MAX).contains(&pace.hedge_ns()));
            }
        }
    }

    #[test]
    fn answers_of_any_length_are_taken() {
        let mut pace = Pace::default();
        for ns in [u64::MAX - 1, u64::MAX, 0, u64::MAX] {
            pace.on_answer(ns, 0);
        }
        assert!(pace.p50_and_p99_ns().is_some());
    }

    #[test]
    fn one_stop_does_not_change_the_pace() {
        let mut pace = Pace::default();
        for _ in 0..10_000 {
            pace.on_answer(100_000, 0);
        }
        assert_eq!(pace.hedge_ns(), HEDGE_NS_MIN);
        pace.on_answer(900_000_000, 0);
        assert_eq!(pace.hedge_ns(), HEDGE_NS_MIN);
    }
}
