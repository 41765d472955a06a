//! Advice for a running program.

use std::time::{Duration, Instant};

use canvas_control::wire::{Limits, Stat};
use canvas_place::advise::{Point, Search};
use canvas_place::curve::Curve;
use nix::sys::signalfd::SignalFd;

use super::{FLOOR_BYTES, Told};
use crate::args::AdviseArgs;
use crate::control::client::{Found, Runs};
use crate::error::{Failure, say};
use crate::signals::stopped;

/// While sizes are fast enough, the next one is this part of the last, in percent: small steps, so
/// that a run in use is not slowed much.
const STEP_PERCENT: u64 = 80;
/// Most time for a run to reach another size.
const SETTLES: Duration = Duration::from_secs(60);
/// The run has reached a size when it uses at most this much of it, in percent.
const THERE_PERCENT: u64 = 102;
const LOOK: Duration = Duration::from_millis(100);

/// Watches a run, and with `--check` tries other sizes.
pub fn advise(wanted: &str, args: &AdviseArgs, signals: &SignalFd) -> Result<Told, Failure> {
    let watch = Watch {
        runs: &Runs::look(),
        found: &Runs::look().one(wanted)?,
        signals,
        interval: args.interval,
    };
    let status = watch.stat()?.status;
    if status.disk.is_some() {
        return Err(Failure::usage(
            "it is a disk, whose guest decides what is local; write the name of a run",
        ));
    }
    let limits = status.limits;
    let before = local_of(&limits).ok_or_else(|| {
        Failure::usage(
            "the run has no --local: all its memory is local, and there is nothing to predict from",
        )
    })?;
    if let (Some(slo), true) = (&limits.slo, args.check) {
        return Err(Failure::usage(format!(
            "its --slo {slo} changes how much is local, so sizes cannot be checked; \
             `canvas set {wanted} slo=off` first"
        )));
    }
    let (stat, first) = watch.measure()?;
    let name = watch.found.name.to_string();
    let footprint_bytes = first.curve.footprint_bytes;
    let mut search = Search::new(footprint_bytes, FLOOR_BYTES, STEP_PERCENT);
    let is_squeezed = stat.status.used.far_pages_bytes > 0;
    if !is_squeezed && !args.check {
        say("none of its pages has been evicted yet; write --check to try smaller sizes");
    }
    search.add(first);
    if args.check {
        let back = PutBack {
            watch: &watch,
            local: before,
        };
        super::search(&mut search, &args.speed, args.tries - 1, |search, bytes| {
            watch.set(&bytes.to_string())?;
            watch.settle(bytes)?;
            let (_, mut point) = watch.measure()?;
            point.curve.local_bytes = bytes;
            say(format_args!(
                "advise: with {}: {:.0}% of full speed",
                canvas_control::text::Bytes(bytes),
                point.speed * 100.0
            ));
            search.add(point);
            Ok(())
        })?;
        drop(back);
    }
    Ok(super::told(name, None, &search, &args.speed))
}

/// `--local` as it was written.
fn local_of(limits: &Limits) -> Option<String> {
    match limits.local_percent {
        Some(percent) => Some(format!("{percent}%")),
        None => limits.local_bytes.map(|bytes| bytes.to_string()),
    }
}

/// The run that is watched.
struct Watch<'a> {
    runs: &'a Runs,
    found: &'a Found,
    signals: &'a SignalFd,
    interval: Duration,
}

impl Watch<'_> {
    fn stat(&self) -> Result<Stat, Failure> {
        self.runs.stat(self.found)
    }

    fn set(&self, local: &str) -> Result<(), Failure> {
        let change = ("local".to_owned(), local.to_owned());
        self.runs.set(self.found, vec![change])
    }

    fn wait(&self, time: Duration) -> Result<(), Failure> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if let Some(failure) = stopped(self.signals, left) {
                return Err(failure);
            }
            if left.is_zero() {
                return Ok(());
            }
        }
    }

    /// Waits until the run has reached a size, and half an interval more, since pages take time to
    /// come back.
    fn settle(&self, local_bytes: u64) -> Result<(), Failure> {
        let until = Instant::now() + SETTLES;
        while self.stat()?.status.used.local_bytes > local_bytes / 100 * THERE_PERCENT
            && Instant::now() < until
        {
            self.wait(LOOK)?;
        }
        self.wait(self.interval / 2)
    }

    /// Measures one interval.
    fn measure(&self) -> Result<(Stat, Point), Failure> {
        let before = self.stat()?;
        self.wait(self.interval)?;
        let after = self.stat()?;
        let sums = after.features.since(&before.features);
        let features = sums.features(after.at_ns.saturating_sub(before.at_ns).max(1));
        let Some(slowdown) = features.slowdown else {
            return Err(Failure::usage(
                "the run was idle while it was measured: advise while it works, or watch it for longer",
            ));
        };
        let (used, limits) = (&after.status.used, &after.status.limits);
        let limit = limits.local_effective_bytes.unwrap_or(u64::MAX);
        let point = Point {
            speed: 1.0 / (1.0 + slowdown),
            curve: Curve {
                // The run may not have grown up to its limit.
                local_bytes: limit.min(used.local_bytes),
                footprint_bytes: used.footprint_bytes,
                refaults: sums.refaults,
                stream_ratio: features.sequential_ratio.unwrap_or(0.0),
            },
        };
        Ok((after, point))
    }
}

/// Restores `--local` when dropped.
struct PutBack<'a> {
    watch: &'a Watch<'a>,
    local: String,
}

impl Drop for PutBack<'_> {
    fn drop(&mut self) {
        if let Err(failure) = self.watch.set(&self.local) {
            say(format_args!(
                "--local could not be restored to {}: {}",
                self.local, failure.sentence
            ));
        }
    }
}
