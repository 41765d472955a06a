//! Which of several paths is used next: far directories on several disks, one of which gets a new extent; or a donor
//! and the local disk, one of which is read where both have the data.
//!
//! The loaded latencies of the paths are balanced (Colloid, SOSP '24): in every period a twentieth of new requests
//! moves from the slowest path to the fastest one, while that is more than a fifth faster under its current load. Where
//! threads wait, more moves the longer this continues in one direction, so a path that has become slow is left within
//! seconds. A faster path thus gets more until it is as slow as the others, and the bandwidth of all is used. A path
//! always keeps a hundredth, or less where threads wait for it, so that an improvement is noticed.

/// Most paths.
pub const PATHS_MAX: usize = 8;
/// Length of a period.
pub const PERIOD_NS: u64 = 1_000_000_000;
/// Part of new requests that moves in a period.
const SHIFT: f64 = 0.05;
/// Latencies within this factor count as equal.
const EQUAL: f64 = 1.2;
/// After this many periods with the same slowest path, a twentieth more moves in each,
const STEP_PERIODS: u32 = 3;
/// up to this many times as much.
const STEPS_MAX: u32 = 8;
/// A rise of a path's latency is believed by 1/`DOUBT` for each operation in a period, by half at most: where there are
/// few operations, a slow one proves little. A drop is believed at once.
const DOUBT: f64 = 16.0;
/// Part that a path always keeps,
const LEAST: f64 = 0.01;
/// and where threads wait for its operations: one in five hundred sees its tail latency.
const LEAST_WAITED_FOR: f64 = 0.002;
/// A path without room is used again after this time,
pub const FULL_NS: u64 = 10_000_000_000;
/// one that fails after this,
pub const BROKEN_NS: u64 = 60_000_000_000;
/// and one that does not answer after this.
pub const SILENT_NS: u64 = 5_000_000_000;

/// Why a path takes no new requests for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closed {
    /// It has no room.
    Full,
    /// It fails.
    Broken,
    /// It does not answer.
    Silent,
}

#[derive(Clone, Debug)]
struct Path {
    /// Part of new requests that it gets.
    part: f64,
    /// What it is behind that, for the next choices.
    credit: f64,
    /// Operations of this period, and the sum of their times.
    ops: u64,
    sum_ns: u64,
    /// Mean time of an operation in earlier periods, exponentially weighted.
    latency_ns: Option<f64>,
    closed_until_ns: u64,
}

/// All paths.
#[derive(Clone, Debug)]
pub struct Paths {
    all: Vec<Path>,
    /// Part that each keeps.
    least: f64,
    /// Where threads wait, periods and shifts are smaller by this factor: there are more operations to judge by, and an
    /// excessive shift is reversed sooner.
    finer: u64,
    period_ends_ns: u64,
    /// The slowest path, and for how many periods it has been the slowest.
    slowest: (usize, u32),
}

impl Paths {
    /// `paths` paths without measurements.
    pub fn new(paths: usize) -> Paths {
        let path = Path {
            part: 1.0 / paths.max(1) as f64,
            credit: 0.0,
            ops: 0,
            sum_ns: 0,
            latency_ns: None,
            closed_until_ns: 0,
        };
        Paths {
            all: vec![path; paths],
            least: LEAST,
            finer: 1,
            period_ends_ns: 0,
            slowest: (0, 0),
        }
    }

    /// `paths` paths, the first of which counts as the fastest until others are measured to be faster; threads wait for
    /// the operations.
    pub fn first_of(paths: usize) -> Paths {
        let mut all = Paths::new(paths);
        all.least = LEAST_WAITED_FOR;
        all.finer = 4;
        for (i, path) in all.all.iter_mut().enumerate() {
            path.part = match i {
                0 => 1.0 - LEAST_WAITED_FOR * (paths - 1) as f64,
                _ => LEAST_WAITED_FOR,
            };
        }
        all
    }

    /// Mean time of an operation on a path, including queueing, in ns; `None` before it is known.
    pub fn latency_ns(&self, path: usize) -> Option<f64> {
        self.all[path].latency_ns
    }

    /// The path for a new request; `tried` has a bit for each that could not take it. A closed path is chosen only when
    /// there is no other. `None`: all were tried.
    pub fn choose(&mut self, tried: u32, now_ns: u64) -> Option<usize> {
        let untried = |i: &usize| tried & 1 << i == 0;
        let open = (0..self.all.len()).filter(|i| untried(i) && self.is_open(*i, now_ns));
        let open: Vec<usize> = open.collect();
        if open.is_empty() {
            let closed = (0..self.all.len()).filter(untried);
            return closed.min_by_key(|i| self.all[*i].closed_until_ns);
        }
        let sum: f64 = open.iter().map(|i| self.all[*i].part).sum();
        for i in &open {
            self.all[*i].credit += self.all[*i].part / sum;
        }
        let most = |a: &&usize, b: &&usize| {
            let credit = |i: usize| self.all[i].credit;
            credit(**a).total_cmp(&credit(**b))
        };
        let chosen = *open.iter().max_by(most)?;
        self.all[chosen].credit -= 1.0;
        Some(chosen)
    }

    /// Whether the path takes new requests now.
    pub fn is_open(&self, path: usize, now_ns: u64) -> bool {
        self.all[path].closed_until_ns <= now_ns
    }

    /// An operation on a path has taken `ns`, including queueing.
    pub fn took(&mut self, path: usize, ns: u64) {
        let path = &mut self.all[path];
        path.ops += 1;
        path.sum_ns = path.sum_ns.saturating_add(ns);
    }

    /// A path could not take a request: closes it for a while.
    pub fn close(&mut self, path: usize, why: Closed, now_ns: u64) {
        let ns = match why {
            Closed::Full => FULL_NS,
            Closed::Broken => BROKEN_NS,
            Closed::Silent => SILENT_NS,
        };
        self.all[path].closed_until_ns = now_ns.saturating_add(ns);
    }

    /// Ends a period, if it is over, and shifts new requests between paths.
    pub fn tick(&mut self, now_ns: u64) {
        if now_ns < self.period_ends_ns {
            return;
        }
        self.period_ends_ns = now_ns.saturating_add(PERIOD_NS / self.finer);
        for path in &mut self.all {
            let (ops, sum_ns) = (
                std::mem::take(&mut path.ops),
                std::mem::take(&mut path.sum_ns),
            );
            if ops > 0 {
                let mean_ns = sum_ns as f64 / ops as f64;
                let before_ns = path.latency_ns.unwrap_or(mean_ns);
                let weight = match mean_ns > before_ns {
                    true => (ops as f64 / DOUBT).min(0.5),
                    false => 0.5,
                };
                path.latency_ns = Some(before_ns + (mean_ns - before_ns) * weight);
            }
        }
        let known = (0..self.all.len()).filter(|i| self.is_open(*i, now_ns));
        let known: Vec<(f64, usize)> = known
            .filter_map(|i| self.all[i].latency_ns.map(|ns| (ns, i)))
            .collect();
        let by_latency = |a: &&(f64, usize), b: &&(f64, usize)| a.0.total_cmp(&b.0);
        let (Some(fast), Some(slow)) = (
            known.iter().min_by(by_latency),
            known.iter().max_by(by_latency),
        ) else {
            return;
        };
        if slow.0 > fast.0 * EQUAL {
            let periods = match self.slowest {
                (path, periods) if path == slow.1 => periods + 1,
                _ => 0,
            };
            self.slowest = (slow.1, periods);
            let steps = match self.finer {
                1 => 1,
                _ => (1 + periods / STEP_PERIODS).min(STEPS_MAX),
            };
            let most = SHIFT * f64::from(steps) / self.finer as f64;
            let shift = most.min(self.all[slow.1].part - self.least).max(0.0);
            self.all[slow.1].part -= shift;
            self.all[fast.1].part += shift;
        } else {
            self.slowest.1 = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// Paths that each serve one operation after the other, and a fixed number of operations under way.
    struct Rig {
        paths: Paths,
        now_ns: u64,
        free_ns: Vec<u64>,
        /// When each operation ends, when it began, and its path.
        under_way: Vec<(u64, u64, usize)>,
    }

    impl Rig {
        fn new(paths: usize) -> Rig {
            Rig::over(Paths::new(paths))
        }

        fn over(paths: Paths) -> Rig {
            Rig {
                free_ns: vec![0; paths.all.len()],
                paths,
                now_ns: 0,
                under_way: Vec::new(),
            }
        }

        /// Runs for `seconds` with `under_way` operations, each taking `service_ns` on its path. Returns the operations
        /// a second on each path in the last half.
        fn run(&mut self, seconds: u64, under_way: usize, service_ns: &[u64]) -> Vec<u64> {
            let end_ns = self.now_ns + seconds * PERIOD_NS;
            let mut done = vec![0; service_ns.len()];
            while self.now_ns < end_ns {
                while self.under_way.len() < under_way {
                    let path = self.paths.choose(0, self.now_ns).unwrap();
                    let ends_ns = self.free_ns[path].max(self.now_ns) + service_ns[path];
                    self.free_ns[path] = ends_ns;
                    self.under_way.push((ends_ns, self.now_ns, path));
                }
                let next = (0..under_way).min_by_key(|i| self.under_way[*i].0).unwrap();
                let (ends_ns, began_ns, path) = self.under_way.swap_remove(next);
                self.now_ns = ends_ns;
                self.paths.took(path, ends_ns - began_ns);
                self.paths.tick(ends_ns);
                if ends_ns > end_ns - seconds * PERIOD_NS / 2 {
                    done[path] += 1;
                }
            }
            done.iter().map(|n| n * 2 / seconds).collect()
        }
    }

    #[test]
    fn paths_of_unlike_speed_give_nearly_the_sum() {
        // 2,000 and 500 operations a second.
        let done = Rig::new(2).run(60, 32, &[MS / 2, 2 * MS]);
        assert!(done.iter().sum::<u64>() > 2250, "{done:?}");
        let three = Rig::new(3).run(60, 32, &[MS, MS, MS]);
        assert!(three.iter().sum::<u64>() > 2700, "{three:?}");
    }

    #[test]
    fn a_path_that_becomes_slow_is_left_and_comes_back() {
        let mut rig = Rig::new(2);
        let before = rig.run(20, 8, &[MS, MS]);
        assert!(before.iter().all(|n| *n > 900), "{before:?}");
        let slow = rig.run(60, 8, &[20 * MS, MS]);
        assert!(slow[1] > 850, "{slow:?}");
        let again = rig.run(60, 8, &[MS, MS]);
        assert!(again.iter().sum::<u64>() > 1800, "{again:?}");
    }

    #[test]
    fn a_path_that_becomes_ten_times_slower_is_left_within_seconds() {
        let mut rig = Rig::over(Paths::first_of(2));
        rig.run(10, 4, &[MS / 10, MS / 2]);
        rig.run(6, 4, &[MS, MS / 2]);
        let parts: Vec<f64> = rig.paths.all.iter().map(|p| p.part).collect();
        assert!(parts[1] > 0.5, "{parts:?}");
    }

    /// A path that is rarely tried, and was slow once, is nevertheless used when the other one becomes slow.
    #[test]
    fn one_that_took_long_says_little_of_a_path() {
        let mut rig = Rig::over(Paths::first_of(2));
        rig.run(10, 4, &[MS / 10, MS / 2]);
        // In a period of its own, as where there are few operations.
        rig.now_ns += PERIOD_NS;
        rig.paths.tick(rig.now_ns);
        rig.paths.took(1, 200 * MS);
        rig.run(6, 4, &[8 * MS, MS / 2]);
        let parts: Vec<f64> = rig.paths.all.iter().map(|p| p.part).collect();
        assert!(parts[1] > 0.5, "{parts:?}");
    }

    #[test]
    fn the_first_is_taken_until_another_is_faster_under_its_load() {
        // With one operation at a time the first one is as fast as assumed.
        let mut rig = Rig::over(Paths::first_of(2));
        let alone = rig.run(30, 1, &[MS / 10, MS / 5]);
        assert!(alone[1] <= alone[0] / 300, "{alone:?}");
        // Under load the other one helps.
        let loaded = rig.run(60, 32, &[MS / 10, MS / 5]);
        assert!(loaded.iter().sum::<u64>() > 13_500, "{loaded:?}");
        let mut slow = Rig::over(Paths::first_of(2));
        let loaded = slow.run(60, 4, &[MS / 10, 20 * MS]);
        assert!(loaded[0] > 9_000 / 4, "{loaded:?}");
        assert!(slow.paths.all[1].part < 0.01);
    }

    #[test]
    fn a_full_path_is_asked_again_after_a_while() {
        let mut paths = Paths::new(2);
        paths.close(0, Closed::Full, 5);
        assert!((0..10).all(|_| paths.choose(0, 6) == Some(1)));
        // The other one could not take it either.
        assert_eq!(paths.choose(0b10, 6), Some(0));
        assert_eq!(paths.choose(0b11, 6), None);
        paths.close(1, Closed::Broken, 5);
        assert_eq!(
            paths.choose(0, 6),
            Some(0),
            "the one that is asked again first"
        );
        let open: Vec<_> = (0..4).map(|_| paths.choose(0, 5 + FULL_NS)).collect();
        assert_eq!(open, [Some(0); 4]);
    }

    proptest! {
        #[test]
        fn each_is_chosen_as_often_as_its_part_says(
            n in 1..PATHS_MAX,
            latencies in prop::collection::vec(1..1_000_000u64, PATHS_MAX),
            periods in 0..40u64,
        ) {
            let mut paths = Paths::new(n);
            for period in 0..=periods {
                for (path, ns) in latencies.iter().enumerate().take(n) {
                    paths.took(path, *ns);
                }
                paths.tick(period * PERIOD_NS);
            }
            let parts: Vec<f64> = paths.all.iter().map(|p| p.part).collect();
            prop_assert!((parts.iter().sum::<f64>() - 1.0).abs() < 1e-6);
            prop_assert!(parts.iter().all(|p| *p >= LEAST.min(1.0 / n as f64) - 1e-9), "{:?}", parts);
            let mut chosen = vec![0u32; n];
            for _ in 0..10_000 {
                chosen[paths.choose(0, 0).unwrap()] += 1;
            }
            for (n, part) in chosen.iter().zip(&parts) {
                prop_assert!((f64::from(*n) - part * 1e4).abs() < 40.0, "{:?} {:?}", chosen, parts);
            }
        }
    }
}
