//! Ranges of managed memory that a call names, and the touched pages in them.

use canvas_core::pager::word::{self, State, Word};
use canvas_core::vm::reclaim;
use canvas_sys::gate::yield_now;
use canvas_sys::{Errno, mem};
use canvas_types::layout::{self, BLOCK_PAGES};
use canvas_types::sync::backoff;
use canvas_types::{PAGE_SIZE, PageId};
use core::sync::atomic::Ordering;

use crate::own_memory::areas;
use crate::paging::{
    regions::{addr_of, range},
    touched,
};
use crate::runtime::{state, state::PROCESS};
use crate::tenant::{members, smaps};

/// Makes a call on the range that it names; `None` if the range does not begin in managed memory.
pub(crate) fn on_range(
    addr: usize,
    bytes: usize,
    call: impl FnOnce(u32, u32) -> Result<usize, Errno>,
) -> Option<Result<usize, Errno>> {
    layout::in_window(addr).then(|| range(addr, bytes).and_then(|(start, end)| call(start, end)))
}

/// Like [`on_range`], for calls that return ENOMEM where nothing can be mapped.
pub(crate) fn on_mapped(
    addr: usize,
    bytes: usize,
    call: impl FnOnce(u32, u32) -> Result<usize, Errno>,
) -> Option<Result<usize, Errno>> {
    let past = |e| match addr.is_multiple_of(PAGE_SIZE) {
        true => Errno(libc::ENOMEM),
        false => e,
    };
    layout::in_window(addr).then(|| {
        let (start, end) = range(addr, bytes).map_err(past)?;
        call(start, end)
    })
}

/// Claims the word of every touched page in the range for a mapping call; `f` gets the page and its previous word, and
/// must put it into another state by [`word::publish`].
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
            reclaim::forget(&PROCESS, page, cur);
        });
        if any {
            let (at, bytes) = (addr_of(from), (to - from) as usize * PAGE_SIZE);
            // SAFETY: the program gave up what is there. The words of all present pages in the range are Mapping, set
            // by this thread: nobody copies from these pages meanwhile.
            let empty = || unsafe {
                mem::advise(at, bytes, libc::MADV_DONTNEED)
                    // Some of it is locked.
                    .or_else(|_| mem::advise(at, bytes, libc::MADV_DONTNEED_LOCKED))
            };
            let shared = || smaps::shared_pages(addr_of(first as u32), &present);
            let (_, still_shared) = members::give_up_shared(shared, empty);
            if still_shared > 0 {
                members::keep_charge(still_shared);
            }
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
