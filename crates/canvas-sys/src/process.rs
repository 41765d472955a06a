//! Advice about another process, for `canvas swap-in`; and calls that keep this process from waiting for memory.

use crate::gate::{Errno, sys1, sys2, sys6};
use crate::proc;

/// prctl(2)'s number for the call.
const PR_SET_IO_FLUSHER: i32 = 57;
/// Maximum ranges per call.
pub const RANGES_MAX: usize = 512;

/// A process, as long as this lives; never another one that has got its number.
pub struct Process(i32);

impl Process {
    /// Opens the process with this number.
    pub fn open(pid: u32) -> Result<Process, Errno> {
        // SAFETY: the call takes no address.
        let fd = unsafe { sys2(libc::SYS_pidfd_open, pid as usize, 0) }?;
        Ok(Process(fd as i32))
    }

    /// Makes the kernel read what is swapped out of these ranges (first byte, bytes), at most [`RANGES_MAX`]. Returns
    /// how many it has done, from the first one on. Does not wait for the reads (process_madvise with MADV_WILLNEED,
    /// Linux 5.13).
    pub fn will_need(&self, ranges: &[(usize, usize)]) -> Result<usize, Errno> {
        let nothing = libc::iovec {
            iov_base: core::ptr::null_mut(),
            iov_len: 0,
        };
        let mut vector = [nothing; RANGES_MAX];
        let count = ranges.len().min(RANGES_MAX);
        for (to, (start, bytes)) in vector.iter_mut().zip(ranges) {
            to.iov_base = core::ptr::without_provenance_mut(*start);
            to.iov_len = *bytes;
        }
        // SAFETY: the kernel reads `count` entries of `vector`; the advice changes no contents of any process.
        let bytes = unsafe {
            sys6(
                libc::SYS_process_madvise,
                self.0 as usize,
                vector.as_ptr() as usize,
                count,
                libc::MADV_WILLNEED as usize,
                0,
                0,
            )
        }?;
        let mut left = bytes;
        let whole = ranges[..count].iter().take_while(|(_, range)| {
            let is_done = *range <= left;
            left = left.saturating_sub(*range);
            is_done
        });
        Ok(whole.count())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        proc::close(self.0);
    }
}

/// Brings all of this process into memory, including its code, and locks it there, now and later (mlockall).
///
/// Without MCL_ONFAULT: code that was never run would have to be read when there may be no memory to read it to.
pub fn stay_in_memory() -> Result<(), Errno> {
    let flags = libc::MCL_CURRENT | libc::MCL_FUTURE;
    // SAFETY: the call takes no address, and changes no contents.
    unsafe { sys1(libc::SYS_mlockall, flags as usize) }.map(|_| ())
}

/// Declares that the work of this thread and of those that it starts is part of writing memory out, so that the kernel
/// does not let their allocations wait for it (prctl(2), PR_SET_IO_FLUSHER, Linux 5.6). Requires CAP_SYS_RESOURCE.
pub fn write_memory_out() -> Result<(), Errno> {
    // SAFETY: this option takes no address.
    unsafe { proc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) }.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem;
    use canvas_types::PAGE_SIZE;

    #[test]
    fn ranges_are_done_up_to_the_first_hole() {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let at = mem::map_lazy(0, 4 * PAGE_SIZE, rw).unwrap();
        // SAFETY: inside the mapping made just now, which nothing uses.
        unsafe { mem::unmap(at + 2 * PAGE_SIZE, PAGE_SIZE) }.unwrap();
        let own = Process::open(proc::pid()).unwrap();
        let range = |page: usize| (at + page * PAGE_SIZE, PAGE_SIZE);
        match own.will_need(&[range(0), range(1), range(3)]) {
            Ok(done) => assert_eq!(done, 3),
            Err(Errno(libc::EINVAL | libc::ENOSYS)) => return, // Before Linux 5.13.
            Err(e) => panic!("{e:?}"),
        }
        assert_eq!(own.will_need(&[range(0), range(2), range(3)]), Ok(1));
        assert_eq!(own.will_need(&[range(2)]), Err(Errno(libc::ENOMEM)));
        assert_eq!(own.will_need(&[]), Ok(0));
        // SAFETY: nothing uses it any more.
        unsafe { mem::unmap(at, 4 * PAGE_SIZE) }.unwrap();
    }

    #[test]
    fn there_is_no_process_without_a_number() {
        assert_eq!(Process::open(0).err(), Some(Errno(libc::EINVAL)));
        assert_eq!(
            Process::open(i32::MAX as u32).err(),
            Some(Errno(libc::ESRCH))
        );
    }
}
