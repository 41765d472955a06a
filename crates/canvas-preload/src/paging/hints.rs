//! What the program says of its memory (madvise, canvas.h) is done here: the caller leaves a range, and the reclaim
//! thread brings in what is far of it, or takes out what is resident, in batches, when it has nothing to reclaim.
//!
//! What waits to come in comes to an eighth of the limit at most, and so does what one hint brings in: a program
//! that is told wrong loses no more than that of what it had. Room is made by reclaim in the background; whoever
//! faults never waits for a hint.

use canvas_pager::hints::{self, Hint, Ring};
use canvas_pager::word::{self, State, flag};
use canvas_shm::Counter;
use canvas_sys::gate::yield_now;
use canvas_types::PageId;
use canvas_types::layout::BLOCK_PAGES;
use core::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::base::{
    areas, state,
    state::{CLOCK, count},
};
use crate::far_tier::tier;
use crate::paging::{accounting, fault, reclaim, swapin::Round};

/// Ranges to bring in.
static IN: Ring = Ring::new();
/// Ranges to take out.
static OUT: Ring = Ring::new();
/// A hint came since the reclaim thread last looked.
static ARRIVED: AtomicBool = AtomicBool::new(false);
/// Pages that the hint which is being done may still bring in.
static UNDER_WAY: AtomicI64 = AtomicI64::new(0);

/// Pages that come in at a time; between two such lots others go first.
pub const LOT: usize = 64;
/// Words that one round looks at.
const LOOK_MAX: u32 = 1 << 16;
/// Looks for room, or for a page that is on its way from beyond the pool, and the pause between two.
const WAITS_MAX: u32 = 200;
/// See `WAITS_MAX`.
pub const WAIT_NS: u64 = 500_000;
/// A process keeps so many pages, whatever it is told.
const LEAST_PAGES: i64 = canvas_pager::floor::LEAST_PAGES;
/// Chunks of a cold range that go before all else.
const COLD_CHUNKS: u32 = 32;

/// There are no places left: the program asks for more than can be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy;

/// Is there a hint that the reclaim thread has not looked at?
pub fn arrived() -> bool {
    ARRIVED.load(Ordering::Relaxed)
}

/// In a fork's child: what its parent's reclaim thread was told is not the child's.
pub fn after_fork_in_child() {
    IN.clear();
    OUT.clear();
    ARRIVED.store(false, Ordering::Relaxed);
    UNDER_WAY.store(0, Ordering::Relaxed);
}

fn call_reclaimer() {
    ARRIVED.store(true, Ordering::Release);
    accounting::wake_reclaimer();
}

/// The pages that hints bring in at a time, at most.
fn pages_max() -> i64 {
    accounting::limit().map_or(i64::MAX, |limit| (limit / 8).max(LOT as i64))
}

/// Pages of the range that are away, as far as the blocks' counts tell; it need not count on from `most`.
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

/// Pages that hints may still bring in.
fn waiting(most: i64) -> i64 {
    let mut sum = UNDER_WAY.load(Ordering::Relaxed);
    for hint in IN.waiting() {
        if sum >= most {
            break;
        }
        sum += away(hint, most - sum);
    }
    sum
}

/// The program will need the range: what is far of it comes in, soon. Older hints make way. The caller is inside.
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
    while waiting(most) + wanted > most && IN.take().is_some() {
        dropped += 1;
    }
    dropped += u64::from(IN.push(hint).is_some());
    if dropped > 0 {
        count(Counter::HintsDropped, dropped);
    }
    call_reclaimer();
}

/// The same where those that wait go first: of the ranges, as many as have a place, and the pages that may come in.
/// The caller is inside.
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
        busy = IN.is_full() || waits > 0 && waits + wanted > most;
        if busy {
            break;
        }
        if IN.push(hint).is_some() {
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

/// The pages of the range are the next victims. True when some are locked, which stay. The caller is inside.
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
        let chunk = canvas_pager::table::CHUNK_PAGES as u32;
        let to = ((page / chunk + 1) * chunk).min(end);
        let found = hints::cool(&table.words[page as usize..to as usize]);
        locked |= found.locked;
        if found.pages > 0 && chunks < COLD_CHUNKS {
            CLOCK.stream_passed(PageId(page));
            chunks += 1;
        }
        page = to;
    }
    locked
}

/// The pages of the range leave soon. True when some are locked, which stay. The caller is inside.
pub fn page_out(start: u32, end: u32) -> bool {
    let locked = cool(start, end);
    if let Some(hint) = Hint::of(start, end) {
        if OUT.push(hint).is_some() {
            count(Counter::HintsDropped, 1);
        }
        call_reclaimer();
    }
    locked
}

/// A hint that is being done.
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

/// The reclaim thread's state of it.
#[derive(Default)]
pub struct Server {
    coming: Option<Task>,
    leaving: Option<Task>,
    /// Pages that are next, of one hint or several.
    lot: Lot,
    /// Looks in vain since the last page left.
    waits_out: u32,
}

/// Far pages that are next.
pub struct Lot {
    pages: [PageId; LOT],
    len: usize,
    /// Looks in vain since the last page came.
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
    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds those that can come in, as many as there is room for.
    pub fn extend(&mut self, pages: impl Iterator<Item = PageId>) {
        for page in pages.filter(|p| is_far(*p)).take(LOT - self.len) {
            self.pages[self.len] = page;
            self.len += 1;
        }
    }

    /// All of them.
    pub fn pages(&self) -> &[PageId] {
        &self.pages[..self.len]
    }

    /// Brings in the pages, of which there is one at least, and counts them; those that cannot come now stay. The pause
    /// until the next try in ns; `None` when there were too many in vain: there is no room to be had, or far memory
    /// does not answer, and the pages are given up. The caller is inside.
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
    /// The reclaim thread's round. The caller is inside.
    pub fn background_round(&mut self) -> Round {
        ARRIVED.store(false, Ordering::Relaxed);
        if accounting::is_past_limit() {
            return Round::Idle;
        }
        let out = self.take_out();
        let come = self.bring_in();
        let rest = |task: Task| task.left.min(i64::from(task.end - task.at));
        let under_way = self.lot.len as i64 + self.coming.map_or(0, rest);
        UNDER_WAY.store(under_way, Ordering::Relaxed);
        match (out, come) {
            (Round::Idle, other) | (other, Round::Idle) => other,
            (Round::Worked(a), Round::Worked(b)) => Round::Worked(a.min(b)),
        }
    }

    fn take_out(&mut self) -> Round {
        let next = || OUT.take().map(|hint| Task::of(hint, 0));
        let Some(mut task) = self.leaving.take().or_else(next) else {
            return Round::Idle;
        };
        let from = skip(task.at, task.end, |block| {
            areas::table().resident_in_block[block].load(Ordering::Relaxed) == 0
        });
        if from >= task.end || state::slot().held_pages() <= LEAST_PAGES {
            return Round::Worked(0);
        }
        let to = task.end.min(from.saturating_add(LOOK_MAX));
        let (at, left) = reclaim::run_of(from, to);
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
        // Others may need this processor, and faults the locks.
        yield_now();
        Round::Worked(pause_ns.unwrap_or(WAIT_NS))
    }

    /// Fills the lot from the hints in their order. True when there was one.
    fn fill_lot(&mut self) -> bool {
        let (lot, mut looked) = (&mut self.lot, 0);
        while lot.len < LOT && looked < LOOK_MAX {
            let next = || IN.take().map(|hint| Task::of(hint, pages_max()));
            let Some(mut task) = self.coming.take().or_else(next) else {
                break;
            };
            let most = LOT.min(lot.len.saturating_add(task.left as usize));
            let (n, at) = far_pages(task.at, task.end, &mut lot.pages[lot.len..most]);
            looked += 1 + at - task.at;
            lot.len += n;
            task.left -= n as i64;
            task.at = at;
            if task.left > 0 && at < task.end {
                self.coming = Some(task);
            } else if at < task.end
                && away(
                    Hint {
                        start: at,
                        end: task.end,
                    },
                    1,
                ) > 0
            {
                // What is left is more than may come.
                count(Counter::HintsDropped, 1);
            }
        }
        looked > 0
    }
}

/// Can the page come in?
pub fn is_far(page: PageId) -> bool {
    let w = word::load(areas::word(page));
    w.state() == State::Far && !w.has(flag::STUCK)
}

/// What became of a lot.
struct Came {
    /// Pages that are resident now.
    pages: u32,
    /// Some of them cannot come now.
    waits: bool,
}

/// Brings in the pages, of which there is one at least, and counts them. The caller is inside.
fn lot_in(lot: &[PageId], counter: Counter) -> Came {
    let (seg, me) = (state::seg(), state::slot());
    let wait = Came {
        pages: 0,
        waits: true,
    };
    let is_deep = |page: &PageId| word::load(areas::word(*page)).has(flag::DEEP);
    if lot.iter().any(is_deep) && !tier::pool_makes_way() {
        return wait;
    }
    let n = lot.len() as i64;
    // As far below the limit as reclaim keeps it; of that headroom, which those who fault need, half at most.
    let (mark, top) = accounting::limit().map_or((i64::MAX >> 1, i64::MAX >> 1), |l| {
        let low = accounting::gaps(l).0;
        (l - low, l - low / 2)
    });
    let mut tries = 0;
    if seg.local_pages.load(Ordering::Relaxed) + n > mark {
        reclaim::run(n as u32, reclaim::Whose::Background);
    }
    while !seg.charge_local_within(me, n, top) {
        tries += 1;
        if tries > 3 || reclaim::run(n as u32, reclaim::Whose::Background) == 0 {
            return wait;
        }
    }
    let beyond = match hints::is_scattered(lot) {
        true => fault::Beyond::Alone,
        false => fault::Beyond::Extents,
    };
    let done = charged_in(lot, beyond, goes_on, counter);
    Came {
        pages: done.mapped,
        waits: done.beyond.or(done.not_tried).is_some(),
    }
}

/// Brings in the pages, of which there is one at least, at another one's fault: where there is room for them at once,
/// and counts them. The caller is inside.
pub fn lot_beside(lot: &[PageId], counter: Counter) {
    let n = lot.len() as i64;
    let mark = accounting::limit().map_or(i64::MAX >> 1, |l| l - accounting::gaps(l).0);
    if !state::seg().charge_local_within(state::slot(), n, mark) {
        return;
    }
    charged_in(lot, fault::Beyond::Extents, || true, counter);
}

/// Brings in the pages, which are charged, as far as they come and as long as `goes_on`; gives back the charge of the
/// others, and counts. What came stays until reclaim has come by once.
fn charged_in(
    lot: &[PageId],
    beyond: fault::Beyond,
    goes_on: impl Fn() -> bool,
    counter: Counter,
) -> fault::SwappedIn {
    let done = fault::swap_in(lot, beyond, goes_on, |_| false);
    accounting::uncharge(lot.len() as i64 - i64::from(done.mapped));
    count(counter, u64::from(done.mapped));
    for page in lot {
        hints::spare(areas::word(*page));
    }
    done
}

/// Reclaim and demands of others go first.
fn goes_on() -> bool {
    state::slot().reclaim_wanted.load(Ordering::Relaxed) == 0 && !accounting::is_past_limit()
}

/// The first page from `page` on whose block is not to be skipped.
fn skip(mut page: u32, end: u32, is_empty: impl Fn(usize) -> bool) -> u32 {
    while page < end && is_empty(page as usize / BLOCK_PAGES) {
        page = ((page as usize / BLOCK_PAGES + 1) * BLOCK_PAGES) as u32;
    }
    page.min(end)
}

/// Far pages of a range, from its first on; how many, and up to where was looked.
fn far_pages(start: u32, end: u32, out: &mut [PageId]) -> (usize, u32) {
    let (mut page, mut n, mut looked) = (start, 0, 0);
    while page < end && n < out.len() && looked < LOOK_MAX {
        let from = skip(page, end, areas::all_resident);
        if from != page {
            looked += 1;
            page = from;
            continue;
        }
        if is_far(PageId(page)) {
            out[n] = PageId(page);
            n += 1;
        }
        looked += 1;
        page += 1;
    }
    (n, page)
}
