//! Which far pages come back when local memory grows: those that were swapped out last, in address
//! order among pages of about the same age, so that they come in batches (FastSwap §V, proactive
//! swap-in).
//!
//! A hand goes round over the page words, first for the youngest, and with each round for pages up to
//! twice as old. After the round that takes all ages it is through.

use canvas_types::PageId;
use canvas_types::layout::BLOCK_PAGES;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};

use crate::word::{self, State, Word, flag};

/// Greatest age, in epochs, of the first round: local memory was evicted a quarter over since.
pub const AGE_FIRST: u32 = 4;
/// An age is a byte.
const AGE_ALL: u32 = 256;

/// The hand. One thread moves it.
pub struct SwapInHand {
    /// The next page.
    at: AtomicU64,
    /// Greatest age that this round takes; past [`AGE_ALL`] it is through.
    age_max: AtomicU32,
    /// The limit in bytes when it was last looked at.
    limit_bytes: AtomicU64,
}

impl SwapInHand {
    /// Through with everything.
    #[allow(clippy::new_without_default)]
    #[cfg(not(feature = "shuttle"))]
    pub const fn new() -> SwapInHand {
        SwapInHand {
            at: AtomicU64::new(0),
            age_max: AtomicU32::new(2 * AGE_ALL),
            limit_bytes: AtomicU64::new(0),
        }
    }

    /// The limit as it is when the process begins, before it has lost any page. Whoever looks for the first
    /// time may do so after the limit was raised.
    pub fn start(&self, limit_bytes: u64) {
        self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
    }

    /// Looks at the limit: when it is higher than before, the hand begins. 0 is a limit of another kind.
    pub fn look(&self, limit_bytes: u64) {
        let before = self.limit_bytes.swap(limit_bytes, Ordering::Relaxed);
        if before != 0 && limit_bytes > before {
            self.begin();
        }
    }

    /// Begins anew with the youngest.
    pub fn begin(&self) {
        self.at.store(0, Ordering::Relaxed);
        self.age_max.store(AGE_FIRST, Ordering::Relaxed);
    }

    /// Stops bringing pages in, until the limit is raised again.
    pub fn end(&self) {
        self.age_max.store(2 * AGE_ALL, Ordering::Relaxed);
    }

    /// Is there something to look at?
    pub fn goes_on(&self) -> bool {
        self.age_max.load(Ordering::Relaxed) <= AGE_ALL
    }

    /// Writes pages to bring in to `out` and returns how many. Looks at the first `blocks` blocks of
    /// `words`, skips those for which `empty` holds, and ends after `look_max` words or the round.
    pub fn next(
        &self,
        words: &[AtomicU64],
        blocks: usize,
        empty: impl Fn(usize) -> bool,
        now_epoch: u8,
        look_max: usize,
        out: &mut [PageId],
    ) -> usize {
        let end = (blocks * BLOCK_PAGES).min(words.len());
        let age_max = self.age_max.load(Ordering::Relaxed);
        let mut page = self.at.load(Ordering::Relaxed) as usize;
        let (mut looked, mut n) = (0, 0);
        while page < end && looked < look_max && n < out.len() {
            looked += 1;
            if page.is_multiple_of(BLOCK_PAGES) && empty(page / BLOCK_PAGES) {
                page += BLOCK_PAGES;
                continue;
            }
            if wants(word::load(&words[page]), now_epoch, age_max) {
                out[n] = PageId(page as u32);
                n += 1;
            }
            page += 1;
        }
        if page >= end {
            page = 0;
            self.age_max.store(age_max * 2, Ordering::Relaxed);
        }
        self.at.store(page as u64, Ordering::Relaxed);
        n
    }
}

fn wants(w: Word, now_epoch: u8, age_max: u32) -> bool {
    w.state() == State::Far
        && !w.has(flag::STUCK)
        && u32::from(now_epoch.wrapping_sub(w.epoch())) < age_max
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u8 = 7;
    const BLOCKS: usize = 3;

    fn far(age: u8) -> Word {
        Word(0)
            .with_state(State::Far)
            .with_epoch(NOW.wrapping_sub(age))
    }

    fn words(all: &[(usize, Word)]) -> Vec<AtomicU64> {
        let words: Vec<_> = (0..BLOCKS * BLOCK_PAGES)
            .map(|_| AtomicU64::new(0))
            .collect();
        for (page, w) in all {
            words[*page].store(w.0, Ordering::Relaxed);
        }
        words
    }

    /// Brings in until the hand is through; the pages in the order in which they came.
    fn bring_in(hand: &SwapInHand, words: &[AtomicU64], look_max: usize, batch: usize) -> Vec<u32> {
        let mut all = Vec::new();
        let mut out = vec![PageId(0); batch];
        while hand.goes_on() {
            let n = hand.next(words, BLOCKS, |_| false, NOW, look_max, &mut out);
            for page in &out[..n] {
                let w = &words[page.index()];
                let cur = word::load(w);
                w.store(cur.with_state(State::Resident).0, Ordering::Relaxed);
            }
            all.extend(out[..n].iter().map(|page| page.0));
        }
        all
    }

    #[test]
    fn nothing_before_it_begins_and_after_it_ends() {
        let w = words(&[(3, far(0))]);
        let hand = SwapInHand::new();
        assert!(bring_in(&hand, &w, 10, 4).is_empty());
        hand.begin();
        hand.end();
        assert!(bring_in(&hand, &w, 10, 4).is_empty());
    }

    #[test]
    fn a_raise_before_the_first_look_is_seen() {
        let hand = SwapInHand::new();
        hand.start(24 << 20);
        hand.look(200 << 20);
        assert!(hand.goes_on());
    }

    #[test]
    fn only_a_raise_begins() {
        let hand = SwapInHand::new();
        hand.start(24 << 20);
        // As it was, lowered, a share of the footprint, a size again.
        for limit_bytes in [24 << 20, 16 << 20, 0, 24 << 20] {
            hand.look(limit_bytes);
            assert!(!hand.goes_on(), "{limit_bytes}");
        }
        hand.look((24 << 20) + 1);
        assert!(hand.goes_on());
    }

    #[test]
    fn only_far_pages_that_can_be_mapped() {
        let w = words(&[
            (0, far(0).with_state(State::Resident)),
            (1, far(0).set(flag::STUCK)),
            (2, far(0).with_state(State::Cached)),
            (3, far(0).set(flag::DEEP)),
        ]);
        let hand = SwapInHand::new();
        hand.begin();
        assert_eq!(bring_in(&hand, &w, 1000, 4), [3]);
    }

    #[test]
    fn empty_blocks_are_skipped() {
        let w = words(&[(3, far(0)), (BLOCK_PAGES + 3, far(0))]);
        let hand = SwapInHand::new();
        hand.begin();
        let mut out = [PageId(0); 4];
        let n = hand.next(&w, BLOCKS, |b| b == 0, NOW, 1 << 20, &mut out);
        assert_eq!(&out[..n], [PageId(BLOCK_PAGES as u32 + 3)]);
    }

    proptest! {
        /// Against sorting: by the round that takes an age, then by address.
        #[test]
        fn as_sorting_would(
            ages in proptest::collection::btree_map(0..BLOCKS * BLOCK_PAGES, any::<u8>(), 0..200),
            look_max in 1..3000usize,
            batch in 1..40usize,
        ) {
            let all: Vec<_> = ages.iter().map(|(page, age)| (*page, far(*age))).collect();
            let w = words(&all);
            let hand = SwapInHand::new();
            hand.begin();
            let got = bring_in(&hand, &w, look_max, batch);
            let round = |age: u8| (0..).find(|r| u32::from(age) < AGE_FIRST << r).unwrap();
            let mut want: Vec<_> = ages.iter().map(|(p, age)| (round(*age), *p as u32)).collect();
            want.sort_unstable();
            let want: Vec<_> = want.into_iter().map(|(_, p)| p).collect();
            prop_assert_eq!(got, want);
        }
    }
}
