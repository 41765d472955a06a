//! The books of processes that share pages since a fork.
//!
//! A page that parent and child share is one page, and stays one until a side writes. Three rules keep
//! the tenant's sum from being less than the truth:
//! * the child begins with nothing charged: all that it has is its parent's;
//! * copies that writes make are charged by the kernel's count of minor faults (and a few that made
//!   none), every millisecond;
//! * a page that is evicted or discarded while a relative maps it stays charged, because nothing was
//!   freed ([`members::keep_charge`]); and of what an ended process had charged all stays that relatives may
//!   hold: the rest it gives back at its end ([`before_exit`]).
//!
//! The pool is charged in the same way: a child's is its parent's until one of them writes.
//!
//! So the sum drifts upwards, and now and then one process measures all of them together: each then
//! answers for its proportional share (Pss). One by one would not do: of two that share a page, the
//! first would give up its half before the second takes it.

use canvas_core::vm::ledger;
use canvas_shm::segment::shares;
use canvas_shm::{ProcSlot, Segment};
use canvas_sys::proc;
use canvas_types::layout::NODES_MAX;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::runtime::{state, state::PROCESS, upcalls};
use crate::tenant::{life, members, members::once_in, smaps, smaps::Unseen};

/// Pause between two looks at the copies made.
const LOOK_PAUSE_NS: u64 = 1_000_000;
/// Measured so often at most.
const PAUSE_MIN_NS: u64 = 10_000_000;
/// And so often at least.
const PAUSE_MAX_NS: u64 = 2_000_000_000;
/// A fork's child that has no slot yet would be missed: nobody measures so soon after a fork,
const FORK_SETTLES_NS: u64 = 5_000_000;
/// unless forks have followed each other for so long.
const FORKS_ON_NS: u64 = 20_000_000;

/// In a process that is about to fork: whoever measures shall wait until the child has its slot.
pub fn note_fork() {
    state::slot()
        .shares
        .store(shares::PARENT, Ordering::Relaxed);
    note_time();
}

fn note_time() {
    state::seg()
        .last_fork_ns
        .store(proc::now_ns(), Ordering::Relaxed);
}

/// In the parent.
pub fn forked() {
    // Only faults from here on count as copies.
    copies_made();
    note_time();
}

/// In the child, once it has its slot.
pub fn was_forked() {
    state::slot().shares.store(shares::CHILD, Ordering::Relaxed);
    forked();
}

/// In a process that ends now: the others need not wait until somebody finds it dead, and many short ones that wait
/// for that would be taken for memory. A large one keeps its charge until its memory is free.
pub fn before_exit() {
    /// Freed within a millisecond.
    const AT_ONCE_PAGES: i64 = 1024;
    // Not a vfork's child, whose memory is its parent's, nor where nobody else is there to wait: its other
    // threads run on until the kernel ends them, and would take what was given back.
    let is_alone = || members::live_slots().nth(1).is_none();
    if !PROCESS.is_vfork_child() && !is_alone() {
        let slot = state::slot();
        slot.ending.store(1, Ordering::Relaxed);
        state::seg().give_back_own(slot, AT_ONCE_PAGES);
    }
}

/// In the child, when all is in order: it needs a reclaim thread whether it faults or not. What it shares
/// is freed only when both sides give it up, and the copies that its writes make are to be counted.
pub fn child_ready() {
    if ledger::limit(state::seg()).is_some() {
        upcalls::start_reclaimer();
    }
}

/// The reclaim thread's look at shared memory. True when this process has relatives (and so is
/// measured with them, not by itself).
pub fn look(now: u64) -> bool {
    static LOOKED_NS: AtomicU64 = AtomicU64::new(0);
    /// Measurements in a row that a fork may spoil; the next one counts whatever is forked meanwhile.
    const SPOILT_MAX: u64 = 8;
    let seg = state::seg();
    let shares = PROCESS.has_forked();
    let orphans = seg.orphan_pages.load(Ordering::Relaxed) != 0
        || seg.orphan_pool_bytes.load(Ordering::Relaxed) != 0
        || orphans_on_nodes(seg).iter().any(|n| *n != 0);
    if !shares && !orphans {
        return false;
    }
    if shares && once_in(&LOOKED_NS, LOOK_PAUSE_NS, now) {
        members::keep_charge(copies_made());
    }
    // A twentieth of the time at most; a fifth while the books are known to be too high by far, and an eightieth
    // where nothing was kept that may be free.
    let took = seg.measure_took_ns.load(Ordering::Relaxed);
    let drift = PROCESS.drift_pages.load(Ordering::Relaxed);
    let is_much = |pages: i64, part| ledger::limit(state::seg()).is_some_and(|l| pages > l / part);
    let soon = orphans || is_much(drift, 16);
    let times = match (soon, drift) {
        (true, _) => 5,
        (false, 0) => 80,
        (false, _) => 20,
    };
    let pause_ns = (took * times).clamp(PAUSE_MIN_NS, PAUSE_MAX_NS);
    let last = seg.measured_ns.load(Ordering::Relaxed);
    // Where each process forks and ends within milliseconds, no quiet moment comes, and what the dead have left fills
    // the limit: then a measurement that misses a newborn is nearer to the truth than none.
    let any = is_much(seg.orphan_pages.load(Ordering::Relaxed), 8)
        || seg.measures_spoilt.load(Ordering::Relaxed) >= SPOILT_MAX;
    if now >= last + pause_ns
        && (any
            || now >= seg.last_fork_ns.load(Ordering::Relaxed) + FORK_SETTLES_NS
            || now >= last + FORKS_ON_NS)
        && let Some(_measuring) = Measuring::begin()
        && once_in(&seg.measured_ns, pause_ns, now)
    {
        // What it costs; where processors are busy it waits for one more often than not.
        let began = proc::thread_ns();
        let done = measure_all(any);
        let spent = proc::thread_ns() - began;
        if done {
            seg.measures_spoilt.store(0, Ordering::Relaxed);
            PROCESS.drift_pages.store(0, Ordering::Relaxed);
            seg.measure_took_ns.store(spent, Ordering::Relaxed);
        } else {
            seg.measures_spoilt.fetch_add(1, Ordering::Relaxed);
            let again = proc::now_ns() + (spent * 5).max(FORK_SETTLES_NS);
            seg.measured_ns
                .store(again.saturating_sub(pause_ns), Ordering::Relaxed);
        }
    }
    shares
}

/// This process measures all, and no other does.
struct Measuring;

impl Measuring {
    fn begin() -> Option<Measuring> {
        let measurer = &state::seg().measurer;
        let there = measurer.load(Ordering::Acquire);
        if there != 0 && (there == life::id() || !life::is_gone(there)) {
            return None;
        }
        measurer
            .compare_exchange(there, life::id(), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
            .then_some(Measuring)
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        state::seg().measurer.store(0, Ordering::Release);
    }
}

/// What the dead have left on each node.
fn orphans_on_nodes(seg: &Segment) -> [i64; NODES_MAX] {
    seg.nodes
        .each_ref()
        .map(|n| n.orphan_bytes.load(Ordering::Relaxed))
}

/// Measures all processes and corrects what they have charged. False when one was being forked or was ending: its
/// relatives would give up what is its, and nobody would have that charged. `any`: all the same.
fn measure_all(any: bool) -> bool {
    const LATER: usize = 64;
    let seg = state::seg();
    let newest = seg.identities.load(Ordering::Relaxed);
    let orphans = seg.orphan_pages.load(Ordering::Relaxed);
    let orphan_pool = seg.orphan_pool_bytes.load(Ordering::Relaxed);
    let (nodes, orphan_nodes) = (seg.nodes().len(), orphans_on_nodes(seg));
    // All at once: with one part of them made, the sum is off by pages that go from one to another.
    let mut later: [Option<Correction>; LATER] = [None; LATER];
    let mut n = 0;
    let mut all_seen = true;
    for slot in &seg.procs {
        let Some(id) = slot.identity() else { continue };
        if slot.ending.load(Ordering::Relaxed) != 0 {
            continue;
        }
        // While the kernel is asked, pages come and go: by what they change nobody is corrected.
        let charged_before = slot.charged_pages.load(Ordering::Relaxed);
        let pool_before = slot.pool_bytes.load(Ordering::Relaxed);
        let measured = match smaps::proportional(slot, nodes) {
            Ok(measured) => measured,
            Err(Unseen::None) if !any && !life::is_gone(id) => return false,
            Err(there) => {
                all_seen &= there != Unseen::Lives;
                continue;
            }
        };
        let share = measured.pages;
        slot.borrowed_pages
            .store((share - measured.own_pages).max(0), Ordering::Relaxed);
        slot.swapped_pages
            .store(measured.swapped_pages, Ordering::Relaxed);
        let booked =
            slot.resident_pages.load(Ordering::Relaxed) + slot.cached_pages.load(Ordering::Relaxed);
        let pages = beyond(
            share,
            charged_before,
            slot.charged_pages.load(Ordering::Relaxed),
        );
        seg.note_native(slot, (share - booked).max(0));
        let whole = slot.pool_whole_bytes.load(Ordering::Relaxed);
        let pool_now = slot.pool_bytes.load(Ordering::Relaxed);
        let pool_bytes = beyond(measured.of_pool(whole), pool_before, pool_now);
        let node_bytes = core::array::from_fn(|place| {
            let whole = slot.node_whole_bytes[place].load(Ordering::Relaxed);
            measured.of_node(place, whole) - slot.node_bytes[place].load(Ordering::Relaxed)
        });
        let correction = Correction {
            slot,
            id,
            pages,
            pool_bytes,
            node_bytes,
        };
        match later.get_mut(n) {
            Some(place) => *place = Some(correction),
            None => correction.make(),
        }
        n += 1;
    }
    let is_new = |s: &ProcSlot| {
        s.identity()
            .is_some_and(|id| id > newest && !life::is_gone(id))
    };
    if !any && n <= LATER && members::live_slots().any(is_new) {
        return false;
    }
    // Who gives up goes first: what goes from one to another is in the books once at any moment, and in their peaks.
    if all_seen {
        seg.orphan_pool_bytes
            .fetch_sub(orphan_pool, Ordering::Relaxed);
        seg.pool_bytes.fetch_sub(orphan_pool, Ordering::Relaxed);
        for (node, orphans) in seg.nodes.iter().zip(orphan_nodes) {
            if orphans != 0 {
                node.orphan_bytes.fetch_sub(orphans, Ordering::Relaxed);
                node.bytes.fetch_sub(orphans, Ordering::Relaxed);
            }
        }
        seg.orphan_pages.fetch_sub(orphans, Ordering::Relaxed);
        seg.local_pages.fetch_sub(orphans, Ordering::Relaxed);
        seg.charge_footprint(-orphans);
    }
    // Otherwise what the dead have left may be charged to who cannot be seen from here: who can will settle that.
    let corrections = || later.iter().flatten();
    for correction in corrections().filter(|c| c.pages < 0) {
        correction.make();
    }
    for correction in corrections().filter(|c| c.pages >= 0) {
        correction.make();
    }
    true
}

/// By how much a measured number lies outside of what the books said before and after it was measured.
fn beyond(measured: i64, before: i64, after: i64) -> i64 {
    measured - measured.clamp(before.min(after), before.max(after))
}

/// By how much the charge of a process is wrong.
#[derive(Clone, Copy)]
struct Correction {
    slot: &'static ProcSlot,
    id: u64,
    pages: i64,
    pool_bytes: i64,
    node_bytes: [i64; NODES_MAX],
}

impl Correction {
    fn make(&self) {
        let (seg, slot) = (state::seg(), self.slot);
        seg.charge_local(slot, self.pages);
        seg.charge_footprint(self.pages);
        seg.correct_pool(slot, self.pool_bytes);
        for (place, &bytes) in self.node_bytes.iter().enumerate() {
            seg.correct_node(slot, place, bytes);
        }
        if slot.id.load(Ordering::Relaxed) != self.id {
            // It has ended meanwhile, and its charge was given back.
            seg.charge_local(slot, -self.pages);
            seg.charge_footprint(-self.pages);
            seg.correct_pool(slot, -self.pool_bytes);
            for (place, &bytes) in self.node_bytes.iter().enumerate() {
                seg.correct_node(slot, place, -bytes);
            }
            seg.note_native(slot, 0);
        }
    }
}

/// Does what touches memory of canvas's own, which is not counted as local memory: its minor faults are no copies of the
/// program's pages.
pub fn without_copies<T>(touches: impl FnOnce() -> T) -> T {
    if !PROCESS.has_forked() {
        return touches();
    }
    let before = proc::minor_faults_of_thread();
    let out = touches();
    let faults = proc::minor_faults_of_thread().saturating_sub(before);
    PROCESS
        .faults_without_copy
        .fetch_add(faults, Ordering::Relaxed);
    out
}

/// Minor faults since the last call: the kernel's count of pages that it gave to writes.
fn copies_made() -> i64 {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    static OF_PID: AtomicU32 = AtomicU32::new(0);
    // Faults that our handler threads serve are retried, and counted then.
    let served = PROCESS.faults_without_copy.load(Ordering::Relaxed);
    let now = proc::minor_faults().wrapping_sub(served);
    let seen = SEEN.swap(now, Ordering::Relaxed);
    let pid = proc::pid();
    if OF_PID.swap(pid, Ordering::Relaxed) != pid {
        return 0;
    }
    // What was served after it was counted is taken back.
    now.wrapping_sub(seen) as i64
}
