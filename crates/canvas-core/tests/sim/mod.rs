//! A simulated kernel, process and program for the pager's tests: the shipped code of [`canvas_core::vm`] runs over it.
//!
//! The kernel knows what is mapped; each page holds one number, repeated, and the program knows which. The kernel fails
//! as the real one does: it stops copies in the middle, has no memory for a while, keeps pages that it should discard.
#![allow(dead_code)]

mod store;

use std::cell::UnsafeCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicI64, AtomicU64 as Plain, Ordering::Relaxed};

use canvas_core::pager::prefetch::{Advice, Area};
use canvas_core::pager::slot::{self, Control, SlotTable};
use canvas_core::pager::table::PageTable;
use canvas_core::pager::word::{self, State as At, Word, flag};
use canvas_core::pager::writes::Writes;
use canvas_core::swap::LoadError;
use canvas_core::vm::context::Batch;
use canvas_core::vm::context::Fill;
use canvas_core::vm::fault::{Resolved, fault};
use canvas_core::vm::{
    Claim, Copied, Discarded, FaultSite, Held, Kernel, Observers, Process, Range, Report, Source,
    State, Stop, ledger, locked, reclaim,
};
use canvas_shm::segment::SEGMENT_BYTES;
use canvas_shm::slow::Cause;
use canvas_shm::{ProcSlot, Segment};
use canvas_types::layout::BLOCK_PAGES;
use canvas_types::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering, Threads};
use canvas_types::{PAGE_SIZE, PageBuf, PageId};

#[cfg(feature = "shuttle")]
use shuttle::sync::Mutex;
#[cfg(not(feature = "shuttle"))]
use std::sync::Mutex;

/// A page of one number.
pub fn page_of(n: u64) -> PageBuf {
    let words = [n.to_le_bytes(); PAGE_SIZE / 8];
    words.as_flattened().try_into().unwrap()
}

/// The number of a page; all of it must be the same.
fn number(page: &PageBuf) -> u64 {
    let n = u64::from_le_bytes(page[..8].try_into().unwrap());
    assert!(*page == page_of(n), "a torn page");
    n
}

struct Mapped {
    page: Box<PageBuf>,
    protected: bool,
}

/// Memory of zeros, on a page border, for ever.
fn zeroed(bytes: usize) -> *mut u8 {
    let layout = std::alloc::Layout::from_size_align(bytes, PAGE_SIZE).unwrap();
    // SAFETY: the layout is not empty.
    let at = unsafe { std::alloc::alloc_zeroed(layout) };
    assert!(!at.is_null());
    at
}

/// Contexts that are not in use. They are never freed: a test makes a few.
struct Contexts<T: 'static>(Mutex<Vec<&'static mut T>>);

/// A context, until dropped.
pub struct Context<'a, T: 'static> {
    of: &'a Contexts<T>,
    at: Option<&'static mut T>,
}

impl<T> Contexts<T> {
    fn new() -> Contexts<T> {
        Contexts(Mutex::new(Vec::new()))
    }
    /// # Safety
    ///
    /// All zeros must be a valid `T`.
    unsafe fn take(&self) -> Context<'_, T> {
        let free = self.0.lock().unwrap().pop();
        let at = free.unwrap_or_else(|| {
            let at = zeroed(size_of::<T>()).cast::<T>();
            // SAFETY: fresh memory of the right size and alignment; zeros are valid (the caller's promise).
            unsafe { &mut *at }
        });
        Context {
            of: self,
            at: Some(at),
        }
    }
}

impl<T> Deref for Context<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.at.as_ref().unwrap()
    }
}

impl<T> DerefMut for Context<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.at.as_mut().unwrap()
    }
}

impl<T> Drop for Context<'_, T> {
    fn drop(&mut self) {
        let at = self.at.take();
        self.of.0.lock().unwrap().extend(at);
    }
}

/// Buffers of the swap cache's slots.
struct Buffers(Vec<UnsafeCell<PageBuf>>);
// SAFETY: a slot's buffer is written by its allocator alone, and read by its writer and taker, who exclude that; this
// is what the tests test.
unsafe impl Sync for Buffers {}
// SAFETY: nothing in a buffer belongs to a thread.
unsafe impl Send for Buffers {}

/// How a world is set up.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub pages: usize,
    pub slots: usize,
    pub limit_pages: i64,
    /// Copies that far memory has room for.
    pub copies: usize,
    /// One kernel call in this many fails; 0 for none.
    pub fails: u64,
    /// There is far memory beyond the pool.
    pub beyond: bool,
    /// One first touch in this many is of locked memory; 0 for none.
    pub locks: u64,
    pub seed: u64,
}

/// A process that was killed in the middle of a call.
pub struct Killed;

/// A process and its kernel.
pub struct Sim {
    pub plan: Plan,
    state: State,
    seg: &'static Segment,
    /// Its slot in the segment.
    number: usize,
    words: Vec<AtomicU64>,
    resident: Vec<AtomicU32>,
    high: AtomicU32,
    /// The word of pages that are not the program's.
    beyond: AtomicU64,
    control: Control,
    slot_halves: [Vec<AtomicU32>; 3],
    slot_words: [Vec<AtomicU64>; 2],
    buffers: Buffers,
    writes: Vec<AtomicU8>,
    window: Mutex<BTreeMap<u32, Mapped>>,
    copies: Mutex<store::Copies>,
    /// Pages that a fork's child still maps, and how many of them stay charged here although they have left.
    relatives: Mutex<BTreeSet<u32>>,
    kept_pages: AtomicI64,
    /// Calls until the process is killed.
    calls_left: Plain,
    fills: Contexts<Fill>,
    batches: Contexts<Batch>,
    /// Chooses which calls of the kernel fail.
    dice: std::sync::Mutex<fastrand::Rng>,
    now_ns: Plain,
    pub seen: Mutex<BTreeSet<&'static str>>,
}

fn threads() -> Threads {
    Threads {
        yield_now: || {},
        number: || 0,
    }
}

impl Sim {
    pub fn new(plan: Plan) -> Sim {
        // SAFETY: zeroed memory of that size, on a page border, which nobody frees.
        let seg = unsafe { Segment::at(zeroed(SEGMENT_BYTES).expose_provenance()) };
        seg.config
            .local_bytes
            .store(plan.limit_pages as u64 * 4096, Relaxed);
        seg.config.pool_bytes.store(1 << 30, Relaxed);
        Self::of(plan, seg)
    }

    /// Another process of the same tenant.
    pub fn relative(&self, plan: Plan) -> Sim {
        Self::of(plan, self.seg)
    }

    fn of(plan: Plan, seg: &'static Segment) -> Sim {
        let halves = |n: usize| (0..n).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
        let words = |n: usize| (0..n).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let blocks = plan.pages.div_ceil(BLOCK_PAGES);
        let slots = plan.slots;
        let number = (0..2).position(|i| seg.procs[i].take(i as u64 + 1));
        let number = number.expect("a tenant of two processes");
        seg.procs_end.fetch_max(number as u32 + 1, Relaxed);
        let sim = Sim {
            plan,
            state: State::new(),
            seg,
            number,
            words: words(blocks * BLOCK_PAGES),
            resident: halves(blocks),
            high: AtomicU32::new(0),
            beyond: AtomicU64::new(0),
            control: Control::new(),
            slot_halves: [halves(slots), halves(slots), halves(slots)],
            slot_words: [words(slots), words((2 * slots).next_power_of_two())],
            buffers: Buffers(
                (0..slots)
                    .map(|_| UnsafeCell::new([0; PAGE_SIZE]))
                    .collect(),
            ),
            writes: (0..blocks).map(|_| AtomicU8::new(0)).collect(),
            window: Mutex::new(BTreeMap::new()),
            copies: Mutex::default(),
            relatives: Mutex::default(),
            kept_pages: AtomicI64::new(0),
            calls_left: Plain::new(u64::MAX),
            fills: Contexts::new(),
            batches: Contexts::new(),
            dice: std::sync::Mutex::new(fastrand::Rng::with_seed(plan.seed)),
            now_ns: Plain::new(1_000_000_000),
            seen: Mutex::default(),
        };
        sim.cache().set_capacity(slots);
        sim
    }

    pub fn saw(&self, what: &'static str) {
        self.seen.lock().unwrap().insert(what);
    }

    fn fails(&self, what: &'static str) -> bool {
        if self.calls_left.fetch_sub(1, Relaxed) == 0 {
            std::panic::panic_any(Killed);
        }
        let fails = self.plan.fails != 0 && self.dice.lock().unwrap().u64(..self.plan.fails) == 0;
        if fails {
            self.saw(what);
        }
        fails
    }

    // -- the program --------------------------------------------------------------------------

    /// Reads a page; `None` if there is no memory for it.
    pub fn read(&self, page: u32) -> Option<u64> {
        loop {
            if let Some(mapped) = self.window.lock().unwrap().get(&page) {
                return Some(number(&mapped.page));
            }
            self.fault(page, false)?;
        }
    }

    /// Writes to a page; `None` if there is no memory for it.
    pub fn write(&self, page: u32, n: u64) -> Option<()> {
        loop {
            if let Some(mapped) = self.window.lock().unwrap().get_mut(&page)
                && !mapped.protected
            {
                *mapped.page = page_of(n);
                // The kernel copies what a relative maps, too.
                self.relatives.lock().unwrap().remove(&page);
                return Some(());
            }
            self.fault(page, true)?;
        }
    }

    /// Forks: the child maps all that is resident, until it ends.
    pub fn fork(&self) {
        let window = self.window.lock().unwrap();
        *self.relatives.lock().unwrap() = window.keys().copied().collect();
        self.saw("forked");
    }

    /// The child ends: what it alone kept in memory is free.
    pub fn child_ends(&self) {
        self.relatives.lock().unwrap().clear();
        let kept = self.kept_pages.swap(0, Relaxed);
        self.seg.charge_local(self.slot(), -kept);
        self.seg.charge_footprint(-kept);
    }

    /// Kills the process in the middle of one of its next `calls` calls of the kernel, of the store or for a failure.
    pub fn kill_after(&self, calls: u64) {
        self.calls_left.store(calls, Relaxed);
    }

    /// Releases what another process of the tenant, which was killed, had charged.
    pub fn release(&self, other: &Sim) {
        self.seg
            .release_slot(other.slot(), other.number as u64 + 1, |_| ());
        self.saw("released");
    }

    fn fault(&self, page: u32, write: bool) -> Option<()> {
        let at = FaultSite {
            page: PageId(page),
            ..FaultSite::default()
        };
        match fault(self, at, write) {
            Resolved::Present => Some(()),
            Resolved::NoMemory => {
                self.saw("no memory for a fault");
                None
            }
            Resolved::Poisoned => {
                self.saw("a damaged page");
                None
            }
            // The thread waits, and tries again.
            Resolved::Unreachable => {
                self.saw("far memory did not answer a fault");
                Some(())
            }
            other => panic!("a fault on page {page}: {other:?}"),
        }
    }

    /// A system call begins that may write to a page; `None` if there is no memory for it.
    pub fn pin(&self, page: u32) -> Option<()> {
        while !word::pin(&self.words[page as usize]) {
            self.fault(page, true)?;
        }
        self.saw("pinned");
        Some(())
    }

    /// The system call writes, and ends.
    pub fn write_pinned(&self, page: u32, n: u64) {
        {
            let mut window = self.window.lock().unwrap();
            let mapped = window.get_mut(&page).expect("a pinned page was unmapped");
            assert!(
                !mapped.protected,
                "a system call cannot write to page {page}"
            );
            *mapped.page = page_of(n);
            self.relatives.lock().unwrap().remove(&page);
        }
        word::unpin(&self.words[page as usize]);
    }

    /// Discards pages, as a mapping call does; they read as zeros from then on.
    pub fn discard_pages(&self, pages: core::ops::Range<u32>) {
        for page in pages {
            let w = &self.words[page as usize];
            let cur = loop {
                let cur = word::load(w);
                if cur.state() == At::Untouched {
                    break None;
                }
                if !cur.state().is_busy() && word::transition(w, cur, cur.with_state(At::Mapping)) {
                    break Some(cur);
                }
                Self::yield_to_page();
            };
            let Some(cur) = cur else { continue };
            reclaim::forget(self, PageId(page), cur);
            self.window.lock().unwrap().remove(&page);
            self.relatives.lock().unwrap().remove(&page);
            word::publish(w, Word(0));
            self.seg.charge_footprint(-1);
            self.saw("discarded");
        }
    }

    /// Locks a resident page in memory, or releases it.
    pub fn lock(&self, page: u32, on: bool) {
        let w = &self.words[page as usize];
        let cur = word::load(w);
        if cur.state() != At::Resident || cur.has(flag::LOCKED) == on || cur.has(flag::PROTECTED) {
            return;
        }
        if on && locked::take(self.seg, self.slot(), 1) {
            if word::transition(w, cur, cur.set(flag::LOCKED)) {
                self.saw("locked");
            } else {
                locked::note(self.slot(), -1);
            }
        } else if !on && word::transition(w, cur, cur.clear(flag::LOCKED | flag::STUCK)) {
            locked::note(self.slot(), -1);
        }
    }

    /// Changes the limit on local memory.
    pub fn set_limit(&self, pages: i64) {
        self.seg
            .config
            .local_bytes
            .store(pages as u64 * 4096, Relaxed);
    }

    // -- what must hold when no thread is under way --------------------------------------------

    /// Checks all books; `value` says what each page must read as.
    pub fn check(&self, value: impl Fn(u32) -> u64) {
        let window = self.window.lock().unwrap();
        let copies = self.copies.lock().unwrap();
        let (mut entries, mut slots) = (BTreeSet::new(), BTreeSet::new());
        let (mut far, mut locked) = (0, 0);
        let mut resident = vec![0; self.resident.len()];
        for page in 0..self.words.len() as u32 {
            let w = word::load(&self.words[page as usize]);
            let mapped = window.get(&page);
            let reads = match w.state() {
                At::Untouched => {
                    assert!(w.0 == 0 && mapped.is_none(), "page {page}: {w:?}");
                    0
                }
                At::Resident => {
                    let mapped = mapped.expect("a resident page is mapped");
                    assert_eq!(
                        w.has(flag::PROTECTED),
                        mapped.protected,
                        "page {page}: {w:?}"
                    );
                    resident[page as usize / BLOCK_PAGES] += 1;
                    if w.is_clean() {
                        assert_eq!(copies.value(w.entry()), Some(number(&mapped.page)));
                    }
                    number(&mapped.page)
                }
                At::Cached => {
                    assert!(mapped.is_none(), "page {page} is in two places");
                    let slot = slot::of_word(w);
                    assert!(slots.insert(slot), "slot {slot} is in two words");
                    number(self.slot_page(slot))
                }
                At::Far => {
                    assert!(mapped.is_none(), "page {page} is in two places");
                    far += 1;
                    match w.entry().is_some() {
                        true => copies.value(w.entry()).expect("a far page has a copy"),
                        false => 0,
                    }
                }
                At::Poisoned => value(page),
                other => panic!("page {page} is left {other:?}"),
            };
            assert_eq!(reads, value(page), "page {page}: {w:?}");
            assert_eq!(w.pins(), 0, "page {page} kept a pin");
            locked += i64::from(w.has(flag::LOCKED));
            let entry = match w.state() {
                At::Cached => {
                    self.slot_words[0][slot::of_word(w) as usize].load(Ordering::Relaxed) as u32
                }
                _ => w.entry().0,
            };
            if entry != 0 {
                assert!(
                    entries.insert(entry),
                    "entry {entry} is page {page}'s and another's"
                );
            }
        }
        assert_eq!(
            entries, copies.live,
            "entries in words, and those that are allocated"
        );
        for (block, n) in resident.iter().enumerate() {
            assert_eq!(
                self.resident[block].load(Ordering::Relaxed),
                *n,
                "resident in block {block}"
            );
        }
        let all: u32 = resident.iter().sum();
        let me = self.slot();
        assert_eq!(
            me.resident_pages.load(Relaxed),
            i64::from(all),
            "resident pages"
        );
        let counted = self.state.resident_pages.load(Ordering::Relaxed);
        assert_eq!(counted, i64::from(all), "resident pages of the process");
        let touched = self
            .words
            .iter()
            .filter(|w| word::load(w).state() != At::Untouched);
        let footprint = self.seg.footprint_pages.load(Relaxed);
        let kept = self.kept_pages.load(Relaxed);
        // The segment does not know which charged slots of a process that ended held a page.
        if !self.seen.lock().unwrap().contains("released") {
            assert_eq!(footprint, touched.count() as i64 + kept, "the footprint");
        }
        assert_eq!(me.far_pages.load(Relaxed), far, "far pages");
        assert_eq!(me.locked_pages.load(Relaxed), locked, "locked pages");
        assert_eq!(self.cache().used() as usize, slots.len(), "slots in use");
        let cached = me.cached_pages.load(Relaxed);
        assert_eq!(cached, i64::from(self.cache().buffers()), "charged slots");
        assert_eq!(
            me.charged_pages.load(Relaxed),
            i64::from(all) + cached + kept,
            "charged pages"
        );
        assert_eq!(
            self.seg.local_pages.load(Relaxed),
            i64::from(all) + cached + kept,
            "the tenant's pages"
        );
    }
}

impl Kernel for Sim {
    fn now_ns(&self) -> u64 {
        self.now_ns.fetch_add(1000, Relaxed)
    }
    fn sleep(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Relaxed);
        Self::yield_now();
    }
    fn sleep_holding(&self, ns: u64) {
        self.sleep(ns);
    }
    fn during<R>(&self, _: Cause, f: impl FnOnce() -> R) -> R {
        f()
    }
    fn yield_to_page() {
        Self::yield_now();
    }
    fn yield_to_chunk() {
        Self::yield_now();
    }
    fn yield_now() {
        #[cfg(feature = "shuttle")]
        shuttle::thread::yield_now();
        #[cfg(not(feature = "shuttle"))]
        std::thread::yield_now();
    }
    fn copy_in(&self, to: Held, from: Source<'_>, protect: bool) -> Copied {
        for i in 0..to.pages() {
            let stopped = |stop| Copied {
                pages: i,
                stopped: Some(stop),
            };
            // The kernel says so before it copies anything.
            if i == 0 && to.pages() > 1 && self.fails("copy stopped at a border") {
                return stopped(Stop::Border);
            }
            if self.fails("copy interrupted") {
                return stopped(Stop::Again);
            }
            if self.fails("no free page for a while") {
                return stopped(Stop::NoMemory);
            }
            let page = to.first().plus(i);
            let w = word::load(self.word(page));
            assert_eq!(
                w.state(),
                At::Filling,
                "page {page:?} is filled by its owner"
            );
            let bytes = match from {
                Source::Zeros => [0; PAGE_SIZE],
                Source::Slot(slot) => *self.slot_page(slot),
                Source::Staged(pages) => pages[i],
            };
            let mapped = Mapped {
                page: Box::new(bytes),
                protected: protect,
            };
            let before = self.window.lock().unwrap().insert(page.0, mapped);
            assert!(before.is_none(), "page {page:?} was present already");
        }
        Copied {
            pages: to.pages(),
            stopped: None,
        }
    }
    fn copy_out(&self, page: Held, slot: u32) {
        let w = word::load(self.word(page.first()));
        assert!(
            w.state() == At::Evicting && w.pins() == 0 && !w.has(flag::LOCKED),
            "{w:?}"
        );
        let bytes = {
            let window = self.window.lock().unwrap();
            let mapped = &window[&page.first().0];
            assert!(
                mapped.protected,
                "the program can write while its page is copied"
            );
            *mapped.page
        };
        self.fill_slot(slot, &bytes);
    }
    fn protect(&self, pages: Held, on: bool) -> bool {
        if on && self.fails("protection refused") {
            return false;
        }
        let mut window = self.window.lock().unwrap();
        let first = pages.first().0;
        for (page, mapped) in window.range_mut(first..first + pages.pages() as u32) {
            // A page that came in after a span was protected is there when the span is released; it came in writable.
            let w = word::load(&self.words[*page as usize]);
            let may_change = w.state().is_busy() || !on && !w.has(flag::PROTECTED);
            assert!(may_change, "page {page} is {w:?}, and nobody holds it");
            mapped.protected = on;
        }
        true
    }
    fn discard(&self, ranges: &[Range]) -> Discarded {
        let (mut all, mut still_shared) = (true, 0);
        for r in ranges {
            let first = PageId::of_addr(r.addr());
            for i in 0..r.bytes() / PAGE_SIZE {
                let page = first.plus(i);
                assert_eq!(word::load(self.word(page)).state(), At::Evicting);
                if self.fails("page kept") {
                    all = false;
                    continue;
                }
                self.window.lock().unwrap().remove(&page.0);
                still_shared += i64::from(self.relatives.lock().unwrap().remove(&page.0));
            }
        }
        Discarded { all, still_shared }
    }
    fn discard_page(&self, page: Held) -> bool {
        if self.is_present(page.first()) && self.fails("page kept again") {
            return false;
        }
        let page = page.first().0;
        self.window.lock().unwrap().remove(&page);
        let shared = self.relatives.lock().unwrap().remove(&page);
        self.keep_charge(i64::from(shared));
        true
    }
    fn is_present(&self, page: PageId) -> bool {
        self.window.lock().unwrap().contains_key(&page.0)
    }
    fn wake(&self, _: &[Range]) {}
}

impl Process for Sim {
    fn state(&self) -> &State {
        &self.state
    }
    fn segment(&self) -> &Segment {
        self.seg
    }
    fn slot(&self) -> &ProcSlot {
        &self.seg.procs[self.number]
    }
    fn table(&self) -> PageTable<'_> {
        PageTable {
            words: &self.words,
            resident_in_block: &self.resident,
            high_block: &self.high,
        }
    }
    fn word(&self, page: PageId) -> &AtomicU64 {
        self.words.get(page.index()).unwrap_or(&self.beyond)
    }
    fn cache(&self) -> SlotTable<'_> {
        SlotTable {
            control: &self.control,
            states: &self.slot_halves[0],
            pages: &self.slot_halves[1],
            entries: &self.slot_words[0],
            free_stack: &self.slot_halves[2],
            ring: &self.slot_words[1],
            threads: threads(),
        }
    }
    fn slot_page(&self, slot: u32) -> &PageBuf {
        // SAFETY: the caller is the slot's writer or taker (or no thread is under way), so nobody writes there.
        unsafe { &*self.buffers.0[slot as usize].get() }
    }
    fn fill_slot(&self, slot: u32, page: &PageBuf) {
        // SAFETY: the caller has allocated the slot, and nobody else knows of it yet.
        unsafe { *self.buffers.0[slot as usize].get() = *page };
    }
    fn writes(&self) -> Writes<'_> {
        Writes(&self.writes)
    }
    fn thread(&self) -> usize {
        0
    }
    fn has_forked(&self) -> bool {
        self.seen.lock().unwrap().contains("forked")
    }
    fn fill(&self) -> impl DerefMut<Target = Fill> {
        // SAFETY: all zeros is a valid `Fill`, as its documentation says.
        unsafe { self.fills.take() }
    }
    fn batch(&self) -> impl DerefMut<Target = Batch> {
        // SAFETY: all zeros is a valid `Batch`, as its documentation says.
        unsafe { self.batches.take() }
    }
    fn release_dead(&self, _: &ProcSlot) -> bool {
        false
    }
    fn wake_other(&self, _: &ProcSlot) {}
    fn start_reclaimer(&self) {}
    fn wake_reclaimer(&self) {}
    fn claim_untouched(&self, page: PageId, ahead: u32, stride: i32) -> Option<Claim> {
        let claim = |p: u32| {
            let w = &self.words[p as usize];
            let cur = word::load(w);
            cur.state() == At::Untouched && word::transition(w, cur, cur.with_state(At::Filling))
        };
        let locks = self.plan.locks;
        let is_locked = locks != 0 && self.dice.lock().unwrap().u64(..locks) == 0;
        let claimed = |from, to| {
            Some(Claim {
                from: PageId(from),
                to: PageId(to),
                is_locked,
            })
        };
        let page = page.0;
        if !claim(page) {
            return claimed(page, page);
        }
        let chunk = page & !63;
        let (mut from, mut to) = (page, page + 1);
        if stride == 1 {
            let end = (chunk + 64)
                .min(page + 1 + ahead)
                .min(self.plan.pages as u32);
            while to < end && claim(to) {
                to += 1;
            }
        } else if stride == -1 {
            let low = chunk.max(page.saturating_sub(ahead));
            while from > low && claim(from - 1) {
                from -= 1;
            }
        }
        claimed(from, to)
    }
    fn unclaim(&self, _: PageId, _: usize) {}
    fn area_of(&self, _: PageId) -> Option<Area> {
        None
    }
    fn advice(&self, _: PageId) -> Advice {
        Advice::Normal
    }
    fn keep_charge(&self, pages: i64) {
        if pages > 0 {
            self.saw("stays charged for a relative");
        }
        self.kept_pages.fetch_add(pages, Relaxed);
        self.seg.charge_local(self.slot(), pages);
        self.seg.charge_footprint(pages);
    }
    fn report(&self, what: Report) {
        match what {
            Report::FarFull(_) => self.saw("far memory is full"),
            Report::Damaged {
                why: LoadError::Verify | LoadError::InFarTier(_),
                ..
            } => self.saw("damage was reported"),
            other => panic!("{other:?}"),
        }
    }
}

impl Observers for Sim {
    fn evicted(&self, _: PageId) {
        self.saw("evicted");
    }
    fn swapped_in(&self, _: FaultSite, data: &PageBuf) {
        number(data);
        self.saw("came in from far");
    }
    fn prefetched(&self, _: PageId) {
        self.saw("prefetched");
    }
}

/// Evicts about `want` pages, and writes the swap cache ahead.
pub fn evict(sim: &Sim, want: u32) {
    reclaim::reclaim(sim, want, reclaim::Reason::Background);
    reclaim::write_ahead(sim);
}

/// Charges and brings in far pages, as hints do.
pub fn bring_in(sim: &Sim, pages: &[PageId]) {
    use canvas_core::vm::fill::{FarRead, swap_in};
    let n = pages.len() as i64;
    let most = ledger::limit(sim.segment()).unwrap_or(i64::MAX);
    if !sim.segment().charge_local_within(sim.slot(), n, most) {
        return;
    }
    let done = swap_in(sim, pages, FarRead::Extents, || true, |i| i % 8 == 7);
    ledger::uncharge(sim, n - i64::from(done.mapped));
    if done.mapped > 0 {
        sim.saw("swapped in");
    }
}
