//! Read-ahead for shared pages: brings in pages behind a faulting one, from the store, or from its own extent beyond
//! the pool.
//!
//! They come in only where there is room; nothing is evicted for them. The faulting thread brings them in itself and
//! has claimed all of them meanwhile. It waits for no other thread's page, so two such threads never wait for each
//! other.

use canvas_core::pager::shared::ahead::{Plan, Streams, WINDOW_MAX};
use canvas_core::pager::shared::demotion::Demoter;
use canvas_core::pager::shared::word::{State, Word, load};
use canvas_core::pager::shared::{ClaimOutcome, Fill};
use canvas_core::swap::extent::EXTENT_BYTES;
use canvas_core::swap::units::FarCopy;
use canvas_shm::Counter;
use canvas_types::{ExtentRef, PageBuf};

use crate::far_tier::tier;
use crate::paging::{context, regions};
use crate::runtime::state::count;
use crate::shared::{
    kernel::{self, Here},
    partition::{end, is_readable, me, partition, room},
};

static STREAMS: Streams = Streams::new();

/// Pages behind a faulting one, claimed together with it.
struct Neighbours {
    pages: [(u32, Word); WINDOW_MAX as usize],
    n: usize,
    /// How many pages behind it were examined.
    reach: u32,
}

impl Neighbours {
    fn pages(&self) -> impl Iterator<Item = (u32, Word)> {
        self.pages[..self.n].iter().copied()
    }
}

/// Brings in a claimed far page, and the pages that come with it.
pub fn fill(page: u32, claimed: Word) -> Fill {
    let plan = STREAMS.on_fault(page);
    count(Counter::SharedAheadHits, plan.hits.into());
    let home = place_of(claimed);
    let near = claim(page, plan, home.map(|p| p.extent));
    let mut read = None;
    if let Some(home) = home
        && near.pages().any(|(_, word)| place_of(word).is_some())
    {
        read = with_extent(page, claimed, home, &near);
    }
    // If the read fails, another copy may still provide the single record.
    let (filled, mut brought) = read.unwrap_or_else(|| {
        let filled = partition().fill(&Here, page, claimed);
        let there = near.pages().filter(|(_, word)| place_of(*word).is_some());
        there.for_each(|(page, word)| leave(page, word));
        (filled, 0)
    });
    for (page, word) in near.pages().filter(|(_, word)| place_of(*word).is_none()) {
        brought += came(word, partition().fill(&Here, page, word));
    }
    if brought > 0 {
        count(Counter::SharedAhead, brought.into());
        STREAMS.brought(plan, page, near.reach, brought);
    }
    filled
}

/// Reads the whole extent for the page and its neighbours in it. Returns how the page was filled, and how many others
/// were; `None` if the read failed and nothing was done.
fn with_extent(
    page: u32,
    claimed: Word,
    home: ExtentRef,
    near: &Neighbours,
) -> Option<(Fill, u32)> {
    let p = partition();
    // Before the request, as for a record: a thread with a request never waits for working memory.
    let mut ctx = context::fill();
    let to = &mut ctx.staging[0];
    let all = tier::read_whole(home.extent, |bytes| {
        let filled = p.fill_by(&Here, page, claimed, || from(bytes, page, home, to));
        let mut brought = 0;
        for (page, word) in near.pages() {
            let Some(place) = place_of(word) else {
                continue;
            };
            let done = p.fill_by(&Here, page, word, || match from(bytes, page, place, to) {
                // A thread that needs this page will read its record alone, and get the error.
                Fill::Damaged => Fill::Failed,
                done => done,
            });
            brought += came(word, done);
        }
        (filled, brought)
    });
    all.ok()
}

/// Leaves a claimed page unchanged.
fn leave(page: u32, claimed: Word) {
    partition().fill_by(&Here, page, claimed, || Fill::Failed);
}

/// Counts a page that came in; returns 1 for it, else 0.
fn came(claimed: Word, done: Fill) -> u32 {
    if done == Fill::Present {
        count_filled(claimed);
    }
    u32::from(done == Fill::Present)
}

/// Counts a page that was brought in; `claimed` is its word before.
pub fn count_filled(claimed: Word) {
    if claimed.state() == State::FillingNew {
        count(Counter::SharedNew, 1);
        return;
    }
    count(Counter::SharedIn, 1);
    if claimed.entry().is_some() && !Here.is_in_store(claimed.entry()) {
        count(Counter::SharedInBeyondPool, 1);
    }
}

/// Where a page lies beyond the pool.
fn place_of(word: Word) -> Option<ExtentRef> {
    match FarCopy::of(word.entry().0) {
        FarCopy::InExtent(place) => Some(place),
        FarCopy::Stored(_) => None,
    }
}

/// Claims the pages that can come in with this one: those in the store, zero pages, and those in the page's own extent.
fn claim(page: u32, plan: Plan, extent: Option<u32>) -> Neighbours {
    let mut near = Neighbours {
        pages: [(0, Word(0)); WINDOW_MAX as usize],
        n: 0,
        reach: 0,
    };
    let most = plan.window.min(room());
    if most == 0 {
        return near;
    }
    let p = partition();
    // The lock makes a mapping call see each page as claimed or not at all. Do not wait for it: its holder may be
    // waiting for our page.
    let Some(g) = regions::try_lock() else {
        return near;
    };
    for page in (page + 1..end()).take(most as usize) {
        if !is_readable(&g, page) {
            break;
        }
        near.reach += 1;
        let seen = load(&p.words[page as usize]);
        let is_near = |word| place_of(word).is_none_or(|p| Some(p.extent) == extent);
        if seen.state() != State::Far || !is_near(seen) {
            continue;
        }
        match p.claim(page, me() as u16) {
            // The page may have been stored elsewhere by now.
            ClaimOutcome::Claimed(word) if word.state() == State::FillingFar && is_near(word) => {
                near.pages[near.n] = (page, word);
                near.n += 1;
            }
            ClaimOutcome::Claimed(word) => leave(page, word),
            _ => {}
        }
    }
    near
}

/// Makes a page present from the bytes of its extent, decoded to `to`.
fn from(bytes: &[u8; EXTENT_BYTES], page: u32, place: ExtentRef, to: &mut PageBuf) -> Fill {
    let from = place.offset as usize;
    let stored = bytes.get(from..from + kernel::stored_bytes(place));
    stored.map_or(Fill::Damaged, |stored| kernel::bring(page, stored, to))
}
