//! Flags of `canvas replay` and `canvas workload`.

use std::path::PathBuf;

use canvas_pager::replay::synthetic;
use canvas_types::units::Size;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};

use super::PrefetchArg;

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
