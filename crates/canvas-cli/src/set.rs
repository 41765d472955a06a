//! `canvas set`: changes settings of a run or disk.

use canvas_types::exit;

use crate::args::SetArgs;
use crate::control::client::Runs;
use crate::error::Failure;
use canvas_control::settings::Command;
use canvas_runner::keys;

/// Changes one run.
pub fn run(args: &SetArgs) -> Result<i32, Failure> {
    let pair = |text: &String| match text.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(Failure::usage(format!(
            "{text} is not a change; write KEY=VALUE, where KEY is one of {}",
            keys(Command::Run)
        ))),
    };
    let pairs = args.changes.iter().map(pair).collect::<Result<_, _>>()?;
    let runs = Runs::look();
    let found = runs.one(&args.tenant)?;
    runs.set(&found, pairs)?;
    Ok(exit::OK)
}
