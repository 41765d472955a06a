//! Signals at the level of system calls: the kernel's own structures, not libc's.

use crate::gate::{Errno, sys2, sys4};
use core::arch::naked_asm;

/// The calling thread's signal stack, as the kernel has it.
pub fn stack() -> libc::stack_t {
    let mut there = libc::stack_t {
        ss_sp: core::ptr::null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    };
    // SAFETY: the kernel writes `there`.
    let _ = unsafe { sys2(libc::SYS_sigaltstack, 0, &raw mut there as usize) };
    there
}

/// The kernel's `struct sigaction` on x86-64.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct KernelSigaction {
    /// Handler, or SIG_DFL (0) / SIG_IGN (1).
    pub handler: usize,
    /// Bits such as `SA_SIGINFO` and `SA_ONSTACK`.
    pub flags: u64,
    /// Where the handler returns to.
    pub restorer: usize,
    /// Signals blocked while it runs.
    pub mask: u64,
}
const _: () = assert!(core::mem::size_of::<KernelSigaction>() == 32);

impl KernelSigaction {
    /// The default action.
    pub const DEFAULT: KernelSigaction = KernelSigaction {
        handler: libc::SIG_DFL,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
}

/// The kernel's flag that says that `restorer` is set.
pub const SA_RESTORER: u64 = 0x0400_0000;

/// The bit of `signal` in a signal set.
pub const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Debuggers and unwinders recognise the frame of a signal by exactly these bytes.
#[unsafe(naked)]
unsafe extern "C" fn restorer() {
    naked_asm!(".byte 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0", "syscall")
}

/// A handler for `SA_SIGINFO`.
pub type Handler = unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Installs `handler` for `signal` with all signals blocked while it runs, on the alternate stack if the thread has
/// one, and with the additional `flags`.
///
/// # Safety
///
/// From now on `handler` runs wherever the signal interrupts a thread, with that thread's locks held and its data half
/// written: it must be sound there.
pub unsafe fn install(signal: i32, handler: Handler, flags: u64) -> Result<KernelSigaction, Errno> {
    let new = KernelSigaction {
        handler: handler as *const () as usize,
        flags: libc::SA_SIGINFO as u64 | libc::SA_ONSTACK as u64 | SA_RESTORER | flags,
        restorer: restorer as *const () as usize,
        mask: u64::MAX,
    };
    // SAFETY: for `handler` the caller answers; `restorer` is what the kernel expects of one.
    unsafe { exchange(signal, Some(&new)) }
}

/// Sets the action of `signal` to `new`, if given; returns the previous one.
///
/// # Safety
///
/// As for [`install`], of the handler of `new`.
pub unsafe fn exchange(
    signal: i32,
    new: Option<&KernelSigaction>,
) -> Result<KernelSigaction, Errno> {
    let mut old = KernelSigaction::DEFAULT;
    // SAFETY: the kernel reads `new`, if there is one, and writes `old`; for the handler the caller answers.
    unsafe {
        sys4(
            libc::SYS_rt_sigaction,
            signal as usize,
            new.map_or(0, |n| n as *const KernelSigaction as usize),
            &raw mut old as usize,
            8,
        )
    }?;
    Ok(old)
}

/// Sends `signal` with `info` (a `siginfo_t`) to the thread `tid` of this process.
pub fn queue(tid: u32, signal: i32, info: &[u64; 16]) -> Result<(), Errno> {
    // SAFETY: the kernel reads a siginfo_t, 128 bytes, from `info`.
    unsafe {
        sys4(
            libc::SYS_rt_tgsigqueueinfo,
            crate::proc::pid() as usize,
            tid as usize,
            signal as usize,
            info.as_ptr() as usize,
        )
    }
    .map(|_| ())
}

/// Sets `signal` to its default action.
pub fn set_default(signal: i32) {
    set_plain(signal, libc::SIG_DFL);
}

/// Makes this process ignore `signal`.
pub fn set_ignored(signal: i32) {
    set_plain(signal, libc::SIG_IGN);
}

/// Sets `action`, SIG_DFL or SIG_IGN, which run no code.
fn set_plain(signal: i32, action: usize) {
    let new = KernelSigaction {
        handler: action,
        ..KernelSigaction::DEFAULT
    };
    // SAFETY: such an action has no handler.
    let _ = unsafe { exchange(signal, Some(&new)) };
}

/// Replaces the thread's mask; returns the old one.
#[inline]
pub fn set_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: the kernel reads `mask` and writes `old`, 8 bytes each.
    let _ = unsafe {
        sys4(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK as usize,
            &raw const mask as usize,
            &raw mut old as usize,
            8,
        )
    };
    old
}
