//! The swap cache's memory: slots at fixed addresses. What may happen to a slot, and who waits for
//! whom, is in [`canvas_pager::slot`].

use canvas_pager::slot::{Control, Place, SlotTable};
use canvas_shm::Counter;
use canvas_types::{PAGE_SIZE, PageBuf};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::base::{
    areas::{self, CACHE_SLOTS_MAX},
    smaps, state,
    state::count,
    tenant, thread,
};
use crate::far_tier::pool::pool;
use crate::paging::{accounting, reclaim};

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
    let forked = state::FORKED.load(Ordering::Relaxed);
    let pause_ns = if forked && slots().buffers() > slots().capacity() {
        // Nobody may need them, and when relatives write to theirs, these cost memory.
        1_000_000
    } else if accounting::short_of_room() {
        20_000_000
    } else {
        200_000_000
    };
    let last = LAST_NS.load(Ordering::Relaxed);
    if now < last + pause_ns || !tenant::take_turn(&LAST_NS, last, now) {
        return;
    }
    count_lock_waits();
    let mut still_shared = 0;
    let n = give_back(|ranges, discard| {
        still_shared += tenant::give_up_shared(|| smaps::shared_in(ranges), discard).1;
    });
    accounting::uncharge(n);
    state::slot().cached_pages.fetch_sub(n, Ordering::Relaxed);
    if still_shared > 0 {
        tenant::keep_charge(still_shared);
    }
}

/// In a fork's child, which has nothing charged yet: of its parent's slots it keeps those that hold pages. To use the
/// others the kernel would have to copy them.
pub fn after_fork_in_child() {
    slots().make_idle();
    give_back(|_, discard| discard());
    let there = i64::from(slots().buffers());
    state::slot().cached_pages.store(there, Ordering::Relaxed);
}

/// Gives back the memory of idle slots, which `each` lets go for some at a time; how many they were.
fn give_back(mut each: impl FnMut(&[libc::iovec], &dyn Fn())) -> i64 {
    let mut places = [Place::default(); 64];
    let mut ranges = [libc::iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: PAGE_SIZE,
    }; 64];
    let mut idle = 0;
    loop {
        let n = slots().take_idle(&mut places);
        if n == 0 {
            return idle;
        }
        for (range, place) in ranges.iter_mut().zip(&places[..n]) {
            range.iov_base = buffer(place.slot()) as *mut _;
        }
        let ranges = &ranges[..n];
        each(ranges, &|| {
            // SAFETY: these slots are ours alone until they are given back, and nothing is in them.
            unsafe { reclaim::discard(ranges) };
        });
        slots().give_back_bare(&places[..n]);
        idle += n as i64;
        if n < places.len() {
            return idle;
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
