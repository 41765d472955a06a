//! Donors that gossip finds: one node listens, and tells every tenant of this process.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::idle::Waker;
use canvas_gossip::{Gossip, GossipError};
use canvas_wire::key::ClusterKey;

/// A member of the gossip that lends nothing. Dropping it ends its thread.
pub struct Finder {
    known: Arc<Mutex<Known>>,
    _gossip: Gossip,
}

/// What is known, and who wants to know.
#[derive(Default)]
struct Known {
    live: BTreeSet<SocketAddr>,
    followers: Vec<(Sender<SocketAddr>, Waker)>,
}

impl Known {
    /// Tells everybody of those that live now; followers that are gone are forgotten.
    fn now(&mut self, live: BTreeSet<SocketAddr>) {
        self.live = live;
        let live = &self.live;
        self.followers.retain(|(tell, waker)| {
            let listens = live.iter().all(|addr| tell.send(*addr).is_ok());
            if listens {
                waker.wake();
            }
            listens
        });
    }

    /// One more follower, who is told at once of those that are known.
    fn follow(&mut self, waker: Waker) -> Receiver<SocketAddr> {
        let (tell, found) = channel();
        for addr in &self.live {
            // Its other end is here.
            let _ = tell.send(*addr);
        }
        self.followers.push((tell, waker));
        found
    }
}

fn locked(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Finder {
    /// Listens to the gossip that these are members of; `None` without any.
    pub fn start(seeds: &[SocketAddr], key: &ClusterKey) -> Result<Option<Finder>, GossipError> {
        let Some(seed) = seeds.first() else {
            return Ok(None);
        };
        let known = Arc::new(Mutex::new(Known::default()));
        // Without a secret only this host is believed.
        let this_host = *key == ClusterKey::without_secret();
        let ip: IpAddr = match seed.ip() {
            IpAddr::V4(ip) if ip.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_loopback() => Ipv6Addr::LOCALHOST.into(),
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let ours = known.clone();
        let gossip = Gossip::start(canvas_gossip::Config {
            // Any port: the next agent begins before this one ends.
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

    /// The donors that are found, for one tenant: those that live now, and those that come later. One
    /// may be told again.
    pub fn follow(&self, waker: Waker) -> Receiver<SocketAddr> {
        locked(&self.known).follow(waker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_shm::{Far, Segment};
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn everybody_learns_of_all_that_live() {
        let (fd, _) = Segment::create(true).unwrap();
        let far = Far::map(&fd).unwrap();
        let addr = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let all = |found: &Receiver<SocketAddr>| found.try_iter().collect::<BTreeSet<_>>();
        let set = |ports: &[u16]| ports.iter().map(|p| addr(*p)).collect::<BTreeSet<_>>();
        let mut known = Known::default();
        let first = known.follow(Waker(far));
        assert!(all(&first).is_empty());
        far.asleep.store(1, SeqCst);
        known.now(set(&[1, 2]));
        assert_eq!(far.asleep.load(SeqCst), 0, "it is woken");
        let second = known.follow(Waker(far));
        assert_eq!((all(&first), all(&second)), (set(&[1, 2]), set(&[1, 2])));
        drop(first);
        known.now(set(&[2, 3]));
        assert_eq!(known.followers.len(), 1, "who has ended is forgotten");
        assert_eq!(all(&second), set(&[2, 3]));
        assert_eq!(
            all(&known.follow(Waker(far))),
            set(&[2, 3]),
            "the dead are not told"
        );
    }
}
