//! `mremap` of managed memory: pages change their place, with all that belongs to them.

use canvas_core::pager::regions::{Attr, Region, kind};
use canvas_core::pager::slot;
use canvas_core::pager::table::CHUNK_PAGES;
use canvas_core::pager::word::{self, State, Word, flag};
use canvas_core::vm::ledger;
use canvas_core::vm::protect::chunk;
use canvas_sys::gate::{self, check, yield_now};
use canvas_sys::{Errno, mem};
use canvas_types::layout::{self, BLOCK_PAGES, WINDOW_PAGES};
use canvas_types::{PAGE_SIZE, PageId};
use core::sync::atomic::Ordering;

use crate::memory::{
    admit::admit,
    advice, lock as locking,
    mm::{clear, map_at, refuse_sealed, restore_window},
    native,
    open_pages::{MMAP_FIRST, RW, make_way, protect},
    ranges::{discard, each_touched},
};
use crate::own_memory::areas;
use crate::paging::{
    cache, freeze,
    regions::{Lists, addr_of, is_present, lock, pages_of, range},
    touched, trace,
};
use crate::runtime::{
    state,
    state::{PROCESS, uffd},
};

/// Moves the pages `from..from+n` to `to..`, which is mapped and untouched. `stuck`: reclaim must not select them at
/// their new place.
fn move_pages(from: u32, to: u32, n: u32, stuck: bool) -> Result<(), Errno> {
    let mut moved = Ok(());
    // In steps that end at a chunk border of the new place.
    let mut at = 0;
    while at < n {
        let dst = to + at;
        let len = (CHUNK_PAGES as u32 - dst % CHUNK_PAGES as u32).min(n - at);
        moved = moved.and(move_part(from + at, dst, len, stuck));
        at += len;
    }
    moved
}

/// The part of [`move_pages`] that goes to one chunk.
fn move_part(from: u32, to: u32, n: u32, stuck: bool) -> Result<(), Errno> {
    let (mut before, mut touched) = ([Word(0); CHUNK_PAGES], 0u64);
    each_touched(from, from + n, |page, cur| {
        let i = page.since(PageId(from));
        before[i] = cur;
        touched |= 1 << i;
    });
    if touched == 0 {
        return Ok(());
    }
    let mut failed = None;
    // Held until the words are stored: a page that is present while its word still says Untouched would be taken for
    // absent, and be write-protected with its neighbours.
    let held = chunk(&PROCESS, PageId(to));
    let resident = (0..n as usize)
        .filter(|i| before[*i].state() == State::Resident)
        .fold(0u64, |set, i| set | 1 << i);
    let gone = move_runs(from, to, resident);
    let mut bits = touched;
    while bits != 0 {
        let i = bits.trailing_zeros();
        bits &= bits - 1;
        let (page, dst) = (PageId(from + i), PageId(to + i));
        let mut now = before[i as usize];
        match now.state() {
            State::Resident => {
                if gone >> i & 1 == 0
                    && let Err(e) = place_by_move(dst, page.addr())
                {
                    failed = Some(e);
                }
                // A page that was moved is writable.
                now = now.clear(flag::PROTECTED);
                areas::table().note_gone(page.index());
                areas::table().note_resident(dst.index());
            }
            State::Cached => {
                // The slot's writer finds the page by its old place: take the slot, and bring the page in.
                let slot = slot::of_word(now);
                let taken = cache::slots().take(slot);
                let mut w = now
                    .with_state(State::Resident)
                    .with_entry(taken.entry)
                    .clear(flag::FAR_COPY | flag::PREFETCHED);
                if taken.far_copy && taken.entry.is_some() {
                    w = w.set(flag::FAR_COPY);
                }
                now = w;
                let _ = place(dst, cache::buffer(slot)).map_err(|e| failed = Some(e));
                state::seg().charge_local(state::slot(), 1);
                ledger::note_resident(&PROCESS, 1);
                areas::table().note_resident(dst.index());
                cache::slots().finish(taken);
            }
            _ => {}
        }
        if failed.is_some() && now.state() == State::Resident && !is_present(dst) {
            now = now.with_state(State::Poisoned);
        }
        trace::moved(page, dst);
        // A pinned source is a race in the program; the pin stays behind.
        let now = now.with_pins(0);
        let now = if stuck {
            now.set(flag::STUCK)
        } else {
            now.clear(flag::STUCK)
        };
        areas::word(dst).store(now.0, Ordering::Release);
        touched::note_untouched(page.index() / BLOCK_PAGES, 1);
        touched::note_touched(dst.index() / BLOCK_PAGES, 1);
    }
    drop(held);
    let mut bits = touched;
    while bits != 0 {
        let i = bits.trailing_zeros();
        bits &= bits - 1;
        word::publish(areas::word(PageId(from + i)), Word(0));
    }
    failed.map_or(Ok(()), Err)
}

/// Moves the pages of the set from `from` on to the same offsets from `to` on, run by run. Returns those that have
/// moved: pages that a relative shares do not. The caller holds their words and the chunk's lock shared.
fn move_runs(from: u32, to: u32, set: u64) -> u64 {
    let (mut left, mut gone) = (set, 0u64);
    while left != 0 {
        let start = left.trailing_zeros();
        let len = (!(left >> start)).trailing_zeros();
        let bytes = len as usize * PAGE_SIZE;
        // SAFETY: the words of all these pages are Mapping, set by this thread. Those at the new place are untouched,
        // in a range that was just mapped, and the mapping lock is held, without which nobody fills them.
        let done = unsafe { uffd().move_pages(addr_of(to + start), addr_of(from + start), bytes) };
        let pages = (done.done_bytes / PAGE_SIZE) as u32;
        gone |= ones(pages) << start;
        let next = match done.stopped {
            None | Some(Errno(libc::EAGAIN | libc::EINTR)) => pages,
            // A page that cannot be moved is copied later; try the others.
            Some(Errno(libc::EBUSY | libc::EEXIST | libc::ENOENT)) => pages + 1,
            // The kernel lacks the operation, or cannot do it on these mappings.
            Some(_) => break,
        };
        left &= !(ones(next) << start);
    }
    gone
}

/// The lowest `n` bits.
fn ones(n: u32) -> u64 {
    1u64.checked_shl(n).map_or(u64::MAX, |bit| bit - 1)
}

/// Copies a page to `dst`. The caller holds the chunk's lock shared.
fn place(dst: PageId, src: usize) -> Result<(), Errno> {
    loop {
        // SAFETY: nobody fills or discards `dst` without the chunk's lock, which the caller holds; the kernel reads
        // `src`, and answers EFAULT where it cannot.
        let p = unsafe { uffd().copy(dst.addr(), src, PAGE_SIZE, false) };
        match p.stopped {
            None => return Ok(()),
            Some(Errno(libc::EAGAIN)) | Some(Errno(libc::EINTR)) => yield_now(),
            Some(Errno(libc::EEXIST)) => {
                // SAFETY: a leftover page of zeros in a range that was just mapped, which the program does not know
                // yet.
                let _ = unsafe { mem::advise(dst.addr(), PAGE_SIZE, libc::MADV_DONTNEED) };
            }
            Some(e) => return Err(e),
        }
    }
}

fn place_by_move(dst: PageId, src: usize) -> Result<(), Errno> {
    place(dst, src)?;
    // SAFETY: the contents have been copied, and the word of the page is Mapping, set by this thread.
    let _ = unsafe { mem::advise(src, PAGE_SIZE, libc::MADV_DONTNEED) };
    Ok(())
}

/// `mremap`.
///
/// # Safety
///
/// `a` must be the registers of the program's call.
pub unsafe fn mremap(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    let (old, old_bytes, new_bytes, flags, new_addr) = (a[0], a[1], a[2], a[3] as i32, a[4]);
    let old_ours = layout::in_window(old);
    let to_ours = flags & libc::MREMAP_FIXED != 0 && layout::in_window(new_addr);
    if !old_ours && !to_ours {
        return None;
    }
    // Out of the managed range: the kernel moves it, as native memory.
    let moves = libc::MREMAP_FIXED | libc::MREMAP_MAYMOVE;
    if old_ours
        && flags & moves == moves
        && flags & !(moves | libc::MREMAP_DONTUNMAP) == 0
        && !layout::in_window(new_addr)
        && let Ok((start, end)) = range(old, old_bytes)
        && start < end
        && new_bytes != 0
        && let Err(e) = leave(start, end)
    {
        return Some(Err(e));
    }
    let _inside = freeze::enter();
    let mut g = lock();
    if !old_ours {
        // A native mapping is moved over the managed range: it becomes a native part.
        let (start, end) = match range(new_addr, new_bytes) {
            Ok(r) => r,
            Err(e) => return Some(Err(e)),
        };
        if let Err(e) = refuse_sealed(&g, start, end) {
            return Some(Err(e));
        }
        discard(start, end);
        // SAFETY: the program's call (the caller's promise), onto managed pages that were given up just now.
        let r = check(unsafe { gate::raw(libc::SYS_mremap as usize, *a) });
        if r.is_ok() {
            let _ = g.window.insert(
                start,
                end,
                Attr {
                    prot: RW as u8,
                    kind: kind::NATIVE,
                },
            );
        }
        return Some(r);
    }
    // SAFETY: the program's call (the caller's promise).
    Some(unsafe { mremap_ours(&mut g, old, old_bytes, new_bytes, flags, new_addr) })
}

/// Makes one mapping native, so that the kernel can move it.
fn leave(start: u32, end: u32) -> Result<(), Errno> {
    {
        let _inside = freeze::enter();
        let g = lock();
        one_mapping(&g, start, end)?;
        refuse_sealed(&g, start, end)?;
    }
    native::release(start, end)
}

/// The attributes of the range, which must be one mapping to the kernel (else EFAULT). Guards do not divide it.
fn one_mapping(g: &Lists, start: u32, end: u32) -> Result<Region, Errno> {
    let alike = |a: Attr| Attr {
        kind: a.kind & !kind::GUARD,
        ..a
    };
    let mut whole = g.window.at(start).ok_or(Errno(libc::EFAULT))?;
    whole.attr = alike(whole.attr);
    while whole.end < end {
        let next = g.window.at(whole.end).ok_or(Errno(libc::EFAULT))?;
        if alike(next.attr) != whole.attr {
            return Err(Errno(libc::EFAULT));
        }
        whole.end = next.end;
    }
    Ok(whole)
}

/// A checked call on managed memory: pages of one mapping that is not native.
struct Remap {
    start: u32,
    end: u32,
    new_pages: u32,
    /// Protection and advice, which the mapping keeps.
    attr: Attr,
    /// Whether it may move to an address that the call does not name.
    may_move: bool,
    /// Whether the old mapping stays, emptied.
    keep: bool,
}

impl Remap {
    fn old_pages(&self) -> u32 {
        self.end - self.start
    }
    fn admit_growth(&self, g: &Lists) -> Result<(), Errno> {
        admit(g, u64::from(self.new_pages - self.old_pages()), self.attr)
    }
    fn prot(&self) -> i32 {
        i32::from(self.attr.prot)
    }
}

/// The kernel's address space for programs.
const USER_BYTES: usize = 1 << 47;

/// Moves managed memory, or changes its size.
///
/// # Safety
///
/// The arguments must be those of the program's call.
unsafe fn mremap_ours(
    g: &mut Lists,
    old: usize,
    old_bytes: usize,
    new_bytes: usize,
    flags: i32,
    new_addr: usize,
) -> Result<usize, Errno> {
    let inval = Errno(libc::EINVAL);
    if flags & !(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0
        || new_bytes == 0
    {
        return Err(inval);
    }
    let keep = flags & libc::MREMAP_DONTUNMAP != 0;
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let may_move = flags & libc::MREMAP_MAYMOVE != 0;
    if (fixed || keep) && !may_move {
        return Err(inval);
    }
    let (start, end) = range(old, old_bytes)?;
    if new_bytes > USER_BYTES || fixed && !new_addr.is_multiple_of(PAGE_SIZE) {
        return Err(inval);
    }
    let new_pages = pages_of(new_bytes).ok_or(Errno(libc::ENOMEM))?;
    if keep && end - start != new_pages {
        return Err(inval);
    }
    let region = one_mapping(g, start, end)?;
    refuse_sealed(g, start, end)?;
    let native = region.attr.kind & kind::NATIVE != 0;
    // Zero bytes: another view of a shared mapping, which only the kernel can provide.
    if start == end && !native {
        return Err(inval);
    }
    if native {
        let a = [old, old_bytes, new_bytes, flags as usize, new_addr, 0];
        // SAFETY: the program's call (the caller's promise).
        return unsafe { mremap_native(g, region, a) };
    }
    let call = Remap {
        start,
        end,
        new_pages,
        attr: region.attr,
        may_move,
        keep,
    };
    if !fixed && !keep {
        if let Some(done) = resize_in_place(g, &call) {
            return done.map(|()| old);
        }
    } else if new_pages > call.old_pages() {
        call.admit_growth(g)?;
    }
    let to = if fixed {
        let (to, to_end) = range(new_addr, new_bytes)?;
        if to < end && start < to_end {
            return Err(inval);
        }
        refuse_sealed(g, to, to_end)?;
        clear(g, to, to_end)?;
        to
    } else {
        g.window
            .find_gap(new_pages, 1, MMAP_FIRST, WINDOW_PAGES as u32)
            .ok_or(Errno(libc::ENOMEM))?
    };
    move_mapping(g, &call, to)?;
    Ok(addr_of(to))
}

/// Shrinks the mapping, or grows it in place. `None`: it must move.
fn resize_in_place(g: &mut Lists, call: &Remap) -> Option<Result<(), Errno>> {
    let (start, end, new_pages) = (call.start, call.end, call.new_pages);
    if new_pages < call.old_pages() {
        return Some(clear(g, start + new_pages, end));
    }
    if new_pages == call.old_pages() {
        return Some(Ok(()));
    }
    if let Err(e) = call.admit_growth(g) {
        return Some(Err(e));
    }
    let limit = if start < MMAP_FIRST {
        MMAP_FIRST
    } else {
        WINDOW_PAGES as u32
    };
    let grown = start.checked_add(new_pages).filter(|e| *e <= limit);
    if let Some(to) = grown
        && g.window.find_gap(to - end, 1, end, to) == Some(end)
    {
        return Some(map_at(g, end, to, call.attr));
    }
    (!call.may_move).then_some(Err(Errno(libc::ENOMEM)))
}

/// Moves the mapping to `to`, where nothing is mapped.
fn move_mapping(g: &mut Lists, call: &Remap, to: u32) -> Result<(), Errno> {
    let (start, end, prot) = (call.start, call.end, call.prot());
    let to_end = to + call.new_pages;
    // The kernel copies pages from their old place: both ends must be accessible for that.
    let odd = prot & RW != RW;
    let attr = Attr {
        prot: RW as u8,
        ..call.attr
    };
    map_at(g, to, to_end, attr)?;
    if attr.kind & kind::LOCKED != 0 {
        // The kernel moves locked pages only between locked mappings, and empties them in none.
        locking::kernel_unlock(start, end);
    }
    // Inaccessible where guards lie, too.
    protect(start, end, RW)?;
    // Pages that the program may not read cannot be read by reclaim either: mark them before the protection returns.
    let moved = move_pages(
        start,
        to,
        call.old_pages().min(call.new_pages),
        prot & libc::PROT_READ == 0,
    );
    if odd {
        protect(to, to_end, prot)?;
        let _ = g.window.update(to, to_end, |a| Attr {
            prot: prot as u8,
            ..a
        });
    }
    move_guards(g, call, to)?;
    moved?;
    if call.keep {
        let unlocked = |a: Attr| Attr {
            kind: a.kind & !kind::LOCKED & !kind::GUARD,
            ..a
        };
        let _ = g.window.update(start, end, unlocked);
        return protect(start, end, prot);
    }
    clear(g, start, end)?;
    protect(start, end, libc::PROT_NONE)
}

/// Guards move with their memory.
fn move_guards(g: &mut Lists, call: &Remap, to: u32) -> Result<(), Errno> {
    let end = call.end.min(call.start + call.new_pages);
    let mut at = call.start;
    while let Some(r) = g.window.first_in(at, end) {
        at = r.end;
        if r.attr.kind & kind::GUARD != 0 {
            let place = |page: u32| to + (page - call.start);
            advice::change_guard(g, place(r.start), place(r.end), true)?;
        }
    }
    Ok(())
}

/// Moves a file or shared mapping inside the managed range: the kernel moves it, and canvas restores the range.
///
/// # Safety
///
/// `a` must be the registers of the program's call.
unsafe fn mremap_native(g: &mut Lists, region: Region, a: [usize; 6]) -> Result<usize, Errno> {
    let (start, end) = range(a[0], a[1])?;
    let target = (a[3] as i32 & libc::MREMAP_FIXED != 0)
        .then(|| range(a[4], a[2]).ok())
        .flatten();
    if let Some((s, e)) = target {
        refuse_sealed(g, s, e)?;
        // A call that the kernel would refuse must not change the target.
        if s < end && start < e {
            return Err(Errno(libc::EINVAL));
        }
        make_way(g, s)?;
        discard(s, e);
    }
    // Growing in place: canvas's reservation behind it must be unmapped first.
    let grown = end.max(start.saturating_add(pages_of(a[2]).unwrap_or(0)));
    let room = target.is_none()
        && grown > end
        && g.window.find_gap(grown - end, 1, end, grown) == Some(end);
    if room {
        make_way(g, end)?;
        // SAFETY: managed addresses where the program has mapped nothing (`find_gap`): only canvas's reservation.
        let _ = unsafe { mem::unmap(addr_of(end), (grown - end) as usize * PAGE_SIZE) };
    }
    // SAFETY: the program's call (the caller's promise) on a mapping of its own.
    let at = check(unsafe { gate::raw(libc::SYS_mremap as usize, a) });
    if room && at != Ok(a[0]) {
        restore_window(end, grown)?;
    }
    let at = at?;
    let keep = a[3] as i32 & libc::MREMAP_DONTUNMAP != 0;
    if at != a[0] && !keep {
        g.window
            .remove(start, end)
            .map_err(|_| Errno(libc::ENOMEM))?;
        if start < end {
            restore_window(start, end)?;
        }
    }
    if let Ok((s, e)) = range(at, a[2]) {
        g.window
            .insert(s, e, region.attr)
            .map_err(|_| Errno(libc::ENOMEM))?;
        if at == a[0] && e < end {
            g.window.remove(e, end).map_err(|_| Errno(libc::ENOMEM))?;
            restore_window(e, end)?;
        }
    }
    Ok(at)
}
