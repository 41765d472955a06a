//! Memory of another process of the tenant, as accessed by `process_vm_readv` and /proc/PID/mem. The kernel cannot
//! bring far pages of another process back: that process's reclaim thread makes them present, and keeps them so for the
//! copy. Pages that are present must stay while the kernel writes to them, or the write is lost with the page
//! ([`crate::memory::lending`]).

use canvas_shm::ProcSlot;
use canvas_shm::lend::PAGES_MAX;
use canvas_sys::{file, gate, proc};
use canvas_types::PAGE_SIZE;
use canvas_types::layout::{in_partition, may_be_far};
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::memory::{
    lending::{REFUSED, Stay, Tried, copy, keep},
    pins::{self, Pins},
    uaccess,
};
use crate::runtime::state;
use crate::tenant::{life, life::Number, members};

const BAD_ADDRESS: isize = -(libc::EFAULT as isize);

/// Bytes of one request for a range that need not begin at a page.
const PIECE: usize = PAGES_MAX as usize * PAGE_SIZE / 2;

/// The other processes of the tenant that have a number in this PID namespace.
fn others() -> impl Iterator<Item = (&'static ProcSlot, u32)> {
    let other = |slot: &&ProcSlot| !core::ptr::eq(*slot, state::slot());
    let slots = members::live_slots().filter(other);
    slots.filter_map(|slot| match life::number(slot) {
        Number::Here(number) => Some((slot, number)),
        _ => None,
    })
}

/// The slot of another process of the tenant, by its number or that of one of its threads.
fn owner(pid: u32) -> Option<&'static ProcSlot> {
    // The number that a process publishes is usually right, and saves a call for each process.
    let said = |slot: &&ProcSlot| slot.pid.load(Ordering::Relaxed) == pid;
    let is_it = |slot: &&ProcSlot| life::number(slot) == Number::Here(pid);
    let by_number = || others().find(|(_, number)| *number == pid);
    let by_thread = || others().find(|(_, number)| proc::same_memory(pid, *number));
    let found = members::live_slots().filter(said).find(is_it);
    let found = found.or_else(|| by_number().or_else(by_thread).map(|(slot, _)| slot));
    found.filter(|slot| !core::ptr::eq(*slot, state::slot()))
}

/// Two ranges of equal length, from a call's two vectors.
struct Piece {
    local: usize,
    remote: usize,
    bytes: usize,
}

/// The rest of the vector of `count` elements at `at` after `skip` bytes: an address, and how many bytes lie there.
fn rest(at: usize, count: usize, mut skip: usize) -> Option<(usize, usize)> {
    /// Elements that are read at once: outside the managed range each read is a call to the kernel.
    const AT_ONCE: usize = 64;
    let count = count.min(libc::UIO_MAXIOV as usize);
    let mut words = [0usize; 2 * AT_ONCE];
    for first in (0..count).step_by(AT_ONCE) {
        let words = &mut words[..2 * AT_ONCE.min(count - first)];
        uaccess::get_words(at.wrapping_add(first * 16), words).ok()?;
        for [begin, bytes] in words.as_chunks::<2>().0 {
            if skip < *bytes {
                return Some((begin.wrapping_add(skip), bytes - skip));
            }
            skip -= bytes;
        }
    }
    None
}

fn piece_at(a: &[usize; 6], done: usize) -> Option<Piece> {
    let (local, here) = rest(a[1], a[2], done)?;
    let (remote, there) = rest(a[3], a[4], done)?;
    let bytes = here.min(there).min(PIECE);
    Some(Piece {
        local,
        remote,
        bytes,
    })
}

/// The smallest range, starting at a page boundary, that contains all managed memory of the vector of `count` elements
/// at `at`; `None` if the kernel would refuse the vector.
fn managed_in(at: usize, count: usize) -> Option<Range<usize>> {
    const AT_ONCE: usize = 64;
    if count > libc::UIO_MAXIOV as usize {
        return None;
    }
    let (mut low, mut high) = (usize::MAX, 0);
    let mut words = [0usize; 2 * AT_ONCE];
    for first in (0..count).step_by(AT_ONCE) {
        let words = &mut words[..2 * AT_ONCE.min(count - first)];
        uaccess::get_words(at.wrapping_add(first * 16), words).ok()?;
        for [begin, bytes] in words.as_chunks::<2>().0 {
            if *bytes > isize::MAX as usize {
                return None;
            }
            if *bytes > 0 && may_be_far(*begin) {
                let first = begin & !(PAGE_SIZE - 1);
                (low, high) = (low.min(first), high.max(begin.saturating_add(*bytes)));
            }
        }
    }
    Some(low..high)
}

/// Whether the number is this process's, or that of one of its threads.
pub fn is_own(pid: u32) -> bool {
    pid == proc::pid() || proc::is_thread(pid)
}

/// Recognises a `process_vm_writev` into managed memory of another process of the tenant that the kernel would not
/// refuse before it writes: which process, and where.
fn written(nr: usize, a: &[usize; 6]) -> Option<(&'static ProcSlot, Range<usize>)> {
    if nr as i64 != libc::SYS_process_vm_writev || a[5] != 0 || is_own(a[0] as u32) {
        return None;
    }
    let managed = managed_in(a[3], a[4]).filter(|all| !all.is_empty())?;
    managed_in(a[1], a[2])?;
    Some((owner(a[0] as u32)?, managed))
}

/// Makes the call as a whole, while none of the pages that it writes to can leave. Returns the kernel's answer, or 0 if
/// that is not possible for all of them.
///
/// # Safety
///
/// `nr` and `a` must be the program's call, and `pinned` keep what it needs of this process.
unsafe fn write_at_once(
    nr: usize,
    a: &[usize; 6],
    (slot, managed): (&ProcSlot, Range<usize>),
    pinned: impl FnOnce() -> Pins,
) -> isize {
    if managed.len() > PAGES_MAX as usize * PAGE_SIZE || in_partition(managed.start) {
        return 0;
    }
    let _pins = pinned();
    match keep(slot, managed.start, managed.len()) {
        // SAFETY: the program's call (the caller's promise).
        Stay::Held(_used) => unsafe { gate::raw(nr, *a) },
        Stay::Unsettled => 0,
        Stay::Refused => REFUSED,
    }
}

/// `process_vm_readv` and `process_vm_writev`. `run` makes the call unchanged, and `pinned` pins what it needs of this
/// process.
///
/// # Safety
///
/// `nr` and `a` must be the program's call.
#[inline(never)]
pub unsafe fn process_vm(
    nr: usize,
    a: &[usize; 6],
    run: impl FnOnce() -> isize,
    pinned: impl FnOnce() -> Pins,
) -> isize {
    let pid = a[0] as u32;
    let (mut slot, tried, r) = match written(nr, a) {
        Some((slot, managed)) => {
            // SAFETY: the program's call (the caller's promise).
            let r = unsafe { write_at_once(nr, a, (slot, managed), pinned) };
            (Some(slot), Tried::No, r)
        }
        None => (None, Tried::Yes, run()),
    };
    if r < 0 && r != BAD_ADDRESS {
        return r;
    }
    let mut done = r.max(0) as usize;
    while let Some(piece) = piece_at(a, done) {
        let pin = || {
            let mut pins = pins::pin_range(piece.local, piece.bytes);
            // Any process that maps shared memory can pin it.
            if in_partition(piece.remote) {
                pins.pin(piece.remote, piece.bytes);
            }
            pins
        };
        let local = [piece.local, piece.bytes];
        let remote = [piece.remote, piece.bytes];
        let call = || {
            let (local, remote) = (local.as_ptr() as usize, remote.as_ptr() as usize);
            // SAFETY: a part of the program's call (the caller's promise), by vectors of ours that live across it.
            unsafe { gate::raw(nr, [a[0], local, 1, remote, 1, a[5]]) }
        };
        let is_others = may_be_far(piece.remote) && !in_partition(piece.remote);
        slot = slot.or_else(|| is_others.then(|| owner(pid)).flatten());
        let r = match slot.filter(|_| is_others) {
            Some(slot) => {
                let there = (piece.remote, piece.bytes);
                copy(slot, there, (tried, BAD_ADDRESS), pin, call)
            }
            None => {
                let _pins = pin();
                call()
            }
        };
        if r <= 0 {
            return if done > 0 { done as isize } else { r };
        }
        done += r as usize;
    }
    if done > 0 { done as isize } else { r }
}

/// Set once a descriptor's position was moved to an address of managed memory, as in /proc/PID/mem: a `write` itself
/// does not say where it writes.
static SOUGHT: AtomicBool = AtomicBool::new(false);

/// `lseek`.
///
/// # Safety
///
/// `nr` and `a` must be the program's call.
#[inline(never)]
pub unsafe fn seek(nr: usize, a: &[usize; 6]) -> isize {
    // SAFETY: the program's call (the caller's promise).
    let r = unsafe { gate::raw(nr, *a) };
    if may_be_far(r as usize) {
        SOUGHT.store(true, Ordering::Relaxed);
    }
    r
}

/// Which process's memory a file of /proc is.
#[derive(Clone, Copy)]
enum Whose {
    Own,
    Others(&'static ProcSlot),
}

fn memory_behind(fd: usize) -> Option<Whose> {
    let there = file::stat_filtered(fd as i32).map(file::which).ok()?;
    let is_memory_of = |number| {
        let path = proc::path_of(number, b"mem");
        let path = CStr::from_bytes_until_nul(&path).ok();
        let stat = path.and_then(|path| file::stat_of(path).ok());
        stat.map(file::which) == Some(there)
    };
    if is_memory_of(proc::pid()) {
        return Some(Whose::Own);
    }
    let other = others().find(|(_, number)| is_memory_of(*number));
    other.map(|(slot, _)| Whose::Others(slot))
}

/// Makes a `read` or `write` (or its beginning) on a file that is a process's memory, at the address `at`. Returns the
/// kernel's answer; it is `failed` for an absent page.
///
/// # Safety
///
/// `nr` and `a` must be the program's call, of no more than [`PIECE`] bytes.
unsafe fn through_file(
    nr: usize,
    a: &[usize; 6],
    (whose, at): (Whose, usize),
    (tried, failed): (Tried, isize),
) -> isize {
    let pin = || {
        let mut pins = pins::pin_range(a[1], a[2]);
        if in_partition(at) || matches!(whose, Whose::Own) {
            pins.pin(at, a[2]);
        }
        pins
    };
    // SAFETY: the program's call (the caller's promise).
    let call = || unsafe { gate::raw(nr, *a) };
    let r = match whose {
        Whose::Others(slot) if !in_partition(at) => {
            copy(slot, (at, a[2]), (tried, failed), pin, call)
        }
        _ => {
            let _pins = pin();
            call()
        }
    };
    if r == REFUSED { failed } else { r }
}

/// After a `read` or `write` failed with `failed` on a descriptor whose position is `at`: repeats it if the file is
/// another process's memory.
///
/// # Safety
///
/// `nr` and `a` must be the program's call.
#[cold]
pub unsafe fn file(nr: usize, a: &[usize; 6], at: usize, failed: isize) -> isize {
    let mut b = *a;
    b[2] = a[2].min(PIECE);
    match memory_behind(a[0]) {
        // SAFETY: the beginning of the program's call (the caller's promise).
        Some(whose @ Whose::Others(_)) => unsafe {
            through_file(nr, &b, (whose, at), (Tried::Yes, failed))
        },
        _ => failed,
    }
}

/// Where a `write` or `pwrite64` writes, if that can be an address of managed memory.
fn written_at(nr: usize, a: &[usize; 6]) -> Option<usize> {
    let at = match nr as i64 {
        libc::SYS_pwrite64 => a[3],
        libc::SYS_write if SOUGHT.load(Ordering::Relaxed) => {
            let position = [a[0], 0, libc::SEEK_CUR as usize, 0, 0, 0];
            // SAFETY: the call takes no address.
            unsafe { gate::raw(libc::SYS_lseek as usize, position) as usize }
        }
        _ => return None,
    };
    may_be_far(at).then_some(at)
}

/// Serves a `write` or `pwrite64` into the memory of a process of the tenant through a file of /proc; `None` for other
/// calls. The kernel answers `failed` for an absent page.
///
/// # Safety
///
/// `nr` and `a` must be the program's call.
#[inline]
pub unsafe fn write_file(nr: usize, a: &[usize; 6], failed: isize) -> Option<isize> {
    let at = written_at(nr, a)?;
    // SAFETY: the program's call (the caller's promise).
    unsafe { write_file_at(nr, a, at, failed) }
}

/// Not inlined because its frame is large; calls that end a thread run in the caller, on what is left of a program's
/// stack.
///
/// # Safety
///
/// `nr` and `a` must be the program's call.
#[cold]
#[inline(never)]
unsafe fn write_file_at(nr: usize, a: &[usize; 6], at: usize, failed: isize) -> Option<isize> {
    let whose = memory_behind(a[0])?;
    let mut done = 0;
    while done < a[2] {
        let mut b = *a;
        b[1] = a[1] + done;
        b[2] = (a[2] - done).min(PIECE);
        if nr as i64 == libc::SYS_pwrite64 {
            b[3] = at + done;
        }
        // SAFETY: a part of the program's call (the caller's promise).
        let r = unsafe { through_file(nr, &b, (whose, at + done), (Tried::No, failed)) };
        if r <= 0 {
            return Some(if done > 0 { done as isize } else { r });
        }
        done += r as usize;
    }
    Some(done as isize)
}

/// `ptrace` with these arguments, made by `call`: none of the tracee's pages leaves while the kernel writes a word.
#[inline(never)]
pub fn ptrace(a: &[usize; 6], call: impl FnOnce() -> isize) -> isize {
    const NOT_THERE: isize = -(libc::EIO as isize);
    let writes = matches!(a[0] as u32, libc::PTRACE_POKETEXT | libc::PTRACE_POKEDATA);
    if !writes || !may_be_far(a[2]) {
        return call();
    }
    let mut shared = Pins::new();
    if in_partition(a[2]) {
        shared.pin(a[2], size_of::<usize>());
        return call();
    }
    let Some(slot) = owner(a[1] as u32) else {
        return call();
    };
    match keep(slot, a[2], size_of::<usize>()) {
        // Unsettled: the tracee was stopped in the middle of a batch, in which it protects the pages that it copies.
        Stay::Held(_) | Stay::Unsettled => call(),
        Stay::Refused => NOT_THERE,
    }
}
