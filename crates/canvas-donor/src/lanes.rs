//! Direct read channels ("lanes") that clients requested: who may open one, its rate limit, and its
//! figures.
//!
//! One token bucket limits all channels of a client's tenant together, so that more channels, or
//! concurrent requests on all of them, read no more.
//!
//! A channel exists from its ticket to its end: by its client's request, at its client's next link
//! 0, at the end of its client's lease, or, if unopened, after [`TICKET_TIME`]. A channel whose
//! connection has closed stays, because its client wants its figures, until the client ends it or
//! requests more channels than allowed.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use canvas_direct::wire::{Answerer, Keys, Ticket};
use canvas_wire::ClientId;
use canvas_wire::error::ErrorCode;
use canvas_wire::frame;

use crate::outbox::Outbox;
pub(crate) use bucket::Bucket;

mod bucket;

/// Most channels of a client.
pub const LANES_OF_A_CLIENT_MAX: usize = 256;
/// Validity of a ticket.
pub const TICKET_TIME: Duration = Duration::from_secs(10);

/// A direct read channel.
pub(crate) struct Lane {
    /// The client whose slabs it reads.
    pub client: ClientId,
    /// The tenant whose slabs it reads.
    pub tenant: [u8; 16],
    keys: Keys,
    /// Rate limit of all channels of the tenant.
    bucket: Arc<Mutex<Bucket>>,
    reads: AtomicU64,
    bytes: AtomicU64,
}

fn lock(bucket: &Mutex<Bucket>) -> MutexGuard<'_, Bucket> {
    bucket
        .lock()
        .expect("no thread panics while it holds a bucket")
}

impl Lane {
    /// The rate limit of its tenant.
    pub fn bucket(&self) -> MutexGuard<'_, Bucket> {
        lock(&self.bucket)
    }

    /// Counts a read of `bytes` bytes.
    pub fn note(&self, bytes: u64) {
        self.reads.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    fn used(&self) -> Used {
        Used {
            reads: self.reads.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }
}

/// Figures of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Used {
    pub reads: u64,
    pub bytes: u64,
}

impl Used {
    /// The figures as an answer to the client.
    pub fn answer<'a>(self) -> frame::Answer<'a> {
        frame::Answer::LaneUsed {
            reads: self.reads,
            bytes: self.bytes,
        }
    }
}

struct Entry {
    lane: Arc<Lane>,
    state: State,
}

enum State {
    /// Not opened yet.
    Waits { ticket: Ticket, until_ms: u64 },
    /// Opened by this connection, which may have closed.
    Opened(Arc<Outbox>),
}

#[derive(Default)]
struct Inner {
    by_number: BTreeMap<u64, Entry>,
    waiting: HashMap<Ticket, u64>,
    /// Rate limits of clients' tenants, as long as they have channels.
    buckets: HashMap<(ClientId, [u8; 16]), Weak<Mutex<Bucket>>>,
    last: u64,
}

impl Inner {
    /// Removes a channel. The caller must fence its connection, if it has one.
    fn remove(&mut self, number: u64) -> Option<(Arc<Lane>, Option<Arc<Outbox>>)> {
        let Entry { lane, state } = self.by_number.remove(&number)?;
        Some(match state {
            State::Waits { ticket, .. } => {
                self.waiting.remove(&ticket);
                (lane, None)
            }
            State::Opened(outbox) => (lane, Some(outbox)),
        })
    }

    fn forget_late(&mut self, now_ms: u64) {
        let is_late =
            |e: &Entry| matches!(e.state, State::Waits { until_ms, .. } if until_ms < now_ms);
        let late: Vec<u64> = self
            .waiting
            .values()
            .copied()
            .filter(|n| self.by_number.get(n).is_some_and(is_late))
            .collect();
        for number in late {
            self.remove(number);
        }
    }

    /// Removes the client's channels whose connections have closed, to make room for new ones.
    fn forget_closed(&mut self, client: &ClientId) {
        self.by_number.retain(|_, e| {
            let has_ended = matches!(&e.state, State::Opened(outbox) if outbox.is_closed());
            e.lane.client != *client || !has_ended
        });
    }

    /// The rate limit of the client's tenant, set to this rate.
    fn bucket(
        &mut self,
        client: ClientId,
        tenant: [u8; 16],
        rate: frame::LaneRate,
        now_ns: u64,
    ) -> Arc<Mutex<Bucket>> {
        self.buckets.retain(|_, bucket| bucket.strong_count() > 0);
        let known = self.buckets.entry((client, tenant)).or_default();
        if let Some(bucket) = known.upgrade() {
            lock(&bucket).set(rate, now_ns);
            return bucket;
        }
        let bucket = Arc::new(Mutex::new(Bucket::new(rate, now_ns)));
        *known = Arc::downgrade(&bucket);
        bucket
    }

    fn owned(&self, client: &ClientId, number: u64) -> Result<&Entry, ErrorCode> {
        let entry = self.by_number.get(&number);
        entry
            .filter(|e| e.lane.client == *client)
            .ok_or(ErrorCode::NoLane)
    }
}

/// All direct read channels.
#[derive(Default)]
pub(crate) struct Lanes(Mutex<Inner>);

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0
            .lock()
            .expect("no thread panics while it holds the lanes")
    }

    /// Adds a channel for a client, which the random `ticket` opens. Returns its number.
    pub fn ask(
        &self,
        client: ClientId,
        asked: &frame::Lane,
        ticket: Ticket,
        now_ms: u64,
        now_ns: u64,
    ) -> Result<u64, ErrorCode> {
        let mut inner = self.lock();
        inner.forget_late(now_ms);
        let its = |inner: &Inner| {
            let held = inner.by_number.values();
            held.filter(|e| e.lane.client == client).count()
        };
        if its(&inner) >= LANES_OF_A_CLIENT_MAX {
            inner.forget_closed(&client);
            if its(&inner) >= LANES_OF_A_CLIENT_MAX {
                return Err(ErrorCode::NoLane);
            }
        }
        inner.last += 1;
        let number = inner.last;
        let lane = Arc::new(Lane {
            client,
            tenant: asked.tenant,
            keys: Keys::new(&asked.secret, &ticket),
            bucket: inner.bucket(client, asked.tenant, asked.rate, now_ns),
            reads: 0.into(),
            bytes: 0.into(),
        });
        let until_ms = now_ms + TICKET_TIME.as_millis() as u64;
        let state = State::Waits { ticket, until_ms };
        inner.by_number.insert(number, Entry { lane, state });
        inner.waiting.insert(ticket, number);
        Ok(number)
    }

    /// Opens a channel for a connection with this message. Only a peer with the channel's keys uses
    /// the ticket up: an eavesdropper cannot.
    pub fn open(
        &self,
        opening: &[u8],
        outbox: &Arc<Outbox>,
        now_ms: u64,
    ) -> Option<(Arc<Lane>, Answerer)> {
        let ticket = canvas_direct::wire::ticket(opening)?;
        let mut inner = self.lock();
        inner.forget_late(now_ms);
        let number = *inner.waiting.get(&ticket)?;
        let entry = inner.by_number.get_mut(&number)?;
        let answerer = Answerer::admit(&entry.lane.keys, opening).ok()?;
        entry.state = State::Opened(Arc::clone(outbox));
        let lane = Arc::clone(&entry.lane);
        inner.waiting.remove(&ticket);
        Some((lane, answerer))
    }

    /// Sets the rate of all channels of the tenant of the client's channel.
    pub fn set_rate(
        &self,
        client: &ClientId,
        number: u64,
        rate: frame::LaneRate,
        now_ns: u64,
    ) -> Result<Used, ErrorCode> {
        let inner = self.lock();
        let Entry { lane, state } = inner.owned(client, number)?;
        let is_unbounded = {
            let mut bucket = lane.bucket();
            bucket.set(rate, now_ns);
            bucket.is_unbounded()
        };
        let used = lane.used();
        let devices = match state {
            State::Opened(outbox) if !is_unbounded => Some(Arc::clone(outbox)),
            _ => None,
        };
        drop(inner);
        // Nobody counts what a device reads. A channel that joins a queue pair now checks the rate
        // first, and holds the lock that this waits for.
        if let Some(outbox) = devices {
            outbox.shut_devices_out();
        }
        Ok(used)
    }

    /// Ends a channel of the client. After this nothing more that came over it is done.
    pub fn end(&self, client: &ClientId, number: u64) -> Result<Used, ErrorCode> {
        let mut inner = self.lock();
        inner.owned(client, number)?;
        let (lane, outbox) = inner.remove(number).ok_or(ErrorCode::NoLane)?;
        drop(inner);
        if let Some(outbox) = outbox {
            outbox.fence();
        }
        Ok(lane.used())
    }

    /// Ends all channels of the client.
    pub fn end_all(&self, client: &ClientId) {
        let mut inner = self.lock();
        let its: Vec<u64> = inner
            .by_number
            .iter()
            .filter(|(_, e)| e.lane.client == *client)
            .map(|(&number, _)| number)
            .collect();
        let ended: Vec<_> = its.iter().filter_map(|&n| inner.remove(n)).collect();
        drop(inner);
        for outbox in ended.into_iter().filter_map(|(_, outbox)| outbox) {
            outbox.fence();
        }
    }
}

#[cfg(test)]
mod tests;
