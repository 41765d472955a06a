//! When a client's lease is over, and which time does not count as silence.
//!
//! All times are of one clock and unit of the caller's choice.

/// A check that comes this many times later than planned shows that the donor's process was stopped, or its host was
/// suspended.
const LATE: u64 = 3;

/// Whether a client last heard from at `last` has been silent for longer than its lease.
pub fn is_over(last: u64, lease: u64, now: u64) -> bool {
    now.saturating_sub(last) > lease
}

/// The time between two checks that should be `every` apart, if it is so long that the donor cannot have read messages
/// in it. Leases and deadlines are then extended by it.
pub fn gap(before: u64, now: u64, every: u64) -> Option<u64> {
    Some(now.saturating_sub(before)).filter(|gap| *gap >= LATE * every)
}

/// When a client counts as heard from after such a gap; never later than `now`.
pub fn postponed(last: u64, gap: u64, now: u64) -> u64 {
    last.saturating_add(gap).min(now).max(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A donor that checks at its usual pace, with some stops, ends a lease when it was awake and received nothing
        /// for that long, and not before.
        #[test]
        fn only_time_awake_counts(
            waits in prop::collection::vec(prop_oneof![8 => Just(1u64), 1 => 3..200u64], 1..300),
            lease in 5..40u64,
        ) {
            let (mut last, mut now, mut awake) = (0, 0, 0);
            for wait in waits {
                let before = now;
                now += wait;
                match gap(before, now, 1) {
                    Some(gap) => last = postponed(last, gap, now),
                    None => awake += wait,
                }
                prop_assert!(last <= now);
                prop_assert_eq!(is_over(last, lease, now), awake > lease);
            }
        }
    }
}
