//! Record and replay (`learn`): the far pages that a program needs when it resumes, in their order.
//!
//! A *resumption* is a burst of faults on far pages after a quiet time. While it lasts, its pages are recorded. At the
//! next resumption the first faults are compared with the recordings; if most of them are in one, the rest of that
//! recording is prefetched, chunk by chunk. One page in [`SAMPLE`] is left out, so that faults show that the program
//! needs what comes in: each fault on such a page, and each on a page that did not come in yet, lets the replay
//! continue further. If a program resumes differently, little more than [`AHEAD_PAGES`] pages come in for nothing; the
//! replay then stops, and later faults may match another recording.
//!
//! One thread does all of this; other threads only report their faults to it.

use canvas_types::sync::AtomicU32;

use chunks::{Added, Draft, Index, PAGES};

pub mod chunks;

/// Faults that begin a resumption, and are compared with the recordings.
pub const FIRST: usize = 32;
/// How many of them must be in a recording for it to be replayed.
pub const MATCH: usize = FIRST / 2;
/// One page in this many is left out of a replay, so that it faults.
pub const SAMPLE: u32 = 64;
/// Pages that a replay brings in before any fault confirms it.
pub const AHEAD_PAGES: u32 = 1024;
/// Chunks by which a replay stays ahead of the faults. What is nearer, faulting threads bring in themselves sooner than
/// they would wait for it.
pub const KEEP_AHEAD: usize = 4;
/// Pages that a fault on a left-out page allows the replay to bring in: four times those that the page stands for.
const BY_SAMPLE: u32 = 4 * SAMPLE;
/// Pages that a fault on another page of the recording allows: one that did not come in, or not in time.
const BY_OTHER: u32 = 16;
/// Time in which the first faults have to come.
pub const WINDOW_NS: u64 = 50_000_000;
/// Fewer faults than this in [`WINDOW_NS`] count as quiet. An idle program still works now and then (redis moves a hash
/// table for a millisecond, ten times a second), and that is no resumption.
pub const BUSY: u32 = FIRST as u32;
/// During a resumption, fewer faults than this in [`WINDOW_NS`] are its end. A replayed resumption has few faults.
pub const FEW: u32 = 8;
/// How long it must be quiet before a resumption.
pub const QUIET_NS: u64 = 500_000_000;
/// How long it must be quiet for a resumption to end.
pub const END_NS: u64 = 400_000_000;

/// Whether a replay leaves this page out: one of each [`SAMPLE`] adjacent pages, at a different position each time.
pub fn is_left_out(page: u32) -> bool {
    let which = (page / SAMPLE).wrapping_mul(0x9e37_79b1) >> 20;
    (page ^ which).is_multiple_of(SAMPLE)
}

/// A replay in progress.
#[derive(Clone, Copy, Debug)]
struct Replay<'a> {
    words: &'a [AtomicU32],
    /// Index of the next entry.
    at: usize,
    /// Some entries were left to faulting threads; after the last entry, all are visited once more.
    has_skipped: bool,
    is_last_pass: bool,
    /// Pages of the recording that the replay has passed.
    passed: u32,
    /// Pages that it may pass, by the faults so far.
    allowed: u32,
    /// Demand faults on pages of the recording (a left-out page counts for all that it stands for), and on other pages.
    hits: u32,
    misses: u32,
    /// The recording turned out not to match.
    stopped: bool,
}

/// What the caller must do after a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Nothing.
    Nothing,
    /// A resumption begins: call [`Learner::begin`].
    Begins,
    /// The replayed recording does not contain the faults, or none is replayed: call [`Learner::replay`] if another
    /// recording matches.
    Search,
}

/// What to do with the pages of a resumption.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Store them as a new recording.
    New,
    /// Add them to the recording that was replayed.
    More,
    /// There is nothing to store.
    Nothing,
}

/// Follows the faults of one process.
pub struct Learner<'a> {
    draft: Draft<'a>,
    /// Index of the recording that is replayed.
    index: Index<'a>,
    /// Start of the current time window, and the faults in it.
    window_ns: u64,
    faults: u32,
    /// The window's first faults; during a resumption, the last faults that no replay predicted.
    seen: [u32; FIRST],
    /// How many faults were not predicted, and at which count the next recording is searched for.
    unforeseen: u32,
    search_at: u32,
    /// Time of the last fault of the previous window, if that window was busy.
    busy_before_ns: Option<u64>,
    /// Time of the last fault.
    last_ns: u64,
    /// When faults were last busy, not counting the previous window.
    busy_ns: u64,
    /// During a resumption: when faults were last busy.
    resumed_ns: Option<u64>,
    replay: Option<Replay<'a>>,
    /// Faults on pages that had already come in during the resumption.
    repeats: u32,
    is_full: bool,
}

impl<'a> Learner<'a> {
    /// Creates a learner that has seen no faults.
    pub fn new(draft: Draft<'a>, index: Index<'a>) -> Learner<'a> {
        Learner {
            draft,
            index,
            window_ns: 0,
            faults: 0,
            seen: [0; FIRST],
            unforeseen: 0,
            search_at: 0,
            busy_before_ns: None,
            last_ns: 0,
            busy_ns: 0,
            resumed_ns: None,
            replay: None,
            repeats: 0,
            is_full: false,
        }
    }

    /// Handles a demand fault on a far page.
    pub fn fault(&mut self, now_ns: u64, page: u32) -> Event {
        if now_ns.saturating_sub(self.window_ns) > WINDOW_NS {
            self.next_window(now_ns);
        }
        self.last_ns = now_ns;
        let i = self.faults as usize;
        self.faults = self.faults.saturating_add(1);
        if self.resumed_ns.is_some() {
            if self.faults >= FEW {
                self.resumed_ns = Some(now_ns);
            }
            return match self.note(page, true) {
                true => Event::Search,
                false => Event::Nothing,
            };
        }
        if i < FIRST {
            self.seen[i] = page;
        }
        match i + 1 == FIRST && self.window_ns.saturating_sub(self.busy_ns) >= QUIET_NS {
            true => Event::Begins,
            false => Event::Nothing,
        }
    }

    fn next_window(&mut self, now_ns: u64) {
        if let Some(busy_ns) = self.busy_before_ns {
            self.busy_ns = self.busy_ns.max(busy_ns);
        }
        // A burst may have begun in the previous window, so that one does not count yet.
        self.busy_before_ns = (self.faults >= BUSY).then_some(self.last_ns);
        (self.window_ns, self.faults) = (now_ns, 0);
    }

    /// Records that pages are evicted because there is too little room. Faults now show what was evicted too early, not
    /// what a resuming program needs.
    pub fn disturbed(&mut self, now_ns: u64) {
        self.busy_ns = self.busy_ns.max(now_ns);
    }

    /// Records a page that came in during a fault on another page.
    pub fn ahead(&mut self, page: u32) {
        if self.resumed_ns.is_some() {
            self.note(page, false);
        }
    }

    /// The faults to compare recordings with.
    pub fn seen(&self) -> &[u32; FIRST] {
        &self.seen
    }

    /// Begins a resumption, and the replay of the recording with these words if there is one.
    pub fn begin(&mut self, now_ns: u64, recording: Option<&'a [AtomicU32]>) {
        self.draft.clear();
        self.replay = None;
        self.resumed_ns = Some(now_ns);
        (self.repeats, self.is_full) = (0, false);
        (self.unforeseen, self.search_at) = (0, 4 * FIRST as u32);
        if let Some(words) = recording {
            self.replay(words);
        }
        for page in self.seen {
            self.note(page, true);
        }
    }

    /// Replays the recording with these words from now on.
    pub fn replay(&mut self, words: &'a [AtomicU32]) {
        self.index.fill(words);
        self.replay = Some(Replay {
            words,
            at: 0,
            has_skipped: false,
            is_last_pass: false,
            passed: 0,
            allowed: AHEAD_PAGES,
            hits: 0,
            misses: 0,
            stopped: false,
        });
    }

    /// Records a page of a resumption. Returns true if a recording should be searched for.
    fn note(&mut self, page: u32, demand: bool) -> bool {
        // A replay that has stopped may be chosen again.
        if let Some(replay) = self.replay.as_mut().filter(|r| !r.stopped) {
            let of = self.index.find(replay.words, page / PAGES);
            let entry = of.and_then(|i| chunks::entry(replay.words, i));
            if entry.is_some_and(|e| e.has(page)) {
                if demand {
                    let passed = replay.is_last_pass || of.is_some_and(|i| i < replay.at);
                    let is_sample = is_left_out(page) && passed;
                    let (pages, by) = match is_sample {
                        true => (SAMPLE, BY_SAMPLE),
                        false => (1, BY_OTHER),
                    };
                    replay.hits = replay.hits.saturating_add(pages);
                    replay.allowed = replay.allowed.saturating_add(by);
                }
                return false;
            }
        }
        let added = self.draft.add(page);
        self.is_full |= added == Added::Full;
        if !demand {
            return false;
        }
        if added == Added::Known {
            self.repeats += 1;
        }
        self.seen[self.unforeseen as usize % FIRST] = page;
        self.unforeseen = self.unforeseen.saturating_add(1);
        if let Some(replay) = self.replay.as_mut().filter(|r| !r.stopped) {
            replay.misses += 1;
            if replay.misses < FIRST as u32 || replay.misses <= replay.hits {
                return false;
            }
            replay.stopped = true;
            self.search_at = self.unforeseen;
        }
        let search = self.unforeseen == self.search_at;
        if search {
            self.search_at = self.search_at.saturating_mul(4);
        }
        search
    }

    /// Writes the next pages of the recording to `out`, in ascending order, if the replay may continue; returns how
    /// many. `out` has room for a chunk. `front` is the index after the entry of the last fault.
    pub fn next(&mut self, front: usize, out: &mut [u32]) -> usize {
        let Some(replay) = self.replay.as_mut().filter(|r| !r.stopped) else {
            return 0;
        };
        if front > 0 && replay.at < front + KEEP_AHEAD && !replay.is_last_pass {
            replay.has_skipped = true;
            replay.at = front + KEEP_AHEAD;
        }
        let mut n = 0;
        while n == 0 && replay.passed < replay.allowed {
            let Some(entry) = chunks::entry(replay.words, replay.at) else {
                if replay.is_last_pass || !replay.has_skipped {
                    break;
                }
                (replay.is_last_pass, replay.at) = (true, 0);
                continue;
            };
            replay.at += 1;
            replay.passed += entry.bits.count_ones();
            for (page, out) in entry.pages().filter(|p| !is_left_out(*p)).zip(&mut *out) {
                *out = page;
                n += 1;
            }
        }
        n
    }

    /// Index of the next entry of the replay.
    pub fn at(&self) -> usize {
        self.replay.map_or(0, |r| r.at)
    }

    /// Whether the replay in progress turned out wrong.
    pub fn is_stopped(&self) -> bool {
        self.replay.is_some_and(|r| r.stopped)
    }

    /// Ends the resumption if it is over: it has been quiet, or there is no more to learn.
    pub fn ended(&mut self, now_ns: u64) -> Option<Outcome> {
        let resumed_ns = self.resumed_ns?;
        let is_steady = self.repeats > 256.max(self.draft.pages() / 4);
        let is_quiet = now_ns.saturating_sub(resumed_ns) >= END_NS;
        if !is_steady && !self.is_full && !is_quiet {
            return None;
        }
        self.resumed_ns = None;
        // It has been quiet since then, even if this is noticed late.
        self.busy_ns = if is_quiet { resumed_ns } else { now_ns };
        let replay = self.replay.take();
        let pages = self.draft.pages();
        Some(match replay {
            _ if pages == 0 => Outcome::Nothing,
            Some(replay) if !replay.stopped => Outcome::More,
            _ if pages < FIRST as u32 => Outcome::Nothing,
            _ => Outcome::New,
        })
    }

    /// Whether a burst that began now would be a resumption.
    pub fn is_quiet(&self, now_ns: u64) -> bool {
        let since = match self.faults >= BUSY || self.busy_before_ns.is_some() {
            true => self.window_ns,
            false => self.busy_ns,
        };
        self.resumed_ns.is_none() && now_ns.saturating_sub(since) >= QUIET_NS
    }

    /// The pages that the resumption has added; valid after its end.
    pub fn draft(&self) -> &'a [AtomicU32] {
        self.draft.words()
    }

    /// Adds these pages, as far as there is room, to the recording in the first `len` of the words; returns how many
    /// words it has then. Called after a resumption's end.
    pub fn merge(&mut self, words: &'a [AtomicU32], len: usize) -> usize {
        let mut to = Draft::behind(words, len, self.index.take());
        to.add_all(self.draft.words());
        let len = to.words().len();
        self.index = to.into_index();
        len
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
