//! How a thread that serves is woken by others of its process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

use canvas_sys::proc::{WaitOn, futex_wake};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Wakes the thread that serves.
#[derive(Debug, Default)]
pub struct Bell {
    /// Counts rings.
    rung: AtomicU32,
}

impl Bell {
    /// Call it after what is to be seen is there to see.
    pub fn ring(&self) {
        self.rung.fetch_add(1, SeqCst);
        futex_wake(&self.rung, 1);
    }

    /// How often it was rung.
    pub(crate) fn count(&self) -> u32 {
        self.rung.load(SeqCst)
    }

    /// To sleep on, as long as it was rung `heard` times.
    pub(crate) fn wait_on(&self, heard: u32) -> WaitOn<'_> {
        WaitOn::new(&self.rung, heard)
    }
}

/// Wakes a thread that polls descriptors: unlike [`Bell`], it can be waited for together with links.
#[derive(Debug)]
pub(crate) struct PollBell {
    fd: EventFd,
    /// Somebody polls, and nobody has rung since.
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

    /// Call it after what is to be seen is there to see. Costs a system call only where somebody polls.
    pub(crate) fn ring(&self) {
        if self.is_awaited.swap(false, SeqCst) {
            // Full only after 2^64 - 2 rings that nobody has heard.
            let _ = self.fd.write(1);
        }
    }

    /// What to poll until it is readable. Look at what is to be seen after this and before the poll; one thread polls.
    pub(crate) fn listen(&self) -> BorrowedFd<'_> {
        self.is_awaited.store(true, SeqCst);
        self.fd.as_fd()
    }

    /// The poll is over, `rung` or not.
    pub(crate) fn heard(&self, rung: bool) {
        self.is_awaited.store(false, SeqCst);
        if rung {
            // Who rings just now makes the next poll end at once, and no more.
            let _ = self.fd.read();
        }
    }
}
