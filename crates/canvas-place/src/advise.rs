//! How much local memory a wanted speed needs: a search over sizes that are tried one after the other.
//!
//! Speed is 1 with all memory local, and 0.8 where the same work takes a quarter longer. The speed at a tried size is
//! measured; between tried sizes it is predicted by the [`Curve`] of the nearest smaller one, so that a few tries are
//! enough.

use crate::curve::Curve;

/// Sizes are whole multiples of this, as people write them.
const MIB: u64 = 1 << 20;
/// Sizes that differ by less than 1/`FINE` count as equal.
const FINE: u64 = 12;
/// A predicted size stays at least 1/`APART` of the distance between two tried sizes away from both.
const APART: u64 = 8;

/// The measurement at one size.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// Relative to full speed, 0 to 1.
    pub speed: f64,
    /// Refault distances at that size ([`Curve::local_bytes`]).
    pub curve: Curve,
}

impl Point {
    fn local_bytes(&self) -> u64 {
        self.curve.local_bytes
    }

    /// Paging time over the time that the work takes without paging.
    fn cost(&self) -> f64 {
        (1.0 / self.speed.max(1e-6) - 1.0).max(0.0)
    }
}

/// The sizes tried so far.
#[derive(Clone, Debug)]
pub struct Search {
    /// All memory of the program, in bytes; with this much local memory it has full speed.
    pub footprint_bytes: u64,
    /// No smaller size is tried.
    pub floor_bytes: u64,
    /// Where every tried size was fast enough, the next one is this percentage of the smallest; 90 at most.
    pub step_percent: u64,
    points: Vec<Point>,
}

/// The search's result.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Advice {
    /// The smallest size known to be enough, in bytes.
    pub local_bytes: u64,
    /// Its measured speed; `None` where only all memory is enough, which is not tried.
    pub speed: Option<f64>,
}

impl Search {
    /// A search without measurements.
    pub fn new(footprint_bytes: u64, floor_bytes: u64, step_percent: u64) -> Search {
        Search {
            footprint_bytes,
            floor_bytes,
            step_percent: step_percent.clamp(1, 90),
            points: Vec::new(),
        }
    }

    /// Adds a measurement; it replaces an earlier one at the same size.
    pub fn add(&mut self, point: Point) {
        self.points
            .retain(|p| p.local_bytes() != point.local_bytes());
        self.points.push(point);
        self.points.sort_by_key(Point::local_bytes);
    }

    /// The measurements, from the smallest size up.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The predicted speed at a size; `None` below all tried sizes.
    pub fn foretell(&self, local_bytes: u64) -> Option<f64> {
        if local_bytes >= self.footprint_bytes {
            return Some(1.0);
        }
        let below = self
            .points
            .iter()
            .rfind(|p| p.local_bytes() <= local_bytes)?;
        let above = self.points.iter().find(|p| p.local_bytes() > local_bytes);
        // At a larger size the program is not slower, so a lower cost there bounds this one.
        let least = above.map_or(0.0, Point::cost).min(below.cost());
        let cost = below.cost() * below.curve.remaining(local_bytes);
        Some(1.0 / (1.0 + cost.max(least)))
    }

    /// The smallest size known to give a speed.
    pub fn advice(&self, speed: f64) -> Advice {
        // A size counts only if no larger one was too slow.
        let enough = self.points.iter().rev().take_while(|p| p.speed >= speed);
        match enough.last() {
            Some(p) if p.local_bytes() < self.footprint_bytes => Advice {
                local_bytes: p.local_bytes(),
                speed: Some(p.speed),
            },
            _ => Advice {
                local_bytes: self.footprint_bytes,
                speed: None,
            },
        }
    }

    /// The size to try next for a speed, in whole MiB; `None` when another try would change the advice by little.
    pub fn next(&self, speed: f64) -> Option<u64> {
        let next = self.nearest(speed)?;
        let is_new = |size: &u64| self.points.iter().all(|p| p.local_bytes() != *size);
        let whole = [next.next_multiple_of(MIB), next / MIB * MIB];
        let mut whole = whole.into_iter();
        whole.find(|size| is_new(size) && (self.floor_bytes..self.footprint_bytes).contains(size))
    }

    fn nearest(&self, speed: f64) -> Option<u64> {
        let enough = self.advice(speed).local_bytes;
        let too_slow = |p: &&Point| p.local_bytes() < enough;
        let Some(slow) = self.points.iter().rfind(too_slow) else {
            let next = (enough / 100 * self.step_percent).max(self.floor_bytes);
            return (next + enough / FINE < enough).then_some(next);
        };
        let (from, gap) = (slow.local_bytes(), enough - slow.local_bytes());
        if gap <= enough / FINE {
            return None;
        }
        let apart = gap / APART;
        let foretold = self.between(from, enough, speed);
        Some(foretold.clamp(from + apart, enough - apart))
    }

    /// The smallest size predicted to give a speed, of the tried range; `None` when nothing was tried.
    pub fn foretold(&self, speed: f64) -> Option<u64> {
        let smallest = self.points.first()?.local_bytes();
        match self.foretell(smallest)? >= speed {
            true => Some(smallest),
            false => Some(self.between(smallest, self.footprint_bytes, speed)),
        }
    }

    /// The smallest size predicted to give a speed, between `too_small` and `enough`.
    fn between(&self, too_small: u64, enough: u64, speed: f64) -> u64 {
        let (mut low, mut high) = (too_small, enough);
        let near = enough.saturating_sub(too_small) / 64 + 1;
        while high.saturating_sub(low) > near {
            let middle = low + (high - low) / 2;
            match self.foretell(middle).is_some_and(|s| s >= speed) {
                true => high = middle,
                false => low = middle,
            }
        }
        high
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn point(mib: u64, speed: f64, refaults: &[u64]) -> Point {
        Point {
            speed,
            curve: Curve {
                local_bytes: mib * MIB,
                footprint_bytes: 1000 * MIB,
                refaults: refaults.to_vec(),
                stream_ratio: 0.0,
            },
        }
    }

    #[test]
    fn near_faults_say_that_a_little_more_is_enough() {
        let mut search = Search::new(1000 * MIB, 8 * MIB, 50);
        assert_eq!(search.next(0.9), Some(500 * MIB));
        // All refaults were within an eighth of local memory.
        search.add(point(400, 0.5, &[50, 50, 50]));
        let next = search.next(0.9).unwrap();
        assert!((475 * MIB..=500 * MIB).contains(&next), "{}", next / MIB);
        search.add(point(next / MIB, 0.93, &[10]));
        assert_eq!(search.advice(0.9).speed, Some(0.93));
        assert_eq!(search.advice(0.99).speed, None);
        assert_eq!(search.advice(0.99).local_bytes, 1000 * MIB);
    }

    #[test]
    fn what_is_fast_enough_is_made_smaller_step_by_step() {
        let mut search = Search::new(1000 * MIB, 300 * MIB, 80);
        for mib in [1000, 800, 640, 512, 409, 327] {
            search.add(point(mib, 1.0, &[]));
        }
        assert_eq!(search.next(0.9), None, "the floor is near");
        assert_eq!(search.advice(0.9).local_bytes, 327 * MIB);
    }

    proptest! {
        /// Whatever the true speeds, the advised size was measured to be enough, and the search ends.
        #[test]
        fn advice_is_measured_and_near_the_best(
            knee in 20..990u64,
            slowest in 0.02..0.8f64,
            wanted in 0.5..0.99f64,
            refaults in prop::collection::vec(0..100u64, 9),
            step in 1..100u64,
        ) {
            // The speed grows towards the knee, and is 1 from there on.
            let truth = |mib: u64| match mib >= knee {
                true => 1.0,
                false => slowest + (1.0 - slowest) * mib as f64 / knee as f64 * 0.9,
            };
            let mut search = Search::new(1000 * MIB, 8 * MIB, step);
            let mut tries = 0;
            while let Some(bytes) = search.next(wanted) {
                prop_assert!((8 * MIB..1000 * MIB).contains(&bytes));
                tries += 1;
                prop_assert!(tries < 120, "it ends");
                let mib = bytes / MIB;
                search.add(point(mib, truth(mib), &refaults));
            }
            let advice = search.advice(wanted);
            let mib = advice.local_bytes / MIB;
            prop_assert!(mib == 1000 || truth(mib) >= wanted);
            let best = (8..1000).find(|mib| truth(*mib) >= wanted).unwrap_or(1000);
            prop_assert!(mib <= best + mib / FINE + 2, "{} MiB, and {} are enough", mib, best);
        }
    }
}
