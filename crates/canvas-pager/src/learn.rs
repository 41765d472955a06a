//! Record and replay (`learn`): the far pages that a program needs when it resumes, in their order.
//!
//! A *resumption* is a burst of faults on far pages after a quiet time. While it lasts, its pages are recorded. At
//! the next one the first faults are compared with the recordings; when most of them are in one, the rest of it is
//! brought in ahead, chunk by chunk. One page in [`SAMPLE`] is left out, so that a fault tells that the program needs
//! what comes: each such fault, and each on a page that did not come yet, lets the replay go further. Who resumes
//! otherwise than before thus gets little more than [`AHEAD_PAGES`] pages in vain; the replay ends, and later faults
//! may be like another recording.
//!
//! One thread does all of this; others only tell it of their faults.

use canvas_types::sync::AtomicU32;

use chunks::{Added, Draft, Index, PAGES};

pub mod chunks;

/// Faults that begin a resumption, and are compared with the recordings.
pub const FIRST: usize = 32;
/// Of them, those that have to be in a recording for it to be replayed.
pub const MATCH: usize = FIRST / 2;
/// One page in so many is left to a fault.
pub const SAMPLE: u32 = 64;
/// Pages that a replay brings in before any fault confirms it.
pub const AHEAD_PAGES: u32 = 1024;
/// Chunks by which a replay keeps ahead of the faults: what is nearer their threads bring in themselves
/// sooner than they would wait for it.
pub const KEEP_AHEAD: usize = 4;
/// Pages by which the fault on a page that was left out lets a replay go on: four times those that it stands for.
const BY_SAMPLE: u32 = 4 * SAMPLE;
/// The same for a fault on another page of the recording: it did not come yet, or not in time.
const BY_OTHER: u32 = 16;
/// Time in which the first faults have to come.
pub const WINDOW_NS: u64 = 50_000_000;
/// Fewer faults in that time are quiet: a program that is idle still works now and then (redis moves a hash table a
/// millisecond at a time, ten times a second), and what it does then is no resumption either.
pub const BUSY: u32 = FIRST as u32;
/// While a resumption is under way, fewer faults in that time are its end. What is replayed has few.
pub const FEW: u32 = 8;
/// So long it has to be quiet before a resumption.
pub const QUIET_NS: u64 = 500_000_000;
/// So long it has to be quiet for its end.
pub const END_NS: u64 = 400_000_000;

/// Is the page one of those that a replay leaves out? Of [`SAMPLE`] side by side it is one, another one each time.
pub fn is_left_out(page: u32) -> bool {
    let which = (page / SAMPLE).wrapping_mul(0x9e37_79b1) >> 20;
    (page ^ which).is_multiple_of(SAMPLE)
}

/// A replay that is under way.
#[derive(Clone, Copy, Debug)]
struct Replay<'a> {
    words: &'a [AtomicU32],
    /// The entry that is next.
    at: usize,
    /// Some entries were left to threads that fault; then it goes through all once more.
    has_skipped: bool,
    is_last_pass: bool,
    /// Pages of the recording that it has passed.
    passed: u32,
    /// Pages that it may pass, by the faults so far.
    allowed: u32,
    /// Demand faults on pages of the recording (on one that was left out for all that it stands for), and on others.
    hits: u32,
    misses: u32,
    /// It has turned out wrong.
    stopped: bool,
}

/// What a fault tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Nothing special.
    Nothing,
    /// A resumption begins: [`Learner::begin`] is next.
    Begins,
    /// The faults are none of the recording's that is replayed, or none is: [`Learner::replay`] is next where
    /// another one fits.
    Search,
}

/// What becomes of a resumption's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// They are a new recording.
    New,
    /// They belong to the recording that was replayed.
    More,
    /// There is nothing to keep.
    Nothing,
}

/// Follows the faults of one process.
pub struct Learner<'a> {
    draft: Draft<'a>,
    /// Of the recording that is replayed.
    index: Index<'a>,
    /// Since when faults are counted, and how many came.
    window_ns: u64,
    faults: u32,
    /// The first of them; while a resumption is under way, the last that no replay has foreseen.
    seen: [u32; FIRST],
    /// How many such there were, and with which of them a recording is looked for.
    unforeseen: u32,
    search_at: u32,
    /// The last fault of the window before, when that was busy.
    busy_before_ns: Option<u64>,
    /// The last fault.
    last_ns: u64,
    /// When it was last busy, but for the window before.
    busy_ns: u64,
    /// A resumption is under way, and when it was last busy.
    resumed_ns: Option<u64>,
    replay: Option<Replay<'a>>,
    /// Faults on pages that had come in since it began.
    repeats: u32,
    is_full: bool,
}

impl<'a> Learner<'a> {
    /// Nothing is known.
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

    /// A demand fault on a far page.
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
        // A burst may have begun in the window before: that does not count yet.
        self.busy_before_ns = (self.faults >= BUSY).then_some(self.last_ns);
        (self.window_ns, self.faults) = (now_ns, 0);
    }

    /// Pages leave because there is too little room: faults that come now say what has left too soon, and not what a
    /// program needs that resumes.
    pub fn disturbed(&mut self, now_ns: u64) {
        self.busy_ns = self.busy_ns.max(now_ns);
    }

    /// The page came in because of another one's fault.
    pub fn ahead(&mut self, page: u32) {
        if self.resumed_ns.is_some() {
            self.note(page, false);
        }
    }

    /// The faults that a recording is looked for with.
    pub fn seen(&self) -> &[u32; FIRST] {
        &self.seen
    }

    /// A resumption begins, like the recording of these words.
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

    /// The recording of these words is replayed from now on.
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

    /// True when a recording is to be looked for.
    fn note(&mut self, page: u32, demand: bool) -> bool {
        // One that has stopped may be found again.
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

    /// The next pages of the recording to bring in, in ascending order, if it may go on; how many. There is room for
    /// a chunk. `front` is behind the entry of the last fault.
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

    /// The entry that is next in the replay.
    pub fn at(&self) -> usize {
        self.replay.map_or(0, |r| r.at)
    }

    /// Has the replay that is under way turned out wrong?
    pub fn is_stopped(&self) -> bool {
        self.replay.is_some_and(|r| r.stopped)
    }

    /// The resumption is over, if it is: it has been quiet, or there is no more to learn.
    pub fn ended(&mut self, now_ns: u64) -> Option<Outcome> {
        let resumed_ns = self.resumed_ns?;
        let is_steady = self.repeats > 256.max(self.draft.pages() / 4);
        let is_quiet = now_ns.saturating_sub(resumed_ns) >= END_NS;
        if !is_steady && !self.is_full && !is_quiet {
            return None;
        }
        self.resumed_ns = None;
        // It has been quiet since then, however late that is seen.
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

    /// Would a burst be a resumption, that began now?
    pub fn is_quiet(&self, now_ns: u64) -> bool {
        let since = match self.faults >= BUSY || self.busy_before_ns.is_some() {
            true => self.window_ns,
            false => self.busy_ns,
        };
        self.resumed_ns.is_none() && now_ns.saturating_sub(since) >= QUIET_NS
    }

    /// The pages that the resumption has added, after its end.
    pub fn draft(&self) -> &'a [AtomicU32] {
        self.draft.words()
    }

    /// Adds these pages, as far as there is room, to the recording in the first `len` of the words; how many words it
    /// has then. After a resumption's end.
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
