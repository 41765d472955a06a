//! A signal stack for every thread, so that a fault on the thread's own stack can be handled.
//!
//! Stacks that a program makes itself (coroutines, `pthread_attr_setstack` over malloc) lie in the
//! window. When such a page is far, the kernel cannot push a signal frame onto it: without another
//! stack the program would be ended. A program's own `sigaltstack` takes our place, and as long as
//! there is none, the program is told so.

use canvas_sys::{mem, sys2};
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crate::base::own::{self, kind};
use crate::base::thread;

/// Bytes of one stack.
const BYTES: usize = thread::SIGNAL_STACK_BYTES;
/// Threads that can have one at a time; later ones go without.
const COUNT: usize = thread::SIGNAL_STACKS;

static TAKEN: [AtomicU64; COUNT / 64] = [const { AtomicU64::new(0) }; COUNT / 64];

/// Maps the stacks (lazily) and gives the calling thread one. Once, at start-up.
pub fn init() {
    if let Ok(at) = mem::map_lazy(0, COUNT * BYTES, libc::PROT_READ | libc::PROT_WRITE) {
        own::note(at, COUNT * BYTES, kind::STAYS | kind::COUNTS);
        thread::signal_stacks_at(at);
        give();
    }
}

/// Is this one of ours?
pub fn is_ours(addr: usize) -> bool {
    thread::signal_stack(addr).is_some()
}

/// The calling thread's signal stack, as the kernel has it.
pub fn current() -> libc::stack_t {
    let mut old = libc::stack_t {
        ss_sp: core::ptr::null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    };
    // SAFETY: the kernel writes `old`.
    let _ = unsafe { sys2(libc::SYS_sigaltstack, 0, &raw mut old as usize) };
    old
}

/// What the thread on each stack believes to have blocked of our signals.
static BELIEVED: [AtomicU8; COUNT] = [const { AtomicU8::new(0) }; COUNT];
/// Stacks whose belief is not nothing; never less than there are.
static BELIEVERS: AtomicUsize = AtomicUsize::new(0);

/// Changes what the calling thread believes to have blocked of our signals, and returns what it
/// believed before. A thread with a signal stack of the program's own, in place of ours, has no belief.
pub fn change_belief(change: impl Fn(u8) -> u8) -> u8 {
    // Which stack is ours only the kernel knows for certain: there is no thread-local data here, and
    // the program can set a stack without us. But it is asked only where the answer matters, which
    // is seldom: libc blocks everything only for moments.
    if BELIEVERS.load(Ordering::Relaxed) == 0 && change(0) == 0 {
        return 0;
    }
    let at = current().ss_sp as usize;
    let Some(i) = thread::signal_stack(at) else {
        return 0;
    };
    let had = BELIEVED[i].load(Ordering::Relaxed);
    believe(i, change(had));
    had
}

fn believe(i: usize, now: u8) {
    // Counted before and discounted after: a signal's handler in between must not be told zero.
    if now != 0 {
        BELIEVERS.fetch_add(1, Ordering::Relaxed);
    }
    if BELIEVED[i].swap(now, Ordering::Relaxed) != 0 {
        BELIEVERS.fetch_sub(1, Ordering::Relaxed);
    }
}

fn take() -> Option<usize> {
    for (i, word) in TAKEN.iter().enumerate() {
        let mut bits = word.load(Ordering::Relaxed);
        while bits != u64::MAX {
            let free = (!bits).trailing_zeros();
            match word.compare_exchange(bits, bits | 1 << free, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => {
                    return Some(thread::signal_stacks() + (i * 64 + free as usize) * BYTES);
                }
                Err(now) => bits = now,
            }
        }
    }
    None
}

/// Gives the calling thread one of our stacks if it has none.
pub fn give() {
    if thread::signal_stacks() == 0 || current().ss_flags & libc::SS_DISABLE == 0 {
        return;
    }
    if let Some(at) = take() {
        let new = libc::stack_t {
            ss_sp: at as *mut _,
            ss_flags: 0,
            ss_size: BYTES,
        };
        // SAFETY: native memory that is this thread's until `put_back`.
        if unsafe { sys2(libc::SYS_sigaltstack, &raw const new as usize, 0) }.is_err() {
            put_back(at);
        }
    }
}

/// Frees a stack that no thread uses any more.
pub fn put_back(addr: usize) {
    if let Some(i) = thread::signal_stack(addr) {
        believe(i, 0);
        TAKEN[i / 64].fetch_and(!(1 << (i % 64)), Ordering::AcqRel);
    }
}

/// The calling thread ends.
pub fn thread_exit() {
    let old = current();
    if is_ours(old.ss_sp as usize) {
        let off = libc::stack_t {
            ss_sp: core::ptr::null_mut(),
            ss_flags: libc::SS_DISABLE,
            ss_size: 0,
        };
        // SAFETY: only takes the stack away; fails when we are on it, and then it stays taken.
        if unsafe { sys2(libc::SYS_sigaltstack, &raw const off as usize, 0) }.is_ok() {
            put_back(old.ss_sp as usize);
        }
    }
}
