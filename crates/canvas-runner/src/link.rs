//! A runner's connection to the host agent, which serves its tenant.
//!
//! When the connection ends, the agent is gone, or a new one does not have this tenant. The runner
//! then asks again until an agent serves the tenant, with the same descriptors, which hold pages
//! and requests.

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
use tracing::{info, warn};

use crate::error::{AgentError, ChangeError, RunError};
use crate::join::Joined;
use canvas_agent::daemon::socket::receive_within;
use canvas_control::hello::{Answer, Ask, Asked, BYTES_MAX, Change, Hello, VERSION};
use canvas_control::terms::Terms;

/// Most time for an agent's answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// First and longest pause between tries.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Most time for the agent's answer to a change: the run's client waits two seconds.
const CHANGE_WAIT: Duration = Duration::from_millis(1500);
/// Most time that the end of a run waits until its far memory is freed.
const END_WAIT: Duration = Duration::from_secs(2);

enum State {
    /// No agent serves the tenant; time of the next try.
    Down(Instant),
    /// Requested at this time.
    Asked(OwnedFd, Instant),
    /// Served.
    Served(OwnedFd),
}

/// The connection to the host's agent.
pub struct Link {
    far: &'static Far,
    path: PathBuf,
    hello: Hello,
    segment: OwnedFd,
    /// Descriptors for the next agent.
    kept: Vec<OwnedFd>,
    /// The operator's terms.
    terms: Terms,
    state: State,
    pause: Duration,
    /// The last message about the connection; empty when all is well.
    told: String,
    /// Number of changes requested, on all connections.
    changes: u64,
    /// Changes without an answer so far.
    late: Vec<(u64, Change)>,
}

impl Link {
    /// Has the agent at `path` serve the tenant; waits for its answer. `None` if another run has
    /// started a tenant of this name meanwhile.
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
                // Its queue is full (many runs start at once), or it is being replaced.
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
                // The agent has recorded the requested share.
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

    /// The operator's terms for the tenant.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The tenant's share of contended resources, from the agent's journal.
    pub fn share(&self) -> Share {
        share_in(&self.kept).unwrap_or_default()
    }

    /// The tenant's grant of the host's pool, if the agent limits that.
    pub fn pool(&self) -> Option<PoolGrant> {
        pool_in(&self.kept)
    }

    /// Has the agent change the tenant; otherwise returns why not. A signal to this process ends
    /// the wait for the answer.
    pub fn change(&mut self, change: Change) -> Result<(), ChangeError> {
        let State::Served(fd) = &self.state else {
            return Err(ChangeError::Down);
        };
        self.changes += 1;
        let id = self.changes;
        let ask = Ask::Change(Change { id, ..change });
        pass::send(fd, &ask.encode(), &[]).map_err(|e| match e {
            // Nothing of the request was sent.
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

    /// The copies that the agent keeps, or is requested to keep.
    pub fn copies(&self) -> Option<Policy> {
        self.hello.copies.map(Policy::from)
    }

    /// The far area.
    pub fn far(&self) -> &'static Far {
        self.far
    }

    /// Whether an agent serves the tenant.
    pub fn is_served(&self) -> bool {
        matches!(self.state, State::Served(_))
    }

    /// The agent's last report, from its journal.
    pub fn status(&self) -> Option<AgentStatus> {
        let journal = self.kept.first()?.try_clone().ok()?;
        Journal::open(journal).ok()?.status()
    }

    /// Descriptor to wait for, besides the time [`Link::due`].
    pub fn poll_fd(&self) -> Option<PollFd<'_>> {
        match &self.state {
            State::Down(_) => None,
            State::Asked(fd, _) | State::Served(fd) => {
                Some(PollFd::new(fd.as_fd(), PollFlags::POLLIN))
            }
        }
    }

    /// Time of the next check without an event.
    pub fn due(&self) -> Option<Instant> {
        match &self.state {
            State::Down(at) => Some(*at),
            State::Asked(_, since) => Some(*since + ANSWER_WAIT),
            State::Served(_) => None,
        }
    }

    /// Checks whether the agent is there; if not, contacts another one.
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
            warn!("{line}");
            self.told = line;
        }
        if self.is_served() && !self.told.is_empty() {
            self.told.clear();
            info!(
                "the agent of far memory at {} serves again",
                self.path.display()
            );
        }
    }

    /// Takes one step towards being served.
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
            // Their answers can no longer come.
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

    /// Handles the agent's messages, if there are any.
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
                // The next agent is to keep the same copies, whatever its default.
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
            // The answer to a change for which nobody waits any more.
            (Ok(Answer::Changed { id, .. }), State::Served(_)) => {
                changed(&mut self.late, &mut self.hello, id);
                warn!(
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

    /// Ends the run. If the tenant has no process left, its far memory is freed at once, otherwise
    /// when the last process has ended.
    pub fn end(self, all: bool) {
        if let (true, State::Served(fd)) = (all, &self.state) {
            let over = Ask::Over { version: VERSION };
            if pass::send(fd, &over.encode(), &[]).is_ok() {
                // No more messages come: this waits for the agent to close the connection.
                let _ = receive_within(fd, &mut [0; BYTES_MAX], END_WAIT);
            }
        }
    }
}

/// Records a change that the agent has made: the next agent is to keep these copies.
fn changed(late: &mut Vec<(u64, Change)>, hello: &mut Hello, id: u64) {
    if let Some(at) = late.iter().position(|(late, _)| *late == id) {
        let (_, change) = late.swap_remove(at);
        hello.copies = change.copies.or(hello.copies);
    }
}

/// Waits for a message of the agent, until a time or until this process gets a signal, which goes
/// first.
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

/// Why no agent serves the tenant.
struct Why {
    /// Whether this is normal while an agent is starting or absent.
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
    /// Whether another run of this user has the name.
    fn is_taken(&self) -> bool {
        matches!(self.error, AgentError::Refused { taken: true, .. })
    }
}

/// The error that the agent at `path` cannot be used.
pub fn unusable(path: &Path, source: AgentError) -> RunError {
    RunError::Agent {
        path: path.to_owned(),
        source,
    }
}

/// The tenant's share, from the journal, which is the first of these files.
pub fn share_in(kept: &[OwnedFd]) -> Option<Share> {
    let journal = kept.first()?.try_clone().ok()?;
    Journal::open(journal).ok()?.share()
}

/// The tenant's grant of the host's pool, from the same journal.
pub fn pool_in(kept: &[OwnedFd]) -> Option<PoolGrant> {
    let journal = kept.first()?.try_clone().ok()?;
    Journal::open(journal).ok()?.pool()
}
