//! Which slabs a donor reclaims: the E least active of E + E' sampled ones.
//!
//! A donor does not see how much its slabs are used (one-sided reads and writes bypass it), and asking clients about
//! all of them would take long. Asking about a few more than needed and taking the least active of those is nearly as
//! good: Infiniswap's "power of multiple choices" (NSDI'17 §4.3, after Park, "A generalization of multiple choice
//! balls-into-bins", PODC'11).

use fastrand::Rng;

/// How many more slabs are sampled than evicted (E'). Infiniswap's results are for E + E' up to a few dozen; a query
/// about 5 more costs one frame.
pub const EXTRA: usize = 5;

/// Recent use of a slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Activity<T> {
    /// The caller's name for the slab.
    pub slab: T,
    /// Operations on it since the last query.
    pub ops: u64,
}

/// `count` different slabs out of `all`, each subset with equal probability; all of them when there are no more.
/// (Floyd's algorithm: `count` draws, however many slabs there are.)
pub fn sample<T: Copy>(rng: &mut Rng, all: &[T], count: usize) -> Vec<T> {
    let count = count.min(all.len());
    let mut chosen: Vec<usize> = Vec::with_capacity(count);
    for last in all.len() - count..all.len() {
        let drawn = rng.usize(..=last);
        chosen.push(if chosen.contains(&drawn) { last } else { drawn });
    }
    chosen.into_iter().map(|i| all[i]).collect()
}

/// The `count` least active of the sampled slabs, the least active first; of equally active ones the first in the
/// sample.
pub fn least_active<T: Copy>(sampled: &[Activity<T>], count: usize) -> Vec<T> {
    let mut by_ops: Vec<&Activity<T>> = sampled.iter().collect();
    by_ops.sort_by_key(|a| a.ops);
    by_ops.into_iter().take(count).map(|a| a.slab).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::{Activity, EXTRA, Rng, least_active, sample};

    proptest! {
        #[test]
        fn a_sample_is_of_different_slabs(seed: u64, slabs in 0usize..300, count in 0usize..400) {
            let all: Vec<usize> = (1000..1000 + slabs).collect();
            let drawn = sample(&mut Rng::with_seed(seed), &all, count);
            let set: BTreeSet<usize> = drawn.iter().copied().collect();
            prop_assert_eq!(set.len(), drawn.len());
            prop_assert_eq!(drawn.len(), count.min(slabs));
            prop_assert!(drawn.iter().all(|s| all.contains(s)));
        }

        /// Oracle: take the minimum out repeatedly.
        #[test]
        fn the_least_active_are_taken(ops in prop::collection::vec(0u64..20, 0..60), count in 0usize..80) {
            let sampled: Vec<Activity<usize>> =
                ops.iter().enumerate().map(|(slab, &ops)| Activity { slab, ops }).collect();
            let mut left = sampled.clone();
            let mut expected = Vec::new();
            while expected.len() < count && !left.is_empty() {
                let mut best = 0;
                for i in 1..left.len() {
                    if left[i].ops < left[best].ops {
                        best = i;
                    }
                }
                expected.push(left.remove(best).slab);
            }
            prop_assert_eq!(least_active(&sampled, count), expected);
        }
    }

    /// Every slab has the same chance. With 40,000 draws of 3 out of 12 each is expected 10,000
    /// times; the seed is fixed, so this fails always or never.
    #[test]
    fn samples_are_uniform() {
        let mut rng = Rng::with_seed(12);
        let all: Vec<usize> = (0..12).collect();
        let mut seen = [0u32; 12];
        for _ in 0..40_000 {
            for s in sample(&mut rng, &all, 3) {
                seen[s] += 1;
            }
        }
        // Five standard deviations.
        assert!(seen.iter().all(|n| n.abs_diff(10_000) < 435), "{seen:?}");
    }

    /// The purpose of sampling: with a tenth of the slabs hot, a single choice hits hot ones in that proportion; the
    /// least active of E + E' almost never.
    #[test]
    fn hot_slabs_are_spared() {
        let mut rng = Rng::with_seed(5);
        let all: Vec<usize> = (0..100).collect();
        let hot = |slab: usize| slab.is_multiple_of(10);
        let mut evicted_hot = 0;
        for _ in 0..1000 {
            let sampled: Vec<Activity<usize>> = sample(&mut rng, &all, 4 + EXTRA)
                .into_iter()
                .map(|slab| Activity {
                    slab,
                    ops: if hot(slab) { 1000 } else { 1 },
                })
                .collect();
            evicted_hot += least_active(&sampled, 4)
                .into_iter()
                .filter(|&s| hot(s))
                .count();
        }
        // A blind choice would take about 400 of the 4000.
        assert!(evicted_hot < 4, "{evicted_hot} hot slabs were evicted");
    }
}
