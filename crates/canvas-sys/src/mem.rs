//! Maps memory for canvas's own use, and advises about it.

use crate::gate::{Errno, sys2, sys3, sys6};

/// Maps private anonymous memory that is not charged until touched. `addr` 0 lets the kernel choose; any other address
/// is required (and must be free).
pub fn map_lazy(addr: usize, bytes: usize, prot: i32) -> Result<usize, Errno> {
    let fixed = if addr == 0 {
        0
    } else {
        libc::MAP_FIXED_NOREPLACE
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: never replaces an existing mapping.
    unsafe {
        sys6(
            libc::SYS_mmap,
            addr,
            bytes,
            prot as usize,
            flags as usize,
            usize::MAX,
            0,
        )
    }
}

/// To read and to write.
pub const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Maps `bytes` of a file from `offset` on, shared, anywhere.
pub fn map_shared(fd: i32, offset: usize, bytes: usize, prot: i32) -> Result<usize, Errno> {
    let (prot, flags) = (prot as usize, libc::MAP_SHARED as usize);
    // SAFETY: never replaces an existing mapping.
    unsafe { sys6(libc::SYS_mmap, 0, bytes, prot, flags, fd as usize, offset) }
}

/// Maps `bytes` of a file from `offset` on, private, anywhere.
pub fn map_file(fd: i32, offset: usize, bytes: usize, prot: i32) -> Result<usize, Errno> {
    let (prot, flags) = (prot as usize, libc::MAP_PRIVATE as usize);
    // SAFETY: never replaces an existing mapping.
    unsafe { sys6(libc::SYS_mmap, 0, bytes, prot, flags, fd as usize, offset) }
}

/// Maps `bytes` of a file from `offset` on, private, replacing what is at `addr`.
///
/// # Safety
///
/// What is at `addr` is the caller's to replace: nothing may rely on it but on what the file has there.
pub unsafe fn map_file_over(
    addr: usize,
    fd: i32,
    offset: usize,
    bytes: usize,
    prot: i32,
) -> Result<(), Errno> {
    let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED) as usize;
    // SAFETY: the caller's promise.
    unsafe {
        sys6(
            libc::SYS_mmap,
            addr,
            bytes,
            prot as usize,
            flags,
            fd as usize,
            offset,
        )
    }
    .map(|_| ())
}

/// Where [`map_code`] puts its code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// At this address, which must be free.
    Free(usize),
    /// Replacing what is at this address.
    Over(usize),
}

/// Maps a copy of `code` that can be executed and not written. It never was both, so policies that forbid that
/// (PR_SET_MDWE, systemd's MemoryDenyWriteExecute=) permit it.
///
/// # Safety
///
/// What [`Place::Over`] replaces must be the caller's to replace: code that runs there finds the same in the copy.
pub unsafe fn map_code(place: Place, code: &[u8]) -> Result<(), Errno> {
    /// Flag of memfd_create(2) for executable files. Kernels before 6.3 refuse it, and allow execution without it.
    const MFD_EXEC: usize = 0x10;
    let (name, flags) = (c"canvas-code".as_ptr() as usize, libc::MFD_CLOEXEC as usize);
    // SAFETY: the name lives across the calls.
    let create = |more| unsafe { sys2(libc::SYS_memfd_create, name, flags | more) };
    let fd = create(MFD_EXEC).or_else(|_| create(0))?;
    let mut done = 0;
    let mapped = loop {
        let rest = &code[done..];
        if rest.is_empty() {
            let (at, fixed) = match place {
                Place::Free(at) => (at, libc::MAP_FIXED_NOREPLACE),
                Place::Over(at) => (at, libc::MAP_FIXED),
            };
            let prot = (libc::PROT_READ | libc::PROT_EXEC) as usize;
            let flags = (libc::MAP_PRIVATE | fixed) as usize;
            // SAFETY: replaces nothing, or what the caller has promised.
            let mapped = unsafe { sys6(libc::SYS_mmap, at, code.len(), prot, flags, fd, 0) };
            break mapped.and_then(|there| {
                // Before Linux 4.17 the address is only a hint.
                (there == at).then_some(()).ok_or(Errno(libc::EEXIST))
            });
        }
        // SAFETY: the kernel only reads the code.
        match unsafe { sys3(libc::SYS_write, fd, rest.as_ptr() as usize, rest.len()) } {
            Ok(n) => done += n,
            Err(Errno(libc::EINTR)) => {}
            Err(e) => break Err(e),
        }
    };
    crate::proc::close(fd as i32);
    mapped
}

/// `madvise`.
///
/// # Safety
///
/// MADV_DONTNEED and its like discard contents: the range must hold nothing that is still used.
pub unsafe fn advise(addr: usize, bytes: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { sys3(libc::SYS_madvise, addr, bytes, advice as usize) }.map(|_| ())
}

/// `mprotect`.
///
/// # Safety
///
/// Code that relies on the range's access must not run on.
pub unsafe fn protect(addr: usize, bytes: usize, prot: i32) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { sys3(libc::SYS_mprotect, addr, bytes, prot as usize) }.map(|_| ())
}

/// `munmap`.
///
/// # Safety
/// Nothing may use the range afterwards.
pub unsafe fn unmap(addr: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { sys2(libc::SYS_munmap, addr, bytes) }.map(|_| ())
}

/// This process itself as a pidfd (Linux 6.14).
const PIDFD_SELF_PROCESS: i32 = -10001;

/// Discards the contents of many ranges with one TLB flush (process_madvise on this process, Linux 6.13). Returns false
/// if the kernel cannot, with none or only some ranges discarded (discarding twice is harmless while the caller owns
/// the pages).
///
/// # Safety
///
/// As [`advise`] with MADV_DONTNEED, for every range.
pub unsafe fn discard_many(pidfd: i32, ranges: &[libc::iovec]) -> bool {
    let want: usize = ranges.iter().map(|r| r.iov_len).sum();
    let fd = if pidfd >= 0 {
        pidfd
    } else {
        PIDFD_SELF_PROCESS
    };
    // SAFETY: the caller's promise.
    let done = unsafe {
        sys6(
            libc::SYS_process_madvise,
            fd as usize,
            ranges.as_ptr() as usize,
            ranges.len(),
            libc::MADV_DONTNEED as usize,
            0,
            0,
        )
    };
    done == Ok(want)
}
