//! What far memory on a disk leaves free there.

use canvas_types::units::Amount;
use clap::Args;

/// The reserve of the disk.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct FarReserveArgs {
    /// What far memory leaves free on the disk of the far directory: a size, or a share of the disk; 0 for
    /// nothing [default: 5%, 1G at most].
    #[arg(
        long,
        env = "CANVAS_FAR_RESERVE",
        value_name = "SIZE|N%",
        hide_env_values = true
    )]
    pub far_reserve: Option<Amount>,
}
