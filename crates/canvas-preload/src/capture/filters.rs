//! The program's own seccomp filters. If a filter forbids calls that canvas makes, this is reported when the filter is
//! installed: later there would be no way to.

use canvas_sys::gate::{self, raw};
use canvas_sys::{mem, pagemap, seccomp, uffd};
use canvas_types::layout;

use crate::far_tier::{lanes, pairs};
use crate::memory::{pins::Pins, uaccess};
use crate::paging::native_swap;
use crate::process::{exec, procs};
use crate::report;
use crate::runtime::{fds, state};

/// The kernel's BPF_MAXINSNS.
const OPS_MAX: usize = 4096;

/// Calls without which far pages cannot come back, with typical arguments.
fn needed() -> [Call; 7] {
    let at = layout::window_base();
    let rw = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let own = state::uffd().0 as usize;
    let set_mask = libc::SIG_SETMASK as usize;
    [
        (libc::SYS_ioctl, "ioctl", [own, uffd::IOC_COPY, at, 0, 0, 0]),
        (
            libc::SYS_rt_sigprocmask,
            "rt_sigprocmask",
            [set_mask, at, at, 8, 0, 0],
        ),
        (
            libc::SYS_madvise,
            "madvise",
            [at, 4096, libc::MADV_DONTNEED as usize, 0, 0, 0],
        ),
        (libc::SYS_mprotect, "mprotect", [at, 4096, rw, 0, 0, 0]),
        (
            libc::SYS_futex,
            "futex",
            [at, libc::FUTEX_WAIT as usize, 0, at, 0, 0],
        ),
        (libc::SYS_nanosleep, "nanosleep", [at, 0, 0, 0, 0, 0]),
        (libc::SYS_rt_sigreturn, "rt_sigreturn", [0; 6]),
    ]
}

/// Calls that page out native memory; without them it stays.
fn of_native_swap() -> [Call; 4] {
    let at = layout::window_base();
    let pageout = libc::MADV_PAGEOUT as usize;
    [
        (libc::SYS_madvise, "madvise", [at, 4096, pageout, 0, 0, 0]),
        (libc::SYS_openat, "openat", [AT_FDCWD, at, CLOEXEC, 0, 0, 0]),
        (libc::SYS_pread64, "pread64", [3, at, 8, 0, 0, 0]),
        (libc::SYS_ioctl, "ioctl", [3, pagemap::SCAN, at, 0, 0, 0]),
    ]
}

/// Calls by which faults read from donors directly; without them the agent reads.
fn of_lanes() -> [Call; 8] {
    let at = layout::window_base();
    let (stream, dup) = (libc::SOCK_STREAM as usize, libc::F_DUPFD_CLOEXEC as usize);
    let kind = stream | CLOEXEC | libc::SOCK_NONBLOCK as usize;
    let (socket, cookie) = (libc::SOL_SOCKET as usize, libc::SO_COOKIE as usize);
    let patience = libc::SO_RCVTIMEO as usize;
    [
        (
            libc::SYS_socket,
            "socket",
            [libc::AF_INET as usize, kind, 0, 0, 0, 0],
        ),
        (libc::SYS_connect, "connect", [100, at, 16, 0, 0, 0]),
        (
            libc::SYS_sendto,
            "sendto",
            [100, at, 50, libc::MSG_NOSIGNAL as usize, 0, 0],
        ),
        (libc::SYS_recvfrom, "recvfrom", [100, at, 32, 0, 0, 0]),
        (
            libc::SYS_getsockopt,
            "getsockopt",
            [100, socket, cookie, at, at, 0],
        ),
        (
            libc::SYS_setsockopt,
            "setsockopt",
            [100, socket, patience, at, 16, 0],
        ),
        (libc::SYS_fcntl, "fcntl", [100, dup, 100, 0, 0, 0]),
        (
            libc::SYS_sched_getaffinity,
            "sched_getaffinity",
            [0, 1024, at, 0, 0, 0],
        ),
    ]
}

const AT_FDCWD: usize = libc::AT_FDCWD as usize;
const CLOEXEC: usize = libc::O_CLOEXEC as usize;

/// `seccomp(SECCOMP_SET_MODE_STRICT)` and `seccomp(SECCOMP_SET_MODE_FILTER)`, as [`set`] takes them.
const STRICT: usize = 0;
const FILTER: usize = 1;

/// `seccomp(SECCOMP_SET_MODE_*)`.
///
/// # Safety
///
/// `a` must be the arguments of the program's call.
pub unsafe fn seccomp(a: &[usize; 6]) -> isize {
    // SAFETY: the program's call (the caller's promise).
    unsafe { set(libc::SYS_seccomp as usize, a, a[0], a[2]) }
}

/// `prctl(PR_SET_SECCOMP)`.
///
/// # Safety
///
/// `a` must be the arguments of the program's call.
pub unsafe fn prctl(a: &[usize; 6]) -> isize {
    let operation = match a[1] as u32 {
        libc::SECCOMP_MODE_STRICT => STRICT,
        libc::SECCOMP_MODE_FILTER => FILTER,
        _ => usize::MAX,
    };
    // SAFETY: the program's call (the caller's promise).
    unsafe { set(libc::SYS_prctl as usize, a, operation, a[2]) }
}

/// Whether this `prctl` sends the thread's calls to the program's SIGSYS handler (syscall user dispatch).
pub fn dispatches(a: &[usize; 6]) -> bool {
    const SET_SYSCALL_USER_DISPATCH: i32 = 59;
    a[0] as i32 == SET_SYSCALL_USER_DISPATCH && a[1] != 0
}

/// Answers it like a kernel without this feature: calls that canvas makes in that thread, even during a fault, would be
/// sent there, too.
pub fn refuse_dispatch() -> isize {
    report!(
        once: "this program's syscall user dispatch is refused (EINVAL): it would catch the calls that bring far \
         pages back; run what depends on it (Windows programs that make system calls themselves) without canvas"
    );
    -(libc::EINVAL as isize)
}

/// Makes the call, with its filter made present.
///
/// # Safety
///
/// `a` must be the arguments of the program's call.
unsafe fn set(nr: usize, a: &[usize; 6], operation: usize, filter: usize) -> isize {
    let mut pins = Pins::new();
    match operation {
        STRICT => {
            report!(
                "this program's strict mode of seccomp is refused (EINVAL), because no far page could come back under it; \
                 have the program use a filter, or run it without canvas"
            );
            return -(libc::EINVAL as isize);
        }
        FILTER => {
            // Which calls a device's driver makes is unknown.
            pairs::forbid();
            pins.pin(filter, 16);
            // struct sock_fprog: a length of 16 bits, a pointer.
            let mut words = [0usize; 2];
            if uaccess::get_words(filter, &mut words).is_ok() {
                let [len, ops] = [words[0] as u16 as usize, words[1]];
                pins.pin(ops, len * 8);
                if let Some(name) = forbidden(ops, len, &needed()) {
                    tell(name);
                }
                let unshare = [0, 0, libc::CLOSE_RANGE_UNSHARE as usize, 0, 0, 0];
                let leaving = (libc::SYS_close_range, "close_range", unshare);
                if forbidden(ops, len, &[leaving]).is_some() {
                    fds::forbid_leaving();
                }
                if forbidden(ops, len, &of_lanes()).is_some() {
                    lanes::forbid();
                }
                if forbidden(ops, len, &of_native_swap()).is_some() {
                    native_swap::forbid();
                }
                if first(ops, len, &of_start(), seccomp::ends).is_some() {
                    exec::forbid();
                }
                // A vfork child restricts only itself.
                let own = !state::PROCESS.is_vfork_child();
                if own && first(ops, len, &[OF_CHILD], seccomp::ends).is_some() {
                    procs::forbid_children();
                }
            }
        }
        _ => {}
    }
    // SAFETY: the program's call (the caller's promise).
    unsafe { raw(nr, *a) }
}

/// A call of canvas: number, name, arguments.
type Call = (i64, &'static str, [usize; 6]);

/// The call that a fork's child also makes at its start.
const OF_CHILD: Call = (
    libc::SYS_userfaultfd,
    "userfaultfd",
    [(libc::O_CLOEXEC | libc::O_NONBLOCK) as usize, 0, 0, 0, 0, 0],
);

/// Calls made at the start of a managed program, in addition to those that the C library makes anyway. If one fails,
/// the program stays unmanaged; if the filter would kill the program for it, the library must not be loaded.
fn of_start() -> [Call; 10] {
    let at = layout::window_base();
    [
        OF_CHILD,
        (libc::SYS_ioctl, "ioctl", [100, uffd::IOC_COPY, at, 0, 0, 0]),
        (
            libc::SYS_memfd_create,
            "memfd_create",
            [at, CLOEXEC, 0, 0, 0, 0],
        ),
        (
            libc::SYS_prlimit64,
            "prlimit64",
            [0, libc::RLIMIT_AS as usize, 0, at, 0, 0],
        ),
        (
            libc::SYS_fcntl,
            "fcntl",
            [100, libc::F_DUPFD_CLOEXEC as usize, 100, 0, 0, 0],
        ),
        (libc::SYS_sigaltstack, "sigaltstack", [at, 0, 0, 0, 0, 0]),
        (libc::SYS_pidfd_open, "pidfd_open", [100, 0, 0, 0, 0, 0]),
        (libc::SYS_getrandom, "getrandom", [at, 16, 0, 0, 0, 0]),
        (libc::SYS_seccomp, "seccomp", [FILTER, 0, at, 0, 0, 0]),
        (
            libc::SYS_prctl,
            "prctl",
            [libc::PR_GET_SECCOMP as usize, at, 0, 0, 0, 0],
        ),
    ]
}

/// The first of `calls` that a filter of `len` operations at `at` does not let through.
fn forbidden(at: usize, len: usize, calls: &[Call]) -> Option<&'static str> {
    first(at, len, calls, |answer| !seccomp::allows(answer))
}

/// The first of `calls` for which `such` accepts the filter's answer.
fn first(
    at: usize,
    len: usize,
    calls: &[Call],
    such: impl Fn(u32) -> bool,
) -> Option<&'static str> {
    if !(1..=OPS_MAX).contains(&len) {
        return None;
    }
    let copy = Copy::of(at, len)?;
    calls.iter().find_map(|(nr, name, args)| {
        let ip = gate::return_address();
        let answer = seccomp::answer(copy.ops(), *nr, *args, ip)?;
        such(answer).then_some(*name)
    })
}

fn tell(name: &str) {
    report!(
        once: "this program's seccomp filter forbids {name}, which brings far pages back: the next far page \
         may end it; allow {name}, or run it without canvas"
    );
}

/// A copy of a filter in canvas's own memory.
struct Copy {
    at: usize,
    len: usize,
}

impl Copy {
    fn of(at: usize, len: usize) -> Option<Copy> {
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let to = mem::map_lazy(0, len * 8, rw).ok()?;
        let copy = Copy { at: to, len };
        for i in 0..len {
            let mut word = [0usize];
            uaccess::get_words(at.checked_add(i * 8)?, &mut word).ok()?;
            let op = seccomp::Op::of_word(word[0] as u64);
            // SAFETY: the mapping made just now has room for `len` operations of 8 bytes, and starts on a page.
            unsafe { (copy.at as *mut seccomp::Op).add(i).write(op) };
        }
        Some(copy)
    }
    fn ops(&self) -> &[seccomp::Op] {
        // SAFETY: `of` has written `len` operations to the mapping, which is this value's until it is dropped.
        unsafe { core::slice::from_raw_parts(self.at as *const seccomp::Op, self.len) }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // SAFETY: the mapping that `of` made; what borrows from it has borrowed from `self`.
        let _ = unsafe { mem::unmap(self.at, self.len * 8) };
    }
}
