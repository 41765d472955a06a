//! How long a thread polls for an event before it sleeps.
//!
//! A sleeping thread wakes tens of microseconds late, more if its CPU has halted; a polling thread occupies a CPU, and
//! wastes it if nothing arrives. So a thread polls for twice as long as its events usually took to arrive, and not at
//! all if that is too long.
//!
//! Two ends that wait for each other and both sleep are slow for that reason alone, and could take each other for too
//! slow to poll for. So now and then, some waits in a row poll to the end: then the other end sees faster requests, and
//! polls, too.

use crate::controller::ewma;

/// Upper bound of the shortest poll: 1 s.
const LEAST_MAX: u64 = 1_000_000_000;
/// The longest poll is this many times the shortest.
const MOST: u64 = 8;
/// In every EPOCH waits, the first TRIES poll to the end, however long earlier waits took.
const EPOCH: u32 = 1024;
/// Number of these polls.
const TRIES: u32 = 16;

/// A thread's statistics of its waits for one kind of event. Times are in ns.
#[derive(Clone, Copy, Debug)]
pub struct SpinBudget {
    /// The shortest poll; 0: never poll.
    least: u64,
    /// How long the event takes to arrive: a moving average.
    usual: u64,
    /// Waits in this epoch.
    waits: u32,
}

impl SpinBudget {
    /// Polls for at least `least_ns` if at all, and at most eight times as long; never if `least_ns` is 0.
    pub const fn new(least_ns: u64) -> SpinBudget {
        SpinBudget {
            least: if least_ns > LEAST_MAX {
                LEAST_MAX
            } else {
                least_ns
            },
            usual: 0,
            waits: TRIES,
        }
    }

    const fn most(&self) -> u64 {
        self.least * MOST
    }

    /// How long to poll in the wait that begins; 0: not at all.
    pub fn limit_ns(&self) -> u64 {
        if self.waits < TRIES {
            self.most()
        } else if self.usual > self.most() {
            0
        } else {
            (2 * self.usual).clamp(self.least, self.most())
        }
    }

    /// Records a wait that ended after `took_ns`.
    pub fn record(&mut self, took_ns: u64) {
        // A suspend of the whole machine counts no more than a long wait.
        let took = took_ns.min(2 * self.most());
        self.usual = ewma::<1, 8>(self.usual, took);
        self.waits = (self.waits + 1) % EPOCH;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;

    fn after(took_ns: u64, waits: u32) -> SpinBudget {
        let mut budget = SpinBudget::new(50_000);
        (0..waits).for_each(|_| budget.record(took_ns));
        budget
    }

    #[test]
    fn it_follows_what_waits_take() {
        assert_eq!(SpinBudget::new(50_000).limit_ns(), 50_000);
        assert_eq!(after(10_000, 100).limit_ns(), 50_000);
        assert!((110_000..=120_000).contains(&after(60_000, 100).limit_ns()));
        assert_eq!(after(300_000, 100).limit_ns(), 400_000);
        assert_eq!(after(10_000_000, 100).limit_ns(), 0);
    }

    #[test]
    fn one_stop_changes_little() {
        let mut budget = after(60_000, 100);
        budget.record(1_000_000_000);
        assert!(budget.limit_ns() >= 110_000);
    }

    #[test]
    fn what_takes_too_long_is_tried_now_and_then() {
        let mut budget = after(1_000_000, EPOCH);
        let polled = (0..EPOCH).filter(|_| {
            let limit = budget.limit_ns();
            budget.record(1_000_000);
            limit > 0
        });
        assert_eq!(polled.count() as u32, TRIES);
    }

    /// An end that sleeps answers 100 us later; transfer and work take 210 us.
    #[test]
    fn two_that_sleep_for_each_other_find_out() {
        let mut ends = [after(1_000_000, 50), after(1_000_000, 50)];
        let mut asleep = 0;
        for _ in 0..2 * EPOCH {
            let sleeps = ends.map(|end| end.limit_ns() < 210_000);
            let took = 210_000 + 100_000 * sleeps.iter().filter(|s| **s).count() as u64;
            ends.iter_mut().for_each(|end| end.record(took));
            asleep += u32::from(sleeps[0]);
        }
        assert!(asleep < EPOCH, "{asleep}");
        assert!(ends.iter().all(|end| end.limit_ns() == 400_000));
    }

    proptest! {
        #[test]
        fn polls_stay_within_their_bounds(
            least in prop_oneof![Just(0u64), 1..=u64::MAX],
            waits in prop::collection::vec(any::<u64>(), 0..50),
        ) {
            let mut budget = SpinBudget::new(least);
            for took in waits {
                let limit = budget.limit_ns();
                prop_assert!(limit <= budget.most());
                prop_assert!(limit == 0 || limit >= least.min(LEAST_MAX));
                budget.record(took);
            }
        }
    }
}
