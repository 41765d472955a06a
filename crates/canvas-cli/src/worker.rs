//! `canvas agent-worker`: the agent of one run, from its flags.

use std::time::Duration;

use canvas_agent::worker::{self, Config};
use canvas_types::exit;

use crate::args::WorkerArgs;
use crate::error::Failure;

/// Serves until the tenant is gone.
pub fn serve(args: &WorkerArgs) -> Result<i32, Failure> {
    // It holds keys.
    let _ = nix::sys::prctl::set_dumpable(false);
    worker::serve(&Config {
        slabs: args.slabs,
        servers: args.donors.clone(),
        seeds: args.gossip.clone(),
        disks: args.disks,
        disks_keep: args.disks_keep,
        reserve: args.far_reserve,
        links: args.links,
        spin: Duration::from_nanos(args.spin.ns),
        timeliness: args.timeliness.0,
    })
    .map_err(Failure::usage)?;
    Ok(exit::OK)
}
