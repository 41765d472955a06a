//! Cells: samples grouped by everything but the repeat.

use std::collections::BTreeMap;
use std::fmt;

use crate::record::{Outcome, Sample};
use crate::stats::{Ratio, Spread, bucket_at, ratio_of_medians, together};
use crate::variant::{KERNEL, Variant};

/// Seed of all confidence intervals, so that a file always gives the same page.
pub const SEED: u64 = 0xca57a5;

/// Accesses that took longer count as faults under every variant: a local access takes a cache miss and a
/// walk of the page tables, a fault at least a trap and a copy.
pub const SLOW_ACCESS_NS: u64 = 800;

/// What the repeats of a cell have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Experiment.
    pub experiment: String,
    /// Workload.
    pub workload: String,
    /// Parameters that distinguish this run of the workload from others.
    pub parameters: BTreeMap<String, String>,
    /// The programs that ran at the same time, if any.
    pub co_run: Option<String>,
    /// Limit in percent of the working set.
    pub local_percent: Option<u32>,
    /// The variant that the program ran under.
    pub variant: Variant,
}

impl Key {
    /// Key of a sample.
    pub fn of(sample: &Sample) -> Key {
        Key {
            experiment: sample.experiment.clone(),
            workload: sample.workload.clone(),
            parameters: sample.parameters.clone(),
            co_run: sample.co_run.clone(),
            local_percent: sample.local_percent,
            variant: sample.variant.clone(),
        }
    }

    /// Workload with its parameters: `redis (threads=4)`.
    pub fn program(&self) -> String {
        if self.parameters.is_empty() {
            return self.workload.clone();
        }
        format!("{} ({})", self.workload, words(&self.parameters))
    }

    /// Program, limit and company, without the variant: `redis (threads=4) at 25 %`.
    pub fn place(&self) -> String {
        let mut text = self.program();
        if let Some(percent) = self.local_percent {
            text += &format!(" at {percent} %");
        }
        if let Some(set) = &self.co_run {
            text += &format!(" with {}", company(set, &self.workload));
        }
        text
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, {}", self.experiment, self.place(), self.variant)
    }
}

/// Parameters in words: `prefetcher=leap threads=4`.
pub fn words(parameters: &BTreeMap<String, String>) -> String {
    let pairs: Vec<String> = parameters.iter().map(|(k, v)| format!("{k}={v}")).collect();
    pairs.join(" ")
}

/// The other programs of a co-run: the set without one program of this name.
pub fn company(set: &str, workload: &str) -> String {
    let mut left_out = false;
    let others: Vec<&str> = set
        .split('+')
        .filter(|name| left_out || *name != workload || std::mem::replace(&mut left_out, true))
        .collect();
    others.join(", ")
}

/// Unit of a cell's figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Operations per second; more is better.
    OpsPerS,
    /// Seconds; less is better.
    Seconds,
}

/// All repeats of one key.
#[derive(Clone, Debug)]
pub struct Cell<'a> {
    /// Key that the repeats share.
    pub key: Key,
    /// One or more samples, in the order of the file.
    pub samples: Vec<&'a Sample>,
}

/// Groups samples into cells, ordered by key.
pub fn gather<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Vec<Cell<'a>> {
    let mut cells: BTreeMap<Key, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        cells.entry(Key::of(sample)).or_default().push(sample);
    }
    cells
        .into_iter()
        .map(|(key, samples)| Cell { key, samples })
        .collect()
}

impl<'a> Cell<'a> {
    /// Samples whose program finished with the right answer.
    pub fn good(&self) -> impl Iterator<Item = &'a Sample> + '_ {
        self.samples
            .iter()
            .copied()
            .filter(|s| s.outcome == Outcome::Ok)
    }

    /// `number` of each good sample that has it.
    pub fn values(&self, number: impl Fn(&Sample) -> Option<f64>) -> Vec<f64> {
        self.good()
            .filter_map(number)
            .filter(|v| v.is_finite())
            .collect()
    }

    /// Median of `number` over the good samples.
    pub fn median(&self, number: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        crate::stats::median(&self.values(number))
    }

    /// A quantile, in ns, of the faults among the accesses of all good samples.
    pub fn slow_access_ns(&self, quantile: f64) -> Option<f64> {
        let mut counts = together(self.good().flat_map(|s| &s.access_histogram));
        counts.retain(|bound, count| *bound > SLOW_ACCESS_NS && *count > 0);
        bucket_at(&counts, quantile).map(|bound| bound as f64)
    }

    /// Figures in a unit, if every good sample has one.
    fn in_unit(&self, unit: Unit) -> Option<Vec<f64>> {
        let values: Option<Vec<f64>> = self
            .good()
            .map(|s| measured(s, unit).filter(|v| v.is_finite() && *v > 0.0))
            .collect();
        values.filter(|v| !v.is_empty())
    }

    /// The cell's figure: throughput if all samples have it, otherwise time.
    pub fn figure(&self) -> Option<(Unit, Vec<f64>)> {
        [Unit::OpsPerS, Unit::Seconds]
            .into_iter()
            .find_map(|unit| Some((unit, self.in_unit(unit)?)))
    }

    /// Median and spread of the figure.
    pub fn spread(&self) -> Option<(Unit, Spread)> {
        let (unit, values) = self.figure()?;
        Some((unit, Spread::of(&values)?))
    }

    /// The good sample whose figure is nearest to the median; plots over time show it.
    pub fn typical(&self) -> Option<&'a Sample> {
        let Some((unit, spread)) = self.spread() else {
            return self.good().next();
        };
        self.good().min_by(|a, b| {
            let off =
                |s: &Sample| (measured(s, unit).unwrap_or(f64::INFINITY) - spread.median).abs();
            off(a).total_cmp(&off(b))
        })
    }

    /// Ratio of this cell's speed to another's; `None` when they have no unit in common.
    pub fn speed_over(&self, other: &Cell) -> Option<Ratio> {
        if let (Some(a), Some(b)) = (self.in_unit(Unit::OpsPerS), other.in_unit(Unit::OpsPerS)) {
            return ratio_of_medians(&a, &b, SEED);
        }
        // Inverted for times: less is faster.
        let (a, b) = (self.in_unit(Unit::Seconds)?, other.in_unit(Unit::Seconds)?);
        ratio_of_medians(&b, &a, SEED)
    }

    /// Ratio of this cell's median time to another's.
    pub fn slowdown(&self, other: &Cell) -> Option<f64> {
        Some(1.0 / self.speed_over(other)?.ratio)
    }
}

fn measured(sample: &Sample, unit: Unit) -> Option<f64> {
    match unit {
        Unit::OpsPerS => sample.ops_per_s,
        Unit::Seconds => sample.seconds,
    }
}

/// The cell of the same program in local memory, alone. Prefers the same experiment. Its parameters must all
/// be among the program's own (a local run has no prefetcher).
pub fn local_of<'c, 'a>(cells: &'c [Cell<'a>], key: &Key) -> Option<&'c Cell<'a>> {
    cells
        .iter()
        .filter(|c| {
            c.key.variant == Variant::Local
                && c.key.co_run.is_none()
                && c.key.workload == key.workload
                && c.key
                    .parameters
                    .iter()
                    .all(|(k, v)| key.parameters.get(k) == Some(v))
                && c.figure().is_some()
        })
        .max_by_key(|c| (c.key.experiment == key.experiment, c.key.parameters.len()))
}

/// The cell of the same program alone, under the same variant and limit. Prefers the same experiment.
pub fn solo_of<'c, 'a>(cells: &'c [Cell<'a>], key: &Key) -> Option<&'c Cell<'a>> {
    cells
        .iter()
        .filter(|c| {
            c.key.co_run.is_none()
                && c.key.variant == key.variant
                && c.key.workload == key.workload
                && c.key.parameters == key.parameters
                && c.key.local_percent == key.local_percent
                && c.figure().is_some()
        })
        .max_by_key(|c| c.key.experiment == key.experiment)
}

/// The cell that differs from this one in the variant only.
pub fn peer_of<'c, 'a>(
    cells: &'c [Cell<'a>],
    key: &Key,
    variant: &Variant,
) -> Option<&'c Cell<'a>> {
    cells.iter().find(|c| {
        c.key.variant == *variant
            && c.key.experiment == key.experiment
            && c.key.workload == key.workload
            && c.key.parameters == key.parameters
            && c.key.co_run == key.co_run
            && c.key.local_percent == key.local_percent
    })
}

/// The fastest of the kernel's cells that differ from this one in the variant only and have a figure, and the
/// ratio of this cell's speed to its speed.
pub fn best_peer_of<'c, 'a>(cells: &'c [Cell<'a>], ours: &Cell) -> Option<(&'c Cell<'a>, Ratio)> {
    let speeds = KERNEL.iter().filter_map(|variant| {
        let peer = peer_of(cells, &ours.key, variant)?;
        Some((peer, ours.speed_over(peer)?))
    });
    speeds.min_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::sample;

    fn cell_of(samples: &[Sample]) -> Cell<'_> {
        gather(samples).remove(0)
    }

    #[test]
    fn company_is_the_others() {
        assert_eq!(company("a+b+c", "b"), "a, c");
        assert_eq!(company("a+a", "a"), "a");
        assert_eq!(company("a+b", "elsewhere"), "a, b");
    }

    #[test]
    fn only_good_samples_count() {
        let mut all: Vec<Sample> = (0..3)
            .map(|n| sample("w", Variant::Zram, Some(25), n, 2.0))
            .collect();
        all[2].outcome = Outcome::Oom;
        all[2].seconds = Some(99.0);
        let cells = gather(&all);
        assert_eq!(cells.len(), 1);
        assert_eq!(
            cells[0].figure().map(|f| (f.0, f.1.len())),
            Some((Unit::Seconds, 2))
        );
        assert_eq!(cells[0].spread().unwrap().1.max, 2.0);
    }

    #[test]
    fn speed_is_throughput_or_the_inverse_of_time() {
        let slow = [sample("w", Variant::Zram, Some(25), 0, 4.0)];
        let fast = [sample("w", Variant::Canvas(vec![]), Some(25), 0, 2.0)];
        let ratio = cell_of(&fast).speed_over(&cell_of(&slow)).unwrap().ratio;
        assert_eq!(ratio, 2.0);
        assert_eq!(cell_of(&slow).slowdown(&cell_of(&fast)), Some(2.0));
        let mut rated = slow.clone();
        rated[0].ops_per_s = Some(300.0);
        let mut other = fast.clone();
        other[0].ops_per_s = Some(100.0);
        let ratio = cell_of(&other).speed_over(&cell_of(&rated)).unwrap().ratio;
        assert!((ratio - 1.0 / 3.0).abs() < 1e-9);
        // One side has times only, so times are compared.
        assert_eq!(cell_of(&fast).slowdown(&cell_of(&rated)), Some(0.5));
    }

    #[test]
    fn quantiles_of_slow_accesses_are_of_all_samples() {
        let mut all = vec![
            sample("w", Variant::Zram, Some(25), 0, 1.0),
            sample("w", Variant::Zram, Some(25), 1, 1.0),
        ];
        all[0].access_histogram = vec![(100, 1_000_000), (2000, 90), (9000, 5)];
        all[1].access_histogram = vec![(2000, 4), (30_000, 1)];
        let cells = gather(&all);
        let at = |q| cells[0].slow_access_ns(q);
        assert_eq!([0.0, 0.5, 0.94].map(at), [Some(2000.0); 3]);
        assert_eq!([0.95, 0.99].map(at), [Some(9000.0); 2]);
        assert_eq!(at(0.999), Some(30_000.0));
        all[0].access_histogram.clear();
        all[1].access_histogram.clear();
        assert_eq!(gather(&all)[0].slow_access_ns(0.5), None);
    }

    #[test]
    fn the_best_of_the_kernel_is_who_ended_well_and_was_fast() {
        let ours = sample("w", Variant::Canvas(vec![]), Some(25), 0, 2.0);
        let mut all = vec![
            ours,
            sample("w", Variant::Zram, Some(25), 0, 4.0),
            sample("w", Variant::Zram64k, Some(25), 0, 3.0),
            sample("w", Variant::Disk, Some(25), 0, 9.0),
            sample("w", Variant::Zswap, Some(25), 0, 1.0),
            // Another limit, and another workload.
            sample("w", Variant::Disk, Some(50), 0, 0.5),
            sample("v", Variant::Zram, Some(25), 0, 0.5),
        ];
        all[4].outcome = Outcome::Oom;
        let cells = gather(&all);
        let ours = |cells: &[Cell]| {
            let is = |c: &&Cell| c.key.variant.is_canvas();
            let ours = cells.iter().find(is).unwrap();
            best_peer_of(cells, ours).map(|(best, over)| (best.key.variant.clone(), over.ratio))
        };
        assert_eq!(ours(&cells), Some((Variant::Zram64k, 1.5)));
        let alone = [all[0].clone()];
        assert_eq!(ours(&gather(&alone)), None);
    }

    #[test]
    fn local_runs_are_found_with_fewer_parameters_and_elsewhere() {
        let mut local = sample("w", Variant::Local, None, 0, 1.0);
        let mut elsewhere = local.clone();
        elsewhere.experiment = "another".into();
        local.parameters.insert("threads".into(), "4".into());
        let mut ours = sample("w", Variant::Canvas(vec![]), Some(25), 0, 3.0);
        ours.parameters = BTreeMap::from([
            ("threads".into(), "4".into()),
            ("prefetcher".into(), "leap".into()),
        ]);
        let all = [local, elsewhere, ours];
        let cells = gather(&all);
        let key = Key::of(&all[2]);
        assert_eq!(local_of(&cells, &key).unwrap().key, Key::of(&all[0]));
        let mut key = key;
        key.parameters.insert("threads".into(), "8".into());
        assert_eq!(
            local_of(&cells, &key).unwrap().key,
            Key::of(&all[1]),
            "eight threads are not four"
        );
    }
}
