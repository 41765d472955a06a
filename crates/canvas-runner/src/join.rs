//! How a run begins at the host's agent: as a tenant of its own, or in one that is there.
//!
//! Programs that join share the tenant's segment, and with it all bounds.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use canvas_agent::Share;
use canvas_agent::journal::PoolGrant;
use canvas_shm::segment::Mode;
use canvas_shm::{Far, Segment, pass};
use nix::errno::Errno;

use crate::error::{AgentError, RunError};
use crate::link::{pool_in, share_in, unusable};
use crate::options::HostOptions;
use canvas_agent::daemon::socket::receive_within;
use canvas_control::hello::{Answer, Ask, BYTES_MAX, Settled, VERSION};
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

/// Asks the agent for the tenant.
pub fn begin(host: HostOptions) -> Result<Begun, RunError> {
    let fail = |why| unusable(&host.path, why);
    let until = Instant::now() + ANSWER_WAIT;
    let ask = Ask::Begin {
        version: VERSION,
        name: host.name.clone(),
        join: host.is_named,
    };
    let mut buf = [0; BYTES_MAX];
    let (fd, got) = loop {
        let asked = pass::connect(&host.path).and_then(|fd| {
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
                if Instant::now() >= until || !host.path.exists() {
                    return Err(fail(e.into()));
                }
            }
            Err(e) => return Err(fail(e.into())),
        }
        std::thread::sleep(PAUSE);
    };
    match Answer::decode(&buf[..got.bytes]) {
        Ok(Answer::Vacant { terms, .. }) => Ok(Begun::Vacant(terms)),
        Ok(Answer::Joins(settled)) if !got.cut => {
            let mut fds = got.fds.into_iter();
            let segment = fds
                .next()
                .ok_or_else(|| fail(AgentError::DescriptorMissing))?;
            Ok(Begun::Joined(Joined {
                fd,
                host,
                settled,
                segment,
                kept: fds.collect(),
            }))
        }
        Ok(Answer::Refused { why, taken, .. }) => Err(fail(AgentError::Refused { why, taken })),
        Ok(_) => Err(fail(AgentError::Nonsense)),
        Err(why) => Err(fail(why.into())),
    }
}

impl Joined {
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
