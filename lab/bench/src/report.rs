//! `lab report`: makes one page from results files.
//!
//! The page is self-contained: no scripts, no fonts, no requests; its content security policy forbids them,
//! so that even a name with missing escapes could not run.

mod beside;
mod figures;
mod palette;
mod plot;
mod summary;
mod tables;

use std::collections::{BTreeMap, BTreeSet};

use maud::{DOCTYPE, Markup, PreEscaped, html};
use time::OffsetDateTime;
use time::macros::format_description;

use crate::cells::{Cell, gather};
use crate::read::Results;
use crate::record::{NotYet, Run, Skip};
use crate::targets::{self, judged::Judged};
use crate::words::{bytes, count, digits};
use figures::{Figure, Group};
use palette::Palette;

const STYLE: &str = include_str!("report/style.css");
/// Allows only the styles in the page itself.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// Comparable runs with their contents.
struct Setting<'a> {
    runs: Vec<&'a Run>,
    cells: Vec<Cell<'a>>,
    skips: Vec<&'a Skip>,
    not_yet: Vec<&'a NotYet>,
}

/// Runs are comparable if these are equal.
fn identity(run: &Run) -> impl Ord + use<> {
    let m = &run.machine;
    (
        (m.cpu.clone(), m.cpus, m.kernel.clone(), m.cgroup_version),
        // The reported memory varies by some pages from boot to boot.
        (m.memory_bytes + (1 << 29)) >> 30,
        (run.canvas_version.clone(), run.scale.to_bits(), run.seed),
    )
}

fn settings(results: &Results) -> Vec<Setting<'_>> {
    let mut by_identity = BTreeMap::new();
    for run in &results.runs {
        by_identity
            .entry(identity(run))
            .or_insert_with(Vec::new)
            .push(run);
    }
    let mut settings: Vec<Setting> = by_identity
        .into_values()
        .map(|runs| {
            let ids: BTreeSet<&str> = runs.iter().map(|r| r.run_id.as_str()).collect();
            let ours = |id: &String| ids.contains(id.as_str());
            Setting {
                cells: gather(results.samples.iter().filter(|s| ours(&s.run_id))),
                skips: results.skips.iter().filter(|s| ours(&s.run_id)).collect(),
                not_yet: results.not_yet.iter().filter(|n| ours(&n.run_id)).collect(),
                runs,
            }
        })
        .collect();
    settings.sort_by_key(|s| s.runs.iter().map(|r| r.started_unix_s).min());
    settings
}

/// Makes the page.
pub fn html(results: &Results) -> String {
    let settings = settings(results);
    let several = settings.len() > 1;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width,initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "canvas in the laboratory" }
                style { (PreEscaped(STYLE)) (PreEscaped(palette::css())) }
            }
            body {
                header {
                    h1 { "canvas in the laboratory" }
                    p.small { "Programs with less local memory than they use: under canvas, under the kernel's swap, and all in memory." }
                }
                @if results.samples.is_empty() {
                    main { p { "No program was run: the results have no sample." } }
                }
                @for (n, setting) in settings.iter().enumerate() {
                    (one_setting(n, setting, several))
                }
                footer {
                    "Medians over repeats; brackets: first and third quartile, or the 95 % interval (bootstrap) of a ratio of medians. "
                    "▲ and ▼: the interval leaves out 1. A page is 4 KiB."
                }
            }
        }
    };
    // Names and reasons may have control characters (escape codes of a failed program), which are removed.
    page.into_string()
        .chars()
        .map(|c| match c {
            '\n' | '\t' => c,
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect()
}

fn one_setting(number: usize, setting: &Setting, several: bool) -> Markup {
    let mut palette = Palette::default();
    // Variants get the first colours, however many parameters there are.
    for cell in &setting.cells {
        palette.style(&cell.key.variant, "");
    }
    let experiments = experiments(setting);
    let anchor = |e: usize| format!("s{number}e{e}");
    html! {
        @if experiments.len() > 1 {
            nav aria-label="Experiments" {
                @for (e, experiment) in experiments.iter().enumerate() {
                    a href={ "#" (anchor(e)) } { (experiment) } " "
                }
            }
        }
        main {
            h2 {
                "Summary"
                @if several { ": machine, version and size no. " (number + 1) }
            }
            (machine(&setting.runs))
            (summary::of(&setting.cells, &setting.skips, &setting.not_yet))
            @for (e, experiment) in experiments.iter().enumerate() {
                section {
                    h2 id=(anchor(e)) { (experiment) @if several { " (no. " (number + 1) ")" } }
                    (one_experiment(setting, experiment, &mut palette))
                }
            }
        }
    }
}

/// Names of experiments in the order of their first samples, then those that were not run.
fn experiments<'s>(setting: &'s Setting) -> Vec<&'s str> {
    let mut first: BTreeMap<&str, (&str, f64)> = BTreeMap::new();
    for sample in setting.cells.iter().flat_map(|c| &c.samples) {
        let this = (sample.run_id.as_str(), sample.at_s);
        let known = first.entry(&sample.experiment).or_insert(this);
        if this.0 < known.0 || (this.0 == known.0 && this.1 < known.1) {
            *known = this;
        }
    }
    let mut names: Vec<&str> = first.keys().copied().collect();
    names.sort_by(|a, b| {
        let (a, b) = (first[a], first[b]);
        a.0.cmp(b.0).then(a.1.total_cmp(&b.1))
    });
    // Experiments that need a missing feature still show their paper's numbers.
    for waiting in &setting.not_yet {
        let name = waiting.experiment.as_str();
        if beside::mirrors(name) && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn one_experiment(setting: &Setting, experiment: &str, palette: &mut Palette) -> Markup {
    let measured = setting.cells.iter().any(|c| c.key.experiment == experiment);
    let groups = figures::of(&setting.cells, experiment, palette);
    let absent: Vec<&str> = groups
        .iter()
        .filter(|g| g.figures.is_empty())
        .map(|g| g.absent)
        .collect();
    html! {
        @for waiting in setting.not_yet.iter().filter(|n| n.experiment == experiment) {
            p { b { "Left out: " } (waiting.waits_for) }
        }
        @if measured {
            @for group in &groups { (plots(group)) }
            @if !absent.is_empty() {
                p.small { "Not plotted, because nothing of it was recorded: " (absent.join("; ")) "." }
            }
            (target_table(&targets::of(&setting.cells, experiment)))
            (tables::of(&setting.cells, experiment))
        }
        (beside::of(&setting.cells, experiment))
    }
}

fn target_table(all: &[Judged]) -> Markup {
    if all.is_empty() {
        return html! {};
    }
    html! {
        h3 { "Targets" }
        p.small { "Targets at scale 1, and the figures measured. “No bound”: the figure has no target." }
        div.wide tabindex="0" role="region" aria-label="Targets" {
            table {
                thead { tr {
                    th scope="col" { "no." } th scope="col" { "program" } th scope="col" { "promise" }
                    th.n scope="col" { "measured" } th scope="col" { "verdict" }
                } }
                tbody {
                    @for judged in all {
                        tr {
                            td { (judged.number) } td { (judged.place) } td { (judged.promise) }
                            td.n { (judged.measured.as_deref().unwrap_or("–")) }
                            td { (judged.verdict.word()) }
                        }
                    }
                }
            }
        }
    }
}

fn plots(group: &Group) -> Markup {
    html! {
        @if !group.figures.is_empty() {
            h3 { (group.heading) }
            p.small { (group.explain) }
            div.plots { @for figure in &group.figures { (plot(figure)) } }
        }
    }
}

fn plot(figure: &Figure) -> Markup {
    html! {
        figure {
            figcaption { (figure.title) }
            @match &figure.drawing {
                Ok(svg) => {
                    ul.legend {
                        @for (name, style) in &figure.legend {
                            li { i.(style.class()).dashed[style.dashed] {} (name) }
                        }
                    }
                    // Plotters has escaped the text.
                    (PreEscaped(svg))
                }
                Err(sentence) => { p { (sentence) } }
            }
            @for sentence in &figure.beside { p.small { (sentence) } }
        }
    }
}

fn machine(runs: &[&Run]) -> Markup {
    let Some(last) = runs.last() else {
        return html! {};
    };
    let m = &last.machine;
    let features: Vec<String> = m.features.iter().map(|(k, v)| format!("{k} {v}")).collect();
    let called: BTreeSet<String> = runs.iter().map(|r| r.argv.join(" ")).collect();
    let loads: Vec<String> = runs
        .iter()
        .map(|r| digits(r.machine.load_average))
        .collect();
    let mut dates: Vec<u64> = runs.iter().map(|r| r.started_unix_s).collect();
    dates.sort_unstable();
    html! {
        dl.machine {
            dt { "machine" }
            dd {
                (m.cpus) " × " (m.cpu) ", " (bytes(m.memory_bytes as f64))
                @if m.is_virtual { ", virtual" }
            }
            dt { "kernel" }
            dd {
                (m.kernel)
                @match m.cgroup_version {
                    Some(v) => { ", cgroup v" (v) }
                    None => { ", no memory cgroup" }
                }
            }
            @if !features.is_empty() { dt { "settings" } dd { (features.join(", ")) } }
            dt { "canvas" } dd { (last.canvas_version) }
            dt { "size" } dd { "scale " (last.scale) ", " (count(last.repeats as usize, "repeat")) ", seed " (last.seed) }
            dt { "run" }
            dd {
                (count(runs.len(), "run")) ", "
                @match (dates.first(), dates.last()) {
                    (Some(a), Some(b)) if date(*a) != date(*b) => { (date(*a)) " to " (date(*b)) }
                    (Some(a), _) => { (date(*a)) }
                    _ => {}
                }
                "; load at the beginning " (loads.join(", "))
            }
            dt { "called" } dd { @for line in &called { div { code { (line) } } } }
        }
    }
}

/// Date and minute, UTC.
fn date(unix_s: u64) -> String {
    i64::try_from(unix_s)
        .ok()
        .and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok())
        .and_then(|t| {
            t.format(format_description!(
                "[year]-[month]-[day] [hour]:[minute] UTC"
            ))
            .ok()
        })
        .unwrap_or_else(|| "an unknown date".into())
}

#[cfg(test)]
mod tests;
