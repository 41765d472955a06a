//! What other threads have to say to a client, on its way to the thread of one of its links.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

use canvas_wire::error::ErrorCode;
use canvas_wire::frame::Exposed;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Calls that wait at most; a link that does not take them loses the others, and their deadlines
/// pass without it.
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
    wake: EventFd,
}

impl Outbox {
    pub fn new() -> std::io::Result<Outbox> {
        Ok(Outbox {
            calls: Mutex::default(),
            bell: false.into(),
            closed: false.into(),
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
        let mut calls = self.calls.lock().expect("nobody panics with an outbox");
        if calls.len() < CALLS_MAX {
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

    /// Whether the link is to end. For its thread.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// What waits, if anything came since the last time. For the link's thread.
    pub fn take(&self) -> VecDeque<OwnedCall> {
        if !self.bell.load(Relaxed) || !self.bell.swap(false, Acquire) {
            return VecDeque::new();
        }
        let _ = self.wake.read();
        std::mem::take(&mut *self.calls.lock().expect("nobody panics with an outbox"))
    }

    /// Readable when there is something to take.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
