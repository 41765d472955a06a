//! Memory that a tenant takes beside that of its processes: its segment, in which the buffers of
//! far memory lie, and the agent of its own. Both are the tenant's, and no process charges them.

use std::io;
use std::os::fd::OwnedFd;

use canvas_shm::lives::Lives;

use nix::sys::stat::fstat;

use crate::far::Keeper;
use crate::tree::anon_bytes;

/// How much there is at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Beside {
    /// Of the segment: counters, requests, and buffers, as far as somebody has touched them.
    pub segment_bytes: u64,
    /// Anonymous memory of the agent process; the host's agent is nobody's.
    pub agent_bytes: u64,
}

impl Beside {
    /// The larger of each.
    pub fn max(self, other: Beside) -> Beside {
        Beside {
            segment_bytes: self.segment_bytes.max(other.segment_bytes),
            agent_bytes: self.agent_bytes.max(other.agent_bytes),
        }
    }
}

/// What to look at.
pub struct Sides {
    segment: OwnedFd,
}

impl Sides {
    /// Of the tenant with this segment.
    pub fn new(segment: &OwnedFd) -> io::Result<Sides> {
        let segment = segment.try_clone()?;
        Ok(Sides { segment })
    }

    /// Which of the tenant's processes live.
    pub fn lives(&self) -> Lives<'_> {
        Lives::of(&self.segment)
    }

    /// Asks the kernel.
    pub fn look(&self, agent: Option<&Keeper>) -> Beside {
        /// A file's blocks are counted in these, whatever its own are.
        const BLOCK_BYTES: u64 = 512;
        let blocks = fstat(&self.segment).map_or(0, |s| s.st_blocks);
        Beside {
            segment_bytes: blocks.max(0) as u64 * BLOCK_BYTES,
            agent_bytes: agent.and_then(Keeper::process).map_or(0, anon_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_shm::{Far, Segment};

    #[test]
    fn buffers_count_as_soon_as_they_are_touched() {
        let (fd, _) = Segment::create(true).unwrap();
        let far = Far::map(&fd).unwrap();
        let sides = Sides::new(&fd).unwrap();
        let before = sides.look(None);
        far.copy_in(7, 3, 0, &[1; 5000]);
        let after = sides.look(None);
        assert_eq!(after.segment_bytes - before.segment_bytes, 8192);
        assert_eq!(after.agent_bytes, 0);
    }
}
