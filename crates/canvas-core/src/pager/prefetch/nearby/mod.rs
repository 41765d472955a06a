//! Prefetches pages beside a fault that belongs to no stream, where such pages were wanted before.
//!
//! A fault can bring in the rest of the aligned group of 2, 4, 8, 16 or 32 pages around it. Because the groups are
//! nested, the worth of each width is known without trying it. When such a fault opens a chunk of 64 pages, the chunk's
//! far pages are *watched*, and those of them that fault later are *seen*. When the chunk is judged, every half of a
//! group in which a page was seen would have brought in the other half: the share of that half that was seen is the
//! accuracy of doubling the width. A page that is prefetched and mapped is no longer watched, because its use would not
//! be seen. Pages of a stream are no evidence.
//!
//! A chunk is judged when one of its seen pages faults again (it has been evicted since), when another chunk takes its
//! place, or when it has been open for long. The accuracies are kept by region and thread (*cells*). A cell's width
//! grows and shrinks by one step at a time, each with a threshold of its own.

use canvas_shm::Counter;
use canvas_types::PageId;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering, RawSpin};

use super::{Done, Fault, FaultKind, MemoryView, Plan, Planner, Prefetcher, get, put};
use crate::pager::table::CHUNK_PAGES;

/// Number of widths: 2, 4, 8, 16, 32 pages.
pub const STEPS: usize = 5;
/// Parts of the table of chunks, each with its own lock.
const SHARDS: usize = 32;
/// Chunks per part.
const CHUNKS: usize = 64;
/// Cells; regions that share a cell are judged together.
const CELLS: usize = 1024;
/// Maximum of the number of judgements kept per step.
const EVIDENCE_MAX: u64 = 7;

/// A step up is taken if at least this share of its pages, in 255ths, is used (55 %).
const UP: u64 = 141;
/// A step is undone below this share (45 %).
const DOWN: u64 = 115;
/// Judgements before a step is taken, or a thread's own cell is used.
const EVIDENCE_MIN: u64 = 4;
/// A chunk is judged when this many epochs have begun since it was opened: an eighth of local memory was replaced
/// meanwhile.
const OPEN_EPOCHS: u8 = 2;
/// At least one prefetched page in this many is left unmapped.
const SAMPLE_EVERY: u32 = 8;
/// Pages of a region, as a power of two: 16 MiB.
const REGION_BITS: u32 = 12;

/// An open chunk. Plain data under its part's lock, in atomics so that no unsafe code is needed.
struct Chunk {
    /// Its number plus one; 0 for none.
    owner: AtomicU32,
    /// The epoch when it was opened.
    opened: AtomicU32,
    /// Pages that each page left unmapped by the last plan stands for.
    weight: AtomicU32,
    /// Its two cells, of 16 bits each.
    cells: AtomicU32,
    watched: AtomicU64,
    seen: AtomicU64,
    /// Pages that a plan left unmapped.
    marked: AtomicU64,
}

struct Shard {
    lock: RawSpin,
    faults: AtomicU32,
    chunks: [Chunk; CHUNKS],
}

/// The state of a process: 88 KiB, usable as a static.
pub struct Nearby {
    shards: [Shard; SHARDS],
    cells: [AtomicU64; CELLS],
}

impl Chunk {
    const fn new() -> Chunk {
        Chunk {
            owner: AtomicU32::new(0),
            opened: AtomicU32::new(0),
            weight: AtomicU32::new(0),
            cells: AtomicU32::new(0),
            watched: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            marked: AtomicU64::new(0),
        }
    }
}

impl Shard {
    const fn new() -> Shard {
        Shard {
            lock: RawSpin::new(),
            faults: AtomicU32::new(0),
            chunks: [const { Chunk::new() }; CHUNKS],
        }
    }
}

impl Nearby {
    /// Creates a state that has seen nothing.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Nearby {
        Nearby {
            shards: [const { Shard::new() }; SHARDS],
            cells: [const { AtomicU64::new(0) }; CELLS],
        }
    }
}

/// What a cell has learnt: for each step an accuracy in 255ths and how many judgements it is based on, and the current
/// step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Cell(u64);

impl Cell {
    fn accuracy(self, step: usize) -> u64 {
        self.0 >> (step * 11) & 0xff
    }
    fn evidence(self, step: usize) -> u64 {
        self.0 >> (step * 11 + 8) & EVIDENCE_MAX
    }
    /// The current step: the width is 1 << this.
    fn taken(self) -> usize {
        (self.0 >> (STEPS * 11)) as usize & 7
    }
    fn with_step(self, step: usize, accuracy: u64, evidence: u64) -> Cell {
        let cleared = self.0 & !(0x7ff << (step * 11));
        Cell(cleared | (accuracy | evidence << 8) << (step * 11))
    }
    fn with_taken(self, taken: usize) -> Cell {
        Cell(self.0 & !(7 << (STEPS * 11)) | (taken as u64) << (STEPS * 11))
    }
    /// Updates a step's accuracy: `used` of `all` pages were used.
    fn learn(self, step: usize, used: u32, all: u32) -> Cell {
        debug_assert!(used <= all);
        let sample = u64::from(used) * 255 / u64::from(all.max(1));
        let (before, n) = (self.accuracy(step), self.evidence(step));
        // The mean of the first samples, then a sliding mean.
        let parts = n + 1;
        let after = (before * n + sample + parts / 2) / parts;
        self.with_step(step, after, (n + 1).min(EVIDENCE_MAX))
    }
    /// Moves one step up if that is worth it, or down below a step that no longer is.
    fn choose(self) -> Cell {
        let taken = self.taken();
        if let Some(bad) = (0..taken).find(|s| self.accuracy(*s) < DOWN) {
            self.with_taken(bad)
        } else if taken < STEPS
            && self.evidence(taken) >= EVIDENCE_MIN
            && self.accuracy(taken) >= UP
        {
            self.with_taken(taken + 1)
        } else {
            self
        }
    }
}

/// For the step that doubles groups of `1 << step` pages: the pages that it would have brought in and how many of them
/// were used. Both are doubled.
fn judge(step: usize, watched: u64, seen: u64) -> (u32, u32) {
    let half = 1 << step;
    let mask = (1u64 << half) - 1;
    let (mut all, mut used, mut rest) = (0, 0, seen);
    while rest != 0 {
        let at = rest.trailing_zeros() as usize & !(2 * half - 1);
        rest &= !((mask << half | mask) << at);
        let part = |bits: u64, i: usize| (bits >> (at + i * half) & mask).count_ones();
        match (part(seen, 0), part(seen, 1)) {
            (_, 0) => all += 2 * part(watched, 1),
            (0, _) => all += 2 * part(watched, 0),
            // Either half may have faulted first.
            (l, r) => {
                all += part(watched, 0) + part(watched, 1);
                used += l + r;
            }
        }
    }
    (used, all)
}

/// Records what the plan of a fault on `page` brings in: pages left unmapped are marked, mapped ones no longer watched.
fn plan_pages(chunk: &Chunk, page: PageId, plan: &Plan, far: impl Fn(PageId) -> bool) {
    let left = plan.unmapped(plan.count, &far);
    let (mut marked, mut mapped) = (0, 0);
    for i in 0..plan.count {
        let p = plan.start.plus(i as usize);
        let bits = match left.contains(i) {
            true => &mut marked,
            false => &mut mapped,
        };
        if p != page && far(p) {
            *bits |= place(p).1;
        }
    }
    store(&chunk.marked, load(&chunk.marked) | marked);
    store(&chunk.watched, load(&chunk.watched) & !mapped);
}

/// The number of a page's chunk, and the page's bit there.
fn place(page: PageId) -> (u32, u64) {
    let n = page.0 / CHUNK_PAGES as u32;
    (n, 1 << (page.0 as usize % CHUNK_PAGES))
}

/// Counts the plans.
const PLANNER: Planner = Planner {
    issued: Counter::PrefetchIssuedNearby,
    used: Some(Counter::PrefetchUsedNearby),
};

impl Prefetcher for Nearby {
    fn plan(&self, fault: &Fault<'_, impl MemoryView>) -> Plan {
        let (page, around) = (fault.page, fault.around);
        if fault.kind == FaultKind::Demand {
            return self.on_fault(fault.thread, page, around.epoch(), |p| around.is_far(p));
        }
        match self.on_hit(page) {
            Some(stands_for) if fault.kind == FaultKind::PrefetchHit => Plan {
                stands_for,
                planner: Some(&PLANNER),
                ..Plan::NONE
            },
            _ => Plan::NONE,
        }
    }

    fn on_stream(&self, page: PageId, plan: &Plan) {
        self.forget(page);
        (0..plan.count)
            .filter_map(|i| plan.page(i))
            .for_each(|p| self.forget(p));
    }

    fn carried_out(&self, plan: &Plan, done: &Done) {
        let (n, _) = place(plan.start);
        let (_, chunk) = self.slot(n);
        if plan.planner == Some(&PLANNER)
            && get(&chunk.owner) == n + 1
            && let Some(weight) = done.issued.checked_div(done.marked)
        {
            put(&chunk.weight, weight.max(1));
        }
    }

    fn on_unused(&self, page: PageId) -> Option<u32> {
        let (n, bit) = place(page);
        let chunk = self.slot(n).1;
        (get(&chunk.owner) == n + 1 && load(&chunk.marked) & bit != 0).then(|| get(&chunk.weight))
    }
}

impl Nearby {
    /// Part of a chunk, and its index there.
    fn index(n: u32) -> (usize, usize) {
        let hash = (n.wrapping_mul(0x9e37_79b1) >> 16) as usize;
        (hash % SHARDS, hash / SHARDS % CHUNKS)
    }

    fn slot(&self, n: u32) -> (&Shard, &Chunk) {
        let (part, at) = Nearby::index(n);
        (&self.shards[part], &self.shards[part].chunks[at])
    }

    /// The two cells of a page: of its region and the thread, and of its region alone.
    fn cells_of(thread_hash: u32, page: PageId) -> [u32; 2] {
        let region = (page.0 >> REGION_BITS).wrapping_mul(0x9e37_79b1);
        // Differs from the region's own cell even if the hash is 0.
        let thread = thread_hash.wrapping_mul(0x85eb_ca6b) ^ 0x27d4_eb2f;
        [region ^ thread, region].map(|hash| (hash >> 16) % CELLS as u32)
    }

    /// The width for a fault: what its thread has learnt in its region or, if that is too little, what all threads
    /// have.
    fn width(&self, cells: [u32; 2]) -> u32 {
        let [own, all] = cells.map(|i| Cell(load(&self.cells[i as usize])));
        let cell = if own.evidence(0) >= EVIDENCE_MIN {
            own
        } else {
            all
        };
        1 << cell.taken()
    }

    /// Handles a fault on a far page that no stream expected. `far` says which pages can be brought in.
    pub fn on_fault(
        &self,
        thread_hash: u32,
        page: PageId,
        epoch: u8,
        far: impl Fn(PageId) -> bool,
    ) -> Plan {
        let (n, bit) = place(page);
        let (shard, chunk) = self.slot(n);
        let Some(_held) = shard.lock.try_lock() else {
            return Plan::NONE;
        };
        let now = get(&shard.faults).wrapping_add(1);
        put(&shard.faults, now);
        // Check one other chunk per fault, so that chunks without further faults are judged, too.
        let other = &shard.chunks[now as usize % CHUNKS];
        let old = |c: &Chunk| epoch.wrapping_sub(get(&c.opened) as u8) >= OPEN_EPOCHS;
        if old(other) {
            self.close(other);
        }
        let cells = Nearby::cells_of(thread_hash, page);
        if get(&chunk.owner) != n + 1 || load(&chunk.seen) & bit != 0 || old(chunk) {
            self.close(chunk);
            let first = PageId(page.0 - page.0 % CHUNK_PAGES as u32);
            let watched = (0..CHUNK_PAGES)
                .filter(|i| far(first.plus(*i)))
                .fold(bit, |bits, i| bits | 1 << i);
            put(&chunk.owner, n + 1);
            put(&chunk.opened, u32::from(epoch));
            put(&chunk.weight, 1);
            put(&chunk.cells, cells[0] | cells[1] << 16);
            store(&chunk.watched, watched);
            store(&chunk.marked, 0);
        }
        store(&chunk.seen, load(&chunk.seen) | bit & load(&chunk.watched));
        let width = self.width(cells);
        if width == 1 {
            return Plan::NONE;
        }
        let plan = Plan {
            start: PageId(page.0 & !(width - 1)),
            stride: 1,
            count: width,
            sample_every: SAMPLE_EVERY.min(width),
            planner: Some(&PLANNER),
            ..Plan::NONE
        };
        plan_pages(chunk, page, &plan, far);
        plan
    }

    /// Handles the touch of a prefetched page, or of another page found in the swap cache. Returns how many pages it
    /// stands for if a plan of [`Nearby::on_fault`] left it there.
    pub fn on_hit(&self, page: PageId) -> Option<u32> {
        let (n, bit) = place(page);
        let (shard, chunk) = self.slot(n);
        let _held = shard.lock.try_lock()?;
        if get(&chunk.owner) != n + 1 {
            return None;
        }
        store(&chunk.seen, load(&chunk.seen) | bit & load(&chunk.watched));
        let marked = load(&chunk.marked);
        store(&chunk.marked, marked & !bit);
        (marked & bit != 0).then(|| get(&chunk.weight))
    }

    /// Drops the evidence of a page.
    fn forget(&self, page: PageId) {
        let (n, bit) = place(page);
        let (shard, chunk) = self.slot(n);
        if get(&chunk.owner) == n + 1
            && load(&chunk.watched) & bit != 0
            && let Some(_held) = shard.lock.try_lock()
            && get(&chunk.owner) == n + 1
        {
            store(&chunk.watched, load(&chunk.watched) & !bit);
            store(&chunk.seen, load(&chunk.seen) & !bit);
        }
    }

    /// Judges a chunk and frees its place. The caller holds its part's lock.
    fn close(&self, chunk: &Chunk) {
        if get(&chunk.owner) == 0 {
            return;
        }
        put(&chunk.owner, 0);
        let seen = load(&chunk.seen);
        // Pages that were seen had been watched, even if a plan has brought them in since.
        let watched = load(&chunk.watched) | seen;
        store(&chunk.seen, 0);
        if seen == 0 {
            return;
        }
        let judged: [(u32, u32); STEPS] = core::array::from_fn(|i| judge(i, watched, seen));
        let cells = get(&chunk.cells);
        for at in [cells & 0xffff, cells >> 16] {
            let place = &self.cells[at as usize % CELLS];
            let cell =
                judged
                    .iter()
                    .enumerate()
                    .fold(Cell(load(place)), |cell, (i, of)| match of.1 {
                        0 => cell,
                        all => cell.learn(i, of.0, all),
                    });
            // Threads that judge at the same time may lose a judgement.
            store(place, cell.choose().0);
        }
    }
}

fn load(a: &AtomicU64) -> u64 {
    a.load(Ordering::Relaxed)
}
fn store(a: &AtomicU64, v: u64) {
    a.store(v, Ordering::Relaxed);
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
