//! Finds donors by gossip: one node listens, and every tenant of this process reads what it knows.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::idle::Waker;
use canvas_gossip::{Gossip, GossipError};
use canvas_wire::key::ClusterKey;

/// A gossip member that lends nothing. Dropping it ends its thread.
pub struct Finder {
    known: Arc<Mutex<LiveDonors>>,
    _gossip: Gossip,
}

/// The known donors and their followers.
#[derive(Default)]
struct LiveDonors {
    live: BTreeSet<SocketAddr>,
    /// Number of changes of `live`.
    changes: u64,
    followers: Vec<(Weak<()>, Waker)>,
}

impl LiveDonors {
    /// Replaces the set of live donors, wakes followers if it changed, and forgets followers that are gone. How much
    /// memory donors announce changes several times a second and does not count as a change.
    fn now(&mut self, live: BTreeSet<SocketAddr>) {
        let is_change = live != self.live;
        self.live = live;
        self.changes += u64::from(is_change);
        self.followers.retain(|(lives, waker)| {
            let listens = lives.strong_count() > 0;
            if listens && is_change {
                waker.wake();
            }
            listens
        });
    }
}

/// One tenant's view of the donors found. It costs nothing for a tenant that never asks.
pub struct Found {
    known: Arc<Mutex<LiveDonors>>,
    /// The change seen last.
    seen: u64,
    _lives: Arc<()>,
}

impl Found {
    fn follow(known: &Arc<Mutex<LiveDonors>>, waker: Waker) -> Found {
        let lives = Arc::new(());
        let mut locked = locked(known);
        locked.followers.push((Arc::downgrade(&lives), waker));
        Found {
            known: known.clone(),
            seen: locked.changes.wrapping_sub(1),
            _lives: lives,
        }
    }

    /// All live donors, if the set has changed since the last call.
    pub fn changed(&mut self) -> Option<Vec<SocketAddr>> {
        let known = locked(&self.known);
        if self.seen == known.changes {
            return None;
        }
        self.seen = known.changes;
        Some(known.live.iter().copied().collect())
    }
}

fn locked(known: &Mutex<LiveDonors>) -> MutexGuard<'_, LiveDonors> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Finder {
    /// Joins the gossip of `seeds`; `None` when there are none.
    pub fn start(seeds: &[String], key: &ClusterKey) -> Result<Option<Finder>, GossipError> {
        if seeds.is_empty() {
            return Ok(None);
        }
        let all = canvas_gossip::addresses(seeds);
        let routed = |addr: &&SocketAddr| canvas_gossip::reached_from(**addr).is_some();
        let seed = all.iter().find(routed).or(all.first());
        let known = Arc::new(Mutex::new(LiveDonors::default()));
        // Without a secret only members on this host are believed.
        let this_host = *key == ClusterKey::without_secret();
        let ip = seed.map_or(Ipv4Addr::UNSPECIFIED.into(), SocketAddr::ip);
        let ip: IpAddr = match ip {
            IpAddr::V4(ip) if ip.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_loopback() => Ipv6Addr::LOCALHOST.into(),
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let ours = known.clone();
        let gossip = Gossip::start(canvas_gossip::Config {
            // Any port, because the next agent starts before this one ends.
            listen: SocketAddr::new(ip, 0),
            seeds: seeds.to_vec(),
            key: key.clone(),
            lends: None,
            changed: Box::new(move |members| {
                let live = members.iter().filter(|m| m.live).map(|m| m.donor.addr);
                let believed = |addr: &SocketAddr| !this_host || addr.ip().is_loopback();
                locked(&ours).now(live.filter(believed).collect());
            }),
        })?;
        Ok(Some(Finder {
            known,
            _gossip: gossip,
        }))
    }

    /// One tenant's view of the donors found; `waker` wakes the tenant's agent when they change.
    pub fn follow(&self, waker: Waker) -> Found {
        Found::follow(&self.known, waker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_shm::{Far, Segment};
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn everybody_learns_of_all_that_live_and_is_woken_for_changes_alone() {
        let (fd, _) = Segment::create(true).unwrap();
        let far = Far::map(&fd).unwrap();
        let addr = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let set = |ports: &[u16]| ports.iter().map(|p| addr(*p)).collect::<BTreeSet<_>>();
        let list = |ports: &[u16]| Some(ports.iter().map(|p| addr(*p)).collect::<Vec<_>>());
        let known = Arc::new(Mutex::new(LiveDonors::default()));
        let mut first = Found::follow(&known, Waker(far));
        assert_eq!((first.changed(), first.changed()), (list(&[]), None));
        far.asleep.store(1, SeqCst);
        locked(&known).now(set(&[1, 2]));
        assert_eq!(far.asleep.load(SeqCst), 0, "it is woken");
        let mut second = Found::follow(&known, Waker(far));
        assert_eq!(
            (first.changed(), second.changed()),
            (list(&[1, 2]), list(&[1, 2]))
        );
        // Members announce how much they lend: nobody is woken.
        far.asleep.store(1, SeqCst);
        for _ in 0..1000 {
            locked(&known).now(set(&[1, 2]));
        }
        assert_eq!((far.asleep.load(SeqCst), first.changed()), (1, None));
        drop(first);
        locked(&known).now(set(&[2, 3]));
        assert_eq!(
            locked(&known).followers.len(),
            1,
            "a tenant that has ended is forgotten"
        );
        assert_eq!(second.changed(), list(&[2, 3]));
        let mut third = Found::follow(&known, Waker(far));
        assert_eq!(
            third.changed(),
            list(&[2, 3]),
            "dead donors are not reported"
        );
    }

    #[test]
    fn who_has_ended_is_forgotten_though_nobody_lives() {
        let (fd, _) = Segment::create(true).unwrap();
        let known = Arc::new(Mutex::new(LiveDonors::default()));
        drop(Found::follow(&known, Waker(Far::map(&fd).unwrap())));
        locked(&known).now(BTreeSet::new());
        assert!(locked(&known).followers.is_empty());
    }
}
