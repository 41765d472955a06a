//! `lab workload`: runs one of the bench's built-in programs.

mod cheat;

use std::io::{self, Write};
use std::time::Duration;

use canvas_types::exit;
use canvas_workloads::{Options, steady};

use crate::args::WorkloadArgs;
use crate::error::Failure;

fn failure(e: canvas_workloads::Failure) -> Failure {
    Failure {
        code: match e {
            canvas_workloads::Failure::Usage(_) => exit::USAGE,
            canvas_workloads::Failure::Wrong(_) => exit::NEGATIVE,
        },
        sentence: e.to_string(),
    }
}

/// `lab steady`: works until standard input ends; returns the exit code.
pub fn steady(mib: u64, seed: u64) -> Result<i32, Failure> {
    let _ = nix::sys::prctl::set_thp_disable(true);
    steady::run(mib, seed, io::stdin(), io::stdout()).map_err(failure)?;
    Ok(exit::OK)
}

/// Runs the workload and prints its answer; returns the exit code.
pub fn run(args: &WorkloadArgs) -> Result<i32, Failure> {
    // No huge pages in any run, since runs with a limit cannot have them. Where the kernel refuses, the
    // figures are slightly less comparable.
    if !args.huge_pages {
        let _ = nix::sys::prctl::set_thp_disable(true);
    }
    if let (true, Some(seconds)) = (args.cheat, args.seconds) {
        // The workload fills its memory, warms up for a quarter of `seconds`, then measures for `seconds`.
        let time = Duration::try_from_secs_f64(2.0 * seconds);
        cheat::begin(time.unwrap_or_default())?;
    }
    let options = Options {
        scale: args.scale,
        seed: args.seed,
        mib: args.mib,
        seconds: args.seconds,
        threads: args.threads,
        rounds: args.rounds,
        stride: args.stride,
    };
    let output = canvas_workloads::run(&args.name, &options).map_err(failure)?;
    let line = serde_json::to_string(&output)
        .map_err(|e| Failure::usage(format!("the answer cannot be written: {e}")))?;
    // A closed pipe is not an error: the reader has seen enough.
    let _ = writeln!(io::stdout(), "{line}");
    Ok(exit::OK)
}
