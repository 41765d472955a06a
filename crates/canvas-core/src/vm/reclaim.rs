//! Makes room in local memory: chooses victims, for a [`Reason`], and writes the swap cache's oldest pages out.
//!
//! Background reclaim works ahead of need, in the reclaim thread. When recently evicted pages were mostly clean, a
//! thread that charges memory past the background mark frees a batch itself (*in line*): a clean page needs no
//! protection, copy or hash, only its part of one call per batch, and for so little work a second CPU costs more than
//! it gives. Past the limit a thread reclaims *directly*, before its charge stands.

use canvas_shm::Counter;
use canvas_shm::slow::Cause;
use canvas_types::PageId;
use canvas_types::sync::Ordering;

use super::context::Batch;
use super::floors::surplus;
use super::ledger::{self, count};
use super::unmap::{Purpose, far_word, unmap};
use super::{FarFull, Report, Vm};
use crate::pager::clock::{self, BATCH_PAGES, drop_far_copy, take_reservation};
use crate::pager::prefetch::Prefetcher;
use crate::pager::slot::{self, Job};
use crate::pager::table::CHUNK_PAGES;
use crate::pager::word::{self, State, Word, flag};
use crate::swap::fsm;
use crate::swap::{EntryFrom, Kind, Outcome, StoreError};

/// Which thread reclaims, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The reclaim thread, ahead of need.
    Background,
    /// A thread that charges memory, ahead of need.
    InLine,
    /// A thread that charges memory past the limit, or that makes room during a device's call.
    Direct,
}

/// Pages that a round ahead of need frees at most.
const ROUND_PAGES: i64 = 128;

/// Frees about `want` pages of local memory; returns how many were unmapped.
pub fn reclaim(vm: &impl Vm, want: u32, reason: Reason) -> u32 {
    let mut batch = vm.batch();
    let batch = &mut *batch;
    let want = prepare(vm, batch, want);
    let Some(_held_off) = begin_batch(vm) else {
        return 0;
    };
    batch.victims.clear();
    let (clock, table) = (&vm.state().clock, vm.table());
    let most = (BATCH_PAGES + 1 - CHUNK_PAGES) as u32;
    let mut n = 0;
    if is_refused(vm) {
        // Dirty pages stay as long as clean ones can be evicted.
        n = clock.select_clean(&table, want.min(most), &mut batch.victims);
    }
    if n == 0 {
        let ask = want.min(vm.cache().available()).min(most);
        if ask == 0 {
            return 0;
        }
        n = clock.select(&table, ask, &mut batch.victims);
        drop_what_is_hot(vm, batch);
    }
    if n == 0 {
        return 0;
    }
    let unmapped = unmap(vm, batch, Purpose::Evict);
    let counter = match reason {
        Reason::Background => Counter::ReclaimBackground,
        Reason::InLine => Counter::ReclaimInLine,
        Reason::Direct => Counter::ReclaimDirect,
    };
    count(vm, counter, u64::from(unmapped));
    unmapped
}

/// Evicts those of the pages `from..to`, chosen by the program, that can leave, one batch at most. Returns the first
/// page not examined (`from` if nothing can leave now) and how many pages were unmapped.
pub fn reclaim_chosen(vm: &impl Vm, from: u32, to: u32) -> (u32, u32) {
    let mut batch = vm.batch();
    let batch = &mut *batch;
    let want = prepare(vm, batch, ROUND_PAGES as u32);
    let ask = want.min(vm.cache().available());
    if ask == 0 {
        return (from, 0);
    }
    let Some(_held_off) = begin_batch(vm) else {
        return (from, 0);
    };
    batch.victims.clear();
    let next = clock::take(&vm.table(), from..to, ask, &mut batch.victims);
    if batch.victims.pages() == 0 {
        return (next, 0);
    }
    let unmapped = unmap(vm, batch, Purpose::Evict);
    count(vm, Counter::ReclaimBackground, u64::from(unmapped));
    (next, unmapped)
}

/// Sees to it that there are slots for a batch of `want` pages; returns how many pages it should have.
fn prepare(vm: &impl Vm, batch: &mut Batch, want: u32) -> u32 {
    judge_far_pressure(vm);
    let slots = vm.cache();
    let want = want.min(slots.capacity() / 2).max(1);
    // Read once: other threads take and free slots meanwhile.
    let available = slots.available();
    if available < want {
        write_out(vm, batch, want - available);
    }
    want
}

/// Begins a batch; `None` while a device may write to any page.
pub fn begin_batch<V: Vm>(vm: &V) -> Option<crate::pager::holds::Batch<'_>> {
    let batch = vm.state().holds.batch(vm.now_ns());
    if batch.is_none() {
        vm.state().was_held.store(true, Ordering::Relaxed);
    }
    batch
}

/// Frees some pages past the background mark, in line or by waking the reclaim thread.
#[cold]
pub fn make_room(vm: &impl Vm) {
    if !in_line(vm) {
        vm.wake_reclaimer();
    }
}

/// Whether threads that charge memory reclaim by themselves.
#[inline]
fn is_in_line(vm: &impl Vm) -> bool {
    vm.state().dirty_share.is_low()
}

/// Frees a batch in line; returns false if the reclaim thread must do it.
fn in_line(vm: &impl Vm) -> bool {
    let (slots, busy) = (vm.cache(), &vm.state().in_line_busy);
    // With this few slots left it is time to write out, which is the reclaim thread's work.
    if !is_in_line(vm)
        || slots.available() < slots.capacity() / 8
        || busy.swap(true, Ordering::Acquire)
    {
        return false;
    }
    let done = match ledger::excess(vm) {
        excess @ 1.. => reclaim(vm, excess.min(ROUND_PAGES) as u32, Reason::InLine),
        _ => 0,
    };
    busy.store(false, Ordering::Release);
    // If room is still short, other processes hold the rest; the reclaim thread asks them for it.
    done > 0 && !ledger::short_of_room(vm)
}

/// The tenant may exceed its limit by this much (4 MiB) for a moment.
const OVERSHOOT_PAGES: i64 = 900;
/// Up to this much over the limit (2 MiB), a thread does not wait for other processes to give up pages.
const SLACK_PAGES: i64 = 512;
/// How often a thread polls, 100 us apart, for other processes to give up pages; if none does, it does not wait again
/// for `SILENT_NS`.
const POLLS_MAX: u32 = 20;
/// Polls per charge when this process gives up its own pages, too, but relatives grow faster than they are measured.
const RUNAWAY_POLLS_MAX: u32 = 5;
const SILENT_NS: u64 = 100_000_000;

/// Direct reclaim past the hard limit, for a charge of `n` pages: evicts the tenant's oldest pages, ignoring floors.
/// This thread evicts those that belong to its own process and asks other processes to evict theirs in the background.
/// If they do not within a few milliseconds, this process gives up whatever it has beyond its floor. If no process has
/// anything to give up, the program continues over its limit, unless far memory is full as well: then the result is
/// false.
#[cold]
pub(super) fn direct(vm: &impl Vm, n: i64) -> bool {
    let begun = vm.now_ns();
    vm.state().headroom.used_up();
    ledger::divide_room(vm, begun);
    let mut wait = Direct {
        begun,
        fruitless: 0,
        polls: 0,
        got: 0,
        over_at_first: None,
        ours_too: begun < vm.state().silent_until_ns.load(Ordering::Relaxed),
    };
    loop {
        if let Some(ok) = wait.step(vm, n) {
            return ok;
        }
    }
}

/// A thread's direct reclaim.
struct Direct {
    begun: u64,
    /// Tries in a row that freed nothing.
    fruitless: u32,
    polls: u32,
    /// Pages freed.
    got: i64,
    over_at_first: Option<i64>,
    /// Evict this process's pages regardless of their age.
    ours_too: bool,
}

impl Direct {
    /// One try; returns whether the charge stands, once that is decided.
    fn step(&mut self, vm: &impl Vm, n: i64) -> Option<bool> {
        let (seg, me) = (vm.segment(), vm.slot());
        let Some(limit) = ledger::limit(seg) else {
            return Some(true);
        };
        let over = ledger::charged(vm) - limit;
        // This thread has evicted more than it needs: the rest is left to other threads and the background. Relatives
        // of a fork must go on, because a shared page is freed only when more than one of them evicts it.
        let enough = self.got >= (2 * n).max(64) && (over <= SLACK_PAGES || !vm.has_forked());
        if over <= 0 || enough {
            return Some(true);
        }
        let over_at_first = *self.over_at_first.get_or_insert(over);
        let full = seg.far_full.load(Ordering::Relaxed) != 0 || vm.is_closed();
        let gives = if self.fruitless >= 3 {
            0
        } else if self.ours_too || full {
            surplus(seg, me)
        } else if over <= SLACK_PAGES && ledger::others_are_older(vm, self.begun) {
            return Some(true);
        } else {
            ledger::own_part(vm, over, self.begun)
        };
        if gives > 0 {
            let wanted = (over + 8).min(gives).clamp(16, 64) as u32;
            let done = vm.during(Cause::DirectReclaim, || reclaim(vm, wanted, Reason::Direct));
            if done > 0 {
                self.fruitless = 0;
                self.got += i64::from(done);
                return None;
            }
        }
        // All pages of this process are busy, pinned, gone, or younger than what other processes have.
        self.fruitless += u32::from(gives > 0 || self.ours_too || full);
        let others = ledger::ask_oldest(vm, over, true);
        if full {
            return self.wait_for_far(vm, over);
        }
        self.wait_for_others(vm, (limit, over, over_at_first), gives, others)
    }

    /// Nothing can be stored now.
    fn wait_for_far(&mut self, vm: &impl Vm, over: i64) -> Option<bool> {
        // Use the promised overshoot before ending the program.
        if over <= OVERSHOOT_PAGES {
            return Some(true);
        }
        // All remaining pages are dirty: they can be evicted once far memory accepts pages again.
        if self.fruitless > 100 && !vm.may_open() {
            return Some(false);
        }
        vm.during(Cause::PoolFull, || vm.sleep(1_000_000));
        if self.fruitless.is_multiple_of(8) {
            reclaim(vm, 16, Reason::Direct);
        }
        None
    }

    /// Other processes have older pages, and were asked for them; or nobody has any.
    fn wait_for_others(
        &mut self,
        vm: &impl Vm,
        (limit, over, over_at_first): (i64, i64, i64),
        gives: i64,
        others: bool,
    ) -> Option<bool> {
        let surplus = || surplus(vm.segment(), vm.slot());
        let ours = gives > 0 && self.fruitless < 3;
        // Pages that relatives copy on write are charged only when they are measured, which takes time. If the tenant
        // is far past its limit and some process can give up pages, delay each fault a little.
        let runaway = vm.has_forked() && over > limit / 4 && (others || surplus() > 0);
        if !ours && !runaway && (!others || over <= SLACK_PAGES || self.ours_too) {
            if !self.ours_too && !others && surplus() > 0 && self.fruitless == 0 {
                self.ours_too = true;
                return None;
            }
            return Some(true);
        }
        self.polls += 1;
        let polls_max = match self.ours_too {
            true => RUNAWAY_POLLS_MAX,
            false => POLLS_MAX,
        };
        if self.polls > polls_max {
            if !self.ours_too && over < over_at_first {
                // Other processes are giving up pages.
                return Some(true);
            }
            let silent_until = &vm.state().silent_until_ns;
            silent_until.store(vm.now_ns() + SILENT_NS, Ordering::Relaxed);
            if self.ours_too || surplus() <= 0 {
                return Some(true);
            }
            (self.ours_too, self.polls, self.fruitless) = (true, 0, 0);
            return None;
        }
        vm.during(Cause::OtherProcesses, || vm.sleep(100_000));
        None
    }
}

/// Whether the far limit is still reached. Called before new memory is refused: the program may have freed some since.
pub fn far_limit_reached(vm: &impl Vm) -> bool {
    let seg = vm.segment();
    if seg.far_full.load(Ordering::Relaxed) == 0 {
        return false;
    }
    vm.trim();
    judge_far_pressure(vm);
    if let Some(limit) = ledger::limit(seg)
        && ledger::charged(vm) < limit - 2 * ledger::gaps(vm, limit).1
    {
        seg.far_full.store(0, Ordering::Relaxed);
    }
    seg.far_full.load(Ordering::Relaxed) != 0
}

/// Watches the far limit: from 75 % of it on, hot pages lose their reservations (Canvas §5.1).
fn judge_far_pressure(vm: &impl Vm) {
    let (seg, state) = (vm.segment(), vm.state());
    let (elsewhere, elsewhere_max) = vm.used_and_limit();
    let used = (seg.pool_bytes.load(Ordering::Relaxed).max(0) as u64).saturating_add(elsewhere);
    let limit = (seg.pool_bound() as u64).saturating_add(elsewhere_max);
    // If nothing can be written, a page that gave up its copy could not be evicted again.
    let gives_up = !vm.is_closed();
    let was = state.clock.has_pressure();
    (state.clock).set_pressure(gives_up && fsm::pressure(was, used, limit));
    let nearly_full = gives_up && fsm::nearly_full(used, limit);
    state.nearly_full.store(nearly_full, Ordering::Relaxed);
    if seg.far_full.load(Ordering::Relaxed) != 0 && used < limit / 100 * 95 {
        seg.far_full.store(0, Ordering::Relaxed);
    }
}

/// Whether far memory, the pool or this host is so short that copies of resident pages take room that others need.
pub(super) fn copies_are_in_the_way(vm: &impl Vm) -> bool {
    let seg = vm.segment();
    vm.state().clock.has_pressure()
        || seg.host.is_short()
        || seg.pool_bytes.load(Ordering::Relaxed) > seg.pool_bound() / 8 * 7
}

/// Takes from hot pages what they will not need for long: their reservations while far memory is short, else their far
/// copies.
fn drop_what_is_hot(vm: &impl Vm, batch: &Batch) {
    if vm.is_closed() {
        return;
    }
    let short = vm.state().clock.has_pressure();
    for page in batch.victims.dropped_candidates() {
        let w = vm.word(*page);
        if short {
            if let Some(entry) = take_reservation(w) {
                vm.release(entry);
                count(vm, Counter::EntryReservationDropped, 1);
            }
        } else if drop_far_copy(w, |entry| vm.drop_pooled_copy(entry)) {
            count(vm, Counter::PoolCopiesHot, 1);
        }
    }
}

/// Whether nothing can be written, because the pool is full and far memory beyond it takes nothing.
fn is_refused(vm: &impl Vm) -> bool {
    vm.is_closed() && vm.now_ns() < vm.state().refused_until_ns.load(Ordering::Relaxed)
}

/// Writes out up to `n` of the swap cache's oldest pages; returns how many slots became free. While nothing can be
/// written, dirty pages stay and later ones are tried.
pub fn write_out(vm: &impl Vm, batch: &mut Batch, n: u32) -> u32 {
    if is_refused(vm) {
        return 0;
    }
    // The pool is charged separately.
    vm.uncounted(|| write_oldest(vm, batch, n))
}

fn write_oldest(vm: &impl Vm, batch: &mut Batch, n: u32) -> u32 {
    /// Pages that may be skipped before the rest is put off, and for how long.
    const STAY_MAX: u32 = 8;
    const LATER_NS: u64 = 10_000_000;
    let slots = vm.cache();
    let mut places = [slot::SlotRef::default(); slot::WRITES];
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
            if write_one(vm, batch, job) {
                freed += 1;
                continue;
            }
            stay += 1;
            let closed = vm.is_closed();
            if !closed || stay >= STAY_MAX {
                slots.enqueue(&places[i + 1..got]);
                if closed {
                    let until = &vm.state().refused_until_ns;
                    until.store(vm.now_ns() + LATER_NS, Ordering::Relaxed);
                }
                return freed;
            }
        }
    }
    freed
}

fn write_one(vm: &impl Vm, batch: &mut Batch, job: Job) -> bool {
    let slots = vm.cache();
    let Some(outcome) = store(vm, batch, job) else {
        if let Some(e) = slots.abort_write(job.slot, job.entry, false) {
            vm.release(e);
        }
        far_is_full(vm);
        return false;
    };
    let w = vm.word(job.page);
    let cur = word::load(w);
    let far = far_word(vm, cur, outcome.entry);
    // Count it before a fault can take it back.
    vm.slot().far_pages.fetch_add(1, Ordering::Relaxed);
    let published = job.publish(w, cur, far);
    if published {
        slots.end_write(job.slot);
        count_unused(vm, job.page, cur);
    } else {
        vm.slot().far_pages.fetch_sub(1, Ordering::Relaxed);
        if let Some(e) = slots.abort_write(job.slot, outcome.entry, outcome.entry.is_some()) {
            vm.release(e);
        }
    }
    count_stored(vm, &outcome);
    true
}

/// Stores the contents of a slot, making room if necessary; `None` if nothing can be stored. Then the entry has no
/// copy.
fn store(vm: &impl Vm, batch: &mut Batch, job: Job) -> Option<Outcome> {
    let data = vm.slot_page(job.slot);
    let mut far_copy = job.far_copy;
    match vm.store(job.entry, far_copy, data, &mut batch.scratch) {
        Ok(outcome) => return Some(outcome),
        Err(StoreError::Full { copy_dropped: true }) => far_copy = false,
        Err(_) => {}
    }
    let mut retry = || vm.store(job.entry, far_copy, data, &mut batch.scratch).ok();
    // First drop copies of resident pages, then demote the oldest pages if possible, then drop everything that resident
    // pages keep in far memory.
    let mut stored = None;
    let mut steps = 0;
    while stored.is_none() && steps < STEPS_MAX && vm.wait_for_step() {
        stored = retry();
        steps += 1;
    }
    while stored.is_none() && (vm.drop_copies() || vm.make_room()) {
        stored = retry();
    }
    // While nothing can be written, those copies are what lets pages be evicted.
    if stored.is_none() && !vm.is_closed() && drop_resident_copies(vm) {
        stored = retry();
    }
    stored
}

/// Growth steps that one page waits for at most; other threads may use up what each step allows.
const STEPS_MAX: u32 = 100;

/// Counts a page that leaves unused, if it was prefetched.
fn count_unused(vm: &impl Vm, page: PageId, cur: Word) {
    if cur.has(flag::PREFETCHED) && !cur.has_all(flag::PROACTIVE) {
        let stands_for = vm.prefetcher().on_unused(page).unwrap_or(0);
        count(vm, Counter::PrefetchUnused, u64::from(stands_for));
    }
}

/// Counts how a page was stored.
fn count_stored(vm: &impl Vm, outcome: &Outcome) {
    count(vm, Counter::PagesOut, 1);
    let kind = match outcome.kind {
        Kind::Clean => Some(Counter::PagesOutClean),
        Kind::Zero => Some(Counter::PagesOutZero),
        Kind::SameFilled => Some(Counter::PagesOutSameFilled),
        Kind::Raw => Some(Counter::PagesOutRaw),
        Kind::Delta => Some(Counter::PagesOutDelta),
        Kind::OnNode => Some(Counter::PagesOutNode),
        Kind::Compressed => None,
    };
    let from = match outcome.entry_from {
        EntryFrom::Lock => Some(Counter::EntryAllocLocked),
        EntryFrom::Magazine => Some(Counter::EntryAllocStocked),
        EntryFrom::Page => Some(Counter::EntryAllocReserved),
        EntryFrom::Nowhere => None,
    };
    for counter in [kind, from].into_iter().flatten() {
        count(vm, counter, 1);
    }
}

/// Handles far memory that accepts no page. If it may accept some soon, because another donor is replacing one, nothing
/// is refused yet.
#[cold]
fn far_is_full(vm: &impl Vm) {
    if vm.may_open() {
        return;
    }
    /// Earliest time between two reports.
    const TELL_NS: u64 = 10_000_000_000;
    let seg = vm.segment();
    if seg.far_full.swap(1, Ordering::Relaxed) != 0 {
        return;
    }
    if !ledger::once_in(&vm.state().full_told_ns, TELL_NS, vm.now_ns()) {
        return;
    }
    vm.report(Report::FarFull(if seg.host.is_short() {
        FarFull::HostShort
    } else if vm.is_stalled() {
        FarFull::Stalled
    } else if vm.has_no_memory() {
        FarFull::NoMemory
    } else if !vm.has_far_tier() {
        FarFull::PoolFull
    } else {
        FarFull::AllFull
    }));
}

/// Drops the far copies that resident pages keep, and their entries, because far memory is full. Returns whether there
/// were any.
#[cold]
fn drop_resident_copies(vm: &impl Vm) -> bool {
    let mut dropped = 0u64;
    vm.table().for_each_in(State::Resident, |page, w| {
        if w.entry().is_some()
            && let Some(e) = take_reservation(vm.word(PageId(page as u32)))
        {
            vm.release(e);
            dropped += 1;
        }
    });
    vm.trim();
    count(vm, Counter::EntryReservationDropped, dropped);
    dropped > 0
}

/// Frees some slots of the swap cache before they are needed; returns whether it freed any. Called by the reclaim
/// thread.
pub fn write_ahead(vm: &impl Vm) -> bool {
    let slots = vm.cache();
    let (cap, available) = (slots.capacity(), slots.available());
    let over = slots.used().saturating_sub(cap);
    // In a fork's child, slots inherited from the parent cost nothing until the parent writes to the same slots. Write
    // them out only to make room.
    let costs = over == 0 || !vm.has_forked() || ledger::short_of_room(vm);
    available < cap / 4
        && costs
        && write_out(vm, &mut vm.batch(), (cap / 4 - available + over).min(32)) > 0
}

/// Evicts this process's part of the tenant's excess, and what others have asked it for; returns whether it freed
/// anything. Called by the reclaim thread.
pub fn evict_excess(vm: &impl Vm) -> bool {
    let (wanted, offload) = (&vm.slot().reclaim_wanted, &vm.slot().offload_wanted);
    let is_ours = !is_in_line(vm)
        || ledger::short_of_room(vm)
        || wanted.load(Ordering::Relaxed) != 0
        || offload.load(Ordering::Relaxed) != 0;
    let excess = if is_ours { ledger::excess(vm) } else { 0 };
    if excess <= 0 {
        if wanted.load(Ordering::Relaxed) != 0 {
            // This process holds no more than its floor, so no other process should wait for its pages.
            wanted.store(0, Ordering::Relaxed);
            super::ages::note_answered(vm, 0);
        }
        return false;
    }
    let want = excess.min(ROUND_PAGES) as u32;
    let mut done = reclaim(vm, want, Reason::Background);
    if done == 0 {
        // All that the process holds is in the swap cache, from which nothing leaves before it is full again. The
        // memory of the slots is freed once they have been idle for a moment.
        done = write_out(vm, &mut vm.batch(), want);
    }
    // If nothing could leave, do not try the request again.
    let less = |n: u32| Some(if done > 0 { n.saturating_sub(done) } else { 0 });
    let _ = offload.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    let before = wanted.load(Ordering::Relaxed);
    let left = before.saturating_sub(done.max(1));
    wanted.store(left, Ordering::Relaxed);
    if before != 0 && (done > 0 || left == 0) {
        super::ages::note_answered(vm, left);
    }
    done > 0
}

/// Releases what a page owned when a mapping call discards it. `cur` is its word before the caller moved it to Mapping;
/// the caller discards the page itself.
pub fn forget(vm: &impl Vm, page: PageId, cur: Word) {
    vm.discarded(page);
    if cur.has(flag::LOCKED) {
        super::locked::note(vm.slot(), -1);
    }
    let mut entry = cur.entry();
    match cur.state() {
        State::Resident => resident_gone(vm, page),
        State::Cached => {
            let slots = vm.cache();
            let taken = slots.take(slot::of_word(cur));
            entry = taken.entry;
            slots.finish(taken);
        }
        State::Far => {
            vm.slot().far_pages.fetch_sub(1, Ordering::Relaxed);
        }
        State::Poisoned => {}
        _ => return,
    }
    if entry.is_some() {
        vm.release(entry);
    }
}

/// Updates table and charge for a page that stopped being resident without having been evicted.
pub fn resident_gone(vm: &impl Vm, page: PageId) {
    vm.table().note_gone(page.index());
    ledger::note_resident(vm, -1);
    ledger::uncharge(vm, 1);
}
