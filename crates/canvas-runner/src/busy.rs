//! Time that reclaim threads take from a program: none while a processor is idle, all of their time
//! while none is.
//!
//! Twice a second this module reads the run's processors in /proc/stat. Of the reclaim threads'
//! processor time since the last sample, the part counts in which no processor was idle, under the
//! assumption that processors are busy independently of each other.

use std::fs;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use canvas_shm::segment::{Counter, Segment};
use canvas_types::procfs::{Ticks, processors};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// Interval of samples.
const PERIOD: Duration = Duration::from_millis(500);

/// The processors of a run.
pub struct Processors {
    may: CpuSet,
    before: Vec<Ticks>,
    reclaim_ns: u64,
    next: Instant,
}

impl Processors {
    /// The processors that the caller may use.
    pub fn new() -> Processors {
        Processors {
            may: sched_getaffinity(Pid::from_raw(0)).unwrap_or_default(),
            before: Vec::new(),
            reclaim_ns: 0,
            next: Instant::now(),
        }
    }

    /// Takes a sample when it is due.
    pub fn look(&mut self, segment: &Segment) {
        // Only the run that made the tenant does this.
        let is_ours = segment.config.runner_pid.load(Relaxed) == std::process::id();
        if Instant::now() < self.next || !is_ours {
            return;
        }
        self.next = Instant::now() + PERIOD;
        let stat = fs::read("/proc/stat").unwrap_or_default();
        let now = processors(&stat, |cpu| self.may.is_set(cpu).unwrap_or(false)).collect();
        let before = std::mem::replace(&mut self.before, now);
        let reclaim_ns = segment.total(Counter::ReclaimCpuNs);
        let more_ns =
            reclaim_ns.saturating_sub(std::mem::replace(&mut self.reclaim_ns, reclaim_ns));
        let wanted_ns = more_ns as f64 * none_idle(&before, &self.before);
        segment.count(0, Counter::ReclaimWantedNs, wanted_ns as u64);
    }
}

/// Part of the time between two samples in which no processor was idle; 0 if unknown.
fn none_idle(before: &[Ticks], after: &[Ticks]) -> f64 {
    if before.len() != after.len() || after.is_empty() {
        return 0.0;
    }
    let busy = |(before, after): (&Ticks, &Ticks)| {
        let all = after.all.saturating_sub(before.all);
        let idle = after.idle.saturating_sub(before.idle);
        match all {
            0 => 0.0,
            all => 1.0 - (idle as f64 / all as f64).min(1.0),
        }
    };
    before.iter().zip(after).map(busy).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_processors() {
        let stat = fs::read("/proc/stat").unwrap();
        assert!(processors(&stat, |_| true).next().is_some());
    }

    #[test]
    fn reclaim_counts_where_no_processor_is_idle() {
        let zero = Ticks { idle: 0, all: 0 };
        let at = |idle| Ticks { idle, all: 100 };
        assert_eq!(none_idle(&[zero, zero], &[at(0), at(0)]), 1.0);
        assert_eq!(none_idle(&[zero, zero], &[at(0), at(100)]), 0.0);
        assert_eq!(none_idle(&[zero, zero], &[at(50), at(50)]), 0.25);
        assert_eq!(none_idle(&[zero], &[at(0), at(0)]), 0.0, "one was added");
        assert_eq!(none_idle(&[], &[]), 0.0);
        assert_eq!(none_idle(&[at(9)], &[zero]), 0.0, "a clock that goes back");
    }
}
