//! Messages of other threads for a client, queued for the thread of one of its links; and how other
//! threads cut that thread off from the slabs.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Mutex, MutexGuard, PoisonError};

use canvas_wire::error::ErrorCode;
use canvas_wire::frame::Exposed;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::rdma::Rdma;

/// With this many calls queued, further activity queries are dropped: they are optional, because
/// the donor has its own counts. Calls that clients need ([`OwnedCall::Stop`], [`OwnedCall::Gone`])
/// are never dropped and bounded by the client's slabs; answers are bounded by what the link reads.
const CALLS_MAX: usize = 64;

/// A call whose deadline is a point in the donor's time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OwnedCall {
    /// How much are these slabs used?
    Query(Vec<u64>),
    /// These slabs will be freed.
    Stop {
        /// Deadline in milliseconds of the donor's time.
        deadline_ms: u64,
        /// The slabs.
        handles: Vec<u64>,
    },
    /// These slabs are freed.
    Gone(Vec<u64>),
    /// The answer to the client's request to expose a slab.
    Exposed {
        /// The request's id.
        id: u64,
        /// Address and key of the slab, or the reason for the refusal.
        result: Result<Exposed, ErrorCode>,
    },
}

/// The queue for one link's thread. Never blocks the sender.
#[derive(Debug)]
pub struct Outbox {
    calls: Mutex<VecDeque<OwnedCall>>,
    /// Set when something has changed since the thread last took messages.
    changed: AtomicBool,
    closed: AtomicBool,
    /// Held by the link's thread while it serves one message. It contains the device's access to
    /// the slabs, since the device serves requests, too.
    serving: Mutex<Option<Rdma>>,
    wake: EventFd,
}

impl Outbox {
    pub fn new() -> std::io::Result<Outbox> {
        Ok(Outbox {
            calls: Mutex::default(),
            changed: false.into(),
            closed: false.into(),
            serving: Mutex::default(),
            wake: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?,
        })
    }

    fn notify(&self) {
        self.changed.store(true, Release);
        // A counter at its maximum wakes as well.
        let _ = self.wake.write(1);
    }

    /// Queues a call.
    pub fn send(&self, call: OwnedCall) {
        let mut calls = self
            .calls
            .lock()
            .expect("no thread panics while it holds an outbox");
        if calls.len() < CALLS_MAX || !matches!(call, OwnedCall::Query(_)) {
            calls.push_back(call);
        }
        drop(calls);
        self.notify();
    }

    /// Ends the link.
    pub fn close(&self) {
        self.closed.store(true, Relaxed);
        self.notify();
    }

    /// Ends the link. After this nothing more that came over it is done, neither by its thread nor
    /// by devices. Waits only for the message that is just being served, not for a client, nor for
    /// the link's thread to notice.
    pub fn fence(&self) {
        self.close();
        // Devices are cut off before the lock is released: a later fence finds nothing left to wait
        // for.
        *self.serving() = None;
    }

    /// Cuts devices off: their further requests fail. The link or channel itself goes on.
    pub fn shut_devices_out(&self) {
        *self.serving() = None;
    }

    /// For the link's thread: whether the link must end.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// For the link's thread: allows serving one message while the guard is held; `None` if the
    /// link must end. While holding it, the thread must not wait for a client.
    pub(crate) fn serve(&self) -> Option<MutexGuard<'_, Option<Rdma>>> {
        let serving = self.serving();
        // A fence first sets closed. If it had the lock before, this sees that; otherwise it waits
        // for this thread.
        (!self.is_closed()).then_some(serving)
    }

    fn serving(&self) -> MutexGuard<'_, Option<Rdma>> {
        // A thread that panicked serves no more, which is all that the lock protects.
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the link's thread: the queued messages, if any came since the last call.
    pub fn take(&self) -> VecDeque<OwnedCall> {
        if !self.changed.load(Relaxed) || !self.changed.swap(false, Acquire) {
            return VecDeque::new();
        }
        let _ = self.wake.read();
        std::mem::take(
            &mut *self
                .calls
                .lock()
                .expect("no thread panics while it holds an outbox"),
        )
    }

    /// Readable when there is something to take.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
