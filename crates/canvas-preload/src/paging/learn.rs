//! `canvas run -o learn`: what a program needed when it resumed comes in ahead when it resumes again.
//!
//! Whoever faults on a far page leaves its number in a ring, without a lock or a system call. The reclaim thread
//! takes them from there ([`canvas_pager::learn`]): it records resumptions into the tenant segment, from where the
//! runner saves them, and brings in the pages of the recording that the present one is like, as it does what hints
//! ask for: within the limit, with room that reclaim in the background makes. One process of the run learns: the
//! first one that resumes.

use canvas_pager::learn::chunks::{self, Draft, Index, among};
use canvas_pager::learn::{Event, FIRST, Learner, MATCH, Outcome, is_left_out};
use canvas_shm::Counter;
use canvas_shm::learn::{Recording, Recordings};
use canvas_shm::segment::config_flag;
use canvas_sys::gate::yield_now;
use canvas_sys::proc;
use canvas_types::PageId;
use canvas_types::layout::WINDOW_PAGES;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::base::{areas, life, state, state::count, tenant};
use crate::far_tier::tier;
use crate::paging::{
    accounting, fault,
    hints::{self, LOT, Lot, WAIT_NS},
    swapin::Round,
};

/// Faults that the ring holds; older ones are lost to the recording.
const RING: usize = 1 << 14;
/// Lots that a round brings in at most.
const LOTS: u32 = 16;
/// The reclaim thread is woken for so many.
const WAKE: u32 = 16;
/// Chunks ahead of the one that comes in of which is asked for what lies beyond the pool.
const REACH: usize = 16;
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
    REPLAYED.store(0, Ordering::Relaxed);
    MAY_WAIT.store(false, Ordering::Relaxed);
    TAIL.store(HEAD.load(Ordering::Relaxed), Ordering::Relaxed);
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

/// It is quiet, and there are recordings: whoever finds the reclaim thread behind may wait for it, once.
static MAY_WAIT: AtomicBool = AtomicBool::new(false);
/// Faults by which it is behind then, and looks of 50 us at whether it has caught up.
const BEHIND: u32 = 2 * FIRST as u32;
const CATCH_UP_LOOKS: u32 = 20;

/// A resumption may have begun, and the reclaim thread does not know yet: it gets the processor for a
/// millisecond at most. That is as long as 150 faults take, and spares far more when it finds a recording.
#[cold]
fn let_it_catch_up() {
    if HEAD
        .load(Ordering::Relaxed)
        .wrapping_sub(TAIL.load(Ordering::Relaxed))
        < BEHIND
        || !MAY_WAIT.swap(false, Ordering::Relaxed)
    {
        return;
    }
    accounting::wake_reclaimer();
    for _ in 0..CATCH_UP_LOOKS {
        yield_now();
        if !arrived() {
            break;
        }
    }
}

/// The recording that is replayed: its number and 1, or 0. Its table ([`areas::learnt`]) is complete.
static REPLAYED: AtomicU32 = AtomicU32::new(0);

/// Behind the entry of the last fault on a page of it; 0 before the first.
static FRONT: AtomicUsize = AtomicUsize::new(0);

/// A thread has faulted on the far page, and has it: while a recording is replayed that it belongs to, what of its
/// chunk belongs to it too comes in with it. So a resumption goes as fast as its own threads, where no other
/// processor is free. The caller is inside.
#[inline]
pub fn bring_in_beside(page: PageId) {
    if !ON.load(Ordering::Relaxed) {
        return;
    }
    let replayed = REPLAYED.load(Ordering::Acquire);
    if replayed != 0 && !is_left_out(page.0) {
        beside(page, replayed);
    } else if MAY_WAIT.load(Ordering::Relaxed) {
        let_it_catch_up();
    }
}

#[cold]
fn beside(page: PageId, replayed: u32) {
    let Some(recording) = recordings().places.get(replayed as usize - 1) else {
        return;
    };
    let (words, chunk) = (recording.words(), page.0 / chunks::PAGES);
    let of = Index::of(areas::learnt().0[1]).find(words, chunk);
    // Another one may be replayed by now: what is found is of the chunk, or nothing.
    let entry = of.and_then(|i| chunks::entry(words, i));
    let Some(entry) = entry.filter(|e| e.chunk == chunk && e.has(page.0)) else {
        return;
    };
    FRONT.store(of.unwrap_or(0) + 1, Ordering::Relaxed);
    let mut lot = Lot::default();
    lot.extend(entry.pages().filter(|p| !is_left_out(*p)).map(PageId));
    if lot.len() > 0 {
        hints::lot_beside(lot.pages(), Counter::LearnPagesIn);
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
    /// Up to which of its entries pages beyond the pool were asked for.
    reach: usize,
    /// Pages that are next.
    lot: Lot,
    /// Pages that may still come in where others have to leave for them.
    beyond_room: i64,
}

impl Server {
    /// For a reclaim thread that begins.
    pub fn new() -> Server {
        Server {
            learner: None,
            replays: None,
            reach: 0,
            lot: Lot::default(),
            beyond_room: 0,
        }
    }

    /// The reclaim thread's round. The caller is inside.
    pub fn background_round(&mut self) -> Round {
        if !ON.load(Ordering::Relaxed) {
            return Round::Idle;
        }
        let now_ns = proc::now_ns();
        if accounting::is_past_limit() {
            self.learner().disturbed(now_ns);
        }
        for _ in 0..RING {
            let Some(value) = take() else { break };
            let page = (value & !AHEAD).wrapping_sub(1);
            if page as usize >= WINDOW_PAGES {
                continue;
            }
            let learner = self.learner();
            if value & AHEAD != 0 {
                learner.ahead(page);
                continue;
            }
            match learner.fault(now_ns, page) {
                Event::Nothing => {}
                Event::Begins => self.begin(now_ns),
                Event::Search => self.search(),
            }
        }
        // Behind the faults: where this thread has had no processor for a while, they are of the same resumption.
        if let Some(outcome) = self.learner.as_mut().and_then(|l| l.ended(now_ns)) {
            self.end(outcome);
        }
        let is_quiet = self.learner.as_ref().is_none_or(|l| l.is_quiet(now_ns));
        let has_some = || recordings().places.iter().any(|r| !r.is_empty());
        if is_quiet && !MAY_WAIT.load(Ordering::Relaxed) && has_some() {
            MAY_WAIT.store(true, Ordering::Relaxed);
        }
        let mut round = Round::Idle;
        for _ in 0..LOTS {
            let next = match self.replays {
                Some(_) => self.bring_in(),
                None => Round::Idle,
            };
            if next == Round::Idle {
                break;
            }
            round = next;
            if next != Round::Worked(0) || arrived() {
                break;
            }
        }
        if round != Round::Idle {
            // Others may need this processor, and faults the locks.
            yield_now();
        }
        round
    }

    fn learner(&mut self) -> &mut Learner<'static> {
        self.learner.get_or_insert_with(|| {
            let ([a, b], words) = areas::learnt();
            Learner::new(Draft::new(words, Index::new(a)), Index::new(b))
        })
    }

    /// A resumption has begun.
    fn begin(&mut self, now_ns: u64) {
        let all = recordings();
        let lives = |id| tenant::live_slots().any(|p| p.identity() == Some(id));
        if !all.claim(life::id(), lives) {
            return;
        }
        let alike = self.alike();
        self.note_replay(alike);
        if let Some(learner) = &mut self.learner {
            learner.begin(now_ns, alike.map(Recording::words));
        }
        self.publish();
    }

    /// The recording that has most of the last faults, if that is enough.
    fn alike(&self) -> Option<&'static Recording> {
        let seen = self.learner.as_ref()?.seen();
        recordings()
            .places
            .iter()
            .map(|r| (among(r.words(), seen), r.len(), r))
            .max_by_key(|(n, len, _)| (*n, *len))
            .filter(|(n, _, _)| *n >= MATCH)
            .map(|(_, _, recording)| recording)
    }

    /// The faults are unforeseen: another recording may have them.
    fn search(&mut self) {
        self.judge_replay();
        if let Some(recording) = self.alike() {
            self.note_replay(Some(recording));
            if let Some(learner) = &mut self.learner {
                learner.replay(recording.words());
            }
            self.publish();
        }
    }

    fn note_replay(&mut self, recording: Option<&'static Recording>) {
        self.replays = recording;
        (self.lot, self.reach) = (Lot::default(), 0);
        self.beyond_room = accounting::limit().map_or(i64::MAX, |l| l / 8);
        if recording.is_some() {
            count(Counter::LearnReplays, 1);
        }
    }

    /// The replay's table is complete: threads that fault may use it.
    fn publish(&self) {
        let same = |r: &Recording| self.replays.is_some_and(|now| core::ptr::eq(now, r));
        let i = recordings().places.iter().position(same);
        FRONT.store(0, Ordering::Relaxed);
        REPLAYED.store(i.map_or(0, |i| i as u32 + 1), Ordering::Release);
    }

    /// The replay is over, or has turned out wrong: how useful its recording is.
    fn judge_replay(&mut self) -> Option<&'static Recording> {
        REPLAYED.store(0, Ordering::Release);
        let recording = self.replays.take()?;
        let is_stopped = self.learner.as_ref().is_some_and(Learner::is_stopped);
        let useful = recording.useful.load(Ordering::Relaxed);
        let now = if is_stopped {
            count(Counter::LearnStopped, 1);
            useful.saturating_sub(1)
        } else {
            useful.saturating_add(1)
        };
        recording.useful.store(now, Ordering::Relaxed);
        recordings().note_change();
        Some(recording)
    }

    /// A resumption is over: what it has shown is kept.
    fn end(&mut self, outcome: Outcome) {
        let replayed = self.judge_replay();
        let Some(learner) = &mut self.learner else {
            return;
        };
        let all = recordings();
        let (recording, len) = match (outcome, replayed) {
            (Outcome::Nothing, _) => return,
            (Outcome::More, Some(recording)) => (recording, recording.len()),
            _ => (all.place_for_new(), 0),
        };
        if len == 0 {
            recording.useful.store(0, Ordering::Relaxed);
        }
        recording.write(|places| learner.merge(places, len));
        count(Counter::LearnRecorded, 1);
        recording.made.store(all.note_change(), Ordering::Relaxed);
    }

    /// Brings in the next pages of the recording.
    fn bring_in(&mut self) -> Round {
        let Some(learner) = &mut self.learner else {
            return Round::Idle;
        };
        if accounting::is_past_limit() || self.beyond_room <= 0 {
            return Round::Idle;
        }
        if self.lot.len() == 0 {
            let mut next = [0; LOT];
            let n = learner.next(FRONT.load(Ordering::Relaxed), &mut next);
            if n == 0 {
                return Round::Idle;
            }
            self.lot.extend(next[..n].iter().map(|p| PageId(*p)));
            self.ask_for_deep();
            if self.lot.len() == 0 {
                return Round::Worked(0);
            }
        }
        let pages = self.lot.len() as i64;
        if has_no_room(pages) {
            self.beyond_room -= pages;
        }
        let pause_ns = self.lot.come_in(Counter::LearnPagesIn);
        if pause_ns.is_none() {
            self.beyond_room = 0;
        }
        Round::Worked(pause_ns.unwrap_or(WAIT_NS))
    }

    /// Asks for what of the next chunks lies beyond the pool.
    fn ask_for_deep(&mut self) {
        let (Some(learner), Some(recording)) = (&self.learner, self.replays) else {
            return;
        };
        if !tier::is_there() {
            return;
        }
        let until = learner.at() + REACH;
        while self.reach < until && tier::pool_makes_way() {
            let Some(entry) = chunks::entry(recording.words(), self.reach) else {
                break;
            };
            self.reach += 1;
            for page in entry.pages().map(PageId) {
                fault::ask_for(page, |place| {
                    tier::fetch(place.extent);
                    true
                });
            }
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
