//! `lab run`, `lab codec` and `lab compare`: turn flags into a request to canvas-bench, which does the work.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use canvas_bench::codec;
use canvas_bench::compare;
use canvas_bench::engine::plan::{self, Request};
use canvas_bench::engine::{self, Ended};
use canvas_bench::host::reverse::Host;
use canvas_bench::host::slow_disk::server;
use canvas_bench::host::undo;
use canvas_control::text::reason;
use canvas_types::exit;

use crate::args::{CodecArgs, RunArgs};
use crate::error::{Failure, say};

/// Flags that only the bench may set.
const SET_BY_BENCH: [&str; 3] = ["--local", "--pool", "--stats"];

/// Splits one string of `--canvas-flags`, and lets `canvas run` check the flags.
fn canvas_flags(canvas: &Path, text: &str) -> Result<Vec<String>, Failure> {
    let flags: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    let own = |f: &&String| SET_BY_BENCH.iter().any(|o| f.split('=').next() == Some(*o));
    if let Some(flag) = flags.iter().find(own) {
        return Err(Failure::usage(format!(
            "--canvas-flags '{text}': {flag} is set by the bench itself; leave it out"
        )));
    }
    if plan::flags_missing(canvas, &flags).is_some() {
        return Err(Failure::usage(format!(
            "--canvas-flags '{text}': canvas run does not accept these flags; see `canvas run --help`"
        )));
    }
    Ok(flags)
}

/// `path` as an absolute path.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(no_path)
}

fn no_path(e: io::Error) -> Failure {
    Failure::usage(format!("a path is invalid: {}", reason(&e)))
}

/// Path of this executable.
fn itself() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| {
        Failure::usage(format!(
            "the path of the lab command is unknown: {}",
            reason(&e)
        ))
    })
}

/// Command line of a hidden subcommand of `lab`.
fn helper(lab: &Path, command: &str) -> Vec<OsString> {
    vec![lab.as_os_str().to_owned(), command.into()]
}

/// Compares compressors.
pub fn codec(args: &CodecArgs) -> Result<i32, Failure> {
    let lab = itself()?;
    let request = codec::Request {
        names: args.names.clone(),
        pages: args.pages as usize,
        rounds: args.rounds,
        scale: args.scale,
        seed: args.seed,
        out: absolute(&args.out)?,
        cache: args.place.cache().map_err(no_path)?,
        guardian: helper(&lab, "guardian"),
        canvas: args.place.canvas(&lab).map_err(no_path)?,
        lab,
    };
    codec::run(&request, print, |text| say(text)).map_err(|e| Failure::usage(e.to_string()))?;
    say(format_args!("results are in {}", args.out.display()));
    Ok(exit::OK)
}

fn request(args: &RunArgs) -> Result<Request, Failure> {
    let lab = itself()?;
    let canvas = args.place.canvas(&lab).map_err(no_path)?;
    let flags = args.canvas_flags.iter().map(|f| canvas_flags(&canvas, f));
    let flags = flags.collect::<Result<Vec<_>, _>>()?;
    let mut percents = args.ratios.clone();
    percents.sort_unstable_by(|a, b| b.cmp(a));
    percents.dedup();
    let variants: Vec<_> = args.variants.iter().map(|v| (*v).into()).collect();
    Ok(Request {
        names: args.names.clone(),
        with: args.with.clone(),
        variants: Some(variants).filter(|v| !v.is_empty()),
        canvas_flags: flags,
        far_links: args.far_link.clone(),
        percents: Some(percents).filter(|p| !p.is_empty()),
        co_run: args.co_run,
        repeats: args.repeats,
        scale: args.scale,
        time_max: args.time_max,
        seed: args.seed,
        out: absolute(&args.out)?,
        cache: args.place.cache().map_err(no_path)?,
        guardian: helper(&lab, "guardian"),
        disk_server: helper(&lab, "disk"),
        lab,
        canvas,
        argv: std::env::args_os()
            .map(|a| a.to_string_lossy().into_owned())
            .collect(),
        canvas_version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// Writes to standard output; ignores a closed pipe, whose reader has seen enough.
fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

/// Prints the comparison of two results files; returns the exit code.
pub fn compare(old: &Path, new: &Path) -> Result<i32, Failure> {
    print(&compare::run(old, new).map_err(Failure::usage)?);
    Ok(exit::OK)
}

/// Runs experiments, and returns the exit code.
pub fn run(args: &RunArgs) -> Result<i32, Failure> {
    let request = request(args)?;
    if args.list {
        print(&engine::list(&request));
        return Ok(exit::OK);
    }
    let ended = engine::run(&request, print).map_err(|e| Failure::usage(e.to_string()))?;
    match ended {
        Ended::Done | Ended::SomeFailed(_) => {
            say(format_args!("results are in {}", args.out.display()))
        }
        Ended::Stopped(_) => say("stopped; all changes to the host are undone"),
    }
    Ok(match ended {
        Ended::Done => exit::OK,
        Ended::SomeFailed(_) => exit::NEGATIVE,
        Ended::Stopped(signal) => exit::SIGNAL_BASE + signal,
    })
}

/// `lab disk`: serves a disk until it is killed.
pub fn disk(place: &Path, bytes: u64) -> i32 {
    server::run(place, bytes)
}

/// `lab guardian`: waits for the end of the run that started it, then undoes that run's changes.
pub fn guard(journal: &Path) -> i32 {
    undo::guard(&Host, journal)
}
