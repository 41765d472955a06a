//! What the kernel reports about a file.

use crate::gate::{Errno, sys2, sys4};
use core::ffi::CStr;
use core::mem::MaybeUninit;

/// Identifies a file and its state: device, inode, size, and the times of its last change of content and of anything
/// (seconds, then nanoseconds).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileState(pub [u64; 7]);

impl FileState {
    /// Its size.
    pub fn bytes(&self) -> usize {
        self.0[2] as usize
    }
}

fn stat(directory: usize, path: &CStr, flags: i32) -> Result<FileState, Errno> {
    let mut s = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the path lives across the call; the kernel writes `s` only.
    unsafe {
        sys4(
            libc::SYS_newfstatat,
            directory,
            path.as_ptr() as usize,
            s.as_mut_ptr() as usize,
            flags as usize,
        )?;
    }
    // SAFETY: a structure of numbers, which the kernel has written over zeros.
    let s = unsafe { s.assume_init() };
    Ok(FileState([
        s.st_dev,
        s.st_ino,
        s.st_size as u64,
        s.st_mtime as u64,
        s.st_mtime_nsec as u64,
        s.st_ctime as u64,
        s.st_ctime_nsec as u64,
    ]))
}

/// The state of the file behind a descriptor.
pub fn state(fd: i32) -> Result<FileState, Errno> {
    stat(fd as usize, c"", libc::AT_EMPTY_PATH)
}

/// The state of the file at a path.
pub fn state_of(path: &CStr) -> Result<FileState, Errno> {
    stat(libc::AT_FDCWD as usize, path, 0)
}

/// The seals of a memory file.
pub fn seals(fd: i32) -> Result<i32, Errno> {
    // SAFETY: this command takes no address.
    unsafe { sys2(libc::SYS_fcntl, fd as usize, libc::F_GET_SEALS as usize) }.map(|s| s as i32)
}
