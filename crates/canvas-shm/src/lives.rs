//! Which processes of a tenant are alive.
//!
//! A PID does not identify a process: a child in a PID namespace has different PIDs inside and outside, and PIDs are
//! reused. So each process that takes a slot draws a unique *identity* from the segment, and locks the byte at that
//! offset of the segment's file. The file is opened for this lock alone and mapped where the process's memory is, at
//! the page with that number, so the kernel drops the lock together with that memory: at the process's end or its exec,
//! however it ends. A fork's child gets its own from its parent. A second lock, at a far higher offset, is owned by the
//! process and reveals its PID: the kernel translates that into the reader's namespace.

use core::sync::atomic::Ordering;

use crate::segment::{ProcSlot, Segment};

/// In place of an identity while a slot is being freed.
pub const LEAVING: u64 = u64::MAX;
/// Identities are below this.
pub const IDENTITIES_MAX: u64 = 1 << 48;
/// Offset from the byte of a process's life lock to that of its PID lock.
pub const NUMBERS: u64 = 1 << 62;

/// The byte that a process locks while it gives up pages that relatives map.
pub const GIVING_UP: u64 = 1 << 61;

/// Whether a process can have this identity. A tenant can write any number into its segment.
pub fn is_identity(id: u64) -> bool {
    (1..IDENTITIES_MAX).contains(&id)
}

/// Offset at which the file with the lock of `id` is mapped, in bytes: so /proc/PID/maps reveals a process's identity.
pub fn map_offset(id: u64) -> usize {
    id as usize * canvas_types::PAGE_SIZE
}

impl Segment {
    /// Draws a new identity.
    pub fn draw_identity(&self) -> u64 {
        self.identities.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl ProcSlot {
    /// The identity of the process with this slot; `None` when the slot is free or being freed.
    #[inline]
    pub fn identity(&self) -> Option<u64> {
        let id = self.id.load(Ordering::Acquire);
        (id != 0 && id != LEAVING).then_some(id)
    }
    /// Takes the slot if it is free.
    pub fn take(&self, id: u64) -> bool {
        self.id
            .compare_exchange(0, id, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

#[cfg(feature = "std")]
pub use judge::{Lives, live};

#[cfg(feature = "std")]
mod judge {
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd};

    use nix::errno::Errno;
    use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
    use nix::libc;
    use nix::sys::stat::Mode;

    use super::{IDENTITIES_MAX, NUMBERS, is_identity};
    use crate::segment::{ProcSlot, Segment};
    use core::sync::atomic::Ordering;

    fn byte(kind: i32, at: u64) -> libc::flock {
        libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: at as i64,
            l_len: 1,
            l_pid: 0,
        }
    }

    /// Makes this process, which has std, a member of the tenant with this segment. Returns its identity, which lasts
    /// as long as the process.
    pub fn live(fd: impl AsFd, segment: &Segment) -> Result<u64, Errno> {
        let id = segment.draw_identity();
        let path = std::format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        let own = open(
            path.as_str(),
            OFlag::O_RDWR | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        fcntl(&own, FcntlArg::F_OFD_SETLK(&byte(libc::F_RDLCK, id)))?;
        // The kernel closes it when this process ends.
        let _ = own.into_raw_fd();
        fcntl(&fd, FcntlArg::F_SETLK(&byte(libc::F_RDLCK, NUMBERS + id)))?;
        Ok(id)
    }

    /// Finds out which of a tenant's processes are alive.
    #[derive(Clone, Copy, Debug)]
    pub struct Lives<'f>(BorrowedFd<'f>);

    impl<'f> Lives<'f> {
        /// For the tenant with the segment in this file.
        pub fn of(segment: &'f impl AsFd) -> Lives<'f> {
            Lives(segment.as_fd())
        }
        /// Whether it is certain that no process with this identity has any memory left.
        pub fn is_gone(&self, id: u64) -> bool {
            if !is_identity(id) {
                // No canvas process writes such a number, so no process has it.
                return true;
            }
            let mut lock = byte(libc::F_WRLCK, id);
            fcntl(self.0, FcntlArg::F_OFD_GETLK(&mut lock)).is_ok()
                && i32::from(lock.l_type) == libc::F_UNLCK
        }
        /// The PID of the process with this identity, in this namespace; `None` when it has none here, or is just
        /// starting.
        pub fn number(&self, id: u64) -> Option<u32> {
            let mut lock = byte(libc::F_WRLCK, NUMBERS + id % IDENTITIES_MAX);
            fcntl(self.0, FcntlArg::F_GETLK(&mut lock)).ok()?;
            let held = i32::from(lock.l_type) != libc::F_UNLCK;
            u32::try_from(lock.l_pid).ok().filter(|n| held && *n > 0)
        }
        /// The PID of the process in a taken slot: by its lock, otherwise as the process recorded it.
        pub fn number_at(&self, slot: &ProcSlot) -> Option<u32> {
            let own = || Some(slot.pid.load(Ordering::Relaxed)).filter(|n| *n != 0);
            self.number(slot.identity()?).or_else(own)
        }
        /// The PIDs of all live processes with a slot. A slot can outlast its process until it is freed, and so can the
        /// PID lock, over an exec.
        pub fn numbers(self, segment: &Segment) -> impl Iterator<Item = u32> {
            let lives = move |s: &&ProcSlot| s.identity().is_some_and(|id| !self.is_gone(id));
            let there = segment.procs_used().iter().filter(lives);
            there.filter_map(move |s| self.number_at(s))
        }
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    #[test]
    #[cfg_attr(miri, ignore = "locks of files")]
    fn who_holds_its_lock_lives_and_no_number_makes_a_life() {
        let (fd, segment) = Segment::create(false).unwrap();
        let lives = Lives::of(&fd);
        let id = live(&fd, segment).unwrap();
        assert!(!lives.is_gone(id));
        for none in [0, id + 1, IDENTITIES_MAX, 1 << 63, LEAVING] {
            assert!(lives.is_gone(none), "{none}");
        }
        assert_ne!(segment.draw_identity(), id);
        // When the question fails, nobody is taken for dead: a path descriptor has no locks.
        use nix::fcntl::{OFlag, open};
        let path = open(
            "/",
            OFlag::O_PATH | OFlag::O_CLOEXEC,
            nix::sys::stat::Mode::empty(),
        );
        assert!(!Lives::of(&path.unwrap()).is_gone(id + 1));
    }

    #[test]
    fn a_place_is_taken_once() {
        let (segment, _) = crate::tenant();
        let slot = &segment.procs[0];
        assert_eq!(slot.identity(), None);
        assert!(slot.take(7) && !slot.take(8));
        assert_eq!(slot.identity(), Some(7));
        slot.id.store(LEAVING, Ordering::Relaxed);
        assert_eq!(slot.identity(), None);
    }
}
