//! Chooses which far pages leave the pool first: those evicted longest ago (FastSwap §IV), in address order among pages
//! of similar age, so that neighbours are stored together and come back together.
//!
//! A hand cycles over the page words. It takes pages of at least some age, in epochs ([`crate::pager::clock::EpochClock`]);
//! after a whole round without any, it accepts younger ones. A page that came back to the pool with a neighbour
//! ([`flag::REFERENCED`] on a far page) is spared once.

use canvas_types::sync::{AtomicU32, Ordering};

use crate::pager::scan::ScanCursor;
use crate::pager::table::FarPages;
use crate::pager::word::{self, State, Word, flag};

/// Age that the hand begins with: local memory has been replaced four times since.
pub const AGE_START: u32 = 64;

/// The hand. One thread at a time moves it; only one of two threads that see a page can claim it.
pub struct DemotionScan {
    /// The next page.
    at: AtomicU32,
    /// Minimum age that is taken, in epochs.
    age_min: AtomicU32,
    /// Pages taken in this round.
    taken: AtomicU32,
}

impl DemotionScan {
    /// A hand at the first page.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> DemotionScan {
        DemotionScan {
            at: AtomicU32::new(0),
            age_min: AtomicU32::new(AGE_START),
            taken: AtomicU32::new(0),
        }
    }

    /// Offers pages that are far, in the pool, and old enough to `take`, which returns false to stop (the page is
    /// offered again next time). Skips pages for which `other` returns true. Examines at most about `scan_max` words;
    /// `None`: until there is no page of any age left.
    pub fn scan<E: Fn(usize) -> bool>(
        &self,
        far: &FarPages<'_, E>,
        scan_max: Option<usize>,
        other: impl Fn(Word) -> bool,
        mut take: impl FnMut(u32, Word) -> bool,
    ) {
        let (at, urgent) = (self.at.load(Ordering::Relaxed), scan_max.is_none());
        let mut scan = ScanCursor::new(at, far.end(), scan_max.unwrap_or(usize::MAX));
        let (mut idle_rounds, mut found, mut begun) = (0, false, false);
        while let Some(page) = scan.peek() {
            if scan.wrapped() {
                let age = self.round_ended(urgent);
                idle_rounds = if found { 0 } else { idle_rounds + 1 };
                found = false;
                // Two rounds without any page: there is nothing of this age. An extent that was begun is better filled
                // with younger pages than left half empty.
                let settles = urgent || begun;
                if idle_rounds >= 2 && (age == 0 || !settles) {
                    break;
                }
            }
            if scan.skip_block(&far.is_empty) {
                continue;
            }
            let slot = &far.words[page as usize];
            let w = word::load(slot);
            if self.wants(w, far.now_epoch) && !other(w) {
                found = true;
                if w.has(flag::REFERENCED) {
                    // If another thread was faster, the page has changed anyway.
                    let _ = word::transition(slot, w, w.clear(flag::REFERENCED));
                } else if take(page, w) {
                    begun = true;
                    self.taken.fetch_add(1, Ordering::Relaxed);
                } else {
                    break;
                }
            }
            scan.pass(1);
        }
        self.at.store(scan.at(), Ordering::Relaxed);
    }

    fn wants(&self, w: Word, now_epoch: u8) -> bool {
        let age = || u32::from(now_epoch.wrapping_sub(w.epoch()));
        w.state() == State::Far
            && w.entry().is_some()
            && !w.has(flag::IN_FAR_TIER)
            && age() >= self.age_min.load(Ordering::Relaxed)
    }

    /// Ends a round; returns the age for the next one.
    fn round_ended(&self, urgent: bool) -> u32 {
        let age = self.age_min.load(Ordering::Relaxed);
        let next = match self.taken.swap(0, Ordering::Relaxed) {
            0 if urgent => 0,
            0 => age / 2,
            _ => (age + 1).min(AGE_START),
        };
        self.age_min.store(next, Ordering::Relaxed);
        age
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use canvas_types::SwapEntry;
    use canvas_types::layout::BLOCK_PAGES;
    use canvas_types::sync::AtomicU64;

    const NOW: u8 = 10;

    fn far(age: u8) -> Word {
        Word(0)
            .with_state(State::Far)
            .with_entry(SwapEntry(1))
            .with_epoch(NOW.wrapping_sub(age))
    }

    fn table(words: &[AtomicU64]) -> FarPages<'_, impl Fn(usize) -> bool> {
        FarPages {
            words,
            blocks: 4,
            is_empty: |_| false,
            now_epoch: NOW,
        }
    }

    fn words(all: &[(usize, Word)]) -> Vec<AtomicU64> {
        let words: Vec<_> = (0..4 * BLOCK_PAGES).map(|_| AtomicU64::new(0)).collect();
        for (page, w) in all {
            words[*page].store(w.0, Ordering::Relaxed);
        }
        words
    }

    fn scan(hand: &DemotionScan, words: &[AtomicU64], want: usize) -> Vec<u32> {
        let mut got = Vec::new();
        hand.scan(
            &table(words),
            Some(100_000),
            |_| false,
            |page, w| {
                if got.len() == want {
                    return false;
                }
                words[page as usize].store(w.set(flag::IN_FAR_TIER).0, Ordering::Relaxed);
                got.push(page);
                true
            },
        );
        got
    }

    #[test]
    fn the_oldest_go_first_and_neighbours_together() {
        let w = words(&[
            (3, far(200)),
            (4, far(0)),
            (5, far(70)),
            (700, far(20)),
            (701, far(0)),
            (1500, far(64)),
        ]);
        let hand = DemotionScan::new();
        assert_eq!(scan(&hand, &w, 2), [3, 5]);
        assert_eq!(scan(&hand, &w, 1), [1500]);
        // At first there is none of this age; then one is found, and younger pages fill the rest.
        let rest = (0..12).map(|_| scan(&hand, &w, 9)).find(|r| !r.is_empty());
        assert_eq!(rest, Some(vec![700, 4, 701]));
        assert!(scan(&hand, &w, 9).is_empty());
    }

    #[test]
    fn only_far_pages_with_a_copy_in_the_pool() {
        let old = far(255);
        let w = words(&[
            (0, old.with_state(State::Resident)),
            (1, old.with_state(State::Filling)),
            (2, old.set(flag::IN_FAR_TIER)),
            (3, old.with_entry(SwapEntry::NONE)),
            (4, old.with_state(State::Cached)),
            (5, old),
        ]);
        let hand = DemotionScan::new();
        assert_eq!(scan(&hand, &w, 9), [5]);
    }

    #[test]
    fn what_is_other_is_as_if_it_were_not_there() {
        let w = words(&[
            (3, far(100).with_entry(SwapEntry(7))),
            (4, far(0)),
            (5, far(100).set(flag::REFERENCED).with_entry(SwapEntry(7))),
        ]);
        let (hand, mut got) = (DemotionScan::new(), Vec::new());
        // Even when it must find pages, it ends.
        for _ in 0..2 {
            hand.scan(
                &table(&w),
                None,
                |w| w.entry() == SwapEntry(7),
                |page, cur| {
                    w[page as usize].store(cur.set(flag::IN_FAR_TIER).0, Ordering::Relaxed);
                    got.push(page);
                    true
                },
            );
        }
        assert_eq!(got, [4]);
        assert!(word::load(&w[5]).has(flag::REFERENCED));
    }

    #[test]
    fn a_page_that_was_not_taken_is_offered_again() {
        let w = words(&[(8, far(100)), (9, far(100))]);
        let hand = DemotionScan::new();
        assert!(scan(&hand, &w, 0).is_empty());
        assert_eq!(scan(&hand, &w, 1), [8]);
        assert_eq!(scan(&hand, &w, 1), [9]);
    }

    #[test]
    fn looks_at_so_many_words_and_skips_empty_blocks() {
        let w = words(&[(1600, far(100))]);
        let hand = DemotionScan::new();
        let mut got = Vec::new();
        let far = FarPages {
            words: &w,
            blocks: 4,
            is_empty: |b| b < 2,
            now_epoch: NOW,
        };
        let mut step = |hand: &DemotionScan, scan_max| {
            hand.scan(
                &far,
                Some(scan_max),
                |_| false,
                |page, _| {
                    got.push(page);
                    true
                },
            );
            hand.at.load(Ordering::Relaxed)
        };
        assert_eq!(step(&hand, 2), 1024, "two empty blocks");
        assert_eq!(step(&hand, 512), 1536);
        step(&hand, 65);
        assert_eq!(got, [1600]);
    }

    #[test]
    fn in_need_one_call_finds_a_page_of_any_age_and_ends_when_there_is_none() {
        let w = words(&[(3, far(0)), (1000, far(1))]);
        let hand = DemotionScan::new();
        let mut got = Vec::new();
        for _ in 0..3 {
            hand.scan(
                &table(&w),
                None,
                |_| false,
                |page, cur| {
                    w[page as usize].store(cur.set(flag::IN_FAR_TIER).0, Ordering::Relaxed);
                    got.push(page);
                    true
                },
            );
        }
        assert_eq!(got, [3, 1000]);
    }

    #[test]
    fn what_came_back_with_a_neighbour_is_passed_over_once() {
        let w = words(&[(3, far(100).set(flag::REFERENCED)), (4, far(100))]);
        let hand = DemotionScan::new();
        assert_eq!(scan(&hand, &w, 1), [4]);
        assert!(!word::load(&w[3]).has(flag::REFERENCED));
        assert_eq!(scan(&hand, &w, 1), [3]);
        let w = words(&[(3, far(0).set(flag::REFERENCED))]);
        let mut got = Vec::new();
        hand.scan(
            &table(&w),
            None,
            |_| false,
            |page, _| {
                got.push(page);
                false
            },
        );
        assert_eq!(got, [3], "in need there is no other");
    }
}
