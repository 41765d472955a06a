//! A histogram of durations, whose counts can be halved as they grow old.

use canvas_types::buckets::{BUCKETS, bucket_floor_ns, bucket_of};

/// A histogram of nanoseconds.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: [u32; BUCKETS],
    total: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            buckets: [0; BUCKETS],
            total: 0,
        }
    }
}

impl Histogram {
    /// Counts a duration `count` times. A full bucket stays full.
    pub fn add(&mut self, ns: u64, count: u32) {
        let bucket = &mut self.buckets[bucket_of(ns)];
        let added = count.min(u32::MAX - *bucket);
        *bucket += added;
        self.total += u64::from(added);
    }

    /// Number of counted durations.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Halves all counts, rounded down, so that older ones weigh less.
    pub fn halve(&mut self) {
        self.total = 0;
        for bucket in &mut self.buckets {
            *bucket /= 2;
            self.total += u64::from(*bucket);
        }
    }

    /// The upper bound of the bucket with the quantile `per_mille` of 1000; `None` when empty.
    pub fn quantile_ns(&self, per_mille: u32) -> Option<u64> {
        if self.total == 0 {
            return None;
        }
        let rank = (self.total * u64::from(per_mille)).div_ceil(1000).max(1);
        let mut seen = 0;
        let at = self.buckets.iter().position(|n| {
            seen += u64::from(*n);
            seen >= rank
        })?;
        Some(bound_ns(at))
    }

    /// Bounds (ns, the largest duration of the bucket) and counts of the non-empty buckets.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        let used = self.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
        used.map(|(at, n)| (bound_ns(at), *n))
    }
}

fn bound_ns(bucket: usize) -> u64 {
    bucket_floor_ns(bucket + 1) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        let mut h = Histogram::default();
        assert_eq!(h.quantile_ns(900), None);
        for ns in 1..=1000 {
            h.add(ns * 100, 1);
        }
        let p90 = h.quantile_ns(900).unwrap();
        assert!((90_000..113_000).contains(&p90), "{p90}");
        h.halve();
        assert!(h.total() > 450 && h.total() <= 500);
        assert!(h.quantile_ns(900).unwrap().abs_diff(p90) < 25_000);
    }
}
