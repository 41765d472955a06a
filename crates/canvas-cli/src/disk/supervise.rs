//! `canvas disk` as the holder of a disk: its memory file and sockets survive the process that
//! serves it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use canvas_disk::DiskMemory;
use canvas_disk::far::{ProcessEntry, Tenant};
use canvas_disk::file::DiskFile;
use canvas_disk::socket::Socket;
use canvas_runner::spawn_self;
use canvas_runner::storage::Storage;
use canvas_shm::map::{copy_above, inherited};
use canvas_shm::{Far, Segment};
use canvas_types::exit;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tracing::{error, warn};

use super::questions::{self, Asked, Holder};
use crate::args::{DiskArgs, HeldArgs, words};
use crate::error::Failure;
use crate::signals;
use canvas_control::settings::table::{NBD, RESTARTS, VHOST_USER};

/// Descriptors passed to a server, by number.
const MEMORY_FD: RawFd = 3;
const VHOST_FDS: [RawFd; 2] = [4, 5];
const NBD_FDS: [RawFd; 2] = [6, 7];
const SEGMENT_FD: RawFd = 8;
const HOLDER_FD: RawFd = 9;
/// The first number after them.
const FDS_END: RawFd = 10;
/// Interval of checking the agent, which may have died.
const AGENT_TICK: Duration = Duration::from_millis(100);
/// Period in which deaths of servers are counted.
const MINUTE: Duration = Duration::from_secs(60);
/// If a server died sooner than this, the next one is started only after this time.
const YOUNG: Duration = Duration::from_millis(500);

/// Sockets of a disk.
pub struct Sockets {
    pub nbd: Option<Socket>,
    pub vhost: Option<Socket>,
}

/// What a server needs.
pub struct Held {
    pub file: DiskFile,
    pub sockets: Sockets,
    /// Far memory, which belongs to the holder.
    pub storage: Option<Storage>,
}

/// The holder's state while servers run.
struct Holding {
    held: Held,
    signals: SignalFd,
    /// The server's connection for requests about far memory.
    asked: Option<Asked>,
}

/// What a server received from its holder.
pub struct Given {
    pub memory: Box<DiskMemory>,
    pub sockets: Sockets,
    /// Kept open while the tenant is used: it shows others that this process belongs to the tenant.
    pub segment: Option<OwnedFd>,
    /// With far memory: the connection to the holder.
    pub holder: Option<Holder>,
}

impl Given {
    /// Takes the descriptors from the holder.
    pub fn take(args: &HeldArgs) -> Result<Given, Failure> {
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
        let mut memory = DiskMemory::of_file(&file).map_err(Failure::usage)?;
        let segment = args.held_far.then(|| take(SEGMENT_FD)).transpose()?;
        if let Some(fd) = &segment {
            let system = |e: Errno| fail(format!("far memory: {}", e.desc()));
            let segment = Segment::map(fd).map_err(system)?;
            let far = Far::map(fd).map_err(system)?;
            let place = ProcessEntry::take_from(fd, segment, far, args.holder);
            let place = place.ok_or_else(|| {
                fail("far memory: its tenant has no entry for this process".to_owned())
            })?;
            let tenant = Tenant::at(place);
            let tenant = tenant.map_err(|e| system(Errno::from_raw(e.0)))?;
            memory = memory.with_tenant(tenant);
        }
        let holder = args.held_far.then(|| take(HOLDER_FD)).transpose()?;
        let given = &args.disk.settings;
        let socket = |path: Option<PathBuf>, [listener, lock]: [RawFd; 2]| {
            let held = |path: &PathBuf| {
                let (listener, lock) = (take(listener)?, take(lock)?);
                Ok::<_, Failure>(Socket::held(listener, lock, path, args.holder))
            };
            path.as_ref().map(held).transpose()
        };
        let sockets = Sockets {
            nbd: socket(given.get(NBD), NBD_FDS)?,
            vhost: socket(given.get(VHOST_USER), VHOST_FDS)?,
        };
        Ok(Given {
            memory,
            sockets,
            segment,
            holder: holder.map(Holder::new),
        })
    }
}

impl Holding {
    /// Starts a server, after `died` others.
    fn start(&mut self, args: &DiskArgs, died: u32) -> Result<Pid, Errno> {
        let held = &self.held;
        let mut all = vec![(held.file.fd(), MEMORY_FD)];
        for (socket, to) in [
            (&held.sockets.vhost, VHOST_FDS),
            (&held.sockets.nbd, NBD_FDS),
        ] {
            all.extend(socket.iter().flat_map(|s| s.fds().into_iter().zip(to)));
        }
        let ends = held.storage.is_some().then(questions::pair).transpose()?;
        if let (Some(storage), Some((_, servers))) = (&held.storage, &ends) {
            all.push((storage.fd(), SEGMENT_FD));
            all.push((servers.as_fd(), HOLDER_FD));
        }
        // None of them may have a number that another one is to get.
        let clear = |(fd, to): (BorrowedFd, _)| Ok((copy_above(fd, FDS_END)?, to));
        let fds: Vec<(OwnedFd, RawFd)> =
            all.into_iter().map(clear).collect::<Result<_, Errno>>()?;
        let env: Vec<_> = std::env::vars_os().collect();
        let words = server_words(args, died, held.storage.is_some());
        let server = spawn_self(&words, &env, &fds)?;
        self.asked = ends.map(|(asked, _)| asked);
        Ok(server)
    }
}

/// Arguments for a server: the holder's settings, wherever they came from.
fn server_words(args: &DiskArgs, died: u32, far: bool) -> Vec<OsString> {
    let holder = std::process::id().to_string();
    let died = died.to_string();
    let own = ["disk-server", "--holder", &holder, "--died", &died].map(str::to_owned);
    let far = far.then(|| "--held-far".to_owned());
    let name = std::env::args_os().next().unwrap_or_default();
    let rest = own.into_iter().chain(far).chain(words(&args.settings));
    [name].into_iter().chain(rest.map(OsString::from)).collect()
}

/// How a server ended.
enum Ended {
    Code(i32),
    By(Signal),
}

/// Serves the disk by one server after the other, until a signal ends it or too many servers die.
pub fn run(args: &DiskArgs, held: Held) -> Result<i32, Failure> {
    let fail = |what: &str, e: Errno| Failure::usage(format!("{what}: {}", e.desc()));
    let signals =
        signals::ends_and_children().map_err(|e| fail("signals cannot be waited for", e))?;
    if let Some(storage) = &held.storage {
        let place = ProcessEntry::take(storage.fd(), storage.segment, storage.far)
            .map_err(|e| Errno::from_raw(e.0));
        place.map_err(|e| fail("far memory: no free process entry in its tenant", e))?;
    }
    let mut holding = Holding {
        held,
        signals,
        asked: None,
    };
    let result = holding.serve(args);
    if let Some(storage) = holding.held.storage {
        // The entry of a server that was killed at the end.
        if let Some(place) = place_of(&storage, std::process::id()) {
            place.leave();
        }
        storage.end();
    }
    result
}

/// Takes over the tenant's process entry of `pid`: of this process, or of a server that has ended.
fn place_of(storage: &Storage, pid: u32) -> Option<ProcessEntry> {
    ProcessEntry::take_from(storage.fd(), storage.segment, storage.far, pid)
}

impl Holding {
    fn serve(&mut self, args: &DiskArgs) -> Result<i32, Failure> {
        let mut deaths = VecDeque::new();
        let mut died = 0;
        loop {
            let began = Instant::now();
            let how = match self.start(args, died) {
                Err(e) if died == 0 => {
                    let why = e.desc();
                    let what = format!("no server can be started for the disk: {why}");
                    return Err(Failure::usage(what));
                }
                // A host that is short of memory may have some in a moment.
                Err(e) => format!("cannot be started ({})", e.desc()),
                Ok(server) => match self.watch(server) {
                    // It has printed the reason.
                    (Ended::Code(code), _) => return Ok(code),
                    (Ended::By(_), true) => return Ok(exit::OK),
                    // It was killed by the signal before it could handle it.
                    (Ended::By(signal), _) if signals::ENDS.contains(&signal) => {
                        return Ok(exit::OK);
                    }
                    (Ended::By(signal), false) => format!("died of {signal}"),
                },
            };
            died += 1;
            let is_recent = |t: &Instant| t.elapsed() < MINUTE;
            deaths.retain(is_recent);
            deaths.push_back(Instant::now());
            if deaths.len() > args.settings.value(RESTARTS) as usize {
                error!(
                    "its servers died {} times within a minute, the last one {how}; no other is started, and the data are lost; find out what ends them, or allow more: -o restarts=N",
                    deaths.len()
                );
                return Ok(exit::NEGATIVE);
            }
            warn!("its server {how}; another one takes over the stored data");
            let pause = YOUNG.saturating_sub(began.elapsed());
            if self.wait(pause).is_some_and(|s| s != Signal::SIGCHLD) {
                return Ok(exit::OK);
            }
        }
    }

    /// Waits for a server's end and passes signals on to it; returns also whether one asked it to
    /// end.
    fn watch(&mut self, server: Pid) -> (Ended, bool) {
        let mut asked = false;
        let ended = loop {
            match waitpid(server, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, code)) => break Ended::Code(code),
                Ok(WaitStatus::Signaled(_, signal, _)) => break Ended::By(signal),
                _ => {}
            }
            let signal = self.wait(MINUTE);
            if let Some(signal) = signal.filter(|s| *s != Signal::SIGCHLD) {
                // A second signal means: at once.
                let signal = if asked { Signal::SIGKILL } else { signal };
                asked = true;
                // It has not been waited for, so the pid is still its own.
                let _ = kill(server, signal);
            }
        };
        if let Some(storage) = &self.held.storage {
            // Its far memory is kept for the next server.
            place_of(storage, server.as_raw() as u32);
        }
        (ended, asked)
    }

    /// Waits up to `time` for a signal; meanwhile checks the agent and answers the server's
    /// requests.
    fn wait(&mut self, time: Duration) -> Option<Signal> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = match &self.held.storage {
                Some(_) => left.min(AGENT_TICK),
                None => left,
            };
            let own = [
                Some(self.signals.as_fd()),
                self.asked.as_ref().map(Asked::fd),
            ];
            let own = own.into_iter().flatten();
            let own = own.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let agent = self.held.storage.as_ref().and_then(Storage::poll_fd);
            let mut fds: Vec<_> = own.chain(agent).collect();
            let timeout = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
            let _ = poll(&mut fds, timeout);
            if let Some(info) = self.signals.read_signal().ok().flatten() {
                return Signal::try_from(info.ssi_signo as i32).ok();
            }
            if let Some(storage) = &mut self.held.storage {
                storage.tend();
                self.asked.take_if(|asked| !asked.answer(storage));
            }
            if Instant::now() >= until {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    #[test]
    fn a_server_is_given_what_its_holder_was() {
        let argv = [
            "canvas",
            "disk",
            "--size",
            "8M",
            "--nbd",
            "disk",
            "-o",
            "restarts=7",
        ];
        let Command::Disk(args) = Cli::try_parse_from(argv).unwrap().command else {
            unreachable!()
        };
        let words = server_words(&args, 3, true);
        let Command::DiskServer(held) = Cli::try_parse_from(words).unwrap().command else {
            unreachable!()
        };
        assert_eq!(
            (held.holder, held.died, held.held_far),
            (std::process::id(), 3, true)
        );
        assert_eq!(held.disk.settings, args.settings);
    }
}
