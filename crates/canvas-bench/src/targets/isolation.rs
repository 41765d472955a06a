//! What tenants may take from each other, as data, and whether they took more.

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

/// The experiment that they belong to.
pub const EXPERIMENT: &str = "isolation";
/// Rate of the link that tenants fight for, in 10^6 bits a second.
pub const LINK_MBIT: u32 = 200;
/// Of the one that decides nothing.
pub const FAST_LINK_MBIT: u32 = 10_000;
/// Flags of an agent that reads all that is asked for ahead, however late.
pub const NOTHING_DROPPED: &[&str] = &["--timeliness", "off"];
/// Flags of `canvas run` for tenants as Canvas has them before its 5.1 and 5.2: the kernel's readahead, and an entry from
/// the lock at each swap-out.
pub const NOT_ADAPTIVE: &[&str] = &["--reservations", "off", "--prefetch", "readahead"];
/// Parameter of a program that has a weight.
const WEIGHT: &str = "weight";

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Promise {
    /// Weighted min-max ratio of what tenants with weights read at the same time, at least.
    Shares(f64),
    /// What the link carried meanwhile, as a share of its rate, at least.
    LinkUse(f64),
    /// 99th percentile of accesses, or of requests, over that alone, at most.
    P99(f64),
    /// Throughput over that alone, at least.
    Throughput(f64),
    /// Slowdown over each program alone, processors taken out: mean and standard deviation, at most.
    Slowdown(f64, f64),
}

/// What a program has when it runs alone.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Alone {
    /// Rate of its link, in 10^6 bits a second.
    mbit: u32,
    /// Part of the processors, if not all.
    cpu_percent: Option<u32>,
}

/// Everything.
const ALONE: Alone = Alone {
    mbit: LINK_MBIT,
    cpu_percent: None,
};

impl Alone {
    fn variant(self) -> Variant {
        Variant::CanvasFar(FarBelow {
            cpu_percent: self.cpu_percent,
            ..far_below(self.mbit, Tenancy::Each)
        })
    }

    fn words(self) -> String {
        let link = (self.mbit != LINK_MBIT).then(|| Rate::mbit(self.mbit).to_string());
        let processors = self.cpu_percent.map(|p| format!("{p} % of the processors"));
        let share: Vec<String> = [link, processors].into_iter().flatten().collect();
        if share.is_empty() {
            "alone".to_owned()
        } else {
            format!("alone at its share ({})", share.join(", "))
        }
    }
}

/// A promise about programs that run together.
#[derive(Clone, Copy, Debug)]
struct Target {
    number: &'static str,
    /// The program that is looked at; all of them where they are equals.
    workload: &'static str,
    /// In whose company, as samples write it.
    co_run: &'static str,
    percent: u32,
    /// What the run alone has that it is compared with.
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
        alone: ALONE,
        promise,
    }
}

/// Random reads beside a program that reads ahead, against the same alone, or on its share of the processors.
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
            Promise::P99(1.1),
        )
    }
}

/// memcached beside a writer, against memcached on its share of the link, half of it, and of the processors.
const fn beside_writer(cpu_percent: Option<u32>, promise: Promise) -> Target {
    Target {
        alone: Alone {
            mbit: LINK_MBIT / 2,
            cpu_percent,
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

const TARGETS: &[Target] = &[
    at("I1", "sequential", SEQUENTIALS, 10, Promise::Shares(0.95)),
    at("I1", "sequential", SEQUENTIALS, 10, Promise::LinkUse(0.95)),
    beside_reader(None),
    beside_reader(Some(50)),
    beside_writer(None, Promise::Throughput(0.9)),
    beside_writer(None, Promise::P99(1.1)),
    beside_writer(Some(50), Promise::Throughput(0.9)),
    beside_writer(Some(50), Promise::P99(1.1)),
];

/// Local memory of the co-runs with Spark.
const TABLE_3_PERCENTS: [u32; 2] = [50, 25];
/// Canvas's goal there.
const TABLE_3: Promise = Promise::Slowdown(1.05, 0.03);

/// Shared far memory behind a link, as the experiment has it.
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

/// Tenants without what adapts to each of them, in the co-runs with Spark.
fn not_adaptive() -> Variant {
    Variant::CanvasFar(FarBelow {
        flags: strings(NOT_ADAPTIVE),
        agent_flags: strings(NOTHING_DROPPED),
        ..far_below(FAST_LINK_MBIT, Tenancy::Each)
    })
}

/// Who ran at the same time: run and repeat.
type Round<'a> = (&'a str, u32);

/// The good samples of a co-run under a variant, those of one round together.
fn rounds<'a>(
    cells: &[Cell<'a>],
    co_run: &str,
    percent: u32,
    variant: &Variant,
) -> BTreeMap<Round<'a>, Vec<&'a Sample>> {
    let mut rounds: BTreeMap<Round, Vec<&Sample>> = BTreeMap::new();
    let ours = |key: &Key| {
        key.experiment == EXPERIMENT
            && key.co_run.as_deref() == Some(co_run)
            && key.local_percent == Some(percent)
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
    let members = co_run.split('+').count();
    rounds.retain(|_, samples| {
        samples.len() == members && samples.iter().all(|s| s.outcome == Outcome::Ok)
    });
    rounds
}

/// The time in which all of these measured, in seconds since the run began.
fn together_s(samples: &[&Sample]) -> Option<(f64, f64)> {
    let mut all = (f64::NEG_INFINITY, f64::INFINITY);
    for sample in samples {
        let (from_s, to_s) = sample.measured_s?;
        all.0 = all.0.max(sample.at_s + from_s);
        all.1 = all.1.min(sample.at_s + to_s);
    }
    (all.0 < all.1).then_some(all)
}

/// The least over the most of what was read by weight: of stored bytes, in the time in which all of them
/// read. Programs of one tenant have no bytes of their own; there it is of the pages that each says it
/// read a second.
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

/// What a counter that was looked at now and then had come to at a time.
fn counted(seen: &[(f64, u64)], at_s: f64) -> Option<f64> {
    let after = seen.iter().position(|(s, _)| *s >= at_s)?;
    let (to_s, to) = seen[after];
    let (from_s, from) = seen[after.checked_sub(1)?];
    let part = (at_s - from_s) / (to_s - from_s).max(1e-9);
    Some(from as f64 + part * to.saturating_sub(from) as f64)
}

/// What the link carried while all of these measured, as a share of its rate.
fn link_use(samples: &[&Sample]) -> Option<f64> {
    let (from_s, to_s) = together_s(samples)?;
    let rate = samples.first()?.variant.link()?;
    let seen = samples.iter().map(|s| &s.link_to_host);
    let seen = seen.max_by_key(|seen| seen.len())?;
    let carried = counted(seen, to_s)? - counted(seen, from_s)?;
    Some(carried / (to_s - from_s) / rate.bytes_per_s())
}

/// Of what the program times itself: requests where it has them, else accesses.
fn p99_ns(sample: &Sample) -> Option<f64> {
    let timed = sample.latency_ns.or(sample.access_ns)?;
    (timed.p99 > 0.0).then_some(timed.p99)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

impl Target {
    /// The figure under a variant, and whether it keeps the promise.
    fn measure(&self, cells: &[Cell], tenancy: Tenancy) -> Option<(bool, String)> {
        let variant = below(LINK_MBIT, tenancy);
        let of_rounds = |figure: fn(&[&Sample]) -> Option<f64>| {
            let rounds = rounds(cells, self.co_run, self.percent, &variant);
            let all: Vec<f64> = rounds.values().filter_map(|r| figure(r)).collect();
            crate::stats::median(&all)
        };
        let cell = |co_run: Option<&str>, variant: &Variant| {
            cells.iter().find(|c| {
                c.key.experiment == EXPERIMENT
                    && c.key.workload == self.workload
                    && c.key.co_run.as_deref() == co_run
                    && c.key.local_percent == Some(self.percent)
                    && c.key.variant == *variant
            })
        };
        let both = || {
            let alone = self.alone.variant();
            Some((cell(Some(self.co_run), &variant)?, cell(None, &alone)?))
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
                let (ours, alone) = both()?;
                let ratio = ours.median(p99_ns)? / alone.median(p99_ns)?;
                Some((ratio <= most, times(ratio)))
            }
            Promise::Throughput(least) => {
                let (ours, alone) = both()?;
                let ratio = ours.speed_over(alone)?.ratio;
                Some((ratio >= least, times(ratio)))
            }
            Promise::Slowdown(..) => None,
        }
    }

    fn judge(&self, cells: &[Cell], tenancy: Tenancy) -> Judged {
        let found = self.measure(cells, tenancy);
        let who = match self.co_run.split_once('+') {
            Some(_) if self.co_run == SEQUENTIALS => "4 sequential, weights 1, 2, 4, 8".to_owned(),
            Some((_, company)) => format!("{} beside {company}", self.workload),
            None => self.workload.to_owned(),
        };
        let variant = below(LINK_MBIT, tenancy);
        Judged {
            number: self.number,
            place: format!("{who} at {} %, {variant}", self.percent),
            promise: self.promise.words(self.alone),
            // One tenant for all promises nothing: it is there to be compared with.
            verdict: verdict(found.as_ref().map(|f| f.0), tenancy == Tenancy::Each),
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
    fn words(self, alone: Alone) -> String {
        let alone = alone.words();
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

/// A figure of a co-run's program over that of the same alone.
type OverAlone = fn(&Cell, &Cell) -> Option<f64>;

/// How many times as long it takes.
const SLOWDOWN: OverAlone = |cell, alone| cell.slowdown(alone);
/// How many times as much of the processors its own threads use.
const PROCESSOR_TIME: OverAlone = |cell, alone| {
    let used = |cell: &Cell| cell.median(|s| Some(s.cpu_user_s? + s.cpu_system_s?));
    Some(used(cell)? / used(alone).filter(|s| *s > 0.0)?)
};

/// A figure of the programs of co-runs with Spark under a variant, over each alone under the same; and
/// the same over what the all-local co-run's are, which fight for processors alone.
fn over_alone(
    cells: &[Cell],
    percent: u32,
    variant: &Variant,
    figure: OverAlone,
) -> (Vec<f64>, Vec<f64>) {
    let local = *variant == Variant::Local;
    let (mut plain, mut corrected) = (Vec::new(), Vec::new());
    for cell in cells {
        let key = &cell.key;
        let with_spark = key
            .co_run
            .as_ref()
            .is_some_and(|set| set.contains("+spark-"));
        let at = if local { None } else { Some(percent) };
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
        of_local.variant = Variant::Local;
        of_local.local_percent = None;
        let at_local = cells.iter().find(|c| c.key == of_local);
        let processors = at_local.and_then(|c| figure(c, solo_of(cells, &c.key)?));
        corrected.extend(processors.map(|p| value / p));
    }
    (plain, corrected)
}

/// Mean and standard deviation of all of them.
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

/// Canvas's table 3: a line for each variant as it is, one with the processors taken out, and what its programs use
/// of these.
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
    let (local, _) = over_alone(cells, 0, &Variant::Local, SLOWDOWN);
    let mut all = vec![told(place(&Variant::Local, None), plainly, &local)];
    let isolated = below(FAST_LINK_MBIT, Tenancy::Each);
    let variants = [
        Variant::Zram,
        below(FAST_LINK_MBIT, Tenancy::One),
        not_adaptive(),
        isolated.clone(),
    ];
    for percent in TABLE_3_PERCENTS {
        for variant in &variants {
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
                promise: TABLE_3.words(ALONE),
                measured: in_words(&corrected),
                verdict: verdict(held, *variant == isolated),
            });
        }
    }
    all
}

/// Canvas's figure 13: who reads ahead, in whose company, and at which share of local memory.
const AHEAD: &str = "sequential";
const AHEAD_CO_RUN: &str = "sequential+random-read";
const AHEAD_PERCENT: u32 = 25;

/// Of the pages that came back from beyond the pool, the share that did so with a whole extent.
fn not_alone(far: &Far) -> Option<f64> {
    let (raised, alone) = (far.pages_raised?, far.faults?);
    let all = raised + alone;
    (all > 0).then(|| raised as f64 / all as f64)
}

/// The reader ahead with the rule of timeliness and without it: what is told, in words.
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

/// All of them, judged.
pub fn judge(cells: &[Cell]) -> Vec<Judged> {
    let mut all = Vec::new();
    for target in TARGETS {
        for tenancy in [Tenancy::Each, Tenancy::One] {
            all.push(target.judge(cells, tenancy));
        }
    }
    all.extend(table_3(cells));
    all.extend(figure_13(cells));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::gather;
    use crate::engine::plan::resolve;
    use crate::experiments::{self, How};
    use crate::fixture;
    use crate::record::{FarTick, Prefetch, Quantiles, Tick};
    use proptest::prelude::*;

    fn sample(workload: &str, variant: Variant, at: Option<u32>, co_run: Option<&str>) -> Sample {
        let mut s = fixture::sample(workload, variant, at, 0, 1.0);
        s.experiment = EXPERIMENT.into();
        s.co_run = co_run.map(str::to_owned);
        s.at_s = 10.0;
        s
    }

    /// A reader of this weight that measured from `from_s` to 100 s, at this rate; three times as much
    /// before.
    fn reader(weight: u32, from_s: f64, rate: f64) -> Sample {
        let variant = below(LINK_MBIT, Tenancy::Each);
        let mut s = sample("sequential", variant, Some(10), Some(SEQUENTIALS));
        s.parameters.insert(WEIGHT.into(), weight.to_string());
        s.measured_s = Some((from_s, 100.0));
        s.timeline = (1..=120)
            .map(|n| Tick {
                at_s: f64::from(n),
                far: Some(FarTick {
                    in_bytes_per_s: if n <= 20 { 3.0 * rate } else { rate },
                    ..FarTick::default()
                }),
                ..Tick::default()
            })
            .collect();
        s
    }

    fn judged(samples: &[Sample], number: &str, promise: &str) -> (Verdict, Option<String>) {
        let all = judge(&gather(samples));
        let of = |j: &&Judged| {
            j.number == number && j.promise.contains(promise) && j.place.contains("isolated")
        };
        let j = all.iter().find(of).expect(promise);
        (j.verdict, j.measured.clone())
    }

    /// A target that no cell of the experiment can ever meet would be "not measured" for good.
    #[test]
    fn every_target_is_of_a_cell_that_runs() {
        let e = experiments::find(EXPERIMENT).unwrap();
        let names = |p: &experiments::Part| {
            let all: Vec<&str> = p.programs.iter().map(|p| p.workload).collect();
            all.join("+")
        };
        for t in TARGETS {
            let has = |p: &experiments::Part, variant: &Variant| {
                p.percents.contains(&t.percent)
                    && p.variants.iter().any(|b| resolve(*b) == *variant)
            };
            let together = e
                .parts
                .iter()
                .any(|p| names(p) == t.co_run && has(p, &ALONE.variant()));
            assert!(together, "{t:?}");
            if matches!(t.promise, Promise::P99(_) | Promise::Throughput(_)) {
                let alone = e.parts.iter().any(|p| {
                    let ours = p.programs.iter().any(|p| p.workload == t.workload);
                    ours && p.how != How::OnlyTogether && has(p, &t.alone.variant())
                });
                assert!(alone, "{t:?}");
            }
        }
        let spark: Vec<_> = e
            .parts
            .iter()
            .filter(|p| names(p).contains("+spark-"))
            .collect();
        let all = crate::registry::workloads();
        let sparks = all
            .iter()
            .filter(|w| w.name().starts_with("spark-"))
            .count();
        assert_eq!(spark.len(), sparks, "each of Spark's programs");
        for p in spark {
            assert_eq!(p.percents, TABLE_3_PERCENTS);
            let has = |v: Variant| p.variants.iter().any(|b| resolve(*b) == v);
            assert!(has(Variant::Local) && has(Variant::Zram));
            assert!(has(below(FAST_LINK_MBIT, Tenancy::Each)));
            assert!(has(below(FAST_LINK_MBIT, Tenancy::One)));
            assert!(has(not_adaptive()));
        }
    }

    #[test]
    fn shares_are_of_the_time_in_which_all_read() {
        let rate = 1e6;
        let mut all = vec![
            reader(1, 20.0, rate),
            reader(2, 10.0, 2.0 * rate),
            reader(4, 0.0, 4.0 * rate),
            reader(8, 20.0, 8.0 * rate),
        ];
        let ratio = |all: &[Sample]| judged(all, "I1", "weighted");
        assert_eq!(ratio(&all), (Verdict::Met, Some("1.000".into())));
        // One began later: what the others did before does not count.
        all[0].at_s = 30.0;
        assert_eq!(ratio(&all), (Verdict::Met, Some("1.000".into())));
        all[3] = reader(8, 20.0, 9.0 * rate);
        let (verdict, words) = ratio(&all);
        assert_eq!(
            (verdict, words.as_deref()),
            (Verdict::Missed, Some("0.889"))
        );
        assert_eq!(ratio(&all[..3]), (Verdict::Unknown, None), "one is missing");
        all[3].outcome = Outcome::Timeout;
        assert_eq!(ratio(&all), (Verdict::Unknown, None));
    }

    /// What they share counts for all of them: only what each says itself tells them apart.
    #[test]
    fn programs_of_one_tenant_are_told_apart_by_what_they_say() {
        let mut all: Vec<Sample> = [1, 2, 4, 8].map(|w| reader(w, 20.0, 1e6)).into();
        for s in &mut all {
            s.variant = below(LINK_MBIT, Tenancy::One);
            s.ops_per_s = Some(100.0);
        }
        let judged = judge(&gather(&all));
        let one = |j: &&Judged| j.promise.contains("weighted") && j.place.contains("one tenant");
        let j = judged.iter().find(one).unwrap();
        assert_eq!(
            (j.verdict, j.measured.as_deref()),
            (Verdict::Told, Some("0.125"))
        );
    }

    #[test]
    fn links_are_used_to_a_share_of_their_rate() {
        let mut all: Vec<Sample> = [1, 2, 4, 8].map(|w| reader(w, 20.0, 1e6)).into();
        let used = |all: &[Sample]| judged(all, "I1", "link");
        assert_eq!(used(&all), (Verdict::Unknown, None));
        // 25 MB/s is full; the run began 10 s before the programs.
        let carried = |at_s: f64| (24e6 * at_s) as u64;
        all[2].link_to_host = (0..300)
            .map(|n| f64::from(n) / 2.0)
            .map(|s| (s, carried(s)))
            .collect();
        assert_eq!(used(&all), (Verdict::Met, Some("96.0 %".into())));
        all[2].link_to_host.truncate(100);
        assert_eq!(
            used(&all),
            (Verdict::Unknown, None),
            "not looked at to the end"
        );
    }

    #[test]
    fn company_is_set_against_being_alone() {
        let slow = |mut s: Sample, ops, p99| {
            s.ops_per_s = Some(ops);
            s.latency_ns = Some(Quantiles {
                p99,
                ..Quantiles::default()
            });
            s
        };
        let at = |mbit, co_run| {
            let variant = below(mbit, Tenancy::Each);
            sample("memcached-get95", variant, Some(50), co_run)
        };
        let beside = at(LINK_MBIT, Some("memcached-get95+sequential-write"));
        let confined = Alone {
            mbit: LINK_MBIT / 2,
            cpu_percent: Some(50),
        };
        let confined = sample("memcached-get95", confined.variant(), Some(50), None);
        let all = [
            slow(beside, 920.0, 1200.0),
            slow(at(LINK_MBIT, None), 2000.0, 500.0),
            slow(at(LINK_MBIT / 2, None), 1000.0, 1000.0),
            slow(confined, 1150.0, 1100.0),
        ];
        let fast = judged(&all, "I3", "as fast");
        assert_eq!(fast, (Verdict::Met, Some("0.920×".into())));
        let p99 = judged(&all, "I3", "percentile");
        assert_eq!(p99, (Verdict::Missed, Some("1.20×".into())));
        let fast = judged(&all, "I3", "as fast as alone at its share (100mbit, 50 %");
        assert_eq!(fast, (Verdict::Missed, Some("0.800×".into())));
        let p99 = judged(&all, "I3", "alone at its share (100mbit, 50 %");
        assert_eq!(p99.0, Verdict::Missed);
        assert_eq!(judged(&all, "I2", "percentile").0, Verdict::Unknown);
    }

    #[test]
    fn reading_ahead_is_told_with_the_rule_and_without_it() {
        let at = |variant: &Variant, dropped, p90_ns| {
            let mut s = sample(
                AHEAD,
                variant.clone(),
                Some(AHEAD_PERCENT),
                Some(AHEAD_CO_RUN),
            );
            s.prefetch = Some(Prefetch {
                contribution: Some(0.875),
                ..Prefetch::default()
            });
            s.far = Some(Far {
                pages_raised: Some(99),
                faults: Some(1),
                ahead: Some(Ahead {
                    done: 100 - dropped,
                    dropped,
                    promoted: 50,
                    p50_ns: Some(2e6),
                    p90_ns: Some(p90_ns),
                }),
                ..Far::default()
            });
            s
        };
        let told = |all: &[Sample]| {
            let judged = judge(&gather(all)).into_iter().filter(|j| j.number == "I5");
            let words = judged.map(|j| (j.verdict, j.measured.unwrap_or_default()));
            words.collect::<Vec<_>>()
        };
        let e = experiments::find(EXPERIMENT).unwrap();
        let names = |p: &&experiments::Part| {
            let all: Vec<&str> = p.programs.iter().map(|p| p.workload).collect();
            all.join("+") == AHEAD_CO_RUN
        };
        // Of the cells that run, so that what is told is what they have.
        let part = e.parts.iter().find(names).unwrap();
        assert_eq!(part.percents, [AHEAD_PERCENT]);
        let below: Vec<Variant> = part.variants.iter().map(|b| resolve(*b)).collect();
        assert_eq!(told(&[]), vec![(Verdict::Unknown, String::new()); 8]);
        let all = [at(&below[0], 20, 3e6), at(&below[1], 0, 9e6)];
        let words = [
            "2.00 ms, 3.00 ms",
            "99.0 %",
            "87.5 %",
            "20.0 %, 50.0 %",
            "2.00 ms, 9.00 ms",
            "99.0 %",
            "87.5 %",
            "0.0 %, 50.0 %",
        ];
        assert_eq!(told(&all), words.map(|w| (Verdict::Told, w.to_owned())));
        let unknown = told(&all[..1]);
        assert_eq!(unknown[4..], vec![(Verdict::Unknown, String::new()); 4]);
        // A report without times of reads ahead.
        let mut old = all[0].clone();
        old.far.as_mut().unwrap().ahead = None;
        assert_eq!(told(&[old])[0].0, Verdict::Unknown);
    }

    #[test]
    fn processors_are_taken_out_of_slowdowns() {
        const SET: &str = "snappy+memcached-get95+xgboost+spark-lr";
        let isolated = || below(FAST_LINK_MBIT, Tenancy::Each);
        let took = |mut s: Sample, seconds| {
            s.seconds = Some(seconds);
            s
        };
        let mut all = Vec::new();
        for (workload, local, ours) in [("snappy", 2.0, 2.0), ("spark-lr", 1.5, 1.56)] {
            for (variant, at, factor) in
                [(Variant::Local, None, local), (isolated(), Some(25), ours)]
            {
                all.push(took(sample(workload, variant.clone(), at, None), 10.0));
                all.push(took(
                    sample(workload, variant, at, Some(SET)),
                    10.0 * factor,
                ));
            }
        }
        let at_25 = |all: &[Sample]| {
            let judged = judge(&gather(all));
            let mut ours = judged
                .into_iter()
                .filter(|j| j.number == "I4" && j.place.contains("isolated"));
            ours.rfind(|j| j.promise.contains("processors taken out"))
                .unwrap()
        };
        let j = at_25(&all);
        assert!(j.place.contains("25 %"), "{j:?}");
        assert_eq!(j.verdict, Verdict::Met);
        let words = j.measured.unwrap();
        assert!(
            words.starts_with("mean 1.02×, 1.00× to 1.04×, σ 0.02"),
            "{words}"
        );
        let last = all.last_mut().unwrap();
        last.seconds = Some(17.0);
        assert_eq!(at_25(&all).verdict, Verdict::Missed);
    }

    #[test]
    fn what_programs_use_of_processors_is_set_against_local() {
        const SET: &str = "snappy+memcached-get95+xgboost+spark-lr";
        let isolated = below(FAST_LINK_MBIT, Tenancy::Each);
        let used = |variant: &Variant, at, co_run, user_s, system_s| {
            let mut s = sample("snappy", variant.clone(), at, co_run);
            (s.cpu_user_s, s.cpu_system_s) = (Some(user_s), Some(system_s));
            s
        };
        let mut all = vec![
            used(&Variant::Local, None, None, 1.5, 0.5),
            used(&Variant::Local, None, Some(SET), 2.0, 0.5),
            used(&isolated, Some(50), None, 2.0, 2.0),
            used(&isolated, Some(50), Some(SET), 4.0, 3.5),
        ];
        let ours = |all: &[Sample]| {
            let place = format!("at 50 %, {isolated}");
            let mut judged = judge(&gather(all)).into_iter();
            judged
                .find(|j| j.promise.contains("own threads") && j.place.ends_with(&place))
                .unwrap()
        };
        // 1.875 times over 1.25 times.
        let told = ours(&all);
        assert_eq!(told.verdict, Verdict::Told);
        assert!(told.measured.unwrap().starts_with("mean 1.50×"));
        // Without a figure of `local` there is nothing to take out.
        all.remove(0);
        assert_eq!(ours(&all).verdict, Verdict::Unknown);
    }

    proptest! {
        /// However the tenants' times lie, shares by weight are fair.
        #[test]
        fn rates_by_weight_are_fair(weights in prop::collection::vec(1u32..100, 4), from in prop::collection::vec(20.0f64..90.0, 4)) {
            let all: Vec<Sample> = weights.iter().zip(&from)
                .map(|(w, from)| reader(*w, *from, 1e4 * f64::from(*w)))
                .collect();
            let all: Vec<&Sample> = all.iter().collect();
            let ratio = shares(&all).unwrap();
            prop_assert!((ratio - 1.0).abs() < 1e-9, "{ratio}");
        }
    }
}
