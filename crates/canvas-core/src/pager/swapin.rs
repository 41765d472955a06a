//! Proactive swap-in (FastSwap §V): which far pages come back before they are touched. [`schedule`] decides the time.
//!
//! Pages that a larger memory would have kept come first: those evicted last, where a hot page counts as evicted later
//! the hotter it is, because the clock would have spared it for that many sweeps. Pages of similar rank come in address
//! order, so that they come in batches. Pages of a stream have the last rank: the clock would have evicted them first.
//!
//! A hand cycles over the page words, first for the lowest ranks, and with each round for ranks up to twice as high.
//! [`Reach`] says how far it goes.

use canvas_types::PageId;

use crate::pager::scan::ScanCursor;
use crate::pager::table::FarPages;
use crate::pager::word::{State, Word, flag};

pub mod schedule;

/// The first round takes ranks (ages in epochs) below this: evicted since a quarter of local memory was replaced.
pub const RANK_FIRST: u32 = 4;
/// All ranks are below this.
const RANK_ALL: u32 = 256;
/// Heat above this does not change a page's rank.
const HEAT_MAX: u64 = 5;

/// How far the hand goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// To pages evicted while local memory was replaced at most four times; a refault after that cools a page as well.
    /// Excludes pages of streams.
    Recent,
    /// To all pages.
    All,
}

impl Reach {
    /// The hand takes ranks below this.
    fn rank_end(self) -> u32 {
        match self {
            Reach::Recent => 64,
            Reach::All => RANK_ALL,
        }
    }
}

/// The rank of a far page: its age in epochs, reduced by its heat.
pub fn rank(w: Word, now_epoch: u8) -> u32 {
    if w.has(flag::STREAM) {
        return RANK_ALL - 1;
    }
    u32::from(now_epoch.wrapping_sub(w.epoch())) >> w.heat().min(HEAT_MAX)
}

/// The hand. One thread owns it.
#[derive(Debug)]
pub struct SwapInScan {
    /// The next page.
    at: u32,
    /// This round takes ranks below this; no round goes beyond `reach`.
    rank_end: u32,
    reach: Reach,
    /// Skip pages beyond the pool.
    only_pool: bool,
}

impl SwapInScan {
    /// Creates a hand that has finished.
    pub const fn new() -> SwapInScan {
        SwapInScan {
            at: 0,
            rank_end: 2 * RANK_ALL,
            reach: Reach::Recent,
            only_pool: false,
        }
    }

    /// Starts again with the lowest ranks.
    pub fn begin(&mut self, reach: Reach) {
        *self = SwapInScan {
            at: 0,
            rank_end: RANK_FIRST,
            reach,
            only_pool: false,
        };
    }

    /// Whether the hand has more pages to scan.
    pub fn goes_on(&self) -> bool {
        self.rank_end <= self.reach.rank_end()
    }

    /// Makes the hand skip pages beyond the pool from now on.
    pub fn skip_far_tier(&mut self) {
        self.only_pool = true;
    }

    /// Moves the hand back to `page` of its last batch, which is on its way from beyond the pool.
    pub fn back_to(&mut self, page: PageId) {
        if self.at == 0 {
            // The batch had ended the round.
            self.rank_end /= 2;
        }
        self.at = page.0;
    }

    /// Writes pages to bring in to `out` and returns how many. Scans at most `scan_max` words, and not past the end of
    /// the round.
    pub fn next<E: Fn(usize) -> bool>(
        &mut self,
        far: &FarPages<'_, E>,
        scan_max: usize,
        out: &mut [PageId],
    ) -> usize {
        let mut scan = ScanCursor::range(self.at, far.end(), scan_max);
        let n = far.collect(&mut scan, out, |w| self.wants(w, far.now_epoch));
        self.at = scan.at();
        if self.at >= far.end() {
            self.at = 0;
            self.rank_end *= 2;
        }
        n
    }

    fn wants(&self, w: Word, now_epoch: u8) -> bool {
        w.state() == State::Far
            && !w.has(flag::STUCK)
            && !(self.only_pool && w.has(flag::IN_FAR_TIER))
            && rank(w, now_epoch) < self.rank_end
    }
}

impl Default for SwapInScan {
    fn default() -> SwapInScan {
        SwapInScan::new()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::pager::word;
    use canvas_types::layout::BLOCK_PAGES;
    use canvas_types::sync::{AtomicU64, Ordering};
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

    fn table(words: &[AtomicU64]) -> FarPages<'_, impl Fn(usize) -> bool> {
        FarPages {
            words,
            blocks: BLOCKS,
            is_empty: |_| false,
            now_epoch: NOW,
        }
    }

    /// Runs the hand to its end; returns the pages in the order in which they came in.
    fn bring_in(
        hand: &mut SwapInScan,
        words: &[AtomicU64],
        scan_max: usize,
        batch: usize,
    ) -> Vec<u32> {
        let mut all = Vec::new();
        let mut out = vec![PageId(0); batch];
        while hand.goes_on() {
            let n = hand.next(&table(words), scan_max, &mut out);
            for page in &out[..n] {
                let w = &words[page.index()];
                let cur = word::load(w);
                w.store(cur.with_state(State::Resident).0, Ordering::Relaxed);
            }
            all.extend(out[..n].iter().map(|page| page.0));
        }
        all
    }

    fn begun(reach: Reach) -> SwapInScan {
        let mut hand = SwapInScan::new();
        hand.begin(reach);
        hand
    }

    #[test]
    fn nothing_before_it_begins() {
        let w = words(&[(3, far(0))]);
        assert!(bring_in(&mut SwapInScan::new(), &w, 10, 4).is_empty());
    }

    #[test]
    fn only_far_pages_that_can_be_mapped() {
        let w = words(&[
            (0, far(0).with_state(State::Resident)),
            (1, far(0).set(flag::STUCK)),
            (2, far(0).with_state(State::Cached)),
            (3, far(0).set(flag::IN_FAR_TIER)),
        ]);
        assert_eq!(bring_in(&mut begun(Reach::Recent), &w, 1000, 4), [3]);
    }

    #[test]
    fn empty_blocks_are_skipped() {
        let w = words(&[(3, far(0)), (BLOCK_PAGES + 3, far(0))]);
        let mut out = [PageId(0); 4];
        let table = FarPages {
            words: &w,
            blocks: BLOCKS,
            is_empty: |b| b == 0,
            now_epoch: NOW,
        };
        let n = begun(Reach::All).next(&table, 1 << 20, &mut out);
        assert_eq!(&out[..n], [PageId(BLOCK_PAGES as u32 + 3)]);
    }

    #[test]
    fn what_is_beyond_the_pool_is_looked_at_again_or_left_out() {
        // The very last page: the batch that contains it ends the round.
        let last = BLOCKS * BLOCK_PAGES - 1;
        for deep in [3, last] {
            let w = words(&[(deep, far(0).set(flag::IN_FAR_TIER)), (last - 1, far(0))]);
            let mut hand = begun(Reach::Recent);
            let mut out = [PageId(0); 8];
            assert_eq!(hand.next(&table(&w), 1 << 20, &mut out), 2);
            hand.back_to(PageId(deep as u32));
            assert_eq!((hand.at, hand.rank_end), (deep as u32, RANK_FIRST));
            let again = hand.next(&table(&w), 1 << 20, &mut out);
            assert!(out[..again].contains(&PageId(deep as u32)));
            hand.back_to(PageId(deep as u32));
            hand.skip_far_tier();
            let want = if deep == last {
                vec![]
            } else {
                vec![last as u32 - 1]
            };
            let left = bring_in(&mut hand, &w, 1000, 8);
            assert_eq!(left.iter().filter(|p| **p == deep as u32).count(), 0);
            assert!(left.starts_with(&want), "{left:?}");
        }
    }

    #[test]
    fn what_is_cold_does_not_come_when_memory_frees() {
        let hot = far(200).with_heat(2);
        let stream = far(0).with_heat(5).set(flag::STREAM);
        let all = [
            (1, far(63)),
            (2, far(64)),
            (3, hot),
            (4, stream),
            (5, far(0)),
        ];
        let w = words(&all);
        assert_eq!(bring_in(&mut begun(Reach::Recent), &w, 1000, 4), [5, 1, 3]);
        let w = words(&all);
        assert_eq!(
            bring_in(&mut begun(Reach::All), &w, 1000, 4),
            [5, 1, 3, 2, 4]
        );
    }

    proptest! {
        /// Compared with sorting: by the round that takes a rank, then by address.
        #[test]
        fn as_sorting_would(
            pages in proptest::collection::btree_map(
                0..BLOCKS * BLOCK_PAGES, (any::<u8>(), 0..8u64, any::<bool>()), 0..200),
            scan_max in 1..3000usize,
            batch in 1..40usize,
            all in any::<bool>(),
        ) {
            let word = |(age, heat, stream): (u8, u64, bool)| {
                let w = far(age).with_heat(heat);
                if stream { w.set(flag::STREAM) } else { w }
            };
            let given: Vec<_> = pages.iter().map(|(page, of)| (*page, word(*of))).collect();
            let w = words(&given);
            let (reach, end) = if all { (Reach::All, 256) } else { (Reach::Recent, 64) };
            let got = bring_in(&mut begun(reach), &w, scan_max, batch);
            let naive_rank = |(age, heat, stream): (u8, u64, bool)| match stream {
                true => 255,
                false => (0..heat.min(5)).fold(u32::from(age), |rank, _| rank / 2),
            };
            let round = |rank: u32| (0..).find(|r| rank < RANK_FIRST << r).unwrap();
            let mut want: Vec<_> = pages
                .iter()
                .map(|(page, of)| (naive_rank(*of), *page as u32))
                .filter(|(rank, _)| *rank < end)
                .map(|(rank, page)| (round(rank), page))
                .collect();
            want.sort_unstable();
            let want: Vec<_> = want.into_iter().map(|(_, p)| p).collect();
            prop_assert_eq!(got, want);
        }
    }
}
