//! Tables of the papers' numbers and the bench's.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::figures::{limited, offloadable};
use super::tables::{entries_per_s, pages_in_per_s, pages_out_per_s};
use crate::cells::{Cell, local_of, peer_of, solo_of};
use crate::papers::{Measure, Paper, Row, Stated, rows, unread};
use crate::stats::Spread;
use crate::variant::Variant;
use crate::words::{bytes, digits, nanoseconds, plain, quantity, seconds, share, times};

/// Whether the experiment mirrors a paper.
pub fn mirrors(experiment: &str) -> bool {
    rows().any(|r| r.experiment == experiment)
}

/// The table of one experiment; empty if it mirrors no paper.
pub fn of(cells: &[Cell], experiment: &str) -> Markup {
    let rows: Vec<&Row> = rows().filter(|r| r.experiment == experiment).collect();
    let Some(paper) = rows.first().map(|r| r.paper) else {
        return html! {};
    };
    html! {
        h3 { "Beside the paper" }
        p.small {
            "Numbers of " cite { (paper.title) } ", measured on other machines (" (paper.testbed)
            ") with data of other sizes: ratios and shares travel, rates and times do not."
        }
        div.wide tabindex="0" role="region" aria-label={ "Beside " (paper.name) } {
            table.papers {
                thead { tr {
                    th scope="col" { "what" } th scope="col" { "where" }
                    th scope="col" { (paper.name) " says" } th scope="col" { "here" }
                } }
                tbody {
                    @for row in rows {
                        tr {
                            td { (row.what) }
                            td.where { (row.source) }
                            td { (list(row.numbers.iter().map(|(who, n)| (*who, stated(row.measure, *n))))) }
                            td { (ours(cells, row)) }
                        }
                    }
                }
            }
        }
        (figures_without_numbers(experiment, paper))
    }
}

fn figures_without_numbers(experiment: &str, paper: &Paper) -> Markup {
    let all: Vec<_> = unread().filter(|u| u.experiment == experiment).collect();
    html! {
        @if !all.is_empty() {
            p.small {
                "Shown by " (paper.name) " without numbers in the text, so not repeated here: "
                @for (n, one) in all.iter().enumerate() {
                    @if n > 0 { "; " }
                    (one.figure)
                }
                "."
            }
        }
    }
}

/// Names with their numbers, one per line.
fn list<'w>(pairs: impl Iterator<Item = (&'w str, String)>) -> Markup {
    html! {
        ul.pairs {
            @for (who, what) in pairs {
                li { span { (who) } b { (what) } }
            }
        }
    }
}

/// The papers' statements on a measure, a sentence each, for its plot.
pub fn sentences(measure: Measure) -> Vec<String> {
    let of = |row: &Row| {
        let numbers: Vec<String> = row
            .numbers
            .iter()
            .map(|(who, n)| format!("{who} {}", stated(measure, *n)))
            .collect();
        format!(
            "{}, {} ({}): {}.",
            row.paper.name,
            row.source,
            row.what,
            numbers.join(", ")
        )
    };
    rows().filter(|r| r.measure == measure).map(of).collect()
}

fn stated(measure: Measure, number: Stated) -> String {
    match number {
        Stated::Number(v) => plain(&show(measure, v)),
        Stated::About(v) => format!("about {}", plain(&show(measure, v))),
        Stated::UpTo(v) => format!("up to {}", plain(&show(measure, v))),
        Stated::Crash => "crashed".into(),
    }
}

fn show(measure: Measure, value: f64) -> String {
    match measure {
        Measure::OfLocal => digits(value),
        Measure::OverDisk | Measure::OverZram | Measure::CoRunSlowdown | Measure::LocalSaved => {
            times(value)
        }
        Measure::OpsPerS | Measure::PagesInPerS | Measure::PagesOutPerS | Measure::EntriesPerS => {
            quantity(value) + " /s"
        }
        Measure::Seconds => seconds(value),
        Measure::FaultNs | Measure::ProactivePageNs => nanoseconds(value),
        Measure::FarBytes => bytes(value),
        Measure::Contribution | Measure::Accuracy => share(value),
    }
}

/// The bench's figures for a row: a line per variant, or a sentence.
fn ours(cells: &[Cell], row: &Row) -> Markup {
    // The median time of a fault may come from any program.
    let any = row.programs.is_empty() && row.measure == Measure::FaultNs;
    if row.programs.is_empty() && !any {
        return html! { span.small { "no such program here" } };
    }
    let mut found: BTreeMap<&Variant, Vec<f64>> = BTreeMap::new();
    for cell in cells.iter().filter(|c| any || matches(c, row)) {
        if cell.key.experiment != row.experiment || !limited(&cell.key.variant) {
            continue;
        }
        if let Some(value) = measure(cells, cell, row.measure).filter(|v| v.is_finite()) {
            found.entry(&cell.key.variant).or_default().push(value);
        }
    }
    if found.is_empty() {
        return html! { span.small { "not measured" } };
    }
    let lines: Vec<(String, String)> = found
        .into_iter()
        .filter_map(|(variant, values)| {
            let spread = Spread::of(&values)?;
            let text = if spread.count == 1 {
                show(row.measure, spread.median)
            } else {
                format!(
                    "{} ({} – {})",
                    show(row.measure, spread.median),
                    show(row.measure, spread.min),
                    show(row.measure, spread.max)
                )
            };
            Some((variant.to_string(), text))
        })
        .collect();
    list(lines.iter().map(|(v, t)| (v.as_str(), t.clone())))
}

fn matches(cell: &Cell, row: &Row) -> bool {
    let key = &cell.key;
    let name = key.workload.to_lowercase();
    // A limit of 100 % also matches runs without a limit.
    let limit = row.local_percent.is_none() || row.local_percent == key.local_percent;
    row.programs.iter().any(|part| name.contains(part))
        && limit
        && row
            .co_run
            .is_none_or(|together| together == key.co_run.is_some())
}

fn measure(cells: &[Cell], cell: &Cell, measure: Measure) -> Option<f64> {
    let over = |peer: Variant| {
        if cell.key.variant == peer {
            return None;
        }
        Some(cell.speed_over(peer_of(cells, &cell.key, &peer)?)?.ratio)
    };
    match measure {
        Measure::OfLocal => Some(cell.speed_over(local_of(cells, &cell.key)?)?.ratio),
        Measure::OverDisk => over(Variant::Disk),
        Measure::OverZram => over(Variant::Zram),
        Measure::CoRunSlowdown => {
            cell.key.co_run.as_ref()?;
            cell.slowdown(solo_of(cells, &cell.key)?)
        }
        Measure::OpsPerS => cell.median(|s| s.ops_per_s),
        Measure::Seconds => cell.median(|s| s.seconds),
        Measure::FaultNs => cell.median(|s| s.fault_ns.map(|q| q.p50)),
        Measure::ProactivePageNs => cell.median(|s| s.proactive.and_then(|p| p.page_ns())),
        Measure::PagesInPerS => cell.median(pages_in_per_s),
        Measure::PagesOutPerS => cell.median(pages_out_per_s),
        Measure::EntriesPerS => cell.median(entries_per_s),
        Measure::FarBytes => cell.median(|s| s.far_peak_bytes.map(|v| v as f64)),
        Measure::Contribution => cell.median(|s| s.prefetch.and_then(|p| p.contribution)),
        Measure::Accuracy => cell.median(|s| s.prefetch.and_then(|p| p.accuracy)),
        Measure::LocalSaved => local_saved(cells, cell),
    }
}

/// Slowdown up to which performance counts as equal to all-local.
const SAME: f64 = 1.25;

/// Local share that disk needs over the local share that this variant needs, at the same slowdown.
fn local_saved(cells: &[Cell], cell: &Cell) -> Option<f64> {
    if cell.key.variant == Variant::Disk {
        return None;
    }
    let disk = cells.iter().find(|c| {
        c.key.variant == Variant::Disk
            && c.key.experiment == cell.key.experiment
            && c.key.workload == cell.key.workload
            && c.key.parameters == cell.key.parameters
            && c.key.co_run == cell.key.co_run
    })?;
    let needs = |c: &Cell| Some(1.0 - offloadable(cells, c, SAME)?);
    Some(needs(disk)? / needs(cell)?)
}
