//! How much memory a program gives up ahead of need, so that paging slows it by no more than a target.
//!
//! The sensor is the slowdown itself (time in faults over the rest), where TMO (ASPLOS '22, section 3.3) uses the
//! kernel's pressure. TMO takes at most a thousandth of memory in a period of 6 s, for services that run for weeks;
//! programs that run for a minute would keep all they have. Here the controller sets the *rate* of evictions: it grows
//! while the slowdown is well below the target, and shrinks as fast as the slowdown comes near. Pages that were needed
//! come back by the faults that are measured; the others stay away. Taking memory sets no limit: a program may grow at
//! any time.

/// Decaying sums: a measurement counts half after [`HALF_LIFE_S`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Slowdown {
    paging_s: f64,
    rest_s: f64,
}

/// Half-life of a measurement, in seconds.
const HALF_LIFE_S: f64 = 1.5;
/// Least recent run time for which the slowdown is known, in seconds.
const KNOWN_FROM_S: f64 = 1e-4;

/// The factor that is left after `elapsed_s`.
fn fade(elapsed_s: f64) -> f64 {
    0.5f64.powf(elapsed_s / HALF_LIFE_S)
}

/// Clamps a measured time to a sane range.
fn sane_s(seconds: f64) -> f64 {
    match seconds.is_finite() {
        true => seconds.clamp(0.0, 1e6),
        false => 0.0,
    }
}

impl Slowdown {
    /// Adds a measurement: in `elapsed_s` paging took `paging_s` of all threads' time, and `rest_s` were left to them.
    pub fn add(&mut self, elapsed_s: f64, paging_s: f64, rest_s: f64) {
        let left = fade(sane_s(elapsed_s));
        self.paging_s = self.paging_s * left + sane_s(paging_s);
        self.rest_s = self.rest_s * left + sane_s(rest_s);
    }

    /// The slowdown of the last seconds; `None` when the program did nothing.
    pub fn now(&self) -> Option<f64> {
        (self.rest_s > KNOWN_FROM_S).then(|| self.paging_s / self.rest_s)
    }
}

/// Decaying counts of faults by latency, in ascending buckets.
#[derive(Clone, Debug)]
pub struct Latency {
    counts: Vec<f64>,
}

impl Latency {
    /// With `buckets` buckets.
    pub fn new(buckets: usize) -> Latency {
        Latency {
            counts: vec![0.0; buckets],
        }
    }

    /// Adds the faults of the last `elapsed_s`, by bucket.
    pub fn add(&mut self, elapsed_s: f64, more: &[u64]) {
        let left = fade(sane_s(elapsed_s));
        for (count, more) in self.counts.iter_mut().zip(more) {
            *count = *count * left + *more as f64;
        }
    }

    /// The bucket with the 99th percentile of the last seconds; `None` with hardly any faults.
    pub fn p99_bucket(&self) -> Option<usize> {
        let all: f64 = self.counts.iter().sum();
        if all < 1.0 {
            return None;
        }
        let mut above = all * 0.01;
        (0..self.counts.len()).rev().find(|i| {
            above -= self.counts[*i];
            above < 0.0
        })
    }
}

/// The controller of one tenant.
#[derive(Clone, Copy, Debug)]
pub struct Controller {
    /// Part of local memory evicted in a second.
    rate_per_s: f64,
    /// Fraction of a page left over from the last step.
    owed: f64,
}

/// One measurement of a tenant.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TenantSample {
    /// Seconds since the last one.
    pub elapsed_s: f64,
    /// The measured value relative to the target; `None` when nothing was measured.
    pub of_target: Option<f64>,
    /// Pages that could be evicted.
    pub local_pages: u64,
    /// All pages of the tenant.
    pub footprint_pages: u64,
}

/// Set point relative to the target: measurements are late, and evicted pages fault back one by one.
const AIM: f64 = 0.7;
/// Above this nothing is evicted.
const STOP: f64 = 1.0;
const RATE_MIN_PER_S: f64 = 0.0005;
const RATE_MAX_PER_S: f64 = 0.10;
const RATE_FIRST_PER_S: f64 = 0.01;
/// Growth of the rate in a second without any slowdown: it doubles.
const GROWTH_PER_S: f64 = 2.0;
/// Factor by which the rate shrinks in a second at twice the set point: to a tenth.
const SHRINKING_PER_S: f64 = 0.1;
/// Most of all pages that may be evicted (xDM's far ratio).
const FAR_MAX: f64 = 0.9;
/// Pages that a program always keeps (8 MiB).
const KEPT_PAGES: u64 = 2048;
/// Most of local memory that one step evicts.
const STEP_MAX: f64 = 0.05;
/// Longest time between two steps that counts, in seconds.
const SAMPLE_MAX_S: f64 = 10.0;

impl Default for Controller {
    fn default() -> Controller {
        Controller::new()
    }
}

impl Controller {
    /// For a tenant that has just begun.
    pub fn new() -> Controller {
        Controller {
            rate_per_s: RATE_FIRST_PER_S,
            owed: 0.0,
        }
    }

    /// The number of pages to evict now.
    pub fn step(&mut self, sample: &TenantSample) -> u64 {
        let elapsed_s = sane_s(sample.elapsed_s).min(SAMPLE_MAX_S);
        // A program that does nothing is not slowed down.
        let of_target = sane_s(sample.of_target.unwrap_or(0.0));
        self.judge(of_target, elapsed_s);
        if of_target > STOP {
            self.owed = 0.0;
            return 0;
        }
        let kept = ((1.0 - FAR_MAX) * sample.footprint_pages as f64) as u64;
        let spare = sample.local_pages.saturating_sub(kept.max(KEPT_PAGES));
        let local = sample.local_pages as f64;
        self.owed += (self.rate_per_s * elapsed_s).min(STEP_MAX) * local;
        let pages = (self.owed as u64).min(spare);
        self.owed = (self.owed - pages as f64).clamp(0.0, 1.0);
        pages
    }

    fn judge(&mut self, of_target: f64, elapsed_s: f64) {
        let off = of_target / AIM - 1.0;
        let factor = match off < 0.0 {
            true => GROWTH_PER_S.powf(-off * elapsed_s),
            false => SHRINKING_PER_S.powf(off.min(2.0) * elapsed_s),
        };
        self.rate_per_s = (self.rate_per_s * factor).clamp(RATE_MIN_PER_S, RATE_MAX_PER_S);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    const TICK_S: f64 = 0.2;
    /// Duration of a fault.
    const FAULT_S: f64 = 6e-6;

    /// How many of the four programs a test tries.
    fn seeds(quick: u32) -> u64 {
        canvas_testing::random::scaled(quick).min(4).into()
    }

    /// A program whose pages are touched by some popularity, under a clock algorithm that sees only refaults: refaulted
    /// pages are spared for longer and longer.
    struct Program {
        /// Touches of each page a second.
        touches_per_s: Vec<f64>,
        is_local: Vec<bool>,
        /// Sweeps for which a page is still spared, and would be next time.
        spared: Vec<(u32, u32)>,
        hand: usize,
        rng: Rng,
    }

    impl Program {
        fn new(pages: usize, seed: u64) -> Program {
            Program {
                touches_per_s: vec![0.0; pages],
                is_local: vec![true; pages],
                spared: vec![(0, 1); pages],
                hand: 0,
                rng: Rng::with_seed(seed),
            }
        }

        /// From now on `hot` pages from `from` on are touched often, and the rest once in `cold_s`.
        fn phase(&mut self, from: usize, hot: usize, cold_s: f64) {
            let n = self.touches_per_s.len();
            for (i, t) in self.touches_per_s.iter_mut().enumerate() {
                let is_hot = (i + n - from) % n < hot;
                *t = if is_hot { 50.0 } else { 1.0 / cold_s };
            }
        }

        fn local(&self) -> u64 {
            self.is_local.iter().filter(|l| **l).count() as u64
        }

        fn evict(&mut self, mut want: u64) {
            let n = self.is_local.len();
            for _ in 0..n * 8 {
                if want == 0 {
                    return;
                }
                let i = self.hand;
                self.hand = (i + 1) % n;
                if !self.is_local[i] {
                    continue;
                }
                if self.spared[i].0 > 0 {
                    self.spared[i].0 -= 1;
                    continue;
                }
                self.is_local[i] = false;
                want -= 1;
            }
        }

        /// Advances by `TICK_S` on one processor; returns the time that paging took of it.
        fn run(&mut self) -> f64 {
            let mut faults = 0.0;
            for i in 0..self.is_local.len() {
                let touched = self.touches_per_s[i] * TICK_S;
                if !self.is_local[i] && self.rng.f64() < touched {
                    self.is_local[i] = true;
                    let next = (self.spared[i].1 * 2).min(128);
                    self.spared[i] = (next, next);
                    faults += 1.0;
                }
            }
            (faults * FAULT_S).min(TICK_S * 0.9)
        }
    }

    #[derive(Default)]
    struct Control {
        controller: Controller,
        sensor: Slowdown,
    }

    /// Runs for `seconds`; returns the mean slowdown of each 6 s.
    fn control(p: &mut Program, c: &mut Control, target: f64, seconds: f64) -> Vec<f64> {
        let ticks = (seconds / TICK_S) as usize;
        let mut slowdowns = Vec::new();
        let (mut paging, mut rest) = (0.0, 0.0);
        for tick in 1..=ticks {
            let took = p.run();
            c.sensor.add(TICK_S, took, TICK_S - took);
            let pages = c.controller.step(&TenantSample {
                elapsed_s: TICK_S,
                of_target: c.sensor.now().map(|s| s / target),
                local_pages: p.local(),
                footprint_pages: p.is_local.len() as u64,
            });
            p.evict(pages);
            (paging, rest) = (paging + took, rest + TICK_S - took);
            if tick % 30 == 0 {
                slowdowns.push(paging / rest);
                (paging, rest) = (0.0, 0.0);
            }
        }
        slowdowns
    }

    #[test]
    fn cold_memory_leaves_and_the_target_is_kept() {
        for seed in 0..seeds(1) {
            for target in [0.005, 0.02, 0.05] {
                let mut p = Program::new(40_000, seed);
                p.phase(0, 12_000, 1e9);
                let mut c = Control::default();
                let slowdowns = control(&mut p, &mut c, target, 120.0);
                let local = p.local();
                assert!(
                    local < 16_000,
                    "{target}: {local} pages are local, of which 12000 are used"
                );
                for pair in slowdowns.windows(2) {
                    assert!(
                        pair[0] <= target || pair[1] <= target,
                        "{target}: {slowdowns:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_new_phase_is_followed_and_soon_within_the_target() {
        for seed in 0..seeds(2) {
            let mut p = Program::new(40_000, seed);
            p.phase(0, 12_000, 1e9);
            let mut c = Control::default();
            control(&mut p, &mut c, 0.02, 90.0);
            p.phase(20_000, 12_000, 1e9);
            let slowdowns = control(&mut p, &mut c, 0.02, 120.0);
            for (i, pair) in slowdowns.windows(2).enumerate() {
                assert!(pair[0] <= 0.02 || pair[1] <= 0.02, "at {i}: {slowdowns:?}");
            }
            assert!(p.local() < 18_000, "{}", p.local());
        }
    }

    #[test]
    fn memory_that_is_all_in_use_stays() {
        let mut p = Program::new(20_000, 9);
        p.phase(0, 20_000, 1.0);
        let mut c = Control::default();
        let slowdowns = control(&mut p, &mut c, 0.02, 60.0);
        let mean = slowdowns.iter().sum::<f64>() / slowdowns.len() as f64;
        assert!(mean <= 0.02, "{slowdowns:?}");
        assert!(p.local() > 19_000, "{}", p.local());
    }

    #[test]
    fn more_is_taken_for_a_larger_target() {
        // Pages of all temperatures.
        let local = |target| {
            let mut p = Program::new(40_000, 3);
            for (i, t) in p.touches_per_s.iter_mut().enumerate() {
                *t = 2000.0 / (i + 1) as f64 / (i + 1) as f64 * 1000.0;
            }
            let mut c = Control::default();
            control(&mut p, &mut c, target, 120.0);
            p.local()
        };
        let (small, large) = (local(0.001), local(0.10));
        assert!(large <= small, "{large} pages at 10 %, {small} at 0.1 %");
    }

    #[test]
    fn a_percentile_is_of_the_last_seconds() {
        let mut l = Latency::new(8);
        assert_eq!(l.p99_bucket(), None);
        l.add(0.2, &[0, 0, 1000, 0, 0, 0, 9, 0]);
        assert_eq!(l.p99_bucket(), Some(2));
        l.add(0.2, &[0, 0, 1000, 0, 0, 0, 100, 0]);
        assert_eq!(l.p99_bucket(), Some(6));
        // The slow faults are long ago.
        l.add(60.0, &[0, 10, 0, 0, 0, 0, 0, 0]);
        assert_eq!(l.p99_bucket(), Some(1));
        l.add(600.0, &[0; 8]);
        assert_eq!(l.p99_bucket(), None);
    }

    #[test]
    fn whatever_is_measured_what_leaves_is_a_part_of_what_is_there() {
        let mut rng = Rng::with_seed(18);
        let (mut c, mut sensor) = (Controller::new(), Slowdown::default());
        let any = |rng: &mut Rng| match rng.u8(0..6) {
            0 => f64::NAN,
            1 => f64::INFINITY,
            2 => -rng.f64(),
            3 => 0.0,
            _ => rng.f64() * 10.0,
        };
        for _ in 0..100_000 {
            sensor.add(any(&mut rng), any(&mut rng), any(&mut rng));
            assert!(
                sensor.now().is_none_or(|s| s.is_finite() && s >= 0.0),
                "{sensor:?}"
            );
            let sample = TenantSample {
                elapsed_s: any(&mut rng),
                of_target: Some(any(&mut rng)),
                local_pages: rng.u64(0..1 << 30),
                footprint_pages: rng.u64(..),
            };
            let pages = c.step(&sample);
            assert!(pages <= sample.local_pages.saturating_sub(KEPT_PAGES));
            assert!(pages as f64 <= sample.local_pages as f64 * STEP_MAX + 1.0);
        }
    }
}
