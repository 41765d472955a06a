//! Reclaim: unmaps the pages that the policy chose into the swap cache, and writes the cache's oldest pages out.
//!
//! Unmapping a batch costs two kinds of TLB shootdown, whatever the number of pages: one per span for write-protection,
//! and one for all discards together. In between, each page is copied to its slot: it is protected, so it cannot
//! change, and still mapped, so it can be read. This works after a fork (where UFFDIO_MOVE refuses shared pages) and
//! for any protection that allows reading.

use canvas_core::pager::clock::{self, Run, drop_far_copy, take_reservation};
use canvas_core::pager::slot;
use canvas_core::pager::table::CHUNK_PAGES;
use canvas_core::pager::trace::Kind as TraceKind;
use canvas_core::pager::word::{self, State, Word, flag};
use canvas_core::swap::fsm;
use canvas_core::swap::slots::SLAB_CHARGE_BYTES;
use canvas_core::swap::{EntryFrom, Kind, StoreError};
use canvas_shm::Counter;
use canvas_shm::slow::Cause;
use canvas_sys::{mem, proc};
use canvas_types::{PAGE_SIZE, PageId, SwapEntry};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::base::{
    areas, held, slow, smaps, state,
    state::{CLOCK, EPOCH, PREFETCHERS, count, uffd},
    tenant,
};
use crate::far_tier::{
    pool::{has_no_memory, pool},
    tier,
};
use crate::paging::{
    accounting, ages, cache,
    context::{self, BATCH_PAGES, Reclaim},
    devices, fault, fork_accounting, in_line, nodes, swapin, trace,
};

/// Pages that reclaim has ever unmapped.
static EVICTED: AtomicU64 = AtomicU64::new(0);

/// Pages of this process that reclaim has ever unmapped.
pub fn evicted_pages() -> u64 {
    EVICTED.load(Ordering::Relaxed)
}

static PRESSURE: AtomicBool = AtomicBool::new(false);

/// Whether the far limit is still reached. Called before new memory is refused: the program may have freed some since.
pub fn far_limit_reached() -> bool {
    let seg = state::seg();
    if seg.far_full.load(Ordering::Relaxed) == 0 {
        return false;
    }
    pool().trim();
    judge_far_pressure();
    if let Some(limit) = accounting::limit()
        && seg.local_pages.load(Ordering::Relaxed) < limit - 2 * accounting::gaps(limit).1
    {
        seg.far_full.store(0, Ordering::Relaxed);
    }
    seg.far_full.load(Ordering::Relaxed) != 0
}

/// Which thread reclaims, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// The reclaim thread, ahead of need.
    Background,
    /// A thread that charges memory, ahead of need ([`in_line`]).
    InLine,
    /// A thread that charges memory past the limit, or that makes room during a device's call.
    Direct,
}

/// Pages that a round ahead of need frees at most.
pub const ROUND_PAGES: i64 = 128;

/// Frees about `want` pages of local memory; returns how many were unmapped. The caller is inside `freeze::enter` with
/// signals blocked.
pub fn run(want: u32, whose: Whose) -> u32 {
    let mut ctx = context::reclaim();
    let ctx = &mut *ctx;
    judge_far_pressure();
    let want = want.min(cache::slots().capacity() / 2).max(1);
    if cache::slots().available() < want {
        write_out(ctx, want - cache::slots().available());
    }
    let Some(_batch) = devices::batch() else {
        return 0;
    };
    ctx.batch.clear();
    let most = (BATCH_PAGES + 1 - CHUNK_PAGES) as u32;
    let mut n = 0;
    if is_refused() {
        // Dirty pages stay as long as clean ones can be evicted.
        n = CLOCK.select_clean(&areas::table(), want.min(most), &mut ctx.batch);
    }
    if n == 0 {
        let ask = want.min(cache::slots().available()).min(most);
        if ask == 0 {
            return 0;
        }
        n = CLOCK.select(&areas::table(), ask, &mut ctx.batch);
        drop_what_is_hot(ctx);
    }
    if n == 0 {
        return 0;
    }
    let unmapped = unmap(ctx, false);
    count(
        match whose {
            Whose::Background => Counter::ReclaimBackground,
            Whose::InLine => Counter::ReclaimInLine,
            Whose::Direct => Counter::ReclaimDirect,
        },
        u64::from(unmapped),
    );
    unmapped
}

/// Evicts those of the pages `from..to`, chosen by the program, that can leave, one batch at most. Returns the first
/// page not examined (`from` if nothing can leave now) and how many pages were unmapped. The caller is inside
/// `freeze::enter`.
pub fn run_of(from: u32, to: u32) -> (u32, u32) {
    let mut ctx = context::reclaim();
    let ctx = &mut *ctx;
    judge_far_pressure();
    let want = (ROUND_PAGES as u32)
        .min(cache::slots().capacity() / 2)
        .max(1);
    if cache::slots().available() < want {
        write_out(ctx, want - cache::slots().available());
    }
    let ask = want.min(cache::slots().available());
    if ask == 0 {
        return (from, 0);
    }
    let Some(_batch) = devices::batch() else {
        return (from, 0);
    };
    ctx.batch.clear();
    let next = clock::take(&areas::table(), from..to, ask, &mut ctx.batch);
    if ctx.batch.pages() == 0 {
        return (next, 0);
    }
    let unmapped = unmap(ctx, false);
    count(Counter::ReclaimBackground, u64::from(unmapped));
    (next, unmapped)
}

/// Watches the far limit: from 75 % of it on, hot pages lose their reservations (Canvas §5.1).
fn judge_far_pressure() {
    let seg = state::seg();
    let (deep_used, deep_limit) = tier::used_and_limit();
    let (on_nodes, nodes_limit) = nodes::used_and_limit();
    let used = seg.pool_bytes.load(Ordering::Relaxed).max(0) as u64 + deep_used;
    let used = used.saturating_add(on_nodes);
    let limit = (seg.pool_bound() as u64 + deep_limit).saturating_add(nodes_limit);
    // If nothing can be written, a page that gave up its copy could not be evicted again.
    let gives_up = !tier::is_closed();
    let now = gives_up && fsm::pressure(PRESSURE.load(Ordering::Relaxed), used, limit);
    PRESSURE.store(now, Ordering::Relaxed);
    CLOCK.set_pressure(now);
    tenant::set_nearly_full(gives_up && fsm::nearly_full(used, limit));
    if seg.far_full.load(Ordering::Relaxed) != 0 && used < limit / 100 * 95 {
        seg.far_full.store(0, Ordering::Relaxed);
    }
}

/// Whether far memory, the pool or this host is so short that copies of resident pages take room that others need.
pub fn copies_are_in_the_way() -> bool {
    let seg = state::seg();
    PRESSURE.load(Ordering::Relaxed)
        || seg.host.is_short()
        || seg.pool_bytes.load(Ordering::Relaxed) > seg.pool_bound() / 8 * 7
}

/// Takes from hot pages what they will not need for long: their reservations while far memory is short, else their far
/// copies.
fn drop_what_is_hot(ctx: &Reclaim) {
    if tier::is_closed() {
        return;
    }
    let short = PRESSURE.load(Ordering::Relaxed);
    for page in ctx.batch.dropped_candidates() {
        let w = areas::word(*page);
        if short {
            if let Some(entry) = take_reservation(w) {
                pool().release(entry);
                count(Counter::EntryReservationDropped, 1);
            }
        } else if drop_far_copy(w, |entry| pool().drop_pooled_copy(entry)) {
            count(Counter::PoolCopiesHot, 1);
        }
    }
}

/// Pages of a full local memory: the limit, or what the tenant has resident if that is less.
fn epoch_pages() -> i64 {
    let seg = state::seg();
    let there = seg.local_pages.load(Ordering::Relaxed);
    seg.local_limit_pages()
        .map_or(there, |limit| limit.min(there))
        .max(1)
}

/// Unmaps the batch into the swap cache; returns the pages unmapped. `traced`: the pages are unmapped only so that a
/// trace sees their next touch; the policy learns nothing from it.
pub fn unmap(ctx: &mut Reclaim, traced: bool) -> u32 {
    // Pages that another process copies from or to stay.
    let batch = state::slot().lend.batch();
    if let Some(pages) = batch.stays() {
        ctx.batch.leave_out(pages, |r| give_up(r, false));
    }
    let pages = ctx.batch.dirty_pages() as usize;
    let (got, fresh) = cache::slots().alloc(&mut ctx.slots[..pages]);
    if fresh > 0 {
        // Pages of slots that come into existence are charged here; the kernel copied nothing for them.
        state::FAULTS_WITHOUT_COPY.fetch_add(fresh as u64, Ordering::Relaxed);
        state::seg().charge_local(state::slot(), fresh as i64);
        state::slot()
            .cached_pages
            .fetch_add(fresh as i64, Ordering::Relaxed);
        let total: i64 = state::slot().cached_pages.load(Ordering::Relaxed);
        state::seg()
            .cached_pages_peak
            .fetch_max(total, Ordering::Relaxed);
    }
    // The policy always finishes a chunk that it has begun: pages without a slot stay.
    ctx.batch.truncate(got as u32, |r| give_up(r, false));
    let (mut n, mut clean, mut ranges) = (0, 0, 0);
    ctx.protected.protect(
        ctx.batch.runs(),
        |r| {
            ctx.ranges[ranges] = libc::iovec {
                iov_base: r.start.addr() as *mut _,
                iov_len: r.len as usize * PAGE_SIZE,
            };
            ranges += 1;
            let (pages, filled) = match r.clean {
                true => (&mut ctx.clean, &mut clean),
                false => (&mut ctx.pages, &mut n),
            };
            for page in r.pages() {
                pages[*filled] = page;
                *filled += 1;
            }
        },
        give_up,
    );
    if n < got {
        cache::slots().give_back(&ctx.slots[n..got]);
    }
    if n + clean == 0 {
        ctx.protected.release();
        return 0;
    }
    for (page, slot) in ctx.pages[..n].iter().zip(&ctx.slots[..n]) {
        // SAFETY: the page is present and write-protected (its word is Evicting in our hands, and pages that cannot be
        // read are marked STUCK and never selected); the slot is ours alone.
        unsafe {
            core::ptr::copy_nonoverlapping(
                page.addr() as *const u8,
                cache::buffer(slot.slot()) as *mut u8,
                PAGE_SIZE,
            )
        };
    }
    let given_up = &ctx.ranges[..ranges];
    // SAFETY: every page of the ranges is Evicting in our hands, and copied or clean: its contents are not needed.
    let discard = || unsafe { discard(given_up) };
    let (gone, still_shared) = tenant::give_up_shared(|| smaps::shared_in(given_up), discard);
    if !gone {
        let copied = n;
        n = keep_what_stays(&mut ctx.pages[..n], |i, j| ctx.slots.swap(i, j));
        cache::slots().give_back(&ctx.slots[n..copied]);
        clean = keep_what_stays(&mut ctx.clean[..clean], |_, _| ());
    }
    ctx.protected.release();
    in_line::note_batch(n, clean);
    let evicted = if traced { 0 } else { (n + clean) as u32 };
    EVICTED.fetch_add(u64::from(evicted), Ordering::Relaxed);
    let epoch = EPOCH.advance(evicted, epoch_pages() as u64);
    for (page, slot) in ctx.pages[..n].iter().zip(&ctx.slots[..n]) {
        enter_cache(*page, *slot, epoch, traced);
    }
    cache::slots().enqueue(&ctx.slots[..n]);
    ctx.clean[..clean]
        .iter()
        .for_each(|p| leave_clean(*p, epoch));
    accounting::note_gave((n + clean) as i64);
    accounting::uncharge((n + clean) as i64);
    if still_shared > 0 {
        tenant::keep_charge(still_shared);
    }
    if state::THREAD_MODE.load(Ordering::Relaxed) {
        // Threads that faulted on the protection wait for a wake-up, and then fault again.
        for r in &ctx.ranges[..ranges] {
            uffd().wake(r.iov_base as usize, r.iov_len);
        }
    }
    if !traced {
        count(Counter::ReclaimCopyPath, n as u64);
    }
    count(Counter::PagesOut, clean as u64);
    count(Counter::PagesOutClean, clean as u64);
    count(Counter::PagesOutProtected, clean as u64);
    (n + clean) as u32
}

/// Enters a page into the swap cache after it was copied to its slot and discarded.
fn enter_cache(page: PageId, slot: slot::Place, epoch: u8, traced: bool) {
    let w = areas::word(page);
    let cur = word::load(w);
    debug_assert_eq!(cur.state(), State::Evicting);
    cache::slots().fill(slot, page, cur.entry(), cur.has(flag::FAR_COPY));
    areas::table().note_gone(page.index());
    let new = if traced {
        cur.with_epoch(epoch).set(flag::SAMPLED)
    } else {
        trace::note(page, TraceKind::Evict);
        CLOCK.params.on_evict(cur, epoch).clear(flag::SAMPLED)
    };
    let new = new.clear(flag::PREFETCHED | flag::PROTECTED);
    word::publish(
        w,
        new.with_state(State::Cached)
            .with_entry(slot::in_word(slot.slot())),
    );
}

/// Makes a clean page far after it was discarded: its far copy is now the only one.
fn leave_clean(page: PageId, epoch: u8) {
    let w = areas::word(page);
    let cur = word::load(w);
    debug_assert!(cur.state() == State::Evicting && cur.is_clean());
    areas::table().note_gone(page.index());
    areas::writes().left_clean(page);
    trace::note(page, TraceKind::Evict);
    // Count it before a fault can take it back.
    state::slot().far_pages.fetch_add(1, Ordering::Relaxed);
    let new = CLOCK.params.on_evict(cur, epoch);
    word::publish(w, far_word(new, cur.entry()));
}

/// Leaves the pages of a run where they are. `refused`: the kernel would not protect them; do not ask it again.
fn give_up(run: Run, refused: bool) {
    for page in run.pages() {
        let w = areas::word(page);
        let mut back = word::load(w).with_state(State::Resident);
        if refused {
            // The caller that asked the kernel has lifted any protection.
            back = back.set(flag::STUCK).clear(flag::PROTECTED);
        }
        word::publish(w, back);
    }
    if state::THREAD_MODE.load(Ordering::Relaxed) {
        uffd().wake(run.start.addr(), run.len as usize * PAGE_SIZE);
    }
}

/// Discards the contents of the ranges, with a single TLB flush if the kernel supports that. Returns false if some
/// contents may remain.
///
/// # Safety
///
/// The caller owns the contents of all pages of the ranges, and needs them no longer.
pub unsafe fn discard(ranges: &[libc::iovec]) -> bool {
    if !state::NO_VECTOR_DISCARD.load(Ordering::Relaxed) {
        // SAFETY: the caller's promise.
        if unsafe { mem::discard_many(state::PIDFD.load(Ordering::Relaxed), ranges) } {
            return true;
        }
        state::NO_VECTOR_DISCARD.store(true, Ordering::Relaxed);
    }
    ranges.iter().fold(true, |all, r| {
        // SAFETY: the caller's promise.
        let done = unsafe { mem::advise(r.iov_base as usize, r.iov_len, libc::MADV_DONTNEED) };
        all & done.is_ok()
    })
}

/// Handles a discard that failed. Pages that the kernel keeps become resident again and are not chosen any more: most
/// often they are locked memory, which would be refused for ever. The other pages move to the front, and `swap` moves
/// what belongs to them. Returns how many those are.
#[cold]
fn keep_what_stays(pages: &mut [PageId], mut swap: impl FnMut(usize, usize)) -> usize {
    let mut gone = 0;
    for i in 0..pages.len() {
        let page = pages[i];
        // One by one: some pages of a refused range may be gone.
        // SAFETY: the page is Evicting in our hands, and copied or clean.
        let done = unsafe { mem::advise(page.addr(), PAGE_SIZE, libc::MADV_DONTNEED) };
        if done.is_ok() {
            pages.swap(gone, i);
            swap(gone, i);
            gone += 1;
            continue;
        }
        // SAFETY: the page is Evicting in our hands, and stays.
        let _ = unsafe { uffd().write_protect(page.addr(), PAGE_SIZE, false) };
        let one = Run {
            start: page,
            len: 1,
            clean: false,
        };
        give_up(one, true);
    }
    gone
}

/// Until this time, dirty pages of the cache are not tried.
static REFUSED_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

/// Whether nothing can be written, because the pool is full and far memory beyond it takes nothing.
fn is_refused() -> bool {
    tier::is_closed() && proc::now_ns() < REFUSED_UNTIL_NS.load(Ordering::Relaxed)
}

/// Writes out up to `n` of the cache's oldest pages; returns how many slots became free. While nothing can be written,
/// dirty pages stay and later ones are tried.
pub fn write_out(ctx: &mut Reclaim, n: u32) -> u32 {
    if is_refused() {
        return 0;
    }
    // The pool is charged separately.
    fork_accounting::without_copies(|| write_oldest(ctx, n))
}

fn write_oldest(ctx: &mut Reclaim, n: u32) -> u32 {
    /// Pages that may be skipped before the rest is put off, and for how long.
    const STAY_MAX: u32 = 8;
    const LATER_NS: u64 = 10_000_000;
    let slots = cache::slots();
    let mut places = [slot::Place::default(); slot::WRITES];
    let (mut freed, mut stay) = (0, 0);
    while freed < n {
        let most = places.len().min((n - freed) as usize);
        let got = slots.oldest(&mut places[..most]);
        if got == 0 {
            break;
        }
        for (i, place) in places[..got].iter().enumerate() {
            let Some(job) = slots.begin_write(*place) else {
                continue;
            };
            if write_one(ctx, job) {
                freed += 1;
                continue;
            }
            stay += 1;
            let closed = tier::is_closed();
            if !closed || stay >= STAY_MAX {
                slots.enqueue(&places[i + 1..got]);
                if closed {
                    REFUSED_UNTIL_NS.store(proc::now_ns() + LATER_NS, Ordering::Relaxed);
                }
                return freed;
            }
        }
    }
    freed
}

fn write_one(ctx: &mut Reclaim, job: slot::Job) -> bool {
    let data = cache::contents(job.slot);
    let mut far_copy = job.far_copy;
    let outcome = match pool().store(job.entry, far_copy, data, &mut ctx.scratch) {
        Ok(o) => o,
        Err(first) => {
            if matches!(first, StoreError::Full { copy_dropped: true }) {
                far_copy = false;
            }
            let mut retry = || {
                pool()
                    .store(job.entry, far_copy, data, &mut ctx.scratch)
                    .ok()
            };
            // First drop copies of resident pages, then demote the oldest pages if possible, then drop everything that
            // resident pages keep in far memory.
            let mut stored = None;
            let mut steps = 0;
            while stored.is_none() && steps < STEPS_MAX && wait_for_step() {
                stored = retry();
                steps += 1;
            }
            while stored.is_none() && (tier::drop_copies() || tier::make_room()) {
                stored = retry();
            }
            // While nothing can be written, those copies are what lets pages be evicted.
            if stored.is_none() && !tier::is_closed() && drop_resident_copies() {
                stored = retry();
            }
            match stored {
                Some(o) => o,
                None => {
                    if let Some(e) = cache::slots().abort_write(job.slot, job.entry, false) {
                        pool().release(e);
                    }
                    far_is_full();
                    return false;
                }
            }
        }
    };
    let w = areas::word(job.page);
    let cur = word::load(w);
    let far = far_word(cur, outcome.entry);
    // Count it before a fault can take it back.
    state::slot().far_pages.fetch_add(1, Ordering::Relaxed);
    let published = job.publish(w, cur, far);
    if !published {
        state::slot().far_pages.fetch_sub(1, Ordering::Relaxed);
    }
    if published {
        cache::slots().end_write(job.slot);
    } else if let Some(e) =
        cache::slots().abort_write(job.slot, outcome.entry, outcome.entry.is_some())
    {
        pool().release(e);
    }
    if cur.has_all(flag::PROACTIVE) && published {
        swapin::note_unused();
    } else if cur.has(flag::PREFETCHED) && published {
        let stood_for = PREFETCHERS.on_unused(job.page);
        count(Counter::PrefetchUnused, u64::from(stood_for));
    }
    count(Counter::PagesOut, 1);
    match outcome.kind {
        Kind::Clean => count(Counter::PagesOutClean, 1),
        Kind::Zero => count(Counter::PagesOutZero, 1),
        Kind::SameFilled => count(Counter::PagesOutSameFilled, 1),
        Kind::Raw => count(Counter::PagesOutRaw, 1),
        Kind::Delta => count(Counter::PagesOutDelta, 1),
        Kind::OnNode => count(Counter::PagesOutNode, 1),
        Kind::Compressed => {}
    }
    match outcome.entry_from {
        EntryFrom::Lock => count(Counter::EntryAllocLocked, 1),
        EntryFrom::Stock => count(Counter::EntryAllocStocked, 1),
        EntryFrom::Page => count(Counter::EntryAllocReserved, 1),
        EntryFrom::Nowhere => {}
    }
    count(Counter::SlotAlloc, u64::from(outcome.slot_taken));
    true
}

/// Growth steps that one page waits for at most; other threads may use up what each step allows.
const STEPS_MAX: u32 = 100;

/// When the host is short of memory, the pool may grow only by a step at a time: asks the runner for the next step and
/// waits for it. Returns false if something else holds the pool back.
#[cold]
fn wait_for_step() -> bool {
    const MOST_NS: u64 = 200_000_000;
    let seg = state::seg();
    let next = seg.pool_bytes.load(Ordering::Relaxed) + SLAB_CHARGE_BYTES;
    if !seg.host.is_past_step(next) || next > seg.pool_bound() {
        return false;
    }
    let (until, seen) = (proc::now_ns() + MOST_NS, seg.host.looks());
    seg.host.want();
    proc::futex_wake(&seg.host.wanted, 1);
    loop {
        if seg.host.looks() != seen {
            return true;
        }
        let now = proc::now_ns();
        if now >= until {
            break;
        }
        slow::during(Cause::HostShort, || {
            proc::futex_wait(&seg.host.looks, seen, until - now);
        });
    }
    // No supervisor answers: overshooting by one step is better than refusing memory that exists.
    seg.host.forget_step();
    true
}

/// Handles far memory that accepts no page. If it may accept some soon, because another donor is replacing one, nothing
/// is refused yet.
#[cold]
fn far_is_full() {
    if tier::may_open() {
        return;
    }
    /// Earliest time between two reports.
    const TELL_NS: u64 = 10_000_000_000;
    static TOLD_NS: AtomicU64 = AtomicU64::new(0);
    if state::seg().far_full.swap(1, Ordering::Relaxed) != 0 {
        return;
    }
    let (now, told) = (proc::now_ns(), TOLD_NS.load(Ordering::Relaxed));
    if told != 0 && now < told + TELL_NS || !tenant::take_turn(&TOLD_NS, told, now) {
        return;
    }
    if state::seg().host.is_short() {
        crate::report!(
            "this host's memory is down to its reserve: the pool cannot grow, reclaim stops, and new memory is refused \
             with ENOMEM until there is more (or set a smaller -o host-reserve)"
        );
    } else if tier::is_stalled() {
        crate::report!(
            "too few donors or disks answer: changed pages stay in local memory, and new memory is refused with \
             ENOMEM until more do"
        );
    } else if has_no_memory() {
        crate::report!(
            "this host has no memory left to commit: the pool cannot grow, reclaim stops, and new memory is refused with \
             ENOMEM until there is more (or raise vm.overcommit_ratio)"
        );
    } else if tier::used_and_limit().1 == 0 {
        crate::report!(
            "the pool is full: reclaim stops, and new memory is refused with ENOMEM (raise --pool or --local, or add --far)"
        );
    } else {
        crate::report!(
            "the pool and far memory are full: reclaim stops, and new memory is refused with ENOMEM (raise --pool, --far or --local)"
        );
    }
}

/// The word of a page that exists only as a far copy from now on.
fn far_word(before: Word, entry: SwapEntry) -> Word {
    let w = before
        .with_state(State::Far)
        .with_entry(entry)
        .clear(flag::PROACTIVE | flag::SAMPLED | flag::DEEP);
    if !entry.is_some() {
        return w.clear(flag::FAR_COPY);
    }
    match pool().deep_place(entry) {
        Some(_) => w.set(flag::FAR_COPY | flag::DEEP),
        None => w.set(flag::FAR_COPY),
    }
}

/// Drops the far copies that resident pages keep, and their entries, because far memory is full. Returns whether there
/// were any.
#[cold]
fn drop_resident_copies() -> bool {
    let mut dropped = 0u64;
    areas::table().for_each_in(State::Resident, |page, w| {
        if w.entry().is_some()
            && let Some(e) = take_reservation(areas::word(PageId(page as u32)))
        {
            pool().release(e);
            dropped += 1;
        }
    });
    pool().trim();
    count(Counter::EntryReservationDropped, dropped);
    dropped > 0
}

/// Runs one round of the reclaim thread: writes ahead, then frees what is above the mark. Returns false if there was
/// nothing to do.
pub fn background_round() -> bool {
    state::seg().host.forget_old(proc::now_ns());
    let wanted = &state::slot().reclaim_wanted;
    let offload = &state::slot().offload_wanted;
    let is_ours = !in_line::is_on()
        || accounting::short_of_room()
        || wanted.load(Ordering::Relaxed) != 0
        || offload.load(Ordering::Relaxed) != 0;
    let excess = if is_ours { accounting::excess() } else { 0 };
    let mut worked = false;
    let slots = cache::slots();
    let (cap, avail) = (slots.capacity(), slots.available());
    let over = slots.used().saturating_sub(cap);
    // In a fork's child, slots inherited from the parent cost nothing until the parent writes to the same slots. Write
    // them out only to make room.
    let costs = over == 0 || !state::FORKED.load(Ordering::Relaxed) || accounting::short_of_room();
    if avail < cap / 4 && costs {
        let mut ctx = context::reclaim();
        worked |= write_out(&mut ctx, (cap / 4 - avail + over).min(32)) > 0;
    }
    worked |= tier::give_to_others();
    worked |= nodes::background_round();
    worked |= tier::background_round();
    if tier::waits_for_cached() {
        worked |= write_out(&mut context::reclaim(), cap - avail) > 0;
    }
    if excess > 0 {
        let want = excess.min(ROUND_PAGES) as u32;
        let mut done = run(want, Whose::Background);
        if done == 0 {
            // All that the process holds is in the swap cache, from which nothing leaves before it is full again. The
            // memory of the slots is freed once they have been idle for a moment (`cache::give_back_idle`).
            done = write_out(&mut context::reclaim(), want);
        }
        worked |= done > 0;
        // If nothing could leave, do not try the request again.
        let less = |n: u32| Some(if done > 0 { n.saturating_sub(done) } else { 0 });
        let _ = offload.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        let before = wanted.load(Ordering::Relaxed);
        let left = before.saturating_sub(done.max(1));
        wanted.store(left, Ordering::Relaxed);
        if before != 0 && (done > 0 || left == 0) {
            ages::note_answered(left);
        }
    } else if wanted.load(Ordering::Relaxed) != 0 {
        // The process holds no more than its floor: nobody should wait for more.
        wanted.store(0, Ordering::Relaxed);
        ages::note_answered(0);
    }
    if accounting::short_of_room() {
        accounting::ask_for_rest();
    }
    worked
}

/// Releases what a page owned when a mapping call discards it. `cur` is its word before the caller moved it to Mapping;
/// the caller discards the page itself.
pub fn forget(page: PageId, cur: Word) {
    trace::note(page, TraceKind::Discard);
    if cur.has(flag::LOCKED) {
        held::note(-1);
    }
    match cur.state() {
        State::Resident => {
            fault::table_gone(page);
            if cur.entry().is_some() {
                pool().release(cur.entry());
            }
        }
        State::Cached => {
            let taken = cache::slots().take(slot::of_word(cur));
            if taken.entry.is_some() {
                pool().release(taken.entry);
            }
            cache::slots().finish(taken);
        }
        State::Far | State::Poisoned => {
            state::slot()
                .far_pages
                .fetch_sub(i64::from(cur.state() == State::Far), Ordering::Relaxed);
            if cur.entry().is_some() {
                pool().release(cur.entry());
            }
        }
        _ => {}
    }
}
