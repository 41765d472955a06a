//! When pages come back before they are touched, because memory is free, and when they leave before they have to.

use canvas_types::units::Size;
use canvas_types::{Slo, Threshold};
use clap::Args;

/// The flags about what happens ahead of need.
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

    /// Take from the program what it can do without: paging may slow it by so much (0.1% to 50%), or 99 of 100
    /// faults may take so long (p99=300us) [default: off].
    ///
    /// Pages leave ahead of need, the longest unused first, as fast as the target allows, down to a tenth of them.
    /// Without --local there is no other bound. Pages that left do not come back before they are touched.
    #[arg(
        long,
        env = "CANVAS_SLO",
        value_name = "N%|p99=TIME|off",
        default_value = "off",
        hide_default_value = true,
        hide_env_values = true
    )]
    pub slo: Slo,
}
