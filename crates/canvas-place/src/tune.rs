//! What `canvas tune` changes of a run, and why: where its far memory is, and how much of it fits into the pool.
//!
//! The sensor is the number and the duration of faults on pages in far memory. Nothing is changed while they cost the
//! program less than [`COST_MIN`]. Otherwise, in this order:
//!
//! * **the pool grows**, while this host has memory to spare: compressed pages come back in microseconds;
//! * **far memory moves** between the local disk alone and a donor beside the disk, when reads have been slower than
//!   the other place is known, or at first assumed, to be. The other place's real latency is measured once far memory
//!   is there; if it is not better, far memory moves back.
//!
//! Both places keep a copy on the disk, so durability never changes. A change must appear better for [`PERIODS`]
//! periods before it is made, by a factor of at least [`BETTER`], and after a move there is none for [`HOLD_S`],
//! doubled each time that a move did not pay off.

use crate::replicas::Policy;

/// Part of the program's time that far reads must take before anything is changed.
pub const COST_MIN: f64 = 0.01;
/// Factor by which another place must be faster,
pub const BETTER: f64 = 1.2;
/// in this many consecutive periods.
pub const PERIODS: u32 = 3;
/// Least time between two moves, in seconds,
pub const HOLD_S: f64 = 60.0;
/// and its maximum.
const HOLD_S_MAX: f64 = 3600.0;
/// Fewer reads in a period prove nothing.
const READS_MIN: u64 = 20;
/// Assumed latencies before any measurement: of a read from an SSD, and from a donor in the same network.
const DISK_NS: f64 = 150_000.0;
const DONOR_NS: f64 = 80_000.0;
/// The pool gets 1/`SPARE_PART` of the host's spare memory at a time, and grows by a quarter at most.
const SPARE_PART: u64 = 4;
/// A smaller change is not worthwhile.
const GROWS_MIN: u64 = 1 << 20;

/// Measurements of a run in one period.
#[derive(Clone, Copy, Debug)]
pub struct RunSample {
    /// Length of the period, in seconds.
    pub elapsed_s: f64,
    /// Far reads for which faults waited.
    pub reads: u64,
    /// The sum of their times, in ns.
    pub read_ns: u64,
    /// The copies policy; `None` without far memory.
    pub copies: Option<Policy>,
    /// Far memory is not being moved or repaired.
    pub is_whole: bool,
    /// Whether the run can use donors, as far as is known.
    pub has_donors: bool,
    /// Limit on the pool, in bytes.
    pub pool_bytes_max: u64,
    /// Size of the pool in bytes.
    pub pool_bytes: u64,
    /// Percent of its limit past which the pool demotes pages.
    pub spill_percent: u64,
    /// Whether the limit may be changed.
    pub pool_is_own: bool,
    /// Memory of this host that nobody needs, without the reserve, in bytes.
    pub spare_bytes: u64,
}

/// A change of a run's settings.
#[derive(Clone, PartialEq, Debug)]
pub enum Change {
    /// Sets the pool's limit, in bytes.
    Pool(u64),
    /// Sets the copies policy.
    Copies(Policy),
}

/// The decision for this period.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    /// The change; `None` for none.
    pub change: Option<Change>,
    /// The reason.
    pub why: String,
}

/// Where far memory is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Medium {
    Disk,
    Donor,
}

impl Medium {
    fn of(policy: Policy) -> Option<Medium> {
        match (policy.donors, policy.disk, policy.late) {
            (0, true, _) => Some(Medium::Disk),
            (1, true, false) => Some(Medium::Donor),
            // A change would change durability.
            _ => None,
        }
    }

    fn other(self) -> Medium {
        match self {
            Medium::Disk => Medium::Donor,
            Medium::Donor => Medium::Disk,
        }
    }

    fn policy(self) -> Policy {
        Policy {
            donors: usize::from(self == Medium::Donor),
            disk: true,
            late: false,
            code: None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Medium::Disk => "the disk",
            Medium::Donor => "a donor",
        }
    }
}

/// Keeps measurements of one run and decides.
#[derive(Clone, Debug, Default)]
pub struct Tuner {
    /// Last measured latency of a read, in ns: on the disk, and at a donor.
    disk_ns: Option<f64>,
    donor_ns: Option<f64>,
    /// Consecutive periods in which the other place appeared better.
    better: u32,
    /// Periods in which a place was measured since far memory moved there.
    measured: u32,
    /// Seconds until the next move is allowed, and how long the pause after the next move is.
    held_s: f64,
    hold_s: f64,
    /// After a move on trial: the latency before it.
    before_ns: Option<f64>,
}

impl Tuner {
    /// The decision after one more period.
    pub fn step(&mut self, sample: &RunSample) -> Verdict {
        self.held_s = (self.held_s - sample.elapsed_s).max(0.0);
        let keep = |why: String| Verdict { change: None, why };
        let Some(copies) = sample.copies else {
            return self
                .pool(sample)
                .unwrap_or_else(|| keep("there is no far memory (--far)".to_owned()));
        };
        if sample.reads < READS_MIN {
            self.better = 0;
            return keep("there were too few reads beyond the pool to judge by".to_owned());
        }
        let cost = sample.read_ns as f64 / 1e9 / sample.elapsed_s.max(1e-3);
        let read_ns = sample.read_ns as f64 / sample.reads as f64;
        let medium = Medium::of(copies);
        if let Some(medium) = medium.filter(|_| sample.is_whole) {
            self.note(medium, read_ns);
        }
        if cost < COST_MIN {
            self.better = 0;
            return keep(format!(
                "reads beyond the pool take {:.1}% of the time",
                cost * 100.0
            ));
        }
        if let Some(verdict) = self.pool(sample) {
            return verdict;
        }
        let Some(medium) = medium else {
            return keep(format!(
                "copies={copies} has no other place that is as durable"
            ));
        };
        if !sample.is_whole {
            return keep("far memory is being moved or repaired".to_owned());
        }
        self.path(medium, read_ns, sample.has_donors)
    }

    /// Adds a measured latency at a place.
    fn note(&mut self, medium: Medium, read_ns: f64) {
        let known = match medium {
            Medium::Disk => &mut self.disk_ns,
            Medium::Donor => &mut self.donor_ns,
        };
        *known = Some(known.map_or(read_ns, |before| (before + read_ns) / 2.0));
        self.measured = self.measured.saturating_add(1);
    }

    fn known_ns(&self, medium: Medium) -> Option<f64> {
        match medium {
            Medium::Disk => self.disk_ns,
            Medium::Donor => self.donor_ns,
        }
    }

    /// Grows the pool while it is nearly full and this host has memory to spare.
    fn pool(&self, sample: &RunSample) -> Option<Verdict> {
        let spills_at = sample.pool_bytes_max / 100 * sample.spill_percent.min(100);
        let is_full = sample.pool_bytes >= spills_at / 5 * 4;
        let more = (sample.spare_bytes / SPARE_PART).min(sample.pool_bytes_max / 4);
        if sample.reads < READS_MIN || !sample.pool_is_own || !is_full || more < GROWS_MIN {
            return None;
        }
        let to = sample.pool_bytes_max.saturating_add(more) / GROWS_MIN * GROWS_MIN;
        Some(Verdict {
            change: Some(Change::Pool(to)),
            why: format!(
                "pages are read beyond the pool, and this host has {} MiB to spare",
                sample.spare_bytes >> 20
            ),
        })
    }

    /// Stay, move, or move back.
    fn path(&mut self, medium: Medium, read_ns: f64, has_donors: bool) -> Verdict {
        let keep = |why: String| Verdict { change: None, why };
        let us = |ns: f64| (ns / 1e3).round();
        let other = medium.other();
        if other == Medium::Donor && !has_donors {
            return keep(
                "there is no donor for a copy; name one at the start (--to HOST:PORT)".to_owned(),
            );
        }
        if let Some(before_ns) = self.before_ns {
            if self.measured < PERIODS {
                return keep(format!("{} is being measured", medium.name()));
            }
            self.before_ns = None;
            if read_ns * BETTER > before_ns {
                let why = format!(
                    "{} takes {} us a read, and {} took {}: the move did not pay off",
                    medium.name(),
                    us(read_ns),
                    other.name(),
                    us(before_ns)
                );
                self.hold_s = (self.hold_s * 2.0).clamp(HOLD_S, HOLD_S_MAX);
                return self.moves(other, None, why);
            }
            self.hold_s = HOLD_S;
        }
        let believed = match other {
            Medium::Disk => DISK_NS,
            Medium::Donor => DONOR_NS,
        };
        let known = self.known_ns(other);
        let other_ns = known.unwrap_or(believed);
        if read_ns < other_ns * BETTER {
            self.better = 0;
            return keep(format!(
                "{} takes {} us a read; {} is no faster ({}{} us)",
                medium.name(),
                us(read_ns),
                other.name(),
                if known.is_some() { "" } else { "about " },
                us(other_ns)
            ));
        }
        self.better += 1;
        if self.better < PERIODS || self.held_s > 0.0 {
            return keep(format!(
                "{} seems faster than {}; waiting for more measurements",
                other.name(),
                medium.name()
            ));
        }
        let why = format!(
            "{} takes {} us a read, and {} {}{}",
            medium.name(),
            us(read_ns),
            other.name(),
            if known.is_some() { "" } else { "about " },
            us(other_ns)
        );
        self.moves(other, Some(read_ns), why)
    }

    fn moves(&mut self, to: Medium, before_ns: Option<f64>, why: String) -> Verdict {
        self.hold_s = self.hold_s.max(HOLD_S);
        self.held_s = self.hold_s;
        self.better = 0;
        self.measured = 0;
        self.before_ns = before_ns;
        Verdict {
            change: Some(Change::Copies(to.policy())),
            why,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn sample_of(reads: u64, read_us: u64, copies: &str) -> RunSample {
        RunSample {
            elapsed_s: 6.0,
            reads,
            read_ns: reads * read_us * 1000,
            copies: Policy::named(copies),
            is_whole: true,
            has_donors: true,
            pool_bytes_max: 64 * MIB,
            pool_bytes: 50 * MIB,
            spill_percent: 80,
            pool_is_own: true,
            spare_bytes: 0,
        }
    }

    /// Periods with a disk and a donor of these latencies; how often each place was read, and how often far memory
    /// moved.
    fn run(
        tuner: &mut Tuner,
        periods: u32,
        mut us: impl FnMut(u32) -> (u64, u64),
    ) -> (u32, u32, u32) {
        let (mut copies, mut at_disk, mut at_donor, mut moves) = ("disk", 0, 0, 0);
        for period in 0..periods {
            let (disk_us, donor_us) = us(period);
            let read_us = if copies == "disk" { disk_us } else { donor_us };
            match copies {
                "disk" => at_disk += 1,
                _ => at_donor += 1,
            }
            let verdict = tuner.step(&sample_of(5000, read_us, copies));
            if let Some(Change::Copies(to)) = verdict.change {
                moves += 1;
                copies = if to.donors == 0 { "disk" } else { "1+disk" };
                assert!(to.disk);
            }
        }
        (at_disk, at_donor, moves)
    }

    #[test]
    fn it_moves_to_the_faster_place_and_stays() {
        let (at_disk, _, moves) = run(&mut Tuner::default(), 200, |_| (2000, 100));
        assert_eq!((at_disk, moves), (PERIODS, 1));
        // A fast disk is where it stays.
        assert_eq!(run(&mut Tuner::default(), 200, |_| (70, 100)).2, 0);
    }

    #[test]
    fn what_does_not_pay_is_taken_back_and_tried_less_and_less() {
        // The donor is believed to be fast, and is not.
        let (at_disk, at_donor, moves) = run(&mut Tuner::default(), 600, |_| (200, 900));
        assert_eq!(moves, 2, "it is known then");
        assert!(at_donor <= PERIODS + 1 && at_disk > 590, "{at_donor}");
    }

    #[test]
    fn a_place_that_becomes_slow_is_left() {
        let mut tuner = Tuner::default();
        let slow_later = |period| if period < 50 { (400, 100) } else { (400, 4000) };
        let (_, at_donor, moves) = run(&mut tuner, 100, slow_later);
        assert_eq!(moves, 2);
        assert!(at_donor < 65, "{at_donor}");
    }

    #[test]
    fn nothing_is_changed_where_nothing_is_to_be_won() {
        let change = |sample: RunSample| Tuner::default().step(&sample).change;
        assert_eq!(change(sample_of(0, 0, "disk")), None);
        // 0.5 % of the time.
        assert_eq!(
            change(RunSample {
                spare_bytes: 1 << 30,
                ..sample_of(100, 300, "disk")
            }),
            None
        );
        for copies in ["2", "1", "1+disk-async"] {
            let mut tuner = Tuner::default();
            let none = (0..50).all(|_| tuner.step(&sample_of(5000, 5000, copies)).change.is_none());
            assert!(none, "{copies}");
        }
        let mut alone = Tuner::default();
        let sample = RunSample {
            has_donors: false,
            ..sample_of(5000, 9000, "disk")
        };
        assert!((0..50).all(|_| alone.step(&sample).change.is_none()));
    }

    #[test]
    fn the_pool_grows_while_this_host_has_memory() {
        let roomy = RunSample {
            spare_bytes: 1 << 30,
            ..sample_of(5000, 300, "disk")
        };
        let change = |sample: RunSample| Tuner::default().step(&sample).change;
        assert_eq!(change(roomy), Some(Change::Pool(80 * MIB)));
        assert_eq!(
            change(RunSample {
                spare_bytes: 20 * MIB,
                ..roomy
            }),
            Some(Change::Pool(69 * MIB))
        );
        assert_eq!(
            change(RunSample {
                pool_is_own: false,
                ..roomy
            }),
            None
        );
        assert_eq!(
            change(RunSample {
                pool_bytes: 10 * MIB,
                ..roomy
            }),
            None
        );
    }

    proptest! {
        /// Whatever places are like, there are never many moves, and never one to what keeps less.
        #[test]
        fn it_does_not_swing(times in prop::collection::vec((10..20_000u64, 10..20_000u64), 10..200)) {
            let n = times.len() as u32;
            let (_, _, moves) = run(&mut Tuner::default(), n, |period| times[period as usize]);
            // One a minute at most, and the way back of each.
            prop_assert!(moves <= n / 10 * 2 + 2, "{} moves in {} periods", moves, n);
        }
    }
}
