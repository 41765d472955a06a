//! How much of local memory the swap cache may take: it grows and shrinks by its hits (Canvas §4).
//!
//! A slot of the cache earns the touches that find their page in it; a page of local memory that is not
//! in the cache earns about what far faults would have found with one more. Where touches are uniform, both
//! are worth the same, and far faults for each resident page are a few times the hits for each slot. So the
//! cache grows where its slots earn more than half of what resident pages seem to earn, and shrinks where
//! they earn less than an eighth. What nobody comes back for, such as a stream's pages, leaves it with little
//! more than reclaim needs for its batches.

use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};

/// The cache has at most 1/2^n of local memory, for n from ... to; at first a sixteenth.
const SHIFT_MIN: u32 = 3;
const SHIFT_MAX: u32 = 6;
const SHIFT_FIRST: u32 = 4;
/// Of a small memory it has a sixteenth until it comes to so many pages (1 MiB): what batches need.
const PAGES_SMALL: i64 = 256;
/// And never fewer than so many.
const PAGES_LEAST: i64 = 32;
/// Pages that enter before the share is judged: the cache's own size, or so many if that is less.
const ENTERED_MIN: u64 = 1024;

/// Totals of a process, each counted from anywhere on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Pages that reclaim put into the cache.
    pub entered: u64,
    /// Touches that found their page there.
    pub hits: u64,
    /// Faults on far pages.
    pub far_faults: u64,
}

/// The share, and what was seen when it was last judged.
#[derive(Debug)]
pub struct CacheShare {
    shift: AtomicU32,
    entered: AtomicU64,
    hits: AtomicU64,
    far_faults: AtomicU64,
}

impl CacheShare {
    /// A sixteenth.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> CacheShare {
        CacheShare {
            shift: AtomicU32::new(SHIFT_FIRST),
            entered: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            far_faults: AtomicU64::new(0),
        }
    }

    /// Bound on the cache in pages, where the process has or may have `local` pages of local memory and
    /// the cache is to begin with `first` pages at most.
    pub fn pages(&self, local: i64, first: i64) -> i64 {
        let shift = self.shift.load(Ordering::Relaxed);
        let most = (first << SHIFT_FIRST) >> shift;
        let small = (local >> SHIFT_FIRST).min(PAGES_SMALL).min(first);
        (local >> shift).min(most).max(small).max(PAGES_LEAST)
    }

    /// A look at what came of it, by one thread: `slots` are in the cache, `resident` pages mapped.
    pub fn look(&self, now: Seen, slots: u64, resident: u64) {
        // A fork's child counts its faults anew.
        let since = |now: u64, then: &AtomicU64| now.saturating_sub(then.load(Ordering::Relaxed));
        let entered = since(now.entered, &self.entered);
        if entered < slots.max(ENTERED_MIN) {
            return;
        }
        let hits = u128::from(since(now.hits, &self.hits)) * u128::from(resident);
        let faults = u128::from(since(now.far_faults, &self.far_faults)) * u128::from(slots);
        self.entered.store(now.entered, Ordering::Relaxed);
        self.hits.store(now.hits, Ordering::Relaxed);
        self.far_faults.store(now.far_faults, Ordering::Relaxed);
        let shift = self.shift.load(Ordering::Relaxed);
        let next = if hits * 2 > faults {
            shift.saturating_sub(u32::from(hits > 0))
        } else if hits * 8 < faults {
            shift + 1
        } else {
            return;
        };
        self.shift
            .store(next.clamp(SHIFT_MIN, SHIFT_MAX), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const LOCAL: i64 = 1 << 18;
    const FIRST: i64 = 8192;

    /// The bound after `looks` turnovers with so many hits and far faults for each page that entered.
    fn after(share: &CacheShare, looks: u32, hits: f64, far_faults: f64) -> i64 {
        let mut seen = Seen {
            entered: share.entered.load(Ordering::Relaxed),
            hits: share.hits.load(Ordering::Relaxed),
            far_faults: share.far_faults.load(Ordering::Relaxed),
        };
        for _ in 0..looks {
            let slots = share.pages(LOCAL, FIRST) as u64;
            seen.entered += slots;
            seen.hits += (slots as f64 * hits) as u64;
            seen.far_faults += (slots as f64 * far_faults) as u64;
            share.look(seen, slots, LOCAL as u64 - slots);
        }
        share.pages(LOCAL, FIRST)
    }

    #[test]
    fn it_begins_with_a_sixteenth_and_with_what_is_asked_at_most() {
        let share = CacheShare::new();
        assert_eq!(share.pages(LOCAL, FIRST), FIRST);
        assert_eq!(share.pages(LOCAL / 4, FIRST), LOCAL / 64);
        assert_eq!(share.pages(2048, FIRST), 128);
        assert_eq!(share.pages(0, FIRST), PAGES_LEAST);
    }

    #[test]
    fn without_hits_it_shrinks_to_what_batches_need() {
        let share = CacheShare::new();
        assert_eq!(after(&share, 9, 0.0, 1.0), FIRST / 4);
        assert_eq!(share.pages(16 * PAGES_SMALL, FIRST), PAGES_SMALL);
        assert_eq!(share.pages(1024, FIRST), 64);
    }

    #[test]
    fn it_grows_where_its_slots_earn_more_than_pages_and_comes_back() {
        let share = CacheShare::new();
        // Each slot earns half a hit in a turnover, each of 32 times as many pages a thirty-second.
        assert_eq!(after(&share, 9, 0.5, 1.0), 2 * FIRST);
        assert_eq!(after(&share, 9, 0.0, 1.0), FIRST / 4);
    }

    #[test]
    fn uniform_touches_leave_it_as_it_is() {
        // A quarter is local: three far faults for each hit on the quarter, wherever that lies.
        let share = CacheShare::new();
        let slots = FIRST as f64 / LOCAL as f64;
        assert_eq!(after(&share, 50, slots, 3.0), FIRST);
    }

    #[test]
    fn it_is_judged_after_a_turnover_and_not_where_nothing_happens() {
        let share = CacheShare::new();
        for entered in 0..FIRST as u64 {
            let seen = Seen {
                entered,
                far_faults: entered,
                ..Seen::default()
            };
            share.look(seen, FIRST as u64, LOCAL as u64);
        }
        assert_eq!(share.pages(LOCAL, FIRST), FIRST);
        // Pages that only leave, such as those of a fill.
        assert_eq!(after(&share, 3, 0.0, 0.0), FIRST);
    }
}
