//! The program's mapping calls, as they act on the window.
//!
//! The window is one reservation, inaccessible where nothing is mapped: mapping is an mprotect,
//! unmapping a discard and an mprotect, and the kernel's own checks hold everywhere else. All calls
//! are serialised by one lock, as the kernel serialises them by mmap_lock.

use canvas_pager::prefetch::readahead::Area;
use canvas_pager::regions::{Attr, Region, Regions, kind};
use canvas_pager::table::CHUNK_PAGES;
use canvas_pager::word::{self, State, Word, flag};
use canvas_shm::Counter;
use canvas_sys::gate::{self, check, yield_now};
use canvas_sys::{Errno, mem};
use canvas_types::layout::{self, BLOCK_PAGES, BRK_BYTES, WINDOW_BASE, WINDOW_END, WINDOW_PAGES};
use canvas_types::sync::{RawGuard, RawSpin, backoff};
use canvas_types::{PAGE_SIZE, PageId};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::fault::{self, Resolved};
use crate::state::{count, uffd};
use crate::{account, areas, family, freeze, reclaim, smaps, state};

static LOCK: RawSpin = RawSpin::new();
struct Cell(UnsafeCell<MaybeUninit<Regions<'static>>>);
// SAFETY: reached only through `regions`, which demands the lock's guard.
unsafe impl Sync for Cell {}
static REGIONS: Cell = Cell(UnsafeCell::new(MaybeUninit::uninit()));

/// End of the program's break, an address in the window's first part.
static BRK: AtomicUsize = AtomicUsize::new(WINDOW_BASE);
/// The program's own RLIMIT_AS and RLIMIT_DATA (soft): ours would not fit under them.
pub static LIMIT_AS: AtomicU64 = AtomicU64::new(u64::MAX);
/// See [`LIMIT_AS`].
pub static LIMIT_DATA: AtomicU64 = AtomicU64::new(u64::MAX);

pub(crate) const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// Hints from here (4 TiB) up to the window are honoured for inaccessible reservations. Lower ones
/// are preferences (a heap that compressed pointers reach), and their memory is worth managing.
const NATIVE_HINTS: usize = 4 << 40;
/// First page that mmap may use: the break area lies below.
pub(crate) const MMAP_FIRST: u32 = (BRK_BYTES / PAGE_SIZE) as u32;

/// Prepares the region list. Once, at start-up.
pub fn init() {
    // SAFETY: start-up has one thread.
    unsafe { (*REGIONS.0.get()).write(Regions::new(areas::region_memory())) };
}

/// The lock on the region list, and on mapping calls altogether.
pub fn lock() -> RawGuard<'static> {
    LOCK.lock(yield_now)
}

#[allow(clippy::mut_from_ref)]
pub(crate) fn regions<'a>(_lock: &'a RawGuard<'_>) -> &'a mut Regions<'static> {
    // SAFETY: `init` ran, and the guard proves that we hold the only lock on it.
    unsafe { (*REGIONS.0.get()).assume_init_mut() }
}

/// Claims `page` and up to `ahead` untouched neighbours in the direction of `stride` (1 or -1), in
/// its region and chunk, for a first touch: their words become Filling and count as touched.
/// `None` when the page is not anonymous memory of ours; an empty range when another thread has
/// it. The caller must publish each of them without taking the mapping lock again.
pub fn claim_untouched(page: u32, ahead: u32, stride: i32) -> Option<(u32, u32)> {
    let g = lock();
    // Inaccessible pages must not become present: reclaim could not read them.
    let readable = |r: &Region| i32::from(r.attr.prot) & libc::PROT_READ != 0;
    let region = regions(&g)
        .at(page)
        .filter(|r| r.attr.kind & kind::NATIVE == 0 && readable(r))?;
    let chunk = page & !(CHUNK_PAGES as u32 - 1);
    let touched = &areas::touched_in_block()[page as usize / BLOCK_PAGES];
    let claim = |p: u32| {
        touched.fetch_add(1, Ordering::Relaxed);
        // A discarded page may still carry the pins of a call that is under way.
        let cur = word::load(areas::word(p));
        let ours = cur.state() == State::Untouched
            && word::transition(areas::word(p), cur, cur.with_state(State::Filling));
        if !ours {
            touched.fetch_sub(1, Ordering::Relaxed);
        }
        ours
    };
    if !claim(page) {
        return Some((page, page));
    }
    let (mut from, mut to) = (page, page + 1);
    if stride == 1 {
        let end = region
            .end
            .min(chunk + CHUNK_PAGES as u32)
            .min(page + 1 + ahead);
        while to < end && claim(to) {
            to += 1;
        }
    } else if stride == -1 {
        let low = region.start.max(chunk).max(page.saturating_sub(ahead));
        while from > low && claim(from - 1) {
            from -= 1;
        }
    }
    Some((from, to))
}

/// The mapping of `page`, for the prefetcher. Only tried: the caller may own a busy word, which a
/// mapping call waits for under the lock.
pub fn area_of(page: u32) -> Option<Area> {
    let g = LOCK.try_lock()?;
    let Region { start, end, .. } = regions(&g).at(page)?;
    Some(Area { start, end })
}

/// Does `addr` lie in memory that canvas manages (and not in a native piece of the window)?
pub fn is_ours(addr: usize) -> bool {
    layout::in_window(addr) && native_until(PageId::of_addr(addr).0).is_none()
}

/// Is nothing mapped there?
pub fn is_hole(page: u32) -> bool {
    let _inside = freeze::enter();
    let g = lock();
    regions(&g).at(page).is_none()
}

/// One past the last page of the native mapping that holds `page`; `None` when there is none.
pub fn native_until(page: u32) -> Option<u32> {
    let _inside = freeze::enter();
    let g = lock();
    regions(&g)
        .at(page)
        .filter(|r| r.attr.kind & kind::NATIVE != 0)
        .map(|r| r.end)
}

/// Does the kernel have a page there? Taken for granted when it does not say.
pub fn is_present(page: u32) -> bool {
    smaps::present(addr_of(page)).unwrap_or(true)
}

pub(crate) fn pages_of(bytes: usize) -> Option<u32> {
    u32::try_from(bytes.checked_add(PAGE_SIZE - 1)? / PAGE_SIZE).ok()
}

/// A page-aligned range of the window as pages; EINVAL when it is not one.
pub(crate) fn range(addr: usize, bytes: usize) -> Result<(u32, u32), Errno> {
    let inval = Errno(libc::EINVAL);
    if !addr.is_multiple_of(PAGE_SIZE) || !layout::in_window(addr) {
        return Err(inval);
    }
    let start = PageId::of_addr(addr).0;
    let pages = pages_of(bytes).ok_or(inval)?;
    match start.checked_add(pages) {
        Some(end) if end as usize <= WINDOW_PAGES => Ok((start, end)),
        _ => Err(inval),
    }
}

/// Makes a call on the range that it names; `None`, and not ours, when that begins outside of the
/// window.
fn on_range(
    addr: usize,
    bytes: usize,
    call: impl FnOnce(u32, u32) -> Result<usize, Errno>,
) -> Option<Result<usize, Errno>> {
    layout::in_window(addr).then(|| range(addr, bytes).and_then(|(start, end)| call(start, end)))
}

pub(crate) fn addr_of(page: u32) -> usize {
    WINDOW_BASE + page as usize * PAGE_SIZE
}

pub(crate) fn protect(start: u32, end: u32, prot: i32) -> Result<(), Errno> {
    // SAFETY: the program's own request about the program's own range.
    unsafe { mem::protect(addr_of(start), (end - start) as usize * PAGE_SIZE, prot) }
}

/// Takes the word of every touched page in the range for the mapping call: `f` gets the page and
/// its word before. The pages must end in another state by [`word::publish`].
pub(crate) fn each_touched(start: u32, end: u32, mut f: impl FnMut(u32, Word)) {
    let mut page = start;
    while page < end {
        let block = page as usize / BLOCK_PAGES;
        let block_end = (((block + 1) * BLOCK_PAGES) as u32).min(end);
        if areas::touched_in_block()[block].load(Ordering::Relaxed) == 0 {
            page = block_end;
            continue;
        }
        while page < block_end {
            let w = areas::word(page);
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
                    f(page, cur);
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
            let i = page as usize - first;
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
                family::keep_charge(smaps::shared_pages(addr_of(first as u32), &present));
            }
            // SAFETY: the program asked for it; every present page in the range is in our hands.
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
                word::publish(areas::word(page as u32), Word(0));
            }
        }
        if n > 0 {
            areas::touched_in_block()[from as usize / BLOCK_PAGES].fetch_sub(n, Ordering::Relaxed);
            state::seg().charge_footprint(-i64::from(n));
        }
        from = to;
    }
}

/// Makes a range of the window ours again after a native mapping: reserved, registered.
pub(crate) fn restore_window(start: u32, end: u32) -> Result<(), Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let (addr, bytes) = (addr_of(start), (end - start) as usize * PAGE_SIZE);
    // SAFETY: replaces a mapping that the program gives up.
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
    uffd().register(addr, bytes, true)?;
    Ok(())
}

/// Unmaps a range: contents, protection and regions.
pub(crate) fn clear(g: &RawGuard<'_>, start: u32, end: u32) -> Result<(), Errno> {
    let mut native = false;
    let mut accessible = false;
    regions(g).each(start, end, |r| {
        native |= r.attr.kind & kind::NATIVE != 0;
        accessible |= r.attr.prot != 0;
    });
    regions(g)
        .remove(start, end)
        .map_err(|_| Errno(libc::ENOMEM))?;
    discard(start, end);
    if native {
        restore_window(start, end)?;
    } else if accessible {
        protect(start, end, libc::PROT_NONE)?;
    }
    Ok(())
}

/// Refuses what would pass the program's own limits, or a far limit that is reached.
pub(crate) fn admit(g: &RawGuard<'_>, new_pages: u32, writable: bool) -> Result<(), Errno> {
    let total = (regions(g).pages() + u64::from(new_pages)) * PAGE_SIZE as u64;
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
pub(crate) fn map_at(g: &RawGuard<'_>, start: u32, end: u32, prot: i32) -> Result<(), Errno> {
    regions(g)
        .insert(
            start,
            end,
            Attr {
                prot: prot as u8,
                kind: 0,
            },
        )
        .map_err(|_| Errno(libc::ENOMEM))?;
    if prot != libc::PROT_NONE
        && let Err(e) = protect(start, end, prot)
    {
        let _ = regions(g).remove(start, end);
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
    let overlaps_window = addr < WINDOW_END && addr.saturating_add(bytes) > WINDOW_BASE;
    // A reservation that only makes sense at its place (ZGC's heap views): the kernel's.
    let exact = !fixed && prot == libc::PROT_NONE && (NATIVE_HINTS..WINDOW_BASE).contains(&addr);
    if bytes == 0 || exact || (fixed && !overlaps_window) || (!fixed && !captures(prot, flags)) {
        if flags & libc::MAP_ANONYMOUS != 0 && bytes >= 64 << 10 {
            // Memory that will be the program's, and not ours to see: a stack, most often.
            account::measure_soon();
        }
        return None;
    }
    let _inside = freeze::enter();
    let g = lock();
    let done = if fixed {
        mmap_fixed(&g, addr, bytes, flags, a)
    } else {
        mmap_anywhere(&g, addr, bytes, prot)
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
    g: &RawGuard<'_>,
    addr: usize,
    bytes: usize,
    flags: i32,
    a: &[usize; 6],
) -> Result<usize, Errno> {
    let (start, end) = range(addr, bytes)?;
    let mut taken = false;
    regions(g).each(start, end, |_| taken = true);
    if taken && flags & libc::MAP_FIXED_NOREPLACE != 0 {
        return Err(Errno(libc::EEXIST));
    }
    mmap_over(g, start, end, a)
}

fn mmap_anywhere(g: &RawGuard<'_>, hint: usize, bytes: usize, prot: i32) -> Result<usize, Errno> {
    let pages = pages_of(bytes).ok_or(Errno(libc::ENOMEM))?;
    admit(g, pages, prot & libc::PROT_WRITE != 0)?;
    // A hint inside the window is honoured when free, as the kernel does.
    let wanted = range(hint, bytes).ok().map(|r| r.0);
    let at = wanted
        .filter(|s| *s >= MMAP_FIRST)
        .and_then(|s| regions(g).find_gap(pages, 1, s, s.checked_add(pages)?))
        .or_else(|| regions(g).find_gap(pages, 1, MMAP_FIRST, WINDOW_PAGES as u32))
        .ok_or(Errno(libc::ENOMEM))?;
    map_at(g, at, at + pages, prot)?;
    Ok(addr_of(at))
}

/// MAP_FIXED over the window.
fn mmap_over(g: &RawGuard<'_>, start: u32, end: u32, a: &[usize; 6]) -> Result<usize, Errno> {
    let (prot, flags) = (a[2] as i32, a[3] as i32);
    if captures(prot, flags) {
        let mut mapped = 0;
        regions(g).each(start, end, |r| mapped += r.end - r.start);
        admit(g, (end - start) - mapped, prot & libc::PROT_WRITE != 0)?;
        let mut native = false;
        regions(g).each(start, end, |r| native |= r.attr.kind & kind::NATIVE != 0);
        discard(start, end);
        if native {
            restore_window(start, end)?;
        }
        protect(start, end, prot)?;
        regions(g)
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
    let at =
        check(unsafe { gate::raw(libc::SYS_mremap as usize, [new, a[1], a[1], flags, a[0], 0]) })?;
    let attr = Attr {
        prot: prot as u8,
        kind: kind::NATIVE,
    };
    regions(g)
        .insert(start, end, attr)
        .map_err(|_| Errno(libc::ENOMEM))?;
    Ok(at)
}

/// Touches every page. The caller is inside.
fn populate(start: u32, end: u32) {
    for page in start..end {
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
        let g = lock();
        clear(&g, start, end).map(|()| 0)
    })
}

/// `brk`: answers like the kernel, with the break after the call.
pub fn brk(a: &[usize; 6]) -> usize {
    let _inside = freeze::enter();
    let g = lock();
    let now = BRK.load(Ordering::Relaxed);
    let want = a[0];
    if !(WINDOW_BASE..=WINDOW_BASE + BRK_BYTES).contains(&want) {
        return now;
    }
    let page = |at: usize| ((at - WINDOW_BASE).div_ceil(PAGE_SIZE)) as u32;
    let (old_end, new_end) = (page(now), page(want));
    let done = match new_end.cmp(&old_end) {
        core::cmp::Ordering::Greater => {
            admit(&g, new_end - old_end, true).and_then(|()| map_at(&g, old_end, new_end, RW))
        }
        core::cmp::Ordering::Less => clear(&g, new_end, old_end),
        core::cmp::Ordering::Equal => Ok(()),
    };
    if done.is_ok() {
        BRK.store(want, Ordering::Relaxed);
        want
    } else {
        now
    }
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
    let g = lock();
    // Up to the first hole the call has its effect, as the kernel has it.
    let end = regions(&g).covered_until(start, asked);
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
        let _ = regions(&g).update(start, end, |a| Attr {
            prot: prot as u8,
            ..a
        });
    }
    if readable {
        each_touched(start, end, |page, cur| {
            word::publish(areas::word(page), cur.clear(flag::STUCK));
        });
    }
    done.and(if end == asked {
        Ok(0)
    } else {
        Err(Errno(libc::ENOMEM))
    })
}

/// `madvise`.
pub fn madvise(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    on_range(a[0], a[1], |start, end| madvise_range(start, end, a[2]))
}

fn madvise_range(start: u32, end: u32, advice: usize) -> Result<usize, Errno> {
    if start == end {
        return Ok(0);
    }
    let _inside = freeze::enter();
    let g = lock();
    // With holes it has its effect all the same.
    let done = if regions(&g).covers(start, end) {
        Ok(0)
    } else {
        Err(Errno(libc::ENOMEM))
    };
    // Native pieces are the kernel's to advise; the rest of the range is ours.
    let mut native = Ok(0);
    regions(&g).each(start, end, |r| {
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
    let attr = |set: u8, clear: u8| {
        regions(&g).update(start, end, |a| Attr {
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
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_WILLNEED
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT => {}
        _ => return Err(Errno(libc::EINVAL)),
    }
    done
}

/// `mincore`.
pub fn mincore(a: &[usize; 6]) -> Option<Result<usize, Errno>> {
    on_range(a[0], a[1], |start, end| {
        if !mapped(start, end) {
            return Err(Errno(libc::ENOMEM));
        }
        for page in start..end {
            let resident = word::load(areas::word(page)).state() == State::Resident;
            // SAFETY: the program's own buffer, as the kernel would write to it; a bad pointer ends
            // the program as a bad pointer does.
            unsafe { ((a[2] + (page - start) as usize) as *mut u8).write(resident as u8) };
        }
        Ok(0)
    })
}

/// Is every page of the range mapped?
fn mapped(start: u32, end: u32) -> bool {
    let _inside = freeze::enter();
    let g = lock();
    regions(&g).covers(start, end)
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
        if !regions(&g).covers(start, end) {
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
    for page in start..end {
        let w = areas::word(page);
        loop {
            let cur = word::load(w);
            if cur.state() == State::Resident {
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
        total += regions(&g).pages();
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
            regions(&g)
                .as_slice()
                .iter()
                .find(|r| r.end > next)
                .copied()
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
    mem::map_lazy(WINDOW_BASE, layout::WINDOW_BYTES, libc::PROT_NONE)?;
    // SAFETY: a fresh reservation.
    unsafe {
        let _ = mem::advise(WINDOW_BASE, layout::WINDOW_BYTES, libc::MADV_NOHUGEPAGE);
        let _ = mem::advise(WINDOW_BASE, layout::WINDOW_BYTES, libc::MADV_DONTDUMP);
    }
    uffd().register(WINDOW_BASE, layout::WINDOW_BYTES, true)?;
    // One page once: gives the reservation its anon_vma while it is one piece, without which
    // pieces that are split off and touched apart could never merge again.
    // SAFETY: fills and discards a page of the fresh reservation.
    unsafe {
        let _ = uffd().copy(WINDOW_END - PAGE_SIZE, areas::ZEROS, PAGE_SIZE);
        mem::advise(WINDOW_END - PAGE_SIZE, PAGE_SIZE, libc::MADV_DONTNEED)
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
    let _ = unsafe { mem::advise(WINDOW_BASE, layout::WINDOW_BYTES, advice) };
}

/// In a fork's child: registers the window with the child's own userfaultfd, clears what must not
/// be inherited, and charges the child for the rest.
pub fn after_fork_in_child(g: &RawGuard<'_>) -> Result<(), Errno> {
    let bytes = |s: u32, e: u32| (e - s) as usize * PAGE_SIZE;
    let mut from = 0u32;
    let mut result = Ok(());
    let mut wipe = |r: Region| {
        if r.attr.kind & kind::NATIVE != 0 {
            if from < r.start && result.is_ok() {
                result = uffd()
                    .register(addr_of(from), bytes(from, r.start), true)
                    .map(|_| ());
            }
            from = r.end;
        }
    };
    for r in regions(g).as_slice() {
        wipe(*r);
    }
    result?;
    if (from as usize) < WINDOW_PAGES {
        uffd().register(addr_of(from), bytes(from, WINDOW_PAGES as u32), true)?;
    }
    // No other thread exists: words may be stored to.
    let mut resident = 0;
    for i in 0..regions(g).as_slice().len() {
        let r = regions(g).as_slice()[i];
        each_touched(r.start, r.end, |page, cur| {
            resident += i64::from(cur.state() == State::Resident);
            areas::word(page).store(cur.with_pins(0).0, Ordering::Release);
        });
    }
    account::after_fork_in_child(resident);
    let mut at = 0;
    while let Some(r) = regions(g).as_slice().iter().find(|r| r.end > at).copied() {
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
