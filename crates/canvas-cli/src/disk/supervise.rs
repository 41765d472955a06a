//! `canvas disk` as the holder of a disk: its memory file and its sockets outlive the process that serves it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use canvas_disk::file::DiskFile;
use canvas_disk::socket::Socket;
use canvas_runner::spawn_self_with;
use canvas_shm::map::{copy_above, inherited};
use canvas_types::exit;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::args::{DiskArgs, HeldArgs};
use crate::error::{Failure, say};
use crate::signals;

/// Where a server finds what it is given.
const MEMORY_FD: RawFd = 3;
const VHOST_FDS: [RawFd; 2] = [4, 5];
const NBD_FDS: [RawFd; 2] = [6, 7];
/// One past them.
const FDS_END: RawFd = 8;
/// In this time servers are counted that died.
const MINUTE: Duration = Duration::from_secs(60);
/// A server that died within this time is followed by the next one after it.
const YOUNG: Duration = Duration::from_millis(500);

/// The sockets of a disk.
pub struct Sockets {
    pub nbd: Option<Socket>,
    pub vhost: Option<Socket>,
}

/// What a server is given.
pub struct Held {
    pub file: DiskFile,
    pub sockets: Sockets,
}

impl Held {
    /// In a server: what its holder gave it.
    pub fn take(args: &HeldArgs) -> Result<Held, Failure> {
        let fail = |what: String| {
            Failure::usage(format!(
                "disk-server: {what}; it is started by `canvas disk`"
            ))
        };
        let take = |number| {
            inherited(number, FDS_END)
                .map_err(|e| fail(format!("descriptor {number}: {}", e.desc())))
        };
        let file = DiskFile::open(take(MEMORY_FD)?).map_err(|e| fail(e.to_string()))?;
        let socket = |path: &Option<PathBuf>, [listener, lock]: [RawFd; 2]| {
            let held = |path: &PathBuf| {
                let (listener, lock) = (take(listener)?, take(lock)?);
                Ok::<_, Failure>(Socket::held(listener, lock, path, args.holder))
            };
            path.as_ref().map(held).transpose()
        };
        let sockets = Sockets {
            nbd: socket(&args.disk.nbd, NBD_FDS)?,
            vhost: socket(&args.disk.vhost_user, VHOST_FDS)?,
        };
        Ok(Held { file, sockets })
    }

    /// Starts a server, the one after `died` others.
    fn start(&self, words: &[OsString], died: u32) -> Result<Pid, Errno> {
        let mut all = vec![(self.file.fd(), MEMORY_FD)];
        for (socket, to) in [
            (&self.sockets.vhost, VHOST_FDS),
            (&self.sockets.nbd, NBD_FDS),
        ] {
            all.extend(socket.iter().flat_map(|s| s.fds().into_iter().zip(to)));
        }
        // None of them lies where another one is to go.
        let clear = |(fd, to): (BorrowedFd, _)| Ok((copy_above(fd, FDS_END)?, to));
        let fds: Vec<(OwnedFd, RawFd)> =
            all.into_iter().map(clear).collect::<Result<_, Errno>>()?;
        let env: Vec<_> = std::env::vars_os().collect();
        spawn_self_with(&server_words(words, died), &env, &fds)
    }
}

/// The words that start a server, from those that started its holder.
fn server_words(words: &[OsString], died: u32) -> Vec<OsString> {
    let is_command = |w: &&OsString| !w.as_encoded_bytes().starts_with(b"-");
    let command = words.iter().skip(1).find(is_command);
    let at = words.iter().position(|w| Some(w) == command).unwrap_or(0);
    let own = [
        "--holder",
        &std::process::id().to_string(),
        "--died",
        &died.to_string(),
    ]
    .map(OsString::from);
    let server = [OsString::from("disk-server")];
    [&words[..at], &server, &own, &words[at + 1..]].concat()
}

/// How a server ended.
enum Ended {
    Code(i32),
    By(Signal),
}

/// Serves the disk by one server after the other, until a signal ends it or too many of them die.
pub fn run(args: &DiskArgs, held: &Held, words: &[OsString]) -> Result<i32, Failure> {
    let fail = |what: &str, e: Errno| Failure::usage(format!("{what}: {}", e.desc()));
    let signals =
        signals::ends_and_children().map_err(|e| fail("signals cannot be waited for", e))?;
    let mut deaths = VecDeque::new();
    let mut died = 0;
    loop {
        let began = Instant::now();
        let how = match held.start(words, died) {
            Err(e) if died == 0 => return Err(fail("no server can be started for the disk", e)),
            // A host that is short of memory may have some in a moment.
            Err(e) => format!("cannot be started ({})", e.desc()),
            Ok(server) => match watch(server, &signals) {
                // It said why.
                (Ended::Code(code), _) => return Ok(code),
                (Ended::By(_), true) => return Ok(exit::OK),
                (Ended::By(signal), false) => format!("died of {signal}"),
            },
        };
        died += 1;
        let is_recent = |t: &Instant| t.elapsed() < MINUTE;
        deaths.retain(is_recent);
        deaths.push_back(Instant::now());
        if deaths.len() > args.restarts as usize {
            return Err(Failure {
                code: exit::NEGATIVE,
                sentence: format!(
                    "disk: its servers died {} times within a minute, the last one {how}; no other one is started, \
                     and what was stored is lost; see what ends them, or write a larger --restarts",
                    deaths.len()
                ),
            });
        }
        say(format_args!(
            "disk: its server {how}; another one goes on with what is stored"
        ));
        let pause = YOUNG.saturating_sub(began.elapsed());
        if wait(&signals, pause).is_some_and(|s| s != Signal::SIGCHLD) {
            return Ok(exit::OK);
        }
    }
}

/// Waits for a server's end, to which it passes signals on; was it asked to end?
fn watch(server: Pid, signals: &SignalFd) -> (Ended, bool) {
    let mut asked = false;
    loop {
        match waitpid(server, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => return (Ended::Code(code), asked),
            Ok(WaitStatus::Signaled(_, signal, _)) => return (Ended::By(signal), asked),
            _ => {}
        }
        if let Some(signal) = wait(signals, MINUTE).filter(|s| *s != Signal::SIGCHLD) {
            // Who asks twice does not want to wait.
            let signal = if asked { Signal::SIGKILL } else { signal };
            asked = true;
            // It is ours to wait for, so the number is its own still.
            let _ = kill(server, signal);
        }
    }
}

/// Waits so long for a signal.
fn wait(signals: &SignalFd, time: Duration) -> Option<Signal> {
    let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(time.as_millis()).unwrap_or(PollTimeout::MAX);
    let _ = poll(&mut fds, timeout);
    let info = signals.read_signal().ok().flatten()?;
    Signal::try_from(info.ssi_signo as i32).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_gets_the_words_of_its_holder() {
        let words = |w: &[&str]| -> Vec<OsString> { w.iter().map(OsString::from).collect() };
        let pid = std::process::id().to_string();
        assert_eq!(
            server_words(
                &words(&["canvas", "disk", "--size", "8M", "--nbd", "disk"]),
                3
            ),
            words(&[
                "canvas",
                "disk-server",
                "--holder",
                &pid,
                "--died",
                "3",
                "--size",
                "8M",
                "--nbd",
                "disk"
            ])
        );
    }
}
