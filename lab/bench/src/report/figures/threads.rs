//! Scaling with threads: entries allocated, pages evicted, operations, over the number of threads.

use std::collections::BTreeMap;

use super::super::beside;
use super::super::palette::Palette;
use super::super::plot::{Axis, Scale, Series, lines};
use super::super::tables::{entries_per_s, pages_out_per_s};
use super::{Figure, finish, simple};
use crate::cells::{Cell, words};
use crate::papers::Measure;
use crate::record::Sample;
use crate::stats::Spread;
use crate::words::{digits, quantity, share};

/// Name of the parameter with the number of threads.
const THREADS: &str = "threads";

/// A plotted measure: its name, its value, its format, and the papers' measure to compare with.
struct What {
    name: &'static str,
    number: fn(&Sample) -> Option<f64>,
    show: fn(f64) -> String,
    papers: Option<Measure>,
}

const WHATS: [What; 4] = [
    What {
        name: "swap entries allocated under the lock, a second",
        number: entries_per_s,
        show: quantity,
        papers: Some(Measure::EntriesPerS),
    },
    What {
        name: "share of allocations that took the lock",
        number: locked_share,
        show: share,
        papers: None,
    },
    What {
        name: "pages put out a second",
        number: pages_out_per_s,
        show: quantity,
        papers: Some(Measure::PagesOutPerS),
    },
    What {
        name: "operations a second",
        number: |s| s.ops_per_s,
        show: quantity,
        papers: None,
    },
];

/// Share of allocations that took the lock.
fn locked_share(sample: &Sample) -> Option<f64> {
    let e = sample.entries?;
    let all = e
        .locked
        .saturating_add(e.stocked)
        .saturating_add(e.reserved);
    (all > 0).then(|| e.locked as f64 / all as f64)
}

/// Number of threads of a cell, and the rest of its name, which identifies its line.
fn place_of(cell: &Cell) -> Option<(f64, String)> {
    let threads: u32 = cell.key.parameters.get(THREADS)?.parse().ok()?;
    let mut others = cell.key.parameters.clone();
    others.remove(THREADS);
    let mut title = match words(&others) {
        none if none.is_empty() => cell.key.workload.clone(),
        some => format!("{} ({some})", cell.key.workload),
    };
    if let Some(percent) = cell.key.local_percent {
        title += &format!(", {percent} % local");
    }
    (threads > 0 && cell.key.co_run.is_none()).then_some((f64::from(threads), title))
}

pub(super) fn by_threads(cells: &[Cell], experiment: &str, palette: &mut Palette) -> Vec<Figure> {
    let mut programs: BTreeMap<String, Vec<(f64, &Cell)>> = BTreeMap::new();
    for cell in cells.iter().filter(|c| c.key.experiment == experiment) {
        if let Some((threads, title)) = place_of(cell) {
            programs.entry(title).or_default().push((threads, cell));
        }
    }
    let mut figures = Vec::new();
    for (title, members) in programs {
        for what in &WHATS {
            figures.extend(figure(&title, &members, what, palette));
        }
    }
    figures
}

/// A plot with a line per variant; `None` if no variant has two numbers of threads.
fn figure(
    title: &str,
    members: &[(f64, &Cell)],
    what: &What,
    palette: &mut Palette,
) -> Option<Figure> {
    let mut series: Vec<Series> = Vec::new();
    let mut ticks: Vec<f64> = Vec::new();
    for (threads, cell) in members {
        let values: Vec<f64> = cell
            .values(what.number)
            .into_iter()
            .filter(|v| *v >= 0.0)
            .collect();
        let Some(spread) = Spread::of(&values) else {
            continue;
        };
        ticks.push(*threads);
        let name = cell.key.variant.to_string();
        let at = series
            .iter()
            .position(|s| s.name == name)
            .unwrap_or_else(|| {
                series.push(Series {
                    name,
                    style: palette.style(&cell.key.variant, ""),
                    points: vec![],
                    ranges: vec![],
                    marked: true,
                });
                series.len() - 1
            });
        series[at].points.push((*threads, spread.median));
        if spread.count > 1 {
            series[at].ranges.push((*threads, spread.q1, spread.q3));
        }
    }
    for one in &mut series {
        one.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    if series.iter().all(|s| s.points.len() < 2) {
        return None;
    }
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let x = Axis {
        ticks,
        ..simple("threads", Scale::Log, digits)
    };
    let y = Axis {
        include: vec![0.0],
        ..simple(what.name, Scale::Linear, what.show)
    };
    let mut figure = finish(format!("{title}: {}", what.name), series, |s| {
        lines(&x, &y, s, &[])
    })?;
    figure.beside = what.papers.map_or_else(Vec::new, beside::sentences);
    Some(figure)
}
