//! What other threads have to say to a client, on its way to the thread of one of its links; and how
//! they shut that thread off from the slabs.

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

/// When so many calls wait, more questions are left out: nobody misses one, the server counts itself then.
/// What a client must know ([`OwnedCall::Stop`], [`OwnedCall::Gone`]) is never left out, and bounded by its slabs; what answers
/// a request is bounded by what its link reads.
const CALLS_MAX: usize = 64;

/// A call, with its deadline as a point in the server's time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OwnedCall {
    /// How much are these used?
    Query(Vec<u64>),
    /// These go.
    Stop {
        /// In milliseconds of the server's time.
        deadline_ms: u64,
        /// The slabs.
        handles: Vec<u64>,
    },
    /// These are gone.
    Gone(Vec<u64>),
    /// The answer to the client's request to expose a slab.
    Exposed {
        /// The request's.
        id: u64,
        /// What it needs to reach it, or why not.
        result: Result<Exposed, ErrorCode>,
    },
}

/// The way to one link's thread. Never blocks the sender.
#[derive(Debug)]
pub struct Outbox {
    calls: Mutex<VecDeque<OwnedCall>>,
    /// Something changed since the thread last looked.
    bell: AtomicBool,
    closed: AtomicBool,
    /// Held by the link's thread while it serves one message. The devices' way to the slabs is in it,
    /// because they serve, too.
    serving: Mutex<Option<Rdma>>,
    wake: EventFd,
}

impl Outbox {
    pub fn new() -> std::io::Result<Outbox> {
        Ok(Outbox {
            calls: Mutex::default(),
            bell: false.into(),
            closed: false.into(),
            serving: Mutex::default(),
            wake: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?,
        })
    }

    fn ring(&self) {
        self.bell.store(true, Release);
        // A counter at its end is as good a wake-up.
        let _ = self.wake.write(1);
    }

    /// Leaves a call.
    pub fn send(&self, call: OwnedCall) {
        let mut calls = self
            .calls
            .lock()
            .expect("no thread panics while it holds an outbox");
        if calls.len() < CALLS_MAX || !matches!(call, OwnedCall::Query(_)) {
            calls.push_back(call);
        }
        drop(calls);
        self.ring();
    }

    /// Makes the link end.
    pub fn close(&self) {
        self.closed.store(true, Relaxed);
        self.ring();
    }

    /// Makes the link end. After this nothing more that came over it is done, neither by its thread
    /// nor by devices. Waits for the one message that may be being served: not for a client, nor for the
    /// link's thread to notice.
    pub fn fence(&self) {
        self.close();
        // Devices are shut out before the lock is given back: whoever fences after this finds nothing
        // left to wait for.
        *self.serving() = None;
    }

    /// Shuts devices out: what they are asked after this fails. The link or lane itself goes on.
    pub fn shut_devices_out(&self) {
        *self.serving() = None;
    }

    /// Whether the link is to end. For its thread.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// For the link's thread, to serve one message while it holds this; `None` when the link is to end.
    /// Nothing that waits for a client may be done meanwhile.
    pub(crate) fn serve(&self) -> Option<MutexGuard<'_, Option<Rdma>>> {
        let serving = self.serving();
        // Who fences closes first. If that one had the lock before, this sees it; else it waits for us.
        (!self.is_closed()).then_some(serving)
    }

    fn serving(&self) -> MutexGuard<'_, Option<Rdma>> {
        // A thread that panicked serves no more, which is all that the lock is about.
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What waits, if anything came since the last time. For the link's thread.
    pub fn take(&self) -> VecDeque<OwnedCall> {
        if !self.bell.load(Relaxed) || !self.bell.swap(false, Acquire) {
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
