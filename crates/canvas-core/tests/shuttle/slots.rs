//! The swap cache's slots under shuttle's scheduler: reclaimers fill them, writers write them out, and takers and
//! mapping calls race both for the page's word. The program's content is one number per page, which must be found
//! wherever the word says that the page is.

use canvas_testing::random::scaled;
use std::cell::Cell;
use std::sync::Arc;

use canvas_core::pager::slot::{self, Control, SlotRef, SlotTable};
use canvas_core::pager::word::{self, State, Word, flag};
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering, Threads};
use canvas_types::{PageId, SwapEntry};
use shuttle::thread;

const PAGES: usize = 3;
/// One more than a batch: a page can be evicted again while its last slot is being written out.
const SLOTS: usize = 3;
const ENTRIES: usize = PAGES + SLOTS + 4;
/// Stands where the page is not.
const NOTHING: u64 = u64::MAX;

const THREADS: Threads = Threads {
    yield_now: || {},
    number: || THREAD.with(Cell::get),
};

shuttle::thread_local! {
    /// The magazine that a thread uses; some share one.
    static THREAD: Cell<usize> = Cell::new(0);
}

/// Time for the other threads to complete something.
fn pause() {
    for _ in 0..4 {
        thread::yield_now();
    }
}

fn words(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}
fn halves(n: usize) -> Vec<AtomicU32> {
    (0..n).map(|_| AtomicU32::new(0)).collect()
}

struct World {
    control: Control,
    states: Vec<AtomicU32>,
    pages: Vec<AtomicU32>,
    entries: Vec<AtomicU64>,
    free_stack: Vec<AtomicU32>,
    ring: Vec<AtomicU64>,
    /// Page words, what is mapped, and what the program wrote last.
    words: Vec<AtomicU64>,
    window: Vec<AtomicU64>,
    truth: Vec<AtomicU64>,
    /// The slots' buffers. `owned`: between alloc and fill; `life`: number of a slot's last alloc; `cached`: the last
    /// life whose word was published, so that its place may be used.
    buffers: Vec<AtomicU64>,
    owned: Vec<AtomicU32>,
    life: Vec<AtomicU32>,
    cached: Vec<AtomicU32>,
    lives: AtomicU32,
    /// Far copies, and which entries are taken.
    far: Vec<AtomicU64>,
    entry_taken: Vec<AtomicU32>,
}

impl World {
    /// All pages resident.
    fn new() -> World {
        let w = World {
            control: Control::new(),
            states: halves(SLOTS),
            pages: halves(SLOTS),
            entries: words(SLOTS),
            free_stack: halves(SLOTS),
            ring: words((SLOTS * 2).next_power_of_two()),
            words: words(PAGES),
            window: words(PAGES),
            truth: words(PAGES),
            buffers: words(SLOTS),
            owned: halves(SLOTS),
            life: halves(SLOTS),
            cached: halves(SLOTS),
            lives: AtomicU32::new(1),
            far: words(ENTRIES),
            entry_taken: halves(ENTRIES),
        };
        for page in 0..PAGES {
            let number = 100 * page as u64 + 100;
            w.window[page].store(number, Ordering::Relaxed);
            w.truth[page].store(number, Ordering::Relaxed);
            w.words[page].store(Word(0).with_state(State::Resident).0, Ordering::Relaxed);
        }
        w.slots().set_capacity(SLOTS);
        w
    }
    fn slots(&self) -> SlotTable<'_> {
        SlotTable {
            control: &self.control,
            states: &self.states,
            pages: &self.pages,
            entries: &self.entries,
            free_stack: &self.free_stack,
            ring: &self.ring,
            threads: THREADS,
        }
    }
    fn entry_alloc(&self) -> SwapEntry {
        let free = (1..ENTRIES).find(|e| {
            self.entry_taken[*e]
                .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        SwapEntry(free.expect("an entry has leaked") as u32)
    }
    fn entry_release(&self, e: SwapEntry) {
        if e.is_some() {
            self.far[e.0 as usize].store(NOTHING, Ordering::Relaxed);
            assert_eq!(
                self.entry_taken[e.0 as usize].swap(0, Ordering::AcqRel),
                1,
                "entry {e:?} freed twice"
            );
        }
    }

    /// Unmaps a batch as reclaim does: publishes words one by one, and makes places at the end.
    fn reclaim(&self, pages: &[usize]) {
        let mut mine = Vec::new();
        for page in pages {
            let cur = word::load(&self.words[*page]);
            if cur.evictable()
                && word::transition(&self.words[*page], cur, cur.with_state(State::Evicting))
            {
                mine.push(*page);
            }
        }
        let mut slots = vec![Default::default(); mine.len()];
        let (got, _) = self.slots().alloc(&mut slots);
        let mut lives = Vec::new();
        for s in &slots[..got] {
            let (s, life) = (slot_number(s), self.lives.fetch_add(1, Ordering::Relaxed));
            assert_eq!(
                self.owned[s].swap(1, Ordering::AcqRel),
                0,
                "slot {s} has two owners"
            );
            self.life[s].store(life, Ordering::Relaxed);
            lives.push(life);
        }
        for page in mine.drain(got..) {
            let cur = word::load(&self.words[page]);
            word::publish(&self.words[page], cur.with_state(State::Resident));
        }
        for ((page, s), life) in mine.iter().zip(&slots).zip(lives) {
            let w = &self.words[*page];
            let cur = word::load(w);
            let number = self.window[*page].swap(NOTHING, Ordering::AcqRel);
            assert_eq!(
                number,
                self.truth[*page].load(Ordering::Relaxed),
                "page {page} is resident, but not mapped"
            );
            self.buffers[slot_number(s)].store(number, Ordering::Relaxed);
            thread::yield_now();
            assert_eq!(
                self.buffers[slot_number(s)].load(Ordering::Relaxed),
                number,
                "a slot is filled twice"
            );
            assert_eq!(self.owned[slot_number(s)].swap(0, Ordering::AcqRel), 1);
            self.slots().fill(
                *s,
                PageId(*page as u32),
                cur.entry(),
                cur.has(flag::FAR_COPY),
            );
            let new = cur.with_state(State::Cached).clear(flag::FAR_COPY);
            // Time of other pages, accounting and clocks: a place must not be valid yet.
            pause();
            // A taker whose fill fails makes a place of its own, before the reclaimer does.
            self.cached[slot_number(s)].store(life, Ordering::Relaxed);
            word::publish(w, new.with_entry(slot::in_word(s.slot())));
        }
        self.slots().enqueue(&slots[..got]);
    }

    /// Writes the oldest two pages out; `fail`: the far store has no room. Returns false if there was no page.
    fn write(&self, fail: bool) -> bool {
        let mut places = [SlotRef::default(); 2];
        let got = self.slots().oldest(&mut places);
        // Time for the second page to be taken, and its slot to get another one.
        pause();
        for (i, place) in places[..got].iter().enumerate() {
            let Some(job) = self.slots().begin_write(*place) else {
                continue;
            };
            self.write_one(job, fail);
            if fail {
                self.slots().enqueue(&places[i + 1..got]);
                break;
            }
        }
        got > 0
    }

    fn write_one(&self, job: slot::Job, fail: bool) {
        let s = job.slot as usize;
        assert_eq!(
            self.cached[s].load(Ordering::Relaxed),
            self.life[s].load(Ordering::Relaxed),
            "a stale place was acted on"
        );
        let number = self.buffers[s].load(Ordering::Relaxed);
        // Compression takes long enough for a touch and another eviction.
        pause();
        pause();
        let w = &self.words[job.page.index()];
        let give_up = |entry: SwapEntry, far_copy| {
            if let Some(e) = self.slots().abort_write(job.slot, entry, far_copy) {
                self.entry_release(e);
            }
        };
        if fail {
            give_up(job.entry, false);
            return;
        }
        let entry = if job.entry.is_some() {
            job.entry
        } else {
            self.entry_alloc()
        };
        self.far[entry.0 as usize].store(number, Ordering::Relaxed);
        let cur = word::load(w);
        let far = cur.with_state(State::Far).with_entry(entry);
        assert_eq!(
            self.buffers[s].load(Ordering::Relaxed),
            number,
            "a slot was filled under its writer"
        );
        if job.publish(w, cur, far) {
            self.slots().end_write(job.slot);
        } else {
            give_up(entry, true);
        }
    }

    /// The slot's contents, which must be what the program wrote last.
    fn contents(&self, page: usize, slot: u32) -> u64 {
        let number = self.buffers[slot as usize].load(Ordering::Relaxed);
        assert_eq!(
            number,
            self.truth[page].load(Ordering::Relaxed),
            "page {page} came back wrong from slot {slot}"
        );
        number
    }

    /// A touch that writes: brings the page in, and changes it. `fail`: the kernel refuses.
    fn touch(&self, page: usize, fail: bool) {
        let w = &self.words[page];
        let cur = word::load(w);
        if !matches!(cur.state(), State::Cached | State::Far | State::Untouched)
            || !word::transition(w, cur, cur.with_state(State::Filling))
        {
            return;
        }
        assert_eq!(self.window[page].load(Ordering::Relaxed), NOTHING);
        let (mut taken, mut entry, mut far_copy) = (None, cur.entry(), true);
        let number = match cur.state() {
            State::Cached => {
                let t = self.slots().take(slot::of_word(cur));
                (entry, far_copy) = (t.entry, t.far_copy);
                taken = Some(t);
                self.contents(page, slot::of_word(cur))
            }
            State::Far => {
                let number = self.far[entry.0 as usize].load(Ordering::Relaxed);
                assert_eq!(
                    number,
                    self.truth[page].load(Ordering::Relaxed),
                    "page {page} came back wrong from far"
                );
                number
            }
            _ => 0,
        };
        if fail {
            thread::yield_now();
            if let Some(t) = taken {
                self.slots().undo_take(t);
            }
            word::publish(w, cur);
            return;
        }
        self.window[page].store(number + 1, Ordering::Relaxed);
        self.truth[page].store(number + 1, Ordering::Relaxed);
        let new = cur.with_state(State::Resident).with_entry(entry);
        word::publish(
            w,
            if far_copy {
                new.set(flag::FAR_COPY)
            } else {
                new.clear(flag::FAR_COPY)
            },
        );
        if let Some(t) = taken {
            // Reading ends here: no thread may have written to the buffer.
            assert_eq!(
                self.buffers[slot::of_word(cur) as usize].load(Ordering::Relaxed),
                number,
                "a slot was filled under its taker"
            );
            self.slots().finish(t);
        }
    }

    /// A mapping call: mprotect leaves pages where they are, munmap discards them.
    fn map(&self, page: usize, discard: bool) {
        let w = &self.words[page];
        let cur = word::load(w);
        if cur.state().is_busy() || !word::transition(w, cur, cur.with_state(State::Mapping)) {
            return;
        }
        if !discard {
            thread::yield_now();
            return word::publish(w, cur);
        }
        match cur.state() {
            State::Cached => {
                let t = self.slots().take(slot::of_word(cur));
                self.contents(page, slot::of_word(cur));
                self.entry_release(t.entry);
                self.slots().finish(t);
            }
            _ => self.entry_release(cur.entry()),
        }
        self.window[page].store(NOTHING, Ordering::Relaxed);
        self.truth[page].store(0, Ordering::Relaxed);
        word::publish(w, Word(0));
    }

    /// All threads are done: every page is where its word says, and every slot can be allocated again.
    fn settle(&self) {
        for _ in 0..=SLOTS {
            self.write(false);
        }
        assert!(!self.write(false), "a page can be written out twice");
        assert_eq!(
            self.slots().used(),
            0,
            "a slot has leaked: no taker, and out of the FIFO"
        );
        let mut entries = 0;
        for page in 0..PAGES {
            let cur = word::load(&self.words[page]);
            let number = match cur.state() {
                State::Resident => self.window[page].load(Ordering::Relaxed),
                State::Far => self.far[cur.entry().0 as usize].load(Ordering::Relaxed),
                State::Untouched => 0,
                s => panic!("page {page} was left {s:?}"),
            };
            assert_eq!(
                number,
                self.truth[page].load(Ordering::Relaxed),
                "page {page} is lost"
            );
            entries += u32::from(cur.entry().is_some());
        }
        let taken: u32 = self
            .entry_taken
            .iter()
            .map(|e| e.load(Ordering::Relaxed))
            .sum();
        assert_eq!(taken, entries, "an entry has leaked");
        let mut all = vec![Default::default(); SLOTS + 1];
        assert_eq!(
            self.slots().alloc(&mut all).0,
            SLOTS,
            "a slot was freed twice"
        );
        let mut all: Vec<usize> = all[..SLOTS].iter().map(slot_number).collect();
        all.sort_unstable();
        assert_eq!(all, (0..SLOTS).collect::<Vec<_>>(), "each slot once");
    }
}

fn slot_number(s: &slot::SlotRef) -> usize {
    s.slot() as usize
}

type Role = fn(&World);

/// Runs the roles against each other; random and PCT schedules find different bugs.
fn race(roles: &'static [Role]) {
    let iterations = scaled(400) as usize;
    let run = move || {
        let world = Arc::new(World::new());
        let threads: Vec<_> = roles
            .iter()
            .enumerate()
            .map(|(i, role)| {
                let (world, role) = (world.clone(), *role);
                thread::spawn(move || {
                    THREAD.with(|t| t.set(i % 3));
                    role(&world);
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        world.settle();
    };
    shuttle::check_random(run, iterations);
    shuttle::check_pct(run, iterations, 3);
}

fn reclaimer(w: &World) {
    for _ in 0..8 {
        w.reclaim(&[0, 1]);
        thread::yield_now();
    }
}
fn other_reclaimer(w: &World) {
    for _ in 0..8 {
        w.reclaim(&[2, 0]);
        thread::yield_now();
    }
}
// A write-out that finds nothing ends at once: run more of them, so that they last as long.
fn writer(w: &World) {
    for _ in 0..24 {
        w.write(false);
        thread::yield_now();
    }
}
fn writer_without_room(w: &World) {
    for _ in 0..24 {
        w.write(true);
        thread::yield_now();
    }
}
fn taker(w: &World) {
    for i in 0..24 {
        w.touch(i % PAGES, false);
        thread::yield_now();
    }
}
fn failing_taker(w: &World) {
    for i in 0..24 {
        w.touch(i % PAGES, i % 2 == 0);
        thread::yield_now();
    }
}
fn mapper(w: &World) {
    for i in 0..12 {
        w.map(i % PAGES, false);
        thread::yield_now();
    }
}
fn discarder(w: &World) {
    for i in 0..12 {
        w.map(i % PAGES, i % 2 == 1);
        thread::yield_now();
    }
}

#[test]
fn takers_race_the_writer() {
    race(&[reclaimer, writer, taker, taker]);
}

#[test]
fn two_reclaimers_share_the_slots() {
    race(&[reclaimer, other_reclaimer, writer, taker]);
}

#[test]
fn two_writers_share_the_fifo() {
    race(&[reclaimer, other_reclaimer, writer, writer, taker]);
}

#[test]
fn a_page_that_was_only_looked_at_can_still_be_written_out() {
    race(&[reclaimer, writer, mapper, taker]);
}

#[test]
fn what_is_discarded_gives_slot_and_entry_back() {
    race(&[reclaimer, writer, discarder, taker]);
}

#[test]
fn a_write_out_without_room_leaves_the_page_cached() {
    race(&[reclaimer, writer_without_room, writer, taker]);
}

#[test]
fn a_fill_that_fails_puts_the_slot_back() {
    race(&[reclaimer, writer, failing_taker, taker]);
}
