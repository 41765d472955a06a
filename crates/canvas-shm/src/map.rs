//! Creates and maps the tenant segment, for the `canvas` command.
//!
//! The preload maps the segment by raw system calls of its own; this is the safe way for programs that have std.

use core::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use canvas_types::PAGE_SIZE;
use canvas_types::layout::Bases;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::unistd::ftruncate;

use crate::far::{FAR_BYTES, Far, OFFSET};
use crate::segment::{MAGIC, SEGMENT_BYTES, Segment};
use core::sync::atomic::Ordering;

/// Seals without which another process could shrink the file, and every access would raise SIGBUS.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK;

impl Segment {
    /// Creates a tenant segment in a memfd of its own, all zeros except its magic number, and maps it for the rest of
    /// this process's life.
    ///
    /// With `far`, the far area ([`Far::map`]) follows in the same file.
    ///
    /// The descriptor is close-on-exec: the caller passes it on as needed. Its size is sealed, because the processes of
    /// the tenant are not trusted to leave it alone.
    pub fn create(far: bool) -> Result<(OwnedFd, &'static Segment), Errno> {
        let fd = Segment::file(far)?;
        let segment = Segment::map(&fd)?;
        segment.begin();
        Ok((fd, segment))
    }

    /// Creates the file of a tenant segment, all zeros and not mapped. The first process that maps it initialises it
    /// ([`Segment::begin`]).
    pub fn file(far: bool) -> Result<OwnedFd, Errno> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let fd = memfd_create(c"canvas-segment", flags)?;
        let bytes = SEGMENT_BYTES + if far { FAR_BYTES } else { 0 };
        ftruncate(&fd, bytes as i64)?;
        let seals = SealFlag::F_SEAL_GROW | SEALS | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(fd)
    }

    /// Initialises a segment of zeros.
    pub fn begin(&self) {
        self.config.set_bases(Bases::DEFAULT);
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// Maps the tenant segment behind `fd` for the rest of this process's life.
    ///
    /// `EINVAL` when the file is not sealed against shrinking or is too small to be a segment.
    pub fn map(fd: impl AsFd) -> Result<&'static Segment, Errno> {
        let addr = map_part(fd, 0, SEGMENT_BYTES)?;
        // SAFETY: the mapping has the full size, starts on a page, is shared and writable; nothing ever unmaps it; the
        // file cannot shrink below it (checked seal), so every byte exists.
        Ok(unsafe { Segment::at(addr) })
    }
}

impl Far {
    /// Maps the far area of the tenant segment behind `fd` for the rest of this process's life.
    ///
    /// `EINVAL` when the file is not sealed against shrinking, or has no far area.
    pub fn map(fd: impl AsFd) -> Result<&'static Far, Errno> {
        let addr = map_part(fd, OFFSET, FAR_BYTES)?;
        // SAFETY: the mapping has the full size, starts on a page, is shared and writable; nothing ever unmaps it; the
        // file cannot shrink below it (checked seal), so every byte exists.
        Ok(unsafe { Far::at(addr) })
    }
}

/// Both parts of a tenant's file, mapped until this is dropped: for a process that serves many tenants, one after the
/// other.
///
/// References to the parts may outlive it. They then see zeros, or, when the addresses are reused, another tenant's
/// data: since everything is an atomic, that is memory-safe, and the values mean nothing.
#[derive(Debug)]
pub struct Lease {
    addr: usize,
}

/// Bytes of both parts.
const BOTH_BYTES: usize = SEGMENT_BYTES + FAR_BYTES;
const _: () = assert!(OFFSET == SEGMENT_BYTES);

/// Addresses of ended leases: the file is no longer mapped there, and the addresses stay reserved, so that no reference
/// ever dangles.
static ENDED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

impl Lease {
    /// Maps the file behind `fd`, which an untrusted process may have sent.
    ///
    /// `EINVAL` when it is no sealed memfd with a far area; these checks never block.
    pub fn map(fd: impl AsFd) -> Result<Lease, Errno> {
        let seals = check(&fd, BOTH_BYTES)?;
        // As a segment is created: nobody can add a seal later, and a file that cannot be written is not a segment.
        let against = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_FUTURE_WRITE;
        let access = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE;
        if !seals.contains(SealFlag::F_SEAL_SEAL)
            || seals.intersects(against)
            || access != OFlag::O_RDWR
        {
            return Err(Errno::EINVAL);
        }
        // Files of other in-memory file systems may fail when their pages are touched.
        if nix::sys::statfs::fstatfs(&fd)?.filesystem_type() != nix::sys::statfs::TMPFS_MAGIC {
            return Err(Errno::EINVAL);
        }
        let again = ended().pop();
        let at = again.map(|addr| (addr, MapFlags::MAP_FIXED));
        // SAFETY: at the address of an ended lease lie zeros; references that have outlived it are to atomics, and find
        // the new file's numbers there.
        let mapped = unsafe { map_at(&fd, 0, BOTH_BYTES, at) };
        match (mapped, again) {
            (Ok(addr), _) => Ok(Lease { addr }),
            (Err(e), again) => {
                // The kernel may have unmapped what was there before it failed.
                // SAFETY: an address from the list, which has those of leases.
                ended().extend(again.filter(|addr| unsafe { leave_zeros(*addr) }));
                Err(e)
            }
        }
    }

    /// The tenant's segment.
    pub fn segment(&self) -> &'static Segment {
        // SAFETY: the mapping has the full size, starts on a page, is shared and writable; the file cannot shrink below
        // it (checked seal), and the addresses stay mapped for good (`leave_zeros`).
        unsafe { Segment::at(self.addr) }
    }

    /// The tenant's far area.
    pub fn far(&self) -> &'static Far {
        // SAFETY: the second part of the mapping, which starts on a page, is shared and writable; the file cannot
        // shrink below it (checked seal), and the addresses stay mapped for good (`leave_zeros`).
        unsafe { Far::at(self.addr + OFFSET) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // SAFETY: this lease's own address.
        if unsafe { leave_zeros(self.addr) } {
            ended().push(self.addr);
        }
    }
}

/// Replaces a lease by pages of zeros; false when there is no memory for that. They belong to a file: a host that does
/// not overcommit memory would charge private ones in full.
///
/// # Safety
///
/// `addr` must be that of a lease.
unsafe fn leave_zeros(addr: usize) -> bool {
    let zeros = || {
        let fd = memfd_create(c"canvas-ended", MFdFlags::MFD_CLOEXEC)?;
        ftruncate(&fd, BOTH_BYTES as i64)?;
        // SAFETY: the pages of a lease (the caller's promise); references to its atomics see zeros from now on.
        unsafe { map_at(&fd, 0, BOTH_BYTES, Some((addr, MapFlags::MAP_FIXED))) }
    };
    zeros().is_ok()
}

/// A panic of a thread ends the process, so the list is consistent.
fn ended() -> MutexGuard<'static, Vec<usize>> {
    ENDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A duplicate (close-on-exec) of a descriptor, with a number of at least `least`.
pub fn copy_above(fd: impl AsFd, least: RawFd) -> Result<OwnedFd, Errno> {
    duplicate(fd.as_fd().as_raw_fd(), least)
}

/// As [`copy_above`], of a descriptor that this process inherited by number; `EBADF` when it is not open.
pub fn inherited(number: RawFd, least: RawFd) -> Result<OwnedFd, Errno> {
    duplicate(number, least)
}

fn duplicate(number: RawFd, least: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: the command takes no address; a number that is not open is an error.
    let new = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, least) };
    Errno::result(new)?;
    // SAFETY: a new descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(new) })
}

/// The seals of a file that has at least `bytes` bytes and cannot shrink; `EINVAL` otherwise.
fn check(fd: impl AsFd, bytes: usize) -> Result<SealFlag, Errno> {
    // The seals first: only an in-memory file has any, and asking one never blocks.
    let seals = fcntl(&fd, FcntlArg::F_GET_SEALS)?;
    let there = nix::sys::stat::fstat(&fd)?.st_size;
    let seals = SealFlag::from_bits_retain(seals);
    if !seals.contains(SEALS) || there < bytes as i64 {
        return Err(Errno::EINVAL);
    }
    Ok(seals)
}

/// Maps a part of a sealed file, shared and writable, at an address that the kernel chooses.
pub(crate) fn map_part(fd: impl AsFd, offset: usize, bytes: usize) -> Result<usize, Errno> {
    check(&fd, offset + bytes)?;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    unsafe { map_at(&fd, offset, bytes, None) }
}

/// Maps a part of a checked file.
///
/// # Safety
///
/// Nothing may rely on the contents of what is mapped at the given address.
unsafe fn map_at(
    fd: impl AsFd,
    offset: usize,
    bytes: usize,
    at: Option<(usize, MapFlags)>,
) -> Result<usize, Errno> {
    let length = NonZeroUsize::new(bytes).ok_or(Errno::EINVAL)?;
    let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let (addr, more) = at.unwrap_or((0, MapFlags::empty()));
    let flags = MapFlags::MAP_SHARED | more;
    let addr = NonZeroUsize::new(addr);
    // SAFETY: replaces nothing, or what the caller answers for.
    let addr = unsafe { mmap(addr, length, prot, flags, &fd, offset as i64)? };
    debug_assert!((addr.as_ptr() as usize).is_multiple_of(PAGE_SIZE));
    Ok(addr.as_ptr() as usize)
}

// Miri has no memory files.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::Counter;

    #[test]
    fn what_is_charged_within_a_bound_never_passes_it() {
        let (_fd, s) = Segment::create(false).unwrap();
        let slot = |n: usize| &s.procs[n];
        assert!(s.charge_local_within(slot(0), 7, 7) && !s.charge_local_within(slot(0), 1, 7));
        assert_eq!(s.charge_local(slot(0), -7), 0);
        // Several at a time, in steps that do not divide evenly.
        std::thread::scope(|scope| {
            for n in 0..4 {
                scope.spawn(move || {
                    for _ in 0..1000 {
                        s.charge_local_within(slot(n), n as i64 + 1, 1001);
                        assert!(s.local_pages.load(Ordering::Relaxed) <= 1001);
                    }
                });
            }
        });
        let charged = |n: usize| slot(n).charged_pages.load(Ordering::Relaxed);
        let sum = (0..4).map(charged).sum::<i64>();
        assert_eq!(sum, s.local_pages.load(Ordering::Relaxed));
        assert!((998..=1001).contains(&sum), "{sum}: no step of four fits");
    }

    #[test]
    fn two_mappings_show_the_same_counters() {
        let (fd, a) = Segment::create(false).unwrap();
        let b = Segment::map(&fd).unwrap();
        assert_eq!(b.magic.load(Ordering::Acquire), MAGIC);
        assert_eq!(b.total(Counter::FaultFar), 0);
        a.count(3, Counter::FaultFar, 7);
        assert_eq!(b.total(Counter::FaultFar), 7);
    }

    #[test]
    fn the_bound_changes() {
        use canvas_types::units::{Amount, Size};
        let (_fd, s) = Segment::create(false).unwrap();
        s.config.local_bytes.store(64 << 20, Ordering::Relaxed);
        s.footprint_pages_peak.store(100_000, Ordering::Relaxed);
        let set = |amount| {
            s.set_local(amount);
            s.local_limit_pages()
        };
        let size = |mib: u64| Amount::Size(Size::from_bytes(mib << 20));
        assert_eq!(set(size(32)), Some(8192));
        assert_eq!(set(Amount::Share("25%".parse().unwrap())), Some(25_000));
        assert_eq!(set(Amount::Share("50%".parse().unwrap())), Some(50_000));
        assert_eq!(set(size(64)), Some(16_384));
        assert_eq!(set(size(64)), Some(16_384), "the same");
    }

    #[test]
    fn the_far_area_is_there_when_asked_for() {
        let (fd, _) = Segment::create(true).unwrap();
        let (a, b) = (Far::map(&fd).unwrap(), Far::map(&fd).unwrap());
        a.copy_in(1023, 63, 32 << 10, &[]);
        a.copy_in(1023, 63, (32 << 10) - 3, b"end");
        let mut got = [0; 4];
        b.copy_out(1023, 63, (32 << 10) - 4, &mut got);
        assert_eq!(&got, b"\0end");
        let (without, _) = Segment::create(false).unwrap();
        assert_eq!(Far::map(&without).err(), Some(Errno::EINVAL));
    }

    #[test]
    fn descriptors_are_found_by_their_numbers() {
        let (fd, segment) = Segment::create(false).unwrap();
        segment.count(0, Counter::FaultFar, 3);
        let again = inherited(fd.as_raw_fd(), 100).unwrap();
        assert!(again.as_raw_fd() >= 100);
        assert_eq!(Segment::map(again).unwrap().total(Counter::FaultFar), 3);
        assert_eq!(inherited(-1, 3).err(), Some(Errno::EBADF));
        assert_eq!(inherited(1 << 20, 3).err(), Some(Errno::EBADF));
    }

    #[test]
    fn the_size_is_fixed() {
        let (fd, _) = Segment::create(false).unwrap();
        assert_eq!(ftruncate(&fd, 0), Err(Errno::EPERM));
        assert_eq!(ftruncate(&fd, 2 * SEGMENT_BYTES as i64), Err(Errno::EPERM));
    }

    #[test]
    fn what_is_no_segment_is_refused() {
        let fd = memfd_create(c"other", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&fd, SEGMENT_BYTES as i64).unwrap();
        assert_eq!(Segment::map(&fd).err(), Some(Errno::EINVAL), "not sealed");
        ftruncate(&fd, 4096).unwrap();
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SEALS)).unwrap();
        assert_eq!(Segment::map(&fd).err(), Some(Errno::EINVAL), "too small");
    }

    #[test]
    fn a_lease_that_has_ended_leaves_zeros_and_the_addresses_are_used_again() {
        let (fd, first) = Segment::create(true).unwrap();
        first.count(0, Counter::FaultFar, 3);
        let lease = Lease::map(&fd).unwrap();
        let (addr, segment, far) = (lease.addr, lease.segment(), lease.far());
        far.slabs_max.store(9, Ordering::Relaxed);
        assert_eq!(segment.total(Counter::FaultFar), 3);
        drop(lease);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let there = maps
            .lines()
            .find(|l| l.starts_with(&std::format!("{addr:x}-")));
        assert!(
            there.is_some_and(|l| l.contains(" rw-s ")),
            "{there:?}: private memory is charged in full where none is overcommitted"
        );
        assert_eq!(segment.total(Counter::FaultFar), 0);
        far.slabs_max.store(5, Ordering::Relaxed);
        let (other, there) = Segment::create(true).unwrap();
        there.count(0, Counter::FaultFar, 4);
        let lease = Lease::map(&other).unwrap();
        assert_eq!((lease.addr, segment.total(Counter::FaultFar)), (addr, 4));
        assert_eq!(lease.far().slabs_max.load(Ordering::Relaxed), 0);
        assert_eq!(Far::map(&fd).unwrap().slabs_max.load(Ordering::Relaxed), 9);
    }

    #[test]
    fn what_a_stranger_sends_is_judged_before_it_is_mapped() {
        let sealed = |seals, bytes| {
            let fd = memfd_create(c"other", MFdFlags::MFD_ALLOW_SEALING).unwrap();
            ftruncate(&fd, bytes as i64).unwrap();
            fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
            Lease::map(&fd).map(|_| ())
        };
        let whole = SEALS | SealFlag::F_SEAL_SEAL;
        assert_eq!(sealed(whole, BOTH_BYTES), Ok(()));
        let no = Err(Errno::EINVAL);
        assert_eq!(sealed(whole, BOTH_BYTES - 1), no);
        assert_eq!(sealed(SEALS, BOTH_BYTES), no, "more can be added");
        assert_eq!(sealed(whole | SealFlag::F_SEAL_WRITE, BOTH_BYTES), no);
        let grow = SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        assert_eq!(sealed(grow, BOTH_BYTES), no);
        let none = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Lease::map(&none).err(), Some(Errno::EINVAL));
    }
}
