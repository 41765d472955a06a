//! That this process lives, as others see it ([`canvas_shm::lives`]): its memory maps the segment's file as it was
//! opened for one lock, which the kernel drops with that memory.

use canvas_shm::ProcSlot;
use canvas_shm::lives::{NUMBERS, is_identity, map_offset};
use canvas_sys::lock::{self, Holder};
use canvas_sys::{Errno, descriptors, mem, proc};
use canvas_types::PAGE_SIZE;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::base::{fds, fds::Fd, lines::Lines, state};

/// Who this process is.
static ID: AtomicU64 = AtomicU64::new(0);
/// Who the child of the fork under way is to be, and where its lock's file is mapped (0 for nowhere).
static CHILD: AtomicU64 = AtomicU64::new(0);
static CHILD_AT: AtomicUsize = AtomicUsize::new(0);
/// The child of the last fork, where this process has locked its byte for it; 0 where it has not.
static LOCKED_FOR: AtomicU64 = AtomicU64::new(0);

/// This process's identity.
pub fn id() -> u64 {
    ID.load(Ordering::Relaxed)
}

fn segment() -> Result<i32, Errno> {
    fds::get(Fd::Segment).ok_or(Errno(libc::EBADF))
}

/// Draws an identity and locks its byte: where the file is mapped that holds the lock. Where there is no /proc by
/// which the file could be opened once more, the lock is this process's own, and there is no address.
fn make() -> Result<(u64, usize), Errno> {
    let fd = segment()?;
    let id = state::seg().draw_identity();
    let path = proc::path_of_own(b"fd", fd);
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno(libc::EINVAL))?;
    let at = descriptors::with_room(|| proc::File::open(path)).and_then(|file| {
        lock::hold_with_file(file.fd() as i32, id)?;
        mem::map_file_shared(file.fd() as i32, map_offset(id), PAGE_SIZE)
    });
    // Closing the file has taken away what this process held of it by itself.
    note_number();
    match at {
        Ok(at) => Ok((id, at)),
        Err(Errno(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => Err(Errno(libc::EAGAIN)),
        Err(_) => lock::hold_with_process(fd, id).map(|()| (id, 0)),
    }
}

/// Says what number this process has, to whoever asks.
fn note_number() {
    if let (Ok(fd), id @ 1..) = (segment(), id()) {
        // Nothing depends on it but what is shown, and who is measured by whom.
        let _ = lock::hold_with_process(fd, NUMBERS + id);
    }
}

fn not_for_children(at: usize) {
    if at != 0 {
        // SAFETY: a mapping of ours alone, of which nothing is read; the advice discards nothing.
        let _ = unsafe { mem::advise(at, PAGE_SIZE, libc::MADV_DONTFORK) };
    }
}

/// Was an earlier image of this process managed? Its number's lock outlives it, and the file's description in /proc
/// names the locks of this process.
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

/// At the start of an image; false when an earlier image of this process was managed.
pub fn begin() -> Result<bool, Errno> {
    let is_new = !had_number(segment()?);
    lock::give_up(segment()?, 0, 0);
    let (id, at) = make()?;
    not_for_children(at);
    ID.store(id, Ordering::Relaxed);
    note_number();
    Ok(is_new)
}

/// In the parent, just before a fork: its child's identity, which lives from now on.
pub fn before_fork() -> Result<u64, Errno> {
    let (id, at) = make()?;
    // The child of before has a lock of its own by now, or is no more.
    if let last @ 1.. = LOCKED_FOR.swap(if at == 0 { id } else { 0 }, Ordering::Relaxed) {
        lock::give_up(segment()?, last, 1);
    }
    CHILD.store(id, Ordering::Relaxed);
    CHILD_AT.store(at, Ordering::Relaxed);
    Ok(id)
}

/// In the parent, after it: the child keeps its lock itself, if there is one.
pub fn after_fork_in_parent() {
    let at = CHILD_AT.swap(0, Ordering::Relaxed);
    if at != 0 {
        // SAFETY: `before_fork` mapped it; nothing is read there.
        let _ = unsafe { mem::unmap(at, PAGE_SIZE) };
    }
}

/// In the child: it is somebody else now.
pub fn after_fork_in_child() {
    let (id, at) = (
        CHILD.load(Ordering::Relaxed),
        CHILD_AT.swap(0, Ordering::Relaxed),
    );
    ID.store(id, Ordering::Relaxed);
    LOCKED_FOR.store(0, Ordering::Relaxed);
    if at == 0
        && let Ok(fd) = segment()
    {
        let _ = lock::hold_with_process(fd, id);
    }
    not_for_children(at);
    note_number();
}

/// Is it known that nobody with this identity has any memory left?
pub fn is_gone(id: u64) -> bool {
    if !is_identity(id) {
        return true;
    }
    segment().is_ok_and(|fd| lock::is_held(fd, id) == Ok(false))
}

/// What number a process has here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// This one, if /proc is that of our PID namespace.
    Here(u32),
    /// It ends, or has just begun.
    None,
    /// None that is known here, though it lives.
    Elsewhere,
}

/// The number of the process that has a place.
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
