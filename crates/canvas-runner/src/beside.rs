//! Memory of a tenant besides that of its processes: its segment, which contains the buffers of far
//! memory, and its own agent. No process accounts for it.

use std::io;
use std::os::fd::OwnedFd;

use canvas_shm::lives::Lives;

use nix::sys::stat::fstat;

use crate::far::Keeper;
use crate::tree::anon_bytes;

/// Amounts at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Beside {
    /// Of the segment: counters, requests and buffers, as far as they were touched.
    pub segment_bytes: u64,
    /// Anonymous memory of the run's own agent process; the host's agent does not count.
    pub agent_bytes: u64,
}

impl Beside {
    /// The larger value of each field.
    pub fn max(self, other: Beside) -> Beside {
        Beside {
            segment_bytes: self.segment_bytes.max(other.segment_bytes),
            agent_bytes: self.agent_bytes.max(other.agent_bytes),
        }
    }
}

/// Measures this memory.
pub struct Sides {
    segment: OwnedFd,
}

impl Sides {
    /// For the tenant with this segment.
    pub fn new(segment: &OwnedFd) -> io::Result<Sides> {
        let segment = segment.try_clone()?;
        Ok(Sides { segment })
    }

    /// Tells which of the tenant's processes are alive.
    pub fn lives(&self) -> Lives<'_> {
        Lives::of(&self.segment)
    }

    /// Reads the amounts from the kernel.
    pub fn look(&self, agent: Option<&Keeper>) -> Beside {
        /// Unit of a file's block count, whatever the file system's block size.
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
