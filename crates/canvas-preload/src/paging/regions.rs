//! What is mapped in the managed range and in the partition of shared memory, behind the mapping lock.

use canvas_core::pager::prefetch::{Advice, Area};
use canvas_core::pager::regions::{Region, Regions, kind};
use canvas_core::pager::table::CHUNK_PAGES;
use canvas_core::pager::word::{self, State};
use canvas_core::vm::Claim;
use canvas_sys::Errno;
use canvas_types::layout::{self, BLOCK_PAGES, WINDOW_PAGES, window_base};
use canvas_types::sync::{RawGuard, RawSpin};
use canvas_types::{PAGE_SIZE, PageId};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::own_memory::areas;
use crate::paging::{freeze, slow, touched};
use crate::runtime::state::CacheAligned;
use crate::tenant::smaps;

/// The lists of mapped regions, guarded by the mapping lock.
pub struct Lists {
    /// In the managed range.
    pub window: Regions<'static>,
    /// This process's parts of the partition of shared memory.
    pub partition: Regions<'static>,
}

struct Cell(UnsafeCell<MaybeUninit<Lists>>);
// SAFETY: after `init`, which one thread makes, it is reached only through a `Locked`, of which there is one at a time.
unsafe impl Sync for Cell {}

state! {
    static MAPPED: Mapped {
        lock: RawSpin = RawSpin::new(),
        lists: Cell = Cell(UnsafeCell::new(MaybeUninit::uninit())),
        /// The program has given advice on some region ([`advice_of`]).
        advised: CacheAligned<AtomicBool> = CacheAligned(AtomicBool::new(false)),
    }
}

/// The held mapping lock: it serialises all mapping calls.
pub struct Locked {
    /// Made by [`lock`] and [`try_lock`] alone, from the lock that guards the lists.
    _held: RawGuard<'static>,
}

impl Deref for Locked {
    type Target = Lists;
    fn deref(&self) -> &Lists {
        // SAFETY: `init` ran before anybody locks; a `Locked` holds the one lock on the lists, so no other one refers
        // to them, and this one hands them out only as long as it is borrowed.
        unsafe { (*MAPPED.lists.0.get()).assume_init_ref() }
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Lists {
        // SAFETY: `init` ran before anybody locks; a `Locked` holds the one lock on the lists, so no other one refers
        // to them, and this one, borrowed mutably, has handed out nothing else.
        unsafe { (*MAPPED.lists.0.get()).assume_init_mut() }
    }
}

/// Prepares the lists.
///
/// # Safety
///
/// To be called once, by start-up, while there is one thread, when all areas are mapped; before [`lock`].
pub unsafe fn init() {
    // SAFETY: nobody refers to the lists yet, and this is called once, after `areas::map` (the caller's promise).
    unsafe {
        let [window, partition] = areas::region_lists();
        (*MAPPED.lists.0.get()).write(Lists { window, partition });
    }
}

/// Takes the mapping lock.
pub fn lock() -> Locked {
    Locked {
        _held: MAPPED.lock.lock(slow::yield_to_mapping),
    }
}

/// Takes the mapping lock if it is free.
pub fn try_lock() -> Option<Locked> {
    MAPPED.lock.try_lock().map(|held| Locked { _held: held })
}

/// Claims `page` and up to `ahead` untouched neighbours in the direction of `stride` (1 or -1), in its region and
/// chunk, for a first touch: their words become Filling and count as touched. Returns `None` if the page is not
/// anonymous memory that canvas manages, and an empty range if another thread has it. The caller must publish each page
/// without taking the mapping lock again, and as locked if the region is.
pub fn claim_untouched(page: PageId, ahead: u32, stride: i32) -> Option<Claim> {
    let page = page.0;
    let g = lock();
    // Inaccessible pages must not become present: reclaim could not read them.
    let region = g
        .window
        .at(page)
        .filter(|r| r.attr.kind & kind::NATIVE == 0 && r.attr.is_readable())?;
    let claimed = |from, to| Claim {
        from: PageId(from),
        to: PageId(to),
        is_locked: region.attr.kind & kind::LOCKED != 0,
    };
    let chunk = page & !(CHUNK_PAGES as u32 - 1);
    let block = page as usize / BLOCK_PAGES;
    let claim = |p: u32| {
        touched::note_touched(block, 1);
        // A discarded page may still carry the pins of a call in progress.
        let cur = word::load(areas::word(PageId(p)));
        let ours = cur.state() == State::Untouched
            && word::transition(areas::word(PageId(p)), cur, cur.with_state(State::Filling));
        if !ours {
            touched::note_untouched(block, 1);
        }
        ours
    };
    if !claim(page) {
        return Some(claimed(page, page));
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
    Some(claimed(from, to))
}

/// The mapping of `page`, for the prefetcher. Only tries the lock: the caller may own a busy word, for which a mapping
/// call waits under the lock.
pub fn area_of(page: PageId) -> Option<Area> {
    let g = try_lock()?;
    let Region { start, end, .. } = g.window.at(page.0)?;
    Some(Area { start, end })
}

/// Makes faults look up the advice on their region from now on.
pub fn note_advised() {
    MAPPED.advised.store(true, Ordering::Relaxed);
}

/// The program's advice on the page's region, for the prefetcher. Only tries the lock, like [`area_of`].
#[inline]
pub fn advice_of(page: PageId) -> Advice {
    if !MAPPED.advised.load(Ordering::Relaxed) {
        return Advice::Normal;
    }
    let region = try_lock().and_then(|g| g.window.at(page.0));
    match region.map_or(0, |r| r.attr.kind & (kind::RANDOM | kind::SEQUENTIAL)) {
        kind::RANDOM => Advice::Random,
        kind::SEQUENTIAL => Advice::Sequential,
        _ => Advice::Normal,
    }
}

/// Whether nothing is mapped there, or a guard region, which the kernel reports in the same way.
pub fn is_hole(page: PageId) -> bool {
    let _inside = freeze::enter();
    let g = lock();
    g.window
        .at(page.0)
        .is_none_or(|r| r.attr.kind & kind::GUARD != 0)
}

/// One past the last page of the native mapping that contains `page`; `None` if there is none.
pub fn native_until(page: PageId) -> Option<PageId> {
    let _inside = freeze::enter();
    let g = lock();
    g.window
        .at(page.0)
        .filter(|r| r.attr.kind & kind::NATIVE != 0)
        .map(|r| PageId(r.end))
}

/// Whether the kernel has a page there; assumed if the kernel does not say.
pub fn is_present(page: PageId) -> bool {
    smaps::present(page.addr()).unwrap_or(true)
}

/// The number of pages that `bytes` need.
pub fn pages_of(bytes: usize) -> Option<u32> {
    u32::try_from(bytes.checked_add(PAGE_SIZE - 1)? / PAGE_SIZE).ok()
}

/// Converts a page-aligned range of managed addresses to pages; EINVAL for any other range.
pub fn range(addr: usize, bytes: usize) -> Result<(u32, u32), Errno> {
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

/// The address of a page of the managed range.
pub fn addr_of(page: u32) -> usize {
    window_base() + page as usize * PAGE_SIZE
}
