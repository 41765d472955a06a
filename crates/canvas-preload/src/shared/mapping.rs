//! The program's mapping calls on the partition of shared memory.
//!
//! All processes share which regions exist, and which process has a part of which. What part of a region this process
//! has, and how it is protected, is private, and inherited by a fork's child.

use canvas_core::pager::regions::{Attr, Regions, kind};
use canvas_core::pager::shared::word::load;
use canvas_shm::Counter;
use canvas_shm::shared::{self as layout, Region as Shared, region_state};
use canvas_sys::gate::{check, yield_now};
use canvas_sys::{Errno, mem};
use canvas_types::PAGE_SIZE;
use canvas_types::layout::{SHARED_PAGES, in_partition, shared_base, shared_end};
use canvas_types::sync::backoff;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::paging::{fault::Resolved, freeze, regions, regions::Lists};
use crate::runtime::state::count;
use crate::shared::{
    lock::{collect, lock},
    pages::resolve,
    partition::{Held, addr_of, control, is_on, me, page_of, partition},
};

/// Generation, plus one, of the region that this process has a part of, by the region's index.
static GENERATIONS: [AtomicU32; layout::REGIONS] = [const { AtomicU32::new(0) }; layout::REGIONS];

/// Whether this process has a part of any region.
pub fn has_any() -> bool {
    GENERATIONS.iter().any(|g| g.load(Ordering::Relaxed) != 0)
}

/// Whether nothing of ours is mapped there.
pub fn is_hole(addr: usize) -> bool {
    if !is_on() {
        return true;
    }
    let _inside = freeze::enter();
    regions::lock().partition.at(page_of(addr)).is_none()
}

/// In a fork's child, whose parent waits: takes a part of all regions that the parent has.
pub fn inherit(_held: &Held, lists: &mut Lists) -> Result<(), Errno> {
    let mine = &mut lists.partition;
    for (r, generation) in control().regions.iter().zip(&GENERATIONS) {
        let had = generation.load(Ordering::Relaxed);
        if had == 0 {
            continue;
        }
        // The parent was killed, and was the last user: the child would read zeros.
        if r.state.load(Ordering::SeqCst) != region_state::USED
            || r.generation.load(Ordering::SeqCst) != had - 1
        {
            return Err(Errno(libc::ESTALE));
        }
        r.hold(me());
    }
    let mut at = 0;
    while let Some(r) = mine.first_in(at, u32::MAX) {
        at = r.end;
        if r.attr.kind & kind::DONTFORK != 0 {
            let _ = mine.remove(r.start, r.end);
        } else {
            protect(r.start, r.end, r.attr.prot.into())?;
        }
    }
    for (i, generation) in GENERATIONS.iter().enumerate() {
        let r = &control().regions[i];
        if generation.load(Ordering::Relaxed) != 0 && !has_part(mine, r) {
            generation.store(0, Ordering::Relaxed);
            r.let_go(me());
        }
    }
    Ok(())
}

fn has_part(mine: &Regions<'_>, r: &Shared) -> bool {
    let mut any = false;
    let (start, end) = (
        r.start.load(Ordering::Relaxed),
        r.end.load(Ordering::Relaxed),
    );
    mine.each(start, end, |_| any = true);
    any
}

/// Protects pages of the partition, and nothing else.
fn protect(start: u32, end: u32, prot: i32) -> Result<(), Errno> {
    assert!(start <= end && end as usize <= SHARED_PAGES);
    // SAFETY: pages of the partition (asserted), in which nothing of Rust's lies: their access is the program's to
    // choose. Canvas itself reads the pages that it takes out through the file.
    unsafe { mem::protect(addr_of(start), (end - start) as usize * PAGE_SIZE, prot) }
}

/// Serves a mapping call outside the managed range. `None`: not on the partition either.
///
/// # Safety
///
/// `nr` and `a` must be the program's call: its pointers are written to in its name.
pub unsafe fn call(nr: usize, a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    if !is_on() {
        return None;
    }
    if nr as i64 == libc::SYS_mmap {
        return mmap(a);
    }
    if nr as i64 == libc::SYS_mremap && a[3] as i32 & libc::MREMAP_FIXED != 0 && in_partition(a[4])
    {
        return Some(Err(Errno(libc::EINVAL)));
    }
    if !in_partition(a[0]) {
        return None;
    }
    let rounds_down = matches!(
        nr as i64,
        libc::SYS_mlock | libc::SYS_mlock2 | libc::SYS_munlock
    );
    if rounds_down {
        // Locking it would leave nothing to page with; it never is locked.
        let lock = nr as i64 != libc::SYS_munlock;
        return Some(if lock {
            Err(Errno(libc::ENOMEM))
        } else {
            Ok(0)
        });
    }
    let bytes = a[1].checked_next_multiple_of(PAGE_SIZE);
    let inside = bytes.is_some_and(|b| b <= shared_end() - a[0]);
    if !a[0].is_multiple_of(PAGE_SIZE) || !inside {
        return Some(Err(Errno(libc::EINVAL)));
    }
    let (start, end) = (page_of(a[0]), page_of(a[0]) + (bytes? / PAGE_SIZE) as u32);
    let _inside = freeze::enter();
    Some(match nr as i64 {
        libc::SYS_munmap if start == end => Err(Errno(libc::EINVAL)),
        libc::SYS_munmap => munmap(start, end),
        libc::SYS_mprotect | libc::SYS_pkey_mprotect => mprotect(start, end, a[2] as i32),
        libc::SYS_madvise => madvise(start, end, a[2] as i32),
        libc::SYS_mremap => mremap(start, end, a),
        // SAFETY: the program's call (the caller's promise), which names the buffer.
        libc::SYS_mincore => unsafe { mincore(start, end, a[2]) },
        _ => return None,
    })
}

/// Whether this is a mapping that only forks can share.
fn captures(prot: i32, flags: i32) -> bool {
    let not = libc::MAP_STACK
        | libc::MAP_GROWSDOWN
        | libc::MAP_HUGETLB
        | libc::MAP_32BIT
        | libc::MAP_FIXED
        | libc::MAP_FIXED_NOREPLACE;
    flags & libc::MAP_TYPE == libc::MAP_SHARED
        && flags & libc::MAP_ANONYMOUS != 0
        && flags & not == 0
        && prot & libc::PROT_EXEC == 0
}

fn mmap(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    let (prot, flags) = (a[2] as i32, a[3] as i32);
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 {
        let overlaps = a[0] < shared_end() && a[0].saturating_add(a[1]) > shared_base();
        let why = if flags & libc::MAP_FIXED_NOREPLACE != 0 {
            libc::EEXIST
        } else {
            libc::ENOMEM
        };
        return overlaps.then_some(Err(Errno(why)));
    }
    if !captures(prot, flags) || a[1] == 0 {
        return None;
    }
    let pages = a[1].checked_next_multiple_of(PAGE_SIZE)? / PAGE_SIZE;
    let pages = u32::try_from(pages).ok()?;
    let _inside = freeze::enter();
    let done = {
        let mut g = regions::lock();
        map(&mut g, pages, prot)
    };
    let Some(start) = done else {
        // A native mapping is better than none.
        count(Counter::SharedNative, 1);
        return None;
    };
    if flags & libc::MAP_POPULATE != 0 {
        touch(start, start + pages);
    }
    Some(Ok(addr_of(start)))
}

/// Creates a region; returns its first page.
fn map(g: &mut Lists, pages: u32, prot: i32) -> Option<u32> {
    let c = control();
    let (i, start) = {
        let held = lock();
        let free = |r: &Shared| r.state.load(Ordering::Relaxed) == region_state::FREE;
        let i = c.regions.iter().position(free)?;
        let start = gap(pages)?;
        let r = &c.regions[i];
        r.start.store(start, Ordering::Relaxed);
        r.end.store(start + pages, Ordering::Relaxed);
        let generation = r.generation.fetch_add(1, Ordering::Relaxed) + 1;
        c.end.fetch_max(start + pages, Ordering::SeqCst);
        r.hold(me());
        r.state.store(region_state::USED, Ordering::SeqCst);
        GENERATIONS[i].store((generation & 0x7fff_ffff) + 1, Ordering::Relaxed);
        r.generation
            .store(generation & 0x7fff_ffff, Ordering::Relaxed);
        drop(held);
        (i, start)
    };
    let attr = Attr {
        prot: prot as u8,
        kind: 0,
    };
    let done = protect(start, start + pages, prot).is_ok()
        && g.partition.insert(start, start + pages, attr).is_ok();
    if !done {
        let _ = protect(start, start + pages, libc::PROT_NONE);
        GENERATIONS[i].store(0, Ordering::Relaxed);
        c.regions[i].let_go(me());
        collect(&lock());
    }
    done.then_some(start)
}

/// The first free range of `pages` pages. The caller holds the shared lock.
fn gap(pages: u32) -> Option<u32> {
    let taken = |r: &&Shared| r.state.load(Ordering::Relaxed) != region_state::FREE;
    let mut start = 0u32;
    loop {
        let end = start.checked_add(pages)?;
        if end as usize > SHARED_PAGES {
            return None;
        }
        // Keep one page between regions, so that an overrun of one does not get into the next.
        let over = control().regions.iter().filter(taken).find(|r| {
            r.start.load(Ordering::Relaxed) <= end && r.end.load(Ordering::Relaxed) >= start
        });
        match over {
            None => return Some(start),
            Some(r) => start = r.end.load(Ordering::Relaxed) + 1,
        }
    }
}

fn touch(start: u32, end: u32) {
    for page in start..end {
        if resolve(page) != Resolved::Present {
            break;
        }
    }
}

fn munmap(start: u32, end: u32) -> Result<usize, Errno> {
    let mut g = regions::lock();
    g.partition
        .remove(start, end)
        .map_err(|_| Errno(libc::ENOMEM))?;
    protect(start, end, libc::PROT_NONE)?;
    // SAFETY: only this process's mapping loses the pages, which stay in the file; nothing of Rust's lies there.
    let _ = unsafe {
        mem::advise(
            addr_of(start),
            (end - start) as usize * PAGE_SIZE,
            libc::MADV_DONTNEED,
        )
    };
    // A thread of this process may be filling a page: it must finish before the region can end.
    for w in &partition().words
        [start as usize..end.min(control().end.load(Ordering::Relaxed)).max(start) as usize]
    {
        let mut spins = 0;
        while load(w).is_filled_by(me() as u16) {
            backoff(&mut spins, yield_now);
        }
    }
    let mut ended = false;
    for (r, generation) in control().regions.iter().zip(&GENERATIONS) {
        if generation.load(Ordering::Relaxed) != 0 && !has_part(&g.partition, r) {
            generation.store(0, Ordering::Relaxed);
            r.let_go(me());
            ended |= r.is_orphan();
        }
    }
    if ended {
        collect(&lock());
    }
    Ok(0)
}

fn mprotect(start: u32, asked: u32, prot: i32) -> Result<usize, Errno> {
    let mut g = regions::lock();
    let end = g.partition.covered_until(start, asked);
    if end == start {
        return if asked == start {
            Ok(0)
        } else {
            Err(Errno(libc::ENOMEM))
        };
    }
    protect(start, end, prot)?;
    let _ = g.partition.update(start, end, |a| Attr {
        prot: prot as u8,
        ..a
    });
    if end == asked {
        Ok(0)
    } else {
        Err(Errno(libc::ENOMEM))
    }
}

fn madvise(start: u32, end: u32, advice: i32) -> Result<usize, Errno> {
    if start == end {
        return Ok(0);
    }
    let mut g = regions::lock();
    let done = if g.partition.covers(start, end) {
        Ok(0)
    } else {
        Err(Errno(libc::ENOMEM))
    };
    let mut attr = |set: u16, clear: u16| {
        g.partition.update(start, end, |a| Attr {
            kind: (a.kind | set) & !clear,
            ..a
        })
    };
    match advice {
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
            drop(g);
            touch(start, end);
        }
        libc::MADV_DONTFORK => drop(attr(kind::DONTFORK, 0)),
        libc::MADV_DOFORK => drop(attr(0, kind::DONTFORK)),
        libc::MADV_DONTDUMP => drop(attr(kind::DONTDUMP, 0)),
        libc::MADV_DODUMP => drop(attr(0, kind::DONTDUMP)),
        // Pages that one process does not need, others may.
        libc::MADV_DONTNEED
        | libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_WILLNEED
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT => {}
        libc::MADV_REMOVE => return Err(Errno(libc::EOPNOTSUPP)),
        _ => return Err(Errno(libc::EINVAL)),
    }
    done
}

/// Shrinks a mapping; growing and moving would lose the registration.
fn mremap(start: u32, end: u32, a: &[usize; 6]) -> Result<usize, Errno> {
    let new = a[2].checked_next_multiple_of(PAGE_SIZE).unwrap_or(0) / PAGE_SIZE;
    if new == 0 || start == end {
        return Err(Errno(libc::EINVAL));
    }
    if a[3] as i32 & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0
        || new > (end - start) as usize
    {
        return Err(Errno(libc::ENOMEM));
    }
    if !regions::lock().partition.covers(start, end) {
        return Err(Errno(libc::EFAULT));
    }
    let kept = start + new as u32;
    if kept < end {
        munmap(kept, end)?;
    }
    Ok(a[0])
}

/// # Safety
///
/// `out` must be the program's buffer for a byte a page, as it passed it to the kernel.
unsafe fn mincore(start: u32, end: u32, out: usize) -> Result<usize, Errno> {
    if !regions::lock().partition.covers(start, end) {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: the kernel writes a byte for each page to the program's buffer (the caller's promise).
    check(unsafe {
        canvas_sys::gate::raw(
            libc::SYS_mincore as usize,
            [
                addr_of(start),
                (end - start) as usize * PAGE_SIZE,
                out,
                0,
                0,
                0,
            ],
        )
    })
}
