//! Shares the agent's thread between tenants: deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) over time
//! instead of bytes.
//!
//! The cost of a request is known only afterwards: a write is sealed, a read of one record costs almost nothing. So a
//! turn takes as many requests as are likely to fit by their recent cost, and time used beyond the quantum is a debt: a
//! tenant in debt has no turn until its quanta have paid it off. A round in which no tenant has work takes no time, so
//! a debt never leaves the thread idle. Pure: no clock.

use std::time::Duration;

/// Quantum of the heaviest active tenant; the others' are proportional to their weights.
pub const QUANTUM_NS: i64 = 200_000;
/// Most requests taken in one turn, however cheap they seem.
pub const REQUESTS_MAX: usize = 128;
/// Assumed cost of a request before any is measured.
const REQUEST_NS: u64 = 6_250;
/// Lower bound on the cost of a request, whatever clocks say.
const REQUEST_NS_MIN: u64 = 500;
/// Requests over which the cost is averaged; older ones count half.
const KNOWN: u64 = 64;

/// One tenant's budget.
#[derive(Clone, Debug)]
pub struct RoundRobin {
    /// Below 0: a debt.
    left_ns: i64,
    spent_ns: u64,
    taken: u64,
}

impl Default for RoundRobin {
    fn default() -> RoundRobin {
        RoundRobin::new()
    }
}

impl RoundRobin {
    /// For a tenant that has done nothing yet.
    pub fn new() -> RoundRobin {
        RoundRobin {
            left_ns: 0,
            spent_ns: REQUEST_NS * KNOWN / 2,
            taken: KNOWN / 2,
        }
    }

    /// Starts a round in which the heaviest active tenant has weight `heaviest`. What is left of the last quantum is
    /// kept only if the tenant was `held_back`, that is, had more work than it was allowed to do.
    pub fn refill(&mut self, weight: u32, heaviest: u32, held_back: bool) {
        let part = i64::from(weight.min(heaviest)) * QUANTUM_NS / i64::from(heaviest.max(1));
        let part = part.max(1);
        let most = if held_back { 4 * part } else { part };
        self.left_ns = (self.left_ns + part).min(most);
    }

    /// Requests that the tenant may take now; 0 while it is in debt.
    pub fn most(&self) -> usize {
        if self.left_ns <= 0 {
            return 0;
        }
        let each = (self.spent_ns / self.taken.max(1)).max(REQUEST_NS_MIN);
        (self.left_ns as u64)
            .div_ceil(each)
            .min(REQUESTS_MAX as u64) as usize
    }

    /// Records that the tenant took `requests`.
    pub fn took(&mut self, requests: usize) {
        self.taken += requests as u64;
        while self.taken > 2 * KNOWN {
            self.taken /= 2;
            self.spent_ns /= 2;
        }
    }

    /// Records that the thread worked `time` for the tenant.
    pub fn spent(&mut self, time: Duration) {
        let ns = time.as_nanos().min(1_000_000_000) as u64;
        self.spent_ns = self.spent_ns.saturating_add(ns);
        self.left_ns = self.left_ns.saturating_sub_unsigned(ns);
    }
}

/// Spurious notifications tolerated before a tenant is polled less often.
const SPURIOUS_MAX: u32 = 64;
/// How often such a tenant is polled.
pub const SPURIOUS_PAUSE: Duration = Duration::from_millis(1);
/// Notifications that are further apart are free.
const SPURIOUS_APART: Duration = Duration::from_millis(100);

/// Rates a tenant's notifications. A program notifies after it has posted, so there is usually work; one that
/// repeatedly notifies without work would keep the thread from sleeping.
#[derive(Clone, Default, Debug)]
pub struct NotifyThrottle {
    spurious: u32,
}

impl NotifyThrottle {
    /// A notification found work.
    pub fn found_work(&mut self) {
        self.spurious = 0;
    }

    /// A notification found no work, `since` the last such one. True when the tenant is not to be polled for
    /// [`SPURIOUS_PAUSE`].
    pub fn found_nothing(&mut self, since: Duration) -> bool {
        self.spurious = if since > SPURIOUS_APART {
            1
        } else {
            self.spurious + 1
        };
        self.spurious = self.spurious.min(SPURIOUS_MAX);
        self.spurious == SPURIOUS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ns(ns: u64) -> Duration {
        Duration::from_nanos(ns)
    }

    /// A tenant that always has more work; its requests cost `cost`, occasionally `spike` times as much.
    #[derive(Clone, Debug)]
    struct Busy {
        weight: u32,
        cost: u64,
        spike: u64,
    }

    fn busy() -> impl Strategy<Value = Busy> {
        let weight = prop_oneof![Just(1), Just(100), 1..=1000u32];
        (weight, 500..60_000u64, 1..20u64).prop_map(|(weight, cost, spike)| Busy {
            weight,
            cost,
            spike,
        })
    }

    proptest! {
        #[test]
        fn shares_of_time_follow_weights_whatever_requests_cost(
            all in prop::collection::vec(busy(), 1..8),
        ) {
            let heaviest = all.iter().map(|b| b.weight).max().unwrap();
            let mut tenants = vec![RoundRobin::new(); all.len()];
            let mut used = vec![0u64; all.len()];
            // The most expensive turn of each: no share is off by more.
            let mut turn_max = vec![0u64; all.len()];
            // Many turns of each tenant, however light it is.
            let lightest = all.iter().map(|b| b.weight).min().unwrap();
            let dear = all.iter().map(|b| b.cost * b.spike).max().unwrap();
            let part = QUANTUM_NS as u64 * u64::from(lightest) / u64::from(heaviest);
            let rounds = 200 + 20 * dear / part.max(1);
            for round in 0..rounds {
                for (i, b) in all.iter().enumerate() {
                    tenants[i].refill(b.weight, heaviest, round > 0);
                    let most = tenants[i].most();
                    if most == 0 {
                        continue;
                    }
                    tenants[i].took(most);
                    let spikes = if round % 7 == 0 { b.spike } else { 1 };
                    let cost = b.cost * (most as u64 - 1 + spikes);
                    tenants[i].spent(ns(cost));
                    used[i] += cost;
                    turn_max[i] = turn_max[i].max(cost);
                }
            }
            for (i, b) in all.iter().enumerate() {
                let part = QUANTUM_NS as u64 * u64::from(b.weight) / u64::from(heaviest);
                let due = rounds * part.max(1);
                // Over its due by at most one turn.
                prop_assert!(used[i] <= due + 4 * part + turn_max[i], "{i}: {} of {due}", used[i]);
                // Under its due only when its requests are so cheap that their number bounds it, or by what is not kept
                // of turns that were estimated too high (more than four rounds' worth), which is little.
                let bounded = REQUESTS_MAX as u64 * b.cost < 4 * part;
                let least = due.saturating_sub(4 * part + turn_max[i] + due / 100);
                prop_assert!(bounded || used[i] >= least, "{i}: {} of {due}", used[i]);
                prop_assert!(used[i] > 0, "nobody starves");
            }
        }
    }

    #[test]
    fn a_debt_is_paid_and_idleness_saves_nothing() {
        let mut t = RoundRobin::new();
        assert_eq!(t.most(), 0, "before its first round");
        for _ in 0..100 {
            t.refill(100, 100, false);
        }
        assert_eq!(t.most(), 32);
        t.spent(ns(10 * QUANTUM_NS as u64));
        let waits = (0..).take_while(|_| {
            t.refill(100, 100, false);
            t.most() == 0
        });
        assert_eq!(waits.count(), 9);
    }

    #[test]
    fn a_turn_is_as_long_as_requests_are_dear() {
        let mut t = RoundRobin::new();
        for _ in 0..50 {
            t.refill(100, 100, false);
            t.took(4);
            t.spent(ns(4 * 50_000));
        }
        assert_eq!(t.most(), 0);
        t.refill(100, 100, false);
        assert!((2..=8).contains(&t.most()), "{}", t.most());
        // Whatever a clock says.
        t.spent(Duration::MAX);
        t.spent(Duration::MAX);
        assert_eq!(t.most(), 0);
    }

    #[test]
    fn who_rings_for_nothing_again_and_again_is_left_alone() {
        let mut r = NotifyThrottle::default();
        let soon = Duration::from_micros(20);
        let many =
            |r: &mut NotifyThrottle, n: u32| (0..n).filter(|_| r.found_nothing(soon)).count();
        assert_eq!(many(&mut r, SPURIOUS_MAX - 1), 0);
        assert_eq!(many(&mut r, 3), 3);
        r.found_work();
        assert_eq!(many(&mut r, SPURIOUS_MAX - 1), 0);
        assert!(!r.found_nothing(Duration::from_secs(1)), "long ago");
    }
}
