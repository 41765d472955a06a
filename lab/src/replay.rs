//! `lab replay`: runs the pager's policy code over a trace.

use std::fs;
use std::io::{self, Write};

use canvas_replay::{Trace, synthetic};
use canvas_types::exit;

use crate::args::ReplayArgs;
use crate::error::Failure;

/// Prints the table; returns the exit code.
pub fn run(args: &ReplayArgs) -> Result<i32, Failure> {
    let trace = match (&args.file, &args.synthetic) {
        (Some(file), _) => {
            let bytes = fs::read(file).map_err(|e| {
                Failure::usage(format!(
                    "{} cannot be read: {}",
                    file.display(),
                    canvas_control::text::reason(&e)
                ))
            })?;
            let name = file
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            Trace::read(&name, &bytes).map_err(|e| {
                Failure::usage(format!(
                    "{} is {e}; write the name of a file made by canvas run -o trace",
                    file.display()
                ))
            })?
        }
        (None, name) => {
            let pages = usize::try_from(args.memory.pages()).unwrap_or(usize::MAX);
            // At most 2^24 pages (64 GiB), which the replay's tables hold.
            if !(1..=1 << 24).contains(&pages) {
                return Err(Failure::usage(format!(
                    "--memory {} is out of range; write 4K to 64G",
                    args.memory
                )));
            }
            let name = name.as_deref().unwrap_or_default();
            synthetic::generate(name, args.seed, pages, args.accesses).ok_or_else(|| {
                Failure::usage(format!(
                    "--synthetic {name} is unknown; see `lab replay --help`"
                ))
            })?
        }
    };
    if trace.reuses() == 0 {
        return Err(Failure::usage(
            "the trace touches no page twice, so there is nothing to compare; record a longer one",
        ));
    }
    let table = canvas_replay::run(&trace, &args.percent, args.prefetch);
    // A closed pipe is not an error: the reader has seen enough.
    let _ = write!(io::stdout(), "{table}");
    Ok(exit::OK)
}
