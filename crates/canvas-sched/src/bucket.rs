//! A hard limit in bytes per second: a token bucket, stored as the time when it is full again.
//!
//! In any interval of `t` seconds at most `rate * t + burst` bytes pass, whatever the order and size of requests (each
//! at most the burst).

use crate::REQUEST_BYTES_MAX;

/// The burst as a time: what a limit of [`BURST_BYTES_MIN`] times 1000 a second, or more, lets pass at once. It covers
/// the delay of a sleeping agent.
const BURST_NS: u64 = 1_000_000;
/// The smallest burst: two of the largest requests, so that each fits and one may follow the other.
pub const BURST_BYTES_MIN: u64 = 2 * REQUEST_BYTES_MAX as u64;

const SECOND_NS: u128 = 1_000_000_000;

/// The limit. Without a rate everything passes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bucket {
    /// Bytes a second; 0 is no limit.
    rate: u64,
    /// The burst at this rate.
    burst_ns: u64,
    /// When everything that passed is paid for.
    paid_ns: u64,
}

/// Bytes that a limit of `rate` bytes a second lets pass beyond the rate.
pub fn burst_bytes(rate: u64) -> u64 {
    let by_time = u128::from(rate) * u128::from(BURST_NS) / SECOND_NS;
    BURST_BYTES_MIN.max(by_time as u64)
}

impl Bucket {
    pub(crate) fn new(rate: Option<u64>) -> Bucket {
        let mut bucket = Bucket::default();
        bucket.set(rate, 0);
        bucket
    }

    /// Changes the rate. What is not paid for yet is paid at the new rate.
    pub(crate) fn set(&mut self, rate: Option<u64>, now_ns: u64) {
        let rate = rate.map_or(0, |r| r.max(1));
        let owed_ns = u128::from(self.paid_ns.saturating_sub(now_ns));
        let owed = (owed_ns * u128::from(self.rate)).div_ceil(SECOND_NS);
        self.rate = rate;
        self.burst_ns = self.ns(burst_bytes(rate), false);
        self.paid_ns = now_ns + self.ns(owed as u64, true).min(self.burst_ns);
    }

    /// Whether there is a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.rate != 0
    }

    /// Time that this many bytes take. Rounded so that the limit holds: up for a cost, down for a burst.
    fn ns(&self, bytes: u64, up: bool) -> u64 {
        if self.rate == 0 {
            return 0;
        }
        let product = u128::from(bytes) * SECOND_NS;
        let rate = u128::from(self.rate);
        let ns = if up {
            product.div_ceil(rate)
        } else {
            product / rate
        };
        u64::try_from(ns).unwrap_or(u64::MAX / 4)
    }

    /// When this many bytes may pass: now, or later.
    pub(crate) fn due_ns(&self, bytes: u32, now_ns: u64) -> u64 {
        if self.rate == 0 {
            return now_ns;
        }
        let paid = self.paid_ns.max(now_ns) + self.ns(u64::from(bytes), true);
        now_ns.max(paid.saturating_sub(self.burst_ns))
    }

    /// Charges `bytes` that pass now; the caller has checked that they may.
    pub(crate) fn take(&mut self, bytes: u32, now_ns: u64) {
        debug_assert_eq!(self.due_ns(bytes, now_ns), now_ns, "past the limit");
        if self.rate != 0 {
            self.paid_ns = self.paid_ns.max(now_ns) + self.ns(u64::from(bytes), true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_lets_everything_through() {
        let mut bucket = Bucket::new(None);
        for _ in 0..1000 {
            assert_eq!(bucket.due_ns(REQUEST_BYTES_MAX, 5), 5);
            bucket.take(REQUEST_BYTES_MAX, 5);
        }
    }

    #[test]
    fn after_the_burst_the_rate_holds() {
        let mut bucket = Bucket::new(Some(1_000_000));
        let (mut now, mut sent) = (0, 0);
        while now < 1_000_000_000 {
            now = bucket.due_ns(32 << 10, now);
            bucket.take(32 << 10, now);
            sent += 32 << 10;
        }
        let most = 1_000_000 + burst_bytes(1_000_000) + (32 << 10);
        assert!(sent > 1_000_000 && sent <= most, "{sent}");
    }

    #[test]
    fn a_new_rate_holds_for_what_is_owed() {
        let mut bucket = Bucket::new(Some(1 << 20));
        for _ in 0..2 {
            bucket.take(REQUEST_BYTES_MAX, 0);
        }
        let before = bucket.due_ns(4096, 0);
        bucket.set(Some(2 << 20), 0);
        let after = bucket.due_ns(4096, 0);
        assert!(after.abs_diff(before / 2) < 10_000, "{before} {after}");
        bucket.set(None, 0);
        assert_eq!(bucket.due_ns(4096, 0), 0);
    }
}
