//! Moves a batch of victims from the managed range to the swap cache.
//!
//! Unmapping a batch costs two kinds of TLB shootdown, whatever the number of pages: one per span for write-protection,
//! and one for all discards together. In between, each page is copied to its slot: it is protected, so it cannot
//! change, and still mapped, so it can be read. This works after a fork (where UFFDIO_MOVE refuses shared pages) and
//! for any protection that allows reading.

use canvas_shm::Counter;
use canvas_types::sync::Ordering;
use canvas_types::{PageId, SwapEntry};

use super::context::Batch;
use super::ledger::{self, count};
use super::{Held, Range, Vm};
use crate::pager::clock::Run;
use crate::pager::slot::{self, SlotRef};
use crate::pager::word::{self, State, Word, flag};

/// Why a batch is unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// To evict its pages.
    Evict,
    /// Only so that a trace sees their next touch; the policy learns nothing from it.
    Trace,
}

/// Unmaps the victims into the swap cache, or drops them where their far copies are up to date; returns how many pages
/// were unmapped.
pub fn unmap(vm: &impl Vm, batch: &mut Batch, purpose: Purpose) -> u32 {
    let slots = vm.cache();
    // Pages that another process copies from or to stay.
    let lent = vm.lent();
    if let Some(pages) = lent.as_ref().and_then(|lent| lent.kept_pages()) {
        batch.victims.leave_out(pages, |r| give_up(vm, r, false));
    }
    let pages = batch.victims.dirty_pages() as usize;
    let (got, fresh) = slots.alloc(&mut batch.slots[..pages]);
    charge_fresh(vm, fresh);
    // The policy always finishes a chunk that it has begun: pages without a slot stay.
    batch
        .victims
        .truncate(got as u32, |r| give_up(vm, r, false));
    let (mut dirty, mut clean, mut ranges) = (0, 0, 0);
    batch.protected.protect(
        vm,
        batch.victims.runs(),
        |r| {
            batch.ranges[ranges] = Range::of(Held::new(r.start, r.len as usize));
            ranges += 1;
            let (pages, filled) = match r.clean {
                true => (&mut batch.clean, &mut clean),
                false => (&mut batch.pages, &mut dirty),
            };
            for page in r.pages() {
                pages[*filled] = page;
                *filled += 1;
            }
        },
        |r, was_asked| give_up(vm, r, was_asked),
    );
    if dirty < got {
        slots.give_back(&batch.slots[dirty..got]);
    }
    if dirty + clean == 0 {
        batch.protected.release(vm);
        return 0;
    }
    for (page, slot) in batch.pages[..dirty].iter().zip(&batch.slots[..dirty]) {
        vm.copy_out(Held::new(*page, 1), slot.slot());
    }
    let discarded = vm.discard(&batch.ranges[..ranges]);
    if !discarded.all {
        let copied = dirty;
        let (pages, places) = (&mut batch.pages[..copied], &mut batch.slots);
        dirty = keep_what_stays(vm, pages, |i, j| places.swap(i, j));
        slots.give_back(&batch.slots[dirty..copied]);
        clean = keep_what_stays(vm, &mut batch.clean[..clean], |_, _| ());
    }
    batch.protected.release(vm);
    drop(lent);
    vm.state().dirty_share.note(dirty as u32, clean as u32);
    let (dirty_pages, places) = (&batch.pages[..dirty], &batch.slots[..dirty]);
    publish(vm, dirty_pages, places, &batch.clean[..clean], purpose);
    if discarded.still_shared > 0 {
        vm.keep_charge(discarded.still_shared);
    }
    // Threads that faulted on the protection wait for a wake-up.
    vm.wake(&batch.ranges[..ranges]);
    (dirty + clean) as u32
}

/// Charges slots that use memory from now on.
fn charge_fresh(vm: &impl Vm, fresh: usize) {
    if fresh == 0 {
        return;
    }
    let (seg, me) = (vm.segment(), vm.slot());
    vm.slots_opened(fresh);
    seg.charge_local(me, fresh as i64);
    let cached = me.cached_pages.fetch_add(fresh as i64, Ordering::Relaxed) + fresh as i64;
    seg.cached_pages_peak.fetch_max(cached, Ordering::Relaxed);
}

/// Publishes that the pages of a batch have left, and counts them.
fn publish(vm: &impl Vm, dirty: &[PageId], slots: &[SlotRef], clean: &[PageId], purpose: Purpose) {
    let (state, all) = (vm.state(), (dirty.len() + clean.len()) as i64);
    let evicted = match purpose {
        Purpose::Evict => all as u32,
        Purpose::Trace => 0,
    };
    state
        .evicted_pages
        .fetch_add(u64::from(evicted), Ordering::Relaxed);
    let epoch = state.epoch.advance(evicted, epoch_pages(vm) as u64);
    for (page, slot) in dirty.iter().zip(slots) {
        enter_cache(vm, *page, *slot, epoch, purpose);
    }
    vm.cache().enqueue(slots);
    clean.iter().for_each(|p| leave_clean(vm, *p, epoch));
    ledger::record_evicted(vm, all);
    ledger::uncharge(vm, all);
    for counter in [
        Counter::PagesOut,
        Counter::PagesOutClean,
        Counter::PagesOutProtected,
    ] {
        count(vm, counter, clean.len() as u64);
    }
}

/// Pages of a full local memory: the limit, or what the tenant has resident if that is less.
fn epoch_pages(vm: &impl Vm) -> i64 {
    let there = ledger::charged(vm);
    vm.segment()
        .local_limit_pages()
        .map_or(there, |limit| limit.min(there))
        .max(1)
}

/// Enters a page into the swap cache after it was copied to its slot and discarded.
fn enter_cache(vm: &impl Vm, page: PageId, place: SlotRef, epoch: u8, purpose: Purpose) {
    let w = vm.word(page);
    let cur = word::load(w);
    debug_assert_eq!(cur.state(), State::Evicting);
    vm.cache()
        .fill(place, page, cur.entry(), cur.has(flag::FAR_COPY));
    vm.table().note_gone(page.index());
    let new = match purpose {
        Purpose::Trace => cur.with_epoch(epoch).set(flag::SAMPLED),
        Purpose::Evict => {
            vm.evicted(page);
            let clock = &vm.state().clock;
            clock.params.on_evict(cur, epoch).clear(flag::SAMPLED)
        }
    };
    let new = new.clear(flag::PREFETCHED | flag::PROTECTED);
    word::publish(
        w,
        new.with_state(State::Cached)
            .with_entry(slot::in_word(place.slot())),
    );
}

/// Makes a clean page far after it was discarded: its far copy is now the only one.
fn leave_clean(vm: &impl Vm, page: PageId, epoch: u8) {
    let w = vm.word(page);
    let cur = word::load(w);
    debug_assert!(cur.state() == State::Evicting && cur.is_clean());
    vm.table().note_gone(page.index());
    vm.writes().left_clean(page);
    vm.evicted(page);
    // Count it before a fault can take it back.
    vm.slot().far_pages.fetch_add(1, Ordering::Relaxed);
    let new = vm.state().clock.params.on_evict(cur, epoch);
    word::publish(w, far_word(vm, new, cur.entry()));
}

/// The word of a page that exists only as a far copy from now on.
pub(super) fn far_word(vm: &impl Vm, before: Word, entry: SwapEntry) -> Word {
    let w = before
        .with_state(State::Far)
        .with_entry(entry)
        .clear(flag::PROACTIVE | flag::SAMPLED | flag::IN_FAR_TIER);
    if !entry.is_some() {
        return w.clear(flag::FAR_COPY);
    }
    match vm.extent_ref(entry) {
        Some(_) => w.set(flag::FAR_COPY | flag::IN_FAR_TIER),
        None => w.set(flag::FAR_COPY),
    }
}

/// Leaves the pages of a run where they are. `refused`: the kernel would not protect them; do not ask it again.
fn give_up(vm: &impl Vm, run: Run, refused: bool) {
    for page in run.pages() {
        let w = vm.word(page);
        let mut back = word::load(w).with_state(State::Resident);
        if refused {
            // The caller that asked the kernel has lifted any protection.
            back = back.set(flag::STUCK).clear(flag::PROTECTED);
        }
        word::publish(w, back);
    }
    vm.wake(&[Range::of(Held::new(run.start, run.len as usize))]);
}

/// Handles a discard that failed. Pages that the kernel keeps become resident again and are not chosen any more: most
/// often they are locked memory, which would be refused for ever. The other pages move to the front, and `swap` moves
/// what belongs to them. Returns how many those are.
#[cold]
fn keep_what_stays(
    vm: &impl Vm,
    pages: &mut [PageId],
    mut swap: impl FnMut(usize, usize),
) -> usize {
    let mut gone = 0;
    for i in 0..pages.len() {
        let page = Held::new(pages[i], 1);
        // One by one: some pages of a refused range may be gone.
        if vm.discard_page(page) {
            pages.swap(gone, i);
            swap(gone, i);
            gone += 1;
            continue;
        }
        vm.protect(page, false);
        let one = Run {
            start: page.first(),
            len: 1,
            clean: false,
        };
        give_up(vm, one, true);
    }
    gone
}
