//! `lab compare OLD NEW`: is the new one faster, and how sure is that?

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::cells::{Cell, Key, SEED, Unit, gather};
use crate::read::{self, ReadError, Results};
use crate::record::{Outcome, Sample};
use crate::stats::{Ratio, Verdict, median, ratio_of_medians};
use crate::words::{quantity, seconds};

/// Cells of one file by scale and key: other sizes are other programs.
type Side<'a> = BTreeMap<(String, Key), Cell<'a>>;

/// Reason why two results files cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file has no samples.
    #[error("{} has no samples to compare; let `lab run` finish first", .0.display())]
    NoSample(PathBuf),
}

/// Compares two results files cell by cell; returns a table with notes, ready to print. Ratios are of speeds,
/// new over old: above 1 the new one is faster. Fails if a file cannot be read or has no samples.
pub fn run(old: &Path, new: &Path) -> Result<String, CompareError> {
    let old_results = read::read(&[old.to_path_buf()])?;
    let new_results = read::read(&[new.to_path_buf()])?;
    let (before, after) = (side(&old_results), side(&new_results));
    for (path, cells) in [(old, &before), (new, &after)] {
        if cells.is_empty() {
            return Err(CompareError::NoSample(path.to_owned()));
        }
    }
    let mut text = settings(&old_results, &new_results);
    let mut rows = vec![Row::header()];
    let mut tally: BTreeMap<&str, usize> = BTreeMap::new();
    let mut notes = Vec::new();
    for (key, cell) in &before {
        let Some(other) = after.get(key) else {
            notes.push(format!("only in OLD: {}", key.1));
            continue;
        };
        let (row, verdict) = Row::of(cell, other);
        *tally.entry(verdict).or_default() += 1;
        rows.push(row);
        rows.extend(Row::of_figures(cell, other));
        for (side, cell) in [("OLD", cell), ("NEW", other)] {
            if let Some(bad) = endings(cell) {
                notes.push(format!("{side}: {}: {bad}", key.1));
            }
        }
    }
    for key in after.keys().filter(|k| !before.contains_key(*k)) {
        notes.push(format!("only in NEW: {}", key.1));
    }
    if rows.len() == 1 {
        text += "No cell is in both files.\n";
    } else {
        text += &table(&rows);
        let counts: Vec<String> = tally.iter().map(|(v, n)| format!("{n} {v}")).collect();
        text += &format!("\n{}.\n", counts.join(", "));
        text += "Ratios are of speeds, new over old; in brackets, where the ratio lies with 95 % confidence. Of twenty cells without any difference one falls outside by chance.\n";
    }
    for note in notes {
        text += &note;
        text.push('\n');
    }
    Ok(text)
}

fn side(results: &Results) -> Side<'_> {
    let mut scales: BTreeMap<String, Vec<&Sample>> = BTreeMap::new();
    for sample in &results.samples {
        let scale = results.runs.iter().find(|r| r.run_id == sample.run_id);
        let scale = scale.map_or_else(String::new, |r| r.scale.to_string());
        scales.entry(scale).or_default().push(sample);
    }
    let mut cells = BTreeMap::new();
    for (scale, samples) in scales {
        for cell in gather(samples) {
            cells.insert((scale.clone(), cell.key.clone()), cell);
        }
    }
    cells
}

/// Machines of both sides, and a warning for each difference.
fn settings(old: &Results, new: &Results) -> String {
    let mut text = String::new();
    type Ask = fn(&crate::record::Run) -> String;
    let questions: [(&str, Ask); 5] = [
        ("machines", |r| {
            let m = &r.machine;
            format!(
                "{} x {}, {} GiB",
                m.cpus,
                m.cpu,
                (m.memory_bytes + (1 << 29)) >> 30
            )
        }),
        ("kernels", |r| r.machine.kernel.clone()),
        ("scales", |r| r.scale.to_string()),
        ("seeds", |r| r.seed.to_string()),
        ("cgroup versions", |r| {
            r.machine
                .cgroup_version
                .map_or("none".into(), |v| v.to_string())
        }),
    ];
    for (what, ask) in questions {
        let all =
            |results: &Results| -> BTreeSet<String> { results.runs.iter().map(ask).collect() };
        let (a, b) = (all(old), all(new));
        if a != b || a.len() > 1 {
            let list = |set: BTreeSet<String>| set.into_iter().collect::<Vec<_>>().join("; ");
            text += &format!("warning: other {what}: OLD {}, NEW {}\n", list(a), list(b));
        }
    }
    let versions = |results: &Results| -> String {
        let set: BTreeSet<&str> = results
            .runs
            .iter()
            .map(|r| r.canvas_version.as_str())
            .collect();
        set.into_iter().collect::<Vec<_>>().join("; ")
    };
    text + &format!("canvas {} against {}\n\n", versions(old), versions(new))
}

/// Description of the runs that did not end well.
fn endings(cell: &Cell) -> Option<String> {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for sample in &cell.samples {
        let what = match &sample.outcome {
            Outcome::Ok => continue,
            Outcome::Oom => "out of memory".to_owned(),
            Outcome::Timeout => "timed out".to_owned(),
            Outcome::Wrong => "WRONG answer".to_owned(),
            Outcome::Failed(why) => format!("failed ({})", why.replace('\n', " ")),
        };
        *kinds.entry(what).or_default() += 1;
    }
    let all = cell.samples.len();
    let list: Vec<String> = kinds
        .iter()
        .map(|(what, n)| format!("{n} of {all} {what}"))
        .collect();
    (!list.is_empty()).then(|| list.join(", "))
}

/// Texts of one table row.
struct Row([String; 6]);

impl Row {
    fn header() -> Row {
        Row(["cell", "old", "new", "ratio", "95 %", "verdict"].map(str::to_owned))
    }

    fn of(old: &Cell, new: &Cell) -> (Row, &'static str) {
        let ratio = new.speed_over(old);
        let verdict = match ratio.map(|r| r.verdict()) {
            None => "not comparable",
            Some(Verdict::Faster) => "faster",
            Some(Verdict::Slower) => "slower",
            Some(Verdict::NoDifference) => "no difference seen",
            Some(Verdict::TooFew) => "too few repeats",
        };
        let row = Row([
            old.key.to_string(),
            figure(old),
            figure(new),
            ratio.map_or("-".into(), |r| format!("{:.3}", r.ratio)),
            bounds(ratio),
            verdict.to_owned(),
        ]);
        (row, verdict)
    }

    /// A row for each figure that only this experiment has, if both sides have it. Does not say whether more
    /// is better.
    fn of_figures(old: &Cell, new: &Cell) -> Vec<Row> {
        let names: BTreeSet<&String> = old.good().flat_map(|s| s.figures.keys()).collect();
        let row = |name: &String| {
            let values = |cell: &Cell| cell.values(|s| s.figures.get(name).copied());
            let (before, after) = (values(old), values(new));
            let (a, b) = (median(&before)?, median(&after)?);
            let ratio = ratio_of_medians(&after, &before, SEED);
            let verdict = match ratio.map(|r| r.verdict()) {
                None => "-",
                Some(Verdict::Faster) => "more",
                Some(Verdict::Slower) => "less",
                Some(Verdict::NoDifference) => "no difference seen",
                Some(Verdict::TooFew) => "too few repeats",
            };
            Some(Row([
                format!("  {name}"),
                quantity(a),
                quantity(b),
                ratio.map_or("-".into(), |r| format!("{:.3}", r.ratio)),
                bounds(ratio),
                verdict.to_owned(),
            ]))
        };
        names.into_iter().filter_map(row).collect()
    }
}

/// The confidence interval of a ratio.
fn bounds(ratio: Option<Ratio>) -> String {
    let bounds = ratio.and_then(|r| r.bounds);
    bounds.map_or("-".into(), |(a, b)| format!("[{a:.3}, {b:.3}]"))
}

fn figure(cell: &Cell) -> String {
    match cell.spread() {
        None => "-".into(),
        Some((Unit::OpsPerS, s)) => format!("{}/s", quantity(s.median)),
        Some((Unit::Seconds, s)) => seconds(s.median),
    }
}

/// Aligns the columns; numbers to the right.
fn table(rows: &[Row]) -> String {
    let width = |column: usize| {
        rows.iter()
            .map(|r| r.0[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    let mut text = String::new();
    for Row(row) in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            if (1..5).contains(&column) {
                line += &format!("{pad}{cell}  ");
            } else {
                line += &format!("{cell}{pad}  ");
            }
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::variant::Variant;

    fn compare(name: &str, old: &Results, new: &Results) -> Result<String, String> {
        let dir =
            std::env::temp_dir().join(format!("canvas-compare-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (a, b) = (dir.join("old.jsonl"), dir.join("new.jsonl"));
        std::fs::write(&a, fixture::text(old)).unwrap();
        std::fs::write(&b, fixture::text(new)).unwrap();
        let result = run(&a, &b).map_err(|e| e.to_string());
        std::fs::remove_dir_all(&dir).unwrap();
        result
    }

    fn line<'t>(text: &'t str, part: &str) -> &'t str {
        text.lines()
            .find(|l| l.contains(part))
            .unwrap_or_else(|| panic!("no line with {part:?} in\n{text}"))
    }

    #[test]
    fn the_same_file_twice_shows_no_difference() {
        let one = fixture::small("1", 1);
        let text = compare("same", &one, &one).unwrap();
        assert!(!text.contains("warning"), "{text}");
        assert!(!text.contains("only in"), "{text}");
        let rows = text
            .lines()
            .filter(|l| l.ends_with("  no difference seen"))
            .count();
        let cells = gather(&one.samples).len();
        assert_eq!(rows, cells, "{text}");
        assert!(
            text.contains(&format!("\n{cells} no difference seen.")),
            "{text}"
        );
    }

    #[test]
    fn each_difference_is_seen() {
        let old = fixture::small("1", 1);
        let mut new = old.clone();
        new.runs[0].scale = 1.0;
        new.runs[0].machine.kernel = "7.0.0".into();
        new.samples.retain(|s| s.variant != Variant::Disk);
        for s in &mut new.samples {
            if s.variant == Variant::Canvas(vec![]) {
                let factor = if s.workload == "xgboost" { 0.5 } else { 2.0 };
                s.ops_per_s = s.ops_per_s.map(|v| v * factor);
            }
            if s.variant == Variant::Zram && s.repeat == 0 {
                s.outcome = Outcome::Wrong;
            }
        }
        let mut extra = new.samples[0].clone();
        extra.workload = "snappy".into();
        new.samples.push(extra);
        let text = compare("differ", &old, &new).unwrap();
        assert!(line(&text, "warning").contains("kernels: OLD 6.18.0, NEW 7.0.0"));
        let row = line(&text, "quick: redis-ycsb-a at 25 %, canvas ");
        assert!(row.ends_with("faster") && row.contains("2.000"), "{row}");
        let row = line(&text, "quick: xgboost at 25 %, canvas ");
        assert!(row.ends_with("slower") && row.contains("0.500"), "{row}");
        assert!(line(&text, "quick: xgboost at 25 %, zram ").ends_with("too few repeats"));
        assert!(text.contains("NEW: quick: xgboost at 25 %, zram: 1 of 3 WRONG answer"));
        assert!(text.contains("only in OLD: quick: xgboost at 50 %, disk"));
        assert!(text.contains("only in NEW: quick: snappy, local"));
    }

    #[test]
    fn figures_of_an_experiment_are_compared_by_name() {
        let mut old = fixture::small("1", 1);
        for s in &mut old.samples {
            s.figures.insert("lent_mib".into(), 100.0);
        }
        let mut new = old.clone();
        for s in &mut new.samples {
            s.figures.insert("lent_mib".into(), 300.0);
        }
        let text = compare("figures", &old, &new).unwrap();
        let row = line(&text, "  lent_mib");
        assert!(row.contains("3.000") && row.ends_with("more"), "{row}");
        let same = compare("same-figures", &old, &old).unwrap();
        assert!(
            line(&same, "  lent_mib").ends_with("no difference seen"),
            "{same}"
        );
    }

    #[test]
    fn other_scales_are_other_cells() {
        let old = fixture::small("1", 1);
        let mut new = old.clone();
        new.runs[0].scale = 0.5;
        let text = compare("scale", &old, &new).unwrap();
        assert!(text.contains("warning: other scales: OLD 1, NEW 0.5"));
        assert!(text.contains("No cell is in both files."), "{text}");
    }

    #[test]
    fn nothing_to_compare_is_a_sentence() {
        let one = fixture::small("1", 1);
        let mut none = one.clone();
        none.samples.clear();
        let error = compare("none", &one, &none).unwrap_err();
        assert!(error.contains("new.jsonl has no sample"), "{error}");
    }
}
