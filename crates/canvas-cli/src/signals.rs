//! The signals that end a command, read between other things instead of handled.

use std::os::fd::AsFd;
use std::time::Duration;

use canvas_types::exit;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::Failure;

/// SIGTERM, SIGINT and SIGHUP, which this thread and those that it starts do not get any more.
pub fn ends() -> Result<SignalFd, Errno> {
    read(&ENDS)
}

/// The same, and SIGCHLD.
pub fn ends_and_children() -> Result<SignalFd, Errno> {
    read(&[&ENDS[..], &[Signal::SIGCHLD]].concat())
}

/// What ends a command.
pub const ENDS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

fn read(signals: &[Signal]) -> Result<SignalFd, Errno> {
    let set: SigSet = signals.iter().copied().collect();
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// Waits so long; returns what to end with when a signal comes.
pub fn stopped(signals: &SignalFd, time: Duration) -> Option<Failure> {
    let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(time.as_millis()).unwrap_or(PollTimeout::MAX);
    let _ = poll(&mut fds, timeout);
    let info = signals.read_signal().ok().flatten()?;
    Some(Failure {
        code: exit::SIGNAL_BASE + info.ssi_signo as i32,
        sentence: format!("stopped by signal {}", info.ssi_signo),
    })
}
