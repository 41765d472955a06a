//! `canvas run`, from its flags.

use crate::args::RunArgs;
use crate::error::Failure;
use crate::{joined_flags, options, tenant_flags};
use canvas_runner::join::{self, Begun};

/// Runs that begin a tenant of one name at one time find each other after so many tries at most.
const TRIES: u32 = 20;

/// Runs CMD and returns the exit code for `canvas`.
pub fn run(args: &RunArgs) -> Result<i32, Failure> {
    for _ in 0..TRIES {
        if let Some(code) = try_run(args)? {
            return Ok(code);
        }
    }
    Err(Failure::run(
        "the tenant ends and begins all the time; try again, or write another name after --tenant",
    ))
}

/// The same; `None` when another run has begun the tenant meanwhile.
fn try_run(args: &RunArgs) -> Result<Option<i32>, Failure> {
    let begun = options::host(args)?.map(join::begin).transpose()?;
    let (args, joined) = match begun {
        None => (args.clone(), None),
        Some(Begun::Vacant(terms)) => (tenant_flags::fill(&terms, args.clone())?, None),
        Some(Begun::Joined(joined)) => (joined_flags::fill(&joined, args.clone())?, Some(joined)),
    };
    let options = options::of_run(&args, canvas_runner::host_memory())?;
    Ok(canvas_runner::run(&options, joined)?)
}
