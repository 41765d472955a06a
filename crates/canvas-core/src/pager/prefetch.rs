//! What to bring in besides the page that faulted (Canvas §5.2): what all prefetchers have in common.
//!
//! A prefetcher is a file or folder of its own, which implements [`Prefetcher`] and uses nothing else of the pager's
//! prefetching. [`streams`] are the pager's own. [`choice`] alone knows [`leap`], [`readahead`] and [`nearby`], and
//! chooses between them. The application tier ([`crate::pager::app`]) is a prefetcher on top of the chosen one.

use canvas_shm::Counter;
use canvas_types::sync::{AtomicU32, Ordering};
use canvas_types::{PageBuf, PageId};

pub mod choice;
pub mod leap;
pub mod nearby;
pub mod readahead;
pub mod streams;

/// Of the pages of a plan whose use is not proven, at least one in this many is left unmapped.
pub const SAMPLE_EVERY: u32 = 8;

/// Kind of a fault that is reported to a prefetcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FaultKind {
    /// The page was far and nothing had requested it.
    Demand = 0,
    /// The page was in the swap cache because a prefetch had left it there.
    PrefetchHit = 1,
    /// The page was in the swap cache because reclaim had unmapped it.
    VictimHit = 2,
    /// The fault waited for a prefetch of the same page.
    PrefetchLate = 3,
}

/// How the program says that it uses a region (madvise). It takes precedence over what faults teach.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Advice {
    /// The program has given no advice.
    #[default]
    Normal,
    /// In no order: neighbours of a page are not wanted.
    Random,
    /// From its first page to its last.
    Sequential,
}

/// A mapping: pages `start..end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area {
    /// Number of its first page.
    pub start: u32,
    /// Number after its last page.
    pub end: u32,
}

/// What a prefetcher can ask about the memory around a fault.
pub trait MemoryView {
    /// The page's mapping; `None` if that is not known now.
    fn area_of(&self, page: PageId) -> Option<Area>;
    /// Whether the page is far, so that it can be brought in. Accepts any page number.
    fn is_far(&self, page: PageId) -> bool;
    /// The current eviction epoch ([`crate::pager::clock::EpochClock`]).
    fn epoch(&self) -> u8;
}

/// A fault on a far page, or on one in the swap cache.
pub struct Fault<'a, S> {
    /// Hash of the thread; threads with the same hash are one for prefetchers.
    pub thread: u32,
    /// The page.
    pub page: PageId,
    /// What it was.
    pub kind: FaultKind,
    /// The program's advice on the page's region.
    pub advice: Advice,
    /// The memory around it.
    pub around: &'a S,
}

/// Where a fault happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultSite {
    /// The page.
    pub page: PageId,
    /// Offset of the address in the page; 0 where it is not known.
    pub offset: usize,
    /// Address of the instruction; 0 where it is not known.
    pub ip: usize,
}

/// Decides what comes in besides a page that faults. Threads call it at the same time, and none waits for another one.
pub trait Prefetcher {
    /// Handles a fault: what to bring in besides its page.
    fn plan(&self, fault: &Fault<'_, impl MemoryView>) -> Plan;
    /// Records that streams decide about `page`, and plan this: neither says anything about other faults.
    #[inline]
    fn on_stream(&self, _page: PageId, _plan: &Plan) {}
    /// Records that a page of `plan` was left unmapped.
    #[inline]
    fn on_left(&self, _page: PageId, _plan: &Plan) {}
    /// Records how a plan was carried out.
    #[inline]
    fn carried_out(&self, _plan: &Plan, _done: &Done) {}
    /// Records that a prefetched page left unmapped was used; `plan` is the plan of its fault.
    #[inline]
    fn on_used(&self, _plan: &Plan) {}
    /// Records that a prefetched page left unmapped was written out without a touch. Returns how many pages it stands
    /// for, if the prefetcher knows the page.
    #[inline]
    fn on_unused(&self, _page: PageId) -> Option<u32> {
        None
    }
    /// A far page is present, with these contents.
    #[inline]
    fn swapped_in(&self, _at: FaultSite, _data: &PageBuf) {}
}

/// A prefetcher that learns from what becomes of its own plans, which it knows again by this. The streams do not.
#[derive(PartialEq, Eq, Debug)]
pub struct Planner {
    /// Counts the pages that come in by its plans.
    pub issued: Counter,
    /// Counts those that are found used.
    pub used: Option<Counter>,
}

/// Pages to bring in: `start`, `start + stride`, ... The caller skips pages that are not far and stops at the end of
/// the mapping. If the faulting page is among them, it is not far any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Number of the first page to bring in.
    pub start: PageId,
    /// Distance between pages, in pages; never 0 unless `count` is 0.
    pub stride: i32,
    /// Number of pages.
    pub count: u32,
    /// The fault continues a stream: fill its page as [`crate::pager::clock::FillKind::Stream`] and the planned ones as
    /// [`crate::pager::clock::FillKind::StreamPrefetch`].
    pub stream: bool,
    /// Read pages beyond the pool alone, without their neighbours there.
    pub alone: bool,
    /// Leave one planned page in this many unmapped (0: none); see [`Plan::unmapped`].
    pub sample_every: u32,
    /// For a [`FaultKind::PrefetchHit`]: how many prefetched pages this one stands for, which all count as used (the
    /// sum over all hits estimates the pages used). Otherwise 0.
    pub stands_for: u32,
    /// A page of a chunk that the stream has just left, to be passed to [`crate::pager::clock::Clock::stream_passed`].
    pub behind: Option<PageId>,
    /// Who made the plan, or had left the page unmapped; `None` for the streams, and for those that learn nothing of it.
    pub planner: Option<&'static Planner>,
    /// The stream to update when the plan is carried out, and the key of its table.
    way: u8,
    key: u32,
}

/// [`Plan::way`] of a plan that belongs to no stream.
const NO_WAY: u8 = u8::MAX;

impl Plan {
    /// A plan that brings nothing in.
    pub const NONE: Plan = Plan {
        start: PageId(0),
        stride: 0,
        count: 0,
        stream: false,
        alone: false,
        sample_every: 0,
        stands_for: 0,
        behind: None,
        planner: None,
        way: NO_WAY,
        key: 0,
    };
    /// A plan for a fault of this kind that brings in nothing beside it.
    fn nothing_beside(kind: FaultKind) -> Plan {
        let stands_for = match kind {
            FaultKind::PrefetchHit => SAMPLE_EVERY,
            _ => 0,
        };
        Plan {
            stands_for,
            ..Plan::NONE
        }
    }
    /// Whether a stream expected the fault, or begins with it.
    #[inline]
    pub fn is_of_stream(&self) -> bool {
        self.way != NO_WAY
    }
    /// The `i`-th page; `None` past the end of the plan or of the managed range.
    #[inline]
    pub fn page(&self, i: u32) -> Option<PageId> {
        if i >= self.count {
            return None;
        }
        let p = i64::from(self.start.0) + i64::from(i) * i64::from(self.stride);
        ((0..canvas_types::layout::WINDOW_PAGES as i64).contains(&p)).then_some(PageId(p as u32))
    }
    /// Which of the first `n` pages to leave in the swap cache, unmapped, so that their use is seen. `far` says whether
    /// a page can be brought in at all.
    #[inline]
    pub fn unmapped(&self, n: u32, far: impl Fn(PageId) -> bool) -> Unmapped {
        let far = |i: &u32| self.page(*i).is_some_and(&far);
        let every = self.sample_every;
        // Search only if needed.
        let last_far = (every != 0).then(|| (0..n).rev().find(far)).flatten();
        Unmapped { every, last_far }
    }
}

/// The pages of a plan that are left unmapped; from [`Plan::unmapped`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unmapped {
    every: u32,
    /// Also left unmapped, in case the plan's own choice is not far.
    last_far: Option<u32>,
}

impl Unmapped {
    /// Whether the `i`-th page of the plan is left unmapped. The last page of each group of `sample_every` is: it is
    /// touched when the rest has been used.
    #[inline]
    pub fn contains(&self, i: u32) -> bool {
        self.every != 0 && (i % self.every == self.every - 1 || self.last_far == Some(i))
    }
}

/// How a plan was carried out, counted from its first page (for [`Prefetcher::carried_out`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Pages that the caller has examined.
    pub reached: u32,
    /// Of these, pages that were far and were brought in.
    pub issued: u32,
    /// Of these, pages that were left unmapped.
    pub marked: u32,
}

fn get(a: &AtomicU32) -> u32 {
    a.load(Ordering::Relaxed)
}
fn put(a: &AtomicU32, v: u32) {
    a.store(v, Ordering::Relaxed);
}

/// The one of `span` numbers that more than half of them are.
fn majority(span: usize, at: impl Fn(usize) -> u32) -> Option<u32> {
    // Boyer-Moore: the only candidate, then its count.
    let (mut candidate, mut votes) = (0, 0u32);
    for i in 0..span {
        match votes {
            0 => (candidate, votes) = (at(i), 1),
            _ if at(i) == candidate => votes += 1,
            _ => votes -= 1,
        }
    }
    ((0..span).filter(|i| at(*i) == candidate).count() > span / 2).then_some(candidate)
}

/// `page + n * stride`, clamped to u32.
fn next_page(page: u32, stride: i64, n: i64) -> u32 {
    (i64::from(page) + stride * n).clamp(0, i64::from(u32::MAX)) as u32
}

#[cfg(all(test, not(feature = "shuttle")))]
pub(crate) mod testing {
    use super::*;

    /// Memory in these mappings; all of its pages are far.
    pub struct AllFar(pub fn(u32) -> Option<Area>);

    impl MemoryView for AllFar {
        fn area_of(&self, page: PageId) -> Option<Area> {
            self.0(page.0)
        }
        fn is_far(&self, _: PageId) -> bool {
            true
        }
        fn epoch(&self) -> u8 {
            0
        }
    }

    impl AllFar {
        /// A fault of thread 1.
        pub fn fault(&self, page: u32, kind: FaultKind) -> Fault<'_, AllFar> {
            Fault {
                thread: 1,
                page: PageId(page),
                kind,
                advice: Advice::Normal,
                around: self,
            }
        }
    }
}
