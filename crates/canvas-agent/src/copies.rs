//! Where a tenant's far memory is kept, which may change while it runs.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use canvas_place::replicas::Policy;

/// The copies that are wanted: one thread says so, another one follows.
#[derive(Clone, Debug)]
pub struct LiveCopies(Arc<AtomicU64>);

impl LiveCopies {
    /// These, until others are.
    pub fn new(policy: Policy) -> LiveCopies {
        LiveCopies(Arc::new(AtomicU64::new(number(policy))))
    }

    /// From now on these.
    pub fn set(&self, policy: Policy) {
        self.0.store(number(policy), Relaxed);
    }

    /// The copies that are wanted now.
    pub fn get(&self) -> Policy {
        policy(self.0.load(Relaxed))
    }
}

/// A policy as a number, which is never 0.
pub fn number(policy: Policy) -> u64 {
    1 + ((policy.donors as u64) << 2 | u64::from(policy.late) << 1 | u64::from(policy.disk))
}

/// The policy of a number other than 0.
pub fn policy(number: u64) -> Policy {
    let bits = number.saturating_sub(1);
    Policy {
        donors: (bits >> 2) as usize,
        disk: bits & 1 != 0,
        late: bits & 2 != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_follows_sees_what_was_set() {
        for (donors, disk, late) in (0..16).map(|n| (n >> 2, n & 1 != 0, n & 2 != 0)) {
            let first = Policy { donors, disk, late };
            let wanted = LiveCopies::new(Policy::NAMED[0].1);
            wanted.clone().set(first);
            assert_eq!(wanted.get(), first);
            assert_ne!(number(first), 0);
        }
    }
}
