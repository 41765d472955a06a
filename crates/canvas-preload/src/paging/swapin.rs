//! Proactive swap-in: while local memory is free, the reclaim thread brings the most recently evicted pages back in
//! batches, before they are touched. [`canvas_core::pager::swapin`] decides when and which.

use canvas_core::pager::swapin::SwapInScan;
use canvas_core::pager::swapin::schedule::{CHILD_NS, Inputs, SAMPLE_EVERY, Schedule, Step, floor};
use canvas_core::pager::word::{self, flag};
use canvas_core::vm::fill::{self, FarRead};
use canvas_core::vm::{ages, ledger};
use canvas_shm::Counter;
use canvas_shm::segment::shares;
use canvas_sys::gate::yield_now;
use canvas_sys::proc;
use canvas_types::PageId;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::far_tier::tier;
use crate::own_memory::areas;
use crate::paging::cache;
use crate::runtime::{
    state,
    state::{PROCESS, count},
};

/// Pages that come in at a time; between two such lots other work goes first.
const LOT: usize = 64;
/// Page words that one round examines.
const LOOK_MAX: usize = 1 << 16;
/// How often to try again when a page is on its way from beyond the pool, and the pause between two tries.
const WAITS_MAX: u32 = 100;
const WAIT_NS: u64 = 500_000;
/// Longest pause after a batch during which the program faulted.
const YIELD_NS_MAX: u64 = 2_000_000;

/// The limit when this process started: the reclaim thread may read it for the first time long after that.
static LIMIT_BYTES: AtomicU64 = AtomicU64::new(0);

/// Stores, at start-up, the limit against which a rise is measured.
pub fn start() {
    let limit_bytes = state::seg().config.local_bytes.load(Ordering::Relaxed);
    LIMIT_BYTES.store(limit_bytes, Ordering::Relaxed);
}

/// State of the reclaim thread's proactive swap-in.
pub struct SwapIn {
    schedule: Schedule,
    hand: SwapInScan,
    /// Tries in vain for a page that is on its way.
    waits: u32,
    /// Pages that came in, to choose the samples among them.
    came: u64,
}

/// Result of a round.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// There is nothing to bring in.
    Idle,
    /// Something was done; the next round is due after this many ns.
    Worked(u64),
}

impl SwapIn {
    /// Creates the state for a new reclaim thread.
    pub fn new() -> SwapIn {
        let is_child = state::slot().shares.load(Ordering::Relaxed) == shares::CHILD;
        let not_before_ns = match is_child {
            true => proc::now_ns() + CHILD_NS,
            false => 0,
        };
        let limit_bytes = match PROCESS.has_forked() {
            true => state::seg().config.local_bytes.load(Ordering::Relaxed),
            false => LIMIT_BYTES.load(Ordering::Relaxed),
        };
        SwapIn {
            schedule: Schedule::new(limit_bytes, not_before_ns),
            hand: SwapInScan::new(),
            waits: 0,
            came: 0,
        }
    }

    /// Runs one round when the reclaim thread has nothing to reclaim. The caller is inside `freeze::enter`.
    pub fn background_round(&mut self) -> Round {
        let Some(seen) = look() else {
            return Round::Idle;
        };
        let pages = match self.schedule.step(&seen) {
            Step::Nothing => return Round::Idle,
            Step::Begin(reach, pages) => {
                self.hand.begin(reach);
                self.waits = 0;
                pages
            }
            Step::Continue(pages) => pages,
        };
        let came_back = || state::slot().came_back.load(Ordering::Relaxed);
        let faults_before = came_back();
        let most = ledger::limit(state::seg()).unwrap_or(0) - seen.threshold.unwrap_or(0);
        let on_its_way = self.batch(pages as usize, most);
        let took_ns = proc::now_ns().saturating_sub(seen.now_ns);
        count(Counter::ProactiveNs, took_ns);
        if on_its_way {
            return Round::Worked(WAIT_NS);
        }
        if !self.hand.goes_on() {
            self.schedule
                .end(state::slot().far_pages.load(Ordering::Relaxed));
        }
        // Others may need this CPU, and faults may need the locks.
        yield_now();
        Round::Worked(match came_back() == faults_before {
            true => 0,
            false => took_ns.min(YIELD_NS_MAX),
        })
    }

    /// Brings in up to `pages` pages while local memory is at most `most`. Returns true if some of them are on their
    /// way from beyond the pool.
    fn batch(&mut self, pages: usize, most: i64) -> bool {
        let far = areas::far_pages();
        let mut lot = [PageId::default(); LOT];
        let mut left = pages;
        while left > 0 && self.hand.goes_on() && goes_on() {
            let n = self.hand.next(&far, LOOK_MAX, &mut lot[..left.min(LOT)]);
            // Examining this many words in vain also counts as a round's work.
            if n == 0 {
                return false;
            }
            let is_deep = |page: &PageId| word::load(areas::word(*page)).has(flag::IN_FAR_TIER);
            if lot[..n].iter().any(is_deep) && !tier::pool_makes_way() {
                self.hand.skip_far_tier();
                self.hand.back_to(lot[0]);
                continue;
            }
            left -= n;
            match self.bring_in(&lot[..n], most) {
                Came::All => {}
                Came::UpTo(page) => {
                    self.hand.back_to(page);
                    return false;
                }
                Came::Beyond(page) if self.waits < WAITS_MAX => {
                    self.waits += 1;
                    self.hand.back_to(page);
                    return true;
                }
                // Far memory does not answer.
                Came::Beyond(_) => self.hand.skip_far_tier(),
            }
        }
        false
    }

    /// Brings in the pages (at least one).
    fn bring_in(&mut self, pages: &[PageId], most: i64) -> Came {
        let (seg, me) = (state::seg(), state::slot());
        // Each sample may need a slot as well. Charge first, because other processes of the tenant swap in, too.
        let n = pages.len() as i64;
        let charge = n + n / SAMPLE_EVERY as i64 + 1;
        if !seg.charge_local_within(me, charge, most + charge - n) {
            // The next round decides whether to go on.
            return Came::UpTo(pages[0]);
        }
        let slots = cache::slots();
        let samples = slots.available() > slots.capacity() / 2;
        let done = fill::swap_in(&PROCESS, pages, FarRead::Extents, goes_on, |i| {
            samples && (self.came + u64::from(i)).is_multiple_of(SAMPLE_EVERY)
        });
        ledger::uncharge(&PROCESS, charge - i64::from(done.mapped));
        let came = u64::from(done.mapped + done.sampled);
        self.came += came;
        self.schedule.record(came, u64::from(done.sampled));
        if came > 0 {
            self.waits = 0;
        }
        count(Counter::PagesProactive, came);
        match (done.not_tried, done.beyond) {
            (_, Some(page)) => Came::Beyond(page),
            (Some(page), None) => Came::UpTo(page),
            (None, None) => Came::All,
        }
    }
}

/// Which of the requested pages came in.
enum Came {
    /// All that can come in.
    All,
    /// Those before this one: there is more urgent work.
    UpTo(PageId),
    /// This is the first one that is on its way from beyond the pool.
    Beyond(PageId),
}

/// Lets reclaim and other processes' requests go first.
fn goes_on() -> bool {
    state::slot().reclaim_wanted.load(Ordering::Relaxed) == 0 && !ledger::short_of_room(&PROCESS)
}

/// The inputs of the decision; `None` without a limit.
fn look() -> Option<Inputs> {
    let (seg, me) = (state::seg(), state::slot());
    let far = me.far_pages.load(Ordering::Relaxed);
    let limit = ledger::limit(state::seg())?;
    let setting = seg.proactive_pages(limit);
    let threshold = setting.map(|pages| floor(pages, ledger::gaps(&PROCESS, limit).1));
    let now_ns = proc::now_ns();
    Some(Inputs {
        now_ns,
        limit_bytes: seg.config.local_bytes.load(Ordering::Relaxed),
        free: limit - seg.local_pages.load(Ordering::Relaxed),
        // When the host is short of memory, what is free is not ours to fill.
        threshold: threshold.filter(|_| !seg.host.is_short()),
        batch: i64::from(
            seg.config
                .proactive_batch_pages
                .load(Ordering::Relaxed)
                .max(1),
        ),
        far,
        evicted: PROCESS.pager.evicted_pages.load(Ordering::Relaxed),
        used: PROCESS.pager.proactive_used.load(Ordering::Relaxed),
        runs: ages::program_runs(&PROCESS, now_ns),
    })
}
