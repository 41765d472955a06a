//! The RDMA side of a link or of a lane: its queue pair, and the slabs that this one reaches.
//!
//! Each link has a protection domain of its own, and so has each tenant of a client for its lanes,
//! which only read: what is exposed to one is exposed to no other. To expose a slab pins 64 MiB, which
//! takes milliseconds: a thread of the domain's does it.

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

use crate::error::JoinError;
use crate::outbox::{Outbox, OwnedCall};
use crate::server::Shared;
use crate::slab::{Refusal, Slab};

/// A slab that is to be exposed, and who is answered.
struct Wanted {
    id: u64,
    slab: Arc<Slab>,
    outbox: Arc<Outbox>,
}

/// A domain, and the way to the thread that exposes slabs in it.
pub(crate) struct Exposer {
    domain: Arc<Domain>,
    access: Access,
    /// Gone with this, which ends the thread, which hides the slabs again.
    wanted: Sender<Wanted>,
}

impl Exposer {
    /// Opens the device that a connection over the address `local` goes through.
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

/// Whose lanes a domain is for: of a client, of its tenant, over this address of ours.
type Whose = (ClientId, [u8; 16], IpAddr);

/// The domains of lanes. Lanes of one tenant have one, so a slab is pinned once for all of them.
#[derive(Default)]
pub(crate) struct LaneDomains(Mutex<HashMap<Whose, Weak<Exposer>>>);

impl LaneDomains {
    fn get(&self, shared: &Arc<Shared>, whose: Whose) -> Result<Arc<Exposer>, JoinError> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = all.get(&whose).and_then(Weak::upgrade) {
            return Ok(there);
        }
        all.retain(|_, e| e.strong_count() > 0);
        let new = Arc::new(Exposer::start(shared, whose.2, Access::Read)?);
        all.insert(whose, Arc::downgrade(&new));
        Ok(new)
    }
}

/// The RDMA side of a link or a lane.
pub(crate) struct Rdma {
    /// Ends first: what is hidden then is reached by nobody any more.
    responder: Responder,
    exposer: Arc<Exposer>,
}

impl Rdma {
    /// Connects a new queue pair of a link's to the peer's; `local` is this host's end of the link.
    pub fn join(shared: &Arc<Shared>, local: IpAddr, peer: &QueuePair) -> Result<Rdma, JoinError> {
        let exposer = Exposer::start(shared, local, Access::Write)?;
        Rdma::connect(Arc::new(exposer), peer)
    }

    /// The same for a lane of this client and tenant.
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

    /// This end, for the peer.
    pub fn local(&self) -> QueuePair {
        self.responder.local()
    }

    /// Lets the peer's queue pair reach the slab; the answer to the request `id` comes by the outbox.
    pub fn expose(&self, id: u64, slab: Arc<Slab>, outbox: &Arc<Outbox>) {
        let outbox = Arc::clone(outbox);
        // The thread lives as long as this.
        let _ = self.exposer.wanted.send(Wanted { id, slab, outbox });
    }
}

impl fmt::Debug for Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rdma")
    }
}

/// The thread: exposes what is asked for, and hides it all when nobody has the domain any more.
fn run(shared: &Shared, domain: &Arc<Domain>, access: Access, wanted: &Receiver<Wanted>) {
    let mut exposed: Vec<Weak<Slab>> = Vec::new();
    while let Ok(Wanted { id, slab, outbox }) = wanted.recv() {
        let more = || shared.refill_budget();
        let result = slab.expose((domain, access), &shared.budget, more);
        if result.is_ok() {
            shared.counters.exposed_slabs.fetch_add(1, Relaxed);
        }
        if let Err(Refusal::Device(why)) = &result {
            shared.log.line("rdma", why);
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
