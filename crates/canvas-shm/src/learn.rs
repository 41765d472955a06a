//! Recordings of which far pages a program needed when it resumed (`learn`), in the tenant segment: a process writes
//! them, the runner reads and keeps them.
//!
//! What the words mean is canvas-pager's matter (`learn::chunks`). A recording's sequence number is odd while it is
//! written; who dies then leaves it so, and it counts as empty.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(feature = "std")]
use std::vec::Vec;

/// Recordings of a process at most.
pub const RECORDINGS: usize = 8;
/// Words of one: all together take less than 1 MiB.
pub const WORDS: usize = 30 << 10;

const _: () = assert!(core::mem::size_of::<Recordings>() <= 1 << 20);

/// One recording.
#[repr(C, align(64))]
pub struct Recording {
    seq: AtomicU32,
    /// Words that it has.
    len: AtomicU32,
    /// Replays that were right, less those that were not.
    pub useful: AtomicU32,
    /// Goes up with each change: the newest has the highest.
    pub made: AtomicU32,
    words: [AtomicU32; WORDS],
}

impl Recording {
    /// How many words it has; 0 when there is none, or nobody has finished it.
    pub fn len(&self) -> usize {
        match self.seq.load(Ordering::Acquire).is_multiple_of(2) {
            true => (self.len.load(Ordering::Relaxed) as usize).min(WORDS),
            false => 0,
        }
    }
    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// All places for words, for their writer.
    pub fn places(&self) -> &[AtomicU32; WORDS] {
        &self.words
    }
    /// The words, for their writer: another one may change them.
    pub fn words(&self) -> &[AtomicU32] {
        &self.words[..self.len()]
    }
    /// Changes it: `write` gets the places and says how many are words now.
    pub fn write<'a>(&'a self, write: impl FnOnce(&'a [AtomicU32; WORDS]) -> usize) {
        // Odd also where somebody has died.
        let seq = self.seq.load(Ordering::Relaxed) | 1;
        self.seq.store(seq, Ordering::Relaxed);
        fence(Ordering::Release);
        let len = write(&self.words).min(WORDS);
        self.len.store(len as u32, Ordering::Relaxed);
        self.seq.store(seq.wrapping_add(1), Ordering::Release);
    }
    /// Its words as they are at one moment; `None` while they change, or when there are none.
    #[cfg(feature = "std")]
    pub fn copy(&self) -> Option<Vec<u32>> {
        let before = self.seq.load(Ordering::Acquire);
        let words: Vec<u32> = self
            .words()
            .iter()
            .map(|w| w.load(Ordering::Relaxed))
            .collect();
        fence(Ordering::Acquire);
        let same = self.seq.load(Ordering::Relaxed) == before;
        (same && !words.is_empty()).then_some(words)
    }
}

/// All recordings of a run.
#[repr(C, align(64))]
pub struct Recordings {
    /// The identity of the process that learns; 0 when none does yet.
    pub owner: AtomicU64,
    /// Goes up with each change.
    pub changes: AtomicU32,
    /// Recordings of earlier runs that it began with.
    pub loaded: AtomicU32,
    /// Those that there are.
    pub places: [Recording; RECORDINGS],
}

impl Recordings {
    /// Makes `id` the one process that learns, if nobody is that `lives`. True when it is.
    pub fn claim(&self, id: u64, lives: impl Fn(u64) -> bool) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        owner == id
            || (owner == 0 || !lives(owner))
                && self
                    .owner
                    .compare_exchange(owner, id, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
    }
    /// Where a new recording goes: an empty place, else that of the least useful, and of these the oldest.
    pub fn place_for_new(&self) -> &Recording {
        let worth = |r: &&Recording| {
            let useful = r.useful.load(Ordering::Relaxed);
            (!r.is_empty(), useful, r.made.load(Ordering::Relaxed))
        };
        self.places
            .iter()
            .min_by_key(worth)
            .unwrap_or(&self.places[0])
    }
    /// Something has changed: its number.
    pub fn note_change(&self) -> u32 {
        self.changes.fetch_add(1, Ordering::AcqRel) + 1
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use crate::Segment;
    use std::vec;

    fn none() -> &'static Recordings {
        &Segment::create(false).unwrap().1.recordings
    }

    fn fill(r: &Recording, first: u32, useful: u32, made: u32) {
        r.write(|words| {
            words[0].store(first, Ordering::Relaxed);
            words[1].store(7, Ordering::Relaxed);
            2
        });
        r.useful.store(useful, Ordering::Relaxed);
        r.made.store(made, Ordering::Relaxed);
    }

    #[test]
    fn the_least_useful_makes_way_and_of_these_the_oldest() {
        let all = none();
        for (i, r) in all.places.iter().enumerate() {
            assert!(core::ptr::eq(all.place_for_new(), r));
            fill(
                r,
                i as u32,
                [3, 1, 5, 1, 2, 2, 2, 2][i],
                [1, 9, 2, 4, 5, 6, 7, 8][i],
            );
        }
        assert_eq!(all.place_for_new().copy(), Some(vec![3, 7]));
    }

    #[test]
    fn what_nobody_has_finished_is_empty_until_it_is_written_again() {
        let all = none();
        let r = &all.places[0];
        assert!(r.copy().is_none() && r.is_empty());
        fill(r, 4, 0, 0);
        r.write(|_| {
            assert!(r.copy().is_none() && r.is_empty());
            2
        });
        assert_eq!(r.copy(), Some(vec![4, 7]));
        // As after a death in the middle.
        r.seq.fetch_add(1, Ordering::Relaxed);
        assert!(r.copy().is_none() && r.words().is_empty());
        fill(r, 5, 0, 0);
        assert_eq!(r.copy(), Some(vec![5, 7]));
        // A length that is not true.
        r.len.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(r.copy().map(|w| w.len()), Some(WORDS));
    }

    #[test]
    fn one_process_learns_until_it_is_dead() {
        let all = none();
        assert!(all.claim(7, |_| true) && all.claim(7, |_| true));
        assert!(!all.claim(8, |pid| pid == 7));
        assert!(all.claim(8, |_| false));
        assert!(!all.claim(7, |pid| pid == 8));
    }
}
