//! Processes and descriptors: fork, limits, and keeping canvas's descriptors out of the program's reach.

use canvas_shm::{Counter, ProcSlot, far};
use canvas_sys::gate::raw;
use canvas_sys::proc::Limit;
use canvas_sys::{Errno, descriptors, proc, signal, uffd};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::api;
use crate::far_tier::{self, pool};
use crate::memory::{mm, uaccess};
use crate::own_memory::own;
use crate::paging::{accounting, fork_accounting, freeze, native_swap, regions, trace};
use crate::process::{actions, altstack, beliefs, limits, threads};
use crate::report;
use crate::runtime::{
    fds,
    fds::Fd,
    state::{self, count},
};
use crate::shared::members;
use crate::tenant;
use crate::tenant::life;

/// `close`: canvas's descriptors do not seem to be open.
///
/// # Safety
///
/// `a` must be the registers of the program's call.
pub unsafe fn close(a: &[usize; 6]) -> isize {
    if fds::is_ours(a[0] as u32 as usize) {
        return -(libc::EBADF as isize);
    }
    // SAFETY: the program's call (the caller's promise), of none of canvas's descriptors.
    unsafe { raw(libc::SYS_close as usize, *a) }
}

/// `dup2`, `dup3`: never onto a descriptor of canvas.
///
/// # Safety
///
/// `nr` and `a` must be the program's call.
pub unsafe fn dup_onto(nr: usize, a: &[usize; 6]) -> isize {
    if fds::is_ours(a[1] as u32 as usize) {
        return -(libc::EBADF as isize);
    }
    // SAFETY: the program's call (the caller's promise), onto none of canvas's descriptors.
    unsafe { raw(nr, *a) }
}

/// `close_range`: around canvas's descriptors. Marking close-on-exec is allowed for those that exec closes anyway.
///
/// # Safety
///
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
            // SAFETY: a part of the program's call (the caller's promise), without canvas's descriptors.
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

/// Takes a free slot of the segment for the process with this identity.
pub fn take_slot(id: u64) -> Option<&'static ProcSlot> {
    let seg = state::seg();
    let free = || seg.procs[..far::SHARED].iter().find(|s| s.take(id));
    let slot = free().or_else(|| {
        // Slots of processes that have died may not have been released yet.
        tenant::members::release_gone(|_| true);
        free()
    })?;
    seg.procs_end
        .fetch_max(seg.index_of(slot) as u32 + 1, Ordering::Relaxed);
    Some(slot)
}

/// Gives this process the slot, and releases any that an earlier image of it had.
pub fn begin_in(slot: &'static ProcSlot) {
    let pid = proc::pid();
    tenant::members::release_gone(|s| s.pid.load(Ordering::Relaxed) == pid);
    slot.pid.store(pid, Ordering::Relaxed);
    state::set_slot(slot);
}

/// Opens a userfaultfd as the mode requires, not yet prepared.
fn new_uffd(thread_mode: bool) -> Result<uffd::Uffd, canvas_sys::Errno> {
    descriptors::with_room(|| match thread_mode {
        true => uffd::Uffd::open_syscall(false).or_else(|e| match e.0 {
            libc::EMFILE => Err(e),
            _ => uffd::Uffd::open_device(),
        }),
        false => uffd::Uffd::open_syscall(true),
    })
}

/// Opens and prepares a userfaultfd for this process, as the mode requires.
pub fn open_uffd(thread_mode: bool) -> Result<uffd::Uffd, canvas_sys::Errno> {
    let u = new_uffd(thread_mode)?;
    let wanted = if thread_mode {
        uffd::feature::PAGEFAULT_FLAG_WP | uffd::feature::THREAD_ID
    } else {
        uffd::feature::SIGBUS | uffd::feature::PAGEFAULT_FLAG_WP
    };
    u.api(wanted)?;
    let fd = descriptors::moved(u.0, true)?;
    fds::guard(Fd::Uffd, fd);
    Ok(uffd::Uffd(fd))
}

/// CLONE_CLEAR_SIGHAND: resets the parent's handlers.
pub const CLEAR_SIGHAND: usize = 1 << 32;

/// A fork with its own memory. The child's copy of the managed range has lost its registration: absent pages would read
/// as zeros. So parent and child are frozen until the child has its own. Returns the call's answer, and the child's
/// identity ([`life`]).
///
/// # Safety
///
/// `nr` and `a` must be the program's call, of one that makes a process with memory of its own, which goes on on a copy
/// of this stack; `flags` are clone's.
pub unsafe fn fork(nr: usize, a: &[usize; 6], flags: usize) -> (isize, u64) {
    let mask = signal::set_mask(u64::MAX);
    // Freeze first: a thread that is inside may be waiting for the mapping lock.
    let Some(frozen) = freeze::freeze() else {
        signal::set_mask(mask);
        report!(
            "fork fails with EAGAIN: a vfork child was killed while it brought a page in, which left this process's \
             page tables inconsistent"
        );
        return (-(libc::EAGAIN as isize), 0);
    };
    let mut g = regions::lock();
    // Get what the child needs now, so that the child cannot fail where this call still can.
    let Some(slot) = child_slot() else {
        drop(g);
        drop(frozen);
        signal::set_mask(mask);
        return (-(libc::EAGAIN as isize), 0);
    };
    let child_id = slot.id.load(Ordering::Relaxed);
    let pool_locks = pool::pool().fork_guard();
    // The child's ring must be empty.
    trace::flush();
    fork_accounting::note_fork();
    far_tier::fork::before_fork();
    let waits = members::before_fork();
    let believed = beliefs::mine();
    let r = match mm::inherit_window(&g, true) {
        // SAFETY: the program's call (the caller's promise); the child continues here on its copy of this stack.
        Ok(()) => unsafe { raw(nr, *a) },
        // The child would miss its memory.
        Err(e) => -(e.0 as isize),
    };
    let _ = mm::inherit_window(&g, false);
    drop(pool_locks);
    if r != 0 {
        life::after_fork_in_parent();
        if waits {
            members::wait_for_child(child_id, r > 0);
        }
        if r > 0 {
            state::PROCESS.note_forked();
            count(Counter::Forks, 1);
            fork_accounting::forked();
        } else {
            far_tier::fork::fork_failed();
            tenant::members::release_slot(slot, child_id);
        }
        drop(g);
        drop(frozen);
        signal::set_mask(mask);
        return (r, child_id);
    }
    altstack::after_fork_in_child();
    beliefs::after_fork_in_child(believed);
    if let Err(e) = child(slot, &mut g, flags) {
        report!(
            "a forked child cannot be managed (error {}): canvas ends it, because its far memory would read as zeros",
            e.0
        );
        proc::exit_group(canvas_types::exit::RUN_FAILED);
    }
    drop(g);
    drop(frozen);
    if flags & CLEAR_SIGHAND != 0 {
        actions::were_cleared();
    }
    signal::set_mask(mask);
    (0, child_id)
}

/// A seccomp filter of the program kills this process if it opens a userfaultfd.
static ENDED_BY_FILTER: AtomicBool = AtomicBool::new(false);

/// Records that no child of this process can be managed from now on, and that trying would kill this process.
pub fn forbid_children() {
    ENDED_BY_FILTER.store(true, Ordering::Relaxed);
}

/// In the parent: whether a child could open its userfaultfd. The child has the rights, filters and limits of its
/// parent, which can still fail.
fn may_have_uffd() -> Result<(), canvas_sys::Errno> {
    if ENDED_BY_FILTER.load(Ordering::Relaxed) {
        return Err(canvas_sys::Errno(libc::EPERM));
    }
    new_uffd(state::PROCESS.in_thread_mode()).map(|u| u.close())
}

/// In the parent: a slot for the child, which counts as living from now on; `None` if there is none, or the child could
/// not open a userfaultfd.
fn child_slot() -> Option<&'static ProcSlot> {
    if let Err(e) = may_have_uffd() {
        report!(
            once: "fork fails with EAGAIN: this process may not open a userfaultfd any more (error {}), and without \
             one a child's far memory would read as zeros; fork first, or run it without canvas",
            e.0
        );
        return None;
    }
    let slot = take_slot(life::before_fork().ok()?);
    if slot.is_none() {
        life::after_fork_in_parent();
    }
    slot
}

fn child(
    slot: &'static ProcSlot,
    g: &mut regions::Lists,
    flags: usize,
) -> Result<(), canvas_sys::Errno> {
    // Descriptors in a shared table are still the parent's.
    let has_its_own = flags & libc::CLONE_FILES as usize == 0;
    life::after_fork_in_child();
    let parent = state::slot();
    begin_in(slot);
    accounting::inherit_ages(parent);
    state::PROCESS.after_fork_in_child();
    fds::after_fork_in_child();
    canvas_sys::gate::after_fork_in_child();
    own::after_fork_in_child();
    threads::after_fork_in_child();
    native_swap::after_fork_in_child();
    api::after_fork_in_child();
    fork_accounting::was_forked();
    // These name the parent: a copy through its userfaultfd would go to its memory.
    let [_, had_pidfd, _] = [Fd::Uffd, Fd::Pidfd, Fd::Pagemap].map(|what| {
        let fd = fds::get(what);
        fds::guard(what, -1);
        if let Some(fd) = fd.filter(|_| has_its_own) {
            proc::close(fd);
        }
        fd.is_some()
    });
    let thread_mode = state::PROCESS.in_thread_mode();
    state::set_uffd(open_uffd(thread_mode)?);
    if had_pidfd {
        threads::open_pidfd();
    }
    threads::open_pagemap();
    // First: what follows may release extents, and would do so as the parent, whose slabs would be freed.
    far_tier::fork::after_fork_in_child();
    mm::after_fork_in_child(g)?;
    pool::after_fork_in_child();
    members::after_fork_in_child(g)?;
    if thread_mode {
        threads::start_handlers()?;
    }
    trace::start();
    fork_accounting::child_ready();
    state::seg().managed.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// `prlimit64` and its predecessors. Canvas's reservations would not fit under this process's RLIMIT_AS and
/// RLIMIT_DATA: the program's own values are kept here and enforced on its mappings.
///
/// # Safety
///
/// `new` and `old` must be what the program passed: null, or a structure of two numbers to read, to write to.
pub unsafe fn prlimit(pid: usize, resource: usize, new: usize, old: usize) -> Result<usize, Errno> {
    let (pid, resource) = (pid as u32, resource as u32);
    // A vfork child has limits of its own, which are not kept here.
    let here = !state::PROCESS.is_vfork_child();
    let mine = here && (pid == 0 || pid == proc::pid());
    let of_files = mine && resource == libc::RLIMIT_NOFILE;
    let kept = match resource {
        libc::RLIMIT_AS => Some(&state::PROCESS.address_space),
        libc::RLIMIT_DATA => Some(&state::PROCESS.data),
        _ => None,
    };
    let wanted = (new != 0).then(|| uaccess::get::<Limit>(new));
    let wanted = wanted.transpose()?;
    if of_files {
        // SAFETY: null, or where the program wants the old limits (the caller's promise).
        return unsafe { limit_files(wanted, old) };
    }
    let keep = kept
        .filter(|_| mine)
        .zip(wanted)
        .filter(|(_, w)| w.soft <= w.hard);
    let kernels = wanted.filter(|_| keep.is_none());
    let mut before = proc::limit(pid, resource, kernels.as_ref())?;
    if mine && let Some(kept) = kept {
        before.soft = before.soft.min(kept.soft.load(Ordering::Relaxed));
        before.hard = before.hard.min(kept.hard.load(Ordering::Relaxed));
    }
    if let Some((kept, w)) = keep {
        if w.hard > before.hard && !proc::may_raise_limits() {
            return Err(Errno(libc::EPERM));
        }
        kept.soft.store(w.soft, Ordering::Relaxed);
        kept.hard.store(w.hard, Ordering::Relaxed);
    }
    if old != 0 {
        // SAFETY: where the program wants the old limits (the caller's promise).
        unsafe { uaccess::put(old, before) }?;
    }
    Ok(0)
}

/// `prlimit64` of this process's descriptors.
///
/// # Safety
///
/// `old` must be null, or where the program wants the old limits.
unsafe fn limit_files(wanted: Option<Limit>, old: usize) -> Result<usize, Errno> {
    let mut before = proc::limit(0, libc::RLIMIT_NOFILE, None)?;
    let now = before.hard;
    before.hard = now.min(state::PROCESS.hard_files.load(Ordering::Relaxed));
    if let Some(w) = wanted {
        if w.soft <= w.hard && w.hard > before.hard && !proc::may_raise_limits() {
            return Err(Errno(libc::EPERM));
        }
        let new = Limit {
            soft: w.soft,
            hard: match w.soft <= w.hard {
                true => limits::with_room(w.hard, now),
                // Let the kernel refuse it.
                false => w.hard,
            },
        };
        proc::limit(0, libc::RLIMIT_NOFILE, Some(&new))?;
        state::PROCESS.hard_files.store(w.hard, Ordering::Relaxed);
    }
    if old != 0 {
        // SAFETY: where the program wants the old limits (the caller's promise).
        unsafe { uaccess::put(old, before) }?;
    }
    Ok(0)
}
