//! Tables with all numbers of an experiment.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::figures::{limited, offloadable, with_spread};
use crate::cells::{Cell, Unit, best_peer_of, company, local_of, peer_of, solo_of};
use crate::record::{AppTier, Far, Outcome, Quantiles, Sample};
use crate::stats::{Ratio, Verdict};
use crate::targets;
use crate::variant::{KERNEL, Variant};
use crate::words::{bytes, digits, nanoseconds, quantity, seconds, share, times};

/// Text of an empty cell.
const NONE: &str = "–";

/// Formats a value of a cell.
type Show<'f> = Box<dyn Fn(&Cell) -> Option<String> + 'f>;

/// A column: heading, and its value for a cell.
struct Column<'f> {
    head: String,
    show: Show<'f>,
}

fn column<'f>(head: impl Into<String>, show: impl Fn(&Cell) -> Option<String> + 'f) -> Column<'f> {
    Column {
        head: head.into(),
        show: Box::new(show),
    }
}

/// Median of a number over the good samples, formatted.
fn middle<'f>(
    head: &'f str,
    number: impl Fn(&Sample) -> Option<f64> + 'f,
    show: impl Fn(f64) -> String + 'f,
) -> Column<'f> {
    column(head, move |c| c.median(&number).map(&show))
}

/// Tables of one experiment; `cells` has those of all.
pub fn of(cells: &[Cell], experiment: &str) -> Markup {
    let ours: Vec<&Cell> = cells
        .iter()
        .filter(|c| c.key.experiment == experiment)
        .collect();
    if ours.is_empty() {
        return html! {};
    }
    html! {
        (table("Speed", true, &ours, &speed(cells, &ours)))
        (far_shares(cells, &ours))
        (table("Latencies and faults", false, &ours, &latency()))
        (table("Paging, processor and memory", false, &ours, &paging()))
        (table("Prefetching and swap entries", false, &ours, &prefetching()))
        (table("Far memory over donors", true, &ours, &donors()))
        (table("Figures of this experiment", true, &ours, &own_figures(&ours)))
    }
}

/// A table without its empty columns; no table if all are empty.
fn table(title: &str, open: bool, cells: &[&Cell], columns: &[Column]) -> Markup {
    let filled: Vec<(&Column, Vec<Option<String>>)> = columns
        .iter()
        .map(|column| (column, cells.iter().map(|c| (column.show)(c)).collect()))
        .filter(|(_, texts): &(_, Vec<Option<String>>)| texts.iter().any(Option::is_some))
        .collect();
    if filled.is_empty() {
        return html! {};
    }
    let with_company = cells.iter().any(|c| c.key.co_run.is_some());
    html! {
        details open[open] {
            summary { (title) }
            div.wide tabindex="0" role="region" aria-label=(title) {
                table {
                    thead { tr {
                        th scope="col" { "program" }
                        @if with_company { th scope="col" { "together with" } }
                        th scope="col" { "local" }
                        th scope="col" { "variant" }
                        @for (column, _) in &filled { th.n scope="col" { (column.head) } }
                    } }
                    tbody {
                        @for (n, cell) in cells.iter().enumerate() {
                            @let first = n == 0 || cells[n - 1].key.program() != cell.key.program()
                                || cells[n - 1].key.co_run != cell.key.co_run;
                            tr.first[first] {
                                td.name { (cell.key.program()) }
                                @if with_company {
                                    td.name { (cell.key.co_run.as_deref().map_or("alone".into(), |set| company(set, &cell.key.workload))) }
                                }
                                td.n { (limit(cell)) }
                                td { (cell.key.variant) }
                                @for (_, texts) in &filled {
                                    td.n { (texts[n].as_deref().unwrap_or(NONE)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn limit(cell: &Cell) -> String {
    match cell.key.local_percent {
        Some(percent) => format!("{percent} %"),
        None if limited(&cell.key.variant) => NONE.into(),
        None => "all".into(),
    }
}

fn speed<'f>(cells: &'f [Cell], ours: &[&Cell]) -> Vec<Column<'f>> {
    let mut columns = vec![
        column("runs", |c| Some(endings(c))),
        column("median [quartiles]", |c| {
            let (unit, spread) = c.spread()?;
            Some(match unit {
                Unit::OpsPerS => with_spread(&spread, quantity) + " /s",
                Unit::Seconds => with_spread(&spread, seconds),
            })
        }),
        column("slower than local", |c| {
            let local = local_of(cells, &c.key).filter(|_| limited(&c.key.variant))?;
            c.slowdown(local).map(times)
        }),
        column("slower than alone", |c| {
            c.key.co_run.as_ref()?;
            solo_of(cells, &c.key)
                .and_then(|s| c.slowdown(s))
                .map(times)
        }),
    ];
    let present: BTreeSet<&Variant> = ours.iter().map(|c| &c.key.variant).collect();
    let peers = || KERNEL.into_iter().filter(|p| present.contains(p));
    for peer in peers() {
        columns.push(column(format!("over {peer} [95 %]"), move |c| {
            if !c.key.variant.is_canvas() {
                return None;
            }
            c.speed_over(peer_of(cells, &c.key, &peer)?).map(ratio)
        }));
    }
    // If only one kernel variant ran it is the best one, and has its own column.
    if peers().count() > 1 {
        columns.push(column("over the kernel's best [95 %]", move |c| {
            if !c.key.variant.is_canvas() {
                return None;
            }
            let (best, over) = best_peer_of(cells, c)?;
            Some(format!("{} ({})", ratio(over), best.key.variant))
        }));
    }
    columns
}

/// A ratio with its bounds, and a verdict if the bounds allow one.
fn ratio(ratio: Ratio) -> String {
    let Some((low, high)) = ratio.bounds else {
        return times(ratio.ratio);
    };
    let sign = match ratio.verdict() {
        Verdict::Faster => "▲ ",
        Verdict::Slower => "▼ ",
        Verdict::NoDifference | Verdict::TooFew => "",
    };
    format!(
        "{sign}{} [{} – {}]",
        times(ratio.ratio),
        digits(low),
        digits(high)
    )
}

/// "5", or "3 of 5, 2 out of memory".
fn endings(cell: &Cell) -> String {
    let all = cell.samples.len();
    let good = cell.good().count();
    if good == all {
        return all.to_string();
    }
    let mut text = format!("{good} of {all}");
    let count =
        |what: fn(&Outcome) -> bool| cell.samples.iter().filter(|s| what(&s.outcome)).count();
    for (number, name) in [
        (count(|o| *o == Outcome::Wrong), "wrong"),
        (count(|o| *o == Outcome::Oom), "out of memory"),
        (count(|o| *o == Outcome::Timeout), "timed out"),
        (count(|o| matches!(o, Outcome::Failed(_))), "failed"),
    ] {
        if number > 0 {
            text += &format!(", {number} {name}");
        }
    }
    text
}

fn latency<'f>() -> Vec<Column<'f>> {
    type Pick = fn(&Quantiles) -> Option<f64>;
    const PICKS: [(&str, Pick); 4] = [
        ("p50", |q| Some(q.p50)),
        ("p99", |q| Some(q.p99)),
        ("p99.9", |q| q.p999),
        ("max", |q| q.max),
    ];
    let mut columns = Vec::new();
    for (name, pick) in PICKS {
        columns.push(column(format!("request {name}"), move |c| {
            c.median(|s| s.latency_ns.as_ref().and_then(pick))
                .map(nanoseconds)
        }));
    }
    for (name, pick) in PICKS {
        columns.push(column(format!("access {name}"), move |c| {
            c.median(|s| s.access_ns.as_ref().and_then(pick))
                .map(nanoseconds)
        }));
    }
    columns.push(middle("faults", |s| s.faults.map(|v| v as f64), quantity));
    for (name, pick) in PICKS {
        columns.push(column(format!("fault {name}"), move |c| {
            c.median(|s| s.fault_ns.as_ref().and_then(pick))
                .map(nanoseconds)
        }));
    }
    columns
}

/// Time over which a program was sampled: up to the last tick, otherwise the measured part.
fn watched_s(sample: &Sample) -> Option<f64> {
    let last = sample.timeline.last().map(|t| t.at_s);
    last.filter(|s| *s > 0.0)
        .or(sample.seconds)
        .filter(|s| *s > 0.0)
}

/// Pages swapped in per second.
pub fn pages_in_per_s(sample: &Sample) -> Option<f64> {
    Some(sample.swap_in_pages? as f64 / watched_s(sample)?)
}

/// Pages swapped out per second.
pub fn pages_out_per_s(sample: &Sample) -> Option<f64> {
    Some(sample.swap_out_pages? as f64 / watched_s(sample)?)
}

/// Swap entries allocated per second, with and without the lock.
pub fn entries_per_s(sample: &Sample) -> Option<f64> {
    let entries = sample.entries.as_ref()?;
    Some((entries.locked + entries.stocked) as f64 / watched_s(sample)?)
}

fn paging<'f>() -> Vec<Column<'f>> {
    vec![
        middle("pages in", |s| s.swap_in_pages.map(|v| v as f64), quantity),
        middle(
            "pages out",
            |s| s.swap_out_pages.map(|v| v as f64),
            quantity,
        ),
        middle("pages in /s", pages_in_per_s, quantity),
        middle("pages out /s", pages_out_per_s, quantity),
        middle("CPU user", |s| s.cpu_user_s, seconds),
        middle("CPU kernel", |s| s.cpu_system_s, seconds),
        middle("limit", |s| s.limit_bytes.map(|v| v as f64), bytes),
        middle(
            "peak memory",
            |s| s.memory_peak_bytes.map(|v| v as f64),
            bytes,
        ),
        middle("peak far", |s| s.far_peak_bytes.map(|v| v as f64), bytes),
    ]
}

fn prefetching<'f>() -> Vec<Column<'f>> {
    fn app<'h>(head: &'h str, number: impl Fn(&AppTier) -> u64 + 'h) -> Column<'h> {
        middle(
            head,
            move |s| s.app_tier.as_ref().map(|a| number(a) as f64),
            quantity,
        )
    }
    vec![
        middle(
            "prefetched",
            |s| s.prefetch.map(|p| p.issued as f64),
            quantity,
        ),
        middle("used", |s| s.prefetch.map(|p| p.used as f64), quantity),
        middle(
            "contribution",
            |s| s.prefetch.and_then(|p| p.contribution),
            share,
        ),
        middle("accuracy", |s| s.prefetch.and_then(|p| p.accuracy), share),
        app("forwarded", |a| a.forwarded),
        app("kept out", |a| a.kept_out),
        app("by arrays", |a| a.by_arrays),
        app("by links", |a| a.by_links),
        app("of them used", |a| a.by_links_used),
        app("by references", |a| a.by_refs),
        app("of them used", |a| a.by_refs_used),
        middle(
            "entries locked",
            |s| s.entries.map(|e| e.locked as f64),
            quantity,
        ),
        middle(
            "entries stocked",
            |s| s.entries.map(|e| e.stocked as f64),
            quantity,
        ),
        middle(
            "entries reserved",
            |s| s.entries.map(|e| e.reserved as f64),
            quantity,
        ),
        middle(
            "reservations dropped",
            |s| s.entries.map(|e| e.dropped as f64),
            quantity,
        ),
    ]
}

/// Columns of far memory over donors and plain TCP, and of figures that only this experiment has.
fn own_figures<'f>(ours: &[&Cell]) -> Vec<Column<'f>> {
    let all = ours.iter().flat_map(|c| &c.samples);
    let names: BTreeSet<&String> = all.flat_map(|s| s.figures.keys()).collect();
    let own = |name: &String| {
        let (head, name) = (name.replace('_', " "), name.clone());
        column(head, move |c| {
            c.median(|s| s.figures.get(&name).copied()).map(quantity)
        })
    };
    names.into_iter().map(own).collect()
}

fn donors<'f>() -> Vec<Column<'f>> {
    fn over<'h>(
        head: &'h str,
        number: impl Fn(&Far) -> Option<f64> + 'h,
        show: impl Fn(f64) -> String + 'h,
    ) -> Column<'h> {
        middle(head, move |s| number(s.far.as_ref()?), show)
    }
    vec![
        over("pool", |f| Some(f.pool_bytes as f64), bytes),
        over(
            "pages out of it",
            |f| f.pages_demoted.map(|n| n as f64),
            quantity,
        ),
        over("faults there", |f| f.faults.map(|n| n as f64), quantity),
        over("read p50", |f| Some(f.read_ns?.p50), nanoseconds),
        over(
            "read p50, measured part",
            |f| Some(f.measured_read_ns?.p50),
            nanoseconds,
        ),
        over("read p99", |f| Some(f.read_ns?.p99), nanoseconds),
        over("longest read", |f| f.read_ns?.max, nanoseconds),
        over("read ahead p50", |f| f.ahead?.p50_ns, nanoseconds),
        over("read ahead p90", |f| f.ahead?.p90_ns, nanoseconds),
        over(
            "dropped as too late",
            |f| Some(f.ahead?.dropped as f64),
            quantity,
        ),
        over(
            "waited for before they came",
            |f| Some(f.ahead?.promoted as f64),
            quantity,
        ),
        over("TCP p50, busy", |f| Some(f.tcp?.busy_ns), nanoseconds),
        over("TCP p50, asleep", |f| Some(f.tcp?.blocking_ns), nanoseconds),
        over("read over TCP", targets::far::read_over_tcp, times),
        over("read", |f| f.in_bytes.map(|n| n as f64), bytes),
        over("written", |f| f.out_bytes.map(|n| n as f64), bytes),
        middle(
            "stored bytes of a TCP stream",
            targets::far::stream_of_tcp,
            share,
        ),
        middle(
            "page bytes of a TCP stream",
            targets::far::pages_of_tcp,
            share,
        ),
        over("donors' CPU a GB", targets::far::donor_cpu_s_a_gb, seconds),
        over("agent's CPU", |f| f.agent_cpu_s, seconds),
        over("agent", |f| f.agent_peak_bytes.map(|n| n as f64), bytes),
        over("failovers", |f| f.failovers.map(|n| n as f64), quantity),
        over("repairs", |f| f.repairs.map(|n| n as f64), quantity),
        over("recovery", |f| f.recovery_s, seconds),
    ]
}

/// Bounds on the slowdown for which the far share is given.
const BOUNDS: [f64; 4] = [1.1, 1.25, 1.5, 2.0];

/// Far share of each program that ran at two limits or more.
fn far_shares(cells: &[Cell], ours: &[&Cell]) -> Markup {
    let mut seen = BTreeSet::new();
    let mut rows = Vec::new();
    for cell in ours.iter().filter(|c| limited(&c.key.variant)) {
        let key = &cell.key;
        let line = (&key.workload, &key.parameters, &key.co_run, &key.variant);
        let limits: BTreeSet<u32> = ours
            .iter()
            .filter(|c| {
                let k = &c.key;
                (&k.workload, &k.parameters, &k.co_run, &k.variant) == line
            })
            .filter_map(|c| c.key.local_percent)
            .collect();
        if limits.len() < 2 || key.co_run.is_some() || !seen.insert(line) {
            continue;
        }
        let shares = BOUNDS.map(|bound| offloadable(cells, cell, bound));
        if shares.iter().any(Option::is_some) {
            rows.push((cell, shares));
        }
    }
    if rows.is_empty() {
        return html! {};
    }
    html! {
        details {
            summary { "How much may be far" }
            p.small { "Largest share of the working set that can be far while the slowdown over all-local stays within the bound; between measured limits a straight line is assumed." }
            div.wide tabindex="0" role="region" aria-label="How much may be far" {
                table {
                    thead { tr {
                        th scope="col" { "program" } th scope="col" { "variant" }
                        @for bound in BOUNDS { th.n scope="col" { "at most " (times(bound)) } }
                    } }
                    tbody {
                        @for (cell, shares) in rows {
                            tr {
                                td { (cell.key.program()) } td { (cell.key.variant) }
                                @for value in shares {
                                    td.n { (value.map_or(NONE.into(), share)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
