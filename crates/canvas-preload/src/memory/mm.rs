//! The program's mapping calls on the managed range.
//!
//! The managed range is one reservation, inaccessible where nothing is mapped: mapping is an mprotect, unmapping is a
//! discard and an mprotect, and the kernel's own checks apply everywhere else. One lock serialises all calls, like the
//! kernel's mmap_lock.

use canvas_core::pager::regions::{Attr, kind};
use canvas_core::pager::word::{self, State, flag};
use canvas_core::vm::locked;
use canvas_sys::gate::{self, check};
use canvas_sys::{Errno, mem};
use canvas_types::PAGE_SIZE;
use canvas_types::layout::{self, WINDOW_BYTES, WINDOW_PAGES, window_base, window_end};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::api;
use crate::memory::{
    admit,
    admit::admit,
    advice, lock as locking,
    open_pages::{MMAP_FIRST, make_way, protect},
    ranges::{discard, each_touched, on_mapped, on_range},
    wishes,
    wishes::WISH,
};
use crate::own_memory::areas;
use crate::paging::{
    accounting, cache, freeze, hints, learn,
    regions::{Lists, addr_of, lock, pages_of, range},
    touched, trace,
};
use crate::runtime::{state, state::uffd};

/// Returns a part of the managed range to canvas after a native mapping: reserves and registers it.
pub(crate) fn restore_window(start: u32, end: u32) -> Result<(), Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let (addr, bytes) = (addr_of(start), (end - start) as usize * PAGE_SIZE);
    assert!(start <= end && end as usize <= WINDOW_PAGES);
    // SAFETY: replaces pages of the managed range (asserted), in which nothing of Rust's lies, and which the program
    // gives up; the advices discard nothing.
    unsafe {
        canvas_sys::sys6(
            libc::SYS_mmap,
            addr,
            bytes,
            libc::PROT_NONE as usize,
            flags as usize,
            usize::MAX,
            0,
        )?;
        let _ = mem::advise(addr, bytes, libc::MADV_NOHUGEPAGE);
        let _ = mem::advise(addr, bytes, libc::MADV_DONTDUMP);
        mem::advise(addr, bytes, libc::MADV_DONTFORK)?;
    }
    // SAFETY: a part of the managed range that was mapped just now; canvas's handlers resolve the faults there.
    unsafe { uffd().register(addr, bytes, true) }?;
    Ok(())
}

/// Unmaps a range: contents, protection and regions.
pub(crate) fn clear(g: &mut Lists, start: u32, end: u32) -> Result<(), Errno> {
    let mut kinds = 0;
    let mut accessible = false;
    g.window.each(start, end, |r| {
        kinds |= r.attr.kind;
        accessible |= r.attr.prot != 0;
    });
    g.window
        .remove(start, end)
        .map_err(|_| Errno(libc::ENOMEM))?;
    api::unmapped(start, end);
    if kinds & kind::LOCKED != 0 {
        locking::kernel_unlock(start, end);
    }
    discard(start, end);
    // Memory that was writable once stays charged even with another protection.
    if kinds & kind::NATIVE != 0 || accessible && NEVER_OVERCOMMITS.load(Ordering::Relaxed) {
        restore_window(start, end)?;
    } else if accessible {
        protect(start, end, libc::PROT_NONE)?;
    }
    Ok(())
}

/// `vm.overcommit_memory` is 2: the kernel charges writable memory until it is unmapped.
static NEVER_OVERCOMMITS: AtomicBool = AtomicBool::new(false);

/// Refuses to change sealed memory, which keeps its place and its protection.
pub(crate) fn refuse_sealed(g: &Lists, start: u32, end: u32) -> Result<(), Errno> {
    let mut is_sealed = false;
    g.window
        .each(start, end, |r| is_sealed |= r.attr.kind & kind::SEALED != 0);
    match is_sealed {
        true => Err(Errno(libc::EPERM)),
        false => Ok(()),
    }
}

/// Maps anonymous memory on `start..end`, which is free. Locked memory is not filled yet.
pub(crate) fn map_at(g: &mut Lists, start: u32, end: u32, attr: Attr) -> Result<(), Errno> {
    make_way(g, start)?;
    g.window
        .insert(start, end, attr)
        .map_err(|_| Errno(libc::ENOMEM))?;
    let access = attr.access();
    let mut done = Ok(());
    if access != libc::PROT_NONE {
        done = protect(start, end, access);
        if done.is_err() {
            // A part of it may be accessible.
            let _ = protect(start, end, libc::PROT_NONE);
        }
    }
    if done.is_ok() && attr.kind & kind::LOCKED != 0 {
        done = locking::lock_new(start, end).map_err(not_lockable);
        if done.is_err() {
            let _ = protect(start, end, libc::PROT_NONE);
        }
    }
    if done.is_err() {
        let _ = g.window.remove(start, end);
    }
    done
}

/// Converts the error of a mapping call when RLIMIT_MEMLOCK is reached.
fn not_lockable(e: Errno) -> Errno {
    match e.0 {
        libc::ENOMEM => Errno(libc::EAGAIN),
        _ => e,
    }
}

/// Whether canvas manages mappings of this kind, wherever they are requested: anonymous and private.
fn captures(prot: i32, flags: i32) -> bool {
    let not = libc::MAP_SHARED
        | libc::MAP_STACK
        | libc::MAP_GROWSDOWN
        | libc::MAP_HUGETLB
        | libc::MAP_32BIT;
    flags & libc::MAP_ANONYMOUS != 0
        && flags & libc::MAP_PRIVATE != 0
        && flags & not == 0
        && prot & libc::PROT_EXEC == 0
}

/// Attributes of a mapping by these arguments of `mmap`.
fn attr_of(prot: i32, flags: i32) -> Attr {
    let mut kind = locking::future_kind();
    if flags & libc::MAP_NORESERVE != 0 {
        kind |= kind::NORESERVE;
    }
    if flags & libc::MAP_LOCKED != 0 {
        kind |= kind::LOCKED;
    }
    Attr {
        prot: prot as u8,
        kind,
    }
}

/// `mmap`. `None`: make the call unchanged.
///
/// # Safety
///
/// `a` must be the registers of the program's call.
pub unsafe fn mmap(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    let (addr, bytes, prot, flags) = (a[0], a[1], a[2] as i32, a[3] as i32);
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    let overlaps_window = addr < window_end() && addr.saturating_add(bytes) > window_base();
    // SAFETY: the program's call (the caller's promise).
    let natively = || unsafe { native_mmap(a) };
    if bytes == 0 || (fixed && !overlaps_window) || (!fixed && !captures(prot, flags)) {
        return natively();
    }
    let inside = freeze::enter();
    let mut g = lock();
    let done = if fixed {
        Some(mmap_fixed(&mut g, addr, bytes, flags, a))
    } else {
        mmap_anywhere(&mut g, a)
    };
    drop(g);
    let Some(done) = done else {
        drop(inside);
        return natively();
    };
    // A first touch takes the lock itself.
    if let Ok(at) = done
        && captures(prot, flags)
        && let Ok((start, end)) = range(at, bytes)
    {
        let fills = flags & libc::MAP_LOCKED != 0 || locking::future_fills();
        if attr_of(prot, flags).kind & kind::LOCKED != 0 && fills {
            let _ = locking::hold(start, end, true);
        } else if flags & libc::MAP_POPULATE != 0 {
            let write = prot & libc::PROT_WRITE != 0;
            let _ = advice::populate(start, end, write);
        }
    }
    Some(done)
}

/// A mapping that is left to the kernel.
///
/// # Safety
///
/// `a` must be the registers of the program's call.
unsafe fn native_mmap(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    if a[3] as i32 & libc::MAP_ANONYMOUS != 0 && a[1] >= 64 << 10 {
        // Memory that the program will use and canvas does not see: most often a stack.
        accounting::measure_soon();
    }
    // SAFETY: the program's call (the caller's promise).
    unsafe { locking::native_mmap(a) }
}

fn mmap_fixed(
    g: &mut Lists,
    addr: usize,
    bytes: usize,
    flags: i32,
    a: &[usize; 6],
) -> Result<usize, Errno> {
    let (start, end) = range(addr, bytes)?;
    let mut taken = false;
    g.window.each(start, end, |_| taken = true);
    if taken && flags & libc::MAP_FIXED_NOREPLACE != 0 {
        return Err(Errno(libc::EEXIST));
    }
    refuse_sealed(g, start, end)?;
    WISH.forget(start, end);
    mmap_over(g, start, end, a)
}

/// A mapping at an address of canvas's choice; `None`: it is left to the kernel.
fn mmap_anywhere(g: &mut Lists, a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    let (hint, bytes, prot, flags) = (a[0], a[1], a[2] as i32, a[3] as i32);
    let attr = attr_of(prot, flags);
    if let Err(e) = admit(g, bytes.div_ceil(PAGE_SIZE) as u64, attr) {
        return Some(Err(e));
    }
    // If it does not fit the managed range, leave it to the kernel: address space to choose from, never touched as a
    // whole.
    let pages = pages_of(bytes)?;
    let is_wish = prot == libc::PROT_NONE && wishes::RANGE.contains(&hint);
    if is_wish && WISH.is_meant(pages) {
        return None;
    }
    // Like the kernel, honour a hint inside the managed range if that is free.
    let wanted = range(hint, bytes).ok().map(|r| r.0);
    let at = wanted
        .filter(|s| *s >= MMAP_FIRST)
        .and_then(|s| g.window.find_gap(pages, 1, s, s.checked_add(pages)?))
        .or_else(|| g.window.find_gap(pages, 1, MMAP_FIRST, WINDOW_PAGES as u32))?;
    if let Err(e) = map_at(g, at, at + pages, attr) {
        return Some(Err(e));
    }
    if is_wish {
        WISH.note(at, at + pages);
    }
    Some(Ok(addr_of(at)))
}

/// MAP_FIXED over the managed range.
fn mmap_over(g: &mut Lists, start: u32, end: u32, a: &[usize; 6]) -> Result<usize, Errno> {
    let (prot, flags) = (a[2] as i32, a[3] as i32);
    make_way(g, start)?;
    let attr = attr_of(prot, flags);
    if captures(prot, flags) {
        let (mut mapped, mut kinds) = (0, 0);
        g.window.each(start, end, |r| {
            mapped += r.end - r.start;
            kinds |= r.attr.kind;
        });
        admit(g, u64::from((end - start) - mapped), attr)?;
        api::unmapped(start, end);
        if kinds & kind::LOCKED != 0 {
            locking::kernel_unlock(start, end);
        }
        discard(start, end);
        if kinds & kind::NATIVE != 0 {
            restore_window(start, end)?;
        }
        protect(start, end, prot)?;
        g.window
            .insert(start, end, attr)
            .map_err(|_| Errno(libc::ENOMEM))?;
        if attr.kind & kind::LOCKED != 0 {
            locking::lock_new(start, end).map_err(not_lockable)?;
        }
        return Ok(a[0]);
    }
    // A file, shared or executable memory: native from here on. Map it elsewhere first, because a call that the kernel
    // refuses must not change what is here.
    let mut elsewhere = *a;
    elsewhere[0] = 0;
    elsewhere[3] &= !(libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) as usize;
    // SAFETY: without an address and MAP_FIXED it replaces no mapping.
    let new = check(unsafe { gate::raw(libc::SYS_mmap as usize, elsewhere) })?;
    api::unmapped(start, end);
    discard(start, end);
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    // SAFETY: moves the mapping just made over managed pages whose contents were just given up.
    let moved =
        check(unsafe { gate::raw(libc::SYS_mremap as usize, [new, a[1], a[1], flags, a[0], 0]) });
    if moved.is_err() {
        // SAFETY: mapped just now; the program does not know it yet.
        let _ = unsafe { mem::unmap(new, a[1]) };
    }
    let at = moved?;
    let native = Attr {
        prot: prot as u8,
        kind: kind::NATIVE,
    };
    g.window
        .insert(start, end, native)
        .map_err(|_| Errno(libc::ENOMEM))?;
    Ok(at)
}

pub fn munmap(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    on_range(a[0], a[1], |start, end| {
        if start == end {
            return Err(Errno(libc::EINVAL));
        }
        let _inside = freeze::enter();
        let mut g = lock();
        refuse_sealed(&g, start, end)?;
        WISH.gave_back(start, end);
        clear(&mut g, start, end).map(|()| 0)
    })
}

/// `mprotect` (and `pkey_mprotect` without a key).
pub fn mprotect(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    if a[1] == 0 {
        return None;
    }
    on_mapped(a[0], a[1], |start, end| {
        mprotect_range(start, end, a[2] as i32)
    })
}

fn mprotect_range(start: u32, asked: u32, prot: i32) -> Result<usize, Errno> {
    let _inside = freeze::enter();
    let mut g = lock();
    // Like the kernel, apply the call up to the first hole.
    let end = g.window.covered_until(start, asked);
    if end == start {
        return Err(Errno(libc::ENOMEM));
    }
    refuse_sealed(&g, start, end)?;
    WISH.forget(start, end);
    if prot & libc::PROT_WRITE != 0 {
        let mut more = 0;
        g.window.each(start, end, |r| {
            let is_charged = i32::from(r.attr.prot) & libc::PROT_WRITE != 0
                || r.attr.kind & (kind::NORESERVE | kind::NATIVE) != 0;
            more += u64::from(r.end - r.start) * u64::from(!is_charged);
        });
        if admit::never_fits(more) {
            return Err(Errno(libc::ENOMEM));
        }
    }
    if prot & libc::PROT_READ == 0 {
        // From here on reclaim cannot read these pages: it must not select them any more, and must be done with those
        // that it has selected.
        each_touched(start, end, |page, cur| {
            word::publish(areas::word(page), cur.set(flag::STUCK))
        });
    }
    let done = protect_around_guards(&g, start, end, prot);
    if done.is_ok() {
        let _ = g.window.update(start, end, |a| Attr {
            prot: prot as u8,
            ..a
        });
    }
    // Pages that are readable, now or still, can be evicted.
    g.window.each(start, end, |r| {
        if r.attr.is_readable() {
            each_touched(r.start, r.end, |page, cur| {
                word::publish(areas::word(page), cur.clear(flag::STUCK));
            });
        }
    });
    done.and(if end == asked {
        Ok(0)
    } else {
        Err(Errno(libc::ENOMEM))
    })
}

/// Protects a range except guards, which stay inaccessible.
fn protect_around_guards(g: &Lists, start: u32, end: u32, prot: i32) -> Result<(), Errno> {
    let mut from = start;
    let mut done = Ok(());
    g.window.each(start, end, |r| {
        if r.attr.kind & kind::GUARD != 0 {
            if from < r.start && done.is_ok() {
                done = protect(from, r.start, prot);
            }
            from = r.end;
        }
    });
    done?;
    if from < end {
        protect(from, end, prot)?;
    }
    Ok(())
}

/// `mseal` (Linux 6.10): seals the program's mappings, not the managed range.
pub fn mseal(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    if !layout::in_window(a[0]) {
        return None;
    }
    // SAFETY: of zero bytes: the kernel says whether it knows the call and its flags.
    let known =
        check(unsafe { gate::raw(libc::SYS_mseal as usize, [window_base(), 0, a[2], 0, 0, 0]) });
    if let Err(e) = known {
        return Some(Err(e));
    }
    on_range(a[0], a[1], |start, end| {
        let _inside = freeze::enter();
        let mut g = lock();
        if !g.window.covers(start, end) {
            return Err(Errno(libc::ENOMEM));
        }
        g.window
            .update(start, end, |a| Attr {
                kind: a.kind | kind::SEALED,
                ..a
            })
            .map_err(|_| Errno(libc::ENOMEM))?;
        Ok(0)
    })
}

/// Reserves and registers the managed range. Called once, at start-up.
pub fn reserve_window() -> Result<(), Errno> {
    NEVER_OVERCOMMITS.store(admit::overcommit() == Some(b'2'), Ordering::Relaxed);
    mem::map_lazy(window_base(), WINDOW_BYTES, libc::PROT_NONE)?;
    // SAFETY: the advices discard nothing.
    unsafe {
        let _ = mem::advise(window_base(), WINDOW_BYTES, libc::MADV_NOHUGEPAGE);
        let _ = mem::advise(window_base(), WINDOW_BYTES, libc::MADV_DONTDUMP);
    }
    // SAFETY: the managed range, which was mapped just now; canvas's handlers resolve the faults there.
    unsafe { uffd().register(window_base(), WINDOW_BYTES, true) }?;
    // Fill one page once: that gives the reservation its anon_vma while it is one piece. Otherwise pieces that are
    // split off and touched separately could never merge again.
    // SAFETY: the last page of the reservation just made, which the program does not use yet; `zeros` are readable.
    unsafe {
        let _ = uffd().copy(window_end() - PAGE_SIZE, areas::zeros(), PAGE_SIZE, false);
        mem::advise(window_end() - PAGE_SIZE, PAGE_SIZE, libc::MADV_DONTNEED)
    }
}

/// Calls `f` with each run of managed pages without native parts.
fn each_of_ours(g: &Lists, mut f: impl FnMut(u32, u32) -> Result<(), Errno>) -> Result<(), Errno> {
    let mut from = 0u32;
    for r in g.window.as_slice() {
        if r.attr.kind & kind::NATIVE != 0 {
            if from < r.start {
                f(from, r.start)?;
            }
            from = r.end;
        }
    }
    if (from as usize) < WINDOW_PAGES {
        f(from, WINDOW_PAGES as u32)?;
    }
    Ok(())
}

/// Sets whether a fork's child inherits the managed range, except native parts, which are inherited as the program
/// wants. Only forks that canvas sees may inherit it: in the child of any other, far pages would read as zeros; without
/// the range that child gets SIGSEGV instead.
pub fn inherit_window(g: &Lists, yes: bool) -> Result<(), Errno> {
    let advice = if yes {
        libc::MADV_DOFORK
    } else {
        libc::MADV_DONTFORK
    };
    each_of_ours(g, |start, end| {
        let bytes = (end - start) as usize * PAGE_SIZE;
        // SAFETY: both advices change only what a fork copies.
        unsafe { mem::advise(addr_of(start), bytes, advice) }
    })
}

/// In a fork's child: registers the managed range with the child's own userfaultfd, clears what must not be inherited,
/// and charges the child for the rest.
pub fn after_fork_in_child(g: &mut Lists) -> Result<(), Errno> {
    each_of_ours(g, |start, end| {
        let bytes = (end - start) as usize * PAGE_SIZE;
        // SAFETY: a part of the managed range; canvas's handlers resolve the faults there.
        unsafe { uffd().register(addr_of(start), bytes, true) }.map(|_| ())
    })?;
    // No other thread exists, so words may be stored to.
    let (mut resident, mut stay) = (0, 0);
    let stack = locking::signal_stack();
    for i in 0..g.window.as_slice().len() {
        let r = g.window.as_slice()[i];
        let was_locked = r.attr.kind & kind::LOCKED != 0;
        each_touched(r.start, r.end, |page, cur| {
            let mut now = cur.with_pins(0);
            if was_locked && !stack.contains(&page.0) {
                now = now.clear(flag::LOCKED);
            }
            stay += i64::from(now.has(flag::LOCKED));
            if cur.state() == State::Resident {
                resident += 1;
                // The kernel does not pass the protection on to a child.
                now = now.clear(flag::PROTECTED);
            }
            areas::word(page).store(now.0, Ordering::Release);
        });
    }
    locked::note(state::slot(), stay);
    locking::after_fork_in_child(g);
    hints::after_fork_in_child();
    learn::after_fork_in_child();
    accounting::after_fork_in_child(resident);
    // Until shares are measured, the child is charged for none of its pages.
    accounting::size_cache(trace::cache_pages());
    cache::after_fork_in_child();
    touched::after_fork_in_child();
    let mut at = 0;
    while let Some(r) = g.window.first_in(at, u32::MAX) {
        at = r.end;
        if r.attr.kind & kind::DONTFORK != 0 {
            clear(g, r.start, r.end)?;
        } else if r.attr.kind & kind::NATIVE != 0 {
            continue;
        } else if r.attr.kind & kind::WIPEONFORK != 0 {
            discard(r.start, r.end);
        }
    }
    Ok(())
}
