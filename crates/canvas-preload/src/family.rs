//! The books of processes that share pages since a fork.
//!
//! A page that parent and child share is one page, and stays one until a side writes. Three rules keep
//! the tenant's sum from being less than the truth:
//! * the child begins with nothing charged: all that it has is its parent's;
//! * copies that writes make are charged by the kernel's count of minor faults (and a few that made
//!   none), every millisecond;
//! * a page that is evicted or discarded while a relative maps it stays charged, because nothing was
//!   freed ([`keep_charge`]); and what an ended process had charged stays, its relatives may hold it.
//!
//! The pool is charged in the same way: a child's is its parent's until one of them writes.
//!
//! So the sum drifts upwards, and now and then one process measures all of them together: each then
//! answers for its proportional share (Pss). One by one would not do: of two that share a page, the
//! first would give up its half before the second takes it.

use canvas_shm::ProcSlot;
use canvas_sys::proc;
use canvas_types::PAGE_SIZE;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::account::take_turn;
use crate::{account, smaps, state, threads};

/// Pause between two looks at the copies made.
const LOOK_PAUSE_NS: u64 = 1_000_000;
/// Measured so often at most.
const PAUSE_MIN_NS: u64 = 10_000_000;
/// And so often at least.
const PAUSE_MAX_NS: u64 = 2_000_000_000;
/// A fork's child that has no slot yet would be missed: nobody measures so soon after a fork.
const FORK_SETTLES_NS: u64 = 5_000_000;

/// Pages that this process has charged by estimate since it last measured.
static DRIFT_PAGES: AtomicI64 = AtomicI64::new(0);

/// In a process that is about to fork: whoever measures shall wait until the child has its slot.
pub fn note_fork() {
    state::slot().shares.store(1, Ordering::Relaxed);
    state::seg()
        .last_fork_ns
        .store(proc::now_ns(), Ordering::Relaxed);
}

/// In the parent and, once it has its slot, in the child.
pub fn forked() {
    // Only faults from here on count as copies.
    copies_made();
    note_fork();
}

/// In the child, when all is in order: it needs a reclaim thread whether it faults or not. What it shares
/// is freed only when both sides give it up, and the copies that its writes make are to be counted.
pub fn child_ready() {
    if account::limit().is_some() {
        threads::start_reclaimer();
    }
}

/// The reclaim thread's look at shared memory. True when this process has relatives (and so is
/// measured with them, not by itself).
pub fn look(now: u64) -> bool {
    static LOOKED_NS: AtomicU64 = AtomicU64::new(0);
    let seg = state::seg();
    let shares = state::FORKED.load(Ordering::Relaxed);
    let orphans = seg.orphan_pages.load(Ordering::Relaxed) != 0
        || seg.orphan_pool_bytes.load(Ordering::Relaxed) != 0;
    if !shares && !orphans {
        return false;
    }
    if shares {
        let looked = LOOKED_NS.load(Ordering::Relaxed);
        if now >= looked + LOOK_PAUSE_NS && take_turn(&LOOKED_NS, looked, now) {
            keep_charge(copies_made());
        }
    }
    // A twentieth of the time at most; a fifth while the books are known to be too high by far.
    let took = seg.measure_took_ns.load(Ordering::Relaxed);
    let drift = DRIFT_PAGES.load(Ordering::Relaxed);
    let soon = orphans || account::limit().is_some_and(|l| drift > l / 16);
    let pause_ns = (took * if soon { 5 } else { 20 }).clamp(PAUSE_MIN_NS, PAUSE_MAX_NS);
    let last = seg.measured_ns.load(Ordering::Relaxed);
    if now >= last + pause_ns
        && now >= seg.last_fork_ns.load(Ordering::Relaxed) + FORK_SETTLES_NS
        && take_turn(&seg.measured_ns, last, now)
    {
        DRIFT_PAGES.store(0, Ordering::Relaxed);
        measure_all();
        seg.measure_took_ns
            .store(proc::now_ns() - now, Ordering::Relaxed);
    }
    shares
}

fn measure_all() {
    const LATER: usize = 64;
    let seg = state::seg();
    let orphans = seg.orphan_pages.load(Ordering::Relaxed);
    let orphan_pool = seg.orphan_pool_bytes.load(Ordering::Relaxed);
    // Who gives up waits until all others have taken.
    let mut later: [Option<Correction>; LATER] = [None; LATER];
    let mut n = 0;
    for slot in &seg.procs {
        let pid = slot.pid.load(Ordering::Relaxed);
        if matches!(pid, 0 | u32::MAX) {
            continue;
        }
        let Some(shares) = smaps::proportional(pid) else {
            continue;
        };
        let share = shares.pages;
        let booked =
            slot.resident_pages.load(Ordering::Relaxed) + slot.cached_pages.load(Ordering::Relaxed);
        let pages = share - slot.charged_pages.load(Ordering::Relaxed);
        seg.note_native(slot, (share - booked).max(0));
        let whole = slot.pool_whole_bytes.load(Ordering::Relaxed);
        let pool_bytes = shares.of_pool(whole) - slot.pool_bytes.load(Ordering::Relaxed);
        let correction = |pages, pool_bytes| Correction {
            slot,
            pid,
            pages,
            pool_bytes,
        };
        let (mut pages_now, mut pool_now) = (pages, pool_bytes);
        if n < LATER && (pages < 0 || pool_bytes < 0) {
            (pages_now, pool_now) = (pages.max(0), pool_bytes.max(0));
            later[n] = Some(correction(pages.min(0), pool_bytes.min(0)));
            n += 1;
        }
        correction(pages_now, pool_now).make();
    }
    for correction in later.into_iter().flatten() {
        correction.make();
    }
    seg.orphan_pool_bytes
        .fetch_sub(orphan_pool, Ordering::Relaxed);
    seg.pool_bytes.fetch_sub(orphan_pool, Ordering::Relaxed);
    seg.orphan_pages.fetch_sub(orphans, Ordering::Relaxed);
    seg.local_pages.fetch_sub(orphans, Ordering::Relaxed);
    seg.charge_footprint(-orphans);
}

/// By how much the charge of a process is wrong.
#[derive(Clone, Copy)]
struct Correction {
    slot: &'static ProcSlot,
    pid: u32,
    pages: i64,
    pool_bytes: i64,
}

impl Correction {
    fn make(self) {
        let (seg, slot) = (state::seg(), self.slot);
        seg.charge_local(slot, self.pages);
        seg.charge_footprint(self.pages);
        seg.correct_pool(slot, self.pool_bytes);
        if slot.pid.load(Ordering::Relaxed) != self.pid {
            // It has ended meanwhile, and its charge was given back.
            seg.charge_local(slot, -self.pages);
            seg.charge_footprint(-self.pages);
            seg.correct_pool(slot, -self.pool_bytes);
            seg.note_native(slot, 0);
        }
    }
}

/// Pages that were evicted or discarded here, and that a relative still maps: nothing was freed, so
/// their charge stays until the shares are measured.
pub fn keep_charge(pages: i64) {
    DRIFT_PAGES.fetch_add(pages, Ordering::Relaxed);
    state::seg().charge_local(state::slot(), pages);
    state::seg().charge_footprint(pages);
}

/// The pool gives memory back, whole pages from `addr` on, and will uncharge it: what a relative maps of
/// it stays charged until the shares are measured.
pub fn keep_pool_charge(addr: usize, bytes: usize) {
    /// Pages whose entries are asked for at a time.
    const STEP: usize = 64 * PAGE_SIZE;
    let mut pages = 0;
    for at in (addr..addr + bytes).step_by(STEP) {
        let range = libc::iovec {
            iov_base: at as *mut _,
            iov_len: STEP.min(addr + bytes - at),
        };
        pages += smaps::shared_in(&[range]);
    }
    DRIFT_PAGES.fetch_add(pages, Ordering::Relaxed);
    state::seg().correct_pool(state::slot(), pages * PAGE_SIZE as i64);
}

/// Minor faults since the last call: the kernel's count of pages that it gave to writes.
fn copies_made() -> i64 {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    static OF_PID: AtomicU32 = AtomicU32::new(0);
    // Faults that our handler threads serve are retried, and counted then.
    let now = proc::minor_faults().saturating_sub(threads::SERVED.load(Ordering::Relaxed));
    let seen = SEEN.swap(now, Ordering::Relaxed);
    let pid = proc::pid();
    if OF_PID.swap(pid, Ordering::Relaxed) != pid {
        return 0;
    }
    now.saturating_sub(seen) as i64
}
