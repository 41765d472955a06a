//! How much is fetched with a page that a fault reads from far memory: the *far read size* (xDM's granularity), from
//! the page alone to 2 MiB of extents.
//!
//! Pages that were demoted together are stored together, so the neighbours of a page are likely to be needed with it,
//! or not. This is measured: of the pages that extents brought beside others, more than half must be needed before they
//! are demoted again for the size to double, and with less than a quarter it is halved. While pages come alone, one
//! read in [`PROBE_EVERY`] fetches its extent all the same, by which the first step is judged.
//!
//! What streams need is known better, and is fetched ahead of them ([`crate::far::fetch::fetch_for_stream`]), whatever the
//! size; none of that counts here.

use crate::swap::extent::EXTENT_BYTES;
use canvas_types::PAGE_SIZE;
use canvas_types::sync::{AtomicU32, AtomicU64, Ordering};

/// Levels: the page alone, then 1, 2, 4, ... extents.
const LEVELS: u32 = 8;
/// The largest far read size, in bytes.
pub const UNIT_BYTES_MAX: u64 = (EXTENT_BYTES as u64) << (LEVELS - 2);
/// Fetched pages after which the size is judged.
const WINDOW_PAGES: u32 = 512;
/// While pages come alone, one read in this many fetches its extent.
const PROBE_EVERY: u32 = 32;
/// The size is at most this part of the pool, because fetched pages must stay until they are used.
const POOL_PART: u64 = 16;

/// A process's state.
pub(crate) struct Unit {
    level: AtomicU32,
    /// Reads while pages come alone.
    reads: AtomicU32,
    /// In this window: pages fetched, and pages needed.
    fetched: AtomicU32,
    used: AtomicU32,
    /// Pages fetched in the previous window; 0 when they came at another size.
    fetched_before: AtomicU32,
    /// Extents that still wait for a request: the first in the high half, the end in the low half.
    rest: AtomicU64,
}

impl Unit {
    /// The page alone.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Unit {
            level: AtomicU32::new(0),
            reads: AtomicU32::new(0),
            fetched: AtomicU32::new(0),
            used: AtomicU32::new(0),
            fetched_before: AtomicU32::new(0),
            rest: AtomicU64::new(0),
        }
    }

    /// Number of extents to fetch with a page that is read now. `fixed`: the configured level; `has_room`: the pool has
    /// room for neighbours.
    pub(crate) fn extents(&self, fixed: Option<u32>, has_room: bool) -> u32 {
        let level = fixed.unwrap_or_else(|| self.level.load(Ordering::Relaxed));
        if level > 0 {
            return 1 << (level - 1).min(LEVELS - 2);
        }
        let probes = || {
            let before = self.reads.fetch_add(1, Ordering::Relaxed);
            before % PROBE_EVERY == PROBE_EVERY - 1
        };
        u32::from(fixed.is_none() && (has_room || probes()))
    }

    /// Counts pages that came beside others. Returns the new level, if it changes.
    pub(crate) fn note_fetched(&self, pages: u32, level_max: u32) -> Option<u32> {
        let fetched = self.fetched.fetch_add(pages, Ordering::Relaxed) + pages;
        let order = Ordering::Relaxed;
        // One thread ends the window.
        let ends = || self.fetched.compare_exchange(fetched, 0, order, order);
        if fetched < WINDOW_PAGES || ends().is_err() {
            return None;
        }
        let used = self.used.swap(0, order);
        // The needed ones came before; for the first window after a change that is unknown.
        let before = self.fetched_before.swap(fetched, order);
        let level = self.level.load(order);
        let next = match before {
            0 => level,
            _ if used > before / 2 => (level + 1).min(level_max),
            _ if used < before / 4 => level.saturating_sub(1),
            _ => level,
        };
        if next == level {
            return None;
        }
        self.fetched_before.store(0, order);
        self.level.store(next, order);
        Some(next)
    }

    /// Counts a page that is needed, and came beside another one.
    pub(crate) fn note_used(&self) {
        self.used.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps extents until there are requests for them.
    pub(crate) fn keep_rest(&self, from: u32, to: u32) {
        let rest = u64::from(from) << 32 | u64::from(to);
        self.rest.store(rest, Ordering::Relaxed);
    }

    /// Takes these extents: the first, and the end.
    pub(crate) fn take_rest(&self) -> Option<(u32, u32)> {
        if self.rest.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let rest = self.rest.swap(0, Ordering::Relaxed);
        Some(((rest >> 32) as u32, rest as u32))
    }
}

/// Bytes of a level.
pub(crate) fn bytes(level: u32) -> u64 {
    match level {
        0 => PAGE_SIZE as u64,
        n => (EXTENT_BYTES as u64) << (n - 1),
    }
}

/// The level of a size in bytes; the next smaller one where there is none.
pub(crate) fn level(unit_bytes: u64) -> u32 {
    (0..LEVELS).rfind(|n| bytes(*n) <= unit_bytes).unwrap_or(0)
}

/// The largest level for a pool of this size; an extent at least.
pub(crate) fn level_max(pool_bytes: u64) -> u32 {
    level(pool_bytes / POOL_PART).max(1)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    /// Windows in which this percentage of the previous pages is needed; returns the level after them.
    fn after(unit: &Unit, windows: u32, used_percent: u32, level_max: u32) -> u32 {
        for _ in 0..windows {
            unit.used
                .store(WINDOW_PAGES * used_percent / 100, Ordering::Relaxed);
            unit.note_fetched(WINDOW_PAGES, level_max);
        }
        unit.level.load(Ordering::Relaxed)
    }

    #[test]
    fn levels_are_a_page_and_powers_of_two_of_an_extent() {
        assert_eq!(bytes(LEVELS - 1), UNIT_BYTES_MAX);
        assert_eq!((UNIT_BYTES_MAX, bytes(0), bytes(1)), (2 << 20, 4096, 32768));
        for n in 0..LEVELS {
            assert_eq!(level(bytes(n)), n);
            assert_eq!(level(bytes(n) + 4095), n, "the next smaller one");
        }
        assert_eq!((level(0), level(u64::MAX)), (0, LEVELS - 1));
    }

    #[test]
    fn the_unit_grows_while_what_comes_is_used_and_shrinks_while_it_is_not() {
        let unit = Unit::new();
        assert_eq!(after(&unit, 2, 60, 7), 1, "the first is judged by nothing");
        assert_eq!(after(&unit, 1, 60, 7), 1, "it came by another unit");
        assert_eq!(after(&unit, 1, 60, 7), 2);
        assert_eq!(after(&unit, 9, 40, 7), 2, "neither");
        assert_eq!(after(&unit, 40, 90, 7), 7);
        assert_eq!(after(&unit, 2, 20, 7), 6);
        assert_eq!(after(&unit, 40, 0, 7), 0);
        assert_eq!(after(&unit, 40, 90, 3), 3, "the pool is small");
    }

    #[test]
    fn alone_means_alone_but_for_the_probes() {
        let unit = Unit::new();
        let n = |fixed, has_room| (0..64).map(|_| unit.extents(fixed, has_room)).sum::<u32>();
        assert_eq!(n(None, false), 2, "one in 32");
        assert_eq!(n(None, true), 64);
        assert_eq!(
            (n(Some(0), false), n(Some(0), true)),
            (0, 0),
            "as was asked"
        );
        assert_eq!(n(Some(1), false), 64);
        assert_eq!(unit.extents(Some(7), false), 64);
        unit.level.store(3, Ordering::Relaxed);
        assert_eq!(unit.extents(None, false), 4);
    }
}
