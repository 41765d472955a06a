//! What the processes of a tenant agree on through the segment: which of them live, which one does a shared task, which
//! one gives up room in the pool, and what stays charged because a relative still maps it.

use canvas_core::far::PoolPeer;
use canvas_core::vm::floors;
pub use canvas_core::vm::ledger::once_in;
use canvas_shm::ProcSlot;
use canvas_shm::lives::GIVING_UP;
use canvas_sys::{gate, lock, proc};
use canvas_types::PAGE_SIZE;
use core::sync::atomic::Ordering;

use crate::own_memory::areas;
use crate::runtime::{fds, fds::Fd, state, state::PROCESS};
use crate::tenant::{far_area, life, smaps};

/// The slots of all processes of the tenant.
pub fn live_slots() -> impl Iterator<Item = &'static ProcSlot> + Clone {
    floors::live_slots(state::seg())
}

/// Releases all that a process had which has ended or has exec'ed another image.
pub fn release_slot(slot: &ProcSlot, id: u64) {
    state::seg().release_slot(slot, id, far_area::drop_process);
}

/// Releases what those processes of `among` had that have ended; returns whether there was any.
pub fn release_gone(among: impl Fn(&ProcSlot) -> bool) -> bool {
    let mut any = false;
    for slot in live_slots().filter(|s| among(s)) {
        let id = slot.id.load(Ordering::Relaxed);
        if id != life::id() && life::is_gone(id) {
            release_slot(slot, id);
            any = true;
        }
    }
    any
}

/// Wakes the reclaim thread of a process.
pub fn wake(slot: &ProcSlot) {
    slot.wake.fetch_add(1, Ordering::Release);
    proc::futex_wake(&slot.wake, 1);
}

/// Asks other processes to give up some of the pool. Returns the one that was asked, or one of them; `None` if there is
/// none.
pub fn ask_for_pool(peer: PoolPeer) -> Option<&'static ProcSlot> {
    /// A few slabs, because more than one page needs room.
    const BYTES: i64 = 128 << 10;
    let me = state::slot();
    let has = |p: &ProcSlot| p.pool_bytes.load(Ordering::Relaxed);
    let least = if peer == PoolPeer::Larger { has(me) } else { 0 };
    let others = live_slots().filter(|p| !core::ptr::eq(*p, me) && has(p) > least);
    let ask = |p: &'static ProcSlot| {
        if !release_gone(|s| core::ptr::eq(s, p)) {
            p.pool_wanted_bytes.fetch_max(BYTES, Ordering::Relaxed);
            wake(p);
        }
        p
    };
    if peer == PoolPeer::All {
        others.map(ask).last()
    } else {
        others.max_by_key(|p| has(p)).map(ask)
    }
}

/// Keeps `pages` pages charged that were evicted or discarded here but that a relative still maps: nothing was freed.
/// The charge is corrected when the shares are measured.
pub fn keep_charge(pages: i64) {
    PROCESS.drift_pages.fetch_add(pages, Ordering::Relaxed);
    state::seg().charge_local(state::slot(), pages);
    state::seg().charge_footprint(pages);
}

/// Counts by `shared` how many of some present pages a relative maps, and lets `discard` give them up, while no
/// relative does the same: otherwise two that look at one page at the same time would both leave its charge to the
/// other. Returns the result of `discard`, and the number of pages for [`keep_charge`].
pub fn give_up_shared<T>(shared: impl Fn() -> i64, discard: impl FnOnce() -> T) -> (T, i64) {
    /// Stop waiting for a relative that may be stopped: the sum is then too high until it is measured.
    const LOOKS_MAX: u32 = 50;
    if !PROCESS.has_forked() || shared() == 0 {
        return (discard(), 0);
    }
    let fd = fds::get(Fd::Segment).unwrap_or(-1);
    let takes = |_| {
        let taken = lock::take_with_process(fd, GIVING_UP).is_ok();
        if !taken {
            gate::yield_now();
        }
        taken
    };
    let taken = (0..LOOKS_MAX).any(takes);
    let shared = shared();
    let out = discard();
    if taken {
        lock::give_up(fd, GIVING_UP, 1);
    }
    (out, shared)
}

/// The pool frees whole pages from `addr` on, and will uncharge them: keeps what a relative maps of them charged until
/// the shares are measured.
pub fn keep_pool_charge(addr: usize, bytes: usize) {
    /// Pages whose pagemap entries are read at a time.
    const STEP: usize = 64 * PAGE_SIZE;
    let mut pages = 0;
    for at in (addr..addr + bytes).step_by(STEP) {
        let range = libc::iovec {
            iov_base: at as *mut _,
            iov_len: STEP.min(addr + bytes - at),
        };
        pages += smaps::shared_in(&[range]);
    }
    PROCESS.drift_pages.fetch_add(pages, Ordering::Relaxed);
    let kept = pages * PAGE_SIZE as i64;
    match areas::node_at(addr) {
        None => state::seg().correct_pool(state::slot(), kept),
        Some(place) => state::seg().correct_node(state::slot(), place, kept),
    }
}
