//! Victims that the program chose.

use core::ops::Range;

use crate::pager::table::PageTable;
use crate::pager::word::{self, State};

use super::batch::VictimBatch;

/// Takes those of `pages`, in ascending order, that can leave now, whatever their heat: at most about `want`, and as
/// many as `out` has room for. All are [`State::Evicting`] afterwards, as after
/// [`Clock::select`](super::Clock::select). Returns the first page not examined.
pub fn take(table: &PageTable<'_>, pages: Range<u32>, want: u32, out: &mut VictimBatch) -> u32 {
    let before = out.pages();
    for page in pages.clone() {
        if out.pages() - before >= want || !out.has_room() {
            return page;
        }
        let slot = &table.words[page as usize];
        let w = word::load(slot);
        if w.evictable() && word::transition(slot, w, w.with_state(State::Evicting)) {
            out.push_page(page, w.is_clean());
        }
    }
    pages.end
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::pager::word::{Word, flag};
    use canvas_types::layout::BLOCK_PAGES;
    use canvas_types::sync::{AtomicU32, AtomicU64};
    use std::vec::Vec;

    #[test]
    fn takes_all_that_can_leave_in_steps_and_nothing_else() {
        let resident = Word(0).with_state(State::Resident).with_heat(15);
        let of = |page: usize| match page % 7 {
            0 => resident.set(flag::LOCKED),
            1 => resident.with_pins(1),
            2 => resident.with_state(State::Far),
            _ => resident.set(flag::REFERENCED),
        };
        let words: Vec<_> = (0..BLOCK_PAGES).map(|p| AtomicU64::new(of(p).0)).collect();
        let table = PageTable {
            words: &words,
            resident_in_block: &[AtomicU32::new(400)],
            high_block: &AtomicU32::new(1),
        };
        let (mut at, mut taken, mut steps) = (10, Vec::new(), 0);
        while at < 500 {
            let mut batch = VictimBatch::new();
            at = take(&table, at..500, 50, &mut batch);
            assert!(batch.pages() <= 50 && (batch.pages() > 0 || at == 500));
            taken.extend(batch.runs().iter().flat_map(|r| r.pages()).map(|p| p.0));
            steps += 1;
        }
        let wanted: Vec<u32> = (10..500).filter(|p| p % 7 > 2).collect();
        assert_eq!(taken, wanted);
        assert!(steps > 5);
        for (page, w) in words.iter().enumerate() {
            let state = match wanted.contains(&(page as u32)) {
                true => State::Evicting,
                false => of(page).state(),
            };
            assert_eq!(word::load(w).state(), state, "{page}");
        }
    }
}
