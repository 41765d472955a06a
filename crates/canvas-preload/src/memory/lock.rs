//! Locked memory: `mlock` and its relatives.
//!
//! The range is also locked in the kernel with MLOCK_ONFAULT, which fills nothing, so that the kernel enforces
//! RLIMIT_MEMLOCK and shows the memory in VmLck. Canvas itself keeps the pages resident: their words are marked as
//! locked by [`hold`], or at their first touch.

use canvas_core::pager::regions::{Attr, kind};
use canvas_core::pager::word::{self, State, flag};
use canvas_core::vm::locked;
use canvas_sys::gate::{check, raw};
use canvas_sys::{Errno, mem, signal};
use canvas_types::layout::{self, WINDOW_PAGES, window_base};
use canvas_types::{PAGE_SIZE, PageId};
use core::ops::Range;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::memory::ranges::each_touched;
use crate::own_memory::areas;
use crate::paging::{
    fault::{self, Resolved},
    freeze, native_swap,
    regions::{Lists, addr_of, lock, range},
};
use crate::runtime::state;

/// Bits of MCL_FUTURE and MCL_ONFAULT in effect for new mappings.
static FUTURE: AtomicU8 = AtomicU8::new(0);

const ON_FAULT: usize = libc::MLOCK_ONFAULT as usize;

/// Bits of [`kind`] that a new mapping gets because of `mlockall(MCL_FUTURE)`.
pub(crate) fn future_kind() -> u16 {
    match FUTURE.load(Ordering::Relaxed) {
        0 => 0,
        _ => kind::LOCKED,
    }
}

/// Whether new locked mappings are filled at once.
pub(crate) fn future_fills() -> bool {
    FUTURE.load(Ordering::Relaxed) & libc::MCL_ONFAULT as u8 == 0
}

/// In a fork's child: locks are not inherited.
pub fn after_fork_in_child(g: &mut Lists) {
    FUTURE.store(0, Ordering::Relaxed);
    let _ = g.window.update(0, WINDOW_PAGES as u32, |a| Attr {
        kind: a.kind & !kind::LOCKED,
        ..a
    });
}

/// The pages of this thread's signal stack, which stay resident; none if the stack is not in managed memory.
pub(crate) fn signal_stack() -> Range<u32> {
    let ss = signal::stack();
    let is_on = ss.ss_flags & libc::SS_DISABLE == 0 && layout::in_window(ss.ss_sp as usize);
    let found = is_on.then(|| pages(ss.ss_sp as usize, ss.ss_size).ok());
    found.flatten().map_or(0..0, |(start, end)| start..end)
}

/// The kernel's `mlock2` on managed pages.
fn kernel_lock(start: u32, end: u32, flags: usize) -> Result<(), Errno> {
    let bytes = (end - start) as usize * PAGE_SIZE;
    // SAFETY: a lock changes no contents. Absent managed pages are not filled either: `flags` have MLOCK_ONFAULT, or
    // the pages are native.
    let done = unsafe {
        raw(
            libc::SYS_mlock2 as usize,
            [addr_of(start), bytes, flags, 0, 0, 0],
        )
    };
    check(done).map(|_| ())
}

/// Locks new managed memory, in which no page is present yet; [`hold`] fills it.
pub(crate) fn lock_new(start: u32, end: u32) -> Result<(), Errno> {
    kernel_lock(start, end, ON_FAULT)
}

/// Removes the kernel's lock from memory that is freed or moved.
pub(crate) fn kernel_unlock(start: u32, end: u32) {
    let bytes = (end - start) as usize * PAGE_SIZE;
    // SAFETY: the call changes no contents.
    let _ = unsafe {
        raw(
            libc::SYS_munlock as usize,
            [addr_of(start), bytes, 0, 0, 0, 0],
        )
    };
}

/// End of the mapped pages from `start` on; an error if that is before `end`.
fn covered(g: &Lists, start: u32, end: u32) -> (u32, Result<(), Errno>) {
    let until = g.window.covered_until(start, end);
    let whole = match until == end {
        true => Ok(()),
        false => Err(Errno(libc::ENOMEM)),
    };
    (until, whole)
}

/// Whether the readable pages of a range can stay resident, in addition to all that do already.
fn can_stay(g: &Lists, start: u32, end: u32) -> bool {
    let (mut pages, mut more) = (0, 0);
    g.window.each(start, end, |r| {
        if r.attr.kind & kind::NATIVE != 0 || !r.attr.is_readable() {
            return;
        }
        pages += i64::from(r.end - r.start);
        if pages <= locked::most(state::seg()) {
            let stays = |p: &PageId| word::load(areas::word(*p)).has(flag::LOCKED);
            more += PageId::each(r.start..r.end).filter(|p| !stays(p)).count() as i64;
        }
    });
    pages <= locked::most(state::seg()) && locked::has_room(state::seg(), more)
}

/// Marks a range as locked, here and in the kernel.
fn mark(g: &mut Lists, start: u32, end: u32, flags: usize) -> Result<(), Errno> {
    let mut any_native = false;
    let mut done = Ok(());
    g.window.each(start, end, |r| {
        any_native |= r.attr.kind & kind::NATIVE != 0
    });
    if any_native {
        g.window.each(start, end, |r| {
            let flags = match r.attr.kind & kind::NATIVE {
                0 => ON_FAULT,
                _ => flags,
            };
            if done.is_ok() {
                done = kernel_lock(r.start, r.end, flags);
            }
        });
    } else {
        done = kernel_lock(start, end, ON_FAULT);
    }
    done?;
    g.window
        .update(start, end, |a| match a.kind & kind::NATIVE {
            0 => Attr {
                kind: a.kind | kind::LOCKED,
                ..a
            },
            _ => a,
        })
        .map_err(|_| Errno(libc::ENOMEM))
}

/// The pages of `mlock`'s range. Like the kernel, it lets the length wrap.
fn pages(addr: usize, bytes: usize) -> Result<(u32, u32), Errno> {
    let aligned = addr & !(PAGE_SIZE - 1);
    let bytes = bytes
        .wrapping_add(addr - aligned)
        .wrapping_add(PAGE_SIZE - 1)
        & !(PAGE_SIZE - 1);
    if aligned.checked_add(bytes).is_none() {
        return Err(Errno(libc::EINVAL));
    }
    range(aligned, bytes).map_err(|_| Errno(libc::ENOMEM))
}

/// `mlock`, `mlock2`: makes the range's pages resident for good. With MLOCK_ONFAULT they stay from their first touch
/// on.
pub fn mlock(addr: usize, bytes: usize, flags: usize) -> Option<Result<usize, Errno>> {
    if !layout::in_window(addr) {
        return None;
    }
    Some(if flags & !ON_FAULT != 0 {
        Err(Errno(libc::EINVAL))
    } else {
        pages(addr, bytes).and_then(|(start, end)| lock_range(start, end, flags))
    })
}

fn lock_range(start: u32, end: u32, flags: usize) -> Result<usize, Errno> {
    let _inside = freeze::enter();
    let mut g = lock();
    let (until, whole) = covered(&g, start, end);
    if flags & ON_FAULT == 0 && !can_stay(&g, start, until) {
        return Err(Errno(libc::ENOMEM));
    }
    mark(&mut g, start, until, flags)?;
    drop(g);
    hold(start, until, flags & ON_FAULT == 0)
        .and(whole)
        .map(|()| 0)
}

pub fn munlock(addr: usize, bytes: usize) -> Option<Result<usize, Errno>> {
    layout::in_window(addr).then(|| pages(addr, bytes).and_then(|(s, e)| unlock_range(s, e)))
}

fn unlock_range(start: u32, end: u32) -> Result<usize, Errno> {
    let _inside = freeze::enter();
    let mut g = lock();
    let (until, whole) = covered(&g, start, end);
    kernel_unlock(start, until);
    let _ = g.window.update(start, until, |a| Attr {
        kind: a.kind & !kind::LOCKED,
        ..a
    });
    g.window.each(start, until, |r| {
        // Reclaim may have chosen a page just before it was locked, and found that the kernel keeps it.
        let kept = if r.attr.is_readable() { flag::STUCK } else { 0 };
        each_touched(r.start, r.end, |p, cur| {
            locked::note(state::slot(), -i64::from(cur.has(flag::LOCKED)));
            word::publish(areas::word(p), cur.clear(flag::LOCKED | kept))
        });
    });
    whole.map(|()| 0)
}

/// Keeps all touched pages of a range in memory, and with `fill` the others, too, as far as that many can stay. To the
/// kernel and the program this is no lock. Returns an error if a page cannot be made present. The caller is inside
/// `freeze::enter`.
pub(crate) fn hold(start: u32, end: u32, fill: bool) -> Result<(), Errno> {
    hold_most(start, end, fill, |more| {
        locked::take(state::seg(), state::slot(), more)
    })
}

/// Like [`hold`], however many pages stay because of it.
pub(crate) fn hold_all(start: u32, end: u32, fill: bool) -> Result<(), Errno> {
    hold_most(start, end, fill, |more| {
        locked::note(state::slot(), more);
        true
    })
}

/// Like [`hold`], while `takes` accepts one more page that stays.
fn hold_most(start: u32, end: u32, fill: bool, takes: impl Fn(i64) -> bool) -> Result<(), Errno> {
    let mut done = Ok(());
    for page in PageId::each(start..end) {
        let w = areas::word(page);
        loop {
            let cur = word::load(w);
            // Unprotect a page that came in write-protected first: the first write to a locked page may be the
            // kernel's, of a signal frame, and would end the program.
            if cur.state() == State::Resident && !cur.has(flag::PROTECTED) {
                if cur.has(flag::LOCKED) {
                    break;
                }
                if !takes(1) {
                    if fill {
                        // Another process was faster since the check that all can stay.
                        done = Err(Errno(libc::ENOMEM));
                    }
                    break;
                }
                if word::transition(w, cur, cur.set(flag::LOCKED)) {
                    break;
                }
                locked::note(state::slot(), -1);
                continue;
            }
            if !fill && cur.state() == State::Untouched {
                break;
            }
            match fault::resolve(page, true) {
                Resolved::Present => {}
                // In a native part, which the kernel has filled, or unreadable.
                Resolved::NotOurs => {
                    if !is_native(page) {
                        done = Err(Errno(libc::ENOMEM));
                    }
                    break;
                }
                _ => return Err(Errno(libc::ENOMEM)),
            }
        }
    }
    done
}

fn is_native(page: PageId) -> bool {
    let g = lock();
    g.window
        .at(page.0)
        .is_some_and(|r| r.attr.kind & kind::NATIVE != 0)
}

/// Keeps the program's signal stack in memory, because the kernel itself writes frames there.
pub fn keep_stack(addr: usize, bytes: usize) {
    if let Ok((start, end)) = pages(addr, bytes) {
        let _inside = freeze::enter();
        // Parts that are not mapped will fail as usual when a signal comes.
        let _ = hold_all(start, end, true);
    }
}

/// `mlockall`: the kernel's own would also lock, and fill, canvas's reservations.
pub fn mlockall(flags: usize) -> Result<usize, Errno> {
    let (current, future, on_fault) = (
        libc::MCL_CURRENT as usize,
        libc::MCL_FUTURE as usize,
        libc::MCL_ONFAULT as usize,
    );
    if flags & !(current | future | on_fault) != 0 || flags & (current | future) == 0 {
        return Err(Errno(libc::EINVAL));
    }
    // With zero bytes, this tells whether the program may lock at all.
    // SAFETY: of zero bytes.
    check(unsafe { raw(libc::SYS_mlock as usize, [window_base(), 0, 0, 0, 0, 0]) })?;
    let lock_flags = match flags & on_fault {
        0 => 0,
        _ => ON_FAULT,
    };
    if flags & current != 0 {
        if lock_flags == 0 && !can_all_stay() {
            return Err(Errno(libc::ENOMEM));
        }
        let mut next = 0;
        while let Some(r) = region_after(next) {
            next = r.1;
            let _inside = freeze::enter();
            let mut g = lock();
            let until = g.window.covered_until(r.0, r.1);
            mark(&mut g, r.0, until, lock_flags)?;
            drop(g);
            // Like the kernel, lock even what cannot be filled.
            let _ = hold(r.0, until, lock_flags == 0);
        }
    }
    native_swap::lock(true);
    let kept = match flags & future {
        0 => 0,
        _ => (flags & (future | on_fault)) as u8,
    };
    FUTURE.store(kept, Ordering::Relaxed);
    Ok(0)
}

fn can_all_stay() -> bool {
    let _inside = freeze::enter();
    can_stay(&lock(), 0, WINDOW_PAGES as u32)
}

pub fn munlockall() -> Result<usize, Errno> {
    FUTURE.store(0, Ordering::Relaxed);
    native_swap::lock(false);
    let mut next = 0;
    while let Some((start, end)) = region_after(next) {
        next = end;
        let _ = unlock_range(start, end);
    }
    // SAFETY: the call takes no address; canvas has locked nothing of its own.
    check(unsafe { raw(libc::SYS_munlockall as usize, [0; 6]) })
}

/// The first region, or part of one, from `page` on.
fn region_after(page: u32) -> Option<(u32, u32)> {
    let _inside = freeze::enter();
    let g = lock();
    let part = g.window.first_in(page, WINDOW_PAGES as u32)?;
    Some((part.start, part.end))
}

/// A native mapping of a program that has locked all future memory.
///
/// # Safety
///
/// `a` must be the registers of the program's call.
pub(crate) unsafe fn native_mmap(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    if FUTURE.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let mut call = *a;
    if future_fills() {
        call[3] |= libc::MAP_LOCKED as usize;
    }
    // SAFETY: the program's call (the caller's promise), perhaps with a lock, which changes no contents.
    let at = match check(unsafe { raw(libc::SYS_mmap as usize, call) }) {
        Ok(at) => at,
        Err(e) => return Some(Err(e)),
    };
    if !future_fills() {
        // SAFETY: a lock changes no contents.
        let locked =
            check(unsafe { raw(libc::SYS_mlock2 as usize, [at, a[1], ON_FAULT, 0, 0, 0]) });
        if locked.is_err() {
            // SAFETY: mapped just now; the program does not know it yet.
            let _ = unsafe { mem::unmap(at, a[1]) };
            return Some(Err(Errno(libc::EAGAIN)));
        }
    }
    Some(Ok(at))
}
