//! Signals at the system call's level: the kernel's own structures, not libc's.

use crate::gate::{Errno, sys4};

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

/// The kernel's flag that says that `restorer` is set.
pub const SA_RESTORER: u64 = 0x0400_0000;

/// The bit of `signal` in a signal set.
pub const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

#[unsafe(naked)]
unsafe extern "C" fn restorer() {
    core::arch::naked_asm!("mov eax, 15", "syscall")
}

/// Installs `handler` for `signal` with all signals blocked while it runs, on the alternate stack
/// if the thread has one.
pub fn install(
    signal: i32,
    handler: unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void),
) -> Result<KernelSigaction, Errno> {
    let new = KernelSigaction {
        handler: handler as *const () as usize,
        flags: libc::SA_SIGINFO as u64 | libc::SA_ONSTACK as u64 | SA_RESTORER,
        restorer: restorer as *const () as usize,
        mask: u64::MAX,
    };
    let mut old = KernelSigaction::default();
    // SAFETY: both structures live across the call; the handler is a valid function.
    unsafe {
        sys4(
            libc::SYS_rt_sigaction,
            signal as usize,
            &raw const new as usize,
            &raw mut old as usize,
            8,
        )
    }?;
    Ok(old)
}

/// Sets `signal` to its default action.
pub fn set_default(signal: i32) {
    set_plain(signal, libc::SIG_DFL);
}

/// Has `signal` ignored.
pub fn set_ignored(signal: i32) {
    set_plain(signal, libc::SIG_IGN);
}

/// `action`: SIG_DFL or SIG_IGN, which run no code.
fn set_plain(signal: i32, action: usize) {
    let new = KernelSigaction {
        handler: action,
        restorer: restorer as *const () as usize,
        flags: SA_RESTORER,
        ..Default::default()
    };
    // SAFETY: the structure lives across the call.
    let _ = unsafe {
        sys4(
            libc::SYS_rt_sigaction,
            signal as usize,
            &raw const new as usize,
            0,
            8,
        )
    };
}

/// Replaces the thread's mask; returns the old one.
#[inline]
pub fn set_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: both sets live across the call.
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
