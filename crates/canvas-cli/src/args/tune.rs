//! Flags of `canvas tune`.

use std::time::Duration;

use clap::Args;

use super::times;

/// Flags of `canvas tune`.
#[derive(Args, Debug)]
pub struct TuneArgs {
    /// A run, by its name or the number of its process [default: all].
    pub tenant: Option<String>,
    /// Say what would be changed, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// End after one interval.
    #[arg(long)]
    pub once: bool,
    /// Time between two looks, in seconds or as a duration (500ms).
    #[arg(short, long, value_name = "TIME", default_value = "6", value_parser = times::interval)]
    pub interval: Duration,
    /// Print JSON, one object a line (its fields: docs/OPERATING.md).
    #[arg(long)]
    pub json: bool,
}

/// What help says in the end.
pub const TUNE_NOTES: &str = "\
It looks at what reads beyond the pool cost, and changes nothing while that is less than a hundredth
of the time. Else the pool grows while this host has memory to spare; then far memory moves between
the disk alone and a server beside it (copies=disk, copies=1+disk), wherever reads are a fifth faster,
and back if that does not pay. Both keep a copy on the disk: durability is never changed.

Exit codes: 0 done, or the last run has ended; 2 there is no such run; 128+n stopped by signal n.

Example:
  canvas tune web --dry-run";
