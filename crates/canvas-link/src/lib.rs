//! A client's link to one donor of far memory: requests go in, completions come out.
//!
//! [`connect`] sets up what an [`Address`] names: a [`Link`], or a link with RDMA in addition; both
//! are a [`Transport`].
//!
//! A [`Link`] is one TCP connection with a `canvas-wire` session. It belongs to one thread at a
//! time (it is `Send`, and every method takes `&mut self`), starts no thread, and blocks only where
//! its methods say so. Requests are pipelined: submit many, flush once, and take the answers as
//! they come, in any order (`crates/canvas-cli/tests/far/data.rs` does that).
//!
//! # What a caller must do
//!
//! * Every submitted request completes exactly once: answered (possibly with an error), timed out,
//!   or lost with the connection. After `TimedOut` and `Lost` it is unknown whether the donor did
//!   it. All requests may be repeated: `Alloc` returns the same handle again, and the others are
//!   idempotent. Once the link is connected again, by any process, the donor does nothing more of
//!   what the older connection had sent ([`LinkConfig::link`]).
//! * Outstanding requests for the same bytes may be done in any order. Wait for a write before
//!   another write, or a read, of its bytes.
//! * Answer [`Completion::Call`]s with [`Link::reply`]; a donor waits no longer than the call says.
//! * Send something (at least a `Ping`) in every third of [`Link::welcome`]`().lease_ms`, on any
//!   link of this client: the donor frees the slabs of a silent client.
//! * [`Link::reconnect`] repairs a broken link. [`Reconnected::same_run`] says whether the slabs
//!   may still be there.
#![forbid(unsafe_code)]

mod completions;
mod connect;
mod error;
mod pending;
mod rdma;
mod transport;
mod unpaced;

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use canvas_wire::frame::{Answer, FromDonor, Reply, Request, Welcome};
use canvas_wire::key::ClusterKey;
use canvas_wire::session::Session;
use canvas_wire::stream::{Incoming, Outgoing};
use canvas_wire::{APART_BYTES_MAX, ClientId, FRAME_BYTES_MAX};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};

pub use completions::{Completion, Completions};
pub use error::{AskError, LinkError, SubmitError};
use pending::Pending;
pub use transport::{Address, RDMA_PREFIX, Transport, connect};
pub use unpaced::unpaced;

/// Unsent bytes above which [`Link::submit`] returns [`SubmitError::Full`].
pub const UNSENT_BYTES_MAX: usize = 1 << 20;
/// Most messages that one [`Link::poll`] takes.
pub const MESSAGES_OF_A_POLL: usize = 256;
/// Each call sends a record of its own; see [`APART_BYTES_MAX`].
const APART: MsgFlags = MsgFlags::MSG_EOR.union(MsgFlags::MSG_NOSIGNAL);
/// Smallest separate piece: below it, a system call costs more than it gains.
const PIECE_BYTES_MIN: usize = 2 << 10;
/// The tag of [`Link::ask`]; callers of [`Link::submit`] must not use it.
pub const ASK_TAG: u64 = u64::MAX;

/// Timeouts of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// For the TCP connection.
    pub connect: Duration,
    /// For the handshake and the donor's welcome, together.
    pub handshake: Duration,
    /// For the answer to a request, counted from its submission.
    pub request: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(1),
            handshake: Duration::from_secs(2),
            request: Duration::from_secs(1),
        }
    }
}

/// Configuration of a link, except the address.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// The cluster key.
    pub key: ClusterKey,
    /// Identifies the client; all its links have the same id. Random, see
    /// [`canvas_wire::key::random_bytes`], and secret between client and donors.
    pub client_id: ClientId,
    /// Number of this link among the client's. The donor sends its calls over the client's lowest
    /// live link. A new link replaces an older one with its number, and link 0 replaces all older
    /// links of the client: connect link 0 first, and after losing it reconnect the others too.
    pub link: u32,
    /// How long the donor shall keep our slabs after our last sign of life.
    pub lease_ms: u32,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Most requests outstanding at a time, 1 to 4096.
    pub window: usize,
}

impl LinkConfig {
    /// Link 0 of this client, a lease of 30 s, a window of 256, and the default timeouts.
    pub fn new(key: ClusterKey, client_id: ClientId) -> LinkConfig {
        LinkConfig {
            key,
            client_id,
            link: 0,
            lease_ms: 30_000,
            timeouts: Timeouts::default(),
            window: 256,
        }
    }
}

/// The result of a reconnection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reconnected {
    /// Whether the donor has not been restarted. If it was, all slabs are gone; if not, some may be
    /// (lease, eviction).
    pub same_run: bool,
}

/// The connection of a live link.
struct Connection {
    stream: TcpStream,
    session: Session,
    incoming: Incoming,
    /// Encrypted bytes that the socket has not taken yet.
    outgoing: Outgoing,
    /// All outstanding requests were submitted after the last poll, so no answer can have come.
    is_fresh: bool,
}

/// A link to one donor. See the crate's documentation.
pub struct Link {
    addr: SocketAddr,
    config: LinkConfig,
    welcome: Welcome,
    connection: Option<Connection>,
    pending: Pending,
    /// Buffer in which frames are encoded before they are encrypted.
    frame: Box<[u8]>,
}

impl Link {
    /// Connects to a donor and introduces the client. Blocks, at most for the sum of
    /// [`Timeouts::connect`] and [`Timeouts::handshake`].
    ///
    /// # Errors
    ///
    /// [`LinkError::Unreachable`], [`LinkError::Timeout`], [`LinkError::NotAdmitted`] (the peer
    /// closed the connection during the handshake: it has another key, or is not a donor),
    /// [`LinkError::Refused`] (the donor refused: version, too many links, ending),
    /// [`LinkError::Session`] and [`LinkError::Protocol`] for a peer that has the key but
    /// misbehaves.
    pub fn connect(addr: SocketAddr, config: LinkConfig) -> Result<Link, LinkError> {
        let (connection, welcome) = connect::connect(addr, &config)?;
        Ok(Link {
            addr,
            pending: Pending::new(config.window),
            config,
            welcome,
            connection: Some(connection),
            frame: vec![0; FRAME_BYTES_MAX].into_boxed_slice(),
        })
    }

    /// Connects again, with the same configuration; blocks as [`Link::connect`] does. Outstanding
    /// requests are lost; the next [`Link::poll`] returns them.
    ///
    /// # Errors
    ///
    /// Those of [`Link::connect`]; the link stays broken and this may be called again.
    pub fn reconnect(&mut self) -> Result<Reconnected, LinkError> {
        self.close();
        let (connection, welcome) = connect::connect(self.addr, &self.config)?;
        let same_run = welcome.donor_id == self.welcome.donor_id;
        self.welcome = welcome;
        self.connection = Some(connection);
        Ok(Reconnected { same_run })
    }

    /// Closes the connection. Outstanding requests are lost; the next [`Link::poll`] returns them.
    /// The donor keeps the client's slabs for the lease.
    pub fn close(&mut self) {
        self.connection = None;
        self.pending.lose_all();
    }

    /// The donor's answer to the introduction.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The donor's address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// This host's address on the connection.
    ///
    /// # Errors
    ///
    /// The link is down.
    pub fn local_ip(&self) -> std::io::Result<IpAddr> {
        let connection = self.connection.as_ref().ok_or(ErrorKind::NotConnected)?;
        Ok(connection.stream.local_addr()?.ip())
    }

    /// The configured timeouts.
    pub fn timeouts(&self) -> &Timeouts {
        &self.config.timeouts
    }

    /// Whether the connection is believed to be up.
    pub fn is_up(&self) -> bool {
        self.connection.is_some()
    }

    /// Number of requests whose completion has not been returned yet.
    pub fn outstanding(&self) -> usize {
        self.pending.outstanding()
    }

    /// Whether bytes wait for space in the kernel's buffer; the caller must then also wait for
    /// `POLLOUT`.
    pub fn has_unsent(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| !connection.outgoing.is_empty())
    }

    /// Queues a request. `tag` is returned with its completion; the link does not interpret it, and
    /// it need not be unique. Nothing is sent before [`Link::flush`] or [`Link::poll`]. Does not
    /// block.
    ///
    /// # Errors
    ///
    /// Nothing was queued: [`SubmitError::Full`] (take completions first), [`SubmitError::Down`],
    /// [`SubmitError::Invalid`] (larger than a frame, or a `Hello`).
    pub fn submit(&mut self, tag: u64, request: &Request<'_>) -> Result<(), SubmitError> {
        let connection = self.connection.as_mut().ok_or(SubmitError::Down)?;
        if connection.outgoing.backlog() > UNSENT_BYTES_MAX {
            return Err(SubmitError::Full);
        }
        let was_idle = self.pending.outstanding() == 0;
        let id = self
            .pending
            .begin(tag, request, Instant::now() + self.config.timeouts.request)?;
        connection.is_fresh |= was_idle;
        connection.send_apart();
        let sealed = request
            .encode(id, &mut self.frame)
            .map_err(|_| SubmitError::Invalid)
            .and_then(|len| {
                connection
                    .session
                    .seal(&self.frame[..len], connection.outgoing.end())
                    .map_err(|_| SubmitError::Down)
            });
        if sealed.is_err() {
            self.pending.withdraw(id);
        }
        sealed
    }

    /// Queues the answer to a donor's call; `call` is the id that [`Completion::Call`] gave.
    ///
    /// # Errors
    ///
    /// Those of [`Link::submit`].
    pub fn reply(&mut self, call: u64, reply: &Reply<'_>) -> Result<(), SubmitError> {
        let connection = self.connection.as_mut().ok_or(SubmitError::Down)?;
        if connection.outgoing.backlog() > UNSENT_BYTES_MAX {
            return Err(SubmitError::Full);
        }
        let len = reply
            .encode(call, &mut self.frame)
            .map_err(|_| SubmitError::Invalid)?;
        connection
            .session
            .seal(&self.frame[..len], connection.outgoing.end())
            .map_err(|_| SubmitError::Down)
    }

    /// Passes queued bytes to the kernel, as far as it takes them. Returns whether it took all.
    /// Does not block.
    ///
    /// # Errors
    ///
    /// The link broke; the next [`Link::poll`] returns the lost requests.
    pub fn flush(&mut self) -> Result<bool, LinkError> {
        let connection = self.connection.as_mut().ok_or(LinkError::Down)?;
        match connection.send() {
            Ok(all) => Ok(all),
            Err(e) => {
                self.close();
                Err(LinkError::Io(e))
            }
        }
    }

    /// Flushes, appends completions to `completions` and returns their number. With a timeout of
    /// zero it never blocks (for busy polling: one `recv` per call when nothing has arrived, and
    /// none in the first call after a request on an idle link); otherwise it waits until something
    /// completes or the timeout expires.
    ///
    /// # Errors
    ///
    /// The link broke. All outstanding requests are then in `completions`, as lost. A link that was
    /// already broken returns [`LinkError::Down`].
    pub fn poll(
        &mut self,
        completions: &mut Completions,
        timeout: Duration,
    ) -> Result<usize, LinkError> {
        let before = completions.len();
        let result = self.poll_inner(completions, timeout, before);
        if result.is_err() {
            self.close();
        }
        self.pending.take_lost(completions);
        result.map(|()| completions.len() - before)
    }

    fn poll_inner(
        &mut self,
        completions: &mut Completions,
        timeout: Duration,
        before: usize,
    ) -> Result<(), LinkError> {
        let mut until = None;
        loop {
            let connection = self.connection.as_mut().ok_or(LinkError::Down)?;
            connection.send().map_err(LinkError::Io)?;
            if !std::mem::take(&mut connection.is_fresh) || !timeout.is_zero() {
                connection.receive(&mut self.pending, completions)?;
            }
            let now = Instant::now();
            self.pending.expire(now, completions);
            if completions.len() > before || self.pending.has_lost() || timeout.is_zero() {
                return Ok(());
            }
            let until = *until.get_or_insert(now + timeout);
            let wake = self.pending.next_deadline().map_or(until, |d| d.min(until));
            if now >= until {
                return Ok(());
            }
            connection
                .wait(wake.saturating_duration_since(now))
                .map_err(LinkError::Io)?;
        }
    }

    /// Submits one request and blocks until it completes; for the control path. Clears
    /// `completions` first; other completions of this time are in there afterwards, so it is best
    /// called with nothing outstanding.
    ///
    /// # Errors
    ///
    /// The donor's error, or those of [`Link::submit`] and [`Link::poll`].
    pub fn ask<'c>(
        &mut self,
        request: &Request<'_>,
        completions: &'c mut Completions,
    ) -> Result<Answer<'c>, AskError> {
        completions.clear();
        self.submit(ASK_TAG, request).map_err(AskError::Submit)?;
        let mut seen = 0;
        let found = loop {
            // The request's own deadline ends the loop.
            self.poll(completions, Duration::from_secs(1))
                .map_err(AskError::Link)?;
            if let Some(at) = completions.find(seen, ASK_TAG) {
                break at;
            }
            seen = completions.len();
        };
        match completions.get(found) {
            Some(Completion::Answer {
                answer: Answer::Error { code, text },
                ..
            }) => Err(AskError::Refused {
                code,
                text: text.to_owned(),
            }),
            Some(Completion::Answer { answer, .. }) => Ok(answer),
            _ => Err(AskError::Link(LinkError::Timeout)),
        }
    }
}

/// The socket, for waiting on it together with others: for `POLLIN`, and for `POLLOUT` while
/// [`Link::has_unsent`]. `None` while the link is broken.
impl Link {
    /// The socket's descriptor; it changes with [`Link::reconnect`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.connection
            .as_ref()
            .map(|connection| connection.stream.as_fd())
    }
}

impl Connection {
    /// Sends pending bytes before more is queued. A failure shows again in the next [`Connection::send`],
    /// which returns it.
    fn send_apart(&mut self) {
        if (PIECE_BYTES_MIN..=APART_BYTES_MAX).contains(&self.outgoing.backlog()) {
            let _ = self.send();
        }
    }

    /// Sends until the kernel takes no more; true when all bytes are sent.
    fn send(&mut self) -> std::io::Result<bool> {
        while !self.outgoing.is_empty() {
            match send(self.stream.as_raw_fd(), self.outgoing.unsent(), APART) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.outgoing.sent(n),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(true)
    }

    /// Receives messages, at most [`MESSAGES_OF_A_POLL`], so that a donor that sends without pause
    /// cannot keep it busy.
    fn receive(
        &mut self,
        pending: &mut Pending,
        completions: &mut Completions,
    ) -> Result<(), LinkError> {
        let mut messages = 0;
        loop {
            while let Some(message) = self.incoming.message() {
                completions.accept(message, &mut self.session, |id, frame| match frame {
                    FromDonor::Answer(answer) => pending.complete(id, answer),
                    FromDonor::Call(_) => Ok(pending::Arrival::Call),
                })?;
                messages += 1;
                if messages >= MESSAGES_OF_A_POLL {
                    return Ok(());
                }
            }
            let space = self.incoming.space();
            let room = space.len();
            match self.stream.read(space) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(n) => {
                    self.incoming.filled(n);
                    // A short read has emptied the socket; another `recv` would be wasted.
                    if n < room && self.incoming.holds_no_message() {
                        return Ok(());
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(LinkError::Io(e)),
            }
        }
    }

    /// Waits until the socket is ready, at most for `time`.
    fn wait(&self, time: Duration) -> std::io::Result<()> {
        let mut flags = PollFlags::POLLIN;
        if !self.outgoing.is_empty() {
            flags |= PollFlags::POLLOUT;
        }
        let mut fds = [PollFd::new(self.stream.as_fd(), flags)];
        // Rounded up: a wait of 0 ms would be a busy loop.
        let ms = time.as_millis() + 1;
        match poll(
            &mut fds,
            PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX),
        ) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}
