//! Memory of the swap cache: slots at fixed addresses. [`canvas_core::pager::slot`] defines a slot's states and who
//! waits for whom.

use canvas_core::pager::slot::{Control, SlotRef, SlotTable};
use canvas_core::vm::ledger;
use canvas_types::PAGE_SIZE;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::own_memory::areas::{self, CACHE_SLOTS_MAX};
use crate::paging::discard;
use crate::runtime::{state, state::PROCESS, thread};
use crate::tenant::{members, smaps};

/// Entries of the FIFO. Stale entries are skipped, so it is larger than the cache.
const RING: usize = CACHE_SLOTS_MAX * 2;
const _: () = assert!(RING.is_power_of_two());
const _: () = assert!(CACHE_SLOTS_MAX * 24 + RING * 8 == areas::CACHE_META_BYTES);

static CONTROL: Control = Control::new();

/// The table of all slots.
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

/// Bounds the slots in use to `wanted`, or to those that memory can be had for.
pub fn set_capacity(wanted: usize) {
    slots().set_capacity(wanted.min(areas::open_cache(wanted)));
}

/// Address of a slot's buffer.
#[inline(always)]
pub fn buffer(slot: u32) -> usize {
    debug_assert!((slot as usize) < CACHE_SLOTS_MAX);
    areas::cache_buffers() + slot as usize * PAGE_SIZE
}

/// Frees the memory of slots that were idle for a while: 20 ms when the tenant is short of room, else 200 ms. Called by
/// the reclaim thread, inside `freeze::enter`.
pub fn give_back_idle(now: u64) {
    static LAST_NS: AtomicU64 = AtomicU64::new(0);
    let forked = PROCESS.has_forked();
    let pause_ns = if forked && slots().buffers() > slots().capacity() {
        // Nobody may need these slots, and writes by relatives make the kernel copy them.
        1_000_000
    } else if ledger::short_of_room(&PROCESS) {
        20_000_000
    } else {
        200_000_000
    };
    if !members::once_in(&LAST_NS, pause_ns, now) {
        return;
    }
    let mut still_shared = 0;
    let n = give_back(|ranges, discard| {
        still_shared += members::give_up_shared(|| smaps::shared_in(ranges), discard).1;
    });
    ledger::uncharge(&PROCESS, n);
    state::slot().cached_pages.fetch_sub(n, Ordering::Relaxed);
    if still_shared > 0 {
        members::keep_charge(still_shared);
    }
}

/// In a fork's child, which is charged for nothing yet: keeps only those of the parent's slots that hold pages. Reusing
/// an idle slot would make the kernel copy it.
pub fn after_fork_in_child() {
    slots().make_idle();
    give_back(|_, discard| discard());
    let there = i64::from(slots().buffers());
    state::slot().cached_pages.store(there, Ordering::Relaxed);
}

/// Frees the memory of idle slots; `each` releases one group at a time. Returns how many slots were freed.
fn give_back(mut each: impl FnMut(&[libc::iovec], &dyn Fn())) -> i64 {
    let mut places = [SlotRef::default(); 64];
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
            // SAFETY: the buffers of slots that were taken above, that hold nothing, and that nobody else uses until
            // they are given back.
            unsafe { discard::discard(ranges) };
        });
        slots().give_back_bare(&places[..n]);
        idle += n as i64;
        if n < places.len() {
            return idle;
        }
    }
}
