//! What a tenant gets where it is not alone: flags of `canvas run`.

use canvas_agent::share::{RATE_MIN, WEIGHT_MAX};
use canvas_types::units::{RateLimit, UnitError};
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

/// A bound with which a fault is still answered in time.
pub fn rate_limit(text: &str) -> Result<RateLimit, String> {
    let limit: RateLimit = text.parse().map_err(|e: UnitError| e.to_string())?;
    match limit.bytes_per_s {
        Some(bytes) if bytes < RATE_MIN => Err(format!(
            "it is too little to work with; write {} or more",
            RateLimit::bytes_per_s(RATE_MIN)
        )),
        _ => Ok(limit),
    }
}
