//! The application tier of prefetching ([`canvas_pager::app`]), where faults meet it.
//!
//! A plan by thread and array is carried out like one of the low tier: its pages are mapped ahead. Links and references
//! pay where a page costs much more than a fault, so they serve what lies beyond the pool: the page is read into the
//! pool alone, in the background, and the fault that comes finds it there.

use canvas_pager::api::refs::Content;
use canvas_pager::app::links::{Asked, Links, Place};
use canvas_pager::app::refs::{Candidate, Encoding, Groups, candidates};
use canvas_pager::app::trial::{Answer, Trial};
use canvas_pager::app::{self, Thread};
use canvas_pager::prefetch::advised::Advice;
use canvas_pager::prefetch::choice::Surroundings;
use canvas_pager::prefetch::{FaultKind, Plan};
use canvas_pager::word::{self, State};
use canvas_shm::Counter;
use canvas_sys::proc;
use canvas_types::layout::{WINDOW_PAGES, in_window};
use canvas_types::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, RawSpin};
use canvas_types::{AppTier, PAGE_SIZE, PageBuf, PageId, Prefetch};
use core::cell::UnsafeCell;

use crate::api::told;
use crate::base::{areas, jvm, state, state::PREFETCHERS, state::count, thread, time};
use crate::far_tier::tier;
use crate::paging::fault;

/// Threads that are known at one time; two whose numbers are alike forget each other.
const THREADS: usize = 64;
/// The kind of a thread is looked at again after so long: it may get its name after its first fault.
const KIND_AGAIN_NS: u64 = 1_000_000_000;

struct Slot {
    lock: RawSpin,
    /// The thread that has it, by its hash.
    who: AtomicU32,
    thread: UnsafeCell<Thread>,
}

struct Threads([Slot; THREADS]);
// SAFETY: a slot's thread is only touched in `with_thread`, by who holds its lock.
unsafe impl Sync for Threads {}

const NOBODY: Thread = Thread::new();
static ALL: Threads = Threads(
    [const {
        Slot {
            lock: RawSpin::new(),
            who: AtomicU32::new(0),
            thread: UnsafeCell::new(NOBODY),
        }
    }; THREADS],
);
static GROUPS: Groups = Groups::new();
/// Whether reading ahead pays.
static TRIAL: Trial = Trial::new();
/// Links are kept from here on.
static LINKS_PAGES: AtomicU64 = AtomicU64::new(0);
static HAS_FAR: AtomicBool = AtomicBool::new(false);

/// Pages that were read into the pool ahead, the later over the earlier: `page << 1 | by reference`.
static RAISED: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// At start-up.
pub fn start() {
    let pages = state::seg().local_limit_pages().unwrap_or(0).max(0) as u64;
    LINKS_PAGES.store(pages, Ordering::Relaxed);
    let has_far = tier::is_there() && areas::open_links(pages as usize).is_ok();
    HAS_FAR.store(has_far, Ordering::Relaxed);
}

fn links() -> Links<'static> {
    Links::new(areas::links(LINKS_PAGES.load(Ordering::Relaxed) as usize))
}

/// The calling thread's state, unless another one of its number is at it.
fn with_thread<R>(on: impl FnOnce(&mut Thread) -> R) -> Option<R> {
    let hash = thread::thread_hash() as u32;
    let slot = &ALL.0[hash as usize % THREADS];
    let _held = slot.lock.try_lock()?;
    // SAFETY: the slot's lock is held until this returns, and nothing else touches the cell; `on` cannot come here
    // again, for no fault nests in ours.
    let thread = unsafe { &mut *slot.thread.get() };
    if slot.who.swap(hash, Ordering::Relaxed) != hash {
        *thread = NOBODY;
    }
    Some(on(thread))
}

/// What is asked for now: nothing where nothing is to come back before it is touched; and unless it is asked for,
/// nothing beside the prefetchers that are there to be compared with.
#[inline]
fn chosen() -> AppTier {
    let config = &state::seg().config;
    match (config.prefetch(), config.app_tier()) {
        (Prefetch::None, _) | (Prefetch::Leap | Prefetch::Readahead, AppTier::Auto) => AppTier::Off,
        (_, tier) => tier,
    }
}

/// The low tier's `plan` for a fault, or what the application tier puts in its place.
#[inline]
pub fn plan(page: PageId, kind: FaultKind, plan: Plan, around: &impl Surroundings) -> Plan {
    if chosen() == AppTier::Off {
        return plan;
    }
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
    // A page that one of our plans left unmapped is ours to learn from as well.
    if plan.count > 0 || forwarded != Some(true) && kind != FaultKind::PrefetchHit {
        return plan;
    }
    // A Java heap is no array: what lies beside each other there are objects of any age. And the program's word on a
    // region comes first.
    if jvm::is_in_heap(page.addr()) || around.advice(page) != Advice::Normal {
        return plan;
    }
    let hash = thread::thread_hash() as u32;
    let ours = PREFETCHERS.on_forwarded(hash, page, kind, around);
    match ours.is_of_array() {
        true => ours,
        false => plan,
    }
}

/// What the thread is for: by its own word, or by its name where a JVM is.
fn look_at_kind(t: &mut Thread) {
    let now = time::now_ns();
    let is_fresh = t.kind_seen_ns != 0 && now < t.kind_seen_ns + KIND_AGAIN_NS;
    if is_fresh || t.kind_seen_ns == u64::MAX {
        return;
    }
    // Looked at twice: at first, and when it has its name.
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

/// Byte `offset` of the page, by the instruction at `ip`, is where the fault was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct At {
    /// In bytes.
    pub offset: usize,
    /// 0 where it is not known.
    pub ip: usize,
}

/// A page has been brought in for a fault that was forwarded; `bytes` is what it holds. Reads ahead what links and
/// references say.
#[inline]
pub fn follow(page: PageId, at: At, bytes: &PageBuf) {
    if !HAS_FAR.load(Ordering::Relaxed) {
        return;
    }
    let tier = chosen();
    if tier.has_links() {
        note_use(page);
        follow_forwarded(page, at, bytes, tier);
    }
}

fn follow_forwarded(page: PageId, at: At, bytes: &PageBuf, tier: AppTier) {
    let mut may = true;
    let found = with_thread(|t| {
        let nothing = (Asked::default(), Asked::default());
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
        let by_link = t.chain.on_fault(&links(), Place::new(page, at.offset));
        let mut by_ref = Asked::default();
        if tier.has_refs() {
            let mut found = [Candidate::default(); app::refs::CANDIDATES_MAX];
            let n = candidates(bytes, at.offset, encoding(page), far_page, &mut found);
            let came = GROUPS.on_fault(&mut t.ring, page, at.ip, &found[..n], &mut by_ref);
            count(Counter::AppRefsLive, u64::from(came.issued));
            count(Counter::AppRefsCovered, u64::from(came.covered));
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
            TRIAL.issued(issued as u32);
        }
    }
}

/// May something be read ahead, by what that has given so far?
fn compare() -> Answer {
    let answer = TRIAL.on_fault(time::now_ns());
    match answer.vote {
        Some(true) => count(Counter::AppTrialsFor, 1),
        Some(false) => count(Counter::AppTrialsAgainst, 1),
        None => {}
    }
    answer
}

/// How references are written in the page: as the program has told, as the JVM says, or as addresses.
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

/// The far page that an address lies in.
fn far_page(address: usize) -> Option<PageId> {
    if !in_window(address) {
        return None;
    }
    let page = PageId::of_addr(address & !(PAGE_SIZE - 1));
    (page.index() < WINDOW_PAGES && word::load(areas::word(page)).state() == State::Far)
        .then_some(page)
}

/// Reads a page ahead, if it lies beyond the pool.
fn read_ahead(page: PageId, mark: u64) -> bool {
    let asked =
        page.index() < WINDOW_PAGES && fault::ask_for(page, |place| tier::read_ahead(page, place));
    if asked {
        let slot = &RAISED[page.index() % RAISED.len()];
        slot.store(u64::from(page.0) << 1 | mark, Ordering::Relaxed);
    }
    asked
}

/// A page was faulted on: had it been read ahead?
fn note_use(page: PageId) {
    let slot = &RAISED[page.index() % RAISED.len()];
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
