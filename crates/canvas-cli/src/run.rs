//! `canvas run`, from its flags to its end.

use crate::args::RunArgs;
use crate::error::Failure;
use crate::{joined_flags, options, tenant_flags};
use canvas_runner::Ended;
use canvas_runner::join::{self, Begun, Start};

/// Most tries until runs that start a tenant of one name at the same time find each other.
const TRIES: u32 = 20;

/// Runs CMD and returns the exit code for `canvas`; if a signal ended CMD, the same signal ends
/// canvas.
pub fn run(args: &RunArgs) -> Result<i32, Failure> {
    let ended = until_it_ends(args, false)?;
    if let Some(signal) = ended.signal {
        canvas_runner::end_by(signal);
    }
    Ok(ended.code)
}

/// Runs CMD; with `learns` the result has its measurements.
pub fn until_it_ends(args: &RunArgs, learns: bool) -> Result<Ended, Failure> {
    for _ in 0..TRIES {
        if let Some(ended) = try_run(args, learns)? {
            return Ok(ended);
        }
    }
    Err(Failure::run(
        "the tenant keeps ending and starting; try again, or write another name after --tenant",
    ))
}

/// Like [`until_it_ends`]; `None` if another run started the tenant meanwhile.
fn try_run(args: &RunArgs, learns: bool) -> Result<Option<Ended>, Failure> {
    let begun = options::host(args)?.map(join::begin).transpose()?;
    let (args, start) = match begun {
        None => (args.clone(), Start::New),
        Some(Begun::Vacant(terms)) => (tenant_flags::fill(&terms, args.clone())?, Start::New),
        Some(Begun::Joined(joined)) => {
            let args = joined_flags::fill(&joined, args.clone())?;
            (args, Start::Joined(joined))
        }
    };
    let mut options = options::of_run(&args, canvas_runner::host_memory())?;
    options.learns = learns;
    Ok(canvas_runner::run(&options, start)?)
}
