//! When the reclaim thread sleeps, and charges for memory outside of the managed range, which this process measures
//! ([`canvas_core::vm::ledger`] charges pages).

use canvas_core::vm::{ages, ledger};
use canvas_shm::ProcSlot;
use canvas_shm::lend::Stage;
use canvas_sys::proc;
use canvas_types::{PAGE_SIZE, procfs};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::own_memory::own;
use crate::paging::{cache, fork_accounting};
use crate::runtime::{state, state::PROCESS, upcalls};
use crate::tenant::{
    members,
    members::{live_slots, once_in},
};

state! {
    static ACCOUNTS: Accounts {
        /// True while the reclaim thread sleeps and may be woken.
        asleep: AtomicBool = AtomicBool::new(false),
        /// When native memory was last measured.
        measured_ns: AtomicU64 = AtomicU64::new(0),
        /// When canvas's own memory was last counted.
        counted_ns: AtomicU64 = AtomicU64::new(0),
        /// The program's CPU time when it was last read, and when that was.
        program_ns: AtomicU64 = AtomicU64::new(0),
        program_read_ns: AtomicU64 = AtomicU64::new(0),
    }
}

/// Copies the ages of `parent`'s pages to a fork's child.
pub fn inherit_ages(parent: &ProcSlot) {
    ages::inherit(&PROCESS, parent);
    ACCOUNTS.program_ns.store(0, Ordering::Relaxed);
}

/// Resets the accounting in a fork's child. `resident` pages of its managed range are resident, all shared with the
/// parent.
pub fn after_fork_in_child(resident: i64) {
    PROCESS.pager.after_fork_in_child(resident);
    PROCESS.reclaimer.store(0, Ordering::Relaxed);
    ACCOUNTS.asleep.store(false, Ordering::Relaxed);
    ACCOUNTS.counted_ns.store(0, Ordering::Relaxed);
    state::slot()
        .resident_pages
        .fetch_add(resident, Ordering::Relaxed);
}

/// Pause between two measurements of native memory.
const LOOK_PAUSE_NS: u64 = 5_000_000;

/// Starts the reclaim thread, unless it runs.
pub fn start_reclaimer() {
    if PROCESS.reclaimer.load(Ordering::Relaxed) == 0 {
        upcalls::start_reclaimer();
    }
}

/// Wakes the reclaim thread or, after a fork, starts one.
#[inline]
pub fn wake_reclaimer() {
    if ACCOUNTS.asleep.load(Ordering::Relaxed) && ACCOUNTS.asleep.swap(false, Ordering::AcqRel) {
        members::wake(state::slot());
    } else {
        start_reclaimer();
    }
}

fn is_asked_to_lend() -> bool {
    let request = state::slot().lend.request();
    request.is_some_and(|r| r.stage() == Stage::Posted)
}

/// Puts the reclaim thread to sleep until it is woken or `timeout_ns` has passed. `arrived`: whether something came that
/// the thread has not seen.
pub fn sleep_until_woken(timeout_ns: u64, arrived: impl Fn() -> bool) {
    let slot = state::slot();
    let seen = slot.wake.load(Ordering::Acquire);
    ACCOUNTS.asleep.store(true, Ordering::Release);
    // A wake-up since the check of the limit has either changed `wake` already or will see `asleep`.
    let asked = slot.reclaim_wanted.load(Ordering::Relaxed) != 0
        || slot.offload_wanted.load(Ordering::Relaxed) != 0
        || slot.pool_wanted_bytes.load(Ordering::Relaxed) > 0
        || is_asked_to_lend()
        || arrived();
    if !asked && !ledger::short_of_room(&PROCESS) {
        proc::futex_wait(&slot.wake, seen, timeout_ns);
    }
    ACCOUNTS.asleep.store(false, Ordering::Release);
}

/// Puts the reclaim thread to sleep when it found nothing to evict although the tenant is short: until it is asked for
/// pages or `ns` has passed.
pub fn nap(ns: u64) {
    let slot = state::slot();
    let seen = slot.wake.load(Ordering::Acquire);
    if slot.reclaim_wanted.load(Ordering::Relaxed) == 0
        && slot.pool_wanted_bytes.load(Ordering::Relaxed) <= 0
    {
        proc::futex_wait(&slot.wake, seen, ns);
    } else {
        proc::sleep_ns(ns.min(1_000_000));
    }
}

/// How long the reclaim thread may sleep before it measures native memory again: 5 ms when the limit is near (1 ms
/// while a forked program runs, whose writes copy pages that relatives share), else 100 ms.
pub fn idle_ns() -> u64 {
    let seg = state::seg();
    let near = ledger::limit(seg).is_some_and(|l| ledger::charged(&PROCESS) > l / 2);
    match near {
        true if PROCESS.has_forked() && ages::program_runs(&PROCESS, proc::now_ns()) => 1_000_000,
        true => 5_000_000,
        false => 100_000_000,
    }
}

/// Sets the swap cache's bound: to `fixed`, or from the local limit: 32 MiB at first; at most a sixteenth of the local
/// memory that this process has or may have; at least 32 pages.
pub fn size_cache(fixed: Option<usize>) {
    if let Some(pages) = fixed {
        return cache::set_capacity(pages);
    }
    let seg = state::seg();
    let want = (seg.config.swap_cache_bytes.load(Ordering::Relaxed) / 4096) as i64;
    let room = ledger::limit(seg).unwrap_or(0) - seg.native_pages.load(Ordering::Relaxed);
    let level = seg.floor_level_pages.load(Ordering::Relaxed);
    let held = match PROCESS.has_forked() {
        true => held_for_all(),
        false => state::slot().held_pages(),
    };
    let ours = room.min(held.max(level));
    cache::set_capacity(want.min(ours / 16).max(32) as usize);
}

/// This process's share of pages that relatives also hold, such that the shares of all processes add up to what is
/// resident: what it has charged or, until that is measured after a fork, at most an equal part.
fn held_for_all() -> i64 {
    let (seg, me) = (state::seg(), state::slot());
    let all: i64 = live_slots().map(ProcSlot::held_pages).sum();
    let there = seg.local_pages.load(Ordering::Relaxed).max(0);
    let part = i128::from(me.held_pages()) * i128::from(there) / i128::from(all.max(there).max(1));
    me.charged_pages.load(Ordering::Relaxed).min(part as i64)
}

/// Measures this process's anonymous memory and charges what lies outside the managed range: stacks, libraries' data,
/// small mappings, canvas's own tables. Runs at most every 5 ms.
pub fn measure_native() {
    let now = proc::now_ns();
    look_at_metadata(now);
    if fork_accounting::look(now) {
        return;
    }
    if !once_in(&ACCOUNTS.measured_ns, LOOK_PAUSE_NS, now) {
        return;
    }
    let Some((anon, swapped)) = anonymous_pages() else {
        return;
    };
    let slot = state::slot();
    slot.swapped_pages.store(swapped, Ordering::Relaxed);
    let booked = PROCESS.pager.resident_pages.load(Ordering::Relaxed)
        + slot.cached_pages.load(Ordering::Relaxed);
    let native = (anon - booked - crate::far_tier::pool::charged_pages()).max(0);
    state::seg().charge_native(slot, native - slot.native_pages.load(Ordering::Relaxed));
}

/// Anonymous memory of this process from /proc/self/status, in pages: resident, and in the host's swap.
pub fn anonymous_pages() -> Option<(i64, i64)> {
    let mut buf = [0u8; 3072];
    let n = proc::read_file(c"/proc/self/status", &mut buf).ok()?;
    let pages = |name| {
        let bytes = procfs::memory_bytes(&buf[..n], name)?;
        Some((bytes / PAGE_SIZE as u64) as i64)
    };
    // Kernels without swap have no VmSwap line.
    Some((pages("RssAnon")?, pages("VmSwap").unwrap_or(0)))
}

/// Publishes how much native memory canvas itself uses in this process: at start, then once a second.
fn look_at_metadata(now: u64) {
    const PAUSE_NS: u64 = 1_000_000_000;
    if once_in(&ACCOUNTS.counted_ns, PAUSE_NS, now) {
        let pages = own::resident_pages().unwrap_or(ProcSlot::UNKNOWN);
        state::slot().metadata_pages.store(pages, Ordering::Relaxed);
    }
}

/// Lets the reclaim thread update page ages from what came in and was freed, and record whether the program runs.
pub fn look_at_ages() {
    ages::update(
        &PROCESS,
        PROCESS.pager.resident_pages.load(Ordering::Relaxed),
    );
    look_at_program();
}

/// Records whether the program runs.
fn look_at_program() {
    /// A program that uses less than this fraction of a CPU (1/32) counts as asleep: it may only serve timers or a
    /// watcher.
    const AWAKE: u64 = 32;
    let now = proc::now_ns();
    // The reclaim thread's own CPU time is not the program's. Read it first, or the difference could seem to go down.
    let ours = proc::thread_ns();
    let program = proc::process_ns().saturating_sub(ours);
    let elapsed = now.saturating_sub(ACCOUNTS.program_read_ns.swap(now, Ordering::Relaxed));
    let ran = program.saturating_sub(ACCOUNTS.program_ns.swap(program, Ordering::Relaxed));
    if ran > elapsed / AWAKE {
        ages::ran(&PROCESS);
    }
}

/// Charges an expected change of native memory (such as a new thread's stacks; negative: memory that has just left)
/// ahead of the next measurement, which corrects it.
pub fn expect_native(pages: i64) {
    state::seg().charge_native(state::slot(), pages);
    if ledger::short_of_room(&PROCESS) {
        wake_reclaimer();
    }
}

/// Makes the reclaim thread measure at once: resets its timer and wakes it.
pub fn measure_soon() {
    if !PROCESS.has_forked() {
        ACCOUNTS.measured_ns.store(0, Ordering::Relaxed);
    }
    wake_reclaimer();
}
