//! One scan for all searches that go round.
//!
//! | search | for | over | a new round |
//! |---|---|---|---|
//! | [`clock`](crate::pager::clock) | victims | chunks | is a sweep, which hot pages may survive |
//! | [`demotion`](crate::pager::demotion) | far pages to demote from pool or node | pages | changes the least age |
//! | [`copies`](crate::pager::copies) | copies of resident pages to drop | pages | |
//! | [`swapin`](crate::pager::swapin) | far pages to promote | pages | doubles the highest rank |
//! | [`shared`](crate::pager::shared) | shared victims; shared copies to demote or drop | pages | |
//! | [`compaction`](crate::swap::compaction) | extents to empty | extents | changes what may be left in one |
//! | libcanvas's trace | sampled pages to unmap | pages | |
//!
//! Each search keeps a position, begins a [`ScanCursor`] there, and stores [`ScanCursor::at`] when it ends. Threads
//! that scan from one position at the same time may examine a page twice; only one of them can claim it. The clock's
//! threads move their position by compare-and-swap, so that each gets chunks of its own. The position of shared memory
//! and that of compaction move under a lock, those of `swapin` and the trace in the reclaim thread only.

use canvas_types::layout::BLOCK_PAGES;

/// A scan over numbers below an end: from a position on, round and round, within a budget.
#[derive(Debug)]
pub struct ScanCursor {
    at: u32,
    end: u32,
    /// Numbers that it may still examine.
    budget: usize,
    /// Numbers behind it, and how many may be.
    passed: u64,
    passed_max: u64,
    wrapped: bool,
}

impl ScanCursor {
    /// Scans the numbers below `end` from `at` on, round and round, and examines at most `budget`.
    #[inline]
    pub fn new(at: u32, end: u32, budget: usize) -> ScanCursor {
        ScanCursor {
            at,
            end,
            budget,
            passed: 0,
            passed_max: u64::MAX,
            wrapped: false,
        }
    }

    /// Scans `from..to` once, and examines at most `budget`.
    #[inline]
    pub fn range(from: u32, to: u32, budget: usize) -> ScanCursor {
        ScanCursor {
            passed_max: u64::from(to.saturating_sub(from)),
            ..ScanCursor::new(from, to, budget)
        }
    }

    /// Ends the scan after `n` rounds.
    #[inline]
    pub fn rounds(self, n: u32) -> ScanCursor {
        ScanCursor {
            passed_max: u64::from(self.end) * u64::from(n),
            ..self
        }
    }

    /// The number to examine; `None` when the scan has ended. It stays the same until [`ScanCursor::pass`] or
    /// [`ScanCursor::skip`].
    #[inline]
    pub fn peek(&mut self) -> Option<u32> {
        if self.budget == 0 || self.passed >= self.passed_max || self.end == 0 {
            return None;
        }
        if self.at >= self.end {
            (self.at, self.wrapped) = (0, true);
        }
        Some(self.at)
    }

    /// As [`ScanCursor::peek`], but passes over numbers, free of charge. `find` returns the first number at or after
    /// its argument that counts.
    #[inline]
    pub fn seek(&mut self, find: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        self.peek()?;
        // There may be more numbers than when the scan began.
        let end = self.end;
        let find = |at| find(at).filter(|found| *found < end);
        let found = match find(self.at) {
            Some(found) => found,
            None => {
                self.advance(self.end - self.at);
                self.peek()?;
                find(0)?
            }
        };
        self.advance(found - self.at);
        (self.passed < self.passed_max).then_some(found)
    }

    /// Passes `n` numbers that were examined.
    #[inline]
    pub fn pass(&mut self, n: u32) {
        self.budget = self.budget.saturating_sub(n as usize);
        self.advance(n);
    }

    /// Skips `n` numbers, or those to the end of the round, at the price of one.
    #[inline]
    pub fn skip(&mut self, n: u32) {
        self.budget = self.budget.saturating_sub(1);
        self.advance(n.min(self.end.saturating_sub(self.at)));
    }

    /// In a scan over pages, skips the block that begins here if it `is_empty`.
    #[inline]
    pub fn skip_block(&mut self, is_empty: impl FnOnce(usize) -> bool) -> bool {
        let at = self.at as usize;
        let skips = at.is_multiple_of(BLOCK_PAGES) && is_empty(at / BLOCK_PAGES);
        if skips {
            self.skip(BLOCK_PAGES as u32);
        }
        skips
    }

    #[inline]
    fn advance(&mut self, n: u32) {
        self.at += n;
        self.passed += u64::from(n);
    }

    /// Whether a round has begun since the last call.
    #[inline]
    pub fn wrapped(&mut self) -> bool {
        core::mem::take(&mut self.wrapped)
    }

    /// Where the next scan goes on.
    #[inline]
    pub fn at(&self) -> u32 {
        self.at
    }

    /// Numbers that it may still examine.
    #[inline]
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Numbers passed, skipped or left out.
    #[inline]
    pub fn passed(&self) -> u64 {
        self.passed
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::vec::Vec;

    fn all(mut scan: ScanCursor) -> (Vec<u32>, u32) {
        let mut seen = Vec::new();
        while let Some(n) = scan.peek() {
            seen.push(n);
            scan.pass(1);
        }
        (seen, scan.at())
    }

    #[test]
    fn budget_rounds_and_end_bound_a_scan() {
        assert_eq!(all(ScanCursor::new(3, 5, 4)), (vec![3, 4, 0, 1], 2));
        assert_eq!(all(ScanCursor::new(3, 5, 9).rounds(1)).0, [3, 4, 0, 1, 2]);
        assert_eq!(all(ScanCursor::range(3, 5, 9)), (vec![3, 4], 5));
        assert_eq!(all(ScanCursor::range(3, 5, 1)), (vec![3], 4));
        assert_eq!(all(ScanCursor::new(7, 0, 9)), (vec![], 7));
        assert_eq!(all(ScanCursor::range(7, 5, 9)), (vec![], 7));
    }

    #[test]
    fn the_next_scan_begins_the_round_if_the_last_one_ended_with_it() {
        let mut scan = ScanCursor::new(4, 5, 1);
        assert_eq!(scan.peek(), Some(4));
        scan.pass(1);
        assert!(scan.peek().is_none() && !scan.wrapped());
        let mut next = ScanCursor::new(scan.at(), 5, 1);
        assert!(next.peek() == Some(0) && next.wrapped() && !next.wrapped());
        // Or goes on, if there are more numbers by then.
        assert_eq!(ScanCursor::new(scan.at(), 6, 1).peek(), Some(5));
    }

    #[test]
    fn a_number_that_came_later_ends_no_scan() {
        let mut scan = ScanCursor::new(3, 5, 9).rounds(1);
        // 3 and 4 do not count, 7 is new, 1 counts.
        let found = scan.seek(|from| (from <= 1).then_some(1).or(Some(7)));
        assert_eq!(found, Some(1));
    }

    proptest! {
        /// Compared with the list of all numbers to come.
        #[test]
        fn as_a_list_would(
            (end, at) in (1..20u32).prop_flat_map(|end| (Just(end), 0..=end)),
            (budget, rounds) in (0..100usize, 0..4u32),
            steps in proptest::collection::vec((0..3u8, 1..6u32), 0..60),
            counts in proptest::collection::vec(any::<bool>(), 20),
        ) {
            let mut scan = ScanCursor::new(at, end, budget).rounds(rounds);
            let mut list: VecDeque<u32> =
                (at..end).chain((0..end).cycle()).take((end * rounds) as usize).collect();
            let (mut left, mut round, whole) = (budget, 0, list.len());
            for (what, n) in steps {
                let seeks = what == 0 && left > 0;
                while seeks && list.front().is_some_and(|n| !counts[*n as usize]) {
                    list.pop_front();
                }
                let number = match what {
                    0 => scan.seek(|from| (from..end).find(|n| counts[*n as usize])),
                    _ => scan.peek(),
                };
                prop_assert_eq!(number, list.front().copied().filter(|_| left > 0));
                let Some(number) = number else { break };
                let passed = (whole - list.len()) as u32;
                prop_assert_eq!((scan.at(), scan.passed()), (number, u64::from(passed)));
                let before = std::mem::replace(&mut round, (at + passed) / end);
                prop_assert_eq!(scan.wrapped(), round > before);
                let to_end = n.min(end - number);
                if what == 1 {
                    scan.skip(n);
                    left -= 1;
                } else {
                    scan.pass(to_end);
                    left = left.saturating_sub(to_end as usize);
                }
                prop_assert_eq!(scan.budget(), left);
                list.drain(..(to_end as usize).min(list.len()));
            }
        }
    }
}
