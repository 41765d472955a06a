//! Locks on single bytes of a file (fcntl(2)), which the kernel releases when their holder is gone.

use crate::gate::{Errno, sys3};

fn byte(kind: i32, at: u64, bytes: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: at as i64,
        l_len: bytes,
        l_pid: 0,
    }
}

fn call(fd: i32, command: i32, lock: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: the kernel reads and writes `lock`, which lives across the call.
    unsafe {
        sys3(
            libc::SYS_fcntl,
            fd as usize,
            command as usize,
            &raw mut *lock as usize,
        )
    }
    .map(drop)
}

/// Locks a byte, shared with other such locks, as long as the open file description behind `fd` is open or mapped.
pub fn hold_with_file(fd: i32, at: u64) -> Result<(), Errno> {
    call(fd, libc::F_OFD_SETLK, &mut byte(libc::F_RDLCK, at, 1))
}

/// Locks a byte, shared with other such locks, as long as this process keeps its descriptors and closes none of this
/// file.
pub fn hold_with_process(fd: i32, at: u64) -> Result<(), Errno> {
    call(fd, libc::F_SETLK, &mut byte(libc::F_RDLCK, at, 1))
}

/// Locks a byte for this process alone, as long as it keeps its descriptors and closes none of this file; EAGAIN or
/// EACCES while another process has it.
pub fn take_with_process(fd: i32, at: u64) -> Result<(), Errno> {
    call(fd, libc::F_SETLK, &mut byte(libc::F_WRLCK, at, 1))
}

/// Releases this process's own locks on `bytes` bytes from `at` on; 0 for all.
pub fn give_up(fd: i32, at: u64, bytes: i64) {
    let _ = call(fd, libc::F_SETLK, &mut byte(libc::F_UNLCK, at, bytes));
}

/// Whether the byte is locked.
pub fn is_held(fd: i32, at: u64) -> Result<bool, Errno> {
    let mut lock = byte(libc::F_WRLCK, at, 1);
    call(fd, libc::F_OFD_GETLK, &mut lock)?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

/// The holder of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// None, unless it is the calling process.
    Nobody,
    /// The process with this number in our PID namespace.
    Process(u32),
    /// A process without a number here: in another PID namespace.
    Elsewhere,
}

/// Which process has locked the byte by [`hold_with_process`].
pub fn holder(fd: i32, at: u64) -> Result<Holder, Errno> {
    let mut lock = byte(libc::F_WRLCK, at, 1);
    call(fd, libc::F_GETLK, &mut lock)?;
    Ok(match (i32::from(lock.l_type), lock.l_pid) {
        (libc::F_UNLCK, _) => Holder::Nobody,
        (_, number @ 1..) => Holder::Process(number as u32),
        _ => Holder::Elsewhere,
    })
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_byte_is_held_as_long_as_its_file_is_mapped() {
        let file = tempfile_like();
        let path = std::format!("/proc/self/fd/{}", file.as_raw_fd());
        let own = std::fs::File::open(path).unwrap();
        hold_with_file(own.as_raw_fd(), 7).unwrap();
        let at = crate::mem::map_file(own.as_raw_fd(), 0, 4096, libc::PROT_NONE).unwrap();
        drop(own);
        let held = |at| is_held(file.as_raw_fd(), at);
        assert_eq!((held(7), held(8)), (Ok(true), Ok(false)));
        assert_eq!(holder(file.as_raw_fd(), 7), Ok(Holder::Elsewhere));
        // SAFETY: the mapping made just now, which nothing uses.
        unsafe { crate::mem::unmap(at, 4096) }.unwrap();
        assert_eq!(held(7), Ok(false));
    }

    fn tempfile_like() -> std::fs::File {
        use std::os::fd::FromRawFd;
        // SAFETY: the kernel reads the name, which lives; the new descriptor has no other owner.
        unsafe {
            let name = c"lock".as_ptr() as usize;
            let fd = crate::sys2(libc::SYS_memfd_create, name, 0).unwrap();
            std::fs::File::from_raw_fd(fd as i32)
        }
    }
}
