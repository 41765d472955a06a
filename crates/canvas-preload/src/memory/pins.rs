//! Pages that a system call needs: present, and *pinned* (a count in the page word that reclaim respects) for the
//! duration of the call.

use canvas_core::pager::word;
use canvas_sys::mem;
use canvas_types::PageId;
use canvas_types::layout::{self, in_partition, in_window};

use crate::own_memory::areas;
use crate::paging::{
    fault::{self, Resolved},
    freeze, regions,
};
use crate::shared::{pages, pins};

/// Ranges of one call that need no extra memory.
const PINS: usize = 64;
/// Ranges in a block for the rest (a vector of a thousand buffers): one mapping, touched lazily.
const BLOCK_RANGES: usize = 8190;

#[repr(C)]
struct Block {
    next: *mut Block,
    n: usize,
    ranges: [(u32, u32); BLOCK_RANGES],
}

/// Pinned pages of one call.
pub struct Pins {
    ranges: [(u32, u32); PINS],
    n: usize,
    more: *mut Block,
    shared: pins::Pin,
}

impl Pins {
    pub fn new() -> Pins {
        Pins {
            ranges: [(0, 0); PINS],
            n: 0,
            more: core::ptr::null_mut(),
            shared: pins::Pin::new(),
        }
    }
    /// Remembers a range for [`Pins::drop`]. Returns false without memory to do so.
    fn note(&mut self, range: (u32, u32)) -> bool {
        if self.n < PINS {
            self.ranges[self.n] = range;
            self.n += 1;
            return true;
        }
        // SAFETY: null, or a block that this function mapped below; only this `Pins` knows it, until it is dropped.
        let full = unsafe { self.more.as_ref() }.is_none_or(|b| b.n == BLOCK_RANGES);
        if full {
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            let Ok(at) = mem::map_lazy(0, core::mem::size_of::<Block>(), rw) else {
                return false;
            };
            let block = at as *mut Block;
            // SAFETY: writable zeros with room for a block, of which they are an empty one; nobody else knows them.
            unsafe { (*block).next = self.more };
            self.more = block;
        }
        // SAFETY: a block that this function mapped, which only this `Pins` knows; `full` is no reference to it.
        let block = unsafe { &mut *self.more };
        block.ranges[block.n] = range;
        block.n += 1;
        true
    }
    /// Whether nothing is pinned.
    pub fn is_empty(&self) -> bool {
        self.n == 0 && self.more.is_null()
    }
    /// Pins the managed, mapped part of `addr..addr+bytes`; the kernel will detect the rest itself.
    pub fn pin(&mut self, addr: usize, bytes: usize) {
        if in_partition(addr) {
            pages::pin(&mut self.shared, addr, bytes);
            return;
        }
        if bytes == 0 || !in_window(addr) {
            return;
        }
        let last = addr.saturating_add(bytes - 1).min(layout::window_end() - 1);
        let (first, last) = (PageId::of_addr(addr).0, PageId::of_addr(last).0);
        let mut from = first;
        while from <= last {
            let mut page = from;
            while page <= last && pin_page(PageId(page)) {
                page += 1;
            }
            if page > from && !self.note((from, page)) {
                unpin_range((from, page));
                return;
            }
            if page > last {
                return;
            }
            // A file or shared mapping inside the managed range is native; continue behind it.
            match regions::native_until(PageId(page)) {
                Some(end) => from = end.0,
                None => return,
            }
        }
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        for range in &self.ranges[..self.n] {
            unpin_range(*range);
        }
        while !self.more.is_null() {
            let at = self.more;
            // SAFETY: a block that `note` mapped, and that only this `Pins` knows; it is read before it is unmapped.
            unsafe {
                for range in &(&(*at).ranges)[..(*at).n] {
                    unpin_range(*range);
                }
                self.more = (*at).next;
                let _ = mem::unmap(at as usize, core::mem::size_of::<Block>());
            }
        }
    }
}

fn unpin_range((first, end): (u32, u32)) {
    for page in PageId::each(first..end) {
        word::unpin(areas::word(page));
    }
}

/// Makes a page present and pins it; returns false if it cannot be made present.
pub fn pin_page(page: PageId) -> bool {
    let w = areas::word(page);
    loop {
        if word::pin(w) {
            return true;
        }
        let _inside = freeze::enter();
        if fault::resolve(page, true) != Resolved::Present {
            return false;
        }
        // Pin it while still inside: a batch of reclaim may evict it again before the next round.
        if word::pin(w) {
            return true;
        }
    }
}

/// Pins the pages of `addr..addr+bytes` until the result is dropped.
pub fn pin_range(addr: usize, bytes: usize) -> Pins {
    let mut p = Pins::new();
    p.pin(addr, bytes);
    p
}
