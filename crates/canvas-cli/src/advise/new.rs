//! Advice for a program that is started once per size.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use canvas_place::advise::{Point, Search};
use canvas_place::curve::Curve;
use canvas_types::exit;
use canvas_types::units::Size;
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;
use serde::Deserialize;

use super::{FLOOR_BYTES, Told};
use crate::args::AdviseArgs;
use crate::error::{Failure, say};
use crate::signals::stopped;

/// The first size, as a share of CMD's footprint.
const FIRST: &str = "25%";
/// While sizes are fast enough, the next one is this part of the last, in percent.
const STEP_PERCENT: u64 = 50;
/// Interval between checks of a child.
const LOOK: Duration = Duration::from_millis(5);

/// The fields needed from a report (docs/STATS.md).
#[derive(Deserialize)]
struct Report {
    mode: Option<String>,
    time: Time,
    limits: Limits,
    memory: Memory,
    features: Features,
    refaults: Vec<u64>,
}

#[derive(Deserialize)]
struct Time {
    wall_s: f64,
}

#[derive(Deserialize)]
struct Limits {
    local_effective_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct Memory {
    footprint_bytes: Level,
}

#[derive(Deserialize)]
struct Level {
    peak: u64,
}

#[derive(Deserialize)]
struct Features {
    sequential_ratio: Option<f64>,
}

/// Runs CMD with several sizes.
pub fn advise(args: &AdviseArgs, signals: &SignalFd) -> Result<Told, Failure> {
    let name = Path::new(&args.cmd[0]).file_name().unwrap_or(&args.cmd[0]);
    let name = name.to_string_lossy().into_owned();
    let alone_s = alone(args, signals)?;
    say(format_args!("advise: {name} alone: {alone_s:.2} s"));
    let first = limited(args, FIRST, alone_s, signals)?;
    let footprint_bytes = first.curve.footprint_bytes;
    let mut search = Search::new(footprint_bytes, FLOOR_BYTES, STEP_PERCENT);
    search.add(first);
    super::search(&mut search, &args.speed, args.tries - 1, |search, bytes| {
        let size = Size::from_bytes(bytes).to_string();
        let mut point = limited(args, &size, alone_s, signals)?;
        // The size that was set, whatever the usage at the end.
        point.curve.local_bytes = bytes;
        search.add(point);
        Ok(())
    })?;
    Ok(super::told(name, Some(alone_s), &search, &args.speed))
}

/// The time of CMD without canvas, in seconds.
fn alone(args: &AdviseArgs, signals: &SignalFd) -> Result<f64, Failure> {
    let mut command = Command::new(&args.cmd[0]);
    command.args(&args.cmd[1..]);
    let begun = Instant::now();
    let status = ends(spawn(command, &args.cmd[0])?, signals)?;
    let seconds = begun.elapsed().as_secs_f64();
    right(status, "with all memory local")?;
    Ok(seconds)
}

/// Runs CMD with a limit on local memory.
fn limited(
    args: &AdviseArgs,
    local: &str,
    alone_s: f64,
    signals: &SignalFd,
) -> Result<Point, Failure> {
    let place = tempfile::tempdir().map_err(|e| {
        Failure::usage(format!(
            "no directory for reports can be made in {}: {}; set TMPDIR",
            std::env::temp_dir().display(),
            crate::reason(&e)
        ))
    })?;
    let report = place.path().join("report.json");
    let canvas = std::env::current_exe().map_err(|e| {
        Failure::usage(format!(
            "the path of the canvas executable cannot be found: {}",
            crate::reason(&e)
        ))
    })?;
    let mut command = Command::new(&canvas);
    command.args(["run", "--local", local, "--stats"]);
    command.arg(&report).arg("--").args(&args.cmd);
    let status = ends(spawn(command, canvas.as_os_str())?, signals)?;
    right(status, &format!("with --local {local}"))?;
    let text = fs::read(&report).unwrap_or_default();
    let report: Report = serde_json::from_slice(&text)
        .map_err(|e| Failure::usage(format!("the report of canvas run cannot be read: {e}")))?;
    if report.mode.is_none() {
        return Err(Failure::usage(
            "CMD cannot be managed (see what canvas run says above), so there is no advice",
        ));
    }
    let speed = (alone_s / report.time.wall_s.max(1e-3)).min(1.0);
    let local_bytes = report.limits.local_effective_bytes.unwrap_or(0);
    say(format_args!(
        "advise: with {}: {:.2} s, {:.0}% of full speed",
        canvas_control::text::Bytes(local_bytes),
        report.time.wall_s,
        speed * 100.0
    ));
    Ok(Point {
        speed,
        curve: Curve {
            local_bytes,
            footprint_bytes: report.memory.footprint_bytes.peak,
            refaults: report.refaults,
            stream_ratio: report.features.sequential_ratio.unwrap_or(0.0),
        },
    })
}

/// Starts a child; only errors are shown.
fn spawn(mut command: Command, what: &std::ffi::OsStr) -> Result<Child, Failure> {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
    quiet.spawn().map_err(|e| {
        Failure::usage(format!(
            "{} cannot be run: {}",
            what.to_string_lossy(),
            crate::reason(&e)
        ))
    })
}

/// Waits for the child; a signal ends it.
fn ends(mut child: Child, signals: &SignalFd) -> Result<ExitStatus, Failure> {
    loop {
        let status = child.try_wait();
        let status = status.map_err(|e| {
            Failure::usage(format!("CMD cannot be waited for: {}", crate::reason(&e)))
        })?;
        if let Some(status) = status {
            return Ok(status);
        }
        if let Some(failure) = stopped(signals, LOOK) {
            // If the signal came from a terminal, the child got it, too.
            let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
            let _ = child.wait();
            return Err(failure);
        }
    }
}

fn right(status: ExitStatus, how: &str) -> Result<(), Failure> {
    if status.success() {
        return Ok(());
    }
    Err(Failure {
        code: exit::NEGATIVE,
        sentence: format!(
            "CMD failed {how} ({status}); advice needs a program that ends with exit code 0"
        ),
    })
}
