//! A client's link to one donor of far memory: requests go in, completions come out.
//!
//! [`connect`] makes what an [`Address`] says: a [`Link`], or one with RDMA beside it; both are a
//! [`Transport`].
//!
//! A [`Link`] is one TCP connection with a session of `canvas-wire` on it. It belongs to one thread
//! at a time (it is `Send`, and every method takes `&mut self`), starts no thread, and does not
//! block but where its methods say so. Requests are pipelined: submit many, flush once, and take
//! the answers as they come, in any order.
//!
//! ```no_run
//! use std::time::Duration;
//! use canvas_link::{Completion, Completions, Link, LinkConfig};
//! use canvas_wire::frame::{Range, Request};
//! use canvas_wire::key::ClusterKey;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = LinkConfig::new(ClusterKey::without_secret(), [7; 16]);
//! let mut link = Link::connect("127.0.0.1:7070".parse()?, config)?;
//! # let handle = 0;
//! for page in 0..8 {
//!     let range = Range { offset: page * 4096, len: 4096 };
//!     link.submit(u64::from(page), &Request::Read { handle, range })?;
//! }
//! let mut completions = Completions::new();
//! while link.outstanding() > 0 {
//!     completions.clear();
//!     link.poll(&mut completions, Duration::from_millis(10))?;
//!     for completion in completions.iter() {
//!         match completion {
//!             Completion::Answer { tag, answer } => println!("page {tag}: {answer:?}"),
//!             Completion::TimedOut { tag } | Completion::Lost { tag } => println!("no page {tag}"),
//!             Completion::Call { call, .. } => println!("the donor asks: {call:?}"),
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What a caller must do
//!
//! * Every submitted request completes exactly once: as an answer (which may be an error), as timed
//!   out, or as lost with the connection. After `TimedOut` and `Lost` nobody knows whether the donor
//!   did it. All requests may be repeated: `Alloc` gives the same handle again, and the others name
//!   what they mean. Once the link was connected again, by whatever process, the donor does nothing
//!   more of what the older one had sent ([`LinkConfig::link`]).
//! * Two outstanding writes of the same bytes may be done in any order, and so may a read and a
//!   write. Wait for the first.
//! * Answer [`Completion::Call`]s with [`Link::reply`]; a donor does not wait longer than it said.
//! * Send something (a `Ping`, if nothing else) in every third of [`Link::welcome`]`().lease_ms`, on
//!   any link of this client: the donor frees the slabs of a client that it has not heard of.
//! * When a link is broken, [`Link::reconnect`] makes it new. [`Reconnected::same_run`] tells whether
//!   the slabs may still be there.
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

/// Unsent bytes past which [`Link::submit`] says that the link is full.
pub const UNSENT_BYTES_MAX: usize = 1 << 20;
/// Messages that one [`Link::poll`] takes at most.
pub const MESSAGES_OF_A_POLL: usize = 256;
/// Each call sends a record of its own, see [`APART_BYTES_MAX`].
const APART: MsgFlags = MsgFlags::MSG_EOR.union(MsgFlags::MSG_NOSIGNAL);
/// The least piece of what is written. Less is sent together: a call costs more.
const PIECE_BYTES_MIN: usize = 2 << 10;
/// The tag that [`Link::ask`] uses; not for [`Link::submit`].
pub const ASK_TAG: u64 = u64::MAX;

/// How long a link waits for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// For the TCP connection.
    pub connect: Duration,
    /// For the handshake and the donor's welcome, together.
    pub handshake: Duration,
    /// For the answer to a request, from its submission on.
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

/// Everything that a link needs to know but the address.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// The pool's key.
    pub key: ClusterKey,
    /// Who we are; the same for all links of one client. Random, see
    /// [`canvas_wire::key::random_bytes`]; it is a secret of the client and the donors.
    pub client_id: ClientId,
    /// This link's number among the client's. The donor sends its calls over the lowest that lives.
    /// The donor closes an older link of the same number, and with link 0 all older ones of the client:
    /// connect link 0 first, and when it was lost connect the others again, too.
    pub link: u32,
    /// How long the donor shall keep our slabs after our last sign of life.
    pub lease_ms: u32,
    /// Bounds on waiting.
    pub timeouts: Timeouts,
    /// Requests that may be outstanding at one time, 1 to 4096.
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

/// What a link found when it connected again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reconnected {
    /// Whether it is the same run of the donor as before. Slabs may still have gone (lease,
    /// eviction); when it is not the same run, they have all gone.
    pub same_run: bool,
}

/// The connection of a link that is up.
struct Up {
    stream: TcpStream,
    session: Session,
    incoming: Incoming,
    /// Sealed bytes that the socket has not taken yet.
    outgoing: Outgoing,
    /// All that is outstanding was submitted after the last look: its answers cannot have come.
    is_fresh: bool,
}

/// A link to one donor. See the crate's documentation.
pub struct Link {
    addr: SocketAddr,
    config: LinkConfig,
    welcome: Welcome,
    up: Option<Up>,
    pending: Pending,
    /// Frames are put together here before they are sealed.
    frame: Box<[u8]>,
}

impl Link {
    /// Connects to a donor and presents us. Blocks, at most for the sum of
    /// [`Timeouts::connect`] and [`Timeouts::handshake`].
    ///
    /// # Errors
    ///
    /// [`LinkError::Unreachable`], [`LinkError::Timeout`], [`LinkError::NotAdmitted`] (the donor
    /// hung up during the handshake: another key, or no donor at all), [`LinkError::Refused`] (the
    /// donor said no: version, too many links, ending), [`LinkError::Session`] and
    /// [`LinkError::Protocol`] from a peer that has the key but misbehaves.
    pub fn connect(addr: SocketAddr, config: LinkConfig) -> Result<Link, LinkError> {
        let (up, welcome) = connect::connect(addr, &config)?;
        Ok(Link {
            addr,
            pending: Pending::new(config.window),
            config,
            welcome,
            up: Some(up),
            frame: vec![0; FRAME_BYTES_MAX].into_boxed_slice(),
        })
    }

    /// Connects again, with the same configuration; blocks as [`Link::connect`] does. Requests that
    /// are outstanding are lost; the next [`Link::poll`] says so.
    ///
    /// # Errors
    ///
    /// As [`Link::connect`]; the link stays broken and this may be called again.
    pub fn reconnect(&mut self) -> Result<Reconnected, LinkError> {
        self.close();
        let (up, welcome) = connect::connect(self.addr, &self.config)?;
        let same_run = welcome.donor_id == self.welcome.donor_id;
        self.welcome = welcome;
        self.up = Some(up);
        Ok(Reconnected { same_run })
    }

    /// Hangs up. Outstanding requests are lost; the next [`Link::poll`] says so. The donor keeps our
    /// slabs for the lease.
    pub fn close(&mut self) {
        self.up = None;
        self.pending.lose_all();
    }

    /// What the donor said when it was connected to.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The donor's address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// This host's end of the connection.
    ///
    /// # Errors
    ///
    /// The link is down.
    pub fn local_ip(&self) -> std::io::Result<IpAddr> {
        let up = self.up.as_ref().ok_or(ErrorKind::NotConnected)?;
        Ok(up.stream.local_addr()?.ip())
    }

    /// What it was told about waiting.
    pub fn timeouts(&self) -> &Timeouts {
        &self.config.timeouts
    }

    /// Whether the connection stands, as far as is known.
    pub fn is_up(&self) -> bool {
        self.up.is_some()
    }

    /// Requests whose completion has not been given out yet.
    pub fn outstanding(&self) -> usize {
        self.pending.outstanding()
    }

    /// Whether bytes wait for room in the kernel's buffer: wait for `POLLOUT` too, then.
    pub fn has_unsent(&self) -> bool {
        self.up.as_ref().is_some_and(|up| !up.outgoing.is_empty())
    }

    /// Queues a request. `tag` comes back with its completion and means nothing to the link; it
    /// need not be unique. Nothing is sent before [`Link::flush`] or [`Link::poll`]. Does not block.
    ///
    /// # Errors
    ///
    /// Nothing was queued: [`SubmitError::Full`] (take completions first), [`SubmitError::Down`],
    /// [`SubmitError::Invalid`] (it is more than a frame carries, or a `Hello`).
    pub fn submit(&mut self, tag: u64, request: &Request<'_>) -> Result<(), SubmitError> {
        let up = self.up.as_mut().ok_or(SubmitError::Down)?;
        if up.outgoing.backlog() > UNSENT_BYTES_MAX {
            return Err(SubmitError::Full);
        }
        let was_idle = self.pending.outstanding() == 0;
        let id = self
            .pending
            .begin(tag, request, Instant::now() + self.config.timeouts.request)?;
        up.is_fresh |= was_idle;
        up.send_apart();
        let sealed = request
            .encode(id, &mut self.frame)
            .map_err(|_| SubmitError::Invalid)
            .and_then(|len| {
                up.session
                    .seal(&self.frame[..len], up.outgoing.end())
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
    /// As [`Link::submit`].
    pub fn reply(&mut self, call: u64, reply: &Reply<'_>) -> Result<(), SubmitError> {
        let up = self.up.as_mut().ok_or(SubmitError::Down)?;
        if up.outgoing.backlog() > UNSENT_BYTES_MAX {
            return Err(SubmitError::Full);
        }
        let len = reply
            .encode(call, &mut self.frame)
            .map_err(|_| SubmitError::Invalid)?;
        up.session
            .seal(&self.frame[..len], up.outgoing.end())
            .map_err(|_| SubmitError::Down)
    }

    /// Hands what is queued to the kernel, as much as it takes. Returns whether it took all. Does
    /// not block.
    ///
    /// # Errors
    ///
    /// The link is broken; the next [`Link::poll`] gives out what was lost.
    pub fn flush(&mut self) -> Result<bool, LinkError> {
        let up = self.up.as_mut().ok_or(LinkError::Down)?;
        match up.send() {
            Ok(all) => Ok(all),
            Err(e) => {
                self.close();
                Err(LinkError::Io(e))
            }
        }
    }

    /// Appends completions to `completions` and returns how many. Flushes first. With a timeout of
    /// zero it never blocks (busy polling: one `recv` a call when nothing is there, and none in the
    /// first call after a request on an idle link); else it waits until something completes or the
    /// time is over.
    ///
    /// # Errors
    ///
    /// The link is broken. All outstanding requests are then in `completions`, as lost. A link that
    /// was broken before gives [`LinkError::Down`].
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
            let up = self.up.as_mut().ok_or(LinkError::Down)?;
            up.send().map_err(LinkError::Io)?;
            if !std::mem::take(&mut up.is_fresh) || !timeout.is_zero() {
                up.receive(&mut self.pending, completions)?;
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
            up.wait(wake.saturating_duration_since(now))
                .map_err(LinkError::Io)?;
        }
    }

    /// Submits one request and blocks until it completes; for the control path. Clears
    /// `completions` first; whatever else completes meanwhile is in there afterwards, so this is
    /// best called with nothing outstanding.
    ///
    /// # Errors
    ///
    /// The donor's error, or what [`Link::submit`] and [`Link::poll`] say.
    pub fn ask<'c>(
        &mut self,
        request: &Request<'_>,
        completions: &'c mut Completions,
    ) -> Result<Answer<'c>, AskError> {
        completions.clear();
        self.submit(ASK_TAG, request).map_err(AskError::Submit)?;
        let mut seen = 0;
        let found = loop {
            // The request's own deadline ends this.
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

/// The socket, to wait on together with others: for `POLLIN`, and for `POLLOUT` while
/// [`Link::has_unsent`]. `None` while the link is broken.
impl Link {
    /// The socket's descriptor; it changes with [`Link::reconnect`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.up.as_ref().map(|up| up.stream.as_fd())
    }
}

impl Up {
    /// Sends a piece that waits, before something is put behind it. What fails here fails again with the next
    /// [`Up::send`], which says so.
    fn send_apart(&mut self) {
        if (PIECE_BYTES_MIN..=APART_BYTES_MAX).contains(&self.outgoing.backlog()) {
            let _ = self.send();
        }
    }

    /// Hands bytes to the kernel until it takes no more; true when all are gone.
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

    /// Takes what has come. A donor that sends without pause does not keep it here: it ends after
    /// [`MESSAGES_OF_A_POLL`].
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
                    // A short read has emptied the socket; asking again would cost a call.
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

    /// Sleeps until the socket is ready, at most so long.
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
