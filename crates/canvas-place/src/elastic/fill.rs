//! Weighted max-min in whole slabs.

/// One claim: at least `low`, at most `high`, and in between in proportion to its weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want {
    /// At least 1.
    pub weight: u32,
    /// Lower bound.
    pub low: u64,
    /// Upper bound; not below `low`.
    pub high: u64,
}

/// Resolution of the water level for each unit of weight and slab: finer than the largest weight (1000, sixteen times
/// that where tenants pull), so that no share jumps by several slabs from one level to the next.
const LEVELS: u128 = 1 << 14;

impl Want {
    fn at(&self, level: u128) -> u64 {
        let part = level * u128::from(self.weight) / LEVELS;
        u64::try_from(part)
            .unwrap_or(u64::MAX)
            .clamp(self.low, self.high)
    }
}

/// Shares `room` among all by weighted max-min: no share can grow except at the cost of one that is smaller by its
/// weight. The sum is `room`, unless all lows exceed it or all highs are below it; an indivisible rest goes to the
/// first.
pub fn fill(room: u64, wants: &[Want]) -> Vec<u64> {
    let all = |level| wants.iter().map(move |w| w.at(level));
    let sum = |level| all(level).map(u128::from).sum::<u128>();
    // The highest level that fits; at `above` every claim reaches its upper bound.
    let most = wants.iter().map(|w| w.high).max().unwrap_or(0);
    let above = (u128::from(most) + 1) * LEVELS;
    if sum(above) <= u128::from(room) {
        return all(above).collect();
    }
    let (mut fits, mut not) = (0, above);
    while not - fits > 1 {
        let middle = fits.midpoint(not);
        if sum(middle) <= u128::from(room) {
            fits = middle;
        } else {
            not = middle;
        }
    }
    let mut shares: Vec<u64> = all(fits).collect();
    let mut left = u128::from(room).saturating_sub(sum(fits));
    for (share, more) in shares.iter_mut().zip(all(not)) {
        if left > 0 && more > *share {
            *share += 1;
            left -= 1;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Gives slab by slab to the claim that has the least by its weight.
    fn naive(room: u64, wants: &[Want]) -> Vec<u64> {
        let mut shares: Vec<u64> = wants.iter().map(|w| w.low).collect();
        let mut left = room.saturating_sub(shares.iter().sum());
        while left > 0 {
            let open = (0..wants.len()).filter(|i| shares[*i] < wants[*i].high);
            // (x + 1) / w, compared without division.
            let next = open.min_by(|a, b| {
                let after = |i: usize, other: usize| {
                    u128::from(shares[i] + 1) * u128::from(wants[other].weight)
                };
                after(*a, *b).cmp(&after(*b, *a))
            });
            let Some(next) = next else { break };
            shares[next] += 1;
            left -= 1;
        }
        shares
    }

    fn wants() -> impl Strategy<Value = Vec<Want>> {
        let want = (1u32..=1000, 0u64..40, 0u64..200).prop_map(|(weight, low, more)| Want {
            weight,
            low,
            high: low + more,
        });
        prop::collection::vec(want, 0..12)
    }

    proptest! {
        #[test]
        fn shares_are_those_of_slab_by_slab(room in 0u64..1500, wants in wants()) {
            let (shares, oracle) = (fill(room, &wants), naive(room, &wants));
            let sum = |shares: &[u64]| shares.iter().sum::<u64>();
            prop_assert_eq!(sum(&shares), sum(&oracle));
            for ((a, b), w) in shares.iter().zip(&oracle).zip(&wants) {
                prop_assert!(a.abs_diff(*b) <= 1, "{a} {b} {w:?}");
                prop_assert!((w.low..=w.high).contains(a));
            }
        }

        #[test]
        fn any_numbers_do(
            room: u64,
            wants in prop::collection::vec((1u32.., 0u64..1 << 40, any::<u64>()), 0..5),
        ) {
            let wants: Vec<Want> = wants
                .into_iter()
                .map(|(weight, low, high)| Want { weight, low, high: high.max(low) })
                .collect();
            let lows: u128 = wants.iter().map(|w| u128::from(w.low)).sum();
            let sum: u128 = fill(room, &wants).into_iter().map(u128::from).sum();
            prop_assert!(sum <= lows.max(room.into()));
        }
    }
}
