//! Targets of the pager (V1 to V10 of docs/TARGETS.md), as data, and whether they were met.

use std::fmt::Write;

use crate::cells::{Cell, local_of, peer_of};
use crate::outside::allowed_bytes;
use crate::record::{Outcome, Sample};
use crate::targets::judged::{Judged, Verdict};
use crate::variant::Variant;
use crate::words::{bytes, nanoseconds, seconds, times};

/// Experiment of the targets.
pub const EXPERIMENT: &str = "pager";
/// Factor that allows for the noise of a median where a figure must only not fall.
const NOISE: f64 = 0.97;

/// Condition on a cell under canvas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Promise {
    /// Least speed over that of zram.
    OverZram(f64),
    /// Least speed over that of the all-local run.
    OfLocal(f64),
    /// Most seconds above the all-local run.
    MoreThanLocalS(f64),
    /// Median time of a fault, in ns, at most.
    FaultP50Ns(f64),
    /// Time per operation, in ns, at most.
    OperationNs(f64),
    /// Not slower than with this number of threads.
    AsWithThreads(&'static str),
}

/// A target of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Number of the target in docs/TARGETS.md.
    pub number: &'static str,
    /// The workload.
    pub workload: &'static str,
    /// Number of threads, if the experiment varies it.
    pub threads: Option<&'static str>,
    /// Local memory in percent of the working set; `None` for no limit.
    pub percent: Option<u32>,
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
        threads: None,
        percent: Some(percent),
        promise,
    }
}

const fn unlimited(number: &'static str, workload: &'static str, promise: Promise) -> Target {
    Target {
        number,
        workload,
        threads: None,
        percent: None,
        promise,
    }
}

const fn threads(number: &'static str, fewer: &'static str) -> Target {
    Target {
        threads: Some(number),
        ..at("V5", "random-read", 25, Promise::AsWithThreads(fewer))
    }
}

/// All targets.
pub const TARGETS: &[Target] = &[
    at("V1", "random-read", 25, Promise::OverZram(3.0)),
    at("V1", "random-read", 25, Promise::FaultP50Ns(5000.0)),
    at("V2", "random-write", 25, Promise::OverZram(2.5)),
    at("V3", "sequential", 25, Promise::OverZram(8.0)),
    at("V3", "sequential", 25, Promise::OperationNs(1500.0)),
    at("V4", "fill", 25, Promise::OverZram(2.5)),
    threads("2", "1"),
    threads("4", "2"),
    threads("8", "4"),
    unlimited("V6", "redis-set-get", Promise::OfLocal(NOISE)),
    unlimited("V6", "java", Promise::OfLocal(NOISE)),
    unlimited("V7", "start-up", Promise::MoreThanLocalS(0.05)),
    at("V8", "redis-get95", 25, Promise::OverZram(2.0)),
    at("V8", "redis-get95", 25, Promise::OfLocal(0.5)),
    at("V8", "memcached-get95", 25, Promise::OverZram(2.0)),
    at("V8", "memcached-get95", 25, Promise::OfLocal(0.5)),
    at("V9", "java", 25, Promise::OverZram(3.0)),
    at("V10", "xgboost", 50, Promise::OverZram(1.0)),
    at("V10", "spark-lr", 50, Promise::OverZram(1.0)),
];

impl Target {
    fn place(&self) -> String {
        let mut text = self.workload.to_owned();
        if let Some(n) = self.threads {
            let _ = write!(text, ", {n} threads");
        }
        match self.percent {
            Some(percent) => text + &format!(" at {percent} %"),
            None => text + " without a limit",
        }
    }

    fn is_of(&self, cell: &Cell) -> bool {
        let key = &cell.key;
        key.experiment == EXPERIMENT
            && key.workload == self.workload
            && key.co_run.is_none()
            && key.local_percent == self.percent
            && key.parameters.get("threads").map(String::as_str) == self.threads
    }

    /// The figure, whether it meets the target, and both as text.
    fn measure(&self, cells: &[Cell], ours: &Cell) -> Option<(bool, String)> {
        let local = || local_of(cells, &ours.key);
        let ratio = |other: &Cell, least: f64| {
            let ratio = ours.speed_over(other)?.ratio;
            Some((ratio >= least, times(ratio)))
        };
        let median_s = |cell: &Cell| cell.median(|s| s.seconds);
        match self.promise {
            Promise::OverZram(least) => ratio(peer_of(cells, &ours.key, &Variant::Zram)?, least),
            Promise::OfLocal(least) => ratio(local()?, least),
            Promise::MoreThanLocalS(most) => {
                let more = median_s(ours)? - median_s(local()?)?;
                Some((more <= most, seconds(more.max(0.0))))
            }
            Promise::FaultP50Ns(most) => {
                let ns = ours.median(|s| s.fault_ns.map(|q| q.p50))?;
                Some((ns <= most, nanoseconds(ns)))
            }
            Promise::OperationNs(most) => {
                let ns = 1e9 / ours.median(|s| s.ops_per_s).filter(|r| *r > 0.0)?;
                Some((ns <= most, nanoseconds(ns)))
            }
            Promise::AsWithThreads(fewer) => {
                let mut key = ours.key.clone();
                key.parameters
                    .insert("threads".to_owned(), fewer.to_owned());
                ratio(cells.iter().find(|c| c.key == key)?, NOISE)
            }
        }
    }

    fn judge(&self, cells: &[Cell]) -> Judged {
        let plain = Variant::Canvas(Vec::new());
        let ours = cells
            .iter()
            .find(|c| self.is_of(c) && c.key.variant == plain);
        let found = ours.and_then(|c| self.measure(cells, c));
        let peer_died = || {
            let peer = peer_of(cells, &ours?.key, &Variant::Zram)?;
            let oom = peer.samples.iter().all(|s| s.outcome == Outcome::Oom);
            (oom && ours?.good().next().is_some()).then_some(())
        };
        let verdict = match &found {
            Some((true, _)) => Verdict::Met,
            Some((false, _)) => Verdict::Missed,
            None if matches!(self.promise, Promise::OverZram(_)) && peer_died().is_some() => {
                Verdict::MetByOom
            }
            None => Verdict::Unknown,
        };
        Judged {
            number: self.number,
            place: self.place(),
            promise: self.promise.words(),
            measured: found.map(|(_, words)| words),
            verdict,
        }
    }
}

impl Promise {
    fn words(self) -> String {
        match self {
            Promise::OverZram(n) => format!("at least {} zram", times(n)),
            Promise::OfLocal(n) => format!("at least {} all-local", times(n)),
            Promise::MoreThanLocalS(s) => format!("at most {} more than all-local", seconds(s)),
            Promise::FaultP50Ns(ns) => format!("median fault at most {}", nanoseconds(ns)),
            Promise::OperationNs(ns) => format!("an operation in at most {}", nanoseconds(ns)),
            Promise::AsWithThreads(n) => {
                format!("at least {} as with {n} (the rest is noise)", times(NOISE))
            }
        }
    }
}

/// Bytes by which the memory of a run, sampled from outside, exceeded what is allowed.
fn over_bytes(sample: &Sample) -> Option<u64> {
    let seen = sample.local_sampled_peak_bytes?;
    Some(seen.saturating_sub(allowed_bytes(sample.limit_bytes?)))
}

/// One line for all budgets that held, one for each that did not; empty if nothing was sampled.
pub(super) fn budgets(cells: &[Cell]) -> Vec<Judged> {
    let mut held = 0;
    let mut all = Vec::new();
    for cell in cells.iter().filter(|c| c.key.experiment == EXPERIMENT) {
        // Runs that failed count as well: the budget holds for them too.
        let Some(over) = cell.samples.iter().filter_map(|s| over_bytes(s)).max() else {
            continue;
        };
        if over == 0 {
            held += 1;
            continue;
        }
        all.push(budget(
            cell.key.place(),
            format!("{} over", bytes(over as f64)),
            Verdict::Missed,
        ));
    }
    if held > 0 {
        let words = format!("{held} within it");
        all.insert(
            0,
            budget("all limited cells".to_owned(), words, Verdict::Met),
        );
    }
    all
}

fn budget(place: String, measured: String, verdict: Verdict) -> Judged {
    Judged {
        number: "L1",
        place,
        promise: "local memory, from outside, at most 1 % or 4 MiB over the budget".to_owned(),
        measured: Some(measured),
        verdict,
    }
}

/// All targets and budgets with their verdicts.
pub fn judge(cells: &[Cell]) -> Vec<Judged> {
    let mut all: Vec<Judged> = TARGETS.iter().map(|t| t.judge(cells)).collect();
    all.extend(budgets(cells));
    all
}
