//! Queue of the program's hints about its memory: ranges that it will need, or will not.
//!
//! A hint is one word, so that one exchange takes or frees a cell of the ring: no thread waits for another, even if
//! that one is stopped in the middle of a call. When all cells are taken the oldest hint is dropped, because the newest
//! says most about what comes next.

use canvas_types::PageId;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};

use crate::pager::word::{self, State, flag};

/// Hints that can be queued at one time.
pub const HINTS: usize = 512;

/// A non-empty range of pages, `start..end`, in the managed range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hint {
    /// Number of its first page.
    pub start: u32,
    /// One past the last page.
    pub end: u32,
}

/// Set in the word of a taken cell.
const TAKEN: u64 = 1 << 63;

impl Hint {
    /// The range; `None` if it is empty.
    pub fn of(start: u32, end: u32) -> Option<Hint> {
        (start < end).then_some(Hint { start, end })
    }
    fn pack(self) -> u64 {
        TAKEN | u64::from(self.start) << 32 | u64::from(self.end - self.start)
    }
    fn unpack(v: u64) -> Option<Hint> {
        let start = ((v & !TAKEN) >> 32) as u32;
        (v & TAKEN != 0).then_some(Hint {
            start,
            end: start + v as u32,
        })
    }
}

/// Queued hints, in order. Usable as a static.
pub struct Ring {
    places: [AtomicU64; HINTS],
    /// Hints ever pushed. The next one goes behind the newest, into the oldest one's cell.
    next: AtomicU32,
}

impl Ring {
    /// Creates an empty ring.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Ring {
        Ring {
            places: [const { AtomicU64::new(0) }; HINTS],
            next: AtomicU32::new(0),
        }
    }

    /// The cells from the oldest hint on.
    fn in_order(&self) -> impl Iterator<Item = &AtomicU64> {
        let next = self.next.load(Ordering::Relaxed) as usize;
        (0..HINTS).map(move |i| &self.places[(next + i) % HINTS])
    }
    /// Adds a hint; returns the oldest one if it was overwritten.
    pub fn push(&self, hint: Hint) -> Option<Hint> {
        let at = self.next.fetch_add(1, Ordering::Relaxed) as usize % HINTS;
        Hint::unpack(self.places[at].swap(hint.pack(), Ordering::AcqRel))
    }
    /// Whether all cells are taken.
    pub fn is_full(&self) -> bool {
        self.in_order()
            .all(|p| p.load(Ordering::Relaxed) & TAKEN != 0)
    }
    /// Takes the oldest hint.
    pub fn take(&self) -> Option<Hint> {
        self.in_order()
            .filter(|p| p.load(Ordering::Relaxed) != 0)
            .find_map(|p| Hint::unpack(p.swap(0, Ordering::AcqRel)))
    }
    /// The queued hints, from the oldest on.
    pub fn waiting(&self) -> impl Iterator<Item = Hint> {
        self.in_order()
            .filter_map(|p| Hint::unpack(p.load(Ordering::Relaxed)))
    }
    /// Removes all hints. For a fork's child, which has one thread.
    pub fn clear(&self) {
        for place in &self.places {
            place.store(0, Ordering::Relaxed);
        }
    }
}

/// Whether fewer than half of these pages, in the order of their hints, directly follow the one before. Then the other
/// pages of their extents are not wanted with them.
pub fn is_scattered(pages: &[PageId]) -> bool {
    let follows = |pair: &&[PageId]| pair[1].0 == pair[0].0.wrapping_add(1);
    pages.windows(2).filter(follows).count() * 2 < pages.len()
}

/// Result of [`cool`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cooled {
    /// Pages that are now the next victims.
    pub pages: u32,
    /// Some of the pages are locked, and stay.
    pub locked: bool,
}

/// Makes the pages with these words the next victims: clears their heat and referenced bit, and marks them like pages
/// that a stream has left behind. Leaves pages alone that cannot be evicted now.
pub fn cool(words: &[AtomicU64]) -> Cooled {
    let mut found = Cooled::default();
    for w in words {
        let cur = word::load(w);
        found.locked |= cur.has(flag::LOCKED);
        if !cur.evictable() {
            continue;
        }
        let new = cur.with_heat(0).clear(flag::REFERENCED).set(flag::STREAM);
        // If a fault or a pin was faster, the page is in use.
        found.pages += u32::from(new == cur || word::transition(w, cur, new));
    }
    found
}

/// Marks a page that a hint has just brought in as used until the hand has passed once: the program is about to need
/// it.
pub fn spare(w: &AtomicU64) {
    let cur = word::load(w);
    if cur.state() == State::Resident {
        let _ = word::transition(w, cur, cur.set(flag::REFERENCED));
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::pager::word::Word;
    use canvas_testing::random::{scaled, sized};
    use canvas_types::SwapEntry;
    use canvas_types::layout::WINDOW_PAGES;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::vec::Vec;

    #[derive(Clone, Debug)]
    enum Op {
        Push(u32, u32),
        Take,
        Clear,
    }

    fn op() -> impl Strategy<Value = Op> {
        let last = WINDOW_PAGES as u32 - 1;
        let start = prop_oneof![0..64u32, last - 64..last, 0..last];
        let push = (start, 1..=u32::MAX)
            .prop_map(|(s, n)| Op::Push(s, s.saturating_add(n).min(WINDOW_PAGES as u32)));
        prop_oneof![8 => push, 4 => Just(Op::Take), 1 => Just(Op::Clear)]
    }

    #[test]
    fn pages_side_by_side_are_not_scattered() {
        let lot =
            |pages: &[u32]| is_scattered(&pages.iter().map(|p| PageId(*p)).collect::<Vec<_>>());
        assert!(!lot(&[7, 8]) && !lot(&[7, 8, 20, 21, 22]) && !lot(&[0, 1, 2, 3, 90]));
        assert!(lot(&[7]) && lot(&[7, 9, 11]) && lot(&[9, 8, 7]) && lot(&[1, 2, 30, 50, 70]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(scaled(64)))]

        /// Compared with a queue that drops its oldest element.
        #[test]
        fn behaves_like_a_bounded_queue(ops in proptest::collection::vec(op(), 1..2000)) {
            let ring = Ring::new();
            let mut oracle = VecDeque::new();
            for op in ops {
                match op {
                    Op::Push(s, e) => {
                        let hint = Hint::of(s, e).unwrap();
                        let oldest = (oracle.len() == HINTS).then(|| oracle.pop_front().unwrap());
                        prop_assert_eq!(ring.push(hint), oldest);
                        oracle.push_back(hint);
                    }
                    Op::Take => prop_assert_eq!(ring.take(), oracle.pop_front()),
                    Op::Clear => {
                        ring.clear();
                        oracle.clear();
                    }
                }
                prop_assert!(ring.waiting().eq(oracle.iter().copied()));
                prop_assert_eq!(ring.is_full(), oracle.len() == HINTS);
            }
        }
    }

    #[test]
    fn the_whole_window_is_a_hint_and_nothing_is_none() {
        let all = Hint::of(0, WINDOW_PAGES as u32).unwrap();
        assert_eq!(Hint::unpack(all.pack()), Some(all));
        let last = Hint::of(WINDOW_PAGES as u32 - 1, WINDOW_PAGES as u32).unwrap();
        assert_eq!(Hint::unpack(last.pack()), Some(last));
        assert_eq!((Hint::of(5, 5), Hint::unpack(0)), (None, None));
    }

    #[test]
    fn no_hint_is_lost_or_taken_twice_among_threads() {
        const EACH: u32 = sized(20_000, 500);
        let ring = Ring::new();
        let mut came: Vec<u32> = std::thread::scope(|s| {
            let ring = &ring;
            let pushers: Vec<_> = (0..4u32)
                .map(|t| {
                    s.spawn(move || {
                        let push = |i| ring.push(Hint::of(t * EACH + i, u32::MAX >> 1).unwrap());
                        (0..EACH).filter_map(push).collect::<Vec<_>>()
                    })
                })
                .collect();
            let taker = s.spawn(move || (0..EACH).filter_map(|_| ring.take()).collect::<Vec<_>>());
            let all = pushers.into_iter().chain([taker]);
            all.flat_map(|t| t.join().unwrap())
                .map(|h| h.start)
                .collect()
        });
        came.extend(core::iter::from_fn(|| ring.take()).map(|h| h.start));
        came.sort_unstable();
        assert!(came.into_iter().eq(0..4 * EACH));
    }

    #[test]
    fn what_is_cold_is_a_victim_and_what_cannot_leave_stays_as_it_is() {
        let resident = Word(0).with_state(State::Resident);
        let hot = resident
            .with_heat(7)
            .set(flag::REFERENCED | flag::PROTECTED)
            .with_entry(SwapEntry(9));
        let others = [
            hot.set(flag::LOCKED),
            hot.with_pins(1),
            hot.set(flag::STUCK),
            hot.with_state(State::Far),
            hot.with_state(State::Filling),
            Word(0),
        ];
        let words: Vec<_> = [hot, resident]
            .iter()
            .chain(&others)
            .map(|w| AtomicU64::new(w.0))
            .collect();
        let found = cool(&words);
        assert_eq!((found.pages, found.locked), (2, true));
        let cold = word::load(&words[0]);
        assert_eq!((cold.heat(), cold.has(flag::REFERENCED)), (0, false));
        assert!(cold.has(flag::STREAM) && cold.has(flag::PROTECTED));
        assert_eq!(cold.entry(), SwapEntry(9));
        assert!(word::load(&words[1]).has(flag::STREAM));
        for (w, before) in words[2..].iter().zip(others) {
            assert_eq!(word::load(w), before);
        }
        assert_eq!(
            cool(&words[1..2]),
            Cooled {
                pages: 1,
                locked: false
            }
        );
        spare(&words[1]);
        assert!(word::load(&words[1]).has(flag::REFERENCED));
        spare(&words[5]);
        assert_eq!(word::load(&words[5]), others[3]);
    }
}
