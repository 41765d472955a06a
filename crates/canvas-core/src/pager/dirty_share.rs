//! The share of evicted pages that must be copied first.
//!
//! A dirty page costs about ten times as much to evict as a clean one, which leaves with a part of one call. So the
//! share decides whether a thread that charges memory frees some itself or leaves it to another CPU.

use canvas_types::controller::ewma;
use canvas_types::sync::{AtomicBool, AtomicU64, Ordering};

/// The share of 100 %.
const ALL: u64 = 1 << 16;
/// The share becomes low at or below this value.
const LOW: u64 = ALL / 8 * 3;
/// It stays low up to this value.
const HIGH: u64 = ALL / 2;

/// The share of dirty pages in recent batches: a moving average.
#[derive(Debug)]
pub struct DirtyShare {
    /// In parts of [`ALL`].
    average: AtomicU64,
    is_low: AtomicBool,
}

impl DirtyShare {
    /// Starts as if all pages had been dirty.
    pub const fn new() -> DirtyShare {
        DirtyShare {
            average: AtomicU64::new(ALL),
            is_low: AtomicBool::new(false),
        }
    }

    /// Records that a batch of `dirty` and `clean` pages has left. A concurrent call may be lost.
    pub fn note(&self, dirty: u32, clean: u32) {
        let Some(all) = dirty.checked_add(clean).filter(|n| *n > 0) else {
            return;
        };
        let share = u64::from(dirty) * ALL / u64::from(all);
        let now = ewma::<1, 8>(self.average.load(Ordering::Relaxed), share);
        self.average.store(now, Ordering::Relaxed);
        let was_low = self.is_low.load(Ordering::Relaxed);
        let is_low = now <= if was_low { HIGH } else { LOW };
        if is_low != was_low {
            self.is_low.store(is_low, Ordering::Relaxed);
        }
    }

    /// Whether the share is low.
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
}
