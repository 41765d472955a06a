//! Shared pages against a naive oracle: processes that map the same pages count in them, one evicts, one moves far
//! copies beyond the store, and any of them may be killed between any two steps. No count is ever lost, and no page
//! ever has another's contents.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::rc::Rc;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use canvas_core::pager::shared::demotion::{DemotedCopy, Demoter};
use canvas_core::pager::shared::word::{Entry, State, load};
use canvas_core::pager::shared::{
    ClaimOutcome, Fill, Journal, Kernel, Partition, VICTIMS_MAX, phase,
};
use canvas_testing::random::scaled;
use canvas_types::{PAGE_SIZE, PageBuf};
use proptest::prelude::*;

const PROCS: usize = 4;
const PAGES: usize = 12;
/// Pages that the pipe holds.
const PIPE: usize = 6;
/// Far copies that the store holds.
const STORE: usize = 10;
/// Extents beyond the store, and copies per extent.
const EXTENTS: usize = 5;
const RECORDS: usize = 3;
/// Requests that carry copies there.
const REQUESTS: usize = 2;
/// Entries of copies beyond the store begin here.
const BEYOND: u64 = 1000;
/// How deeply steps of other processes nest.
const NESTED_MAX: u32 = 3;

/// A process was killed.
struct Killed;

type Page = Rc<RefCell<PageBuf>>;

/// State of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Free,
    Claimed,
    Sent,
    Ended(bool),
}

/// A request: the copies that it carries, and its extent.
#[derive(Clone)]
struct Request {
    stage: Stage,
    extent: usize,
    lines: Vec<(u32, Entry, PageBuf)>,
}

/// Extent and record of an entry whose copy lies beyond the store.
fn beyond(entry: Entry) -> Option<(usize, usize)> {
    let i = entry.0.checked_sub(BEYOND)? as usize;
    Some((i / RECORDS, i % RECORDS))
}

/// The kernel, the memory that processes share, and what the pages must hold.
struct World {
    random: Cell<u64>,
    words: Vec<AtomicU64>,
    phase: AtomicU32,
    count: AtomicU32,
    list: Vec<AtomicU32>,
    hand: AtomicU32,
    copies_hand: AtomicU32,
    requests: RefCell<Vec<Request>>,
    /// Contents of the extents, and how many entries name each.
    extents: RefCell<Vec<Vec<PageBuf>>>,
    uses: RefCell<Vec<usize>>,
    /// Contents, when stored, of the pages whose copies lie there.
    hashes: RefCell<Vec<PageBuf>>,
    sunk: Cell<u32>,
    raised: Cell<u32>,
    /// Process that holds the lock, plus one.
    lock: Cell<usize>,
    alive: [Cell<bool>; PROCS],
    /// Pages that each process has pinned.
    pinned: RefCell<[Option<u32>; PROCS]>,
    /// Pinned pages that a system call found present and is using.
    used: RefCell<[Option<u32>; PROCS]>,
    file: RefCell<Vec<Option<Page>>>,
    pipe: RefCell<Vec<Page>>,
    /// Bytes of the first page in the pipe that were read already.
    read: Cell<usize>,
    staging: RefCell<Vec<PageBuf>>,
    store: RefCell<Vec<(bool, PageBuf)>>,
    want: RefCell<Vec<PageBuf>>,
    depth: Cell<u32>,
    killed: Cell<u32>,
    evicted: Cell<u32>,
    taken_over: Cell<u32>,
    deadly: Cell<bool>,
}

/// One process's view of the world.
#[derive(Clone, Copy)]
struct Process<'a> {
    world: &'a World,
    me: usize,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            random: Cell::new(seed | 1),
            words: (0..PAGES).map(|_| AtomicU64::new(0)).collect(),
            phase: AtomicU32::new(0),
            count: AtomicU32::new(0),
            list: (0..VICTIMS_MAX).map(|_| AtomicU32::new(0)).collect(),
            hand: AtomicU32::new(0),
            copies_hand: AtomicU32::new(0),
            requests: RefCell::new(vec![
                Request {
                    stage: Stage::Free,
                    extent: 0,
                    lines: Vec::new()
                };
                REQUESTS
            ]),
            extents: RefCell::new(vec![Vec::new(); EXTENTS]),
            uses: RefCell::new(vec![0; EXTENTS]),
            hashes: RefCell::new(vec![[0xcc; PAGE_SIZE]; PAGES]),
            sunk: Cell::new(0),
            raised: Cell::new(0),
            lock: Cell::new(0),
            alive: [const { Cell::new(true) }; PROCS],
            pinned: RefCell::default(),
            used: RefCell::default(),
            file: RefCell::new(vec![None; PAGES]),
            pipe: RefCell::default(),
            read: Cell::new(0),
            staging: RefCell::new(vec![[0xee; PAGE_SIZE]; VICTIMS_MAX]),
            store: RefCell::new(vec![(false, [0xdd; PAGE_SIZE]); STORE]),
            want: RefCell::new(vec![[0; PAGE_SIZE]; PAGES]),
            depth: Cell::new(0),
            killed: Cell::new(0),
            evicted: Cell::new(0),
            taken_over: Cell::new(0),
            deadly: Cell::new(true),
        }
    }
    fn draw(&self, below: usize) -> usize {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        ((x >> 11) % below as u64) as usize
    }
    fn partition(&self) -> Partition<'_> {
        Partition {
            words: &self.words,
            journal: Journal {
                phase: &self.phase,
                count: &self.count,
                pages: &self.list,
            },
            hand: &self.hand,
            copies_hand: &self.copies_hand,
        }
    }
    /// Runs one action of `me`, which may be killed in it.
    fn act(&self, me: usize, what: impl FnOnce(Process<'_>)) {
        let process = Process { world: self, me };
        let depth = self.depth.get();
        self.depth.set(depth + 1);
        if let Err(why) = catch_unwind(AssertUnwindSafe(|| what(process))) {
            assert!(why.is::<Killed>(), "a process failed");
            self.alive[me].set(false);
            self.unpin(me);
            self.killed.set(self.killed.get() + 1);
        }
        self.depth.set(depth);
    }
    fn unpin(&self, me: usize) {
        self.used.borrow_mut()[me] = None;
        self.pinned.borrow_mut()[me] = None;
    }
    fn anything(&self, me: usize) {
        if let Some(page) = self.used.borrow()[me] {
            assert!(
                self.file.borrow()[page as usize].is_some(),
                "a pinned page is gone"
            );
        }
        self.serve();
        self.act(me, |p| match self.draw(12) {
            0..=2 => p.evict(),
            3 => p.pin(),
            4 => self.unpin(me),
            5..=7 => p.demote(),
            _ => p.touch(self.draw(PAGES) as u32),
        });
    }
}

impl World {
    /// The agent completes a request, or fails it.
    fn serve(&self) {
        let i = self.draw(2 * REQUESTS);
        let mut requests = self.requests.borrow_mut();
        let Some(r) = requests.get_mut(i).filter(|r| r.stage == Stage::Sent) else {
            return;
        };
        let ok = self.draw(8) > 0;
        if ok {
            let names = |w: &AtomicU64| beyond(load(w).entry()).is_some_and(|(e, _)| e == r.extent);
            assert!(
                !self.words.iter().any(names),
                "an extent that is named is overwritten"
            );
            let contents = r.lines.iter().map(|(_, _, content)| *content);
            self.extents.borrow_mut()[r.extent] = contents.collect();
        }
        r.stage = Stage::Ended(ok);
    }
    fn uses(&self, extent: usize, by: isize) {
        let count = &mut self.uses.borrow_mut()[extent];
        *count = count
            .checked_add_signed(by)
            .expect("held as often as let go");
    }
}

impl Process<'_> {
    /// Carries copies beyond the store, completes requests that have ended, or drops copies.
    fn demote(&self) {
        if self.lock() {
            let (w, end) = (self.world, PAGES as u32);
            let p = w.partition();
            match w.draw(5) {
                0 | 1 => drop(p.demote(self, 2 * end, end)),
                2 | 3 => w.sunk.set(w.sunk.get() + p.complete_demotions(self, || ())),
                _ => drop(p.drop_copies(self, 2, 2 * end, end)),
            }
            self.unlock();
        }
    }
    /// Takes the lock if it is free or its holder is dead.
    fn lock(&self) -> bool {
        let w = self.world;
        let holder = w.lock.get();
        if holder == 0 {
            w.lock.set(self.me + 1);
        } else if w.alive[holder - 1].get() {
            return false;
        } else {
            w.lock.set(self.me + 1);
            w.taken_over.set(w.taken_over.get() + 1);
            w.partition().recover(self, PAGES as u32);
        }
        // Dead processes are replaced once all that was theirs is settled.
        for slot in 0..PROCS {
            if !w.alive[slot].get() {
                w.partition().recover_owner(self, slot as u16, PAGES as u32);
                self.step();
                w.alive[slot].set(true);
            }
        }
        true
    }
    fn unlock(&self) {
        self.world.lock.set(0);
    }
    fn evict(&self) {
        if self.lock() {
            let want = 1 + self.world.draw(8);
            let done = self.world.partition().evict(self, want, PAGES as u32);
            let evicted = &self.world.evicted;
            evicted.set(evicted.get() + done.pages);
            self.unlock();
        }
    }
    /// Makes a page present; false if another process is working on it.
    fn bring(&self, page: u32) -> bool {
        let p = self.world.partition();
        for _ in 0..3 {
            match p.claim(page, self.me as u16) {
                ClaimOutcome::Present => return true,
                ClaimOutcome::Poisoned => panic!("page {page} is damaged"),
                ClaimOutcome::Claimed(word) => assert_ne!(p.fill(self, page, word), Fill::Damaged),
                ClaimOutcome::Busy(owner) => {
                    let dead = owner.is_some_and(|o| !self.world.alive[o as usize].get());
                    let holder = self.world.lock.get();
                    let orphan =
                        owner.is_none() && holder > 0 && !self.world.alive[holder - 1].get();
                    if !(dead || orphan) || !self.lock() {
                        return false;
                    }
                    self.unlock();
                }
            }
        }
        false
    }
    /// Counts in a page, as a program does: by one access if the page is present, else by a fault.
    fn touch(&self, page: u32) {
        for _ in 0..3 {
            if self.access(page) || !self.bring(page) {
                return;
            }
        }
    }
    /// A load and a store of its own counter, and a look at all others; false if the page is absent.
    fn access(&self, page: u32) -> bool {
        let w = self.world;
        let there = w.file.borrow()[page as usize].clone();
        let Some(there) = there else { return false };
        let mut want = w.want.borrow_mut();
        let want = &mut want[page as usize];
        assert!(*there.borrow() == *want, "page {page} is not what it was");
        // Sometimes the page becomes zeros again, sometimes what it was before.
        if w.draw(16) == 0 {
            want.fill(0);
        } else {
            let at = self.me * 1000 + w.draw(2) * 8;
            want[at] = want[at].wrapping_add(1);
        }
        *there.borrow_mut() = *want;
        true
    }
    /// A system call: pins first and looks afterwards; from then on the kernel must find the page.
    fn pin(&self) {
        let page = self.world.draw(PAGES) as u32;
        self.world.unpin(self.me);
        self.world.pinned.borrow_mut()[self.me] = Some(page);
        self.step();
        for _ in 0..4 {
            if load(&self.world.words[page as usize]).state() == State::Resident {
                // The page stays from now on, however long the call takes.
                self.world.used.borrow_mut()[self.me] = Some(page);
                return;
            }
            if !self.bring(page) {
                break;
            }
        }
        self.world.unpin(self.me);
    }
}

impl Kernel for Process<'_> {
    fn step(&self) {
        let w = self.world;
        if w.deadly.get() && w.draw(60) == 0 {
            panic_any(Killed);
        }
        if w.depth.get() < NESTED_MAX && w.draw(3) == 0 {
            let other = w.draw(PROCS);
            if other != self.me && w.alive[other].get() && !w.is_busy(other) {
                w.busy(self.me, || w.anything(other));
            }
        }
    }
    fn splice(&self, page: u32, n: u32) -> u32 {
        let mut pipe = self.world.pipe.borrow_mut();
        let n = n
            .min((PIPE - pipe.len()) as u32)
            .min(1 + self.world.draw(4) as u32);
        for page in page..page + n {
            let there = self.world.file.borrow()[page as usize].clone();
            pipe.push(there.expect("what is spliced is there"));
        }
        n
    }
    fn punch(&self, page: u32, n: u32) {
        for page in page..page + n {
            self.world.file.borrow_mut()[page as usize] = None;
        }
    }
    fn in_pipe(&self) -> usize {
        self.world.pipe.borrow().len() * PAGE_SIZE - self.world.read.get()
    }
    fn read_pipe(&self, place: usize, offset: usize) -> usize {
        let w = self.world;
        assert_eq!(offset, w.read.get(), "read to its place");
        let n = (1 + w.draw(3)) * 1024;
        let n = n.min(PAGE_SIZE - offset);
        let page = w.pipe.borrow()[0].clone();
        w.staging.borrow_mut()[place][offset..offset + n]
            .copy_from_slice(&page.borrow()[offset..offset + n]);
        w.read.set(offset + n);
        if offset + n == PAGE_SIZE {
            w.pipe.borrow_mut().remove(0);
            w.read.set(0);
        }
        n
    }
    fn drain(&self) {
        self.world.pipe.borrow_mut().clear();
        self.world.read.set(0);
    }
    fn is_pinned(&self, page: u32) -> bool {
        self.world.pinned.borrow().contains(&Some(page))
    }
    fn save(&self, number: u32, place: usize, old: Entry) -> Option<Entry> {
        let page = self.world.staging.borrow()[place];
        if page == [0; PAGE_SIZE] {
            return Some(Entry::NONE);
        }
        if beyond(old).is_some() && self.world.hashes.borrow()[number as usize] == page {
            return Some(old);
        }
        let i = {
            let store = self.world.store.borrow();
            if self.is_in_store(old) && store[old.0 as usize - 1].1 == page {
                return Some(old);
            }
            store.iter().position(|(used, _)| !used)?
        };
        let entry = Entry(i as u64 + 1);
        assert!(
            self.world.words.iter().all(|w| load(w).entry() != entry),
            "an entry that is in use is overwritten"
        );
        self.world.store.borrow_mut()[i].0 = true;
        // Half of it is written if the process is killed here.
        self.world.store.borrow_mut()[i].1[..2000].copy_from_slice(&page[..2000]);
        self.step();
        self.world.store.borrow_mut()[i].1 = page;
        Some(entry)
    }
    fn freed(&self, entry: Entry) {
        if let Some((extent, _)) = beyond(entry) {
            return self.world.uses(extent, -1);
        }
        let used = &mut self.world.store.borrow_mut()[entry.0 as usize - 1].0;
        assert!(*used, "freed once");
        *used = false;
    }
    fn put_back(&self, page: u32, place: usize) {
        let content = self.world.staging.borrow()[place];
        self.world.copy(page, content);
    }
    fn fill_new(&self, page: u32) -> Fill {
        if self.world.draw(10) == 0 {
            return Fill::Failed;
        }
        self.world.copy(page, [0; PAGE_SIZE]);
        Fill::Present
    }
    fn fill_far(&self, page: u32, entry: Entry) -> Fill {
        if self.world.draw(10) == 0 {
            return Fill::Failed;
        }
        if let Some((extent, i)) = beyond(entry) {
            self.step();
            if self.world.draw(10) == 0 {
                return Fill::Unreachable;
            }
            let content = self.world.extents.borrow()[extent].get(i).copied();
            if content != Some(self.world.hashes.borrow()[page as usize]) {
                return Fill::Damaged;
            }
            self.step();
            self.world.copy(page, content.unwrap_or([0; PAGE_SIZE]));
            self.world.raised.set(self.world.raised.get() + 1);
            return Fill::Present;
        }
        let content = match entry {
            Entry::NONE => [0; PAGE_SIZE],
            e => self.world.store.borrow()[e.0 as usize - 1].1,
        };
        self.step();
        self.world.copy(page, content);
        Fill::Present
    }
    fn is_present(&self, page: u32) -> bool {
        self.world.file.borrow()[page as usize].is_some()
    }
    fn forget_entries(&self) {
        for (used, _) in self.world.store.borrow_mut().iter_mut() {
            *used = false;
        }
        self.world.uses.borrow_mut().fill(0);
        for i in 0..REQUESTS {
            let mut requests = self.world.requests.borrow_mut();
            let r = &mut requests[i];
            match r.stage {
                Stage::Claimed => r.stage = Stage::Free,
                Stage::Free => {}
                Stage::Sent | Stage::Ended(_) => self.world.uses(r.extent, 1),
            }
        }
    }
    fn keep(&self, entry: Entry) {
        if let Some((extent, _)) = beyond(entry) {
            return self.world.uses(extent, 1);
        }
        let used = &mut self.world.store.borrow_mut()[entry.0 as usize - 1].0;
        assert!(!*used, "an entry has one page");
        *used = true;
    }
}

impl Demoter for Process<'_> {
    fn is_in_store(&self, entry: Entry) -> bool {
        entry.is_some() && entry.0 < BEYOND
    }
    fn begin(&self) -> Option<usize> {
        let w = self.world;
        let i = w
            .requests
            .borrow()
            .iter()
            .position(|r| r.stage == Stage::Free)?;
        w.requests.borrow_mut()[i].stage = Stage::Claimed;
        self.step();
        let Some(extent) = w.uses.borrow().iter().position(|n| *n == 0) else {
            w.requests.borrow_mut()[i].stage = Stage::Free;
            return None;
        };
        w.uses(extent, 1);
        self.step();
        let r = &mut w.requests.borrow_mut()[i];
        (r.extent, r.lines) = (extent, Vec::new());
        Some(i)
    }
    fn pack(&self, request: usize, page: u32, entry: Entry) -> bool {
        let content = self.world.store.borrow()[entry.0 as usize - 1].1;
        let lines = &mut self.world.requests.borrow_mut()[request].lines;
        if lines.len() == RECORDS {
            return false;
        }
        lines.push((page, entry, content));
        true
    }
    fn send(&self, request: usize) {
        self.world.requests.borrow_mut()[request].stage = Stage::Sent;
    }
    fn release(&self, request: usize) {
        let extent = self.world.requests.borrow()[request].extent;
        self.world.uses(extent, -1);
        self.step();
        self.world.requests.borrow_mut()[request].stage = Stage::Free;
    }
    fn ended(&self) -> Option<(usize, bool)> {
        let requests = self.world.requests.borrow();
        requests
            .iter()
            .enumerate()
            .find_map(|(i, r)| match r.stage {
                Stage::Ended(ok) => Some((i, ok)),
                _ => None,
            })
    }
    fn each_copy(&self, request: usize, mut on: impl FnMut(DemotedCopy)) {
        let r = self.world.requests.borrow()[request].clone();
        for (i, (page, from, _)) in r.lines.into_iter().enumerate() {
            let to = Entry(BEYOND + (r.extent * RECORDS + i) as u64);
            on(DemotedCopy { page, from, to });
        }
    }
    fn confirm(&self, request: usize, copy: DemotedCopy) -> bool {
        let w = self.world;
        let was = w.store.borrow()[copy.from.0 as usize - 1].1;
        let (extent, i) = beyond(copy.to).expect("it was carried");
        if w.requests.borrow()[request].lines[i].2 != was {
            return false;
        }
        // Half of it is written if the process is killed here.
        w.hashes.borrow_mut()[copy.page as usize][..2000].copy_from_slice(&was[..2000]);
        self.step();
        w.hashes.borrow_mut()[copy.page as usize] = was;
        w.uses(extent, 1);
        true
    }
    fn retract(&self, copy: DemotedCopy) {
        self.freed(copy.to);
    }
}

thread_local! {
    static BUSY: Cell<u32> = const { Cell::new(0) };
}

impl World {
    /// UFFDIO_COPY: does nothing if the page is present.
    fn copy(&self, page: u32, content: PageBuf) {
        self.file.borrow_mut()[page as usize].get_or_insert_with(|| Rc::new(RefCell::new(content)));
    }
    fn is_busy(&self, process: usize) -> bool {
        BUSY.get() & 1 << process != 0
    }
    /// Runs `what` while `process` is between two steps.
    fn busy(&self, process: usize, what: impl FnOnce()) {
        let before = BUSY.get();
        BUSY.set(before | 1 << process);
        what();
        BUSY.set(before);
    }
}

/// Counts of a run: processes killed, pages evicted, locks taken over, copies moved beyond the store, and copies that
/// came back.
fn run(seed: u64, steps: usize) -> [u32; 5] {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<Killed>() {
                before(info);
            }
        }));
    });
    let w = World::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1);
    BUSY.set(0);
    for _ in 0..steps {
        let me = w.draw(PROCS);
        if w.alive[me].get() {
            w.anything(me);
        } else if w.alive.iter().all(|a| !a.get()) {
            // A new process starts: it finds all others dead, including its slot's last owner.
            w.depth.set(NESTED_MAX);
            w.act(me, |p| {
                if p.lock() {
                    p.unlock();
                }
            });
            w.depth.set(0);
        }
    }
    // The surviving processes find everything.
    w.deadly.set(false);
    w.depth.set(NESTED_MAX);
    (0..PROCS).for_each(|p| w.unpin(p));
    let me = (0..PROCS).find(|p| w.alive[*p].get()).unwrap_or(0);
    let p = Process { world: &w, me };
    assert!(p.lock());
    p.unlock();
    p.partition_is_settled();
    for page in 0..PAGES as u32 {
        for _ in 0..100 {
            if p.access(page) {
                break;
            }
            p.bring(page);
        }
        assert!(p.access(page));
    }
    assert_eq!(w.phase.load(Ordering::Relaxed), phase::CHOSEN);
    assert!(w.pipe.borrow().is_empty());
    // With no request in progress, exactly what pages name is in use.
    while w.requests.borrow().iter().any(|r| r.stage != Stage::Free) {
        w.serve();
        p.world.partition().complete_demotions(&p, || ());
    }
    let named = |entry: Entry| {
        w.words
            .iter()
            .filter(|word| load(word).entry() == entry)
            .count()
    };
    for (i, (used, _)) in w.store.borrow().iter().enumerate() {
        assert_eq!(
            usize::from(*used),
            named(Entry(i as u64 + 1)),
            "of the store"
        );
    }
    for (extent, uses) in w.uses.borrow().iter().enumerate() {
        let first = BEYOND + (extent * RECORDS) as u64;
        let names: usize = (0..RECORDS as u64).map(|i| named(Entry(first + i))).sum();
        assert_eq!(*uses, names, "of extent {extent}");
    }
    [&w.killed, &w.evicted, &w.taken_over, &w.sunk, &w.raised].map(Cell::get)
}

impl Process<'_> {
    /// What holds at any time: a page that is far or untouched is not in the file.
    fn partition_is_settled(&self) {
        for (page, word) in self.world.words.iter().enumerate() {
            let state = load(word).state();
            if matches!(state, State::Far | State::Untouched) {
                assert!(!self.is_present(page as u32), "page {page} is {state:?}");
            }
            if state == State::Resident {
                assert!(self.is_present(page as u32), "page {page} is Resident");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: scaled(60), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_count_is_lost_whoever_dies(seed in any::<u64>()) {
        run(seed, 400);
    }
}

#[test]
#[cfg_attr(miri, ignore = "40,000 steps")]
fn processes_are_killed_in_the_middle_and_pages_are_evicted() {
    let mut sum = [0; 5];
    for seed in 0..40 {
        for (sum, one) in sum.iter_mut().zip(run(seed, 1000)) {
            *sum += one;
        }
    }
    let [killed, evicted, taken_over, sunk, raised] = sum;
    println!(
        "{killed} killed, {evicted} pages evicted, {taken_over} locks taken over, {sunk} copies left the store, {raised} came back from there"
    );
    assert!(killed > 500 && evicted > 2000 && taken_over > 100);
    assert!(sunk > 500 && raised > 500);
}
