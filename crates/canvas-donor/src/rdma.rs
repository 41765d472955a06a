//! RDMA for a link or a direct read channel: its queue pair, and the slabs exposed to it.
//!
//! Each link has its own protection domain. Direct read channels, which only read, have one per
//! client and tenant. What is exposed in one domain is not exposed in any other. Exposing a slab
//! pins 64 MiB, which takes milliseconds, so a thread of the domain does it.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use canvas_rdma::{Access, Domain, Responder};
use canvas_wire::ClientId;
use canvas_wire::error::ErrorCode;
use canvas_wire::frame::QueuePair;
use canvas_wire::key::random_bytes;
use tracing::warn;

use crate::error::JoinError;
use crate::outbox::{Outbox, OwnedCall};
use crate::server::Shared;
use crate::slab::{Refusal, Slab};

/// A slab to expose, and where the answer goes.
struct Wanted {
    id: u64,
    slab: Arc<Slab>,
    outbox: Arc<Outbox>,
}

/// A domain, and the channel to the thread that exposes slabs in it.
pub(crate) struct Exposer {
    domain: Arc<Domain>,
    access: Access,
    /// Dropping this ends the thread, which revokes all slabs.
    wanted: Sender<Wanted>,
}

impl Exposer {
    /// Opens the device of connections over the address `local`.
    fn start(shared: &Arc<Shared>, local: IpAddr, access: Access) -> Result<Exposer, JoinError> {
        if !shared.config.rdma {
            return Err(JoinError::TcpOnly);
        }
        let domain = Domain::open(local)?;
        let (sender, wanted) = channel();
        let shared = Arc::clone(shared);
        let its = Arc::clone(&domain);
        std::thread::Builder::new()
            .name("expose".to_owned())
            .spawn(move || run(&shared, &its, access, &wanted))
            .map_err(JoinError::Thread)?;
        Ok(Exposer {
            domain,
            access,
            wanted: sender,
        })
    }
}

/// Key of a domain: client, tenant, and this host's address.
type DomainKey = (ClientId, [u8; 16], IpAddr);

/// Domains of direct read channels. Those of one tenant share one, so that a slab is pinned only
/// once for them.
#[derive(Default)]
pub(crate) struct LaneDomains(Mutex<HashMap<DomainKey, Weak<Exposer>>>);

impl LaneDomains {
    fn get(&self, shared: &Arc<Shared>, key: DomainKey) -> Result<Arc<Exposer>, JoinError> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = all.get(&key).and_then(Weak::upgrade) {
            return Ok(there);
        }
        all.retain(|_, e| e.strong_count() > 0);
        let new = Arc::new(Exposer::start(shared, key.2, Access::Read)?);
        all.insert(key, Arc::downgrade(&new));
        Ok(new)
    }
}

/// RDMA of a link or a direct read channel.
pub(crate) struct Rdma {
    /// Dropped first: after that the peer cannot reach revoked slabs.
    responder: Responder,
    exposer: Arc<Exposer>,
}

impl Rdma {
    /// Connects a new queue pair to the peer's for a link; `local` is this host's address on the
    /// link.
    pub fn join(shared: &Arc<Shared>, local: IpAddr, peer: &QueuePair) -> Result<Rdma, JoinError> {
        let exposer = Exposer::start(shared, local, Access::Write)?;
        Rdma::connect(Arc::new(exposer), peer)
    }

    /// Connects a queue pair for a direct read channel of this client and tenant.
    pub fn join_lane(
        shared: &Arc<Shared>,
        (client, tenant): (ClientId, [u8; 16]),
        local: IpAddr,
        peer: &QueuePair,
    ) -> Result<Rdma, JoinError> {
        let exposer = shared.lane_domains.get(shared, (client, tenant, local))?;
        Rdma::connect(exposer, peer)
    }

    fn connect(exposer: Arc<Exposer>, peer: &QueuePair) -> Result<Rdma, JoinError> {
        let psn = u32::from_le_bytes(random_bytes()?);
        let responder = Responder::connect(&exposer.domain, peer, psn, exposer.access)?;
        Ok(Rdma { responder, exposer })
    }

    /// This end's description for the peer.
    pub fn local(&self) -> QueuePair {
        self.responder.local()
    }

    /// Exposes the slab to the peer's queue pair; the outbox gets the answer to request `id`.
    pub fn expose(&self, id: u64, slab: Arc<Slab>, outbox: &Arc<Outbox>) {
        let outbox = Arc::clone(outbox);
        // The thread lives as long as `self`.
        let _ = self.exposer.wanted.send(Wanted { id, slab, outbox });
    }
}

impl fmt::Debug for Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rdma")
    }
}

/// The thread: exposes slabs on request, and revokes all when the domain is no longer used.
fn run(shared: &Shared, domain: &Arc<Domain>, access: Access, wanted: &Receiver<Wanted>) {
    let mut exposed: Vec<Weak<Slab>> = Vec::new();
    while let Ok(Wanted { id, slab, outbox }) = wanted.recv() {
        let more = || shared.refill_budget();
        let result = slab.expose((domain, access), &shared.budget, more);
        if result.is_ok() {
            shared.counters.exposed_slabs.fetch_add(1, Relaxed);
        }
        if let Err(Refusal::Device(why)) = &result {
            warn!("rdma: {why}");
        }
        exposed.retain(|s| s.strong_count() > 0);
        exposed.push(Arc::downgrade(&slab));
        outbox.send(OwnedCall::Exposed {
            id,
            result: result.map_err(|refusal| match refusal {
                Refusal::Code(code) => code,
                Refusal::Device(_) => ErrorCode::NoRdma,
            }),
        });
    }
    for slab in exposed.iter().filter_map(Weak::upgrade) {
        slab.hide(domain);
    }
}
