//! Fault handling: [`resolve`] makes a page of the managed range present, for both ways of fault delivery.
//!
//! The caller is inside [`crate::base::freeze`] with all signals blocked. Nothing here allocates from the program's
//! heap, takes a lock that the program can hold, or calls a hooked function.

use canvas_core::far::fetch::Lost;
use canvas_core::pager::clock::FillKind;
use canvas_core::pager::prefetch::advised::Advice;
use canvas_core::pager::prefetch::choice::Surroundings;
use canvas_core::pager::prefetch::readahead::Area;
use canvas_core::pager::prefetch::{Done, FaultKind, Plan};
use canvas_core::pager::slot;
use canvas_core::pager::table::CHUNK_PAGES;
use canvas_core::pager::trace::Kind;
use canvas_core::pager::word::{self, State, Word, flag};
use canvas_core::swap::LoadError;
use canvas_core::swap::fsm::{self, Reservation};
use canvas_shm::Counter;
use canvas_shm::segment::{STRIPES, refault_bucket};
use canvas_shm::slow::Cause;
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

impl Resolved {
    /// Explains, for a message, why the page is not present.
    pub fn reason(self) -> &'static str {
        match self {
            Resolved::Present => "it is present",
            Resolved::NotOurs => "canvas does not manage it",
            Resolved::Poisoned => "its far copy came back damaged",
            Resolved::Unreachable => "its far copy cannot be reached within -o far-wait",
            Resolved::Lost => {
                "no far copy of it is left: the donors that held it have lost it (--copies 2, 3 or 1+disk keeps more than one)"
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

/// Like [`resolve`], for a fault whose exact location is known.
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

/// Handles a write to a page that came in write-protected.
fn unprotect(page: PageId, cur: Word) -> Option<Resolved> {
    let w = areas::word(page);
    // Reclaim must not rely on the protection while it is being lifted, so the page is busy meanwhile.
    if !word::transition(w, cur, cur.with_state(State::Mapping)) {
        return None;
    }
    // SAFETY: the page is busy in our hands, and its word says that it is protected.
    match unsafe { uffd().write_protect(page.addr(), PAGE_SIZE, false) } {
        Ok(()) => {
            let mut new = cur.clear(flag::PROTECTED);
            // The far copy is stale from now on. While far memory has room it is kept, to store only the words that
            // differ.
            if reclaim::copies_are_in_the_way() && pool().drop_copy(cur.entry()) {
                new = new.clear(flag::FAR_COPY);
                count(Counter::PoolCopiesStale, 1);
            }
            word::publish(w, new);
            areas::writes().met_protection(page);
            count(Counter::FaultFirstWrite, 1);
            Some(Resolved::Present)
        }
        // The program has mapped something else there.
        Err(_) => {
            word::publish(w, cur);
            Some(Resolved::NotOurs)
        }
    }
}

/// Records a fault that waited for a prefetch of its page.
fn late(page: PageId, cur: Word) {
    count(Counter::PrefetchLate, 1);
    // The page is known to be used. If the CAS fails, another thread has already recorded that.
    let _ = word::transition(areas::word(page), cur, cur.clear(flag::PREFETCHED));
    prefetch(&learn(page, FaultKind::PrefetchLate));
}

/// Reports a fault to the prefetchers; returns what they want to be brought in.
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

/// The last page with a spurious fault and how often it faulted, in one cell per group of threads: two threads that
/// fault on two pages must not reset each other's count.
static SPURIOUS: Repeats = Repeats([const { AtomicU64::new(u64::MAX) }; 64]);

/// Counts consecutive faults on one page. A cell holds the page in its low half and the count above it.
struct Repeats([AtomicU64; 64]);

impl Repeats {
    /// Records a fault on `page` by the thread with this number. Returns how often the page had faulted before in a
    /// row, or `None` if the last fault in the cell was on another page.
    fn again(&self, thread: usize, page: PageId) -> Option<u32> {
        const TIMES: u64 = 1 << 32;
        let cell = &self.0[thread % self.0.len()];
        let seen = cell.load(Ordering::Relaxed);
        let same = seen as u32 == page.0 && seen != u64::MAX;
        let now = match same {
            true => seen.saturating_add(TIMES),
            false => u64::from(page.0),
        };
        // If two threads share the cell, the fault of the one that loses is repeated anyway.
        cell.store(now, Ordering::Relaxed);
        same.then_some((seen / TIMES) as u32)
    }
}

/// Handles a fault on a page that its word says is resident: another thread was faster, or the page is still
/// write-protected after a failed unmapping. Lifting the protection is right in both cases but costs a shootdown, so
/// only repeated write faults do it.
fn spurious(page: PageId, write: bool) {
    count(Counter::FaultSpurious, 1);
    let Some(times) = SPURIOUS.again(thread::thread_hash(), page) else {
        return;
    };
    if write && times >= 1 {
        // SAFETY: a resident page that no thread is working on (or its word would be busy), so no protection of theirs
        // is lifted.
        let _ = unsafe { uffd().write_protect(page.addr(), PAGE_SIZE, false) };
    }
    if times > 16 {
        contradiction(page);
    }
}

/// The word says resident, yet the page keeps faulting: asks the kernel. A page that is really absent is lost, and must
/// not silently turn into zeros.
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
            "page {:#x} (word {:#x}) vanished from memory; the program gets SIGBUS",
            page.addr(),
            cur.0
        );
        table_gone(page);
        word::publish(w, cur.with_state(State::Poisoned));
    }
}

/// Updates table and charge for a page that stopped being resident.
pub fn table_gone(page: PageId) {
    areas::table().note_gone(page.index());
    accounting::note_resident(-1);
    accounting::uncharge(1);
}

/// Copies `n` pages from `src` to the absent pages from `page` on, write-protected if `protect`. An error includes how
/// many pages are now present. The caller holds the chunk's lock shared.
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
            // The range crosses a border between two of the kernel's mappings: copy page by page.
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

/// Handles a first touch: fills the page, and pages ahead in a sequential stream, with zeros.
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

/// Fills `page` with zeros before its first touch if there is room below the limit, so that nothing is evicted for it.
/// The caller is inside `freeze::enter`.
pub fn fill_if_room(page: PageId) {
    if room_for(1) {
        // Failure does not matter here: a touch will fault and find out.
        let _ = zeros(page, 0, 1);
    }
}

/// Makes an untouched page present, and up to `ahead` untouched neighbours of it.
fn zeros(page: PageId, ahead: u32, stride: i32) -> Option<Resolved> {
    // Claimed under the mapping lock, so a mapping call sees each page either as busy or not at all.
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
        // Present, although its word said untouched: a page of zeros that nobody owned.
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

/// Whether there is room for `n` pages without reclaim by this thread.
fn room_for(n: i64) -> bool {
    let seg = state::seg();
    accounting::limit().is_none_or(|l| seg.local_pages.load(Ordering::Relaxed) + n < l)
}

/// Handles a swap-cache hit: maps the cached page again.
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
    // The page was unmapped only for a trace. Without the trace there would have been no fault, so nothing is learnt.
    let traced = cur.has(flag::SAMPLED);
    let plan = if traced {
        Plan::NONE
    } else {
        learn(page, kind)
    };
    let held = chunk::shared(page);
    if let Err((_, e)) = copy_in(page, cache::buffer(slot), 1, false) {
        // Only possible if the program unmapped the page during its own access.
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
        count(Counter::CacheHitVictim, 1);
        note_refault(cur);
        state::slot().came_back.fetch_add(1, Ordering::Relaxed);
    }
    prefetch(&plan);
    Some(Resolved::Present)
}

/// Counts the refault of a page whose word was `cur` while it was evicted, by the epochs since its eviction.
fn note_refault(cur: Word) {
    let epochs = EPOCH.now().wrapping_sub(cur.epoch());
    let stripe = &state::seg().stripes[thread::thread_hash() % STRIPES];
    stripe.refaults[refault_bucket(epochs)].fetch_add(1, Ordering::Relaxed);
}

/// Marks the page as poisoned: its far copy failed verification, or is not where its entry says.
fn poison(page: PageId, cur: Word, why: LoadError) {
    use core::sync::atomic::AtomicU32;
    /// Damaged pages that are reported by a line each; further ones are only counted.
    const LINES: u32 = 8;
    static TOLD: AtomicU32 = AtomicU32::new(0);
    count(Counter::VerifyFailure, 1);
    let told = TOLD.load(Ordering::Relaxed);
    if told < LINES {
        TOLD.store(told + 1, Ordering::Relaxed);
        report!(
            "the far copy of page {:#x} does not verify ({}); the program gets SIGBUS{}",
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

/// Whether a far page that is faulted in by a read is mapped write-protected. The caller holds its chunk's lock shared.
fn comes_protected(page: PageId, cur: Word) -> bool {
    cur.entry().is_some()
        // A system call may still write to a page that was discarded during the call.
        && cur.pins() == 0
        && tenant::reserves()
        && !areas::writes().expected(page, cur.epoch())
        && !protect::is_taken(page)
}

/// The word of a far page that was just brought in.
fn filled(cur: Word, kind: FillKind, protected: bool) -> Word {
    // A stream touches this page again only after everything else, so pages that came from beyond the pool go back
    // there rather than wait in the pool.
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

/// Decides whether a page that comes in keeps its entry, and returns `new` accordingly; `far_copy`: the entry holds a
/// copy.
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

/// Handles a fault on a far page.
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
    // Leaves the page far: the copy may become reachable again, or is lost for good.
    let stay_far = |why| {
        accounting::uncharge(1);
        word::publish(w, cur);
        why
    };
    if let Err(LoadError::Deep(place)) = loaded {
        if tier::is_on_its_way(page, place) {
            // The page is on its way, alone or with its extent. When it arrives in the pool, or fails to, the fault is
            // retried.
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
            // All copies beyond the pool are damaged; `why` still says where.
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
    // Fetch the page's neighbours beyond the pool (FastSwap §V) if a stream needs them or the far read size says so. Do
    // it now, while this page's entry keeps the extent.
    match deep_place {
        Some(place) if plan.stream => tier::fetch(place.extent),
        Some(place) => {
            tier::comes_beside(place.extent);
            // Pages that a stream has passed are not needed again soon, so only other pages are kept.
            tier::keep(cur.entry(), place, &ctx.stored);
        }
        None if cur.has(flag::REFERENCED) && !plan.stream => tier::used_beside(),
        None => {}
    }
    if plan.count == 0 {
        // Before the thread goes on, because it may ask for its faults next.
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

/// Brings in those pages of the plan that are far, while there is room. Contiguous pages are mapped by one copy.
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
        // Pages of an array that form no stream do not need their neighbours beyond the pool.
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
        // For a trace, the touch of a sampled page must fault, but without informing the prefetcher.
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
    /// Each page alone.
    Alone,
    /// With all pages of its extent.
    Extents,
}

/// Result of [`swap_in`].
#[derive(Default)]
pub struct SwappedIn {
    /// Pages that are resident now.
    pub mapped: u32,
    /// Pages that are in the swap cache now.
    pub sampled: u32,
    /// The first page that lies beyond the pool. It was requested and will be in the pool later.
    pub beyond: Option<PageId>,
    /// The first page that was not tried.
    pub not_tried: Option<PageId>,
}

/// Brings in those of `pages` that are far, while `goes_on` returns true; best in ascending order. The caller has
/// charged them. `beyond` says how pages beyond the pool are requested. The n-th page is left in the swap cache if
/// `sample(n)` is true, so that its use is seen.
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
        // Checked once per copy.
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

/// Requests a page that lies beyond the pool, so that it is in the pool later. Calls `ask` with the page's location
/// while the page is claimed and returns its result; false if the page is not beyond the pool.
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

/// Contiguous pages decoded into staging, waiting to be copied.
struct Pending {
    first: PageId,
    n: usize,
    /// The caller has charged them.
    charged: bool,
    /// Read pages beyond the pool alone, without their extents.
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
    /// Claims `page` and decodes it behind the pending pages, which are flushed first if it cannot join them. Returns
    /// its previous word if it was far and in the pool; the page is then the caller's.
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
                // Nothing waits here: the page comes into the pool, and later faults take it from there.
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
            // Proactive swap-in had requested the page from beyond the pool, and it passed through the pool only for
            // that: demote it there again.
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
