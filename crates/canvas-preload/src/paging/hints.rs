//! Carries out what the program says about its memory (madvise, canvas.h). The calling thread queues a range; when the
//! reclaim thread has nothing to reclaim, it brings in the range's far pages, or evicts its resident ones, in batches.
//!
//! Queued hints, and any single hint, may bring in at most limit/8, so a wrong hint evicts no more than that.
//! Background reclaim makes the room; a fault never waits for a hint.

use canvas_core::pager::hints::{self, Hint, Ring};
use canvas_core::pager::scan::ScanCursor;
use canvas_core::pager::word::{self, State, Word, flag};
use canvas_core::vm::fill::{self, FarRead, SwappedIn};
use canvas_core::vm::{ledger, reclaim};
use canvas_shm::Counter;
use canvas_sys::gate::yield_now;
use canvas_types::PageId;
use canvas_types::layout::BLOCK_PAGES;
use core::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::far_tier::tier;
use crate::own_memory::areas;
use crate::paging::{accounting, swapin::Round};
use crate::runtime::{
    state,
    state::{PROCESS, count},
};

state! {
    static HINTS: Hints {
        /// Ranges to bring in.
        coming: Ring = Ring::new(),
        /// Ranges to evict.
        leaving: Ring = Ring::new(),
        /// Set when a hint is queued; cleared when the reclaim thread takes hints.
        arrived: AtomicBool = AtomicBool::new(false),
        /// Pages that the current hint may still bring in.
        under_way: AtomicI64 = AtomicI64::new(0),
    }
}

/// In a fork's child: drops the parent's hints.
pub fn after_fork_in_child() {
    HINTS.coming.clear();
    HINTS.leaving.clear();
    HINTS.arrived.store(false, Ordering::Relaxed);
    HINTS.under_way.store(0, Ordering::Relaxed);
}

/// Pages that come in at a time; between two such lots other work goes first.
pub const LOT: usize = 64;
/// Page words that one round examines.
const LOOK_MAX: usize = 1 << 16;
/// How often to try again when there is no room, or a page is on its way from beyond the pool.
const WAITS_MAX: u32 = 200;
/// Pause between two of these tries.
pub const WAIT_NS: u64 = 500_000;
/// Local pages that a process keeps, whatever it hints.
const LEAST_PAGES: i64 = canvas_core::pager::floor::LEAST_PAGES;
/// Chunks of a cold range that are put at the front of the eviction order.
const COLD_CHUNKS: u32 = 32;

/// The queue of hints is full: the program asks for more than can be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy;

/// Whether there is a hint that the reclaim thread has not seen.
pub fn arrived() -> bool {
    HINTS.arrived.load(Ordering::Relaxed)
}

fn call_reclaimer() {
    HINTS.arrived.store(true, Ordering::Release);
    accounting::wake_reclaimer();
}

/// Pages that queued hints may bring in at a time.
fn pages_max() -> i64 {
    ledger::limit(state::seg()).map_or(i64::MAX, |limit| (limit / 8).max(LOT as i64))
}

/// Absent pages of the range, by the blocks' counts; counting may stop at `most`.
fn away(hint: Hint, most: i64) -> i64 {
    let (mut page, mut sum) = (hint.start, 0);
    while page < hint.end && sum < most {
        let block = page as usize / BLOCK_PAGES;
        let end = ((block + 1) * BLOCK_PAGES).min(hint.end as usize) as u32;
        let touched = areas::touched_in_block()[block].load(Ordering::Relaxed);
        let resident = areas::table().resident_in_block[block].load(Ordering::Relaxed);
        let is_away = |p: &u32| word::load(areas::word(PageId(*p))).state() == State::Far;
        sum += match touched.saturating_sub(resident) {
            0 => 0,
            n if end - page == BLOCK_PAGES as u32 => i64::from(n),
            _ => (page..end).filter(is_away).count() as i64,
        };
        page = end;
    }
    sum
}

/// Pages that queued hints may still bring in; counting may stop at `most`.
fn waiting(most: i64) -> i64 {
    let mut sum = HINTS.under_way.load(Ordering::Relaxed);
    for hint in HINTS.coming.waiting() {
        if sum >= most {
            break;
        }
        sum += away(hint, most - sum);
    }
    sum
}

/// The program will need the range: queues its far pages to be brought in soon. Older hints are dropped to make room.
/// The caller is inside `freeze::enter`.
pub fn will_need(start: u32, end: u32) {
    let most = pages_max();
    let Some(hint) = Hint::of(start, end) else {
        return;
    };
    let wanted = away(hint, most);
    if wanted == 0 {
        return;
    }
    let mut dropped = 0;
    while waiting(most) + wanted > most && HINTS.coming.take().is_some() {
        dropped += 1;
    }
    dropped += u64::from(HINTS.coming.push(hint).is_some());
    if dropped > 0 {
        count(Counter::HintsDropped, dropped);
    }
    call_reclaimer();
}

/// Like [`will_need`], but queued hints have priority: accepts as many ranges as the queue has room for, and as many
/// pages as hints may bring in. Returns the pages accepted. The caller is inside `freeze::enter`.
pub fn try_will_need(ranges: &[(u32, u32)]) -> Result<i64, Busy> {
    let most = pages_max();
    let (mut before, mut accepted, mut busy) = (None, 0, false);
    for (start, end) in ranges {
        let Some(hint) = Hint::of(*start, *end) else {
            continue;
        };
        let wanted = away(hint, most);
        if wanted == 0 {
            continue;
        }
        let waits = accepted + *before.get_or_insert_with(|| waiting(most));
        busy = HINTS.coming.is_full() || waits > 0 && waits + wanted > most;
        if busy {
            break;
        }
        if HINTS.coming.push(hint).is_some() {
            count(Counter::HintsDropped, 1);
        }
        accepted += wanted;
    }
    if accepted > 0 {
        call_reclaimer();
    }
    match busy && accepted == 0 {
        true => Err(Busy),
        false => Ok(accepted.min(most)),
    }
}

/// Makes the range's pages the next victims. Returns true if some are locked; those stay. The caller is inside
/// `freeze::enter`.
pub fn cool(start: u32, end: u32) -> bool {
    let table = areas::table();
    let (mut page, mut chunks, mut locked) = (start, 0, false);
    while page < end {
        let block = page as usize / BLOCK_PAGES;
        let in_block = ((block + 1) * BLOCK_PAGES) as u32;
        if table.resident_in_block[block].load(Ordering::Relaxed) == 0 {
            page = in_block.min(end);
            continue;
        }
        let chunk = canvas_core::pager::table::CHUNK_PAGES as u32;
        let to = ((page / chunk + 1) * chunk).min(end);
        let found = hints::cool(&table.words[page as usize..to as usize]);
        locked |= found.locked;
        if found.pages > 0 && chunks < COLD_CHUNKS {
            PROCESS.pager.clock.stream_passed(PageId(page));
            chunks += 1;
        }
        page = to;
    }
    locked
}

/// Queues the range's pages for eviction. Returns true if some are locked; those stay. The caller is inside
/// `freeze::enter`.
pub fn page_out(start: u32, end: u32) -> bool {
    let locked = cool(start, end);
    if let Some(hint) = Hint::of(start, end) {
        if HINTS.leaving.push(hint).is_some() {
            count(Counter::HintsDropped, 1);
        }
        call_reclaimer();
    }
    locked
}

/// A hint that is being carried out.
#[derive(Clone, Copy)]
struct Task {
    /// The next page.
    at: u32,
    end: u32,
    /// Pages that it may still bring in.
    left: i64,
}

impl Task {
    fn of(hint: Hint, left: i64) -> Task {
        Task {
            at: hint.start,
            end: hint.end,
            left,
        }
    }
}

/// State of the reclaim thread's work on hints.
#[derive(Default)]
pub struct Server {
    coming: Option<Task>,
    leaving: Option<Task>,
    /// The next pages to bring in, from one or several hints.
    lot: Lot,
    /// Tries in vain since the last page was evicted.
    waits_out: u32,
}

/// The next far pages to bring in.
pub struct Lot {
    pages: [PageId; LOT],
    len: usize,
    /// Tries in vain since the last page came in.
    waits: u32,
}

impl Default for Lot {
    fn default() -> Lot {
        Lot {
            pages: [PageId::default(); LOT],
            len: 0,
            waits: 0,
        }
    }
}

impl Lot {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds those pages that can come in, as many as fit.
    pub fn extend(&mut self, pages: impl Iterator<Item = PageId>) {
        for page in pages.filter(|p| is_far(*p)).take(LOT - self.len) {
            self.pages[self.len] = page;
            self.len += 1;
        }
    }

    pub fn pages(&self) -> &[PageId] {
        &self.pages[..self.len]
    }

    /// Brings in the pages (at least one) and counts them in `counter`. Pages that cannot come now stay in the lot.
    /// Returns the pause before the next try in ns, or `None` after too many tries in vain (no room, or far memory does
    /// not answer): the pages are then given up. The caller is inside `freeze::enter`.
    pub fn come_in(&mut self, counter: Counter) -> Option<u64> {
        let came = lot_in(self.pages(), counter);
        let mut kept = 0;
        for i in 0..self.len {
            if came.waits && is_far(self.pages[i]) {
                self.pages[kept] = self.pages[i];
                kept += 1;
            }
        }
        self.len = kept;
        self.waits = match kept > 0 && came.pages == 0 {
            true => self.waits + 1,
            false => 0,
        };
        if self.waits > WAITS_MAX {
            *self = Lot::default();
            return None;
        }
        Some(if came.waits { WAIT_NS } else { 0 })
    }
}

impl Server {
    /// Runs one round of the reclaim thread's work on hints. The caller is inside `freeze::enter`.
    pub fn background_round(&mut self) -> Round {
        HINTS.arrived.store(false, Ordering::Relaxed);
        if ledger::is_past_limit(&PROCESS) {
            return Round::Idle;
        }
        let out = self.take_out();
        let come = self.bring_in();
        let rest = |task: Task| task.left.min(i64::from(task.end - task.at));
        let under_way = self.lot.len as i64 + self.coming.map_or(0, rest);
        HINTS.under_way.store(under_way, Ordering::Relaxed);
        match (out, come) {
            (Round::Idle, other) | (other, Round::Idle) => other,
            (Round::Worked(a), Round::Worked(b)) => Round::Worked(a.min(b)),
        }
    }

    fn take_out(&mut self) -> Round {
        let next = || HINTS.leaving.take().map(|hint| Task::of(hint, 0));
        let Some(mut task) = self.leaving.take().or_else(next) else {
            return Round::Idle;
        };
        let is_empty =
            |block: usize| areas::table().resident_in_block[block].load(Ordering::Relaxed) == 0;
        let mut scan = ScanCursor::range(task.at, task.end, LOOK_MAX);
        while scan.peek().is_some() && scan.skip_block(is_empty) {}
        let from = scan.at();
        if from >= task.end || state::slot().held_pages() <= LEAST_PAGES {
            return Round::Worked(0);
        }
        let to = task.end.min(from.saturating_add(LOOK_MAX as u32));
        let (at, left) = reclaim::reclaim_chosen(&PROCESS, from, to);
        count(Counter::HintPagesOut, u64::from(left));
        task.at = at;
        let stuck = at == from;
        self.waits_out = if stuck { self.waits_out + 1 } else { 0 };
        if self.waits_out > WAITS_MAX {
            self.waits_out = 0;
            count(Counter::HintsDropped, 1);
        } else {
            self.leaving = Some(task);
        }
        Round::Worked(if stuck { WAIT_NS } else { 0 })
    }

    fn bring_in(&mut self) -> Round {
        let looked = self.fill_lot();
        if self.lot.len == 0 {
            return match looked || self.coming.is_some() {
                true => Round::Worked(0),
                false => Round::Idle,
            };
        }
        let pause_ns = self.lot.come_in(Counter::HintPagesIn);
        if pause_ns.is_none() {
            self.coming = None;
            count(Counter::HintsDropped, 1);
        }
        // Others may need this CPU, and faults may need the locks.
        yield_now();
        Round::Worked(pause_ns.unwrap_or(WAIT_NS))
    }

    /// Fills the lot from the queued hints, in order. Returns whether there was a hint.
    fn fill_lot(&mut self) -> bool {
        let (lot, mut looked) = (&mut self.lot, 0);
        while lot.len < LOT && looked < LOOK_MAX {
            let next = || HINTS.coming.take().map(|hint| Task::of(hint, pages_max()));
            let Some(mut task) = self.coming.take().or_else(next) else {
                break;
            };
            let most = LOT.min(lot.len.saturating_add(task.left as usize));
            let mut scan = ScanCursor::range(task.at, task.end, LOOK_MAX);
            let out = &mut lot.pages[lot.len..most];
            let n = areas::far_pages().collect(&mut scan, out, may_come);
            looked += 1 + scan.passed() as usize;
            lot.len += n;
            task.left -= n as i64;
            task.at = scan.at();
            if task.left > 0 && task.at < task.end {
                self.coming = Some(task);
            } else if task.at < task.end
                && away(
                    Hint {
                        start: task.at,
                        end: task.end,
                    },
                    1,
                ) > 0
            {
                // The rest of the hint is more than it may bring in.
                count(Counter::HintsDropped, 1);
            }
        }
        looked > 0
    }
}

/// Whether the page is far and can come in.
pub fn is_far(page: PageId) -> bool {
    may_come(word::load(areas::word(page)))
}

fn may_come(w: Word) -> bool {
    w.state() == State::Far && !w.has(flag::STUCK)
}

/// How bringing in a lot ended.
struct Came {
    /// Pages that are resident now.
    pages: u32,
    /// Some pages cannot come in now.
    waits: bool,
}

/// Brings in the pages (at least one) and counts them. The caller is inside `freeze::enter`.
fn lot_in(lot: &[PageId], counter: Counter) -> Came {
    let (seg, me) = (state::seg(), state::slot());
    let wait = Came {
        pages: 0,
        waits: true,
    };
    let is_deep = |page: &PageId| word::load(areas::word(*page)).has(flag::IN_FAR_TIER);
    if lot.iter().any(is_deep) && !tier::pool_makes_way() {
        return wait;
    }
    let n = lot.len() as i64;
    // Stay as far below the limit as reclaim does, and use at most half of that headroom, which faults need.
    let (mark, top) = ledger::limit(state::seg()).map_or((i64::MAX >> 1, i64::MAX >> 1), |l| {
        let low = ledger::gaps(&PROCESS, l).0;
        (l - low, l - low / 2)
    });
    let mut tries = 0;
    if seg.local_pages.load(Ordering::Relaxed) + n > mark {
        reclaim::reclaim(&PROCESS, n as u32, reclaim::Reason::Background);
    }
    while !seg.charge_local_within(me, n, top) {
        tries += 1;
        if tries > 3 || reclaim::reclaim(&PROCESS, n as u32, reclaim::Reason::Background) == 0 {
            return wait;
        }
    }
    let beyond = match hints::is_scattered(lot) {
        true => FarRead::Alone,
        false => FarRead::Extents,
    };
    let done = charged_in(lot, beyond, goes_on, counter);
    Came {
        pages: done.mapped,
        waits: done.beyond.or(done.not_tried).is_some(),
    }
}

/// Brings in the pages (at least one) during a fault on another page, if there is room for them at once, and counts
/// them. The caller is inside `freeze::enter`.
pub fn lot_beside(lot: &[PageId], counter: Counter) {
    let n = lot.len() as i64;
    let mark =
        ledger::limit(state::seg()).map_or(i64::MAX >> 1, |l| l - ledger::gaps(&PROCESS, l).0);
    if !state::seg().charge_local_within(state::slot(), n, mark) {
        return;
    }
    charged_in(lot, FarRead::Extents, || true, counter);
}

/// Brings in the pages, which are charged, while `goes_on` returns true. Uncharges those that did not come in, and
/// counts. Pages that come in survive the next reclaim pass.
fn charged_in(
    lot: &[PageId],
    beyond: FarRead,
    goes_on: impl Fn() -> bool,
    counter: Counter,
) -> SwappedIn {
    let done = fill::swap_in(&PROCESS, lot, beyond, goes_on, |_| false);
    ledger::uncharge(&PROCESS, lot.len() as i64 - i64::from(done.mapped));
    count(counter, u64::from(done.mapped));
    for page in lot {
        hints::spare(areas::word(*page));
    }
    done
}

/// Lets reclaim and other processes' requests go first.
fn goes_on() -> bool {
    state::slot().reclaim_wanted.load(Ordering::Relaxed) == 0 && !ledger::is_past_limit(&PROCESS)
}
