//! Medians, their spread, and confidence intervals of the ratio of two medians.

use std::collections::BTreeMap;

/// Least number of samples per side for a confidence interval.
pub const REPEATS_MIN: usize = 3;

/// Resamples of the bootstrap: the 95 % bounds vary by less than one rank in a hundred.
const RESAMPLES: usize = 4000;

/// Median, quartiles and range of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Number of values.
    pub count: usize,
    /// Minimum.
    pub min: f64,
    /// First quartile.
    pub q1: f64,
    /// Median.
    pub median: f64,
    /// Third quartile.
    pub q3: f64,
    /// Maximum.
    pub max: f64,
}

impl Spread {
    /// Spread of all finite values; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let sorted = sorted(values);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Spread {
            count: sorted.len(),
            min,
            q1: quantile(&sorted, 0.25),
            median: quantile(&sorted, 0.5),
            q3: quantile(&sorted, 0.75),
            max,
        })
    }
}

/// The finite values, ascending.
fn sorted(values: &[f64]) -> Vec<f64> {
    let mut finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    finite.sort_unstable_by(f64::total_cmp);
    finite
}

/// Quantile `q` (0 to 1) of ascending values, interpolated linearly (R's type 7). The slice must not be
/// empty.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let place = q * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    let share = place - below as f64;
    // Equal neighbours first: x + (x - x) * share must be exactly x, and inf - inf is NaN.
    if share == 0.0 || sorted[below] == sorted[above] {
        return sorted[below];
    }
    sorted[below] * (1.0 - share) + sorted[above] * share
}

/// Median of all finite values.
pub fn median(values: &[f64]) -> Option<f64> {
    Spread::of(values).map(|s| s.median)
}

/// Merges histograms of (upper bound, count).
pub fn together<'a>(buckets: impl IntoIterator<Item = &'a (u64, u64)>) -> BTreeMap<u64, u64> {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for (bound, count) in buckets {
        let sum = counts.entry(*bound).or_default();
        *sum = sum.saturating_add(*count);
    }
    counts
}

/// Upper bound of the bucket that contains a quantile (0 to 1); `None` for an empty histogram.
pub fn bucket_at(counts: &BTreeMap<u64, u64>, quantile: f64) -> Option<u64> {
    let total: u64 = counts.values().sum();
    let mut left = (total as f64 * quantile).ceil() as u64;
    let at = counts.iter().find(|(_, count)| {
        let here = **count >= left;
        left = left.saturating_sub(**count);
        here
    });
    at.map(|(bound, _)| *bound)
}

/// A ratio of two medians.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Median over median.
    pub ratio: f64,
    /// 95 % confidence interval of the ratio; absent with fewer than [`REPEATS_MIN`] values on a side.
    pub bounds: Option<(f64, f64)>,
}

/// Verdict on a ratio of speeds, new over old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The whole interval lies above 1.
    Faster,
    /// The whole interval lies below 1.
    Slower,
    /// The interval contains 1.
    NoDifference,
    /// Too few repeats for an interval.
    TooFew,
}

impl Ratio {
    /// Verdict on this ratio as one of speeds.
    pub fn verdict(&self) -> Verdict {
        match self.bounds {
            None => Verdict::TooFew,
            Some((low, _)) if low > 1.0 => Verdict::Faster,
            Some((_, high)) if high < 1.0 => Verdict::Slower,
            Some(_) => Verdict::NoDifference,
        }
    }
}

/// `median(above) / median(below)` with a percentile bootstrap: resamples each side from its own values. The
/// same seed and values give the same bounds. Ignores values that are not finite and positive; `None` if a
/// side has no others.
pub fn ratio_of_medians(above: &[f64], below: &[f64], seed: u64) -> Option<Ratio> {
    let positive =
        |values: &[f64]| -> Vec<f64> { sorted(values).into_iter().filter(|v| *v > 0.0).collect() };
    let (above, below) = (positive(above), positive(below));
    let ratio = median(&above)? / median(&below)?;
    if above.len() < REPEATS_MIN || below.len() < REPEATS_MIN {
        return Some(Ratio {
            ratio,
            bounds: None,
        });
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut scratch = (Vec::new(), Vec::new());
    let mut ratios: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let a = redrawn(&above, &mut random, &mut scratch);
            a / redrawn(&below, &mut random, &mut scratch)
        })
        .collect();
    ratios.sort_unstable_by(f64::total_cmp);
    Some(Ratio {
        ratio,
        bounds: Some((quantile(&ratios, 0.025), quantile(&ratios, 0.975))),
    })
}

/// Median of a resample of equal size, drawn with replacement from ascending values. Counting how often each was
/// drawn saves sorting the resample.
fn redrawn(
    sorted: &[f64],
    random: &mut fastrand::Rng,
    (times, drawn): &mut (Vec<usize>, Vec<f64>),
) -> f64 {
    times.clear();
    times.resize(sorted.len(), 0);
    for _ in 0..sorted.len() {
        times[random.usize(..sorted.len())] += 1;
    }
    drawn.clear();
    for (value, n) in sorted.iter().zip(times.iter()) {
        drawn.resize(drawn.len() + *n, *value);
    }
    quantile(drawn, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use canvas_testing::random::scaled;
    use proptest::prelude::*;

    /// The k-th smallest value, by counting instead of sorting.
    fn kth(values: &[f64], k: usize) -> f64 {
        *values
            .iter()
            .find(|v| {
                let less = values.iter().filter(|w| w < v).count();
                let equal = values.iter().filter(|w| w == v).count();
                less <= k && k < less + equal
            })
            .unwrap()
    }

    /// Distribution of the median over all n^n resamples: value -> share.
    fn all_medians(values: &[f64]) -> Vec<(f64, f64)> {
        let n = values.len();
        let total = n.pow(n as u32);
        let mut shares: Vec<(f64, f64)> = values.iter().map(|v| (*v, 0.0)).collect();
        for code in 0..total {
            let mut rest = code;
            let mut draw = Vec::new();
            for _ in 0..n {
                draw.push(values[rest % n]);
                rest /= n;
            }
            let m = kth(&draw, n / 2);
            shares.iter_mut().find(|(v, _)| *v == m).unwrap().1 += 1.0 / total as f64;
        }
        shares
    }

    fn odd() -> impl Strategy<Value = Vec<f64>> {
        prop_oneof![
            proptest::collection::vec(0.5f64..2.0, 3),
            proptest::collection::vec(0.5f64..2.0, 5)
        ]
    }

    proptest! {
        #[test]
        fn spread_is_what_counting_finds(values in proptest::collection::vec(-1e6f64..1e6, 1..40)) {
            let s = Spread::of(&values).unwrap();
            let n = values.len();
            prop_assert_eq!(s.count, n);
            prop_assert_eq!(s.min, kth(&values, 0));
            prop_assert_eq!(s.max, kth(&values, n - 1));
            for (got, quarters) in [(s.q1, 1), (s.median, 2), (s.q3, 3)] {
                let (k, over) = (quarters * (n - 1) / 4, quarters * (n - 1) % 4);
                let (a, b) = (kth(&values, k), kth(&values, (k + 1).min(n - 1)));
                let want = a + (b - a) * over as f64 / 4.0;
                prop_assert!((got - want).abs() <= 1e-6, "{} is not {}", got, want);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(scaled(16)))]

        /// Compares with the exact distribution over all resamples.
        #[test]
        fn bootstrap_is_near_the_exact_one(above in odd(), below in odd(), seed: u64) {
            let got = ratio_of_medians(&above, &below, seed).unwrap();
            prop_assert!((got.ratio - kth(&above, above.len() / 2) / kth(&below, below.len() / 2)).abs() < 1e-12);
            let (low, high) = got.bounds.unwrap();
            prop_assert!(low <= got.ratio && got.ratio <= high);
            let (mut under, mut over) = (0.0, 0.0);
            let (mut to_low, mut from_high) = (0.0, 0.0);
            for (a, p) in all_medians(&above) {
                for (b, q) in all_medians(&below) {
                    let share = p * q;
                    let r = a / b;
                    if r < low - 1e-9 { under += share }
                    if r <= low + 1e-9 { to_low += share }
                    if r > high + 1e-9 { over += share }
                    if r >= high - 1e-9 { from_high += share }
                }
            }
            // 4,000 draws put a share of 0.025 within 0.0125 (five standard deviations).
            prop_assert!(under <= 0.0375 && to_low >= 0.0125, "low {} cuts off {} to {}", low, under, to_low);
            prop_assert!(over <= 0.0375 && from_high >= 0.0125, "high {} cuts off {} to {}", high, over, from_high);
        }

        #[test]
        fn scaling_scales(values in odd(), other in odd(), seed: u64) {
            let one = ratio_of_medians(&values, &other, seed).unwrap();
            let twice: Vec<f64> = values.iter().map(|v| v * 2.0).collect();
            let two = ratio_of_medians(&twice, &other, seed).unwrap();
            prop_assert!((two.ratio / one.ratio - 2.0).abs() < 1e-9);
            let (a, b) = (one.bounds.unwrap(), two.bounds.unwrap());
            prop_assert!((b.0 / a.0 - 2.0).abs() < 1e-9 && (b.1 / a.1 - 2.0).abs() < 1e-9);
        }
    }

    #[test]
    fn verdicts() {
        let old = [10.0, 10.2, 9.9, 10.1, 10.0];
        let faster: Vec<f64> = old.iter().map(|v| v * 1.1).collect();
        let verdict = |a: &[f64], b: &[f64]| ratio_of_medians(a, b, 1).unwrap().verdict();
        assert_eq!(verdict(&faster, &old), Verdict::Faster);
        assert_eq!(verdict(&old, &faster), Verdict::Slower);
        assert_eq!(verdict(&old, &old), Verdict::NoDifference);
        assert_eq!(verdict(&faster[..2], &old), Verdict::TooFew);
    }

    #[test]
    fn useless_values_are_left_out() {
        assert_eq!(Spread::of(&[f64::NAN, f64::INFINITY]), None);
        assert_eq!(median(&[f64::NAN, 3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(ratio_of_medians(&[0.0, -1.0], &[1.0], 1), None);
        assert_eq!(ratio_of_medians(&[], &[1.0], 1), None);
        assert_eq!(
            ratio_of_medians(&[2.0], &[1.0], 1),
            Some(Ratio {
                ratio: 2.0,
                bounds: None
            })
        );
    }
}
