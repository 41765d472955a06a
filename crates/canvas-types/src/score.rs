//! A one-byte score of what tends to happen in one place: some events raise it and others lower it.
//!
//! From [`HIGH`] on the event is expected. The score can rise a little further, so that a few events to the contrary do
//! not change the judgement. If an expected event is therefore avoided, one attempt in 16 is a [probe](is_probe) that
//! does not avoid it, to find out when the expectation ends.
//!
//! Two threads at the same time may lose one of their updates.

use crate::sync::{AtomicU8, Ordering};

/// From this score on, the event is expected.
pub const HIGH: u8 = 16;
const MAX: u8 = 20;

/// Whether the event is expected.
#[inline]
pub fn is_high(score: &AtomicU8) -> bool {
    score.load(Ordering::Relaxed) >= HIGH
}

/// Records that it happened.
#[inline]
pub fn raise(score: &AtomicU8, by: u8) {
    let now = score.load(Ordering::Relaxed);
    score.store(now.saturating_add(by).min(MAX), Ordering::Relaxed);
}

/// Records that it could have happened, and did not.
#[inline]
pub fn lower(score: &AtomicU8, by: u8) {
    let now = score.load(Ordering::Relaxed);
    if now > 0 {
        score.store(now.saturating_sub(by), Ordering::Relaxed);
    }
}

/// True for one in 16 combinations of item and turn.
#[inline]
pub fn is_probe(which: u32, turn: u8) -> bool {
    (which ^ u32::from(turn) << 24).wrapping_mul(0x9e37_79b1) >> 28 == 0
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_score_stays_within_its_bounds_and_a_few_events_do_not_turn_it() {
        let score = AtomicU8::new(0);
        lower(&score, 3);
        assert!(!is_high(&score));
        (0..100).for_each(|_| raise(&score, 3));
        assert_eq!(score.load(Ordering::Relaxed), MAX);
        lower(&score, MAX - HIGH);
        assert!(is_high(&score));
        lower(&score, 1);
        assert!(!is_high(&score));
        (0..100).for_each(|_| lower(&score, 1));
        assert_eq!(score.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_in_sixteen_is_a_probe() {
        let probes = (0..64_000u32).filter(|i| is_probe(i % 512, (i / 512) as u8));
        let n = probes.count();
        assert!((3_000..5_000).contains(&n), "{n} of 64,000");
    }
}
