//! `canvas keygen`: makes a cluster key.

use std::io::Write;

use canvas_types::exit;
use canvas_wire::key::ClusterKey;

use crate::args::KeygenArgs;
use crate::error::Failure;

/// Makes a key, in a file that only its owner can read, or on standard output.
pub fn run(args: &KeygenArgs) -> Result<i32, Failure> {
    let key = ClusterKey::generate().map_err(Failure::usage)?;
    let mut out = std::io::stdout().lock();
    match &args.file {
        Some(file) => {
            key.write(file).map_err(Failure::usage)?;
            // The key is made even if nobody reads this.
            let _ = writeln!(
                out,
                "{} is a new cluster key, which only its owner can read; copy it to every host of the pool",
                file.display()
            );
        }
        None => writeln!(out, "{}", *key.to_line())
            .and_then(|()| out.flush())
            .map_err(|e| {
                Failure::usage(format!("the key cannot be printed: {}", crate::reason(&e)))
            })?,
    }
    Ok(exit::OK)
}
