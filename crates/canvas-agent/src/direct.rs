//! How much tenants' processes may read from donors directly (docs/design/lanes.md) where several tenants share the
//! links.

use std::time::Duration;

use canvas_types::controller::ewma;

/// How much a tenant's processes may read from donors directly.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Direct {
    /// Nothing, and there are no direct read channels.
    #[default]
    None,
    /// This many bytes a second; with 0 the channels stay open.
    Rate(u64),
    /// Without limit: nobody else uses the links.
    All,
}

/// A tenant, as input to [`divide`].
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct TenantUse {
    /// The tenant's weight.
    pub weight: u32,
    /// The tenant has used the links lately.
    pub uses: bool,
    /// The tenant is ahead of its share while others wait.
    pub is_ahead: bool,
    /// The tenant's read rates.
    pub reads: Reads,
}

/// What a tenant reads from donors, in bytes a second.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Reads {
    /// Through the agent, as scheduled.
    pub agent_bytes_s: u64,
    /// Directly, by the tenant's processes.
    pub direct_bytes_s: u64,
}

impl Reads {
    /// Adds the bytes read in the `time` since the last measurement.
    pub fn with(self, agent_bytes: u64, direct_bytes: u64, time: Duration) -> Reads {
        let ns = time.as_nanos().max(1);
        let smooth = |before: u64, bytes: u64| {
            let now = u128::from(bytes) * 1_000_000_000 / ns;
            let now = u64::try_from(now).unwrap_or(u64::MAX);
            ewma::<1, 4>(before, now)
        };
        Reads {
            agent_bytes_s: smooth(self.agent_bytes_s, agent_bytes),
            direct_bytes_s: smooth(self.direct_bytes_s, direct_bytes),
        }
    }
}

/// A tenant may read at least 1/`LEAST` of its share directly, however much it reads through the agent; its turns there
/// come later for it.
const LEAST: u64 = 16;

/// A tenant alone may read without limit. Otherwise each gets its share of the links' rate (bytes a second; 0 when
/// unknown) by weight; where the links are full, reads through the agent count towards that share. A tenant that starts
/// has a share as well; one that is ahead reads through the agent only.
pub(crate) fn divide(link_bytes_s: u64, all: &[TenantUse]) -> impl Iterator<Item = Direct> {
    let using = all.iter().filter(|one| one.uses);
    let (n, weights) = using.fold((0, 0), |(n, sum), one| {
        (n + 1, sum + u128::from(one.weight))
    });
    let used = all.iter().fold(0u64, |sum, one| {
        let Reads {
            agent_bytes_s,
            direct_bytes_s,
        } = one.reads;
        sum.saturating_add(agent_bytes_s)
            .saturating_add(direct_bytes_s)
    });
    let is_full = used >= link_bytes_s - link_bytes_s / 4;
    all.iter().map(move |one| {
        let weight = u128::from(one.weight);
        let sum = if one.uses { weights } else { weights + weight };
        let share = (u128::from(link_bytes_s) * weight / sum.max(1)) as u64;
        let taken = if is_full { one.reads.agent_bytes_s } else { 0 };
        let due = share.saturating_sub(taken);
        match n {
            1 if one.uses => Direct::All,
            _ if one.is_ahead => Direct::Rate(0),
            _ => Direct::Rate(due.max(share / LEAST)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one() -> impl Strategy<Value = TenantUse> {
        let rate = prop_oneof![Just(0), 0..1u64 << 36];
        let reads = (rate.clone(), rate);
        (1..=1000u32, any::<bool>(), any::<bool>(), reads).prop_map(
            |(weight, uses, is_ahead, (agent_bytes_s, direct_bytes_s))| TenantUse {
                weight,
                uses,
                is_ahead,
                reads: Reads {
                    agent_bytes_s,
                    direct_bytes_s,
                },
            },
        )
    }

    proptest! {
        /// The tenants that use the links get no more than the links' rate, each its share to within a byte; on a full
        /// link they get, with their reads through the agent, at most that and a sixteenth.
        #[test]
        fn shares_are_by_weight(link in 0..1u64 << 40, all in prop::collection::vec(one(), 0..8)) {
            let got: Vec<Direct> = divide(link, &all).collect();
            let of: Vec<&TenantUse> = all.iter().filter(|one| one.uses).collect();
            let sum: u64 = of.iter().map(|one| u64::from(one.weight)).sum();
            let used: u64 = all.iter().map(|one| one.reads.agent_bytes_s + one.reads.direct_bytes_s).sum();
            let is_full = used as f64 >= link as f64 * 0.75;
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
                            let taken = if is_full { one.reads.agent_bytes_s as f64 } else { 0.0 };
                            let due = (share - taken).max((share / 16.0).floor());
                            prop_assert!((*rate as f64 - due).abs() <= 2.0 + share / 1e9);
                        }
                    }
                }
            }
            prop_assert!(total <= link);
        }
    }

    /// After long enough, a constant rate is the average, whatever it was before.
    #[test]
    fn reads_are_smoothed() {
        let mut reads = Reads {
            agent_bytes_s: 1 << 30,
            direct_bytes_s: 0,
        };
        for _ in 0..100 {
            reads = reads.with(1_000, 20_000, Duration::from_millis(20));
        }
        assert_near(reads.agent_bytes_s, 50_000);
        assert_near(reads.direct_bytes_s, 1_000_000);
    }

    fn assert_near(found: u64, expected: u64) {
        assert!(found.abs_diff(expected) <= 16, "{found}, {expected}");
    }
}
