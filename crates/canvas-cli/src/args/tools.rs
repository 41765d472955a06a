//! Flags of `canvas doctor`, `canvas keygen` and `canvas man`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use canvas_runner::container::Runtime;

/// Flags of `canvas doctor`.
#[derive(Args)]
pub struct DoctorArgs {
    /// Print JSON (its fields: docs/OPERATING.md).
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
