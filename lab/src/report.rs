//! `lab report`: makes one page from results files.

use std::fs;

use canvas_types::exit;

use crate::args::ReportArgs;
use crate::error::Failure;

/// Writes the page and returns the exit code. Writes nothing when a file cannot be read.
pub fn run(args: &ReportArgs) -> Result<i32, Failure> {
    let output = &args.output;
    let same = |path: &std::path::PathBuf| match (fs::canonicalize(path), fs::canonicalize(output))
    {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    };
    if let Some(path) = args.results.iter().find(|p| same(p)) {
        return Err(Failure::usage(format!(
            "{} is a results file and would be overwritten; write another name after --output",
            path.display()
        )));
    }
    let results = canvas_bench::read::read(&args.results).map_err(Failure::usage)?;
    let page = canvas_bench::report::html(&results);
    fs::write(output, page).map_err(|e| {
        Failure::usage(format!(
            "{} cannot be written: {}; write another name after --output",
            output.display(),
            canvas_control::text::reason(&e)
        ))
    })?;
    Ok(exit::OK)
}
