//! Does reading ahead pay? Whoever asks, tries: the rate of faults with it is compared with the rate without it.
//!
//! A page that links or references bring ahead is read into the pool and still takes its fault, so a program that does
//! the same work has the same faults, and their rate is its speed. It is not enough that the pages are used: where the
//! way to far memory is busy anyway, each of them, read alone, takes more of it than the group it would have come with.
//!
//! Windows of [`WINDOW_NS`] with and without take turns, and each such pair is a vote. When one side is [`SURE`] votes
//! ahead it has all windows but one in [`CYCLE`]. A pair in which nothing was read ahead is no vote. Learning costs
//! too, a microsecond or two a fault: once it is decided against, nothing is learnt either but in the windows that
//! try again.

use canvas_types::sync::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// How long faults are counted.
pub const WINDOW_NS: u64 = 160_000_000;
/// Before that, so that what the last window has begun is over.
pub const SETTLE_NS: u64 = 40_000_000;
/// A window that is no longer one: the program has paused.
const STALE_NS: u64 = 2_000_000_000;
/// So many faults make a window.
const FAULTS: u32 = 64;
/// Votes that decide.
pub const SURE: i32 = 3;
/// Windows from one pair to the next, once it is decided.
pub const CYCLE: u32 = 32;
/// So many per mille faster it has to be.
const BETTER_PER_MILLE: u64 = 40;

/// The votes of one process. Threads may come at the same time: a count that is lost is a fault less in a window.
#[derive(Debug)]
pub struct Trial {
    /// When the window began; 0 before the first.
    since_ns: AtomicU64,
    faults: AtomicU32,
    /// Pages that were read ahead in it.
    issued: AtomicU32,
    /// Reads ahead go on in it.
    is_on: AtomicBool,
    /// Which window of the cycle it is: the first is with, the second without.
    step: AtomicU32,
    /// Faults a second in the first one; 0 where it says nothing.
    rate_with: AtomicU64,
    /// Above 0 for reading ahead.
    votes: AtomicI32,
}

macro_rules! constructor {
    ($($const:tt)?) => {
        impl Trial {
            /// Nothing is known: it begins with reading ahead.
            #[allow(clippy::new_without_default)]
            pub $($const)? fn new() -> Trial {
                Trial {
                    since_ns: AtomicU64::new(0),
                    faults: AtomicU32::new(0),
                    issued: AtomicU32::new(0),
                    is_on: AtomicBool::new(true),
                    step: AtomicU32::new(0),
                    rate_with: AtomicU64::new(0),
                    votes: AtomicI32::new(0),
                }
            }
        }
    };
}

#[cfg(not(feature = "shuttle"))]
constructor!(const);
#[cfg(feature = "shuttle")]
constructor!();

/// What a fault is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Something may be read ahead for it.
    pub may: bool,
    /// What can be learnt from it is to be learnt.
    pub learns: bool,
    /// It has ended a pair, which was for reading ahead or against it.
    pub vote: Option<bool>,
}

impl Trial {
    /// A fault that something could be read ahead for.
    pub fn on_fault(&self, now_ns: u64) -> Answer {
        let mut vote = None;
        let since_ns = self.since_ns.load(Ordering::Relaxed);
        let elapsed_ns = now_ns.saturating_sub(since_ns);
        if since_ns == 0 || elapsed_ns > STALE_NS {
            if self.begins(since_ns, now_ns) {
                self.rate_with.store(0, Ordering::Relaxed);
            }
        } else if elapsed_ns >= SETTLE_NS {
            let faults = self.faults.fetch_add(1, Ordering::Relaxed) + 1;
            if elapsed_ns >= SETTLE_NS + WINDOW_NS && faults >= FAULTS {
                let issued = self.issued.load(Ordering::Relaxed);
                if self.begins(since_ns, now_ns) {
                    let rate = u64::from(faults) * 1_000_000_000 / (elapsed_ns - SETTLE_NS);
                    vote = self.ended(rate, issued > 0);
                }
            }
        }
        let may = self.is_on.load(Ordering::Relaxed);
        let learns = may || self.verdict() != Some(false);
        Answer { may, learns, vote }
    }

    /// So many pages were read ahead for it.
    pub fn issued(&self, pages: u32) {
        self.issued.fetch_add(pages, Ordering::Relaxed);
    }

    /// Is it decided, and how?
    pub fn verdict(&self) -> Option<bool> {
        let votes = self.votes.load(Ordering::Relaxed);
        (votes.abs() >= SURE).then_some(votes > 0)
    }

    /// A new window begins, by one of those who found the old one over.
    fn begins(&self, since_ns: u64, now_ns: u64) -> bool {
        let done = self
            .since_ns
            .compare_exchange(since_ns, now_ns, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if done {
            self.faults.store(0, Ordering::Relaxed);
            self.issued.store(0, Ordering::Relaxed);
        }
        done
    }

    fn ended(&self, rate: u64, has_issued: bool) -> Option<bool> {
        let step = self.step.load(Ordering::Relaxed);
        let vote = match step {
            0 => {
                let rate = if has_issued { rate } else { 0 };
                self.rate_with.store(rate, Ordering::Relaxed);
                None
            }
            1 => self.vote(self.rate_with.load(Ordering::Relaxed), rate),
            _ => None,
        };
        let verdict = self.verdict();
        let cycle = if verdict.is_some() { CYCLE } else { 2 };
        let next = (step + 1) % cycle;
        self.step.store(next, Ordering::Relaxed);
        let is_on = match next {
            0 => true,
            1 => false,
            _ => verdict.unwrap_or(true),
        };
        self.is_on.store(is_on, Ordering::Relaxed);
        vote
    }

    fn vote(&self, with: u64, without: u64) -> Option<bool> {
        if with == 0 {
            return None;
        }
        let is_better = with * 1000 > without * (1000 + BETTER_PER_MILLE);
        let votes = self.votes.load(Ordering::Relaxed) + if is_better { 1 } else { -1 };
        self.votes
            .store(votes.clamp(-SURE, SURE), Ordering::Relaxed);
        Some(is_better)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// A program that faults so often in a millisecond, with reading ahead and without; of its faults those that
    /// reading ahead was allowed for, in per cent.
    struct Program {
        trial: Trial,
        now_ns: u64,
        seed: u64,
    }

    impl Program {
        fn new() -> Program {
            Program {
                trial: Trial::new(),
                now_ns: 7 * MS,
                seed: 1,
            }
        }

        fn runs(&mut self, for_ms: u64, with: u64, without: u64, noise_percent: u64) -> u64 {
            let (end, mut on, mut all) = (self.now_ns + for_ms * MS, 0, 0);
            while self.now_ns < end {
                let is_on = self.trial.on_fault(self.now_ns).may;
                if is_on {
                    self.trial.issued(1);
                }
                all += 1;
                on += u64::from(is_on);
                self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                let noise = (self.seed >> 33) % (2 * noise_percent + 1);
                let pause = MS / if is_on { with } else { without };
                self.now_ns += pause * (100 + noise - noise_percent) / 100;
            }
            on * 100 / all
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// It goes on where it is faster by a tenth, and stops where it is slower, or no faster.
        #[test]
        fn the_faster_side_gets_nearly_all(rate in 20u64..60, more in 15u64..200, noise in 0u64..40) {
            let faster = rate + rate * more / 100 + 1;
            let mut p = Program::new();
            p.runs(3000, faster, rate, noise);
            prop_assert_eq!(p.trial.verdict(), Some(true));
            prop_assert!(p.runs(20_000, faster, rate, noise) >= 90);
            // The other way round now: it turns.
            p.runs(40_000, rate, faster, noise);
            prop_assert_eq!(p.trial.verdict(), Some(false));
            prop_assert!(p.runs(20_000, rate, faster, noise) <= 10);
            prop_assert!(!p.trial.on_fault(p.now_ns).learns || p.trial.on_fault(p.now_ns).may);
            let mut p = Program::new();
            p.runs(3000, rate, rate, 0);
            prop_assert_eq!(p.trial.verdict(), Some(false));
        }
    }

    #[test]
    fn who_reads_nothing_ahead_or_pauses_votes_for_nothing() {
        let trial = Trial::new();
        let mut now = MS;
        for _ in 0..100_000 {
            trial.on_fault(now);
            now += MS / 10;
        }
        assert_eq!(
            (trial.verdict(), trial.votes.load(Ordering::Relaxed)),
            (None, 0)
        );
        // A window, and then nothing for as long as makes it stale.
        for i in 0..10_000u64 {
            trial.on_fault(now);
            trial.issued(1);
            now += if i % 1000 == 0 { 2 * STALE_NS } else { MS / 10 };
        }
        assert_eq!(
            (trial.verdict(), trial.votes.load(Ordering::Relaxed)),
            (None, 0)
        );
    }

    #[test]
    fn few_faults_make_a_window_longer() {
        let trial = Trial::new();
        let mut now = MS;
        for _ in 0..60 {
            trial.on_fault(now);
            now += 5 * MS;
        }
        assert_eq!(trial.step.load(Ordering::Relaxed), 0, "not yet");
        for _ in 0..20 {
            trial.on_fault(now);
            now += 5 * MS;
        }
        assert_eq!(trial.step.load(Ordering::Relaxed), 1);
    }
}
