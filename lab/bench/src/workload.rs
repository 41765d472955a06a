//! Interface between workloads and the engine.
//!
//! A workload's program writes one JSON object, [`Answer`], as the last line of its standard output; `answer`
//! must not depend on time. A server has clients, which run outside of the limit; the last one writes the
//! object.

use std::path::PathBuf;

pub use crate::external::error::WorkloadError;
/// Last output line of a program, or of a server's client.
pub use canvas_workloads::Output as Answer;

/// Directories and size of a run.
#[derive(Clone, Debug)]
pub struct Place {
    /// Downloads and generated data, kept from run to run (`~/.cache/canvas/bench` by default).
    pub cache: PathBuf,
    /// Files of this run only, removed after it.
    pub scratch: PathBuf,
    /// Size of the workload; 1 is the default.
    pub scale: f64,
    /// Seed of all generated data.
    pub seed: u64,
    /// The `canvas` command.
    pub canvas: PathBuf,
    /// The `lab` command, which has the built-in workloads.
    pub lab: PathBuf,
    /// Whether the program may have huge pages, as the host is set; otherwise the bench's own programs have
    /// none.
    pub huge_pages: bool,
}

/// A program with its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Argv {
    /// Program first.
    pub argv: Vec<String>,
    /// Variables added to the environment.
    pub env: Vec<(String, String)>,
}

/// Command lines of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// One program, which is measured and prints the [`Answer`].
    Program(Argv),
    /// A server, which is measured and limited, and clients that run outside of the limit, one after the
    /// other; the last prints the [`Answer`]. The server is ready when `socket` accepts connections
    /// ("unix:PATH" or "HOST:PORT"), and is ended with SIGTERM.
    Server {
        /// The server.
        server: Argv,
        /// Address at which the server listens.
        socket: String,
        /// Clients: first load, then run.
        clients: Vec<Argv>,
    },
}

/// A program that the bench can run.
pub trait Workload: Send + Sync {
    /// Unique name in lower case ("redis-ycsb-a").
    fn name(&self) -> &str;
    /// Description of one line.
    fn about(&self) -> &str;
    /// Reason why it cannot run here, as a sentence that says what to do; `None` if it can.
    fn missing(&self, place: &Place) -> Option<WorkloadError>;
    /// Downloads and generates its needs into `place.cache`; does nothing the second time.
    fn prepare(&self, place: &Place) -> Result<(), WorkloadError>;
    /// Command lines of one run. `run` differs between concurrent runs (sockets, ports).
    fn plan(&self, place: &Place, run: u32) -> Result<Plan, WorkloadError>;
    /// Parses standard output and standard error of a program that does not print an [`Answer`].
    fn answer(&self, _output: &str, _log: &str) -> Option<Answer> {
        None
    }
    /// Timeout of a run in seconds.
    fn timeout_s(&self, place: &Place) -> u64;
}
