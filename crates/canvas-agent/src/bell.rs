//! Notifiers: how threads of this process wake a serving thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

use canvas_sys::proc::{WaitOn, futex_wake};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Wakes the serving thread (futex).
#[derive(Debug, Default)]
pub struct Bell {
    /// Number of notifications.
    rung: AtomicU32,
}

impl Bell {
    /// Wakes the thread. Call it after publishing the work.
    pub fn ring(&self) {
        self.rung.fetch_add(1, SeqCst);
        futex_wake(&self.rung, 1);
    }

    /// Number of notifications so far.
    pub(crate) fn count(&self) -> u32 {
        self.rung.load(SeqCst)
    }

    /// A futex wait that returns at once unless the count is still `heard`.
    pub(crate) fn wait_on(&self, heard: u32) -> WaitOn<'_> {
        WaitOn::new(&self.rung, heard)
    }
}

/// Wakes a thread that polls descriptors: unlike [`Bell`], it can be polled together with sockets.
#[derive(Debug)]
pub(crate) struct PollBell {
    fd: EventFd,
    /// A thread polls, and nobody has notified it since.
    is_awaited: AtomicBool,
}

impl PollBell {
    pub(crate) fn new() -> io::Result<PollBell> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(PollBell {
            fd: EventFd::from_flags(flags)?,
            is_awaited: AtomicBool::new(false),
        })
    }

    /// Wakes the polling thread. Call it after publishing the work. It makes a system call only if a thread polls.
    pub(crate) fn ring(&self) {
        if self.is_awaited.swap(false, SeqCst) {
            // The write fails only when the counter is full, after 2^64 - 2 unread notifications.
            let _ = self.fd.write(1);
        }
    }

    /// The descriptor to poll for reading. Check for work after this call and before the poll; only one thread may
    /// poll.
    pub(crate) fn listen(&self) -> BorrowedFd<'_> {
        self.is_awaited.store(true, SeqCst);
        self.fd.as_fd()
    }

    /// Ends a poll; `rung` says whether the descriptor became readable.
    pub(crate) fn heard(&self, rung: bool) {
        self.is_awaited.store(false, SeqCst);
        if rung {
            // A notification that arrives now only makes the next poll return at once.
            let _ = self.fd.read();
        }
    }
}
