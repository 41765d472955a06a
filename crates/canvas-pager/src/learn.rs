//! Record and replay (`--learn`): the far pages that a program needs when it resumes, in their order.
//!
//! A *resumption* is a burst of faults on far pages after a quiet time. While it lasts, its pages are recorded. At
//! the next one the first faults are compared with the recordings; when most of them are in one, the rest of it is
//! brought in ahead. One page in [`SAMPLE`] is left out, so that a fault tells that the program needs what comes:
//! each such fault, and each on a page that did not come yet, lets the replay go further. Who resumes otherwise than
//! before thus gets no more than [`AHEAD_PAGES`] pages in vain, and the replay ends.
//!
//! One thread does all of this; others only tell it of their faults.

use canvas_types::sync::{AtomicU32, Ordering};

use words::Writer;

pub mod words;

/// Faults that begin a resumption, and are compared with the recordings.
pub const FIRST: usize = 32;
/// Of them, those that have to be in a recording for it to be replayed.
pub const MATCH: usize = FIRST / 2;
/// One page in so many is left to a fault.
pub const SAMPLE: u32 = 32;
/// Pages that a replay brings in before any fault confirms it.
pub const AHEAD_PAGES: u32 = 1024;
/// Pages by which the fault on a page that was left out lets a replay go on: four times those that it stands for.
const BY_SAMPLE: u32 = 4 * SAMPLE;
/// The same for a fault on a page of the recording that has not come yet.
const BY_EARLY: u32 = 16;
/// Time in which the first faults have to come.
pub const WINDOW_NS: u64 = 50_000_000;
/// Fewer faults in that time are quiet.
pub const FEW: u32 = 8;
/// So long it has to be quiet before a resumption.
pub const QUIET_NS: u64 = 1_000_000_000;
/// So long it has to be quiet for its end.
pub const END_NS: u64 = 200_000_000;

/// The pages of the resumption that is under way: of the recording that is replayed, and those that faulted. A hash
/// table in memory of the caller's.
struct Known<'a> {
    /// The page and 1; 0 where there is none. A power of two of them.
    places: &'a [AtomicU32],
    len: usize,
}

/// In a place of [`Known`]: the page was left out of the replay.
const LEFT_OUT: u32 = 1 << 31;

impl Known<'_> {
    fn is_full(&self) -> bool {
        self.len >= self.places.len() / 4 * 3
    }
    fn clear(&mut self) {
        if self.len > 0 {
            self.places
                .iter()
                .for_each(|p| p.store(0, Ordering::Relaxed));
            self.len = 0;
        }
    }
    /// The place of the page, or the one where it would be. One is free always.
    fn place(&self, page: u32) -> &AtomicU32 {
        let mask = self.places.len() - 1;
        let mut at = page.wrapping_mul(0x9e37_79b1) as usize >> 7;
        loop {
            let place = &self.places[at & mask];
            let there = place.load(Ordering::Relaxed) & !LEFT_OUT;
            if there == 0 || there == page + 1 {
                return place;
            }
            at += 1;
        }
    }
    /// Adds the page. True when it was not there, and there was room.
    fn insert(&mut self, page: u32) -> bool {
        if page + 1 >= LEFT_OUT || self.is_full() {
            return false;
        }
        let place = self.place(page);
        if place.load(Ordering::Relaxed) != 0 {
            return false;
        }
        place.store(page + 1, Ordering::Relaxed);
        self.len += 1;
        true
    }
    /// Is the page there? If so, whether it was left out, which is forgotten.
    fn find(&self, page: u32) -> Option<bool> {
        let place = self.place(page);
        let there = place.load(Ordering::Relaxed);
        if there == 0 {
            return None;
        }
        place.store(there & !LEFT_OUT, Ordering::Relaxed);
        Some(there & LEFT_OUT != 0)
    }
    fn leave_out(&self, page: u32) {
        let place = self.place(page);
        let there = place.load(Ordering::Relaxed);
        if there != 0 {
            place.store(there | LEFT_OUT, Ordering::Relaxed);
        }
    }
}

/// A replay that is under way.
#[derive(Clone, Copy, Debug, Default)]
struct Replay {
    /// Where in the recording it is.
    at: words::Cursor,
    /// Pages of the recording that it has passed.
    passed: u32,
    /// Pages that it may pass, by the faults so far.
    allowed: u32,
    /// Demand faults on pages of the recording, and on others.
    hits: u32,
    misses: u32,
    /// It has turned out wrong.
    stopped: bool,
}

/// What becomes of a resumption's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// They are a new recording.
    New,
    /// They come behind those of the recording that was replayed.
    More,
    /// There is nothing to keep.
    Nothing,
}

/// Follows the faults of one process.
pub struct Learner<'a> {
    known: Known<'a>,
    draft: Writer<'a>,
    /// Since when faults are counted, how many came, and which were the first.
    window_ns: u64,
    faults: u32,
    first: [u32; FIRST],
    /// The window before was busy.
    was_busy: bool,
    /// When it was last busy, but for the window before.
    busy_ns: u64,
    /// A resumption is under way, and when it was last busy.
    resumed_ns: Option<u64>,
    replay: Option<Replay>,
    /// Faults on pages that had come in since it began.
    repeats: u32,
}

impl<'a> Learner<'a> {
    /// Nothing is known; `known` is a power of two of places, and both are all zero.
    pub fn new(known: &'a [AtomicU32], draft: &'a [AtomicU32]) -> Learner<'a> {
        assert!(known.len().is_power_of_two());
        Learner {
            known: Known {
                places: known,
                len: 0,
            },
            draft: Writer::new(draft),
            window_ns: 0,
            faults: 0,
            first: [0; FIRST],
            was_busy: false,
            busy_ns: 0,
            resumed_ns: None,
            replay: None,
            repeats: 0,
        }
    }

    /// A demand fault on a far page. True when a resumption begins with it: [`Learner::begin`] is next.
    pub fn fault(&mut self, now_ns: u64, page: u32) -> bool {
        if now_ns.saturating_sub(self.window_ns) > WINDOW_NS {
            self.next_window(now_ns);
        }
        let i = self.faults as usize;
        self.faults = self.faults.saturating_add(1);
        if self.resumed_ns.is_some() {
            if self.faults >= FEW {
                self.resumed_ns = Some(now_ns);
            }
            self.note(page, true);
            return false;
        }
        if i < FIRST {
            self.first[i] = page;
        }
        i + 1 == FIRST && self.window_ns.saturating_sub(self.busy_ns) >= QUIET_NS
    }

    fn next_window(&mut self, now_ns: u64) {
        if self.was_busy {
            self.busy_ns = self.window_ns;
        }
        // A burst may have begun in the window before: that does not count yet.
        self.was_busy = self.faults >= FEW;
        (self.window_ns, self.faults) = (now_ns, 0);
    }

    /// The page came in because of another one's fault.
    pub fn ahead(&mut self, page: u32) {
        if self.resumed_ns.is_some() {
            self.note(page, false);
        }
    }

    /// The faults that a resumption has begun with.
    pub fn first(&self) -> &[u32; FIRST] {
        &self.first
    }

    /// A resumption begins, with the words of the recording that it is like.
    pub fn begin(&mut self, now_ns: u64, recording: Option<&[AtomicU32]>) {
        self.known.clear();
        self.draft.clear();
        self.resumed_ns = Some(now_ns);
        self.repeats = 0;
        self.replay = recording.map(|recording| {
            words::pages(recording).for_each(|page| {
                self.known.insert(page);
            });
            Replay {
                allowed: AHEAD_PAGES,
                ..Replay::default()
            }
        });
        for page in self.first {
            self.note(page, true);
        }
    }

    fn note(&mut self, page: u32, demand: bool) {
        let found = self.known.find(page);
        if found.is_none() && self.known.insert(page) && self.draft.push(page).is_err() {
            // It is full: nothing more can be learnt.
            self.repeats = u32::MAX;
        }
        match (&mut self.replay, found) {
            (Some(replay), Some(left_out)) if demand => {
                let by = if left_out { BY_SAMPLE } else { BY_EARLY };
                replay.hits += 1;
                replay.allowed = replay.allowed.saturating_add(by);
            }
            (Some(replay), None) if demand => {
                replay.misses += 1;
                replay.stopped |= replay.misses >= FIRST as u32 && replay.misses > replay.hits;
            }
            (None, Some(_)) => self.repeats = self.repeats.saturating_add(1),
            _ => {}
        }
    }

    /// The next pages of the recording to bring in, if it may go on; how many.
    pub fn next(&mut self, recording: &[AtomicU32], out: &mut [u32]) -> usize {
        let Some(replay) = self.replay.as_mut().filter(|r| !r.stopped) else {
            return 0;
        };
        let mut n = 0;
        while n < out.len() && replay.passed < replay.allowed {
            let Some(page) = replay.at.next(recording) else {
                break;
            };
            replay.passed += 1;
            if replay.passed.is_multiple_of(SAMPLE) {
                self.known.leave_out(page);
            } else {
                out[n] = page;
                n += 1;
            }
        }
        n
    }

    /// Pages of the recording that the replay has passed.
    pub fn passed(&self) -> u32 {
        self.replay.map_or(0, |r| r.passed)
    }

    /// Has the replay that is under way turned out wrong?
    pub fn is_stopped(&self) -> bool {
        self.replay.is_some_and(|r| r.stopped)
    }

    /// Is a resumption under way?
    pub fn is_resuming(&self) -> bool {
        self.resumed_ns.is_some()
    }

    /// The resumption is over, if it is: it has been quiet, or there is no more to learn.
    pub fn ended(&mut self, now_ns: u64) -> Option<Outcome> {
        let resumed_ns = self.resumed_ns?;
        let is_steady = self.repeats > 256.max(self.known.len as u32 / 4) || self.known.is_full();
        if !is_steady && now_ns.saturating_sub(resumed_ns) < END_NS {
            return None;
        }
        self.resumed_ns = None;
        self.busy_ns = now_ns;
        let replay = self.replay.take();
        let pages = self.draft.finish();
        Some(match replay {
            _ if pages == 0 => Outcome::Nothing,
            Some(replay) if !replay.stopped => Outcome::More,
            _ if pages < FIRST as u32 => Outcome::Nothing,
            _ => Outcome::New,
        })
    }

    /// The words of the pages that the resumption has added, after its end.
    pub fn draft(&self) -> &[AtomicU32] {
        self.draft.words()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
