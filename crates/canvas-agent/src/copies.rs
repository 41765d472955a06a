//! Where a tenant's far memory is kept, which may change while it runs.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use canvas_place::replicas::{Code, Policy};

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

/// Where the code is in a policy's number.
const CODE_AT: u32 = 16;

/// A policy as a number, which is never 0.
pub fn number(policy: Policy) -> u64 {
    let flags = [policy.disk, policy.late];
    let bits = flags
        .iter()
        .rev()
        .fold(0, |bits, flag| bits << 1 | u64::from(*flag));
    // Donors of a code follow from it.
    let code = policy
        .code
        .map_or(0, |code| (code.data() << 4 | code.parity()) as u64);
    1 + (code << CODE_AT | (policy.donors as u64) << 2 | bits)
}

/// The policy of a number other than 0.
pub fn policy(number: u64) -> Policy {
    let bits = number.saturating_sub(1);
    let code = (bits >> CODE_AT) as usize;
    if let Some(code) = Code::new(code >> 4, code & 15) {
        return Policy::coded(code);
    }
    Policy {
        donors: (bits >> 2) as usize & 0xff,
        disk: bits & 1 != 0,
        late: bits & 2 != 0,
        code: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_follows_sees_what_was_set() {
        for n in 0..16 {
            let first = Policy {
                donors: n >> 2,
                disk: n & 1 != 0,
                late: n & 2 != 0,
                code: None,
            };
            let wanted = LiveCopies::new(Policy::NAMED[0].1);
            wanted.clone().set(first);
            assert_eq!(wanted.get(), first);
            assert_ne!(number(first), 0);
        }
        for name in ["2+1", "4+2", "8+2"] {
            let coded = Policy::named(name).unwrap();
            assert_eq!(policy(number(coded)), coded);
        }
    }
}
