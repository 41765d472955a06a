//! io_uring(7), as far as a driver's commands need it: one thread submits them and waits for them.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::gate::{Errno, sys1, sys2, sys6};
use crate::mem;

/// Submissions of 128 bytes, 80 of which are the command's own.
const SETUP_SQE128: u32 = 1 << 10;
/// Both rings lie in one mapping (Linux 5.4).
const FEAT_SINGLE_MMAP: u32 = 1;
const ENTER_GETEVENTS: usize = 1;
const OP_URING_CMD: u8 = 46;
/// Offsets at which the kernel lets the rings and the submissions be mapped.
const RINGS_AT: usize = 0;
const SUBMISSIONS_AT: usize = 0x1000_0000;
const SUBMISSION: usize = 128;
const COMPLETION: usize = 16;
/// Offset of the command in a submission.
const COMMAND_AT: usize = 48;

/// A descriptor that is closed when dropped.
pub(crate) struct Fd(i32);

impl Fd {
    /// Wraps a descriptor that has no other owner.
    pub(crate) fn new(fd: usize) -> Fd {
        Fd(fd as i32)
    }
    /// Its number.
    pub(crate) fn number(&self) -> i32 {
        self.0
    }
    /// Duplicates the descriptor.
    pub(crate) fn again(&self) -> Result<Fd, Errno> {
        let (fd, command) = (self.0 as usize, libc::F_DUPFD_CLOEXEC as usize);
        // SAFETY: the call takes no address.
        unsafe { crate::gate::sys3(libc::SYS_fcntl, fd, command, 0) }.map(Fd::new)
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the call takes no address; the descriptor has no other owner.
        let _ = unsafe { sys1(libc::SYS_close, self.0 as usize) };
    }
}

/// A mapping that is unmapped when dropped.
pub(crate) struct Map {
    addr: usize,
    bytes: usize,
}

impl Map {
    /// Maps a part of a file, shared.
    pub(crate) fn shared(fd: &Fd, offset: usize, bytes: usize, prot: i32) -> Result<Map, Errno> {
        let (flags, fd) = (libc::MAP_SHARED as usize, fd.number() as usize);
        // SAFETY: without MAP_FIXED the call replaces no mapping.
        let addr = unsafe { sys6(libc::SYS_mmap, 0, bytes, prot as usize, flags, fd, offset) }?;
        Ok(Map { addr, bytes })
    }

    /// Maps private memory.
    pub(crate) fn private(bytes: usize) -> Result<Map, Errno> {
        let addr = mem::map_lazy(0, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(Map { addr, bytes })
    }

    /// Allocates all of it now (Linux 5.14).
    pub(crate) fn take_all(&self) -> Result<(), Errno> {
        // SAFETY: the range is the mapping's; the advice changes no contents.
        unsafe { mem::advise(self.addr, self.bytes, libc::MADV_POPULATE_WRITE) }
    }

    /// The address of `bytes` bytes at an offset.
    ///
    /// # Panics
    ///
    /// If they exceed the mapping.
    pub(crate) fn place(&self, at: usize, bytes: usize) -> usize {
        assert!(at <= self.bytes && bytes <= self.bytes - at);
        self.addr + at
    }

    /// A number in the mapping that the kernel also reads or writes.
    fn word(&self, at: u32) -> &AtomicU32 {
        let place = self.place(at as usize, 4);
        assert!(place.is_multiple_of(4));
        // SAFETY: it lies in the mapping (`place`), which lives as long as `self`, on a multiple of 4; any bits are a
        // number, and this process accesses the rings' numbers by atomics only.
        unsafe { &*core::ptr::with_exposed_provenance(place) }
    }

    /// Reads a value that the kernel has written.
    ///
    /// # Safety
    ///
    /// Any bits must be a `T`, and the kernel must not write to it meanwhile.
    pub(crate) unsafe fn read<T: Copy>(&self, at: usize) -> T {
        let place = self.place(at, size_of::<T>());
        // SAFETY: it lies in the mapping (`place`); what lies there is a `T` at rest, the caller's promise.
        unsafe { core::ptr::with_exposed_provenance::<T>(place).read_unaligned() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: references into the mapping borrow from `self`, so none is left; nobody else knows it.
        let _ = unsafe { mem::unmap(self.addr, self.bytes) };
    }
}

/// Offsets of the kernel's numbers of a ring (io_sqring_offsets; io_cqring_offsets has `array` as `cqes`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SubmissionRing {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    reserved: u32,
    address: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CompletionRing {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    overflow: u32,
    completions: u32,
    flags: u32,
    reserved: u32,
    address: u64,
}

/// io_uring_params.
#[repr(C)]
#[derive(Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    thread: [u32; 2],
    features: u32,
    wq: u32,
    reserved: [u32; 3],
    sq: SubmissionRing,
    cq: CompletionRing,
}
const _: () = assert!(size_of::<SubmissionRing>() == 40 && size_of::<CompletionRing>() == 40);
const _: () = assert!(size_of::<Params>() == 120);

/// A command that ended: the value it was submitted with, and the kernel's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Completion {
    pub(crate) user: u64,
    pub(crate) result: i32,
}

/// Submissions and completions.
pub(crate) struct Ring {
    submissions: Map,
    rings: Map,
    sq: SubmissionRing,
    cq: CompletionRing,
    entries: u32,
    /// Submissions that the kernel has not been told about.
    new: u32,
    fd: Fd,
}

impl Ring {
    /// Creates a ring for `entries` commands that are not yet submitted.
    pub(crate) fn new(entries: u32) -> Result<Ring, Errno> {
        let mut params = Params {
            flags: SETUP_SQE128,
            ..Params::default()
        };
        let at = &raw mut params as usize;
        // SAFETY: the kernel reads and writes `params` only.
        let fd = Fd::new(unsafe { sys2(libc::SYS_io_uring_setup, entries as usize, at) }?);
        if params.features & FEAT_SINGLE_MMAP == 0 {
            return Err(Errno(libc::ENOSYS));
        }
        let (sq, cq, entries) = (params.sq, params.cq, params.sq_entries);
        let sq_end = sq.array as usize + 4 * entries as usize;
        let cq_end = cq.completions as usize + COMPLETION * params.cq_entries as usize;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let rings = Map::shared(&fd, RINGS_AT, sq_end.max(cq_end), prot)?;
        let bytes = SUBMISSION * entries as usize;
        Ok(Ring {
            submissions: Map::shared(&fd, SUBMISSIONS_AT, bytes, prot)?,
            rings,
            sq,
            cq,
            entries,
            new: 0,
            fd,
        })
    }

    /// Adds a driver's command, which the next wait submits. `N` is at most 80.
    ///
    /// # Safety
    ///
    /// The command must not break memory safety: what the driver reads and writes by it must stay, and be used by
    /// nobody else meanwhile.
    ///
    /// # Panics
    ///
    /// If more commands are added than the ring was made for.
    pub(crate) unsafe fn push<const N: usize>(
        &mut self,
        file: &Fd,
        operation: u32,
        command: &[u8; N],
        user: u64,
    ) {
        const { assert!(COMMAND_AT + N <= SUBMISSION) };
        let tail = self.rings.word(self.sq.tail).load(Ordering::Relaxed);
        let head = self.rings.word(self.sq.head).load(Ordering::Acquire);
        assert!(tail.wrapping_sub(head) < self.entries, "the ring is full");
        let index = tail & (self.entries - 1);
        let mut bytes = [0; SUBMISSION];
        bytes[0] = OP_URING_CMD;
        bytes[4..8].copy_from_slice(&file.number().to_ne_bytes());
        bytes[8..12].copy_from_slice(&operation.to_ne_bytes());
        bytes[32..40].copy_from_slice(&user.to_ne_bytes());
        bytes[COMMAND_AT..COMMAND_AT + N].copy_from_slice(command);
        let place = self
            .submissions
            .place(index as usize * SUBMISSION, SUBMISSION);
        // SAFETY: the place lies in the mapping (`place`). The ring has room (asserted), so the kernel does not read
        // there before the tail, stored below, is past it.
        unsafe {
            core::ptr::with_exposed_provenance_mut::<[u8; SUBMISSION]>(place).write(bytes);
        }
        let slot = self.rings.word(self.sq.array + 4 * index);
        slot.store(index, Ordering::Relaxed);
        let next = tail.wrapping_add(1);
        self.rings.word(self.sq.tail).store(next, Ordering::Release);
        self.new += 1;
    }

    /// Submits what was added, and waits until `wait_for` commands have ended.
    pub(crate) fn submit(&mut self, wait_for: u32) -> Result<(), Errno> {
        loop {
            let (fd, new) = (self.fd.number() as usize, self.new as usize);
            let flags = if wait_for > 0 { ENTER_GETEVENTS } else { 0 };
            // SAFETY: no address is passed; for each command that is submitted the caller of `push` answers.
            let done = unsafe {
                sys6(
                    libc::SYS_io_uring_enter,
                    fd,
                    new,
                    wait_for as usize,
                    flags,
                    0,
                    0,
                )
            };
            match done {
                Ok(taken) => {
                    self.new -= taken as u32;
                    if self.new == 0 {
                        return Ok(());
                    }
                }
                Err(Errno(libc::EINTR | libc::EAGAIN)) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// The next command that ended.
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        let head = self.rings.word(self.cq.head).load(Ordering::Relaxed);
        let tail = self.rings.word(self.cq.tail).load(Ordering::Acquire);
        if head == tail {
            return None;
        }
        let mask = self.rings.word(self.cq.mask).load(Ordering::Relaxed);
        let at = self.cq.completions as usize + (head & mask) as usize * COMPLETION;
        // SAFETY: both are numbers. The entry lies before the tail, which the kernel stored after it, and the kernel
        // does not write there again before the head, stored below, is past it.
        let (user, result) = unsafe { (self.rings.read(at), self.rings.read(at + 8)) };
        let next = head.wrapping_add(1);
        self.rings.word(self.cq.head).store(next, Ordering::Release);
        Some(Completion { user, result })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    /// Creates a ring; kernels and containers may refuse it.
    fn ring(entries: u32) -> Option<Ring> {
        match Ring::new(entries) {
            Err(Errno(libc::ENOSYS | libc::EPERM)) => None,
            ring => Some(ring.unwrap()),
        }
    }

    #[test]
    fn commands_that_no_driver_takes_end_with_an_error_each() {
        let Some(mut ring) = ring(4) else {
            return canvas_testing::skip("no io_uring here");
        };
        // SAFETY: the kernel reads the path, which lives.
        let null = unsafe {
            let (path, at) = (c"/dev/null".as_ptr() as usize, libc::AT_FDCWD as usize);
            crate::gate::sys3(libc::SYS_openat, at, path, libc::O_RDWR as usize)
        };
        let null = Fd::new(null.unwrap());
        assert_eq!(ring.pop(), None);
        for turn in 0..10 {
            for user in 0..4 {
                // SAFETY: /dev/null takes no address in a command.
                unsafe { ring.push(&null, 77, &[0; 16], turn * 4 + user) };
            }
            ring.submit(4).unwrap();
            let mut ended: [u64; 4] = core::array::from_fn(|_| {
                let one = ring.pop().unwrap();
                // Since Linux 6.x /dev/null answers commands with 0.
                assert!(one.result <= 0, "{one:?}");
                one.user
            });
            ended.sort_unstable();
            assert_eq!(ended, core::array::from_fn(|i| turn * 4 + i as u64));
            assert_eq!(ring.pop(), None);
        }
    }

    #[test]
    fn no_more_commands_are_added_than_there_is_room_for() {
        let Some(mut ring) = ring(2) else {
            return canvas_testing::skip("no io_uring here");
        };
        let same = ring.fd.again().unwrap();
        let mut push = |user| {
            // SAFETY: the command is never submitted.
            unsafe { ring.push(&same, 0, &[0; 16], user) };
        };
        push(0);
        push(1);
        let third = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| push(2)));
        let said = third.unwrap_err();
        assert_eq!(said.downcast_ref(), Some(&"the ring is full"));
    }
}
