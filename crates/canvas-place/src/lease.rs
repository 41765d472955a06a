//! When a donor has not heard of a client for too long, and what does not count as silence.
//!
//! Times are of one clock and unit of the caller's.

/// So many times as far apart as they should be, two looks say that the donor's process was stopped, or
/// its host asleep.
const LATE: u64 = 3;

/// Was a client that was last heard of then silent for longer than its lease?
pub fn is_over(last: u64, lease: u64, now: u64) -> bool {
    now.saturating_sub(last) > lease
}

/// The time between two looks that should be `every` apart, when it is so long that nobody could be
/// heard in it: what clients said meanwhile lies unread. Leases and deadlines are then as much later.
pub fn gap(before: u64, now: u64, every: u64) -> Option<u64> {
    Some(now.saturating_sub(before)).filter(|gap| *gap >= LATE * every)
}

/// When a client counts as heard of after such a gap; never later than now.
pub fn postponed(last: u64, gap: u64, now: u64) -> u64 {
    last.saturating_add(gap).min(now).max(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A donor that looks at its usual pace but for some stops ends a lease when it was awake and
        /// heard nothing for that long, and not before.
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
