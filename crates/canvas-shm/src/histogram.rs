//! A histogram of nanoseconds in shared memory. A quantile is right to within a quarter, and usually much better:
//! values in a bucket of [`canvas_types::buckets`] are assumed to be uniform.

use core::sync::atomic::{AtomicU64, Ordering};

pub use canvas_types::buckets::{BUCKETS, bucket_floor_ns, bucket_of};

/// Counts by bucket, the largest value seen, and the sum of all.
#[repr(C)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    max_ns: AtomicU64,
    sum_ns: AtomicU64,
}

impl Histogram {
    /// Counts one value.
    #[inline]
    pub fn record(&self, ns: u64) {
        self.buckets[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.fetch_max(ns, Ordering::Relaxed);
        }
    }
    /// Adds this histogram's counts to `sums` and returns its largest value in ns.
    pub fn add_to(&self, sums: &mut [u64; BUCKETS]) -> u64 {
        for (sum, b) in sums.iter_mut().zip(&self.buckets) {
            // A program can have written any number here.
            *sum = sum.saturating_add(b.load(Ordering::Relaxed));
        }
        self.max_ns.load(Ordering::Relaxed)
    }
    /// The sum of all values, in ns.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns.load(Ordering::Relaxed)
    }
}

/// The quantile `per_mille`/1000 of the counted values, in ns, assuming that values in a bucket are uniform; 0 when
/// nothing was counted.
pub fn quantile_ns(sums: &[u64; BUCKETS], per_mille: u64) -> u64 {
    let total: u128 = sums.iter().map(|n| u128::from(*n)).sum();
    if total == 0 {
        return 0;
    }
    let rank = (total * u128::from(per_mille)).div_ceil(1000).max(1);
    let mut before = 0u128;
    for (i, n) in sums.iter().enumerate() {
        let n = u128::from(*n);
        if before + n >= rank {
            let (from, to) = (bucket_floor_ns(i), bucket_floor_ns(i + 1));
            // The middle of this value's part of the bucket.
            let part = u128::from(to - from) * (2 * (rank - before) - 1) / (2 * n);
            return from + part as u64;
        }
        before += n;
    }
    bucket_floor_ns(BUCKETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_of_one_value_is_near_it() {
        let mut s = [0; BUCKETS];
        s[bucket_of(3000)] = 10;
        let q = quantile_ns(&s, 500);
        assert!((2560..=3500).contains(&q), "{q}");
    }

    #[test]
    fn quantiles_of_even_values_are_close() {
        let mut s = [0; BUCKETS];
        let values = 20_480..28_672u64;
        values.clone().for_each(|ns| s[bucket_of(ns)] += 1);
        for per_mille in [10, 250, 500, 750, 990] {
            let right = values.start + (values.end - values.start) * per_mille / 1000;
            let q = quantile_ns(&s, per_mille);
            assert!(
                q.abs_diff(right) < right / 20,
                "{per_mille}: {q} and not {right}"
            );
        }
        assert_eq!(quantile_ns(&[0; BUCKETS], 500), 0);
        // A program can have written anything.
        let q = quantile_ns(&[u64::MAX; BUCKETS], 1000);
        assert!(q <= bucket_floor_ns(BUCKETS));
    }
}
