//! A log-linear histogram of nanoseconds: four buckets a power of two, so a quantile is right
//! to within an eighth.

use core::sync::atomic::{AtomicU64, Ordering};

/// Buckets: four for each of 40 powers of two (up to 2^40 ns, about 18 minutes).
pub const BUCKETS: usize = 160;

/// Counts by bucket, and the largest value seen.
#[repr(C)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    max_ns: AtomicU64,
}

/// The bucket that counts `ns`.
pub fn bucket_of(ns: u64) -> usize {
    if ns < 4 {
        return ns as usize;
    }
    let log = 63 - ns.leading_zeros() as usize;
    let sub = (ns >> (log - 2)) as usize & 3;
    (((log - 1) << 2) + sub).min(BUCKETS - 1)
}

/// Smallest value that `bucket` counts, in ns.
pub fn bucket_floor_ns(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64;
    }
    let log = (bucket >> 2) + 1;
    (1u64 << log) + ((bucket as u64 & 3) << (log - 2))
}

impl Histogram {
    /// Counts one value.
    #[inline]
    pub fn record(&self, ns: u64) {
        self.buckets[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.fetch_max(ns, Ordering::Relaxed);
        }
    }
    /// Adds this histogram's counts to `sums` and returns its largest value in ns.
    pub fn add_to(&self, sums: &mut [u64; BUCKETS]) -> u64 {
        for (sum, b) in sums.iter_mut().zip(&self.buckets) {
            // A program can have written anything here.
            *sum = sum.saturating_add(b.load(Ordering::Relaxed));
        }
        self.max_ns.load(Ordering::Relaxed)
    }
}

/// The value in ns below which a share of `per_mille`/1000 of the counted values lies (the middle
/// of its bucket); 0 when nothing was counted.
pub fn quantile_ns(sums: &[u64; BUCKETS], per_mille: u64) -> u64 {
    let total: u128 = sums.iter().map(|n| u128::from(*n)).sum();
    if total == 0 {
        return 0;
    }
    let rank = (total * u128::from(per_mille)).div_ceil(1000).max(1);
    let mut seen = 0u128;
    for (i, n) in sums.iter().enumerate() {
        seen += u128::from(*n);
        if seen >= rank {
            return (bucket_floor_ns(i) + bucket_floor_ns(i + 1)) / 2;
        }
    }
    bucket_floor_ns(BUCKETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_ordered() {
        for b in 0..BUCKETS - 1 {
            assert_eq!(bucket_of(bucket_floor_ns(b)), b, "floor of {b}");
            assert_eq!(bucket_of(bucket_floor_ns(b + 1) - 1), b, "ceiling of {b}");
        }
    }

    #[test]
    fn quantile_of_one_value_is_near_it() {
        let mut s = [0; BUCKETS];
        s[bucket_of(3000)] = 10;
        let q = quantile_ns(&s, 500);
        assert!((2560..=3500).contains(&q), "{q}");
    }
}
