//! Charges of local memory: the limit, what each process holds and may keep, and who has to evict how much.
//!
//! The ledger calls nobody: [`charge`] says what is needed, and its caller reclaims.

use canvas_shm::{Counter, ProcSlot, Segment};
use core::sync::atomic::{AtomicU64, Ordering};

use super::ages::{self, View};
use super::floors::{demand_of, live_slots, surplus};
use super::{Kernel, Process, locked};
use crate::pager::floor::{self, Demand, LEAST_PAGES};
use crate::pager::native;

/// Elects one of several threads, or processes, to do what is done once in `period_ns`. It was last done at `at`; 0:
/// never.
pub fn once_in(at: &AtomicU64, period_ns: u64, now_ns: u64) -> bool {
    let last = at.load(Ordering::Relaxed);
    let order = Ordering::Relaxed;
    (last == 0 || now_ns >= last + period_ns)
        && at.compare_exchange(last, now_ns, order, order).is_ok()
}

/// Adds `n` to a counter.
#[inline(always)]
pub fn count(vm: &impl Process, counter: Counter, n: u64) {
    vm.segment().count(vm.thread(), counter, n);
}

/// Local pages that are charged now.
#[inline]
pub fn charged(vm: &impl Process) -> i64 {
    vm.segment().local_pages.load(Ordering::Relaxed)
}

/// The configured limit less a margin for native memory that grows between two measurements: 1/32 of the limit, clamped
/// to 1 to 4 MiB, and at most a quarter of the limit.
#[inline]
pub fn asked(seg: &Segment) -> Option<i64> {
    let l = seg.local_limit_pages()?;
    Some(l - (l / 32).clamp(256, 1024).min(l / 4))
}

/// The limit that is enforced, in pages: the configured limit, or native memory plus the processes' floors if that is
/// more. Below that no program makes progress, so enforcing less would gain nothing.
#[inline]
pub fn limit(seg: &Segment) -> Option<i64> {
    let floors = seg.floor_pages.load(Ordering::Relaxed).max(LEAST_PAGES);
    asked(seg).map(|l| l.max(seg.native_pages.load(Ordering::Relaxed) + floors))
}

/// Pages below the limit at which background reclaim starts, and at which it stops. Computed from the room that native
/// memory leaves under the limit.
#[inline]
pub fn gaps(vm: &impl Process, limit: i64) -> (i64, i64) {
    let (seg, state) = (vm.segment(), vm.state());
    let room = limit - seg.native_pages.load(Ordering::Relaxed);
    if state.dirty_share.is_low() {
        state.headroom.marks_in_line(room)
    } else {
        state.headroom.marks(room)
    }
}

/// Lets the reclaim thread check whether it works far enough ahead of demand.
pub fn update_headroom(vm: &impl Process, now_ns: u64) {
    vm.state().headroom.update(now_ns);
}

/// Whether a page that comes in may keep its entry and far copy: not if far memory is so nearly full that the copies of
/// resident pages must go, nor if there are no reservations.
#[inline]
pub fn reserves(vm: &impl Process) -> bool {
    !vm.state().nearly_full.load(Ordering::Relaxed) && vm.segment().config.reservations()
}

/// What a charge needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Charge {
    /// Nothing.
    Fits,
    /// The tenant is past the mark at which background reclaim starts.
    Near,
    /// The tenant is past its limit.
    Over,
}

/// Charges `n` pages of local memory, and says whether pages must be reclaimed for them.
#[inline]
pub fn charge(vm: &impl Process, n: i64) -> Charge {
    let seg = vm.segment();
    let used = seg.charge_local(vm.slot(), n);
    let Some(limit) = limit(seg) else {
        return Charge::Fits;
    };
    let (low, _) = gaps(vm, limit);
    if used <= limit - low {
        Charge::Fits
    } else if used <= limit {
        Charge::Near
    } else {
        Charge::Over
    }
}

/// Uncharges `n` pages of local memory.
#[inline]
pub fn uncharge(vm: &impl Process, n: i64) {
    vm.segment().charge_local(vm.slot(), -n);
}

/// Records the tenant's sum, after the reclaim that it caused.
#[inline]
pub fn note_peak(vm: &impl Process) {
    vm.segment().note_local_peak(charged(vm));
}

/// Whether there is room for `n` pages without reclaim.
pub fn room_for(vm: &impl Process, n: i64) -> bool {
    limit(vm.segment()).is_none_or(|l| charged(vm) + n < l)
}

/// Whether the tenant is past its limit.
pub fn is_past_limit(vm: &impl Process) -> bool {
    limit(vm.segment()).is_some_and(|l| charged(vm) > l)
}

/// Whether the tenant is above the mark at which background reclaim starts.
pub fn short_of_room(vm: &impl Process) -> bool {
    limit(vm.segment()).is_some_and(|l| charged(vm) > l - gaps(vm, l).0)
}

/// Records that `n` pages became resident (negative: stopped being resident). The caller charges them separately.
#[inline]
pub fn note_resident(vm: &(impl Kernel + Process), n: i64) {
    let before = vm.state().resident_pages.fetch_add(n, Ordering::Relaxed);
    vm.slot().resident_pages.fetch_add(n, Ordering::Relaxed);
    if before / ages::STEP_PAGES < (before + n) / ages::STEP_PAGES {
        note_growth(vm, before + n);
    }
}

/// A process with this many resident pages (2 MiB) has a reclaim thread, so that other processes can ask it for pages.
const ASKED_FROM_PAGES: i64 = 512;

#[cold]
fn note_growth(vm: &(impl Kernel + Process), resident: i64) {
    ages::update_growth(vm, resident);
    if resident >= ASKED_FROM_PAGES && asked(vm.segment()).is_some() {
        vm.start_reclaimer();
    }
}

/// Records that a batch of `n` pages was evicted.
pub fn record_evicted(vm: &(impl Kernel + Process), n: i64) {
    note_resident(vm, -n);
    ages::record_evicted(vm, n, vm.state().resident_pages.load(Ordering::Relaxed));
}

/// Records how much memory this process wants to keep, and divides the tenant's room among its processes. Any thread
/// may call this; each of the two steps runs at most once per [`floor::PERIOD_NS`].
pub fn divide_room(vm: &impl Process, now: u64) {
    let (seg, me, state) = (vm.segment(), vm.slot(), vm.state());
    let Some(asked) = asked(seg) else { return };
    let judged = state.judged_ns.load(Ordering::Relaxed);
    if once_in(&state.judged_ns, floor::PERIOD_NS, now) {
        let came_back = me.came_back.load(Ordering::Relaxed);
        // The counter of a new process slot starts from 0 again.
        let since = came_back.saturating_sub(state.returned.swap(came_back, Ordering::Relaxed));
        let demand = Demand {
            pages: me.demand_pages.load(Ordering::Relaxed).max(LEAST_PAGES),
            quiet_ns: state.quiet_ns.load(Ordering::Relaxed),
        };
        let next = demand.next(since, now - judged, me.held_pages());
        me.demand_pages.store(next.pages, Ordering::Relaxed);
        state.quiet_ns.store(next.quiet_ns, Ordering::Relaxed);
    }
    if !once_in(&seg.divided_ns, floor::PERIOD_NS, now) {
        return;
    }
    let native_pages = seg.native_pages.load(Ordering::Relaxed);
    let room = asked - native_pages - locked::pages(seg);
    let demands = live_slots(seg).map(demand_of);
    // Try to leave the background reclaim's headroom free as well.
    let ahead = gaps(vm, asked).1;
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
        native_pages,
        asked,
        live_slots(seg).any(wants_more),
    );
    seg.native_in_the_way
        .store(in_the_way.into(), Ordering::Relaxed);
    seg.needed_pages.store(needed, Ordering::Relaxed);
    seg.needed_pages_peak.fetch_max(needed, Ordering::Relaxed);
}

/// How many of `over` pages this process must evict by age. A result of 0 is reused for a moment.
pub(super) fn own_part(vm: &(impl Kernel + Process), over: i64, now_ns: u64) -> i64 {
    const MOMENT_NS: u64 = 200_000;
    let part = View::now(vm).part(over, vm.slot());
    if part == 0 {
        let until = &vm.state().others_until_ns;
        until.store(now_ns + MOMENT_NS, Ordering::Relaxed);
    }
    part
}

/// Whether [`own_part`] was 0 a moment ago.
pub(super) fn others_are_older(vm: &impl Process, now_ns: u64) -> bool {
    now_ns < vm.state().others_until_ns.load(Ordering::Relaxed)
}

/// Pages that background reclaim should free now: this process's part, by age, of the tenant's excess. Other processes
/// are asked for theirs.
pub fn excess(vm: &(impl Kernel + Process)) -> i64 {
    let (seg, me) = (vm.segment(), vm.slot());
    let Some(limit) = limit(seg) else { return 0 };
    let over = charged(vm) - (limit - gaps(vm, limit).1);
    let part = match over {
        ..=0 => 0,
        over => View::now(vm).part(over, me),
    };
    let wanted = i64::from(me.reclaim_wanted.load(Ordering::Relaxed));
    let offload = i64::from(me.offload_wanted.load(Ordering::Relaxed));
    part.max(wanted.min(surplus(seg, me)))
        .max(offload.min(me.held_pages() - LEAST_PAGES))
        .max(0)
}

/// Asks another process to evict its part of the tenant's excess.
pub fn ask_for_rest(vm: &(impl Kernel + Process)) {
    let Some(limit) = limit(vm.segment()) else {
        return;
    };
    let over = charged(vm) - (limit - gaps(vm, limit).1);
    if over > 0 {
        ask_oldest(vm, over, false);
    }
}

/// Asks the process with the largest part (by age) of `over` pages to evict it. If none has a part and `any` is set,
/// asks the process with most beyond its floor. Returns false if there is no process to ask.
pub(super) fn ask_oldest(vm: &(impl Kernel + Process), over: i64, any: bool) -> bool {
    let (seg, me) = (vm.segment(), vm.slot());
    let others = || live_slots(seg).filter(|p| !core::ptr::eq(*p, me));
    if others().next().is_none() {
        return false;
    }
    let view = View::now(vm);
    let largest = |pages: &dyn Fn(&ProcSlot) -> i64| {
        others()
            .map(|p| (p, pages(p)))
            .max_by_key(|(_, pages)| *pages)
            .filter(|(_, pages)| *pages > 0)
    };
    let by_age = largest(&|p| view.part(over, p));
    let by_size = || largest(&|p| surplus(seg, p));
    let Some((p, pages)) = by_age.or_else(|| any.then(by_size).flatten()) else {
        return false;
    };
    if vm.release_dead(p) {
        return true;
    }
    let pages = over.clamp(1, 1024).min(pages) as u32;
    ages::note_asked(vm, p);
    if p.reclaim_wanted.fetch_max(pages, Ordering::Relaxed) == 0 {
        vm.wake_other(p);
    }
    true
}
