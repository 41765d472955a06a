//! What a tenant gets of links and backends that several want: a weight, and hard bounds.
//!
//! The values lie in the agent's own memory. The tenant's segment has none of them, so nothing that its
//! programs write there changes what they get.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, PoisonError};

pub use canvas_control::share::{RATE_MIN, Share, WEIGHT, WEIGHT_MAX};

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
}
