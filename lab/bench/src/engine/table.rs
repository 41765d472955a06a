//! The table printed at the end: medians, spread and ratios.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{PAIR, pairs};
use crate::record::{AgentWork, Outcome, Sample};
use crate::stats::median;
use crate::variant::Variant;

/// Half the range (max - min) as a share of the median; `None` for a single value.
fn spread(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let m = median(values)?;
    let (low, high) = values
        .iter()
        .fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(*v), h.max(*v)));
    (m > 0.0).then(|| (high - low) / 2.0 / m)
}

/// Figures of one cell and workload.
#[derive(Default)]
struct Figures {
    seconds: Vec<f64>,
    ops_per_s: Vec<f64>,
    bad: BTreeMap<&'static str, u32>,
}

impl Figures {
    fn add(&mut self, s: &Sample) {
        match &s.outcome {
            Outcome::Ok => {
                self.seconds.extend(s.seconds);
                self.ops_per_s.extend(s.ops_per_s);
            }
            other => *self.bad.entry(word(other)).or_default() += 1,
        }
    }

    fn is_rate(&self) -> bool {
        !self.ops_per_s.is_empty()
    }

    fn values(&self) -> &[f64] {
        if self.is_rate() {
            &self.ops_per_s
        } else {
            &self.seconds
        }
    }

    /// Factor by which this is slower than `base`.
    fn slowdown(&self, base: &Figures) -> Option<f64> {
        let (mine, other) = (median(self.values())?, median(base.values())?);
        match (self.is_rate(), base.is_rate()) {
            (true, true) if mine > 0.0 => Some(other / mine),
            (false, false) if other > 0.0 => Some(mine / other),
            _ => None,
        }
    }

    fn show(&self) -> String {
        let mut text = match median(self.values()) {
            Some(m) if self.is_rate() => format!("{}/s", number(m)),
            Some(m) => format!("{} s", number(m)),
            None => String::new(),
        };
        if let Some(share) = spread(self.values()) {
            let _ = write!(text, " ±{:.0}%", share * 100.0);
        }
        for (word, n) in &self.bad {
            let _ = write!(
                text,
                "{}{n} {word}",
                if text.is_empty() { "" } else { ", " }
            );
        }
        if text.is_empty() {
            "-".to_owned()
        } else {
            text
        }
    }
}

fn number(x: f64) -> String {
    match x {
        x if x >= 1e6 => format!("{:.2}M", x / 1e6),
        x if x >= 1e4 => format!("{:.1}k", x / 1e3),
        x if x >= 100.0 => format!("{x:.0}"),
        x if x >= 10.0 => format!("{x:.1}"),
        x => format!("{x:.2}"),
    }
}

/// Outcome of a run in a word.
pub fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "ok",
        Outcome::Oom => "OOM",
        Outcome::Timeout => "TIMEOUT",
        Outcome::Wrong => "WRONG",
        Outcome::Failed(_) => "FAILED",
    }
}

/// Subject of a row, without the ratio.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct What {
    workload: String,
    /// Name, value as a number if it is one (so that 16 sorts after 2), value.
    parameters: Vec<(String, Option<u64>, String)>,
    co_run: Option<String>,
}

type Cells = BTreeMap<(What, Variant, Option<u32>), Figures>;

fn cells_of(samples: &[&Sample]) -> Cells {
    let mut cells = Cells::new();
    for s in samples {
        let what = What {
            workload: s.workload.clone(),
            parameters: s
                .parameters
                .iter()
                .map(|(name, value)| (name.clone(), value.parse().ok(), value.clone()))
                .collect(),
            co_run: s.co_run.clone(),
        };
        let key = (what, s.variant.clone(), s.local_percent);
        cells.entry(key).or_default().add(s);
    }
    cells
}

/// Aligns rows into columns: the first to the left, others to the right.
pub(super) fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        rows.iter()
            .filter_map(|r| r.get(c))
            .map(|t| t.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (c, cell) in row.iter().enumerate() {
            let w = widths[c];
            let _ = match c {
                0 => write!(line, "{cell:w$}"),
                _ => write!(line, "  {cell:>w$}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Table of one experiment.
fn experiment(name: &str, samples: &[&Sample]) -> String {
    let cells = cells_of(samples);
    let mut variants: Vec<&Variant> = cells.keys().map(|(_, v, _)| v).collect();
    variants.sort();
    variants.dedup();
    let peers: Vec<&Variant> = variants.iter().filter(|v| v.is_kernel()).copied().collect();
    let canvas = variants.iter().find(|v| v.is_canvas()).copied();
    let mut rows = vec![vec!["workload".to_owned(), "local".to_owned()]];
    for v in &variants {
        rows[0].push(v.to_string());
        if **v != Variant::Local {
            rows[0].push("slower".to_owned());
        }
    }
    rows[0].extend(
        peers
            .iter()
            .filter(|_| canvas.is_some())
            .map(|p| format!("x {p}")),
    );
    let with_best = canvas.is_some() && peers.len() > 1;
    if with_best {
        rows[0].push("x best".to_owned());
    }
    let mut lines: Vec<(&What, Option<u32>)> = cells.keys().map(|(w, _, p)| (w, *p)).collect();
    // Largest limit first; runs without a limit have a column of their own.
    lines.sort_by_key(|(w, p)| (*w, std::cmp::Reverse(*p)));
    lines.dedup();
    for (what, percent) in lines.iter().copied() {
        let limited_too = lines.iter().any(|(w, p)| *w == what && p.is_some());
        let only_local = || {
            let others = |(w, v, p): &(What, Variant, Option<u32>)| {
                w == what && p.is_none() && !v.is_local()
            };
            !cells.keys().any(others)
        };
        if percent.is_none() && limited_too && only_local() {
            continue;
        }
        let find = |w: &What, v: &Variant| {
            let percent = percent.filter(|_| !v.is_local());
            cells.get(&(w.clone(), v.clone(), percent))
        };
        // Co-runs: slowdown over the program alone under the same variant. Alone: over all-local.
        let solo = What {
            co_run: None,
            ..what.clone()
        };
        let mut row = vec![
            label(what),
            percent.map_or("-".to_owned(), |p| format!("{p}%")),
        ];
        for v in &variants {
            let mine = find(what, v);
            row.push(mine.map_or("-".to_owned(), Figures::show));
            if **v != Variant::Local {
                let base = match &what.co_run {
                    Some(_) => find(&solo, v),
                    None => find(what, &Variant::Local),
                };
                let ratio = mine.zip(base).and_then(|(m, b)| m.slowdown(b));
                row.push(ratio.map_or("-".to_owned(), |r| format!("{r:.2}x")));
            }
        }
        if let Some(canvas) = canvas {
            let over = |p: &&Variant| find(what, p)?.slowdown(find(what, canvas)?);
            let ratios: Vec<Option<f64>> = peers.iter().map(over).collect();
            let show = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |r| format!("{r:.2}"));
            row.extend(ratios.iter().map(|r| show(*r)));
            if with_best {
                row.push(show(ratios.into_iter().flatten().min_by(f64::total_cmp)));
            }
        }
        rows.push(row);
    }
    format!("{name}\n{}{}", align(&rows), figures(samples))
}

/// Medians of the figures that only this experiment has.
fn figures(samples: &[&Sample]) -> String {
    let mut names: Vec<&str> = Vec::new();
    let mut all: BTreeMap<String, BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
    for s in samples.iter().filter(|s| s.outcome == Outcome::Ok) {
        let place = format!("{}, {}", crate::cells::Key::of(s).place(), s.variant);
        for (name, value) in &s.figures {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
            let row = all.entry(place.clone()).or_default();
            row.entry(name).or_default().push(*value);
        }
    }
    if names.is_empty() {
        return String::new();
    }
    let head = std::iter::once("figures").chain(names.iter().copied());
    let mut rows = vec![head.map(str::to_owned).collect::<Vec<_>>()];
    for (place, values) in &all {
        let middle = |name: &&str| median(values.get(name)?).map(number);
        let shown = names.iter().map(|n| middle(n).unwrap_or("-".to_owned()));
        rows.push(std::iter::once(place.clone()).chain(shown).collect());
    }
    align(&rows)
}

fn label(what: &What) -> String {
    let mut text = what.workload.clone();
    for (name, _, value) in &what.parameters {
        let _ = write!(text, " {name}={value}");
    }
    if let Some(set) = &what.co_run {
        let _ = write!(text, " (in {set})");
    }
    text
}

/// Load of shared agents.
fn agents(samples: &[Sample]) -> String {
    let mut cells: BTreeMap<(String, String), Vec<&AgentWork>> = BTreeMap::new();
    for s in samples {
        if let (Some(work), Some(together)) = (&s.agent, &s.co_run) {
            let key = (together.clone(), s.variant.to_string());
            cells.entry(key).or_default().push(work);
        }
    }
    if cells.is_empty() {
        return String::new();
    }
    let head = ["agent of", "over", "MiB/s", "us a read", "threads busy"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for ((together, variant), works) in cells {
        let middle = |of: &dyn Fn(&AgentWork) -> Option<f64>| {
            let values: Vec<f64> = works.iter().copied().filter_map(of).collect();
            median(&values).map_or("-".to_owned(), number)
        };
        let threads = works.iter().map(|w| w.busy.len()).max().unwrap_or(0);
        let busy = |n: usize| middle(&|w| Some(w.busy.get(n).copied().unwrap_or_default()));
        rows.push(vec![
            together,
            variant,
            middle(&|w| Some(w.in_bytes_per_s / f64::from(1 << 20))),
            middle(&|w| Some(w.read_ns()? / 1e3)),
            (0..threads).map(busy).collect::<Vec<_>>().join(" + "),
        ]);
    }
    align(&rows) + "\n"
}

/// Note on runs in thread mode, whose faults take longer.
fn modes(samples: &[Sample]) -> String {
    let modes: Vec<&str> = samples.iter().filter_map(|s| s.mode.as_deref()).collect();
    match modes.iter().filter(|mode| **mode == "thread").count() {
        0 => String::new(),
        n => format!(
            "{n} of {} programs under canvas ran in thread mode, in which faults take longer\n",
            modes.len()
        ),
    }
}

/// Tables of all experiments, with a legend.
pub fn table(samples: &[Sample]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for s in samples {
        if !names.contains(&s.experiment.as_str()) {
            names.push(&s.experiment);
        }
    }
    let mut text = String::new();
    for name in names {
        let of = samples.iter().filter(|s| s.experiment == name);
        let (pairs, others): (Vec<&Sample>, Vec<&Sample>) =
            of.partition(|s| s.parameters.contains_key(PAIR));
        if !others.is_empty() {
            text.push_str(&experiment(name, &others));
            text.push('\n');
        }
        if !pairs.is_empty() {
            text.push_str(&pairs::table(name, &pairs));
            text.push('\n');
        }
    }
    text.push_str(&agents(samples));
    let targets = crate::targets::text(&crate::cells::gather(samples));
    if !targets.is_empty() {
        text.push_str(&targets);
        text.push('\n');
    }
    text.push_str(&modes(samples));
    if !text.is_empty() {
        text.push_str(
            "medians; ± half of the way from the least to the most; slower: against local, in a \
             co-run against the same alone;\nx zram, x zram-64k, x zswap, x disk: how many times faster \
             canvas is; x best: than the fastest of these\n",
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_mode_is_told() {
        let of = |mode: Option<&str>| Sample {
            mode: mode.map(str::to_owned),
            ..Sample::default()
        };
        assert_eq!(modes(&[of(None), of(Some("signal"))]), "");
        let text = modes(&[of(None), of(Some("signal")), of(Some("thread"))]);
        assert!(text.starts_with("1 of 2 programs"), "{text}");
    }

    fn sample(variant: Variant, percent: Option<u32>, seconds: f64) -> Sample {
        Sample {
            experiment: "e".to_owned(),
            workload: "w".to_owned(),
            variant,
            local_percent: percent,
            seconds: Some(seconds),
            ..Sample::default()
        }
    }

    #[test]
    fn spreads() {
        assert_eq!(spread(&[9.0, 10.0, 11.0]), Some(0.1));
        assert_eq!(spread(&[9.0]), None);
    }

    #[test]
    fn figures_of_an_experiment_have_a_table_of_their_own() {
        let of = |name: &str, value: f64| Sample {
            figures: [(name.to_owned(), value)].into(),
            ..sample(Variant::Zram, Some(25), 1.0)
        };
        let text = table(&[of("lost", 1.0), of("lost", 3.0), of("warm_ms", 12.5)]);
        let head = text.lines().find(|l| l.starts_with("figures")).unwrap();
        let row = text
            .lines()
            .find(|l| l.starts_with("w at 25 %, zram"))
            .unwrap();
        let words = |line: &str| -> Vec<String> {
            line.split_whitespace()
                .rev()
                .take(2)
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(words(head), ["warm_ms", "lost"], "{text}");
        assert_eq!(words(row), ["12.5", "2.00"], "{text}");
        assert!(!table(&[sample(Variant::Zram, Some(25), 1.0)]).contains("figures"));
    }

    #[test]
    fn ratios_are_against_local_and_the_peer() {
        let mut all = vec![
            sample(Variant::Local, None, 2.0),
            sample(Variant::Canvas(vec![]), Some(50), 3.0),
            sample(Variant::Zram, Some(50), 6.0),
        ];
        all.push(Sample {
            outcome: Outcome::Oom,
            seconds: None,
            ..sample(Variant::Zram, Some(50), 0.0)
        });
        let text = table(&all);
        let row = text
            .lines()
            .find(|l| l.starts_with('w') && l.contains("50%"))
            .unwrap();
        for part in [
            "2.00 s",
            "3.00 s",
            "1.50x",
            "6.00 s, 1 OOM",
            "3.00x",
            "2.00",
        ] {
            assert!(row.contains(part), "{part} in {row}");
        }
        assert!(text.lines().any(|l| l.ends_with("x zram")), "{text}");
    }

    #[test]
    fn the_best_of_several_peers_has_a_column() {
        let two = [
            sample(Variant::Canvas(vec![]), Some(50), 3.0),
            sample(Variant::Zram, Some(50), 6.0),
        ];
        assert!(!table(&two).contains("x best\n"), "{}", table(&two));
        let faster = sample(Variant::Zram64k, Some(50), 2.4);
        let text = table(&[two.as_slice(), &[faster]].concat());
        assert!(
            text.lines().any(|l| l.ends_with("x zram-64k  x best")),
            "{text}"
        );
        let row = text
            .lines()
            .find(|l| l.starts_with('w') && l.contains("50%"));
        assert!(row.unwrap().ends_with("0.80    0.80"), "{text}");
    }

    #[test]
    fn rows_are_in_the_order_of_numbers() {
        let of = |threads: &str| Sample {
            parameters: [("threads".to_owned(), threads.to_owned())].into(),
            ..sample(Variant::Zram, Some(25), 1.0)
        };
        let text = table(&[of("16"), of("2"), of("1")]);
        let rows: Vec<_> = text
            .lines()
            .filter_map(|l| l.strip_prefix("w threads=")?.split(' ').next())
            .collect();
        assert_eq!(rows, ["1", "2", "16"]);
    }

    #[test]
    fn a_co_run_is_compared_with_the_same_alone() {
        let mut together = sample(Variant::Zram, Some(25), 9.0);
        together.co_run = Some("w+v".to_owned());
        let alone = sample(Variant::Zram, Some(25), 4.5);
        let text = table(&[alone, together]);
        let row = text.lines().find(|l| l.contains("(in w+v)")).unwrap();
        assert!(row.contains("2.00x"), "{text}");
    }

    #[test]
    fn rates_are_better_when_higher() {
        let rate = |v, p, ops| Sample {
            ops_per_s: Some(ops),
            ..sample(v, p, 1.0)
        };
        let text = table(&[
            rate(Variant::Local, None, 2_000_000.0),
            rate(Variant::Canvas(vec![]), Some(25), 500_000.0),
        ]);
        let row = text.lines().find(|l| l.contains("25%")).unwrap();
        assert!(
            row.contains("2.00M/s") && row.contains("500.0k/s") && row.contains("4.00x"),
            "{row}"
        );
    }
}
