//! Far memory for a process that is not a program, such as a disk's server: a tenant whose only
//! process is this one, and its agent.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use canvas_agent::members::any_left;
use canvas_shm::segment::config_flag;
use canvas_shm::{Far, Segment};
use nix::poll::PollFd;

use crate::beside::{Beside, Sides};
use crate::error::RunError;
use crate::far::{self, Keeper};
use crate::options::{FarOptions, pid_namespace};

/// Far memory of this process.
pub struct Storage {
    /// The tenant's limits and counters.
    pub segment: &'static Segment,
    /// The tenant's far area.
    pub far: &'static Far,
    keeper: Keeper,
    sides: Sides,
    fd: OwnedFd,
}

impl Storage {
    /// Starts a tenant with a pool of `pool_bytes`; `None` if its name is taken at the host's
    /// agent.
    pub fn begin(pool_bytes: u64, options: &FarOptions) -> Result<Option<Storage>, RunError> {
        far::check_limits()?;
        let (fd, segment) = Segment::create(true).map_err(|source| RunError::Far {
            what: "its segment cannot be created",
            source,
        })?;
        let config = &segment.config;
        config.pool_bytes.store(pool_bytes, Relaxed);
        config.flags.store(config_flag::FAR, Relaxed);
        config.runner_pid.store(std::process::id(), Relaxed);
        config.pid_namespace.store(pid_namespace(), Relaxed);
        let Some(keeper) = far::start(options, &fd)? else {
            return Ok(None);
        };
        let sides = Sides::new(&fd).map_err(RunError::Descriptor)?;
        Ok(Some(Storage {
            segment,
            far: keeper.far(),
            keeper,
            sides,
            fd,
        }))
    }

    /// Checks whether the agent is gone; if so, has another one take over.
    pub fn tend(&mut self) {
        self.keeper.tend();
    }

    /// The tenant's segment, for a process that replaces this one.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The tenant's agent.
    pub(crate) fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// The tenant's agent, for changes.
    pub(crate) fn keeper_mut(&mut self) -> &mut Keeper {
        &mut self.keeper
    }

    /// Memory of the tenant besides the pool.
    pub(crate) fn beside(&self) -> Beside {
        self.sides.look(Some(&self.keeper))
    }

    /// Descriptor to wait for, besides timeouts.
    pub fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.keeper.poll_fd()
    }

    /// Ends it, after this process has left the tenant.
    pub fn end(self) {
        let all = !any_left(self.segment);
        self.keeper.end(all);
    }
}
