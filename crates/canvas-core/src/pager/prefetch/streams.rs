//! Streams, the pager's own way to prefetch. Whatever else is chosen, they tell eviction what a stream has passed, and
//! first touches how far to run ahead.
//!
//! Each thread (by a hash) has a few *trackers*, one per sequential or strided stream, and the deltas of its other
//! faults for Leap's majority vote. A tracker's window doubles each time the program reaches the end of what was
//! prefetched, which proves that all of it was wanted: a long stream validates itself. Everything else is limited by
//! the accuracy that the caller measures on prefetched pages left unmapped in the swap cache. A stream that passes such
//! a page without touching it skips pages, and loses half of its window and of its proof.
//!
//! Interleaved streams of one thread are told apart by where they are expected to continue. That is sharper than fixed
//! regions: there is no border at which to relearn, and two arrays in one region do not mix. No thread waits for a
//! lock: a table that another thread is using gives no plan.

use canvas_types::PageId;
use canvas_types::sync::{AtomicU32, Ordering, RawSpin};

use super::{
    Advice, Done, Fault, FaultKind, MemoryView, NO_WAY, Plan, Prefetcher, SAMPLE_EVERY, get,
    majority, next_page, put,
};
use crate::pager::table::CHUNK_PAGES;

/// Tables; threads share one if their hashes collide.
const SETS: usize = 64;
/// Streams tracked per table.
const WAYS: usize = 4;
/// First-touch streams tracked per table.
const FIRST_WAYS: usize = 2;
/// Fault deltas kept for the majority vote (Leap).
const HISTORY: usize = 32;
/// Longest window, in pages to prefetch.
pub const WINDOW_MAX: u32 = 64;
/// Longest stride of a tracker, in pages.
const STRIDE_MAX: i64 = 256;
/// A stream may skip this many strides (pages that were resident) and still continue.
const SLACK: i64 = 8;
/// Pages after which a run of faults counts as a stream.
const STREAM_PAGES: u32 = 64;
/// Continuations after which a tracker no longer depends on the measured accuracy.
const PROVEN_HITS: u32 = 4;
/// Feedback counted before the older half of it is dropped.
const FEEDBACK_WINDOW: u32 = 512;
/// The accuracy is not judged with less feedback than this.
const FEEDBACK_MIN: u32 = 32;
/// While prefetching is off because of low accuracy, one plan in this many still runs, to measure again.
const GATED_PROBE: u32 = 32;

/// A stream. Plain data under its table's lock, in atomics so that no unsafe code is needed.
struct Way {
    /// The last fault that belonged to the stream.
    last: AtomicU32,
    /// Pages from fault to fault (i32); 0 while only one fault is known.
    stride: AtomicU32,
    /// First page (in stream order) that was not prefetched yet.
    frontier: AtomicU32,
    /// Window of the last plan, in pages.
    window: AtomicU32,
    /// How often the stream continued as expected.
    hits: AtomicU32,
    /// Pages covered so far.
    covered: AtomicU32,
    /// Time of last use, in faults of the table; 0 for a free way.
    used: AtomicU32,
    /// Pages that each page left unmapped by the last plan stands for.
    weight: AtomicU32,
    /// Chunk that was last reported as left behind.
    behind: AtomicU32,
    /// 1: a page of the last plan is unmapped and was not touched yet.
    marked: AtomicU32,
}

struct Set {
    lock: RawSpin,
    faults: AtomicU32,
    ways: [Way; WAYS],
    first: [Way; FIRST_WAYS],
    /// Page of the last fault that no tracker expected.
    stray: AtomicU32,
    /// Deltas (i32) of such faults, a ring.
    history: [AtomicU32; HISTORY],
    history_len: AtomicU32,
}

/// The streams of a process's threads: about 28 KiB, usable as a static.
pub struct ThreadStreams {
    sets: [Set; SETS],
    used: AtomicU32,
    unused: AtomicU32,
    gated: AtomicU32,
}

impl Way {
    const fn new() -> Way {
        Way {
            last: AtomicU32::new(0),
            stride: AtomicU32::new(0),
            frontier: AtomicU32::new(0),
            window: AtomicU32::new(0),
            hits: AtomicU32::new(0),
            covered: AtomicU32::new(0),
            used: AtomicU32::new(0),
            weight: AtomicU32::new(0),
            behind: AtomicU32::new(u32::MAX),
            marked: AtomicU32::new(0),
        }
    }
}

impl Set {
    const fn new() -> Set {
        Set {
            lock: RawSpin::new(),
            faults: AtomicU32::new(0),
            ways: [const { Way::new() }; WAYS],
            first: [const { Way::new() }; FIRST_WAYS],
            stray: AtomicU32::new(0),
            history: [const { AtomicU32::new(0) }; HISTORY],
            history_len: AtomicU32::new(0),
        }
    }
}

impl ThreadStreams {
    /// Creates tables without streams.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> ThreadStreams {
        ThreadStreams {
            sets: [const { Set::new() }; SETS],
            used: AtomicU32::new(0),
            unused: AtomicU32::new(0),
            gated: AtomicU32::new(0),
        }
    }
}

impl Way {
    fn stride(&self) -> i64 {
        i64::from(get(&self.stride) as i32)
    }
    /// How many strides from `from` to `to`; `None` if it is not a whole number of them forward.
    fn steps(&self, from: u32, to: u32) -> Option<i64> {
        let (stride, d) = (self.stride(), i64::from(to) - i64::from(from));
        (stride != 0 && d % stride == 0 && d / stride >= 0).then(|| d / stride)
    }
    /// Whether `page` would continue this stream.
    fn expects(&self, page: u32) -> bool {
        if get(&self.used) == 0 {
            return false;
        }
        let ahead = self
            .steps(get(&self.last), get(&self.frontier))
            .unwrap_or(1);
        // A stream that has continued only once or not at all must go on exactly.
        let slack = if get(&self.hits) >= 2 { SLACK } else { 0 };
        self.steps(get(&self.last), page)
            .is_some_and(|n| n >= 1 && n <= ahead + slack)
    }
    /// The distance from the last fault to `page`. Pages brought in beside that fault do not count: the page after them
    /// is the next one, and so is the page before them.
    fn distance(&self, page: u32) -> i64 {
        let (end, beside) = (get(&self.frontier), get(&self.window));
        if get(&self.stride) == 0 && beside != 0 {
            let (up, down) = (
                i64::from(page) - i64::from(end),
                i64::from(end) - i64::from(beside) - 1 - i64::from(page),
            );
            if (0..=SLACK).contains(&up) {
                return 1;
            }
            if (0..=SLACK).contains(&down) {
                return -1;
            }
        }
        i64::from(page) - i64::from(get(&self.last))
    }
    fn restart(&self, page: u32, now: u32) {
        put(&self.last, page);
        put(&self.stride, 0);
        put(&self.frontier, page);
        put(&self.window, 0);
        put(&self.hits, 0);
        put(&self.covered, 1);
        put(&self.used, now);
        put(&self.weight, 0);
        put(&self.behind, u32::MAX);
        put(&self.marked, 0);
    }
}

impl Prefetcher for ThreadStreams {
    fn plan(&self, fault: &Fault<'_, impl MemoryView>) -> Plan {
        match fault.advice {
            Advice::Sequential => self.on_sequential(fault.thread, fault.page, fault.kind),
            _ => self.on_fault(fault.thread, fault.page, fault.kind),
        }
    }

    /// Without this call, all of the plan counts as prefetched and nothing as left unmapped.
    fn carried_out(&self, plan: &Plan, done: &Done) {
        let Some(way) = self.set(plan.key).ways.get(usize::from(plan.way)) else {
            return;
        };
        if plan.count == 0 {
            return;
        }
        // No lock: a stream that another thread changes at the same time predicts a little worse.
        put(&way.marked, u32::from(done.marked > 0));
        // Pages that were not far are not prefetched, so the unmapped pages do not stand for them.
        if let Some(weight) = done.issued.checked_div(done.marked) {
            put(&way.weight, weight.max(1));
        }
        let stride = i64::from(plan.stride);
        let end = |n: u32| next_page(plan.start.0, stride, i64::from(n));
        if done.reached < plan.count && get(&way.frontier) == end(plan.count) {
            put(&way.frontier, end(done.reached));
        }
    }

    #[inline]
    fn on_used(&self, _: &Plan) {
        self.used.fetch_add(1, Ordering::Relaxed);
        self.forget();
    }

    #[inline]
    fn on_unused(&self, _: PageId) -> Option<u32> {
        self.unused.fetch_add(1, Ordering::Relaxed);
        self.forget();
        Some(SAMPLE_EVERY)
    }
}

impl ThreadStreams {
    /// Handles a fault on `page` of the thread, or of what else has streams of its own, whose hash is `key`. First
    /// touches go to [`ThreadStreams::first_touch_plan`].
    pub fn on_fault(&self, key: u32, page: PageId, kind: FaultKind) -> Plan {
        let set = self.set(key);
        let Some(_held) = set.lock.try_lock() else {
            return Plan::NONE;
        };
        let plan = self.plan_in(set, page, kind, set.tick());
        Plan { key, ..plan }
    }

    fn plan_in(&self, set: &Set, page: PageId, kind: FaultKind, now: u32) -> Plan {
        if let Some(i) = set.ways.iter().position(|w| w.expects(page.0)) {
            let plan = self.advance(&set.ways[i], page, kind, now);
            return Plan {
                way: i as u8,
                ..plan
            };
        }
        if kind == FaultKind::PrefetchHit || kind == FaultKind::PrefetchLate {
            // Prefetched by a tracker that no longer exists: this gives no new delta.
            return Plan::nothing_beside(kind);
        }
        if let Some(plan) = self.pair(set, page, now) {
            return plan;
        }
        set.stray_fault(page.0);
        match set.replace(page.0, now) {
            Some(way) if kind == FaultKind::Demand => self.vote(set, way, page),
            _ => Plan::NONE,
        }
    }

    /// Like [`ThreadStreams::on_fault`], in a region that is used from its first page to its last: a stream counts as
    /// proven from its first fault on, so its window is the widest at once.
    fn on_sequential(&self, thread_hash: u32, page: PageId, kind: FaultKind) -> Plan {
        let set = self.set(thread_hash);
        let Some(_held) = set.lock.try_lock() else {
            return Plan::NONE;
        };
        let now = set.tick();
        let forward = set
            .ways
            .iter()
            .position(|w| w.stride() == 1 && w.expects(page.0));
        let i = forward.unwrap_or_else(|| {
            let age = |i: &usize| match get(&set.ways[*i].used) {
                0 => u32::MAX,
                used => now.wrapping_sub(used),
            };
            (0..set.ways.len()).max_by_key(age).unwrap_or(0)
        });
        let way = &set.ways[i];
        if forward.is_none() {
            way.restart(page.0.saturating_sub(1), now);
            put(&way.stride, 1);
            put(&way.frontier, page.0);
            put(&way.weight, SAMPLE_EVERY);
        }
        put(&way.hits, get(&way.hits).max(PROVEN_HITS));
        put(&way.covered, get(&way.covered).max(STREAM_PAGES));
        put(&way.window, WINDOW_MAX);
        // A page that was passed untouched means nothing here: the program has said that it will come to all of them.
        put(&way.marked, 0);
        let plan = self.advance(way, page, kind, now);
        Plan {
            way: i as u8,
            key: thread_hash,
            ..plan
        }
    }

    /// Records that the pages of another prefetcher's `plan` come in beside `page`, whose fault no stream expected: a
    /// stream may begin there.
    pub(super) fn beside(&self, thread_hash: u32, page: PageId, plan: &Plan) {
        let ways = &self.set(thread_hash).ways;
        // No lock, as in [`Prefetcher::carried_out`].
        if let Some(way) = ways
            .iter()
            .find(|w| get(&w.last) == page.0 && get(&w.stride) == 0 && get(&w.used) != 0)
        {
            put(&way.frontier, plan.start.0 + plan.count);
            put(&way.window, plan.count);
        }
    }

    /// Handles a first touch: plans how many pages to fill with zeros ahead. The count doubles from 1 to [`WINDOW_MAX`]
    /// on sequential touches, up or down; long plans end at a chunk's border.
    pub fn first_touch_plan(&self, thread_hash: u32, page: PageId) -> Plan {
        let set = self.set(thread_hash);
        let Some(_held) = set.lock.try_lock() else {
            return Plan::NONE;
        };
        let now = set.tick();
        let known = set.first.iter().find(|w| {
            let stride = w.stride();
            let d = i64::from(page.0) - i64::from(get(&w.frontier));
            get(&w.used) != 0
                && if stride == 0 {
                    d.abs() == 1
                } else {
                    (0..=SLACK).contains(&(d * stride))
                }
        });
        let Some(way) = known else {
            if let Some(way) = set.first.iter().min_by_key(|w| get(&w.used)) {
                way.restart(page.0, now);
            }
            return Plan::NONE;
        };
        if way.stride() == 0 {
            put(
                &way.stride,
                if page.0 > get(&way.last) {
                    1
                } else {
                    (-1i32) as u32
                },
            );
        }
        let stride = way.stride();
        put(&way.used, now);
        put(&way.last, page.0);
        let window = (get(&way.window) * 2).clamp(1, WINDOW_MAX);
        put(&way.window, window);
        let count = align(page.0, stride, window);
        put(
            &way.frontier,
            (i64::from(page.0) + stride * (i64::from(count) + 1)).clamp(0, i64::from(u32::MAX))
                as u32,
        );
        Plan {
            start: PageId((i64::from(page.0) + stride).max(0) as u32),
            stride: stride as i32,
            count,
            stream: false,
            ..Plan::NONE
        }
    }

    /// Measured accuracy in percent; `None` with too little feedback.
    pub(super) fn accuracy_percent(&self) -> Option<u32> {
        let (used, unused) = (get(&self.used), get(&self.unused));
        let all = used.saturating_add(unused);
        (all >= FEEDBACK_MIN).then(|| (u64::from(used) * 100 / u64::from(all)) as u32)
    }

    /// Halves the feedback, so that recent feedback has more weight. Racing callers may halve twice.
    fn forget(&self) {
        let (used, unused) = (get(&self.used), get(&self.unused));
        if used.saturating_add(unused) > FEEDBACK_WINDOW {
            put(&self.used, used / 2);
            put(&self.unused, unused / 2);
        }
    }

    /// The longest window that the measured accuracy allows now; 0 for none.
    fn allowed(&self) -> u32 {
        match self.accuracy_percent() {
            None => 16,
            Some(75..) => WINDOW_MAX,
            Some(60..) => 32,
            Some(50..) => 8,
            Some(40..) => 4,
            Some(_) => {
                let turn = self.gated.fetch_add(1, Ordering::Relaxed);
                if turn.is_multiple_of(GATED_PROBE) {
                    SAMPLE_EVERY
                } else {
                    0
                }
            }
        }
    }

    fn set(&self, thread_hash: u32) -> &Set {
        &self.sets[(thread_hash.wrapping_mul(0x9e37_79b1) >> 16) as usize % SETS]
    }

    /// Continues a stream as its tracker expected.
    fn advance(&self, way: &Way, page: PageId, kind: FaultKind, now: u32) -> Plan {
        let stride = way.stride();
        let steps = way.steps(get(&way.last), page.0).unwrap_or(1) as u32;
        put(&way.used, now);
        put(&way.last, page.0);
        put(&way.covered, get(&way.covered).saturating_add(steps));
        let stream = get(&way.covered) >= STREAM_PAGES;
        let behind = if stream {
            left_chunk(way, page.0, stride)
        } else {
            None
        };
        // Pages prefetched and not reached yet.
        let ahead = way
            .steps(page.0, get(&way.frontier))
            .map_or(0, |n| (n - 1).max(0)) as u32;
        let window = get(&way.window);
        let hit = kind == FaultKind::PrefetchHit;
        let mut plan = Plan {
            stands_for: if hit { get(&way.weight) } else { 0 },
            stream,
            behind,
            ..Plan::NONE
        };
        if ahead > 0 && (kind == FaultKind::VictimHit || ahead > window / 4) {
            return plan;
        }
        // The unmapped page was passed without a touch: not all that was prefetched was wanted.
        let skips = get(&way.marked) != 0 && !hit && ahead == 0;
        put(&way.marked, 0);
        let (hits, window) = if skips {
            (get(&way.hits) / 2, window / 2)
        } else {
            (get(&way.hits).saturating_add(1), window * 2)
        };
        put(&way.hits, hits);
        let proven = hits >= PROVEN_HITS;
        let allowed = if proven { WINDOW_MAX } else { self.allowed() };
        let window = window.clamp(2, WINDOW_MAX).min(allowed);
        if window == 0 {
            put(&way.frontier, next_page(page.0, stride, 1));
            return plan;
        }
        put(&way.window, window);
        let from = if ahead > 0 {
            next_page(page.0, stride, i64::from(ahead))
        } else {
            page.0
        };
        let count = align(from, stride, window);
        put(&way.frontier, next_page(from, stride, i64::from(count) + 1));
        plan.start = PageId(next_page(from, stride, 1));
        plan.stride = stride as i32;
        plan.count = count;
        // A proven stream is measured by its own progress. One unmapped page per window shows where it is, so that the
        // next window can be requested in time.
        plan.sample_every = sample_every(count, proven);
        put(&way.weight, weight(count, plan.sample_every));
        plan
    }

    /// Two faults close to each other start a stream. Neighbours are prefetched at once; other strides when a third
    /// fault confirms them.
    fn pair(&self, set: &Set, page: PageId, now: u32) -> Option<Plan> {
        let way = set
            .ways
            .iter()
            .filter(|w| get(&w.used) != 0 && get(&w.hits) == 0)
            .map(|w| (w, w.distance(page.0)))
            .filter(|(_, d)| *d != 0 && d.abs() <= STRIDE_MAX)
            .min_by_key(|(_, d)| d.abs());
        let (way, d) = way?;
        // Pages beside the first fault that came in without a fault.
        let beside = if get(&way.stride) == 0 {
            get(&way.window)
        } else {
            0
        };
        put(&way.stride, d as i32 as u32);
        put(&way.last, page.0);
        put(&way.used, now);
        put(&way.covered, 2.max(beside));
        put(&way.frontier, next_page(page.0, d, 1));
        if d.abs() != 1 {
            return Some(Plan::NONE);
        }
        put(&way.hits, if beside > 2 { 2 } else { 1 });
        Some(self.first_plan(set, way, page, d, beside))
    }

    /// Leap: a delta that more than half of the last 4, 8, 16 or 32 stray faults share becomes the stride of the
    /// tracker `way`, which has just started at `page`.
    fn vote(&self, set: &Set, way: &Way, page: PageId) -> Plan {
        let Some(delta) = set.majority() else {
            return Plan::NONE;
        };
        put(&way.stride, delta as i32 as u32);
        put(&way.hits, 1);
        self.first_plan(set, way, page, delta, 0)
    }

    /// The first, short plan of a stream that has brought in `before` pages.
    fn first_plan(&self, set: &Set, way: &Way, page: PageId, stride: i64, before: u32) -> Plan {
        let window = self.allowed().min(before.clamp(2, WINDOW_MAX));
        put(&way.window, window);
        put(&way.weight, window);
        put(
            &way.frontier,
            next_page(page.0, stride, i64::from(window) + 1),
        );
        Plan {
            start: PageId(next_page(page.0, stride, 1)),
            stride: stride as i32,
            count: window,
            sample_every: window,
            way: set.index(way),
            ..Plan::NONE
        }
    }
}

impl Set {
    fn tick(&self) -> u32 {
        let now = get(&self.faults).wrapping_add(1).max(1);
        put(&self.faults, now);
        now
    }

    fn index(&self, way: &Way) -> u8 {
        self.ways
            .iter()
            .position(|w| core::ptr::eq(w, way))
            .map_or(NO_WAY, |i| i as u8)
    }

    /// Records the delta from the last fault that no tracker expected.
    fn stray_fault(&self, page: u32) {
        let delta = page.wrapping_sub(get(&self.stray));
        put(&self.stray, page);
        let n = get(&self.history_len);
        put(&self.history[n as usize % HISTORY], delta);
        put(&self.history_len, n.wrapping_add(1));
    }

    /// Starts tracking `page` in a free way, or in one that never continued. If all are good streams, the least
    /// recently used one loses trust each time until it is replaced.
    fn replace(&self, page: u32, now: u32) -> Option<&Way> {
        let age = |w: &&Way| now.wrapping_sub(get(&w.used));
        let weak = self
            .ways
            .iter()
            .filter(|w| get(&w.hits) == 0 || get(&w.used) == 0)
            .max_by_key(age);
        let way = match weak {
            Some(way) => way,
            None => {
                let way = self.ways.iter().max_by_key(age)?;
                put(&way.hits, get(&way.hits) / 2);
                if get(&way.hits) > 0 {
                    return None;
                }
                way
            }
        };
        way.restart(page, now);
        Some(way)
    }

    /// The delta of more than half of the last 4, 8, 16 or 32 stray faults.
    fn majority(&self) -> Option<i64> {
        let total = get(&self.history_len) as usize;
        let mut span = 4;
        while span <= HISTORY && span <= total {
            let delta = majority(span, |i| get(&self.history[(total - 1 - i) % HISTORY]));
            if let Some(delta) = delta.filter(|delta| *delta != 0) {
                return Some(i64::from(delta as i32));
            }
            span *= 2;
        }
        None
    }
}

/// How many pages per unmapped one: one unmapped page for a short or proven plan, else one per [`SAMPLE_EVERY`].
fn sample_every(count: u32, proven: bool) -> u32 {
    if proven {
        count
    } else {
        count.min(SAMPLE_EVERY)
    }
}

/// Pages of a plan that each unmapped one stands for.
fn weight(count: u32, every: u32) -> u32 {
    count
        .checked_div(every)
        .map_or(0, |samples| count / samples.max(1))
}

/// Shortens a long window of neighbours after `page` so that it ends at a chunk's border. Later windows then fill whole
/// chunks, which are unmapped with one call.
fn align(page: u32, stride: i64, window: u32) -> u32 {
    let chunk = CHUNK_PAGES as u32;
    if window < chunk / 4 || stride.abs() != 1 {
        return window;
    }
    let excess = if stride > 0 {
        (page + window + 1) % chunk
    } else {
        (chunk - page.wrapping_sub(window) % chunk) % chunk
    };
    if excess < window {
        window - excess
    } else {
        window
    }
}

/// The chunk that a stream has left with this fault; reported once.
fn left_chunk(way: &Way, page: u32, stride: i64) -> Option<PageId> {
    let chunk = CHUNK_PAGES as u32;
    let at = page / chunk;
    let behind = if stride > 0 {
        at.checked_sub(1)?
    } else {
        at + 1
    };
    if get(&way.behind) == behind {
        return None;
    }
    put(&way.behind, behind);
    Some(PageId(behind * chunk))
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
