//! Flags of `canvas swap-in`.

use std::path::PathBuf;
use std::time::Duration;

use canvas_types::units::Size;
use clap::Args;

use super::times;

/// Flags of `canvas swap-in`.
#[derive(Args, Debug)]
pub struct SwapInArgs {
    /// Processes whose pages come back, separated by commas [default: all that this user may touch, those with the most
    /// swapped pages first].
    #[arg(
        long,
        value_name = "PID,...",
        value_delimiter = ',',
        conflicts_with = "cgroup"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Vec<u32>,
    /// The processes of a control group and of those below it: a directory, or its path below /sys/fs/cgroup.
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub cgroup: Option<PathBuf>,
    /// How much to read before checking free memory again.
    #[arg(long, value_name = "SIZE", default_value = "500M")]
    pub batch: Size,
    /// How much memory stays free (MemAvailable in /proc/meminfo).
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub free: Size,
    /// Repeat: in every interval, bring pages back while memory is free and none are being swapped out.
    #[arg(long)]
    pub watch: bool,
    /// Interval of --watch, in seconds or as a duration (500ms).
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = times::interval, requires = "watch")]
    pub interval: Duration,
    /// Print JSON, one object a line (its fields: docs/OPERATING.md).
    #[arg(long)]
    pub json: bool,
}

/// Shown after the flags.
pub const SWAP_IN_NOTES: &str = "\
It needs Linux 5.13, /proc and, for other users' processes, root; nothing else of canvas's has
to run. Pages come back in swap order, into the kernel's swap cache, where the program's next
access finds them without waiting for a disk.

It requests no more than the limits of a process's control group leave.

Exit codes: 0 done; 2 it cannot be done here, or not to these processes; 128+n stopped by signal n.

Example:
  canvas swap-in --watch --free 1G";
