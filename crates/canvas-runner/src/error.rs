//! Why a run does not begin, or cannot go on; and why it is not changed.
//!
//! The text of each is the sentence that its user reads.

use std::io;
use std::path::PathBuf;

use canvas_control::hello::MessageError;
use canvas_control::peers::MetricsError;
use canvas_control::text::reason;
use canvas_types::exit;
use nix::errno::Errno;

use crate::mode::ModeError;
use crate::numa::NumaError;
use crate::options::THREAD_MODE_SHARES_NOTHING;
use crate::preload::ENV_PRELOAD_SO;
use crate::program::Unmanaged;

/// Why `canvas run` fails.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program's name has nothing in it.
    #[error("the program's name is empty; write it after the flags")]
    NoName,
    /// There is no such file.
    #[error("there is no program {}", .0.display())]
    NoProgram(PathBuf),
    /// There is no such file in PATH.
    #[error("there is no program {} in PATH", .0.display())]
    NotInPath(PathBuf),
    /// The file is there.
    #[error("{} cannot be executed: {why}", .file.display())]
    CannotExecute {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// It has to be managed, and cannot be.
    #[error("{program} {why}, so it cannot be managed; leave out --require to run it all the same")]
    Unmanaged {
        /// CMD.
        program: String,
        /// Why not.
        why: Unmanaged,
    },
    /// The mode that was asked for does not work here, or none does.
    #[error(transparent)]
    Mode(#[from] ModeError),
    /// Memory that forks share cannot be managed in this mode.
    #[error("{}", THREAD_MODE_SHARES_NOTHING)]
    SharedInThreadMode,
    /// The library that was named cannot be read.
    #[error("{}={} cannot be read: {}", ENV_PRELOAD_SO, .path.display(), reason(.source))]
    LibraryUnreadable {
        /// Where it was to be.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// This binary has none.
    #[error(
        "this binary was built without its library (CANVAS_SKIP_PRELOAD); build it again, or name one with {}",
        ENV_PRELOAD_SO
    )]
    NoLibrary,
    /// The library cannot be put where the program finds it.
    #[error("the library cannot be put into memory: {}", reason(.0))]
    LibraryFile(#[source] io::Error),
    /// Files of so many MiB may not be made.
    #[error(
        "canvas needs memory files of {0} MiB, which the limit on file sizes forbids; raise it (ulimit -f)"
    )]
    FileLimit(u64),
    /// A file of so many GiB may not be made.
    #[error(
        "far memory needs a shared area of {0:.1} GiB, which the limit on file sizes forbids; raise it (ulimit -f)"
    )]
    FarLimit(f64),
    /// Pages cannot go to a NUMA node.
    #[error(transparent)]
    Numa(#[from] NumaError),
    /// Far memory cannot be prepared.
    #[error("far memory: {what}: {}", .source.desc())]
    Far {
        /// What fails.
        what: &'static str,
        /// What the system says.
        source: Errno,
    },
    /// The disk copy of far memory has no place.
    #[error(
        "far memory cannot be kept in {}: {}; write another directory: --to disk:DIR",
        .dir.display(),
        reason(.source)
    )]
    FarDir {
        /// The directory.
        dir: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no use in the host's agent.
    #[error(
        "the agent at {} cannot be used: {source}; start one with `canvas agent`, or do without one",
        .path.display()
    )]
    Agent {
        /// Where it listens.
        path: PathBuf,
        /// Why.
        source: AgentError,
    },
    /// The report has no place.
    #[error("the report cannot be written to {}: {}", .path.display(), reason(.source))]
    Report {
        /// Its file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The trace has no place.
    #[error("the trace cannot be written to {}: {}", .path.display(), reason(.source))]
    Trace {
        /// Its file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The recordings have no place, or lie in a file that is somebody else's.
    #[error("-o learn={}: {why}", .path.display())]
    Learn {
        /// Its file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The metrics have no place.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The kernel refuses something.
    #[error("{what}: {}", .source.desc())]
    System {
        /// What does not happen for it.
        what: &'static str,
        /// What the system says.
        source: Errno,
    },
    /// The program was started, and its end cannot be waited for.
    #[error("{program} cannot be waited for: {}", .source.desc())]
    Wait {
        /// CMD.
        program: String,
        /// What the system says.
        source: Errno,
    },
    /// A descriptor cannot be copied.
    #[error("{}", reason(.0))]
    Descriptor(#[source] io::Error),
}

impl RunError {
    /// The exit code of `canvas run`.
    pub fn code(&self) -> i32 {
        match self {
            RunError::NoName | RunError::NoProgram(_) | RunError::NotInPath(_) => exit::NOT_FOUND,
            RunError::CannotExecute { .. } => exit::CANNOT_EXEC,
            _ => exit::RUN_FAILED,
        }
    }
}

/// Why the host's agent does not serve.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// It says nothing in time.
    #[error("it does not answer")]
    Silent,
    /// The connection has ended.
    #[error("it closed the connection")]
    HungUp,
    /// It answers something else.
    #[error("it sent an unexpected message")]
    Nonsense,
    /// Its answer makes no sense at all.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// Its own words.
    #[error("{why}")]
    Refused {
        /// One sentence.
        why: String,
        /// Another run of this user has the name.
        taken: bool,
    },
    /// It has sent too few.
    #[error("a descriptor is missing")]
    DescriptorMissing,
    /// What it sent cannot be mapped.
    #[error("its segment: {}", .0.desc())]
    Segment(#[source] Errno),
    /// The kernel's answer.
    #[error("{}", .0.desc())]
    System(#[from] Errno),
    /// A descriptor cannot be copied.
    #[error("{}", reason(.0))]
    Descriptor(#[source] io::Error),
}

/// Why far memory of a run is not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// There is no agent at this time.
    #[error("the host's agent is not running now; try again when it is")]
    Down,
    /// It has not even read what came before.
    #[error("the host's agent does not answer; try again")]
    Busy,
    /// It was asked and has not answered: it may do it later.
    #[error(
        "the host's agent has not answered so far ({}); the change may still be made: `canvas status` shows whether it was", .0.desc()
    )]
    Unsure(#[source] Errno),
    /// The kernel's answer.
    #[error("the host's agent cannot be asked: {}", .0.desc())]
    System(#[source] Errno),
    /// It answers something else.
    #[error("the host's agent sent an unexpected message")]
    Nonsense,
    /// Its answer makes no sense at all.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// Its own words.
    #[error("{0}")]
    Refused(String),
    /// The run's own agent would not learn of it.
    #[error("the journal of far memory cannot be written: {}", .0.desc())]
    Journal(#[source] Errno),
    /// The bound would be below what there is.
    #[error("more far memory has come into use since then; try again")]
    InUse,
}
