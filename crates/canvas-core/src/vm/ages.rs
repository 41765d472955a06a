//! Publishes the ages of this process's pages to all processes of the tenant, and computes how much each must evict.
//!
//! Faults pay nothing for this: existing counters are read when a batch leaves, when the reclaim thread measures
//! memory, and once in [`STEP_PAGES`] pages that come in.

use canvas_shm::segment::PageAges;
use canvas_shm::{ProcSlot, Segment};
use core::sync::atomic::Ordering;

use super::floors::{live_slots, surplus};
use super::{Kernel, Process};
use crate::pager::ages::{Ages, Process as Aged, Tenant};

const _: () = assert!(canvas_shm::segment::GENERATIONS == crate::pager::ages::GENERATIONS);

/// Pages that may come in between two updates if none leave.
pub const STEP_PAGES: i64 = 256;
/// A process that was asked for pages and has given none for this long (it may be stopped) is not counted on.
const SILENT_MS: u64 = 100;

fn of<'a>(seg: &'a Segment, slot: &ProcSlot) -> &'a PageAges {
    &seg.page_ages[seg.index_of(slot)]
}

fn mine<V: Process>(vm: &V) -> &PageAges {
    of(vm.segment(), vm.slot())
}

fn read(at: &PageAges) -> Ages {
    Ages::decode(at.generations.iter().map(|g| g.load(Ordering::Relaxed)))
}

fn write(at: &PageAges, ages: &Ages) {
    for (g, new) in at.generations.iter().zip(ages.encode()) {
        if g.load(Ordering::Relaxed) != new {
            g.store(new, Ordering::Relaxed);
        }
    }
}

fn now_ms(vm: &impl Kernel) -> u64 {
    vm.now_ns() / 1_000_000
}

/// Updates the ages from what came in and was freed; `resident` pages are resident now.
pub fn update(vm: &(impl Kernel + Process), resident: i64) {
    record_evicted(vm, 0, resident);
}

/// As [`update`], when pages come in because the running program touches them.
pub fn update_growth(vm: &(impl Kernel + Process), resident: i64) {
    update(vm, resident);
    ran(vm);
}

/// Records that a batch of `n` pages left; `resident` pages are resident now.
pub fn record_evicted(vm: &(impl Kernel + Process), n: i64, resident: i64) {
    let at = mine(vm);
    let writer = &vm.state().ages_writer;
    let Some(_writer) = (0..32).find_map(|_| writer.try_lock()) else {
        return;
    };
    let mut ages = read(at);
    ages.update(resident + n, now_ms(vm));
    ages.record_evicted(n);
    write(at, &ages);
}

/// Records that the program runs.
pub fn ran(vm: &(impl Kernel + Process)) {
    mine(vm).ran_ms.store(now_ms(vm), Ordering::Relaxed);
}

/// Whether the program ran within the last second.
pub fn program_runs(vm: &impl Process, now_ns: u64) -> bool {
    const MOMENT_MS: u64 = 1000;
    let ran_ms = mine(vm).ran_ms.load(Ordering::Relaxed);
    now_ns / 1_000_000 < ran_ms.saturating_add(MOMENT_MS)
}

/// Copies the ages of `parent`'s pages to a fork's child.
pub fn inherit(vm: &(impl Kernel + Process), parent: &ProcSlot) {
    write(mine(vm), &read(of(vm.segment(), parent)));
    ran(vm);
}

/// The pages of all processes, by age, at one moment.
pub struct View<'a, V> {
    vm: &'a V,
    tenant: Tenant,
    now_ms: u64,
}

impl<'a, V: Kernel + Process> View<'a, V> {
    /// Reads the ages of all processes now.
    pub fn now(vm: &'a V) -> View<'a, V> {
        let now_ms = now_ms(vm);
        let all = live_slots(vm.segment()).map(|p| process(vm, p, now_ms));
        View {
            vm,
            tenant: Tenant::of(all, now_ms),
            now_ms,
        }
    }
    /// How many of the tenant's `over` excess pages process `p` must evict.
    pub fn part(&self, over: i64, p: &ProcSlot) -> i64 {
        self.tenant.part(over, &process(self.vm, p, self.now_ms))
    }
}

/// What reclaim could take from a process.
fn process(vm: &impl Process, p: &ProcSlot, now_ms: u64) -> Aged {
    let seg = vm.segment();
    let at = of(seg, p);
    let asked = at.asked_ms.load(Ordering::Relaxed);
    // This process's own threads reclaim when they fault, whatever its reclaim thread does.
    let is_me = core::ptr::eq(p, vm.slot());
    let is_silent = !is_me && asked != 0 && now_ms > asked + SILENT_MS;
    Aged {
        ages: read(at),
        ran_ms: at.ran_ms.load(Ordering::Relaxed),
        surplus: if is_silent { 0 } else { surplus(seg, p) },
        has_relatives: p.shares.load(Ordering::Relaxed) != 0,
    }
}

/// Records that another process waits for pages from `p`.
pub fn note_asked(vm: &(impl Kernel + Process), p: &ProcSlot) {
    let _ = of(vm.segment(), p).asked_ms.compare_exchange(
        0,
        now_ms(vm),
        Ordering::Relaxed,
        Ordering::Relaxed,
    );
}

/// Records that this process has given up some of the pages it was asked for, or has none to give. With `left` 0 nobody
/// waits any longer; otherwise the wait for `left` pages starts now.
pub fn note_answered(vm: &(impl Kernel + Process), left: u32) {
    let since = if left == 0 { 0 } else { now_ms(vm) };
    mine(vm).asked_ms.store(since, Ordering::Relaxed);
}
