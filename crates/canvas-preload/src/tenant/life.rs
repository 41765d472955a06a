//! Shows others that this process lives ([`canvas_shm::lives`]): its memory maps the segment's file through an open
//! file description made for one lock, which the kernel releases together with that memory.

use canvas_shm::ProcSlot;
use canvas_shm::lives::{NUMBERS, is_identity, map_offset};
use canvas_sys::lock::{self, Holder};
use canvas_sys::{Errno, descriptors, mem, proc};
use canvas_types::PAGE_SIZE;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::runtime::{fds, fds::Fd, lines::Lines, state};

state! {
    /// By what others see that this process lives.
    static LIFE: Life {
        /// This process's identity.
        id: AtomicU64 = AtomicU64::new(0),
        /// Identity of the child of the fork in progress.
        child: AtomicU64 = AtomicU64::new(0),
        /// Address at which the file of that child's lock is mapped; 0 for none.
        child_at: AtomicUsize = AtomicUsize::new(0),
        /// The child of the last fork, if this process has locked its byte on its behalf; else 0.
        locked_for: AtomicU64 = AtomicU64::new(0),
    }
}

/// In the child: takes on its own identity.
pub fn after_fork_in_child() {
    let (id, at) = (
        LIFE.child.load(Ordering::Relaxed),
        LIFE.child_at.swap(0, Ordering::Relaxed),
    );
    LIFE.id.store(id, Ordering::Relaxed);
    LIFE.locked_for.store(0, Ordering::Relaxed);
    if at == 0
        && let Ok(fd) = segment()
    {
        let _ = lock::hold_with_process(fd, id);
    }
    not_for_children(at);
    note_number();
}

/// This process's identity.
pub fn id() -> u64 {
    LIFE.id.load(Ordering::Relaxed)
}

fn segment() -> Result<i32, Errno> {
    fds::get(Fd::Segment).ok_or(Errno(libc::EBADF))
}

/// Draws an identity and locks its byte; returns the address of the mapping that holds the lock. Without /proc the file
/// cannot be opened a second time: then this process holds the lock itself, and the address is 0.
fn make() -> Result<(u64, usize), Errno> {
    let fd = segment()?;
    let id = state::seg().draw_identity();
    let path = proc::path_of_own(b"fd", fd);
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno(libc::EINVAL))?;
    let at = descriptors::with_room(|| proc::File::open(path)).and_then(|file| {
        let fd = file.fd() as i32;
        lock::hold_with_file(fd, id)?;
        // Only to keep the file open.
        mem::map_shared(fd, map_offset(id), PAGE_SIZE, libc::PROT_NONE)
    });
    // Closing the file has released the locks that this process itself held on it.
    note_number();
    match at {
        Ok(at) => Ok((id, at)),
        Err(Errno(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => Err(Errno(libc::EAGAIN)),
        Err(_) => lock::hold_with_process(fd, id).map(|()| (id, 0)),
    }
}

/// Publishes this process's number.
fn note_number() {
    if let (Ok(fd), id @ 1..) = (segment(), id()) {
        // Failure affects only what is shown, and which process measures which.
        let _ = lock::hold_with_process(fd, NUMBERS + id);
    }
}

fn not_for_children(at: usize) {
    if at != 0 {
        // SAFETY: the mapping that `make` made, in which nothing is read; the advice changes only what a fork copies.
        let _ = unsafe { mem::advise(at, PAGE_SIZE, libc::MADV_DONTFORK) };
    }
}

/// Whether an earlier image of this process was managed. The lock of its number survives exec, and fdinfo in /proc
/// lists the locks of this process.
fn had_number(fd: i32) -> bool {
    let path = proc::path_of_own(b"fdinfo", fd);
    let Some(mut lines) = CStr::from_bytes_until_nul(&path)
        .ok()
        .and_then(Lines::open_file)
    else {
        return false;
    };
    let mut had = false;
    lines.each(|line| {
        let mut words = line.rsplit(|b| *b == b' ');
        let first = words.nth(1).and_then(|w| core::str::from_utf8(w).ok());
        let byte = first.and_then(|w| w.parse::<u64>().ok());
        had |= line.starts_with(b"lock:") && byte.is_some_and(|byte| byte >= NUMBERS);
    });
    had
}

/// Begins an image's life; returns false if an earlier image of this process was managed.
pub fn begin() -> Result<bool, Errno> {
    let is_new = !had_number(segment()?);
    lock::give_up(segment()?, 0, 0);
    let (id, at) = make()?;
    not_for_children(at);
    LIFE.id.store(id, Ordering::Relaxed);
    note_number();
    Ok(is_new)
}

/// Makes the child's identity, in the parent just before a fork. The identity counts as living from now on.
pub fn before_fork() -> Result<u64, Errno> {
    let (id, at) = make()?;
    // The previous child has a lock of its own by now, or has ended.
    let locked = if at == 0 { id } else { 0 };
    if let last @ 1.. = LIFE.locked_for.swap(locked, Ordering::Relaxed) {
        lock::give_up(segment()?, last, 1);
    }
    LIFE.child.store(id, Ordering::Relaxed);
    LIFE.child_at.store(at, Ordering::Relaxed);
    Ok(id)
}

/// In the parent after a fork: the child keeps its lock itself, if there is a child.
pub fn after_fork_in_parent() {
    let at = LIFE.child_at.swap(0, Ordering::Relaxed);
    if at != 0 {
        // SAFETY: `before_fork` mapped it, in which nothing is read, and nobody else has its address (`swap`).
        let _ = unsafe { mem::unmap(at, PAGE_SIZE) };
    }
}

/// Whether it is certain that no process with this identity has any memory left.
pub fn is_gone(id: u64) -> bool {
    if !is_identity(id) {
        return true;
    }
    segment().is_ok_and(|fd| lock::is_held(fd, id) == Ok(false))
}

/// The number of a process as seen from here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// This one, if /proc belongs to our PID namespace.
    Here(u32),
    /// The process is ending, or has just started.
    None,
    /// The process lives, but has no number that is known here.
    Elsewhere,
}

/// The number of the process with this slot.
pub fn number(slot: &ProcSlot) -> Number {
    let (Some(id), Ok(fd)) = (slot.identity(), segment()) else {
        return Number::None;
    };
    match lock::holder(fd, NUMBERS + id % NUMBERS) {
        Ok(Holder::Process(number)) => Number::Here(number),
        Ok(Holder::Nobody) => Number::None,
        _ => Number::Elsewhere,
    }
}
