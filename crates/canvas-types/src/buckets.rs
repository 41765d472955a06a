//! Buckets for histograms of nanoseconds: log-linear, four per power of two, so a value is known to within a quarter.

/// Number of buckets: four for each of 40 powers of two (up to 2^40 ns, about 18 minutes).
pub const BUCKETS: usize = 160;

/// The bucket that counts `ns`.
pub fn bucket_of(ns: u64) -> usize {
    if ns < 4 {
        return ns as usize;
    }
    let log = ns.ilog2() as usize;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_ordered() {
        for b in 0..BUCKETS - 1 {
            assert_eq!(bucket_of(bucket_floor_ns(b)), b, "floor of {b}");
            assert_eq!(bucket_of(bucket_floor_ns(b + 1) - 1), b, "ceiling of {b}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }
}
