//! Low-tier prefetch (Canvas §5.2): what to bring in besides the page that faulted.

use canvas_types::PageId;
use canvas_types::sync::{AtomicU32, Ordering};

pub mod choice;
pub mod leap;
pub mod nearby;
pub mod readahead;
pub mod streams;

/// Until a stream has proven itself, at least one prefetched page in this many is left unmapped.
pub const SAMPLE_EVERY: u32 = 8;

/// [`Plan::way`] of a plan that belongs to no stream.
const NO_WAY: u8 = u8::MAX;
/// [`Plan::way`] of a plan of [`nearby::Nearby`].
const NEARBY: u8 = u8::MAX - 1;
/// [`Plan::way`] values from here on are plans by thread and array.
const OF_ARRAY: u8 = 64;

/// Kind of a fault that is reported to the prefetcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FaultKind {
    /// The page was far and nothing had requested it.
    Demand = 0,
    /// The page was in the swap cache because a prefetch had left it there.
    PrefetchHit = 1,
    /// The page was in the swap cache because reclaim had unmapped it.
    SecondChance = 2,
    /// The fault waited for a prefetch of the same page.
    PrefetchLate = 3,
}

/// How the program says that it uses a region (madvise).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Advice {
    /// It has not said.
    #[default]
    Normal,
    /// In no order: neighbours of a page are not wanted.
    Random,
    /// From its first page to its last.
    Sequential,
}

/// Pages to bring in: `start`, `start + stride`, ... The caller skips pages that are not far and stops at the end of
/// the mapping. If the faulting page is among them, it is not far any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Number of the first page to bring in.
    pub start: PageId,
    /// Distance between pages, in pages; never 0 unless `count` is 0.
    pub stride: i32,
    /// Number of pages, 0 to [`streams::WINDOW_MAX`].
    pub count: u32,
    /// The fault continues a stream: fill its page as [`crate::pager::clock::FillKind::Stream`] and the planned ones as
    /// [`crate::pager::clock::FillKind::StreamPrefetch`].
    pub stream: bool,
    /// Leave one planned page in this many unmapped (0: none); see [`Plan::unmapped`].
    pub sample_every: u32,
    /// For a [`FaultKind::PrefetchHit`]: how many prefetched pages this one stands for, which all count as used (the
    /// sum over all hits estimates the pages used). Otherwise 0.
    pub stands_for: u32,
    /// A page of a chunk that the stream has just left, to be passed to [`crate::pager::clock::Clock::stream_passed`].
    pub behind: Option<PageId>,
    /// The stream to update in [`streams::Prefetcher::carried_out`].
    way: u8,
    /// Thread and array of a plan by thread and array.
    key: u32,
}

impl Plan {
    /// A plan that brings nothing in.
    pub const NONE: Plan = Plan {
        start: PageId(0),
        stride: 0,
        count: 0,
        stream: false,
        sample_every: 0,
        stands_for: 0,
        behind: None,
        way: NO_WAY,
        key: 0,
    };
    /// A plan for a fault of this kind that brings in nothing beside it.
    fn alone(kind: FaultKind) -> Plan {
        Plan {
            stands_for: match kind {
                FaultKind::PrefetchHit => SAMPLE_EVERY,
                _ => 0,
            },
            ..Plan::NONE
        }
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
    /// Whether this is a plan of [`nearby::Nearby`], or the use of a page that such a plan left unmapped.
    #[inline]
    pub fn is_nearby(&self) -> bool {
        self.way == NEARBY
    }
    /// Whether this is a plan by thread and array ([`choice::Prefetchers::on_forwarded`]), or the use of a page that
    /// such a plan left unmapped.
    #[inline]
    pub fn is_of_array(&self) -> bool {
        (OF_ARRAY..NEARBY).contains(&self.way)
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

/// How a plan was carried out, for [`streams::Prefetcher::carried_out`]. Counts pages from the beginning of the plan.
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

/// `page + n * stride`, clamped to u32.
fn next_page(page: u32, stride: i64, n: i64) -> u32 {
    (i64::from(page) + stride * n).clamp(0, i64::from(u32::MAX)) as u32
}
