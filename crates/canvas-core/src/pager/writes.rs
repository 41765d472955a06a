//! Predicts, per block, whether pages are written to between coming in and leaving.
//!
//! A page that comes in for a read can be write-protected at once. If nothing writes to it, it leaves without being
//! protected, copied and compared with its far copy (about 4 us less); otherwise the first write is a fault (about 5 us
//! more). A score per block of 2 MiB predicts which is likely. Only protected pages change it: whether a page that came
//! in writable was written to is unknown (many programs store the value that was there before). So even if writes are
//! expected, one page in 16 comes in protected, to find out when writes end.

use canvas_types::layout::BLOCK_PAGES;
use canvas_types::sync::AtomicU8;
use canvas_types::{PageId, score};

/// Weight of a write to a protected page relative to a page that left clean: protection pays if at most a third is
/// written to.
const WRITE_WEIGHT: u8 = 2;

/// One score per block. All zeros: nothing is known, and pages come in protected.
pub struct Writes<'a>(
    /// By block number.
    pub &'a [AtomicU8],
);

impl Writes<'_> {
    #[inline]
    fn of(&self, page: PageId) -> &AtomicU8 {
        &self.0[page.index() / BLOCK_PAGES]
    }
    /// Whether a page that comes in for a read will probably be written to. `turn` must differ each time this page
    /// comes in.
    #[inline]
    pub fn expected(&self, page: PageId, turn: u8) -> bool {
        score::is_high(self.of(page)) && !score::is_probe(page.0, turn)
    }
    /// Records a write to a protected page.
    pub fn met_protection(&self, page: PageId) {
        score::raise(self.of(page), WRITE_WEIGHT);
    }
    /// Records that a protected page left unchanged.
    #[inline]
    pub fn left_clean(&self, page: PageId) {
        score::lower(self.of(page), 1);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use canvas_types::sync::Ordering;

    /// Pages of one block come in and leave, and every `one_in`th is written to; returns how many came in protected.
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
