//! Flags of `canvas doctor`, `canvas replay`, `canvas workload`, `canvas keygen` and `canvas man`.

use std::path::PathBuf;

use canvas_replay::synthetic;
use canvas_types::units::Size;
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, ValueEnum};

use super::PrefetchArg;
use canvas_runner::container::Runtime;

/// Flags of `canvas replay`.
#[derive(Args)]
pub struct ReplayArgs {
    /// A trace written by `canvas run --trace`.
    #[arg(required_unless_present = "synthetic", conflicts_with = "synthetic")]
    pub file: Option<PathBuf>,
    /// A made-up string of accesses instead of a file.
    #[arg(long, value_name = "NAME", value_parser = synthetic_names())]
    pub synthetic: Option<String>,
    /// Memory that a made-up string touches.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "128M",
        requires = "synthetic"
    )]
    pub memory: Size,
    /// Touches in a made-up string.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000_000,
        requires = "synthetic"
    )]
    pub accesses: usize,
    /// Seed of a made-up string.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "synthetic")]
    pub seed: u64,
    /// Who prefetches in the columns with prefetch.
    #[arg(long, value_name = "NAME", value_enum, default_value_t = PrefetchArg::Streams)]
    pub prefetch: PrefetchArg,
    /// Local memory in percent of the footprint, separated by commas.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "10,20,30,40,50,60,70,80,90"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub percent: Vec<u32>,
}

/// Flags of `canvas workload`.
#[derive(Args)]
pub struct WorkloadArgs {
    /// The workload.
    #[arg(value_parser = workload_names())]
    pub name: String,
    /// Factor on the default size.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub scale: f64,
    /// Seed of all data.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Data in MiB, in place of what follows from --scale.
    #[arg(long, value_name = "N")]
    pub mib: Option<u64>,
    /// Measured time of a pattern.
    #[arg(long, value_name = "S")]
    pub seconds: Option<f64>,
    /// Threads that work at once.
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Rounds of a workload that does a fixed amount of work.
    #[arg(long, value_name = "N")]
    pub rounds: Option<u32>,
    /// Pages from one touch to the next (strided).
    #[arg(long, value_name = "PAGES")]
    pub stride: Option<u32>,
    /// Leave huge pages as the host has them; without it there are none.
    #[arg(long)]
    pub huge_pages: bool,
    /// Beside it take of far memory's links whatever can be taken, as a hostile tenant would.
    #[arg(long, requires = "seconds")]
    pub cheat: bool,
}

/// The made-up strings that the pager's replay knows, each with what it stands for.
fn synthetic_names() -> PossibleValuesParser {
    synthetic::NAMES
        .iter()
        .map(|(name, what)| PossibleValue::new(*name).help(*what))
        .collect::<Vec<_>>()
        .into()
}

/// The built-in workloads, each with what it does.
fn workload_names() -> PossibleValuesParser {
    canvas_workloads::PROGRAMS
        .iter()
        .map(|p| PossibleValue::new(p.name).help(p.about))
        .collect::<Vec<_>>()
        .into()
}

/// Flags of `canvas doctor`.
#[derive(Args)]
pub struct DoctorArgs {
    /// Print JSON (its fields: docs/CLI.md).
    #[arg(long)]
    pub json: bool,
    /// Print what the default seccomp profiles of containers refuse, and how to allow it.
    #[arg(long)]
    pub containers: bool,
    /// Print the default seccomp profile of a container runtime, with what canvas needs allowed.
    #[arg(long, value_name = "RUNTIME", value_enum, conflicts_with_all = ["json", "containers"])]
    pub seccomp: Option<RuntimeArg>,
}

/// `--seccomp`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RuntimeArg {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// Kubernetes, whatever runs its containers.
    Kubernetes,
}

impl From<RuntimeArg> for Runtime {
    fn from(arg: RuntimeArg) -> Runtime {
        match arg {
            RuntimeArg::Docker => Runtime::Docker,
            RuntimeArg::Podman => Runtime::Podman,
            RuntimeArg::Kubernetes => Runtime::Kubernetes,
        }
    }
}

/// Flags of `canvas keygen`.
#[derive(Args, Debug)]
pub struct KeygenArgs {
    /// Where the key goes; a file that exists is not touched. Without FILE it is printed.
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub file: Option<PathBuf>,
}

/// Flags of `canvas man`.
#[derive(Args)]
pub struct ManArgs {
    /// Write canvas.1, canvas-run.1 and so on into DIR instead of printing canvas(1).
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}
