//! What a workload is to the engine.
//!
//! A workload's program writes one JSON object, [`Answer`], as the last line of its standard
//! output, and nothing that depends on time into `answer`. A server is driven by a client that
//! runs outside of the limit and writes the object instead.

use std::path::PathBuf;

pub use crate::external::error::WorkloadError;
/// What the program (or the client of a server) prints as its last line.
pub use canvas_workloads::Output as Answer;

/// Where things of one run go, and how large it is.
#[derive(Clone, Debug)]
pub struct Place {
    /// Downloads and generated data that stay from run to run (`~/.cache/canvas/bench` by default).
    pub cache: PathBuf,
    /// Files of this run only; removed after it.
    pub scratch: PathBuf,
    /// 1 is the default size.
    pub scale: f64,
    /// Seed of all generated data.
    pub seed: u64,
    /// The `canvas` command.
    pub canvas: PathBuf,
    /// The `lab` command, which contains the built-in workloads.
    pub lab: PathBuf,
    /// Whether its program may have huge pages, as the host is set; else the bench's own have none.
    pub huge_pages: bool,
}

/// A program with its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Argv {
    /// Program first.
    pub argv: Vec<String>,
    /// Added to the environment.
    pub env: Vec<(String, String)>,
}

/// How a workload is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// One program, which is measured and prints the [`Answer`].
    Program(Argv),
    /// A server, which is measured and limited, and clients that run outside of the limit, one
    /// after the other; the last prints the [`Answer`]. The server is ready when `socket` accepts
    /// connections ("unix:PATH" or "HOST:PORT"), and is ended with SIGTERM.
    Server {
        /// The server.
        server: Argv,
        /// Where it listens.
        socket: String,
        /// Load, then run.
        clients: Vec<Argv>,
    },
}

/// A program that the bench can run.
pub trait Workload: Send + Sync {
    /// Short, unique, lower case ("redis-ycsb-a").
    fn name(&self) -> &str;
    /// One line for people.
    fn about(&self) -> &str;
    /// Why it cannot run here, as one sentence that says what to do; `None` when it can.
    fn missing(&self, place: &Place) -> Option<WorkloadError>;
    /// Fetches and generates what it needs into `place.cache`; does nothing the second time.
    fn prepare(&self, place: &Place) -> Result<(), WorkloadError>;
    /// How to run it once. `run` differs between runs at the same time (sockets, ports).
    fn plan(&self, place: &Place, run: u32) -> Result<Plan, WorkloadError>;
    /// What its program printed on standard output and standard error, where that is not an [`Answer`].
    fn answer(&self, _output: &str, _log: &str) -> Option<Answer> {
        None
    }
    /// After this many seconds the run counts as hung.
    fn timeout_s(&self, place: &Place) -> u64;
}
