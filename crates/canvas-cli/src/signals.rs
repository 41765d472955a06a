//! The signals that end a command, read from a descriptor instead of handled.

use std::os::fd::AsFd;
use std::time::Duration;

use canvas_types::exit;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::Failure;

/// SIGTERM, SIGINT and SIGHUP, blocked in this thread and in those that it starts.
pub fn ends() -> Result<SignalFd, Errno> {
    read(&ENDS)
}

/// Like [`ends`], with SIGCHLD.
pub fn ends_and_children() -> Result<SignalFd, Errno> {
    read(&[&ENDS[..], &[Signal::SIGCHLD]].concat())
}

/// Signals that end a command.
pub const ENDS: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

fn read(signals: &[Signal]) -> Result<SignalFd, Errno> {
    let set: SigSet = signals.iter().copied().collect();
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// Waits up to `time`; returns a failure to end with if a signal comes.
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
