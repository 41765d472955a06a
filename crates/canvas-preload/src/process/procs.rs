//! Processes and descriptors: fork, exec, and keeping our descriptors out of the program's reach.

use canvas_shm::{Counter, ProcSlot, far};
use canvas_sys::gate::{check, raw};
use canvas_sys::{Errno, proc, signal, uffd};
use canvas_types::procfs::Stat;
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::api;
use crate::base::{
    fds,
    fds::Fd,
    freeze, own, regions,
    state::{self, count},
    tenant,
};
use crate::far_tier::{self, pool};
use crate::memory::{args, mm, uaccess};
use crate::paging::{ages, devices, fork_accounting, native_swap, trace};
use crate::process::{threads, users};
use crate::report;
use crate::shared::pages;

/// `close`: ours are not open, as far as the program can tell.
///
/// # Safety
/// `a` must be the registers of the program's call.
pub unsafe fn close(a: &[usize; 6]) -> isize {
    if fds::is_ours(a[0] as u32 as usize) {
        return -(libc::EBADF as isize);
    }
    // SAFETY: the program's call.
    unsafe { raw(libc::SYS_close as usize, *a) }
}

/// `dup2`, `dup3`: never onto one of ours.
///
/// # Safety
/// `nr` and `a` must be the program's call.
pub unsafe fn dup_onto(nr: usize, a: &[usize; 6]) -> isize {
    if fds::is_ours(a[1] as u32 as usize) {
        return -(libc::EBADF as isize);
    }
    // SAFETY: the program's call.
    unsafe { raw(nr, *a) }
}

/// `close_range`: around ours. Marking close-on-exec is allowed for those that exec closes anyway.
///
/// # Safety
/// `a` must be the registers of the program's call.
pub unsafe fn close_range(a: &[usize; 6]) -> isize {
    let (first, last) = (a[0] as u32, a[1] as u32);
    if first > last {
        return -(libc::EINVAL as isize);
    }
    let mut from = first;
    loop {
        let next = fds::ours()
            .filter(|fd| *fd as u32 >= from && *fd as u32 <= last)
            .min();
        let to = match next {
            Some(fd) if fd as u32 == from => None,
            Some(fd) => Some(fd as u32 - 1),
            None => Some(last),
        };
        if let Some(to) = to {
            // SAFETY: the program's call, cut around our descriptors.
            let r = unsafe {
                raw(
                    libc::SYS_close_range as usize,
                    [from as usize, to as usize, a[2], 0, 0, 0],
                )
            };
            if r < 0 {
                return r;
            }
        }
        match next {
            Some(fd) if (fd as u32) < last => from = fd as u32 + 1,
            _ => return 0,
        }
    }
}

/// Takes a free slot of the segment for this process, or the one that an earlier image of it had.
pub fn take_slot() -> Option<&'static ProcSlot> {
    let seg = state::seg();
    let pid = proc::pid();
    for s in &seg.procs {
        if s.pid.load(Ordering::Relaxed) == pid {
            // exec: the old image's memory is gone.
            tenant::release_slot(s, pid);
        }
    }
    let slot = seg.procs[..far::SHARED].iter().find(|s| {
        s.pid
            .compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    })?;
    seg.procs_end
        .fetch_max(seg.index_of(slot) as u32 + 1, Ordering::Relaxed);
    slot.start_ticks.store(start_ticks(), Ordering::Release);
    Some(slot)
}

/// Start time of this process in clock ticks.
fn start_ticks() -> u64 {
    let mut buf = [0u8; 1024];
    let Ok(n) = proc::read_file(c"/proc/self/stat", &mut buf) else {
        return 0;
    };
    Stat::parse(&buf[..n]).map_or(0, |s| s.start_ticks)
}

/// Opens and prepares a userfaultfd for this process, as the mode demands.
pub fn open_uffd(thread_mode: bool) -> Result<uffd::Uffd, canvas_sys::Errno> {
    let u = if thread_mode {
        uffd::Uffd::open_syscall(false).or_else(|_| uffd::Uffd::open_device())?
    } else {
        uffd::Uffd::open_syscall(true)?
    };
    let wanted = if thread_mode {
        uffd::feature::PAGEFAULT_FLAG_WP | uffd::feature::THREAD_ID
    } else {
        uffd::feature::SIGBUS | uffd::feature::PAGEFAULT_FLAG_WP
    };
    u.api(wanted)?;
    let fd = uffd::move_fd(u.0, fds::floor(), true)?;
    fds::guard(Fd::Uffd, fd);
    Ok(uffd::Uffd(fd))
}

/// A fork with its own memory. The child's copy of the window has lost its registration: absent
/// pages would read as zeros. So parent and child stand still until the child has its own.
///
/// # Safety
/// `nr` and `a` must be the program's call, of one that makes a process with memory and a stack of its own.
pub unsafe fn fork(nr: usize, a: &[usize; 6]) -> isize {
    let mask = signal::set_mask(u64::MAX);
    // Frozen first: whoever is inside may be waiting for the mapping lock.
    let Some(frozen) = freeze::freeze() else {
        signal::set_mask(mask);
        report!(
            "fork fails with EAGAIN: a child of vfork was killed while it brought a page in, and left this process's \
             tables in disorder"
        );
        return -(libc::EAGAIN as isize);
    };
    let mut g = regions::lock();
    let pool_locks = pool::pool().fork_guard();
    // The child's ring shall be empty.
    trace::flush();
    mm::inherit_window(true);
    fork_accounting::note_fork();
    far_tier::fork::before_fork();
    let waits = pages::before_fork();
    // SAFETY: the program's call; the child continues right here on its copy of this stack.
    let r = unsafe { raw(nr, *a) };
    mm::inherit_window(false);
    drop(pool_locks);
    if r != 0 {
        if waits {
            pages::wait_for_child(u32::try_from(r).unwrap_or(0));
        }
        if r > 0 {
            state::FORKED.store(true, Ordering::Relaxed);
            count(Counter::Forks, 1);
            fork_accounting::forked();
        } else {
            far_tier::fork::fork_failed();
        }
        drop(g);
        drop(frozen);
        signal::set_mask(mask);
        return r;
    }
    if let Err(e) = child(&mut g) {
        report!(
            "a forked child cannot be managed (error {}): it is ended, because its far memory would read as zeros",
            e.0
        );
        proc::exit_group(canvas_types::exit::RUN_FAILED);
    }
    drop(g);
    drop(frozen);
    signal::set_mask(mask);
    0
}

fn child(g: &mut regions::Lists) -> Result<(), canvas_sys::Errno> {
    let slot = take_slot().ok_or(canvas_sys::Errno(libc::EAGAIN))?;
    let parent = state::slot();
    state::set_slot(slot);
    ages::inherit(parent);
    state::FAULTS_SERVED.store(0, Ordering::Relaxed);
    canvas_sys::gate::after_fork_in_child();
    own::after_fork_in_child();
    native_swap::after_fork_in_child();
    devices::after_fork_in_child();
    api::after_fork_in_child();
    fork_accounting::was_forked();
    state::FORKED.store(true, Ordering::Relaxed);
    let parents = state::uffd();
    let thread_mode = state::THREAD_MODE.load(Ordering::Relaxed);
    fds::guard(Fd::Uffd, -1);
    // A copy into the parent's userfaultfd would land in the parent's memory.
    parents.close();
    state::set_uffd(open_uffd(thread_mode)?);
    state::PID.store(proc::pid(), Ordering::Relaxed);
    let pidfd = state::PIDFD.swap(-1, Ordering::Relaxed);
    if pidfd >= 0 {
        // It names the parent.
        proc::close(pidfd);
        threads::open_pidfd();
    }
    if let Some(parents) = fds::get(Fd::Pagemap) {
        fds::guard(Fd::Pagemap, -1);
        proc::close(parents);
    }
    threads::open_pagemap();
    // First: what follows may give up extents, and that as the parent, whose slabs would go.
    far_tier::fork::after_fork_in_child();
    mm::after_fork_in_child(g)?;
    pool::after_fork_in_child();
    pages::after_fork_in_child(g)?;
    if thread_mode {
        threads::start_handlers()?;
    }
    trace::start();
    fork_accounting::child_ready();
    Ok(())
}

/// Our variables as the environment must have them: "NAME=value" strings, set at start-up.
static VARS: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// Remembers a "NAME=value" string for exec'd programs.
pub fn remember_var(i: usize, text: &'static core::ffi::CStr) {
    VARS[i].store(text.as_ptr() as usize, Ordering::Relaxed);
}

/// Entries of an environment that is rebuilt on the stack.
const ENV_MAX: usize = 1000;

/// Is this the number of an open descriptor?
fn names_open_fd(text: &[u8]) -> bool {
    let number = core::str::from_utf8(text).ok().and_then(|t| t.parse().ok());
    // SAFETY: asks for the flags of a descriptor.
    number.is_some_and(|fd: i32| unsafe {
        canvas_sys::sys2(libc::SYS_fcntl, fd as usize, libc::F_GETFD as usize).is_ok()
    })
}

/// Does the environment at `envp` carry our variables? Otherwise a copy that does, in `room`.
///
/// # Safety
/// `envp` must be what the program passed to execve: null, or an array of C strings that ends with null, which nobody
/// changes meanwhile.
unsafe fn with_our_vars(envp: usize, room: &mut [usize; ENV_MAX + 4]) -> Result<usize, Errno> {
    let ours: [usize; 3] = [0, 1, 2].map(|i| VARS[i].load(Ordering::Relaxed));
    let mut have = [false; 3];
    let mut n = 0;
    let mut i = 0;
    loop {
        if envp == 0 {
            break;
        }
        // SAFETY: a number.
        let entry: usize = unsafe { uaccess::get(envp.wrapping_add(i * 8)) }?;
        if entry == 0 {
            break;
        }
        i += 1;
        // SAFETY: the caller's promise.
        let text = unsafe { uaccess::string(entry) }?;
        let mut replaced = entry;
        for (k, our) in ours.iter().enumerate() {
            if *our == 0 {
                continue;
            }
            // SAFETY: `remember_var` got a C string that lives for ever.
            let mine = unsafe { CStr::from_ptr(*our as *const core::ffi::c_char) }.to_bytes();
            let name = mine.iter().position(|b| *b == b'=').unwrap_or(0) + 1;
            if text.starts_with(&mine[..name]) {
                if k == 0 && names_open_fd(&text[name..]) && text != mine {
                    // A `canvas run` in this program: what it starts is a tenant of its own.
                    return Ok(envp);
                }
                // LD_PRELOAD may name others beside us; then it is right as it is.
                let inside = text.windows(mine.len() - name).any(|w| w == &mine[name..]);
                if !inside {
                    replaced = *our;
                }
                have[k] = true;
            }
        }
        if n >= ENV_MAX {
            return Ok(envp);
        }
        room[n] = replaced;
        n += 1;
    }
    for (k, our) in ours.iter().enumerate() {
        if !have[k] && *our != 0 {
            room[n] = *our;
            n += 1;
        }
    }
    room[n] = 0;
    Ok(room.as_ptr() as usize)
}

/// Touches the strings of an argument vector.
///
/// # Safety
/// As for [`with_our_vars`].
unsafe fn touch_vector(at: usize) -> Result<(), Errno> {
    let mut i = 0;
    while at != 0 && i < 1 << 20 {
        // SAFETY: a number.
        let entry: usize = unsafe { uaccess::get(at.wrapping_add(i * 8)) }?;
        if entry == 0 {
            break;
        }
        // SAFETY: the caller's promise.
        unsafe { uaccess::string(entry) }?;
        i += 1;
    }
    Ok(())
}

/// A hard-pressed reclaim may have the strings again before the kernel reads them, many times in a row.
const EXEC_TRIES: u32 = 20_000;

/// `execve`.
///
/// # Safety
/// `a` must be the registers of the program's call.
pub unsafe fn execve(a: &[usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    unsafe { exec(libc::SYS_execve, *a, 0) }
}

/// `execveat`: a directory's descriptor comes before the path.
///
/// # Safety
/// As for [`execve`].
pub unsafe fn execveat(a: &[usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    unsafe { exec(libc::SYS_execveat, *a, 1) }
}

/// The new image is managed too: its environment gets our variables. The kernel reads the strings
/// itself, so they are made present first; should one be gone again by then, the call fails with EFAULT
/// and is repeated. `path` is the argument that names the file; vector and environment follow it.
///
/// # Safety
/// As for [`execve`].
unsafe fn exec(nr: i64, mut a: [usize; 6], path: usize) -> isize {
    let (argv, envp) = (path + 1, path + 2);
    let mut room = [0usize; ENV_MAX + 4];
    // SAFETY: the call's environment. What cannot be read is left to the kernel, which says so when its turn comes.
    a[envp] = unsafe { with_our_vars(a[envp], &mut room) }.unwrap_or(a[envp]);
    trace::before_exec();
    args::touch_string(a[path]);
    if path == 0 {
        users::before_exec(libc::AT_FDCWD as usize, a[0], 0);
    } else {
        users::before_exec(a[0], a[1], a[4]);
    }
    for _ in 0..EXEC_TRIES {
        // SAFETY: the call's path and its two vectors; the second may be the copy in `room`, which ends with null as
        // well.
        let all_there = unsafe {
            [
                uaccess::string(a[path]).map(|_| ()),
                touch_vector(a[argv]),
                touch_vector(a[envp]),
            ]
        };
        let alone = pages::before_exec();
        // SAFETY: the program's call; `room` lives across it.
        let r = unsafe { raw(nr as usize, a) };
        drop(alone);
        if r != -(libc::EFAULT as isize) || all_there.iter().any(Result::is_err) {
            return r;
        }
    }
    -(libc::EFAULT as isize)
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Rlimit {
    soft: u64,
    hard: u64,
}

/// `prlimit64` and its elders. RLIMIT_AS and RLIMIT_DATA of this process would not allow our
/// reservations: the program's own values are kept and enforced on its mappings here.
///
/// # Safety
/// `new` and `old` must be what the program passed: null, or a structure of two numbers to read, to write to.
pub unsafe fn prlimit(pid: usize, resource: usize, new: usize, old: usize) -> isize {
    let mine = pid == 0 || pid as u32 == proc::pid();
    let kept = match resource as u32 {
        libc::RLIMIT_AS => Some(&mm::LIMIT_AS),
        libc::RLIMIT_DATA => Some(&mm::LIMIT_DATA),
        _ => None,
    };
    let mut before = Rlimit { soft: 0, hard: 0 };
    // SAFETY: a structure of numbers.
    let wanted = match (new != 0).then(|| unsafe { uaccess::get::<Rlimit>(new) }) {
        Some(Err(e)) => return -(e.0 as isize),
        wanted => wanted.and_then(Result::ok),
    };
    let keep = kept
        .filter(|_| mine)
        .zip(wanted)
        .filter(|(_, w)| w.soft <= w.hard);
    let arg = match &wanted {
        Some(w) if keep.is_none() => w as *const Rlimit as usize,
        _ => 0,
    };
    // SAFETY: both structures are ours and live.
    let r = check(unsafe {
        raw(
            libc::SYS_prlimit64 as usize,
            [pid, resource, arg, &raw mut before as usize, 0, 0],
        )
    });
    if let Err(e) = r {
        return -(e.0 as isize);
    }
    if mine && let Some(k) = kept {
        before.soft = before.soft.min(k.load(Ordering::Relaxed));
    }
    if let Some((k, w)) = keep {
        k.store(w.soft, Ordering::Relaxed);
    }
    if old == 0 {
        return 0;
    }
    // SAFETY: the caller's promise.
    match unsafe { uaccess::put(old, before) } {
        Ok(()) => 0,
        Err(e) => -(e.0 as isize),
    }
}
