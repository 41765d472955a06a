//! The swap cache's memory: slots at fixed addresses. What may happen to a slot, and who waits for
//! whom, is in [`canvas_pager::slot`].

use canvas_pager::slot::{Control, SlotTable};
use canvas_types::{PAGE_SIZE, PageBuf};

use crate::areas::{self, CACHE_SLOTS_MAX};
use canvas_sys::gate::yield_now;

/// Places in the FIFO; stale ones are skipped, so it is larger than the cache.
const RING: usize = CACHE_SLOTS_MAX * 2;
const _: () = assert!(RING.is_power_of_two());

static CONTROL: Control = Control::new();

/// All slots.
#[inline(always)]
pub fn slots() -> SlotTable<'static> {
    let n = CACHE_SLOTS_MAX;
    SlotTable {
        control: &CONTROL,
        states: areas::cache_meta32(0, n),
        pages: areas::cache_meta32(n * 4, n),
        entries: areas::cache_meta64(n * 8, n),
        generations: areas::cache_meta32(n * 16, n),
        free_stack: areas::cache_meta32(n * 20, n),
        ring: areas::cache_meta64(n * 24, RING),
        yield_now,
    }
}

/// Address of a slot's buffer.
#[inline(always)]
pub fn buffer(slot: u32) -> usize {
    debug_assert!((slot as usize) < CACHE_SLOTS_MAX);
    areas::CACHE_BUFFERS + slot as usize * PAGE_SIZE
}

/// A slot's contents, for the thread that is its writer or taker.
#[inline(always)]
pub fn contents(slot: u32) -> &'static PageBuf {
    // SAFETY: slot buffers are mapped for the life of the process, and neither the writer's nor
    // the taker's slot is written to before both are done with it.
    unsafe { &*(buffer(slot) as *const PageBuf) }
}
