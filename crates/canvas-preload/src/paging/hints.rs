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
const LOT: usize = 64;
/// Words that one round looks at.
const LOOK_MAX: u32 = 1 << 16;
/// Looks for room, or for a page that is on its way from beyond the pool, and the pause between two.
const WAITS_MAX: u32 = 200;
const WAIT_NS: u64 = 500_000;
/// A process keeps so many pages, whatever it is told.
const LEAST_PAGES: i64 = canvas_pager::floor::LEAST_PAGES;
/// Chunks of a cold range that go before all else.
const COLD_CHUNKS: u32 = 32;

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
    /// Looks in vain since the last page came.
    waits: u32,
}

impl Task {
    fn of(hint: Hint, left: i64) -> Task {
        Task {
            at: hint.start,
            end: hint.end,
            left,
            waits: 0,
        }
    }
}

/// The reclaim thread's state of it.
#[derive(Default)]
pub struct Server {
    coming: Option<Task>,
    leaving: Option<Task>,
}

impl Server {
    /// The reclaim thread's round, when it is not short of room. The caller is inside.
    pub fn background_round(&mut self) -> Round {
        ARRIVED.store(false, Ordering::Relaxed);
        if accounting::short_of_room() {
            return Round::Idle;
        }
        let out = self.take_out();
        let come = self.bring_in();
        let left = self.coming.map_or(0, |task| task.left);
        UNDER_WAY.store(left, Ordering::Relaxed);
        match (out, come) {
            (Round::Idle, Round::Idle) => Round::Idle,
            (Round::Worked(ns), Round::Idle) | (Round::Idle, Round::Worked(ns)) => {
                Round::Worked(ns)
            }
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
        task.at = from;
        let to = task.end.min(from.saturating_add(LOOK_MAX));
        let (at, left) = reclaim::run_of(from, to);
        count(Counter::HintPagesOut, u64::from(left));
        let stuck = at == from;
        task.at = at;
        task.waits = if stuck { task.waits + 1 } else { 0 };
        if task.waits > WAITS_MAX {
            count(Counter::HintsDropped, 1);
        } else {
            self.leaving = Some(task);
        }
        Round::Worked(if stuck { WAIT_NS } else { 0 })
    }

    fn bring_in(&mut self) -> Round {
        let next = || IN.take().map(|hint| Task::of(hint, pages_max()));
        let Some(mut task) = self.coming.take().or_else(next) else {
            return Round::Idle;
        };
        let mut lot = [PageId::default(); LOT];
        let (n, until) = far_pages(task.at, task.end, &mut lot);
        if n == 0 {
            task.at = until;
            self.coming = (until < task.end).then_some(task);
            return Round::Worked(0);
        }
        if task.left <= 0 {
            // What is left is more than may come.
            count(Counter::HintsDropped, 1);
            return Round::Worked(0);
        }
        let n = n.min(task.left as usize);
        let came = lot_in(&lot[..n]);
        task.left -= i64::from(came.pages);
        task.at = came.next;
        task.waits = match came.waits && came.pages == 0 {
            true => task.waits + 1,
            false => 0,
        };
        if task.waits > WAITS_MAX {
            // There is no room to be had, or far memory does not answer.
            count(Counter::HintsDropped, 1);
            return Round::Worked(0);
        }
        self.coming = Some(task);
        // Others may need this processor, and faults the locks.
        yield_now();
        Round::Worked(if came.waits { WAIT_NS } else { 0 })
    }
}

/// What became of a lot.
struct Came {
    pages: u32,
    /// Where to go on.
    next: u32,
    /// What is next cannot come now.
    waits: bool,
}

/// Brings in the pages, of which there is one.
fn lot_in(lot: &[PageId]) -> Came {
    let (seg, me) = (state::seg(), state::slot());
    let first = lot[0].0;
    let wait = Came {
        pages: 0,
        next: first,
        waits: true,
    };
    let is_deep = |page: &PageId| word::load(areas::word(*page)).has(flag::DEEP);
    if lot.iter().any(is_deep) && !tier::pool_makes_way() {
        return wait;
    }
    let n = lot.len() as i64;
    let top = accounting::limit().map_or(i64::MAX >> 1, |l| l - accounting::gaps(l).0);
    let mut tries = 0;
    while !seg.charge_local_within(me, n, top) {
        tries += 1;
        if tries > 3 || reclaim::run(n as u32, reclaim::Whose::Background) == 0 {
            return wait;
        }
    }
    let done = fault::swap_in(lot, goes_on, |_| false);
    accounting::uncharge(n - i64::from(done.mapped));
    count(Counter::HintPagesIn, u64::from(done.mapped));
    for page in lot {
        hints::spare(areas::word(*page));
    }
    let next = done.beyond.or(done.not_tried).map(|page| page.0);
    Came {
        pages: done.mapped,
        next: next.unwrap_or(lot[lot.len() - 1].0 + 1),
        waits: next.is_some(),
    }
}

/// Reclaim and demands of others go first.
fn goes_on() -> bool {
    state::slot().reclaim_wanted.load(Ordering::Relaxed) == 0 && !accounting::short_of_room()
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
        let w = word::load(areas::word(PageId(page)));
        if w.state() == State::Far && !w.has(flag::STUCK) {
            out[n] = PageId(page);
            n += 1;
        }
        looked += 1;
        page += 1;
    }
    (n, page)
}
