//! A link that transfers pages by RDMA.
//!
//! Everything except pages goes over the TCP session of a [`Link`], which is authenticated and
//! encrypted, including queue pair numbers and the keys of slabs. A slab is exposed on first use.
//! Until then, when no buffer is free, and when the donor cannot pin the slab, its pages go over
//! the session too.
//!
//! The donor revokes memory at the device: an operation on a revoked slab fails, and so does the
//! connection. Then everything outstanding is lost, and the link must be reconnected. To make this
//! rare, a request to free a slab waits here for the slab's operations under way.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use canvas_rdma::{Domain, Initiator};
use canvas_wire::error::ErrorCode;
use canvas_wire::frame::{Answer, Call, Exposed, Range, Reply, Request, Welcome};
use canvas_wire::key::random_bytes;
use canvas_wire::{DATA_BYTES_MAX, SLAB_BYTES};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::transport::Transport;
use crate::{AskError, Completion, Completions, Link, LinkError, SubmitError};

/// Buffers of a link, 32 KiB each: 2 MiB of pinned memory.
const SLOTS: usize = 64;
/// Bit of the tags of this module's own requests, which the caller does not see.
const OWN: u64 = 1 << 63;

/// State of a slab.
#[derive(Default)]
struct Slab {
    transfer: SlabTransfer,
    /// Number of one-sided operations under way.
    busy: u32,
    /// Request to send once no operation is under way.
    last_request: Option<LastRequest>,
}

/// How a slab's pages are transferred.
#[derive(Default, PartialEq)]
enum SlabTransfer {
    /// Over the session; the donor has not been asked to expose the slab.
    #[default]
    Unknown,
    /// Over the session; the donor has been asked to expose the slab.
    Requested,
    /// By the device. A slab that is being evicted is written over the session, where the donor
    /// refuses.
    Open { exposed: Exposed, read_only: bool },
    /// Over the session; the donor cannot expose the slab.
    Refused,
}

enum LastRequest {
    Free { tag: u64 },
    EvictDone { call: u64 },
}

/// An operation under way in a slot.
struct DeviceOp {
    tag: u64,
    handle: u64,
    /// Length of a read.
    read: Option<usize>,
    /// Completed as timed out; the device still uses the slot.
    expired: bool,
    /// Distinguishes successive operations of a slot.
    number: u64,
}

/// A link with RDMA.
pub(crate) struct RdmaLink {
    session: Link,
    /// `None` once the link is broken.
    queue: Option<Initiator>,
    ops: Vec<Option<DeviceOp>>,
    free: Vec<usize>,
    /// In the order of submission, since all deadlines lie the same span after it.
    deadlines: VecDeque<(Instant, usize, u64)>,
    slabs: HashMap<u64, Slab>,
    asked: HashMap<u64, u64>,
    next: u64,
    /// Waits on session and queue with one descriptor.
    epoll: Epoll,
}

impl RdmaLink {
    /// Connects queue pairs over a live session. Blocks for one answer.
    pub fn over(mut session: Link) -> Result<RdmaLink, LinkError> {
        let local = session.local_ip().map_err(LinkError::Io)?;
        let random: [u8; 4] = random_bytes().map_err(LinkError::Random)?;
        let domain = Domain::open(local).map_err(LinkError::Rdma)?;
        let psn = u32::from_le_bytes(random);
        let mut queue =
            Initiator::new(&domain, SLOTS, DATA_BYTES_MAX, psn).map_err(LinkError::Rdma)?;
        let mut completions = Completions::new();
        let peer = match session.ask(&Request::Join(queue.local()), &mut completions) {
            Ok(Answer::Joined(peer)) => peer,
            Ok(_) => return Err(LinkError::Protocol("no answer to Join")),
            Err(AskError::Refused { code, text }) => return Err(LinkError::Refused { code, text }),
            Err(AskError::Link(e)) => return Err(e),
            Err(AskError::Submit(_)) => return Err(LinkError::Down),
        };
        queue.connect(&peer).map_err(LinkError::Rdma)?;
        let system = |e: nix::errno::Errno| LinkError::Io(e.into());
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(system)?;
        let readable = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        epoll.add(queue.fd(), readable).map_err(system)?;
        let socket = session.fd().ok_or(LinkError::Down)?;
        epoll.add(socket, readable).map_err(system)?;
        Ok(RdmaLink {
            session,
            queue: Some(queue),
            ops: (0..SLOTS).map(|_| None).collect(),
            free: (0..SLOTS).rev().collect(),
            deadlines: VecDeque::new(),
            slabs: HashMap::new(),
            asked: HashMap::new(),
            next: 0,
            epoll,
        })
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Asks the donor to expose the slab, once.
    fn expose(&mut self, handle: u64) {
        let slab = self.slabs.entry(handle).or_default();
        if slab.transfer != SlabTransfer::Unknown || slab.last_request.is_some() {
            return;
        }
        slab.transfer = SlabTransfer::Requested;
        let tag = OWN | self.next();
        let request = Request::Expose { handle };
        if self.session.submit(tag, &request).is_ok() {
            self.asked.insert(tag, handle);
        } else if let Some(slab) = self.slabs.get_mut(&handle) {
            slab.transfer = SlabTransfer::Unknown;
        }
    }

    /// Starts a one-sided operation; false if it must go over the session.
    fn one_sided(&mut self, tag: u64, handle: u64, range: Range, data: Option<&[u8]>) -> bool {
        let len = range.len as usize;
        if u64::from(range.offset) + u64::from(range.len) > SLAB_BYTES as u64
            || len > DATA_BYTES_MAX
            || len == 0
        {
            return false;
        }
        let Some(slab) = self.slabs.get_mut(&handle) else {
            return false;
        };
        let SlabTransfer::Open { exposed, read_only } = slab.transfer else {
            return false;
        };
        if slab.last_request.is_some() || (read_only && data.is_some()) {
            return false;
        }
        let (Some(queue), Some(slot)) = (&mut self.queue, self.free.pop()) else {
            return false;
        };
        let Some(at) = exposed.address.checked_add(range.offset.into()) else {
            self.free.push(slot);
            return false;
        };
        let posted = match data {
            Some(data) => queue.write(slot, data, at, exposed.key),
            None => queue.read(slot, len, at, exposed.key),
        };
        if posted.is_err() {
            // The device accepts no more operations now.
            self.free.push(slot);
            return false;
        }
        slab.busy += 1;
        let number = self.next();
        self.ops[slot] = Some(DeviceOp {
            tag,
            handle,
            read: data.is_none().then_some(len),
            expired: false,
            number,
        });
        let until = Instant::now() + self.session.timeouts().request;
        self.deadlines.push_back((until, slot, number));
        true
    }

    /// Sends the last request about a slab, now or when none of its operations is under way any
    /// more.
    fn end(&mut self, handle: u64, request: LastRequest) -> Result<(), SubmitError> {
        match self.slabs.get_mut(&handle) {
            Some(slab) if slab.busy > 0 && slab.last_request.is_none() => {
                slab.last_request = Some(request);
                Ok(())
            }
            _ => {
                self.slabs.remove(&handle);
                match request {
                    LastRequest::Free { tag } => {
                        self.session.submit(tag, &Request::Free { handle })
                    }
                    LastRequest::EvictDone { call } => {
                        self.session.reply(call, &Reply::EvictDone { handle })
                    }
                }
            }
        }
    }

    /// Handles the end of an operation at the device.
    fn done(&mut self, slot: usize) {
        self.free.push(slot);
        let Some(handle) = self.ops[slot].take().map(|u| u.handle) else {
            return;
        };
        let Some(slab) = self.slabs.get_mut(&handle) else {
            return;
        };
        slab.busy -= 1;
        if slab.busy == 0
            && let Some(request) = slab.last_request.take()
        {
            // A broken session reports it in its next poll. The session cannot be full, as it holds
            // fewer requests than that.
            let _ = self.end(handle, request);
        }
    }

    /// Collects completed operations from the device.
    fn take_done(&mut self, completions: &mut Completions) -> Result<(), LinkError> {
        let queue = self.queue.as_mut().ok_or(LinkError::Down)?;
        let ops = &self.ops;
        let mut over = Vec::new();
        let polled = queue.poll(|slot, memory, start| {
            over.push(slot);
            match &ops[slot] {
                Some(u) if u.expired => {}
                Some(DeviceOp {
                    tag,
                    read: Some(len),
                    ..
                }) => completions.data(*tag, |out| memory.append_to(start..start + len, out)),
                Some(u) => completions.done(u.tag),
                None => {}
            }
        });
        for slot in over {
            self.done(slot);
        }
        polled.map(|_| ()).map_err(LinkError::Rdma)
    }

    /// Completes expired operations as timed out.
    fn expire(&mut self, completions: &mut Completions) {
        while let Some(&(until, slot, number)) = self.deadlines.front() {
            match &mut self.ops[slot] {
                Some(u) if u.number == number && until > Instant::now() => return,
                Some(u) if u.number == number => {
                    u.expired = true;
                    completions.timed_out(u.tag);
                }
                _ => {}
            }
            self.deadlines.pop_front();
        }
    }

    /// Receives from the session and handles this module's own answers.
    fn take_session(
        &mut self,
        completions: &mut Completions,
        before: usize,
    ) -> Result<(), LinkError> {
        let polled = self.session.poll(completions, Duration::ZERO);
        let (slabs, asked) = (&mut self.slabs, &mut self.asked);
        completions.sift(
            before,
            |tag| tag & OWN != 0,
            |completion| match completion {
                Completion::Answer { tag, answer } => {
                    let handle = asked.remove(&tag);
                    if let Some(slab) = handle.and_then(|h| slabs.get_mut(&h)) {
                        slab.transfer = match answer {
                            Answer::Exposed(exposed) => SlabTransfer::Open {
                                exposed,
                                read_only: false,
                            },
                            // The slab is gone or going: the next request for it gets this error.
                            Answer::Error {
                                code: ErrorCode::UnknownHandle | ErrorCode::Evicting,
                                ..
                            } => SlabTransfer::Unknown,
                            _ => SlabTransfer::Refused,
                        };
                    }
                }
                Completion::TimedOut { tag } | Completion::Lost { tag } => {
                    let handle = asked.remove(&tag);
                    if let Some(slab) = handle.and_then(|h| slabs.get_mut(&h)) {
                        slab.transfer = SlabTransfer::Unknown;
                    }
                }
                Completion::Call {
                    call: Call::EvictStop { handles, .. },
                    ..
                } => {
                    for handle in handles.iter() {
                        if let Some(Slab {
                            transfer: SlabTransfer::Open { read_only, .. },
                            ..
                        }) = slabs.get_mut(&handle)
                        {
                            *read_only = true;
                        }
                    }
                }
                Completion::Call { .. } => {}
            },
        );
        polled.map(|_| ())
    }

    fn poll_once(&mut self, completions: &mut Completions) -> Result<(), LinkError> {
        // The device's completions first: what the donor sends may end a slab.
        self.take_done(completions)?;
        let before = completions.len();
        self.take_session(completions, before)?;
        self.expire(completions);
        Ok(())
    }

    /// Ends the link; everything outstanding is lost.
    fn break_up(&mut self, completions: &mut Completions) {
        // The queue pair first: after this, operations under way access nothing.
        self.queue = None;
        self.session.close();
        let before = completions.len();
        let _ = self.session.poll(completions, Duration::ZERO);
        completions.sift(before, |tag| tag & OWN != 0, |_| {});
        for op in self.ops.iter_mut().filter_map(Option::take) {
            if !op.expired {
                completions.lost(op.tag);
            }
        }
        for (_, slab) in self.slabs.drain() {
            if let Some(LastRequest::Free { tag }) = slab.last_request {
                completions.lost(tag);
            }
        }
        self.deadlines.clear();
        self.asked.clear();
    }

    fn is_up(&self) -> bool {
        self.queue.is_some() && self.session.is_up()
    }
}

impl Transport for RdmaLink {
    fn welcome(&self) -> &Welcome {
        self.session.welcome()
    }

    fn submit(&mut self, tag: u64, request: &Request<'_>) -> Result<(), SubmitError> {
        if !self.is_up() {
            return Err(SubmitError::Down);
        }
        let (handle, range, bytes) = match *request {
            Request::Read { handle, range } => (handle, range, None),
            Request::Write {
                handle,
                offset,
                data,
            } => {
                let len = u32::try_from(data.len()).map_err(|_| SubmitError::Invalid)?;
                (handle, Range { offset, len }, Some(data))
            }
            Request::Free { handle } => return self.end(handle, LastRequest::Free { tag }),
            _ => return self.session.submit(tag, request),
        };
        if self.one_sided(tag, handle, range, bytes) {
            return Ok(());
        }
        self.expose(handle);
        self.session.submit(tag, request)
    }

    fn reply(&mut self, call: u64, reply: &Reply<'_>) -> Result<(), SubmitError> {
        match *reply {
            Reply::EvictDone { handle } => self.end(handle, LastRequest::EvictDone { call }),
            _ => self.session.reply(call, reply),
        }
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        self.session.flush()
    }

    fn has_unsent(&self) -> bool {
        self.session.has_unsent()
    }

    fn outstanding(&self) -> usize {
        self.session.outstanding() + self.ops.len() - self.free.len()
    }

    fn poll(
        &mut self,
        completions: &mut Completions,
        timeout: Duration,
    ) -> Result<usize, LinkError> {
        let (before, until) = (completions.len(), Instant::now() + timeout);
        loop {
            if let Err(e) = self.poll_once(completions) {
                self.break_up(completions);
                return Err(e);
            }
            if completions.len() > before || timeout.is_zero() || Instant::now() >= until {
                return Ok(completions.len() - before);
            }
            if !self.arm() {
                let first = self.deadlines.front().map_or(until, |d| d.0.min(until));
                // The session checks its own deadlines every second.
                let left = first.saturating_duration_since(Instant::now());
                let ms = left.as_millis().min(1000) as u16 + 1;
                let mut events = [EpollEvent::empty(); 2];
                let _ = self.epoll.wait(&mut events, EpollTimeout::from(ms));
            }
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        self.is_up().then(|| self.epoll.0.as_fd())
    }

    fn arm(&self) -> bool {
        let (Some(queue), Some(socket)) = (&self.queue, self.session.fd()) else {
            return true;
        };
        let mut flags = EpollFlags::EPOLLIN;
        if self.session.has_unsent() {
            flags |= EpollFlags::EPOLLOUT;
        }
        let mut event = EpollEvent::new(flags, 0);
        let armed = self.epoll.modify(socket, &mut event).is_ok();
        // A queue that cannot be armed is broken, which the next poll finds.
        !armed || queue.arm().unwrap_or(true)
    }
}
