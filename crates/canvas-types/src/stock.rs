//! Magazines: small stocks of numbers in front of an allocator, so that few calls take its lock.
//!
//! Numbers (of entries, of slots) lie on shelves, the magazines: each is a cache line that usually one thread uses.
//! Putting a number on a shelf, or taking one, is a compare-and-swap or an exchange of one cell: it takes no lock, and
//! a thread cannot leave it half done. Any thread may take from any shelf, so no number here is out of reach; the order
//! of search only decides how far a cache line travels.

use crate::sync::{AtomicU32, Ordering};

/// Number of shelves; threads are spread over them by number.
pub const SHELVES: usize = 16;

#[repr(align(128))]
struct Shelf<const CELLS: usize>([AtomicU32; CELLS]);

/// [`SHELVES`] shelves of `CELLS` numbers each. A number is not 0, and is in the stock at most once.
pub struct Stock<const CELLS: usize> {
    shelves: [Shelf<CELLS>; SHELVES],
}

impl<const CELLS: usize> Stock<CELLS> {
    /// Creates an empty stock.
    #[allow(clippy::new_without_default)]
    #[cfg(not(feature = "shuttle"))]
    pub const fn new() -> Stock<CELLS> {
        Stock {
            shelves: [const { Shelf([const { AtomicU32::new(0) }; CELLS]) }; SHELVES],
        }
    }
    /// Creates an empty stock.
    #[allow(clippy::new_without_default)]
    #[cfg(feature = "shuttle")]
    pub fn new() -> Stock<CELLS> {
        Stock {
            shelves: core::array::from_fn(|_| Shelf(core::array::from_fn(|_| AtomicU32::new(0)))),
        }
    }

    /// Puts `number` on the shelf of `thread`; returns false if that is full.
    #[inline]
    pub fn put(&self, thread: usize, number: u32) -> bool {
        debug_assert!(number != 0);
        self.shelves[thread % SHELVES].0.iter().any(|cell| {
            cell.load(Ordering::Relaxed) == 0
                && cell
                    .compare_exchange(0, number, Ordering::Release, Ordering::Relaxed)
                    .is_ok()
        })
    }

    /// Takes a number from the shelf of `thread`.
    #[inline]
    pub fn take(&self, thread: usize) -> Option<u32> {
        self.shelves[thread % SHELVES].0.iter().find_map(|cell| {
            if cell.load(Ordering::Relaxed) == 0 {
                return None;
            }
            match cell.swap(0, Ordering::Acquire) {
                0 => None,
                number => Some(number),
            }
        })
    }

    /// Takes a number from any shelf, starting with that of `thread`. `None`: each cell was empty when it was checked.
    pub fn take_any(&self, thread: usize) -> Option<u32> {
        (0..SHELVES).find_map(|i| self.take(thread.wrapping_add(i)))
    }

    /// Numbers on all shelves; approximate while other threads use the stock.
    pub fn len(&self) -> u32 {
        self.shelves
            .iter()
            .flat_map(|shelf| &shelf.0)
            .map(|cell| u32::from(cell.load(Ordering::Relaxed) != 0))
            .sum()
    }

    /// Whether no shelf has a number.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_shelf_has_a_bound_and_all_can_be_reached() {
        let stock: Stock<2> = Stock::new();
        assert!(stock.is_empty());
        assert!(stock.put(3, 7) && stock.put(3, 8) && !stock.put(3, 9));
        assert!(stock.put(3 + 2 * SHELVES + 1, 9));
        assert_eq!(stock.len(), 3);
        // The other thread's own shelf is empty, but it can reach all others.
        assert_eq!(stock.take(5), None);
        let mut all: [u32; 3] = core::array::from_fn(|_| stock.take_any(5).unwrap());
        all.sort_unstable();
        assert_eq!(all, [7, 8, 9]);
        assert_eq!(stock.take_any(usize::MAX), None);
    }
}
