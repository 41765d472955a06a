//! Whether others want the processors, for threads that look for something instead of sleeping.
//!
//! Looking is faster than sleeping while a processor is free. Where all are wanted it is slower: who gives its
//! processor up by sched_yield(2) has, since Linux 6.18, had its whole slice, and waits for those of all others, milliseconds
//! each. Who sleeps keeps its claim and runs soon after it is woken. So a look that took long is the last one for a
//! while, and for twice as long when the next one takes long as well.

use core::sync::atomic::{AtomicU64, Ordering};

/// A look that takes longer has let others have a slice. Answers of near donors take less, and so do turns with threads
/// that have little to do.
pub const CONTENDED_NS: u64 = 2_000_000;
/// How long nobody looks after the first such look, in ns.
pub const PAUSE_NS_MIN: u64 = 4_000_000;
/// How long nobody looks after many such looks, in ns.
pub const PAUSE_NS_MAX: u64 = 128_000_000;

/// What a process knows of contention for its processors. Times are of one monotonic clock of the caller's.
#[derive(Debug, Default)]
pub struct Contention {
    until_ns: AtomicU64,
    /// The last pause; 0: none of late.
    pause_ns: AtomicU64,
}

impl Contention {
    /// Nobody else, as far as is known.
    pub const fn new() -> Contention {
        Contention {
            until_ns: AtomicU64::new(0),
            pause_ns: AtomicU64::new(0),
        }
    }

    /// A thread has given its processor up from `began_ns` to `now_ns`. Of threads that say so at the same time one
    /// may be forgotten.
    pub fn gave_way(&self, began_ns: u64, now_ns: u64) {
        let pause = self.pause_ns.load(Ordering::Relaxed);
        let until = self.until_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(began_ns) > CONTENDED_NS {
            let pause = (2 * pause).clamp(PAUSE_NS_MIN, PAUSE_NS_MAX);
            self.pause_ns.store(pause, Ordering::Relaxed);
            self.until_ns
                .store(now_ns.saturating_add(pause), Ordering::Relaxed);
        } else if pause > 0 && now_ns > until.saturating_add(pause) {
            // For as long as that nobody has waited.
            self.pause_ns.store(0, Ordering::Relaxed);
        }
    }

    /// Should a thread sleep rather than look?
    pub fn is_here(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns.load(Ordering::Relaxed)
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
        assert!(!contention.is_here(0));
        contention.gave_way(1000, 1000 + CONTENDED_NS);
        assert!(!contention.is_here(1000 + CONTENDED_NS), "a short one");
        let now = 5 * LONG;
        contention.gave_way(now - LONG, now);
        assert!(contention.is_here(now));
        // A short look says nothing of those that were long.
        contention.gave_way(now, now + 1);
        // Clocks of two processors may differ a little.
        contention.gave_way(now, now - 1);
        assert!(contention.is_here(now + PAUSE_NS_MIN - 1));
        assert!(!contention.is_here(now + PAUSE_NS_MIN));
    }

    #[test]
    fn pauses_grow_while_contended_and_are_forgotten_after() {
        let contention = Contention::new();
        let mut now = LONG;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            contention.gave_way(now - LONG, now);
            let began = now;
            while contention.is_here(now) {
                now += 1_000_000;
            }
            pauses.push((now - began) / 1_000_000);
            // Once or twice it is quick by chance.
            contention.gave_way(now, now + 1);
            now += LONG;
        }
        assert_eq!(pauses, [4, 8, 16, 32, 64, 128, 128, 128]);
        now += 2 * PAUSE_NS_MAX;
        contention.gave_way(now, now + 1);
        contention.gave_way(now, now + LONG);
        assert!(!contention.is_here(now + LONG + PAUSE_NS_MIN));
    }
}
