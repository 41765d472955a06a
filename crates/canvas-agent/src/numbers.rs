//! Seal numbers: nonces under the tenant's key, so none may be used twice.
//!
//! They are reserved in the journal, [`STEP`] at a time, before the first of them is used. An agent that takes over,
//! however its predecessor ended, continues after everything reserved; nothing that the tenant can write affects the
//! numbers.

use nix::errno::Errno;

use crate::journal::Journal;

/// Numbers reserved at a time. An agent that ends leaves at most this many unused, of 2^64.
pub const STEP: u64 = 1 << 20;

/// Allocates seal numbers.
pub struct SealNumbers {
    journal: Journal,
    /// The next number, and one past the last reserved one.
    next: u64,
    end: u64,
}

impl SealNumbers {
    /// For the tenant with this journal. The first call of [`SealNumbers::take`] makes the first reservation, so an
    /// agent that never writes reserves nothing, and one that takes over reserves only after its predecessor has
    /// stopped.
    pub fn new(journal: Journal) -> SealNumbers {
        SealNumbers {
            journal,
            next: 0,
            end: 0,
        }
    }

    /// A number that was never returned before and never will be again. Fails when no more can be reserved: then
    /// nothing may be sealed.
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

    /// The journal behind a read-only descriptor: writes fail as if there were no room.
    fn full(journal: &Journal) -> Journal {
        let path = format!("/proc/self/fd/{}", journal.file().as_raw_fd());
        Journal::open(File::open(path).unwrap().into()).unwrap()
    }

    proptest! {
        /// Agents come and go, and several may share one journal; each number is given out once.
        #[test]
        fn no_number_is_given_out_twice(
            steps in prop::collection::vec((0..4usize, 0..10u8, 0..50usize), 1..40),
        ) {
            let journal = Journal::create().unwrap();
            let mut agents: Vec<SealNumbers> = (0..4).map(|_| again(&journal)).collect();
            let mut seen = std::collections::HashSet::from([0]);
            for (at, deed, times) in steps {
                match deed {
                    // The agent was killed and another one takes over.
                    0..3 => agents[at] = again(&journal),
                    // The agent is at the end of its reservation.
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
        // With room again, it continues after the reserved numbers.
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
