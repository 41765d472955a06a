//! Simulated time, the queue of events, and a hash of everything that happened.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Nanoseconds since the start of the simulation; the only clock.
pub type Ns = u64;

/// A microsecond.
pub const US: Ns = 1_000;
/// A millisecond.
pub const MS: Ns = 1_000_000;
/// A second.
pub const SEC: Ns = 1_000_000_000;

/// Most events queued at one time.
pub const EVENTS_MAX: usize = 1 << 25;

struct Entry<E> {
    at: Ns,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    /// The earliest event is the greatest; among simultaneous events, the one inserted first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// Events by time; simultaneous events in the order of insertion.
pub struct Queue<E> {
    heap: BinaryHeap<Entry<E>>,
    now: Ns,
    number: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Queue {
            heap: BinaryHeap::new(),
            now: 0,
            number: 0,
        }
    }
}

impl<E> Queue<E> {
    /// Time of the last event taken.
    pub fn now(&self) -> Ns {
        self.now
    }

    /// Schedules an event for `at`, or for now if `at` is in the past.
    pub fn put(&mut self, at: Ns, event: E) {
        assert!(self.heap.len() < EVENTS_MAX, "too many events wait");
        self.number += 1;
        self.heap.push(Entry {
            at: at.max(self.now),
            number: self.number,
            event,
        });
    }

    /// Takes the next event, unless it is later than `until`; then advances the time to `until`.
    pub fn next(&mut self, until: Ns) -> Option<E> {
        if self.heap.peek().is_none_or(|e| e.at > until) {
            self.now = self.now.max(until);
            return None;
        }
        let entry = self.heap.pop()?;
        assert!(entry.at >= self.now, "time goes forward");
        self.now = entry.at;
        Some(entry.event)
    }
}

/// A hash (FNV-1a over words) of all events: runs with equal hashes did the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trace {
    /// Present value of the hash.
    pub hash: u64,
    /// Number of words hashed.
    pub words: u64,
}

impl Default for Trace {
    fn default() -> Self {
        Trace {
            hash: 0xcbf2_9ce4_8422_2325,
            words: 0,
        }
    }
}

impl Trace {
    /// Hashes words.
    pub fn add(&mut self, words: &[u64]) {
        for w in words {
            self.hash = (self.hash ^ w).wrapping_mul(0x0100_0000_01b3);
            // FNV's low bits depend on low bits only; the rotation spreads all of them.
            self.hash = self.hash.rotate_left(29);
            self.words += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_order() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut queue = Queue::default();
        let mut all: Vec<(Ns, u32)> = (0..500).map(|i| (rng.u64(0..50), i)).collect();
        for &(at, i) in &all {
            queue.put(at, (at, i));
        }
        all.sort();
        let mut got = Vec::new();
        for until in [10, 49] {
            while let Some(e) = queue.next(until) {
                got.push(e);
            }
            assert_eq!(queue.now(), until);
        }
        assert_eq!(got, all);
    }

    #[test]
    fn the_order_of_words_counts() {
        let of = |words: &[u64]| {
            let mut t = Trace::default();
            t.add(words);
            t.hash
        };
        assert_ne!(of(&[1, 2]), of(&[2, 1]));
        assert_ne!(of(&[1 << 63]), of(&[0]));
    }
}
