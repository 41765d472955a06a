//! What the kernel reports about a file.

use crate::gate::{Errno, sys2, sys4};
use core::ffi::CStr;
use core::mem::MaybeUninit;

/// What `call` writes to the address that it gets.
///
/// # Safety
///
/// If `call` succeeds, it has written nothing, or a `stat`.
unsafe fn written(call: impl FnOnce(usize) -> Result<usize, Errno>) -> Result<libc::stat, Errno> {
    let mut s = MaybeUninit::<libc::stat>::zeroed();
    call(s.as_mut_ptr() as usize)?;
    // SAFETY: zeros are valid, and so is what the call wrote: the caller's promise.
    Ok(unsafe { s.assume_init() })
}

/// About the file behind a descriptor.
pub fn stat(fd: i32) -> Result<libc::stat, Errno> {
    // SAFETY: the kernel writes one `stat`.
    unsafe { written(|to| sys2(libc::SYS_fstat, fd as usize, to)) }
}

/// As [`stat`], by the call that glibc 2.33 to 2.38 make for it: where a program's seccomp filter may be in force.
pub fn stat_filtered(fd: i32) -> Result<libc::stat, Errno> {
    let (empty, flags) = (c"".as_ptr() as usize, libc::AT_EMPTY_PATH as usize);
    stat_at(fd as usize, empty, flags)
}

/// About the file at a path, by its address, as for `newfstatat`. A bad address is an error.
pub fn stat_at(dir: usize, path: usize, flags: usize) -> Result<libc::stat, Errno> {
    // SAFETY: the kernel reads the path itself, and answers EFAULT where it cannot; it writes one `stat`.
    unsafe { written(|to| sys4(libc::SYS_newfstatat, dir, path, to, flags)) }
}

/// About the file at a path.
pub fn stat_of(path: &CStr) -> Result<libc::stat, Errno> {
    stat_at(libc::AT_FDCWD as usize, path.as_ptr() as usize, 0)
}

/// Which file it is: device and inode.
pub fn which(s: libc::stat) -> (u64, u64) {
    (s.st_dev, s.st_ino)
}

/// The seals of a memory file.
pub fn seals(fd: i32) -> Result<i32, Errno> {
    // SAFETY: this command takes no address.
    unsafe { sys2(libc::SYS_fcntl, fd as usize, libc::F_GET_SEALS as usize) }.map(|s| s as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_a_kind_and_a_user() {
        let root = stat_of(c"/").unwrap();
        assert_eq!(
            (root.st_mode & libc::S_IFMT, root.st_uid),
            (libc::S_IFDIR, 0)
        );
        let null = stat_of(c"/dev/null").unwrap();
        assert_eq!(null.st_mode & libc::S_IFMT, libc::S_IFCHR);
        assert_eq!(null.st_rdev, libc::makedev(1, 3));
        let why = |s: Result<libc::stat, Errno>| s.err();
        assert_eq!(why(stat_of(c"/no/such/file")), Some(Errno(libc::ENOENT)));
        let bad = stat_at(libc::AT_FDCWD as usize, 16, 0);
        assert_eq!(why(bad), Some(Errno(libc::EFAULT)));
        assert_eq!(why(stat(-1)), Some(Errno(libc::EBADF)));
        let own = stat_of(c"/proc/self").unwrap();
        assert_eq!(own.st_uid, crate::proc::user());
    }
}
