//! Summary of the results in sentences.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use crate::cells::{Cell, local_of, peer_of};
use crate::record::{NotYet, Outcome, Skip};
use crate::stats::{Ratio, Spread, Verdict};
use crate::variant::{KERNEL, Variant};
use crate::words::{count, times};

/// Canvas against one kernel variant over all cells that both have.
struct Duel {
    canvas: Variant,
    peer: Variant,
    /// (ratio of speeds, cell), ascending.
    ratios: Vec<(Ratio, String)>,
}

impl Duel {
    fn median(&self) -> f64 {
        let all: Vec<f64> = self.ratios.iter().map(|r| r.0.ratio).collect();
        Spread::of(&all).map_or(f64::NAN, |s| s.median)
    }

    fn verdicts(&self, verdict: Verdict) -> usize {
        self.ratios
            .iter()
            .filter(|r| r.0.verdict() == verdict)
            .count()
    }
}

/// All pairs of a canvas variant and a kernel variant with a cell in common.
fn duels(cells: &[Cell]) -> Vec<Duel> {
    let variants: BTreeSet<&Variant> = cells.iter().map(|c| &c.key.variant).collect();
    let mut duels = Vec::new();
    for canvas in variants.iter().filter(|v| v.is_canvas()) {
        for peer in KERNEL {
            let mut ratios: Vec<(Ratio, String)> = cells
                .iter()
                .filter(|c| c.key.variant == **canvas)
                .filter_map(|c| {
                    let ratio = c.speed_over(peer_of(cells, &c.key, &peer)?)?;
                    Some((ratio, format!("{}, {}", c.key.place(), c.key.experiment)))
                })
                .collect();
            ratios.sort_by(|a, b| a.0.ratio.total_cmp(&b.0.ratio));
            if !ratios.is_empty() {
                duels.push(Duel {
                    canvas: (*canvas).clone(),
                    peer,
                    ratios,
                });
            }
        }
    }
    duels
}

/// Summary of one machine and scale.
pub fn of(cells: &[Cell], skips: &[&Skip], not_yet: &[&NotYet]) -> Markup {
    let duels = duels(cells);
    html! {
        @if !duels.is_empty() {
            div.tiles {
                @for duel in duels.iter().filter(|d| d.canvas == Variant::Canvas(vec![])) {
                    (tile(duel))
                }
            }
            (duel_table(&duels))
        } @else if !cells.is_empty() {
            p { "No program was run both under canvas and under the kernel's swap, so there is nothing to compare." }
        }
        (cost(cells))
        (data(cells))
        (left_out(skips, not_yet))
    }
}

fn tile(duel: &Duel) -> Markup {
    let median = duel.median();
    html! {
        div.tile {
            div.small { "canvas over " (duel.peer) ", speed" }
            div.big { (times(median)) }
            div.small {
                "median of " (count(duel.ratios.len(), "cell"))
                @if let (Some(worst), Some(best)) = (duel.ratios.first(), duel.ratios.last()) {
                    ", " (times(worst.0.ratio)) " to " (times(best.0.ratio))
                }
            }
        }
    }
}

fn duel_table(duels: &[Duel]) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label="Canvas against kernel swap" {
            table {
                thead { tr {
                    th scope="col" { "speed of" } th scope="col" { "over" }
                    th.n scope="col" { "median" } th.n scope="col" { "faster" }
                    th.n scope="col" { "no difference seen" } th.n scope="col" { "slower" }
                    th.n scope="col" { "too few repeats" }
                    th scope="col" { "best" } th scope="col" { "worst" }
                } }
                tbody {
                    @for duel in duels {
                        tr {
                            td { (duel.canvas) } td { (duel.peer) }
                            td.n { b { (times(duel.median())) } }
                            @for verdict in [Verdict::Faster, Verdict::NoDifference, Verdict::Slower, Verdict::TooFew] {
                                td.n { (duel.verdicts(verdict)) }
                            }
                            @for one in [duel.ratios.last(), duel.ratios.first()].into_iter().flatten() {
                                td.name { (times(one.0.ratio)) " " span.small { (one.1) } }
                            }
                        }
                    }
                }
            }
        }
        p.small { "Counted in cells: one program, limit and company. “Faster” and “slower”: the 95 % interval of the ratio of medians excludes 1." }
    }
}

/// Cost of canvas over all-local memory at each limit.
fn cost(cells: &[Cell]) -> Markup {
    let mut limits: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    let plain = Variant::Canvas(vec![]);
    for cell in cells
        .iter()
        .filter(|c| c.key.variant == plain && c.key.co_run.is_none())
    {
        let slow = local_of(cells, &cell.key).and_then(|local| cell.slowdown(local));
        if let (Some(percent), Some(slow)) = (cell.key.local_percent, slow) {
            limits.entry(percent).or_default().push(slow);
        }
    }
    html! {
        @if !limits.is_empty() {
            p {
                "Against all-local memory, canvas takes "
                @for (n, (percent, slow)) in limits.iter().rev().enumerate() {
                    @if n > 0 { ", " }
                    @if let Some(spread) = Spread::of(slow) {
                        b { (times(spread.median)) } " the time at " (percent) " % local"
                        @if spread.count > 1 {
                            " (" (times(spread.min)) " to " (times(spread.max)) " over " (spread.count) " programs)"
                        }
                    }
                }
                "."
            }
        }
    }
}

/// Statement on the correctness of the data.
fn data(cells: &[Cell]) -> Markup {
    let all = || {
        cells
            .iter()
            .flat_map(|c| c.samples.iter().map(move |s| (c, s)))
    };
    let ended = |what: fn(&Outcome) -> bool| all().filter(|(_, s)| what(&s.outcome)).count();
    let total = all().count();
    let good = ended(|o| *o == Outcome::Ok);
    let wrong = ended(|o| *o == Outcome::Wrong);
    let mut bad: BTreeMap<String, usize> = BTreeMap::new();
    for (cell, sample) in all() {
        let what = match &sample.outcome {
            Outcome::Ok => continue,
            Outcome::Wrong => "gave a WRONG answer".to_owned(),
            Outcome::Oom => "ran out of memory".to_owned(),
            Outcome::Timeout => "did not finish in time".to_owned(),
            Outcome::Failed(why) => format!("failed: {why}"),
        };
        *bad.entry(format!("{} {what}", cell.key)).or_default() += 1;
    }
    html! {
        @if total == 0 {
            p { "No program was run." }
        } @else {
            p {
                @if wrong == 0 {
                    span.good { "✓ Data right: " }
                    "no program gave another answer than its all-local run. "
                } @else {
                    span.bad { "✗ Data WRONG: " }
                    (count(wrong, "run")) " gave another answer than the all-local run. "
                }
                (count(total, "run")) ", " (good) " ended well"
                @if bad.is_empty() { "." } @else { ", these did not (their figures are not used):" }
            }
            @if !bad.is_empty() {
                ul { @for (what, times) in bad {
                    li { (what) @if times > 1 { " (" (times) " runs)" } }
                } }
            }
        }
    }
}

/// Cells that were not run, with the reasons.
fn left_out(skips: &[&Skip], not_yet: &[&NotYet]) -> Markup {
    let skipped: BTreeSet<String> = skips
        .iter()
        .map(|s| {
            let mut what = s.experiment.clone();
            if let Some(workload) = &s.workload {
                what += &format!(", {workload}");
            }
            if let Some(variant) = &s.variant {
                what += &format!(", {variant}");
            }
            format!("{what}: {}", s.reason)
        })
        .collect();
    let waiting: BTreeSet<String> = not_yet
        .iter()
        .map(|n| format!("{}: {}", n.experiment, n.waits_for))
        .collect();
    html! {
        @for (title, lines) in [("Skipped", skipped), ("Left out", waiting)] {
            @if !lines.is_empty() {
                h3 { (title) }
                ul { @for line in lines { li { (line) } } }
            }
        }
    }
}
