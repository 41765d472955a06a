//! Targets of experiments, as data, and whether they were met.

pub mod far;
pub mod goals;
pub mod isolation;
pub mod judged;
pub mod pager;

use std::fmt::Write;

use crate::cells::Cell;
use judged::{Judged, Verdict};

/// Targets of one experiment with verdicts; empty if it has none, or was not run.
pub fn of(cells: &[Cell], experiment: &str) -> Vec<Judged> {
    if cells.iter().all(|c| c.key.experiment != experiment) {
        return Vec::new();
    }
    match experiment {
        pager::EXPERIMENT => pager::judge(cells),
        far::EXPERIMENT => far::judge(cells),
        isolation::EXPERIMENT => isolation::judge(cells),
        goals::EXPERIMENT => goals::judge(cells),
        _ => Vec::new(),
    }
}

/// Targets with verdicts of all experiments that were run.
pub fn judge(cells: &[Cell]) -> Vec<Judged> {
    let with_targets = [
        pager::EXPERIMENT,
        far::EXPERIMENT,
        isolation::EXPERIMENT,
        goals::EXPERIMENT,
    ];
    with_targets.iter().flat_map(|e| of(cells, e)).collect()
}

/// The verdicts as lines for a terminal.
pub fn text(cells: &[Cell]) -> String {
    let all = judge(cells);
    let mut text = String::new();
    for j in &all {
        let measured = j.measured.as_deref().unwrap_or("-");
        let _ = writeln!(
            text,
            "{:4}{}: {}: {measured}: {}",
            j.number,
            j.place,
            j.promise,
            j.verdict.word()
        );
    }
    if !all.is_empty() {
        let count = |v| all.iter().filter(|j| j.verdict == v).count();
        let _ = writeln!(
            text,
            "targets: {} met, {} missed, {} not measured",
            count(Verdict::Met) + count(Verdict::MetByOom),
            count(Verdict::Missed),
            count(Verdict::Unknown)
        );
    }
    text
}

#[cfg(test)]
mod tests;
