//! The program's mapping calls, as they act on the window.
//!
//! The window is one reservation, inaccessible where nothing is mapped: mapping is an mprotect,
//! unmapping a discard and an mprotect, and the kernel's own checks hold everywhere else. All calls
//! are serialised by one lock, as the kernel serialises them by mmap_lock.

use canvas_pager::regions::{Attr, Region, kind};
use canvas_pager::word::{self, State, Word, flag};
use canvas_shm::Counter;
use canvas_sys::gate::{self, check, yield_now};
use canvas_sys::{Errno, mem};
use canvas_types::layout::{
    self, BLOCK_PAGES, WINDOW_BYTES, WINDOW_PAGES, window_base, window_end,
};
use canvas_types::sync::backoff;
use canvas_types::{PAGE_SIZE, PageId};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::api;
use crate::base::{
    areas, freeze,
    regions::{self, Lists, addr_of, lock, pages_of, range},
    smaps, state,
    state::{count, uffd},
    tenant, touched,
};
use crate::memory::open_pages::{MMAP_FIRST, make_way, protect};
use crate::memory::pins;
use crate::paging::{
    accounting,
    fault::{self, Resolved},
    hints, reclaim,
};

/// The program's own RLIMIT_AS and RLIMIT_DATA (soft): ours would not fit under them.
pub static LIMIT_AS: AtomicU64 = AtomicU64::new(u64::MAX);
/// See [`LIMIT_AS`].
pub static LIMIT_DATA: AtomicU64 = AtomicU64::new(u64::MAX);

/// Hints from here (4 TiB) up to the window are honoured for inaccessible reservations. Lower ones
/// are preferences (a heap that compressed pointers reach), and their memory is worth managing.
const NATIVE_HINTS: usize = 4 << 40;

/// Makes a call on the range that it names; `None`, and not ours, when that begins outside of the
/// window.
fn on_range(
    addr: usize,
    bytes: usize,
    call: impl FnOnce(u32, u32) -> Result<usize, Errno>,
) -> Option<Result<usize, Errno>> {
    layout::in_window(addr).then(|| range(addr, bytes).and_then(|(start, end)| call(start, end)))
}

/// Takes the word of every touched page in the range for the mapping call: `f` gets the page and
/// its word before. The pages must end in another state by [`word::publish`].
pub(crate) fn each_touched(start: u32, end: u32, mut f: impl FnMut(PageId, Word)) {
    let mut page = start;
    while page < end {
        let block = page as usize / BLOCK_PAGES;
        let block_end = (((block + 1) * BLOCK_PAGES) as u32).min(end);
        if areas::touched_in_block()[block].load(Ordering::Relaxed) == 0 {
            page = block_end;
            continue;
        }
        while page < block_end {
            let w = areas::word(PageId(page));
            let mut spins = 0;
            loop {
                let cur = word::load(w);
                if cur.state() == State::Untouched {
                    break;
                }
                if cur.state().is_busy() {
                    backoff(&mut spins, yield_now);
                    continue;
                }
                if word::transition(w, cur, cur.with_state(State::Mapping)) {
                    f(PageId(page), cur);
                    break;
                }
            }
            page += 1;
        }
    }
}

/// Discards the contents of a range: its pages read as zeros (if still mapped) from now on.
pub(crate) fn discard(start: u32, end: u32) {
    // Block by block, so that another thread's fault never waits for a whole gigabyte.
    let mut from = start;
    while from < end {
        let to = ((from as usize / BLOCK_PAGES + 1) * BLOCK_PAGES).min(end as usize) as u32;
        let mut mine = [0u64; BLOCK_PAGES / 64];
        let mut present = [0u64; BLOCK_PAGES / 64];
        let (mut any, mut n) = (false, 0u32);
        let first = from as usize / BLOCK_PAGES * BLOCK_PAGES;
        each_touched(from, to, |page, cur| {
            let i = page.index() - first;
            mine[i / 64] |= 1 << (i % 64);
            if cur.state() == State::Resident {
                present[i / 64] |= 1 << (i % 64);
                any = true;
            }
            n += 1;
            reclaim::forget(page, cur);
        });
        if any {
            if state::FORKED.load(Ordering::Relaxed) {
                tenant::keep_charge(smaps::shared_pages(addr_of(first as u32), &present));
            }
            // SAFETY: the program gave up what is there; the words of all present pages in the range are Mapping,
            // and so ours: nobody copies from these pages meanwhile.
            let _ = unsafe {
                mem::advise(
                    addr_of(from),
                    (to - from) as usize * PAGE_SIZE,
                    libc::MADV_DONTNEED,
                )
            };
        }
        for (i, bits) in mine.iter().enumerate() {
            let mut bits = *bits;
            while bits != 0 {
                let page = first + i * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                word::publish(areas::word(PageId(page as u32)), Word(0));
            }
        }
        if n > 0 {
            touched::note_untouched(from as usize / BLOCK_PAGES, n);
            state::seg().charge_footprint(-i64::from(n));
        }
        from = to;
    }
}

/// Makes a range of the window ours again after a native mapping: reserved, registered.
pub(crate) fn restore_window(start: u32, end: u32) -> Result<(), Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let (addr, bytes) = (addr_of(start), (end - start) as usize * PAGE_SIZE);
    assert!(start <= end && end as usize <= WINDOW_PAGES);
    // SAFETY: replaces pages of the window, in which nothing of Rust's lies, and which the program gives up.
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
    }
    inherit_window(false);
    // SAFETY: a part of the window that was mapped just now; its faults come to `resolve`.
    unsafe { uffd().register(addr, bytes, true) }?;
    Ok(())
}

/// Unmaps a range: contents, protection and regions.
pub(crate) fn clear(g: &mut Lists, start: u32, end: u32) -> Result<(), Errno> {
    let mut native = false;
    let mut accessible = false;
    g.window.each(start, end, |r| {
        native |= r.attr.kind & kind::NATIVE != 0;
        accessible |= r.attr.prot != 0;
    });
    g.window
        .remove(start, end)
        .map_err(|_| Errno(libc::ENOMEM))?;
    api::unmapped(start, end);
    discard(start, end);
    if native {
        restore_window(start, end)?;
    } else if accessible {
        protect(start, end, libc::PROT_NONE)?;
    }
    Ok(())
}

/// Refuses what would pass the program's own limits, or a far limit that is reached.
pub(crate) fn admit(g: &Lists, new_pages: u32, writable: bool) -> Result<(), Errno> {
    let total = (g.window.pages() + u64::from(new_pages)) * PAGE_SIZE as u64;
    if total > LIMIT_AS.load(Ordering::Relaxed)
        || (writable && total > LIMIT_DATA.load(Ordering::Relaxed))
    {
        return Err(Errno(libc::ENOMEM));
    }
    if new_pages > 0 && writable && reclaim::far_limit_reached() {
        count(Counter::MmapRefused, 1);
        return Err(Errno(libc::ENOMEM));
    }
    Ok(())
}

/// Maps anonymous memory on `start..end`, which is free.
pub(crate) fn map_at(g: &mut Lists, start: u32, end: u32, prot: i32) -> Result<(), Errno> {
    let prot = prot as u8;
    map_as(g, start, end, Attr { prot, kind: 0 })
}

/// The same, with all that the program has advised of it.
pub(crate) fn map_as(g: &mut Lists, start: u32, end: u32, attr: Attr) -> Result<(), Errno> {
    let prot = i32::from(attr.prot);
    make_way(g, start)?;
    g.window
        .insert(start, end, attr)
        .map_err(|_| Errno(libc::ENOMEM))?;
    if prot != libc::PROT_NONE
        && let Err(e) = protect(start, end, prot)
    {
        let _ = g.window.remove(start, end);
        return Err(e);
    }
    Ok(())
}

/// Anonymous private mappings that are ours wherever they are asked for.
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

/// `mmap`. `None`: not ours, make the call as it is.
pub fn mmap(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    let (addr, bytes, prot, flags) = (a[0], a[1], a[2] as i32, a[3] as i32);
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    let overlaps_window = addr < window_end() && addr.saturating_add(bytes) > window_base();
    // A reservation that only makes sense at its place (ZGC's heap views): the kernel's.
    let exact = !fixed && prot == libc::PROT_NONE && (NATIVE_HINTS..window_base()).contains(&addr);
    if bytes == 0 || exact || (fixed && !overlaps_window) || (!fixed && !captures(prot, flags)) {
        if flags & libc::MAP_ANONYMOUS != 0 && bytes >= 64 << 10 {
            // Memory that will be the program's, and not ours to see: a stack, most often.
            accounting::measure_soon();
        }
        return None;
    }
    let _inside = freeze::enter();
    let mut g = lock();
    let done = if fixed {
        mmap_fixed(&mut g, addr, bytes, flags, a)
    } else {
        mmap_anywhere(&mut g, addr, bytes, prot)
    };
    drop(g);
    // A first touch takes the lock itself.
    if let Ok(at) = done
        && flags & libc::MAP_POPULATE != 0
        && captures(prot, flags)
        && let Ok((start, end)) = range(at, bytes)
    {
        populate(start, end);
    }
    Some(done)
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
    mmap_over(g, start, end, a)
}

fn mmap_anywhere(g: &mut Lists, hint: usize, bytes: usize, prot: i32) -> Result<usize, Errno> {
    let pages = pages_of(bytes).ok_or(Errno(libc::ENOMEM))?;
    admit(g, pages, prot & libc::PROT_WRITE != 0)?;
    // A hint inside the window is honoured when free, as the kernel does.
    let wanted = range(hint, bytes).ok().map(|r| r.0);
    let at = wanted
        .filter(|s| *s >= MMAP_FIRST)
        .and_then(|s| g.window.find_gap(pages, 1, s, s.checked_add(pages)?))
        .or_else(|| g.window.find_gap(pages, 1, MMAP_FIRST, WINDOW_PAGES as u32))
        .ok_or(Errno(libc::ENOMEM))?;
    map_at(g, at, at + pages, prot)?;
    Ok(addr_of(at))
}

/// MAP_FIXED over the window.
fn mmap_over(g: &mut Lists, start: u32, end: u32, a: &[usize; 6]) -> Result<usize, Errno> {
    let (prot, flags) = (a[2] as i32, a[3] as i32);
    make_way(g, start)?;
    api::unmapped(start, end);
    if captures(prot, flags) {
        let mut mapped = 0;
        g.window.each(start, end, |r| mapped += r.end - r.start);
        admit(g, (end - start) - mapped, prot & libc::PROT_WRITE != 0)?;
        let mut native = false;
        g.window
            .each(start, end, |r| native |= r.attr.kind & kind::NATIVE != 0);
        discard(start, end);
        if native {
            restore_window(start, end)?;
        }
        protect(start, end, prot)?;
        g.window
            .insert(
                start,
                end,
                Attr {
                    prot: prot as u8,
                    kind: 0,
                },
            )
            .map_err(|_| Errno(libc::ENOMEM))?;
        return Ok(a[0]);
    }
    // A file, shared or executable memory: the kernel's own from here on. Mapped elsewhere first: a
    // call that the kernel refuses must leave what is here.
    let mut elsewhere = *a;
    elsewhere[0] = 0;
    elsewhere[3] &= !(libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) as usize;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let new = check(unsafe { gate::raw(libc::SYS_mmap as usize, elsewhere) })?;
    discard(start, end);
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    // SAFETY: moves the mapping just made over a range whose contents were just given up.
    let moved =
        check(unsafe { gate::raw(libc::SYS_mremap as usize, [new, a[1], a[1], flags, a[0], 0]) });
    if moved.is_err() {
        // SAFETY: the mapping just made, which nobody knows of.
        let _ = unsafe { mem::unmap(new, a[1]) };
    }
    let at = moved?;
    let attr = Attr {
        prot: prot as u8,
        kind: kind::NATIVE,
    };
    g.window
        .insert(start, end, attr)
        .map_err(|_| Errno(libc::ENOMEM))?;
    Ok(at)
}

/// Touches every page. The caller is inside.
fn populate(start: u32, end: u32) {
    for page in PageId::each(start..end) {
        if fault::resolve(page, true) != Resolved::Present {
            break;
        }
    }
}

/// `munmap`.
pub fn munmap(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    on_range(a[0], a[1], |start, end| {
        if start == end {
            return Err(Errno(libc::EINVAL));
        }
        let _inside = freeze::enter();
        let mut g = lock();
        clear(&mut g, start, end).map(|()| 0)
    })
}

/// `mprotect` (and `pkey_mprotect` without a key).
pub fn mprotect(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    if a[1] == 0 {
        return None;
    }
    on_range(a[0], a[1], |start, end| {
        mprotect_range(start, end, a[2] as i32)
    })
}

fn mprotect_range(start: u32, asked: u32, prot: i32) -> Result<usize, Errno> {
    let _inside = freeze::enter();
    let mut g = lock();
    // Up to the first hole the call has its effect, as the kernel has it.
    let end = g.window.covered_until(start, asked);
    if end == start {
        return Err(Errno(libc::ENOMEM));
    }
    let readable = prot & libc::PROT_READ != 0;
    if !readable {
        // From here on reclaim cannot read these pages: it must not select them any more, and
        // those that it has selected must be through.
        each_touched(start, end, |page, cur| {
            word::publish(areas::word(page), cur.set(flag::STUCK))
        });
    }
    let done = protect(start, end, prot);
    if done.is_ok() {
        let _ = g.window.update(start, end, |a| Attr {
            prot: prot as u8,
            ..a
        });
    }
    if readable {
        each_touched(start, end, |page, cur| {
            word::publish(areas::word(page), cur.clear(flag::STUCK));
        });
    } else if done.is_err() {
        // The kernel refused: what was readable is so still, and may leave.
        let lists = &mut *g;
        unstick(lists, start, end);
    }
    done.and(if end == asked {
        Ok(0)
    } else {
        Err(Errno(libc::ENOMEM))
    })
}

/// What is readable of `start..end` can be selected by reclaim.
fn unstick(g: &mut Lists, start: u32, end: u32) {
    g.window.each(start, end, |r| {
        if i32::from(r.attr.prot) & libc::PROT_READ != 0 {
            each_touched(r.start.max(start), r.end.min(end), |page, cur| {
                word::publish(areas::word(page), cur.clear(flag::STUCK));
            });
        }
    });
}

/// `madvise`.
pub fn madvise(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    let hole = Errno(libc::ENOMEM);
    // What lies behind the window is none of the program's: to it, nothing is mapped there.
    let is_past = a[0].is_multiple_of(PAGE_SIZE)
        && layout::in_window(a[0])
        && a[0]
            .checked_add(a[1])
            .and_then(|end| end.checked_add(PAGE_SIZE - 1))
            .is_some_and(|end| end & !(PAGE_SIZE - 1) > window_end());
    if is_past {
        let start = PageId::of_addr(a[0]).0;
        return Some(madvise_range(start, WINDOW_PAGES as u32, a[2]).and(Err(hole)));
    }
    on_range(a[0], a[1], |start, end| madvise_range(start, end, a[2]))
}

fn madvise_range(start: u32, end: u32, advice: usize) -> Result<usize, Errno> {
    if start == end {
        return Ok(0);
    }
    let _inside = freeze::enter();
    let mut g = lock();
    // With holes it has its effect all the same.
    let done = if g.window.covers(start, end) {
        Ok(0)
    } else {
        Err(Errno(libc::ENOMEM))
    };
    // Native pieces are the kernel's to advise; the rest of the range is ours.
    let mut native = Ok(0);
    g.window.each(start, end, |r| {
        if r.attr.kind & kind::NATIVE != 0 && native.is_ok() {
            let bytes = (r.end - r.start) as usize * PAGE_SIZE;
            // SAFETY: the program's call on the program's own mapping.
            native = check(unsafe {
                gate::raw(
                    libc::SYS_madvise as usize,
                    [addr_of(r.start), bytes, advice, 0, 0, 0],
                )
            });
        }
    });
    native?;
    let mut attr = |set: u8, clear: u8| {
        g.window.update(start, end, |a| Attr {
            kind: (a.kind | set) & !clear,
            ..a
        })
    };
    match advice as i32 {
        // FREE may take the pages at any time; now is a time.
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_DONTNEED_LOCKED => discard(start, end),
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
            drop(g);
            populate(start, end);
            return done;
        }
        libc::MADV_DONTFORK => drop(attr(kind::DONTFORK, 0)),
        libc::MADV_DOFORK => drop(attr(0, kind::DONTFORK)),
        libc::MADV_WIPEONFORK => drop(attr(kind::WIPEONFORK, 0)),
        libc::MADV_KEEPONFORK => drop(attr(0, kind::WIPEONFORK)),
        libc::MADV_NORMAL => drop(attr(0, kind::RANDOM | kind::SEQUENTIAL)),
        libc::MADV_RANDOM => {
            let _ = attr(kind::RANDOM, kind::SEQUENTIAL);
            regions::note_advised();
        }
        libc::MADV_SEQUENTIAL => {
            let _ = attr(kind::SEQUENTIAL, kind::RANDOM);
            regions::note_advised();
        }
        libc::MADV_WILLNEED => {
            drop(g);
            hints::will_need(start, end);
        }
        libc::MADV_COLD | libc::MADV_PAGEOUT => {
            drop(g);
            let act = match advice as i32 {
                libc::MADV_COLD => hints::cool,
                _ => hints::page_out,
            };
            // Locked memory is refused, as by the kernel; what is not locked of it has left all the same.
            if act(start, end) {
                return Err(Errno(libc::EINVAL));
            }
        }
        libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP => {}
        _ => return Err(Errno(libc::EINVAL)),
    }
    done
}

/// `mincore`.
///
/// # Safety
/// `a` must be the registers of the program's call: its pointers are read and written in its name.
pub unsafe fn mincore(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    on_range(a[0], a[1], |start, end| {
        if !mapped(start, end) {
            return Err(Errno(libc::ENOMEM));
        }
        // The kernel writes first, and so finds out about a bad buffer.
        let _pins = pins::pin_range(a[2], (end - start) as usize);
        // SAFETY: the program's call.
        check(unsafe { gate::raw(libc::SYS_mincore as usize, *a) })?;
        for page in start..end {
            // In thread mode whoever touched a page goes on a moment before the page's word says so.
            let mut spins = 0;
            while word::load(areas::word(PageId(page))).state().is_busy() {
                backoff(&mut spins, yield_now);
            }
            let resident = word::load(areas::word(PageId(page))).state() == State::Resident;
            // SAFETY: the program's buffer of a byte a page, to which the kernel wrote just now.
            unsafe { ((a[2] + (page - start) as usize) as *mut u8).write(resident as u8) };
        }
        Ok(0)
    })
}

/// Is every page of the range mapped?
fn mapped(start: u32, end: u32) -> bool {
    let _inside = freeze::enter();
    let g = lock();
    g.window.covers(start, end)
}

/// `mlock`, `mlock2` (`lock`) and `munlock`: locked pages are made resident and stay so.
pub fn mlock(
    addr: usize,
    bytes: usize,
    lock_them: bool,
    on_fault: bool,
) -> Option<Result<usize, Errno>> {
    if !layout::in_window(addr) {
        return None;
    }
    let aligned = addr & !(PAGE_SIZE - 1);
    // A length that wraps is as short to the kernel.
    let Ok((start, end)) = range(aligned, bytes.wrapping_add(addr - aligned)) else {
        return Some(Err(Errno(libc::ENOMEM)));
    };
    let _inside = freeze::enter();
    {
        let g = lock();
        if !g.window.covers(start, end) {
            return Some(Err(Errno(libc::ENOMEM)));
        }
    }
    if !lock_them {
        each_touched(start, end, |p, cur| {
            word::publish(areas::word(p), cur.clear(flag::LOCKED))
        });
        return Some(Ok(0));
    }
    // More than half of local memory locked would leave nothing to page with.
    let limit = state::seg().local_limit_pages();
    if limit.is_some_and(|l| i64::from(end - start) > l / 2) {
        return Some(Err(Errno(libc::ENOMEM)));
    }
    for page in PageId::each(start..end) {
        let w = areas::word(page);
        loop {
            let cur = word::load(w);
            // A page that came in write-protected is opened first: the first write to a locked page may be
            // the kernel's, of a signal's frame, and would end the program.
            if cur.state() == State::Resident && !cur.has(flag::PROTECTED) {
                if word::transition(w, cur, cur.set(flag::LOCKED)) {
                    break;
                }
                continue;
            }
            if on_fault && cur.state() == State::Untouched {
                break;
            }
            match fault::resolve(page, true) {
                Resolved::Present => {}
                _ => return Some(Err(Errno(libc::ENOMEM))),
            }
        }
    }
    Some(Ok(0))
}

/// `mlockall`/`munlockall`: all regions that are mapped now.
pub fn mlockall(lock_them: bool) -> Result<usize, Errno> {
    let mut total = 0u64;
    {
        let _inside = freeze::enter();
        let g = lock();
        total += g.window.pages();
    }
    if lock_them
        && state::seg()
            .local_limit_pages()
            .is_some_and(|l| total as i64 > l / 2)
    {
        return Err(Errno(libc::ENOMEM));
    }
    let mut next = 0u32;
    loop {
        let region = {
            let _inside = freeze::enter();
            let g = lock();
            g.window.as_slice().iter().find(|r| r.end > next).copied()
        };
        let Some(r) = region else { return Ok(0) };
        if r.attr.kind & kind::NATIVE == 0 && r.attr.prot != 0 {
            mlock(
                addr_of(r.start),
                (r.end - r.start) as usize * PAGE_SIZE,
                lock_them,
                false,
            )
            .unwrap_or(Ok(0))?;
        }
        next = r.end;
    }
}

/// Reserves the window and registers it. Once, at start-up.
pub fn reserve_window() -> Result<(), Errno> {
    mem::map_lazy(window_base(), WINDOW_BYTES, libc::PROT_NONE)?;
    // SAFETY: a fresh reservation.
    unsafe {
        let _ = mem::advise(window_base(), WINDOW_BYTES, libc::MADV_NOHUGEPAGE);
        let _ = mem::advise(window_base(), WINDOW_BYTES, libc::MADV_DONTDUMP);
    }
    // SAFETY: the window, which was mapped just now; its faults come to `resolve`.
    unsafe { uffd().register(window_base(), WINDOW_BYTES, true) }?;
    // One page once: gives the reservation its anon_vma while it is one piece, without which
    // pieces that are split off and touched apart could never merge again.
    // SAFETY: fills and discards a page of the fresh reservation.
    unsafe {
        let _ = uffd().copy(window_end() - PAGE_SIZE, areas::zeros(), PAGE_SIZE, false);
        mem::advise(window_end() - PAGE_SIZE, PAGE_SIZE, libc::MADV_DONTNEED)
    }
}

/// Whether a fork's child inherits the window. Only forks that we see may: in the child of any
/// other, far pages would read as zeros; without the window it is ended by SIGSEGV instead.
pub fn inherit_window(yes: bool) {
    let advice = if yes {
        libc::MADV_DOFORK
    } else {
        libc::MADV_DONTFORK
    };
    // SAFETY: changes only what a fork copies.
    let _ = unsafe { mem::advise(window_base(), WINDOW_BYTES, advice) };
}

/// In a fork's child: registers the window with the child's own userfaultfd, clears what must not
/// be inherited, and charges the child for the rest.
pub fn after_fork_in_child(g: &mut Lists) -> Result<(), Errno> {
    let bytes = |s: u32, e: u32| (e - s) as usize * PAGE_SIZE;
    let mut from = 0u32;
    let mut result = Ok(());
    let mut wipe = |r: Region| {
        if r.attr.kind & kind::NATIVE != 0 {
            if from < r.start && result.is_ok() {
                // SAFETY: a part of the window between native pieces; its faults come to `resolve`.
                result = unsafe { uffd().register(addr_of(from), bytes(from, r.start), true) }
                    .map(|_| ());
            }
            from = r.end;
        }
    };
    for r in g.window.as_slice() {
        wipe(*r);
    }
    result?;
    if (from as usize) < WINDOW_PAGES {
        // SAFETY: as above.
        unsafe { uffd().register(addr_of(from), bytes(from, WINDOW_PAGES as u32), true) }?;
    }
    // No other thread exists: words may be stored to.
    let mut resident = 0;
    for i in 0..g.window.as_slice().len() {
        let r = g.window.as_slice()[i];
        each_touched(r.start, r.end, |page, cur| {
            let mut now = cur.with_pins(0);
            if cur.state() == State::Resident {
                resident += 1;
                // The kernel does not pass the protection on to a child.
                now = now.clear(flag::PROTECTED);
            }
            areas::word(page).store(now.0, Ordering::Release);
        });
    }
    accounting::after_fork_in_child(resident);
    touched::after_fork_in_child();
    let mut at = 0;
    while let Some(r) = g.window.as_slice().iter().find(|r| r.end > at).copied() {
        at = r.end;
        if r.attr.kind & kind::NATIVE != 0 {
            continue;
        }
        if r.attr.kind & kind::DONTFORK != 0 {
            clear(g, r.start, r.end)?;
        } else if r.attr.kind & kind::WIPEONFORK != 0 {
            discard(r.start, r.end);
        }
    }
    Ok(())
}
