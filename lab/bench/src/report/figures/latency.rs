//! Distributions of the latency of requests and faults.

use std::collections::BTreeMap;

use super::super::palette::Palette;
use super::super::plot::{Axis, Scale, lines};
use super::{Figure, finish, panels, series_of, simple, tightest};
use crate::cells::{Cell, SLOW_ACCESS_NS};
use crate::record::{Quantiles, Sample};
use crate::stats::together;
use crate::words::{nanoseconds, share};

fn nines(value: f64) -> String {
    format!("{} %", digits_of_share(value))
}

/// A share of 0.999 as 99.9, without rounding errors.
fn digits_of_share(value: f64) -> String {
    let text = format!("{:.4}", value * 100.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn distribution_axes(label: &str) -> (Axis, Axis) {
    let x = simple(label, Scale::Log, nanoseconds);
    let y = Axis {
        include: vec![0.0, 0.99],
        ..simple("at most so long", Scale::Nines, nines)
    };
    (x, y)
}

pub(super) fn latencies(cells: &[Cell], experiment: &str, palette: &mut Palette) -> Vec<Figure> {
    let wanted = |c: &Cell| c.good().any(|s| !s.latency_histogram.is_empty());
    let (x, y) = distribution_axes("latency of a request");
    let mut figures = Vec::new();
    for mut panel in panels(cells, experiment, wanted, palette) {
        tightest(&mut panel);
        let series = panel
            .entries
            .iter()
            .map(|e| series_of(e, distribution(e.cell, |s| &s.latency_histogram), false));
        figures.extend(finish(panel.title.clone(), series.collect(), |s| {
            lines(&x, &y, s, &[])
        }));
    }
    figures
}

/// Distribution over all repeats of a cell.
fn distribution(cell: &Cell, histogram: fn(&Sample) -> &Vec<(u64, u64)>) -> Vec<(f64, f64)> {
    steps(together(cell.good().flat_map(histogram)))
}

/// Cumulative steps: all requests of a bucket have its upper bound.
fn steps(counts: BTreeMap<u64, u64>) -> Vec<(f64, f64)> {
    let total: f64 = counts.values().map(|c| *c as f64).sum();
    let mut points = Vec::new();
    let mut below = 0.0;
    for (bound, count) in counts.into_iter().filter(|(b, c)| *b > 0 && *c > 0) {
        points.push((bound as f64, below / total));
        below += count as f64;
        // The last point shows no more nines than the number of requests supports.
        points.push((bound as f64, (below / total).min(1.0 - 0.5 / total)));
    }
    points
}

pub(super) fn accesses(cells: &[Cell], experiment: &str, palette: &mut Palette) -> Vec<Figure> {
    let wanted = |c: &Cell| c.good().any(|s| !s.access_histogram.is_empty());
    let (x, y) = distribution_axes("time of a slow access");
    let mut figures = Vec::new();
    for mut panel in panels(cells, experiment, wanted, palette) {
        tightest(&mut panel);
        let series = panel.entries.iter().map(|e| {
            let all = together(e.cell.good().flat_map(|s| &s.access_histogram));
            let sum = |counts: &BTreeMap<u64, u64>| counts.values().map(|c| *c as f64).sum::<f64>();
            let slow: BTreeMap<u64, u64> = all
                .iter()
                .filter(|b| *b.0 > SLOW_ACCESS_NS)
                .map(|(b, c)| (*b, *c))
                .collect();
            let part = sum(&slow) / sum(&all).max(1.0);
            let mut series = series_of(e, steps(slow), false);
            series.name += &format!(" ({} of all)", share(part));
            series
        });
        figures.extend(finish(panel.title.clone(), series.collect(), |s| {
            lines(&x, &y, s, &[])
        }));
    }
    figures
}

pub(super) fn faults(cells: &[Cell], experiment: &str, palette: &mut Palette) -> Vec<Figure> {
    let wanted = |c: &Cell| c.good().any(|s| s.fault_ns.is_some());
    let (x, y) = distribution_axes("time of a fault");
    let mut figures = Vec::new();
    for mut panel in panels(cells, experiment, wanted, palette) {
        tightest(&mut panel);
        let series =
            panel
                .entries
                .iter()
                .map(|e| match distribution(e.cell, |s| &s.fault_histogram) {
                    known if known.is_empty() => series_of(e, quantiles(e.cell), true),
                    known => series_of(e, known, false),
                });
        figures.extend(finish(panel.title.clone(), series.collect(), |s| {
            lines(&x, &y, s, &[])
        }));
    }
    figures
}

/// Medians of the quantiles of fault times, as (ns, share).
fn quantiles(cell: &Cell) -> Vec<(f64, f64)> {
    let middle = |pick: fn(&Quantiles) -> Option<f64>| {
        cell.median(|s| s.fault_ns.as_ref().and_then(pick))
            .filter(|v| *v > 0.0)
    };
    [
        (middle(|q| Some(q.p50)), 0.5),
        (middle(|q| Some(q.p99)), 0.99),
        (middle(|q| q.p999), 0.999),
    ]
    .into_iter()
    .filter_map(|(ns, share)| Some((ns?, share)))
    .collect()
}
