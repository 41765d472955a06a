//! Links: which page a thread faults on after which (correlation prefetching, as with the jump pointers of Roth and
//! Sohi, ISCA '99, but learnt rather than stored by the program).
//!
//! Lists, trees and tables that are traversed repeatedly in the same order fault in the same order, wherever their
//! nodes lie. Following their pointers ahead needs the contents of each page first; following links does not, so
//! several pages can be requested at once. A link costs 8 bytes.

use canvas_types::PageId;
use canvas_types::sync::{AtomicU64, Ordering};

/// Links in a set.
const WAYS: usize = 4;
/// Bytes of a page that share a link: two positions in a page that are further apart have their own.
const GRANULE_SHIFT: u32 = 8;
/// A link is used after this many sightings.
const BELIEVED: u64 = 2;
const SEEN_MAX: u64 = 3;

const PAGE_BITS: u32 = 31;
const GRANULE_BITS: u32 = 4;
const POSITION_BITS: u32 = PAGE_BITS + GRANULE_BITS;
const SEEN_SHIFT: u32 = POSITION_BITS;
const TAG_SHIFT: u32 = SEEN_SHIFT + 2;
const TAG_MASK: u64 = (1 << 24) - 1;

/// A page, and the approximate position in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Position(u64);

impl Position {
    /// The position of a fault on `page` at byte `offset`.
    pub fn new(page: PageId, offset: usize) -> Position {
        let granule = (offset as u64 >> GRANULE_SHIFT) & ((1 << GRANULE_BITS) - 1);
        Position((u64::from(page.0) & ((1 << PAGE_BITS) - 1)) << GRANULE_BITS | granule)
    }

    /// The page.
    pub fn page(self) -> PageId {
        PageId((self.0 >> GRANULE_BITS) as u32)
    }

    fn raw(self) -> u64 {
        self.0
    }

    fn hash(self) -> u64 {
        let mixed = (self.0 ^ self.0 >> 17).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    }
}

/// The links of a process, in zeroed memory of a power of two of words. Racing threads may lose a sighting, but never
/// make up a page that no thread faulted on.
#[derive(Clone, Copy)]
pub struct Links<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Links<'a> {
    /// Uses the largest power of two of `words`; fewer than [`WAYS`] hold nothing.
    pub fn new(words: &'a [AtomicU64]) -> Links<'a> {
        let len = match words.len() {
            0..WAYS => 0,
            n => 1 << n.ilog2(),
        };
        Links {
            words: &words[..len],
        }
    }

    fn set(&self, from: Position) -> Option<(&'a [AtomicU64], u64)> {
        if self.words.is_empty() {
            return None;
        }
        let hash = from.hash();
        let sets = self.words.len() / WAYS;
        let first = (hash as usize & (sets - 1)) * WAYS;
        Some((&self.words[first..first + WAYS], hash >> 40 & TAG_MASK))
    }

    /// Records that a thread faulted at `to` after `from`.
    pub fn learn(&self, from: Position, to: Position) {
        let Some((set, tag)) = self.set(from) else {
            return;
        };
        let word = |seen: u64, to: Position| tag << TAG_SHIFT | seen << SEEN_SHIFT | to.raw();
        let mut weakest = (u64::MAX, &set[0]);
        for slot in set {
            let now = slot.load(Ordering::Relaxed);
            let seen = seen_of(now);
            if seen != 0 && now >> TAG_SHIFT == tag {
                let next = match (position_of(now) == to, seen) {
                    (true, _) => word((seen + 1).min(SEEN_MAX), to),
                    (false, 1) => word(1, to),
                    (false, _) => word(seen - 1, position_of(now)),
                };
                return slot.store(next, Ordering::Relaxed);
            }
            if seen < weakest.0 {
                weakest = (seen, slot);
            }
        }
        let (seen, slot) = weakest;
        match seen {
            0 | 1 => slot.store(word(1, to), Ordering::Relaxed),
            // A trusted link loses trust step by step.
            _ => slot.store(
                slot.load(Ordering::Relaxed) - (1 << SEEN_SHIFT),
                Ordering::Relaxed,
            ),
        }
    }

    /// Where a thread that faulted at `from` will fault next, if a link is trusted.
    pub fn next(&self, from: Position) -> Option<Position> {
        let (set, tag) = self.set(from)?;
        set.iter()
            .map(|slot| slot.load(Ordering::Relaxed))
            .find(|w| seen_of(*w) >= BELIEVED && w >> TAG_SHIFT == tag)
            .map(position_of)
    }
}

fn seen_of(word: u64) -> u64 {
    word >> SEEN_SHIFT & 3
}

fn position_of(word: u64) -> Position {
    Position(word & ((1 << POSITION_BITS) - 1))
}

/// Maximum positions that are predicted ahead of a thread.
const AHEAD_MAX: usize = 32;
/// How far ahead a chain goes at first, and at most.
const DEPTH_FIRST: u32 = 3;
const DEPTH_MAX: u32 = 24;
/// Links that one fault follows at most.
const STEPS_MAX: usize = 16;
/// Pages that one fault requests at most.
pub const PREFETCH_LIST_MAX: usize = 8;

/// Pages to bring in because of one fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrefetchList {
    pages: [PageId; PREFETCH_LIST_MAX],
    n: usize,
}

impl PrefetchList {
    /// Adds a page, unless it is in the list or there is no room.
    pub fn push(&mut self, page: PageId) {
        if self.n < PREFETCH_LIST_MAX && !self.pages().contains(&page) {
            self.pages[self.n] = page;
            self.n += 1;
        }
    }

    /// All pages, in the order in which they will probably be needed.
    pub fn pages(&self) -> &[PageId] {
        &self.pages[..self.n]
    }
}

/// One thread's path along links.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    last: Option<Position>,
    /// Predicted positions, the next first.
    ahead: [Position; AHEAD_MAX],
    n: usize,
    depth: u32,
}

impl Default for Chain {
    fn default() -> Chain {
        Chain::new()
    }
}

impl Chain {
    /// Creates the chain of a thread that has not faulted yet.
    pub const fn new() -> Chain {
        Chain {
            last: None,
            ahead: [Position(0); AHEAD_MAX],
            n: 0,
            depth: DEPTH_FIRST,
        }
    }

    /// Handles a fault of the thread at `here`; returns the pages to request.
    pub fn on_fault(&mut self, links: &Links<'_>, here: Position) -> PrefetchList {
        if let Some(last) = self.last.replace(here)
            && last.page() != here.page()
        {
            links.learn(last, here);
        }
        let ahead = &self.ahead[..self.n];
        match ahead.iter().position(|p| p.page() == here.page()) {
            Some(i) => {
                self.ahead.copy_within(i + 1..self.n, 0);
                self.n -= i + 1;
                self.depth = (self.depth + 1).min(DEPTH_MAX);
            }
            None => {
                self.n = 0;
                self.depth = (self.depth / 2).max(DEPTH_FIRST);
            }
        }
        self.extend(links, here)
    }

    fn extend(&mut self, links: &Links<'_>, here: Position) -> PrefetchList {
        let mut asked = PrefetchList::default();
        let mut at = match self.n {
            0 => here,
            n => self.ahead[n - 1],
        };
        for _ in 0..STEPS_MAX {
            if self.n >= self.depth as usize || asked.n == PREFETCH_LIST_MAX {
                break;
            }
            let Some(next) = links.next(at) else { break };
            // The links form a loop.
            if next == here || self.ahead[..self.n].contains(&next) {
                break;
            }
            self.ahead[self.n] = next;
            self.n += 1;
            asked.push(next.page());
            at = next;
        }
        asked
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn words(n: usize) -> Vec<AtomicU64> {
        (0..n).map(|_| AtomicU64::new(0)).collect()
    }

    fn at(page: u32) -> Position {
        Position::new(PageId(page), 0)
    }

    #[test]
    fn a_link_is_believed_when_it_was_seen_twice_and_doubted_when_it_was_wrong() {
        let memory = words(64);
        let links = Links::new(&memory);
        links.learn(at(1), at(9));
        assert_eq!(links.next(at(1)), None);
        links.learn(at(1), at(9));
        assert_eq!(links.next(at(1)), Some(at(9)));
        links.learn(at(1), at(7));
        assert_eq!(links.next(at(1)), None);
        links.learn(at(1), at(7));
        links.learn(at(1), at(7));
        assert_eq!(links.next(at(1)), Some(at(7)));
    }

    #[test]
    fn without_memory_nothing_is_known() {
        for n in [0, 3] {
            let memory = words(n);
            let links = Links::new(&memory);
            links.learn(at(1), at(2));
            links.learn(at(1), at(2));
            assert_eq!(links.next(at(1)), None);
        }
    }

    /// A list of pages in any order, traversed again and again: from the third time on nearly all pages are requested
    /// before they are needed, and nothing else is.
    #[test]
    fn what_is_gone_through_again_is_asked_for_ahead() {
        let memory = words(8192);
        let links = Links::new(&memory);
        let mut rng = fastrand::Rng::with_seed(5);
        let mut order: Vec<u32> = (0..1000).map(|i| i * 37 % 90_001).collect();
        rng.shuffle(&mut order);
        let mut chain = Chain::default();
        for round in 0..4 {
            let (mut asked, mut hits) = (HashSet::new(), 0);
            for (i, page) in order.iter().enumerate() {
                hits += usize::from(asked.contains(page));
                for next in chain.on_fault(&links, at(*page)).pages() {
                    let is_near = (1..=DEPTH_MAX as usize + 1)
                        .any(|k| order[(i + k) % order.len()] == next.0);
                    assert!(is_near, "{next:?} after {i}");
                    asked.insert(next.0);
                }
            }
            match round {
                0 | 1 => assert!(hits < 10, "round {round}: {hits}"),
                _ => assert!(hits > 950, "round {round}: {hits}"),
            }
        }
    }

    #[test]
    fn places_of_a_page_have_their_own_links() {
        let memory = words(64);
        let links = Links::new(&memory);
        let (low, high) = (Position::new(PageId(5), 10), Position::new(PageId(5), 4000));
        for _ in 0..2 {
            links.learn(low, at(1));
            links.learn(high, at(2));
        }
        assert_eq!(
            (links.next(low), links.next(high)),
            (Some(at(1)), Some(at(2)))
        );
    }

    proptest! {
        /// Whatever threads do, only positions that were seen to follow are predicted.
        #[test]
        fn nothing_is_made_up(steps in proptest::collection::vec((0..40u32, 0..4096usize), 1..400)) {
            let memory = words(32);
            let links = Links::new(&memory);
            let mut chain = Chain::default();
            let mut seen = HashSet::new();
            for (page, offset) in steps {
                seen.insert(page);
                let asked = chain.on_fault(&links, Position::new(PageId(page), offset));
                prop_assert!(asked.pages().iter().all(|p| seen.contains(&p.0)));
                prop_assert!(chain.n <= DEPTH_MAX as usize + 1);
            }
        }
    }
}
