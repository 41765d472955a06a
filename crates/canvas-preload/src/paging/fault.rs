//! One entry for both deliveries: [`resolve`] makes a page of the window present.
//!
//! The caller is inside ([`crate::base::freeze`]) with all signals blocked. Nothing here allocates from
//! the program's heap, takes a lock that the program can hold, or calls a hooked function.

use canvas_far::fetch::Lost;
use canvas_pager::clock::FillKind;
use canvas_pager::prefetch::advised::Advice;
use canvas_pager::prefetch::choice::Surroundings;
use canvas_pager::prefetch::readahead::Area;
use canvas_pager::prefetch::{Done, FaultKind, Plan};
use canvas_pager::slot;
use canvas_pager::table::CHUNK_PAGES;
use canvas_pager::trace::Kind;
use canvas_pager::word::{self, State, Word, flag};
use canvas_shm::Counter;
use canvas_shm::segment::{STRIPES, refault_bucket};
use canvas_shm::slow::Cause;
use canvas_swap::LoadError;
use canvas_swap::fsm::{self, Reservation};
use canvas_sys::Errno;
use canvas_sys::gate::yield_now;
use canvas_types::layout::{BLOCK_PAGES, WINDOW_PAGES};
use canvas_types::sync::backoff;
use canvas_types::{DeepPlace, PAGE_SIZE, PageId, SwapEntry};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::api;
use crate::base::{
    areas, held, regions, slow, state,
    state::{CLOCK, EPOCH, PREFETCHERS, count, uffd},
    tenant, thread, touched,
};
use crate::far_tier::{pool::pool, tier};
use crate::paging::{
    accounting, app_tier,
    app_tier::At,
    cache, chunk,
    context::{self, STAGING_PAGES},
    learn as recordings, protect, reclaim, swapin, trace,
};
use crate::report;

/// How a fault ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolved {
    /// The page is present; the access can be repeated.
    Present,
    /// Not a page that canvas manages: the fault is the program's own.
    NotOurs,
    /// The far copy did not verify: the program must not see it.
    Poisoned,
    /// No far copy can be reached now.
    Unreachable,
    /// No far copy is left.
    Lost,
    /// Local and far memory are both full.
    NoMemory,
}

impl Resolved {
    /// Why the page is not present, in words.
    pub fn reason(self) -> &'static str {
        match self {
            Resolved::Present => "it is present",
            Resolved::NotOurs => "canvas does not manage it",
            Resolved::Poisoned => "its far copy came back damaged",
            Resolved::Unreachable => {
                "its far copy cannot be reached, and was waited for long enough"
            }
            Resolved::Lost => {
                "no far copy of it is left: the servers that held it have lost it (--copies 2, 3 or 1+disk keeps more than one)"
            }
            Resolved::NoMemory if tier::is_stalled() => {
                "local memory is full, and far memory does not answer"
            }
            Resolved::NoMemory => "local and far memory are both full (raise --pool or --local)",
        }
    }
}

/// Makes `page` present.
pub fn resolve(page: PageId, write: bool) -> Resolved {
    resolve_at(page, write, At::default())
}

/// The same for a fault of which it is known where exactly it was.
pub fn resolve_at(page: PageId, write: bool, at: At) -> Resolved {
    let w = areas::word(page);
    let begun = trace::begin(page);
    let mut spins = 0u32;
    let mut waited_for = None;
    loop {
        let cur = word::load(w);
        let done = match cur.state() {
            State::Untouched => first_touch(page),
            State::Far => demand(page, cur, write, at),
            State::Cached => second_chance(page, cur),
            State::Poisoned => Some(Resolved::Poisoned),
            State::Resident if write && cur.has(flag::PROTECTED) => unprotect(page, cur),
            State::Resident => {
                match waited_for {
                    Some(State::Filling) if cur.has(flag::PREFETCHED) => late(page, cur),
                    Some(_) => count(Counter::FaultWait, 1),
                    None => spurious(page, write),
                }
                Some(Resolved::Present)
            }
            busy => {
                waited_for.get_or_insert(busy);
                backoff(&mut spins, slow::yield_to_page);
                None
            }
        };
        if let Some(r) = done {
            if begun != 0 && r == Resolved::Present {
                trace::fault(begun, page, cur, write);
            }
            if r == Resolved::Present && cur.state() == State::Far {
                recordings::bring_in_beside(page);
            }
            return r;
        }
    }
}

/// A page that came in write-protected is written to.
fn unprotect(page: PageId, cur: Word) -> Option<Resolved> {
    let w = areas::word(page);
    // Busy meanwhile: reclaim must not take it for protected while this call is under way.
    if !word::transition(w, cur, cur.with_state(State::Mapping)) {
        return None;
    }
    // SAFETY: the page is busy in our hands, and its word tells of the protection.
    match unsafe { uffd().write_protect(page.addr(), PAGE_SIZE, false) } {
        Ok(()) => {
            let mut new = cur.clear(flag::PROTECTED);
            // The copy is stale from now on. While memory is idle it can stay, for the words that differ.
            if reclaim::copies_are_in_the_way() && pool().drop_copy(cur.entry()) {
                new = new.clear(flag::FAR_COPY);
                count(Counter::PoolCopiesStale, 1);
            }
            word::publish(w, new);
            areas::writes().met_protection(page);
            count(Counter::FaultFirstWrite, 1);
            Some(Resolved::Present)
        }
        // Something foreign is mapped there.
        Err(_) => {
            word::publish(w, cur);
            Some(Resolved::NotOurs)
        }
    }
}

/// The fault waited for a prefetch of its page.
fn late(page: PageId, cur: Word) {
    count(Counter::PrefetchLate, 1);
    // Known used now. Lost to another thread: it knows as well.
    let _ = word::transition(areas::word(page), cur, cur.clear(flag::PREFETCHED));
    prefetch(&learn(page, FaultKind::PrefetchLate));
}

/// Tells the prefetcher of a fault; what it wants to be brought in.
fn learn(page: PageId, kind: FaultKind) -> Plan {
    let plan = PREFETCHERS.on_fault(thread::thread_hash() as u32, page, kind, &Around);
    match kind {
        FaultKind::SecondChance => plan,
        _ => app_tier::plan(page, kind, plan, &Around),
    }
}

/// The process's memory, as a prefetcher sees it.
struct Around;

impl Surroundings for Around {
    fn area_of(&self, page: PageId) -> Option<Area> {
        regions::area_of(page)
    }
    fn is_far(&self, page: PageId) -> bool {
        page.index() < WINDOW_PAGES && word::load(areas::word(page)).state() == State::Far
    }
    fn epoch(&self) -> u8 {
        EPOCH.now()
    }
    fn advice(&self, page: PageId) -> Advice {
        regions::advice_of(page)
    }
}

/// Spurious faults: the last page and how often, by threads, since two on two pages must not hide each other.
static SPURIOUS: Repeats = Repeats([const { AtomicU64::new(u64::MAX) }; 64]);

/// How often faults on one page came one after another; in each cell a page below the times.
struct Repeats([AtomicU64; 64]);

impl Repeats {
    /// Notes a fault of the thread with this number: how often `page` came before, `None` for never.
    fn again(&self, thread: usize, page: PageId) -> Option<u32> {
        const TIMES: u64 = 1 << 32;
        let cell = &self.0[thread % self.0.len()];
        let seen = cell.load(Ordering::Relaxed);
        let same = seen as u32 == page.0 && seen != u64::MAX;
        let now = match same {
            true => seen.saturating_add(TIMES),
            false => u64::from(page.0),
        };
        // Two threads of one cell: the loser's fault comes again.
        cell.store(now, Ordering::Relaxed);
        same.then_some((seen / TIMES) as u32)
    }
}

/// A fault on a page that is resident by our books: another thread was faster, or (after a failed
/// unmapping) it is still write-protected. Telling the kernel to lift protection is right in both
/// cases, but costs a shootdown, so only writes that come twice get it.
fn spurious(page: PageId, write: bool) {
    count(Counter::FaultSpurious, 1);
    let Some(times) = SPURIOUS.again(thread::thread_hash(), page) else {
        return;
    };
    if write && times >= 1 {
        // SAFETY: a resident page, protected by nobody who works on it: its word would be busy.
        let _ = unsafe { uffd().write_protect(page.addr(), PAGE_SIZE, false) };
    }
    if times > 16 {
        contradiction(page);
    }
}

/// The word says resident, yet the page keeps faulting: ask the kernel. A page that is really
/// absent is lost, and must not turn into zeros silently.
#[cold]
fn contradiction(page: PageId) {
    if regions::is_present(page) {
        yield_now();
        return;
    }
    let w = areas::word(page);
    let cur = word::load(w);
    if cur.state() == State::Resident && word::transition(w, cur, cur.with_state(State::Mapping)) {
        if regions::is_present(page) {
            word::publish(w, cur);
            return;
        }
        count(Counter::Anomaly, 1);
        report!(
            "page {:#x} (word {:#x}) vanished from memory; the program is told by SIGBUS",
            page.addr(),
            cur.0
        );
        table_gone(page);
        word::publish(w, cur.with_state(State::Poisoned));
    }
}

/// Books a page that stopped being resident.
pub fn table_gone(page: PageId) {
    areas::table().note_gone(page.index());
    accounting::note_resident(-1);
    accounting::uncharge(1);
}

/// Copies `n` pages from `src` to absent pages from `page` on, write-protected if asked; an error says how
/// many are now present. The caller holds the chunk's lock shared.
fn copy_in(page: PageId, src: usize, n: usize, protect: bool) -> Result<(), (usize, Errno)> {
    let (mut done, mut step) = (0, n);
    let mut tries = 0u32;
    while done < n {
        let dst = page.addr() + done * PAGE_SIZE;
        // SAFETY: the words of these pages are in our busy state, and src is our own memory.
        let p = unsafe {
            let bytes = step.min(n - done) * PAGE_SIZE;
            uffd().copy(dst, src + done * PAGE_SIZE, bytes, protect)
        };
        done += p.done_bytes / PAGE_SIZE;
        match p.stopped {
            None => {}
            // The range crosses a border between two of the kernel's mappings: page by page.
            Some(Errno(libc::ENOENT)) if step > 1 && n - done > 1 => step = 1,
            Some(Errno(libc::EAGAIN)) | Some(Errno(libc::EINTR)) => {
                tries += 1;
                if tries > 3 {
                    slow::during(Cause::KernelMemory, yield_now);
                }
            }
            Some(Errno(libc::ENOMEM)) if tries < 1000 => {
                tries += 1;
                slow::during(Cause::KernelMemory, || canvas_sys::proc::sleep_ns(100_000));
            }
            Some(e) => return Err((done, e)),
        }
    }
    Ok(())
}

/// Publishes pages `page..page+n` (present, words busy in our hands) as resident.
fn publish_run(page: PageId, n: usize, new_word: impl Fn(usize) -> Word) {
    areas::table().note_resident_run(page.index(), n);
    accounting::note_resident(n as i64);
    for i in 0..n {
        word::publish(areas::word(page.plus(i)), new_word(i));
    }
}

/// Pages that a stream touches ahead while the tenant is at its limit.
const AHEAD_SHORT: u32 = 15;

/// First touch: zeros, ahead of a sequential stream.
fn first_touch(page: PageId) -> Option<Resolved> {
    let plan = PREFETCHERS
        .streams
        .first_touch_plan(thread::thread_hash() as u32, page);
    let mut ahead = plan.count.min(areas::ZERO_PAGES as u32 - 1);
    if ahead > 0 && !room_for(i64::from(ahead) + 1) {
        // Direct reclaim makes room in batches anyway.
        ahead = ahead.min(AHEAD_SHORT);
    }
    let done = zeros(page, ahead, plan.stride);
    if done == Some(Resolved::Present) {
        count(Counter::FaultFirstTouch, 1);
    }
    done
}

/// Fills `page` with zeros before its first touch, where there is room below the limit: nothing leaves for it.
/// The caller is inside.
pub fn fill_if_room(page: PageId) {
    if room_for(1) {
        // Whatever comes of it: a touch finds out by itself.
        let _ = zeros(page, 0, 1);
    }
}

/// Makes an untouched page present, and up to `ahead` untouched neighbours of it.
fn zeros(page: PageId, ahead: u32, stride: i32) -> Option<Resolved> {
    // Claimed under the mapping lock: a mapping call sees each page as busy, or not at all.
    let Some(claim) = regions::claim_untouched(page, ahead, stride) else {
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
            word::publish(areas::word(first.plus(i)), Word(0));
        }
        touched::note_untouched(from.index() / BLOCK_PAGES, n as u32);
        accounting::uncharge(n as i64);
    };
    if !accounting::charge(got as i64) {
        accounting::uncharge(-(got as i64));
        give_up(from);
        return Some(Resolved::NoMemory);
    }
    let held = chunk::shared(from);
    let (present, error) = match copy_in(from, areas::zeros(), got, false) {
        Ok(()) => (got, None),
        // Present already, against our books: a page of zeros that nobody owned.
        Err((k, Errno(libc::EEXIST))) => (k + 1, None),
        Err((k, e)) => (k, Some(e)),
    };
    let epoch = EPOCH.now();
    let stays = claim.is_locked && held::take(present as i64);
    publish_run(from, present, |i| {
        let kind = if from.plus(i) == page {
            FillKind::FirstTouch
        } else {
            FillKind::FirstTouchAhead
        };
        let filled = CLOCK.params.on_fill(Word(0), kind, epoch);
        match stays {
            true => filled.set(flag::LOCKED),
            false => filled,
        }
    });
    drop(held);
    give_up(from.plus(present));
    state::seg().charge_footprint(present as i64);
    if page >= from.plus(present) {
        return match error {
            Some(Errno(libc::ENOENT)) | Some(Errno(libc::EFAULT)) | Some(Errno(libc::EINVAL)) => {
                Some(Resolved::NotOurs)
            }
            Some(_) => Some(Resolved::NoMemory),
            None => None,
        };
    }
    count(Counter::PagesZeroFilled, present as u64);
    trace::filled_ahead(from, present, page);
    Some(Resolved::Present)
}

/// Room for `n` pages without reclaim by this thread?
fn room_for(n: i64) -> bool {
    let seg = state::seg();
    accounting::limit().is_none_or(|l| seg.local_pages.load(Ordering::Relaxed) + n < l)
}

/// A touch of a page in the swap cache: back it goes.
fn second_chance(page: PageId, cur: Word) -> Option<Resolved> {
    if !accounting::charge(1) {
        return Some(Resolved::NoMemory);
    }
    let w = areas::word(page);
    if !word::transition(w, cur, cur.with_state(State::Filling)) {
        accounting::uncharge(1);
        return None;
    }
    let slot = slot::of_word(cur);
    let taken = cache::slots().take(slot);
    let proactive = cur.has_all(flag::PROACTIVE);
    let prefetched = cur.has(flag::PREFETCHED) && !proactive;
    let kind = if proactive {
        FaultKind::Demand
    } else if prefetched {
        FaultKind::PrefetchHit
    } else {
        FaultKind::SecondChance
    };
    // Unmapped for a trace: without it there would have been no fault, so nothing is learnt.
    let traced = cur.has(flag::SAMPLED);
    let plan = if traced {
        Plan::NONE
    } else {
        learn(page, kind)
    };
    let held = chunk::shared(page);
    if let Err((_, e)) = copy_in(page, cache::buffer(slot), 1, false) {
        // Only possible when the program pulled the mapping away under its own access.
        drop(held);
        accounting::uncharge(1);
        cache::slots().untake(taken);
        word::publish(w, cur);
        return Some(if e.0 == libc::ENOMEM {
            Resolved::NoMemory
        } else {
            Resolved::NotOurs
        });
    }
    let fill = match (prefetched || proactive, plan.stream) {
        (true, true) => FillKind::Stream,
        (true, false) => FillKind::Demand,
        (false, _) => FillKind::SecondChance,
    };
    let new = if traced {
        cur.with_entry(taken.entry)
            .with_state(State::Resident)
            .clear(flag::SAMPLED)
    } else {
        CLOCK
            .params
            .on_fill(cur.with_entry(taken.entry), fill, EPOCH.now())
    };
    let new = keep_or_release(new, taken.far_copy);
    publish_run(page, 1, |_| new);
    drop(held);
    cache::slots().finish(taken);
    if prefetched {
        PREFETCHERS.on_used(&plan);
        count(Counter::PrefetchUsed, u64::from(plan.stands_for));
        if plan.is_nearby() {
            count(Counter::PrefetchUsedNearby, u64::from(plan.stands_for));
        }
        count(Counter::CacheHitPrefetch, 1);
    } else if proactive {
        swapin::note_used();
    } else if !traced {
        count(Counter::FaultSecondChance, 1);
        note_refault(cur);
        state::slot().came_back.fetch_add(1, Ordering::Relaxed);
    }
    prefetch(&plan);
    Some(Resolved::Present)
}

/// A page came back that had the word `cur` while it was away.
fn note_refault(cur: Word) {
    let epochs = EPOCH.now().wrapping_sub(cur.epoch());
    let stripe = &state::seg().stripes[thread::thread_hash() % STRIPES];
    stripe.refaults[refault_bucket(epochs)].fetch_add(1, Ordering::Relaxed);
}

/// Marks the word of a page whose far copy did not verify, or is not where its entry says.
fn poison(page: PageId, cur: Word, why: LoadError) {
    use core::sync::atomic::AtomicU32;
    /// Told of; the rest is counted.
    const LINES: u32 = 8;
    static TOLD: AtomicU32 = AtomicU32::new(0);
    count(Counter::VerifyFailure, 1);
    let told = TOLD.load(Ordering::Relaxed);
    if told < LINES {
        TOLD.store(told + 1, Ordering::Relaxed);
        report!(
            "the far copy of page {:#x} does not verify ({}); the program is told by SIGBUS{}",
            page.addr(),
            match why {
                LoadError::Verify => "in the pool",
                LoadError::NoCopy => "its entry has none",
                LoadError::Deep(_) => "beyond the pool",
            },
            if told + 1 == LINES {
                " (further ones are counted as verify_failures only)"
            } else {
                ""
            }
        );
    }
    word::publish(areas::word(page), cur.with_state(State::Poisoned));
}

/// Does a far page that comes in without being written to come in write-protected? The caller holds its
/// chunk's lock shared.
fn comes_protected(page: PageId, cur: Word) -> bool {
    cur.entry().is_some()
        // A system call may still write to a page that was discarded under it.
        && cur.pins() == 0
        && tenant::reserves()
        && !areas::writes().expected(page, cur.epoch())
        && !protect::is_taken(page)
}

/// The word of a far page that was just brought in.
fn filled(cur: Word, kind: FillKind, protected: bool) -> Word {
    // A stream comes by again after everything else: what lies beyond the pool need not wait in it.
    if matches!(kind, FillKind::Stream | FillKind::StreamPrefetch) {
        pool().demote_home(cur.entry());
    }
    let new = CLOCK
        .params
        .on_fill(cur.clear(flag::DEEP), kind, EPOCH.now());
    let new = keep_or_release(new, true);
    if protected {
        new.set(flag::PROTECTED)
    } else {
        new
    }
}

/// The word `new` of a page that comes in, with its entry or without; `far_copy`: the entry holds one.
fn keep_or_release(new: Word, far_copy: bool) -> Word {
    let entry = new.entry();
    if fsm::on_swap_in(entry.is_some(), tenant::reserves()) == Reservation::Drop {
        pool().release(entry);
        return new.with_entry(SwapEntry::NONE).clear(flag::FAR_COPY);
    }
    if entry.is_some() && far_copy {
        new.set(flag::FAR_COPY)
    } else {
        new.clear(flag::FAR_COPY)
    }
}

/// A far page is needed now.
fn demand(page: PageId, cur: Word, write: bool, at: At) -> Option<Resolved> {
    if !accounting::charge(1) {
        return Some(Resolved::NoMemory);
    }
    let w = areas::word(page);
    if !word::transition(w, cur, cur.with_state(State::Filling)) {
        accounting::uncharge(1);
        return None;
    }
    let mut ctx = context::fill();
    let ctx = &mut *ctx;
    let mut loaded = pool().load(cur.entry(), &mut ctx.staging[0], &mut ctx.scratch);
    let mut deep_place = None;
    // The page is as before: the copy may come back, or is gone for good.
    let stay_far = |why| {
        accounting::uncharge(1);
        word::publish(w, cur);
        why
    };
    if let Err(LoadError::Deep(place)) = loaded {
        if tier::is_on_its_way(page, place) {
            // It comes alone or with its whole extent: raised into the pool, or read now after all.
            word::publish(w, cur);
            accounting::uncharge(1);
            slow::during(Cause::FarArrival, || tier::arrives(page, place));
            return None;
        }
        let read = slow::during(Cause::FarRead, || {
            tier::load(cur.entry(), place, &mut ctx.staging[0], &mut ctx.stored)
        });
        match read {
            Ok(()) => {
                loaded = Ok(());
                deep_place = Some(place);
            }
            // An error of that place still.
            Err(Lost::Damaged) => {}
            Err(Lost::Unreachable) => return Some(stay_far(Resolved::Unreachable)),
            Err(Lost::Gone) => return Some(stay_far(Resolved::Lost)),
        }
    }
    if let Err(why) = loaded {
        accounting::uncharge(1);
        poison(page, cur, why);
        return Some(Resolved::Poisoned);
    }
    tier::used(cur.entry());
    recordings::note(page);
    let plan = learn(page, FaultKind::Demand);
    // Its neighbours (FastSwap §V), when a stream needs them or the read unit says so. Now, while our
    // page's entry keeps the extent.
    match deep_place {
        Some(place) if plan.stream => tier::fetch(place.extent),
        Some(place) => {
            tier::comes_beside(place.extent);
            // What a stream has passed is not wanted again soon.
            tier::keep(cur.entry(), place, &ctx.stored);
        }
        None if cur.has(flag::REFERENCED) && !plan.stream => tier::used_beside(),
        None => {}
    }
    if plan.count == 0 {
        // Before the thread goes on, which may ask for its faults next.
        api::faults::push(page.addr() + at.offset, at.ip);
    }
    let held = chunk::shared(page);
    let protected = !write && comes_protected(page, cur);
    if let Err((_, e)) = copy_in(page, ctx.staging.as_ptr() as usize, 1, protected) {
        drop(held);
        accounting::uncharge(1);
        word::publish(w, cur);
        return Some(if e.0 == libc::ENOMEM {
            Resolved::NoMemory
        } else {
            Resolved::NotOurs
        });
    }
    let kind = if plan.stream {
        FillKind::Stream
    } else {
        FillKind::Demand
    };
    let new = filled(cur, kind, protected);
    publish_run(page, 1, |_| new);
    drop(held);
    state::slot().far_pages.fetch_sub(1, Ordering::Relaxed);
    count(Counter::FaultFar, 1);
    count(Counter::PagesIn, 1);
    if plan.stream {
        count(Counter::PagesInStream, 1);
    }
    note_refault(cur);
    state::slot().came_back.fetch_add(1, Ordering::Relaxed);
    app_tier::follow(page, at, &ctx.staging[0]);
    if plan.count != 0 {
        prefetch_with(&plan, ctx);
    }
    if let Some(p) = plan.behind {
        CLOCK.stream_passed(p);
    }
    Some(Resolved::Present)
}

fn prefetch(plan: &Plan) {
    if plan.count != 0 {
        let mut ctx = context::fill();
        prefetch_with(plan, &mut ctx);
    }
    if let Some(p) = plan.behind {
        CLOCK.stream_passed(p);
    }
}

/// Brings in what the plan names and is far, while there is room; contiguous pages with one copy.
fn prefetch_with(plan: &Plan, ctx: &mut context::Fill) {
    tier::absorb();
    let room = accounting::limit().map_or(i64::MAX, |l| {
        l - state::seg().local_pages.load(Ordering::Relaxed)
    });
    let most = (plan.count as i64).min(room - 1).max(0) as u32;
    let kind = if plan.stream {
        FillKind::StreamPrefetch
    } else {
        FillKind::Prefetch
    };
    let mut run = Pending {
        // What is no stream has no use for its neighbours beyond the pool.
        alone: plan.is_of_array() && !plan.stream,
        ..Pending::default()
    };
    let mut done = Done {
        reached: 0,
        issued: 0,
        marked: 0,
    };
    let unmapped = plan.unmapped(most, |p| word::load(areas::word(p)).state() == State::Far);
    for i in 0..most {
        done.reached = i + 1;
        let Some(page) = plan.page(i) else { break };
        let Some(cur) = run.decode(page, ctx, kind) else {
            continue;
        };
        done.issued += 1;
        recordings::note_ahead(page);
        trace::note(page, Kind::Prefetch);
        let leave = unmapped.contains(i);
        // For a trace the touch of a sampled page must be seen, without telling the prefetcher.
        let mark = if leave {
            flag::PREFETCHED
        } else {
            flag::SAMPLED
        };
        if (leave || trace::records(page)) && leave_in_cache(page, cur, &ctx.staging[run.n], mark) {
            done.marked += u32::from(leave);
            if leave {
                PREFETCHERS.on_left(page, plan);
            }
            run.flush(ctx, kind);
            continue;
        }
        run.add(page, cur);
    }
    run.flush(ctx, kind);
    if plan.stream {
        tier::fetch_for_stream(plan.start.0, plan.stride, plan.count);
    }
    PREFETCHERS.carried_out(thread::thread_hash() as u32, plan, &done);
    if done.issued > 0 {
        if plan.is_nearby() {
            count(Counter::PrefetchIssuedNearby, u64::from(done.issued));
        } else if plan.is_of_array() {
            count(Counter::AppIssuedArrays, u64::from(done.issued));
        }
        count(Counter::PrefetchIssued, u64::from(done.issued));
        count(Counter::PagesIn, u64::from(done.issued));
        if plan.stream {
            count(Counter::PagesInStream, u64::from(done.issued));
        }
        if accounting::short_of_room() {
            accounting::make_room();
        }
    }
}

/// How pages beyond the pool are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beyond {
    /// Each alone.
    Alone,
    /// With all that went out with them.
    Extents,
}

/// What [`swap_in`] came to.
#[derive(Default)]
pub struct SwappedIn {
    /// Pages that are resident now.
    pub mapped: u32,
    /// Pages that are in the swap cache now.
    pub sampled: u32,
    /// The first page that lies beyond the pool: it was asked for, and can be had from the pool later.
    pub beyond: Option<PageId>,
    /// The first page that was not tried.
    pub not_tried: Option<PageId>,
}

/// Brings in those of `pages` that are far, as long as `goes_on`; best in ascending order. They are charged already.
/// What lies beyond the pool is asked for by `beyond`. The n-th is left in the swap cache where `sample` says so, so
/// that its use is seen.
pub fn swap_in(
    pages: &[PageId],
    beyond: Beyond,
    goes_on: impl Fn() -> bool,
    sample: impl Fn(u32) -> bool,
) -> SwappedIn {
    tier::absorb();
    let mut ctx = context::fill();
    let ctx = &mut *ctx;
    let kind = FillKind::Prefetch;
    let mut run = Pending {
        charged: true,
        alone: beyond == Beyond::Alone,
        ..Pending::default()
    };
    let (mut done, mut decoded) = (SwappedIn::default(), 0);
    for page in pages {
        // Looked at as often as pages are mapped.
        if run.n == 0 && !goes_on() {
            done.not_tried = Some(*page);
            break;
        }
        let Some(cur) = run.decode(*page, ctx, kind) else {
            let now = word::load(areas::word(*page));
            if now.state() == State::Far && now.has(flag::DEEP) {
                done.beyond.get_or_insert(*page);
            }
            continue;
        };
        let n = decoded;
        decoded += 1;
        if sample(n) && leave_in_cache(*page, cur, &ctx.staging[run.n], flag::PROACTIVE) {
            done.sampled += 1;
            run.flush(ctx, kind);
        } else {
            run.add(*page, cur);
        }
    }
    run.flush(ctx, kind);
    done.mapped = run.mapped;
    count(Counter::PagesIn, u64::from(done.mapped + done.sampled));
    done
}

/// Asks for a page that lies beyond the pool, by `ask` with its place while the page is ours: it can be had from the
/// pool later. What `ask` says; false when it does not lie there.
pub fn ask_for(page: PageId, ask: impl FnOnce(DeepPlace) -> bool) -> bool {
    let w = areas::word(page);
    let cur = word::load(w);
    if cur.state() != State::Far
        || !cur.has(flag::DEEP)
        || cur.has(flag::STUCK)
        || !word::transition(w, cur, cur.with_state(State::Filling))
    {
        return false;
    }
    let asked = pool().deep_place(cur.entry()).is_some_and(ask);
    word::publish(w, cur);
    asked
}

/// Contiguous pages decoded into staging, waiting for their copy.
struct Pending {
    first: PageId,
    n: usize,
    /// They are charged before.
    charged: bool,
    /// What lies beyond the pool is read alone.
    alone: bool,
    /// Pages that were mapped.
    mapped: u32,
    old: [Word; STAGING_PAGES],
}

impl Default for Pending {
    fn default() -> Pending {
        Pending {
            first: PageId(0),
            n: 0,
            charged: false,
            alone: false,
            mapped: 0,
            old: [Word(0); STAGING_PAGES],
        }
    }
}

impl Pending {
    /// Claims `page` and decodes it behind those that wait; if it cannot join them, they go first. Its
    /// word before, when it was far and in the pool: then it is the caller's.
    fn decode(&mut self, page: PageId, ctx: &mut context::Fill, kind: FillKind) -> Option<Word> {
        let w = areas::word(page);
        let cur = word::load(w);
        let joins = self.n > 0
            && page == self.first.plus(self.n)
            && self.n < STAGING_PAGES
            && !page.index().is_multiple_of(CHUNK_PAGES);
        if !joins {
            self.flush(ctx, kind);
        }
        if cur.state() != State::Far
            || cur.has(flag::STUCK)
            || !word::transition(w, cur, cur.with_state(State::Filling))
        {
            return None;
        }
        match pool().load(cur.entry(), &mut ctx.staging[self.n], &mut ctx.scratch) {
            Ok(()) => {
                tier::used(cur.entry());
                Some(cur)
            }
            Err(LoadError::Deep(place)) => {
                // Nobody waits here: it comes to the pool, and from there with the next faults.
                match self.alone {
                    true => {
                        tier::read_ahead(page, place);
                    }
                    false => tier::fetch(place.extent),
                }
                word::publish(w, cur);
                None
            }
            Err(why) => {
                poison(page, cur, why);
                None
            }
        }
    }

    /// Keeps a decoded page until the next flush.
    fn add(&mut self, page: PageId, cur: Word) {
        if self.n == 0 {
            self.first = page;
        }
        self.old[self.n] = cur;
        self.n += 1;
    }

    fn flush(&mut self, ctx: &context::Fill, kind: FillKind) {
        let n = core::mem::take(&mut self.n);
        if n == 0 {
            return;
        }
        if !self.charged {
            state::seg().charge_local(state::slot(), n as i64);
        }
        let held = chunk::shared(self.first);
        let old = &self.old;
        let protected = old[..n].iter().all(|w| comes_protected(self.first, *w));
        let present = match copy_in(self.first, ctx.staging.as_ptr() as usize, n, protected) {
            Ok(()) => n,
            Err((k, _)) => k,
        };
        publish_run(self.first, present, |i| {
            // The pool was only the way for what proactive swap-in had asked for from beyond it.
            if self.charged && old[i].has(flag::REFERENCED) {
                pool().demote_home(old[i].entry());
            }
            filled(old[i], kind, protected)
        });
        for (i, cur) in old.iter().enumerate().take(n).skip(present) {
            word::publish(areas::word(self.first.plus(i)), *cur);
        }
        drop(held);
        state::slot()
            .far_pages
            .fetch_sub(present as i64, Ordering::Relaxed);
        self.mapped += present as u32;
        if present < n && !self.charged {
            accounting::uncharge((n - present) as i64);
        }
    }
}

/// Puts a prefetched page into the swap cache, unmapped, so that its use will be seen.
fn leave_in_cache(page: PageId, cur: Word, data: &canvas_types::PageBuf, mark: u64) -> bool {
    let mut slot = [slot::Place::default()];
    let (got, fresh) = cache::slots().alloc(&mut slot);
    if got == 0 {
        return false;
    }
    if fresh > 0 {
        state::seg().charge_local(state::slot(), 1);
        state::slot().cached_pages.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the slot is ours alone until it is filled.
    unsafe {
        core::ptr::copy_nonoverlapping(
            data.as_ptr(),
            cache::buffer(slot[0].slot()) as *mut u8,
            PAGE_SIZE,
        )
    };
    cache::slots().fill(slot[0], page, cur.entry(), cur.entry().is_some());
    let new = cur
        .with_state(State::Cached)
        .with_entry(slot::in_word(slot[0].slot()))
        .clear(flag::DEEP | flag::PROACTIVE)
        .set(mark);
    word::publish(areas::word(page), new);
    cache::slots().enqueue(&slot);
    state::slot().far_pages.fetch_sub(1, Ordering::Relaxed);
    true
}
