//! Charges local memory and keeps the tenant's total under its limit.

use canvas_core::pager::floor::{self, Demand, LEAST_PAGES};
use canvas_core::pager::headroom::Headroom;
use canvas_core::pager::native;
use canvas_shm::lend::Stage;
use canvas_shm::slow::Cause;
use canvas_shm::{Counter, ProcSlot};
use canvas_sys::gate;
use canvas_sys::proc;
use canvas_types::{PAGE_SIZE, procfs};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::base::{
    held, own, slow, state, tenant,
    tenant::{live_slots, take_turn},
    upcalls,
};
use crate::far_tier::tier;
use crate::paging::{ages, cache, fork_accounting, hints, in_line, learn, reclaim};

/// Resident pages of the managed range, as the kernel counts them; compared with measured anonymous memory. Updated
/// together with the charge.
static RESIDENT: AtomicI64 = AtomicI64::new(0);
/// True while the reclaim thread sleeps and may be woken.
static ASLEEP: AtomicBool = AtomicBool::new(false);
/// Nonzero once this process has a reclaim thread.
pub static RECLAIMER: AtomicU32 = AtomicU32::new(0);
static LAST_MEASURE_NS: AtomicU64 = AtomicU64::new(0);
/// When canvas's own memory was last counted.
static METADATA_NS: AtomicU64 = AtomicU64::new(0);
/// Pause between two measurements of native memory.
const LOOK_PAUSE_NS: u64 = 5_000_000;

/// The configured limit less a margin for native memory that grows between two measurements: 1/32 of the limit, clamped
/// to 1 to 4 MiB, and at most a quarter of the limit.
fn asked() -> Option<i64> {
    let l = state::seg().local_limit_pages()?;
    Some(l - (l / 32).clamp(256, 1024).min(l / 4))
}

/// The limit that is enforced: the configured limit, or native memory plus the processes' floors if that is more. Below
/// that no program makes progress, so enforcing less would gain nothing.
pub fn limit() -> Option<i64> {
    let seg = state::seg();
    let floors = seg.floor_pages.load(Ordering::Relaxed).max(LEAST_PAGES);
    asked().map(|l| l.max(seg.native_pages.load(Ordering::Relaxed) + floors))
}

static HEADROOM: Headroom = Headroom::new();

/// Pages below the limit at which background reclaim starts, and at which it stops. Computed from the room that native
/// memory leaves under the limit.
pub fn gaps(limit: i64) -> (i64, i64) {
    let room = limit - state::seg().native_pages.load(Ordering::Relaxed);
    if in_line::is_on() {
        HEADROOM.marks_in_line(room)
    } else {
        HEADROOM.marks(room)
    }
}

/// Lets the reclaim thread check whether it works far enough ahead of demand.
pub fn look_at_headroom(now: u64) {
    HEADROOM.look(now);
}

/// Pages that a process holds beyond its floor.
fn surplus(p: &ProcSlot) -> i64 {
    p.held_pages() - floor_of(p)
}

fn demand_of(p: &ProcSlot) -> i64 {
    let demand = p.demand_pages.load(Ordering::Relaxed).max(LEAST_PAGES);
    demand.min(p.held_pages())
}

fn floor_of(p: &ProcSlot) -> i64 {
    let level = state::seg().floor_level_pages.load(Ordering::Relaxed);
    demand_of(p).min(level.max(LEAST_PAGES))
}

/// Records how much memory this process wants to keep, and divides the tenant's room among its processes. Any thread
/// may call this; each of the two steps runs at most once per [`floor::LOOK_NS`].
pub fn divide_room(now: u64) {
    static LOOKED_NS: AtomicU64 = AtomicU64::new(0);
    static SEEN: AtomicU64 = AtomicU64::new(0);
    static QUIET_NS: AtomicU64 = AtomicU64::new(0);
    let (seg, me) = (state::seg(), state::slot());
    let Some(asked) = asked() else { return };
    let looked = LOOKED_NS.load(Ordering::Relaxed);
    if now >= looked + floor::LOOK_NS && take_turn(&LOOKED_NS, looked, now) {
        let came_back = me.came_back.load(Ordering::Relaxed);
        // The counter of a new process slot starts from 0 again.
        let since = came_back.saturating_sub(SEEN.swap(came_back, Ordering::Relaxed));
        let demand = Demand {
            pages: me.demand_pages.load(Ordering::Relaxed).max(LEAST_PAGES),
            quiet_ns: QUIET_NS.load(Ordering::Relaxed),
        };
        let next = demand.next(since, now - looked, me.held_pages());
        me.demand_pages.store(next.pages, Ordering::Relaxed);
        QUIET_NS.store(next.quiet_ns, Ordering::Relaxed);
    }
    let divided = seg.divided_ns.load(Ordering::Relaxed);
    if now < divided + floor::LOOK_NS || !take_turn(&seg.divided_ns, divided, now) {
        return;
    }
    let room = asked - seg.native_pages.load(Ordering::Relaxed) - held::pages();
    let demands = live_slots().map(demand_of);
    // Try to leave the background reclaim's headroom free as well.
    let ahead = gaps(asked).1;
    let mut division = floor::divide(room - ahead, demands.clone());
    if division.short > 0 && division.short <= ahead {
        division = floor::divide(room, demands);
    }
    seg.floor_level_pages
        .store(division.level, Ordering::Relaxed);
    seg.floor_pages.store(division.floors, Ordering::Relaxed);
    let needed = match division.short {
        0 => 0,
        // The margin kept for native memory grows with the limit.
        short => seg.local_limit_pages().unwrap_or(0) + short + short / 31 + 1,
    };
    let wants_more =
        |p: &ProcSlot| p.demand_pages.load(Ordering::Relaxed) > p.held_pages().max(LEAST_PAGES);
    let in_the_way = native::is_in_the_way(
        division.short,
        seg.native_pages.load(Ordering::Relaxed),
        asked,
        live_slots().any(wants_more),
    );
    seg.native_in_the_way
        .store(in_the_way.into(), Ordering::Relaxed);
    seg.needed_pages.store(needed, Ordering::Relaxed);
    seg.needed_pages_peak.fetch_max(needed, Ordering::Relaxed);
}

/// Records that `n` pages became resident (negative: stopped being resident). The caller charges them separately.
#[inline]
pub fn note_resident(n: i64) {
    let before = RESIDENT.fetch_add(n, Ordering::Relaxed);
    state::slot().resident_pages.fetch_add(n, Ordering::Relaxed);
    if before / ages::STEP_PAGES < (before + n) / ages::STEP_PAGES {
        note_growth(before + n);
    }
}

/// A process with this many resident pages (2 MiB) has a reclaim thread, so that other processes can ask it for pages.
const ASKED_FROM_PAGES: i64 = 512;

#[cold]
fn note_growth(resident: i64) {
    ages::look_at_growth(resident);
    if resident >= ASKED_FROM_PAGES && RECLAIMER.load(Ordering::Relaxed) == 0 && asked().is_some() {
        upcalls::start_reclaimer();
    }
}

/// Records that a batch of `n` pages was evicted.
pub fn note_gave(n: i64) {
    note_resident(-n);
    ages::gave(n, RESIDENT.load(Ordering::Relaxed));
}

/// Lets the reclaim thread update page ages from what came in and was freed, and record whether the program runs.
pub fn look_at_ages() {
    ages::look(RESIDENT.load(Ordering::Relaxed));
    ages::look_at_program();
}

/// Charges `n` pages of local memory, reclaiming if the limit requires it. Returns false, and charges nothing, if no
/// room can be made.
#[inline]
pub fn charge(n: i64) -> bool {
    let seg = state::seg();
    let used = seg.charge_local(state::slot(), n);
    let Some(limit) = limit() else {
        seg.note_local_peak(used);
        return true;
    };
    let (low, _) = gaps(limit);
    if used > limit - low {
        make_room();
        if used > limit {
            HEADROOM.used_up();
            if !charge_slow(n) {
                return false;
            }
        }
    }
    seg.note_local_peak(seg.local_pages.load(Ordering::Relaxed));
    true
}

/// The tenant may exceed its limit by this much (4 MiB) for a moment.
const OVERSHOOT_PAGES: i64 = 900;
/// Up to this much over the limit (2 MiB), a thread does not wait for other processes to give up pages.
const SLACK_PAGES: i64 = 512;
/// How often a thread polls, 100 us apart, for other processes to give up pages; if none does, it does not wait again
/// for `SILENT_NS`.
const LOOKS_MAX: u32 = 20;
/// Polls per charge when this process gives up its own pages, too, but relatives grow faster than they are measured.
const RUNAWAY_LOOKS_MAX: u32 = 5;
const SILENT_NS: u64 = 100_000_000;

/// Direct reclaim past the hard limit: evicts the tenant's oldest pages, ignoring floors. This thread evicts those that
/// belong to its own process and asks other processes to evict theirs in the background. If they do not within a few
/// milliseconds, this process gives up whatever it has beyond its floor. If no process has anything to give up, the
/// program continues over its limit, unless far memory is full as well.
#[cold]
fn charge_slow(n: i64) -> bool {
    /// Until this time, threads do not wait for other processes: they gave nothing when last asked.
    static SILENT_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
    let (seg, me) = (state::seg(), state::slot());
    let begun = proc::now_ns();
    divide_room(begun);
    let (mut fruitless, mut looks, mut got) = (0u32, 0u32, 0i64);
    let mut over_at_first = None;
    // Evict this process's pages regardless of their age.
    let mut ours_too = begun < SILENT_UNTIL_NS.load(Ordering::Relaxed);
    let ok = loop {
        let Some(limit) = limit() else {
            break true;
        };
        let over = seg.local_pages.load(Ordering::Relaxed) - limit;
        // This thread has evicted more than it needs: the rest is left to other threads and the background. Relatives
        // of a fork must go on, because a shared page is freed only when more than one of them evicts it.
        let enough = got >= (2 * n).max(64)
            && (over <= SLACK_PAGES || !state::FORKED.load(Ordering::Relaxed));
        if over <= 0 || enough {
            break true;
        }
        let over_at_first = *over_at_first.get_or_insert(over);
        let full = seg.far_full.load(Ordering::Relaxed) != 0 || tier::is_closed();
        let gives = if fruitless >= 3 {
            0
        } else if ours_too || full {
            surplus(me)
        } else if over <= SLACK_PAGES && others_are_older(begun) {
            break true;
        } else {
            own_part(over, begun)
        };
        if gives > 0 {
            let wanted = (over + 8).min(gives).clamp(16, 64) as u32;
            let done = slow::during(Cause::DirectReclaim, || {
                reclaim::run(wanted, reclaim::Whose::Direct)
            });
            if done > 0 {
                fruitless = 0;
                got += i64::from(done);
                continue;
            }
        }
        // All pages of this process are busy, pinned, gone, or younger than what other processes have.
        fruitless += u32::from(gives > 0 || ours_too || full);
        let others = ask_oldest(over, true);
        if full {
            // Use the promised overshoot before ending the program.
            if over <= OVERSHOOT_PAGES {
                break true;
            }
            // All remaining pages are dirty: they can be evicted once far memory accepts pages again.
            if fruitless > 100 && !tier::may_open() {
                break false;
            }
            slow::during(Cause::PoolFull, || gate::wait(1_000_000));
            if fruitless % 8 == 0 {
                reclaim::run(16, reclaim::Whose::Direct);
            }
            continue;
        }
        let ours = gives > 0 && fruitless < 3;
        // Pages that relatives copy on write are charged only when they are measured, which takes time. If the tenant
        // is far past its limit and some process can give up pages, delay each fault a little.
        let runaway = state::FORKED.load(Ordering::Relaxed)
            && over > limit / 4
            && (others || surplus(me) > 0);
        if !ours && !runaway && (!others || over <= SLACK_PAGES || ours_too) {
            if !ours_too && !others && surplus(me) > 0 && fruitless == 0 {
                ours_too = true;
                continue;
            }
            break true;
        }
        looks += 1;
        let looks_max = match ours_too {
            true => RUNAWAY_LOOKS_MAX,
            false => LOOKS_MAX,
        };
        if looks > looks_max {
            if !ours_too && over < over_at_first {
                // Other processes are giving up pages.
                break true;
            }
            SILENT_UNTIL_NS.store(proc::now_ns() + SILENT_NS, Ordering::Relaxed);
            if ours_too || surplus(me) <= 0 {
                break true;
            }
            (ours_too, looks, fruitless) = (true, 0, 0);
            continue;
        }
        slow::during(Cause::OtherProcesses, || gate::wait(100_000));
    };
    state::count(Counter::StallNs, proc::now_ns() - begun);
    if !ok {
        seg.charge_local(me, -n);
    }
    ok
}

/// Until this time, all pages to evict belong to other processes.
static OTHERS_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

fn others_are_older(now: u64) -> bool {
    now < OTHERS_UNTIL_NS.load(Ordering::Relaxed)
}

/// How many of `over` pages this process must evict by age. A result of 0 is reused for a moment.
fn own_part(over: i64, now: u64) -> i64 {
    const MOMENT_NS: u64 = 200_000;
    let part = ages::View::now(surplus).part(over, state::slot());
    if part == 0 {
        OTHERS_UNTIL_NS.store(now + MOMENT_NS, Ordering::Relaxed);
    }
    part
}

/// Uncharges `n` pages of local memory.
#[inline]
pub fn uncharge(n: i64) {
    state::seg().charge_local(state::slot(), -n);
}

/// Asks another process to evict its part of the tenant's excess.
pub fn ask_for_rest() {
    let Some(limit) = limit() else { return };
    let over = state::seg().local_pages.load(Ordering::Relaxed) - (limit - gaps(limit).1);
    if over > 0 {
        ask_oldest(over, false);
    }
}

/// Asks the process with the largest part (by age) of `over` pages to evict it. If none has a part and `any` is set,
/// asks the process with most beyond its floor. Returns false if there is no process to ask.
fn ask_oldest(over: i64, any: bool) -> bool {
    let me = state::slot();
    let others = || live_slots().filter(|p| !core::ptr::eq(*p, me));
    if others().next().is_none() {
        return false;
    }
    let view = ages::View::now(surplus);
    let largest = |pages: &dyn Fn(&ProcSlot) -> i64| {
        others()
            .map(|p| (p, pages(p)))
            .max_by_key(|(_, pages)| *pages)
            .filter(|(_, pages)| *pages > 0)
    };
    let by_age = largest(&|p| view.part(over, p));
    let Some((p, pages)) = by_age.or_else(|| if any { largest(&surplus) } else { None }) else {
        return false;
    };
    if tenant::release_gone(|s| core::ptr::eq(s, p)) {
        return true;
    }
    let pages = over.clamp(1, 1024).min(pages) as u32;
    ages::note_asked(p);
    if p.reclaim_wanted.fetch_max(pages, Ordering::Relaxed) == 0 {
        tenant::wake(p);
    }
    true
}

/// Frees some pages past the background mark, by direct reclaim or by waking the reclaim thread.
#[cold]
pub fn make_room() {
    if !in_line::reclaim() {
        wake_reclaimer();
    }
}

/// Wakes the reclaim thread or, after a fork, starts one.
#[inline]
pub fn wake_reclaimer() {
    if ASLEEP.load(Ordering::Relaxed) && ASLEEP.swap(false, Ordering::AcqRel) {
        let slot = state::slot();
        tenant::wake(slot);
    } else if RECLAIMER.load(Ordering::Relaxed) == 0 {
        upcalls::start_reclaimer();
    }
}

fn is_asked_to_lend() -> bool {
    let request = state::slot().lend.request();
    request.is_some_and(|r| r.stage() == Stage::Posted)
}

/// Puts the reclaim thread to sleep until it is woken or `timeout_ns` has passed.
pub fn sleep_until_woken(timeout_ns: u64) {
    let slot = state::slot();
    let seen = slot.wake.load(Ordering::Acquire);
    ASLEEP.store(true, Ordering::Release);
    // A wake-up since the check of the limit has either changed `wake` already or will see ASLEEP.
    let asked = slot.reclaim_wanted.load(Ordering::Relaxed) != 0
        || slot.offload_wanted.load(Ordering::Relaxed) != 0
        || slot.pool_wanted_bytes.load(Ordering::Relaxed) > 0
        || is_asked_to_lend()
        || hints::arrived()
        || learn::arrived();
    if !asked && !short_of_room() {
        proc::futex_wait(&slot.wake, seen, timeout_ns);
    }
    ASLEEP.store(false, Ordering::Release);
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

/// Whether the tenant is past its limit.
pub fn is_past_limit() -> bool {
    limit().is_some_and(|l| state::seg().local_pages.load(Ordering::Relaxed) > l)
}

/// Whether the tenant is above the mark at which background reclaim starts.
pub fn short_of_room() -> bool {
    let seg = state::seg();
    limit().is_some_and(|l| seg.local_pages.load(Ordering::Relaxed) > l - gaps(l).0)
}

/// How long the reclaim thread may sleep before it measures native memory again: 5 ms when the limit is near (1 ms
/// while a forked program runs, whose writes copy pages that relatives share), else 100 ms.
pub fn idle_ns() -> u64 {
    let seg = state::seg();
    let near = limit().is_some_and(|l| seg.local_pages.load(Ordering::Relaxed) > l / 2);
    match near {
        true if state::FORKED.load(Ordering::Relaxed) && ages::program_runs(proc::now_ns()) => {
            1_000_000
        }
        true => 5_000_000,
        false => 100_000_000,
    }
}

/// Pages that background reclaim should free now: this process's part, by age, of the tenant's excess. Other processes
/// are asked for theirs.
pub fn excess() -> i64 {
    let (seg, me) = (state::seg(), state::slot());
    let Some(limit) = limit() else { return 0 };
    let ours = surplus(me);
    let over = seg.local_pages.load(Ordering::Relaxed) - (limit - gaps(limit).1);
    let part = match over {
        ..=0 => 0,
        over => ages::View::now(surplus).part(over, me),
    };
    let wanted = i64::from(me.reclaim_wanted.load(Ordering::Relaxed));
    let offload = i64::from(me.offload_wanted.load(Ordering::Relaxed));
    part.max(wanted.min(ours))
        .max(offload.min(me.held_pages() - LEAST_PAGES))
        .max(0)
}

/// Sets the swap cache's bound from the local limit: 32 MiB at first; at most a sixteenth of the local memory that this
/// process has or may have; at least 32 pages.
pub fn size_cache() {
    if let Some(pages) = crate::paging::trace::cache_pages() {
        return cache::set_capacity(pages);
    }
    let seg = state::seg();
    let want = (seg.config.swap_cache_bytes.load(Ordering::Relaxed) / 4096) as i64;
    let room = limit().unwrap_or(0) - seg.native_pages.load(Ordering::Relaxed);
    let level = seg.floor_level_pages.load(Ordering::Relaxed);
    let held = match state::FORKED.load(Ordering::Relaxed) {
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
    let last = LAST_MEASURE_NS.load(Ordering::Relaxed);
    if now < last + LOOK_PAUSE_NS || !take_turn(&LAST_MEASURE_NS, last, now) {
        return;
    }
    let Some((anon, swapped)) = anonymous_pages() else {
        return;
    };
    let slot = state::slot();
    slot.swapped_pages.store(swapped, Ordering::Relaxed);
    let booked = RESIDENT.load(Ordering::Relaxed) + slot.cached_pages.load(Ordering::Relaxed);
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
    let looked = METADATA_NS.load(Ordering::Relaxed);
    if now >= looked + PAUSE_NS && take_turn(&METADATA_NS, looked, now) {
        let pages = own::resident_pages().unwrap_or(ProcSlot::UNKNOWN);
        state::slot().metadata_pages.store(pages, Ordering::Relaxed);
    }
}

/// Resets the accounting in a fork's child. `resident` pages of its managed range are resident, all shared with the
/// parent.
pub fn after_fork_in_child(resident: i64) {
    in_line::after_fork_in_child();
    hints::after_fork_in_child();
    learn::after_fork_in_child();
    RECLAIMER.store(0, Ordering::Relaxed);
    ASLEEP.store(false, Ordering::Relaxed);
    METADATA_NS.store(0, Ordering::Relaxed);
    RESIDENT.store(resident, Ordering::Relaxed);
    state::slot()
        .resident_pages
        .fetch_add(resident, Ordering::Relaxed);
    // Until shares are measured, the child is charged for none of them.
    size_cache();
    cache::after_fork_in_child();
}

/// Charges an expected change of native memory (such as a new thread's stacks; negative: memory that has just left)
/// ahead of the next measurement, which corrects it.
pub fn expect_native(pages: i64) {
    state::seg().charge_native(state::slot(), pages);
    if short_of_room() {
        wake_reclaimer();
    }
}

/// Makes the reclaim thread measure at once: resets its timer and wakes it.
pub fn measure_soon() {
    if !state::FORKED.load(Ordering::Relaxed) {
        LAST_MEASURE_NS.store(0, Ordering::Relaxed);
    }
    wake_reclaimer();
}
