//! What a tenant gets of links and backends that several want: a weight, and hard bounds.
//!
//! The values lie in the agent's own memory. The tenant's segment has none of them, so nothing that its
//! programs write there changes what they get.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, PoisonError};

use canvas_sched::TenantConfig;

/// The weight of a tenant of which nothing is said.
pub const WEIGHT: u32 = canvas_sched::WEIGHT;
/// The largest weight; the smallest is 1.
pub const WEIGHT_MAX: u32 = *canvas_sched::WEIGHTS.end();
/// The smallest bound, in bytes a second: two extents. A fault would outwait `--far-wait` with less.
pub const RATE_MIN: u64 = 64 << 10;

/// A tenant's share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Of what is contended it gets its weight's part of the sum of all weights that want some.
    pub weight: u32,
    /// Bytes a second that it reads from far memory, at most; `None` for no bound.
    pub swap_in_limit: Option<u64>,
    /// Bytes a second that it writes there, at most; `None` for no bound.
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
    /// The same within the bounds that there are, wherever it comes from.
    pub fn clamped(self) -> Share {
        let rate = |limit: Option<u64>| limit.map(|bytes| bytes.max(RATE_MIN));
        Share {
            weight: self.weight.clamp(1, WEIGHT_MAX),
            swap_in_limit: rate(self.swap_in_limit),
            swap_out_limit: rate(self.swap_out_limit),
        }
    }
}

/// A share that one thread changes and another one uses.
///
/// To see whether it has changed is one load ([`Live::version`]).
#[derive(Clone, Debug, Default)]
pub struct Live(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    version: AtomicU32,
    share: Mutex<Share>,
}

impl Live {
    /// One that is `share` now.
    pub fn new(share: Share) -> Live {
        let live = Live::default();
        live.set(share);
        live
    }

    /// Changes it.
    pub fn set(&self, share: Share) {
        let mut there = self.0.share.lock().unwrap_or_else(PoisonError::into_inner);
        if *there != share {
            *there = share;
            self.0.version.fetch_add(1, Release);
        }
    }

    /// It now.
    pub fn get(&self) -> Share {
        *self.0.share.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another number after each change.
    pub fn version(&self) -> u32 {
        self.0.version.load(Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_learns_of_each_change_and_of_nothing_else() {
        let live = Live::new(Share::default());
        let before = live.version();
        live.set(Share::default());
        assert_eq!((live.version(), live.get()), (before, Share::default()));
        let more = Share {
            weight: 7,
            swap_in_limit: Some(1 << 20),
            ..Share::default()
        };
        live.clone().set(more);
        assert!(live.version() != before && live.get() == more);
    }

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
