//! Errors that prevent a run from starting or continuing, or a change of it.
//!
//! Each error's text is the sentence that users read.

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
    /// The program's name is empty.
    #[error("the program's name is empty; write it after the flags")]
    NoName,
    /// There is no such file.
    #[error("there is no program {}", .0.display())]
    NoProgram(PathBuf),
    /// There is no such file in PATH.
    #[error("there is no program {} in PATH", .0.display())]
    NotInPath(PathBuf),
    /// The file exists but cannot be executed.
    #[error("{} cannot be executed: {why}", .file.display())]
    CannotExecute {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The program must be managed (`--require`), and cannot be.
    #[error("{program} {why}, so it cannot be managed; leave out --require to run it all the same")]
    Unmanaged {
        /// CMD.
        program: String,
        /// Why not.
        why: Unmanaged,
    },
    /// The requested mode does not work here, or no mode does.
    #[error(transparent)]
    Mode(#[from] ModeError),
    /// Shared memory cannot be managed in this mode.
    #[error("{}", THREAD_MODE_SHARES_NOTHING)]
    SharedInThreadMode,
    /// The named library cannot be read.
    #[error("{}={} cannot be read: {}", ENV_PRELOAD_SO, .path.display(), reason(.source))]
    LibraryUnreadable {
        /// The library's path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// This binary contains no library.
    #[error(
        "this binary was built without its library (CANVAS_SKIP_PRELOAD); build it again, or name one with {}",
        ENV_PRELOAD_SO
    )]
    NoLibrary,
    /// The library cannot be written to a memory file.
    #[error("the library cannot be put into memory: {}", reason(.0))]
    LibraryFile(#[source] io::Error),
    /// The limit on file sizes is below this many MiB.
    #[error(
        "canvas needs memory files of {0} MiB, which the limit on file sizes forbids; raise it (ulimit -f)"
    )]
    FileLimit(u64),
    /// The limit on file sizes is below this many GiB.
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
        /// What failed.
        what: &'static str,
        /// The system's error.
        source: Errno,
    },
    /// The file for copies on disk cannot be made.
    #[error(
        "far memory cannot be kept in {}: {}; write another directory: --to disk:DIR",
        .dir.display(),
        reason(.source)
    )]
    FarDir {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The host's agent cannot be used.
    #[error(
        "the agent at {} cannot be used: {source}; start one with `canvas agent`, or do without one",
        .path.display()
    )]
    Agent {
        /// Its socket.
        path: PathBuf,
        /// The reason.
        source: AgentError,
    },
    /// The report cannot be written.
    #[error("the report cannot be written to {}: {}", .path.display(), reason(.source))]
    Report {
        /// Its file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The trace cannot be written.
    #[error("the trace cannot be written to {}: {}", .path.display(), reason(.source))]
    Trace {
        /// Its file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The recordings cannot be written, or their file is something else.
    #[error("-o learn={}: {why}", .path.display())]
    Learn {
        /// Its file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The metrics' address cannot be listened on.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// A system call failed.
    #[error("{what}: {}", .source.desc())]
    System {
        /// What cannot be done.
        what: &'static str,
        /// The system's error.
        source: Errno,
    },
    /// The program was started, and its end cannot be waited for.
    #[error("{program} cannot be waited for: {}", .source.desc())]
    Wait {
        /// CMD.
        program: String,
        /// The system's error.
        source: Errno,
    },
    /// A descriptor cannot be duplicated.
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
    /// It does not answer in time.
    #[error("it does not answer")]
    Silent,
    /// The connection has ended.
    #[error("it closed the connection")]
    HungUp,
    /// It sent an unexpected message.
    #[error("it sent an unexpected message")]
    Nonsense,
    /// Its message cannot be decoded.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// It refuses.
    #[error("{why}")]
    Refused {
        /// Its reason, in one sentence.
        why: String,
        /// Another run of this user has the name.
        taken: bool,
    },
    /// It sent too few descriptors.
    #[error("a descriptor is missing")]
    DescriptorMissing,
    /// The segment that it sent cannot be mapped.
    #[error("its segment: {}", .0.desc())]
    Segment(#[source] Errno),
    /// A system call failed.
    #[error("{}", .0.desc())]
    System(#[from] Errno),
    /// A descriptor cannot be duplicated.
    #[error("{}", reason(.0))]
    Descriptor(#[source] io::Error),
}

/// Why far memory of a run is not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// No agent is running.
    #[error("the host's agent is not running now; try again when it is")]
    Down,
    /// It has not even read earlier requests.
    #[error("the host's agent does not answer; try again")]
    Busy,
    /// It has not answered the request: it may make the change later.
    #[error(
        "the host's agent has not answered so far ({}); the change may still be made: `canvas status` shows whether it was", .0.desc()
    )]
    Unsure(#[source] Errno),
    /// The request cannot be sent.
    #[error("the host's agent cannot be contacted: {}", .0.desc())]
    System(#[source] Errno),
    /// It sent an unexpected message.
    #[error("the host's agent sent an unexpected message")]
    Nonsense,
    /// Its message cannot be decoded.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// It refuses; the text is its own.
    #[error("{0}")]
    Refused(String),
    /// The journal, from which the run's own agent would read the change, cannot be written.
    #[error("the journal of far memory cannot be written: {}", .0.desc())]
    Journal(#[source] Errno),
    /// The limit would be below what is in use.
    #[error("more far memory has come into use since then; try again")]
    InUse,
}
