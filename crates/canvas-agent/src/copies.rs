//! The copies policy of a tenant: where its far memory is kept. It may change while the tenant runs.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use canvas_place::replicas::{Code, Policy};

/// The copies policy, set by one thread and followed by another.
#[derive(Clone, Debug)]
pub struct LiveCopies(Arc<AtomicU64>);

impl LiveCopies {
    /// Starts with `policy`.
    pub fn new(policy: Policy) -> LiveCopies {
        LiveCopies(Arc::new(AtomicU64::new(number(policy))))
    }

    /// Replaces the policy.
    pub fn set(&self, policy: Policy) {
        self.0.store(number(policy), Relaxed);
    }

    /// The current policy.
    pub fn get(&self) -> Policy {
        policy(self.0.load(Relaxed))
    }
}

/// Bit position of the code in a policy's number.
const CODE_AT: u32 = 16;

/// Encodes a policy as a number, which is never 0.
pub fn number(policy: Policy) -> u64 {
    let flags = [policy.disk, policy.late];
    let bits = flags
        .iter()
        .rev()
        .fold(0, |bits, flag| bits << 1 | u64::from(*flag));
    // The number of donors follows from the code.
    let code = policy
        .code
        .map_or(0, |code| (code.data() << 4 | code.parity()) as u64);
    1 + (code << CODE_AT | (policy.donors as u64) << 2 | bits)
}

/// Decodes a number other than 0.
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
