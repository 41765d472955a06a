//! The results file: JSON lines, each appended before the next run begins.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use super::error::ResultsError;
use crate::record::{Line, SCHEMA};

/// A results file open for appending.
pub struct Results {
    file: File,
}

impl Results {
    /// Opens or creates the file. Fails if it has other contents.
    pub fn open(path: &Path) -> Result<Results, ResultsError> {
        let fail = |source| ResultsError::Open {
            path: path.to_owned(),
            source,
        };
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .map_err(fail)?;
        if !file.metadata().map_err(fail)?.is_file() {
            return Err(ResultsError::NoFile(path.to_owned()));
        }
        let mut first = String::new();
        let mut reader = BufReader::new(&file);
        // A file that is not UTF-8 has other contents.
        let read = reader.read_line(&mut first);
        let ours = match read {
            Ok(0) => true,
            Ok(_) => {
                matches!(serde_json::from_str(&first), Ok(Line::Run(run)) if run.schema == SCHEMA)
            }
            Err(_) => false,
        };
        if !ours {
            return Err(ResultsError::NotOurs(path.to_owned()));
        }
        Ok(Results { file })
    }

    /// Appends one line.
    pub fn add(&mut self, line: &Line) -> Result<(), ResultsError> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        // A single write, so that a bench that dies leaves complete lines.
        self.file
            .write_all(text.as_bytes())
            .map_err(ResultsError::Append)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::NotYet;

    #[test]
    fn lines_accumulate_and_other_files_are_refused() {
        let dir = std::env::temp_dir().join(format!("bench-test-results-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let other = dir.join("other");
        std::fs::write(&other, "{\"kind\":\"machine\"}\n").unwrap();
        assert!(Results::open(&other).is_err_and(|e| e.to_string().contains("not a results file")));
        std::fs::write(&other, [0xff, 0xfe, b'\n']).unwrap();
        assert!(Results::open(&other).is_err());
        assert!(Results::open(&dir).is_err());
        let path = dir.join("r.jsonl");
        let run = Line::Run(crate::engine::run_line(
            &crate::engine::tests::request(&[]),
            "id",
            Default::default(),
            1.0,
            3,
        ));
        let line = Line::NotYet(NotYet {
            run_id: "id".to_owned(),
            experiment: "e".to_owned(),
            waits_for: "w".to_owned(),
        });
        for _ in 0..2 {
            let mut r = Results::open(&path).unwrap();
            r.add(&run).unwrap();
            r.add(&line).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Line> = text
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        assert_eq!(lines, [run.clone(), line.clone(), run, line]);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
