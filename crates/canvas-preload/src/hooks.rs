//! Where every system call of libc arrives that canvas has an interest in.

use canvas_sys::Errno;
use canvas_sys::gate::raw;
use core::sync::atomic::Ordering;

use crate::stub::{Call, WANTED};
use crate::{account, altstack, args, mm, procs, remap, shared, shared_map, sig, state, trace};

/// Marks the calls that [`dispatch`] wants. Before anything is patched.
pub fn init() {
    // SAFETY: one thread, and the stub does not run yet.
    let wanted = unsafe { &mut *core::ptr::addr_of_mut!(WANTED) };
    args::init(|nr| wanted[nr] = 1);
    wanted[crate::stub::BEFORE_CLONE3] = 1;
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
    canvas_sys::seccomp::install(&masks[..n])
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
    // SAFETY: the stub's frame.
    let call = unsafe { &*call };
    let (nr, a) = (call.nr, &call.a);
    let as_it_is = || {
        // SAFETY: the program's call.
        unsafe { raw(nr, *a) }
    };
    let ours = |r: Option<Result<usize, Errno>>| {
        r.or_else(|| shared_map::call(nr, a))
            .map_or_else(as_it_is, answer)
    };
    match nr as i64 {
        // A new thread's first pushes come before it can have a signal stack.
        nr if nr as usize == crate::stub::BEFORE_CLONE3 => {
            args::hold_new_stack(a[0]);
            account::expect_native(THREAD_PAGES);
            0
        }
        libc::SYS_mmap => ours(mm::mmap(a)),
        libc::SYS_munmap => ours(mm::munmap(a)),
        libc::SYS_mremap => ours(remap::mremap(a)),
        libc::SYS_mprotect | libc::SYS_pkey_mprotect => ours(mm::mprotect(a)),
        libc::SYS_madvise => ours(mm::madvise(a)),
        libc::SYS_brk => mm::brk(a) as isize,
        libc::SYS_mincore => ours(mm::mincore(a)),
        libc::SYS_msync if mm::is_ours(a[0]) => 0,
        libc::SYS_mlock => ours(mm::mlock(a[0], a[1], true, false)),
        libc::SYS_mlock2 => ours(mm::mlock(a[0], a[1], true, a[2] & 1 != 0)),
        libc::SYS_munlock => ours(mm::mlock(a[0], a[1], false, false)),
        // MCL_CURRENT alone acts; the kernel's own would lock the whole reservation.
        libc::SYS_mlockall if a[0] & !7 != 0 || a[0] == 0 => -(libc::EINVAL as isize),
        libc::SYS_mlockall => {
            if a[0] & libc::MCL_CURRENT as usize != 0 {
                answer(mm::mlockall(true))
            } else {
                0
            }
        }
        libc::SYS_munlockall => answer(mm::mlockall(false)),
        libc::SYS_rt_sigaction => sig::rt_sigaction(a),
        libc::SYS_rt_sigprocmask => sig::rt_sigprocmask(a),
        libc::SYS_rt_sigsuspend
        | libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2 => sig::with_wait_mask(nr, a),
        libc::SYS_sigaltstack => sig::sigaltstack(a),
        // The first call of a new thread's life in glibc, and the last.
        libc::SYS_set_robust_list if !state::THREAD_MODE.load(Ordering::Relaxed) => {
            altstack::give();
            as_it_is()
        }
        libc::SYS_exit => {
            altstack::thread_exit();
            as_it_is()
        }
        libc::SYS_close => procs::close(a),
        libc::SYS_dup2 | libc::SYS_dup3 => procs::dup_onto(nr, a),
        libc::SYS_close_range => procs::close_range(a),
        // A new thread or a vfork child returns on another stack, or on ours: not through here.
        libc::SYS_clone if a[0] & libc::CLONE_VM as usize == 0 => procs::fork(nr, a),
        libc::SYS_fork => procs::fork(nr, a),
        // Not libc's own wrapper, which goes past the stub: a call by syscall(2).
        libc::SYS_clone3 => {
            let _pins = args::pin_range(a[0], a[1]);
            if args::clone3_is_fork(a[0]) {
                procs::fork(nr, a)
            } else {
                as_it_is()
            }
        }
        libc::SYS_execve => procs::execve(a),
        libc::SYS_execveat => procs::execveat(a),
        libc::SYS_exit_group => {
            trace::at_exit();
            shared::before_exit();
            as_it_is()
        }
        libc::SYS_getrlimit => procs::prlimit(0, a[0], 0, a[1]),
        libc::SYS_setrlimit => procs::prlimit(0, a[0], a[1], 0),
        libc::SYS_prlimit64 => procs::prlimit(a[0], a[1], a[2], a[3]),
        // The kernel would access far memory outside of any call that we see: programs fall back.
        libc::SYS_io_uring_setup | libc::SYS_io_setup
            if !state::THREAD_MODE.load(Ordering::Relaxed) =>
        {
            -(libc::ENOSYS as isize)
        }
        _ => args::run(nr, a),
    }
}
