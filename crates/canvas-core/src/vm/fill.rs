//! Brings in pages ahead of their use, in runs: for a prefetcher's plan, proactive swap-in, hints and recordings.
//! Contiguous pages are mapped by one copy.

use canvas_shm::Counter;
use canvas_types::sync::Ordering;
use canvas_types::{ExtentRef, PageBuf, PageId};

use super::context::{Fill, STAGING_PAGES};
use super::ledger::{self, count};
use super::map::{copy_in, filled, poison, publish_run, starts_protected};
use super::protect::chunk;
use super::{Held, Source, Vm, reclaim};
use crate::pager::clock::FillKind;
use crate::pager::prefetch::{Done, Plan, Prefetcher};
use crate::pager::slot;
use crate::pager::table::CHUNK_PAGES;
use crate::pager::word::{self, State, Word, flag};
use crate::swap::LoadError;

/// Carries out a plan.
pub(super) fn prefetch(vm: &impl Vm, plan: &Plan) {
    if plan.count != 0 {
        bring_in_planned(vm, plan, &mut vm.fill());
    }
    passed(vm, plan);
}

/// Carries out a plan, in working memory that the caller has.
pub(super) fn prefetch_with(vm: &impl Vm, plan: &Plan, context: &mut Fill) {
    if plan.count != 0 {
        bring_in_planned(vm, plan, context);
    }
    passed(vm, plan);
}

/// The stream of a plan has left a chunk.
fn passed(vm: &impl Vm, plan: &Plan) {
    if let Some(page) = plan.behind {
        vm.state().clock.stream_passed(page);
    }
}

/// Brings in those pages of the plan that are far, while there is room.
fn bring_in_planned(vm: &impl Vm, plan: &Plan, context: &mut Fill) {
    vm.absorb();
    let room = ledger::limit(vm.segment()).map_or(i64::MAX, |l| l - ledger::charged(vm));
    let most = (plan.count as i64).min(room - 1).max(0) as u32;
    let prefetcher = vm.prefetcher();
    let kind = if plan.stream {
        FillKind::StreamPrefetch
    } else {
        FillKind::Prefetch
    };
    let mut run = Pending {
        alone: plan.alone,
        ..Pending::default()
    };
    let mut done = Done {
        reached: 0,
        issued: 0,
        marked: 0,
    };
    let unmapped = plan.unmapped(most, |p| word::load(vm.word(p)).state() == State::Far);
    for i in 0..most {
        done.reached = i + 1;
        let Some(page) = plan.page(i) else { break };
        let Some(cur) = run.decode(vm, page, context, kind) else {
            continue;
        };
        done.issued += 1;
        vm.prefetched(page);
        let leave = unmapped.contains(i);
        // For a trace, the touch of a sampled page must fault, but without informing the prefetcher.
        let mark = if leave {
            flag::PREFETCHED
        } else {
            flag::SAMPLED
        };
        if (leave || vm.wants_touch_of(page))
            && leave_in_cache(vm, page, cur, &context.staging[run.n], mark)
        {
            done.marked += u32::from(leave);
            if leave {
                prefetcher.on_left(page, plan);
            }
            run.flush(vm, context, kind);
            continue;
        }
        run.add(page, cur);
    }
    run.flush(vm, context, kind);
    if plan.stream {
        vm.fetch_for_stream(plan.start, plan.stride, plan.count);
    }
    prefetcher.carried_out(plan, &done);
    if done.issued == 0 {
        return;
    }
    let issued = u64::from(done.issued);
    if let Some(planner) = plan.planner {
        count(vm, planner.issued, issued);
    }
    count(vm, Counter::PrefetchIssued, issued);
    count(vm, Counter::PagesIn, issued);
    if plan.stream {
        count(vm, Counter::PagesInStream, issued);
    }
    if ledger::short_of_room(vm) {
        reclaim::make_room(vm);
    }
}

/// How pages beyond the pool are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FarRead {
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
    vm: &impl Vm,
    pages: &[PageId],
    beyond: FarRead,
    goes_on: impl Fn() -> bool,
    sample: impl Fn(u32) -> bool,
) -> SwappedIn {
    vm.absorb();
    let mut context = vm.fill();
    let context = &mut *context;
    let kind = FillKind::Prefetch;
    let mut run = Pending {
        charged: true,
        alone: beyond == FarRead::Alone,
        ..Pending::default()
    };
    let (mut done, mut decoded) = (SwappedIn::default(), 0);
    for page in pages {
        // Checked once per copy.
        if run.n == 0 && !goes_on() {
            done.not_tried = Some(*page);
            break;
        }
        let Some(cur) = run.decode(vm, *page, context, kind) else {
            let now = word::load(vm.word(*page));
            if now.state() == State::Far && now.has(flag::IN_FAR_TIER) {
                done.beyond.get_or_insert(*page);
            }
            continue;
        };
        let n = decoded;
        decoded += 1;
        if sample(n) && leave_in_cache(vm, *page, cur, &context.staging[run.n], flag::PROACTIVE) {
            done.sampled += 1;
            run.flush(vm, context, kind);
        } else {
            run.add(*page, cur);
        }
    }
    run.flush(vm, context, kind);
    done.mapped = run.mapped;
    count(vm, Counter::PagesIn, u64::from(done.mapped + done.sampled));
    done
}

/// Requests a page that lies beyond the pool, so that it is in the pool later. Calls `request` with the page's place
/// while the page is claimed and returns its result; false if the page is not beyond the pool.
pub fn request(vm: &impl Vm, page: PageId, request: impl FnOnce(ExtentRef) -> bool) -> bool {
    let w = vm.word(page);
    let cur = word::load(w);
    if cur.state() != State::Far
        || !cur.has(flag::IN_FAR_TIER)
        || cur.has(flag::STUCK)
        || !word::transition(w, cur, cur.with_state(State::Filling))
    {
        return false;
    }
    let requested = vm.extent_ref(cur.entry()).is_some_and(request);
    word::publish(w, cur);
    requested
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
    fn decode(
        &mut self,
        vm: &impl Vm,
        page: PageId,
        context: &mut Fill,
        kind: FillKind,
    ) -> Option<Word> {
        let w = vm.word(page);
        let cur = word::load(w);
        let joins = self.n > 0
            && page == self.first.plus(self.n)
            && self.n < STAGING_PAGES
            && !page.index().is_multiple_of(CHUNK_PAGES);
        if !joins {
            self.flush(vm, context, kind);
        }
        if cur.state() != State::Far
            || cur.has(flag::STUCK)
            || !word::transition(w, cur, cur.with_state(State::Filling))
        {
            return None;
        }
        match vm.load(
            cur.entry(),
            &mut context.staging[self.n],
            &mut context.scratch,
        ) {
            Ok(()) => {
                vm.used(cur.entry());
                Some(cur)
            }
            Err(LoadError::InFarTier(place)) => {
                // Nothing waits here: the page comes into the pool, and later faults take it from there.
                match self.alone {
                    true => {
                        vm.read_ahead(page, place);
                    }
                    false => vm.fetch(place.extent),
                }
                word::publish(w, cur);
                None
            }
            Err(why) => {
                poison(vm, page, cur, why);
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

    fn flush(&mut self, vm: &impl Vm, context: &Fill, kind: FillKind) {
        let n = core::mem::take(&mut self.n);
        if n == 0 {
            return;
        }
        if !self.charged {
            vm.segment().charge_local(vm.slot(), n as i64);
        }
        let held = chunk(vm, self.first);
        let old = &self.old;
        let protected = old[..n]
            .iter()
            .all(|w| starts_protected(vm, self.first, *w));
        let staged = Source::Staged(&context.staging[..n]);
        let present = copy_in(vm, Held::new(self.first, n), staged, protected).pages;
        publish_run(vm, self.first, present, |i| {
            // Proactive swap-in had requested the page from beyond the pool, and it passed through the pool only for
            // that: demote it there again.
            if self.charged && old[i].has(flag::REFERENCED) {
                vm.demote_home(old[i].entry());
            }
            filled(vm, old[i], kind, protected)
        });
        for (i, cur) in old.iter().enumerate().take(n).skip(present) {
            word::publish(vm.word(self.first.plus(i)), *cur);
        }
        drop(held);
        vm.slot()
            .far_pages
            .fetch_sub(present as i64, Ordering::Relaxed);
        self.mapped += present as u32;
        if present < n && !self.charged {
            ledger::uncharge(vm, (n - present) as i64);
        }
    }
}

/// Puts a prefetched page into the swap cache, unmapped, so that its use will be seen.
fn leave_in_cache(vm: &impl Vm, page: PageId, cur: Word, data: &PageBuf, mark: u64) -> bool {
    let slots = vm.cache();
    let mut place = [slot::SlotRef::default()];
    let (got, fresh) = slots.alloc(&mut place);
    if got == 0 {
        return false;
    }
    if fresh > 0 {
        vm.segment().charge_local(vm.slot(), 1);
        vm.slot().cached_pages.fetch_add(1, Ordering::Relaxed);
    }
    vm.fill_slot(place[0].slot(), data);
    slots.fill(place[0], page, cur.entry(), cur.entry().is_some());
    let new = cur
        .with_state(State::Cached)
        .with_entry(slot::in_word(place[0].slot()))
        .clear(flag::IN_FAR_TIER | flag::PROACTIVE)
        .set(mark);
    word::publish(vm.word(page), new);
    slots.enqueue(&place);
    vm.slot().far_pages.fetch_sub(1, Ordering::Relaxed);
    true
}
