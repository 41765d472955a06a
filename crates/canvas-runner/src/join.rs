//! Starts a run at the host's agent: as a new tenant, or in an existing one.
//!
//! Programs that join share the tenant's segment, and so all its limits.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use canvas_agent::Share;
use canvas_agent::journal::PoolGrant;
use canvas_shm::segment::Mode;
use canvas_shm::{Far, Segment, pass};
use nix::errno::Errno;
use nix::sys::stat::fstat;

use crate::error::{AgentError, RunError};
use crate::link::{pool_in, share_in, unusable};
use crate::options::HostOptions;
use canvas_agent::daemon::socket::receive_within;
use canvas_control::hello::{Answer, Ask, BYTES_MAX, Offers, Settled, Take, VERSION};
use canvas_control::terms::Terms;

/// Most time for the agent's answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Pause before another try while the agent is busy or being replaced.
const PAUSE: Duration = Duration::from_millis(5);

/// The agent's answer about a tenant's name.
pub enum Begun {
    /// The name is free; these are the operator's terms.
    Vacant(Terms),
    /// The tenant exists, and this run has joined it.
    Joined(Joined),
}

/// A tenant that a run has joined.
pub struct Joined {
    /// The connection.
    pub fd: OwnedFd,
    /// The agent's socket, and the tenant's name.
    pub host: HostOptions,
    /// The tenant's settings at the agent.
    pub settled: Settled,
    /// Its segment.
    pub segment: OwnedFd,
    /// Descriptors for the next agent.
    pub kept: Vec<OwnedFd>,
}

/// How a run gets its tenant.
pub enum Start {
    /// It makes a new one.
    New,
    /// It joins one in which others run or have run.
    Joined(Joined),
    /// It takes one that the agent prepared, in which nobody has run.
    Prepared(Joined),
}

/// Asks the agent for the tenant.
pub fn begin(host: HostOptions) -> Result<Begun, RunError> {
    let ask = Ask::Begin {
        version: VERSION,
        name: host.name.clone(),
        join: host.is_named,
    };
    let (fd, answer, fds) = exchange(&host.path, &ask)?;
    let fail = |why| unusable(&host.path, why);
    match answer {
        Answer::Vacant { terms, .. } => Ok(Begun::Vacant(terms)),
        Answer::Joins(settled) => Ok(Begun::Joined(Joined::new(fd, host, settled, fds)?)),
        Answer::Refused { why, taken, .. } => Err(fail(AgentError::Refused { why, taken })),
        _ => Err(fail(AgentError::Nonsense)),
    }
}

/// What a new tenant could have at the agent at `path`.
pub fn offers(path: &Path) -> Result<Offers, RunError> {
    let version = VERSION;
    match exchange(path, &Ask::Offers { version })?.1 {
        Answer::Offers(offers) => Ok(offers),
        Answer::Refused { why, taken, .. } => {
            Err(unusable(path, AgentError::Refused { why, taken }))
        }
        _ => Err(unusable(path, AgentError::Nonsense)),
    }
}

/// Takes a prepared tenant of the agent at `path`; `None` if there is none.
pub fn take(path: &Path, take: Take) -> Result<Option<Joined>, RunError> {
    let (fd, answer, fds) = exchange(path, &Ask::Take(take))?;
    match answer {
        Answer::NonePrepared { .. } => Ok(None),
        Answer::Prepared { name, settled, .. } => {
            let host = HostOptions {
                path: path.to_owned(),
                name,
                is_named: true,
            };
            Joined::new(fd, host, settled, fds).map(Some)
        }
        Answer::Refused { why, taken, .. } => {
            Err(unusable(path, AgentError::Refused { why, taken }))
        }
        _ => Err(unusable(path, AgentError::Nonsense)),
    }
}

/// Sends a request to the agent at `path`; returns the connection, the answer, and its descriptors.
fn exchange(path: &Path, ask: &Ask) -> Result<(OwnedFd, Answer, Vec<OwnedFd>), RunError> {
    let fail = |why| unusable(path, why);
    let until = Instant::now() + ANSWER_WAIT;
    let mut buf = [0; BYTES_MAX];
    let (fd, got) = loop {
        let asked = pass::connect(path).and_then(|fd| {
            pass::send(&fd, &ask.encode(), &[])?;
            let left = until.saturating_duration_since(Instant::now());
            let got = receive_within(&fd, &mut buf, left)?;
            Ok((fd, got))
        });
        match asked {
            // The agent ended, or was replaced, before it read the request.
            Ok((_, got)) if got.bytes == 0 && Instant::now() < until => {}
            Ok(asked) => break asked,
            Err(Errno::ETIMEDOUT) => return Err(fail(AgentError::Silent)),
            Err(
                e @ (Errno::EAGAIN
                | Errno::ECONNREFUSED
                | Errno::ENOENT
                | Errno::ECONNRESET
                | Errno::EPIPE),
            ) => {
                if Instant::now() >= until || !path.exists() {
                    return Err(fail(e.into()));
                }
            }
            Err(e) => return Err(fail(e.into())),
        }
        std::thread::sleep(PAUSE);
    };
    match Answer::decode(&buf[..got.bytes]) {
        // A descriptor was lost.
        Ok(_) if got.cut => Err(fail(AgentError::Nonsense)),
        Ok(answer) => Ok((fd, answer, got.fds)),
        Err(why) => Err(fail(why.into())),
    }
}

impl Joined {
    /// From the agent's answer.
    fn new(
        fd: OwnedFd,
        host: HostOptions,
        settled: Settled,
        fds: Vec<OwnedFd>,
    ) -> Result<Joined, RunError> {
        let mut fds = fds.into_iter();
        let Some(segment) = fds.next() else {
            return Err(unusable(&host.path, AgentError::DescriptorMissing));
        };
        Ok(Joined {
            fd,
            host,
            settled,
            segment,
            kept: fds.collect(),
        })
    }

    /// Identifies the tenant to all its runs ([`canvas_control::wire::Status::shared`]).
    pub fn id(&self) -> Option<String> {
        let stat = fstat(&self.segment).ok()?;
        Some(format!("{}:{}", stat.st_dev, stat.st_ino))
    }

    /// Maps the tenant's segment and far area.
    pub fn map(&self) -> Result<(&'static Segment, &'static Far), RunError> {
        let fail = |e| unusable(&self.host.path, AgentError::Segment(e));
        let segment = Segment::map(&self.segment).map_err(fail)?;
        Ok((segment, Far::map(&self.segment).map_err(fail)?))
    }

    /// The tenant's share of contended resources.
    pub fn share(&self) -> Share {
        share_in(&self.kept).unwrap_or_default()
    }

    /// The tenant's grant of the host's pool, if the agent limits that.
    pub fn pool(&self) -> Option<PoolGrant> {
        pool_in(&self.kept)
    }

    /// The tenant's mode of delivering faults; an error if it does not work here.
    pub fn mode(&self) -> Result<Option<Mode>, RunError> {
        let mode = self.map()?.0.config.mode.load(Relaxed);
        let modes = [Mode::Signal, Mode::Thread];
        Ok(modes.into_iter().find(|m| *m as u32 == mode))
    }
}
