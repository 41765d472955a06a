//! Dispatches the system calls of libc that canvas handles.

use canvas_sys::gate::{answer, raw};
use canvas_sys::seccomp::{self, Scope};
use canvas_sys::{Errno, proc};
use canvas_types::layout::{in_window, may_be_far};

use crate::api;
use crate::capture::filters;
use crate::memory::{
    advice,
    args::{self, Make},
    brk,
    calls::{self, Hook, Memory, Process, Signal},
    lock, mm, native, others, remap, uaccess,
};
use crate::paging::{devices, freeze};
use crate::process::{
    altstack, cancel, clone, exec, listing, namespaces, procs, sig, threads, users,
};
use crate::runtime::{call::Call, fds, state};
use crate::shared::mapping;

/// Installs the second layer: a filter for calls that do not come from libc.
pub fn install_filter(scope: Scope) -> Result<(), Errno> {
    let calls = match scope {
        Scope::Pointers => &calls::FILTERED[..],
        Scope::Memory => &calls::FILTERED_OF_MEMORY[..],
    };
    seccomp::install(scope, calls, canvas_types::layout::bases())
}

/// Makes a call of the program unchanged.
///
/// # Safety
///
/// `nr` and `a` must be the program's call.
unsafe fn as_it_is(nr: usize, a: &[usize; 6]) -> isize {
    // SAFETY: the program's call (the caller's promise).
    unsafe { raw(nr, *a) }
}

/// Makes, or emulates, a system call of the program; returns what the kernel would.
///
/// # Safety
///
/// Called by the stub only, with the registers of a system call.
pub unsafe extern "C" fn dispatch(call: *mut Call) -> isize {
    // SAFETY: the stub's frame, which lives until this returns, and which nobody else writes to.
    let there = unsafe { &mut *call };
    if !in_window(call as usize) || keeps_its_stack(there) || altstack::is_on_own() {
        // SAFETY: the program's call (the caller's promise).
        return unsafe { answer_call(there) };
    }
    // The stack is a coroutine's in managed memory: its pages can be evicted at any moment, even while faults cannot be
    // served. Run on a stack of canvas.
    let mut answer = 0;
    // SAFETY: the program's call (the caller's promise).
    altstack::run_on_ours(call as usize, || answer = unsafe { answer_call(there) });
    answer
}

/// Calls that do not return, or from which a child could return on its parent's stack.
fn keeps_its_stack(call: &Call) -> bool {
    match call.nr as i64 {
        libc::SYS_exit | libc::SYS_exit_group | libc::SYS_vfork => true,
        libc::SYS_clone | libc::SYS_clone3 => call.back == 0,
        _ => false,
    }
}

/// # Safety
///
/// `call` must be the program's call.
unsafe fn answer_call(call: &mut Call) -> isize {
    let (nr, a) = (call.nr, &call.a);
    // SAFETY: where the stub's trampoline continues, or 0.
    let make = match unsafe { cancel::can_cancel(call.back) } {
        true => Make::Cancelled(cancel::call),
        false => Make::AsItIs,
    };
    // SAFETY: each hook gets the program's call (the caller's promise).
    unsafe {
        match calls::row(nr).and_then(|row| row.hook) {
            Some(Hook::Memory(which)) => memory(which, nr, a),
            Some(Hook::Signal(which)) => signals(which, nr, a, make),
            Some(Hook::Process(Process::Clone)) => clone::clone(call),
            Some(Hook::Process(Process::Clone3)) => clone::clone3(call),
            Some(Hook::Process(which)) => process(which, nr, a, make),
            None => args::run(nr, a, make),
        }
    }
}

/// Serves calls about memory.
///
/// # Safety
///
/// `nr` and `a` must be the program's call.
unsafe fn memory(which: Memory, nr: usize, a: &[usize; 6]) -> isize {
    let ours = |r: Option<Result<usize, Errno>>| {
        // SAFETY: the program's call (the caller's promise), which canvas leaves to the kernel if neither serves it.
        r.or_else(|| unsafe { mapping::call(nr, a) })
            .map_or_else(|| unsafe { as_it_is(nr, a) }, answer)
    };
    match which {
        // SAFETY: the program's call (the caller's promise).
        Memory::Mmap => ours(unsafe { mm::mmap(a) }),
        Memory::Munmap => ours(mm::munmap(a)),
        // SAFETY: the program's call (the caller's promise).
        Memory::Mremap => ours(unsafe { remap::mremap(a) }),
        Memory::Mprotect if nr as i64 == libc::SYS_pkey_mprotect => ours(native::pkey_mprotect(a)),
        Memory::Mprotect => ours(mm::mprotect(a)),
        Memory::Mseal => ours(mm::mseal(a)),
        Memory::Madvise => ours(advice::madvise(a)),
        // SAFETY: the program's call (the caller's promise).
        Memory::ProcessMadvise => unsafe { process_madvise(nr, a) },
        Memory::Brk => brk::brk(a) as isize,
        // SAFETY: the program's call (the caller's promise).
        Memory::Mincore => ours(unsafe { advice::mincore(a) }),
        Memory::Msync => ours(advice::msync(a)),
        Memory::Mlock => ours(lock::mlock(a[0], a[1], 0)),
        Memory::Mlock2 => ours(lock::mlock(a[0], a[1], a[2])),
        Memory::Munlock => ours(lock::munlock(a[0], a[1])),
        Memory::Mlockall => answer(lock::mlockall(a[0])),
        Memory::Munlockall => answer(lock::munlockall()),
    }
}

/// `process_madvise`: on this process, like `madvise` for each range. Returns the bytes that were advised.
///
/// # Safety
///
/// `nr` and `a` must be the program's call.
unsafe fn process_madvise(nr: usize, a: &[usize; 6]) -> isize {
    let ranges = a[2].min(libc::UIO_MAXIOV as usize);
    let mut done = 0;
    for i in 0..ranges {
        let mut range = [0usize; 2];
        let is_known = uaccess::get_words(a[1].wrapping_add(i * 16), &mut range).is_ok();
        if !is_known || !may_be_far(range[0]) || !proc::is_pidfd_of_own(a[0] as i32) {
            break;
        }
        // Which advice is accepted depends on the kernel, and there are no flags: ask it with no range at all.
        // SAFETY: the program's call (the caller's promise) of its first 0 ranges.
        let asked = unsafe { as_it_is(nr, &[a[0], a[1], 0, a[3], a[4], 0]) };
        if asked < 0 {
            return if done > 0 { done as isize } else { asked };
        }
        // SAFETY: what the program's call (the caller's promise) does for one range.
        let r = unsafe {
            memory(
                Memory::Madvise,
                libc::SYS_madvise as usize,
                &[range[0], range[1], a[3], 0, 0, 0],
            )
        };
        if r < 0 {
            return if done > 0 { done as isize } else { r };
        }
        done += range[1];
    }
    if done > 0 {
        return done as isize;
    }
    // SAFETY: the program's call (the caller's promise).
    unsafe { args::run(nr, a, Make::AsItIs) }
}

/// Serves calls about signals.
///
/// # Safety
///
/// `nr` and `a` must be the program's call.
unsafe fn signals(which: Signal, nr: usize, a: &[usize; 6], make: Make) -> isize {
    // SAFETY: each hook gets the program's call (the caller's promise).
    unsafe {
        match which {
            Signal::Action => sig::rt_sigaction(a),
            Signal::Mask => sig::rt_sigprocmask(a),
            Signal::Stack => sig::sigaltstack(a),
            Signal::Pending => sig::rt_sigpending(a),
            Signal::TimedWait => sig::rt_sigtimedwait(a),
            Signal::WaitMask => sig::with_wait_mask(nr, a, make),
        }
    }
}

/// Serves calls about processes, threads, descriptors and users.
///
/// # Safety
///
/// `nr` and `a` must be the program's call.
unsafe fn process(which: Process, nr: usize, a: &[usize; 6], make: Make) -> isize {
    // SAFETY: the program's call (the caller's promise).
    let as_it_is = || unsafe { as_it_is(nr, a) };
    // SAFETY: each hook gets the program's call (the caller's promise).
    unsafe {
        match which {
            // The first call in a new glibc thread's life; the next arm is the last.
            Process::ThreadBegins => {
                if !state::PROCESS.in_thread_mode() {
                    altstack::give();
                }
                as_it_is()
            }
            Process::Exit => {
                // A vfork child only borrows its parent's state.
                if !state::PROCESS.is_vfork_child() {
                    altstack::thread_exit();
                    if api::has_kinds() {
                        let _inside = freeze::enter();
                        api::thread_ends();
                    }
                    let here = 0u8;
                    if in_window(&raw const here as usize) {
                        // The kernel's last write, by which others wait for this thread, goes to managed memory as
                        // well.
                        args::hold(proc::cleared_at_exit(), canvas_sys::uapi::NUMBER);
                    }
                    threads::before_exit(a[0] as i32);
                }
                as_it_is()
            }
            Process::ExitGroup => {
                threads::before_exit_group();
                as_it_is()
            }
            Process::OfDescriptor if fds::is_ours(a[0] as u32 as usize) => -(libc::EBADF as isize),
            Process::OfDescriptor => args::run(nr, a, make),
            Process::Close => procs::close(a),
            Process::DupOnto => procs::dup_onto(nr, a),
            Process::CloseRange => procs::close_range(a),
            Process::List => listing::getdents64(nr, a),
            // `answer_call` serves them: they change the call's stack.
            Process::Clone | Process::Clone3 => -(libc::ENOSYS as isize),
            Process::Fork => procs::fork(nr, a, 0).0,
            Process::Exec => exec::execve(a),
            Process::ExecAt => exec::execveat(a),
            Process::GetLimit => answer(procs::prlimit(0, a[0], 0, a[1])),
            Process::SetLimit => answer(procs::prlimit(0, a[0], a[1], 0)),
            Process::Limit => answer(procs::prlimit(a[0], a[1], a[2], a[3])),
            // Programs fall back; see `is_refused` in the table.
            Process::Refused if !state::PROCESS.in_thread_mode() => -(libc::ENOSYS as isize),
            Process::Refused => as_it_is(),
            Process::Ioctl if devices::refuses(a) => -(libc::EACCES as isize),
            Process::Ioctl if native::is_uffd_call(a) => native::uffd_call(a),
            Process::Ioctl => args::run(nr, a, Make::AsItIs),
            Process::ChangeUser => {
                let r = as_it_is();
                if r == 0 {
                    users::look();
                }
                r
            }
            Process::OthersMemory => {
                let run = || args::run(nr, a, Make::AsItIs);
                others::process_vm(nr, a, run, || args::pinned(nr, a))
            }
            Process::Seek => others::seek(nr, a),
            Process::Trace => others::ptrace(a, || args::run(nr, a, Make::AsItIs)),
            Process::Seccomp => filters::seccomp(a),
            Process::Prctl if a[0] as i32 == libc::PR_SET_SECCOMP => filters::prctl(a),
            Process::Prctl if filters::dispatches(a) => filters::refuse_dispatch(),
            Process::Prctl => args::run(nr, a, Make::AsItIs),
            Process::Unshare => namespaces::unshare(a),
            Process::Setns => namespaces::setns(a),
        }
    }
}
