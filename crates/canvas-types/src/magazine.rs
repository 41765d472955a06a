//! Magazines: a few free numbers in front of an allocator, so that few calls take its lock (Bonwick and Adams, 2001).
//!
//! A magazine is a cache line that usually one thread uses. Putting a number (of an entry, of a slot) into it, or
//! taking one, is a compare-and-swap or an exchange of one cell: it takes no lock, and a thread cannot leave it half
//! done. Any thread may take from any magazine, so no number here is out of reach; the order of search only decides how
//! far a cache line travels.

use crate::sync::{AtomicU32, Ordering};

/// Number of magazines; threads are spread over them by number.
pub const MAGAZINES: usize = 16;

#[repr(align(128))]
struct Magazine<const CELLS: usize>([AtomicU32; CELLS]);

/// [`MAGAZINES`] magazines of `CELLS` numbers each. A number is not 0, and is here at most once.
pub struct Magazines<const CELLS: usize>([Magazine<CELLS>; MAGAZINES]);

impl<const CELLS: usize> Magazines<CELLS> {
    /// Creates empty magazines.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Magazines<CELLS> {
        Magazines([const { Magazine([const { AtomicU32::new(0) }; CELLS]) }; MAGAZINES])
    }

    /// Puts `number` into the magazine of `thread`; returns false if that is full.
    #[inline]
    pub fn put(&self, thread: usize, number: u32) -> bool {
        debug_assert!(number != 0);
        self.0[thread % MAGAZINES].0.iter().any(|cell| {
            cell.load(Ordering::Relaxed) == 0
                && cell
                    .compare_exchange(0, number, Ordering::Release, Ordering::Relaxed)
                    .is_ok()
        })
    }

    /// Takes a number from the magazine of `thread`.
    #[inline]
    pub fn take(&self, thread: usize) -> Option<u32> {
        self.0[thread % MAGAZINES].0.iter().find_map(|cell| {
            if cell.load(Ordering::Relaxed) == 0 {
                return None;
            }
            match cell.swap(0, Ordering::Acquire) {
                0 => None,
                number => Some(number),
            }
        })
    }

    /// Takes a number from any magazine, starting with that of `thread`. `None`: each cell was empty when it was
    /// checked.
    pub fn take_any(&self, thread: usize) -> Option<u32> {
        (0..MAGAZINES).find_map(|i| self.take(thread.wrapping_add(i)))
    }

    /// Numbers in all magazines; approximate while other threads use them.
    pub fn len(&self) -> u32 {
        self.0
            .iter()
            .flat_map(|magazine| &magazine.0)
            .map(|cell| u32::from(cell.load(Ordering::Relaxed) != 0))
            .sum()
    }

    /// Whether all magazines are empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_magazine_has_a_bound_and_all_can_be_reached() {
        let magazines: Magazines<2> = Magazines::new();
        assert!(magazines.is_empty());
        assert!(magazines.put(3, 7) && magazines.put(3, 8) && !magazines.put(3, 9));
        assert!(magazines.put(3 + 2 * MAGAZINES + 1, 9));
        assert_eq!(magazines.len(), 3);
        // The other thread's own magazine is empty, but it can reach all others.
        assert_eq!(magazines.take(5), None);
        let mut all: [u32; 3] = core::array::from_fn(|_| magazines.take_any(5).unwrap());
        all.sort_unstable();
        assert_eq!(all, [7, 8, 9]);
        assert_eq!(magazines.take_any(usize::MAX), None);
    }
}
