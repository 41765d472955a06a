//! Decides when pages come back before they are touched, and how many at a time.
//!
//! *Memory is free* if local memory is below its limit by at least the threshold plus a batch. Once it has been free at
//! every look for some time, pages come in until less than a batch is left above the threshold: an *episode*. Pages are
//! charged before they come in, and only while the threshold stays free; reclaim starts below the threshold
//! ([`floor`]). So nothing is ever evicted for them.
//!
//! An episode is judged when the next one is about to begin, so an idle process pays nothing. If the process has since
//! lost many pages for what the episode brought in, and few of the samples were used by then, the episode was useless:
//! a pause follows, twice as long each time. Pages that the hand has passed over do not start a second episode.

use canvas_types::controller::Backoff;

use super::Reach;

/// How long memory must be free while the program runs.
pub const SETTLE_NS: u64 = 50_000_000;
/// How long it must be free while the program sleeps: others may need the memory sooner.
pub const SETTLE_ASLEEP_NS: u64 = 1_000_000_000;
/// A fork's child brings nothing in for this long: most end soon, or exec another program.
pub const CHILD_NS: u64 = 5_000_000_000;
/// The first pause after pages came in for nothing.
pub const PAUSE_NS: u64 = 2_000_000_000;
/// The longest such pause.
pub const PAUSE_NS_MAX: u64 = 1 << 40;
/// One page in this many is left unmapped in the swap cache, so that its use is seen.
pub const SAMPLE_EVERY: u64 = 32;
/// An episode with fewer samples is not judged.
const SAMPLES_MIN: u64 = 4;
/// One used sample in this many is enough.
const USED_OF: u64 = 4;
/// One page evicted since, for this many that came in, is too many.
const LEFT_OF: u64 = 4;

/// Inputs of the decision, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inputs {
    /// The current time.
    pub now_ns: u64,
    /// The configured limit in bytes; 0 if it is not a number of bytes.
    pub limit_bytes: u64,
    /// Pages below the limit.
    pub free: i64,
    /// How many of them must stay free ([`floor`]); `None` if nothing may be brought in.
    pub threshold: Option<i64>,
    /// Pages of a batch.
    pub batch: i64,
    /// Far pages of this process.
    pub far: i64,
    /// Pages that this process has ever lost to reclaim.
    pub evicted: u64,
    /// Samples ever found used.
    pub used: u64,
    /// Whether the program runs.
    pub runs: bool,
}

/// Pages that must stay free: the setting, or twice what reclaim keeps free.
pub fn floor(setting: i64, reclaim_stops_below: i64) -> i64 {
    setting.max(2 * reclaim_stops_below)
}

/// What an episode brought in.
#[derive(Clone, Copy, Debug, Default)]
struct Episode {
    pages: u64,
    samples: u64,
    evicted_before: u64,
    used_before: u64,
}

/// What to do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// Begin an episode: restart the hand, and bring in at most this many pages.
    Begin(Reach, i64),
    /// Bring in at most this many pages.
    Continue(i64),
}

/// The state of the decision. One thread owns it.
#[derive(Debug)]
pub struct Schedule {
    limit_bytes: u64,
    /// Since when memory is free.
    free_since_ns: Option<u64>,
    /// An episode is in progress.
    under_way: bool,
    /// The last episode, or the one in progress.
    episode: Episode,
    /// Far pages that the hand passed over (an upper bound).
    passed_over: i64,
    pauses: Backoff<PAUSE_NS, PAUSE_NS_MAX>,
}

impl Schedule {
    /// `limit_bytes`: the limit when the process started, before it had lost any page, because the first look may come
    /// after the limit was raised. Nothing comes in before `not_before_ns`.
    pub const fn new(limit_bytes: u64, not_before_ns: u64) -> Schedule {
        Schedule {
            limit_bytes,
            free_since_ns: None,
            under_way: false,
            episode: Episode {
                pages: 0,
                samples: 0,
                evicted_before: 0,
                used_before: 0,
            },
            passed_over: 0,
            pauses: Backoff::new(not_before_ns),
        }
    }

    /// Decides what to do, given what is seen now.
    pub fn step(&mut self, seen: &Inputs) -> Step {
        let before = core::mem::replace(&mut self.limit_bytes, seen.limit_bytes);
        let raised = before != 0 && seen.limit_bytes > before;
        self.passed_over = self.passed_over.min(seen.far);
        let Some(threshold) = seen.threshold.filter(|_| seen.far > 0) else {
            self.under_way = false;
            self.free_since_ns = None;
            return Step::Nothing;
        };
        let room = seen.free.saturating_sub(threshold);
        let batch = seen.batch.max(1);
        if room < batch {
            self.free_since_ns = None;
            // Pages that a raised limit has not brought in by now come in when memory frees.
            self.under_way = false;
            return Step::Nothing;
        }
        if raised {
            return self.begin(seen, Reach::All, batch);
        }
        if self.under_way {
            return Step::Continue(batch);
        }
        let since = *self.free_since_ns.get_or_insert(seen.now_ns);
        let settle_ns = match seen.runs {
            true => SETTLE_NS,
            false => SETTLE_ASLEEP_NS,
        };
        let more = seen.far - self.passed_over >= batch.min(seen.far);
        if !more
            || seen.now_ns < since.saturating_add(settle_ns)
            || self.pauses.is_paused(seen.now_ns)
            || !self.was_worth_it(seen)
        {
            return Step::Nothing;
        }
        self.begin(seen, Reach::Recent, batch)
    }

    fn begin(&mut self, seen: &Inputs, reach: Reach, batch: i64) -> Step {
        self.under_way = true;
        self.passed_over = 0;
        self.episode = Episode {
            evicted_before: seen.evicted,
            used_before: seen.used,
            ..Episode::default()
        };
        Step::Begin(reach, batch)
    }

    /// Judges the last episode if it has not been judged; returns false if it was not worth it, and starts a pause.
    fn was_worth_it(&mut self, seen: &Inputs) -> bool {
        let e = core::mem::take(&mut self.episode);
        let left = seen.evicted.wrapping_sub(e.evicted_before);
        let used = seen.used.wrapping_sub(e.used_before);
        if e.samples < SAMPLES_MIN || left < e.pages / LEFT_OF {
            return true;
        }
        if used >= e.samples / USED_OF {
            self.pauses.succeeded();
            return true;
        }
        self.pauses.failed(seen.now_ns);
        false
    }

    /// Records that `pages` pages came in, of which `samples` were left unmapped.
    pub fn record(&mut self, pages: u64, samples: u64) {
        self.episode.pages += pages;
        self.episode.samples += samples;
    }

    /// Ends the episode: the hand is through, and left `far` pages where they were.
    pub fn end(&mut self, far: i64) {
        self.under_way = false;
        self.passed_over = far;
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn seen(now_ms: u64, free: i64, far: i64) -> Inputs {
        Inputs {
            now_ns: now_ms * MS,
            limit_bytes: 64 << 20,
            free,
            threshold: Some(100),
            batch: 10,
            far,
            runs: true,
            ..Inputs::default()
        }
    }

    fn new() -> Schedule {
        Schedule::new(64 << 20, 0)
    }

    #[test]
    fn memory_has_to_be_free_for_some_time() {
        let mut w = new();
        assert_eq!(w.step(&seen(0, 110, 50)), Step::Nothing);
        assert_eq!(w.step(&seen(49, 110, 50)), Step::Nothing);
        // A dip restarts the time.
        assert_eq!(w.step(&seen(60, 109, 50)), Step::Nothing);
        assert_eq!(w.step(&seen(160, 200, 50)), Step::Nothing);
        assert_eq!(w.step(&seen(209, 200, 50)), Step::Nothing);
        assert_eq!(w.step(&seen(210, 200, 50)), Step::Begin(Reach::Recent, 10));
        assert_eq!(w.step(&seen(211, 110, 40)), Step::Continue(10));
        assert_eq!(w.step(&seen(212, 109, 40)), Step::Nothing, "the threshold");
        assert_eq!(
            w.step(&seen(213, 110, 40)),
            Step::Nothing,
            "the wait starts again"
        );
    }

    #[test]
    fn a_program_that_sleeps_waits_for_longer() {
        let asleep = |ms| Inputs {
            runs: false,
            ..seen(ms, 200, 50)
        };
        let mut w = new();
        assert_eq!(w.step(&asleep(0)), Step::Nothing);
        assert_eq!(w.step(&asleep(999)), Step::Nothing);
        assert_eq!(w.step(&asleep(1000)), Step::Begin(Reach::Recent, 10));
    }

    #[test]
    fn a_raised_limit_is_used_at_once_and_by_all_pages() {
        let mut w = new();
        let with = |limit_bytes| Inputs {
            limit_bytes,
            ..seen(0, 200, 50)
        };
        // Unchanged, lowered, a share of the footprint, a size again.
        for limit_bytes in [64 << 20, 16 << 20, 0, 24 << 20] {
            assert_eq!(w.step(&with(limit_bytes)), Step::Nothing, "{limit_bytes}");
        }
        let raised = Step::Begin(Reach::All, 10);
        assert_eq!(w.step(&with((24 << 20) + 1)), raised);
        // Raised before the first look.
        assert_eq!(new().step(&with(65 << 20)), raised);
    }

    #[test]
    fn a_childs_first_seconds_and_what_is_off() {
        let mut w = Schedule::new(64 << 20, 500 * MS);
        assert_eq!(w.step(&seen(0, 200, 50)), Step::Nothing);
        assert_eq!(w.step(&seen(499, 200, 50)), Step::Nothing);
        assert_eq!(w.step(&seen(500, 200, 50)), Step::Begin(Reach::Recent, 10));
        let off = Inputs {
            threshold: None,
            ..seen(501, 200, 50)
        };
        assert_eq!(w.step(&off), Step::Nothing);
        assert_eq!(
            w.step(&seen(502, 200, 50)),
            Step::Nothing,
            "not under way any more"
        );
    }

    #[test]
    fn what_the_hand_left_where_it_is_does_not_begin_it_again() {
        let mut w = new();
        let _ = w.step(&seen(0, 200, 50));
        assert_eq!(w.step(&seen(100, 200, 50)), Step::Begin(Reach::Recent, 10));
        w.end(30);
        for ms in 101..2000 {
            assert_eq!(w.step(&seen(ms, 200, 30)), Step::Nothing);
        }
        assert_eq!(
            w.step(&seen(2000, 200, 25)),
            Step::Nothing,
            "some came on demand"
        );
        assert_eq!(w.step(&seen(2001, 200, 34)), Step::Nothing);
        assert_eq!(w.step(&seen(2002, 200, 35)), Step::Begin(Reach::Recent, 10));
    }

    #[test]
    fn fewer_pages_than_a_batch_come_too() {
        let mut w = new();
        let _ = w.step(&seen(0, 200, 3));
        assert_eq!(w.step(&seen(100, 200, 3)), Step::Begin(Reach::Recent, 10));
    }

    /// An episode of 640 pages, after which 320 were evicted again, with 20 samples of which `used` were used.
    fn after_episode(w: &mut Schedule, at_ms: u64, used: u64) -> Step {
        let _ = w.step(&seen(at_ms, 1000, 900));
        assert!(matches!(
            w.step(&seen(at_ms + 100, 1000, 900)),
            Step::Begin(..)
        ));
        w.record(640, 20);
        w.end(0);
        let later = |ms| Inputs {
            evicted: 320,
            used,
            ..seen(ms, 1000, 900)
        };
        w.step(&later(at_ms + 200))
    }

    #[test]
    fn what_was_not_used_makes_pauses_that_grow() {
        assert!(matches!(after_episode(&mut new(), 0, 5), Step::Begin(..)));
        let mut w = new();
        assert_eq!(after_episode(&mut w, 0, 4), Step::Nothing);
        let later = |ms| Inputs {
            evicted: 320,
            used: 4,
            ..seen(ms, 1000, 900)
        };
        assert_eq!(w.step(&later(2199)), Step::Nothing);
        assert!(
            matches!(w.step(&later(2200)), Step::Begin(..)),
            "two seconds"
        );
        w.record(640, 20);
        w.end(0);
        let more = |ms| Inputs {
            evicted: 640,
            ..later(ms)
        };
        assert_eq!(w.step(&more(2400)), Step::Nothing);
        assert_eq!(w.step(&more(2400 + 3999)), Step::Nothing);
        assert!(
            matches!(w.step(&more(2400 + 4000)), Step::Begin(..)),
            "four"
        );
    }

    #[test]
    fn nobody_is_in_the_way_while_nothing_leaves() {
        let mut w = new();
        let _ = w.step(&seen(0, 1000, 900));
        let _ = w.step(&seen(100, 1000, 900));
        w.record(640, 20);
        w.end(0);
        let few = Inputs {
            evicted: 159,
            ..seen(200, 1000, 900)
        };
        assert!(matches!(w.step(&few), Step::Begin(..)));
    }

    /// A tenant of one process, page by page, with the real reclaim policy: it starts above `START` below the limit and
    /// continues down to `STOP`.
    struct Model {
        limit: i64,
        local: i64,
        far: i64,
        evicted: u64,
    }

    const START: i64 = 16;
    const STOP: i64 = 24;

    impl Model {
        /// One round of reclaim; returns the pages evicted.
        fn reclaim(&mut self) -> i64 {
            if self.local <= self.limit - START {
                return 0;
            }
            let n = self.local - (self.limit - STOP);
            self.local -= n;
            self.far += n;
            self.evicted += n as u64;
            n
        }
    }

    #[derive(Clone, Debug)]
    enum Event {
        /// The program, or a sibling, touches new pages.
        Grow(i64),
        /// The program, or a sibling, frees local pages.
        Free(i64),
        /// The program touches far pages.
        Touch(i64),
        /// The program unmaps far pages.
        Discard(i64),
        Limit(i64),
        Sleep(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (1..400i64).prop_map(Event::Grow),
            (1..600i64).prop_map(Event::Free),
            (1..100i64).prop_map(Event::Touch),
            (1..100i64).prop_map(Event::Discard),
            (400..2000i64).prop_map(Event::Limit),
            (1..150u64).prop_map(Event::Sleep),
            (1..150u64).prop_map(Event::Sleep),
        ]
    }

    proptest! {
        /// Whatever the program does: pages that come in never make reclaim start; they come only after memory was free
        /// for long enough, or after a raise; and they come until the threshold is reached or none is left.
        #[test]
        fn nothing_leaves_for_what_comes(
            events in proptest::collection::vec(event(), 1..300),
            setting in 0..200i64,
            batch in 1..64i64,
        ) {
            let mut m = Model { limit: 1000, local: 0, far: 0, evicted: 0 };
            let mut w = Schedule::new(1000 << 12, 0);
            let threshold = floor(setting, STOP);
            prop_assert!(threshold > STOP);
            let mut now_ns = 0;
            // All looks: the time, and whether memory was free.
            let mut looks: Vec<(u64, bool)> = Vec::new();
            let mut limit_seen = 1000;
            let mut under_way = false;
            for e in events {
                match e {
                    Event::Grow(n) => m.local += n,
                    Event::Free(n) => m.local -= n.min(m.local),
                    Event::Touch(n) => { let n = n.min(m.far); m.far -= n; m.local += n; }
                    Event::Discard(n) => m.far -= n.min(m.far),
                    Event::Limit(n) => m.limit = n,
                    Event::Sleep(ms) => now_ns += ms * MS,
                }
                while m.reclaim() > 0 {}
                let raised = m.limit > limit_seen;
                limit_seen = m.limit;
                loop {
                    let free = m.limit - m.local;
                    looks.push((now_ns, m.far > 0 && free >= threshold + batch));
                    let seen = Inputs {
                        now_ns,
                        limit_bytes: (m.limit as u64) << 12,
                        free,
                        threshold: Some(threshold),
                        batch,
                        far: m.far,
                        evicted: m.evicted,
                        used: 0,
                        runs: true,
                    };
                    let n = match w.step(&seen) {
                        Step::Nothing => { under_way = false; break }
                        Step::Begin(Reach::All, n) => { prop_assert!(raised); n }
                        Step::Begin(Reach::Recent, n) => {
                            // Memory was free at all looks since one that is long enough ago.
                            let since = looks.iter().rev().take_while(|l| l.1).last().unwrap().0;
                            prop_assert!(!under_way && now_ns - since >= SETTLE_NS);
                            n
                        }
                        Step::Continue(n) => { prop_assert!(under_way); n }
                    };
                    under_way = true;
                    let n = n.min(m.far);
                    prop_assert!(n > 0);
                    m.far -= n;
                    m.local += n;
                    w.record(n as u64, 0);
                    prop_assert!(m.limit - m.local >= threshold, "the threshold stays free");
                    prop_assert_eq!(m.reclaim(), 0, "reclaim has nothing to do");
                }
            }
            // In the end, with nothing else happening, all free memory is used.
            for _ in 0..2 {
                now_ns += SETTLE_NS;
                loop {
                    let seen = Inputs {
                        now_ns, limit_bytes: (m.limit as u64) << 12, free: m.limit - m.local,
                        threshold: Some(threshold), batch, far: m.far, evicted: m.evicted, used: 0, runs: true,
                    };
                    let (Step::Begin(_, n) | Step::Continue(n)) = w.step(&seen) else { break };
                    let n = n.min(m.far);
                    m.far -= n;
                    m.local += n;
                }
            }
            prop_assert!(m.far == 0 || m.limit - m.local < threshold + batch);
        }
    }
}
