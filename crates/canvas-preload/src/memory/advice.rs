//! Advice about memory and questions about it: `madvise`, `mincore`, `msync`.

use canvas_core::pager::regions::{Attr, Region, kind};
use canvas_core::pager::word::{self, State};
use canvas_sys::Errno;
use canvas_sys::gate::{self, check, yield_now};
use canvas_types::layout::{self, WINDOW_PAGES, window_base, window_end};
use canvas_types::sync::backoff;
use canvas_types::{PAGE_SIZE, PageId};

use crate::memory::{
    open_pages::protect,
    pins,
    ranges::{discard, on_mapped},
};
use crate::own_memory::areas;
use crate::paging::{
    fault::{self, Resolved},
    freeze, hints,
    regions::{self, Lists, addr_of, lock, range},
};

/// Advice that this crate's libc does not define.
const COLLAPSE: i32 = 25;
const GUARD_INSTALL: i32 = 102;
const GUARD_REMOVE: i32 = 103;

pub fn madvise(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    if !layout::in_window(a[0]) {
        return None;
    }
    let advice = a[2] as i32;
    Some(known(advice).and_then(|()| {
        // To the program, nothing is mapped behind the managed range.
        let end = a[0]
            .checked_add(a[1])
            .and_then(|end| end.checked_next_multiple_of(PAGE_SIZE));
        if a[0].is_multiple_of(PAGE_SIZE) && end.is_some_and(|end| end > window_end()) {
            let start = PageId::of_addr(a[0]).0;
            return madvise_range(start, WINDOW_PAGES as u32, advice).and(Err(hole()));
        }
        let (start, end) = range(a[0], a[1])?;
        madvise_range(start, end, advice)
    }))
}

fn hole() -> Errno {
    Errno(libc::ENOMEM)
}

/// Whether this kernel knows the advice: it answers even for zero bytes.
fn known(advice: i32) -> Result<(), Errno> {
    if matches!(
        advice,
        libc::MADV_NORMAL
            ..=libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_DONTFORK | libc::MADV_DOFORK
    ) {
        return Ok(());
    }
    let of_nothing = [window_base(), 0, advice as usize, 0, 0, 0];
    // SAFETY: of zero bytes.
    check(unsafe { gate::raw(libc::SYS_madvise as usize, of_nothing) }).map(|_| ())
}

/// End of the range's pages before the first region for which `stops` is true.
fn before(g: &Lists, start: u32, end: u32, stops: impl Fn(&Region) -> bool) -> u32 {
    let mut until = end;
    g.window.each(start, end, |r| {
        if r.start < until && stops(&r) {
            until = r.start;
        }
    });
    until
}

/// Returns `error` if the call had to stop before the range's end.
fn up_to(until: u32, end: u32, error: i32) -> Result<(), Errno> {
    match until == end {
        true => Ok(()),
        false => Err(Errno(error)),
    }
}

fn is_locked(r: &Region) -> bool {
    r.attr.kind & kind::LOCKED != 0
}

/// Whether the region is sealed and not writable by the program: it may not be emptied either.
fn is_fast(r: &Region) -> bool {
    r.attr.kind & kind::SEALED != 0 && i32::from(r.attr.prot) & libc::PROT_WRITE == 0
}

fn madvise_range(start: u32, end: u32, advice: i32) -> Result<usize, Errno> {
    if start == end {
        return Ok(0);
    }
    let _inside = freeze::enter();
    let mut g = lock();
    // With holes, the call still affects what is mapped.
    let done = match g.window.covers(start, end) {
        true => Ok(0),
        false => Err(hole()),
    };
    advise_native(&g, start, end, advice)?;
    let attr = |g: &mut Lists, set: u16, clear: u16| {
        let changed = g.window.update(start, end, |a| Attr {
            kind: (a.kind | set) & !clear,
            ..a
        });
        changed.map_err(|_| hole())
    };
    match advice {
        libc::MADV_DOFORK => attr(&mut g, 0, kind::DONTFORK)?,
        libc::MADV_DONTDUMP => attr(&mut g, kind::DONTDUMP, 0)?,
        libc::MADV_DODUMP => attr(&mut g, 0, kind::DONTDUMP)?,
        libc::MADV_KEEPONFORK => attr(&mut g, 0, kind::WIPEONFORK)?,
        libc::MADV_NORMAL => attr(&mut g, 0, kind::RANDOM | kind::SEQUENTIAL)?,
        libc::MADV_RANDOM => {
            attr(&mut g, kind::RANDOM, kind::SEQUENTIAL)?;
            regions::note_advised();
        }
        libc::MADV_SEQUENTIAL => {
            attr(&mut g, kind::SEQUENTIAL, kind::RANDOM)?;
            regions::note_advised();
        }
        libc::MADV_DONTFORK | libc::MADV_WIPEONFORK => {
            let set = match advice {
                libc::MADV_DONTFORK => kind::DONTFORK,
                _ => kind::WIPEONFORK,
            };
            up_to(before(&g, start, end, is_fast), end, libc::EPERM)?;
            attr(&mut g, set, 0)?;
        }
        // FREE may take the pages at any time, so take them now.
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_DONTNEED_LOCKED => {
            empty(&g, start, end, advice)?;
        }
        GUARD_INSTALL => install_guard(&mut g, start, end)?,
        GUARD_REMOVE => change_guard(&mut g, start, end, false)?,
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
            drop(g);
            return populate(start, end, advice == libc::MADV_POPULATE_WRITE).map(|()| 0);
        }
        libc::MADV_WILLNEED => {
            drop(g);
            hints::will_need(start, end);
        }
        libc::MADV_COLD | libc::MADV_PAGEOUT => {
            let locked = before(&g, start, end, is_locked) < end;
            drop(g);
            let act = match advice {
                libc::MADV_COLD => hints::cool,
                _ => hints::page_out,
            };
            // Like the kernel, fail for locked memory; what is not locked of it has left anyway.
            if act(start, end) || locked {
                return Err(Errno(libc::EINVAL));
            }
        }
        libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | COLLAPSE => {}
        _ => return Err(Errno(libc::EINVAL)),
    }
    done
}

/// Passes the advice on native parts to the kernel.
fn advise_native(g: &Lists, start: u32, end: u32, advice: i32) -> Result<(), Errno> {
    let mut done = Ok(());
    g.window.each(start, end, |r| {
        if r.attr.kind & kind::NATIVE != 0 && done.is_ok() {
            let bytes = (r.end - r.start) as usize * PAGE_SIZE;
            let call = [addr_of(r.start), bytes, advice as usize, 0, 0, 0];
            // SAFETY: a native part of the managed range, in which nothing of Rust's lies: it is the program's to
            // advise.
            done = check(unsafe { gate::raw(libc::SYS_madvise as usize, call) }).map(|_| ());
        }
    });
    done
}

/// Drops contents, up to memory that may not lose them.
fn empty(g: &Lists, start: u32, end: u32, advice: i32) -> Result<(), Errno> {
    let fast = before(g, start, end, is_fast);
    let locked = match advice {
        libc::MADV_DONTNEED_LOCKED => end,
        _ => before(g, start, end, is_locked),
    };
    // The kernel has emptied native parts: their words are untouched.
    discard(start, fast.min(locked));
    if fast < locked {
        return Err(Errno(libc::EPERM));
    }
    up_to(locked, end, libc::EINVAL)
}

/// Makes the pages a guard region: their contents are gone, and a touch is SIGSEGV.
fn install_guard(g: &mut Lists, start: u32, end: u32) -> Result<(), Errno> {
    up_to(before(g, start, end, is_fast), end, libc::EPERM)?;
    up_to(before(g, start, end, is_locked), end, libc::EINVAL)?;
    change_guard(g, start, end, true)
}

/// Sets or removes guards in a range, except in native parts, about which the kernel was advised.
pub(crate) fn change_guard(g: &mut Lists, start: u32, end: u32, is_set: bool) -> Result<(), Errno> {
    let mut at = start;
    while let Some(r) = g.window.first_in(at, end) {
        at = r.end;
        let has = r.attr.kind & kind::GUARD != 0;
        if r.attr.kind & kind::NATIVE != 0 || has == is_set {
            continue;
        }
        let attr = Attr {
            kind: r.attr.kind ^ kind::GUARD,
            ..r.attr
        };
        if is_set {
            discard(r.start, r.end);
        }
        g.window.insert(r.start, r.end, attr).map_err(|_| hole())?;
        protect(r.start, r.end, attr.access())?;
    }
    Ok(())
}

/// Makes all pages of the range present, up to the first that cannot be.
pub(crate) fn populate(start: u32, end: u32, write: bool) -> Result<(), Errno> {
    let mut at = start;
    while at < end {
        let r = lock().window.at(at).ok_or(hole())?;
        let until = r.end.min(end);
        if r.attr.kind & kind::NATIVE == 0 {
            let needed = match write {
                true => libc::PROT_WRITE,
                false => libc::PROT_READ,
            };
            if i32::from(r.attr.prot) & needed == 0 {
                return Err(Errno(libc::EINVAL));
            }
            for page in PageId::each(at..until) {
                match fault::resolve(page, write) {
                    Resolved::Present => {}
                    Resolved::NoMemory => return Err(hole()),
                    _ => return Err(Errno(libc::EFAULT)),
                }
            }
        }
        at = until;
    }
    Ok(())
}

/// The part of the call's range that begins at `at`, with its region; `None` if nothing is mapped there.
fn part(at: u32, end: u32) -> Option<Region> {
    let _inside = freeze::enter();
    let g = lock();
    let r = g.window.at(at)?;
    Some(Region {
        start: at,
        end: r.end.min(end),
        attr: r.attr,
    })
}

/// `mincore`.
///
/// # Safety
///
/// `a` must be the registers of the program's call: its pointers are read and written in its name.
pub unsafe fn mincore(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    on_mapped(a[0], a[1], |start, end| {
        let mut at = start;
        while at < end {
            let r = part(at, end).ok_or(hole())?;
            let bytes = (r.end - at) as usize;
            let out = a[2] + (at - start) as usize;
            // The kernel writes first, and so detects a bad buffer.
            let _pins = pins::pin_range(out, bytes);
            let call = [addr_of(at), bytes * PAGE_SIZE, out, 0, 0, 0];
            // SAFETY: the program's call (the caller's promise), of a part of its range.
            check(unsafe { gate::raw(libc::SYS_mincore as usize, call) })?;
            if r.attr.kind & kind::NATIVE == 0 {
                for (i, page) in (at..r.end).enumerate() {
                    // In thread mode, a thread that touched a page continues slightly before the page's word says that
                    // it is present.
                    let mut spins = 0;
                    while word::load(areas::word(PageId(page))).state().is_busy() {
                        backoff(&mut spins, yield_now);
                    }
                    let state = word::load(areas::word(PageId(page))).state();
                    let is_resident = u8::from(state == State::Resident);
                    // SAFETY: a byte of the program's buffer, to which the kernel has just written in its name.
                    unsafe { ((out + i) as *mut u8).write(is_resident) };
                }
            }
            at = r.end;
        }
        Ok(0)
    })
}

/// `msync`: managed memory has no file. Unmapped memory is an error, reported after the rest was done.
pub fn msync(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    let flags = a[2] as i32;
    let both = libc::MS_SYNC | libc::MS_ASYNC;
    if layout::in_window(a[0])
        && (flags & !(both | libc::MS_INVALIDATE) != 0 || flags & both == both)
    {
        return Some(Err(Errno(libc::EINVAL)));
    }
    on_mapped(a[0], a[1], |start, end| {
        let mut done = Ok(0);
        let mut at = start;
        while at < end {
            let Some(r) = part(at, end) else {
                done = Err(hole());
                at += 1;
                continue;
            };
            if r.attr.kind & kind::NATIVE != 0 {
                let bytes = (r.end - at) as usize * PAGE_SIZE;
                // SAFETY: a native part of the managed range, in which nothing of Rust's lies; the call changes no
                // contents.
                check(unsafe {
                    gate::raw(
                        libc::SYS_msync as usize,
                        [addr_of(at), bytes, a[2], 0, 0, 0],
                    )
                })?;
            } else if is_locked(&r) && flags & libc::MS_INVALIDATE != 0 {
                return Err(Errno(libc::EBUSY));
            }
            at = r.end;
        }
        done
    })
}
