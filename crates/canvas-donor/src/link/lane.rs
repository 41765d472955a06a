//! The thread of a direct read channel's connection ([`canvas_direct::wire`]), and a link's requests about
//! such channels.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use canvas_direct::wire::{
    Answerer, Code, EXPOSE_BYTES, HEAD_BYTES, JOIN_BYTES, LaneRequest, MESSAGE_BYTES,
    READ_BYTES_MAX, Read, Tail, exposed_to_bytes,
};
use canvas_types::rdma::QueuePair;
use canvas_types::spin::SpinBudget;
use canvas_wire::VERSION_LANES;
use canvas_wire::error::ErrorCode;
use canvas_wire::frame::{Answer, Range, Request};
use canvas_wire::key::random_bytes;
use canvas_wire::session::HANDSHAKE_BYTES;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::warn;

use super::{End, KNOWN_MAX, Link, Wire};
use crate::lanes;
use crate::outbox::{Outbox, OwnedCall};
use crate::rdma::Rdma;
use crate::server::Shared;
use crate::slab::Slab;

/// A donor distinguishes the two kinds of connections by the length of the first message.
const _: () = assert!(MESSAGE_BYTES != HANDSHAKE_BYTES);
/// Longest sleep of a channel that exceeds its rate before it checks its rate again.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Longest sleep of a channel; it has nothing to do periodically.
const SLEEP: Duration = Duration::from_secs(60);

/// A connection of a direct read channel.
pub(super) struct Lane<'s> {
    shared: &'s Arc<Shared>,
    wire: Wire,
    outbox: Arc<Outbox>,
    lane: Arc<lanes::Lane>,
    answerer: Answerer,
    /// Cache of slabs. A freed one stays until it is used again.
    known: HashMap<u64, Arc<Slab>>,
    /// The answer.
    answer: Vec<u8>,
    /// A request exceeded the rate; nothing more is read until the largest read is possible.
    is_over_rate: bool,
    /// A slab is being exposed to its queue pair; the answer is pending.
    is_exposing: bool,
}

/// If the connection is a direct read channel's, opens the channel; the answer is pending.
pub(super) fn admit<'s>(
    shared: &'s Arc<Shared>,
    mut wire: Wire,
    outbox: &Arc<Outbox>,
    until: Instant,
) -> Result<Result<Lane<'s>, Wire>, End> {
    if wire.first_length(outbox, until)? != MESSAGE_BYTES {
        return Ok(Err(wire));
    }
    let opened = wire.next_message(outbox, until, MESSAGE_BYTES, |message| {
        shared.lanes.open(message, outbox, shared.now_ms())
    })?;
    let (lane, mut answerer) = opened.ok_or(End::NotAdmitted)?;
    wire.hurry();
    let head = answerer.answer(Code::Done, 0).map_err(End::Lane)?;
    wire.outgoing.end().extend_from_slice(&head);
    shared.counters.lanes.fetch_add(1, Relaxed);
    Ok(Ok(Lane {
        shared,
        wire,
        outbox: Arc::clone(outbox),
        lane,
        answerer,
        known: HashMap::new(),
        answer: Vec::with_capacity(HEAD_BYTES + READ_BYTES_MAX),
        is_over_rate: false,
        is_exposing: false,
    }))
}

impl Lane<'_> {
    /// Serves until the end.
    pub fn run(&mut self) -> End {
        let end = match self.run_inner() {
            Ok(end) | Err(end) => end,
        };
        self.outbox.close();
        // The channel's figures stay, and with them the outbox.
        self.outbox.shut_devices_out();
        end
    }

    fn run_inner(&mut self) -> Result<End, End> {
        let mut spin = SpinBudget::new(self.shared.config.spin.as_nanos() as u64);
        let mut asked_ns = self.shared.now_ns();
        loop {
            if self.outbox.is_closed() {
                return Ok(End::Closed);
            }
            if self.is_over_rate {
                self.pause()?;
                continue;
            }
            let mut progress = self.take_exposed()?;
            // A peer sends the next request after it has taken the answer: nothing is read before.
            if self.wire.backlog() == 0 {
                progress |= self.wire.read()?;
                progress |= self.take_message()?;
            }
            progress |= self.wire.send()?;
            let now_ns = self.shared.now_ns();
            let waited_ns = now_ns.saturating_sub(asked_ns);
            if progress {
                spin.record(waited_ns);
                asked_ns = now_ns;
            }
            let contention = &self.shared.contention;
            let is_due = waited_ns < spin.limit_ns() || progress;
            if is_due && !contention.is_contended(now_ns) {
                // Also after an answer: its receiver may need this processor.
                std::thread::yield_now();
                contention.record_yield(now_ns, self.shared.now_ns());
            } else if !progress {
                self.wire.wait(&self.outbox, SLEEP)?;
            }
        }
    }

    /// Sleeps until the largest read is possible, the rate may have changed, or the channel ends.
    fn pause(&mut self) -> Result<(), End> {
        self.wire.send()?;
        let wait = Duration::from_nanos(self.lane.bucket().wait_ns(self.shared.now_ns()));
        if wait.is_zero() {
            self.is_over_rate = false;
            return Ok(());
        }
        let ms = wait.min(PAUSE_MAX).as_millis() + 1;
        let mut fds = [PollFd::new(self.outbox.fd(), PollFlags::POLLIN)];
        match poll(
            &mut fds,
            PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX),
        ) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(End::Io(e.into())),
        }
    }

    /// Answers the request, if it is complete.
    fn take_message(&mut self) -> Result<bool, End> {
        let incoming = &mut self.wire.incoming;
        let is_odd = |len| ![MESSAGE_BYTES, JOIN_BYTES, EXPOSE_BYTES].contains(&len);
        if incoming.coming().is_some_and(is_odd) {
            return Err(End::Protocol("a lane's message has the wrong length"));
        }
        if incoming.holds_no_message() {
            return Ok(false);
        }
        let mut message = [0; JOIN_BYTES];
        let len = incoming.message().map_or(0, |came| {
            message[..came.len()].copy_from_slice(came);
            came.len()
        });
        if !incoming.holds_no_message() || self.is_exposing {
            return Err(End::Protocol(
                "a lane sent a request before the answer to its last",
            ));
        }
        let outbox = Arc::clone(&self.outbox);
        // A thread that fences this connection waits for this one message.
        let Some(mut serving) = outbox.serve() else {
            return Err(End::Closed);
        };
        match self
            .answerer
            .decode_request(&message[..len])
            .map_err(End::Lane)?
        {
            LaneRequest::Read(read) => self.answer_read(read)?,
            LaneRequest::Join(pair) => {
                let joined = self.join(&mut serving, &pair);
                self.give(joined.map(|end| end.to_bytes()))?;
            }
            LaneRequest::Expose(handle) => match (self.slab(handle), &*serving) {
                (Some(slab), Some(rdma)) => {
                    rdma.expose(0, slab, &outbox);
                    self.is_exposing = true;
                }
                (None, _) => self.give(Err(Code::UnknownHandle))?,
                (_, None) => self.give(Err(Code::NoPair))?,
            },
        }
        Ok(true)
    }

    /// Connects a read-only queue pair to the program's.
    fn join(&mut self, serving: &mut Option<Rdma>, peer: &QueuePair) -> Result<QueuePair, Code> {
        // The channel's earlier queue pair, if any.
        *serving = None;
        if !self.lane.bucket().is_unbounded() {
            return Err(Code::NoPair);
        }
        let local = self.wire.stream.local_addr().map_err(|_| Code::NoPair)?;
        let whose = (self.lane.client, self.lane.tenant);
        let joined = Rdma::join_lane(self.shared, whose, local.ip(), peer).map_err(|why| {
            warn!("rdma: {why}");
            Code::NoPair
        })?;
        self.shared.counters.lane_pairs.fetch_add(1, Relaxed);
        Ok(serving.insert(joined).local())
    }

    /// Answers the request to expose a slab once that is done.
    fn take_exposed(&mut self) -> Result<bool, End> {
        let mut any = false;
        for call in self.outbox.take() {
            if let OwnedCall::Exposed { result, .. } = call
                && std::mem::take(&mut self.is_exposing)
            {
                let exposed = result.map_err(|code| match code {
                    ErrorCode::UnknownHandle => Code::UnknownHandle,
                    _ => Code::NoPair,
                });
                self.give(exposed.map(|e| exposed_to_bytes(&e)))?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Answers with `given`, or with the reason for the refusal.
    fn give(&mut self, given: Result<Tail, Code>) -> Result<(), End> {
        match given {
            Ok(given) => {
                let head = self.answerer.answer_with_tail(&given).map_err(End::Lane)?;
                let out = self.wire.outgoing.end();
                out.extend_from_slice(&head);
                out.extend_from_slice(&given);
            }
            Err(code) => {
                self.shared.counters.refused.fetch_add(1, Relaxed);
                let head = self.answerer.answer(code, 0).map_err(End::Lane)?;
                self.wire.outgoing.end().extend_from_slice(&head);
            }
        }
        Ok(())
    }

    fn answer_read(&mut self, read: Read) -> Result<(), End> {
        self.answer.clear();
        self.answer.resize(HEAD_BYTES, 0);
        let code = self.read(read);
        if code != Code::Done {
            self.answer.truncate(HEAD_BYTES);
            self.shared.counters.refused.fetch_add(1, Relaxed);
        }
        let len = (self.answer.len() - HEAD_BYTES) as u32;
        let head = self.answerer.answer(code, len).map_err(End::Lane)?;
        self.answer[..HEAD_BYTES].copy_from_slice(&head);
        self.wire.outgoing.end().extend_from_slice(&self.answer);
        Ok(())
    }

    /// Appends the requested bytes to the answer's head.
    fn read(&mut self, read: Read) -> Code {
        let Read {
            handle,
            offset,
            len,
        } = read;
        if len as usize > READ_BYTES_MAX {
            return Code::OutOfRange;
        }
        let Some(slab) = self.slab(handle) else {
            return Code::UnknownHandle;
        };
        let bytes = u64::from(len);
        if !self.lane.bucket().take(bytes, self.shared.now_ns()) {
            self.is_over_rate = true;
            return Code::OverRate;
        }
        match slab.read([Range { offset, len }].into_iter(), &mut self.answer) {
            Ok(()) => {
                self.lane.note(bytes);
                self.shared.counters.lane_reads.fetch_add(1, Relaxed);
                Code::Done
            }
            Err(ErrorCode::OutOfRange) => Code::OutOfRange,
            Err(_) => {
                // Freed: the table is asked from now on.
                self.known.remove(&handle);
                Code::UnknownHandle
            }
        }
    }

    /// The slab, if it belongs to the channel's client and tenant.
    fn slab(&mut self, handle: u64) -> Option<Arc<Slab>> {
        if let Some(slab) = self.known.get(&handle) {
            return Some(Arc::clone(slab));
        }
        let slab = self.shared.registry.find(&self.lane.client, handle)?;
        if slab.key.tenant != self.lane.tenant {
            return None;
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(handle, Arc::clone(&slab));
        Some(slab)
    }
}

impl Link<'_> {
    /// Serves a request about direct read channels.
    pub(super) fn lanes(&mut self, id: u64, request: Request<'_>) -> Result<(), End> {
        if self.version < VERSION_LANES || self.number != 0 {
            return Err(End::Protocol(
                "lanes are requested on link 0, from version 2 on",
            ));
        }
        let (lanes, client) = (&self.shared.lanes, self.client.id);
        let now_ns = self.shared.now_ns();
        let result = match request {
            Request::Lane(asked) => {
                random_bytes()
                    .map_err(|_| ErrorCode::Internal)
                    .and_then(|ticket| {
                        lanes
                            .ask(client, &asked, ticket, self.shared.now_ms(), now_ns)
                            .map(|lane| Answer::Ticket { lane, ticket })
                    })
            }
            Request::LaneRate { lane, rate } => lanes
                .set_rate(&client, lane, rate, now_ns)
                .map(lanes::Used::answer),
            Request::LaneEnd { lane } => lanes.end(&client, lane).map(lanes::Used::answer),
            _ => return Err(End::Protocol("not a request about lanes")),
        };
        match result {
            Ok(answer) => self.answer(id, answer),
            Err(code) => self.refuse(id, 0, code),
        }
    }
}
