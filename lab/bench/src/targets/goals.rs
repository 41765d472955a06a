//! Goals of the pager on programs (docs/TARGETS.md), as data, and whether they were reached. The baseline is
//! zram in the same run; the figure over the best of the kernel's variants is reported as well.

use crate::cells::{Cell, best_peer_of, local_of, peer_of};
use crate::engine::plan::ONE_PROCESSOR;
use crate::record::Sample;
use crate::targets::judged::{Judged, Verdict};
use crate::variant::Variant;
use crate::words::{nanoseconds, share, times};

/// Experiment of the goals.
pub const EXPERIMENT: &str = "goals";

/// The ten programs of the mean and the worst, from the papers and the pager's own targets: two stores with a
/// skewed load and one with a uniform load, a garbage-collected runtime, two that learn, two uses of Spark,
/// and two that only compute.
pub const TEN: [&str; 10] = [
    "redis-get95",
    "redis-set-get",
    "memcached-get95",
    "java",
    "xgboost",
    "sklearn-kmeans",
    "spark-lr",
    "spark-pagerank",
    "snappy",
    "quicksort",
];

type Parameters = &'static [(&'static str, &'static str)];

/// Parameter of programs with 1 GB of data.
pub const DATA_1G: Parameters = &[("data", "1G")];
/// Parameter of programs with a limit of 64 MiB.
pub const LOCAL_64M: Parameters = &[("local", "64M")];
/// Parameter of programs with a limit of 1 GiB.
pub const LOCAL_1G: Parameters = &[("local", "1G")];

/// Condition on a cell under canvas; without a number it only reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Promise {
    /// Least speed over that of zram.
    OverZram(f64),
    /// Geometric mean of the speeds over zram of the ten programs, at least.
    MeanOverZram(f64),
    /// Lowest speed over zram of the ten programs, at least.
    WorstOverZram(f64),
    /// Quantile `.0` of the accesses that were faults, in ns, at most `.1`.
    FaultNs(f64, Option<f64>),
    /// Quantile `.0` of the accesses that were faults, as a share of zram's, at most `.1`.
    FaultOfZram(f64, Option<f64>),
    /// Processor time per far fault, without the plain program's, as a share of zram's, at most.
    CpuOfZram(f64),
    /// Far faults per work, as a share of the kernel's major faults, at most.
    FaultsOfZram(f64),
    /// Share of the limit that held the program's own memory at its end, at least.
    OwnShare(f64),
    /// Share of the limit that held the program's own memory and the swap cache at its end.
    OwnShareWithCache,
    /// Local memory, pool and shared segment, as a share of zram's limit and device, at most.
    MemoryOfZram(f64),
}

/// A goal for a cell, or for all of the ten programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Number of the goal.
    pub number: &'static str,
    /// The workload; empty for the ten programs.
    pub workload: &'static str,
    /// Parameters that identify the cell.
    pub parameters: Parameters,
    /// Local memory in percent of the working set.
    pub percent: u32,
    /// Whether it runs on one processor.
    pub one_processor: bool,
    /// Condition to meet.
    pub promise: Promise,
}

const fn at(
    number: &'static str,
    workload: &'static str,
    percent: u32,
    promise: Promise,
) -> Target {
    Target {
        number,
        workload,
        parameters: &[],
        percent,
        one_processor: false,
        promise,
    }
}

const fn on_one(target: Target) -> Target {
    Target {
        one_processor: true,
        ..target
    }
}

const fn with(parameters: Parameters, target: Target) -> Target {
    Target {
        parameters,
        ..target
    }
}

const fn speed(number: &'static str, workload: &'static str, percent: u32, least: f64) -> Target {
    at(number, workload, percent, Promise::OverZram(least))
}

const fn cpu(workload: &'static str, percent: u32, most: f64) -> Target {
    at("G7", workload, percent, Promise::CpuOfZram(most))
}

const fn faults(workload: &'static str, percent: u32) -> Target {
    at("G8", workload, percent, Promise::FaultsOfZram(1.0))
}

const fn p99(workload: &'static str) -> Target {
    at("G6", workload, 25, Promise::FaultNs(0.99, Some(25_000.0)))
}

const fn p99_of_zram(workload: &'static str) -> Target {
    at("G6", workload, 25, Promise::FaultOfZram(0.99, Some(0.5)))
}

const fn told(workload: &'static str, promise: Promise) -> Target {
    at("G6", workload, 25, promise)
}

const P999: Promise = Promise::FaultNs(0.999, None);
const P999_OF_ZRAM: Promise = Promise::FaultOfZram(0.999, None);

const fn own_share(workload: &'static str, parameters: Parameters, least: f64) -> [Target; 2] {
    let all = at("G9", workload, 100, Promise::OwnShare(least));
    let cache = at("G9", workload, 100, Promise::OwnShareWithCache);
    [with(parameters, all), with(parameters, cache)]
}

const OWN_64M: [Target; 2] = own_share("random-read", LOCAL_64M, 0.90);
const OWN_1G: [Target; 2] = own_share("random-read", LOCAL_1G, 0.97);
const OWN_REDIS: [Target; 2] = own_share("redis-set-get", LOCAL_64M, 0.90);

const fn memory(workload: &'static str) -> Target {
    at("G10", workload, 25, Promise::MemoryOfZram(1.05))
}

/// All goals; those that also hold on one processor, or have other numbers there, are listed twice.
pub const TARGETS: &[Target] = &[
    speed("G1", "random-read", 25, 2.5),
    on_one(speed("G1", "random-read", 25, 2.0)),
    speed("G1", "random-write", 25, 2.2),
    on_one(speed("G1", "random-write", 25, 1.5)),
    speed("G1", "fill", 25, 2.8),
    on_one(speed("G1", "fill", 25, 1.5)),
    speed("G1", "sequential", 25, 8.0),
    on_one(speed("G1", "sequential", 25, 6.0)),
    speed("G2", "zipf", 25, 2.0),
    on_one(speed("G2", "zipf", 25, 1.5)),
    speed("G2", "zipf", 50, 1.8),
    on_one(speed("G2", "zipf", 50, 1.5)),
    speed("G3", "redis-set-get", 25, 1.25),
    on_one(speed("G3", "redis-set-get", 25, 1.2)),
    with(DATA_1G, speed("G3", "redis-set-get", 25, 1.25)),
    with(DATA_1G, on_one(speed("G3", "redis-set-get", 25, 1.2))),
    with(LOCAL_64M, speed("G3", "redis-set-get", 100, 1.15)),
    with(LOCAL_64M, on_one(speed("G3", "redis-set-get", 100, 1.1))),
    speed("G4", "redis-get95", 25, 1.5),
    on_one(speed("G4", "redis-get95", 25, 1.3)),
    speed("G4", "memcached-get95", 25, 1.5),
    on_one(speed("G4", "memcached-get95", 25, 1.3)),
    at("G5", "", 25, Promise::MeanOverZram(1.4)),
    at("G5", "", 50, Promise::MeanOverZram(1.4)),
    on_one(at("G5", "", 25, Promise::MeanOverZram(1.2))),
    on_one(at("G5", "", 50, Promise::MeanOverZram(1.2))),
    at("G5", "", 25, Promise::WorstOverZram(1.0)),
    at("G5", "", 50, Promise::WorstOverZram(1.0)),
    on_one(at("G5", "", 25, Promise::WorstOverZram(1.0))),
    on_one(at("G5", "", 50, Promise::WorstOverZram(1.0))),
    speed("G5", "java", 25, 3.0),
    speed("G5", "xgboost", 50, 1.3),
    speed("G5", "spark-lr", 50, 1.15),
    speed("G5", "spark-pagerank", 50, 1.15),
    p99("random-read"),
    p99_of_zram("random-read"),
    told("random-read", P999),
    told("random-read", P999_OF_ZRAM),
    on_one(told("random-read", Promise::FaultNs(0.99, None))),
    on_one(told("random-read", P999)),
    p99("random-write"),
    p99_of_zram("random-write"),
    told("random-write", P999),
    told("random-write", P999_OF_ZRAM),
    on_one(told("random-write", Promise::FaultNs(0.99, None))),
    on_one(told("random-write", P999)),
    p99("fill"),
    p99_of_zram("fill"),
    told("fill", P999),
    told("fill", P999_OF_ZRAM),
    on_one(told("fill", Promise::FaultNs(0.99, None))),
    on_one(told("fill", P999)),
    p99("zipf"),
    p99_of_zram("zipf"),
    told("zipf", P999),
    told("zipf", P999_OF_ZRAM),
    on_one(told("zipf", Promise::FaultNs(0.99, None))),
    on_one(told("zipf", P999)),
    cpu("random-read", 25, 0.6),
    on_one(cpu("random-read", 25, 0.6)),
    cpu("random-write", 25, 0.6),
    on_one(cpu("random-write", 25, 0.6)),
    cpu("zipf", 25, 0.6),
    on_one(cpu("zipf", 25, 0.6)),
    cpu("zipf", 50, 0.6),
    on_one(cpu("zipf", 50, 0.6)),
    cpu("redis-set-get", 25, 0.7),
    on_one(cpu("redis-set-get", 25, 0.7)),
    with(DATA_1G, cpu("redis-set-get", 25, 0.7)),
    with(DATA_1G, on_one(cpu("redis-set-get", 25, 0.7))),
    cpu("redis-get95", 25, 0.7),
    on_one(cpu("redis-get95", 25, 0.7)),
    cpu("memcached-get95", 25, 0.7),
    on_one(cpu("memcached-get95", 25, 0.7)),
    faults("zipf", 25),
    on_one(faults("zipf", 25)),
    faults("zipf", 50),
    on_one(faults("zipf", 50)),
    faults("redis-set-get", 25),
    on_one(faults("redis-set-get", 25)),
    with(DATA_1G, faults("redis-set-get", 25)),
    with(DATA_1G, on_one(faults("redis-set-get", 25))),
    faults("redis-get95", 25),
    on_one(faults("redis-get95", 25)),
    faults("memcached-get95", 25),
    on_one(faults("memcached-get95", 25)),
    OWN_64M[0],
    OWN_64M[1],
    on_one(OWN_64M[0]),
    OWN_1G[0],
    OWN_1G[1],
    on_one(OWN_1G[0]),
    OWN_REDIS[0],
    OWN_REDIS[1],
    on_one(OWN_REDIS[0]),
    memory("random-read"),
    memory("random-write"),
    memory("zipf"),
    memory("redis-set-get"),
    with(DATA_1G, memory("redis-set-get")),
    memory("redis-get95"),
    memory("memcached-get95"),
    memory("java"),
    memory("snappy"),
];

/// Work of a run, to divide by: a pattern runs for a fixed time, so its operations are its work; other
/// programs do a fixed amount.
fn work(sample: &Sample) -> Option<f64> {
    match sample.measured_s {
        Some(_) => Some(sample.ops_per_s? * sample.seconds?).filter(|n| *n > 0.0),
        None => Some(1.0),
    }
}

/// Faults per work, over the measured part if there is one.
fn faults_a_work(sample: &Sample) -> Option<f64> {
    let faults = match sample.measured {
        Some(part) => part.faults?,
        None => sample.faults? as f64,
    };
    Some(faults / work(sample)?)
}

/// Processor time per work, over the measured part if there is one.
fn cpu_a_work(sample: &Sample) -> Option<f64> {
    let cpu_s = match sample.measured {
        Some(part) => part.cpu_s?,
        None => sample.cpu_user_s? + sample.cpu_system_s?,
    };
    Some(cpu_s / work(sample)?)
}

/// Processor time per far fault, in and out: the time beyond the plain program's, divided by the faults.
fn cpu_a_fault_s(cell: &Cell, local: &Cell) -> Option<f64> {
    let more = cell.median(cpu_a_work)? - local.median(cpu_a_work)?;
    let faults = cell.median(faults_a_work).filter(|n| *n > 0.0)?;
    (more > 0.0).then_some(more / faults)
}

/// Share of the limit that held the program's memory: its pages, and its memory that canvas does not manage.
fn own_share_of(sample: &Sample, with_cache: bool) -> Option<f64> {
    let held = sample.held?;
    let native = held.native_bytes.saturating_sub(held.metadata_bytes?);
    let cache = if with_cache { held.cache_bytes } else { 0 };
    Some((held.resident_bytes + native + cache) as f64 / sample.limit_bytes? as f64)
}

/// Peak of all memory of a run: local, far, and shared.
fn memory_bytes(sample: &Sample) -> Option<f64> {
    let local = match sample.variant {
        // The segment includes the metadata.
        Variant::Canvas(_) => sample.memory_peak_bytes? + sample.held?.segment_peak_bytes,
        _ => sample.limit_bytes?,
    };
    Some((local + sample.far_peak_bytes?) as f64)
}

/// Whether the goal is met (`None` if it only reports), and the figure as text.
type Found = (Option<bool>, String);

fn at_least(value: f64, least: f64, words: String) -> Found {
    (Some(value >= least), words)
}

fn at_most(value: f64, most: impl Into<Option<f64>>, words: String) -> Found {
    (most.into().map(|most| value <= most), words)
}

/// Speeds of the ten programs at a limit over the baseline that `over` picks, ascending, with names.
fn ten<'a>(
    cells: &'a [Cell],
    target: &Target,
    over: impl Fn(&'a Cell<'a>) -> Option<f64>,
) -> Vec<(f64, &'static str)> {
    let speed = |workload: &'static str| {
        let one = Target {
            workload,
            ..*target
        };
        Some((over(one.cell(cells)?)?, workload))
    };
    let mut all: Vec<_> = TEN.into_iter().filter_map(speed).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

/// Geometric mean; `None` for no speeds.
fn geometric_mean(speeds: &[(f64, &str)]) -> Option<f64> {
    let sum: f64 = speeds.iter().map(|(speed, _)| speed.ln()).sum();
    (!speeds.is_empty()).then(|| (sum / speeds.len() as f64).exp())
}

/// " of 7 of 10" if not all programs were measured.
fn of_ten(speeds: &[(f64, &str)]) -> String {
    match speeds.len() {
        n if n == TEN.len() => String::new(),
        n => format!(" of {n} of {}", TEN.len()),
    }
}

impl Target {
    fn is_of(&self, cell: &Cell) -> bool {
        let key = &cell.key;
        let one = self.one_processor.then_some(&ONE_PROCESSOR);
        let wanted = || self.parameters.iter().chain(one);
        let has = |(name, value): &(&str, &str)| {
            key.parameters.get(*name).map(String::as_str) == Some(*value)
        };
        key.experiment == EXPERIMENT
            && key.workload == self.workload
            && key.co_run.is_none()
            && key.local_percent == Some(self.percent)
            && key.parameters.len() == wanted().count()
            && wanted().all(has)
    }

    /// Its cell under canvas without flags.
    fn cell<'c, 'a>(&self, cells: &'c [Cell<'a>]) -> Option<&'c Cell<'a>> {
        let plain = Variant::Canvas(Vec::new());
        let mut of = cells.iter().filter(|c| c.key.variant == plain);
        of.find(|c| self.is_of(c))
    }

    fn place(&self) -> String {
        let mut text = match self.workload {
            "" => "ten programs".to_owned(),
            workload => workload.to_owned(),
        };
        let own_limit = self.parameters.iter().any(|(name, _)| *name == "local");
        for (name, value) in self.parameters {
            text += &format!(", {name} {value}");
        }
        if !own_limit {
            text += &format!(" at {} %", self.percent);
        }
        if self.one_processor {
            text += ", one processor";
        }
        text
    }

    /// Judges a goal for one cell.
    fn measure(&self, cells: &[Cell], ours: &Cell) -> Option<Found> {
        let zram = || peer_of(cells, &ours.key, &Variant::Zram);
        let of_zram = |ours: f64, theirs: f64| (theirs > 0.0).then_some(ours / theirs);
        Some(match self.promise {
            Promise::OverZram(least) => {
                let ratio = ours.speed_over(zram()?)?.ratio;
                at_least(ratio, least, times(ratio))
            }
            Promise::FaultNs(quantile, most) => {
                let ns = ours.slow_access_ns(quantile)?;
                at_most(ns, most, nanoseconds(ns))
            }
            Promise::FaultOfZram(quantile, most) => {
                let theirs = zram()?.slow_access_ns(quantile)?;
                let ratio = of_zram(ours.slow_access_ns(quantile)?, theirs)?;
                at_most(
                    ratio,
                    most,
                    format!("{} of {}", times(ratio), nanoseconds(theirs)),
                )
            }
            Promise::CpuOfZram(most) => {
                let local = local_of(cells, &ours.key)?;
                let (ours, theirs) = (cpu_a_fault_s(ours, local)?, cpu_a_fault_s(zram()?, local)?);
                let ratio = of_zram(ours, theirs)?;
                let words = |s: f64| nanoseconds(s * 1e9);
                let text = format!("{}, {} of {}", times(ratio), words(ours), words(theirs));
                at_most(ratio, most, text)
            }
            Promise::FaultsOfZram(most) => {
                let ratio = of_zram(ours.median(faults_a_work)?, zram()?.median(faults_a_work)?)?;
                at_most(ratio, most, times(ratio))
            }
            Promise::OwnShare(least) => {
                let part = ours.median(|s| own_share_of(s, false))?;
                at_least(part, least, share(part))
            }
            Promise::OwnShareWithCache => (None, share(ours.median(|s| own_share_of(s, true))?)),
            Promise::MemoryOfZram(most) => {
                let ratio = of_zram(ours.median(memory_bytes)?, zram()?.median(memory_bytes)?)?;
                at_most(ratio, most, times(ratio))
            }
            Promise::MeanOverZram(_) | Promise::WorstOverZram(_) => return None,
        })
    }

    /// Judges a goal for the ten programs; no verdict while one is missing.
    fn measure_ten(&self, speeds: &[(f64, &str)]) -> Option<Found> {
        let (value, least, mut words) = match self.promise {
            Promise::MeanOverZram(least) => {
                let mean = geometric_mean(speeds)?;
                (mean, least, times(mean))
            }
            Promise::WorstOverZram(least) => {
                let (worst, name) = *speeds.first()?;
                (worst, least, format!("{} ({name})", times(worst)))
            }
            _ => return None,
        };
        words += &of_ten(speeds);
        let is_whole = speeds.len() == TEN.len();
        Some((is_whole.then_some(value >= least), words))
    }

    fn is_of_ten(&self) -> bool {
        matches!(
            self.promise,
            Promise::MeanOverZram(_) | Promise::WorstOverZram(_)
        )
    }

    /// Speed over the best of the kernel's variants, if there is one besides zram.
    fn beside_best(&self, cells: &[Cell]) -> Option<String> {
        if self.is_of_ten() {
            let over = |ours| Some(best_peer_of(cells, ours)?.1.ratio);
            let speeds = ten(cells, self, over);
            return Some(self.measure_ten(&speeds)?.1);
        }
        let Promise::OverZram(_) = self.promise else {
            return None;
        };
        let (best, over) = best_peer_of(cells, self.cell(cells)?)?;
        Some(format!("{} ({})", times(over.ratio), best.key.variant))
    }

    fn judge(&self, cells: &[Cell]) -> Vec<Judged> {
        let found = if self.is_of_ten() {
            let over = |ours: &Cell| {
                Some(
                    ours.speed_over(peer_of(cells, &ours.key, &Variant::Zram)?)?
                        .ratio,
                )
            };
            self.measure_ten(&ten(cells, self, over))
        } else {
            let ours = self.cell(cells);
            ours.and_then(|ours| self.measure(cells, ours))
        };
        let verdict = match &found {
            Some((Some(true), _)) => Verdict::Met,
            Some((Some(false), _)) => Verdict::Missed,
            // A part of the ten is reported without a verdict.
            Some((None, _)) if self.is_of_ten() => Verdict::Unknown,
            Some((None, _)) => Verdict::Told,
            None => Verdict::Unknown,
        };
        let line = |promise: String, measured: Option<String>, verdict| Judged {
            number: self.number,
            place: self.place(),
            promise,
            measured,
            verdict,
        };
        let mut lines = vec![line(self.promise.words(), found.map(|f| f.1), verdict)];
        if let Some(words) = self.beside_best(cells) {
            let promise = self.promise.beside_best().to_owned();
            lines.push(line(promise, Some(words), Verdict::Told));
        }
        lines
    }
}

fn per_cent(quantile: f64) -> String {
    format!("{} %", quantile * 100.0)
}

impl Promise {
    fn words(self) -> String {
        match self {
            Promise::OverZram(n) => format!("at least {} zram", times(n)),
            Promise::MeanOverZram(n) => format!("geometric mean at least {} zram", times(n)),
            Promise::WorstOverZram(n) => format!("the worst at least {} zram", times(n)),
            Promise::FaultNs(q, Some(most)) => {
                format!("{} of faults in at most {}", per_cent(q), nanoseconds(most))
            }
            Promise::FaultNs(q, None) => format!("{} of faults within", per_cent(q)),
            Promise::FaultOfZram(q, Some(most)) => {
                format!(
                    "that of {} of faults at most {} zram's",
                    per_cent(q),
                    times(most)
                )
            }
            Promise::FaultOfZram(q, None) => {
                format!("that of {} of faults over zram's", per_cent(q))
            }
            Promise::CpuOfZram(n) => {
                format!("processor time a far fault at most {} zram's", times(n))
            }
            Promise::FaultsOfZram(n) => {
                format!("far faults at most {} zram's major faults", times(n))
            }
            Promise::OwnShare(n) => {
                format!("at least {} of local memory the program's own", share(n))
            }
            Promise::OwnShareWithCache => "the same with the swap cache".to_owned(),
            Promise::MemoryOfZram(n) => format!("all memory at most {} zram's", times(n)),
        }
    }

    fn beside_best(self) -> &'static str {
        match self {
            Promise::MeanOverZram(_) => "geometric mean over the kernel's best",
            Promise::WorstOverZram(_) => "the worst over the kernel's best",
            _ => "speed over the kernel's best",
        }
    }
}

/// All goals with their verdicts.
pub fn judge(cells: &[Cell]) -> Vec<Judged> {
    TARGETS.iter().flat_map(|t| t.judge(cells)).collect()
}

#[cfg(test)]
#[path = "goals_tests.rs"]
mod tests;
