//! Which blocks' pages are written to between coming in and leaving.
//!
//! A page that comes in for a read can be write-protected at once. If nothing writes to it, it leaves
//! without being protected, copied and compared with its far copy (about 4 us less); if something
//! does, the first write is a fault (about 5 us more). A score for each block of 2 MiB says which is
//! to be expected there. Only what becomes of protected pages changes it: whether a page that came in
//! writable was written to is not known (many programs store what was there before). So where writes
//! are expected, one page in 16 comes in protected all the same, to find out when that ends.

use canvas_types::layout::BLOCK_PAGES;
use canvas_types::sync::AtomicU8;
use canvas_types::{PageId, score};

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
    /// Is a page that comes in for a read likely to be written to? `turn` is another number each time that
    /// this page comes in.
    #[inline]
    pub fn expected(&self, page: PageId, turn: u8) -> bool {
        score::is_high(self.of(page)) && !score::is_probe(page.0, turn)
    }
    /// A protected page was written to.
    pub fn met_protection(&self, page: PageId) {
        score::raise(self.of(page), WRITE_WEIGHT);
    }
    /// A protected page left as it came.
    #[inline]
    pub fn left_clean(&self, page: PageId) {
        score::lower(self.of(page), 1);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use canvas_types::sync::Ordering;

    /// Pages of one block come and leave; every `one_in`th is written to. How many came protected.
    fn protected(writes: &Writes<'_>, one_in: u32) -> u32 {
        let mut protected = 0;
        for i in 0..10_000 {
            let page = PageId(BLOCK_PAGES as u32 + i % 512);
            if writes.expected(page, (i / 512) as u8) {
                continue;
            }
            protected += 1;
            match i % one_in {
                0 => writes.met_protection(page),
                _ => writes.left_clean(page),
            }
        }
        protected
    }

    #[test]
    fn pages_that_are_read_come_protected_and_of_those_that_are_written_few() {
        let scores = [AtomicU8::new(0), AtomicU8::new(0)];
        let writes = Writes(&scores);
        assert_eq!(protected(&writes, u32::MAX), 10_000);
        assert!(protected(&writes, 10) > 9_900);
        let few = protected(&writes, 1);
        assert!((400..900).contains(&few), "{few} of 10,000");
        assert_eq!(scores[0].load(Ordering::Relaxed), 0, "another block");
    }

    #[test]
    fn a_block_that_is_no_longer_written_to_is_found_out() {
        let scores = [AtomicU8::new(0), AtomicU8::new(0)];
        let writes = Writes(&scores);
        protected(&writes, 1);
        assert!(protected(&writes, u32::MAX) > 9_800);
    }
}
