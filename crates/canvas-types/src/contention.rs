//! Detects contention for CPUs, for threads that poll instead of sleeping.
//!
//! Polling is faster than sleeping while a CPU is free, and slower when all are wanted: since Linux 6.18, a thread that
//! gives up its CPU by sched_yield(2) has used up its slice, and waits for those of all other threads, milliseconds
//! each. A sleeping thread keeps its claim and runs soon after it is woken. So after a poll that took long, threads
//! sleep for a while, and twice as long if the next poll takes long, too.

use crate::controller::Backoff;

/// A poll that takes longer than this has let other threads run for a slice. Replies of near donors take less, and so
/// does yielding to threads that have little to do.
pub const CONTENDED_NS: u64 = 2_000_000;
/// How long threads do not poll after the first slow poll, in ns.
pub const PAUSE_NS_MIN: u64 = 4_000_000;
/// How long threads do not poll after many slow polls, in ns.
pub const PAUSE_NS_MAX: u64 = 128_000_000;

/// What a process knows about contention for its CPUs. All times are from one monotonic clock of the caller.
#[derive(Debug, Default)]
pub struct Contention(Backoff<PAUSE_NS_MIN, PAUSE_NS_MAX>);

impl Contention {
    /// Starts without known contention.
    pub const fn new() -> Contention {
        Contention(Backoff::new(0))
    }

    /// Records that a thread yielded its CPU from `began_ns` to `now_ns`. Concurrent calls may be lost.
    pub fn record_yield(&self, began_ns: u64, now_ns: u64) {
        if now_ns.saturating_sub(began_ns) > CONTENDED_NS {
            self.0.failed(now_ns);
        } else {
            self.0.succeeded_at(now_ns);
        }
    }

    /// Whether a thread should sleep rather than poll.
    pub fn is_contended(&self, now_ns: u64) -> bool {
        self.0.is_paused(now_ns)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    const LONG: u64 = CONTENDED_NS + 1;

    #[test]
    fn a_long_look_is_the_last_for_a_while() {
        let contention = Contention::new();
        assert!(!contention.is_contended(0));
        contention.record_yield(1000, 1000 + CONTENDED_NS);
        assert!(!contention.is_contended(1000 + CONTENDED_NS), "a short one");
        let now = 5 * LONG;
        contention.record_yield(now - LONG, now);
        assert!(contention.is_contended(now));
        // A short poll does not outweigh slow ones.
        contention.record_yield(now, now + 1);
        // Clocks of two CPUs may differ a little.
        contention.record_yield(now, now - 1);
        assert!(contention.is_contended(now + PAUSE_NS_MIN - 1));
        assert!(!contention.is_contended(now + PAUSE_NS_MIN));
    }

    #[test]
    fn pauses_grow_while_contended_and_are_forgotten_after() {
        let contention = Contention::new();
        let mut now = LONG;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            contention.record_yield(now - LONG, now);
            let began = now;
            while contention.is_contended(now) {
                now += 1_000_000;
            }
            pauses.push((now - began) / 1_000_000);
            // Once or twice it is quick by chance.
            contention.record_yield(now, now + 1);
            now += LONG;
        }
        assert_eq!(pauses, [4, 8, 16, 32, 64, 128, 128, 128]);
        now += 2 * PAUSE_NS_MAX;
        contention.record_yield(now, now + 1);
        contention.record_yield(now, now + LONG);
        assert!(!contention.is_contended(now + LONG + PAUSE_NS_MIN));
    }
}
