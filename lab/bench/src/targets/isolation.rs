//! Targets of isolation between tenants, as data, and whether they were met.

use std::collections::BTreeMap;

use crate::cells::{Cell, Key, solo_of};
use crate::engine::plan::strings;
use crate::moved::between;
use crate::rate::Rate;
use crate::record::{Ahead, Far, Outcome, Sample};
use crate::stats::Spread;
use crate::targets::judged::{Judged, Verdict};
use crate::variant::{FarBelow, Tenancy, Variant};
use crate::words::{nanoseconds, quantity, times};

/// Experiment of the targets.
pub const EXPERIMENT: &str = "isolation";
/// Rate of the contended link, in Mbit/s.
pub const LINK_MBIT: u32 = 200;
/// Rate of a common slow network.
pub const GIGABIT_MBIT: u32 = 1_000;
/// Rate of a link that is no bottleneck.
pub const FAST_LINK_MBIT: u32 = 10_000;
/// Flags of an agent that never drops reads ahead.
pub const NOTHING_DROPPED: &[&str] = &["-o", "timeliness=off"];
/// Flags of `canvas run` for Canvas without its 5.1 and 5.2: the kernel's readahead, and an entry allocated
/// under the lock at each swap-out.
pub const NOT_ADAPTIVE: &[&str] = &["-o", "reservations=off", "-o", "prefetch=readahead"];
/// Parameter with a program's weight.
const WEIGHT: &str = "weight";
/// Parameter of the programs of a co-run with a cheat.
pub const CHEAT: &str = "cheat";
/// Its value for the cheat; the other programs have another value.
pub const CHEATS: &str = "this one";

/// Kind of a target.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Promise {
    /// Weighted min-max ratio of the bytes that tenants read at the same time, at least.
    Shares(f64),
    /// Bytes on the link as a share of its rate, at least.
    LinkUse(f64),
    /// 99th percentile of accesses, or of requests, over that of the program alone, at most.
    P99(f64),
    /// Throughput over that of the program alone, at least.
    Throughput(f64),
    /// Slowdown over each program alone, without the processors' part: mean and standard deviation, at most.
    Slowdown(f64, f64),
}

/// Resources of the run alone.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Alone {
    /// Rate of its link, in Mbit/s.
    mbit: u32,
    /// Share of the processors, in percent; all without it.
    cpu_percent: Option<u32>,
    /// Whether agent and donors have processors of their own.
    apart: bool,
}

/// All resources.
const ALONE: Alone = Alone {
    mbit: LINK_MBIT,
    cpu_percent: None,
    apart: false,
};

impl Alone {
    fn variant(self) -> Variant {
        Variant::CanvasFar(FarBelow {
            cpu_percent: self.cpu_percent,
            apart: self.apart,
            ..far_below(self.mbit, Tenancy::Each)
        })
    }

    /// Description; `mbit` is the link of the co-run to compare with.
    fn words(self, mbit: u32) -> String {
        let link = (self.mbit != mbit).then(|| Rate::mbit(self.mbit).to_string());
        let processors = self.cpu_percent.map(|p| format!("{p} % of the processors"));
        let share: Vec<String> = [link, processors].into_iter().flatten().collect();
        if share.is_empty() {
            "alone".to_owned()
        } else {
            format!("alone at its share ({})", share.join(", "))
        }
    }
}

/// Part of a ratio that is judged. With agent and donors on processors of their own, the same co-run over an
/// uncontended link loses the processors' part, and the rest is the network's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Whole,
    Processors,
    Network,
}

/// A target of a co-run.
#[derive(Clone, Copy, Debug)]
struct Target {
    number: &'static str,
    /// The program to judge; all of them if they are equals.
    workload: &'static str,
    /// Programs of the co-run, as samples write them.
    co_run: &'static str,
    percent: u32,
    /// Rate of the link, in Mbit/s.
    mbit: u32,
    /// Whether one of the programs cheats ([`CHEAT`]).
    with_cheat: bool,
    /// Part of the ratio to judge.
    part: Part,
    /// Resources of the run alone to compare with; agent and donors have their own processors in both runs,
    /// or in neither.
    alone: Alone,
    promise: Promise,
}

const SEQUENTIALS: &str = "sequential+sequential+sequential+sequential";

const fn at(
    number: &'static str,
    workload: &'static str,
    co_run: &'static str,
    percent: u32,
    promise: Promise,
) -> Target {
    Target {
        number,
        workload,
        co_run,
        percent,
        mbit: LINK_MBIT,
        with_cheat: false,
        part: Part::Whole,
        alone: ALONE,
        promise,
    }
}

/// Four readers with weights.
const fn weighted(with_cheat: bool, promise: Promise) -> Target {
    Target {
        with_cheat,
        ..at("I1", "sequential", SEQUENTIALS, 10, promise)
    }
}

/// Random reads next to a program that reads ahead, over the same alone, or on its share of the processors.
const fn beside_reader(cpu_percent: Option<u32>) -> Target {
    Target {
        alone: Alone {
            cpu_percent,
            ..ALONE
        },
        ..at(
            "I2",
            "random-read",
            "random-read+sequential",
            25,
            Promise::P99(2.0),
        )
    }
}

/// As [`beside_reader`], with agent and donors on processors of their own.
const fn beside_reader_apart(mbit: u32, part: Part, most: f64) -> Target {
    let at = beside_reader(None);
    Target {
        mbit,
        part,
        alone: Alone {
            mbit,
            cpu_percent: None,
            apart: true,
        },
        promise: Promise::P99(most),
        ..at
    }
}

/// memcached next to a writer, over memcached alone on half of the link, or on half of link and processors.
const fn beside_writer(cpu_percent: Option<u32>, promise: Promise) -> Target {
    Target {
        alone: Alone {
            mbit: LINK_MBIT / 2,
            cpu_percent,
            apart: false,
        },
        ..at(
            "I3",
            "memcached-get95",
            "memcached-get95+sequential-write",
            50,
            promise,
        )
    }
}

/// As [`beside_writer`], with agent and donors on processors of their own, over `mbit`, relative to memcached
/// on half of that.
const fn beside_writer_apart(mbit: u32, part: Part, promise: Promise) -> Target {
    let at = beside_writer(None, promise);
    Target {
        mbit,
        part,
        alone: Alone {
            mbit: match part {
                Part::Processors => mbit,
                Part::Whole | Part::Network => mbit / 2,
            },
            cpu_percent: None,
            apart: true,
        },
        ..at
    }
}

const TARGETS: &[Target] = &[
    weighted(false, Promise::Shares(0.98)),
    weighted(false, Promise::LinkUse(0.98)),
    weighted(true, Promise::Shares(0.95)),
    weighted(true, Promise::LinkUse(0.98)),
    beside_reader(None),
    beside_reader(Some(50)),
    beside_reader_apart(LINK_MBIT, Part::Whole, 2.0),
    beside_reader_apart(LINK_MBIT, Part::Network, 2.0),
    beside_reader_apart(GIGABIT_MBIT, Part::Whole, 1.5),
    beside_reader_apart(GIGABIT_MBIT, Part::Network, 1.5),
    beside_reader_apart(FAST_LINK_MBIT, Part::Processors, 1.5),
    beside_writer(None, Promise::Throughput(0.95)),
    beside_writer(None, Promise::P99(1.1)),
    beside_writer(Some(50), Promise::Throughput(0.95)),
    beside_writer(Some(50), Promise::P99(1.1)),
    beside_writer_apart(LINK_MBIT, Part::Whole, Promise::Throughput(0.95)),
    beside_writer_apart(LINK_MBIT, Part::Whole, Promise::P99(1.1)),
    beside_writer_apart(LINK_MBIT, Part::Network, Promise::Throughput(0.95)),
    beside_writer_apart(LINK_MBIT, Part::Network, Promise::P99(1.1)),
    beside_writer_apart(FAST_LINK_MBIT, Part::Processors, Promise::Throughput(0.95)),
    beside_writer_apart(FAST_LINK_MBIT, Part::Processors, Promise::P99(1.1)),
];

/// Local memory of the co-runs with Spark.
const TABLE_3_PERCENTS: [u32; 2] = [50, 25];
/// The target there, on two processors. (Canvas has 1.08 and 0.05 on 48, with its own target of 1.05 and
/// 0.03.)
const TABLE_3: Promise = Promise::Slowdown(1.10, 0.15);

/// Variant of shared far memory behind a link.
fn below(mbit: u32, tenancy: Tenancy) -> Variant {
    Variant::CanvasFar(far_below(mbit, tenancy))
}

fn far_below(mbit: u32, tenancy: Tenancy) -> FarBelow {
    FarBelow {
        link: Some(Rate::mbit(mbit)),
        tenancy,
        ..FarBelow::copies("none")
    }
}

/// Variant of the co-runs with Spark without the parts that adapt to each tenant.
fn not_adaptive() -> Variant {
    Variant::CanvasFar(FarBelow {
        flags: strings(NOT_ADAPTIVE),
        agent_flags: strings(NOTHING_DROPPED),
        ..far_below(FAST_LINK_MBIT, Tenancy::Each)
    })
}

/// Variant with agent and donors on processors of their own.
fn isolated_apart() -> Variant {
    let alone = Alone {
        mbit: FAST_LINK_MBIT,
        apart: true,
        ..ALONE
    };
    alone.variant()
}

/// All-local variant with the processors that programs have under `variant`.
fn local_beside(variant: &Variant) -> Variant {
    if variant.is_on_half() {
        Variant::LocalOnHalf
    } else {
        Variant::Local
    }
}

/// Identifies a co-run: run and repeat.
type Round<'a> = (&'a str, u32);

/// Good samples of a target's co-run under a variant, grouped by round.
fn rounds<'a>(
    cells: &[Cell<'a>],
    target: &Target,
    variant: &Variant,
) -> BTreeMap<Round<'a>, Vec<&'a Sample>> {
    let mut rounds: BTreeMap<Round, Vec<&Sample>> = BTreeMap::new();
    let ours = |key: &Key| {
        key.experiment == EXPERIMENT
            && key.co_run.as_deref() == Some(target.co_run)
            && key.parameters.contains_key(CHEAT) == target.with_cheat
            && key.local_percent == Some(target.percent)
            && key.variant == *variant
    };
    for sample in cells
        .iter()
        .filter(|c| ours(&c.key))
        .flat_map(|c| &c.samples)
    {
        let round = (sample.run_id.as_str(), sample.repeat);
        rounds.entry(round).or_default().push(sample);
    }
    let members = target.co_run.split('+').count();
    rounds.retain(|_, samples| {
        samples.len() == members && samples.iter().all(|s| s.outcome == Outcome::Ok)
    });
    rounds
}

/// Time in which all of these were measured, in seconds since the run began. A cheat counts from its start,
/// whatever part it measures itself.
fn together_s(samples: &[&Sample]) -> Option<(f64, f64)> {
    let mut all = (f64::NEG_INFINITY, f64::INFINITY);
    let cheats = |s: &&&Sample| s.parameters.get(CHEAT).is_some_and(|v| v == CHEATS);
    for sample in samples.iter().filter(|s| !cheats(s)) {
        let (from_s, to_s) = sample.measured_s?;
        all.0 = all.0.max(sample.at_s + from_s);
        all.1 = all.1.min(sample.at_s + to_s);
    }
    (all.0 < all.1).then_some(all)
}

/// Least over most of the stored bytes read, by weight, in the time in which all of them read. Programs of
/// one tenant have no separate count of bytes; for them it uses the pages per second that each reports.
fn shares(samples: &[&Sample]) -> Option<f64> {
    let (from_s, to_s) = together_s(samples)?;
    let mut each = Vec::new();
    for s in samples {
        let weight: f64 = s.parameters.get(WEIGHT)?.parse().ok()?;
        let read = match s.variant.tenancy() {
            Tenancy::One => s.ops_per_s?,
            _ => between(&s.timeline, from_s - s.at_s, to_s - s.at_s)?.in_bytes,
        };
        each.push(read / weight);
    }
    let least = each.iter().copied().reduce(f64::min)?;
    let most = each.iter().copied().reduce(f64::max)?;
    (most > 0.0).then(|| least / most)
}

/// Value of a sampled counter at a time, interpolated.
fn counted(seen: &[(f64, u64)], at_s: f64) -> Option<f64> {
    let after = seen.iter().position(|(s, _)| *s >= at_s)?;
    let (to_s, to) = seen[after];
    let (from_s, from) = seen[after.checked_sub(1)?];
    let part = (at_s - from_s) / (to_s - from_s).max(1e-9);
    Some(from as f64 + part * to.saturating_sub(from) as f64)
}

/// Bytes on the link while all of these were measured, as a share of its rate.
fn link_use(samples: &[&Sample]) -> Option<f64> {
    let (from_s, to_s) = together_s(samples)?;
    let rate = samples.first()?.variant.link()?.rate?;
    let seen = samples.iter().map(|s| &s.link_to_host);
    let seen = seen.max_by_key(|seen| seen.len())?;
    let carried = counted(seen, to_s)? - counted(seen, from_s)?;
    Some(carried / (to_s - from_s) / rate.bytes_per_s())
}

/// 99th percentile of a program's own measurement: of requests if it has them, otherwise of accesses.
fn p99_ns(sample: &Sample) -> Option<f64> {
    let timed = sample.latency_ns.or(sample.access_ns)?;
    (timed.p99 > 0.0).then_some(timed.p99)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

impl Target {
    /// Its variant.
    fn variant(&self, tenancy: Tenancy) -> Variant {
        Variant::CanvasFar(FarBelow {
            apart: self.alone.apart,
            ..far_below(self.mbit, tenancy)
        })
    }

    /// The same co-run with agent and donors on processors of their own, over an uncontended link.
    fn processors(&self) -> Target {
        Target {
            mbit: FAST_LINK_MBIT,
            part: Part::Processors,
            alone: Alone {
                mbit: FAST_LINK_MBIT,
                ..self.alone
            },
            ..*self
        }
    }

    /// The target's figure over that of the program alone.
    fn over_alone(
        &self,
        cells: &[Cell],
        tenancy: Tenancy,
        ratio: &dyn Fn(&Cell, &Cell) -> Option<f64>,
    ) -> Option<f64> {
        let cell = |co_run: Option<&str>, variant: &Variant| {
            cells.iter().find(|c| {
                c.key.experiment == EXPERIMENT
                    && c.key.workload == self.workload
                    && c.key.co_run.as_deref() == co_run
                    && c.key.local_percent == Some(self.percent)
                    && c.key.variant == *variant
            })
        };
        let ours = cell(Some(self.co_run), &self.variant(tenancy))?;
        let whole = ratio(ours, cell(None, &self.alone.variant())?)?;
        match self.part {
            Part::Whole | Part::Processors => Some(whole),
            Part::Network => Some(whole / self.processors().over_alone(cells, tenancy, ratio)?),
        }
    }

    /// The figure under a variant, and whether it meets the target.
    fn measure(&self, cells: &[Cell], tenancy: Tenancy) -> Option<(bool, String)> {
        let variant = self.variant(tenancy);
        let of_rounds = |figure: fn(&[&Sample]) -> Option<f64>| {
            let rounds = rounds(cells, self, &variant);
            let all: Vec<f64> = rounds.values().filter_map(|r| figure(r)).collect();
            crate::stats::median(&all)
        };
        match self.promise {
            Promise::Shares(least) => {
                let ratio = of_rounds(shares)?;
                Some((ratio >= least, format!("{ratio:.3}")))
            }
            Promise::LinkUse(least) => {
                let share = of_rounds(link_use)?;
                Some((share >= least, percent(share)))
            }
            Promise::P99(most) => {
                let p99 =
                    |ours: &Cell, alone: &Cell| Some(ours.median(p99_ns)? / alone.median(p99_ns)?);
                let ratio = self.over_alone(cells, tenancy, &p99)?;
                Some((ratio <= most, times(ratio)))
            }
            Promise::Throughput(least) => {
                let speed = |ours: &Cell, alone: &Cell| Some(ours.speed_over(alone)?.ratio);
                let ratio = self.over_alone(cells, tenancy, &speed)?;
                Some((ratio >= least, times(ratio)))
            }
            Promise::Slowdown(..) => None,
        }
    }

    fn judge(&self, cells: &[Cell], tenancy: Tenancy) -> Judged {
        let found = self.measure(cells, tenancy);
        let who = match self.co_run.split_once('+') {
            Some(_) if self.with_cheat => {
                "4 sequential, weights 1, 2, 4, 8, the first one cheats".to_owned()
            }
            Some(_) if self.co_run == SEQUENTIALS => "4 sequential, weights 1, 2, 4, 8".to_owned(),
            Some((_, company)) => format!("{} beside {company}", self.workload),
            None => self.workload.to_owned(),
        };
        let variant = self.variant(tenancy);
        // Two figures only report: those of a single tenant, which are for comparison, and the processors'
        // part.
        let promises = tenancy == Tenancy::Each && self.part != Part::Processors;
        Judged {
            number: self.number,
            place: format!("{who} at {} %, {variant}", self.percent),
            promise: self.promise.words(self.alone, self.mbit, self.part),
            verdict: verdict(found.as_ref().map(|f| f.0), promises),
            measured: found.map(|(_, words)| words),
        }
    }
}

fn verdict(found: Option<bool>, is_promised: bool) -> Verdict {
    match found {
        None => Verdict::Unknown,
        Some(_) if !is_promised => Verdict::Told,
        Some(true) => Verdict::Met,
        Some(false) => Verdict::Missed,
    }
}

impl Promise {
    fn words(self, alone: Alone, mbit: u32, part: Part) -> String {
        let words = self.of_all(&alone.words(mbit));
        match part {
            Part::Whole => words,
            Part::Processors => format!("{words}, as far as the processors go"),
            Part::Network => format!("{words}, as far as the network goes"),
        }
    }

    fn of_all(self, alone: &str) -> String {
        match self {
            Promise::Shares(least) => format!("weighted min-max ratio at least {least}"),
            Promise::LinkUse(least) => format!("link used to at least {}", percent(least)),
            Promise::P99(most) => format!("99th percentile at most {} {alone}", times(most)),
            Promise::Throughput(least) => format!("at least {} as fast as {alone}", times(least)),
            Promise::Slowdown(mean, deviation) => format!(
                "slowdown over alone, processors taken out: mean at most {}, σ at most {deviation}",
                times(mean)
            ),
        }
    }
}

/// A figure of a program in a co-run over that of the program alone.
type OverAlone = fn(&Cell, &Cell) -> Option<f64>;

/// Ratio of the times.
const SLOWDOWN: OverAlone = |cell, alone| cell.slowdown(alone);
/// Ratio of the processor times of the program's own threads.
const PROCESSOR_TIME: OverAlone = |cell, alone| {
    let used = |cell: &Cell| cell.median(|s| Some(s.cpu_user_s? + s.cpu_system_s?));
    Some(used(cell)? / used(alone).filter(|s| *s > 0.0)?)
};

/// A figure of the programs of co-runs with Spark under a variant, over each alone under the same variant;
/// and that ratio over the ratio of the all-local co-run on the same processors, which are all that its
/// programs contend for.
fn over_alone(
    cells: &[Cell],
    percent: u32,
    variant: &Variant,
    figure: OverAlone,
) -> (Vec<f64>, Vec<f64>) {
    let (mut plain, mut corrected) = (Vec::new(), Vec::new());
    for cell in cells {
        let key = &cell.key;
        let with_spark = key
            .co_run
            .as_ref()
            .is_some_and(|set| set.contains("+spark-"));
        let at = (!variant.is_local()).then_some(percent);
        let ours = key.experiment == EXPERIMENT
            && with_spark
            && key.local_percent == at
            && key.variant == *variant;
        if !ours {
            continue;
        }
        let Some(value) = solo_of(cells, key).and_then(|solo| figure(cell, solo)) else {
            continue;
        };
        plain.push(value);
        let mut of_local = key.clone();
        of_local.variant = local_beside(variant);
        of_local.local_percent = None;
        let at_local = cells.iter().find(|c| c.key == of_local);
        let processors = at_local.and_then(|c| figure(c, solo_of(cells, &c.key)?));
        corrected.extend(processors.map(|p| value / p));
    }
    (plain, corrected)
}

/// Mean and standard deviation.
fn mean_and_deviation(values: &[f64]) -> Option<(f64, f64)> {
    if values.is_empty() {
        return None;
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    Some((mean, (squares / n).sqrt()))
}

fn in_words(values: &[f64]) -> Option<String> {
    let (mean, deviation) = mean_and_deviation(values)?;
    let spread = Spread::of(values)?;
    Some(format!(
        "mean {}, {} to {}, σ {deviation:.2}, {} programs",
        times(mean),
        times(spread.min),
        times(spread.max),
        quantity(values.len() as f64)
    ))
}

/// Canvas's table 3: for each variant a line with the slowdown, one without the processors' part, and one
/// with the programs' processor time.
fn table_3(cells: &[Cell]) -> Vec<Judged> {
    let place = |variant: &Variant, percent: Option<u32>| {
        let at = percent.map_or(String::new(), |p| format!(" at {p} %"));
        format!("co-runs with Spark{at}, {variant}")
    };
    let told = |place: String, what: &str, values: &[f64]| Judged {
        number: "I4",
        place,
        promise: what.to_owned(),
        measured: in_words(values),
        verdict: verdict((!values.is_empty()).then_some(true), false),
    };
    let plainly = "slowdown over each alone";
    let mut all = Vec::new();
    for local in [Variant::Local, Variant::LocalOnHalf] {
        let (values, _) = over_alone(cells, 0, &local, SLOWDOWN);
        all.push(told(place(&local, None), plainly, &values));
    }
    // Each variant, and whether it has a target.
    let variants = [
        (Variant::Zram, false),
        (below(FAST_LINK_MBIT, Tenancy::One), false),
        (not_adaptive(), false),
        (below(FAST_LINK_MBIT, Tenancy::Each), true),
        (isolated_apart(), true),
    ];
    for percent in TABLE_3_PERCENTS {
        for (variant, promises) in &variants {
            let (plain, corrected) = over_alone(cells, percent, variant, SLOWDOWN);
            let place = place(variant, Some(percent));
            all.push(told(place.clone(), plainly, &plain));
            let (_, used) = over_alone(cells, percent, variant, PROCESSOR_TIME);
            let what =
                "time on processors of each program's own threads over alone, over that of `local`";
            all.push(told(place.clone(), what, &used));
            let Promise::Slowdown(mean_max, deviation_max) = TABLE_3 else {
                continue;
            };
            let held = mean_and_deviation(&corrected)
                .map(|(mean, deviation)| mean <= mean_max && deviation <= deviation_max);
            all.push(Judged {
                number: "I4",
                place,
                promise: TABLE_3.of_all("alone"),
                measured: in_words(&corrected),
                verdict: verdict(held, *promises),
            });
        }
    }
    all
}

/// Canvas's figure 13: the program that reads ahead, its company, and the limit.
const AHEAD: &str = "sequential";
const AHEAD_CO_RUN: &str = "sequential+random-read";
const AHEAD_PERCENT: u32 = 25;

/// Share of the promoted pages that came with a whole extent.
fn not_alone(far: &Far) -> Option<f64> {
    let (raised, alone) = (far.pages_promoted?, far.faults?);
    let all = raised + alone;
    (all > 0).then(|| raised as f64 / all as f64)
}

/// Reports the program that reads ahead with and without the rule of timeliness.
fn figure_13(cells: &[Cell]) -> Vec<Judged> {
    let without = Variant::CanvasFar(FarBelow {
        agent_flags: strings(NOTHING_DROPPED),
        ..far_below(LINK_MBIT, Tenancy::Each)
    });
    let mut all = Vec::new();
    for variant in [below(LINK_MBIT, Tenancy::Each), without] {
        let cell = cells.iter().find(|c| {
            c.key.experiment == EXPERIMENT
                && c.key.workload == AHEAD
                && c.key.co_run.as_deref() == Some(AHEAD_CO_RUN)
                && c.key.local_percent == Some(AHEAD_PERCENT)
                && c.key.variant == variant
        });
        let ahead = |number: fn(&Ahead) -> Option<f64>| {
            cell?.median(|s| number(s.far.as_ref()?.ahead.as_ref()?))
        };
        let mut tell = |what: &str, measured: Option<String>| {
            all.push(Judged {
                number: "I5",
                place: format!("{AHEAD} beside random-read at {AHEAD_PERCENT} %, {variant}"),
                promise: what.to_owned(),
                verdict: verdict(measured.as_ref().map(|_| true), false),
                measured,
            });
        };
        let both = |a: Option<f64>, b: Option<f64>, show: fn(f64) -> String| {
            Some(format!("{}, {}", show(a?), show(b?)))
        };
        tell(
            "reads ahead, from the request to the answer: median, 90th percentile",
            both(ahead(|a| a.p50_ns), ahead(|a| a.p90_ns), nanoseconds),
        );
        tell(
            "of the pages that came from beyond the pool, those that did not come alone",
            cell.and_then(|c| c.median(|s| not_alone(s.far.as_ref()?)))
                .map(percent),
        );
        tell(
            "contribution: of the uses of far pages, those that found their page in memory",
            cell.and_then(|c| c.median(|s| s.prefetch.as_ref()?.contribution))
                .map(percent),
        );
        tell(
            "reads ahead dropped as too late, of all; those that a thread came to wait for",
            both(
                ahead(|a| {
                    let all = a.done + a.dropped;
                    (all > 0).then(|| a.dropped as f64 / all as f64)
                }),
                ahead(|a| {
                    let all = a.done + a.dropped;
                    (all > 0).then(|| a.promoted as f64 / all as f64)
                }),
                percent,
            ),
        );
    }
    all
}

/// All targets with their verdicts.
pub fn judge(cells: &[Cell]) -> Vec<Judged> {
    let mut all = Vec::new();
    for target in TARGETS {
        all.push(target.judge(cells, Tenancy::Each));
        if !target.alone.apart && !target.with_cheat {
            all.push(target.judge(cells, Tenancy::One));
        }
    }
    all.extend(table_3(cells));
    all.extend(figure_13(cells));
    all
}

#[cfg(test)]
mod tests;
