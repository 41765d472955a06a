//! How many of the pages that leave must be copied first.
//!
//! A clean page leaves for a part of one call, a dirty one for some ten times as much. So whether a thread
//! that takes memory can free some by itself, or had better leave it to another processor, depends on which
//! kind there is more of.

use canvas_types::sync::{AtomicBool, AtomicU32, Ordering};

/// All pages.
const ALL: u32 = 1 << 16;
/// It is low from here down,
const LOW: u32 = ALL / 8 * 3;
/// until it has risen above this.
const HIGH: u32 = ALL / 2;
/// The average forgets this part of itself with each batch.
const WEIGHT: u32 = 8;

/// The share of dirty pages in the batches of late: a moving average.
#[derive(Debug)]
pub struct DirtyShare {
    /// Of [`ALL`].
    average: AtomicU32,
    is_low: AtomicBool,
}

impl DirtyShare {
    /// All were dirty.
    pub const fn new() -> DirtyShare {
        DirtyShare {
            average: AtomicU32::new(ALL),
            is_low: AtomicBool::new(false),
        }
    }

    /// A batch of `dirty` pages and `clean` ones has left. Of two noted at one time one may be lost.
    pub fn note(&self, dirty: u32, clean: u32) {
        let Some(all) = dirty.checked_add(clean).filter(|n| *n > 0) else {
            return;
        };
        let share = (u64::from(dirty) * u64::from(ALL) / u64::from(all)) as u32;
        let before = self.average.load(Ordering::Relaxed);
        let now = before - before / WEIGHT + share / WEIGHT;
        self.average.store(now, Ordering::Relaxed);
        let was_low = self.is_low.load(Ordering::Relaxed);
        let is_low = now <= if was_low { HIGH } else { LOW };
        if is_low != was_low {
            self.is_low.store(is_low, Ordering::Relaxed);
        }
    }

    /// Are few of them dirty?
    #[inline]
    pub fn is_low(&self) -> bool {
        self.is_low.load(Ordering::Relaxed)
    }
}

impl Default for DirtyShare {
    fn default() -> DirtyShare {
        DirtyShare::new()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn batches(share: &DirtyShare, n: u32, dirty: u32, clean: u32) -> bool {
        (0..n).for_each(|_| share.note(dirty, clean));
        share.is_low()
    }

    #[test]
    fn a_few_clean_batches_make_it_low_and_a_few_dirty_ones_end_that() {
        let share = DirtyShare::new();
        assert!(!share.is_low() && !batches(&share, 4, 0, 128));
        assert!(batches(&share, 6, 0, 128));
        assert!(batches(&share, 2, 128, 0));
        assert!(!batches(&share, 4, 128, 0));
    }

    #[test]
    fn between_the_marks_it_stays_what_it_is() {
        let share = DirtyShare::new();
        assert!(!batches(&share, 1000, 56, 72));
        assert!(batches(&share, 20, 0, 128));
        assert!(batches(&share, 1000, 56, 72));
    }

    #[test]
    fn a_batch_of_nothing_says_nothing() {
        let share = DirtyShare::new();
        assert!(!batches(&share, 1000, 0, 0));
    }

    proptest! {
        /// Against exact arithmetic: never off by more than the rounding of each step, and in bounds.
        #[test]
        fn the_average_is_one(noted in proptest::collection::vec((0..2000u32, 0..2000u32), 0..200)) {
            let share = DirtyShare::new();
            let mut exact = f64::from(ALL);
            for (dirty, clean) in noted {
                share.note(dirty, clean);
                if dirty + clean > 0 {
                    let of_batch = f64::from(ALL) * f64::from(dirty) / f64::from(dirty + clean);
                    exact += (of_batch - exact) / f64::from(WEIGHT);
                }
                let average = share.average.load(Ordering::Relaxed);
                prop_assert!(average <= ALL);
                prop_assert!((f64::from(average) - exact).abs() <= 16.0, "{average} and {exact}");
            }
        }
    }
}
