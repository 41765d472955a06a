//! `unshare` and `setns`. Some of what they do the kernel grants to programs of one thread only, and no thread can be
//! made after others: ours must not be what the program is refused for.

use canvas_sys::{gate::raw, sys3};

use crate::process::threads;

/// What `unshare` grants to programs of one thread.
const UNSHARED_ALONE: usize =
    (libc::CLONE_NEWUSER | libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD) as usize;
/// What `setns` does; a mount namespace to those that share no directories with anybody.
const ENTERED_ALONE: usize = (libc::CLONE_NEWUSER | libc::CLONE_NEWNS) as usize | NEWTIME;
const NEWTIME: usize = 0x80;
/// Where children are to be in another one there can be no further threads.
const NEWPID: usize = libc::CLONE_NEWPID as usize;
/// NS_GET_NSTYPE.
const IOC_TYPE: usize = 0xb703;

/// `unshare`.
///
/// # Safety
/// `a` must be the registers of the program's call.
pub unsafe fn unshare(a: &[usize; 6]) -> isize {
    in_two(a[0], UNSHARED_ALONE, |flags| {
        let mut a = *a;
        a[0] = flags;
        // SAFETY: the program's call, or a part of it.
        unsafe { raw(libc::SYS_unshare as usize, a) }
    })
}

/// `setns`.
///
/// # Safety
/// `a` must be the registers of the program's call.
pub unsafe fn setns(a: &[usize; 6]) -> isize {
    let mut kinds = a[1];
    if kinds == 0 {
        // SAFETY: asks what namespace a descriptor is for.
        let kind = unsafe { sys3(libc::SYS_ioctl, a[0], IOC_TYPE, 0) };
        kinds = kind.unwrap_or(0);
    }
    in_two(kinds, ENTERED_ALONE, |kinds| {
        let mut a = *a;
        a[1] = kinds;
        // SAFETY: the program's call, or a part of it.
        unsafe { raw(libc::SYS_setns as usize, a) }
    })
}

/// Makes a call for the namespaces `flags`, without our threads if one of `alone` is wanted; the PID namespace is last,
/// because our threads come back before.
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
