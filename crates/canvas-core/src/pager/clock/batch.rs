//! The result of one selection, in fixed space.

use canvas_types::PageId;

use crate::pager::table::CHUNK_PAGES;

/// Runs that one batch can hold.
pub const BATCH_RUNS: usize = 192;
/// Pages that one batch can hold.
pub const BATCH_PAGES: usize = 256;
/// Dropped-reservation candidates that one batch can hold.
pub const BATCH_DROPPED: usize = 32;
/// Adjacent pages, all [`State::Evicting`](crate::pager::word::State::Evicting) and owned by the thread that selected them.
/// Never crosses a chunk of [`CHUNK_PAGES`] pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// Number of its first page.
    pub start: PageId,
    /// Length in pages, at least 1.
    pub len: u32,
    /// The pages' far copies are up to date ([`Word::is_clean`](crate::pager::word::Word::is_clean)).
    pub clean: bool,
}

impl Run {
    /// Its pages, in ascending order.
    pub fn pages(self) -> impl Iterator<Item = PageId> {
        PageId::each(self.start.0..self.start.0 + self.len)
    }
}

/// The result of [`Clock::select`](super::Clock::select). About 2.5 KiB, no heap.
pub struct VictimBatch {
    runs: [Run; BATCH_RUNS],
    run_count: usize,
    pages: u32,
    dropped: [PageId; BATCH_DROPPED],
    dropped_count: usize,
    /// Words examined.
    pub scanned: u32,
}

impl VictimBatch {
    /// Creates an empty batch.
    pub const fn new() -> VictimBatch {
        VictimBatch {
            runs: [Run {
                start: PageId(0),
                len: 0,
                clean: false,
            }; BATCH_RUNS],
            run_count: 0,
            pages: 0,
            dropped: [PageId(0); BATCH_DROPPED],
            dropped_count: 0,
            scanned: 0,
        }
    }
    /// Empties the batch.
    pub fn clear(&mut self) {
        (self.run_count, self.pages, self.dropped_count, self.scanned) = (0, 0, 0, 0);
    }
    /// The runs, each ascending; no page is in two of them. Two runs of one chunk may come in either order, because a
    /// chunk can be selected from twice.
    pub fn runs(&self) -> &[Run] {
        &self.runs[..self.run_count]
    }
    /// Pages in all runs.
    pub fn pages(&self) -> u32 {
        self.pages
    }
    /// Pages of runs that are not clean.
    pub fn dirty_pages(&self) -> u32 {
        self.runs().iter().filter(|r| !r.clean).map(|r| r.len).sum()
    }
    /// Removes dirty pages beyond `dirty`; passes the removed runs to `f`. They still belong to the caller.
    pub fn truncate(&mut self, dirty: u32, mut f: impl FnMut(Run)) {
        let mut room = dirty;
        let mut kept = 0;
        self.pages = 0;
        for i in 0..self.run_count {
            let r = self.runs[i];
            let n = if r.clean { r.len } else { r.len.min(room) };
            room -= if r.clean { 0 } else { n };
            if n > 0 {
                self.runs[kept] = Run { len: n, ..r };
                self.pages += n;
                kept += 1;
            }
            if n < r.len {
                f(Run {
                    start: PageId(r.start.0 + n),
                    len: r.len - n,
                    clean: false,
                });
            }
        }
        self.run_count = kept;
    }
    /// Removes the runs that contain a page of `from..to`; passes them to `f`. They still belong to the caller.
    pub fn leave_out(&mut self, (from, to): (u32, u32), mut f: impl FnMut(Run)) {
        let mut kept = 0;
        for i in 0..self.run_count {
            let r = self.runs[i];
            if r.start.0 < to && from < r.start.0 + r.len {
                self.pages -= r.len;
                f(r);
            } else {
                self.runs[kept] = r;
                kept += 1;
            }
        }
        self.run_count = kept;
    }
    /// Hot resident pages. While far memory is short (Canvas fig. 7), they own an entry: take their reservation with
    /// [`take_reservation`](super::take_reservation) and free the entry. Otherwise they have a far copy that they will
    /// not need soon: drop it in [`drop_far_copy`](super::drop_far_copy).
    pub fn dropped_candidates(&self) -> &[PageId] {
        &self.dropped[..self.dropped_count]
    }
    /// Whether there is room for one more chunk with any contents.
    pub(super) fn has_room(&self) -> bool {
        self.pages as usize + CHUNK_PAGES <= BATCH_PAGES
            && self.run_count + CHUNK_PAGES <= BATCH_RUNS
    }
    /// Adds a page, which the caller has moved to Evicting. Scattered pages fit up to [`BATCH_RUNS`].
    pub fn push_page(&mut self, page: u32, clean: bool) {
        self.pages += 1;
        if let Some(last) = self.runs[..self.run_count].last_mut()
            && last.start.0 + last.len == page
            && last.clean == clean
            && !page.is_multiple_of(CHUNK_PAGES as u32)
        {
            last.len += 1;
            return;
        }
        self.runs[self.run_count] = Run {
            start: PageId(page),
            len: 1,
            clean,
        };
        self.run_count += 1;
    }
    pub(super) fn push_dropped(&mut self, page: u32) {
        if self.dropped_count < BATCH_DROPPED {
            self.dropped[self.dropped_count] = PageId(page);
            self.dropped_count += 1;
        }
    }
}

impl Default for VictimBatch {
    fn default() -> Self {
        VictimBatch::new()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_batch_is_cut_in_the_middle_of_a_run() {
        let mut b = VictimBatch::new();
        for page in [1, 2, 3, 10, 11, 20] {
            b.push_page(page, false);
        }
        let mut out = Vec::new();
        b.truncate(4, |r| out.push((r.start.0, r.len)));
        assert_eq!(b.pages(), 4);
        let kept: Vec<_> = b.runs().iter().map(|r| (r.start.0, r.len)).collect();
        assert_eq!(kept, [(1, 3), (10, 1)]);
        assert_eq!(out, [(11, 1), (20, 1)]);
        b.truncate(9, |_| panic!("all fits"));
        assert_eq!(b.pages(), 4);
        b.truncate(0, |_| {});
        assert_eq!((b.pages(), b.runs().len()), (0, 0));
    }

    #[test]
    fn runs_with_a_page_that_stays_are_left_out() {
        let mut b = VictimBatch::new();
        for page in [1, 2, 3, 10, 11, 20] {
            b.push_page(page, page == 20);
        }
        let mut out = Vec::new();
        b.leave_out((3, 10), |r| out.push((r.start.0, r.len)));
        assert_eq!(out, [(1, 3)]);
        b.leave_out((11, 20), |r| out.push((r.start.0, r.len)));
        assert_eq!(out, [(1, 3), (10, 2)]);
        assert_eq!((b.pages(), b.dirty_pages()), (1, 0));
        b.leave_out((0, u32::MAX), |r| assert!(r.clean));
        assert_eq!((b.pages(), b.runs().len()), (0, 0));
    }
}
