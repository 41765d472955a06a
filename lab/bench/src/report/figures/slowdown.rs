//! Slowdown of programs with less local memory, and in co-runs.

use std::collections::{BTreeMap, BTreeSet};

use super::super::palette::Palette;
use super::super::plot::{Axis, Scale, Series, bars, lines};
use super::{Figure, finish, panels, simple};
use crate::cells::{Cell, Unit, local_of, solo_of};
use crate::words::times;

/// Most groups of bars in a plot.
const GROUPS_MAX: usize = 6;

fn percent(value: f64) -> String {
    format!("{value:.0} %")
}

pub(super) fn slowdowns(cells: &[Cell], experiment: &str, palette: &mut Palette) -> Vec<Figure> {
    let wanted = |c: &Cell| c.key.co_run.is_none() && c.key.local_percent.is_some();
    let mut figures = Vec::new();
    let mut single: BTreeMap<u32, Vec<(String, Vec<Series>)>> = BTreeMap::new();
    for panel in panels(cells, experiment, wanted, palette) {
        // One line per name, over its limits.
        let mut by_name: BTreeMap<String, Series> = BTreeMap::new();
        let mut order = Vec::new();
        for e in &panel.entries {
            let at = f64::from(e.cell.key.local_percent.unwrap_or(100));
            let Some((slow, range)) = slowdown(cells, e.cell) else {
                continue;
            };
            let series = by_name.entry(e.name.clone()).or_insert_with(|| {
                order.push(e.name.clone());
                Series {
                    name: e.name.clone(),
                    style: e.style,
                    points: vec![],
                    ranges: vec![],
                    marked: true,
                }
            });
            series.points.push((at, slow));
            series
                .ranges
                .extend(range.map(|(low, high)| (at, low, high)));
        }
        let mut series: Vec<Series> = order.iter().filter_map(|n| by_name.remove(n)).collect();
        let mut limits = BTreeSet::new();
        let (mut least, mut most) = (1.0f64, 1.0f64);
        for one in &mut series {
            one.points.sort_by(|a, b| a.0.total_cmp(&b.0));
            for (at, slow) in &one.points {
                limits.insert(*at as u32);
                (least, most) = (least.min(*slow), most.max(*slow));
            }
        }
        // A single limit gives no line: such programs share a bar plot.
        if limits.len() == 1 {
            let limit = limits.into_iter().next().unwrap_or(100);
            single.entry(limit).or_default().push((panel.title, series));
            continue;
        }
        let x = Axis {
            ticks: limits.iter().map(|p| f64::from(*p)).collect(),
            ..simple(
                "local memory, share of the working set",
                Scale::Linear,
                percent,
            )
        };
        let y = Axis {
            include: vec![1.0],
            ..simple(
                "slowdown",
                if most / least > 8.0 {
                    Scale::Log
                } else {
                    Scale::Linear
                },
                times,
            )
        };
        figures.extend(finish(panel.title, series, |s| lines(&x, &y, s, &[1.0])));
    }
    for (limit, programs) in single {
        for some in programs.chunks(GROUPS_MAX) {
            figures.extend(slowdown_bars(limit, some));
        }
    }
    figures
}

/// A bar plot of programs with a single limit.
fn slowdown_bars(limit: u32, programs: &[(String, Vec<Series>)]) -> Option<Figure> {
    let names: Vec<String> = programs.iter().map(|(name, _)| name.clone()).collect();
    let mut together: Vec<Series> = Vec::new();
    for (at, (_, series)) in programs.iter().enumerate() {
        for one in series {
            let points = one.points.iter().map(|p| (at as f64, p.1));
            match together.iter_mut().find(|s| s.name == one.name) {
                Some(known) => known.points.extend(points),
                None => together.push(Series {
                    name: one.name.clone(),
                    style: one.style,
                    points: points.collect(),
                    ranges: vec![],
                    marked: false,
                }),
            }
        }
    }
    let y = simple("slowdown", Scale::Linear, times);
    let title = match names.as_slice() {
        [name] => format!("{name}, {limit} % local"),
        _ => format!("{limit} % local"),
    };
    finish(title, together, |s| bars(&y, &names, s, 1.0))
}

/// Slowdown of the median, and of the quartiles, relative to the local run's median.
fn slowdown(cells: &[Cell], cell: &Cell) -> Option<(f64, Option<(f64, f64)>)> {
    let local = local_of(cells, &cell.key)?;
    let middle = cell.slowdown(local)?;
    let ((unit, ours), (other, _)) = (cell.spread()?, local.spread()?);
    let range = (unit == other && ours.count > 1 && ours.q1 > 0.0).then(|| {
        let (a, b) = (ours.q1 / ours.median, ours.q3 / ours.median);
        match unit {
            Unit::Seconds => (middle * a, middle * b),
            Unit::OpsPerS => (middle / b, middle / a),
        }
    });
    Some((middle, range))
}

pub(super) fn co_runs(cells: &[Cell], experiment: &str, palette: &mut Palette) -> Vec<Figure> {
    let mut sets: BTreeMap<(&str, Option<u32>), Vec<&Cell>> = BTreeMap::new();
    for cell in cells.iter().filter(|c| c.key.experiment == experiment) {
        if let Some(set) = &cell.key.co_run {
            sets.entry((set, cell.key.local_percent))
                .or_default()
                .push(cell);
        }
    }
    let mut figures = Vec::new();
    for ((set, limit), members) in sets {
        let programs: Vec<String> = members
            .iter()
            .map(|c| c.key.program())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let mut series: Vec<Series> = Vec::new();
        for cell in members {
            let Some(slow) = solo_of(cells, &cell.key).and_then(|solo| cell.slowdown(solo)) else {
                continue;
            };
            let at = programs.iter().position(|p| *p == cell.key.program());
            let name = cell.key.variant.to_string();
            let style = palette.style(&cell.key.variant, "");
            let place = series
                .iter()
                .position(|s| s.name == name)
                .unwrap_or_else(|| {
                    series.push(Series {
                        name,
                        style,
                        points: vec![],
                        ranges: vec![],
                        marked: false,
                    });
                    series.len() - 1
                });
            series[place].points.push((at.unwrap_or(0) as f64, slow));
        }
        let y = simple("slowdown", Scale::Linear, times);
        let title = match limit {
            Some(p) => format!("{set}, {p} % local"),
            None => set.to_owned(),
        };
        figures.extend(finish(title, series, |s| bars(&y, &programs, s, 1.0)));
    }
    figures
}

/// Share of the working set, 0 to 1, that can be far with a slowdown of at most `bound`: interpolates
/// linearly between measured limits, from all-local downwards. `None` without a limited run.
pub fn offloadable(cells: &[Cell], of: &Cell, bound: f64) -> Option<f64> {
    let mut points: Vec<(f64, f64)> = cells
        .iter()
        .filter(|c| {
            c.key.experiment == of.key.experiment
                && c.key.workload == of.key.workload
                && c.key.parameters == of.key.parameters
                && c.key.co_run == of.key.co_run
                && c.key.variant == of.key.variant
        })
        .filter_map(|c| {
            let far = 1.0 - f64::from(c.key.local_percent?.min(100)) / 100.0;
            Some((far, slowdown(cells, c)?.0))
        })
        .collect();
    if points.is_empty() {
        return None;
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut before = (0.0, 1.0);
    for (far, slow) in points {
        if slow > bound {
            if before.1 >= bound {
                return Some(before.0);
            }
            let way = (bound - before.1) / (slow - before.1);
            return Some(before.0 + way * (far - before.0));
        }
        before = (far, slow);
    }
    Some(before.0)
}
