//! `pthread_cancel` of a thread that waits in a call, under glibc 2.41 and later.
//!
//! There all calls that can be cancelled come by one `syscall; ret` ([`sites::returning_at`]), and only
//! while cancellation is enabled. The handler of libc's signal cancels the thread if that was interrupted between the
//! beginning of this piece of code and its end; and whoever gets EINTR from it looks whether the thread is cancelled.
//! With canvas the thread waits elsewhere: either in the trampoline, which the handler is shown as the place in libc,
//! or in a call that canvas makes, which then answers EINTR.

use canvas_patch::sites::{self, TRAMPOLINE_BYTES};
use canvas_sys::{gate, proc};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::base::upcalls;

/// libc's signal.
pub const SIGNAL: i32 = 32;

/// Bytes of the [`upcalls::Entry`] in all of which the call's registers are as they were, and rcx leads to the
/// trampoline.
pub const ENTRY_BYTES: usize = 32;

/// How often it has come.
static ARRIVED: AtomicU32 = AtomicU32::new(0);

/// Threads that it met elsewhere, by number: perhaps on their way to a call.
static MET: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];

/// Has the signal met the calling thread since it was asked last?
fn was_met() -> bool {
    // Which thread this is, the kernel is asked only where any was met.
    if MET.iter().all(|met| met.load(Ordering::Relaxed) == 0) {
        return false;
    }
    let tid = proc::tid();
    let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
    MET.iter()
        .any(|met| met.compare_exchange(tid, 0, success, failure).is_ok())
}

/// The calling thread ends.
pub fn thread_exit() {
    if ARRIVED.load(Ordering::Relaxed) != 0 {
        was_met();
    }
}

/// Where trampolines lie: starts and ends, of as many pieces of code as are patched.
static TRAMPOLINES: [[AtomicUsize; 2]; TEXTS] =
    [const { [const { AtomicUsize::new(0) }; 2] }; TEXTS];
/// Pieces of code that can be patched: of libc, the loader, and what was libpthread.
pub const TEXTS: usize = 8;

/// Start-up: the trampolines of the piece of code `text` lie at `start..end`.
pub fn trampolines_at(text: usize, start: usize, end: usize) {
    let [first, behind] = &TRAMPOLINES[text];
    first.store(start, Ordering::Relaxed);
    behind.store(end, Ordering::Relaxed);
}

fn is_trampoline(at: usize) -> bool {
    TRAMPOLINES.iter().any(|[start, end]| {
        (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&at)
    })
}

/// Where in libc the `syscall` was whose trampoline `at` lies in, if that is of calls that can be cancelled.
///
/// # Safety
/// `at` must lie in a trampoline.
unsafe fn cancelled_at(at: usize) -> Option<usize> {
    let start = at & !(TRAMPOLINE_BYTES - 1);
    // SAFETY: the caller's promise: areas of trampolines are of whole pages, and stay.
    let code = unsafe { &*(start as *const [u8; TRAMPOLINE_BYTES]) };
    sites::returning_at(code, start)
}

/// Can the call be cancelled whose trampoline goes on at `back`, which is 0 for none?
///
/// # Safety
/// `back` must be what the stub got.
pub unsafe fn can_cancel(back: usize) -> bool {
    // SAFETY: the caller's promise.
    back != 0 && unsafe { cancelled_at(back) }.is_some()
}

/// Makes a call of the program that can be cancelled.
///
/// # Safety
/// As for [`gate::raw`].
pub unsafe fn call(nr: usize, a: &[usize; 6]) -> isize {
    let seen = ARRIVED.load(Ordering::Relaxed);
    if seen != 0 && was_met() {
        return -(libc::EINTR as isize);
    }
    // SAFETY: the caller's promise.
    unsafe { gate::raw_while(&ARRIVED, seen, nr, *a) }
}

/// The signal has come.
///
/// # Safety
/// `uc` must be the kernel's, of the calling thread.
pub unsafe fn arrived(uc: &mut libc::ucontext_t) {
    let n = ARRIVED.fetch_add(1, Ordering::Relaxed);
    let g = &mut uc.uc_mcontext.gregs;
    let (ip, sp) = (
        g[libc::REG_RIP as usize] as usize,
        g[libc::REG_RSP as usize] as usize,
    );
    // On the stub's way to the trampoline, all registers of the call are as they were, and rcx leads to the trampoline.
    let on_its_way = upcalls::entry().is_some_and(|e| ip.wrapping_sub(e as usize) < ENTRY_BYTES);
    let at = match on_its_way {
        true => g[libc::REG_RCX as usize] as usize,
        false => ip,
    };
    let is_before_call = is_trampoline(at) && (on_its_way || sites::is_before_return(at));
    // SAFETY: it is one.
    let trampoline = is_before_call
        .then(|| unsafe { cancelled_at(at) })
        .flatten();
    if let Some(libc_at) = trampoline {
        g[libc::REG_RIP as usize] = libc_at as i64;
        return;
    }
    let (mut to, mut with) = (ip, sp);
    // SAFETY: the caller's promise.
    if unsafe { gate::interrupt(&mut to, &mut with) } {
        g[libc::REG_RIP as usize] = to as i64;
        g[libc::REG_RSP as usize] = with as i64;
        return;
    }
    MET[n as usize % MET.len()].store(proc::tid(), Ordering::Relaxed);
}
