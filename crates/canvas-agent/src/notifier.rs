//! Notifiers: how threads of this process wake a serving thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

use canvas_sys::proc::{WaitOn, futex_wake};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Wakes the serving thread (futex).
#[derive(Debug, Default)]
pub struct Notifier {
    /// Number of notifications.
    count: AtomicU32,
}

impl Notifier {
    /// Wakes the thread. Call it after publishing the work.
    pub fn notify(&self) {
        self.count.fetch_add(1, SeqCst);
        futex_wake(&self.count, 1);
    }

    /// Number of notifications so far.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(SeqCst)
    }

    /// A futex wait that returns at once unless the count is still `seen`.
    pub(crate) fn wait_on(&self, seen: u32) -> WaitOn<'_> {
        WaitOn::new(&self.count, seen)
    }
}

/// Wakes a thread that polls descriptors: unlike [`Notifier`], it can be polled together with sockets.
#[derive(Debug)]
pub(crate) struct PollNotifier {
    fd: EventFd,
    /// A thread polls, and nobody has notified it since.
    is_awaited: AtomicBool,
}

impl PollNotifier {
    pub(crate) fn new() -> io::Result<PollNotifier> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(PollNotifier {
            fd: EventFd::from_flags(flags)?,
            is_awaited: AtomicBool::new(false),
        })
    }

    /// Wakes the polling thread. Call it after publishing the work. It makes a system call only if a thread polls.
    pub(crate) fn notify(&self) {
        if self.is_awaited.swap(false, SeqCst) {
            // The write fails only when the counter is full, after 2^64 - 2 unread notifications.
            let _ = self.fd.write(1);
        }
    }

    /// The descriptor to poll for reading. Check for work after this call and before the poll; only one thread may
    /// poll.
    pub(crate) fn arm(&self) -> BorrowedFd<'_> {
        self.is_awaited.store(true, SeqCst);
        self.fd.as_fd()
    }

    /// Ends a poll; `readable` says whether the descriptor became readable.
    pub(crate) fn disarm(&self, readable: bool) {
        self.is_awaited.store(false, SeqCst);
        if readable {
            // A notification that arrives now only makes the next poll return at once.
            let _ = self.fd.read();
        }
    }
}
