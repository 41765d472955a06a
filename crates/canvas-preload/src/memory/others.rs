//! Memory of another process of the tenant, as `process_vm_readv` and /proc/PID/mem reach it. What is away there the kernel
//! cannot bring back from outside: that process's reclaim thread makes it present, and keeps it so for the copy.

use canvas_shm::ProcSlot;
use canvas_shm::lend::{PAGES_MAX, Request, Stage};
use canvas_sys::{file, gate, proc};
use canvas_types::layout::may_be_far;
use canvas_types::{PAGE_SIZE, PageId};
use core::ffi::CStr;
use core::sync::atomic::Ordering;

use crate::base::life::{self, Number};
use crate::base::{state, tenant};
use crate::memory::pins::{self, Pins};
use crate::memory::uaccess;

/// How long the owner of the pages keeps them present for who does not say that it has done.
const KEPT_NS: u64 = 100_000_000;
/// How long the owner may take until it looks at a request, and until it has made the pages present: one may lie beyond
/// the pool.
const LOOK_NS: u64 = 1_000_000_000;
const FETCH_NS: u64 = 10_000_000_000;
/// Pause between two looks at the answer.
const PAUSE_NS: u64 = 100_000;
/// How often a copy is tried while its pages are there.
const TRIES: usize = 2;

const BAD_ADDRESS: isize = -(libc::EFAULT as isize);
const REFUSED: isize = -(libc::EPERM as isize);

/// The reclaim thread's part: pages that it keeps present for another process.
#[derive(Default)]
pub struct Lender {
    kept: Option<Kept>,
}

struct Kept {
    request: Request,
    until_ns: u64,
    _pins: Pins,
}

impl Lender {
    /// Takes the request that is there, if there is one. The caller is not inside.
    pub fn round(&mut self) {
        let place = &state::slot().lend;
        let word = place.load(Ordering::Acquire);
        if let Some(kept) = &self.kept {
            if word == kept.request.word() && proc::now_ns() < kept.until_ns {
                return;
            }
            self.give_up();
        }
        let Some(request) = Request::of_word(word).filter(|r| r.stage() == Stage::Posted) else {
            return;
        };
        let taken = request.at(Stage::Taken);
        if !replace(place, request, taken) {
            return;
        }
        let bytes = request.count() as usize * PAGE_SIZE;
        let pins = pins::pin_range(PageId(request.first()).addr(), bytes);
        let done = taken.at(match pins.is_empty() {
            true => Stage::Nothing,
            false => Stage::Ready,
        });
        if replace(place, taken, done) {
            self.kept = Some(Kept {
                request: done,
                until_ns: proc::now_ns() + KEPT_NS,
                _pins: pins,
            });
        }
    }

    fn give_up(&mut self) {
        if let Some(kept) = self.kept.take() {
            take_away(&state::slot().lend, kept.request);
        }
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        self.give_up();
    }
}

fn replace(place: &core::sync::atomic::AtomicU64, old: Request, new: Request) -> bool {
    let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
    place
        .compare_exchange(old.word(), new.word(), success, failure)
        .is_ok()
}

fn take_away(place: &core::sync::atomic::AtomicU64, request: Request) {
    let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
    let _ = place.compare_exchange(request.word(), 0, success, failure);
}

/// The other processes of the tenant that have a number here.
fn others() -> impl Iterator<Item = (&'static ProcSlot, u32)> {
    let other = |slot: &&ProcSlot| !core::ptr::eq(*slot, state::slot());
    let slots = tenant::live_slots().filter(other);
    slots.filter_map(|slot| match life::number(slot) {
        Number::Here(number) => Some((slot, number)),
        _ => None,
    })
}

/// What a request came to.
#[derive(PartialEq, Eq)]
enum Answer {
    Ready(Request),
    Nothing,
    Refused,
}

/// Asks for `bytes` at `addr`, as much of it as one request can have. The caller takes the request away when it has done.
fn ask(slot: &ProcSlot, addr: usize, bytes: usize) -> Answer {
    let id = slot.id.load(Ordering::Relaxed);
    let first = PageId::of_addr(addr).0;
    let last =
        PageId::of_addr(addr.saturating_add(bytes.clamp(1, PAGES_MAX as usize * PAGE_SIZE) - 1));
    let posted = Request::of(first, last.0.saturating_sub(first) + 1);
    let begun = proc::now_ns();
    let mut was_posted = false;
    loop {
        if slot.id.load(Ordering::Relaxed) != id {
            return Answer::Refused;
        }
        let word = slot.lend.load(Ordering::Acquire);
        if !was_posted && word == 0 {
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            let new = posted.word();
            was_posted = (slot.lend.compare_exchange(0, new, success, failure)).is_ok();
            tenant::wake(slot);
            continue;
        }
        let there = Request::of_word(word).filter(|r| was_posted && r.at(Stage::Posted) == posted);
        let stage = there.map(Request::stage);
        match (there, stage) {
            (Some(r), Some(Stage::Ready)) => return Answer::Ready(r),
            (Some(r), Some(Stage::Nothing)) => {
                take_away(&slot.lend, r);
                return Answer::Nothing;
            }
            // The owner lost patience.
            (None, _) if was_posted => return Answer::Refused,
            _ => {}
        }
        let patience_ns = match stage {
            Some(Stage::Taken) => FETCH_NS,
            _ => LOOK_NS,
        };
        if proc::now_ns() - begun > patience_ns {
            if let Some(r) = there {
                take_away(&slot.lend, r);
            }
            return Answer::Refused;
        }
        if stage != Some(Stage::Taken) {
            tenant::wake(slot);
        }
        proc::sleep_ns(PAUSE_NS);
    }
}

/// Makes a copy from or to `bytes` at `addr` of a process, which failed with `failed`, while the pages are present there.
fn copy(
    slot: &ProcSlot,
    addr: usize,
    bytes: usize,
    failed: isize,
    call: impl Fn() -> isize,
) -> isize {
    for _ in 0..TRIES {
        match ask(slot, addr, bytes) {
            Answer::Ready(request) => {
                let r = call();
                take_away(&slot.lend, request);
                if r != failed {
                    return r;
                }
            }
            Answer::Nothing => return failed,
            Answer::Refused => return REFUSED,
        }
    }
    failed
}

/// Two ranges of equal length, of vectors that a call has.
struct Piece {
    local: usize,
    remote: usize,
    bytes: usize,
}

/// What is left of the vector of `count` at `at` behind `skip` bytes: an address, and how many bytes lie there.
fn rest(at: usize, count: usize, mut skip: usize) -> Option<(usize, usize)> {
    /// Ranges that are read at once: outside of the window each look is a call to the kernel.
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
    let bytes = here.min(there).min(PAGES_MAX as usize * PAGE_SIZE / 2);
    Some(Piece {
        local,
        remote,
        bytes,
    })
}

/// `process_vm_readv` and `process_vm_writev`, of which the kernel said `r`: the rest of the call.
///
/// # Safety
/// `nr` and `a` must be the program's call.
pub unsafe fn process_vm(nr: usize, a: &[usize; 6], r: isize) -> isize {
    let pid = a[0] as u32;
    if pid == proc::pid() || (r < 0 && r != BAD_ADDRESS) {
        return r;
    }
    let (mut done, mut slot) = (r.max(0) as usize, None);
    while let Some(piece) = piece_at(a, done) {
        if !may_be_far(piece.remote) {
            break;
        }
        let find = || others().find(|(_, number)| *number == pid);
        let Some((slot, _)) = *slot.get_or_insert_with(find) else {
            break;
        };
        let local = [piece.local, piece.bytes];
        let remote = [piece.remote, piece.bytes];
        let call = || {
            let _pins = pins::pin_range(local[0], local[1]);
            let (local, remote) = (local.as_ptr() as usize, remote.as_ptr() as usize);
            // SAFETY: a part of the program's call, by vectors of ours that live across it.
            unsafe { gate::raw(nr, [a[0], local, 1, remote, 1, a[5]]) }
        };
        let r = copy(slot, piece.remote, piece.bytes, BAD_ADDRESS, call);
        if r <= 0 {
            return if done > 0 { done as isize } else { r };
        }
        done += r as usize;
    }
    if done > 0 { done as isize } else { r }
}

/// A `read` or `write` that failed with `failed` of a descriptor whose position is `at`: what of another process's memory
/// it is, if it is that.
///
/// # Safety
/// `nr` and `a` must be the program's call.
#[cold]
pub unsafe fn file(nr: usize, a: &[usize; 6], at: usize, failed: isize) -> isize {
    let Ok(there) = file::state(a[0] as i32) else {
        return failed;
    };
    let is_memory_of = |number| {
        let path = proc::path_of(number, b"mem");
        let path = CStr::from_bytes_until_nul(&path).ok();
        let state = path.and_then(|path| file::state_of(path).ok());
        state.is_some_and(|state| state.0[..2] == there.0[..2])
    };
    let Some((slot, _)) = others().find(|(_, number)| is_memory_of(*number)) else {
        return failed;
    };
    let mut b = *a;
    b[2] = a[2].min(PAGES_MAX as usize * PAGE_SIZE / 2);
    let r = copy(slot, at, b[2], failed, || {
        let _pins = pins::pin_range(b[1], b[2]);
        // SAFETY: the program's call, or the beginning of it.
        unsafe { gate::raw(nr, b) }
    });
    if r == REFUSED { failed } else { r }
}
