//! The default reclaim policy: chooses which resident pages to unmap next.
//!
//! The pager never sees a hit on a mapped page. It sees faults: how a page comes in, how soon it comes back after it
//! was unmapped (the word's epoch), and whether it was touched while it was in the swap cache. From these each page
//! gets a *heat*; a page of heat `h` is offered for eviction only every 2^h-th sweep. A sweep visits the pages in
//! address order, so that neighbours are evicted together: unmapping 64 neighbours costs about as much as unmapping two
//! separate pages.
//!
//! Several threads may select at once. They share only the hand, claim one chunk of [`CHUNK_PAGES`] pages at a time,
//! and own the pages that they moved to [`State::Evicting`].

mod batch;
mod chosen;
mod heat;

pub use batch::{BATCH_DROPPED, BATCH_PAGES, BATCH_RUNS, Run, VictimBatch};
pub use chosen::take;
pub use heat::{ClockParams, EPOCHS_PER_MEMORY, EpochClock, FillKind};

use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};
use canvas_types::{PageId, SwapEntry};

use crate::pager::scan::ScanCursor;
use crate::pager::table::{CHUNK_PAGES, PageTable};
use crate::pager::word::{self, HEAT_MAX, State, Word, flag};

/// Chunks left behind by streams that are remembered.
const BEHIND_SLOTS: usize = 32;
/// Empty value of a slot.
const NO_CHUNK: u32 = u32::MAX;
/// Pages examined before the yield of the hand is judged.
const YIELD_WINDOW: u32 = 4096;

/// Which pages are spared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
enum Level {
    /// Referenced and hot pages.
    Normal,
    /// Hot pages; referenced ones may be evicted.
    IgnoreReferenced,
    /// None that can be evicted.
    TakeAll,
}

/// Which pages a sweep considers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SweepScope {
    All,
    /// Pages known to be clean: nothing has written to them since they came from far memory.
    Clean,
}

/// What the hand does with one page.
enum Verdict {
    /// Skip it: it is not evictable, or another thread has changed it.
    Skip,
    /// The page is a victim.
    Take,
    /// Spare it; its word becomes this one.
    Keep(Word),
}

/// The clock hand and its state. A few hundred bytes, usable as a static.
pub struct Clock {
    /// The policy's parameters.
    pub params: ClockParams,
    /// `sweep << 32 | next chunk`.
    hand: AtomicU64,
    /// Heat is lowered by this much while sweeps find too little.
    cooling: AtomicU32,
    /// Words examined and pages taken since the yield was last judged.
    looked: AtomicU32,
    taken: AtomicU32,
    /// Nonzero while far memory is short.
    pressure: AtomicU32,
    /// Chunks that streams have left behind, taken before the hand moves on.
    behind: [AtomicU32; BEHIND_SLOTS],
    behind_next: AtomicU32,
}

impl Clock {
    /// A clock with its hand at the first page.
    pub const fn new(params: ClockParams) -> Clock {
        Clock {
            params,
            hand: AtomicU64::new(0),
            cooling: AtomicU32::new(0),
            looked: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            pressure: AtomicU32::new(0),
            behind: [const { AtomicU32::new(NO_CHUNK) }; BEHIND_SLOTS],
            behind_next: AtomicU32::new(0),
        }
    }

    /// Sets whether far memory is short (75 % of its limit used): while it is, hot pages are reported in
    /// [`VictimBatch::dropped_candidates`].
    pub fn set_pressure(&self, on: bool) {
        self.pressure.store(on as u32, Ordering::Relaxed);
    }

    /// Whether it is.
    pub fn has_pressure(&self) -> bool {
        self.pressure.load(Ordering::Relaxed) != 0
    }

    /// Records that a stream has left the chunk of `page`: the chunk's stream pages are evicted first from now on.
    /// Bounded: the oldest chunk is dropped (the hand will find it later).
    #[inline]
    pub fn stream_passed(&self, page: PageId) {
        let slot = self.behind_next.fetch_add(1, Ordering::Relaxed) as usize % BEHIND_SLOTS;
        self.behind[slot].store(page.0 / CHUNK_PAGES as u32, Ordering::Relaxed);
    }

    /// Selects about `want` pages: at least that many if that many can be evicted and `out` has room, and up to a chunk
    /// more, because a chunk is always finished. Returns the number of pages selected. All of them are
    /// [`State::Evicting`] in the table, and the caller must publish each of them. Zero means that every page is
    /// pinned, locked, stuck or busy.
    ///
    /// Work is bounded: three sweeps over the blocks in use, each sparing less than the one before.
    pub fn select(&self, table: &PageTable<'_>, want: u32, out: &mut VictimBatch) -> u32 {
        self.select_in(table, SweepScope::All, want, out)
    }

    /// Like [`Clock::select`], among pages that are known to be clean: they leave without a slot, even if nothing can
    /// be written.
    pub fn select_clean(&self, table: &PageTable<'_>, want: u32, out: &mut VictimBatch) -> u32 {
        self.select_in(table, SweepScope::Clean, want, out)
    }

    fn select_in(
        &self,
        table: &PageTable<'_>,
        scope: SweepScope,
        want: u32,
        out: &mut VictimBatch,
    ) -> u32 {
        let before = out.pages();
        if scope == SweepScope::All {
            self.select_behind(table, want, out);
        }
        let mut level = Level::Normal;
        // Chunks left for this call: each level covers every chunk once.
        let mut left = u64::from(table.chunks());
        while out.pages() - before < want && out.has_room() {
            let Some((chunk, sweep, passed)) = self.claim(table) else {
                break;
            };
            self.sweep_chunk(table, chunk, sweep, (level, scope), out);
            left = left.saturating_sub(passed);
            if left > 0 {
                continue;
            }
            if level == Level::IgnoreReferenced {
                let rest = want.saturating_sub(out.pages() - before);
                self.take_all(table, scope, rest, out);
                break;
            }
            level = Level::IgnoreReferenced;
            left = u64::from(table.chunks());
        }
        out.pages() - before
    }

    /// The last resort: takes whatever can be taken, starting where the hand is. It claims no chunks, so that no other
    /// thread's claims can hide a page from this one.
    fn take_all(&self, table: &PageTable<'_>, scope: SweepScope, want: u32, out: &mut VictimBatch) {
        let before = out.pages();
        let hand = self.hand.load(Ordering::Relaxed);
        let sweep = (hand >> 32) as u32;
        let mut scan = Self::scan(table, hand).rounds(1);
        while out.pages() - before < want
            && out.has_room()
            && let Some(chunk) = scan.seek(|from| table.next_used_chunk(from))
        {
            self.sweep_chunk(table, chunk, sweep, (Level::TakeAll, scope), out);
            scan.pass(1);
        }
    }

    /// Takes the next chunk in a block with resident pages. Also returns the sweep that it belongs to and how many
    /// chunks the hand has passed.
    fn claim(&self, table: &PageTable<'_>) -> Option<(u32, u32, u64)> {
        let mut cur = self.hand.load(Ordering::Relaxed);
        loop {
            let mut scan = Self::scan(table, cur);
            let chunk = scan.seek(|from| table.next_used_chunk(from))?;
            scan.pass(1);
            let sweep = ((cur >> 32) as u32).wrapping_add(u32::from(scan.wrapped()));
            let next = (u64::from(sweep) << 32) | u64::from(scan.at());
            match self
                .hand
                .compare_exchange_weak(cur, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some((chunk, sweep, scan.passed())),
                Err(now) => cur = now,
            }
        }
    }

    /// A scan over the chunks, from where the hand is.
    fn scan(table: &PageTable<'_>, hand: u64) -> ScanCursor {
        ScanCursor::new(hand as u32, table.chunks(), usize::MAX)
    }

    /// Takes pages that streams have left behind.
    fn select_behind(&self, table: &PageTable<'_>, want: u32, out: &mut VictimBatch) {
        let before = out.pages();
        for slot in &self.behind {
            if out.pages() - before >= want || !out.has_room() {
                return;
            }
            if slot.load(Ordering::Relaxed) == NO_CHUNK {
                continue;
            }
            let chunk = slot.swap(NO_CHUNK, Ordering::Relaxed);
            let first = chunk as usize * CHUNK_PAGES;
            if chunk == NO_CHUNK || first + CHUNK_PAGES > table.words.len() {
                continue;
            }
            out.scanned += CHUNK_PAGES as u32;
            for page in first..first + CHUNK_PAGES {
                let w = word::load(&table.words[page]);
                if w.evictable()
                    && w.has(flag::STREAM)
                    && word::transition(&table.words[page], w, w.with_state(State::Evicting))
                {
                    out.push_page(page as u32, w.is_clean());
                }
            }
        }
    }

    /// Judges the pages of one chunk.
    fn sweep_chunk(
        &self,
        table: &PageTable<'_>,
        chunk: u32,
        sweep: u32,
        (level, scope): (Level, SweepScope),
        out: &mut VictimBatch,
    ) {
        let first = chunk as usize * CHUNK_PAGES;
        let words = &table.words[first..first + CHUNK_PAGES];
        let cooling = u64::from(self.cooling.load(Ordering::Relaxed));
        let pressure = self.has_pressure();
        let before = out.pages();
        let mut seen = 0;
        // Bit i: page i is spared, and may be taken to join two runs.
        let (mut take, mut bridge) = (0u64, 0u64);
        for (i, slot) in words.iter().enumerate() {
            let w = word::load(slot);
            if !w.evictable() || scope == SweepScope::Clean && !w.is_clean() {
                continue;
            }
            seen += 1;
            match self.judge(w, level, cooling, sweep, chunk) {
                Verdict::Skip => {}
                Verdict::Take => take |= 1 << i,
                Verdict::Keep(new) => {
                    if new != w {
                        // If a pin or a fault was faster, the page is in use and is spared anyway.
                        let _ = word::transition(slot, w, new);
                    }
                    if w.heat() <= u64::from(self.params.bridge_heat) {
                        bridge |= 1 << i;
                    }
                    if pressure
                        && w.heat() >= u64::from(self.params.hot_heat)
                        && w.entry().is_some()
                        || w.has(flag::FAR_COPY)
                            && w.heat() >= u64::from(self.params.copy_heat) + cooling
                    {
                        out.push_dropped((first + i) as u32);
                    }
                }
            }
        }
        take = self.bridge(take, bridge);
        while take != 0 {
            let i = take.trailing_zeros() as usize;
            take &= take - 1;
            let w = word::load(&words[i]);
            if w.evictable() && word::transition(&words[i], w, w.with_state(State::Evicting)) {
                out.push_page((first + i) as u32, w.is_clean());
            }
        }
        out.scanned += seen;
        self.judge_yield(seen, out.pages() - before);
    }

    #[inline]
    fn judge(&self, w: Word, level: Level, cooling: u64, sweep: u32, chunk: u32) -> Verdict {
        if !w.evictable() {
            return Verdict::Skip;
        }
        if level == Level::TakeAll || w.has(flag::STREAM) {
            return Verdict::Take;
        }
        if level == Level::Normal && w.has(flag::REFERENCED) {
            return Verdict::Keep(w.clear(flag::REFERENCED));
        }
        let heat = w.heat().saturating_sub(cooling);
        // Neighbours of equal heat become due in the same sweep; chunks are spread over the sweeps.
        let turn = sweep.wrapping_add(chunk.wrapping_mul(0x9e37_79b1) >> 16);
        if heat != 0 && turn & ((1 << heat) - 1) != 0 {
            return Verdict::Keep(w);
        }
        Verdict::Take
    }

    /// Adds to `take` the gaps that may be bridged.
    #[inline]
    fn bridge(&self, mut take: u64, may: u64) -> u64 {
        let longest = u32::from(self.params.bridge_pages);
        if longest == 0 || take == 0 {
            return take;
        }
        let mut at = take.trailing_zeros();
        loop {
            // `at` is the first page of a run: step over the run, then over the gap.
            let run_end = at + (!(take >> at)).trailing_zeros();
            if run_end >= 64 || take >> run_end == 0 {
                return take;
            }
            let gap = (take >> run_end).trailing_zeros();
            let mask = ((1u64 << gap) - 1) << run_end;
            if gap <= longest && may & mask == mask {
                take |= mask;
            }
            at = run_end + gap;
        }
    }

    /// Adjusts how much heat protects, so that the hand never examines many pages for each one that it takes.
    fn judge_yield(&self, looked: u32, taken: u32) {
        self.taken.fetch_add(taken, Ordering::Relaxed);
        if self.looked.fetch_add(looked, Ordering::Relaxed) + looked < YIELD_WINDOW {
            return;
        }
        let looked = self.looked.swap(0, Ordering::Relaxed);
        let taken = self.taken.swap(0, Ordering::Relaxed);
        let cooling = self.cooling.load(Ordering::Relaxed);
        // Threads that race here are at most one step off.
        if taken < looked / u32::from(self.params.cool_below.max(1)) && cooling < HEAT_MAX as u32 {
            self.cooling.store(cooling + 1, Ordering::Relaxed);
        } else if taken > looked / u32::from(self.params.warm_above.max(1)) && cooling > 0 {
            self.cooling.store(cooling - 1, Ordering::Relaxed);
        }
    }
}

/// Has `drop` drop the far copy of a resident page, while no other thread can get the page. `drop` gets the entry,
/// which stays the page's, and returns whether the copy is gone. Returns false if the page is in use, has no copy, or
/// keeps it. For the candidates of [`VictimBatch::dropped_candidates`].
pub fn drop_far_copy(w: &AtomicU64, drop: impl FnOnce(SwapEntry) -> bool) -> bool {
    let cur = word::load(w);
    if !cur.evictable()
        || !cur.has(flag::FAR_COPY)
        || !word::transition(w, cur, cur.with_state(State::Evicting))
    {
        return false;
    }
    let dropped = drop(cur.entry());
    word::publish(
        w,
        if dropped {
            cur.clear(flag::FAR_COPY)
        } else {
            cur
        },
    );
    dropped
}

/// Takes the reservation of a resident page: returns the entry, which the caller now owns and frees. `None` if the page
/// is not resident, or has none. Lock-free; for the candidates of [`VictimBatch::dropped_candidates`].
pub fn take_reservation(w: &AtomicU64) -> Option<SwapEntry> {
    loop {
        let cur = word::load(w);
        if cur.state() != State::Resident || !cur.entry().is_some() {
            return None;
        }
        if word::transition(
            w,
            cur,
            cur.with_entry(SwapEntry::NONE).clear(flag::FAR_COPY),
        ) {
            return Some(cur.entry());
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
