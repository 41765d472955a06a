//! Flags of `canvas dispatch`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// Flags of `canvas dispatch`.
#[derive(Args, Debug)]
pub struct DispatchArgs {
    /// Print in which tenant CMD would run, with which settings, and why; run nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Print the decision as JSON (its fields: docs/OPERATING.md).
    #[arg(long, requires = "dry_run")]
    pub json: bool,
    /// Where the host's agent listens [default: the user's own agent, if its socket is there, else
    /// /run/canvas/agent.sock; without an agent a new tenant is made, with one of its own].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD", num_args = 1..)]
    #[arg(value_hint = clap::ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Shown after the flags.
pub const DISPATCH_NOTES: &str = "\
Earlier runs of CMD with the same arguments decide its settings: local memory for 95% of full
speed, where its far memory goes (pages that come back at random to a donor, files and streams
to the disk), and its pool. CMD runs in the first of these that accepts it: a running tenant of
the host's agent with the same copies and enough room; a prepared tenant (`canvas agent --warm`)
with the same copies; a prepared one whose copies are switched; a new one.

CANVAS_* variables of `canvas run` override the decision.

Exit codes: CMD's own; 128+n when signal n ended it; 125 when canvas itself failed; 126 when CMD
could not be executed; 127 when it was not found. With --dry-run: 0.

Example:
  canvas dispatch --dry-run -- sort -u names.txt";
