//! Rate limit of a tenant's direct read channels: a token bucket of bytes.

use canvas_direct::wire::READ_BYTES_MAX;
use canvas_wire::frame::LaneRate;

const SECOND_NS: u128 = 1_000_000_000;

/// Times are nanoseconds of the donor's clock, and may stand still.
#[derive(Debug)]
pub(crate) struct Bucket {
    rate_bytes: u64,
    burst_bytes: u64,
    level_bytes: u64,
    /// Time at which the level was computed. Later fractions of a byte are in the time since then.
    at_ns: u64,
}

/// The least burst; with less, the largest read could never happen.
fn burst_of(rate: LaneRate) -> u64 {
    u64::from(rate.burst_bytes).max(READ_BYTES_MAX as u64)
}

impl Bucket {
    /// A full bucket.
    pub fn new(rate: LaneRate, now_ns: u64) -> Bucket {
        Bucket {
            rate_bytes: rate.rate_bytes,
            burst_bytes: burst_of(rate),
            level_bytes: burst_of(rate),
            at_ns: now_ns,
        }
    }

    /// Whether there is no limit.
    pub fn is_unbounded(&self) -> bool {
        let LaneRate {
            rate_bytes,
            burst_bytes,
        } = LaneRate::UNBOUNDED;
        self.rate_bytes >= rate_bytes && self.burst_bytes >= burst_bytes.into()
    }

    fn fill(&mut self, now_ns: u64) {
        let rate = u128::from(self.rate_bytes);
        let gained = u128::from(now_ns.saturating_sub(self.at_ns)) * rate / SECOND_NS;
        if gained >= u128::from(self.burst_bytes - self.level_bytes) {
            self.level_bytes = self.burst_bytes;
            self.at_ns = self.at_ns.max(now_ns);
        } else if gained > 0 {
            self.level_bytes += gained as u64;
            // Rounded up, so that a byte never comes early.
            self.at_ns += (gained * SECOND_NS).div_ceil(rate) as u64;
        }
    }

    /// Sets a new rate. The level stays, up to the new burst.
    pub fn set(&mut self, rate: LaneRate, now_ns: u64) {
        self.fill(now_ns);
        self.at_ns = self.at_ns.max(now_ns);
        self.rate_bytes = rate.rate_bytes;
        self.burst_bytes = burst_of(rate);
        self.level_bytes = self.level_bytes.min(self.burst_bytes);
    }

    /// Takes `bytes`, if they are there.
    pub fn take(&mut self, bytes: u64, now_ns: u64) -> bool {
        self.fill(now_ns);
        let fits = bytes <= self.level_bytes;
        if fits {
            self.level_bytes -= bytes;
        }
        fits
    }

    /// Time until the largest read is possible.
    pub fn wait_ns(&mut self, now_ns: u64) -> u64 {
        self.fill(now_ns);
        let missing = (READ_BYTES_MAX as u64).saturating_sub(self.level_bytes);
        if missing == 0 {
            return 0;
        }
        if self.rate_bytes == 0 {
            return u64::MAX;
        }
        let ns = (u128::from(missing) * SECOND_NS).div_ceil(u128::from(self.rate_bytes));
        let since = u128::from(now_ns.saturating_sub(self.at_ns));
        u64::try_from(ns.saturating_sub(since))
            .unwrap_or(u64::MAX)
            .max(1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(rate_bytes: u64, burst_bytes: u32) -> LaneRate {
        LaneRate {
            rate_bytes,
            burst_bytes,
        }
    }

    #[test]
    fn of_no_rate_it_gives_its_burst_and_no_more() {
        let mut bucket = Bucket::new(rate(0, 10_000), 0);
        assert!(bucket.take(10_000, 0));
        assert!(!bucket.take(1, u64::MAX));
        assert_eq!(bucket.wait_ns(u64::MAX), u64::MAX);
        bucket.set(rate(1_000_000, 10_000), u64::MAX);
        assert!(!bucket.take(1, u64::MAX));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// In no period does it give more than its burst and its gain in that period; what it
        /// refuses would exceed the limit, by an oracle with exact fractions; and after the
        /// announced wait the largest read is possible.
        #[test]
        fn as_an_exact_one(
            rate_bytes in prop_oneof![1u64..2000, 1_000_000u64..2_000_000_000],
            burst in 0u32..200_000,
            steps in prop::collection::vec((0u64..400_000, 1u64..READ_BYTES_MAX as u64), 1..200),
        ) {
            let mut bucket = Bucket::new(rate(rate_bytes, burst), 0);
            let burst = u128::from(burst_of(rate(rate_bytes, burst)));
            // In bytes * 10^9.
            let full = burst * SECOND_NS;
            let (mut level, mut now) = (full, 0u64);
            for (later, bytes) in steps {
                now += later;
                level = (level + u128::from(later) * u128::from(rate_bytes)).min(full);
                let wants = u128::from(bytes) * SECOND_NS;
                let given = bucket.take(bytes, now);
                if given {
                    prop_assert!(wants <= level, "more than there is");
                    level -= wants;
                } else {
                    // Rounding withholds less than one byte, and only for a while.
                    prop_assert!(wants + 2 * SECOND_NS + u128::from(rate_bytes) > level);
                }
            }
            let wait = bucket.wait_ns(now);
            prop_assert!(bucket.take(READ_BYTES_MAX as u64, now + wait));
        }
    }
}
