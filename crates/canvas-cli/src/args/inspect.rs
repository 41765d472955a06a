//! Flags of `canvas read` and `canvas dump`.

use std::path::PathBuf;

use canvas_types::units::Size;
use clap::Args;

/// Flags of `canvas read`.
#[derive(Args)]
pub struct ReadArgs {
    /// The process (`canvas status` shows those of each run).
    #[arg(value_name = "PID")]
    pub pid: u32,
    /// The first byte, as a debugger prints it: 0x600000001000.
    #[arg(value_name = "ADDR", value_parser = place)]
    pub addr: Place,
    /// How many bytes: 64, 4K.
    #[arg(value_name = "LEN")]
    pub len: Size,
    /// Write raw bytes to standard output, instead of a hex dump.
    #[arg(long)]
    pub raw: bool,
    /// Write raw bytes to FILE.
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub output: Option<PathBuf>,
}

/// Flags of `canvas dump`.
#[derive(Args)]
pub struct DumpArgs {
    /// The process (`canvas status` shows those of each run).
    #[arg(value_name = "PID")]
    pub pid: u32,
    /// Where the core dump goes; a file that exists is not touched [default: core.PID].
    #[arg(short, long, alias = "out", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub output: Option<PathBuf>,
}

/// An address in a process.
#[derive(Clone, Copy, Debug)]
pub struct Place(pub usize);

fn place(text: &str) -> Result<Place, &'static str> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => usize::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number
        .map(Place)
        .map_err(|_| "it is not an address; write one such as 0x600000001000")
}

/// Shown after the flags of `canvas read`.
pub const READ_NOTES: &str = "\
Example, also from within gdb (with `shell` before it) while it holds the process:
  canvas read 4711 0x600000001000 64";

/// Shown after the flags of `canvas dump`.
pub const DUMP_NOTES: &str = "\
Example:
  canvas dump 4711 -o redis.core
  gdb /usr/bin/redis-server redis.core";
