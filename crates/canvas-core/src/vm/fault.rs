//! A fault: makes the page present that a thread needs.
//!
//! [`fault`] looks at the page's word, takes the page in a busy state if there is something to do, and does it:
//! [`first_touch`] fills with zeros, [`demand`] loads a far copy, [`cache_hit`] takes the page back from the swap cache,
//! [`first_write`] lifts a protection. Then the word is published, and only after that others learn of the fault.

use canvas_shm::Counter;
use canvas_shm::segment::{STRIPES, refault_bucket};
use canvas_shm::slow::Cause;
use canvas_types::sync::{Ordering, backoff};
use canvas_types::{ExtentRef, PageId, SwapEntry};

use super::context::Fill;
use super::fill;
use super::ledger::{self, Charge, count};
use super::map::{
    copy_in, filled, keep_or_release, on_fill, poison, publish_run, starts_protected,
};
use super::protect::chunk;
use super::{FaultSite, Held, Report, Source, Stop, Vm, reclaim};
use crate::far::fetch::Lost;
use crate::pager::clock::FillKind;
use crate::pager::prefetch::{Fault, FaultKind, Plan, Prefetcher};
use crate::pager::slot;
use crate::pager::word::{self, State, Word, flag};
use crate::swap::LoadError;

/// How a fault ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolved {
    /// The page is present; the access can be repeated.
    Present,
    /// Canvas does not manage the page: the fault is the program's own.
    NotOurs,
    /// The far copy failed verification; the program must not see it.
    Poisoned,
    /// No far copy can be reached now.
    Unreachable,
    /// No far copy is left.
    Lost,
    /// Local and far memory are both full.
    NoMemory,
}

/// Makes the page of `at` present; `write`: for a write.
pub fn fault<V: Vm>(vm: &V, at: FaultSite, write: bool) -> Resolved {
    let w = vm.word(at.page);
    let begun = vm.fault_begins(at.page);
    let mut spins = 0u32;
    let mut waited_for = None;
    loop {
        let cur = word::load(w);
        let done = match cur.state() {
            State::Untouched => first_touch(vm, at.page),
            State::Far => demand(vm, at, cur, write),
            State::Cached => cache_hit(vm, at.page, cur),
            State::Poisoned => Some(Resolved::Poisoned),
            State::Resident if write && cur.has(flag::PROTECTED) => first_write(vm, at.page, cur),
            State::Resident => {
                match waited_for {
                    Some(State::Filling) if cur.has(flag::PREFETCHED) => late(vm, at.page, cur),
                    Some(_) => {}
                    None => spurious(vm, at.page, write),
                }
                Some(Resolved::Present)
            }
            busy => {
                waited_for.get_or_insert(busy);
                backoff(&mut spins, V::yield_to_page);
                None
            }
        };
        if let Some(done) = done {
            if done == Resolved::Present {
                vm.fault_ended(begun, at.page, cur, write);
            }
            return done;
        }
    }
}

/// Charges `n` pages, and makes room for them where they need it. False if there is none: then nothing is charged.
#[inline]
fn charge(vm: &impl Vm, n: i64) -> bool {
    match ledger::charge(vm, n) {
        Charge::Fits => {}
        Charge::Near => reclaim::make_room(vm),
        Charge::Over => {
            reclaim::make_room(vm);
            if !reclaim::direct(vm, n) {
                ledger::uncharge(vm, n);
                return false;
            }
        }
    }
    ledger::note_peak(vm);
    true
}

/// Handles a write to a page that came in write-protected.
fn first_write(vm: &impl Vm, page: PageId, cur: Word) -> Option<Resolved> {
    let w = vm.word(page);
    // Reclaim must not rely on the protection while it is being lifted, so the page is busy meanwhile.
    if !word::transition(w, cur, cur.with_state(State::Mapping)) {
        return None;
    }
    if !vm.protect(Held::new(page, 1), false) {
        // The program has mapped something else there.
        word::publish(w, cur);
        return Some(Resolved::NotOurs);
    }
    let mut new = cur.clear(flag::PROTECTED);
    // The far copy is stale from now on. While far memory has room it is kept, to store only the words that differ.
    if reclaim::copies_are_in_the_way(vm) && vm.drop_copy(cur.entry()) {
        new = new.clear(flag::FAR_COPY);
        count(vm, Counter::PoolCopiesStale, 1);
    }
    word::publish(w, new);
    vm.writes().met_protection(page);
    count(vm, Counter::FaultFirstWrite, 1);
    Some(Resolved::Present)
}

/// Handles a fault that waited for a prefetch of its page.
fn late(vm: &impl Vm, page: PageId, cur: Word) {
    // The page is known to be used. If the CAS fails, another thread has already recorded that.
    let _ = word::transition(vm.word(page), cur, cur.clear(flag::PREFETCHED));
    fill::prefetch(vm, &plan(vm, page, FaultKind::PrefetchLate));
}

/// Reports a fault to the prefetcher; returns what it wants to be brought in.
fn plan(vm: &impl Vm, page: PageId, kind: FaultKind) -> Plan {
    vm.prefetcher().plan(&Fault {
        thread: vm.thread() as u32,
        page,
        kind,
        advice: vm.advice(page),
        around: vm,
    })
}

/// Handles a fault on a page that its word says is resident: another thread was faster, or the page is still
/// write-protected after a failed unmapping. Lifting the protection is right in both cases but costs a shootdown, so
/// only repeated write faults do it.
fn spurious<V: Vm>(vm: &V, page: PageId, write: bool) {
    let Some(times) = vm.state().repeated(vm.thread(), page) else {
        return;
    };
    let w = vm.word(page);
    let cur = word::load(w);
    if write
        && times >= 1
        && cur.state() == State::Resident
        && word::transition(w, cur, cur.with_state(State::Mapping))
    {
        // Held, so that no protection of a reclaimer is lifted.
        vm.protect(Held::new(page, 1), false);
        word::publish(w, cur);
    }
    if times > 16 {
        contradiction(vm, page);
    }
}

/// The word says resident, yet the page keeps faulting: asks the kernel. A page that is really absent is lost, and must
/// not silently turn into zeros.
#[cold]
fn contradiction<V: Vm>(vm: &V, page: PageId) {
    if vm.is_present(page) {
        V::yield_now();
        return;
    }
    let w = vm.word(page);
    let cur = word::load(w);
    if cur.state() == State::Resident && word::transition(w, cur, cur.with_state(State::Mapping)) {
        if vm.is_present(page) {
            word::publish(w, cur);
            return;
        }
        count(vm, Counter::Anomaly, 1);
        vm.report(Report::Vanished { page, word: cur });
        reclaim::resident_gone(vm, page);
        word::publish(w, cur.with_state(State::Poisoned));
    }
}

/// Why a page that could not be copied is not present.
#[inline]
fn why_not(stopped: Option<Stop>) -> Resolved {
    match stopped {
        Some(Stop::NoMemory) => Resolved::NoMemory,
        _ => Resolved::NotOurs,
    }
}

/// Most pages that one first touch fills.
pub const ZERO_PAGES: u32 = 64;
/// Pages that a stream touches ahead while the tenant is at its limit.
const AHEAD_SHORT: u32 = 15;

/// Handles a first touch: fills the page, and pages ahead in a sequential stream, with zeros.
fn first_touch(vm: &impl Vm, page: PageId) -> Option<Resolved> {
    let streams = &vm.state().prefetchers.streams;
    let plan = streams.first_touch_plan(vm.thread() as u32, page);
    let mut ahead = plan.count.min(ZERO_PAGES - 1);
    if ahead > 0 && !ledger::room_for(vm, i64::from(ahead) + 1) {
        // Direct reclaim makes room in batches anyway.
        ahead = ahead.min(AHEAD_SHORT);
    }
    let done = zeros(vm, page, ahead, plan.stride);
    if done == Some(Resolved::Present) {
        count(vm, Counter::FaultFirstTouch, 1);
    }
    done
}

/// Fills `page` with zeros before its first touch if there is room below the limit, so that nothing is evicted for it.
pub fn fill_if_room(vm: &impl Vm, page: PageId) {
    if ledger::room_for(vm, 1) {
        // Failure does not matter here: a touch will fault and find out.
        let _ = zeros(vm, page, 0, 1);
    }
}

/// Makes an untouched page present, and up to `ahead` untouched neighbours of it.
fn zeros(vm: &impl Vm, page: PageId, ahead: u32, stride: i32) -> Option<Resolved> {
    // Claimed under the mapping lock, so a mapping call sees each page either as busy or not at all.
    let Some(claim) = vm.claim_untouched(page, ahead, stride) else {
        return Some(Resolved::NotOurs);
    };
    let (from, to) = (claim.from, claim.to);
    if from == to {
        return None;
    }
    let got = to.since(from);
    let give_up = |first: PageId| {
        let n = to.since(first);
        for i in 0..n {
            word::publish(vm.word(first.plus(i)), Word(0));
        }
        vm.unclaim(first, n);
    };
    if !charge(vm, got as i64) {
        give_up(from);
        return Some(Resolved::NoMemory);
    }
    let held = chunk(vm, from);
    let copied = copy_in(vm, Held::new(from, got), Source::Zeros, false);
    let (present, stopped) = match copied.stopped {
        // Present, although its word said untouched: a page of zeros that nobody owned.
        Some(Stop::Present) => (copied.pages + 1, None),
        stopped => (copied.pages, stopped),
    };
    let (clock, epoch) = (&vm.state().clock, vm.state().epoch.now());
    let stays = claim.is_locked && super::locked::take(vm.segment(), vm.slot(), present as i64);
    publish_run(vm, from, present, |i| {
        let kind = if from.plus(i) == page {
            FillKind::FirstTouch
        } else {
            FillKind::FirstTouchAhead
        };
        let filled = clock.params.on_fill(Word(0), kind, epoch);
        match stays {
            true => filled.set(flag::LOCKED),
            false => filled,
        }
    });
    drop(held);
    give_up(from.plus(present));
    ledger::uncharge(vm, (got - present) as i64);
    vm.segment().charge_footprint(present as i64);
    if page >= from.plus(present) {
        return match stopped {
            Some(Stop::Border | Stop::NotMapped) => Some(Resolved::NotOurs),
            Some(_) => Some(Resolved::NoMemory),
            None => None,
        };
    }
    count(vm, Counter::PagesZeroFilled, present as u64);
    vm.zero_filled(from, present, page);
    Some(Resolved::Present)
}

/// Handles a swap-cache hit: maps the cached page again.
fn cache_hit(vm: &impl Vm, page: PageId, cur: Word) -> Option<Resolved> {
    if !charge(vm, 1) {
        return Some(Resolved::NoMemory);
    }
    let (w, slots) = (vm.word(page), vm.cache());
    if !word::transition(w, cur, cur.with_state(State::Filling)) {
        ledger::uncharge(vm, 1);
        return None;
    }
    let slot = slot::of_word(cur);
    let taken = slots.take(slot);
    let proactive = cur.has_all(flag::PROACTIVE);
    let prefetched = cur.has(flag::PREFETCHED) && !proactive;
    // The page was unmapped only for a trace. Without the trace there would have been no fault, so nothing is learnt.
    let traced = cur.has(flag::SAMPLED);
    let plan = match (traced, proactive, prefetched) {
        (true, ..) => Plan::NONE,
        (_, true, _) => plan(vm, page, FaultKind::Demand),
        (.., true) => plan(vm, page, FaultKind::PrefetchHit),
        _ => plan(vm, page, FaultKind::VictimHit),
    };
    let held = chunk(vm, page);
    let copied = copy_in(vm, Held::new(page, 1), Source::Slot(slot), false);
    if copied.pages == 0 {
        // Only possible if the program unmapped the page during its own access.
        drop(held);
        ledger::uncharge(vm, 1);
        slots.undo_take(taken);
        word::publish(w, cur);
        return Some(why_not(copied.stopped));
    }
    let kind = match (prefetched || proactive, plan.stream) {
        (true, true) => FillKind::Stream,
        (true, false) => FillKind::Demand,
        (false, _) => FillKind::VictimHit,
    };
    let new = match traced {
        true => cur
            .with_entry(taken.entry)
            .with_state(State::Resident)
            .clear(flag::SAMPLED),
        false => on_fill(vm, cur.with_entry(taken.entry), kind),
    };
    let new = keep_or_release(vm, new, taken.far_copy);
    publish_run(vm, page, 1, |_| new);
    drop(held);
    slots.finish(taken);
    if prefetched {
        vm.prefetcher().on_used(&plan);
        count(vm, Counter::PrefetchUsed, u64::from(plan.stands_for));
        if let Some(counter) = plan.planner.and_then(|p| p.used) {
            count(vm, counter, u64::from(plan.stands_for));
        }
        count(vm, Counter::CacheHitPrefetch, 1);
    } else if proactive {
        vm.state().proactive_used.fetch_add(1, Ordering::Relaxed);
        count(
            vm,
            Counter::ProactiveUsed,
            crate::pager::swapin::schedule::SAMPLE_EVERY,
        );
    } else if !traced {
        count(vm, Counter::CacheHitVictim, 1);
        note_refault(vm, cur);
    }
    fill::prefetch(vm, &plan);
    Some(Resolved::Present)
}

/// Counts the refault of a page whose word was `cur` while it was evicted, by the epochs since its eviction.
#[inline]
fn note_refault(vm: &impl Vm, cur: Word) {
    let epochs = vm.state().epoch.now().wrapping_sub(cur.epoch());
    let stripe = &vm.segment().stripes[vm.thread() % STRIPES];
    stripe.refaults[refault_bucket(epochs)].fetch_add(1, Ordering::Relaxed);
    vm.slot().came_back.fetch_add(1, Ordering::Relaxed);
}

/// What loading a far page came to.
enum Loaded {
    /// The page is in the staging page; it was beyond the pool at this place.
    Yes(Option<ExtentRef>),
    /// The page stays far, for this reason.
    No(Resolved),
    /// The page is on its way from this place.
    InFlight(ExtentRef),
    /// Its copy is damaged.
    Damaged(LoadError),
}

/// Loads the copy of a far page into the first staging page. The caller has claimed the page.
fn load(vm: &impl Vm, page: PageId, entry: SwapEntry, to: &mut Fill) -> Loaded {
    let place = match vm.load(entry, &mut to.staging[0], &mut to.scratch) {
        Ok(()) => return Loaded::Yes(None),
        Err(LoadError::InFarTier(place)) => place,
        Err(why) => return Loaded::Damaged(why),
    };
    if vm.is_in_flight(page, place) {
        return Loaded::InFlight(place);
    }
    let read = vm.during(Cause::FarRead, || {
        vm.load_far_tier(entry, place, &mut to.staging[0], &mut to.stored)
    });
    match read {
        Ok(()) => Loaded::Yes(Some(place)),
        Err(Lost::Damaged) => Loaded::Damaged(LoadError::InFarTier(place)),
        // The copy may become reachable again, or is lost for good.
        Err(Lost::Unreachable) => Loaded::No(Resolved::Unreachable),
        Err(Lost::Gone) => Loaded::No(Resolved::Lost),
    }
}

/// Handles a fault on a far page.
fn demand(vm: &impl Vm, at: FaultSite, cur: Word, write: bool) -> Option<Resolved> {
    let page = at.page;
    if !charge(vm, 1) {
        return Some(Resolved::NoMemory);
    }
    let w = vm.word(page);
    if !word::transition(w, cur, cur.with_state(State::Filling)) {
        ledger::uncharge(vm, 1);
        return None;
    }
    let mut context = vm.fill();
    let context = &mut *context;
    let stays = || {
        word::publish(w, cur);
        ledger::uncharge(vm, 1);
    };
    let beyond = match load(vm, page, cur.entry(), context) {
        Loaded::Yes(beyond) => beyond,
        Loaded::No(why) => {
            stays();
            return Some(why);
        }
        Loaded::InFlight(place) => {
            // When the page arrives in the pool, alone or with its extent, or fails to, the fault is retried.
            stays();
            vm.during(Cause::FarArrival, || vm.wait_for_arrival(page, place));
            return None;
        }
        Loaded::Damaged(why) => {
            ledger::uncharge(vm, 1);
            poison(vm, page, cur, why);
            return Some(Resolved::Poisoned);
        }
    };
    vm.used(cur.entry());
    let plan = plan(vm, page, FaultKind::Demand);
    // Fetch the page's neighbours beyond the pool (FastSwap §V) if a stream needs them or the far read size says so. Do
    // it now, while this page's entry keeps the extent.
    match beyond {
        Some(place) if plan.stream => vm.fetch(place.extent),
        Some(place) => {
            vm.fetch_neighbours(place.extent);
            // Pages that a stream has passed are not needed again soon, so only other pages are kept.
            vm.keep(cur.entry(), place, &context.stored);
        }
        None if cur.has(flag::REFERENCED) && !plan.stream => vm.neighbour_used(),
        None => {}
    }
    vm.before_swap_in(at, plan.count != 0);
    let held = chunk(vm, page);
    let protected = !write && starts_protected(vm, page, cur);
    let staged = Source::Staged(&context.staging[..1]);
    let copied = copy_in(vm, Held::new(page, 1), staged, protected);
    if copied.pages == 0 {
        drop(held);
        stays();
        return Some(why_not(copied.stopped));
    }
    let kind = if plan.stream {
        FillKind::Stream
    } else {
        FillKind::Demand
    };
    let new = filled(vm, cur, kind, protected);
    publish_run(vm, page, 1, |_| new);
    drop(held);
    vm.slot().far_pages.fetch_sub(1, Ordering::Relaxed);
    count(vm, Counter::FaultFar, 1);
    count(vm, Counter::PagesIn, 1);
    if plan.stream {
        count(vm, Counter::PagesInStream, 1);
    }
    note_refault(vm, cur);
    vm.swapped_in(at, &context.staging[0]);
    vm.prefetcher().swapped_in(at, &context.staging[0]);
    fill::prefetch_with(vm, &plan, context);
    Some(Resolved::Present)
}
