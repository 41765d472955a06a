//! Manual pages and completions, generated from the definitions of the flags.

use std::io::{self, Write};
use std::path::Path;

use canvas_types::exit;
use clap::CommandFactory;

use crate::args::Cli;
use crate::error::Failure;

#[cfg(test)]
mod page;

/// `canvas man`.
pub fn man(dir: Option<&Path>) -> Result<i32, Failure> {
    match dir {
        Some(dir) => {
            let fail = |e: io::Error| {
                Failure::usage(format!(
                    "manual pages cannot be written to {}: {}",
                    dir.display(),
                    crate::reason(&e)
                ))
            };
            std::fs::create_dir_all(dir).map_err(fail)?;
            clap_mangen::generate_to(Cli::command(), dir).map_err(fail)?;
            let tunables = canvas_control::settings::text::roff();
            std::fs::write(dir.join("canvas-tunables.7"), tunables).map_err(fail)?;
        }
        None => {
            let mut page = Vec::new();
            // Writing to memory does not fail.
            let _ = clap_mangen::Man::new(Cli::command()).render(&mut page);
            // A closed pipe is the reader's choice.
            let _ = io::stdout().write_all(&page);
        }
    }
    Ok(exit::OK)
}

/// `canvas completions`.
pub fn completions(shell: clap_complete::Shell) -> i32 {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "canvas", &mut script);
    let _ = io::stdout().write_all(&script);
    exit::OK
}
