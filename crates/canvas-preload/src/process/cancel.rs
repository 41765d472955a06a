//! `pthread_cancel` of a thread that waits in a system call, with glibc 2.41 and later.
//!
//! There, all calls that can be cancelled go through one `syscall; ret` ([`sites::returning_at`]), and only while
//! cancellation is enabled. The handler of libc's signal cancels the thread if it was interrupted between the beginning
//! and the end of this piece of code; and a call that returns EINTR checks whether the thread is cancelled. With canvas
//! the thread waits elsewhere: in the trampoline, which the handler sees as the place in libc, or in a call that canvas
//! makes, which then returns EINTR.

use canvas_sys::patch::sites::{self, TRAMPOLINE_BYTES};
use canvas_sys::{gate, proc};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::runtime::upcalls;

/// The signal that libc uses for cancellation.
pub const SIGNAL: i32 = 32;

/// Bytes of the [`upcalls::Entry`] throughout which the call's registers are unchanged and rcx leads to the trampoline.
pub const ENTRY_BYTES: usize = 32;

state! {
    static CANCEL: Cancel {
        /// How often the signal has come.
        arrived: AtomicU32 = AtomicU32::new(0),
        /// Threads that the signal interrupted elsewhere, by number: they may be on their way to a call.
        met: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64],
        /// Start and end of the trampolines of each patched piece of code.
        trampolines: [[AtomicUsize; 2]; TEXTS] =
            [const { [const { AtomicUsize::new(0) }; 2] }; TEXTS],
    }
}

/// Whether the signal has interrupted the calling thread since this was last asked.
fn was_met() -> bool {
    // Ask the kernel for the thread's number only if any thread was interrupted.
    if CANCEL
        .met
        .iter()
        .all(|met| met.load(Ordering::Relaxed) == 0)
    {
        return false;
    }
    let tid = proc::tid();
    let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
    CANCEL
        .met
        .iter()
        .any(|met| met.compare_exchange(tid, 0, success, failure).is_ok())
}

/// Forgets the calling thread, which ends.
pub fn thread_exit() {
    if CANCEL.arrived.load(Ordering::Relaxed) != 0 {
        was_met();
    }
}

/// Pieces of code that can be patched: of libc, of the loader, and of the former libpthread.
pub const TEXTS: usize = 8;

/// Records, at start-up, that the trampolines of piece of code `text` lie at `start..end`.
///
/// # Safety
///
/// Whole pages must be mapped there, readable, and for good.
pub unsafe fn trampolines_at(text: usize, start: usize, end: usize) {
    let [first, behind] = &CANCEL.trampolines[text];
    first.store(start, Ordering::Relaxed);
    behind.store(end, Ordering::Relaxed);
}

fn is_trampoline(at: usize) -> bool {
    CANCEL.trampolines.iter().any(|[start, end]| {
        (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&at)
    })
}

/// Address in libc of the `syscall` whose trampoline contains `at`, if that call can be cancelled.
///
/// # Safety
///
/// `at` must lie in a trampoline.
unsafe fn cancelled_at(at: usize) -> Option<usize> {
    let start = at & !(TRAMPOLINE_BYTES - 1);
    // SAFETY: aligned as a page is, so it lies in the pages of the trampoline that `at` lies in (the caller's promise);
    // those stay, and are only read (`trampolines_at`).
    let code = unsafe { &*(start as *const [u8; TRAMPOLINE_BYTES]) };
    sites::returning_at(code, start)
}

/// Whether the call can be cancelled whose trampoline continues at `back`, which is 0 for none.
///
/// # Safety
///
/// `back` must be what the stub got.
pub unsafe fn can_cancel(back: usize) -> bool {
    // SAFETY: unless it is 0, the stub got it from a trampoline: it lies in there.
    back != 0 && unsafe { cancelled_at(back) }.is_some()
}

/// Makes a call of the program that can be cancelled.
///
/// # Safety
///
/// As for [`gate::raw`].
pub unsafe fn call(nr: usize, a: &[usize; 6]) -> isize {
    let seen = CANCEL.arrived.load(Ordering::Relaxed);
    if seen != 0 && was_met() {
        return -(libc::EINTR as isize);
    }
    // SAFETY: for the call the caller answers.
    unsafe { gate::raw_while(&CANCEL.arrived, seen, nr, *a) }
}

/// Handles the arrival of the signal.
///
/// # Safety
///
/// `uc` must be the kernel's, of the calling thread.
pub unsafe fn arrived(uc: &mut libc::ucontext_t) {
    let n = CANCEL.arrived.fetch_add(1, Ordering::Relaxed);
    let g = &mut uc.uc_mcontext.gregs;
    let (ip, sp) = (
        g[libc::REG_RIP as usize] as usize,
        g[libc::REG_RSP as usize] as usize,
    );
    // Between the stub and the trampoline all registers of the call are unchanged, and rcx leads to the trampoline.
    let on_its_way = upcalls::entry().is_some_and(|e| ip.wrapping_sub(e as usize) < ENTRY_BYTES);
    let at = match on_its_way {
        true => g[libc::REG_RCX as usize] as usize,
        false => ip,
    };
    let is_before_call = is_trampoline(at) && (on_its_way || sites::is_before_return(at));
    // SAFETY: `is_before_call` says that `at` lies in a trampoline.
    let trampoline = is_before_call
        .then(|| unsafe { cancelled_at(at) })
        .flatten();
    if let Some(libc_at) = trampoline {
        g[libc::REG_RIP as usize] = libc_at as i64;
        return;
    }
    let (mut to, mut with) = (ip, sp);
    // SAFETY: the registers of the thread that this signal has interrupted (`uc`, the caller's promise).
    if unsafe { gate::interrupt(&mut to, &mut with) } {
        g[libc::REG_RIP as usize] = to as i64;
        g[libc::REG_RSP as usize] = with as i64;
        return;
    }
    CANCEL.met[n as usize % CANCEL.met.len()].store(proc::tid(), Ordering::Relaxed);
}
