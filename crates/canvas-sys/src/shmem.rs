//! Memory files that several processes map: taking pages out of them through a pipe, and asking what is in them
//! (docs/SHARED.md, Facts).

use crate::gate::{Errno, sys1, sys2, sys3, sys4, sys6};
use crate::{file, proc};

use canvas_types::PAGE_SIZE;

/// Puts pages of a file into a pipe: not copies, the pages themselves. `EAGAIN` if the pipe is full.
pub fn splice(file: i32, offset: usize, bytes: usize, pipe: i32) -> Result<usize, Errno> {
    let mut at = offset as i64;
    // SAFETY: the kernel reads and writes `at` only.
    unsafe {
        sys6(
            libc::SYS_splice,
            file as usize,
            &raw mut at as usize,
            pipe as usize,
            0,
            bytes,
            libc::SPLICE_F_NONBLOCK as usize,
        )
    }
}

/// Removes a part of a file from memory, and from all processes that map it: it reads as zeros from now on.
///
/// # Safety
///
/// Nobody may refer to the part by a reference, nor need what is in it: it changes under every mapping.
pub unsafe fn punch(file: i32, offset: usize, bytes: usize) -> Result<(), Errno> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the caller's promise.
    unsafe {
        sys4(
            libc::SYS_fallocate,
            file as usize,
            mode as usize,
            offset,
            bytes,
        )
    }
    .map(|_| ())
}

/// Bytes that can be read from a pipe.
pub fn readable(pipe: i32) -> Result<usize, Errno> {
    let mut bytes = 0i32;
    // SAFETY: the kernel writes `bytes` only.
    unsafe {
        sys3(
            libc::SYS_ioctl,
            pipe as usize,
            libc::FIONREAD as usize,
            &raw mut bytes as usize,
        )
    }
    .map(|_| bytes as usize)
}

/// Reads all of `buf` from `offset` of a file; returns false if that fails.
pub fn read_at(file: i32, offset: usize, buf: &mut [u8]) -> bool {
    in_full(buf.len(), |done| {
        proc::read_at(file as usize, offset + done, &mut buf[done..])
    })
}

/// Writes all of `buf` to `offset` of a file; returns false if that fails.
pub fn write_at(file: i32, offset: usize, buf: &[u8]) -> bool {
    in_full(buf.len(), |done| {
        let rest = &buf[done..];
        // SAFETY: the kernel reads `buf` only.
        unsafe {
            sys4(
                libc::SYS_pwrite64,
                file as usize,
                rest.as_ptr() as usize,
                rest.len(),
                offset + done,
            )
        }
    })
}

/// Calls `move_on` with the number of bytes done until it reaches `len`; each call returns how many more are done.
fn in_full(len: usize, mut move_on: impl FnMut(usize) -> Result<usize, Errno>) -> bool {
    let mut done = 0;
    while done < len {
        match move_on(done) {
            Ok(n) if n > 0 => done += n,
            Err(Errno(libc::EINTR)) => {}
            _ => return false,
        }
    }
    true
}

/// Whether the page at `offset` is in the file.
pub fn has_page(file: i32, offset: usize) -> Result<bool, Errno> {
    // SAFETY: the call takes no address; it moves the file's position, which nothing here uses.
    match unsafe {
        sys3(
            libc::SYS_lseek,
            file as usize,
            offset,
            libc::SEEK_DATA as usize,
        )
    } {
        Ok(at) => Ok(at < offset + PAGE_SIZE),
        Err(Errno(libc::ENXIO)) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Number of pages in a memory file.
pub fn pages(file: i32) -> Result<u64, Errno> {
    file::stat(file).map(|s| s.st_blocks as u64 / (PAGE_SIZE as u64 / 512))
}

/// Checks that a write which comes after a splice, but before the page is punched, gets into the pipe. On a kernel that
/// copied instead, it would be lost.
pub fn late_writes_are_seen() -> Result<bool, Errno> {
    let mut ends = [0i32; 2];
    // SAFETY: the kernel reads the name, which lives, and writes two numbers to `ends`; close takes no address.
    let file = unsafe {
        let file = sys2(
            libc::SYS_memfd_create,
            c"canvas-probe".as_ptr() as usize,
            libc::MFD_CLOEXEC as usize,
        )? as i32;
        if let Err(e) = sys2(
            libc::SYS_pipe2,
            ends.as_mut_ptr() as usize,
            (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize,
        ) {
            let _ = sys1(libc::SYS_close, file as usize);
            return Err(e);
        }
        file
    };
    let seen = probe_with(file, ends);
    for fd in [file, ends[0], ends[1]] {
        // SAFETY: the call takes no address; the descriptors were opened above.
        let _ = unsafe { sys1(libc::SYS_close, fd as usize) };
    }
    seen
}

fn probe_with(file: i32, ends: [i32; 2]) -> Result<bool, Errno> {
    let mut page = [0xa5u8; PAGE_SIZE];
    let failed = Errno(libc::EIO);
    if !write_at(file, 0, &page) {
        return Err(failed);
    }
    if splice(file, 0, PAGE_SIZE, ends[1])? != PAGE_SIZE {
        return Ok(false);
    }
    if !write_at(file, 1000, &[0x5a; 8]) {
        return Err(failed);
    }
    // SAFETY: nothing maps the file, which the caller has made for this.
    unsafe { punch(file, 0, PAGE_SIZE) }?;
    let mut done = 0;
    while done < PAGE_SIZE {
        done += proc::read(ends[0] as usize, &mut page[done..])?;
    }
    let right = |i: usize| {
        if (1000..1008).contains(&i) {
            0x5a
        } else {
            0xa5
        }
    };
    Ok(page.iter().enumerate().all(|(i, b)| *b == right(i)) && !has_page(file, 0)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_shows_late_writes() {
        assert_eq!(late_writes_are_seen(), Ok(true));
    }
}
