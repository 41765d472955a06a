//! How far ahead extents are fetched: streams fetch further ahead while they have to wait, and the agent learns how
//! long before their use pages were requested ([`crate::far::traits::Channel::note_ahead`]).

use canvas_types::sync::{AtomicI64, AtomicU64, Ordering};

/// Recent prefetched extents that are remembered.
const PLACES: usize = 128;
const US_MASK: u64 = 0xffff_ffff;

/// Recent prefetches, and how far ahead streams fetch.
pub(crate) struct LeadTime {
    /// By extent, later ones replacing earlier ones: its number (32 bits), and when it was requested (us, 32 bits). 0
    /// means none, and also extent 0 when the clock wraps.
    requested: [AtomicU64; PLACES],
    /// How many pages a stream fetches ahead of what is mapped for it: [`PAGES_MIN`] while they arrive in time, more
    /// while it has to wait for them. On a link that others use too, only requests under way claim the stream's share.
    pages: AtomicI64,
}

/// Minimum.
const PAGES_MIN: i64 = 64;
/// Maximum: some twenty extents, since there are requests for 24.
const PAGES_MAX: i64 = 256;
/// Increase for each extent for which a thread waits; decreases by one for each that came in time.
const PAGES_STEP: i64 = 16;

impl LeadTime {
    /// Without requests.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        LeadTime {
            requested: [const { AtomicU64::new(0) }; PLACES],
            pages: AtomicI64::new(PAGES_MIN),
        }
    }

    /// Records that an extent is requested ahead.
    pub(crate) fn note_requested(&self, extent: u32, now_ns: u64) {
        let now_us = now_ns / 1000;
        self.requested[extent as usize % PLACES].store(
            u64::from(extent) << 32 | now_us & US_MASK,
            Ordering::Relaxed,
        );
    }

    /// How long ago the extent was requested, if recently.
    pub(crate) fn ago_ns(&self, extent: u32, now_ns: impl FnOnce() -> u64) -> Option<u64> {
        let seen = self.requested[extent as usize % PLACES].load(Ordering::Relaxed);
        if seen == 0 || (seen >> 32) as u32 != extent {
            return None;
        }
        Some(((now_ns() / 1000).wrapping_sub(seen) & US_MASK) * 1000)
    }

    /// The range of pages ahead of a stream to fetch: pages skipped when the distance grew are checked again.
    pub(crate) fn pages_from_and_to(&self) -> (i64, i64) {
        let ahead = self.pages.load(Ordering::Relaxed);
        ((ahead - PAGES_STEP).max(PAGES_MIN), ahead)
    }

    /// A fetched extent has arrived, or (`late`) a thread waits for it.
    pub(crate) fn learn(&self, late: bool, pool_pages: u64) {
        let now = self.pages.load(Ordering::Relaxed);
        let next = if late {
            // Fetched pages must stay in the pool until they are used.
            let most = (pool_pages / 8).min(PAGES_MAX as u64) as i64;
            (now + PAGES_STEP).min(most.max(PAGES_MIN))
        } else {
            (now - 1).max(PAGES_MIN)
        };
        // Two concurrent changes count as one.
        self.pages.store(next, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const BIG: u64 = 1 << 20;

    #[test]
    fn streams_go_further_ahead_while_they_wait_and_come_back_slowly() {
        let lead = LeadTime::new();
        assert_eq!(lead.pages_from_and_to(), (64, 64));
        lead.learn(true, BIG);
        assert_eq!(lead.pages_from_and_to(), (64, 80));
        lead.learn(true, BIG);
        assert_eq!(lead.pages_from_and_to(), (80, 96), "by a step");
        (0..100).for_each(|_| lead.learn(true, BIG));
        assert_eq!(lead.pages_from_and_to(), (240, 256), "to the most");
        (0..10).for_each(|_| lead.learn(false, BIG));
        assert_eq!(lead.pages_from_and_to(), (230, 246), "one for each in time");
        (0..1000).for_each(|_| lead.learn(false, BIG));
        assert_eq!(lead.pages_from_and_to(), (64, 64));
    }

    #[test]
    fn a_small_pool_holds_streams_back() {
        let lead = LeadTime::new();
        (0..100).for_each(|_| lead.learn(true, 8 * 100));
        assert_eq!(lead.pages_from_and_to(), (84, 100));
        (0..100).for_each(|_| lead.learn(true, 10));
        assert_eq!(lead.pages_from_and_to(), (64, 64), "the least all the same");
    }

    #[test]
    fn it_is_known_how_long_ago_an_extent_was_asked_for() {
        let lead = LeadTime::new();
        let ago = |extent, now_us: u64| lead.ago_ns(extent, || now_us * 1000);
        assert_eq!(ago(5, 9), None);
        lead.note_requested(5, 1_000_000);
        assert_eq!(ago(5, 1_250), Some(250_000));
        assert_eq!(ago(5 + PLACES as u32, 1_250), None, "of the same place");
        lead.note_requested(5 + PLACES as u32, 2_000_000);
        assert_eq!(ago(5, 2_001), None, "the later stands over it");
        assert_eq!(ago(5 + PLACES as u32, 2_001), Some(1_000));
        // Microseconds wrap around at 32 bits.
        let turn = 1u64 << 32;
        lead.note_requested(7, (turn - 10) * 1000);
        assert_eq!(ago(7, turn + 5), Some(15_000));
    }
}
