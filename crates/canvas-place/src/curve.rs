//! A miss-ratio curve from refault distances: which part of a program's faults would remain with more local memory.
//!
//! A page that refaults after `D` evictions would have stayed if local memory had been larger by the number of
//! *different* pages among those `D`. In a stream all of them are different. In random access some were evicted several
//! times: of `M` non-resident pages, `D` random evictions hit `M(1 − exp(−D/M))` different ones. The two kinds of
//! distance are weighted by the part of pages that refaulted in streams. Linux estimates its refault distances in this
//! way, without the second step (mm/workingset.c).

/// Epochs of the pager in which as many pages are evicted as fit in local memory; distances are counted in epochs.
const EPOCHS: f64 = 16.0;

/// Refaults by distance, at one size of local memory.
#[derive(Clone, PartialEq, Debug)]
pub struct Curve {
    /// Local memory, in bytes.
    pub local_bytes: u64,
    /// All memory of the program, in bytes.
    pub footprint_bytes: u64,
    /// Refaults by distance: the first count is of less than one epoch, that of index `i` of 2^(i-1) to 2^i epochs.
    pub refaults: Vec<u64>,
    /// Part of the refaulted pages that came in streams, 0 to 1.
    pub stream_ratio: f64,
}

impl Curve {
    /// The part of the faults at [`Curve::local_bytes`] that would remain at a larger size: from 1 down to 0.
    pub fn remaining(&self, local_bytes: u64) -> f64 {
        if local_bytes >= self.footprint_bytes {
            return 0.0;
        }
        let more = local_bytes.saturating_sub(self.local_bytes) as f64;
        let away = self.footprint_bytes.saturating_sub(self.local_bytes) as f64;
        if more >= away {
            // It would have more memory than it ever used.
            return self.farther_than(0.0);
        }
        let streams = self.farther_than(more);
        let random = self.farther_than(-away * (1.0 - more / away).ln());
        let part = self.stream_ratio.clamp(0.0, 1.0);
        part * streams + (1.0 - part) * random
    }

    /// The part of refaults at a distance of more than `bytes` of evictions; within a bucket distances are taken as
    /// uniform.
    fn farther_than(&self, bytes: f64) -> f64 {
        let epoch_bytes = (self.local_bytes as f64 / EPOCHS).max(1.0);
        let epochs = bytes / epoch_bytes;
        let (mut all, mut farther) = (0.0, 0.0);
        let mut from = 0.0;
        for (i, n) in self.refaults.iter().enumerate() {
            let to = 2f64.powi(i as i32);
            all += *n as f64;
            farther += *n as f64 * ((to - epochs) / (to - from)).clamp(0.0, 1.0);
            from = to;
        }
        if all > 0.0 { farther / all } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, VecDeque};

    const PAGE: u64 = 4096;

    /// An LRU list of `pages` pages over a trace: number of refaults, and their distances.
    fn lru(trace: &[u64], pages: usize) -> (u64, Vec<u64>) {
        let mut order: VecDeque<u64> = VecDeque::new();
        let mut left: HashMap<u64, u64> = HashMap::new();
        let (mut evictions, mut refaults, mut counts) = (0u64, 0, vec![0; 9]);
        for page in trace {
            if let Some(at) = order.iter().position(|p| p == page) {
                order.remove(at);
            } else {
                if let Some(then) = left.remove(page) {
                    refaults += 1;
                    let epochs: u64 = (evictions - then) * 16 / pages as u64;
                    let bucket = (64 - epochs.leading_zeros() as usize).min(8);
                    counts[bucket] += 1;
                }
                if order.len() == pages {
                    left.insert(order.pop_front().unwrap(), evictions);
                    evictions += 1;
                }
            }
            order.push_back(*page);
        }
        (refaults, counts)
    }

    fn curve(trace: &[u64], pages: usize, footprint: u64, stream_ratio: f64) -> (u64, Curve) {
        let (faults, refaults) = lru(trace, pages);
        let curve = Curve {
            local_bytes: pages as u64 * PAGE,
            footprint_bytes: footprint * PAGE,
            refaults,
            stream_ratio,
        };
        (faults, curve)
    }

    fn draws(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed.max(1);
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    #[test]
    fn random_and_skewed_access_are_foretold() {
        const PAGES: f64 = 512.0;
        for (what, power, tolerance) in [("uniform", 1.0, 0.06), ("skewed", 3.0, 0.15)] {
            let mut draw = draws(7);
            let trace: Vec<u64> = (0..60_000)
                .map(|_| (PAGES * draw().powf(power)) as u64)
                .collect();
            let (faults, at_quarter) = curve(&trace, 128, PAGES as u64, 0.0);
            for pages in [160, 192, 256, 384, 480] {
                let (then, _) = lru(&trace, pages);
                let (is, said) = (
                    then as f64 / faults as f64,
                    at_quarter.remaining(pages as u64 * PAGE),
                );
                assert!(
                    (is - said).abs() < tolerance,
                    "{what}, {pages} pages: {said}, not {is}"
                );
            }
        }
    }

    #[test]
    fn a_loop_misses_until_all_of_it_fits() {
        let trace: Vec<u64> = (0..20_000).map(|i| i % 256).collect();
        let (_, at_half) = curve(&trace, 128, 256, 1.0);
        assert!(at_half.remaining(160 * PAGE) > 0.95);
        assert_eq!(at_half.remaining(256 * PAGE), 0.0);
    }

    #[test]
    fn without_faults_there_is_nothing_to_gain() {
        let none = Curve {
            local_bytes: PAGE,
            footprint_bytes: 4 * PAGE,
            refaults: vec![0; 9],
            stream_ratio: 0.5,
        };
        assert_eq!(none.remaining(2 * PAGE), 0.0);
    }

    proptest! {
        #[test]
        fn more_memory_never_means_more_faults(
            refaults in prop::collection::vec(0..1000u64, 9),
            stream_ratio in -0.5..1.5f64,
            local in 0..1000u64,
            footprint in 0..2000u64,
            mut sizes in prop::collection::vec(0..2500u64, 2..20),
        ) {
            let curve = Curve {
                local_bytes: local * PAGE,
                footprint_bytes: footprint * PAGE,
                refaults,
                stream_ratio,
            };
            sizes.sort_unstable();
            let parts: Vec<f64> = sizes.iter().map(|s| curve.remaining(s * PAGE)).collect();
            prop_assert!(parts.iter().all(|p| (0.0..=1.0).contains(p)), "{:?}", parts);
            prop_assert!(parts.is_sorted_by(|a, b| a >= b), "{:?}", parts);
        }
    }
}
