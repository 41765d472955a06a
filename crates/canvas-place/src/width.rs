//! How many operations of one path are under way at a time: as many as pay off.
//!
//! While operations queue, the width is doubled as long as each step gains more than [`GAIN`]; a step that does not is
//! reversed, and tried again after [`HOLD`] periods, since a path may change.

/// Factor that a step must gain.
const GAIN: f64 = 1.05;
/// Periods before a step that did not pay off is tried again.
const HOLD: u32 = 60;
/// A period is full when this part of the operations had to queue.
const FULL: f64 = 0.5;
/// Fewer operations in a period prove nothing.
const OPS_MIN: u64 = 50;

/// The width of one path.
#[derive(Clone, Debug)]
pub struct Width {
    now: usize,
    max: usize,
    /// While this width is on trial: operations in the last full period at half of it.
    before: Option<u64>,
    held: u32,
}

impl Width {
    /// Starts at `start`; never above `max`.
    pub fn new(start: usize, max: usize) -> Width {
        Width {
            now: start,
            max,
            before: None,
            held: 0,
        }
    }

    /// How many operations may be under way.
    pub fn get(&self) -> usize {
        self.now
    }

    /// Ends a period: `ended` operations ended, and `waited` of the `came` that arrived had to queue. Returns the new
    /// width.
    pub fn step(&mut self, ended: u64, came: u64, waited: u64) -> usize {
        self.held = self.held.saturating_sub(1);
        if ended < OPS_MIN || (waited as f64) < came as f64 * FULL {
            // The trial proves nothing if nobody needed the width.
            return self.now;
        }
        if let Some(before) = self.before.take()
            && (ended as f64) < before as f64 * GAIN
        {
            self.now = (self.now / 2).max(1);
            self.held = HOLD;
            return self.now;
        }
        if self.held == 0 && self.now * 2 <= self.max {
            self.before = Some(ended);
            self.now *= 2;
        }
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A path that gains nothing past a width, under a load that always queues: the widths over time.
    fn run(knee: usize, periods: usize) -> Vec<usize> {
        let mut width = Width::new(4, 32);
        (0..periods)
            .map(|_| {
                let ops = 1000 * width.get().min(knee) as u64;
                width.step(ops, ops, ops)
            })
            .collect()
    }

    #[test]
    fn it_climbs_while_that_pays_and_steps_back() {
        assert_eq!(run(8, 5), [8, 16, 8, 8, 8]);
        assert_eq!(run(1000, 5), [8, 16, 32, 32, 32]);
        assert_eq!(run(4, 3), [8, 4, 4]);
        let long = run(4, 200);
        let tries = long.iter().filter(|w| **w == 8).count();
        assert!(
            (2..=4).contains(&tries),
            "tried again now and then: {tries}"
        );
    }

    #[test]
    fn without_a_queue_it_stays() {
        let mut width = Width::new(4, 32);
        assert_eq!(width.step(10_000, 10_000, 4_000), 4);
        assert_eq!(width.step(10, 10, 10), 4);
    }

    proptest! {
        #[test]
        fn it_stays_within_its_bounds(periods in prop::collection::vec((0..5000u64, 0..5000u64, 0..5000u64), 0..200)) {
            let mut width = Width::new(4, 32);
            for (ended, came, waited) in periods {
                let before = width.get();
                let now = width.step(ended, came, waited);
                prop_assert!((1..=32).contains(&now));
                prop_assert!(now == before || now == before * 2 || now == before / 2);
            }
        }
    }
}
