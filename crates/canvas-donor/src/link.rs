//! The thread of one link: handshake, Hello, then requests until it ends.
//!
//! The thread reads without blocking. After traffic it polls for a short time before it sleeps in
//! poll(2), because a sleeping thread answers a read tens of microseconds later. Polling in vain
//! makes the next polling time shorter, so that links with rare traffic cost nothing.

use std::collections::HashMap;
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use canvas_wire::error::{DecodeError, ErrorCode};
use canvas_wire::frame::{
    self, Answer, Call, FromClient, Hello, Items, QueuePair, Range, Reply, Request, Welcome,
};
use canvas_wire::session::{self, HANDSHAKE_BYTES, Session, SessionError};
use canvas_wire::stream::{Incoming, Outgoing};
use canvas_wire::{
    APART_BYTES_MAX, FRAME_BYTES_MAX, SLAB_BYTES, TEXT_BYTES_MAX, VERSION_MAX, VERSION_MIN,
};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{Ipv4Tos, Ipv6TClass};
use nix::sys::socket::{MsgFlags, send, setsockopt};
use tracing::warn;

use crate::handshakes::Handshake;
use crate::outbox::{Outbox, OwnedCall};
use crate::rdma::Rdma;
use crate::registry::Client;
use crate::server::Shared;
use crate::slab::Slab;
use crate::{HANDSHAKE_TIME, LEASE_MIN, UNSENT_BYTES_MAX};

mod lane;

/// Most slabs that a link caches; beyond, it drops all and asks the table again.
const KNOWN_MAX: usize = 4096;
/// Each call sends a record of its own; see [`APART_BYTES_MAX`].
const APART: MsgFlags = MsgFlags::MSG_EOR.union(MsgFlags::MSG_NOSIGNAL);
/// The shortest polling time, as a fraction of the full one.
const SPIN_PARTS: u32 = 16;
/// How long an ending link waits until its last answer is taken.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Why a link ended.
#[derive(Debug)]
enum End {
    /// The client closed the connection.
    HungUp,
    /// The connection failed.
    Io(std::io::Error),
    /// The first message was not from a peer with our key.
    NotAdmitted,
    /// Handshake or Hello came too late.
    Slow,
    /// A message does not open.
    Session(SessionError),
    /// A message of a direct read channel is invalid.
    Lane(canvas_direct::wire::LaneError),
    /// A frame is invalid.
    Decode(DecodeError),
    /// A frame is not allowed at this point.
    Protocol(&'static str),
    /// The client was refused.
    Refused(ErrorCode),
    /// The client was silent for its lease.
    Silent,
    /// Replaced by a newer link, expired with its client's lease, or the donor is shutting down.
    Closed,
}

impl End {
    /// Kind of the log line, if operators should see one.
    fn kind(&self) -> Option<&'static str> {
        match self {
            End::HungUp | End::Io(_) | End::Closed => None,
            End::NotAdmitted | End::Slow => Some("peer not admitted"),
            End::Session(_) | End::Lane(_) | End::Decode(_) | End::Protocol(_) => Some("bad peer"),
            End::Refused(_) => Some("client refused"),
            End::Silent => Some("silent link"),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::HungUp => f.write_str("it closed the connection"),
            End::Io(e) => write!(f, "the connection failed: {e}"),
            End::NotAdmitted => {
                f.write_str("it has another cluster key, or does not speak canvas-wire/1")
            }
            End::Slow => f.write_str("no handshake in time"),
            End::Session(e) => write!(f, "{e}"),
            End::Lane(e) => write!(f, "{e}"),
            End::Decode(e) => write!(f, "{e}"),
            End::Protocol(what) => f.write_str(what),
            End::Refused(code) => write!(f, "{code}"),
            End::Silent => f.write_str("nothing was received for a whole lease"),
            End::Closed => f.write_str("closed"),
        }
    }
}

/// Runs a link to its end, and logs the end if operators should see it.
pub(crate) fn run(
    shared: &Arc<Shared>,
    stream: TcpStream,
    peer: SocketAddr,
    outbox: Arc<Outbox>,
    handshake: Handshake,
) {
    let end = serve(shared, stream, outbox, handshake);
    match &end {
        End::NotAdmitted | End::Slow => shared.counters.not_admitted.fetch_add(1, Relaxed),
        End::Session(_) | End::Lane(_) | End::Decode(_) | End::Protocol(_) => {
            shared.counters.bad_peers.fetch_add(1, Relaxed)
        }
        _ => 0,
    };
    if let Some(kind) = end.kind() {
        warn!(about = kind, "{kind}: {peer}: {end}");
    }
}

fn serve(
    shared: &Arc<Shared>,
    stream: TcpStream,
    outbox: Arc<Outbox>,
    handshake: Handshake,
) -> End {
    let ready = stream
        .set_nonblocking(true)
        .and_then(|()| stream.set_nodelay(true));
    if let Err(e) = ready {
        return End::Io(e);
    }
    canvas_link::unpaced(&stream);
    shared.watch(&outbox);
    let mut wire = Wire {
        stream,
        incoming: Incoming::new(),
        outgoing: Outgoing::new(),
    };
    let until = Instant::now() + HANDSHAKE_TIME;
    match lane::admit(shared, wire, &outbox, until) {
        Ok(Err(of_a_link)) => wire = of_a_link,
        other => {
            drop(handshake);
            return match other {
                Ok(Ok(mut lane)) => lane.run(),
                Ok(Err(_)) => End::Closed,
                Err(end) => end,
            };
        }
    }
    let admitted = admit(shared, &mut wire, &outbox, until);
    drop(handshake);
    let Admitted {
        session,
        hello,
        version,
        client,
        plain,
        welcomed,
    } = match admitted {
        Ok(admitted) => admitted,
        Err(end) => {
            wire.last_words();
            return end;
        }
    };
    let mut link = Link {
        shared,
        wire,
        session,
        outbox: Arc::clone(&outbox),
        client: Arc::clone(&client),
        number: hello.link,
        version,
        known: HashMap::new(),
        plain,
        frame: Vec::with_capacity(FRAME_BYTES_MAX),
        next_call: 1,
    };
    let end = link.run();
    // After the link's end nobody reaches slabs over it, including devices.
    outbox.fence();
    link.wire.last_words();
    shared.registry.leave(&client, hello.link, &outbox);
    drop(welcomed);
    end
}

/// A socket and its buffers.
struct Wire {
    stream: TcpStream,
    incoming: Incoming,
    outgoing: Outgoing,
}

impl Wire {
    /// Marks outgoing packets for low delay (RFC 1349), which busy links may prefer. If that is
    /// refused, they go like any other.
    fn hurry(&self) {
        let low_delay = nix::libc::IPTOS_LOWDELAY.into();
        let v4 = setsockopt(&self.stream, Ipv4Tos, &low_delay);
        let _ = v4.or_else(|_| setsockopt(&self.stream, Ipv6TClass, &low_delay));
    }

    fn backlog(&self) -> usize {
        self.outgoing.backlog()
    }

    /// Reads once; true if something arrived.
    fn read(&mut self) -> Result<bool, End> {
        match self.stream.read(self.incoming.space()) {
            Ok(0) => Err(End::HungUp),
            Ok(n) => {
                self.incoming.filled(n);
                Ok(true)
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Ok(false)
            }
            Err(e) => Err(End::Io(e)),
        }
    }

    /// Sends what the kernel takes, as a record of its own; true if it took something.
    fn send(&mut self) -> Result<bool, End> {
        let mut progress = false;
        while !self.outgoing.is_empty() {
            match send(self.stream.as_raw_fd(), self.outgoing.unsent(), APART) {
                Ok(n) => {
                    self.outgoing.sent(n);
                    progress |= n > 0;
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                Err(e) => return Err(End::Io(e.into())),
            }
        }
        Ok(progress)
    }

    /// Sleeps until there is something to do.
    fn wait(&self, outbox: &Outbox, time: Duration) -> Result<(), End> {
        let mut flags = PollFlags::empty();
        if self.backlog() > 0 {
            flags |= PollFlags::POLLOUT;
        }
        if self.backlog() <= UNSENT_BYTES_MAX {
            flags |= PollFlags::POLLIN;
        }
        let mut fds = [
            PollFd::new(self.stream.as_fd(), flags),
            PollFd::new(outbox.fd(), PollFlags::POLLIN),
        ];
        let ms = time.as_millis() + 1;
        match poll(
            &mut fds,
            PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX),
        ) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(End::Io(e.into())),
        }
    }

    /// Tries shortly to get an error's text to the client before the connection closes. Pending
    /// input is read, because closing would otherwise reset the connection and lose the text.
    fn last_words(&mut self) {
        if self.backlog() == 0 {
            return;
        }
        let _ = self.stream.set_nonblocking(false);
        let _ = self.stream.set_write_timeout(Some(LAST_WORDS));
        let _ = self.stream.set_read_timeout(Some(LAST_WORDS));
        if self.stream.write_all(self.outgoing.unsent()).is_ok() {
            let _ = self.stream.shutdown(std::net::Shutdown::Write);
            let mut rest = [0; 4096];
            let until = Instant::now() + LAST_WORDS;
            while Instant::now() < until && matches!(self.stream.read(&mut rest), Ok(n) if n > 0) {}
        }
    }

    /// Waits for the length of the first message, at most until `until`.
    fn first_length(&mut self, outbox: &Outbox, until: Instant) -> Result<usize, End> {
        loop {
            if let Some(len) = self.incoming.coming() {
                return Ok(len);
            }
            self.wait_until(outbox, until)?;
        }
    }

    /// Waits for more bytes, at most until `until`.
    fn wait_until(&mut self, outbox: &Outbox, until: Instant) -> Result<(), End> {
        if outbox.is_closed() {
            return Err(End::Closed);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(End::Slow);
        }
        if !self.read()? {
            self.wait(outbox, left)?;
        }
        Ok(())
    }

    /// Waits for the next message, at most until `until`, and passes it to `take`.
    fn next_message<T>(
        &mut self,
        outbox: &Outbox,
        until: Instant,
        len_max: usize,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, End> {
        loop {
            self.send()?;
            if self.incoming.coming().is_some_and(|len| len > len_max) {
                return Err(End::NotAdmitted);
            }
            if !self.incoming.holds_no_message()
                && let Some(message) = self.incoming.message()
            {
                return Ok(take(message));
            }
            self.wait_until(outbox, until)?;
        }
    }
}

/// An established link.
struct Admitted {
    session: Session,
    hello: Hello,
    /// The agreed version.
    version: u16,
    client: Arc<Client>,
    /// A buffer for reuse.
    plain: Vec<u8>,
    /// Its place among the donor's links.
    welcomed: Welcomed,
}

/// Performs handshake and Hello.
fn admit(
    shared: &Arc<Shared>,
    wire: &mut Wire,
    outbox: &Arc<Outbox>,
    until: Instant,
) -> Result<Admitted, End> {
    let mut answer = Vec::new();
    let mut session = wire
        .next_message(outbox, until, HANDSHAKE_BYTES, |message| {
            session::respond(&shared.key, message, &mut answer)
        })?
        .map_err(|_| End::NotAdmitted)?;
    wire.outgoing.end().extend_from_slice(&answer);
    let mut plain = Vec::with_capacity(FRAME_BYTES_MAX);
    wire.next_message(outbox, until, 256, |message| {
        session.open(message, &mut plain)
    })?
    .map_err(End::Session)?;
    let (id, frame) = FromClient::decode(&plain).map_err(End::Decode)?;
    let FromClient::Request(Request::Hello(hello)) = frame else {
        return Err(End::Protocol("its first frame was not a Hello"));
    };
    plain.clear();
    let mut say = |answer: Answer<'_>| {
        let mut frame = [0; 256];
        if let Ok(len) = answer.encode(id, &mut frame) {
            let _ = session.seal(&frame[..len], wire.outgoing.end());
        }
    };
    let mut refuse = |code: ErrorCode, text: &str| {
        say(Answer::Error { code, text });
        Err(End::Refused(code))
    };
    let version = hello.version_max.min(VERSION_MAX);
    if version < VERSION_MIN || version < hello.version_min {
        let text = format!("this donor speaks versions {VERSION_MIN} to {VERSION_MAX}");
        return refuse(ErrorCode::Version, &text);
    }
    let lease_max = shared.config.lease;
    let lease = Duration::from_millis(u64::from(hello.lease_ms))
        .max(LEASE_MIN)
        .min(lease_max);
    let lease_ms = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
    let links_max = shared.config.links_max;
    let most = match shared.registry.knows(&hello.client_id) {
        // The client comes back for its slabs, or sets up its second link.
        true => usize::MAX,
        false => links_max,
    };
    let Some(welcomed) = Welcomed::within(shared, most) else {
        let text = format!(
            "this donor serves {links_max} links, and all are in use; start it with more (canvas serve -o connections=N)"
        );
        return refuse(ErrorCode::TooManyLinks, &text);
    };
    let joined = shared.registry.join(
        hello.client_id,
        hello.link,
        outbox,
        u64::from(lease_ms),
        shared.now_ms(),
    );
    let client = match joined {
        Ok(client) => client,
        Err(code) => return refuse(code, sentence(code)),
    };
    if hello.link == 0 {
        // The client has started again: its earlier direct read channels are void.
        shared.lanes.end_all(&hello.client_id);
    }
    say(Answer::Welcome(Welcome {
        version,
        lease_ms,
        donor_id: shared.donor_id,
        slab_bytes: SLAB_BYTES as u64,
        memory_bytes: shared.config.memory_bytes,
        free_bytes: shared.registry.pong().free_bytes,
    }));
    Ok(Admitted {
        session,
        hello,
        version,
        client,
        plain,
        welcomed,
    })
}

/// A place among the donor's links, until it is dropped.
struct Welcomed(Arc<Shared>);

impl Welcomed {
    /// Takes a place, if there are fewer than `most`.
    fn within(shared: &Arc<Shared>, most: usize) -> Option<Welcomed> {
        let one_more = |n: usize| (n < most).then_some(n + 1);
        let taken = shared.welcomed.fetch_update(Relaxed, Relaxed, one_more);
        taken.ok().map(|_| Welcomed(Arc::clone(shared)))
    }
}

impl Drop for Welcomed {
    fn drop(&mut self) {
        self.0.welcomed.fetch_sub(1, Relaxed);
    }
}

/// The text for users that accompanies the code.
fn sentence(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::NoRoom => "nothing can be lent now",
        ErrorCode::UnknownHandle => "this client has no slab with this handle",
        ErrorCode::OutOfRange => "offset and length reach beyond the slab",
        ErrorCode::Evicting => "the slab is being evicted; it can only be read",
        ErrorCode::TooManyLinks => "this client has too many links",
        ErrorCode::Ending => "the donor is ending",
        ErrorCode::NoRdma => "this link has no RDMA, or the slab cannot be pinned",
        ErrorCode::NoLane => "this client has too many lanes, or none with this number",
        ErrorCode::Version | ErrorCode::Protocol | ErrorCode::Internal => "see the donor's log",
    }
}

struct Link<'s> {
    shared: &'s Arc<Shared>,
    wire: Wire,
    session: Session,
    outbox: Arc<Outbox>,
    client: Arc<Client>,
    /// Its number among the client's links.
    number: u32,
    version: u16,
    /// Cache of slabs. A freed one stays until it is used again.
    known: HashMap<u64, Arc<Slab>>,
    /// The decrypted message.
    plain: Vec<u8>,
    /// The answer before encryption.
    frame: Vec<u8>,
    next_call: u64,
}

impl Drop for Link<'_> {
    /// Runs also when the thread panics: a queue pair would survive in the outbox.
    fn drop(&mut self) {
        self.outbox.fence();
    }
}

impl Link<'_> {
    fn run(&mut self) -> End {
        match self.run_inner() {
            Ok(end) | Err(end) => end,
        }
    }

    fn run_inner(&mut self) -> Result<End, End> {
        let mut spin = Spin::new(self.shared.config.spin, Instant::now());
        loop {
            let mut progress = false;
            if self.wire.backlog() <= UNSENT_BYTES_MAX {
                progress |= self.wire.read()?;
            }
            progress |= self.take_messages()?;
            progress |= self.take_calls()?;
            progress |= self.wire.send()?;
            if self.outbox.is_closed() {
                return Ok(End::Closed);
            }
            let now = Instant::now();
            if progress {
                spin.hit(now);
                continue;
            }
            let contention = &self.shared.contention;
            let began_ns = self.shared.now_ns();
            if !contention.is_contended(began_ns) && spin.goes_on(now) {
                // With few processors, the peer may be waiting for this one.
                std::thread::yield_now();
                contention.record_yield(began_ns, self.shared.now_ns());
                continue;
            }
            let silent_ms = self.shared.now_ms().saturating_sub(self.client.last_ms());
            let lease_ms = self.client.lease_ms();
            if silent_ms > lease_ms {
                return Ok(End::Silent);
            }
            self.wire
                .wait(&self.outbox, Duration::from_millis(lease_ms - silent_ms))?;
            spin.woke(Instant::now());
        }
    }

    /// Serves complete messages, as long as there is room for answers and no newer link has
    /// replaced this one: the client may be another process by now, which has written the same
    /// bytes.
    fn take_messages(&mut self) -> Result<bool, End> {
        let outbox = Arc::clone(&self.outbox);
        let mut any = false;
        while self.wire.backlog() <= UNSENT_BYTES_MAX {
            let Some(message) = self.wire.incoming.message() else {
                break;
            };
            any = true;
            let mut plain = std::mem::take(&mut self.plain);
            plain.clear();
            let opened = self.session.open(message, &mut plain);
            let served = match opened {
                Ok(_) => match outbox.serve() {
                    Some(mut rdma) => self.serve(&mut rdma, &plain),
                    None => Err(End::Closed),
                },
                Err(e) => Err(End::Session(e)),
            };
            self.plain = plain;
            served?;
            if self.wire.backlog() <= APART_BYTES_MAX {
                self.wire.send()?;
            }
        }
        if any {
            self.client.heard(self.shared.now_ms());
        }
        Ok(any)
    }

    fn serve(&mut self, rdma: &mut Option<Rdma>, plain: &[u8]) -> Result<(), End> {
        match FromClient::decode(plain).map_err(End::Decode)? {
            (id, FromClient::Request(request)) => self.request(rdma, id, request),
            (_, FromClient::Reply(Reply::Activity(used))) => {
                for u in used.iter() {
                    self.shared
                        .registry
                        .note_activity(&self.client.id, u.handle, u.ops);
                }
                Ok(())
            }
            (_, FromClient::Reply(Reply::EvictDone { handle })) => {
                self.shared.registry.evict_done(&self.client.id, handle);
                Ok(())
            }
        }
    }

    fn request(
        &mut self,
        rdma: &mut Option<Rdma>,
        id: u64,
        request: Request<'_>,
    ) -> Result<(), End> {
        let counters = &self.shared.counters;
        match request {
            Request::Hello(_) => Err(End::Protocol("a second Hello")),
            Request::Read { handle, range } => self.read(id, handle, [range].into_iter()),
            Request::ReadMany { handle, ranges } => self.read(id, handle, ranges.iter()),
            Request::Write {
                handle,
                offset,
                data,
            } => {
                counters.writes.fetch_add(1, Relaxed);
                let result = self.slab(handle).and_then(|slab| {
                    let more = || self.shared.refill_budget();
                    slab.write(offset, data, &self.shared.budget, more)
                });
                match result {
                    Ok(()) => {
                        counters.written_bytes.fetch_add(data.len() as u64, Relaxed);
                        self.answer(id, Answer::Done)
                    }
                    Err(code) => self.refuse(id, handle, code),
                }
            }
            Request::Alloc(key) => match self.shared.registry.alloc(&self.client, key) {
                Ok(handle) => self.answer(id, Answer::Allocated { handle }),
                Err(code) => self.refuse(id, 0, code),
            },
            Request::Free { handle } => {
                self.known.remove(&handle);
                match self.shared.registry.free(&self.client.id, handle) {
                    Ok(()) => self.answer(id, Answer::Done),
                    Err(code) => self.refuse(id, handle, code),
                }
            }
            Request::List { after } => {
                let (slabs, more) = self.shared.registry.list(&self.client.id, after);
                let slabs = Items::from(slabs.as_slice());
                self.answer(id, Answer::Handles { more, slabs })
            }
            Request::Ping => self.answer(id, Answer::Pong(self.shared.registry.pong())),
            Request::Join(peer) => self.join(rdma, id, &peer),
            Request::Lane(_) | Request::LaneRate { .. } | Request::LaneEnd { .. } => {
                self.lanes(id, request)
            }
            Request::Worth { slabs } => {
                self.shared.registry.value(&self.client.id, slabs.iter());
                self.answer(id, Answer::Done)
            }
            Request::Expose { handle } => match (self.slab(handle), rdma) {
                (Ok(slab), Some(rdma)) => {
                    rdma.expose(id, slab, &self.outbox);
                    Ok(())
                }
                (Ok(_), None) => self.refuse(id, handle, ErrorCode::NoRdma),
                (Err(code), _) => self.refuse(id, handle, code),
            },
        }
    }

    fn join(&mut self, rdma: &mut Option<Rdma>, id: u64, peer: &QueuePair) -> Result<(), End> {
        // The old queue pair loses its slabs before a new one gets any.
        *rdma = None;
        let local = self.wire.stream.local_addr().map_err(End::Io)?.ip();
        match Rdma::join(self.shared, local, peer) {
            Ok(joined) => {
                let end = joined.local();
                *rdma = Some(joined);
                self.answer(id, Answer::Joined(end))
            }
            Err(e) => {
                let mut text = e.to_string();
                warn!("rdma: {text}");
                self.shared.counters.refused.fetch_add(1, Relaxed);
                let mut end = text.len().min(TEXT_BYTES_MAX);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                text.truncate(end);
                self.answer(
                    id,
                    Answer::Error {
                        code: ErrorCode::NoRdma,
                        text: &text,
                    },
                )
            }
        }
    }

    fn slab(&mut self, handle: u64) -> Result<Arc<Slab>, ErrorCode> {
        if let Some(slab) = self.known.get(&handle) {
            return Ok(Arc::clone(slab));
        }
        let slab = self
            .shared
            .registry
            .find(&self.client.id, handle)
            .ok_or(ErrorCode::UnknownHandle)?;
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(handle, Arc::clone(&slab));
        Ok(slab)
    }

    fn read(
        &mut self,
        id: u64,
        handle: u64,
        ranges: impl Iterator<Item = Range>,
    ) -> Result<(), End> {
        self.shared.counters.reads.fetch_add(1, Relaxed);
        let slab = match self.slab(handle) {
            Ok(slab) => slab,
            Err(code) => return self.refuse(id, handle, code),
        };
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        frame.resize(canvas_wire::HEADER_BYTES, 0);
        let result = slab.read(ranges, &mut frame);
        let len = frame.len() - canvas_wire::HEADER_BYTES;
        let done = match result {
            Err(code) => self.refuse(id, handle, code),
            Ok(()) => {
                self.shared
                    .counters
                    .read_bytes
                    .fetch_add(len as u64, Relaxed);
                match frame::data_header(id, len) {
                    Err(_) => Err(End::Protocol("it reads more than a frame carries")),
                    Ok(header) => {
                        frame[..canvas_wire::HEADER_BYTES].copy_from_slice(&header);
                        self.session
                            .seal(&frame, self.wire.outgoing.end())
                            .map_err(End::Session)
                    }
                }
            }
        };
        self.frame = frame;
        done
    }

    fn refuse(&mut self, id: u64, handle: u64, code: ErrorCode) -> Result<(), End> {
        // Freed or evicted: the table is asked from now on.
        self.known.remove(&handle);
        self.shared.counters.refused.fetch_add(1, Relaxed);
        self.answer(
            id,
            Answer::Error {
                code,
                text: sentence(code),
            },
        )
    }

    fn answer(&mut self, id: u64, answer: Answer<'_>) -> Result<(), End> {
        self.seal_with(|frame| answer.encode(id, frame))
    }

    fn seal_with(
        &mut self,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, canvas_wire::error::EncodeError>,
    ) -> Result<(), End> {
        self.frame.resize(FRAME_BYTES_MAX, 0);
        let len = encode(&mut self.frame)
            .map_err(|_| End::Protocol("an answer does not fit its frame"))?;
        self.session
            .seal(&self.frame[..len], self.wire.outgoing.end())
            .map_err(End::Session)
    }

    /// Sends pending calls of the watchdog.
    fn take_calls(&mut self) -> Result<bool, End> {
        let calls = self.outbox.take();
        let any = !calls.is_empty();
        for call in calls {
            let id = self.next_call;
            self.next_call += 1;
            match &call {
                OwnedCall::Query(handles) => {
                    let handles = Items::from(handles.as_slice());
                    self.seal_with(|f| Call::EvictQuery { handles }.encode(id, f))?;
                }
                OwnedCall::Exposed { id, result } => match result {
                    Ok(exposed) => self.answer(*id, Answer::Exposed(*exposed))?,
                    Err(code) => self.refuse(*id, 0, *code)?,
                },
                OwnedCall::Stop {
                    deadline_ms,
                    handles,
                } => {
                    let left = deadline_ms.saturating_sub(self.shared.now_ms());
                    // 0 would mean that they are freed already.
                    let deadline_ms = u32::try_from(left.max(1)).unwrap_or(u32::MAX);
                    self.stop(id, deadline_ms, handles)?;
                }
                OwnedCall::Gone(handles) => self.stop(id, 0, handles)?,
            }
        }
        Ok(any)
    }

    fn stop(&mut self, id: u64, deadline_ms: u32, handles: &[u64]) -> Result<(), End> {
        let handles = Items::from(handles);
        self.seal_with(|f| {
            Call::EvictStop {
                deadline_ms,
                handles,
            }
            .encode(id, f)
        })
    }
}

/// How long to poll for traffic before sleeping.
struct Spin {
    full: Duration,
    now: Duration,
    since: Instant,
}

impl Spin {
    fn new(full: Duration, since: Instant) -> Spin {
        Spin {
            full,
            now: full,
            since,
        }
    }

    /// Traffic came while polling, or at once after a sleep.
    fn hit(&mut self, now: Instant) {
        self.now = self.full;
        self.since = now;
    }

    fn goes_on(&mut self, now: Instant) -> bool {
        let goes_on = now.saturating_duration_since(self.since) < self.now;
        if !goes_on {
            self.now = (self.now / 2).max(self.full / SPIN_PARTS);
        }
        goes_on
    }

    /// Called after a sleep.
    fn woke(&mut self, now: Instant) {
        self.since = now;
    }
}
