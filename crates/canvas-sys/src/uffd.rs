//! userfaultfd: the ABI (include/uapi/linux/userfaultfd.h) and the calls that canvas makes.

use crate::gate::{Errno, sys1, sys2, sys3};
use core::mem::{offset_of, size_of};

/// Report only faults from user mode: needs no privilege.
pub const USER_MODE_ONLY: usize = 1;

/// Bits of `uffdio_api.features`, by the kernel's names.
pub mod feature {
    #![allow(missing_docs)]
    pub const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    pub const EVENT_FORK: u64 = 1 << 1;
    pub const EVENT_REMAP: u64 = 1 << 2;
    pub const EVENT_REMOVE: u64 = 1 << 3;
    pub const MISSING_HUGETLBFS: u64 = 1 << 4;
    pub const MISSING_SHMEM: u64 = 1 << 5;
    pub const EVENT_UNMAP: u64 = 1 << 6;
    pub const SIGBUS: u64 = 1 << 7;
    pub const THREAD_ID: u64 = 1 << 8;
    pub const EXACT_ADDRESS: u64 = 1 << 11;
    pub const WP_UNPOPULATED: u64 = 1 << 13;
    pub const WP_ASYNC: u64 = 1 << 15;
    pub const MOVE: u64 = 1 << 16;
    /// Feature names, for messages.
    pub const NAMES: &[(u64, &str)] = &[
        (PAGEFAULT_FLAG_WP, "WP"),
        (EVENT_FORK, "EVENT_FORK"),
        (EVENT_REMAP, "EVENT_REMAP"),
        (EVENT_REMOVE, "EVENT_REMOVE"),
        (MISSING_HUGETLBFS, "MISSING_HUGETLBFS"),
        (MISSING_SHMEM, "MISSING_SHMEM"),
        (EVENT_UNMAP, "EVENT_UNMAP"),
        (SIGBUS, "SIGBUS"),
        (THREAD_ID, "THREAD_ID"),
        (EXACT_ADDRESS, "EXACT_ADDRESS"),
        (WP_UNPOPULATED, "WP_UNPOPULATED"),
        (WP_ASYNC, "WP_ASYNC"),
        (MOVE, "MOVE"),
    ];
}

const API: u64 = 0xaa;
const fn iowr(nr: u64, size: usize) -> usize {
    ((3 << 30) | ((size as u64) << 16) | (API << 8) | nr) as usize
}
const fn ior(nr: u64, size: usize) -> usize {
    ((2 << 30) | ((size as u64) << 16) | (API << 8) | nr) as usize
}

#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}
#[repr(C)]
#[derive(Clone, Copy)]
struct UffdioRange {
    start: u64,
    len: u64,
}
#[repr(C)]
struct UffdioRegister {
    range: UffdioRange,
    mode: u64,
    ioctls: u64,
}
/// UFFDIO_COPY_MODE_WP.
const COPY_MODE_WP: u64 = 1 << 1;
#[repr(C)]
struct UffdioCopy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copy: i64,
}
#[repr(C)]
struct UffdioMove {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    moved: i64,
}
#[repr(C)]
struct UffdioWriteprotect {
    range: UffdioRange,
    mode: u64,
}
/// A message read from a userfaultfd.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Msg {
    /// Event; [`EVENT_PAGEFAULT`] for faults.
    pub event: u8,
    reserved: [u8; 7],
    /// Flags of the fault: [`FAULT_WRITE`].
    pub flags: u64,
    /// Address of the access that faulted.
    pub address: u64,
    /// Thread id (with THREAD_ID).
    pub ptid: u64,
}
/// `Msg::event` of a page fault.
pub const EVENT_PAGEFAULT: u8 = 0x12;
/// The access was a write.
pub const FAULT_WRITE: u64 = 1;

const _: () = {
    assert!(size_of::<UffdioApi>() == 24);
    assert!(size_of::<UffdioRegister>() == 32);
    assert!(size_of::<UffdioCopy>() == 40 && size_of::<UffdioMove>() == 40);
    assert!(size_of::<UffdioWriteprotect>() == 24);
    assert!(size_of::<Msg>() == 32);
    assert!(offset_of!(Msg, address) == 16);
    assert!(offset_of!(UffdioCopy, copy) == 32);
    assert!(offset_of!(UffdioMove, moved) == 32);
    assert!(iowr(0x3f, size_of::<UffdioApi>()) == 0xc018_aa3f);
    assert!(iowr(0x03, size_of::<UffdioCopy>()) == 0xc028_aa03);
    assert!(iowr(0x05, size_of::<UffdioMove>()) == 0xc028_aa05);
    assert!(IOC_REGISTER == 0xc020_aa00 && IOC_WRITEPROTECT == 0xc018_aa06);
    assert!(IOC_UNREGISTER == 0x8010_aa01 && IOC_WAKE == 0x8010_aa02);
};

const IOC_API: usize = iowr(0x3f, size_of::<UffdioApi>());
const IOC_REGISTER: usize = iowr(0x00, size_of::<UffdioRegister>());
const IOC_UNREGISTER: usize = ior(0x01, size_of::<UffdioRange>());
const IOC_WAKE: usize = ior(0x02, size_of::<UffdioRange>());
/// The request number of UFFDIO_COPY.
pub const IOC_COPY: usize = iowr(0x03, size_of::<UffdioCopy>());
const IOC_MOVE: usize = iowr(0x05, size_of::<UffdioMove>());
const IOC_WRITEPROTECT: usize = iowr(0x06, size_of::<UffdioWriteprotect>());
/// `USERFAULTFD_IOC_NEW` on /dev/userfaultfd.
const DEV_NEW: usize = 0xaa00;

const REGISTER_MISSING: u64 = 1;
const REGISTER_WP: u64 = 2;

/// A userfaultfd, by the number of its descriptor, which is not closed when this is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Uffd(pub i32);

/// How a copy or move ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partial {
    /// Bytes that were done before it stopped.
    pub done_bytes: usize,
    /// Why it stopped early, if it did.
    pub stopped: Option<Errno>,
}

impl Uffd {
    /// Opens by the system call. `user_mode_only` needs no privilege.
    pub fn open_syscall(user_mode_only: bool) -> Result<Uffd, Errno> {
        let flags = libc::O_CLOEXEC as usize
            | libc::O_NONBLOCK as usize
            | if user_mode_only { USER_MODE_ONLY } else { 0 };
        // SAFETY: creates a descriptor, touches no memory.
        unsafe { sys1(libc::SYS_userfaultfd, flags) }.map(|fd| Uffd(fd as i32))
    }
    /// Opens by /dev/userfaultfd (needs access to that file).
    pub fn open_device() -> Result<Uffd, Errno> {
        let path = c"/dev/userfaultfd";
        // SAFETY: the kernel reads the path, which lives; the ioctl's argument is a number.
        unsafe {
            let dev = sys3(
                libc::SYS_openat,
                libc::AT_FDCWD as usize,
                path.as_ptr() as usize,
                (libc::O_RDWR | libc::O_CLOEXEC) as usize,
            )?;
            let fd = sys3(
                libc::SYS_ioctl,
                dev,
                DEV_NEW,
                (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize,
            );
            let _ = sys1(libc::SYS_close, dev);
            fd.map(|fd| Uffd(fd as i32))
        }
    }
    /// Performs the handshake; returns the features that the kernel has.
    pub fn api(self, features: u64) -> Result<u64, Errno> {
        let mut a = UffdioApi {
            api: API,
            features,
            ioctls: 0,
        };
        // SAFETY: the kernel reads and writes `a` only.
        unsafe {
            sys3(
                libc::SYS_ioctl,
                self.0 as usize,
                IOC_API,
                &raw mut a as usize,
            )
        }?;
        Ok(a.features)
    }
    /// Registers a range for missing (and, with `wp`, write-protect) faults.
    ///
    /// # Safety
    ///
    /// The range must be the caller's: from now on a touch of an absent page there waits, or raises a signal, until
    /// somebody resolves it.
    pub unsafe fn register(self, addr: usize, bytes: usize, wp: bool) -> Result<u64, Errno> {
        let mode = REGISTER_MISSING | if wp { REGISTER_WP } else { 0 };
        let mut r = UffdioRegister {
            range: UffdioRange {
                start: addr as u64,
                len: bytes as u64,
            },
            mode,
            ioctls: 0,
        };
        // SAFETY: the kernel reads and writes `r` only; for the range the caller answers.
        unsafe {
            sys3(
                libc::SYS_ioctl,
                self.0 as usize,
                IOC_REGISTER,
                &raw mut r as usize,
            )
        }?;
        Ok(r.ioctls)
    }
    /// Returns faults of a range to the kernel; pages there lose their write protection.
    ///
    /// # Safety
    ///
    /// The range must be the caller's: from now on its absent pages read as zeros, and writes that somebody counts on to
    /// fault do not.
    pub unsafe fn unregister(self, addr: usize, bytes: usize) -> Result<(), Errno> {
        let r = UffdioRange {
            start: addr as u64,
            len: bytes as u64,
        };
        // SAFETY: the kernel reads `r` only; for the range the caller answers.
        unsafe {
            sys3(
                libc::SYS_ioctl,
                self.0 as usize,
                IOC_UNREGISTER,
                &raw const r as usize,
            )
        }
        .map(|_| ())
    }
    /// Fills absent pages at `dst` with the bytes at `src`, atomically page by page, write-protected from the start if
    /// `protect`.
    ///
    /// # Safety
    ///
    /// `src..src+bytes` must be readable and present; `dst` must be a registered range whose absent pages the caller
    /// owns.
    #[inline]
    pub unsafe fn copy(self, dst: usize, src: usize, bytes: usize, protect: bool) -> Partial {
        let mut c = UffdioCopy {
            dst: dst as u64,
            src: src as u64,
            len: bytes as u64,
            mode: if protect { COPY_MODE_WP } else { 0 },
            copy: 0,
        };
        // SAFETY: the kernel reads and writes `c`; for both ranges the caller answers.
        match unsafe {
            sys3(
                libc::SYS_ioctl,
                self.0 as usize,
                IOC_COPY,
                &raw mut c as usize,
            )
        } {
            Ok(_) => Partial {
                done_bytes: bytes,
                stopped: None,
            },
            Err(e) => Partial {
                done_bytes: if c.copy > 0 { c.copy as usize } else { 0 },
                stopped: Some(e),
            },
        }
    }
    /// Moves present pages at `src` to absent ones at `dst`, in order; the source is absent afterwards. Since Linux
    /// 6.8, and not for pages that a fork shares.
    ///
    /// # Safety
    ///
    /// Both ranges must be registered, and the caller's: nobody else reads, fills or discards pages of them meanwhile.
    pub unsafe fn move_pages(self, dst: usize, src: usize, bytes: usize) -> Partial {
        let mut m = UffdioMove {
            dst: dst as u64,
            src: src as u64,
            len: bytes as u64,
            mode: 0,
            moved: 0,
        };
        // SAFETY: the kernel reads and writes `m`; for both ranges the caller answers.
        let r = unsafe {
            sys3(
                libc::SYS_ioctl,
                self.0 as usize,
                IOC_MOVE,
                &raw mut m as usize,
            )
        };
        match r {
            Ok(_) => Partial {
                done_bytes: bytes,
                stopped: None,
            },
            Err(e) => Partial {
                done_bytes: usize::try_from(m.moved).unwrap_or(0),
                stopped: Some(e),
            },
        }
    }
    /// Write-protects (or releases) the present pages of a range, with one TLB flush.
    ///
    /// # Safety
    ///
    /// The range must be the caller's: from now on a write there faults until it is released, and a write that somebody
    /// counts on to fault does not once it is.
    #[inline]
    pub unsafe fn write_protect(
        self,
        addr: usize,
        bytes: usize,
        protect: bool,
    ) -> Result<(), Errno> {
        let mut w = UffdioWriteprotect {
            range: UffdioRange {
                start: addr as u64,
                len: bytes as u64,
            },
            mode: protect as u64,
        };
        loop {
            // SAFETY: the kernel reads and writes `w`, and changes only whether writes fault in a range for which the
            // caller answers.
            match unsafe {
                sys3(
                    libc::SYS_ioctl,
                    self.0 as usize,
                    IOC_WRITEPROTECT,
                    &raw mut w as usize,
                )
            } {
                Ok(_) => return Ok(()),
                Err(Errno(libc::EAGAIN)) | Err(Errno(libc::EINTR)) => crate::gate::yield_now(),
                Err(e) => return Err(e),
            }
        }
    }
    /// Wakes threads that wait for a fault in the range (thread mode).
    pub fn wake(self, addr: usize, bytes: usize) {
        let mut r = UffdioRange {
            start: addr as u64,
            len: bytes as u64,
        };
        // SAFETY: the kernel reads `r` only; a thread that it wakes repeats its access.
        let _ = unsafe {
            sys3(
                libc::SYS_ioctl,
                self.0 as usize,
                IOC_WAKE,
                &raw mut r as usize,
            )
        };
    }
    /// Reads one message; `Err(EAGAIN)` if there is none.
    pub fn read(self, msg: &mut Msg) -> Result<(), Errno> {
        // SAFETY: the kernel writes at most one message into `msg`.
        unsafe {
            sys3(
                libc::SYS_read,
                self.0 as usize,
                &raw mut *msg as usize,
                size_of::<Msg>(),
            )
        }
        .map(|_| ())
    }
    /// Closes the descriptor.
    pub fn close(self) {
        crate::proc::close(self.0);
    }
}

/// What this kernel permits for this user.
#[derive(Clone, Copy, Debug, Default)]
pub struct Probe {
    /// Error of opening for user-mode faults; 0 if it works.
    pub user_mode_errno: i32,
    /// Error of opening by system call for all faults; 0 if it works.
    pub full_errno: i32,
    /// Error of opening /dev/userfaultfd; 0 if it works.
    pub device_errno: i32,
    /// Features that the kernel offers (0 if nothing could be opened).
    pub features: u64,
}

/// Tries each way to open a userfaultfd.
pub fn probe() -> Probe {
    let mut p = Probe::default();
    let mut take = |r: Result<Uffd, Errno>| match r {
        Ok(u) => {
            if p.features == 0 {
                p.features = u.api(0).unwrap_or(0);
            }
            u.close();
            0
        }
        Err(e) => e.0,
    };
    p.user_mode_errno = take(Uffd::open_syscall(true));
    p.full_errno = take(Uffd::open_syscall(false));
    p.device_errno = take(Uffd::open_device());
    p
}

/// Moves a descriptor to `at_least` or above, with close-on-exec if `cloexec`.
pub fn move_fd(fd: i32, at_least: i32, cloexec: bool) -> Result<i32, Errno> {
    let cmd = if cloexec {
        libc::F_DUPFD_CLOEXEC
    } else {
        libc::F_DUPFD
    };
    // SAFETY: neither call takes an address.
    unsafe {
        let new = sys3(
            libc::SYS_fcntl,
            fd as usize,
            cmd as usize,
            at_least as usize,
        )?;
        let _ = sys2(libc::SYS_close, fd as usize, 0);
        Ok(new as i32)
    }
}
