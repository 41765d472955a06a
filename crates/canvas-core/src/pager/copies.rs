//! Finds pages in local memory that keep a far copy. The copy is a cache, which saves writing the page again if it
//! leaves unchanged.
//!
//! A scan goes round over the pages when far memory needs the room. Age does not matter: pages in local memory lose
//! nothing else.

use canvas_types::layout::BLOCK_PAGES;
use canvas_types::sync::{AtomicU32, Ordering};

use crate::pager::scan::ScanCursor;
use crate::pager::table::PageTable;
use crate::pager::word::{self, State, Word, flag};

/// Offers resident pages with a far copy to `take`, which returns false to stop (the page is offered again next time).
/// Goes round once at most, from `position` on, and examines at most about `scan_max` words. Several threads may scan
/// at the same time; only one of two threads that see a page can claim it.
pub fn scan(
    position: &AtomicU32,
    table: &PageTable<'_>,
    scan_max: usize,
    mut take: impl FnMut(u32, Word) -> bool,
) {
    let end = (table.blocks() * BLOCK_PAGES) as u32;
    let mut scan = ScanCursor::new(position.load(Ordering::Relaxed), end, scan_max).rounds(1);
    while let Some(page) = scan.peek() {
        if scan.skip_block(|b| table.resident_in_block[b].load(Ordering::Relaxed) == 0) {
            continue;
        }
        let w = word::load(&table.words[page as usize]);
        let is_copy = w.state() == State::Resident && w.has(flag::FAR_COPY) && w.entry().is_some();
        if is_copy && !take(page, w) {
            break;
        }
        scan.pass(1);
    }
    position.store(scan.at(), Ordering::Relaxed);
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use canvas_types::SwapEntry;
    use canvas_types::sync::AtomicU64;

    const BLOCKS: usize = 4;

    fn copy() -> Word {
        Word(0)
            .with_state(State::Resident)
            .with_entry(SwapEntry(1))
            .set(flag::FAR_COPY)
    }

    /// The pages that successive calls offer, each call taking `each` pages.
    fn offered(all: &[(usize, Word)], calls: usize, each: usize, scan_max: usize) -> Vec<Vec<u32>> {
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
        let position = AtomicU32::new(0);
        let call = |_| {
            let mut got = Vec::new();
            scan(&position, &table, scan_max, |page, _| {
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
