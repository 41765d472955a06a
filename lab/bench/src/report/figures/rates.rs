//! Rates over the time of a run.

use super::super::palette::Palette;
use super::super::plot::{Axis, Scale, lines};
use super::{Figure, finish, panels, series_of, simple, tightest};
use crate::cells::Cell;
use crate::record::{Sample, Tick};
use crate::words::{digits, quantity};

/// Most points of a line over time.
const POINTS_MAX: usize = 300;
const PAGE_MIB: f64 = 4096.0 / 1_048_576.0;

fn over_time(
    cells: &[Cell],
    experiment: &str,
    palette: &mut Palette,
    rate: impl Fn(&Tick) -> Option<f64>,
    what: &str,
    y: &Axis,
) -> Vec<Figure> {
    let has = |s: &Sample| s.timeline.iter().any(|t| rate(t).is_some_and(|v| v > 0.0));
    let wanted = |c: &Cell| c.good().any(has);
    let x = Axis {
        include: vec![0.0],
        ..simple("seconds", Scale::Linear, digits)
    };
    let mut figures = Vec::new();
    for mut panel in panels(cells, experiment, wanted, palette) {
        tightest(&mut panel);
        let series = panel.entries.iter().filter_map(|e| {
            // A repeat without ticks cannot be shown, even if it is the typical one.
            let sample = e
                .cell
                .typical()
                .filter(|s| has(s))
                .or_else(|| e.cell.good().find(|s| has(s)))?;
            let points = sample
                .timeline
                .iter()
                .filter_map(|t| Some((t.at_s, rate(t)?)))
                .filter(|(at, v)| at.is_finite() && v.is_finite())
                .collect();
            Some(series_of(e, thinned(points), false))
        });
        figures.extend(finish(
            format!("{}{what}", panel.title),
            series.collect(),
            |s| lines(&x, y, s, &[]),
        ));
    }
    figures
}

/// At most [`POINTS_MAX`] points, each the mean of equally many neighbours.
fn thinned(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let together = points.len().div_ceil(POINTS_MAX).max(1);
    points
        .chunks(together)
        .map(|chunk| {
            let count = chunk.len() as f64;
            let sum = chunk.iter().fold((0.0, 0.0), |s, p| (s.0 + p.0, s.1 + p.1));
            (sum.0 / count, sum.1 / count)
        })
        .collect()
}

pub(super) fn bandwidths(cells: &[Cell], experiment: &str, palette: &mut Palette) -> Vec<Figure> {
    let y = Axis {
        include: vec![0.0],
        ..simple("MiB/s", Scale::Linear, digits)
    };
    type Rate = fn(&Tick) -> Option<f64>;
    let both: [(Rate, &str); 2] = [
        (|t| Some(t.in_pages_per_s * PAGE_MIB), ": in"),
        (|t| Some(t.out_pages_per_s * PAGE_MIB), ": out"),
    ];
    let sides = both.map(|(rate, what)| over_time(cells, experiment, palette, rate, what, &y));
    let [ins, outs] = sides;
    // Swap-in next to swap-out for each program.
    let mut all: Vec<Figure> = ins.into_iter().chain(outs).collect();
    all.sort_by(|a, b| a.title.cmp(&b.title));
    all
}

pub(super) fn throughputs(cells: &[Cell], experiment: &str, palette: &mut Palette) -> Vec<Figure> {
    let y = Axis {
        include: vec![0.0],
        ..simple("operations a second", Scale::Linear, quantity)
    };
    over_time(cells, experiment, palette, |t| t.ops_per_s, "", &y)
}
