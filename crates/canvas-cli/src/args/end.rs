//! Flags of `canvas end`.

use std::path::PathBuf;

use clap::Args;

/// Flags of `canvas end`.
#[derive(Args, Debug)]
pub struct EndArgs {
    /// The tenant, by its name at the agent.
    pub tenant: String,
    /// Where the agent listens [default: the user's own agent, if its socket is there, else
    /// /run/canvas/agent.sock].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// End it even if it has processes: they lose their far pages, and get SIGBUS on access.
    #[arg(long)]
    pub force: bool,
}

/// Shown after the flags.
pub const END_NOTES: &str = "\
Tenants end by themselves with their last run and process; this is for one whose process never
ends. root and the agent's user can end any tenant, others their own.

Exit codes: 0 done; 2 nothing was changed: there is no such tenant, a run is connected, or it has
processes.";
