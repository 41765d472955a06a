//! A tenant's share of contended links and backends: a weight, and hard limits.

use canvas_sched::TenantConfig;
use canvas_types::units::{RateLimit, UnitError};

/// The default weight of a tenant.
pub const WEIGHT: u32 = canvas_sched::WEIGHT;
/// The largest weight; the smallest is 1.
pub const WEIGHT_MAX: u32 = *canvas_sched::WEIGHTS.end();
/// Smallest rate limit, in bytes per second: two extents. With less, a fault would exceed
/// `far-wait`.
pub const RATE_MIN: u64 = 64 << 10;

/// A tenant's share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Of a contended resource, the tenant gets its weight's part of the sum of all competing
    /// weights.
    pub weight: u32,
    /// Limit on reads from far memory, in bytes per second; `None` for no limit.
    pub swap_in_limit: Option<u64>,
    /// Limit on writes to far memory, in bytes per second; `None` for no limit.
    pub swap_out_limit: Option<u64>,
}

impl Default for Share {
    fn default() -> Share {
        Share {
            weight: WEIGHT,
            swap_in_limit: None,
            swap_out_limit: None,
        }
    }
}

impl From<Share> for TenantConfig {
    fn from(share: Share) -> TenantConfig {
        TenantConfig {
            weight: share.weight,
            swap_in_limit: share.swap_in_limit,
            swap_out_limit: share.swap_out_limit,
        }
    }
}

impl Share {
    /// The share with each value within its valid range.
    pub fn clamped(self) -> Share {
        let rate = |limit: Option<u64>| limit.map(|bytes| bytes.max(RATE_MIN));
        Share {
            weight: self.weight.clamp(1, WEIGHT_MAX),
            swap_in_limit: rate(self.swap_in_limit),
            swap_out_limit: rate(self.swap_out_limit),
        }
    }
}

/// Why a rate limit is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RateError {
    /// It cannot be read.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// With it, a fault would wait too long.
    #[error("it is too small; write {} or more", RateLimit::bytes_per_s(RATE_MIN))]
    TooLittle,
}

/// Parses a rate limit that is high enough for faults.
pub fn rate_limit(text: &str) -> Result<RateLimit, RateError> {
    let limit: RateLimit = text.parse()?;
    match limit.bytes_per_s {
        Some(bytes) if bytes < RATE_MIN => Err(RateError::TooLittle),
        _ => Ok(limit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_becomes_something_that_works() {
        let odd = Share {
            weight: 0,
            swap_in_limit: Some(0),
            swap_out_limit: Some(u64::MAX),
        };
        let fine = Share {
            weight: 1,
            swap_in_limit: Some(RATE_MIN),
            swap_out_limit: Some(u64::MAX),
        };
        assert_eq!(odd.clamped(), fine);
    }
}
