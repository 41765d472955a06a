//! The program's break: a heap that grows and shrinks at the beginning of the managed range.
//!
//! Many programs move it by a page or two at a time, and touch each page at once. Two things make that cheap. After
//! small moves, some pages beyond the break stay accessible, so that not every move is an mprotect; they are mapped
//! nowhere, and an access there ends like one to an inaccessible page (`open_pages.rs`). And the call itself fills the
//! first page of a small growth, while there is room below the limit and the program touches what it asks for
//! ([`Fills`]): this saves the fault.

use canvas_core::pager::regions::{Attr, kind};
use canvas_core::pager::word::{self, State};
use canvas_sys::Errno;
use canvas_types::PageId;
use canvas_types::layout::{BRK_BYTES, window_base};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::memory::{
    admit::admit,
    lock as locking,
    mm::{clear, map_at, refuse_sealed},
    open_pages::{BREAK, MMAP_FIRST, RW, close, end_page, protect},
    ranges::discard,
};
use crate::own_memory::areas;
use crate::paging::{
    fault, freeze,
    regions::{Lists, lock},
};
use crate::runtime::state;

const NO_PAGE: u32 = u32::MAX;

/// Moves by up to this many pages (64 KiB) are small.
const LITTLE_PAGES: u32 = 16;
/// Pages that are opened ahead of a break that grows a little.
const OPEN_AHEAD_PAGES: u32 = 32;
/// Maximum pages that stay open.
const OPEN_MAX_PAGES: u32 = 64;
/// Growths in a row whose first page is filled, before one is left alone.
const FILLS_IN_A_ROW: u32 = 15;

state! {
    /// Decides whether to fill the first page of a growth. The touch of a filled page is not visible. So one growth in
    /// sixteen is left alone, and only if the program touches that one's first page are more filled. Changes only under
    /// the mapping lock.
    static FILLS: Fills {
        left: AtomicU32 = AtomicU32::new(0),
        /// First page of the growth that was left alone.
        left_alone: AtomicU32 = AtomicU32::new(NO_PAGE),
    }
}

impl Fills {
    /// Whether to fill the first page of a growth that begins with `page`.
    fn wants(&self, page: u32) -> bool {
        self.judge();
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            self.left_alone.store(page, Ordering::Relaxed);
            return false;
        }
        self.left.store(left - 1, Ordering::Relaxed);
        true
    }
    /// Checks whether the page that was left alone has been touched. Also called before the program frees that page.
    fn judge(&self) {
        let page = self.left_alone.load(Ordering::Relaxed);
        if page != NO_PAGE && word::load(areas::word(PageId(page))).state() != State::Untouched {
            self.left_alone.store(NO_PAGE, Ordering::Relaxed);
            self.left.store(FILLS_IN_A_ROW, Ordering::Relaxed);
        }
    }
}

/// Attributes of memory below the break.
fn heap() -> Attr {
    Attr {
        prot: RW as u8,
        kind: locking::future_kind(),
    }
}

/// Sets up the break and returns where it begins. The page below is mapped, as in a program whose heap has begun below
/// it: some programs read there (`stress-ng --brk`).
pub fn begin() -> Result<usize, Errno> {
    let first = PageId(1).addr();
    let mut g = lock();
    map_at(&mut g, 0, 1, heap())?;
    BREAK.now.store(first - window_base(), Ordering::Relaxed);
    Ok(first)
}

/// `brk`: answers like the kernel, with the break after the call.
pub fn brk(a: &[usize; 6]) -> usize {
    let _inside = freeze::enter();
    let mut g = lock();
    let now = BREAK.now.load(Ordering::Relaxed);
    let want = match a[0].checked_sub(window_base()) {
        Some(want) if want <= BRK_BYTES => want,
        _ => return window_base() + now,
    };
    let (old_end, new_end) = (end_page(now), end_page(want));
    let done = match new_end.cmp(&old_end) {
        core::cmp::Ordering::Greater => grow(&mut g, old_end, new_end),
        core::cmp::Ordering::Less => shrink(&mut g, new_end, old_end),
        core::cmp::Ordering::Equal => Ok(()),
    };
    if done.is_err() {
        return window_base() + now;
    }
    BREAK.now.store(want, Ordering::Relaxed);
    let by_little = new_end > old_end && new_end - old_end <= LITTLE_PAGES;
    let fills = by_little && FILLS.wants(old_end);
    // A first touch takes the lock itself.
    drop(g);
    if new_end > old_end && locking::future_kind() != 0 && locking::future_fills() {
        let _ = locking::hold(old_end, new_end, true);
    } else if fills {
        fault::fill_if_room(PageId(old_end));
    }
    window_base() + want
}

fn grow(g: &mut Lists, old_end: u32, new_end: u32) -> Result<(), Errno> {
    let heap = heap();
    admit(g, u64::from(new_end - old_end), heap)?;
    if heap.kind & kind::LOCKED != 0 {
        return map_at(g, old_end, new_end, heap);
    }
    let open = BREAK.open_until.load(Ordering::Relaxed).max(old_end);
    g.window
        .insert(old_end, new_end, heap)
        .map_err(|_| Errno(libc::ENOMEM))?;
    if new_end <= open {
        return Ok(());
    }
    let ahead = opens_ahead(g, old_end, new_end);
    if let Err(e) = protect(open, new_end + ahead, RW) {
        let _ = g.window.remove(old_end, new_end);
        return Err(e);
    }
    BREAK.open_until.store(new_end + ahead, Ordering::Relaxed);
    Ok(())
}

/// Number of pages to open beyond a break at `new_end`: none if something else is mapped there, and none in thread
/// mode, in which no signal reports an access.
fn opens_ahead(g: &Lists, old_end: u32, new_end: u32) -> u32 {
    let end = new_end + OPEN_AHEAD_PAGES;
    if new_end - old_end > LITTLE_PAGES || state::PROCESS.in_thread_mode() || end > MMAP_FIRST {
        return 0;
    }
    let mut is_free = true;
    g.window.each(new_end, end, |_| is_free = false);
    if is_free { OPEN_AHEAD_PAGES } else { 0 }
}

fn shrink(g: &mut Lists, new_end: u32, old_end: u32) -> Result<(), Errno> {
    refuse_sealed(g, new_end, old_end)?;
    FILLS.judge();
    let until = BREAK.open_until.load(Ordering::Relaxed).max(old_end);
    let mut plain = true;
    g.window.each(new_end, old_end, |r| {
        plain &= i32::from(r.attr.prot) == RW && r.attr.kind & (kind::NATIVE | kind::LOCKED) == 0;
    });
    // Only pages that are open below the break can stay open beyond it.
    let stays_open = plain
        && g.window.covers(new_end, old_end)
        && old_end - new_end <= LITTLE_PAGES
        && until - new_end <= OPEN_MAX_PAGES
        && !state::PROCESS.in_thread_mode();
    if !stays_open {
        close(old_end)?;
        return clear(g, new_end, old_end);
    }
    g.window
        .remove(new_end, old_end)
        .map_err(|_| Errno(libc::ENOMEM))?;
    discard(new_end, old_end);
    BREAK.open_until.store(until, Ordering::Relaxed);
    Ok(())
}
