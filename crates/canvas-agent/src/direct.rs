//! What tenants' processes may read by themselves (docs/design/lanes.md), where several share the links.

/// What a tenant's processes may read by themselves.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Direct {
    /// Nothing, and there is no way for it.
    #[default]
    None,
    /// So many bytes a second; of 0 the ways are kept.
    Rate(u64),
    /// As much as they can: nobody else uses the links.
    All,
}

/// A tenant, as it is asked about here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct One {
    /// Its weight.
    pub weight: u32,
    /// It has used the links lately.
    pub uses: bool,
    /// It has had more than its turn, while others wait.
    pub is_ahead: bool,
}

/// Who is alone may read as much as it can. Beside others each may read its share of what the link moves (bytes a
/// second; 0 when that is not known yet), by the weights, and one that begins has a share as well; who is ahead
/// takes its turns with the agent.
pub(crate) fn divide(link_bytes_s: u64, all: &[One]) -> impl Iterator<Item = Direct> {
    let using = all.iter().filter(|one| one.uses);
    let (n, weights) = using.fold((0, 0), |(n, sum), one| {
        (n + 1, sum + u128::from(one.weight))
    });
    all.iter().map(move |one| {
        let weight = u128::from(one.weight);
        let sum = if one.uses { weights } else { weights + weight };
        match n {
            1 if one.uses => Direct::All,
            _ if one.is_ahead => Direct::Rate(0),
            _ => Direct::Rate((u128::from(link_bytes_s) * weight / sum.max(1)) as u64),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one() -> impl Strategy<Value = One> {
        (1..=1000u32, any::<bool>(), any::<bool>()).prop_map(|(weight, uses, is_ahead)| One {
            weight,
            uses,
            is_ahead,
        })
    }

    proptest! {
        /// Those who use the links get no more than they move, each its share to within a byte.
        #[test]
        fn shares_are_by_weight(link in 0..1u64 << 40, all in prop::collection::vec(one(), 0..8)) {
            let got: Vec<Direct> = divide(link, &all).collect();
            let of: Vec<&One> = all.iter().filter(|one| one.uses).collect();
            let sum: u64 = of.iter().map(|one| u64::from(one.weight)).sum();
            let mut total = 0;
            for (one, direct) in all.iter().zip(&got) {
                match direct {
                    Direct::None => prop_assert!(false),
                    Direct::All => prop_assert!(one.uses && of.len() == 1),
                    Direct::Rate(rate) => {
                        prop_assert!(!one.uses || of.len() > 1);
                        prop_assert!(!one.is_ahead || *rate == 0);
                        if one.uses && !one.is_ahead {
                            total += rate;
                            let share = link as f64 * f64::from(one.weight) / sum as f64;
                            prop_assert!((*rate as f64 - share).abs() <= 1.0 + share / 1e9);
                        }
                    }
                }
            }
            prop_assert!(total <= link);
        }
    }
}
