//! Arithmetic that learned decisions share. What is measured, and what follows from it, is their own.

use core::sync::atomic::{AtomicU64, Ordering};

/// A moving average after another sample, which replaces `NEW` parts of `OF`. Rounded down.
#[inline]
pub fn ewma<const NEW: u64, const OF: u64>(average: u64, sample: u64) -> u64 {
    let sum = u128::from(average) * u128::from(OF - NEW) + u128::from(sample) * u128::from(NEW);
    (sum / u128::from(OF)) as u64
}

/// Pauses after failures: the first lasts `MIN_NS`, each further one twice as long, up to `MAX_NS`. All times are from
/// one monotonic clock of the caller. Concurrent calls may be lost.
#[derive(Debug, Default)]
pub struct Backoff<const MIN_NS: u64, const MAX_NS: u64> {
    until_ns: AtomicU64,
    /// The last pause; 0: no failure is remembered.
    pause_ns: AtomicU64,
}

impl<const MIN_NS: u64, const MAX_NS: u64> Backoff<MIN_NS, MAX_NS> {
    /// Starts with a pause until `until_ns`, and without failures.
    pub const fn new(until_ns: u64) -> Self {
        Backoff {
            until_ns: AtomicU64::new(until_ns),
            pause_ns: AtomicU64::new(0),
        }
    }

    /// Whether the caller should not try now.
    #[inline]
    pub fn is_paused(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns.load(Ordering::Relaxed)
    }

    /// Pauses until `until_ns`, for another reason than a failure.
    pub fn pause_until(&self, until_ns: u64) {
        self.until_ns.store(until_ns, Ordering::Relaxed);
    }

    /// Records a failure.
    pub fn failed(&self, now_ns: u64) {
        let pause_ns = (2 * self.pause_ns.load(Ordering::Relaxed)).clamp(MIN_NS, MAX_NS);
        self.pause_ns.store(pause_ns, Ordering::Relaxed);
        self.pause_until(now_ns.saturating_add(pause_ns));
    }

    /// Records a success, after which the next pause is the first again.
    #[inline]
    pub fn succeeded(&self) {
        if self.pause_ns.load(Ordering::Relaxed) != 0 {
            self.pause_ns.store(0, Ordering::Relaxed);
        }
    }

    /// Records a success that may be luck: it counts if nothing has failed since the last pause for as long as that was.
    #[inline]
    pub fn succeeded_at(&self, now_ns: u64) {
        let pause_ns = self.pause_ns.load(Ordering::Relaxed);
        let until_ns = self.until_ns.load(Ordering::Relaxed);
        if now_ns > until_ns.saturating_add(pause_ns) {
            self.succeeded();
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_pause_is_given_and_forgotten_failures_start_again() {
        let b = Backoff::<10, 35>::new(5);
        assert!(b.is_paused(4) && !b.is_paused(5));
        let ends = [100, 200, 300].map(|now| {
            b.failed(now);
            (now..).find(|t| !b.is_paused(*t)).unwrap()
        });
        assert_eq!(ends, [110, 220, 335]);
        b.succeeded_at(335 + 35);
        b.failed(400);
        assert!(b.is_paused(434), "too early to forget");
        b.succeeded_at(435 + 36);
        b.failed(500);
        assert!(b.is_paused(509) && !b.is_paused(510));
        b.pause_until(0);
        b.failed(u64::MAX - 1);
        assert!(!b.is_paused(u64::MAX), "the clock ends");
    }

    #[test]
    fn an_average_of_the_largest_is_the_largest() {
        assert_eq!(ewma::<1, 4>(u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(ewma::<7, 10>(u64::MAX, u64::MAX), u64::MAX);
    }

    proptest! {
        /// Compared with exact arithmetic: it is less by no more than the rounding of all steps.
        #[test]
        fn the_average_is_one(first in 0..1u64 << 40, samples in prop::collection::vec(0..1u64 << 40, 0..100)) {
            let (mut slow, mut fast) = (first, first);
            let [mut exact_slow, mut exact_fast] = [first as f64; 2];
            for sample in samples {
                (slow, fast) = (ewma::<1, 8>(slow, sample), ewma::<7, 10>(fast, sample));
                exact_slow += (sample as f64 - exact_slow) / 8.0;
                exact_fast += (sample as f64 - exact_fast) * 0.7;
                for (exact, average, most) in [(exact_slow, slow, 8.0), (exact_fast, fast, 10.0 / 7.0)] {
                    let less = exact - average as f64;
                    prop_assert!((-0.01..most + 0.01).contains(&less), "{average} and {exact}");
                }
            }
        }

        /// Compared with counting the failures since the last success.
        #[test]
        fn pauses_double_with_each_failure(steps in prop::collection::vec((0..3u8, 0..100u64), 1..60)) {
            let backoff = Backoff::<4, 100>::new(0);
            let (mut now, mut failures, mut until, mut last) = (0, 0u32, 0, 0);
            for (what, elapsed) in steps {
                now += elapsed;
                match what {
                    0 => {
                        backoff.failed(now);
                        last = (4 << failures.min(8)).min(100);
                        (failures, until) = (failures + 1, now + last);
                    }
                    1 => {
                        backoff.succeeded();
                        (failures, last) = (0, 0);
                    }
                    _ => {
                        backoff.succeeded_at(now);
                        if now > until + last {
                            (failures, last) = (0, 0);
                        }
                    }
                }
                prop_assert_eq!(backoff.is_paused(now), now < until);
                prop_assert!(until == 0 || backoff.is_paused(until - 1) && !backoff.is_paused(until));
            }
        }
    }
}
