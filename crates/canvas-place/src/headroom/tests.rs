use proptest::prelude::*;

use super::*;

const SLAB: u64 = 64;

fn config() -> Config {
    Config {
        expand_hits: 3,
        ..Config::new(100 * SLAB, 16 * SLAB, SLAB)
    }
}

fn sample(available_slabs: u64, lent_slabs: u64) -> Sample {
    Sample {
        available_bytes: available_slabs * SLAB,
        lent_bytes: lent_slabs * SLAB,
        touched_bytes: lent_slabs * SLAB,
        leaving_bytes: 0,
    }
}

/// A model that keeps all samples and recomputes everything each time.
struct Oracle {
    config: Config,
    samples: Vec<Sample>,
    /// Indices of samples before which the counts restarted.
    low_from: usize,
    high_from: usize,
    limit: u64,
}

impl Oracle {
    fn averages(&self) -> Vec<u64> {
        let mut all: Vec<u64> = Vec::new();
        for s in &self.samples {
            let next = match all.last() {
                None => s.available_bytes,
                Some(&a) => (s.available_bytes * 7 + a * 3) / 10,
            };
            all.push(next);
        }
        all
    }

    fn observe(&mut self, s: Sample) -> Decision {
        self.samples.push(s);
        let c = self.config;
        let averages = self.averages();
        let run = |from: usize, f: &dyn Fn(u64) -> bool| {
            averages[from..].iter().rev().take_while(|&&a| f(a)).count() as u32
        };
        let now = *averages.last().unwrap();
        let low = run(self.low_from, &|a| a < c.evict_below_bytes);
        let high = run(self.high_from, &|a| a > c.expand_above_bytes);
        if low >= c.evict_hits {
            self.limit = self.limit.min(s.lent_bytes);
            let target = (c.evict_below_bytes + c.expand_above_bytes) / 2;
            let staying = i128::from(s.touched_bytes) - i128::from(s.leaving_bytes);
            let missing = i128::from(target) - i128::from(now) - i128::from(s.leaving_bytes);
            let bytes = missing.min(staying);
            if bytes <= 0 {
                return Decision::Hold;
            }
            self.low_from = averages.len();
            // Slab by slab.
            let mut slabs = 0;
            while i128::from(slabs) * i128::from(c.slab_bytes) < bytes && slabs < c.evict_slabs_max
            {
                slabs += 1;
            }
            return Decision::Evict { slabs };
        }
        if high >= c.expand_hits && self.limit < c.memory_bytes {
            self.high_from = averages.len();
            let base = self.limit.max(s.lent_bytes);
            self.limit = (base + u64::from(c.expand_slabs) * c.slab_bytes).min(c.memory_bytes);
            return Decision::Expand;
        }
        Decision::Hold
    }

    /// Slab by slab: lend one more while all conditions still hold.
    fn free(&self, lent: u64) -> u64 {
        let Some(&average) = self.averages().last() else {
            return 0;
        };
        let last = self.samples.last().unwrap();
        let mut more = 0;
        loop {
            let then = lent + more + self.config.slab_bytes;
            let unwritten = i128::from(then) - i128::from(last.touched_bytes.min(lent));
            let left = i128::from(average.min(last.available_bytes)) - unwritten;
            if then > self.limit || left < i128::from(self.config.evict_below_bytes) {
                return more;
            }
            more += self.config.slab_bytes;
        }
    }
}

proptest! {
    #[test]
    fn as_the_oracle(
        steps in prop::collection::vec((0u64..120 * SLAB, 0u64..100, 0u64..=100, 0u64..=100), 1..80),
        evict_hits in 1u32..4,
        expand_hits in 1u32..6,
    ) {
        let config = Config { evict_hits, expand_hits, expand_slabs: 7, evict_slabs_max: 5, ..config() };
        let mut real = Headroom::new(config);
        let mut oracle = Oracle { config, samples: Vec::new(), low_from: 0, high_from: 0, limit: config.memory_bytes };
        for (available_bytes, lent_slabs, touched, leaving) in steps {
            let lent_bytes = lent_slabs * SLAB;
            let touched_bytes = lent_bytes * touched / 100;
            let s = Sample { available_bytes, lent_bytes, touched_bytes, leaving_bytes: touched_bytes * leaving / 100 };
            prop_assert_eq!(real.observe(s), oracle.observe(s));
            prop_assert_eq!(real.limit_bytes(), oracle.limit);
            prop_assert_eq!(real.free_bytes(lent_bytes), oracle.free(lent_bytes));
        }
    }

    /// Whatever is admitted, and however much of it is written at once, the reserve is not touched.
    #[test]
    fn what_is_admitted_never_takes_the_reserve(host in 0u64..200, lent in 0u64..50, touched in 0u64..=100) {
        let config = config();
        let mut h = Headroom::new(config);
        let touched_bytes = lent * SLAB * touched / 100;
        h.observe(Sample { available_bytes: host * SLAB, lent_bytes: lent * SLAB, touched_bytes, leaving_bytes: 0 });
        let mut all = lent * SLAB;
        while h.admits(all) {
            all += SLAB;
        }
        let written = all - touched_bytes;
        if all > lent * SLAB {
            prop_assert!(host * SLAB - written >= config.reserve_bytes);
        }
        prop_assert!(all <= config.memory_bytes.max(lent * SLAB));
    }
}

#[test]
fn nothing_is_lent_before_the_first_sample() {
    let h = Headroom::new(config());
    assert!(!h.admits(0));
    assert!(h.pressure());
}

#[test]
fn one_low_sample_stops_lending_though_the_average_is_high() {
    let mut h = Headroom::new(config());
    h.observe(sample(80, 0));
    assert!(h.admits(0));
    assert_eq!(h.observe(sample(5, 0)), Decision::Hold);
    assert!(!h.admits(0));
}

#[test]
fn a_host_that_stays_low_is_not_asked_twice_for_what_is_leaving() {
    let mut h = Headroom::new(config());
    let Decision::Evict { slabs } = h.observe(sample(10, 50)) else {
        panic!("no eviction below the reserve");
    };
    let leaving_bytes = u64::from(slabs) * SLAB;
    let next = Sample {
        leaving_bytes,
        ..sample(10, 50)
    };
    let again = h.observe(next);
    assert!(
        matches!(again, Decision::Hold)
            || matches!(again, Decision::Evict { slabs: more } if more < slabs),
        "{slabs} slabs, then {again:?}"
    );
}

#[test]
fn after_an_eviction_lending_waits_for_an_expansion() {
    let mut h = Headroom::new(config());
    assert!(matches!(h.observe(sample(10, 50)), Decision::Evict { .. }));
    for _ in 0..2 {
        assert_eq!(h.observe(sample(90, 40)), Decision::Hold);
    }
    assert_eq!(h.free_bytes(50 * SLAB), 0);
    assert_eq!(h.observe(sample(90, 40)), Decision::Expand);
    assert!(h.admits(40 * SLAB));
}
