//! Charging local memory, and keeping the tenant's sum under its limit.

use canvas_shm::Counter;
use canvas_sys::gate::{self, yield_now};
use canvas_sys::proc;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::{family, procs, reclaim, state};

/// Pages resident in the window, as the kernel counts them: what the measured anonymous memory
/// is compared with. Changed together with the charge.
static RESIDENT: AtomicI64 = AtomicI64::new(0);
/// The reclaim thread sleeps and may be woken.
static ASLEEP: AtomicBool = AtomicBool::new(false);
/// The reclaim thread exists in this process.
pub static RECLAIMER: AtomicU32 = AtomicU32::new(0);
static LAST_MEASURE_NS: AtomicU64 = AtomicU64::new(0);
/// Pause between two looks at native memory.
const LOOK_PAUSE_NS: u64 = 5_000_000;

/// The limit that is enforced: what was asked for, less a little for native memory that grows
/// between two measurements (a thirty-second, 1 to 4 MiB; never more than a quarter). Where native
/// memory leaves next to nothing, a working set of 1 to 4 MiB is granted all the same: with less,
/// a program makes no progress at all.
pub fn limit() -> Option<i64> {
    let seg = state::seg();
    seg.local_limit_pages().map(|l| {
        let least = seg.native_pages.load(Ordering::Relaxed) + (l / 8).clamp(256, 1024);
        (l - (l / 32).clamp(256, 1024).min(l / 4)).max(least)
    })
}

/// Pages below the limit at which reclaim starts, and at which it stops: reclaim ahead of need.
/// A sixteenth of the limit, 8 MiB at most.
pub fn gaps(limit: i64) -> (i64, i64) {
    let high = (limit / 16).clamp(32, 2048);
    (high / 2, high)
}

/// `n` pages became resident (or, negative, ceased to be): the charge was or will be made apart.
#[inline]
pub fn note_resident(n: i64) {
    RESIDENT.fetch_add(n, Ordering::Relaxed);
    state::slot().resident_pages.fetch_add(n, Ordering::Relaxed);
}

/// Takes `n` pages of local memory, reclaiming if the limit requires it. False when there is no
/// way to make room: then nothing is charged.
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
        wake_reclaimer();
        if used > limit && !charge_slow(n) {
            return false;
        }
    }
    seg.note_local_peak(seg.local_pages.load(Ordering::Relaxed));
    true
}

/// The tenant may pass its limit by this much (4 MiB) for a moment.
const OVERSHOOT_PAGES: i64 = 900;

/// Past the hard limit: this thread reclaims.
#[cold]
fn charge_slow(n: i64) -> bool {
    /// Until then nobody tries hard: the limit is below what the program needs natively.
    static HOPELESS_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
    let seg = state::seg();
    let begun = proc::now_ns();
    let hopeless = begun < HOPELESS_UNTIL_NS.load(Ordering::Relaxed);
    let (mut fruitless, mut asked) = (0u32, 0u32);
    let ok = loop {
        let Some(limit) = limit() else {
            break true;
        };
        let over = seg.local_pages.load(Ordering::Relaxed) - limit;
        if over <= 0 {
            break true;
        }
        // Another process may hold most of the memory: then it gives first, for a while.
        let ours = state::slot().charged_pages.load(Ordering::Relaxed);
        if asked < 50
            && largest_other().is_some_and(|p| p.charged_pages.load(Ordering::Relaxed) / 2 > ours)
        {
            asked += 1;
            poke_largest(over);
            gate::wait(100_000);
            continue;
        }
        // Looking for a victim costs a walk: not again and again where there are hardly any.
        let futile = fruitless > 0 && little_left() && fruitless % 8 != 0;
        if !futile && reclaim::run((over + 8).clamp(16, 64) as u32, true) > 0 {
            fruitless = 0;
            continue;
        }
        fruitless += 1;
        // Everything of ours is busy, pinned or gone. Others must give, or it cannot be helped:
        // then the program goes on over its limit, unless there is no room in far memory either.
        poke_largest(over);
        if seg.far_full.load(Ordering::Relaxed) != 0 {
            // What is promised as the most is used before the program is ended.
            if over <= OVERSHOOT_PAGES {
                break true;
            }
            if fruitless > 100 {
                break false;
            }
            gate::wait(1_000_000);
        } else if (little_left() && (hopeless || fruitless > 20)) || fruitless > 5000 {
            HOPELESS_UNTIL_NS.store(proc::now_ns() + 100_000_000, Ordering::Relaxed);
            break true;
        } else if fruitless > 1 {
            gate::wait(200_000);
        } else {
            yield_now();
        }
    };
    state::count(Counter::StallNs, proc::now_ns() - begun);
    if !ok {
        seg.charge_local(state::slot(), -n);
    }
    ok
}

/// Is hardly anything of ours left that reclaim could take?
fn little_left() -> bool {
    RESIDENT.load(Ordering::Relaxed) < 128
}

/// Gives back `n` pages of local memory.
#[inline]
pub fn uncharge(n: i64) {
    state::seg().charge_local(state::slot(), -n);
}

/// The process, other than ours, with the largest charge.
fn largest_other() -> Option<&'static canvas_shm::ProcSlot> {
    let me = state::slot() as *const _;
    state::seg()
        .procs
        .iter()
        .filter(|p| {
            !core::ptr::eq(*p, me) && !matches!(p.pid.load(Ordering::Relaxed), 0 | u32::MAX)
        })
        .max_by_key(|p| p.charged_pages.load(Ordering::Relaxed))
}

/// Asks the process with the largest charge (not us) to reclaim.
fn poke_largest(pages: i64) {
    if let Some(p) = largest_other().filter(|p| p.resident_pages.load(Ordering::Relaxed) > 0) {
        if !proc::alive(p.pid.load(Ordering::Relaxed)) {
            procs::release_slot(p, p.pid.load(Ordering::Relaxed));
            return;
        }
        p.reclaim_wanted
            .fetch_max(pages.clamp(1, 1024) as u32, Ordering::Relaxed);
        p.wake.fetch_add(1, Ordering::Release);
        proc::futex_wake(&p.wake, 1);
    }
}

/// Whom to ask for room in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whom {
    /// The process that has the largest part of it, if that is larger than ours.
    Larger,
    /// The process that has the largest part of it, other than ours.
    Largest,
    /// All others that have any of it.
    All,
}

/// Asks other processes to give back some of the pool. The one that was asked, or one of them; `None` when
/// there is none.
pub fn ask_for_pool(whom: Whom) -> Option<&'static canvas_shm::ProcSlot> {
    /// A few slabs: more than one page wants to go somewhere.
    const BYTES: i64 = 128 << 10;
    let me = state::slot();
    let has = |p: &canvas_shm::ProcSlot| p.pool_bytes.load(Ordering::Relaxed);
    let least = if whom == Whom::Larger { has(me) } else { 0 };
    let others = state::seg().procs.iter().filter(|p| {
        !core::ptr::eq(*p, me)
            && !matches!(p.pid.load(Ordering::Relaxed), 0 | u32::MAX)
            && has(p) > least
    });
    let ask = |p: &'static canvas_shm::ProcSlot| {
        let pid = p.pid.load(Ordering::Relaxed);
        if proc::alive(pid) {
            p.pool_wanted_bytes.fetch_max(BYTES, Ordering::Relaxed);
            p.wake.fetch_add(1, Ordering::Release);
            proc::futex_wake(&p.wake, 1);
        } else {
            procs::release_slot(p, pid);
        }
        p
    };
    if whom == Whom::All {
        others.map(ask).last()
    } else {
        others.max_by_key(|p| has(p)).map(ask)
    }
}

/// Wakes (or, after a fork, starts) the reclaim thread.
#[inline]
pub fn wake_reclaimer() {
    if ASLEEP.load(Ordering::Relaxed) && ASLEEP.swap(false, Ordering::AcqRel) {
        let slot = state::slot();
        slot.wake.fetch_add(1, Ordering::Release);
        proc::futex_wake(&slot.wake, 1);
    } else if RECLAIMER.load(Ordering::Relaxed) == 0 {
        crate::threads::start_reclaimer();
    }
}

/// The reclaim thread sleeps until woken, or `timeout_ns`.
pub fn sleep_until_woken(timeout_ns: u64) {
    let slot = state::slot();
    let seen = slot.wake.load(Ordering::Acquire);
    ASLEEP.store(true, Ordering::Release);
    // A wake between the check of the limit and here has changed `wake` or will see ASLEEP.
    let asked = slot.reclaim_wanted.load(Ordering::Relaxed) != 0
        || slot.pool_wanted_bytes.load(Ordering::Relaxed) > 0;
    if !asked && !short_of_room() {
        proc::futex_wait(&slot.wake, seen, timeout_ns);
    }
    ASLEEP.store(false, Ordering::Release);
}

/// Is the tenant above the mark at which background reclaim starts?
pub fn short_of_room() -> bool {
    let seg = state::seg();
    limit().is_some_and(|l| seg.local_pages.load(Ordering::Relaxed) > l - gaps(l).0)
}

/// How long the reclaim thread may sleep before it looks at native memory again: 5 ms when that
/// could matter soon (1 ms where writes copy what relatives share), else 100 ms.
pub fn idle_ns() -> u64 {
    let seg = state::seg();
    let near = limit().is_some_and(|l| seg.local_pages.load(Ordering::Relaxed) > l / 2);
    match near {
        true if state::FORKED.load(Ordering::Relaxed) => 1_000_000,
        true => 5_000_000,
        false => 100_000_000,
    }
}

/// Pages that background reclaim should free now.
pub fn excess() -> i64 {
    let seg = state::seg();
    let used = seg.local_pages.load(Ordering::Relaxed);
    let over = limit().map_or(0, |l| used - (l - gaps(l).1));
    // Each process gives by what it has.
    let ours = state::slot()
        .charged_pages
        .load(Ordering::Relaxed)
        .clamp(0, used.max(0));
    let tenant = if over > 0 {
        over * ours / used.max(1) + 1
    } else {
        over
    };
    tenant.max(i64::from(
        state::slot().reclaim_wanted.load(Ordering::Relaxed),
    ))
}

/// Sets the swap cache's bound from the local limit: 32 MiB at first, a sixteenth of local
/// memory at most, 64 pages at least.
pub fn size_cache() {
    if let Some(pages) = crate::trace::cache_pages() {
        return crate::cache::slots().set_capacity(pages);
    }
    let seg = state::seg();
    let want = (seg.config.swap_cache_bytes.load(Ordering::Relaxed) / 4096) as i64;
    let room = limit().unwrap_or(0) - seg.native_pages.load(Ordering::Relaxed);
    crate::cache::slots().set_capacity(want.min(room / 16).max(64) as usize);
}

/// Measures this process's anonymous memory and charges what lies outside the window: stacks,
/// libraries' data, small maps, canvas's own tables. At most every 5 ms.
pub fn measure_native() {
    let now = proc::now_ns();
    if family::look(now) {
        return;
    }
    let last = LAST_MEASURE_NS.load(Ordering::Relaxed);
    if now < last + LOOK_PAUSE_NS || !take_turn(&LAST_MEASURE_NS, last, now) {
        return;
    }
    let Some(anon) = anonymous_pages() else {
        return;
    };
    let slot = state::slot();
    let booked = RESIDENT.load(Ordering::Relaxed) + slot.cached_pages.load(Ordering::Relaxed);
    let native = (anon - booked - crate::pool::charged_pages()).max(0);
    state::seg().charge_native(slot, native - slot.native_pages.load(Ordering::Relaxed));
}

/// Of several threads, one does what was last done at `last`.
pub fn take_turn(at: &AtomicU64, last: u64, now: u64) -> bool {
    at.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
}

/// Anonymous memory of this process in pages, from /proc/self/status.
fn anonymous_pages() -> Option<i64> {
    let mut buf = [0u8; 3072];
    let n = proc::read_file(c"/proc/self/status", &mut buf).ok()?;
    let text = &buf[..n];
    let key = b"RssAnon:";
    let at = text.windows(key.len()).position(|w| w == key)? + key.len();
    let mut kib = 0i64;
    for b in text[at..]
        .iter()
        .skip_while(|b| !b.is_ascii_digit())
        .take_while(|b| b.is_ascii_digit())
    {
        kib = kib * 10 + i64::from(b - b'0');
    }
    Some(kib / 4)
}

/// In a fork's child, which has `resident` pages in its window, all of them the parent's too.
pub fn after_fork_in_child(resident: i64) {
    RECLAIMER.store(0, Ordering::Relaxed);
    ASLEEP.store(false, Ordering::Relaxed);
    RESIDENT.store(0, Ordering::Relaxed);
    note_resident(resident);
}

/// Native memory is about to grow by this much (a new thread's stacks): charged now, and corrected
/// by the next measurement.
pub fn expect_native(pages: i64) {
    state::seg().charge_native(state::slot(), pages);
    if short_of_room() {
        wake_reclaimer();
    }
}

/// Lets the reclaim thread measure at its next round, which is now.
pub fn measure_soon() {
    if !state::FORKED.load(Ordering::Relaxed) {
        LAST_MEASURE_NS.store(0, Ordering::Relaxed);
    }
    wake_reclaimer();
}
