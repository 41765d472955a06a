//! `unshare` and `setns`. The kernel grants some of their effects only to programs with one thread, and after others no
//! thread can be created: canvas's threads must not be the reason for a refusal.

use canvas_sys::{gate::raw, sys3};

use crate::process::threads;

/// Flags that `unshare` grants only to programs with one thread.
const UNSHARED_ALONE: usize =
    (libc::CLONE_NEWUSER | libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD) as usize;
/// Likewise for `setns`; a mount namespace only to processes that share their directories with no other.
const ENTERED_ALONE: usize = (libc::CLONE_NEWUSER | libc::CLONE_NEWNS) as usize | NEWTIME;
const NEWTIME: usize = 0x80;
/// Once children will be in another PID namespace, no thread can be created.
const NEWPID: usize = libc::CLONE_NEWPID as usize;
/// NS_GET_NSTYPE.
const IOC_TYPE: usize = 0xb703;

/// `unshare`.
///
/// # Safety
///
/// `a` must be the registers of the program's call.
pub unsafe fn unshare(a: &[usize; 6]) -> isize {
    in_two(a[0], UNSHARED_ALONE, |flags| {
        let mut a = *a;
        a[0] = flags;
        // SAFETY: the program's call, or a part of it (the caller's promise).
        unsafe { raw(libc::SYS_unshare as usize, a) }
    })
}

/// `setns`.
///
/// # Safety
///
/// `a` must be the registers of the program's call.
pub unsafe fn setns(a: &[usize; 6]) -> isize {
    let mut kinds = a[1];
    if kinds == 0 {
        // SAFETY: this request takes no address.
        let kind = unsafe { sys3(libc::SYS_ioctl, a[0], IOC_TYPE, 0) };
        kinds = kind.unwrap_or(0);
    }
    in_two(kinds, ENTERED_ALONE, |kinds| {
        let mut a = *a;
        a[1] = kinds;
        // SAFETY: the program's call, or a part of it (the caller's promise).
        unsafe { raw(libc::SYS_setns as usize, a) }
    })
}

/// Makes a call for the namespaces `flags`, without canvas's threads if one of `alone` is wanted. The PID namespace
/// comes last, because canvas's threads are restarted before.
fn in_two(flags: usize, alone: usize, call: impl Fn(usize) -> isize) -> isize {
    if flags & alone == 0 {
        return call(flags);
    }
    let r = threads::alone(|| call(flags & !NEWPID));
    match flags & NEWPID {
        0 => r,
        _ if r < 0 => r,
        pid => call(pid),
    }
}
