//! The application tier of prefetching ([`canvas_core::pager::app`]), a prefetcher on top of the one that the pager has
//! chosen (the low tier).
//!
//! A plan by thread or array is carried out like a plan of the low tier: its pages are mapped ahead. Links and
//! references pay only where a page costs much more than a fault, so they serve pages beyond the pool: such a page is
//! read into the pool in the background, alone, and a later fault finds it there.

use canvas_core::pager::api::refs::Content;
use canvas_core::pager::app::arrays::Arrays;
use canvas_core::pager::app::links::{Links, Position, PrefetchList};
use canvas_core::pager::app::refs::{Candidate, Encoding, Groups, candidates};
use canvas_core::pager::app::trial::{Answer, Trial};
use canvas_core::pager::app::{self, Thread};
use canvas_core::pager::prefetch::choice::Prefetchers;
use canvas_core::pager::prefetch::{Advice, Done, Fault, FaultKind, MemoryView, Plan, Prefetcher};
use canvas_core::pager::word::{self, State};
use canvas_core::vm::{FaultSite, Store, fill};
use canvas_shm::Counter;
use canvas_sys::proc;
use canvas_types::layout::{WINDOW_PAGES, in_window};
use canvas_types::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, RawSpin};
use canvas_types::{AppTier, PAGE_SIZE, PageBuf, PageId, Prefetch};
use core::cell::UnsafeCell;

use crate::api::told;
use crate::far_tier::tier;
use crate::own_memory::areas;
use crate::paging::jvm;
use crate::runtime::{
    state,
    state::{CacheAligned, PROCESS, count},
    thread, time,
};

/// Thread states kept at one time. Two threads whose hashes collide evict each other's state.
const THREADS: usize = 64;
/// The kind of a thread is determined again after this time: a thread may get its name after its first fault.
const KIND_AGAIN_NS: u64 = 1_000_000_000;

struct Slot {
    lock: RawSpin,
    /// Hash of the thread that owns the state.
    who: AtomicU32,
    thread: UnsafeCell<Thread>,
}

// SAFETY: `with_thread` alone touches a slot's thread, and holds the slot's lock.
unsafe impl Sync for Slot {}

const NOBODY: Thread = Thread::new();

state! {
    static TIER: Tier {
        threads: [Slot; THREADS] = [const {
            Slot {
                lock: RawSpin::new(),
                who: AtomicU32::new(0),
                thread: UnsafeCell::new(NOBODY),
            }
        }; THREADS],
        arrays: Arrays = Arrays::new(),
        /// Decides whether reading ahead pays.
        trial: Trial = Trial::new(),
        /// Number of pages for which links are kept.
        links_pages: AtomicU64 = AtomicU64::new(0),
        has_far: CacheAligned<AtomicBool> = CacheAligned(AtomicBool::new(false)),
    }
}
// Tables of zeros, which apart from the rest take no room in the library's file.
static GROUPS: Groups = Groups::new();
/// Pages that were promoted ahead, newer ones overwriting older ones: `page << 1 | by reference`.
static PROMOTED: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// Sets up links and far-memory use at start-up.
pub fn start() {
    let pages = state::seg().local_limit_pages().unwrap_or(0).max(0) as u64;
    TIER.links_pages.store(pages, Ordering::Relaxed);
    let has_far = tier::is_there() && areas::open_links(pages as usize).is_ok();
    TIER.has_far.store(has_far, Ordering::Relaxed);
}

fn links() -> Links<'static> {
    Links::new(areas::links(
        TIER.links_pages.load(Ordering::Relaxed) as usize
    ))
}

/// Runs `on` with the calling thread's state; `None` if another thread with the same slot is using it.
fn with_thread<R>(on: impl FnOnce(&mut Thread) -> R) -> Option<R> {
    let hash = thread::thread_hash() as u32;
    let slot = &TIER.threads[hash as usize % THREADS];
    let _held = slot.lock.try_lock()?;
    // SAFETY: the slot's lock is held until this returns, and nothing else touches the cell; if `on` came back here, it
    // would not get the lock.
    let thread = unsafe { &mut *slot.thread.get() };
    if slot.who.swap(hash, Ordering::Relaxed) != hash {
        *thread = NOBODY;
    }
    Some(on(thread))
}

/// The application tier in effect: off where nothing may be prefetched, and off by default beside the prefetchers that
/// exist for comparison (Leap, readahead).
#[inline]
fn chosen() -> AppTier {
    let config = &state::seg().config;
    match (config.prefetch(), config.app_tier()) {
        (Prefetch::None, _) | (Prefetch::Leap | Prefetch::Readahead, AppTier::Auto) => AppTier::Off,
        (_, tier) => tier,
    }
}

/// The low tier.
#[inline(always)]
fn low() -> &'static Prefetchers {
    &PROCESS.pager.prefetchers
}

/// The low tier, with the application tier on top of it.
pub struct TwoTiers;

impl Prefetcher for TwoTiers {
    #[inline]
    fn plan(&self, fault: &Fault<'_, impl MemoryView>) -> Plan {
        let plan = low().plan(fault);
        if fault.kind == FaultKind::VictimHit || chosen() == AppTier::Off {
            return plan;
        }
        plan_above(fault, plan)
    }
    #[inline]
    fn on_left(&self, page: PageId, plan: &Plan) {
        TIER.arrays.on_left(page, plan);
    }
    #[inline]
    fn carried_out(&self, plan: &Plan, done: &Done) {
        TIER.arrays.carried_out(plan, done);
        low().carried_out(plan, done);
    }
    #[inline]
    fn on_used(&self, plan: &Plan) {
        TIER.arrays.on_used(plan);
        low().on_used(plan);
    }
    #[inline]
    fn on_unused(&self, page: PageId) -> Option<u32> {
        TIER.arrays
            .on_unused(page)
            .or_else(|| low().on_unused(page))
    }
    #[inline]
    fn swapped_in(&self, at: FaultSite, data: &PageBuf) {
        follow(at, data);
    }
}

/// The low tier's `plan` for a fault, or what the application tier replaces it with.
fn plan_above(fault: &Fault<'_, impl MemoryView>, plan: Plan) -> Plan {
    let (page, kind) = (fault.page, fault.kind);
    let is_hit = matches!(kind, FaultKind::PrefetchHit | FaultKind::PrefetchLate);
    let forwarded = with_thread(|t| {
        t.note(plan.count, is_hit);
        if t.is_weak() && !is_hit {
            look_at_kind(t);
            let counter = match t.is_forwarded() {
                true => Counter::AppForwarded,
                false => Counter::AppKeptOut,
            };
            count(counter, 1);
        }
        t.is_forwarded()
    });
    // Also learn from pages that an own earlier plan left unmapped.
    if plan.count > 0 || forwarded != Some(true) && kind != FaultKind::PrefetchHit {
        return plan;
    }
    // A Java heap is no array: neighbouring objects can be of any age. And the program's own advice on a region has
    // priority.
    if jvm::is_in_heap(page.addr()) || fault.advice != Advice::Normal {
        return plan;
    }
    let ours = TIER.arrays.plan(fault);
    match Arrays::made(&ours) {
        true => ours,
        false => plan,
    }
}

/// Determines what the thread is for: by what the program declared or, with a JVM, by the thread's name.
fn look_at_kind(t: &mut Thread) {
    let now = time::now_ns();
    let is_fresh = t.kind_seen_ns != 0 && now < t.kind_seen_ns + KIND_AGAIN_NS;
    if is_fresh || t.kind_seen_ns == u64::MAX {
        return;
    }
    // Determined twice: at the first fault, and once the thread should have its name.
    t.kind_seen_ns = match t.kind_seen_ns {
        0 => now,
        _ => u64::MAX,
    };
    let tid = thread::faulting_tid();
    t.kind = told::kind_of(tid).or_else(|| {
        if !jvm::is_here() {
            return None;
        }
        let mut name = [0; 16];
        let n = proc::thread_name(tid, &mut name)?;
        Some(app::kind_of_jvm_thread(&name[..n]))
    });
}

/// Reads ahead what links and references suggest, after a page was brought in for a forwarded fault; `bytes` is the
/// page's contents.
#[inline]
fn follow(at: FaultSite, bytes: &PageBuf) {
    let page = at.page;
    if !TIER.has_far.load(Ordering::Relaxed) {
        return;
    }
    let tier = chosen();
    if tier.has_links() {
        note_use(page);
        follow_forwarded(page, at, bytes, tier);
    }
}

fn follow_forwarded(page: PageId, at: FaultSite, bytes: &PageBuf, tier: AppTier) {
    let mut may = true;
    let found = with_thread(|t| {
        let nothing = (PrefetchList::default(), PrefetchList::default());
        if !t.is_forwarded() {
            return nothing;
        }
        if tier == AppTier::Auto {
            let answer = compare();
            may = answer.may;
            if !answer.learns {
                return nothing;
            }
        }
        let by_link = t.chain.on_fault(&links(), Position::new(page, at.offset));
        let mut by_ref = PrefetchList::default();
        if tier.has_refs() {
            let mut found = [Candidate::default(); app::refs::CANDIDATES_MAX];
            let n = candidates(bytes, at.offset, encoding(page), far_page, &mut found);
            GROUPS.on_fault(&mut t.ring, page, at.ip, &found[..n], &mut by_ref);
        }
        (by_link, by_ref)
    });
    let Some((by_link, by_ref)) = found.filter(|_| may) else {
        return;
    };
    for (asked, mark, counter) in [
        (by_link, 0, Counter::AppIssuedLinks),
        (by_ref, 1, Counter::AppIssuedRefs),
    ] {
        let issued = asked.pages().iter().filter(|p| read_ahead(**p, mark));
        let issued = issued.count() as u64;
        if issued > 0 {
            count(counter, issued);
            TIER.trial.issued(issued as u32);
        }
    }
}

/// Whether reading ahead has paid so far, so that it may go on.
fn compare() -> Answer {
    let answer = TIER.trial.on_fault(time::now_ns());
    if answer.vote.is_some() {
        count(Counter::AppTrials, 1);
    }
    answer
}

/// How references are encoded in the page: as the program declared, as the JVM reports, or as plain addresses.
fn encoding(page: PageId) -> Encoding {
    match told::regions_of(page) {
        Some(told) if told.content == Content::Refs32 => Encoding::Narrow {
            base: told.base as usize,
            shift: u32::from(told.shift),
        },
        _ => jvm::narrow(page.addr()).map_or(Encoding::Raw, |n| Encoding::Narrow {
            base: n.base,
            shift: n.shift,
        }),
    }
}

/// The page that an address lies in, if it is far.
fn far_page(address: usize) -> Option<PageId> {
    if !in_window(address) {
        return None;
    }
    let page = PageId::of_addr(address & !(PAGE_SIZE - 1));
    (page.index() < WINDOW_PAGES && word::load(areas::word(page)).state() == State::Far)
        .then_some(page)
}

/// Reads a page ahead if it lies beyond the pool; returns whether it did.
fn read_ahead(page: PageId, mark: u64) -> bool {
    let asked = page.index() < WINDOW_PAGES
        && fill::request(&PROCESS, page, |place| PROCESS.read_ahead(page, place));
    if asked {
        let slot = &PROMOTED[page.index() % PROMOTED.len()];
        slot.store(u64::from(page.0) << 1 | mark, Ordering::Relaxed);
    }
    asked
}

/// Counts a fault on a page that had been read ahead.
fn note_use(page: PageId) {
    let slot = &PROMOTED[page.index() % PROMOTED.len()];
    let seen = slot.load(Ordering::Relaxed);
    if seen != 0 && seen >> 1 == u64::from(page.0) {
        slot.store(0, Ordering::Relaxed);
        let counter = match seen & 1 {
            0 => Counter::AppUsedLinks,
            _ => Counter::AppUsedRefs,
        };
        count(counter, 1);
    }
}
