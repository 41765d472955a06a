//! `canvas run -o learn`: records which pages a program faults in when it resumes, and prefetches them when it resumes
//! again.
//!
//! A thread that faults on a far page puts the page's number into a ring, without a lock or a system call. The reclaim
//! thread takes them from there ([`canvas_core::pager::learn`]): it writes recordings of resumptions into the tenant segment,
//! from where the runner saves them, and prefetches the pages of the stored recording that best matches the faults seen
//! so far. Like pages of hints they come in within the limit, into room that background reclaim makes. One process of
//! the run learns: the first one that resumes.

use canvas_core::pager::learn::chunks::{self, Draft, Index, among};
use canvas_core::pager::learn::{Event, FIRST, Learner, MATCH, Outcome, is_left_out};
use canvas_core::vm::{Store, fill, ledger};
use canvas_shm::Counter;
use canvas_shm::learn::{Recording, Recordings};
use canvas_shm::segment::config_flag;
use canvas_sys::gate::yield_now;
use canvas_sys::proc;
use canvas_types::PageId;
use canvas_types::layout::WINDOW_PAGES;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::far_tier::tier;
use crate::own_memory::areas;
use crate::paging::{
    accounting,
    hints::{self, LOT, Lot, WAIT_NS},
    swapin::Round,
};
use crate::runtime::{
    state,
    state::{CacheAligned, PROCESS, count},
};
use crate::tenant::{life, members};

/// Faults that the ring holds; older ones are overwritten and missing from the recording.
const RING: usize = 1 << 14;
/// Lots that a round brings in at most.
const LOTS: u32 = 16;
/// New faults for which the reclaim thread is woken.
const WAKE: u32 = 16;
/// How many chunks ahead pages beyond the pool are requested.
const REACH: usize = 16;
/// Flag of a ring entry: the page came in during a fault on another page. The bits below hold the page number plus one.
const AHEAD: u32 = 1 << 31;

state! {
    static LEARN: Learn {
        on: AtomicBool = AtomicBool::new(false),
        ring: [AtomicU32; RING] = [const { AtomicU32::new(0) }; RING],
        /// Faults ever recorded.
        head: CacheAligned<AtomicU32> = CacheAligned(AtomicU32::new(0)),
        /// Those of them that the reclaim thread has taken.
        tail: AtomicU32 = AtomicU32::new(0),
        /// The program was quiet and there are recordings: a thread that finds the reclaim thread behind may wait for
        /// it, once.
        may_wait: AtomicBool = AtomicBool::new(false),
        /// Number of the recording that is replayed, plus 1; 0 for none. Its table ([`areas::learnt`]) is complete.
        replayed: AtomicU32 = AtomicU32::new(0),
        /// Index after the entry of the last fault that matched the recording; 0 before the first.
        front: AtomicUsize = AtomicUsize::new(0),
    }
}

/// In a fork's child: drops the parent's faults.
pub fn after_fork_in_child() {
    LEARN.replayed.store(0, Ordering::Relaxed);
    LEARN.may_wait.store(false, Ordering::Relaxed);
    let head = LEARN.head.load(Ordering::Relaxed);
    LEARN.tail.store(head, Ordering::Relaxed);
}

fn recordings() -> &'static Recordings {
    &state::seg().recordings
}

/// Reads the setting at start-up, once the process has its slot.
pub fn start() {
    let flags = state::seg().config.flags.load(Ordering::Relaxed);
    LEARN
        .on
        .store(flags & config_flag::LEARN != 0, Ordering::Relaxed);
}

/// Whether there are enough faults for the reclaim thread to look at them.
pub fn arrived() -> bool {
    behind() >= WAKE
}

/// Faults that the reclaim thread has not taken.
fn behind() -> u32 {
    let head = LEARN.head.load(Ordering::Relaxed);
    head.wrapping_sub(LEARN.tail.load(Ordering::Relaxed))
}

/// Records a fault on a far page. The caller is inside `freeze::enter`.
#[inline]
pub fn note(page: PageId) {
    if LEARN.on.load(Ordering::Relaxed) {
        put(page.0.wrapping_add(1) & !AHEAD);
    }
}

/// Records a page that comes in during a fault on another page. The caller is inside `freeze::enter`.
#[inline]
pub fn note_ahead(page: PageId) {
    if LEARN.on.load(Ordering::Relaxed) {
        put(page.0.wrapping_add(1) | AHEAD);
    }
}

fn put(value: u32) {
    let at = LEARN.head.fetch_add(1, Ordering::Relaxed);
    LEARN.ring[at as usize % RING].store(value, Ordering::Release);
    if (at + 1).is_multiple_of(WAKE) {
        accounting::wake_reclaimer();
    }
}

/// How many faults the reclaim thread must be behind for a thread to wait for it, and how often that thread polls, 50 us
/// apart.
const BEHIND: u32 = 2 * FIRST as u32;
const CATCH_UP_LOOKS: u32 = 20;

/// A resumption may have begun and the reclaim thread does not know yet: gives it the CPU, for at most a millisecond.
/// That is the time of 150 faults; if it finds a recording, it saves far more.
#[cold]
fn let_it_catch_up() {
    if behind() < BEHIND || !LEARN.may_wait.swap(false, Ordering::Relaxed) {
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

/// After a fault on a far page: if a recording with this page is being replayed, brings in the other pages of the
/// page's chunk that are in the recording. So even without a free CPU a resumption goes as fast as its own threads. The
/// caller is inside `freeze::enter`.
#[inline]
pub fn bring_in_beside(page: PageId) {
    if !LEARN.on.load(Ordering::Relaxed) {
        return;
    }
    let replayed = LEARN.replayed.load(Ordering::Acquire);
    if replayed != 0 && !is_left_out(page.0) {
        beside(page, replayed);
    } else if LEARN.may_wait.load(Ordering::Relaxed) {
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
    // Another recording may be replayed by now; the entry found is still of this chunk, or none.
    let entry = of.and_then(|i| chunks::entry(words, i));
    let Some(entry) = entry.filter(|e| e.chunk == chunk && e.has(page.0)) else {
        return;
    };
    LEARN.front.store(of.unwrap_or(0) + 1, Ordering::Relaxed);
    let mut lot = Lot::default();
    lot.extend(entry.pages().filter(|p| !is_left_out(*p)).map(PageId));
    if lot.len() > 0 {
        hints::lot_beside(lot.pages(), Counter::LearnPagesIn);
    }
}

/// Takes the next recorded fault, if its thread has finished writing it.
fn take() -> Option<u32> {
    let (head, tail) = (
        LEARN.head.load(Ordering::Acquire),
        LEARN.tail.load(Ordering::Relaxed),
    );
    let waiting = head.wrapping_sub(tail);
    if waiting == 0 {
        return None;
    }
    // Entries that were overwritten are lost.
    let tail = match waiting as usize > RING {
        true => head.wrapping_sub(RING as u32),
        false => tail,
    };
    let value = LEARN.ring[tail as usize % RING].swap(0, Ordering::AcqRel);
    if value == 0 && waiting < RING as u32 / 2 {
        return None;
    }
    LEARN.tail.store(tail.wrapping_add(1), Ordering::Relaxed);
    Some(value)
}

/// State of the reclaim thread's recording and replay.
pub struct Server {
    learner: Option<Learner<'static>>,
    /// The recording that is, or was, replayed.
    replays: Option<&'static Recording>,
    /// Index of the entry up to which pages beyond the pool were requested.
    reach: usize,
    /// The next pages to bring in.
    lot: Lot,
    /// Pages that may still come in although others have to be evicted for them.
    beyond_room: i64,
}

impl Server {
    /// Creates the state for a new reclaim thread.
    pub fn new() -> Server {
        Server {
            learner: None,
            replays: None,
            reach: 0,
            lot: Lot::default(),
            beyond_room: 0,
        }
    }

    /// Runs one round of the reclaim thread's part. The caller is inside `freeze::enter`.
    pub fn background_round(&mut self) -> Round {
        if !LEARN.on.load(Ordering::Relaxed) {
            return Round::Idle;
        }
        let now_ns = proc::now_ns();
        if ledger::is_past_limit(&PROCESS) {
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
        // After taking the faults: if this thread had no CPU for a while, they belong to the same resumption.
        if let Some(outcome) = self.learner.as_mut().and_then(|l| l.ended(now_ns)) {
            self.end(outcome);
        }
        let is_quiet = self.learner.as_ref().is_none_or(|l| l.is_quiet(now_ns));
        let has_some = || recordings().places.iter().any(|r| !r.is_empty());
        if is_quiet && !LEARN.may_wait.load(Ordering::Relaxed) && has_some() {
            LEARN.may_wait.store(true, Ordering::Relaxed);
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
            // Others may need this CPU, and faults may need the locks.
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

    /// Begins a recording when a resumption has begun.
    fn begin(&mut self, now_ns: u64) {
        let all = recordings();
        let lives = |id| members::live_slots().any(|p| p.identity() == Some(id));
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

    /// The recording that contains most of the last faults, if that is enough.
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

    /// Looks for another recording, because the replayed one does not predict the faults.
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
        self.beyond_room = ledger::limit(state::seg()).map_or(i64::MAX, |l| l / 8);
        if recording.is_some() {
            count(Counter::LearnReplays, 1);
        }
    }

    /// Publishes the replay's table, now complete, to faulting threads.
    fn publish(&self) {
        let same = |r: &Recording| self.replays.is_some_and(|now| core::ptr::eq(now, r));
        let i = recordings().places.iter().position(same);
        LEARN.front.store(0, Ordering::Relaxed);
        LEARN
            .replayed
            .store(i.map_or(0, |i| i as u32 + 1), Ordering::Release);
    }

    /// Ends the replay, because it is over or has turned out wrong, and updates how useful its recording is.
    fn judge_replay(&mut self) -> Option<&'static Recording> {
        LEARN.replayed.store(0, Ordering::Release);
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

    /// Ends a resumption: stores what was recorded.
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
        recording.made.store(all.note_change(), Ordering::Relaxed);
    }

    /// Brings in the next pages of the recording.
    fn bring_in(&mut self) -> Round {
        let Some(learner) = &mut self.learner else {
            return Round::Idle;
        };
        if ledger::is_past_limit(&PROCESS) || self.beyond_room <= 0 {
            return Round::Idle;
        }
        if self.lot.len() == 0 {
            let mut next = [0; LOT];
            let n = learner.next(LEARN.front.load(Ordering::Relaxed), &mut next);
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

    /// Requests pages of the next chunks that lie beyond the pool.
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
                fill::request(&PROCESS, page, |place| {
                    PROCESS.fetch(place.extent);
                    true
                });
            }
        }
    }
}

/// Whether `pages` more pages would make reclaim evict others.
fn has_no_room(pages: i64) -> bool {
    ledger::limit(state::seg()).is_some_and(|limit| {
        let mark = limit - ledger::gaps(&PROCESS, limit).0;
        state::seg().local_pages.load(Ordering::Relaxed) + pages > mark
    })
}
