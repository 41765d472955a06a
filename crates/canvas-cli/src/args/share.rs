//! What a tenant gets where it is not alone: flags of `canvas run`.

use canvas_control::share::{WEIGHT_MAX, rate_limit};
use canvas_types::units::RateLimit;
use clap::Args;

/// A tenant's share of links and backends.
#[derive(Args, Clone, Debug, Default)]
pub struct ShareArgs {
    /// Part of what is contended in far memory, beside the other tenants of the agent: 1 to 1000
    /// [default: 100].
    #[arg(
        long,
        env = "CANVAS_WEIGHT",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(WEIGHT_MAX)),
        hide_env_values = true
    )]
    pub weight: Option<u32>,

    /// What is read from far memory in a second, at most: a rate such as 200M/s, or none
    /// [default: none].
    #[arg(
        long,
        env = "CANVAS_SWAP_IN_LIMIT",
        value_name = "RATE",
        value_parser = rate_limit,
        hide_env_values = true
    )]
    pub swap_in_limit: Option<RateLimit>,

    /// What is written to far memory in a second, at most: a rate such as 200M/s, or none
    /// [default: none].
    #[arg(
        long,
        env = "CANVAS_SWAP_OUT_LIMIT",
        value_name = "RATE",
        value_parser = rate_limit,
        hide_env_values = true
    )]
    pub swap_out_limit: Option<RateLimit>,
}
