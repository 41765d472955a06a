//! `lab codec`: compares compressors over pages of real programs, on one processor.

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

/// Schema of the results.
const SCHEMA: &str = "canvas-codec/1";
/// Workloads captured by default: the patterns' data, a store, a JVM, Python, Spark.
const PROGRAMS: [&str; 5] = [
    "random-read",
    "redis-get95",
    "java",
    "sklearn-kmeans",
    "spark-lr",
];

/// Request from the command line.
#[derive(Clone, Debug)]
pub struct Request {
    /// Names of workloads; [`PROGRAMS`] if empty.
    pub names: Vec<String>,
    /// Pages to capture of each workload.
    pub pages: usize,
    /// Rounds of each measurement.
    pub rounds: u32,
    /// Size of the workloads.
    pub scale: f64,
    /// Seed of the data and of the choice of pages.
    pub seed: u64,
    /// File to append results to.
    pub out: PathBuf,
    /// Directory of downloads and generated data.
    pub cache: PathBuf,
    /// The `canvas` command.
    pub canvas: PathBuf,
    /// The `lab` command.
    pub lab: PathBuf,
    /// Command that runs the guardian.
    pub guardian: Vec<std::ffi::OsString>,
}

/// Reason why compressors cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// There is no workload of this name.
    #[error("there is no workload {0}; `lab run --list` shows all")]
    Unknown(String),
    /// The workload cannot run on this host.
    #[error(transparent)]
    Missing(WorkloadError),
    /// The workload's program failed.
    #[error("its program failed: {0}")]
    Failed(String),
    /// The program ended before its memory could be read.
    #[error("its program ended before its memory could be read; write a larger --scale")]
    Gone,
    /// The program's memory cannot be read.
    #[error("the memory of process {pid} cannot be read: {source}")]
    Memory {
        /// The process.
        pid: u32,
        /// What the system says.
        source: io::Error,
    },
    /// A compressor did not restore a page.
    #[error("{compressor} did not restore page {page}")]
    Damaged {
        /// Name of the compressor.
        compressor: String,
        /// Number of the page.
        page: usize,
    },
    /// No workload could be measured.
    #[error("no pages could be captured; the lines above say why")]
    Nothing,
    /// The results cannot be written.
    #[error("{} cannot be written: {source}", .path.display())]
    Results {
        /// Path of the file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A compressor cannot be initialised.
    #[error("a compressor cannot be made: {0}")]
    Compressor(#[source] io::Error),
    /// The measurement cannot be confined to one processor.
    #[error(transparent)]
    Confine(#[from] ConfineError),
    /// Changes to the host cannot be journalled.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A directory cannot be created.
    #[error(transparent)]
    Bench(#[from] BenchError),
}

/// A line of the results file.
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

/// Results for one program's pages.
#[derive(Serialize)]
struct Program {
    workload: String,
    /// Pages captured.
    pages: usize,
    zero_pages: usize,
    same_filled_pages: usize,
    /// Pages of data, which the fields below describe.
    data_pages: usize,
    speeds: Vec<Speed>,
    refusal: Option<Refusal>,
}

/// Measures all requested workloads. Passes one table per program to `print`, and a sentence for each
/// workload left out to `say`.
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

/// Results of a program as a table for a terminal.
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
