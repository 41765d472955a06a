//! The plots of an experiment.

mod latency;
mod rates;
mod slowdown;
mod threads;

use std::collections::{BTreeMap, BTreeSet};

use super::palette::{Palette, Style};
use super::plot::{Axis, PlotError, Scale, Series};
use crate::cells::{Cell, company, words};
use crate::stats::Spread;
use crate::variant::Variant;

pub use slowdown::offloadable;

/// Most lines in a readable plot.
const LINES_MAX: usize = 7;

/// A plot with its texts.
pub struct Figure {
    pub title: String,
    pub legend: Vec<(String, Style)>,
    /// The drawing as SVG.
    pub drawing: Result<String, PlotError>,
    /// Statements of papers on the plotted measure, a sentence each.
    pub beside: Vec<String>,
}

/// Plots of one kind.
pub struct Group {
    pub heading: &'static str,
    pub explain: &'static str,
    /// Text if there is no plot: "no ... was recorded".
    pub absent: &'static str,
    pub figures: Vec<Figure>,
}

/// A cell with its name and style in a plot.
struct Entry<'c, 'a> {
    cell: &'c Cell<'a>,
    name: String,
    style: Style,
}

/// Contents of a plot.
struct Panel<'c, 'a> {
    title: String,
    entries: Vec<Entry<'c, 'a>>,
}

/// All plots of an experiment. `cells` has those of all experiments, for their local runs.
pub fn of(cells: &[Cell], experiment: &str, palette: &mut Palette) -> Vec<Group> {
    vec![
        Group {
            heading: "Slowdown against local memory",
            explain: "Time (or the inverse of throughput) over that of the all-local run; 1 is as fast as all-local, lower is better. Points are medians, thin lines reach from the first to the third quartile.",
            absent: "slowdown (that takes a limited run and an all-local one of the same program)",
            figures: slowdown::slowdowns(cells, experiment, palette),
        },
        Group {
            heading: "Co-run slowdown",
            explain: "Time in the co-run over time alone, under the same variant and limit; 1 is undisturbed, lower is better.",
            absent: "co-runs",
            figures: slowdown::co_runs(cells, experiment, palette),
        },
        Group {
            heading: "Latency of requests",
            explain: "Share of requests that took at most so long, at the smallest local share; further left is better. Each step upwards is one more nine.",
            absent: "latencies of requests",
            figures: latency::latencies(cells, experiment, palette),
        },
        Group {
            heading: "Slow accesses",
            explain: "How long accesses to pages take that take more than 0.8 µs, at the smallest local share: these are the faults, and the rule is the same for all variants, because the program itself times its accesses (one of 31). Behind each name, how many of all accesses they are; further left is better.",
            absent: "times of accesses",
            figures: latency::accesses(cells, experiment, palette),
        },
        Group {
            heading: "Time of a fault",
            explain: "Latency of faults at the smallest local share, for variants that measure it (between quantiles the line is interpolated); further left is better.",
            absent: "times of faults",
            figures: latency::faults(cells, experiment, palette),
        },
        Group {
            heading: "By number of threads",
            explain: "The same program with more and more threads: swap entries allocated (canvas counts those that took the allocator's lock and those that a reservation saved it), pages put out, operations. Points are medians, thin lines reach from the first to the third quartile.",
            absent: "different numbers of threads",
            figures: threads::by_threads(cells, experiment, palette),
        },
        Group {
            heading: "Bandwidth over time",
            explain: "Pages swapped in and out at the smallest local share, in the repeat nearest to the median.",
            absent: "bandwidth",
            figures: rates::bandwidths(cells, experiment, palette),
        },
        Group {
            heading: "Throughput over time",
            explain: "Operations a second, at the smallest local share, in the repeat nearest to the median; higher is better.",
            absent: "throughput over time",
            figures: rates::throughputs(cells, experiment, palette),
        },
    ]
}

/// A panel per workload of the experiment; one per set of parameters if a single one would have too many
/// lines.
fn panels<'c, 'a>(
    cells: &'c [Cell<'a>],
    experiment: &str,
    wanted: impl Fn(&Cell) -> bool,
    palette: &mut Palette,
) -> Vec<Panel<'c, 'a>> {
    let mut workloads: BTreeMap<(&str, Option<&str>), Vec<&'c Cell<'a>>> = BTreeMap::new();
    for cell in cells {
        if cell.key.experiment == experiment && wanted(cell) {
            let place = (cell.key.workload.as_str(), cell.key.co_run.as_deref());
            workloads.entry(place).or_default().push(cell);
        }
    }
    let mut panels = Vec::new();
    for ((workload, co_run), cells) in workloads {
        let lines: BTreeSet<_> = cells
            .iter()
            .map(|c| (&c.key.variant, &c.key.parameters))
            .collect();
        let parameters: BTreeSet<_> = cells.iter().map(|c| &c.key.parameters).collect();
        let together = parameters.len() == 1 || lines.len() <= LINES_MAX;
        let suffix = co_run.map_or_else(String::new, |set| {
            format!(" with {}", company(set, workload))
        });
        if together {
            let named = parameters.len() > 1;
            let title = match parameters.first() {
                Some(p) if !named && !p.is_empty() => format!("{workload} ({})", words(p)),
                _ => workload.to_owned(),
            };
            panels.push(Panel {
                title: title + &suffix,
                entries: cells.iter().map(|c| entry(c, named, palette)).collect(),
            });
            continue;
        }
        for one in parameters {
            panels.push(Panel {
                title: format!("{workload} ({}){suffix}", words(one)),
                entries: cells
                    .iter()
                    .filter(|c| c.key.parameters == *one)
                    .map(|c| entry(c, false, palette))
                    .collect(),
            });
        }
    }
    panels
}

fn entry<'c, 'a>(cell: &'c Cell<'a>, named: bool, palette: &mut Palette) -> Entry<'c, 'a> {
    let parameters = if named {
        words(&cell.key.parameters)
    } else {
        String::new()
    };
    Entry {
        cell,
        name: format!("{} {parameters}", cell.key.variant)
            .trim()
            .to_owned(),
        style: palette.style(&cell.key.variant, &parameters),
    }
}

/// Keeps only unlimited cells, and those at the smallest limit of any limited variant.
fn tightest(panel: &mut Panel) {
    let least = panel
        .entries
        .iter()
        .filter_map(|e| e.cell.key.local_percent)
        .min();
    panel
        .entries
        .retain(|e| e.cell.key.local_percent.is_none() || e.cell.key.local_percent == least);
    if let Some(percent) = least {
        panel.title += &format!(", {percent} % local");
    }
}

fn finish(
    title: String,
    series: Vec<Series>,
    draw: impl FnOnce(&[Series]) -> Result<String, PlotError>,
) -> Option<Figure> {
    let series: Vec<Series> = series
        .into_iter()
        .filter(|s| !s.points.is_empty())
        .collect();
    if series.is_empty() {
        return None;
    }
    Some(Figure {
        title,
        drawing: draw(&series),
        legend: series.into_iter().map(|s| (s.name, s.style)).collect(),
        beside: vec![],
    })
}

fn simple(label: &str, scale: Scale, show: fn(f64) -> String) -> Axis {
    Axis {
        label: label.into(),
        scale,
        show,
        include: vec![],
        ticks: vec![],
    }
}

fn series_of(e: &Entry, points: Vec<(f64, f64)>, marked: bool) -> Series {
    Series {
        name: e.name.clone(),
        style: e.style,
        points,
        ranges: vec![],
        marked,
    }
}

/// Whether a variant has a limit.
pub fn limited(variant: &Variant) -> bool {
    !variant.is_local()
}

/// Median with first and third quartile.
pub fn with_spread(spread: &Spread, show: impl Fn(f64) -> String) -> String {
    if spread.count < 2 {
        return show(spread.median);
    }
    format!(
        "{} [{} – {}]",
        show(spread.median),
        show(spread.q1),
        show(spread.q3)
    )
}
