//! `lab codec`: compressors over pages of real programs, on one processor.

mod capture;
mod compressors;
mod measure;

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::PathBuf;

use serde::Serialize;

use crate::engine::error::BenchError;
use crate::engine::own_dir;
use crate::external::error::WorkloadError;
use crate::host::error::{ConfineError, JournalError};
use crate::host::facts;
use crate::host::processors::Confined;
use crate::host::reverse::Host;
use crate::host::undo::Undo;
use crate::record::Machine;
use crate::registry;
use crate::words::{digits, share};
use crate::workload::Place;
use measure::{Refusal, Rounds, Speed};

/// Name of the form of the results.
const SCHEMA: &str = "canvas-codec/1";
/// What is captured where nothing is named: the patterns' data, a store, a JVM, Python, Spark.
const PROGRAMS: [&str; 5] = [
    "random-read",
    "redis-get95",
    "java",
    "sklearn-kmeans",
    "spark-lr",
];

/// What was asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Workloads by name; empty: [`PROGRAMS`].
    pub names: Vec<String>,
    /// Pages of each.
    pub pages: usize,
    /// Rounds of each measurement.
    pub rounds: u32,
    /// Size of the workloads.
    pub scale: f64,
    /// Seed of data, and of which pages are taken.
    pub seed: u64,
    /// Where results are appended.
    pub out: PathBuf,
    /// Downloads and data that stay.
    pub cache: PathBuf,
    /// The `canvas` command.
    pub canvas: PathBuf,
    /// The `lab` command.
    pub lab: PathBuf,
    /// Command that comes to the guardian.
    pub guardian: Vec<std::ffi::OsString>,
}

/// Why compressors are not measured.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// No workload has the name.
    #[error("there is no workload {0}; `lab run --list` shows all")]
    Unknown(String),
    /// The workload cannot run here.
    #[error(transparent)]
    Missing(WorkloadError),
    /// Its program failed.
    #[error("its program failed: {0}")]
    Failed(String),
    /// It had no memory to look at.
    #[error("its program ended before its memory was looked at; a larger --scale makes it longer")]
    Gone,
    /// Its memory cannot be read.
    #[error("the memory of process {pid} cannot be read: {source}")]
    Memory {
        /// The process.
        pid: u32,
        /// What the system says.
        source: io::Error,
    },
    /// A compressor lost a page.
    #[error("{compressor} did not bring page {page} back as it was")]
    Damaged {
        /// Its name.
        compressor: String,
        /// Number of the page.
        page: usize,
    },
    /// Nothing was measured.
    #[error("no program's pages could be had")]
    Nothing,
    /// The results cannot be written.
    #[error("{} cannot be written: {source}", .path.display())]
    Results {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A compressor cannot be made.
    #[error("a compressor cannot be made: {0}")]
    Compressor(#[source] io::Error),
    /// One processor cannot be had.
    #[error(transparent)]
    Confine(#[from] ConfineError),
    /// Changes of the host cannot be written down.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A directory cannot be made.
    #[error(transparent)]
    Bench(#[from] BenchError),
}

/// A line of the results.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Line<'a> {
    Run {
        schema: &'static str,
        machine: &'a Machine,
        seed: u64,
        scale: f64,
        rounds: u32,
    },
    Program(&'a Program),
    Skip {
        workload: &'a str,
        reason: String,
    },
}

/// What was found of one program's pages.
#[derive(Serialize)]
struct Program {
    workload: String,
    /// Pages that were looked at.
    pages: usize,
    zero_pages: usize,
    same_filled_pages: usize,
    /// Pages of data, which all below is of.
    data_pages: usize,
    speeds: Vec<Speed>,
    refusal: Option<Refusal>,
}

/// Measures; tables go to `print`, one a program, sentences of what is left out to `say`.
pub fn run(request: &Request, print: impl Fn(&str), say: impl Fn(&str)) -> Result<(), CodecError> {
    let all = registry::workloads();
    let names: Vec<&str> = match request.names.is_empty() {
        true => PROGRAMS.to_vec(),
        false => request.names.iter().map(String::as_str).collect(),
    };
    for name in &names {
        registry::find(&all, name).ok_or_else(|| CodecError::Unknown((*name).to_owned()))?;
    }
    let fail = |source| CodecError::Results {
        path: request.out.clone(),
        source,
    };
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&request.out)
        .map_err(fail)?;
    let mut write = |line: &Line| {
        let text = serde_json::to_string(line).map_err(io::Error::from);
        text.and_then(|text| writeln!(file, "{text}")).map_err(fail)
    };
    std::fs::create_dir_all(&request.cache).map_err(|source| BenchError::Directory {
        path: request.cache.clone(),
        source,
    })?;
    let undo = Undo::begin(&Host, &request.guardian)?;
    let scratch = own_dir(&std::env::temp_dir(), &undo)?;
    write(&Line::Run {
        schema: SCHEMA,
        machine: &facts::machine(&request.canvas),
        seed: request.seed,
        scale: request.scale,
        rounds: request.rounds,
    })?;
    let mut measured = false;
    for (number, name) in names.into_iter().enumerate() {
        let Some(workload) = registry::find(&all, name) else {
            continue;
        };
        let place = Place {
            cache: request.cache.clone(),
            scratch: crate::engine::run_dir(&scratch, number as u32)?,
            scale: request.scale,
            seed: request.seed,
            canvas: request.canvas.clone(),
            lab: request.lab.clone(),
            huge_pages: false,
        };
        let pages = match capture::capture(workload, &place, request.pages, &undo) {
            Ok(pages) => pages,
            Err(e) => {
                say(&format!("skipped: {name}: {e}"));
                let reason = e.to_string();
                write(&Line::Skip {
                    workload: name,
                    reason,
                })?;
                continue;
            }
        };
        let program = program(name, pages, request.rounds)?;
        print(&table(&program));
        write(&Line::Program(&program))?;
        measured = true;
    }
    if measured {
        Ok(())
    } else {
        Err(CodecError::Nothing)
    }
}

fn program(
    name: &str,
    pages: Vec<canvas_types::PageBuf>,
    rounds: u32,
) -> Result<Program, CodecError> {
    let _one = Confined::to_one()?;
    let count = pages.len();
    let sorted = measure::sort(pages);
    let mut speeds = Vec::new();
    for mut compressor in compressors::all().map_err(CodecError::Compressor)? {
        let got = measure::speed(compressor.as_mut(), &sorted.data, rounds);
        speeds.extend(got.map_err(|page| CodecError::Damaged {
            compressor: compressor.name(),
            page,
        })?);
    }
    Ok(Program {
        workload: name.to_owned(),
        pages: count,
        zero_pages: sorted.zero,
        same_filled_pages: sorted.same_filled,
        data_pages: sorted.data.len(),
        speeds,
        refusal: measure::refusal(&sorted.data, rounds),
    })
}

fn ns(rounds: Option<Rounds>) -> String {
    rounds.map_or("-".to_owned(), |r| {
        format!("{:.0} ({:.0})", r.median, r.best)
    })
}

/// For a terminal.
fn table(p: &Program) -> String {
    let mut text = format!(
        "{}: {} pages, of which {} of zeros, {} of one value; the other {}, ns a page, median (best):\n",
        p.workload, p.pages, p.zero_pages, p.same_filled_pages, p.data_pages
    );
    let _ = writeln!(
        text,
        "  {:22} {:>16} {:>14} {:>7} {:>8} {:>8}",
        "compressor", "out", "in", "ratio", "in slots", "raw"
    );
    for s in &p.speeds {
        let _ = writeln!(
            text,
            "  {:22} {:>16} {:>14} {:>7} {:>8} {:>8}",
            s.compressor,
            ns(Some(s.out_ns)),
            ns(s.in_ns),
            digits(s.ratio),
            digits(s.ratio_in_slots),
            share(s.raw_share)
        );
    }
    if let Some(r) = &p.refusal {
        let _ = writeln!(
            text,
            "  {} do not shrink enough; lz4 takes {} for one, {} of its time",
            share(r.share),
            ns(r.ns),
            share(r.time_share)
        );
        for f in &r.foresight {
            let _ = writeln!(
                text,
                "  {:36} {:>12}: refuses {} of them, {} of the others; a page out then {:.0}",
                f.predictor,
                ns(Some(f.ns)),
                f.found_share.map_or("-".to_owned(), share),
                share(f.wrong_share),
                f.out_ns
            );
        }
    }
    text
}
