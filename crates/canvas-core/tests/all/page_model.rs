//! Model test of the page state machine: many actors run the pager's operations (fault, evict, write-out, discard, pin,
//! lock, drop a reservation) one small step at a time in a random interleaving, over a simulated kernel and far store.
//! A naive oracle knows what every page must read as; the world knows where the bytes are. No page is lost; no page,
//! slot or entry has two owners; no pinned page is unmapped; no slot or entry leaks.
//!
//! Steps: CANVAS_TEST_OPS (default 100000); seed: CANVAS_TEST_SEED, else random, printed.

use std::collections::{BTreeMap, BTreeSet};

use canvas_core::pager::clock::{
    Clock, ClockParams, EpochClock, FillKind, VictimBatch, take_reservation,
};
use canvas_core::pager::slot::{self, Control, Job, Place, SlotTable, Taken};
use canvas_core::pager::table::PageTable;
use canvas_core::pager::word::{self, State, Word, flag};
use canvas_types::layout::BLOCK_PAGES;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering, Threads};
use canvas_types::{PageId, SwapEntry};

const PAGES: usize = 192;
const ACTORS: usize = 12;
const LOCAL: u64 = 64;
const SLOTS: usize = 32;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// What an actor is about to do next, including the busy pages that it owns.
#[derive(Clone, Debug)]
enum Actor {
    Idle,
    /// Wants to read (or write) a page; `to_pin` for a system call.
    Access {
        page: usize,
        write: Option<u64>,
        to_pin: bool,
    },
    /// Owns `page` in state Filling; `was` is where it came from.
    FillTake {
        page: usize,
        was: Word,
        then: Box<Actor>,
    },
    FillBytes {
        page: usize,
        was: Word,
        taken: Option<Taken>,
        then: Box<Actor>,
    },
    FillPublish {
        page: usize,
        was: Word,
        bytes: u64,
        taken: Option<Taken>,
        then: Box<Actor>,
    },
    /// Done with the page, but not with the slot that it came from.
    FillFinish {
        slot: u32,
        bytes: u64,
        taken: Taken,
        then: Box<Actor>,
    },
    /// In a system call: the page is pinned.
    Pinned {
        page: usize,
        life: u64,
    },
    /// Owns a page in state Mapping, which came in write-protected and is written to.
    Unprotect {
        page: usize,
        was: Word,
        then: Box<Actor>,
    },
    /// Owns pages in state Evicting.
    Unmap {
        pages: Vec<usize>,
    },
    /// Like `Unmap`, for pages whose far copies are up to date.
    LeaveClean {
        pages: Vec<usize>,
        then: Box<Actor>,
    },
    UnmapPublish {
        pages: Vec<(usize, Place)>,
        full: Vec<Place>,
    },
    Enqueue {
        full: Vec<Place>,
    },
    /// Writes a slot out; no thread owns its page.
    WriteStore {
        job: Job,
    },
    WritePublish {
        job: Job,
        entry: SwapEntry,
        bytes: u64,
    },
    /// Owns a page in state Mapping.
    DiscardBytes {
        page: usize,
        was: Word,
    },
    DiscardPublish {
        page: usize,
    },
    /// Owns a page in state Mapping; puts it back unchanged (mprotect, fork).
    Remap {
        page: usize,
        was: Word,
    },
}

struct World {
    words: Vec<AtomicU64>,
    counts: Vec<AtomicU32>,
    high: AtomicU32,
    clock: Clock,
    epochs: EpochClock,
    /// The kernel's truth: what is mapped.
    window: BTreeMap<usize, u64>,
    /// The mapped pages that are write-protected.
    protected: BTreeSet<usize>,
    /// The swap cache: bookkeeping, and the contents of the slots' buffers.
    control: Control,
    slot_halves: [Vec<AtomicU32>; 4],
    slot_words: [Vec<AtomicU64>; 2],
    buffers: [u64; SLOTS],
    /// The far store, and which page owns which entry.
    store: BTreeMap<u32, u64>,
    owner: BTreeMap<u32, usize>,
    free: Vec<u32>,
    next_entry: u32,
    /// What each page must read as.
    oracle: Vec<u64>,
    /// Counts discards, so that a system call knows that its page is gone.
    life: Vec<u64>,
    rng: Rng,
    seen: BTreeSet<&'static str>,
}

impl World {
    fn new(seed: u64) -> World {
        let halves = || (0..SLOTS).map(|_| AtomicU32::new(0)).collect();
        let words = |n| (0..n).map(|_| AtomicU64::new(0)).collect();
        let world = World {
            words: (0..BLOCK_PAGES).map(|_| AtomicU64::new(0)).collect(),
            counts: vec![AtomicU32::new(0)],
            high: AtomicU32::new(0),
            clock: Clock::new(ClockParams::DEFAULT),
            epochs: EpochClock::new(),
            window: BTreeMap::new(),
            protected: BTreeSet::new(),
            control: Control::new(),
            slot_halves: [halves(), halves(), halves(), halves()],
            slot_words: [words(SLOTS), words(2 * SLOTS)],
            buffers: [0; SLOTS],
            store: BTreeMap::new(),
            owner: BTreeMap::new(),
            free: Vec::new(),
            next_entry: 1,
            oracle: vec![0; PAGES],
            life: vec![0; PAGES],
            rng: Rng(seed),
            seen: BTreeSet::new(),
        };
        world.slots().set_capacity(SLOTS);
        world
    }
    fn slots(&self) -> SlotTable<'_> {
        SlotTable {
            control: &self.control,
            states: &self.slot_halves[0],
            pages: &self.slot_halves[1],
            entries: &self.slot_words[0],
            free_stack: &self.slot_halves[2],
            ring: &self.slot_words[1],
            threads: Threads {
                yield_now: || {},
                number: || 0,
            },
        }
    }
    fn buffer(&mut self, slot: u32) -> &mut u64 {
        &mut self.buffers[slot as usize]
    }
    fn table(&self) -> PageTable<'_> {
        PageTable {
            words: &self.words,
            resident_in_block: &self.counts,
            high_block: &self.high,
        }
    }
    fn word(&self, page: usize) -> Word {
        word::load(&self.words[page])
    }
    fn alloc(&mut self, page: usize) -> SwapEntry {
        let e = self.free.pop().unwrap_or_else(|| {
            self.next_entry += 1;
            self.next_entry - 1
        });
        assert_eq!(self.owner.insert(e, page), None, "entry {e} has two owners");
        SwapEntry(e)
    }
    fn release(&mut self, page: usize, e: SwapEntry) {
        if e.is_some() {
            assert_eq!(
                self.owner.remove(&e.0),
                Some(page),
                "entry {} is not page {page}'s",
                e.0
            );
            self.store.remove(&e.0);
            self.free.push(e.0);
        }
    }

    fn start(&mut self) -> Actor {
        let page = self.rng.below(PAGES);
        let w = self.word(page);
        match self.rng.below(16) {
            0..5 => Actor::Access {
                page,
                write: None,
                to_pin: false,
            },
            5..8 => {
                let value = if self.rng.one_in(4) {
                    0
                } else {
                    self.rng.next() | 1
                };
                Actor::Access {
                    page,
                    write: Some(value),
                    to_pin: false,
                }
            }
            8 => Actor::Access {
                page,
                write: None,
                to_pin: true,
            },
            9 | 10 => {
                let mut out = VictimBatch::new();
                let want = 1 + self.rng.below(12) as u32;
                self.clock.set_pressure(self.rng.one_in(4));
                let n = self.clock.select(&self.table(), want, &mut out);
                for p in out.dropped_candidates() {
                    if let Some(e) = take_reservation(&self.words[p.index()]) {
                        self.seen.insert("reservation dropped");
                        self.release(p.index(), e);
                    }
                }
                if n == 0 {
                    return Actor::Idle;
                }
                let pages = |clean| {
                    let runs = out.runs().iter().filter(move |r| r.clean == clean);
                    runs.flat_map(|r| r.pages().map(PageId::index)).collect()
                };
                assert_eq!(out.dirty_pages() as usize, Vec::len(&pages(false)));
                Actor::LeaveClean {
                    pages: pages(true),
                    then: Box::new(Actor::Unmap {
                        pages: pages(false),
                    }),
                }
            }
            11 | 12 => {
                let mut place = [Place::default()];
                let job = match self.slots().oldest(&mut place) {
                    0 => None,
                    _ => self.slots().begin_write(place[0]),
                };
                job.map_or(Actor::Idle, |job| Actor::WriteStore { job })
            }
            13 => {
                // Sometimes choose a pinned page: rare by chance, and where mistakes would hide.
                let pinned = (0..PAGES).find(|p| self.word(*p).pins() > 0);
                let page = pinned.filter(|_| self.rng.one_in(4)).unwrap_or(page);
                let w = self.word(page);
                if !w.state().is_busy()
                    && word::transition(&self.words[page], w, w.with_state(State::Mapping))
                {
                    let discard = self.rng.one_in(2);
                    return if discard {
                        Actor::DiscardBytes { page, was: w }
                    } else {
                        Actor::Remap { page, was: w }
                    };
                }
                Actor::Idle
            }
            14 => {
                // mlock and munlock of a resident page.
                if w.state() == State::Resident {
                    let new = if self.rng.one_in(8) {
                        w.set(flag::LOCKED)
                    } else {
                        w.clear(flag::LOCKED)
                    };
                    assert!(word::transition(&self.words[page], w, new));
                }
                Actor::Idle
            }
            _ => {
                if let Some(e) = take_reservation(&self.words[page]) {
                    self.release(page, e);
                }
                Actor::Idle
            }
        }
    }

    fn step(&mut self, actor: Actor) -> Actor {
        match actor {
            Actor::Idle => self.start(),
            Actor::Access {
                page,
                write,
                to_pin,
            } => self.access(page, write, to_pin),
            Actor::FillTake { page, was, then } => {
                let is_cached = was.state() == State::Cached;
                let taken = is_cached.then(|| self.slots().take(slot::of_word(was)));
                Actor::FillBytes {
                    page,
                    was,
                    taken,
                    then,
                }
            }
            Actor::FillBytes {
                page,
                was,
                taken,
                then,
            } => self.fill_bytes(page, was, taken, then),
            Actor::FillPublish {
                page,
                was,
                bytes,
                taken,
                then,
            } => self.fill_publish(page, was, bytes, taken, then),
            Actor::FillFinish {
                slot,
                bytes,
                taken,
                then,
            } => {
                assert_eq!(*self.buffer(slot), bytes, "a slot changed under its taker");
                self.slots().finish(taken);
                *then
            }
            Actor::Pinned { page, life } => self.pinned(page, life),
            Actor::Unprotect { page, was, then } => {
                assert!(
                    self.protected.remove(&page),
                    "page {page} was not protected"
                );
                word::publish(&self.words[page], was.clear(flag::PROTECTED));
                self.seen.insert("written to while protected");
                *then
            }
            Actor::Unmap { pages } => self.unmap(pages),
            Actor::LeaveClean { pages, then } => self.leave_clean(pages, then),
            Actor::UnmapPublish { pages, full } => self.unmap_publish(pages, full),
            Actor::Enqueue { full } => {
                self.slots().enqueue(&full);
                Actor::Idle
            }
            Actor::WriteStore { job } => self.write_store(job),
            Actor::WritePublish { job, entry, bytes } => self.write_publish(job, entry, bytes),
            Actor::DiscardBytes { page, was } => self.discard_bytes(page, was),
            Actor::DiscardPublish { page } => {
                word::publish(&self.words[page], Word(0));
                Actor::Idle
            }
            Actor::Remap { page, was } => {
                word::publish(&self.words[page], was);
                Actor::Idle
            }
        }
    }

    /// The program, or a system call, touches a page.
    fn access(&mut self, page: usize, write: Option<u64>, to_pin: bool) -> Actor {
        // The hardware looks only at the page table; a system call pins first.
        if to_pin {
            if word::pin(&self.words[page]) {
                self.seen.insert("pinned");
                return Actor::Pinned {
                    page,
                    life: self.life[page],
                };
            }
        } else if (write.is_none() || !self.protected.contains(&page))
            && let Some(bytes) = self.window.get_mut(&page)
        {
            assert_eq!(*bytes, self.oracle[page], "page {page} reads wrong");
            if let Some(v) = write {
                (*bytes, self.oracle[page]) = (v, v);
            }
            return Actor::Idle;
        }
        let again = Actor::Access {
            page,
            write,
            to_pin,
        };
        let w = self.word(page);
        match w.state() {
            State::Untouched | State::Cached | State::Far => {
                if !word::transition(&self.words[page], w, w.with_state(State::Filling)) {
                    return again;
                }
                Actor::FillTake {
                    page,
                    was: w,
                    then: Box::new(again),
                }
            }
            State::Resident if w.has(flag::PROTECTED) && (to_pin || write.is_some()) => {
                if !word::transition(&self.words[page], w, w.with_state(State::Mapping)) {
                    return again;
                }
                Actor::Unprotect {
                    page,
                    was: w,
                    then: Box::new(again),
                }
            }
            _ => again,
        }
    }

    /// Copies the page's bytes into the managed range.
    fn fill_bytes(
        &mut self,
        page: usize,
        was: Word,
        taken: Option<Taken>,
        then: Box<Actor>,
    ) -> Actor {
        if self.rng.one_in(16) {
            // The kernel returned EAGAIN: back to the previous state.
            self.seen.insert("fill failed");
            if let Some(t) = taken {
                self.seen.insert("second chance failed");
                self.slots().untake(t);
            }
            word::publish(&self.words[page], was);
            return *then;
        }
        let bytes = match was.state() {
            State::Cached => *self.buffer(slot::of_word(was)),
            State::Far if was.entry().is_some() => {
                assert_eq!(self.owner.get(&was.entry().0), Some(&page));
                self.store[&was.entry().0]
            }
            _ => 0,
        };
        assert_eq!(
            self.window.insert(page, bytes),
            None,
            "page {page} is mapped twice"
        );
        let for_read = matches!(
            *then,
            Actor::Access {
                write: None,
                to_pin: false,
                ..
            }
        );
        if for_read && was.state() == State::Far && was.pins() == 0 && self.rng.one_in(2) {
            self.protected.insert(page);
        }
        Actor::FillPublish {
            page,
            was,
            bytes,
            taken,
            then,
        }
    }

    /// Publishes in the word that the page is resident.
    fn fill_publish(
        &mut self,
        page: usize,
        was: Word,
        bytes: u64,
        taken: Option<Taken>,
        then: Box<Actor>,
    ) -> Actor {
        let kind = match was.state() {
            State::Cached => FillKind::SecondChance,
            State::Far => {
                [FillKind::Demand, FillKind::Prefetch, FillKind::Stream][self.rng.below(3)]
            }
            _ => FillKind::FirstTouch,
        };
        self.seen.insert(match was.state() {
            State::Cached => "second chance",
            State::Far => "refault",
            _ => "first touch",
        });
        let (entry, far_copy) = match taken {
            Some(t) => (t.entry, t.far_copy),
            None => (was.entry(), was.entry().is_some()),
        };
        let now = self.epochs.now();
        let mut w = self.clock.params.on_fill(was.with_entry(entry), kind, now);
        w = if far_copy {
            w.set(flag::FAR_COPY)
        } else {
            w.clear(flag::FAR_COPY)
        };
        // The bit has another meaning for a far page.
        w = w.clear(flag::PROTECTED);
        if self.protected.contains(&page) {
            w = w.set(flag::PROTECTED);
        }
        self.table().note_resident(page);
        word::publish(&self.words[page], w);
        if w.has(flag::STREAM) {
            self.clock.stream_passed(PageId(page as u32));
        }
        match taken {
            Some(taken) => Actor::FillFinish {
                slot: slot::of_word(was),
                bytes,
                taken,
                then,
            },
            None => *then,
        }
    }

    /// A system call continues, or ends.
    fn pinned(&mut self, page: usize, life: u64) -> Actor {
        if self.life[page] == life {
            assert_eq!(
                self.window.get(&page),
                Some(&self.oracle[page]),
                "a pinned page was unmapped"
            );
            assert!(
                !self.protected.contains(&page),
                "a system call cannot write"
            );
        }
        if self.rng.one_in(6) {
            word::unpin(&self.words[page]);
            return Actor::Idle;
        }
        Actor::Pinned { page, life }
    }

    /// Moves victims from the managed range into slots.
    fn unmap(&mut self, mut pages: Vec<usize>) -> Actor {
        let mut slots = vec![Place::default(); pages.len()];
        let (got, _) = self.slots().alloc(&mut slots);
        for page in pages.drain(got..) {
            self.seen.insert("no slot");
            let w = self.word(page).with_state(State::Resident);
            word::publish(&self.words[page], w);
        }
        for (page, slot) in pages.iter().zip(&slots) {
            let w = self.word(*page);
            assert!(w.state() == State::Evicting && w.pins() == 0 && !w.has(flag::LOCKED));
            let bytes = self.window.remove(page).expect("a victim is mapped");
            self.protected.remove(page);
            *self.buffer(slot.slot()) = bytes;
        }
        self.epochs.advance(pages.len() as u32, LOCAL);
        Actor::UnmapPublish {
            pages: pages.into_iter().zip(slots).collect(),
            full: Vec::new(),
        }
    }

    /// Evicts clean victims directly.
    fn leave_clean(&mut self, mut pages: Vec<usize>, then: Box<Actor>) -> Actor {
        let Some(page) = pages.pop() else {
            return *then;
        };
        let w = self.word(page);
        assert!(w.is_clean() && w.pins() == 0 && !w.has(flag::LOCKED));
        let bytes = self.window.remove(&page);
        self.protected.remove(&page);
        assert_eq!(
            bytes.as_ref(),
            self.store.get(&w.entry().0),
            "page {page} was not clean"
        );
        self.seen.insert("left clean");
        self.table().note_gone(page);
        let epoch = self.epochs.advance(1, LOCAL);
        let w = self.clock.params.on_evict(w, epoch);
        let far = w.clear(flag::PROTECTED | flag::FAR_COPY);
        word::publish(&self.words[page], far.with_state(State::Far));
        Actor::LeaveClean { pages, then }
    }

    /// Publishes the victims' words, one after the other.
    fn unmap_publish(&mut self, mut pages: Vec<(usize, Place)>, mut full: Vec<Place>) -> Actor {
        let Some((page, slot)) = pages.pop() else {
            return Actor::Enqueue { full };
        };
        let w = self
            .clock
            .params
            .on_evict(self.word(page), self.epochs.now())
            .clear(flag::PROTECTED);
        if self.rng.one_in(16) {
            // The kernel refused: the page stays where it was.
            let bytes = *self.buffer(slot.slot());
            self.window.insert(page, bytes);
            self.slots().give_back(&[slot]);
            word::publish(&self.words[page], w.with_state(State::Resident));
        } else {
            self.slots()
                .fill(slot, PageId(page as u32), w.entry(), w.has(flag::FAR_COPY));
            let w = w.with_entry(slot::in_word(slot.slot()));
            word::publish(&self.words[page], w.with_state(State::Cached));
            self.table().note_gone(page);
            full.push(slot);
        }
        Actor::UnmapPublish { pages, full }
    }

    /// Stores a slot's bytes.
    fn write_store(&mut self, job: Job) -> Actor {
        if self.rng.one_in(8) {
            self.seen.insert("write-out given up");
            let back = self.slots().abort_write(job.slot, job.entry, false);
            self.release(job.page.index(), back.unwrap_or(SwapEntry::NONE));
            return Actor::Idle;
        }
        let (page, bytes) = (job.page.index(), *self.buffer(job.slot));
        let mut entry = job.entry;
        if bytes == 0 {
            self.release(page, entry);
            entry = SwapEntry::NONE;
        } else {
            if !entry.is_some() {
                entry = self.alloc(page);
            } else if self.store.get(&entry.0) == Some(&bytes) {
                self.seen.insert("clean write-out");
                assert_eq!(self.owner.get(&entry.0), Some(&page));
            }
            self.store.insert(entry.0, bytes);
        }
        Actor::WritePublish { job, entry, bytes }
    }

    /// Publishes that the page is far, unless a thread has taken it meanwhile.
    fn write_publish(&mut self, job: Job, entry: SwapEntry, bytes: u64) -> Actor {
        let page = job.page.index();
        assert_eq!(
            *self.buffer(job.slot),
            bytes,
            "a slot changed under its writer"
        );
        let w = self.word(page);
        let far = w.with_entry(entry).clear(flag::FAR_COPY);
        if job.publish(&self.words[page], w, far.with_state(State::Far)) {
            self.slots().end_write(job.slot);
            self.seen.insert("written out");
            return Actor::Idle;
        }
        match self.slots().abort_write(job.slot, entry, entry.is_some()) {
            Some(e) => {
                self.seen.insert("taken while written out");
                self.release(page, e);
            }
            None => {
                self.seen.insert("written out for nothing");
            }
        }
        Actor::Idle
    }

    /// The program discards the page.
    fn discard_bytes(&mut self, page: usize, was: Word) -> Actor {
        self.window.remove(&page);
        self.protected.remove(&page);
        if was.state() == State::Cached {
            let taken = self.slots().take(slot::of_word(was));
            self.release(page, taken.entry);
            self.slots().finish(taken);
        } else {
            self.release(page, was.entry());
        }
        if was.state() == State::Resident {
            self.table().note_gone(page);
        }
        // From here on the page reads as zeros.
        self.oracle[page] = 0;
        self.life[page] += 1;
        self.seen.insert(if was.pins() > 0 {
            "discarded while pinned"
        } else {
            "discarded"
        });
        Actor::DiscardPublish { page }
    }

    /// Checks everything that must hold between any two steps.
    fn check(&self, actors: &[Actor]) {
        let (mut entries, mut slots) = (BTreeSet::new(), BTreeSet::new());
        for page in 0..PAGES {
            let w = self.word(page);
            let mapped = self.window.contains_key(&page);
            match w.state() {
                State::Resident => {
                    assert!(mapped, "page {page} is resident, but not mapped");
                    assert_eq!(w.has(flag::PROTECTED), self.protected.contains(&page));
                }
                State::Cached | State::Far => assert!(!mapped, "page {page} is in two places"),
                State::Untouched => assert!(w.0 & !0x00ff_0000 == 0 && !mapped),
                State::Poisoned => panic!("nothing poisons here"),
                _ => {}
            }
            let bytes = match w.state() {
                State::Resident => Some(self.window[&page]),
                State::Cached => Some(self.buffers[slot::of_word(w) as usize]),
                State::Far if w.entry().is_some() => Some(self.store[&w.entry().0]),
                State::Far | State::Untouched => Some(0),
                _ => None,
            };
            assert!(
                bytes.is_none_or(|b| b == self.oracle[page]),
                "page {page} lost its bytes in {:?}",
                w.state()
            );
            if w.state() == State::Cached {
                assert!(
                    slots.insert(slot::of_word(w)),
                    "slot {} is in two words",
                    slot::of_word(w)
                );
            } else if !w.state().is_busy() && w.entry().is_some() {
                assert!(
                    entries.insert(w.entry().0),
                    "entry {} is in two words",
                    w.entry().0
                );
                assert_eq!(self.owner.get(&w.entry().0), Some(&page));
            }
        }
        let mut busy: Vec<usize> = actors
            .iter()
            .flat_map(|a| match a {
                Actor::FillTake { page, .. }
                | Actor::FillBytes { page, .. }
                | Actor::FillPublish { page, .. }
                | Actor::DiscardBytes { page, .. }
                | Actor::DiscardPublish { page }
                | Actor::Unprotect { page, .. }
                | Actor::Remap { page, .. } => vec![*page],
                Actor::Unmap { pages } => pages.clone(),
                Actor::LeaveClean { pages, then } => match &**then {
                    Actor::Unmap { pages: others } => [&pages[..], others].concat(),
                    _ => pages.clone(),
                },
                Actor::UnmapPublish { pages, .. } => pages.iter().map(|(p, _)| *p).collect(),
                _ => Vec::new(),
            })
            .collect();
        busy.sort_unstable();
        let in_words: Vec<usize> = (0..PAGES)
            .filter(|p| self.word(*p).state().is_busy())
            .collect();
        assert_eq!(busy, in_words, "each busy page has exactly one owner");
    }
}

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

#[test]
fn no_page_is_lost_and_nothing_has_two_owners() {
    let ops = env("CANVAS_TEST_OPS").unwrap_or(100_000);
    let seed = env("CANVAS_TEST_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |d| d.as_nanos() as u64)
    });
    println!("page model: {ops} steps, CANVAS_TEST_SEED={seed}");
    let mut world = World::new(seed);
    let mut actors = vec![Actor::Idle; ACTORS];
    for op in 0..ops {
        let i = world.rng.below(ACTORS);
        let actor = std::mem::replace(&mut actors[i], Actor::Idle);
        actors[i] = world.step(actor);
        // The full check looks at every page: run it often enough to be near the cause.
        if op % 16 == 0 {
            world.check(&actors);
        }
    }
    // Let all actors finish; then every page must read right, and pins, counts and entries add up.
    for _ in 0..1_000_000 {
        if actors.iter().all(|a| matches!(a, Actor::Idle)) {
            break;
        }
        for slot in &mut actors {
            if !matches!(slot, Actor::Idle) {
                let actor = std::mem::replace(slot, Actor::Idle);
                *slot = world.step(actor);
            }
        }
    }
    assert!(
        actors.iter().all(|a| matches!(a, Actor::Idle)),
        "some actor never ends: {actors:?}"
    );
    world.check(&actors);
    // Whatever is in the swap cache can be written out.
    let mut place = [Place::default()];
    while world.slots().oldest(&mut place) == 1 {
        let job = world
            .slots()
            .begin_write(place[0])
            .expect("nobody takes it");
        let mut writer = Actor::WriteStore { job };
        while !matches!(writer, Actor::Idle) {
            writer = world.step(writer);
        }
    }
    assert_eq!(world.slots().used(), 0, "a slot has leaked");
    world.check(&actors);
    for page in 0..PAGES {
        assert_eq!(world.word(page).pins(), 0, "page {page} kept a pin");
    }
    let resident = (0..PAGES)
        .filter(|p| world.word(*p).state() == State::Resident)
        .count();
    assert_eq!(world.counts[0].load(Ordering::Relaxed) as usize, resident);
    let owned = (0..PAGES)
        .filter(|p| world.word(*p).entry().is_some())
        .count();
    assert_eq!(world.owner.len(), owned, "an entry has leaked");
    assert_eq!(world.store.len(), owned);
    if ops >= 100_000 {
        for what in [
            "first touch",
            "refault",
            "second chance",
            "written out",
            "clean write-out",
            "write-out given up",
            "written out for nothing",
            "taken while written out",
            "no slot",
            "fill failed",
            "second chance failed",
            "discarded",
            "discarded while pinned",
            "pinned",
            "reservation dropped",
            "left clean",
            "written to while protected",
        ] {
            assert!(world.seen.contains(what), "the run never met: {what}");
        }
    }
}
