//! Publishes the ages of this process's pages to all processes of the tenant, and computes how much each must evict.
//!
//! Faults pay nothing for this: existing counters are read when a batch leaves, when the reclaim thread measures
//! memory, and once in [`STEP_PAGES`] pages that come in.

use canvas_core::pager::ages::{Ages, Process, Tenant};
use canvas_shm::ProcSlot;
use canvas_shm::segment::PageAges;
use canvas_sys::proc;
use canvas_types::sync::RawSpin;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::base::{state, tenant::live_slots};

const _: () = assert!(canvas_shm::segment::GENERATIONS == canvas_core::pager::ages::GENERATIONS);

/// Pages that may come in between two updates if none leave.
pub const STEP_PAGES: i64 = 256;
/// A process that was asked for pages and has given none for this long (it may be stopped) is not counted on.
const SILENT_MS: u64 = 100;

/// Only ever try-locked: a thread killed in a vfork child may leave it locked. A later update catches up on skipped
/// ones.
static WRITER: RawSpin = RawSpin::new();

fn of(slot: &ProcSlot) -> &'static PageAges {
    let seg = state::seg();
    &seg.page_ages[seg.index_of(slot)]
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

fn now_ms() -> u64 {
    proc::now_ns() / 1_000_000
}

/// Updates the ages from what came in and was freed; `resident` pages are resident now.
pub fn look(resident: i64) {
    gave(0, resident);
}

/// Like [`look`], when pages come in because the running program touches them.
pub fn look_at_growth(resident: i64) {
    look(resident);
    of(state::slot()).ran_ms.store(now_ms(), Ordering::Relaxed);
}

/// Records that a batch of `n` pages left; `resident` pages are resident now.
pub fn gave(n: i64, resident: i64) {
    let at = of(state::slot());
    let Some(_writer) = (0..32).find_map(|_| WRITER.try_lock()) else {
        return;
    };
    let mut ages = read(at);
    ages.look(resident + n, now_ms());
    ages.gave(n);
    write(at, &ages);
}

/// The program's CPU time when it was last read.
static PROGRAM_NS: AtomicU64 = AtomicU64::new(0);

/// Lets the reclaim thread record whether the program runs.
pub fn look_at_program() {
    /// A program that uses less than this fraction of a CPU (1/32) counts as asleep: it may only serve timers or a
    /// watcher.
    const AWAKE: u64 = 32;
    static LOOKED_NS: AtomicU64 = AtomicU64::new(0);
    let now = proc::now_ns();
    // The reclaim thread's own CPU time is not the program's. Read it first, or the difference could seem to go down.
    let ours = proc::thread_ns();
    let program = proc::process_ns().saturating_sub(ours);
    let elapsed = now.saturating_sub(LOOKED_NS.swap(now, Ordering::Relaxed));
    let ran = program.saturating_sub(PROGRAM_NS.swap(program, Ordering::Relaxed));
    if ran > elapsed / AWAKE {
        of(state::slot())
            .ran_ms
            .store(now / 1_000_000, Ordering::Relaxed);
    }
}

/// Whether the program ran within the last second.
pub fn program_runs(now_ns: u64) -> bool {
    const MOMENT_MS: u64 = 1000;
    let ran_ms = of(state::slot()).ran_ms.load(Ordering::Relaxed);
    now_ns / 1_000_000 < ran_ms.saturating_add(MOMENT_MS)
}

/// Copies the ages of `parent`'s pages to a fork's child.
pub fn inherit(parent: &ProcSlot) {
    let (from, to) = (of(parent), of(state::slot()));
    write(to, &read(from));
    PROGRAM_NS.store(0, Ordering::Relaxed);
    to.ran_ms.store(now_ms(), Ordering::Relaxed);
}

/// Pages of a process beyond its floor.
type Surplus = fn(&ProcSlot) -> i64;

/// What reclaim could take from a process.
fn process(p: &ProcSlot, surplus: Surplus, now_ms: u64) -> Process {
    let at = of(p);
    let asked = at.asked_ms.load(Ordering::Relaxed);
    // This process's own threads reclaim when they fault, whatever its reclaim thread does.
    let is_me = core::ptr::eq(p, state::slot());
    let is_silent = !is_me && asked != 0 && now_ms > asked + SILENT_MS;
    Process {
        ages: read(at),
        ran_ms: at.ran_ms.load(Ordering::Relaxed),
        surplus: if is_silent { 0 } else { surplus(p) },
        has_relatives: p.shares.load(Ordering::Relaxed) != 0,
    }
}

/// The pages of all processes, by age, at one moment.
pub struct View {
    tenant: Tenant,
    surplus: Surplus,
    now_ms: u64,
}

impl View {
    pub fn now(surplus: Surplus) -> View {
        let now_ms = now_ms();
        let all = live_slots().map(|p| process(p, surplus, now_ms));
        View {
            tenant: Tenant::of(all, now_ms),
            surplus,
            now_ms,
        }
    }
    /// How many of the tenant's `over` excess pages process `p` must evict.
    pub fn part(&self, over: i64, p: &ProcSlot) -> i64 {
        self.tenant
            .part(over, &process(p, self.surplus, self.now_ms))
    }
}

/// Records that another process waits for pages from `p`.
pub fn note_asked(p: &ProcSlot) {
    let _ = of(p)
        .asked_ms
        .compare_exchange(0, now_ms(), Ordering::Relaxed, Ordering::Relaxed);
}

/// Records that this process has given up some of the pages it was asked for, or has none to give. With `left` 0 nobody
/// waits any longer; otherwise the wait for `left` pages starts now.
pub fn note_answered(left: u32) {
    let since = if left == 0 { 0 } else { now_ms() };
    of(state::slot()).asked_ms.store(since, Ordering::Relaxed);
}
