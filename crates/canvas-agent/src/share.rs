//! A tenant's share of links and backends under contention: a weight, and hard limits.
//!
//! The values are in the agent's own memory. The tenant's segment holds none of them, so nothing that the tenant's
//! programs write there changes their share.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, PoisonError};

pub use canvas_control::share::{RATE_MIN, Share, WEIGHT, WEIGHT_MAX};

/// A share that one thread changes and another one uses.
///
/// Checking for a change costs one load ([`LiveShare::version`]).
#[derive(Clone, Debug, Default)]
pub struct LiveShare(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    version: AtomicU32,
    share: Mutex<Share>,
}

impl LiveShare {
    /// Starts with `share`.
    pub fn new(share: Share) -> LiveShare {
        let live = LiveShare::default();
        live.set(share);
        live
    }

    /// Replaces the share.
    pub fn set(&self, share: Share) {
        let mut there = self.0.share.lock().unwrap_or_else(PoisonError::into_inner);
        if *there != share {
            *there = share;
            self.0.version.fetch_add(1, Release);
        }
    }

    /// The current share.
    pub fn get(&self) -> Share {
        *self.0.share.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A counter that increases with each change.
    pub fn version(&self) -> u32 {
        self.0.version.load(Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_learns_of_each_change_and_of_nothing_else() {
        let live = LiveShare::new(Share::default());
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
}
