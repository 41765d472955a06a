//! Measures of fairness, for benches and tests.

/// Weighted min-max ratio (Canvas §6): the least `rate / weight` of all tenants over the greatest; 1 is perfectly fair,
/// 0 starves a tenant. Pairs are (rate in any unit, weight); 1 when there are none, or nobody got anything.
pub fn wmmr(tenants: &[(f64, u32)]) -> f64 {
    let per_weight = tenants
        .iter()
        .map(|(rate, weight)| rate / f64::from(*weight));
    let (least, most) = per_weight.fold((f64::INFINITY, 0.0f64), |(lo, hi), x| {
        (lo.min(x), hi.max(x))
    });
    if most == 0.0 { 1.0 } else { least / most }
}

/// Weighted max-min shares of `capacity` among tenants (demand, weight): no tenant gets more than it asks for, and the
/// others share what it leaves by weight.
pub fn max_min(capacity: f64, tenants: &[(f64, u32)]) -> Vec<f64> {
    let mut shares = vec![0.0; tenants.len()];
    let mut open: Vec<usize> = (0..tenants.len()).collect();
    let mut left = capacity;
    while !open.is_empty() {
        let weights: f64 = open.iter().map(|i| f64::from(tenants[*i].1)).sum();
        let share = |i: usize| left * f64::from(tenants[i].1) / weights;
        let (content, hungry): (Vec<usize>, Vec<usize>) =
            open.iter().partition(|i| tenants[**i].0 <= share(**i));
        if content.is_empty() {
            hungry.iter().for_each(|i| shares[*i] = share(*i));
            break;
        }
        for i in content {
            shares[i] = tenants[i].0;
            left -= tenants[i].0;
        }
        open = hungry;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios() {
        assert_eq!(wmmr(&[]), 1.0);
        assert_eq!(wmmr(&[(0.0, 1), (0.0, 2)]), 1.0);
        assert_eq!(wmmr(&[(10.0, 1), (20.0, 2)]), 1.0);
        assert_eq!(wmmr(&[(10.0, 1), (10.0, 2)]), 0.5);
        assert_eq!(wmmr(&[(10.0, 1), (0.0, 2)]), 0.0);
    }

    #[test]
    fn what_one_leaves_the_others_share() {
        assert_eq!(
            max_min(90.0, &[(10.0, 1), (1e9, 1), (1e9, 3)]),
            [10.0, 20.0, 60.0]
        );
        assert_eq!(max_min(90.0, &[(10.0, 1), (20.0, 1)]), [10.0, 20.0]);
    }
}
