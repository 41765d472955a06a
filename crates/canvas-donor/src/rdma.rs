//! A link's RDMA side: its queue pair, and the slabs that this one reaches.
//!
//! Each link has a protection domain of its own, so what is exposed to one client is exposed to no
//! other. To expose a slab pins 64 MiB, which takes milliseconds: a thread beside the link's does it.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};

use canvas_rdma::{Domain, Responder};
use canvas_wire::error::ErrorCode;
use canvas_wire::frame::QueuePair;
use canvas_wire::key::random_bytes;

use crate::error::JoinError;
use crate::outbox::{Outbox, OwnedCall};
use crate::server::Shared;
use crate::slab::{Refusal, Slab};

/// The RDMA side of a link.
pub(crate) struct Rdma {
    responder: Responder,
    /// Gone with this, which ends the thread, which hides the slabs again.
    expose: Sender<(u64, Arc<Slab>)>,
}

impl Rdma {
    /// Connects a new queue pair to the peer's; `local` is this host's end of the link.
    pub fn join(
        shared: &Arc<Shared>,
        outbox: &Arc<Outbox>,
        local: IpAddr,
        peer: &QueuePair,
    ) -> Result<Rdma, JoinError> {
        if !shared.config.rdma {
            return Err(JoinError::TcpOnly);
        }
        let domain = Domain::open(local)?;
        let psn = u32::from_le_bytes(random_bytes()?);
        let responder = Responder::connect(&domain, peer, psn)?;
        let (expose, wanted) = channel();
        let (shared, outbox) = (Arc::clone(shared), Arc::clone(outbox));
        std::thread::Builder::new()
            .name("expose".to_owned())
            .spawn(move || run(&shared, &outbox, &domain, &wanted))
            .map_err(JoinError::Thread)?;
        Ok(Rdma { responder, expose })
    }

    /// This end, for the peer.
    pub fn local(&self) -> QueuePair {
        self.responder.local()
    }

    /// Lets the peer's queue pair reach the slab; the answer to the request `id` comes by the outbox.
    pub fn expose(&self, id: u64, slab: Arc<Slab>) {
        // The thread lives as long as this.
        let _ = self.expose.send((id, slab));
    }
}

impl fmt::Debug for Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rdma")
    }
}

/// The thread: exposes what is asked for, and hides it all when the link has ended.
fn run(
    shared: &Shared,
    outbox: &Outbox,
    domain: &Arc<Domain>,
    wanted: &Receiver<(u64, Arc<Slab>)>,
) {
    let mut exposed: Vec<Weak<Slab>> = Vec::new();
    while let Ok((id, slab)) = wanted.recv() {
        let result = slab.expose(domain, &shared.budget, || shared.refill_budget());
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
