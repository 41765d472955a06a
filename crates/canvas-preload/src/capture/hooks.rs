//! Where every system call of libc arrives that canvas has an interest in.

use canvas_sys::Errno;
use canvas_sys::gate::raw;
use core::sync::atomic::Ordering;

use crate::api;
use crate::base::{
    call::{BEFORE_CLONE3, Call, NR_MAX},
    regions, state,
};
use crate::capture::filters;
use crate::memory::{args, brk, mm, remap};
use crate::paging::{accounting, devices, fork_accounting, native_swap, trace};
use crate::process::{altstack, procs, sig, users};
use crate::shared::{mapping, pages};

/// Nonzero where [`dispatch`] wants to see the call. Filled before any site is
/// patched, constant afterwards.
pub static mut WANTED: [u8; NR_MAX] = [0; NR_MAX];

/// Marks the calls that [`dispatch`] wants. Before anything is patched.
pub fn init() {
    // SAFETY: one thread, and the stub does not run yet.
    let wanted = unsafe { &mut *core::ptr::addr_of_mut!(WANTED) };
    args::init(|nr| wanted[nr] = 1);
    wanted[BEFORE_CLONE3] = 1;
    for nr in HOOKED {
        wanted[*nr as usize] = 1;
    }
}

/// Installs the second layer: calls that do not come from libc, with far arguments.
pub fn install_filter() -> Result<(), Errno> {
    // Calls of the table, and those with a hook of their own whose address is the window's.
    let mut masks = [(0u32, 0u8); 256];
    let mut n = 0;
    let own = [
        (libc::SYS_munmap, 1u8),
        (libc::SYS_mremap, 0b10001),
        (libc::SYS_mprotect, 1),
        (libc::SYS_madvise, 1),
        (libc::SYS_mlock, 1),
        (libc::SYS_mlock2, 1),
        (libc::SYS_munlock, 1),
        (libc::SYS_mincore, 0b101),
        (libc::SYS_mmap, 1),
        (libc::SYS_rt_sigaction, 0b110),
        (libc::SYS_rt_sigprocmask, 0b110),
        (libc::SYS_rt_sigsuspend, 1),
        (libc::SYS_execve, 0b111),
    ];
    let own = own.iter().map(|(nr, m)| (*nr as u32, *m));
    for (nr, mask) in args::pointer_masks().chain(own) {
        masks[n] = (nr, mask);
        n += 1;
    }
    canvas_sys::seccomp::install(&masks[..n], canvas_types::layout::bases())
}

/// Pages that a new thread touches at once: its stack, its signal stack, its part of the heap.
const THREAD_PAGES: i64 = 4;

const HOOKED: &[i64] = &[
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_pkey_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_mincore,
    libc::SYS_msync,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_mlockall,
    libc::SYS_munlockall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigsuspend,
    libc::SYS_sigaltstack,
    libc::SYS_close,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_close_range,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_fork,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
    libc::SYS_prlimit64,
    libc::SYS_io_uring_setup,
    libc::SYS_io_setup,
    libc::SYS_seccomp,
    libc::SYS_setuid,
    libc::SYS_setreuid,
    libc::SYS_setresuid,
    libc::SYS_set_robust_list,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

fn answer(r: Result<usize, Errno>) -> isize {
    match r {
        Ok(v) => v as isize,
        Err(e) => -(e.0 as isize),
    }
}

/// Makes, or stands in for, a system call of the program; returns what the kernel would.
///
/// # Safety
/// Called by the stub only, with the registers of a system call.
pub unsafe extern "C" fn dispatch(call: *const Call) -> isize {
    // SAFETY: the stub's frame, which lives until this returns, and which nobody else writes to.
    let call = unsafe { &*call };
    let (nr, a) = (call.nr, &call.a);
    let as_it_is = || {
        // SAFETY: what the program asked for, with its own arguments: it answers for its memory. Calls that
        // could reach ours (mapping calls on our addresses) have a hook.
        unsafe { raw(nr, *a) }
    };
    let ours = |r: Option<Result<usize, Errno>>| {
        // SAFETY: the program's call.
        r.or_else(|| unsafe { mapping::call(nr, a) })
            .map_or_else(as_it_is, answer)
    };
    match nr as i64 {
        // A new thread's first pushes come before it can have a signal stack.
        nr if nr as usize == BEFORE_CLONE3 => {
            args::hold_new_stack(a[0]);
            accounting::expect_native(THREAD_PAGES);
            0
        }
        libc::SYS_mmap => ours(mm::mmap(a)),
        libc::SYS_munmap => ours(mm::munmap(a)),
        libc::SYS_mremap => ours(remap::mremap(a)),
        libc::SYS_mprotect | libc::SYS_pkey_mprotect => ours(mm::mprotect(a)),
        libc::SYS_madvise => ours(mm::madvise(a)),
        libc::SYS_brk => brk::brk(a) as isize,
        // SAFETY: the program's call.
        libc::SYS_mincore => ours(unsafe { mm::mincore(a) }),
        libc::SYS_msync if regions::is_ours(a[0]) => 0,
        libc::SYS_mlock => ours(mm::mlock(a[0], a[1], true, false)),
        libc::SYS_mlock2 => ours(mm::mlock(a[0], a[1], true, a[2] & 1 != 0)),
        libc::SYS_munlock => ours(mm::mlock(a[0], a[1], false, false)),
        // MCL_CURRENT alone acts; the kernel's own would lock the whole reservation.
        libc::SYS_mlockall if a[0] & !7 != 0 || a[0] == 0 => -(libc::EINVAL as isize),
        libc::SYS_mlockall => {
            native_swap::lock(true);
            if a[0] & libc::MCL_CURRENT as usize != 0 {
                answer(mm::mlockall(true))
            } else {
                0
            }
        }
        libc::SYS_munlockall => {
            native_swap::lock(false);
            answer(mm::mlockall(false))
        }
        // SAFETY: the program's call.
        libc::SYS_rt_sigaction => unsafe { sig::rt_sigaction(a) },
        // SAFETY: the program's call.
        libc::SYS_rt_sigprocmask => unsafe { sig::rt_sigprocmask(a) },
        libc::SYS_rt_sigsuspend
        | libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_epoll_pwait
        // SAFETY: the program's call.
        | libc::SYS_epoll_pwait2 => unsafe { sig::with_wait_mask(nr, a) },
        // SAFETY: the program's call.
        libc::SYS_sigaltstack => unsafe { sig::sigaltstack(a) },
        // The first call of a new thread's life in glibc, and the last.
        libc::SYS_set_robust_list if !state::THREAD_MODE.load(Ordering::Relaxed) => {
            altstack::give();
            as_it_is()
        }
        libc::SYS_exit => {
            altstack::thread_exit();
            api::thread_ends();
            as_it_is()
        }
        // SAFETY: the program's call.
        libc::SYS_close => unsafe { procs::close(a) },
        // SAFETY: the program's call.
        libc::SYS_dup2 | libc::SYS_dup3 => unsafe { procs::dup_onto(nr, a) },
        // SAFETY: the program's call.
        libc::SYS_close_range => unsafe { procs::close_range(a) },
        // A new thread or a vfork child returns on another stack, or on ours: not through here.
        // SAFETY: the program's call, which shares no memory.
        libc::SYS_clone if a[0] & libc::CLONE_VM as usize == 0 => unsafe { procs::fork(nr, a) },
        // SAFETY: the program's call.
        libc::SYS_fork => unsafe { procs::fork(nr, a) },
        // Not libc's own wrapper, which goes past the stub: a call by syscall(2).
        libc::SYS_clone3 => {
            let _pins = args::pin_range(a[0], a[1]);
            if args::clone3_is_fork(a[0]) {
                // SAFETY: the program's call, which shares neither memory nor stack, as was just looked at.
                unsafe { procs::fork(nr, a) }
            } else {
                as_it_is()
            }
        }
        // SAFETY: the program's call.
        libc::SYS_execve => unsafe { procs::execve(a) },
        // SAFETY: the program's call.
        libc::SYS_execveat => unsafe { procs::execveat(a) },
        libc::SYS_exit_group => {
            trace::at_exit();
            pages::before_exit();
            fork_accounting::before_exit();
            as_it_is()
        }
        // SAFETY: the program's call.
        libc::SYS_getrlimit => unsafe { procs::prlimit(0, a[0], 0, a[1]) },
        // SAFETY: the program's call.
        libc::SYS_setrlimit => unsafe { procs::prlimit(0, a[0], a[1], 0) },
        // SAFETY: the program's call.
        libc::SYS_prlimit64 => unsafe { procs::prlimit(a[0], a[1], a[2], a[3]) },
        // The kernel would access far memory outside of any call that we see: programs fall back.
        libc::SYS_io_uring_setup | libc::SYS_io_setup
            if !state::THREAD_MODE.load(Ordering::Relaxed) =>
        {
            -(libc::ENOSYS as isize)
        }
        libc::SYS_ioctl if devices::refuses(a) => -(libc::EACCES as isize),
        libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid => {
            let r = as_it_is();
            if r == 0 {
                users::look();
            }
            r
        }
        libc::SYS_seccomp => filters::seccomp(a),
        libc::SYS_prctl if a[0] as i32 == libc::PR_SET_SECCOMP => filters::prctl(a),
        // SAFETY: the program's call.
        _ => unsafe { args::run(nr, a) },
    }
}
