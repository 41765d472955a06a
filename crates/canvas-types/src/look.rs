//! How long a thread looks for what it waits for before it sleeps.
//!
//! Who sleeps is woken some tens of microseconds late, more where the processor has halted. Who looks
//! takes a processor, for nothing where it looks in vain. So a thread looks for twice as long as what it
//! waits for has mostly taken to come, and not at all where that is too long.
//!
//! Two ends that wait for each other and both sleep are slow for no other reason than that, and might
//! take each other for too slow to be looked for. So now and then some waits in a row are looked to
//! their end all the same: then the other end sees that it is asked more often, and looks too.

/// No shortest look is longer: 1 s.
const LEAST_MAX: u64 = 1_000_000_000;
/// The longest look is so many times the shortest.
const MOST: u64 = 8;
/// Of so many waits
const EPOCH: u32 = 1024;
/// so many are looked through, whatever the others took.
const TRIES: u32 = 16;
/// One wait counts as one part of so many.
const SMOOTH: u64 = 8;

/// What a thread knows of its waits for one thing. Times are in ns.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The shortest look; 0: none ever.
    least: u64,
    /// How long what is waited for takes to come, smoothed.
    usual: u64,
    /// Waits of this epoch.
    waits: u32,
}

impl Look {
    /// Looks for at least `least_ns` where it looks at all, and at most eight times as long; never where that is 0.
    pub const fn new(least_ns: u64) -> Look {
        Look {
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

    /// How long to look in the wait that begins; 0: not at all.
    pub fn limit_ns(&self) -> u64 {
        if self.waits < TRIES {
            self.most()
        } else if self.usual > self.most() {
            0
        } else {
            (2 * self.usual).clamp(self.least, self.most())
        }
    }

    /// A wait is over, after so long.
    pub fn came(&mut self, took_ns: u64) {
        // A stop of the whole machine is no more than a long wait.
        let took = took_ns.min(2 * self.most());
        self.usual = (self.usual * (SMOOTH - 1) + took) / SMOOTH;
        self.waits = (self.waits + 1) % EPOCH;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;

    fn after(took_ns: u64, waits: u32) -> Look {
        let mut look = Look::new(50_000);
        (0..waits).for_each(|_| look.came(took_ns));
        look
    }

    #[test]
    fn it_follows_what_waits_take() {
        assert_eq!(Look::new(50_000).limit_ns(), 50_000);
        assert_eq!(after(10_000, 100).limit_ns(), 50_000);
        assert!((110_000..=120_000).contains(&after(60_000, 100).limit_ns()));
        assert_eq!(after(300_000, 100).limit_ns(), 400_000);
        assert_eq!(after(10_000_000, 100).limit_ns(), 0);
    }

    #[test]
    fn one_stop_changes_little() {
        let mut look = after(60_000, 100);
        look.came(1_000_000_000);
        assert!(look.limit_ns() >= 110_000);
    }

    #[test]
    fn what_takes_too_long_is_tried_now_and_then() {
        let mut look = after(1_000_000, EPOCH);
        let looked = (0..EPOCH).filter(|_| {
            let limit = look.limit_ns();
            look.came(1_000_000);
            limit > 0
        });
        assert_eq!(looked.count() as u32, TRIES);
    }

    /// An end that sleeps answers 100 us later; the way and the work take 210 us.
    #[test]
    fn two_that_sleep_for_each_other_find_out() {
        let mut ends = [after(1_000_000, 50), after(1_000_000, 50)];
        let mut asleep = 0;
        for _ in 0..2 * EPOCH {
            let sleeps = ends.map(|end| end.limit_ns() < 210_000);
            let took = 210_000 + 100_000 * sleeps.iter().filter(|s| **s).count() as u64;
            ends.iter_mut().for_each(|end| end.came(took));
            asleep += u32::from(sleeps[0]);
        }
        assert!(asleep < EPOCH, "{asleep}");
        assert!(ends.iter().all(|end| end.limit_ns() == 400_000));
    }

    proptest! {
        #[test]
        fn looks_stay_within_their_bounds(
            least in prop_oneof![Just(0u64), 1..=u64::MAX],
            waits in prop::collection::vec(any::<u64>(), 0..50),
        ) {
            let mut look = Look::new(least);
            for took in waits {
                let limit = look.limit_ns();
                prop_assert!(limit <= look.most());
                prop_assert!(limit == 0 || limit >= least.min(LEAST_MAX));
                look.came(took);
            }
        }
    }
}
