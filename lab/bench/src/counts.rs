//! Counters of a program sampled while it runs, and their values over the measured part.

use crate::record::Measured;

/// Counters since the program's start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Major faults, or demand faults under canvas.
    pub faults: Option<u64>,
    /// Processor time, where a control group counts it.
    pub cpu_s: Option<f64>,
}

/// Sampled counters and levels by seconds since the program's start, ascending.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    counts: Vec<(f64, Counts)>,
    /// Samples of local memory, in bytes.
    pub local: Vec<(f64, u64)>,
    /// Samples of all memory that the program takes, in bytes.
    pub memory: Vec<(f64, u64)>,
}

/// Mean of a level between two times; `None` if it was not sampled.
fn mean(levels: &[(f64, u64)], from_s: f64, to_s: f64) -> Option<f64> {
    let within = levels.iter().filter(|l| (from_s..=to_s).contains(&l.0));
    let values: Vec<f64> = within.map(|l| l.1 as f64).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

impl Looks {
    /// Adds a sample. A counter that decreased lost processes that have ended; their counts are kept.
    pub fn add(&mut self, at_s: f64, now: Counts) {
        let before = self.counts.last().map(|l| l.1).unwrap_or_default();
        let cpu_s = match (before.cpu_s, now.cpu_s) {
            (Some(before), Some(now)) => Some(now.max(before)),
            (before, now) => now.or(before),
        };
        let faults = before.faults.max(now.faults);
        self.counts.push((at_s, Counts { faults, cpu_s }));
    }

    /// Counts between two times; `None` if the interval is empty, or no sample was taken at or after its end.
    /// Interpolates linearly between samples.
    pub fn between(&self, from_s: f64, to_s: f64) -> Option<Measured> {
        if from_s < 0.0 || from_s >= to_s || self.counts.last()?.0 < to_s {
            return None;
        }
        let span =
            |of: &dyn Fn(&Counts) -> Option<f64>| Some(self.at(to_s, of)? - self.at(from_s, of)?);
        Some(Measured {
            from_s,
            to_s,
            faults: span(&|c| c.faults.map(|n| n as f64)),
            cpu_s: span(&|c| c.cpu_s),
            local_bytes: mean(&self.local, from_s, to_s),
            memory_bytes: mean(&self.memory, from_s, to_s),
        })
    }

    /// Value of a counter at a time no later than the last sample.
    fn at(&self, at_s: f64, of: &dyn Fn(&Counts) -> Option<f64>) -> Option<f64> {
        let next = self.counts.partition_point(|l| l.0 < at_s);
        let (after_s, after) = self.counts.get(next)?;
        // All counters are 0 at the start of the program.
        let (before_s, before) = match next.checked_sub(1) {
            Some(i) => (self.counts[i].0, of(&self.counts[i].1).unwrap_or(0.0)),
            None => (0.0, 0.0),
        };
        let share = (at_s - before_s) / (after_s - before_s).max(f64::MIN_POSITIVE);
        Some(before + (of(after)? - before) * share.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(faults: u64, cpu_s: f64) -> Counts {
        Counts {
            faults: Some(faults),
            cpu_s: Some(cpu_s),
        }
    }

    /// Filling before the measured part, and checking after it, do not count.
    #[test]
    fn the_measured_part_is_between_looks() {
        let mut looks = Looks::default();
        for (at_s, faults, cpu_s) in [
            (1.0, 1000, 1.0),
            (2.0, 1100, 2.0),
            (3.0, 1200, 2.5),
            (4.0, 9000, 9.0),
        ] {
            looks.add(at_s, counts(faults, cpu_s));
        }
        let got = looks.between(1.5, 3.0).unwrap();
        assert_eq!((got.faults, got.cpu_s), (Some(150.0), Some(1.0)));
        let first = looks.between(0.0, 0.5).unwrap();
        assert_eq!((first.faults, first.cpu_s), (Some(500.0), Some(0.5)));
        for (from_s, to_s) in [(-1.0, 2.0), (2.0, 2.0), (3.0, 2.0), (2.0, 4.1)] {
            assert_eq!(looks.between(from_s, to_s), None);
        }
        assert_eq!(Looks::default().between(0.0, 1.0), None);
    }

    #[test]
    fn processes_that_are_gone_had_what_they_had() {
        let mut looks = Looks::default();
        looks.add(1.0, counts(10, 5.0));
        looks.add(2.0, Counts::default());
        looks.add(3.0, counts(4, 0.0));
        let got = looks.between(0.5, 3.0).unwrap();
        assert_eq!((got.faults, got.cpu_s), (Some(5.0), Some(2.5)));
        let mut nobody = Looks::default();
        nobody.add(1.0, Counts::default());
        let got = nobody.between(0.0, 1.0).unwrap();
        assert_eq!((got.faults, got.cpu_s), (None, None));
    }

    proptest! {
        /// Counts of adjacent intervals add up.
        #[test]
        fn neighbouring_parts_add_up(steps in prop::collection::vec((1u32..50, 0u64..1000), 1..40), cut in 0.01f64..0.99) {
            let (mut looks, mut at_s, mut faults) = (Looks::default(), 0.0, 0);
            for (step, more) in steps {
                at_s += f64::from(step) / 10.0;
                faults += more;
                looks.add(at_s, counts(faults, at_s));
            }
            let part = |from_s, to_s| looks.between(from_s, to_s).unwrap();
            let (a, b, all) = (part(0.0, at_s * cut), part(at_s * cut, at_s), part(0.0, at_s));
            prop_assert!((a.faults.unwrap() + b.faults.unwrap() - faults as f64).abs() < 1e-6);
            prop_assert!((a.cpu_s.unwrap() + b.cpu_s.unwrap() - at_s).abs() < 1e-6);
            prop_assert_eq!(all.faults, Some(faults as f64));
        }
    }
}
