//! Shared by the tests of the far tier: an owner whose pages are a vector, a pool over plain memory, and an agent that
//! answers when and how the test wants.
#![allow(dead_code)]

pub mod agent;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64 as Plain, Ordering::Relaxed};

use canvas_core::far::fetch::{self, Lost, Stored};
use canvas_core::far::job::JobKind;
use canvas_core::far::{
    Channel, FarStore, Host, Owner, PageLocation, PageOutcome, Pages, PoolPeer, Request, State,
    channel, completion, demote, resident_copies,
};
use canvas_core::swap::classes::region_bytes;
use canvas_core::swap::digests::words_for;
use canvas_core::swap::extent::EXTENT_BYTES;
use canvas_core::swap::extents::{BookArrays, BookState, ExtentBook, Slabs, Span};
use canvas_core::swap::hash::{PageHash, portable};
use canvas_core::swap::slots::SLAB_WORDS;
use canvas_core::swap::{
    LoadError, LocalPool, Lz, LzScratch, PoolArrays, PoolBudget, Record, Scratch, SlotMem,
    StoreError,
};
use canvas_shm::Counter;
use canvas_shm::mailbox::{FETCHES, Mailbox, REQUESTS, Status, WRITES};
use canvas_types::sync::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering, Threads};
use canvas_types::{ExtentRef, PAGE_SIZE, PageBuf, SwapEntry};

use agent::Agent;

/// Most slabs of the pool.
const POOL_SLABS: usize = 32;
/// Far slabs, and extents of each.
pub const SLABS: usize = 8;
pub const PER_SLAB: usize = 6;
const EXTENTS: usize = SLABS * PER_SLAB;

/// A page's content: `len` bytes determined by a number, then zeros. 0 for a page of zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Content {
    pub seed: u64,
    pub len: usize,
}

pub const ZEROS: Content = Content { seed: 0, len: 0 };

impl Content {
    pub fn bytes(self) -> Box<PageBuf> {
        let mut page = Box::new([0; PAGE_SIZE]);
        let mut at = self.seed;
        for byte in &mut page[..self.len] {
            at = at
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            // None of them is zero, so that the length can be seen.
            *byte = (at >> 56) as u8 | 1;
        }
        page
    }
}

/// Strips the zeros at the end.
pub struct Short;

impl Lz for Short {
    fn compress(&self, src: &PageBuf, dst: &mut [u8], _: &mut LzScratch) -> Option<usize> {
        let len = src.iter().rposition(|b| *b != 0)? + 1;
        dst.get_mut(..len)?.copy_from_slice(&src[..len]);
        Some(len)
    }
    fn decompress(&self, src: &[u8], dst: &mut PageBuf) -> bool {
        let Some(start) = dst.get_mut(..src.len()) else {
            return false;
        };
        start.copy_from_slice(src);
        dst[src.len()..].fill(0);
        true
    }
}

/// The pool's memory; released ranges are filled with junk.
pub struct Mem(Mutex<Vec<u8>>);

impl SlotMem for &Mem {
    fn copy_out(&self, off: usize, dst: &mut [u8]) {
        dst.copy_from_slice(&self.0.lock().unwrap()[off..off + dst.len()]);
    }
    fn copy_in(&self, off: usize, src: &[u8]) {
        self.0.lock().unwrap()[off..off + src.len()].copy_from_slice(src);
    }
    fn release(&self, off: usize, len: usize) {
        self.0.lock().unwrap()[off..off + len].fill(0xdb);
    }
}

/// A page's word: its state (4 bits), flags, its entry (the upper half).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word(u64);

pub const UNTOUCHED: u64 = 0;
pub const LOCAL: u64 = 1;
pub const FAR: u64 = 2;
pub const BUSY: u64 = 3;
const BEYOND: u64 = 1 << 8;
const REFERENCED: u64 = 1 << 9;
pub const COPY: u64 = 1 << 10;

impl Word {
    pub fn state(self) -> u64 {
        self.0 & 0xf
    }
    pub fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }
    fn of(state: u64, entry: SwapEntry, flags: u64) -> Word {
        Word(state | flags | u64::from(entry.0) << 32)
    }
    pub fn entry(self) -> SwapEntry {
        SwapEntry((self.0 >> 32) as u32)
    }
    fn busy(self) -> Word {
        Word(self.0 & !0xf | BUSY)
    }
}

/// Everything that a toy borrows.
pub struct World {
    entries: Vec<AtomicU64>,
    slab_words: Vec<AtomicU64>,
    class_bytes: Vec<AtomicI64>,
    digests: Vec<AtomicU64>,
    key: Box<PageBuf>,
    mem: Mem,
    pub live: Vec<AtomicU8>,
    written: Vec<AtomicU8>,
    spans: Vec<AtomicU64>,
    slab_live: Vec<AtomicU32>,
    roles: Vec<AtomicU32>,
    book: BookState,
    /// This process's slabs.
    pub taken: Mutex<Vec<u32>>,
    pub slabs_max: Plain,
    words: Vec<AtomicU64>,
    /// The content of local memory.
    local: Vec<Mutex<Content>>,
    hand: Plain,
    /// Number of searches for the oldest pages that find all of them used.
    pub all_used: Plain,
    copy_hand: Plain,
    pub state: State,
    pub mailbox: Mailbox,
    /// A buffer that is busy when a thread wants it has two users: that fails the test.
    pub buffers: Vec<Mutex<Box<[u8; EXTENT_BYTES]>>>,
    pub now_ns: Plain,
    pub bound: AtomicI64,
    used: AtomicI64,
    counts: Mutex<Vec<(Counter, u64)>>,
    pub told: Mutex<Vec<Status>>,
    pub ahead_ns: Mutex<Vec<u64>>,
    pub agent: Mutex<Agent>,
    /// By request, the extent of its last answer.
    pub answered: Vec<std::sync::atomic::AtomicU32>,
    /// Whether pages that come in keep their entries.
    pub keeps: bool,
    /// The configured far read size, and the learned one.
    pub unit_bytes: Plain,
    pub unit_learned: Plain,
}

fn words(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

impl World {
    pub fn new(pages: usize, bound_bytes: i64) -> World {
        let bytes = |n| (0..n).map(|_| AtomicU8::new(0)).collect::<Vec<_>>();
        let shorts = |n| (0..n).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
        World {
            entries: words(pages + 1),
            slab_words: words(POOL_SLABS * SLAB_WORDS),
            class_bytes: (0..32).map(|_| AtomicI64::new(0)).collect(),
            digests: words(words_for(pages)),
            key: Content {
                seed: 77,
                len: PAGE_SIZE,
            }
            .bytes(),
            mem: Mem(Mutex::new(vec![0; region_bytes(POOL_SLABS)])),
            live: bytes(EXTENTS),
            written: bytes(EXTENTS),
            spans: words(EXTENTS),
            slab_live: shorts(SLABS),
            roles: shorts(SLABS),
            book: BookState::new(),
            taken: Mutex::default(),
            slabs_max: Plain::new(SLABS as u64),
            words: words(pages),
            local: (0..pages).map(|_| Mutex::new(ZEROS)).collect(),
            hand: Plain::new(0),
            all_used: Plain::new(0),
            copy_hand: Plain::new(0),
            state: State::new(),
            mailbox: Mailbox::new(),
            buffers: (0..REQUESTS)
                .map(|_| Mutex::new(Box::new([0; EXTENT_BYTES])))
                .collect(),
            now_ns: Plain::new(1_000_000_000),
            bound: AtomicI64::new(bound_bytes),
            used: AtomicI64::new(0),
            counts: Mutex::default(),
            told: Mutex::default(),
            ahead_ns: Mutex::default(),
            agent: Mutex::new(Agent::new()),
            answered: (0..REQUESTS).map(|_| Default::default()).collect(),
            keeps: true,
            unit_bytes: Plain::new(0),
            unit_learned: Plain::new(0),
        }
    }
    pub fn toy(&self) -> Toy<'_> {
        let arrays = PoolArrays {
            entries: &self.entries,
            slab_words: &self.slab_words,
            class_bytes: &self.class_bytes,
            digests: &self.digests,
        };
        let hash = PageHash::new(&self.key, portable);
        let threads = Threads {
            yield_now,
            number: || 0,
        };
        Toy {
            pool: LocalPool::new(arrays, hash, Short, &self.mem, Budget(self), threads),
            w: self,
        }
    }
    fn extent_book(&self) -> ExtentBook<'_> {
        ExtentBook {
            arrays: BookArrays {
                live: &self.live,
                written: &self.written,
                spans: &self.spans,
                slab_live: &self.slab_live,
                roles: &self.roles,
            },
            state: &self.book,
            slab_extents: PER_SLAB as u32,
            yield_now,
        }
    }
    pub fn counted(&self, counter: Counter) -> u64 {
        let counts = self.counts.lock().unwrap();
        counts
            .iter()
            .filter(|(c, _)| *c as usize == counter as usize)
            .map(|(_, n)| n)
            .sum()
    }
    pub fn passes(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Relaxed);
    }
    /// Lets others work: the agent, or (under shuttle) other threads.
    fn moment(&self, ns: u64) {
        self.passes(ns);
        #[cfg(feature = "shuttle")]
        shuttle::thread::yield_now();
        #[cfg(not(feature = "shuttle"))]
        self.agent.lock().unwrap().step(self);
    }
}

fn yield_now() {
    #[cfg(feature = "shuttle")]
    shuttle::thread::yield_now();
}

/// The tenant's slabs.
pub struct OurSlabs<'a>(&'a World);

impl Slabs for OurSlabs<'_> {
    fn high(&self) -> u32 {
        SLABS as u32
    }
    fn take(&self) -> Option<u32> {
        let mut taken = self.0.taken.lock().unwrap();
        if taken.len() as u64 >= self.0.slabs_max.load(Relaxed) {
            return None;
        }
        let slab = (0..SLABS as u32).find(|s| !taken.contains(s))?;
        taken.push(slab);
        Some(slab)
    }
    fn give_up(&self, slab: u32) {
        let mut taken = self.0.taken.lock().unwrap();
        let at = taken.iter().position(|s| *s == slab).expect("it was taken");
        taken.remove(at);
    }
    fn others(&self, _: u32, _: &mut dyn FnMut(Span)) -> bool {
        true
    }
}

/// The pool's limit.
pub struct Budget<'a>(&'a World);

impl PoolBudget for Budget<'_> {
    fn charge(&self, bytes: i64) -> bool {
        let now = self.0.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if bytes > 0 && now > self.0.bound.load(Ordering::Relaxed) {
            self.0.used.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        true
    }
    fn charge_past_bound(&self, bytes: i64) -> bool {
        self.0.used.fetch_add(bytes, Ordering::Relaxed);
        true
    }
    fn drop_extent_ref(&self, place: ExtentRef) {
        self.0.extent_book().unhold(place.extent, &OurSlabs(self.0));
    }
}

type Pool<'a> = LocalPool<'a, Short, &'a Mem, Budget<'a>>;

/// A process with its pages.
pub struct Toy<'a> {
    pub pool: Pool<'a>,
    pub w: &'a World,
}

impl Pages for Toy<'_> {
    type Seen = Word;
    fn read_state(&self, page: u32) -> Option<Word> {
        let word = self.w.words.get(page as usize)?;
        Some(Word(word.load(Ordering::Acquire)))
    }
    fn entry(seen: Word) -> SwapEntry {
        seen.entry()
    }
    fn location(seen: Word) -> PageLocation {
        match seen.state() {
            LOCAL => PageLocation::Local,
            FAR => PageLocation::Far {
                in_far_tier: seen.has(BEYOND),
            },
            _ => PageLocation::Other,
        }
    }
    fn claim(&self, page: u32, seen: Word) -> bool {
        assert!(matches!(seen.state(), LOCAL | FAR));
        self.w.words[page as usize]
            .compare_exchange(seen.0, seen.busy().0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
    fn publish(&self, page: u32, seen: Word, outcome: PageOutcome) {
        let far = seen.state() == FAR;
        self.put(
            page,
            match outcome {
                PageOutcome::Unchanged => seen,
                PageOutcome::InFarTier if far => Word(seen.0 | BEYOND),
                PageOutcome::InPool if far => Word(seen.0 & !BEYOND),
                PageOutcome::PromotedAhead if far => Word(seen.0 & !BEYOND | REFERENCED),
                PageOutcome::NoCopy if !far => Word(seen.0 & !COPY),
                other => panic!("{seen:?} becomes {other:?}"),
            },
        );
    }
    fn oldest(&self, scan_max: Option<usize>, mut take: impl FnMut(u32, Word) -> bool) {
        if self.w.all_used.load(Relaxed) > 0 {
            self.w.all_used.fetch_sub(1, Relaxed);
            return;
        }
        let n = self.w.words.len();
        let rounds = if scan_max.is_some() { 1 } else { 2 };
        for _ in 0..n * rounds {
            let page = self.w.hand.load(Relaxed) as usize % n;
            let seen = Word(self.w.words[page].load(Ordering::Acquire));
            let offered = seen.state() == FAR && seen.entry().is_some() && !seen.has(BEYOND);
            if offered && seen.has(REFERENCED) {
                let passed = seen.0 & !REFERENCED;
                let order = Ordering::AcqRel;
                let _ =
                    self.w.words[page].compare_exchange(seen.0, passed, order, Ordering::Relaxed);
            } else if offered && !take(page as u32, seen) {
                return;
            }
            self.w.hand.store(page as u64 + 1, Relaxed);
        }
    }
    fn with_copies(&self, _: usize, mut take: impl FnMut(u32, Word) -> bool) {
        // A search over many pages takes its time.
        self.w.passes(1_000_000);
        let n = self.w.words.len();
        for _ in 0..n {
            let page = self.w.copy_hand.load(Relaxed) as usize % n;
            let seen = Word(self.w.words[page].load(Ordering::Acquire));
            if seen.state() == LOCAL && seen.has(COPY) && !take(page as u32, seen) {
                return;
            }
            self.w.copy_hand.store(page as u64 + 1, Relaxed);
        }
    }
}

impl Host for Toy<'_> {
    fn now_ns(&self) -> u64 {
        self.w.now_ns.fetch_add(1_000, Relaxed)
    }
    fn yield_now() {
        yield_now();
    }
    fn pause(&self, ns: u64) {
        self.w.moment(ns);
    }
    fn count(&self, counter: Counter, n: u64) {
        self.w.counts.lock().unwrap().push((counter, n));
    }
    fn pool_bytes(&self) -> i64 {
        self.w.used.load(Ordering::Relaxed)
    }
    fn pool_bound_bytes(&self) -> i64 {
        self.w.bound.load(Ordering::Relaxed)
    }
    fn pool_configured_bytes(&self) -> u64 {
        self.pool_bound_bytes() as u64
    }
    fn keeps_far_copies(&self) -> bool {
        self.w.keeps
    }
    fn ask_for_pool(&self, _: PoolPeer) -> bool {
        false
    }
    fn cannot_write(&self, why: Status) {
        self.w.told.lock().unwrap().push(why);
    }
}

impl<'a> Owner for Toy<'a> {
    type Lz = Short;
    type Mem = &'a Mem;
    type Budget = Budget<'a>;
    fn pool(&self) -> &LocalPool<'_, Short, &'a Mem, Budget<'a>> {
        &self.pool
    }
    fn state(&self) -> &State {
        &self.w.state
    }
}

impl Channel for Toy<'_> {
    fn mailbox(&self) -> &Mailbox {
        &self.w.mailbox
    }
    fn notify_agent(&self) {}
    fn read<R>(&self, of: &Request, on: impl FnOnce(&[u8; EXTENT_BYTES]) -> R) -> R {
        on(&self.w.buffers[of.index()].try_lock().expect("ours alone"))
    }
    fn fill<R>(&self, of: &mut Request, on: impl FnOnce(&mut [u8; EXTENT_BYTES]) -> R) -> R {
        on(&mut self.w.buffers[of.index()].try_lock().expect("ours alone"))
    }
    fn copy_out(&self, of: &Request, offset: usize, out: &mut [u8]) {
        let buffer = self.w.buffers[of.index()].try_lock().expect("ours alone");
        out.copy_from_slice(&buffer[offset..offset + out.len()]);
    }
    fn sleep(&self, _: &AtomicU32, _: u32, ns: u64) {
        self.w.moment(ns / 100);
    }
    fn yield_cpu(&self) {
        self.w.moment(1_000);
    }
    fn wait_ns_max(&self) -> u64 {
        20_000_000
    }
    fn demote_percent(&self) -> u64 {
        75
    }
    fn unit_bytes(&self) -> u64 {
        self.w.unit_bytes.load(Relaxed)
    }
    fn note_unit(&self, bytes: u64) {
        self.w.unit_learned.store(bytes, Relaxed);
    }
    fn note_read(&self, _: u64) {}
    fn note_ahead(&self, ns: u64) {
        self.w.ahead_ns.lock().unwrap().push(ns);
    }
}

impl<'a> FarStore for Toy<'a> {
    type Owner = Toy<'a>;
    type Slabs = OurSlabs<'a>;
    fn owner(&self) -> &Toy<'a> {
        self
    }
    fn slabs(&self) -> OurSlabs<'a> {
        OurSlabs(self.w)
    }
    fn book(&self) -> ExtentBook<'_> {
        self.w.extent_book()
    }
    fn slabs_used_and_max(&self) -> (u64, u64) {
        let used = self.w.taken.lock().unwrap().len() as u64;
        (used, self.w.slabs_max.load(Relaxed))
    }
}

impl Toy<'_> {
    fn put(&self, page: u32, word: Word) {
        let was = self.w.words[page as usize].swap(word.0, Ordering::AcqRel);
        assert_eq!(
            Word(was).state(),
            BUSY,
            "who publishes a page has claimed it"
        );
    }

    pub fn word(&self, page: u32) -> Word {
        self.read_state(page).unwrap()
    }

    /// Writes to a page of local memory. True when it was local, or new.
    pub fn write(&self, page: u32, content: Content) -> bool {
        let seen = self.word(page);
        let busy = match seen.state() {
            UNTOUCHED => Word::of(BUSY, SwapEntry::NONE, 0),
            LOCAL => seen.busy(),
            _ => return false,
        };
        let order = Ordering::AcqRel;
        let word = &self.w.words[page as usize];
        if word
            .compare_exchange(seen.0, busy.0, order, Ordering::Relaxed)
            .is_err()
        {
            return false;
        }
        *self.w.local[page as usize].lock().unwrap() = content;
        self.put(page, Word(busy.0 & !0xf | LOCAL));
        true
    }

    /// Evicts a local page. False when it is not local, or no room can be made for it.
    pub fn swap_out(&self, page: u32) -> bool {
        let seen = self.word(page);
        if seen.state() != LOCAL || !self.claim(page, seen) {
            return false;
        }
        let data = self.w.local[page as usize].lock().unwrap().bytes();
        let mut scratch = Box::new(Scratch::new());
        let (entry, mut copy) = (seen.entry(), seen.has(COPY));
        let outcome = loop {
            match self.pool.store(entry, copy, &data, &mut scratch) {
                Ok(outcome) => break Some(outcome),
                Err(StoreError::Full { copy_dropped }) => copy &= !copy_dropped,
                Err(StoreError::NoEntry) => panic!("as many entries as pages"),
            }
            if !resident_copies::make_room(self) && !demote::make_room(self) {
                break None;
            }
        };
        let Some(outcome) = outcome else {
            self.put(page, Word::of(LOCAL, entry, if copy { COPY } else { 0 }));
            return false;
        };
        *self.w.local[page as usize].lock().unwrap() = Content { seed: 3, len: 9 };
        let beyond = self.pool.extent_ref(outcome.entry).is_some();
        self.put(
            page,
            Word::of(FAR, outcome.entry, if beyond { BEYOND } else { 0 }),
        );
        true
    }

    /// Reads a far page, which must be `want`. `keep`: it keeps its entry. `neighbours`: also fetch by the far read
    /// size. An error when far memory did not deliver it this time.
    pub fn swap_in(
        &self,
        page: u32,
        want: Content,
        keep: bool,
        neighbours: bool,
    ) -> Result<(), Lost> {
        let mut out = Box::new([0x55; PAGE_SIZE]);
        let mut scratch = Box::new(Scratch::new());
        let mut stored = Box::new(Stored::new());
        loop {
            let seen = self.word(page);
            match seen.state() {
                FAR => {}
                BUSY => {
                    yield_now();
                    continue;
                }
                _ => return Ok(()),
            }
            if !self.claim(page, seen) {
                continue;
            }
            let mut came_from = None;
            match self.pool.load(seen.entry(), &mut out, &mut scratch) {
                Ok(()) => {}
                Err(LoadError::InFarTier(place)) if channel::is_in_flight(self, page, place) => {
                    self.publish(page, seen, PageOutcome::Unchanged);
                    completion::wait_for_arrival(self, page, place);
                    // Another thread may be completing it.
                    yield_now();
                    continue;
                }
                Err(LoadError::InFarTier(place)) => {
                    let loaded = fetch::load(self, seen.entry(), place, &mut out, &mut stored);
                    if let Err(lost) = loaded {
                        self.publish(page, seen, PageOutcome::Unchanged);
                        return Err(lost);
                    }
                    came_from = Some(place);
                }
                Err(other) => panic!("page {page}: {other:?}"),
            }
            assert!(*out == *want.bytes(), "page {page} came back as another");
            fetch::used(self, seen.entry());
            if came_from.is_none() && seen.has(REFERENCED) {
                fetch::neighbour_used(self);
            }
            if let Some(place) = came_from
                && neighbours
            {
                fetch::fetch_neighbours(self, place.extent);
                fetch::keep(self, seen.entry(), place, &stored);
            }
            *self.w.local[page as usize].lock().unwrap() = want;
            if keep && seen.entry().is_some() {
                self.put(page, Word::of(LOCAL, seen.entry(), COPY));
            } else {
                self.pool.release(seen.entry());
                self.put(page, Word::of(LOCAL, SwapEntry::NONE, 0));
            }
            return Ok(());
        }
    }

    /// Prefetches a page from far memory alone. True when it was requested.
    pub fn read_ahead(&self, page: u32) -> bool {
        let seen = self.word(page);
        if seen.state() != FAR || !self.claim(page, seen) {
            return false;
        }
        let place = self.pool.extent_ref(seen.entry());
        let asked = place.is_some_and(|place| fetch::ahead(self, page, place));
        self.publish(page, seen, PageOutcome::Unchanged);
        asked
    }

    /// Frees a page, wherever it is.
    pub fn discard(&self, page: u32) {
        let seen = self.word(page);
        if matches!(seen.state(), LOCAL | FAR) && self.claim(page, seen) {
            self.pool.release(seen.entry());
            self.put(page, Word(UNTOUCHED));
        }
    }

    /// Checks everything, while no thread works: each page is where its word says and has its content; each extent is
    /// kept by the entries that name it, and by its requests under way; no entry is lost, and the charge is right.
    pub fn check(&self, contents: impl Fn(u32) -> Content) {
        self.check_and_read(contents, |_| true);
    }

    /// [`Toy::check`], which reads only those far pages for which `reads` is true.
    pub fn check_and_read(&self, contents: impl Fn(u32) -> Content, reads: impl Fn(u32) -> bool) {
        let agent = &mut *self.w.agent.lock().unwrap();
        agent.collect(self.w);
        let mut named = vec![0; EXTENTS];
        let mut entries = 0;
        for page in 0..self.w.words.len() as u32 {
            let (word, want) = (self.word(page), contents(page));
            let entry = word.entry();
            entries += u64::from(entry.is_some());
            let places = [self.pool.extent_ref(entry), self.pool.home_ref(entry)];
            for place in places.into_iter().flatten().filter(|_| entry.is_some()) {
                named[place.extent as usize] += 1;
            }
            match word.state() {
                UNTOUCHED => assert!(!entry.is_some() && want == ZEROS),
                LOCAL => {
                    assert_eq!(
                        *self.w.local[page as usize].lock().unwrap(),
                        want,
                        "page {page}"
                    );
                    let empty =
                        !entry.is_some() || matches!(self.pool.record(entry), Record::Empty);
                    assert_eq!(word.has(COPY), !empty, "page {page}: {word:?}");
                }
                FAR if reads(page) => self.check_far(page, entry, want, agent),
                FAR => {}
                other => panic!("page {page} is in state {other}"),
            }
        }
        assert_eq!(self.pool.stats().entries_live, entries, "entries");
        assert_eq!(self.pool.charged_bytes(), self.pool_bytes(), "charged");
        for i in 0..REQUESTS {
            if (WRITES | FETCHES) & 1 << i != 0
                && let Some(extent) = agent.at_work_on(self.w, i)
            {
                named[extent as usize] += 1;
            }
        }
        let live: Vec<_> = self
            .w
            .live
            .iter()
            .map(|n| i32::from(n.load(Ordering::Relaxed)))
            .collect();
        assert_eq!(live, named, "reasons to keep each extent");
        let taken = self.w.taken.lock().unwrap();
        for (extent, n) in live.iter().enumerate() {
            assert!(
                *n == 0 || taken.contains(&((extent / PER_SLAB) as u32)),
                "{extent}"
            );
        }
    }

    fn check_far(&self, page: u32, entry: SwapEntry, want: Content, agent: &Agent) {
        let mut out = Box::new([0x55; PAGE_SIZE]);
        match self
            .pool
            .load(entry, &mut out, &mut Box::new(Scratch::new()))
        {
            Ok(()) => {}
            Err(LoadError::InFarTier(place)) => {
                let stored = agent
                    .record(place)
                    .unwrap_or_else(|| panic!("page {page}: {place:?}"));
                self.pool.decode(entry, &stored, &mut out).unwrap();
            }
            Err(other) => panic!("page {page}: {other:?}"),
        }
        assert!(*out == *want.bytes(), "page {page} is another");
    }
}

/// How many jobs of a kind the agent has.
pub fn under_way(toy: &Toy, kind: JobKind) -> usize {
    let among = if kind == JobKind::Demote {
        WRITES
    } else {
        FETCHES
    };
    (toy.w.mailbox.in_use() & among).count_ones() as usize
}
