//! Decides by trial whether reading ahead pays: compares the rate of faults with it to the rate without it.
//!
//! A page that links or references read ahead goes into the pool and still takes its fault. So a program that does the
//! same work has the same faults, and their rate is its speed. That the pages are used is not enough: if the path to
//! far memory is saturated, each page read alone takes more of it than its share of the group that it would have come
//! with.
//!
//! Windows of [`WINDOW_NS`] with and without reading ahead alternate, and each pair is a vote. When one side is
//! [`SURE`] votes ahead it gets all windows but one in [`CYCLE`]. A pair in which nothing was read ahead is no vote.
//! Learning also costs a microsecond or two per fault: after a decision against it, learning stops except in the
//! windows that try again.

use canvas_types::sync::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// How long faults are counted.
pub const WINDOW_NS: u64 = 160_000_000;
/// Time before the count starts, so that what the previous window started has ended.
pub const SETTLE_NS: u64 = 40_000_000;
/// A longer window is discarded: the program has paused.
const STALE_NS: u64 = 2_000_000_000;
/// Faults that a window needs.
const FAULTS: u32 = 64;
/// Lead in votes that decides.
pub const SURE: i32 = 3;
/// Windows from one pair to the next after a decision.
pub const CYCLE: u32 = 32;
/// How much faster, per mille, reading ahead must be.
const BETTER_PER_MILLE: u64 = 40;

/// The votes of one process. Threads may race: a lost count is one fault less in a window.
#[derive(Debug)]
pub struct Trial {
    /// When the window began; 0 before the first.
    since_ns: AtomicU64,
    faults: AtomicU32,
    /// Pages read ahead in the window.
    issued: AtomicU32,
    /// Whether reading ahead is allowed in the window.
    is_on: AtomicBool,
    /// Number of the window in the cycle: the first is with reading ahead, the second without.
    step: AtomicU32,
    /// Faults per second in the first window; 0 if it means nothing.
    rate_with: AtomicU64,
    /// Above 0: for reading ahead.
    votes: AtomicI32,
}

impl Trial {
    /// Creates a trial without votes, which begins with reading ahead.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Trial {
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

/// The answer to a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Something may be read ahead for it.
    pub may: bool,
    /// Learn from it.
    pub learns: bool,
    /// It has ended a pair of windows, with a vote for or against reading ahead.
    pub vote: Option<bool>,
}

impl Trial {
    /// Handles a fault for which something could be read ahead.
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

    /// Records that `pages` pages were read ahead for a fault.
    pub fn issued(&self, pages: u32) {
        self.issued.fetch_add(pages, Ordering::Relaxed);
    }

    /// The decision, if there is one.
    pub fn verdict(&self) -> Option<bool> {
        let votes = self.votes.load(Ordering::Relaxed);
        (votes.abs() >= SURE).then_some(votes > 0)
    }

    /// Begins a new window; one of the threads that found the old one over succeeds.
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
    use canvas_testing::random::scaled;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// A program with given rates of faults per millisecond with and without reading ahead; a run returns the
    /// percentage of its faults for which reading ahead was allowed.
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
        #![proptest_config(ProptestConfig::with_cases(scaled(4)))]

        /// Reading ahead continues if it is faster by a tenth, and stops if it is slower, or not faster.
        #[test]
        #[cfg_attr(miri, ignore = "millions of faults")]
        fn the_faster_side_gets_nearly_all(rate in 20u64..60, more in 15u64..200, noise in 0u64..40) {
            let faster = rate + rate * more / 100 + 1;
            let mut p = Program::new();
            p.runs(3000, faster, rate, noise);
            prop_assert_eq!(p.trial.verdict(), Some(true));
            prop_assert!(p.runs(20_000, faster, rate, noise) >= 90);
            // The other way round now: the decision changes.
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
        // A window, and then a pause that makes it stale.
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
