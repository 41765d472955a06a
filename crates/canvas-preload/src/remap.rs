//! `mremap` of the window's memory: pages change their place, with all that belongs to them.

use canvas_pager::regions::{Attr, Region, kind};
use canvas_pager::word::{self, State, Word, flag};
use canvas_sys::gate::{self, check, yield_now};
use canvas_sys::{Errno, mem};
use canvas_types::PAGE_SIZE;
use canvas_types::layout::{self, BLOCK_PAGES, WINDOW_PAGES};
use canvas_types::sync::RawGuard;
use core::sync::atomic::Ordering;

use crate::mm::{
    MMAP_FIRST, RW, addr_of, admit, clear, discard, each_touched, is_present, lock, map_at,
    pages_of, protect, range, regions, restore_window,
};
use crate::state::uffd;
use crate::{account, areas, cache, chunk, freeze, state, trace};

/// Moves the pages `from..from+n` to `to..`, which is mapped and untouched. `stuck`: reclaim must
/// not select them at their new place.
fn move_pages(from: u32, to: u32, n: u32, stuck: bool) -> Result<(), Errno> {
    let mut failed = None;
    each_touched(from, from + n, |page, cur| {
        let dst = to + (page - from);
        let new = areas::word(dst);
        let mut now = cur;
        let mut data = None;
        // Held until the word is stored: a page that is present while its word still says Untouched
        // would be taken for absent, and write-protected with its neighbours.
        let held = chunk::shared(dst);
        match cur.state() {
            State::Resident => data = Some(addr_of(page)),
            State::Cached => {
                // The slot's writer finds the page by its old place: take it, and bring it in.
                let taken = cache::take(cur.entry().0 - 1);
                let mut w = cur
                    .with_state(State::Resident)
                    .with_entry(taken.entry)
                    .clear(flag::FAR_COPY | flag::PREFETCHED);
                if taken.far_copy && taken.entry.is_some() {
                    w = w.set(flag::FAR_COPY);
                }
                now = w;
                let _ = place(dst, cache::buffer(cur.entry().0 - 1)).map_err(|e| failed = Some(e));
                state::seg().charge_local(state::slot(), 1);
                account::note_resident(1);
                areas::table().note_resident(dst as usize);
                cache::finish(taken);
            }
            _ => {}
        }
        if let Some(src) = data {
            if let Err(e) = place_by_move(dst, src) {
                failed = Some(e);
            }
            areas::table().note_gone(page as usize);
            areas::table().note_resident(dst as usize);
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
        new.store(now.0, Ordering::Release);
        drop(held);
        word::publish(areas::word(page), Word(0));
        areas::touched_in_block()[page as usize / BLOCK_PAGES].fetch_sub(1, Ordering::Relaxed);
        areas::touched_in_block()[dst as usize / BLOCK_PAGES].fetch_add(1, Ordering::Relaxed);
    });
    match failed {
        Some(e) => Err(e),
        None => Ok(()),
    }
}

/// The caller holds the chunk's lock shared.
fn place(dst: u32, src: usize) -> Result<(), Errno> {
    loop {
        // SAFETY: dst is untouched and ours under the lock; src is a live page.
        let p = unsafe { uffd().copy(addr_of(dst), src, PAGE_SIZE) };
        match p.stopped {
            None => return Ok(()),
            Some(Errno(libc::EAGAIN)) | Some(Errno(libc::EINTR)) => yield_now(),
            Some(Errno(libc::EEXIST)) => {
                // SAFETY: a leftover page of zeros in a range that was just mapped.
                let _ = unsafe { mem::advise(addr_of(dst), PAGE_SIZE, libc::MADV_DONTNEED) };
            }
            Some(e) => return Err(e),
        }
    }
}

fn place_by_move(dst: u32, src: usize) -> Result<(), Errno> {
    place(dst, src)?;
    // SAFETY: copied; the source's word is in our hands.
    let _ = unsafe { mem::advise(src, PAGE_SIZE, libc::MADV_DONTNEED) };
    Ok(())
}

/// `mremap`.
pub fn mremap(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    let (old, old_bytes, new_bytes, flags, new_addr) = (a[0], a[1], a[2], a[3] as i32, a[4]);
    let old_ours = layout::in_window(old);
    let to_ours = flags & libc::MREMAP_FIXED != 0 && layout::in_window(new_addr);
    if !old_ours && !to_ours {
        return None;
    }
    let _inside = freeze::enter();
    let g = lock();
    if !old_ours {
        // A native mapping is moved over the window: it becomes a native piece of it.
        let (start, end) = match range(new_addr, new_bytes) {
            Ok(r) => r,
            Err(e) => return Some(Err(e)),
        };
        discard(start, end);
        // SAFETY: the program's call.
        let r = check(unsafe { gate::raw(libc::SYS_mremap as usize, *a) });
        if r.is_ok() {
            let _ = regions(&g).insert(
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
    Some(mremap_ours(&g, old, old_bytes, new_bytes, flags, new_addr))
}

fn mremap_ours(
    g: &RawGuard<'_>,
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
    if (fixed || keep) && flags & libc::MREMAP_MAYMOVE == 0 {
        return Err(inval);
    }
    let (start, end) = range(old, old_bytes)?;
    let new_pages = pages_of(new_bytes).ok_or(Errno(libc::ENOMEM))?;
    let old_pages = end - start;
    let region = regions(g).at(start).ok_or(Errno(libc::EFAULT))?;
    if region.end < end {
        return Err(Errno(libc::EFAULT));
    }
    // No bytes: another view of a shared mapping, which only the kernel can give.
    if old_pages == 0 && region.attr.kind & kind::NATIVE == 0 {
        return Err(inval);
    }
    if region.attr.kind & kind::NATIVE != 0 {
        return mremap_native(
            g,
            region,
            [old, old_bytes, new_bytes, flags as usize, new_addr, 0],
        );
    }
    let prot = i32::from(region.attr.prot);
    if keep && old_pages != new_pages {
        return Err(inval);
    }
    if !fixed && !keep {
        if new_pages <= old_pages {
            if new_pages < old_pages {
                clear(g, start + new_pages, end)?;
            }
            return Ok(old);
        }
        admit(g, new_pages - old_pages, prot & libc::PROT_WRITE != 0)?;
        let limit = if start < MMAP_FIRST {
            MMAP_FIRST
        } else {
            WINDOW_PAGES as u32
        };
        let grown = start.checked_add(new_pages).filter(|e| *e <= limit);
        if let Some(to) = grown
            && regions(g).find_gap(new_pages - old_pages, 1, end, to) == Some(end)
        {
            map_at(g, end, to, prot)?;
            return Ok(old);
        }
        if flags & libc::MREMAP_MAYMOVE == 0 {
            return Err(Errno(libc::ENOMEM));
        }
    } else if new_pages > old_pages {
        admit(g, new_pages - old_pages, prot & libc::PROT_WRITE != 0)?;
    }
    let to = if fixed {
        let (to, to_end) = range(new_addr, new_bytes)?;
        if to < end && start < to_end {
            return Err(inval);
        }
        clear(g, to, to_end)?;
        to
    } else {
        regions(g)
            .find_gap(new_pages, 1, MMAP_FIRST, WINDOW_PAGES as u32)
            .ok_or(Errno(libc::ENOMEM))?
    };
    // Pages are copied by the kernel from where they are: both ends must be accessible for that.
    let odd = prot & RW != RW;
    map_at(g, to, to + new_pages, RW)?;
    if odd {
        protect(start, end, RW)?;
    }
    // Where the program may not read, reclaim may not either: marked before the protection returns.
    let moved = move_pages(
        start,
        to,
        old_pages.min(new_pages),
        prot & libc::PROT_READ == 0,
    );
    if odd {
        protect(to, to + new_pages, prot)?;
        let _ = regions(g).update(to, to + new_pages, |a| Attr {
            prot: prot as u8,
            ..a
        });
    }
    moved?;
    if keep {
        protect(start, end, prot)?;
    } else {
        clear(g, start, end)?;
        if odd {
            protect(start, end, libc::PROT_NONE)?;
        }
    }
    Ok(addr_of(to))
}

/// A file or shared mapping inside the window is moved: the kernel moves it, we mend the window.
fn mremap_native(g: &RawGuard<'_>, region: Region, a: [usize; 6]) -> Result<usize, Errno> {
    let (start, end) = range(a[0], a[1])?;
    let target = (a[3] as i32 & libc::MREMAP_FIXED != 0)
        .then(|| range(a[4], a[2]).ok())
        .flatten();
    if let Some((s, e)) = target {
        // What the kernel would refuse must leave the target as it is.
        if s < end && start < e {
            return Err(Errno(libc::EINVAL));
        }
        discard(s, e);
    }
    // Growing in place: our reservation behind it must give way first.
    let grown = end.max(start.saturating_add(pages_of(a[2]).unwrap_or(0)));
    let room = target.is_none()
        && grown > end
        && regions(g).find_gap(grown - end, 1, end, grown) == Some(end);
    if room {
        // SAFETY: a range of the window where nothing is mapped.
        let _ = unsafe { mem::unmap(addr_of(end), (grown - end) as usize * PAGE_SIZE) };
    }
    // SAFETY: the program's call on the program's mapping.
    let at = check(unsafe { gate::raw(libc::SYS_mremap as usize, a) });
    if room && at != Ok(a[0]) {
        restore_window(end, grown)?;
    }
    let at = at?;
    let keep = a[3] as i32 & libc::MREMAP_DONTUNMAP != 0;
    if at != a[0] && !keep {
        regions(g)
            .remove(start, end)
            .map_err(|_| Errno(libc::ENOMEM))?;
        if start < end {
            restore_window(start, end)?;
        }
    }
    if !layout::in_window(at) && region.attr.kind & kind::DONTFORK == 0 {
        // The window's pieces are not inherited but in forks that we make: outside of it nobody would
        // see to that, and the child would miss this memory.
        // SAFETY: changes only what a fork copies.
        let _ = unsafe { mem::advise(at, a[2], libc::MADV_DOFORK) };
    }
    if let Ok((s, e)) = range(at, a[2]) {
        regions(g)
            .insert(s, e, region.attr)
            .map_err(|_| Errno(libc::ENOMEM))?;
        if at == a[0] && e < end {
            regions(g).remove(e, end).map_err(|_| Errno(libc::ENOMEM))?;
            restore_window(e, end)?;
        }
    }
    Ok(at)
}
