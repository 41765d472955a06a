//! `canvas run --learn`: what a program needed when it resumed comes in ahead when it resumes again.
//!
//! Whoever faults on a far page leaves its number in a ring, without a lock or a system call. The reclaim thread
//! takes them from there ([`canvas_pager::learn`]): it records resumptions into the tenant segment, from where the
//! runner saves them, and brings in the pages of the recording that the present one is like, as it does what hints
//! ask for: within the limit, with room that reclaim in the background makes. One process of the run learns: the
//! first one that resumes.

use canvas_pager::learn::words::{Cursor, among, append};
use canvas_pager::learn::{Learner, MATCH, Outcome};
use canvas_pager::word::{self, flag};
use canvas_shm::Counter;
use canvas_shm::learn::{Recording, Recordings};
use canvas_shm::segment::config_flag;
use canvas_sys::gate::yield_now;
use canvas_sys::proc;
use canvas_types::PageId;
use canvas_types::layout::WINDOW_PAGES;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::base::{areas, state, state::count};
use crate::far_tier::tier;
use crate::paging::{
    accounting, fault,
    hints::{self, LOT, WAIT_NS, WAITS_MAX},
    swapin::Round,
};

/// Faults that the ring holds; older ones are lost to the recording.
const RING: usize = 4096;
/// The reclaim thread is woken for so many.
const WAKE: u32 = 16;
/// Pages ahead of those that come in which are asked for where they lie beyond the pool.
const REACH: u32 = 512;
/// In a place of the ring: the page came in because of another one's fault. Pages are told with 1 added, below it.
const AHEAD: u32 = 1 << 31;

static ON: AtomicBool = AtomicBool::new(false);
static PLACES: [AtomicU32; RING] = [const { AtomicU32::new(0) }; RING];
/// Faults that were noted, ever, and those that the reclaim thread has seen.
static HEAD: AtomicU32 = AtomicU32::new(0);
static TAIL: AtomicU32 = AtomicU32::new(0);

fn recordings() -> &'static Recordings {
    &state::seg().recordings
}

/// At start-up, once there is a slot.
pub fn start() {
    let flags = state::seg().config.flags.load(Ordering::Relaxed);
    ON.store(flags & config_flag::LEARN != 0, Ordering::Relaxed);
}

/// In a fork's child: its parent's faults are not its own.
pub fn after_fork_in_child() {
    TAIL.store(HEAD.load(Ordering::Relaxed), Ordering::Relaxed);
    PLACES.iter().for_each(|p| p.store(0, Ordering::Relaxed));
}

/// Are there enough faults for the reclaim thread to look?
pub fn arrived() -> bool {
    let noted = HEAD.load(Ordering::Relaxed);
    noted.wrapping_sub(TAIL.load(Ordering::Relaxed)) >= WAKE
}

/// A thread has faulted on a far page. The caller is inside.
#[inline]
pub fn note(page: PageId) {
    if ON.load(Ordering::Relaxed) {
        put(page.0.wrapping_add(1) & !AHEAD);
    }
}

/// The page comes in because of another one's fault. The caller is inside.
#[inline]
pub fn note_ahead(page: PageId) {
    if ON.load(Ordering::Relaxed) {
        put(page.0.wrapping_add(1) | AHEAD);
    }
}

fn put(value: u32) {
    let at = HEAD.fetch_add(1, Ordering::Relaxed);
    PLACES[at as usize % RING].store(value, Ordering::Release);
    if (at + 1).is_multiple_of(WAKE) {
        accounting::wake_reclaimer();
    }
}

/// The next fault that was noted, if its thread is through with it.
fn take() -> Option<u32> {
    let (head, tail) = (HEAD.load(Ordering::Acquire), TAIL.load(Ordering::Relaxed));
    let waiting = head.wrapping_sub(tail);
    if waiting == 0 {
        return None;
    }
    // Those that were written over are lost.
    let tail = match waiting as usize > RING {
        true => head.wrapping_sub(RING as u32),
        false => tail,
    };
    let value = PLACES[tail as usize % RING].swap(0, Ordering::AcqRel);
    if value == 0 && waiting < RING as u32 / 2 {
        return None;
    }
    TAIL.store(tail.wrapping_add(1), Ordering::Relaxed);
    Some(value)
}

/// The reclaim thread's state of it.
pub struct Server {
    learner: Option<Learner<'static>>,
    /// The recording that is replayed, or was.
    replays: Option<&'static Recording>,
    /// How far it is read ahead beyond the pool.
    reach: Cursor,
    reached: u32,
    /// Pages that are next.
    lot: [PageId; LOT],
    len: usize,
    /// Looks in vain since the last page came.
    waits: u32,
    /// Pages that may still come in where others have to leave for them.
    beyond_room: i64,
    told_stopped: bool,
}

impl Server {
    /// For a reclaim thread that begins.
    pub fn new() -> Server {
        Server {
            learner: None,
            replays: None,
            reach: Cursor::default(),
            reached: 0,
            lot: [PageId::default(); LOT],
            len: 0,
            waits: 0,
            beyond_room: 0,
            told_stopped: false,
        }
    }

    /// The reclaim thread's round. The caller is inside.
    pub fn background_round(&mut self) -> Round {
        if !ON.load(Ordering::Relaxed) {
            return Round::Idle;
        }
        let now_ns = proc::now_ns();
        for _ in 0..RING {
            let Some(value) = take() else { break };
            let learner = self.learner.get_or_insert_with(|| {
                let (known, draft) = areas::learnt();
                Learner::new(known, draft)
            });
            let page = (value & !AHEAD).wrapping_sub(1);
            if page as usize >= WINDOW_PAGES {
                continue;
            }
            if value & AHEAD != 0 {
                learner.ahead(page);
            } else if learner.fault(now_ns, page) {
                self.begin(now_ns);
            }
        }
        if let Some(outcome) = self.learner.as_mut().and_then(|l| l.ended(now_ns)) {
            self.end(outcome);
        }
        match self.replays {
            Some(recording) => self.bring_in(recording),
            None => Round::Idle,
        }
    }

    /// A resumption has begun.
    fn begin(&mut self, now_ns: u64) {
        let (all, pid) = (recordings(), state::PID.load(Ordering::Relaxed));
        let lives = |pid| state::seg().procs.iter().any(|p| p.pid.load(Ordering::Relaxed) == pid);
        let Some(learner) = self.learner.as_mut().filter(|_| all.claim(pid, lives)) else {
            return;
        };
        let alike = all
            .places
            .iter()
            .map(|r| (among(r.words(), learner.first()), r))
            .max_by_key(|(n, _)| *n)
            .filter(|(n, _)| *n >= MATCH);
        self.replays = alike.map(|(_, recording)| recording);
        learner.begin(now_ns, self.replays.map(Recording::words));
        if self.replays.is_some() {
            count(Counter::LearnReplays, 1);
        }
        (self.len, self.waits, self.told_stopped) = (0, 0, false);
        (self.reach, self.reached) = (Cursor::default(), 0);
        self.beyond_room = accounting::limit().map_or(i64::MAX, |l| l / 8);
    }

    /// A resumption is over: what it has shown is kept.
    fn end(&mut self, outcome: Outcome) {
        let replayed = self.replays.take();
        let Some(learner) = &self.learner else { return };
        let all = recordings();
        if let Some(recording) = replayed {
            let useful = recording.useful.load(Ordering::Relaxed);
            let now = match self.told_stopped {
                true => useful.saturating_sub(1),
                false => useful.saturating_add(1),
            };
            recording.useful.store(now, Ordering::Relaxed);
        }
        let draft = learner.draft();
        let changed = match (outcome, replayed) {
            (Outcome::More, Some(recording)) => {
                let len = recording.len();
                let mut new_len = None;
                recording.write(|places| {
                    new_len = append(places, len, draft);
                    new_len.unwrap_or(len)
                });
                new_len.map(|_| recording)
            }
            (Outcome::New, _) => {
                let recording = all.place_for_new();
                recording.write(|places| append(places, 0, draft).unwrap_or(0));
                recording.useful.store(0, Ordering::Relaxed);
                Some(recording)
            }
            _ => None,
        };
        if let Some(recording) = changed {
            count(Counter::LearnRecorded, 1);
            recording.made.store(all.note_change(), Ordering::Relaxed);
        } else if replayed.is_some() {
            all.note_change();
        }
    }

    /// Brings in the next pages of the recording.
    fn bring_in(&mut self, recording: &'static Recording) -> Round {
        let Some(learner) = &mut self.learner else {
            return Round::Idle;
        };
        if learner.is_stopped() {
            if !self.told_stopped {
                self.told_stopped = true;
                count(Counter::LearnStopped, 1);
            }
            return Round::Idle;
        }
        if accounting::is_past_limit() || self.beyond_room <= 0 {
            return Round::Idle;
        }
        let words = recording.words();
        let until = learner.passed().saturating_add(REACH);
        self.ask_for_deep(words, until);
        let Some(learner) = &mut self.learner else {
            return Round::Idle;
        };
        if self.len == 0 {
            let mut next = [0; LOT];
            let n = learner.next(words, &mut next);
            if n == 0 {
                return Round::Idle;
            }
            let far = next[..n].iter().map(|p| PageId(*p));
            for page in far.filter(|p| p.index() < WINDOW_PAGES && hints::is_far(*p)) {
                self.lot[self.len] = page;
                self.len += 1;
            }
            self.lot[..self.len].sort_unstable_by_key(|p| p.0);
            if self.len == 0 {
                return Round::Worked(0);
            }
        }
        if has_no_room(self.len as i64) {
            self.beyond_room -= self.len as i64;
        }
        let came = hints::lot_in(&self.lot[..self.len], Counter::LearnPagesIn);
        // Those that could not come now are next again.
        let mut kept = 0;
        for i in 0..self.len {
            if came.waits && hints::is_far(self.lot[i]) {
                self.lot[kept] = self.lot[i];
                kept += 1;
            }
        }
        self.len = kept;
        self.waits = match kept > 0 && came.pages == 0 {
            true => self.waits + 1,
            false => 0,
        };
        if self.waits > WAITS_MAX {
            // There is no room to be had, or far memory does not answer.
            (self.waits, self.len, self.beyond_room) = (0, 0, 0);
        }
        // Others may need this processor, and faults the locks.
        yield_now();
        Round::Worked(if came.waits { WAIT_NS } else { 0 })
    }
}

impl Server {
    /// Asks for those pages beyond the pool that are among the next of the recording, up to its `until`th.
    fn ask_for_deep(&mut self, words: &[AtomicU32], until: u32) {
        if !tier::is_there() {
            return;
        }
        while self.reached < until {
            let Some(page) = self.reach.next(words) else {
                break;
            };
            self.reached += 1;
            let is_deep = |page: PageId| word::load(areas::word(page)).has(flag::DEEP);
            if page as usize >= WINDOW_PAGES || !is_deep(PageId(page)) {
                continue;
            }
            if !tier::pool_makes_way() {
                break;
            }
            fault::ask_for(PageId(page));
        }
    }
}

/// Do so many pages come in only when others leave?
fn has_no_room(pages: i64) -> bool {
    accounting::limit().is_some_and(|limit| {
        let mark = limit - accounting::gaps(limit).0;
        state::seg().local_pages.load(Ordering::Relaxed) + pages > mark
    })
}
