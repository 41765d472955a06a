//! How old this process's pages are, as all processes of the tenant can read it; what each gives by that.
//!
//! Faults cost nothing for it: what is counted anyhow is looked at when a batch leaves, when the reclaim thread
//! looks at memory, and once in [`STEP_PAGES`] pages that come in.

use canvas_pager::ages::{Ages, Process, Tenant};
use canvas_shm::ProcSlot;
use canvas_shm::segment::PageAges;
use canvas_sys::proc;
use canvas_types::sync::RawSpin;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::base::{state, tenant::live_slots};

const _: () = assert!(canvas_shm::segment::GENERATIONS == canvas_pager::ages::GENERATIONS);

/// Pages that come in between two looks at most, as far as none leave.
pub const STEP_PAGES: i64 = 256;
/// A process that was asked and gives nothing for so long (it is stopped) is not counted on.
const SILENT_MS: u64 = 100;

/// Only tried: who is killed in a vfork child may leave it taken. What a look misses the next one sees.
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

/// Looks at what came in and was freed; `resident` pages are there now.
pub fn look(resident: i64) {
    gave(0, resident);
}

/// The same where pages are coming in, which the running program asks for.
pub fn look_at_growth(resident: i64) {
    look(resident);
    of(state::slot()).ran_ms.store(now_ms(), Ordering::Relaxed);
}

/// A batch of `n` pages has left; `resident` are there now.
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

/// What the program had used of processors when that was last looked at.
static PROGRAM_NS: AtomicU64 = AtomicU64::new(0);

/// The reclaim thread's look at whether the program runs.
pub fn look_at_program() {
    /// Below this part of the time it counts as asleep: timers, and what watches it.
    const AWAKE: u64 = 32;
    static LOOKED_NS: AtomicU64 = AtomicU64::new(0);
    let now = proc::now_ns();
    // The reclaim thread's own time is not the program's. Read first, or it might seem to be less than before.
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

/// Did the program run a moment ago?
pub fn program_runs(now_ns: u64) -> bool {
    /// So long.
    const MOMENT_MS: u64 = 1000;
    let ran_ms = of(state::slot()).ran_ms.load(Ordering::Relaxed);
    now_ns / 1_000_000 < ran_ms.saturating_add(MOMENT_MS)
}

/// In a fork's child: its pages are as old as its parent's, whose slot that was.
pub fn inherit(parent: &ProcSlot) {
    let (from, to) = (of(parent), of(state::slot()));
    write(to, &read(from));
    PROGRAM_NS.store(0, Ordering::Relaxed);
    to.ran_ms.store(now_ms(), Ordering::Relaxed);
}

/// Pages of a process beyond its floor.
type Surplus = fn(&ProcSlot) -> i64;

/// What reclaim could take of a process.
fn process(p: &ProcSlot, surplus: Surplus, now_ms: u64) -> Process {
    let at = of(p);
    let asked = at.asked_ms.load(Ordering::Relaxed);
    // Threads that fault reclaim by themselves, whatever the reclaim thread does.
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
    /// Now.
    pub fn now(surplus: Surplus) -> View {
        let now_ms = now_ms();
        let all = live_slots().map(|p| process(p, surplus, now_ms));
        View {
            tenant: Tenant::of(all, now_ms),
            surplus,
            now_ms,
        }
    }
    /// What a process gives of `over` pages that the tenant has too much.
    pub fn part(&self, over: i64, p: &ProcSlot) -> i64 {
        self.tenant
            .part(over, &process(p, self.surplus, self.now_ms))
    }
}

/// Others wait for what they asked of `p`.
pub fn note_asked(p: &ProcSlot) {
    let _ = of(p)
        .asked_ms
        .compare_exchange(0, now_ms(), Ordering::Relaxed, Ordering::Relaxed);
}

/// This process gave something of what it was asked for, or has nothing to give: nobody waits any more, or
/// waits anew for `left` pages.
pub fn note_answered(left: u32) {
    let since = if left == 0 { 0 } else { now_ms() };
    of(state::slot()).asked_ms.store(since, Ordering::Relaxed);
}
