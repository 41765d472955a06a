//! Pages in memory of NUMA nodes.

use canvas_types::NodeBound;
use clap::Args;

/// The flag about them.
#[derive(Args, Clone, Debug)]
pub struct NumaArgs {
    /// Have evicted pages go to memory of NUMA node N first, uncompressed, up to SIZE; several, separated by commas
    /// or each behind a --numa, are filled in their order.
    ///
    /// Nodes without a processor are what this is for: CXL memory, persistent memory, a far socket. What has been
    /// there longest goes on into the pool. `canvas doctor` names the nodes.
    #[arg(
        long,
        env = "CANVAS_NUMA",
        value_name = "N=SIZE,...",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub numa: Vec<NodeBound>,
}
