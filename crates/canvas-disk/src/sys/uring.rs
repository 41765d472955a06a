//! io_uring(7), as far as a driver's commands need it: one thread submits them and waits for them.

use core::sync::atomic::Ordering;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use canvas_sys::{Errno, mem, sys2, sys6};
use nix::libc;

use super::mapping::Mapping;

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
pub struct Completion {
    pub user: u64,
    pub result: i32,
}

/// Submissions and completions.
pub struct Ring {
    submissions: Mapping,
    rings: Mapping,
    sq: SubmissionRing,
    cq: CompletionRing,
    entries: u32,
    /// Submissions that the kernel has not been told about.
    new: u32,
    fd: OwnedFd,
}

impl Ring {
    /// Creates a ring for `entries` commands that are not yet submitted.
    pub fn new(entries: u32) -> Result<Ring, Errno> {
        let mut params = Params {
            flags: SETUP_SQE128,
            ..Params::default()
        };
        let at = &raw mut params as usize;
        // SAFETY: the kernel reads and writes `params` only; the descriptor is new, so nobody else's.
        let fd = unsafe {
            let fd = sys2(libc::SYS_io_uring_setup, entries as usize, at)?;
            OwnedFd::from_raw_fd(fd as i32)
        };
        if params.features & FEAT_SINGLE_MMAP == 0 {
            return Err(Errno(libc::ENOSYS));
        }
        let (sq, cq, entries) = (params.sq, params.cq, params.sq_entries);
        let sq_end = sq.array as usize + 4 * entries as usize;
        let cq_end = cq.completions as usize + COMPLETION * params.cq_entries as usize;
        let map = |at, bytes| Mapping::shared(fd.as_raw_fd(), at, bytes, mem::READ_WRITE);
        Ok(Ring {
            submissions: map(SUBMISSIONS_AT, SUBMISSION * entries as usize)?,
            rings: map(RINGS_AT, sq_end.max(cq_end))?,
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
    pub unsafe fn push<const N: usize>(
        &mut self,
        file: &OwnedFd,
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
        bytes[4..8].copy_from_slice(&file.as_raw_fd().to_ne_bytes());
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
    pub fn submit(&mut self, wait_for: u32) -> Result<(), Errno> {
        loop {
            let (fd, new) = (self.fd.as_raw_fd() as usize, self.new as usize);
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
    pub fn pop(&mut self) -> Option<Completion> {
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
        let null = std::fs::File::options().write(true).open("/dev/null");
        let null = OwnedFd::from(null.unwrap());
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
        let same = ring.fd.try_clone().unwrap();
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
