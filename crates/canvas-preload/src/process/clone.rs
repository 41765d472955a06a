//! `clone` and `clone3`. A child with memory of its own is a fork, whatever stack and namespaces it gets: it does a
//! fork child's work on its copy of the parent's stack, and continues on its own one. A child that shares the memory is
//! created where nothing of canvas is on a stack.

use canvas_sys::gate::raw;
use canvas_sys::{proc, uapi};
use canvas_types::PAGE_SIZE;

use crate::memory::{args, pins::Pins, uaccess};
use crate::paging::accounting;
use crate::process::procs;
use crate::runtime::call::Call;
use crate::tenant::life;

/// Pages that a new thread touches at once: its stack, its signal stack, its part of the heap.
const THREAD_PAGES: i64 = 4;

/// The first frames of a new thread, which are used before it can have a signal stack.
const STACK_BYTES: usize = 4 * PAGE_SIZE;
/// Maximum numbers that clone3 takes for the child, one per level of PID namespaces.
const SET_TID_MAX: usize = 32;

/// How often a parent checks whether its child still has its memory.
const WAIT_NS: u64 = 1_000_000;

const VM: usize = libc::CLONE_VM as usize;
const VFORK: usize = libc::CLONE_VFORK as usize;

/// The first version of clone3's structure (CLONE_ARGS_SIZE_VER0).
const ARGS_BYTES_MIN: usize = 64;
/// Size up to which later versions are served.
const ARGS_BYTES_MAX: usize = 256;

/// Indices in `struct clone_args`.
mod field {
    pub const FLAGS: usize = 0;
    pub const PIDFD: usize = 1;
    pub const CHILD_TID: usize = 2;
    pub const PARENT_TID: usize = 3;
    pub const STACK: usize = 5;
    pub const STACK_BYTES: usize = 6;
    pub const SET_TID: usize = 8;
    pub const SET_TID_COUNT: usize = 9;
}

/// `clone`.
///
/// # Safety
///
/// `call` must be the program's.
#[inline(never)]
pub unsafe fn clone(call: &mut Call) -> isize {
    let (flags, stack) = (call.a[0], call.a[1]);
    if flags & VM != 0 {
        args::hold(call.a[2], uapi::NUMBER);
        args::hold(call.a[3], uapi::NUMBER);
        // SAFETY: the program's call (the caller's promise).
        return unsafe { in_our_memory(call, stack) };
    }
    let mut pins = Pins::new();
    pins.pin(call.a[2], uapi::NUMBER);
    pins.pin(call.a[3], uapi::NUMBER);
    let mut a = call.a;
    (a[0], a[1]) = (flags & !VFORK, 0);
    // SAFETY: the program's call (the caller's promise), without CLONE_VM, CLONE_VFORK and a stack.
    unsafe { child(call, &a, flags, stack) }
}

/// `clone3`.
///
/// # Safety
///
/// `call` must be the program's.
#[inline(never)]
pub unsafe fn clone3(call: &mut Call) -> isize {
    let (at, bytes) = (call.a[0], call.a[1]);
    let mut words = [0usize; ARGS_BYTES_MAX / 8];
    let is_known = (ARGS_BYTES_MIN..=ARGS_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(8);
    let is_read = is_known && uaccess::get_words(at, &mut words[..bytes / 8]).is_ok();
    let (flags, stack, stack_bytes) = (
        words[field::FLAGS],
        words[field::STACK],
        words[field::STACK_BYTES],
    );
    if !is_read || (stack == 0) != (stack_bytes == 0) {
        // Let the kernel refuse it.
        // SAFETY: the program's call (the caller's promise).
        return unsafe { raw(call.nr, call.a) };
    }
    let top = stack.wrapping_add(stack_bytes);
    let numbers = [
        (field::PIDFD, 1),
        (field::CHILD_TID, 1),
        (field::PARENT_TID, 1),
        (field::SET_TID, words[field::SET_TID_COUNT].min(SET_TID_MAX)),
    ]
    .map(|(at, count)| (words[at], count * uapi::NUMBER));
    if flags & VM != 0 {
        if flags & (procs::CLEAR_SIGHAND | libc::CLONE_SIGHAND as usize) == procs::CLEAR_SIGHAND {
            // posix_spawn's child, whose faults canvas must serve until exec, which resets handlers anyway.
            // SAFETY: the structure of the program's call, which begins with the flags; the program leaves it alone
            // until the call returns.
            let _ = unsafe { uaccess::put(at, flags & !procs::CLEAR_SIGHAND) };
        }
        args::hold(at, bytes);
        for (at, bytes) in numbers {
            args::hold(at, bytes);
        }
        // SAFETY: the program's call (the caller's promise).
        return unsafe { in_our_memory(call, top) };
    }
    let mut pins = Pins::new();
    for (at, bytes) in numbers {
        pins.pin(at, bytes);
    }
    (
        words[field::FLAGS],
        words[field::STACK],
        words[field::STACK_BYTES],
    ) = (flags & !VFORK, 0, 0);
    let mut a = call.a;
    a[0] = words.as_ptr() as usize;
    // SAFETY: the program's call (the caller's promise), without CLONE_VM, CLONE_VFORK and a stack; `words` lives
    // across it.
    unsafe { child(call, &a, flags, top) }
}

/// Creates a thread, or another process in this memory, which returns on its own stack or, like vfork's, on this one.
///
/// # Safety
///
/// `call` must be the program's.
unsafe fn in_our_memory(call: &mut Call, top: usize) -> isize {
    args::hold(top.wrapping_sub(STACK_BYTES), STACK_BYTES);
    accounting::expect_native(THREAD_PAGES);
    match call.natively() {
        Some(answer) => answer,
        // SAFETY: the program's call (the caller's promise), from outside libc: the trap's handler makes it.
        None => unsafe { raw(call.nr, call.a) },
    }
}

/// Creates a child with memory of its own by the call `a`, on a copy of this stack; it continues on `stack` unless that
/// is 0.
///
/// # Safety
///
/// `a` must be the program's call, but for its stack and for CLONE_VFORK; `flags` are as the program wants them.
unsafe fn child(call: &mut Call, a: &[usize; 6], flags: usize, stack: usize) -> isize {
    // SAFETY: the program's call, which makes a process with memory of its own that continues here (the caller's
    // promise).
    let (r, child) = unsafe { procs::fork(call.nr, a, flags) };
    if r == 0 && stack != 0 {
        call.stack = stack;
    }
    if r > 0 && flags & VFORK != 0 {
        until_exec_or_death(child);
    }
    r
}

/// CLONE_VFORK without CLONE_VM: the parent waits until the child has another image or is dead. The kernel would wait
/// inside the call, during which the parent's other threads would be frozen.
fn until_exec_or_death(child: u64) {
    let mask = canvas_sys::signal::set_mask(u64::MAX);
    // The sign that the child lives disappears with its memory, and wakes nobody: poll it.
    while !life::is_gone(child) {
        proc::sleep_ns(WAIT_NS);
    }
    canvas_sys::signal::set_mask(mask);
}
