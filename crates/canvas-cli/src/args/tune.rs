//! Flags of `canvas tune`.

use std::time::Duration;

use clap::Args;

use super::times;

/// Flags of `canvas tune`.
#[derive(Args, Debug)]
pub struct TuneArgs {
    /// A run, by its name or the number of its process [default: all].
    pub tenant: Option<String>,
    /// Print what would be changed, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// End after one interval.
    #[arg(long)]
    pub once: bool,
    /// Length of an interval, in seconds or as a duration (500ms).
    #[arg(short, long, value_name = "TIME", default_value = "6", value_parser = times::interval)]
    pub interval: Duration,
    /// Print JSON, one object a line (its fields: docs/OPERATING.md).
    #[arg(long)]
    pub json: bool,
}

/// Shown after the flags.
pub const TUNE_NOTES: &str = "\
It changes nothing while reads beyond the pool cost less than 1% of the time. Otherwise the pool
grows while this host has memory to spare; then far memory moves between the disk alone and a
donor beside it (copies=disk, copies=1+disk), to where reads are a fifth faster, and back if
that does not pay. Both keep a copy on the disk, so durability never changes.

Exit codes: 0 done, or the last run has ended; 2 there is no such run; 128+n stopped by signal n.

Example:
  canvas tune web --dry-run";
