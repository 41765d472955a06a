//! Parser of results files.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::record::{Line, NotYet, Run, SCHEMA, Sample, Skip};

/// Contents of one or more results files, in the order of the files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Runs of the bench; at least one.
    pub runs: Vec<Run>,
    /// Samples; each belongs to one of the runs.
    pub samples: Vec<Sample>,
    /// Cells that were not run.
    pub skips: Vec<Skip>,
    /// Features that canvas does not have yet.
    pub not_yet: Vec<NotYet>,
}

/// Reason why results cannot be read, with file and line.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("{} cannot be read: {}", .path.display(), said(.source))]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is empty.
    #[error("{} is empty; give a file that `lab run` wrote", .0.display())]
    Empty(PathBuf),
    /// A line is damaged.
    #[error("{} line {line} is damaged ({why}); remove that line", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Description of the damage.
        why: String,
    },
    /// A line belongs to another kind of file.
    #[error(
        "{} line {line} is not of a results file ({what}); give a file that `lab run` wrote",
        .path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What identifies the other kind.
        what: String,
    },
    /// A run has another version of the schema.
    #[error(
        "{} line {line} has the schema {form}, and this lab reads {}; use the lab that wrote it",
        .path.display(),
        SCHEMA
    )]
    OtherForm {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Name of the version.
        form: String,
    },
    /// A line names a run that no file begins.
    #[error(
        "{} line {line} belongs to the run {run_id:?}, which no file begins; give the file with its first line too",
        .path.display()
    )]
    Orphan {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Identifier of the run.
        run_id: String,
    },
}

/// The system's message without Rust's "(os error 2)".
fn said(e: &std::io::Error) -> String {
    let text = e.to_string();
    let why = text.split(" (os error").next().unwrap_or_default();
    why.to_owned()
}

/// Fields of every line, which distinguish a foreign line from a damaged one.
#[derive(Deserialize)]
struct Head {
    kind: Option<String>,
    schema: Option<String>,
}

/// Reads files that `lab run` wrote; a line that several files have (a copy, a longer version of the same
/// file) counts once. Fails at the first file or line that cannot be read.
pub fn read(paths: &[PathBuf]) -> Result<Results, ReadError> {
    let mut results = Results::default();
    let mut seen = HashSet::new();
    let mut known = BTreeSet::new();
    // Lines that name a run, checked when all runs are known, since files come in any order.
    let mut names: Vec<(&Path, usize, String)> = Vec::new();
    for path in paths {
        let bytes = std::fs::read(path).map_err(|source| ReadError::File {
            path: path.clone(),
            source,
        })?;
        let before = results.runs.len() + names.len();
        let mut lines = 0;
        for (index, bytes) in bytes.split(|b| *b == b'\n').enumerate() {
            let number = index + 1;
            let text = std::str::from_utf8(bytes)
                .map_err(|_| damaged(path, number, "it is not text".to_owned()))?
                .trim();
            if text.is_empty() {
                continue;
            }
            lines += 1;
            let line = parse(path, number, text)?;
            if !seen.insert(text.to_owned()) {
                continue;
            }
            match line {
                Line::Run(run) => {
                    known.insert(run.run_id.clone());
                    results.runs.push(run);
                }
                Line::Sample(sample) => {
                    names.push((path, number, sample.run_id.clone()));
                    results.samples.push(*sample);
                }
                Line::Skip(skip) => {
                    names.push((path, number, skip.run_id.clone()));
                    results.skips.push(skip);
                }
                Line::NotYet(not_yet) => {
                    names.push((path, number, not_yet.run_id.clone()));
                    results.not_yet.push(not_yet);
                }
            }
        }
        if lines == 0 && results.runs.len() + names.len() == before {
            return Err(ReadError::Empty(path.clone()));
        }
    }
    for (path, line, run_id) in names {
        if !known.contains(&run_id) {
            let path = path.to_owned();
            return Err(ReadError::Orphan { path, line, run_id });
        }
    }
    Ok(results)
}

fn damaged(path: &Path, line: usize, why: String) -> ReadError {
    let path = path.to_owned();
    ReadError::Damaged { path, line, why }
}

fn parse(path: &Path, number: usize, text: &str) -> Result<Line, ReadError> {
    let foreign = |what: &str| ReadError::Foreign {
        path: path.to_owned(),
        line: number,
        what: what.to_owned(),
    };
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|e| damaged(path, number, reason(&e)))?;
    let head = Head::deserialize(&value).map_err(|_| foreign("no object with a kind"))?;
    match head.kind.as_deref() {
        None => return Err(foreign("it has no kind")),
        Some("run") if head.schema.as_deref() != Some(SCHEMA) => {
            let form = head.schema.map(|s| format!("{s:?}"));
            return Err(ReadError::OtherForm {
                path: path.to_owned(),
                line: number,
                form: form.unwrap_or_else(|| "without a name".to_owned()),
            });
        }
        Some("run" | "sample" | "skip" | "not_yet") => {}
        Some(other) => return Err(foreign(&format!("its kind is {other:?}"))),
    }
    serde_json::from_value(value).map_err(|e| damaged(path, number, reason(&e)))
}

/// The parser's message without its own line number, which is always 1: each line is parsed alone.
fn reason(e: &serde_json::Error) -> String {
    let text = e.to_string();
    match text.find(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    struct Files(PathBuf);

    impl Files {
        fn new(name: &str) -> Files {
            let dir =
                std::env::temp_dir().join(format!("canvas-read-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            Files(dir)
        }
        fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, text).unwrap();
            path
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_accumulate_and_copies_count_once() {
        let files = Files::new("accumulate");
        let (one, two) = (fixture::small("1", 1), fixture::small("2", 2));
        let a = files.write("a", fixture::text(&one));
        let b = files.write(
            "b",
            format!("{}\n{}", fixture::text(&one), fixture::text(&two)),
        );
        let both = read(&[a, b.clone()]).unwrap();
        assert_eq!(both, read(&[b]).unwrap());
        assert_eq!(both.runs.len(), 2);
        assert_eq!(both.samples.len(), one.samples.len() + two.samples.len());
        assert_eq!(both.skips, [one.skips, two.skips].concat());
        assert_eq!(both.not_yet.len(), one.not_yet.len() + two.not_yet.len());
    }

    #[test]
    fn bad_lines_get_a_sentence_with_their_number() {
        let files = Files::new("bad");
        let good = fixture::text(&fixture::small("1", 1));
        let cut = &good[..good.len() - 40];
        let lines = good.lines().count();
        let orphan = good.lines().nth(1).unwrap().replace("run-1", "elsewhere");
        let cases: [(Vec<u8>, String, &str); 10] = [
            (vec![], "is empty".into(), "`lab run` wrote"),
            (b"\n \n".to_vec(), "is empty".into(), "`lab run` wrote"),
            (cut.into(), format!("line {lines} is damaged"), "remove"),
            (
                format!("{good}\nhello\n").into(),
                format!("line {} is damaged", lines + 1),
                "remove",
            ),
            (
                b"{\"kind\":\"sample\"}".to_vec(),
                "line 1 is damaged (missing field".into(),
                "remove",
            ),
            (
                b"\xff\xfe".to_vec(),
                "line 1 is damaged (it is not text)".into(),
                "remove",
            ),
            (
                format!("{good}\n{{\"a\":1}}").into(),
                format!("line {} is not of a results file", lines + 1),
                "no kind",
            ),
            (
                b"[1]".to_vec(),
                "line 1 is not of a results file".into(),
                "no object",
            ),
            (
                good.replace(SCHEMA, "canvas-bench/99").into(),
                "line 1 has the schema \"canvas-bench/99\"".into(),
                "lab that wrote it",
            ),
            (
                format!("{good}\n{orphan}").into(),
                format!("line {} belongs to the run \"elsewhere\"", lines + 1),
                "which no file begins",
            ),
        ];
        for (bytes, want, advice) in cases {
            let path = files.write("f", &bytes);
            let error = read(&[path]).unwrap_err().to_string();
            assert!(
                error.contains(&want) && error.contains(advice),
                "{error} does not say {want:?} and {advice:?}"
            );
            assert_eq!(error.lines().count(), 1);
        }
        let error = read(&[files.0.join("absent")]).unwrap_err().to_string();
        assert!(error.contains("absent cannot be read"), "{error}");
        assert!(read(std::slice::from_ref(&files.0)).is_err(), "a directory");
    }
}
