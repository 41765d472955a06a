//! The flat array of page words, with what reclaim needs to skip empty space.
//!
//! The managed range has 2^31 pages and a program uses few of them. So each block of [`BLOCK_PAGES`] pages has a count
//! of its resident pages, and one number bounds the blocks that were ever used. Both are hints: a count may be wrong
//! for the moment between a transition and its update, but no longer.

use canvas_types::PageId;
use canvas_types::layout::BLOCK_PAGES;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};

use crate::pager::scan::ScanCursor;
use crate::pager::word::{self, State, Word};

/// Pages of a chunk: what the clock hand claims at a time, and the longest run it returns.
pub const CHUNK_PAGES: usize = 64;
/// Chunks of a block.
const CHUNKS_PER_BLOCK: usize = BLOCK_PAGES / CHUNK_PAGES;

/// All page words of a process. A copy refers to the same words.
#[derive(Clone, Copy)]
pub struct PageTable<'a> {
    /// One word per page; the length is a multiple of [`BLOCK_PAGES`].
    pub words: &'a [AtomicU64],
    /// Resident pages, one count per [`BLOCK_PAGES`] pages.
    pub resident_in_block: &'a [AtomicU32],
    /// One past the highest block that ever had a resident page.
    pub high_block: &'a AtomicU32,
}

impl<'a> PageTable<'a> {
    /// Counts `page` as resident. Call before its word is published as resident, so that reclaim cannot miss it for a
    /// whole sweep.
    #[inline]
    pub fn note_resident(&self, page: usize) {
        self.note_resident_run(page, 1);
    }

    /// Counts the `len` pages from `page` on as resident. A run may cross blocks.
    #[inline]
    pub fn note_resident_run(&self, page: usize, len: usize) {
        self.each_block(page, len, |block, n| {
            self.resident_in_block[block].fetch_add(n, Ordering::Relaxed);
            let end = block as u32 + 1;
            if self.high_block.load(Ordering::Relaxed) < end {
                self.high_block.fetch_max(end, Ordering::Relaxed);
            }
        });
    }

    /// Counts `page` as no longer resident. Call after its word has left the resident (or evicting) state for good.
    /// Reclaim's own [`crate::pager::clock::Clock::select`] does not call it.
    #[inline]
    pub fn note_gone(&self, page: usize) {
        self.note_gone_run(page, 1);
    }

    /// Counts the `len` pages from `page` on as no longer resident. A run may cross blocks.
    #[inline]
    pub fn note_gone_run(&self, page: usize, len: usize) {
        self.each_block(page, len, |block, n| {
            self.resident_in_block[block].fetch_sub(n, Ordering::Relaxed);
        });
    }

    /// First block at or after `from` that has resident pages, below [`PageTable::blocks`].
    #[inline]
    pub fn next_used_block(&self, from: usize) -> Option<usize> {
        let end = self.blocks();
        if from >= end {
            return None;
        }
        self.resident_in_block[from..end]
            .iter()
            .position(|n| n.load(Ordering::Relaxed) != 0)
            .map(|i| from + i)
    }

    /// First page at or after `from` in a block that has resident pages.
    #[inline]
    pub fn next_used_page(&self, from: u32) -> Option<u32> {
        let block = self.next_used_block(from as usize / BLOCK_PAGES)?;
        Some(from.max((block * BLOCK_PAGES) as u32))
    }

    /// First chunk at or after `from` in a block that has resident pages.
    #[inline]
    pub fn next_used_chunk(&self, from: u32) -> Option<u32> {
        let block = self.next_used_block(from as usize / CHUNKS_PER_BLOCK)?;
        Some(from.max((block * CHUNKS_PER_BLOCK) as u32))
    }

    /// Chunks of [`PageTable::blocks`].
    #[inline]
    pub fn chunks(&self) -> u32 {
        (self.blocks() * CHUNKS_PER_BLOCK) as u32
    }

    /// One past the highest block that ever had a resident page.
    #[inline]
    pub fn blocks(&self) -> usize {
        (self.high_block.load(Ordering::Relaxed) as usize).min(self.resident_in_block.len())
    }

    /// The sum of all counts: resident pages, except for transitions in progress. Walks all blocks.
    pub fn resident_pages(&self) -> u64 {
        let end = self.blocks();
        self.resident_in_block[..end]
            .iter()
            .map(|n| n.load(Ordering::Relaxed) as i32 as i64)
            .sum::<i64>()
            .max(0) as u64
    }

    /// Calls `f` for every page whose word is in `state` when it is examined, in blocks that have resident pages. For
    /// statistics and tests; reclaim uses the clock.
    pub fn for_each_in(&self, state: State, mut f: impl FnMut(usize, Word)) {
        let mut from = 0;
        while let Some(block) = self.next_used_block(from) {
            for page in block * BLOCK_PAGES..(block + 1) * BLOCK_PAGES {
                let w = word::load(&self.words[page]);
                if w.state() == state {
                    f(page, w);
                }
            }
            from = block + 1;
        }
    }

    /// Splits a run at block borders.
    #[inline]
    fn each_block(&self, page: usize, len: usize, mut f: impl FnMut(usize, u32)) {
        let (mut at, end) = (page, page + len);
        while at < end {
            let block = at / BLOCK_PAGES;
            let stop = end.min((block + 1) * BLOCK_PAGES);
            f(block, (stop - at) as u32);
            at = stop;
        }
    }
}

/// The page words among which far pages are searched.
#[derive(Clone, Copy)]
pub struct FarPages<'a, E: Fn(usize) -> bool> {
    /// All words.
    pub words: &'a [AtomicU64],
    /// Number of their blocks that are in use.
    pub blocks: usize,
    /// Whether a block has no far pages.
    pub is_empty: E,
    /// The current epoch.
    pub now_epoch: u8,
}

impl<E: Fn(usize) -> bool> FarPages<'_, E> {
    /// One past the last page.
    pub fn end(&self) -> u32 {
        (self.blocks * BLOCK_PAGES).min(self.words.len()) as u32
    }

    /// Writes pages that `wants` to `out`; returns how many.
    pub fn collect(
        &self,
        scan: &mut ScanCursor,
        out: &mut [PageId],
        wants: impl Fn(Word) -> bool,
    ) -> usize {
        let mut n = 0;
        while n < out.len()
            && let Some(page) = scan.peek()
        {
            if scan.skip_block(&self.is_empty) {
                continue;
            }
            if wants(word::load(&self.words[page as usize])) {
                out[n] = PageId(page);
                n += 1;
            }
            scan.pass(1);
        }
        n
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn with_table(blocks: usize, f: impl FnOnce(PageTable<'_>)) {
        let words: Vec<AtomicU64> = (0..blocks * BLOCK_PAGES)
            .map(|_| AtomicU64::new(0))
            .collect();
        let counts: Vec<AtomicU32> = (0..blocks).map(|_| AtomicU32::new(0)).collect();
        let high = AtomicU32::new(0);
        f(PageTable {
            words: &words,
            resident_in_block: &counts,
            high_block: &high,
        });
    }

    #[test]
    fn empty_table_has_no_used_block() {
        with_table(4, |t| {
            assert_eq!(t.blocks(), 0);
            assert_eq!(t.next_used_block(0), None);
            assert_eq!(t.resident_pages(), 0);
        });
    }

    #[test]
    fn runs_are_split_at_block_borders_and_empty_blocks_are_skipped() {
        with_table(8, |t| {
            t.note_resident_run(3 * BLOCK_PAGES - 2, 5);
            assert_eq!(t.blocks(), 4);
            assert_eq!(t.next_used_block(0), Some(2));
            assert_eq!(t.next_used_block(3), Some(3));
            assert_eq!(t.next_used_block(4), None);
            assert_eq!(
                (t.next_used_page(7), t.next_used_page(1030)),
                (Some(1024), Some(1030))
            );
            assert_eq!(
                (t.next_used_chunk(3), t.next_used_chunk(17)),
                (Some(16), Some(17))
            );
            assert_eq!((t.next_used_chunk(32), t.chunks()), (None, 32));
            assert_eq!(t.resident_pages(), 5);
            t.note_gone_run(3 * BLOCK_PAGES - 2, 2);
            assert_eq!(t.next_used_block(0), Some(3));
            t.note_gone_run(3 * BLOCK_PAGES, 3);
            assert_eq!(t.next_used_block(0), None);
            assert_eq!(t.blocks(), 4, "the high mark stays");
        });
    }

    #[test]
    fn for_each_sees_pages_of_the_state_only() {
        with_table(2, |t| {
            for page in [0, 7, BLOCK_PAGES + 1] {
                t.words[page].store(Word(0).with_state(State::Resident).0, Ordering::Relaxed);
                t.note_resident(page);
            }
            t.words[9].store(Word(0).with_state(State::Far).0, Ordering::Relaxed);
            let mut seen = Vec::new();
            t.for_each_in(State::Resident, |p, _| seen.push(p));
            assert_eq!(seen, [0, 7, BLOCK_PAGES + 1]);
        });
    }
}
