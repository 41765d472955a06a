//! Recordings of the far pages that a program needed when it resumed (`learn`), in the tenant segment: a process writes
//! them, the runner reads and keeps them.
//!
//! canvas-core defines the words' meaning (`learn::chunks`). A recording's sequence number is odd while it is written;
//! a writer that dies leaves it odd, and the recording counts as empty.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(feature = "std")]
use std::vec::Vec;

/// Most recordings of a process.
pub const RECORDINGS: usize = 8;
/// Words of one recording: all together take less than 1 MiB.
pub const WORDS: usize = 30 << 10;

const _: () = assert!(core::mem::size_of::<Recordings>() <= 1 << 20);

/// One recording.
#[repr(C, align(64))]
pub struct Recording {
    seq: AtomicU32,
    /// Number of words.
    len: AtomicU32,
    /// Correct replays, minus incorrect ones.
    pub useful: AtomicU32,
    /// Increases with each change: the newest has the highest.
    pub made: AtomicU32,
    words: [AtomicU32; WORDS],
}

impl Recording {
    /// Number of words; 0 when there is none, or its writer has not finished it.
    pub fn len(&self) -> usize {
        match self.seq.load(Ordering::Acquire).is_multiple_of(2) {
            true => (self.len.load(Ordering::Relaxed) as usize).min(WORDS),
            false => 0,
        }
    }
    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// All places for words, for the writer.
    pub fn places(&self) -> &[AtomicU32; WORDS] {
        &self.words
    }
    /// The words, for the writer: another process may change them.
    pub fn words(&self) -> &[AtomicU32] {
        &self.words[..self.len()]
    }
    /// Changes it: `write` gets the places and returns the new number of words.
    pub fn write<'a>(&'a self, write: impl FnOnce(&'a [AtomicU32; WORDS]) -> usize) {
        // Odd also after a writer has died.
        let seq = self.seq.load(Ordering::Relaxed) | 1;
        self.seq.store(seq, Ordering::Relaxed);
        fence(Ordering::Release);
        let len = write(&self.words).min(WORDS);
        self.len.store(len as u32, Ordering::Relaxed);
        self.seq.store(seq.wrapping_add(1), Ordering::Release);
    }
    /// A consistent copy of the words; `None` while they change, or when there are none.
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
    /// Increases with each change.
    pub changes: AtomicU32,
    /// Number of recordings loaded from earlier runs.
    pub loaded: AtomicU32,
    /// The recordings.
    pub places: [Recording; RECORDINGS],
}

impl Recordings {
    /// Makes `id` the one process that learns, unless another live one is. True when it is.
    pub fn claim(&self, id: u64, lives: impl Fn(u64) -> bool) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        owner == id
            || (owner == 0 || !lives(owner))
                && self
                    .owner
                    .compare_exchange(owner, id, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
    }
    /// Where a new recording goes: an empty place, otherwise that of the least useful, and of these the oldest.
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
    /// Counts a change; returns its number.
    pub fn note_change(&self) -> u32 {
        self.changes.fetch_add(1, Ordering::AcqRel) + 1
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use std::vec;

    fn none() -> &'static Recordings {
        &crate::tenant().0.recordings
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
        // As after a writer's death.
        r.seq.fetch_add(1, Ordering::Relaxed);
        assert!(r.copy().is_none() && r.words().is_empty());
        fill(r, 5, 0, 0);
        assert_eq!(r.copy(), Some(vec![5, 7]));
        // An invalid length.
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
