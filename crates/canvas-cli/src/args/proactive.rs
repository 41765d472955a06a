//! When pages come back before they are touched, because memory is free.

use canvas_types::Threshold;
use canvas_types::units::Size;
use clap::Args;

/// The flags about proactive swap-in.
#[derive(Args, Clone, Copy, Debug)]
pub struct ProactiveArgs {
    /// Bring back what left last while local memory stays so far below --local: a size, a share of --local, or off.
    ///
    /// A sibling that exits, memory that is freed and a raised --local leave such room. So much of it stays free,
    /// and twice what reclaim keeps free at least: nothing leaves for what comes back.
    #[arg(
        long,
        env = "CANVAS_PROACTIVE_THRESHOLD",
        value_name = "SIZE|N%|off",
        default_value_t = Threshold::default(),
        hide_env_values = true
    )]
    pub proactive_threshold: Threshold,

    /// How much comes back at a time, 4K to 64M; faults and reclaim go first in between.
    #[arg(
        long,
        env = "CANVAS_PROACTIVE_BATCH",
        value_name = "SIZE",
        default_value_t = canvas_runner::options::PROACTIVE_BATCH,
        hide_env_values = true
    )]
    pub proactive_batch: Size,
}
