//! Pending connections, which have not proved yet that they have the key, and which of them to
//! close when there are too many.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::HANDSHAKES_MAX;
use crate::outbox::Outbox;

/// All pending connections, the oldest first.
#[derive(Default)]
pub struct Handshakes(Mutex<Vec<(IpAddr, Arc<Outbox>)>>);

/// A pending connection; it is removed when this is dropped.
pub struct Handshake {
    all: Arc<Handshakes>,
    outbox: Arc<Outbox>,
}

impl Handshakes {
    /// Adds a connection from this address. If there are too many, closes the oldest one of the
    /// address with the most: floods from one address only delay that address. Returns whether one
    /// was closed.
    pub fn begin(self: &Arc<Self>, from: IpAddr, outbox: &Arc<Outbox>) -> (Handshake, bool) {
        let mut all = self.lock();
        all.push((from.to_canonical(), Arc::clone(outbox)));
        let is_full = all.len() > HANDSHAKES_MAX;
        if is_full {
            let of = |addr| all.iter().filter(|(other, _)| *other == addr).count();
            // The first of the largest group, which is its oldest.
            let most = (0..all.len()).rev().max_by_key(|at| of(all[*at].0));
            if let Some(at) = most {
                all.remove(at).1.close();
            }
        }
        drop(all);
        let handshake = Handshake {
            all: Arc::clone(self),
            outbox: Arc::clone(outbox),
        };
        (handshake, is_full)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(IpAddr, Arc<Outbox>)>> {
        // A thread that panicked left consistent values behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        all.retain(|(_, outbox)| !Arc::ptr_eq(outbox, &self.outbox));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_from_one_address_ends_its_own_only() {
        let all = Arc::new(Handshakes::default());
        let addr = |n: u8| IpAddr::from([10, 0, 0, n]);
        let begin = |n| {
            let outbox = Arc::new(Outbox::new().unwrap());
            (all.begin(addr(n), &outbox), outbox)
        };
        let first = begin(1);
        let flood: Vec<_> = (0..2 * HANDSHAKES_MAX).map(|_| begin(2)).collect();
        let last = begin(3);
        assert!(!first.1.is_closed() && !last.1.is_closed());
        assert!(last.0.1, "there were too many");
        let up: Vec<usize> = (0..flood.len())
            .filter(|n| !flood[*n].1.is_closed())
            .collect();
        let oldest = flood.len() - (HANDSHAKES_MAX - 2);
        assert_eq!(up, (oldest..flood.len()).collect::<Vec<_>>());
        drop((first, flood, last));
        assert!(all.lock().is_empty());
    }
}
