//! Seal numbers: nonces of a tenant's key, so none may ever be used twice.
//!
//! They are reserved in the journal, [`STEP`] at a time, before the first of them is used. An agent that
//! takes over, however the one before it ended, goes on behind all that was reserved; nothing that the
//! tenant can write has a part in it.

use nix::errno::Errno;

use crate::journal::Journal;

/// Numbers that are reserved at one time. An agent that ends leaves at most so many unused, of 2^64.
pub const STEP: u64 = 1 << 20;

/// Gives out numbers of seals.
pub struct SealNumbers {
    journal: Journal,
    /// The next one, and one past the last that is reserved.
    next: u64,
    end: u64,
}

impl SealNumbers {
    /// Of the tenant with this journal. Nothing is reserved before the first number is taken: an agent
    /// that never writes takes none, and one that was handed over has stopped before.
    pub fn new(journal: Journal) -> SealNumbers {
        SealNumbers {
            journal,
            next: 0,
            end: 0,
        }
    }

    /// A number that was never given out and never will be again. An error when no more can be reserved:
    /// nothing may be sealed then.
    pub fn take(&mut self) -> Result<u64, Errno> {
        if self.next == self.end {
            let reserved = self.journal.reserve_seals(STEP)?;
            (self.next, self.end) = (reserved.start, reserved.end);
        }
        let number = self.next;
        self.next += 1;
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    fn again(journal: &Journal) -> SealNumbers {
        SealNumbers::new(journal.try_clone().unwrap())
    }

    /// The journal behind a descriptor that cannot write: as if there were no room.
    fn full(journal: &Journal) -> Journal {
        let path = format!("/proc/self/fd/{}", journal.file().as_raw_fd());
        Journal::open(File::open(path).unwrap().into()).unwrap()
    }

    proptest! {
        /// Agents come and go, also several of one journal; each number is given out once.
        #[test]
        fn no_number_is_given_out_twice(
            steps in prop::collection::vec((0..4usize, 0..10u8, 0..50usize), 1..40),
        ) {
            let journal = Journal::create().unwrap();
            let mut agents: Vec<SealNumbers> = (0..4).map(|_| again(&journal)).collect();
            let mut seen = std::collections::HashSet::from([0]);
            for (at, deed, times) in steps {
                match deed {
                    // Killed, and another one takes over.
                    0..3 => agents[at] = again(&journal),
                    // At the end of what it had reserved.
                    3..5 => agents[at].next = agents[at].end.saturating_sub(times as u64 / 2),
                    5 => {
                        let mut agent = SealNumbers::new(full(&journal));
                        prop_assert!(agent.take().is_err());
                        prop_assert!(agent.take().is_err());
                    }
                    _ => {}
                }
                for _ in 0..times {
                    prop_assert!(seen.insert(agents[at].take().unwrap()));
                }
            }
        }
    }

    #[test]
    fn a_full_journal_gives_what_was_reserved_and_no_more() {
        let journal = Journal::create().unwrap();
        let mut numbers = again(&journal);
        let first = numbers.take().unwrap();
        numbers.journal = full(&journal);
        for n in 1..STEP {
            assert_eq!(numbers.take(), Ok(first + n));
        }
        assert!(numbers.take().is_err());
        // With room again it goes on behind them.
        numbers.journal = journal.try_clone().unwrap();
        assert_eq!(numbers.take(), Ok(first + STEP));
    }

    #[test]
    fn the_last_number_is_not_passed() {
        let journal = Journal::create().unwrap();
        let mut from = 1;
        while let Ok(range) = journal.reserve_seals(u64::MAX / 3) {
            assert_eq!(range.start, from);
            from = range.end;
        }
        assert_eq!(again(&journal).take().unwrap(), from);
        assert!(journal.reserve_seals(u64::MAX / 3).is_err());
    }
}
