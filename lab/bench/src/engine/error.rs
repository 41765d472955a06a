//! Errors of the bench, or of one of its runs.
//!
//! The text of each is the sentence that the user reads.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;

use crate::canvas_report::ReportError;
use crate::host::error::{CgroupError, JournalError};
use crate::variant::Variant;
use crate::workload::WorkloadError;

/// Reason why a request cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The request names nothing.
    #[error(
        "there is nothing to run; start with `lab run quick`; `lab run --list` shows \
         all"
    )]
    Nothing,
    /// A name is neither an experiment's nor a workload's.
    #[error("there is no experiment or workload {0}; `lab run --list` shows all")]
    UnknownName(String),
    /// Fewer than two workloads are to run together.
    #[error("--co-run runs the named workloads at the same time; name two or more of them")]
    NoCompany,
    /// No part of the requested experiments runs a workload named by `--with`.
    #[error(
        "--with {0}: no part of what is to run names this workload; `lab run --list` shows \
         what there is"
    )]
    NoPartWith(String),
    /// This host can run none of the variants; has the reason for the first.
    #[error("{0}")]
    NoVariantLeft(String),
    /// A workload that was named, or the first of which none is left, cannot run here.
    #[error("{workload}: {why}")]
    CannotRun {
        /// The workload.
        workload: String,
        /// The reason.
        why: NotHere,
    },
}

/// Reason why a workload cannot run here.
#[derive(Debug, thiserror::Error)]
pub enum NotHere {
    /// The registry does not have it.
    #[error("this build does not have it")]
    NotBuilt,
    /// The host lacks something that the workload needs.
    #[error(transparent)]
    Missing(#[from] WorkloadError),
}

/// Reason why lines cannot be appended to a results file.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The file cannot be opened or read.
    #[error("results cannot be written to {}: {source}", .path.display())]
    Open {
        /// Its path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is a directory, or a device.
    #[error("{} is not a regular file; write another name", .0.display())]
    NoFile(PathBuf),
    /// The file has other contents.
    #[error(
        "{} is not a results file of this bench; write another name after --out",
        .0.display()
    )]
    NotOurs(PathBuf),
    /// A line cannot be serialised.
    #[error(transparent)]
    Line(#[from] serde_json::Error),
    /// A line cannot be appended.
    #[error("the results file cannot be written: {0}")]
    Append(#[source] io::Error),
}

/// Reason why the bench, or one run of a program, ends early.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The request cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The results cannot be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// A change to the host cannot be journalled.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Memory cannot be limited.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A workload cannot be run.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The needs of a workload that the user named cannot be prepared.
    #[error("{workload}: {source}")]
    Unprepared {
        /// The workload.
        workload: String,
        /// The reason.
        source: Arc<WorkloadError>,
    },
    /// A planned workload is missing from the registry.
    #[error("the workload {0} is missing from the registry")]
    Gone(String),
    /// Signal handlers cannot be registered.
    #[error("signals cannot be received: {0}")]
    Signals(#[source] io::Error),
    /// The run's own directory cannot be created.
    #[error("{} cannot be made: {}", .template.display(), .error.desc())]
    OwnDirectory {
        /// Template of its path, as for mkdtemp(3).
        template: PathBuf,
        /// What the system says.
        error: Errno,
    },
    /// A directory cannot be created.
    #[error("{} cannot be made: {source}", .path.display())]
    Directory {
        /// Its path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another bench is running, which kernel swap would disturb.
    #[error(
        "{other}, and {variant} would disturb it; wait for its end, or leave the kernel's variants \
         out (--variants local,canvas)"
    )]
    WouldDisturb {
        /// Description of the other bench.
        other: String,
        /// The requested variant.
        variant: Box<Variant>,
    },
    /// No run ended within the time limit.
    #[error("the time was over before any run had ended; write a longer --time-max")]
    TooLittleTime,
    /// A workload's plan names no program.
    #[error("there is no program to run")]
    NoProgram,
    /// A program cannot be started.
    #[error("{program} cannot be started: {source}")]
    CannotStart {
        /// The program.
        program: String,
        /// What the system says.
        source: io::Error,
    },
    /// A program did not print an answer.
    #[error("it printed no answer as its last line, but '{0}'")]
    NoAnswer(String),
    /// The report of `canvas run` lists damage, or cannot be read.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The TCP baseline of donors cannot be measured.
    #[error("plain TCP cannot be measured: {0}")]
    Tcp(#[source] io::Error),
    /// The `canvas` command cannot be started.
    #[error("{} cannot be run: {source}", .canvas.display())]
    CannotRunCanvas {
        /// The command.
        canvas: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// `canvas keygen` failed; has its message.
    #[error("no cluster key can be made: {0}")]
    NoKey(String),
    /// A script's events went wrong; has one sentence.
    #[error("{0}")]
    Script(String),
    /// A donor does not listen; has its last message.
    #[error("a donor does not start: {0}")]
    NoDonor(String),
    /// The agent does not listen; has its last message.
    #[error("the agent does not start: {0}")]
    NoAgent(String),
}

/// Reason why a program's limit cannot be computed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NeedError {
    /// The registry does not have the workload.
    #[error("this build does not have it")]
    NotBuilt,
    /// The plain run could not be started.
    #[error(transparent)]
    NotBegun(Arc<BenchError>),
    /// The plain run failed.
    #[error("its plain run failed: {0}")]
    Failed(String),
    /// The plain run hung.
    #[error("its plain run hung")]
    Hung,
    /// The plain run ended in another way, described by a word.
    #[error("its plain run ended with {0}")]
    Ended(&'static str),
    /// The plain run was too short.
    #[error("it ended before its memory could be measured; write a larger --scale")]
    TooShort,
}
