//! `canvas bench`: flags into a request; the work is canvas-bench's.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use canvas_bench::codec;
use canvas_bench::compare;
use canvas_bench::engine::{self, Ended, plan::Request};
use canvas_bench::host::reverse::Host;
use canvas_bench::host::slow_disk::server;
use canvas_bench::host::undo;
use canvas_bench::variant::{FarBelow, Variant};
use canvas_types::exit;
use clap::Parser;

use crate::args::{BenchAction, BenchArgs, Cli, CodecArgs, Command, VariantArg};
use crate::error::{self, Failure};

/// Flags that the bench sets itself.
const SET_BY_BENCH: [&str; 3] = ["--local", "--pool", "--stats"];

/// One string of `--canvas-flags`, judged by the parser of `canvas run`.
fn canvas_flags(text: &str) -> Result<Vec<String>, Failure> {
    let flags: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    let own = |f: &&String| SET_BY_BENCH.iter().any(|o| f.split('=').next() == Some(*o));
    if let Some(flag) = flags.iter().find(own) {
        return Err(Failure::usage(format!(
            "--canvas-flags '{text}': {flag} is set by the bench itself; leave it out"
        )));
    }
    let words = ["canvas", "run"]
        .into_iter()
        .chain(flags.iter().map(String::as_str));
    let parsed = Cli::try_parse_from(words.chain(["--", "true"]));
    match parsed {
        // A word that is no flag would become the program.
        Ok(Cli {
            command: Command::Run(run),
        }) if run.command == [OsString::from("true")] => Ok(flags),
        _ => Err(Failure::usage(format!(
            "--canvas-flags '{text}' are no flags of canvas run; see `canvas run --help`"
        ))),
    }
}

fn variant(arg: VariantArg) -> Variant {
    match arg {
        VariantArg::Local => Variant::Local,
        VariantArg::Canvas => Variant::Canvas(Vec::new()),
        VariantArg::CanvasFar => Variant::CanvasFar(FarBelow::copies("2")),
        VariantArg::Zram => Variant::Zram,
        VariantArg::Zram64k => Variant::Zram64k,
        VariantArg::Zswap => Variant::Zswap,
        VariantArg::Disk => Variant::Disk,
        VariantArg::SlowDisk => Variant::SlowDisk,
    }
}

/// `~/.cache/canvas/bench`, or where XDG_CACHE_HOME points.
fn default_cache() -> PathBuf {
    let set = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    base.unwrap_or_else(std::env::temp_dir).join("canvas/bench")
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| {
        Failure::usage(format!(
            "'{}' is no path: {}",
            path.display(),
            crate::reason(&e)
        ))
    })
}

fn itself() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|e| Failure::usage(format!("canvas cannot find itself: {}", crate::reason(&e))))
}

fn cache(asked: Option<&PathBuf>) -> Result<PathBuf, Failure> {
    asked.map_or_else(|| Ok(default_cache()), |dir| absolute(dir))
}

fn guardian(canvas: &Path) -> Vec<OsString> {
    vec![canvas.as_os_str().to_owned(), "bench-guardian".into()]
}

/// Compares compressors.
fn codec(args: &CodecArgs) -> Result<i32, Failure> {
    let canvas = itself()?;
    let request = codec::Request {
        names: args.names.clone(),
        pages: args.pages as usize,
        rounds: args.rounds,
        scale: args.scale,
        seed: args.seed,
        out: absolute(&args.out)?,
        cache: cache(args.cache.as_ref())?,
        guardian: guardian(&canvas),
        canvas,
    };
    codec::run(&request, print, |text| error::say(text))
        .map_err(|e| Failure::usage(e.to_string()))?;
    error::say(format_args!("results are in {}", args.out.display()));
    Ok(exit::OK)
}

fn request(args: &BenchArgs) -> Result<Request, Failure> {
    if args.names.iter().any(|n| n == "compare") {
        return Err(Failure::usage(
            "compare stands alone, without flags or names before it: canvas bench compare OLD NEW",
        ));
    }
    let canvas = itself()?;
    let flags = args.canvas_flags.iter().map(|f| canvas_flags(f));
    let flags = flags.collect::<Result<Vec<_>, _>>()?;
    let asked = |v: &Vec<VariantArg>| v.iter().map(|a| variant(*a)).collect::<Vec<_>>();
    let mut percents = args.ratios.clone();
    percents.sort_unstable_by(|a, b| b.cmp(a));
    percents.dedup();
    Ok(Request {
        names: args.names.clone(),
        with: args.with.clone(),
        variants: Some(asked(&args.variants)).filter(|v| !v.is_empty()),
        canvas_flags: flags,
        far_links: args.far_link.clone(),
        percents: Some(percents).filter(|p| !p.is_empty()),
        co_run: args.co_run,
        repeats: args.repeats,
        scale: args.scale,
        time_max: args.time_max,
        seed: args.seed,
        out: absolute(&args.out)?,
        cache: cache(args.cache.as_ref())?,
        guardian: guardian(&canvas),
        disk_server: vec![canvas.as_os_str().to_owned(), "bench-disk".into()],
        canvas,
        argv: std::env::args_os()
            .map(|a| a.to_string_lossy().into_owned())
            .collect(),
        canvas_version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// Writes to standard output; a closed pipe is the reader's choice.
fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

/// Runs the bench, or compares what two runs left, and returns the exit code.
pub fn run(args: &BenchArgs) -> Result<i32, Failure> {
    match &args.action {
        Some(BenchAction::Compare { old, new }) => {
            print(&compare::run(old, new).map_err(Failure::usage)?);
            return Ok(exit::OK);
        }
        Some(BenchAction::Codec(args)) => return codec(args),
        None => {}
    }
    let request = request(args)?;
    if args.list {
        print(&engine::list(&request));
        return Ok(exit::OK);
    }
    let ended = engine::run(&request, print).map_err(|e| Failure::usage(e.to_string()))?;
    match ended {
        Ended::Done | Ended::SomeFailed(_) => {
            error::say(format_args!("results are in {}", args.out.display()))
        }
        Ended::Stopped(_) => error::say("stopped; the host is as it was"),
    }
    Ok(match ended {
        Ended::Done => exit::OK,
        Ended::SomeFailed(_) => exit::NEGATIVE,
        Ended::Stopped(signal) => exit::SIGNAL_BASE + signal,
    })
}

/// `canvas bench-disk`: is a disk until it is killed.
pub fn disk(place: &Path, bytes: u64) -> i32 {
    server::run(place, bytes)
}

/// `canvas bench-guardian`: waits for the end of the bench that started it.
pub fn guard(journal: &Path) -> i32 {
    undo::guard(&Host, journal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_canvas_run_are_judged_before_anything_runs() {
        assert_eq!(canvas_flags("").unwrap(), [""; 0]);
        assert_eq!(
            canvas_flags(" --no-prefetch  --mode signal").unwrap(),
            ["--no-prefetch", "--mode", "signal"]
        );
        for bad in [
            "--local 1G",
            "--pool=1G",
            "--stats x",
            "--no-such",
            "word",
            "--mode turbo",
        ] {
            assert!(
                canvas_flags(bad)
                    .unwrap_err()
                    .sentence
                    .contains("--canvas-flags"),
                "{bad}"
            );
        }
    }

    #[test]
    fn the_cache_is_below_a_cache_directory() {
        assert!(default_cache().ends_with("canvas/bench") && default_cache().is_absolute());
    }
}
