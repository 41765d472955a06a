//! The lanes that clients have asked for: who opens one, how much it reads, what it has read.
//!
//! How much is bounded for all lanes of a tenant of a client together, by one bucket: who opens more
//! lanes, or asks over all of them at once, reads no more.
//!
//! A lane is there from its ticket to its end: by its client's word, with its client's next link 0,
//! with its client's lease, or unopened after [`TICKET_TIME`]. A lane whose connection has ended
//! stays, without a connection, until its client ends it or asks for more than it may have: the
//! client wants its figures.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use canvas_lane::{Answerer, Keys, Ticket};
use canvas_wire::ClientId;
use canvas_wire::error::ErrorCode;
use canvas_wire::frame;

use crate::outbox::Outbox;
pub(crate) use bucket::Bucket;

mod bucket;

/// Lanes of one client.
pub const LANES_OF_A_CLIENT_MAX: usize = 256;
/// How long a ticket is good for.
pub const TICKET_TIME: Duration = Duration::from_secs(10);

/// A lane.
pub(crate) struct Lane {
    /// The client whose slabs it reads.
    pub client: ClientId,
    /// Of those, the slabs of this tenant.
    pub tenant: [u8; 16],
    keys: Keys,
    /// How much all lanes of the tenant may read.
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
    /// How much it and the other lanes of its tenant may read.
    pub fn bucket(&self) -> MutexGuard<'_, Bucket> {
        lock(&self.bucket)
    }

    /// It has read so much.
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

/// What a lane has read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Used {
    pub reads: u64,
    pub bytes: u64,
}

impl Used {
    /// As it is told to the client.
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
    /// Nobody has opened it.
    Waits { ticket: Ticket, until_ms: u64 },
    /// This connection has, or had.
    Opened(Arc<Outbox>),
}

#[derive(Default)]
struct Inner {
    by_number: BTreeMap<u64, Entry>,
    waiting: HashMap<Ticket, u64>,
    /// What tenants of clients may read, for as long as they have lanes.
    buckets: HashMap<(ClientId, [u8; 16]), Weak<Mutex<Bucket>>>,
    last: u64,
}

impl Inner {
    /// Its connection, if it had one, is to be fenced.
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

    /// Those of the client whose connections have ended: their figures make room for new ones.
    fn forget_closed(&mut self, client: &ClientId) {
        self.by_number.retain(|_, e| {
            let has_ended = matches!(&e.state, State::Opened(outbox) if outbox.is_closed());
            e.lane.client != *client || !has_ended
        });
    }

    /// The bucket of the client's tenant, which fills at this rate from now on.
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

/// All lanes.
#[derive(Default)]
pub(crate) struct Lanes(Mutex<Inner>);

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0
            .lock()
            .expect("no thread panics while it holds the lanes")
    }

    /// A client wants a lane, which `ticket`, a random one, opens. Returns its number.
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

    /// A connection opens a lane with this message. The ticket is used up only by one that has the
    /// lane's keys: who has merely seen it go by cannot spoil it.
    pub fn open(
        &self,
        opening: &[u8],
        outbox: &Arc<Outbox>,
        now_ms: u64,
    ) -> Option<(Arc<Lane>, Answerer)> {
        let ticket = canvas_lane::ticket(opening)?;
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

    /// The client's lane, and all others of its tenant, read so much together from now on.
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
        // Nobody counts what a device reads. Who joins a queue pair now looks at the rate first, and
        // holds what this waits for.
        if let Some(outbox) = devices {
            outbox.shut_devices_out();
        }
        Ok(used)
    }

    /// Ends a lane of the client. Nothing more that came over it is done after this.
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

    /// Ends all lanes of the client.
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
