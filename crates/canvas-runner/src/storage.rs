//! Far memory for what is no program: a tenant with one process, this one, and who keeps what leaves its
//! pool.

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
    /// The tenant's bounds and counters.
    pub segment: &'static Segment,
    /// Its requests.
    pub far: &'static Far,
    keeper: Keeper,
    sides: Sides,
    fd: OwnedFd,
}

impl Storage {
    /// Begins a tenant with a pool of so many bytes; `None` when its name is taken at the host's agent.
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

    /// Looks whether the agent is gone, and has another one take over then.
    pub fn tend(&mut self) {
        self.keeper.tend();
    }

    /// The tenant's segment, for a process that is to use it in this one's place.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Who keeps it.
    pub(crate) fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// The same, to have it change something.
    pub(crate) fn keeper_mut(&mut self) -> &mut Keeper {
        &mut self.keeper
    }

    /// Memory that it takes beside the pool.
    pub(crate) fn beside(&self) -> Beside {
        self.sides.look(Some(&self.keeper))
    }

    /// What to wait for, beside time.
    pub fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.keeper.poll_fd()
    }

    /// It is over: this process has left the tenant.
    pub fn end(self) {
        let all = !any_left(self.segment);
        self.keeper.end(all);
    }
}
