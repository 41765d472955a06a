//! The default reclaim policy: which resident pages to unmap next.
//!
//! The pager never sees a hit on a mapped page. What it sees are faults: how a page comes in, how
//! soon it comes back after it was unmapped (the word's epoch), and whether it was touched while
//! it waited in the swap cache. From these each page gets a *heat*; a page of heat `h` is offered
//! for eviction only every 2^h-th sweep. A sweep goes through the pages in address order, so that
//! what is evicted together lies together: unmapping 64 neighbours costs about as much as
//! unmapping two pages that lie apart.
//!
//! Several threads may select at once. They share only the hand, claim one chunk of
//! [`CHUNK_PAGES`] pages at a time, and own what they could move to [`State::Evicting`].

use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};
use canvas_types::{PageId, SwapEntry};

use crate::table::{CHUNK_PAGES, CHUNKS_PER_BLOCK, PageTable};
use crate::word::{self, HEAT_MAX, State, Word, flag};

/// Runs that one batch can hold.
pub const BATCH_RUNS: usize = 128;
/// Pages that one batch can hold.
pub const BATCH_PAGES: usize = 256;
/// Dropped-reservation candidates that one batch can hold.
pub const BATCH_DROPPED: usize = 32;
/// Chunks left behind by streams that are remembered.
const BEHIND_SLOTS: usize = 32;
/// Empty value of a slot.
const NO_CHUNK: u32 = u32::MAX;
/// Pages looked at before the yield of the hand is judged.
const YIELD_WINDOW: u32 = 4096;

/// Why a page becomes resident.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FillKind {
    /// First touch: the page was zeros.
    FirstTouch = 0,
    /// Filled with zeros ahead of a first touch.
    FirstTouchAhead = 1,
    /// A fault on a far page.
    Demand = 2,
    /// A fault on a page in the swap cache that reclaim had unmapped.
    SecondChance = 3,
    /// Prefetched, not part of a stream.
    Prefetch = 4,
    /// A fault on a far page, or on a prefetched page in the swap cache, that continues a stream
    /// ([`crate::prefetch::Plan::stream`]).
    Stream = 5,
    /// Prefetched ahead of a stream.
    StreamPrefetch = 6,
}

/// The knobs. [`ClockParams::DEFAULT`] was chosen by replays, see `docs/REPLACEMENT.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockParams {
    /// A refault within this many epochs of the eviction spares the page in the next sweep.
    pub grace_epochs: u8,
    /// A page filled by first touch is passed over by the next sweep.
    pub first_touch_grace: bool,
    /// A refault within this many epochs of the eviction makes a page hotter.
    pub near_epochs: u8,
    /// A refault after more than this many epochs halves a page's heat.
    pub far_epochs: u8,
    /// Heat added by a near refault.
    pub near_heat: u8,
    /// The hand spares less when it takes fewer than one page in this many looked at ...
    pub cool_below: u8,
    /// ... and more when it takes more than one in this many.
    pub warm_above: u8,
    /// Heat added by a second chance.
    pub second_chance_heat: u8,
    /// No page gets hotter than this: it is offered at least every 2^heat_cap sweeps.
    pub heat_cap: u8,
    /// Pages kept between two victims are taken too when the gap is at most this long and none
    /// of them is hotter than `bridge_heat`: longer runs, at the price of some second chances.
    pub bridge_pages: u8,
    /// See `bridge_pages`.
    pub bridge_heat: u8,
    /// Heat from which a page kept by the hand is a candidate for losing its reservation.
    pub hot_heat: u8,
}

impl ClockParams {
    /// The default.
    pub const DEFAULT: ClockParams = ClockParams {
        grace_epochs: 0,
        first_touch_grace: true,
        near_epochs: 16,
        far_epochs: 64,
        near_heat: 1,
        cool_below: 32,
        warm_above: 8,
        second_chance_heat: 2,
        heat_cap: 6,
        bridge_pages: 2,
        bridge_heat: 1,
        hot_heat: 3,
    };

    /// The word of a page that becomes resident: flags, heat and state. `word` is its word
    /// before (untouched, cached, far, or filling: only flags, heat, epoch and entry matter);
    /// the result is in state [`State::Resident`], ready to be published.
    #[inline]
    pub fn on_fill(&self, word: Word, kind: FillKind, now_epoch: u8) -> Word {
        let w = word
            .clear(flag::REFERENCED | flag::PREFETCHED | flag::STREAM)
            .with_state(State::Resident);
        let cap = u64::from(self.heat_cap).min(HEAT_MAX);
        match kind {
            FillKind::FirstTouch | FillKind::FirstTouchAhead => {
                let w = w.with_heat(0).with_epoch(now_epoch);
                if self.first_touch_grace {
                    w.set(flag::REFERENCED)
                } else {
                    w
                }
            }
            FillKind::Demand => {
                let distance = now_epoch.wrapping_sub(word.epoch());
                let heat = if distance <= self.near_epochs {
                    (w.heat() + u64::from(self.near_heat)).min(cap)
                } else if distance > self.far_epochs {
                    w.heat() / 2
                } else {
                    w.heat()
                };
                let w = w.with_heat(heat);
                if distance < self.grace_epochs {
                    w.set(flag::REFERENCED)
                } else {
                    w
                }
            }
            FillKind::SecondChance => w
                .with_heat((w.heat() + u64::from(self.second_chance_heat)).min(cap))
                .set(flag::REFERENCED),
            // Nothing was learnt about the page: it keeps the heat that its own faults gave it.
            FillKind::Prefetch => w.set(flag::PREFETCHED),
            FillKind::Stream => w.with_heat(0).set(flag::STREAM),
            FillKind::StreamPrefetch => w.with_heat(0).set(flag::STREAM | flag::PREFETCHED),
        }
    }

    /// The word of a page that reclaim has unmapped: remembers when. The state stays as it is
    /// (the caller publishes [`State::Cached`] or [`State::Far`]); heat stays for the refault, and
    /// the STREAM flag tells the swap cache that the page may be written out before others.
    #[inline]
    pub fn on_evict(&self, word: Word, now_epoch: u8) -> Word {
        word.clear(flag::REFERENCED).with_epoch(now_epoch)
    }
}

/// Neighbouring pages, all [`State::Evicting`] and owned by whoever selected them. Never crosses
/// a chunk of [`CHUNK_PAGES`] pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// First page.
    pub start: PageId,
    /// Pages.
    pub len: u32,
}

/// What [`Clock::select`] found. About 1.2 KiB, no heap.
pub struct VictimBatch {
    runs: [Run; BATCH_RUNS],
    run_count: usize,
    pages: u32,
    dropped: [PageId; BATCH_DROPPED],
    dropped_count: usize,
    /// Words looked at.
    pub scanned: u32,
}

impl VictimBatch {
    /// An empty batch.
    pub const fn new() -> VictimBatch {
        VictimBatch {
            runs: [Run {
                start: PageId(0),
                len: 0,
            }; BATCH_RUNS],
            run_count: 0,
            pages: 0,
            dropped: [PageId(0); BATCH_DROPPED],
            dropped_count: 0,
            scanned: 0,
        }
    }
    /// Empties the batch.
    pub fn clear(&mut self) {
        (self.run_count, self.pages, self.dropped_count, self.scanned) = (0, 0, 0, 0);
    }
    /// The runs, each ascending; two runs of one batch never touch the same page.
    pub fn runs(&self) -> &[Run] {
        &self.runs[..self.run_count]
    }
    /// Pages in all runs.
    pub fn pages(&self) -> u32 {
        self.pages
    }
    /// Hot resident pages that own an entry, found while far memory is short (Canvas fig. 7):
    /// take their reservation with [`take_reservation`] and free the entry.
    pub fn dropped_candidates(&self) -> &[PageId] {
        &self.dropped[..self.dropped_count]
    }
    /// Room for one more chunk, whatever it holds?
    fn has_room(&self) -> bool {
        self.pages as usize + CHUNK_PAGES <= BATCH_PAGES
            && self.run_count + CHUNK_PAGES / 2 <= BATCH_RUNS
    }
    fn push_page(&mut self, page: u32) {
        self.pages += 1;
        if let Some(last) = self.runs[..self.run_count].last_mut()
            && last.start.0 + last.len == page
            && !page.is_multiple_of(CHUNK_PAGES as u32)
        {
            last.len += 1;
            return;
        }
        self.runs[self.run_count] = Run {
            start: PageId(page),
            len: 1,
        };
        self.run_count += 1;
    }
    fn push_dropped(&mut self, page: u32) {
        if self.dropped_count < BATCH_DROPPED {
            self.dropped[self.dropped_count] = PageId(page);
            self.dropped_count += 1;
        }
    }
}

impl Default for VictimBatch {
    fn default() -> Self {
        VictimBatch::new()
    }
}

/// How much is spared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
enum Level {
    /// Referenced and hot pages.
    Normal,
    /// Hot pages.
    IgnoreReferenced,
    /// Nothing that can be evicted.
    TakeAll,
}

/// What the hand does with one page.
enum Verdict {
    /// Not evictable, or changed under us.
    Skip,
    /// Evict it.
    Take,
    /// Spare it, with this word from now on.
    Keep(Word),
}

/// The hand and its memory. A few hundred bytes, usable as a static.
pub struct Clock {
    /// The policy's knobs.
    pub params: ClockParams,
    /// `sweep << 32 | next chunk`.
    hand: AtomicU64,
    /// Heat is lowered by this much while sweeps find too little.
    cooling: AtomicU32,
    /// Words looked at and pages taken since the yield was last judged.
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
    #[cfg(not(feature = "shuttle"))]
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
    /// A clock with its hand at the first page.
    #[cfg(feature = "shuttle")]
    pub fn new(params: ClockParams) -> Clock {
        Clock {
            params,
            hand: AtomicU64::new(0),
            cooling: AtomicU32::new(0),
            looked: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            pressure: AtomicU32::new(0),
            behind: core::array::from_fn(|_| AtomicU32::new(NO_CHUNK)),
            behind_next: AtomicU32::new(0),
        }
    }

    /// Far memory is short (75 % of its limit used): from now on hot pages are reported in
    /// [`VictimBatch::dropped_candidates`].
    pub fn set_pressure(&self, on: bool) {
        self.pressure.store(on as u32, Ordering::Relaxed);
    }

    /// A stream has left the chunk of `page`: its stream pages go first from now on. Bounded;
    /// the oldest is forgotten (the hand finds it in its time).
    #[inline]
    pub fn stream_passed(&self, page: PageId) {
        let slot = self.behind_next.fetch_add(1, Ordering::Relaxed) as usize % BEHIND_SLOTS;
        self.behind[slot].store(page.0 / CHUNK_PAGES as u32, Ordering::Relaxed);
    }

    /// Selects about `want` pages: at least that many where that many can be evicted and `out`
    /// has room, and up to a chunk more, because a chunk is finished once it is begun. Returns
    /// the number of pages selected; all are [`State::Evicting`] in the table, and the caller
    /// must publish each of them. Zero means that every page is pinned, locked, stuck or busy.
    ///
    /// Work is bounded: three sweeps over the blocks in use, each sparing less than the last.
    pub fn select(&self, table: &PageTable<'_>, want: u32, out: &mut VictimBatch) -> u32 {
        let before = out.pages;
        self.select_behind(table, want, out);
        let mut level = Level::Normal;
        // How far this call has come: each level covers every chunk once.
        let mut left = (table.blocks() * CHUNKS_PER_BLOCK) as u64;
        while out.pages - before < want && out.has_room() {
            let Some((chunk, sweep, passed)) = self.claim(table) else {
                break;
            };
            self.sweep_chunk(table, chunk, sweep, level, out);
            left = left.saturating_sub(passed);
            if left > 0 {
                continue;
            }
            if level == Level::IgnoreReferenced {
                self.take_all(table, want.saturating_sub(out.pages - before), out);
                break;
            }
            level = Level::IgnoreReferenced;
            left = (table.blocks() * CHUNKS_PER_BLOCK) as u64;
        }
        out.pages - before
    }

    /// The last resort: takes whatever can be taken, from where the hand stands. It does not claim
    /// chunks, so that no other thread's claims can hide a page from this one.
    fn take_all(&self, table: &PageTable<'_>, want: u32, out: &mut VictimBatch) {
        let before = out.pages;
        let hand = self.hand.load(Ordering::Relaxed);
        let (sweep, start) = ((hand >> 32) as u32, hand as u32);
        for (from, to) in [(start, u32::MAX), (0, start)] {
            let mut at = from;
            while let Some(chunk) = Self::next_chunk(table, at) {
                if chunk >= to {
                    break;
                }
                if out.pages - before >= want || !out.has_room() {
                    return;
                }
                self.sweep_chunk(table, chunk, sweep, Level::TakeAll, out);
                at = chunk + 1;
            }
        }
    }

    /// Takes the next chunk in a block with resident pages; also tells the sweep that it belongs
    /// to and how many chunks the hand has passed.
    fn claim(&self, table: &PageTable<'_>) -> Option<(u32, u32, u64)> {
        let mut cur = self.hand.load(Ordering::Relaxed);
        loop {
            let (sweep, at) = ((cur >> 32) as u32, cur as u32);
            let total = (table.blocks() * CHUNKS_PER_BLOCK) as u64;
            let (sweep, chunk, passed) = match Self::next_chunk(table, at) {
                Some(chunk) => (sweep, chunk, u64::from(chunk - at) + 1),
                None => {
                    let chunk = Self::next_chunk(table, 0)?;
                    (
                        sweep.wrapping_add(1),
                        chunk,
                        total.saturating_sub(u64::from(at)) + u64::from(chunk) + 1,
                    )
                }
            };
            let next = u64::from(sweep) << 32 | u64::from(chunk + 1);
            match self
                .hand
                .compare_exchange_weak(cur, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some((chunk, sweep, passed)),
                Err(now) => cur = now,
            }
        }
    }

    /// First chunk at or after `from` that lies in a block with resident pages.
    fn next_chunk(table: &PageTable<'_>, from: u32) -> Option<u32> {
        let per_block = CHUNKS_PER_BLOCK as u32;
        let block = table.next_used_block((from / per_block) as usize)? as u32;
        Some(from.max(block * per_block))
    }

    /// Takes what streams have left behind.
    fn select_behind(&self, table: &PageTable<'_>, want: u32, out: &mut VictimBatch) {
        let before = out.pages;
        for slot in &self.behind {
            if out.pages - before >= want || !out.has_room() {
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
                    out.push_page(page as u32);
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
        level: Level,
        out: &mut VictimBatch,
    ) {
        let first = chunk as usize * CHUNK_PAGES;
        let words = &table.words[first..first + CHUNK_PAGES];
        let cooling = u64::from(self.cooling.load(Ordering::Relaxed));
        let pressure = self.pressure.load(Ordering::Relaxed) != 0;
        let before = out.pages;
        let mut seen = 0;
        // Bit i: page i is kept, and may be taken to join two runs.
        let (mut take, mut bridge) = (0u64, 0u64);
        for (i, slot) in words.iter().enumerate() {
            let w = word::load(slot);
            if !w.evictable() {
                continue;
            }
            seen += 1;
            match self.judge(w, level, cooling, sweep, chunk) {
                Verdict::Skip => {}
                Verdict::Take => take |= 1 << i,
                Verdict::Keep(new) => {
                    if new != w {
                        // Lost to a pin or a fault: it is in use, so kept all the same.
                        let _ = word::transition(slot, w, new);
                    }
                    if w.heat() <= u64::from(self.params.bridge_heat) {
                        bridge |= 1 << i;
                    }
                    if pressure
                        && w.heat() >= u64::from(self.params.hot_heat)
                        && w.entry().is_some()
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
                out.push_page((first + i) as u32);
            }
        }
        out.scanned += seen;
        self.judge_yield(seen, out.pages - before);
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
        // Neighbours of one heat become due in the same sweep; chunks are spread over the sweeps.
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

    /// Lowers or raises the heat that protects, so that the hand never looks at many pages for
    /// each one that it takes.
    fn judge_yield(&self, looked: u32, taken: u32) {
        self.taken.fetch_add(taken, Ordering::Relaxed);
        if self.looked.fetch_add(looked, Ordering::Relaxed) + looked < YIELD_WINDOW {
            return;
        }
        let looked = self.looked.swap(0, Ordering::Relaxed);
        let taken = self.taken.swap(0, Ordering::Relaxed);
        let cooling = self.cooling.load(Ordering::Relaxed);
        // Racing judges can only be one step off.
        if taken < looked / u32::from(self.params.cool_below.max(1)) && cooling < HEAT_MAX as u32 {
            self.cooling.store(cooling + 1, Ordering::Relaxed);
        } else if taken > looked / u32::from(self.params.warm_above.max(1)) && cooling > 0 {
            self.cooling.store(cooling - 1, Ordering::Relaxed);
        }
    }
}

/// Takes the reservation of a resident page: the entry, now owned by the caller, who frees it.
/// `None` when the page is not resident, or has none. Lock-free; used for the candidates of
/// [`VictimBatch::dropped_candidates`].
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

/// Coarse eviction time: an 8-bit epoch that advances each sixteenth of local memory evicted.
pub struct EpochClock {
    /// `epoch << 32 | pages evicted in it`.
    state: AtomicU64,
}

/// Epochs in which as many pages are evicted as local memory holds.
pub const EPOCHS_PER_MEMORY: u64 = 16;

impl EpochClock {
    /// Epoch 0.
    #[allow(clippy::new_without_default)]
    #[cfg(not(feature = "shuttle"))]
    pub const fn new() -> EpochClock {
        EpochClock {
            state: AtomicU64::new(0),
        }
    }
    /// Epoch 0.
    #[allow(clippy::new_without_default)]
    #[cfg(feature = "shuttle")]
    pub fn new() -> EpochClock {
        EpochClock {
            state: AtomicU64::new(0),
        }
    }
    /// The epoch now.
    #[inline]
    pub fn now(&self) -> u8 {
        (self.state.load(Ordering::Relaxed) >> 32) as u8
    }
    /// Counts `evicted` pages; `local_pages` is what local memory may hold now. Returns the epoch.
    #[inline]
    pub fn advance(&self, evicted: u32, local_pages: u64) -> u8 {
        let length = (local_pages / EPOCHS_PER_MEMORY).clamp(1, u64::from(u32::MAX));
        let mut cur = self.state.load(Ordering::Relaxed);
        loop {
            let count = (cur & 0xffff_ffff) + u64::from(evicted);
            let epoch = (cur >> 32).wrapping_add(count / length) & 0xff;
            let next = epoch << 32 | count % length;
            match self
                .state
                .compare_exchange_weak(cur, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return epoch as u8,
                Err(now) => cur = now,
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use canvas_types::layout::BLOCK_PAGES;
    use proptest::prelude::*;

    struct World {
        words: Vec<AtomicU64>,
        counts: Vec<AtomicU32>,
        high: AtomicU32,
    }

    impl World {
        fn new(blocks: usize) -> World {
            World {
                words: (0..blocks * BLOCK_PAGES)
                    .map(|_| AtomicU64::new(0))
                    .collect(),
                counts: (0..blocks).map(|_| AtomicU32::new(0)).collect(),
                high: AtomicU32::new(0),
            }
        }
        fn table(&self) -> PageTable<'_> {
            PageTable {
                words: &self.words,
                resident_in_block: &self.counts,
                high_block: &self.high,
            }
        }
        fn put(&self, page: usize, w: Word) {
            self.words[page].store(w.0, Ordering::Relaxed);
            if w.state() == State::Resident {
                self.table().note_resident(page);
            }
        }
        fn state(&self, page: usize) -> State {
            word::load(&self.words[page]).state()
        }
    }

    fn resident() -> Word {
        Word(0).with_state(State::Resident)
    }

    fn pages_of(batch: &VictimBatch) -> Vec<u32> {
        batch
            .runs()
            .iter()
            .flat_map(|r| r.start.0..r.start.0 + r.len)
            .collect()
    }

    fn plain() -> Clock {
        Clock::new(ClockParams {
            bridge_pages: 0,
            ..ClockParams::DEFAULT
        })
    }

    #[test]
    fn takes_cold_pages_in_runs_that_stay_in_their_chunk() {
        let world = World::new(2);
        (10..200).for_each(|p| world.put(p, resident()));
        let (clock, mut out) = (plain(), VictimBatch::new());
        assert_eq!(clock.select(&world.table(), 100, &mut out), 118);
        let runs: Vec<_> = out.runs().iter().map(|r| (r.start.0, r.len)).collect();
        assert_eq!(runs, [(10, 54), (64, 64)]);
        assert!(
            pages_of(&out)
                .iter()
                .all(|p| world.state(*p as usize) == State::Evicting)
        );
        out.clear();
        assert_eq!(
            clock.select(&world.table(), 1000, &mut out),
            72,
            "the rest, and no more"
        );
    }

    #[test]
    fn nothing_resident_gives_nothing() {
        let world = World::new(1);
        let mut out = VictimBatch::new();
        assert_eq!(plain().select(&world.table(), 5, &mut out), 0);
        (0..64).for_each(|p| world.put(p, resident().with_pins(1)));
        (64..128).for_each(|p| world.put(p, resident().set(flag::LOCKED)));
        (128..192).for_each(|p| world.put(p, resident().set(flag::STUCK)));
        assert_eq!(plain().select(&world.table(), 5, &mut out), 0);
        assert!(out.runs().is_empty());
    }

    #[test]
    fn referenced_pages_get_one_sweep() {
        let world = World::new(1);
        (0..128).for_each(|p| {
            world.put(
                p,
                if p < 64 {
                    resident().set(flag::REFERENCED)
                } else {
                    resident()
                },
            )
        });
        let (clock, mut out) = (plain(), VictimBatch::new());
        assert_eq!(clock.select(&world.table(), 64, &mut out), 64);
        assert_eq!(pages_of(&out), (64..128).collect::<Vec<_>>());
        out.clear();
        assert_eq!(clock.select(&world.table(), 64, &mut out), 64);
        assert_eq!(pages_of(&out), (0..64).collect::<Vec<_>>(), "spared once");
    }

    #[test]
    fn hot_pages_come_last_but_come() {
        let world = World::new(1);
        (0..512).for_each(|p| {
            world.put(
                p,
                if p % 2 == 0 {
                    resident().with_heat(15)
                } else {
                    resident()
                },
            )
        });
        let (clock, mut out) = (plain(), VictimBatch::new());
        let mut order = Vec::new();
        while clock.select(&world.table(), 32, &mut out) > 0 {
            order.extend(pages_of(&out));
            out.clear();
        }
        assert_eq!(
            order.len(),
            512,
            "progress: even all-hot memory is reclaimed"
        );
        let (first, last) = order.split_at(256);
        // Heat only delays: a few chunks have their turn early.
        assert!(first.iter().filter(|p| *p % 2 == 1).count() > 200);
        assert!(last.iter().filter(|p| *p % 2 == 0).count() > 200);
    }

    #[test]
    fn a_heat_of_h_is_offered_every_2_to_the_h_sweeps() {
        for heat in 1..5u64 {
            let world = World::new(1);
            world.put(100, resident().with_heat(heat));
            let clock = plain();
            let taken: Vec<bool> = (0..64u32)
                .map(|sweep| {
                    let mut out = VictimBatch::new();
                    clock.sweep_chunk(&world.table(), 1, sweep, Level::Normal, &mut out);
                    world.put(100, resident().with_heat(heat));
                    out.pages() == 1
                })
                .collect();
            assert_eq!(
                taken.iter().filter(|t| **t).count(),
                64 >> heat,
                "heat {heat}"
            );
        }
    }

    #[test]
    fn streams_go_first_where_they_have_passed() {
        let world = World::new(2);
        (0..64).for_each(|p| world.put(p, resident()));
        (640..704).for_each(|p| world.put(p, resident().set(flag::STREAM)));
        world.put(650, resident());
        let (clock, mut out) = (plain(), VictimBatch::new());
        clock.stream_passed(PageId(640));
        assert_eq!(clock.select(&world.table(), 10, &mut out), 63);
        assert_eq!(
            out.runs()[0],
            Run {
                start: PageId(640),
                len: 10
            }
        );
        assert_eq!(world.state(650), State::Resident, "not of the stream");
    }

    #[test]
    fn gaps_are_bridged_when_short_and_cool() {
        let world = World::new(1);
        (0..12).for_each(|p| world.put(p, resident()));
        world.put(3, resident().set(flag::REFERENCED));
        world.put(6, resident().set(flag::REFERENCED).with_heat(9));
        world.put(9, resident().set(flag::REFERENCED).with_pins(1));
        let clock = Clock::new(ClockParams {
            bridge_pages: 1,
            bridge_heat: 1,
            ..ClockParams::DEFAULT
        });
        let mut out = VictimBatch::new();
        clock.select(&world.table(), 8, &mut out);
        let runs: Vec<_> = out.runs().iter().map(|r| (r.start.0, r.len)).collect();
        assert_eq!(runs, [(0, 6), (7, 2), (10, 2)]);
    }

    #[test]
    fn bridging_joins_only_what_it_may() {
        let of = |longest| {
            Clock::new(ClockParams {
                bridge_pages: longest,
                ..ClockParams::DEFAULT
            })
        };
        assert_eq!(of(2).bridge(0b1001, 0b0110), 0b1111);
        assert_eq!(of(1).bridge(0b1001, 0b0110), 0b1001);
        assert_eq!(of(2).bridge(0b1001, 0b0010), 0b1001);
        assert_eq!(of(9).bridge(1 | 1 << 63, !0), 1 | 1 << 63);
        assert_eq!(of(62).bridge(1 | 1 << 63, !0), !0);
        assert_eq!(of(9).bridge(!0, 0), !0);
        assert_eq!(of(9).bridge(0, !0), 0);
        assert_eq!(of(9).bridge(0b1_0110_1000, 0b1111_1111), 0b1_1111_1000);
    }

    #[test]
    fn under_pressure_hot_pages_with_entries_are_reported() {
        let world = World::new(1);
        let hot = resident().with_heat(HEAT_MAX);
        (0..512).for_each(|p| {
            world.put(
                p,
                if p % 4 == 0 {
                    hot.with_entry(SwapEntry(p as u32 + 1))
                } else {
                    resident()
                },
            )
        });
        let (clock, mut out) = (plain(), VictimBatch::new());
        clock.select(&world.table(), 100, &mut out);
        assert!(out.dropped_candidates().is_empty(), "no pressure");
        out.clear();
        clock.set_pressure(true);
        clock.select(&world.table(), 100, &mut out);
        assert!(!out.dropped_candidates().is_empty());
        for p in out.dropped_candidates() {
            let w = word::load(&world.words[p.index()]);
            assert!(w.heat() == HEAT_MAX && w.entry().is_some());
        }
        let page = out.dropped_candidates()[0].index();
        assert_eq!(
            take_reservation(&world.words[page]),
            Some(SwapEntry(page as u32 + 1))
        );
        assert_eq!(take_reservation(&world.words[page]), None, "only once");
        assert_eq!(word::load(&world.words[page]).state(), State::Resident);
    }

    #[test]
    fn refault_distance_makes_heat() {
        let p = ClockParams::DEFAULT;
        let far = Word(0).with_state(State::Far).with_heat(2).with_epoch(250);
        let near = p.on_fill(far, FillKind::Demand, 250u8.wrapping_add(p.near_epochs));
        assert_eq!(
            (near.heat(), near.state()),
            (2 + u64::from(p.near_heat), State::Resident)
        );
        assert_eq!(
            p.on_fill(far, FillKind::Demand, 250u8.wrapping_add(p.far_epochs))
                .heat(),
            2
        );
        assert_eq!(
            p.on_fill(far, FillKind::Demand, 250u8.wrapping_add(p.far_epochs + 1))
                .heat(),
            1
        );
        assert_eq!(
            p.on_fill(far.with_heat(15), FillKind::SecondChance, 0)
                .heat(),
            u64::from(p.heat_cap)
        );
        assert_eq!(p.on_fill(far, FillKind::Stream, 250).heat(), 0);
    }

    #[test]
    fn filling_and_evicting_keep_what_is_not_theirs() {
        let p = ClockParams::DEFAULT;
        let w = Word(0)
            .set(flag::FAR_COPY | flag::SHARED | flag::LOCKED | flag::SAMPLED)
            .with_entry(SwapEntry(77))
            .with_pins(3);
        for kind in [
            FillKind::FirstTouch,
            FillKind::FirstTouchAhead,
            FillKind::Demand,
            FillKind::SecondChance,
            FillKind::Prefetch,
            FillKind::Stream,
            FillKind::StreamPrefetch,
        ] {
            let v = p.on_evict(p.on_fill(w.with_state(State::Filling), kind, 9), 10);
            assert!(
                v.has(flag::FAR_COPY)
                    && v.has(flag::SHARED)
                    && v.has(flag::LOCKED)
                    && v.has(flag::SAMPLED)
            );
            assert_eq!((v.entry(), v.pins(), v.epoch()), (SwapEntry(77), 3, 10));
        }
    }

    #[test]
    fn epochs_advance_each_sixteenth_of_memory() {
        let e = EpochClock::new();
        assert_eq!(e.advance(99, 1600), 0);
        assert_eq!(e.advance(1, 1600), 1);
        assert_eq!(e.advance(250, 1600), 3);
        assert_eq!(e.advance(50, 1600), 4);
        assert_eq!(e.now(), 4);
        assert_eq!(e.advance(252 * 100, 1600), 0, "wraps");
        assert_eq!(e.advance(1, 0), 1, "no memory is no division by zero");
    }

    #[test]
    fn empty_blocks_cost_no_words() {
        let world = World::new(64);
        world.put(0, resident());
        world.put(63 * BLOCK_PAGES, resident());
        let mut out = VictimBatch::new();
        assert_eq!(plain().select(&world.table(), 2, &mut out), 2);
        assert_eq!(out.scanned, 2);
    }

    proptest! {
        /// Whatever the words say: victims are exactly pages that could be evicted, each once,
        /// nothing else changes but the REFERENCED flag, and as many are found as there are (up to
        /// the batch's size).
        #[test]
        fn select_is_sound_and_makes_progress(
            raw in proptest::collection::vec((0u64..9, 0u64..16, 0u64..3, any::<bool>(), any::<bool>(), any::<bool>()), 1..700),
            want in 1u32..300,
            gap in 0u8..6,
        ) {
            let world = World::new(2);
            for (page, (state, heat, pins, referenced, locked, stream)) in raw.iter().enumerate() {
                let mut w = Word(0).with_state(State::of(*state)).with_heat(*heat).with_pins(pins.saturating_sub(1));
                for (on, bit) in [(referenced, flag::REFERENCED), (locked, flag::LOCKED), (stream, flag::STREAM)] {
                    if *on { w = w.set(bit); }
                }
                world.put(page, w);
            }
            let before: Vec<Word> = world.words.iter().map(word::load).collect();
            let can = before.iter().filter(|w| w.evictable()).count() as u32;
            let clock = Clock::new(ClockParams { bridge_pages: gap, bridge_heat: 15, ..ClockParams::DEFAULT });
            let mut out = VictimBatch::new();
            let n = clock.select(&world.table(), want, &mut out);
            prop_assert!(n >= want.min(can).min((BATCH_PAGES - CHUNK_PAGES) as u32), "{n} of {can}");
            let victims = pages_of(&out);
            prop_assert_eq!(victims.len() as u32, n);
            let mut sorted = victims.clone();
            sorted.sort_unstable();
            sorted.dedup();
            prop_assert_eq!(sorted.len(), victims.len());
            for (page, old) in before.iter().enumerate() {
                let new = word::load(&world.words[page]);
                if sorted.binary_search(&(page as u32)).is_ok() {
                    prop_assert!(old.evictable());
                    prop_assert_eq!(new.state(), State::Evicting);
                } else {
                    prop_assert_eq!(new.set(flag::REFERENCED).0, old.set(flag::REFERENCED).0);
                }
            }
            for r in out.runs() {
                prop_assert_eq!(r.start.0 / CHUNK_PAGES as u32, (r.start.0 + r.len - 1) / CHUNK_PAGES as u32);
            }
        }
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod interleavings {
    use super::*;
    use canvas_types::layout::BLOCK_PAGES;
    use std::sync::Arc;

    /// The claim keeps threads out of each other's chunks, but not for ever: sweeps overtake.
    #[test]
    fn two_sweeps_of_one_chunk_share_its_pages() {
        shuttle::check_random(
            || {
                let words: Arc<Vec<AtomicU64>> = Arc::new(
                    (0..BLOCK_PAGES)
                        .map(|p| AtomicU64::new(if p < 10 { State::Resident as u64 } else { 0 }))
                        .collect(),
                );
                let clock = Arc::new(Clock::new(ClockParams::DEFAULT));
                let threads: Vec<_> = (0..2)
                    .map(|_| {
                        let (words, clock) = (words.clone(), clock.clone());
                        shuttle::thread::spawn(move || {
                            let (counts, high) = ([AtomicU32::new(10)], AtomicU32::new(1));
                            let table = PageTable { words: &words, resident_in_block: &counts, high_block: &high };
                            let mut out = VictimBatch::new();
                            clock.sweep_chunk(&table, 0, 0, Level::Normal, &mut out);
                            out.pages()
                        })
                    })
                    .collect();
                let sum: u32 = threads.into_iter().map(|t| t.join().unwrap()).sum();
                assert_eq!(sum, 10, "each page has one owner");
            },
            500,
        );
    }
}
