//! How a run begins at the host's agent: as a tenant of its own, or in one that is there.
//!
//! Programs that join share the tenant's segment, and with it all bounds.

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

/// How long the agent may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Between two tries while it is busy, or being replaced.
const PAUSE: Duration = Duration::from_millis(5);

/// What the agent says about a tenant's name.
pub enum Begun {
    /// It is free; its operator has settled this.
    Vacant(Terms),
    /// It is there, and this run belongs to it.
    Joined(Joined),
}

/// A tenant that a run has joined.
pub struct Joined {
    /// The connection.
    pub fd: OwnedFd,
    /// Where the agent listens, and the tenant's name.
    pub host: HostOptions,
    /// The tenant, as the agent keeps it.
    pub settled: Settled,
    /// Its segment.
    pub segment: OwnedFd,
    /// What the agent gave for the next one.
    pub kept: Vec<OwnedFd>,
}

/// What becomes of a run's tenant.
pub enum Start {
    /// It is made.
    New,
    /// It is there, and others run in it or have.
    Joined(Joined),
    /// The agent had it prepared, and nobody has run in it.
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

/// What a new tenant could have at the agent that listens at `path`.
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

/// Takes a prepared tenant of the agent that listens at `path`; `None` when there is none.
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

/// Asks the agent at `path`; the connection, its answer, and the descriptors beside that.
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
            // It has ended, or another one has taken over, before it read the question.
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
        // A descriptor of it cannot be had.
        Ok(_) if got.cut => Err(fail(AgentError::Nonsense)),
        Ok(answer) => Ok((fd, answer, got.fds)),
        Err(why) => Err(fail(why.into())),
    }
}

impl Joined {
    /// From what the agent sent.
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

    /// What all runs of the tenant have in common ([`canvas_control::wire::Status::shared`]).
    pub fn id(&self) -> Option<String> {
        let stat = fstat(&self.segment).ok()?;
        Some(format!("{}:{}", stat.st_dev, stat.st_ino))
    }

    /// What the tenant's processes share.
    pub fn map(&self) -> Result<(&'static Segment, &'static Far), RunError> {
        let fail = |e| unusable(&self.host.path, AgentError::Segment(e));
        let segment = Segment::map(&self.segment).map_err(fail)?;
        Ok((segment, Far::map(&self.segment).map_err(fail)?))
    }

    /// What the tenant gets where it is not alone.
    pub fn share(&self) -> Share {
        share_in(&self.kept).unwrap_or_default()
    }

    /// What of the host's pool it is granted, if the agent bounds that.
    pub fn pool(&self) -> Option<PoolGrant> {
        pool_in(&self.kept)
    }

    /// How the tenant's faults are delivered: this host must be able to.
    pub fn mode(&self) -> Result<Option<Mode>, RunError> {
        let mode = self.map()?.0.config.mode.load(Relaxed);
        let modes = [Mode::Signal, Mode::Thread];
        Ok(modes.into_iter().find(|m| *m as u32 == mode))
    }
}
