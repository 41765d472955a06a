//! A signal stack for every thread, so that a fault on the thread's own stack can be handled.
//!
//! Stacks that a program makes itself (coroutines, `pthread_attr_setstack` over malloc) lie in managed memory. If such
//! a page is far, the kernel cannot push a signal frame onto it: without another stack it would end the program. A
//! program's own `sigaltstack` replaces canvas's; without one, the program is told that it has none.

use canvas_sys::{mem, sys2};
use canvas_types::PAGE_SIZE;
use core::arch::naked_asm;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::own_memory::{
    own::{self, kind},
    writable::{Steps, open},
};
use crate::process::{beliefs, cancel};
use crate::runtime::{state, thread};

const BYTES: usize = thread::SIGNAL_STACK_BYTES;
/// Threads that can have a stack at one time; others go without.
const COUNT: usize = thread::SIGNAL_STACKS;

state! {
    static STACKS: Stacks {
        taken: [AtomicU64; COUNT / 64] = [const { AtomicU64::new(0) }; COUNT / 64],
        /// Stacks that were opened, except their lowest page, which is a guard.
        open: Steps<{ COUNT / 64 }> = Steps::new(),
    }
}

/// In a fork's child: frees all stacks except that of its one thread, and the one it runs on now.
pub fn after_fork_in_child() {
    let here = 0u8;
    let mine = [current().ss_sp as usize, &raw const here as usize].map(thread::signal_stack);
    for (i, word) in STACKS.taken.iter().enumerate() {
        let bits = mine.iter().flatten().filter(|m| **m / 64 == i);
        word.store(
            bits.fold(0, |all, m| all | 1 << (m % 64)),
            Ordering::Relaxed,
        );
    }
}

/// Maps the stacks (lazily) and gives the calling thread one. Called once, at start-up.
pub fn init() {
    if let Ok(at) = mem::map_lazy(0, COUNT * BYTES, libc::PROT_NONE) {
        own::note(at, COUNT * BYTES, kind::STAYS | kind::COUNTS);
        // SAFETY: all stacks lie in the mapping made just now, which stays, and which only this module uses.
        unsafe { thread::signal_stacks_at(at) };
        give();
    }
}

/// Whether this is the address of a stack of canvas.
pub fn is_ours(addr: usize) -> bool {
    thread::signal_stack(addr).is_some()
}

pub use canvas_sys::signal::stack as current;

/// Takes a free stack, searching from number `first` on. In thread mode there are none.
fn take(first: usize) -> Option<usize> {
    let stacks_at = thread::signal_stacks();
    if stacks_at == 0 {
        return None;
    }
    let words = STACKS.taken.len();
    for i in (0..words).map(|i| (first / 64 + i) % words) {
        let mut bits = STACKS.taken[i].load(Ordering::Relaxed);
        while bits != u64::MAX {
            let free = (!bits).trailing_zeros();
            match STACKS.taken[i].compare_exchange(
                bits,
                bits | 1 << free,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    let which = i * 64 + free as usize;
                    let at = stacks_at + which * BYTES;
                    let opened = STACKS.open.reach(which..which + 1, |_| {
                        open(at + PAGE_SIZE, BYTES - PAGE_SIZE)
                    });
                    if opened.is_err() {
                        STACKS.taken[i].fetch_and(!(1 << free), Ordering::Release);
                        return None;
                    }
                    return Some(at);
                }
                Err(now) => bits = now,
            }
        }
    }
    None
}

/// Runs `f` on a stack of canvas if one is free, from code that runs on a stack of the program, with its frame at
/// `frame`. If signals are not blocked, a handler that does not return loses the stack.
pub fn run_on_ours<F: FnOnce()>(frame: usize, f: F) {
    /// # Safety
    ///
    /// `f` must be an `Option<F>` that nothing else refers to.
    unsafe extern "C" fn call<F: FnOnce()>(f: *mut libc::c_void) {
        // SAFETY: an `Option<F>` that nothing else refers to (the caller's promise).
        if let Some(f) = unsafe { &mut *f.cast::<Option<F>>() }.take() {
            f();
        }
    }
    // Chosen by the address of the thread's stack: a thread usually gets the same one again, so that code which
    // identifies threads by their stacks keeps working.
    let own = (frame >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let Some(at) = take(own % COUNT) else {
        return f();
    };
    let mut f = Some(f);
    // SAFETY: the stack is this thread's (`take`) until it is put back, and not used after `call_on`; `f` is what
    // `call` expects, and lives until it has returned.
    unsafe {
        call_on(at + BYTES, call::<F>, (&raw mut f).cast());
        put_back(at);
    }
}

/// Calls `f` with `arg` on the stack that ends at `top`.
///
/// # Safety
///
/// Below `top` must be a stack that nobody else uses, and `arg` what `f` expects.
#[unsafe(naked)]
unsafe extern "C" fn call_on(
    _top: usize,
    _f: unsafe extern "C" fn(*mut libc::c_void),
    _arg: *mut libc::c_void,
) {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdi",
        "mov rdi, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

/// Whether the calling thread runs on its signal stack. That stack is resident, and the kernel must see that it is in
/// use.
pub fn is_on_own() -> bool {
    current().ss_flags & libc::SS_ONSTACK != 0
}

/// Gives the calling thread a stack of canvas if it has no signal stack. In thread mode no fault is a signal.
pub fn give() {
    let unused = thread::signal_stacks() == 0 || state::PROCESS.in_thread_mode();
    if unused || current().ss_flags & libc::SS_DISABLE == 0 {
        return;
    }
    if let Some(at) = take(0) {
        let new = libc::stack_t {
            ss_sp: at as *mut _,
            ss_flags: 0,
            ss_size: BYTES,
        };
        // SAFETY: the kernel reads `new`; the stack is this thread's (`take`) until it is put back.
        if unsafe { sys2(libc::SYS_sigaltstack, &raw const new as usize, 0) }.is_err() {
            // SAFETY: the kernel did not accept it, so nothing uses it.
            unsafe { put_back(at) };
        }
    }
}

/// Frees the stack at `addr`, if it is one of canvas's.
///
/// # Safety
///
/// No thread may use it any more, or be about to.
pub unsafe fn put_back(addr: usize) {
    if let Some(i) = thread::signal_stack(addr) {
        STACKS.taken[i / 64].fetch_and(!(1 << (i % 64)), Ordering::AcqRel);
    }
}

/// Releases what the calling thread has; it is about to end.
pub fn thread_exit() {
    beliefs::thread_exit();
    cancel::thread_exit();
    let old = current();
    if is_ours(old.ss_sp as usize) {
        let off = libc::stack_t {
            ss_sp: core::ptr::null_mut(),
            ss_flags: libc::SS_DISABLE,
            ss_size: 0,
        };
        // SAFETY: the kernel reads `off`. It refuses to remove a stack on which the thread runs, which then stays
        // taken.
        if unsafe { sys2(libc::SYS_sigaltstack, &raw const off as usize, 0) }.is_ok() {
            // SAFETY: it was this thread's signal stack, and is no more.
            unsafe { put_back(old.ss_sp as usize) };
        }
    }
}
