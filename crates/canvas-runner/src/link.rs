//! A runner's connection to the host agent: its tenant is handed to whatever agent listens.
//!
//! When the connection ends the agent is gone, or another one has nothing of this tenant. The runner asks
//! again until somebody serves it, with the same descriptors: pages and requests are in them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use canvas_agent::Share;
use canvas_agent::journal::{Journal, PoolGrant};
use canvas_agent::replicas::Policy;
use canvas_control::status::AgentStatus;
use canvas_shm::{Far, pass};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::{AgentError, ChangeError, RunError};
use crate::join::Joined;
use canvas_agent::daemon::socket::receive_within;
use canvas_control::hello::{Answer, Ask, Asked, BYTES_MAX, Change, Hello, VERSION};
use canvas_control::terms::Terms;
use canvas_control::text::say;

/// How long an agent may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// First and longest pause between two tries.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long the agent's answer to a change is waited for: who asked the run waits two seconds.
const CHANGE_WAIT: Duration = Duration::from_millis(1500);
/// How long the end of a run waits until its far memory is given back.
const END_WAIT: Duration = Duration::from_secs(2);

enum State {
    /// Nobody serves: when to ask again.
    Down(Instant),
    /// Asked, since then.
    Asked(OwnedFd, Instant),
    /// Served.
    Served(OwnedFd),
}

/// The connection.
pub struct Link {
    far: &'static Far,
    path: PathBuf,
    hello: Hello,
    segment: OwnedFd,
    /// What the agent gave for the next one.
    kept: Vec<OwnedFd>,
    /// What its operator has settled.
    terms: Terms,
    state: State,
    pause: Duration,
    /// What was last said about it; empty when all is well.
    told: String,
    /// Changes that were asked for on any connection.
    changes: u64,
    /// Those without an answer so far.
    late: Vec<(u64, Change)>,
}

impl Link {
    /// Has the tenant served by the agent at `path`; waits for its answer. `None` when another run has
    /// begun a tenant of this name meanwhile.
    pub fn start(
        path: PathBuf,
        hello: Hello,
        segment: OwnedFd,
        far: &'static Far,
    ) -> Result<Option<Link>, RunError> {
        let mut link = Link {
            far,
            path,
            hello,
            segment,
            kept: Vec::new(),
            terms: Terms::default(),
            state: State::Down(Instant::now()),
            pause: PAUSE,
            told: String::new(),
            changes: 0,
            late: Vec::new(),
        };
        let until = Instant::now() + ANSWER_WAIT;
        loop {
            match link.step() {
                Ok(()) => {}
                // Its queue is full (many runs begin at once), or it is being replaced.
                Err(why) if why.transient && Instant::now() < until && link.path.exists() => {}
                Err(why) if why.is_taken() => return Ok(None),
                Err(why) => return Err(unusable(&link.path, why.error)),
            }
            if link.is_served() {
                return Ok(Some(link));
            }
            link.wait(until);
        }
    }

    /// The connection of a run that has joined a tenant.
    pub fn joined(joined: Joined, far: &'static Far) -> Result<Link, RunError> {
        let Joined {
            fd,
            host,
            settled,
            segment,
            kept,
        } = joined;
        let segment = segment
            .try_clone()
            .map_err(|e| unusable(&host.path, AgentError::Descriptor(e)))?;
        Ok(Link {
            far,
            hello: Hello {
                version: VERSION,
                name: host.name,
                slabs: settled.slabs,
                copies: Some(settled.copies),
                // The agent has noted what was asked for.
                asked: Asked::default(),
            },
            path: host.path,
            segment,
            kept,
            terms: settled.terms,
            state: State::Served(fd),
            pause: PAUSE,
            told: String::new(),
            changes: 0,
            late: Vec::new(),
        })
    }

    /// What the agent's operator has settled for the tenant.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// What the tenant gets where it is not alone: the agent says so in its journal.
    pub fn share(&self) -> Share {
        share_in(&self.kept).unwrap_or_default()
    }

    /// What of the host's pool the tenant is granted, if the agent bounds that.
    pub fn pool(&self) -> Option<PoolGrant> {
        pool_in(&self.kept)
    }

    /// Has the agent change the tenant; says why not. A signal for this process ends the wait for its answer.
    pub fn change(&mut self, change: Change) -> Result<(), ChangeError> {
        let State::Served(fd) = &self.state else {
            return Err(ChangeError::Down);
        };
        self.changes += 1;
        let id = self.changes;
        let ask = Ask::Change(Change { id, ..change });
        pass::send(fd, &ask.encode(), &[]).map_err(|e| match e {
            // Nothing of it is there.
            Errno::EAGAIN => ChangeError::Busy,
            e => ChangeError::System(e),
        })?;
        self.late.push((id, change));
        let until = Instant::now() + CHANGE_WAIT;
        loop {
            match heard(fd, until)? {
                Answer::Changed { id: of, .. } => {
                    changed(&mut self.late, &mut self.hello, of);
                    if of == id {
                        return Ok(());
                    }
                }
                Answer::Unchanged { why, id: of, .. } => {
                    self.late.retain(|(late, _)| *late != of);
                    if of == id {
                        return Err(ChangeError::Refused(why));
                    }
                }
                _ => return Err(ChangeError::Nonsense),
            }
        }
    }

    fn wait(&self, until: Instant) {
        let until = self.due().map_or(until, |due| due.min(until));
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        let mut fds: Vec<_> = self.poll_fd().into_iter().collect();
        let _ = poll(&mut fds, timeout);
    }

    /// The copies that the agent keeps, or is asked to keep.
    pub fn copies(&self) -> Option<Policy> {
        self.hello.copies.map(Policy::from)
    }

    /// The far area.
    pub fn far(&self) -> &'static Far {
        self.far
    }

    /// Does an agent serve the tenant?
    pub fn is_served(&self) -> bool {
        matches!(self.state, State::Served(_))
    }

    /// How the agent was when it last said so: it is in its journal.
    pub fn status(&self) -> Option<AgentStatus> {
        let journal = self.kept.first()?.try_clone().ok()?;
        Journal::open(journal).ok()?.status()
    }

    /// What to wait for besides [`Link::due`].
    pub fn poll_fd(&self) -> Option<PollFd<'_>> {
        match &self.state {
            State::Down(_) => None,
            State::Asked(fd, _) | State::Served(fd) => {
                Some(PollFd::new(fd.as_fd(), PollFlags::POLLIN))
            }
        }
    }

    /// When to look again without being told.
    pub fn due(&self) -> Option<Instant> {
        match &self.state {
            State::Down(at) => Some(*at),
            State::Asked(_, since) => Some(*since + ANSWER_WAIT),
            State::Served(_) => None,
        }
    }

    /// Looks whether the agent is there, and asks another one when it is not.
    pub fn tend(&mut self) {
        let was_served = self.is_served();
        let stepped = self.step();
        let path = self.path.display();
        let line = match stepped {
            Err(_) if was_served => Some(format!(
                "the agent of far memory at {path} is gone; far pages wait for the next one"
            )),
            Err(why) if !why.transient => Some(format!(
                "the agent of far memory at {path} does not serve: {}",
                why.error
            )),
            _ => None,
        };
        if let Some(line) = line.filter(|line| *line != self.told) {
            say(&line);
            self.told = line;
        }
        if self.is_served() && !self.told.is_empty() {
            self.told.clear();
            say(format_args!(
                "the agent of far memory at {} serves again",
                self.path.display()
            ));
        }
    }

    /// One step towards being served.
    fn step(&mut self) -> Result<(), Why> {
        let stepped = match &self.state {
            State::Down(at) if Instant::now() < *at => return Ok(()),
            State::Down(_) => self.ask(),
            State::Asked(_, since) if since.elapsed() > ANSWER_WAIT => {
                Err(Why::lasting(AgentError::Silent))
            }
            State::Asked(..) | State::Served(_) => Ok(()),
        };
        let stepped = stepped.and_then(|()| self.hear());
        if stepped.is_err() {
            // Their answers come no more.
            self.late.clear();
            self.state = State::Down(Instant::now() + self.pause);
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
        stepped
    }

    fn ask(&mut self) -> Result<(), Why> {
        let why = |e: Errno| match e {
            Errno::EAGAIN | Errno::ECONNREFUSED | Errno::ENOENT => Why::transient(e.into()),
            e => Why::lasting(e.into()),
        };
        let fd = pass::connect(&self.path).map_err(why)?;
        let mut fds: Vec<BorrowedFd> = vec![self.segment.as_fd()];
        fds.extend(self.kept.iter().map(AsFd::as_fd));
        let ask = Ask::Tenant(self.hello.clone());
        pass::send(&fd, &ask.encode(), &fds).map_err(why)?;
        self.state = State::Asked(fd, Instant::now());
        Ok(())
    }

    /// What the agent says, if it says anything.
    fn hear(&mut self) -> Result<(), Why> {
        let (State::Asked(fd, _) | State::Served(fd)) = &self.state else {
            return Ok(());
        };
        let mut buf = [0; BYTES_MAX];
        let got = match pass::receive(fd, &mut buf) {
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(()),
            Err(e) => return Err(Why::transient(e.into())),
            Ok(got) if got.bytes == 0 => return Err(Why::transient(AgentError::HungUp)),
            Ok(got) => got,
        };
        match (Answer::decode(&buf[..got.bytes]), &self.state) {
            (Ok(Answer::Serves(settled)), State::Asked(..)) => {
                if !got.fds.is_empty() {
                    self.kept = got.fds;
                }
                // The next agent is to do as this one does, whatever its own habit is.
                self.hello.copies = Some(settled.copies);
                self.terms = settled.terms;
                self.pause = PAUSE;
                let state = std::mem::replace(&mut self.state, State::Down(Instant::now()));
                if let State::Asked(fd, _) = state {
                    self.state = State::Served(fd);
                }
                Ok(())
            }
            (Ok(Answer::Refused { why, taken, .. }), _) => {
                Err(Why::lasting(AgentError::Refused { why, taken }))
            }
            // To a change that nobody waits for any more.
            (Ok(Answer::Changed { id, .. }), State::Served(_)) => {
                changed(&mut self.late, &mut self.hello, id);
                say(
                    "the host's agent has made a change after all, although it did not answer in time",
                );
                Ok(())
            }
            (Ok(Answer::Unchanged { id, .. }), State::Served(_)) => {
                self.late.retain(|(late, _)| *late != id);
                Ok(())
            }
            (Ok(_), _) => Err(Why::lasting(AgentError::Nonsense)),
            (Err(why), _) => Err(Why::lasting(why.into())),
        }
    }

    /// The run is over. When the tenant has no process left its far memory is given back at once; else
    /// when the last one has ended.
    pub fn end(self, all: bool) {
        if let (true, State::Served(fd)) = (all, &self.state) {
            let over = Ask::Over { version: VERSION };
            if pass::send(fd, &over.encode(), &[]).is_ok() {
                // Nothing is said any more: this is the agent hanging up.
                let _ = receive_within(fd, &mut [0; BYTES_MAX], END_WAIT);
            }
        }
    }
}

/// The agent has made a change: the next one is to keep these copies.
fn changed(late: &mut Vec<(u64, Change)>, hello: &mut Hello, id: u64) {
    if let Some(at) = late.iter().position(|(late, _)| *late == id) {
        let (_, change) = late.swap_remove(at);
        hello.copies = change.copies.or(hello.copies);
    }
}

/// What the agent says until then, or until this process gets a signal, which matters more.
fn heard(fd: &OwnedFd, until: Instant) -> Result<Answer, ChangeError> {
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let blocked = SigSet::thread_get_mask().map_err(ChangeError::Unsure)?;
    let signals = SignalFd::with_flags(&blocked, flags).map_err(ChangeError::Unsure)?;
    let mut buf = [0; BYTES_MAX];
    loop {
        match pass::receive(fd, &mut buf) {
            Ok(got) if got.bytes == 0 => return Err(ChangeError::Unsure(Errno::EPIPE)),
            Ok(got) => return Ok(Answer::decode(&buf[..got.bytes])?),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(e) => return Err(ChangeError::Unsure(e)),
        }
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        let [agent, signal] = [fd.as_fd(), signals.as_fd()];
        let mut fds = [agent, signal].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, timeout) {
            Ok(0) => return Err(ChangeError::Unsure(Errno::ETIMEDOUT)),
            Ok(_) if fds[1].any() == Some(true) => return Err(ChangeError::Unsure(Errno::EINTR)),
            _ => {}
        }
    }
}

/// Why nobody serves.
struct Why {
    /// It is in the nature of an agent that is not there (yet).
    transient: bool,
    error: AgentError,
}

impl Why {
    fn lasting(error: AgentError) -> Why {
        Why {
            transient: false,
            error,
        }
    }
    fn transient(error: AgentError) -> Why {
        Why {
            transient: true,
            error,
        }
    }
    /// Another run of this user has the name.
    fn is_taken(&self) -> bool {
        matches!(self.error, AgentError::Refused { taken: true, .. })
    }
}

/// There is no use in that agent.
pub fn unusable(path: &Path, source: AgentError) -> RunError {
    RunError::Agent {
        path: path.to_owned(),
        source,
    }
}

/// What a tenant gets, as its agent says in the first of these files.
pub fn share_in(kept: &[OwnedFd]) -> Option<Share> {
    let journal = kept.first()?.try_clone().ok()?;
    Journal::open(journal).ok()?.share()
}

/// What of the host's pool it is granted, as its agent says there.
pub fn pool_in(kept: &[OwnedFd]) -> Option<PoolGrant> {
    let journal = kept.first()?.try_clone().ok()?;
    Journal::open(journal).ok()?.pool()
}
