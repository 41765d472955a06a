//! The pager's own policy code over a simulated page table and swap cache. As in the real pager, the policy
//! sees faults and swap-cache hits only.

use std::collections::VecDeque;
use std::fmt;

use canvas_types::layout::BLOCK_PAGES;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};
use canvas_types::{PageId, Prefetch};

use super::{Op, Trace};
use canvas_core::pager::clock::{Clock, ClockParams, EpochClock, FillKind, Run, VictimBatch};
use canvas_core::pager::prefetch::choice::Prefetchers;
use canvas_core::pager::prefetch::{
    Advice, Area, Done, Fault, FaultKind, MemoryView, Plan, Prefetcher,
};
use canvas_core::pager::table::{CHUNK_PAGES, PageTable};
use canvas_core::pager::word::{self, State, Word, flag};

/// Setup of canvas's policy.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Setup {
    /// Parameters of the eviction clock.
    pub params: ClockParams,
    /// Swap cache, in thousandths of local memory.
    pub cache_permille: u32,
    /// Pages that one reclaim asks for (fewer when local memory is tiny).
    pub batch_pages: u32,
    /// The prefetcher in use. Streams are detected with any of them.
    pub prefetch: Prefetch,
    /// Share of the resident pages whose touches the policy sees until the epoch ends, in percent, as a
    /// sensor would show them (accessed bits, or unmapping of sampled pages). The pager has 0.
    pub seen_percent: u32,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            params: ClockParams::DEFAULT,
            cache_permille: 30,
            batch_pages: 64,
            prefetch: Prefetch::None,
            seen_percent: 0,
        }
    }
}

/// Cost of each operation, in us.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// A fault on a far page, without evicting a page for it.
    pub miss: f64,
    /// A fault on a page in the swap cache.
    pub second_chance: f64,
    /// A page prefetched.
    pub prefetch: f64,
    /// Unmapping a run of pages, without the cost per page.
    pub run: f64,
    /// Unmapping one page of a run.
    pub page: f64,
    /// Writing a page out of the swap cache.
    pub write_out: f64,
}

impl Costs {
    /// Measured in a virtual machine with two CPUs; on other hosts only the ratios hold.
    pub const DEFAULT: Costs = Costs {
        miss: 12.0,
        second_chance: 3.5,
        prefetch: 2.5,
        run: 1.1,
        page: 0.05,
        write_out: 0.0,
    };
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "miss {}, swap-cache hit {}, prefetch {}, unmap {} a run + {} a page",
            self.miss, self.second_chance, self.prefetch, self.run, self.page
        )
    }
}

/// Counts of one replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Faults on far pages.
    pub misses: u64,
    /// Swap-cache hits on pages that reclaim unmapped.
    pub second_chances: u64,
    /// Swap-cache hits on pages that were prefetched.
    pub prefetch_hits: u64,
    /// Runs unmapped.
    pub runs: u64,
    /// Runs there would have been if a run could step over absent pages of its chunk.
    pub chunk_runs: u64,
    /// Pages unmapped.
    pub unmapped: u64,
    /// Pages written out.
    pub written: u64,
    /// Pages prefetched.
    pub prefetched: u64,
    /// Prefetched pages that were touched before they were evicted; known only to the simulation.
    pub prefetch_used: u64,
    /// Page-table words that the clock hand scanned.
    pub scanned: u64,
    /// Highest sum of resident and cached pages.
    pub peak_pages: usize,
}

impl Outcome {
    /// Mean length of an unmapped run, in pages.
    pub fn mean_run(&self) -> f64 {
        self.unmapped as f64 / self.runs.max(1) as f64
    }
    /// Share of prefetched pages that were used, in percent.
    pub fn accuracy_percent(&self) -> f64 {
        self.prefetch_used as f64 * 100.0 / self.prefetched.max(1) as f64
    }
    /// Share of uses of far pages that found their page prefetched, in percent.
    pub fn contribution_percent(&self) -> f64 {
        self.prefetch_used as f64 * 100.0 / (self.prefetch_used + self.misses).max(1) as f64
    }
    /// Modelled time per touch, in us, over `touches` touches.
    pub fn us_per(&self, touches: u64, c: &Costs) -> f64 {
        let us = self.misses as f64 * c.miss
            + (self.second_chances + self.prefetch_hits) as f64 * c.second_chance
            + self.prefetched as f64 * c.prefetch
            + self.runs as f64 * c.run
            + self.unmapped as f64 * c.page
            + self.written as f64 * c.write_out;
        us / touches.max(1) as f64
    }
}

/// Replays `trace` with `local` pages of local memory.
pub fn replay(trace: &Trace, local: usize, setup: &Setup) -> Outcome {
    let mut sim = Sim::new(trace.pages, local, setup);
    for e in &trace.events {
        match e.op {
            Op::Touch => sim.touch(e.page as usize, u32::from(e.thread)),
            Op::Discard => sim.discard(e.page as usize),
        }
    }
    sim.out
}

/// Access strings carry no mappings: all pages belong to one.
impl MemoryView for Sim {
    fn area_of(&self, _: PageId) -> Option<Area> {
        Some(Area {
            start: 0,
            end: self.words.len() as u32,
        })
    }
    fn is_far(&self, page: PageId) -> bool {
        self.is_far_at(page.index())
    }
    fn epoch(&self) -> u8 {
        self.epochs.now()
    }
}

struct Sim {
    words: Vec<AtomicU64>,
    counts: Vec<AtomicU32>,
    high: AtomicU32,
    clock: Clock,
    epochs: EpochClock,
    prefetchers: Box<Prefetchers>,
    batch: Box<VictimBatch>,
    /// Swap cache in order of write-out; entries with an old stamp are stale.
    cache: VecDeque<(u32, u32)>,
    stamp_of: Vec<u32>,
    stamp: u32,
    /// Prefetched pages not touched yet (only for the outcome).
    untouched_prefetch: Vec<bool>,
    resident: usize,
    cached: usize,
    local: usize,
    cache_cap: usize,
    batch_pages: u32,
    seen_percent: u32,
    out: Outcome,
}

impl Sim {
    fn new(pages: usize, local: usize, setup: &Setup) -> Sim {
        let prefetchers = Box::new(Prefetchers::new());
        prefetchers.choose(setup.prefetch);
        let blocks = pages.div_ceil(BLOCK_PAGES).max(1);
        Sim {
            words: (0..blocks * BLOCK_PAGES)
                .map(|_| AtomicU64::new(0))
                .collect(),
            counts: (0..blocks).map(|_| AtomicU32::new(0)).collect(),
            high: AtomicU32::new(0),
            clock: Clock::new(setup.params),
            epochs: EpochClock::new(),
            prefetchers,
            batch: Box::new(VictimBatch::new()),
            cache: VecDeque::new(),
            stamp_of: vec![0; blocks * BLOCK_PAGES],
            stamp: 0,
            untouched_prefetch: vec![false; blocks * BLOCK_PAGES],
            resident: 0,
            cached: 0,
            local,
            cache_cap: local * setup.cache_permille as usize / 1000,
            batch_pages: setup.batch_pages.min(local as u32 / 32).max(1),
            seen_percent: setup.seen_percent,
            out: Outcome::default(),
        }
    }

    fn word(&self, page: usize) -> Word {
        word::load(&self.words[page])
    }

    /// Prefetch plans may name pages beyond the last one.
    fn is_far_at(&self, page: usize) -> bool {
        page < self.words.len() && self.word(page).state() == State::Far
    }

    /// A hit on a mapped page. The policy does not see it, unless the setup assumes a sensor that samples the
    /// page now; then the next sweep spares the page.
    fn hit(&self, page: usize, w: Word) {
        if self.seen_percent == 0 || w.has(flag::REFERENCED) {
            return;
        }
        let looked_at =
            (page as u32 ^ u32::from(self.epochs.now()) << 24).wrapping_mul(0x9e37_79b1);
        if (looked_at >> 16) * 100 < self.seen_percent << 16 {
            word::publish(&self.words[page], w.set(flag::REFERENCED));
        }
    }

    fn touch(&mut self, page: usize, thread: u32) {
        let w = self.word(page);
        if std::mem::replace(&mut self.untouched_prefetch[page], false) {
            self.out.prefetch_used += 1;
        }
        match w.state() {
            State::Resident => self.hit(page, w),
            State::Untouched => self.fill(page, FillKind::FirstTouch),
            State::Cached if w.has(flag::PREFETCHED) => {
                self.out.prefetch_hits += 1;
                let plan = self.learn(page, thread, FaultKind::PrefetchHit);
                self.prefetchers.on_used(&plan);
                self.fill(
                    page,
                    if plan.stream {
                        FillKind::Stream
                    } else {
                        FillKind::Demand
                    },
                );
                self.follow(&plan);
            }
            State::Cached => {
                self.out.second_chances += 1;
                let plan = self.learn(page, thread, FaultKind::VictimHit);
                self.fill(page, FillKind::VictimHit);
                self.follow(&plan);
            }
            _ => {
                self.out.misses += 1;
                let plan = self.learn(page, thread, FaultKind::Demand);
                self.fill(
                    page,
                    if plan.stream {
                        FillKind::Stream
                    } else {
                        FillKind::Demand
                    },
                );
                self.follow(&plan);
            }
        }
    }

    fn learn(&self, page: usize, thread: u32, kind: FaultKind) -> Plan {
        self.prefetchers.plan(&Fault {
            thread,
            page: PageId(page as u32),
            kind,
            advice: Advice::Normal,
            around: self,
        })
    }

    fn follow(&mut self, plan: &Plan) {
        if let Some(behind) = plan.behind {
            self.clock.stream_passed(behind);
        }
        if plan.count == 0 {
            return;
        }
        let unmapped = plan.unmapped(plan.count, |p| self.is_far_at(p.index()));
        let (mut issued, mut marked) = (0, 0);
        for i in 0..plan.count {
            let Some(page) = plan.page(i).map(PageId::index) else {
                break;
            };
            if !self.is_far_at(page) {
                continue;
            }
            self.out.prefetched += 1;
            issued += 1;
            self.untouched_prefetch[page] = true;
            if unmapped.contains(i) && self.cache_cap > 0 {
                marked += 1;
                self.make_room();
                self.set(
                    page,
                    self.word(page)
                        .with_state(State::Cached)
                        .set(flag::PREFETCHED),
                );
                self.enqueue(page, false);
            } else {
                self.fill(
                    page,
                    if plan.stream {
                        FillKind::StreamPrefetch
                    } else {
                        FillKind::Prefetch
                    },
                );
            }
        }
        let done = Done {
            reached: plan.count,
            issued,
            marked,
        };
        self.prefetchers.carried_out(plan, &done);
    }

    fn set(&self, page: usize, w: Word) {
        self.words[page].store(w.0, Ordering::Relaxed);
    }

    fn fill(&mut self, page: usize, kind: FillKind) {
        if self.word(page).state() == State::Cached {
            self.uncache(page);
        }
        // As in the pager, reclaim cannot take the page while it is being filled.
        self.set(page, self.word(page).with_state(State::Filling));
        self.make_room();
        let w = self
            .clock
            .params
            .on_fill(self.word(page), kind, self.epochs.now());
        self.table(|t, _| t.note_resident(page));
        self.set(page, w);
        self.resident += 1;
        self.out.peak_pages = self.out.peak_pages.max(self.resident + self.cached);
    }

    fn uncache(&mut self, page: usize) {
        self.cached -= 1;
        self.stamp_of[page] = 0;
    }

    fn enqueue(&mut self, page: usize, first: bool) {
        self.stamp = self.stamp.wrapping_add(1).max(1);
        self.stamp_of[page] = self.stamp;
        self.cached += 1;
        let entry = (page as u32, self.stamp);
        if first {
            self.cache.push_front(entry)
        } else {
            self.cache.push_back(entry)
        }
    }

    fn table<R>(&mut self, f: impl FnOnce(&PageTable<'_>, (&Clock, &mut VictimBatch)) -> R) -> R {
        let table = PageTable {
            words: &self.words,
            resident_in_block: &self.counts,
            high_block: &self.high,
        };
        f(&table, (&self.clock, &mut self.batch))
    }

    /// Evicts pages until one more fits.
    fn make_room(&mut self) {
        if self.resident + 1 > self.local - self.cache_cap.min(self.local - 1) {
            let want = self.batch_pages;
            self.batch.clear();
            let n = self.table(|t, (clock, batch)| clock.select(t, want, batch)) as usize;
            self.out.scanned += u64::from(self.batch.scanned);
            self.out.unmapped += n as u64;
            let runs = self.batch.runs();
            self.out.runs += runs.len() as u64;
            let chunk = |r: &Run| r.start.index() / CHUNK_PAGES;
            self.out.chunk_runs += runs.chunk_by(|a, b| chunk(a) == chunk(b)).count() as u64;
            let epoch = self.epochs.advance(n as u32, self.local as u64);
            for i in 0..self.batch.runs().len() {
                let run = self.batch.runs()[i];
                for page in run.start.index()..run.start.index() + run.len as usize {
                    let w = self.clock.params.on_evict(self.word(page), epoch);
                    self.set(page, w.clear(flag::PREFETCHED).with_state(State::Cached));
                    self.table(|t, _| t.note_gone(page));
                    self.resident -= 1;
                    self.enqueue(page, w.has(flag::STREAM));
                }
            }
        }
        while self.cached > self.cache_cap || self.resident + self.cached + 1 > self.local {
            let Some((page, stamp)) = self.cache.pop_front() else {
                break;
            };
            if self.stamp_of[page as usize] != stamp {
                continue;
            }
            let page = page as usize;
            self.uncache(page);
            let w = self.word(page);
            if w.has(flag::PREFETCHED) {
                self.prefetchers.on_unused(PageId(page as u32));
            }
            self.untouched_prefetch[page] = false;
            self.set(page, w.clear(flag::PREFETCHED).with_state(State::Far));
            self.out.written += 1;
        }
    }

    fn discard(&mut self, page: usize) {
        match self.word(page).state() {
            State::Resident => {
                self.table(|t, _| t.note_gone(page));
                self.resident -= 1;
            }
            State::Cached => self.uncache(page),
            _ => {}
        }
        self.untouched_prefetch[page] = false;
        self.set(page, Word(0));
    }
}
