//! Which blocks' pages are written to between coming in and leaving.
//!
//! A page that comes in for a read can be write-protected at once. If nothing writes to it, it leaves
//! without being protected, copied and compared with its far copy (about 4 us less); if something
//! does, the first write is a fault (about 5 us more). A score for each block of 2 MiB says which is
//! to be expected there.

use canvas_types::PageId;
use canvas_types::layout::BLOCK_PAGES;
use canvas_types::sync::{AtomicU8, Ordering};

/// From here on pages of the block come in writable.
const WRITTEN: u8 = 16;
/// Far enough beyond [`WRITTEN`] that a few clean pages do not change the judgement.
const SCORE_MAX: u8 = 24;
/// A write to a protected page weighs more than a page that left clean: protection pays where at
/// most a third is written to.
const WRITE_WEIGHT: u8 = 2;

/// One score for each block. All zeros: nothing is known, and pages come in protected.
pub struct Writes<'a>(
    /// By number of the block.
    pub &'a [AtomicU8],
);

impl Writes<'_> {
    #[inline]
    fn of(&self, page: PageId) -> &AtomicU8 {
        &self.0[page.index() / BLOCK_PAGES]
    }
    // Two threads at one time may lose a step of each other's.
    fn add(&self, page: PageId, n: u8) {
        let score = self.of(page);
        let now = score.load(Ordering::Relaxed);
        score.store((now + n).min(SCORE_MAX), Ordering::Relaxed);
    }
    /// May a page that comes in for a read be left writable, because it is likely to be written to?
    #[inline]
    pub fn expected(&self, page: PageId) -> bool {
        self.of(page).load(Ordering::Relaxed) >= WRITTEN
    }
    /// A protected page was written to.
    pub fn met_protection(&self, page: PageId) {
        self.add(page, WRITE_WEIGHT);
    }
    /// A page left that came from its far copy, and had been written to.
    #[inline]
    pub fn left_written(&self, page: PageId) {
        self.add(page, 1);
    }
    /// A page left as it came.
    #[inline]
    pub fn left_clean(&self, page: PageId) {
        let score = self.of(page);
        let now = score.load(Ordering::Relaxed);
        if now > 0 {
            score.store(now - 1, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    /// Pages of one block come and leave; every `one_in`th is written to. How many came protected.
    fn protected(one_in: u32) -> u32 {
        let scores = [AtomicU8::new(0), AtomicU8::new(0)];
        let writes = Writes(&scores);
        let (mut protected, page) = (0, PageId(BLOCK_PAGES as u32));
        for i in 0..10_000 {
            let written = i % one_in == 0;
            let protect = !writes.expected(page);
            protected += u32::from(protect);
            match (written, protect) {
                (true, true) => {
                    writes.met_protection(page);
                    writes.left_written(page);
                }
                (true, false) => writes.left_written(page),
                (false, _) => writes.left_clean(page),
            }
        }
        assert_eq!(
            scores[0].load(Ordering::Relaxed),
            0,
            "another block's score"
        );
        protected
    }

    #[test]
    fn pages_that_are_read_come_protected_and_those_that_are_written_do_not() {
        assert_eq!(protected(u32::MAX), 10_000);
        assert!(protected(1) < 20);
        assert!(protected(10) > 9_900);
    }

    #[test]
    fn a_block_that_is_no_longer_written_to_is_found_out() {
        let scores = [AtomicU8::new(0)];
        let writes = Writes(&scores);
        (0..1000).for_each(|_| writes.left_written(PageId(3)));
        assert!(writes.expected(PageId(5)));
        (0..SCORE_MAX).for_each(|_| writes.left_clean(PageId(4)));
        assert!(!writes.expected(PageId(5)));
    }
}
