//! The swap cache's memory: slots at fixed addresses. What may happen to a slot, and who waits for
//! whom, is in [`canvas_pager::slot`].

use canvas_pager::slot::{Control, Place, SlotTable};
use canvas_shm::Counter;
use canvas_sys::mem;
use canvas_types::{PAGE_SIZE, PageBuf};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::base::{
    areas::{self, CACHE_SLOTS_MAX},
    smaps, state,
    state::count,
    tenant, thread,
};
use crate::far_tier::pool::pool;
use crate::paging::accounting;

/// Places in the FIFO; stale ones are skipped, so it is larger than the cache.
const RING: usize = CACHE_SLOTS_MAX * 2;
const _: () = assert!(RING.is_power_of_two());
const _: () = assert!(CACHE_SLOTS_MAX * 24 + RING * 8 == areas::CACHE_META_BYTES);

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
        free_stack: areas::cache_meta32(n * 16, n),
        ring: areas::cache_meta64(n * 24, RING),
        threads: thread::THREADS,
    }
}

/// Bounds the slots in use, and to those that there is memory for.
pub fn set_capacity(wanted: usize) {
    slots().set_capacity(wanted.min(areas::open_cache(wanted)));
}

/// Address of a slot's buffer.
#[inline(always)]
pub fn buffer(slot: u32) -> usize {
    debug_assert!((slot as usize) < CACHE_SLOTS_MAX);
    areas::cache_buffers() + slot as usize * PAGE_SIZE
}

/// A slot's contents, for the thread that is its writer or taker.
#[inline(always)]
pub fn contents(slot: u32) -> &'static PageBuf {
    // SAFETY: slot buffers are mapped for the life of the process, and neither the writer's nor
    // the taker's slot is written to before both are done with it.
    unsafe { &*(buffer(slot) as *const PageBuf) }
}

/// Gives back the memory of slots that nobody needed for a while: 20 ms while the tenant is short of room,
/// else 200 ms. The caller is inside, in the reclaim thread.
pub fn give_back_idle(now: u64) {
    static LAST_NS: AtomicU64 = AtomicU64::new(0);
    let pause_ns = if accounting::short_of_room() {
        20_000_000
    } else {
        200_000_000
    };
    let last = LAST_NS.load(Ordering::Relaxed);
    if now < last + pause_ns || !tenant::take_turn(&LAST_NS, last, now) {
        return;
    }
    count_lock_waits();
    let mut places = [Place::default(); 64];
    loop {
        let n = slots().take_idle(&mut places);
        let mut still_shared = 0;
        for place in &places[..n] {
            let at = buffer(place.slot());
            let range = libc::iovec {
                iov_base: at as *mut _,
                iov_len: PAGE_SIZE,
            };
            let discard = || {
                // SAFETY: the slot is ours alone until it is given back, and nothing is in it.
                let _ = unsafe { mem::advise(at, PAGE_SIZE, libc::MADV_DONTNEED) };
            };
            still_shared += tenant::give_up_shared(|| smaps::shared_in(&[range]), discard).1;
        }
        slots().give_back_bare(&places[..n]);
        accounting::uncharge(n as i64);
        state::slot()
            .cached_pages
            .fetch_sub(n as i64, Ordering::Relaxed);
        if still_shared > 0 {
            tenant::keep_charge(still_shared);
        }
        if n < places.len() {
            return;
        }
    }
}

/// Counts how often the locks of the swap cache and of the pool's allocators were found taken since it was
/// last asked. By one thread at a time.
fn count_lock_waits() {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    let now = slots().lock_waits().wrapping_add(pool().lock_waits());
    let before = TOLD.swap(now, Ordering::Relaxed);
    count(Counter::AllocLockWait, u64::from(now.wrapping_sub(before)));
}
