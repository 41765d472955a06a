//! TMO's loop (Senpai; Weiner et al., ASPLOS '22, section 3.3) over the kernel's reclaim.
//!
//! Each period it reclaims from a group its memory x [`STEP`] x max(0, 1 - lost / target), where *lost* is
//! the share of the time that the group stalled on memory (pressure stall information). TMO has steps of
//! 0.0005 and periods of 6 s, for services that run for weeks; here they are as fast as those of `canvas run
//! --slo`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::unistd::{Pid, gettid};

use super::cgroup::Reclaimer;

const PERIOD: Duration = Duration::from_millis(100);
const STEP: f64 = 0.01;
/// Half-life of past stalls, as for `--slo`.
const HALF_LIFE_S: f64 = 1.5;
/// Share of its peak memory that a program keeps, as with `--slo`; below, the minimum in bytes.
const KEPT: f64 = 0.1;
const KEPT_BYTES: f64 = (8 << 20) as f64;
/// Smaller steps are skipped.
const AT_ONCE_BYTES: f64 = (32 * 4096) as f64;

/// The running loop, which ends when this is dropped.
pub struct Senpai {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// The thread that reclaims.
    pub worker: Option<Pid>,
}

impl Senpai {
    /// Starts to reclaim from a group, with a share of the time as the target.
    pub fn start(group: Reclaimer, target: f64) -> Senpai {
        let over = Arc::new(AtomicBool::new(false));
        let (send, receive) = channel();
        let ends = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let _ = send.send(gettid());
            work(&group, target, &ends);
        });
        Senpai {
            over,
            thread: Some(thread),
            worker: receive.recv().ok(),
        }
    }
}

impl Drop for Senpai {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Time lost, and time elapsed, in the last seconds.
#[derive(Default)]
struct Lost {
    stalled_s: f64,
    rest_s: f64,
}

impl Lost {
    /// Share of the time that was lost, after adding `stalled_s` in `elapsed_s`.
    fn add(&mut self, stalled_s: f64, elapsed_s: f64) -> f64 {
        let left = 0.5f64.powf(elapsed_s / HALF_LIFE_S);
        self.stalled_s = self.stalled_s * left + stalled_s;
        self.rest_s = self.rest_s * left + (elapsed_s - stalled_s).max(0.0);
        self.stalled_s / self.rest_s.max(1e-4)
    }
}

/// Bytes to reclaim from a program.
fn step(bytes: f64, most: f64, lost: f64, target: f64) -> f64 {
    if bytes < most * KEPT || bytes < KEPT_BYTES {
        return 0.0;
    }
    bytes * STEP * (1.0 - lost / target).max(0.0)
}

fn work(group: &Reclaimer, target: f64, over: &AtomicBool) {
    let mut lost = Lost::default();
    let (mut most, mut owed) = (0.0f64, 0.0);
    let (mut at, mut stalled) = (Instant::now(), group.stalled());
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(PERIOD);
        let (now, then) = (group.stalled(), at);
        at = Instant::now();
        let more = now.saturating_sub(stalled).as_secs_f64();
        stalled = now;
        let lost = lost.add(more, (at - then).as_secs_f64());
        let bytes = group.usage_bytes() as f64;
        most = most.max(bytes);
        owed += step(bytes, most, lost, target);
        if owed >= AT_ONCE_BYTES {
            group.reclaim(owed as u64);
            owed = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_taken_the_nearer_the_target_is_and_nothing_of_what_is_kept() {
        let mib = |n: u32| f64::from(n << 20);
        assert_eq!(step(mib(100), mib(100), 0.0, 0.05), mib(1));
        assert_eq!(step(mib(100), mib(100), 0.025, 0.05), mib(1) / 2.0);
        assert_eq!(step(mib(100), mib(100), 0.07, 0.05), 0.0);
        assert_eq!(step(mib(90), mib(1000), 0.0, 0.05), 0.0);
        assert_eq!(step(mib(7), mib(7), 0.0, 0.05), 0.0);
    }

    #[test]
    fn what_was_lost_is_forgotten() {
        let mut lost = Lost::default();
        assert!((lost.add(0.05, 0.1) - 1.0).abs() < 1e-9);
        let after = (0..150).fold(1.0, |_, _| lost.add(0.0, 0.1));
        assert!(after < 1e-3, "{after}");
    }
}
