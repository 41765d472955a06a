//! Which pages in local memory keep a far copy: a cache, which saves writing them when they leave unchanged.
//!
//! A hand goes round over them when far memory needs the room. Their age does not matter: what is in local
//! memory loses nothing but that.

use canvas_types::layout::BLOCK_PAGES;
use canvas_types::sync::{AtomicU64, Ordering};

use crate::table::PageTable;
use crate::word::{self, State, Word, flag};

/// The hand. Threads may move it at one time; a page that two of them see is claimed by one.
pub struct CopyHand {
    /// The next page.
    at: AtomicU64,
}

impl CopyHand {
    /// At the first page.
    #[allow(clippy::new_without_default)]
    #[cfg(not(feature = "shuttle"))]
    pub const fn new() -> CopyHand {
        CopyHand {
            at: AtomicU64::new(0),
        }
    }

    /// Offers resident pages that have a far copy to `take`, which returns false when it wants no more
    /// (the page is offered again then). Goes once round at most, and looks at about `look_max` words.
    pub fn scan(
        &self,
        table: &PageTable<'_>,
        look_max: usize,
        mut take: impl FnMut(u32, Word) -> bool,
    ) {
        let end = table.blocks() * BLOCK_PAGES;
        if end == 0 {
            return;
        }
        let mut page = self.at.load(Ordering::Relaxed) as usize % end;
        let (mut gone, mut looked) = (0, 0);
        while gone < end && looked < look_max {
            looked += 1;
            let block = page / BLOCK_PAGES;
            let skipped = page.is_multiple_of(BLOCK_PAGES)
                && table.resident_in_block[block].load(Ordering::Relaxed) == 0;
            let step = if skipped {
                BLOCK_PAGES
            } else {
                let w = word::load(&table.words[page]);
                if w.state() == State::Resident
                    && w.has(flag::FAR_COPY)
                    && w.entry().is_some()
                    && !take(page as u32, w)
                {
                    break;
                }
                1
            };
            gone += step;
            page = (page + step) % end;
        }
        self.at.store(page as u64, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use canvas_types::SwapEntry;
    use canvas_types::sync::AtomicU32;

    const BLOCKS: usize = 4;

    fn copy() -> Word {
        Word(0)
            .with_state(State::Resident)
            .with_entry(SwapEntry(1))
            .set(flag::FAR_COPY)
    }

    /// What `want` calls of the hand are offered, each taking `each` pages.
    fn offered(all: &[(usize, Word)], calls: usize, each: usize, look_max: usize) -> Vec<Vec<u32>> {
        let words: Vec<_> = (0..BLOCKS * BLOCK_PAGES)
            .map(|_| AtomicU64::new(0))
            .collect();
        let counts: Vec<_> = (0..BLOCKS).map(|_| AtomicU32::new(0)).collect();
        let table = PageTable {
            words: &words,
            resident_in_block: &counts,
            high_block: &AtomicU32::new(0),
        };
        for (page, w) in all {
            table.note_resident(*page);
            words[*page].store(w.0, Ordering::Relaxed);
        }
        let hand = CopyHand::new();
        let call = |_| {
            let mut got = Vec::new();
            hand.scan(&table, look_max, |page, _| {
                if got.len() == each {
                    return false;
                }
                got.push(page);
                true
            });
            got
        };
        (0..calls).map(call).collect()
    }

    #[test]
    fn only_resident_pages_that_have_a_copy() {
        let all = [
            (0, copy().with_state(State::Far)),
            (1, copy().with_state(State::Evicting)),
            (2, copy().clear(flag::FAR_COPY)),
            (3, copy().with_entry(SwapEntry::NONE)),
            (4, copy()),
            (5, copy().set(flag::LOCKED).with_pins(3)),
        ];
        assert_eq!(offered(&all, 1, 9, usize::MAX), [[4, 5]]);
    }

    #[test]
    fn it_goes_on_where_it_stopped_and_once_round_at_most() {
        let all = [(3, copy()), (600, copy()), (2000, copy())];
        let got = offered(&all, 4, 2, usize::MAX);
        assert_eq!(got, [[3, 600], [2000, 3], [600, 2000], [3, 600]]);
        assert_eq!(offered(&all, 1, 9, usize::MAX), [[3, 600, 2000]]);
        assert_eq!(offered(&[], 1, 9, usize::MAX), [[0u32; 0]]);
    }

    #[test]
    fn looks_at_so_many_words_and_skips_empty_blocks() {
        let got = offered(&[(1030, copy())], 2, 9, 2 + 6);
        assert_eq!(got, [vec![], vec![1030]]);
    }
}
