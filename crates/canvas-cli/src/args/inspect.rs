//! Flags of `canvas read` and `canvas dump`, and the value of `--host-reserve`.

use std::path::PathBuf;

use canvas_types::units::{Amount, Size, UnitError};
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
    /// Write the bytes as they are to standard output, instead of lines for the eye.
    #[arg(long)]
    pub raw: bool,
    /// Write the bytes as they are into FILE.
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
        .map_err(|_| "it is no address; write one such as 0x600000001000")
}

/// Behind the help of `canvas read`.
pub const READ_NOTES: &str = "\
Example, also from within gdb (with `shell` before it) while it holds the process:
  canvas read 4711 0x600000001000 64";

/// Behind that of `canvas dump`.
pub const DUMP_NOTES: &str = "\
Example:
  canvas dump 4711 -o redis.core
  gdb /usr/bin/redis-server redis.core";
/// The flag of `canvas run` about its host.
#[derive(Args, Clone, Debug)]
pub struct HostReserveArgs {
    /// What is left of this host's memory in any case (or of that of the control group that CMD is in): a
    /// size or a share; 0 for nothing.
    ///
    /// Before it is touched the pool grows no more: it spills to far memory, or new memory is refused with ENOMEM.
    #[arg(
        long,
        env = "CANVAS_HOST_RESERVE",
        value_name = "SIZE|N%",
        default_value = "5%",
        value_parser = host_reserve,
        hide_env_values = true
    )]
    pub host_reserve: HostReserve,
}

/// What is left to the host; `None` for nothing.
#[derive(Clone, Copy, Debug)]
pub struct HostReserve(pub Option<Amount>);

/// Why a bound is not left to the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostReserveError {
    /// Its text is neither a size nor a share.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// Too little of the host would be left to use.
    #[error("it is more than half of the host; write 50% or less")]
    TooMuch,
}

/// `--host-reserve`: as any bound, and 0. At most half of the host is kept.
pub fn host_reserve(text: &str) -> Result<HostReserve, HostReserveError> {
    const PPM_MAX: u32 = 500_000;
    if ["0", "0%"].contains(&text) {
        return Ok(HostReserve(None));
    }
    match text.parse()? {
        Amount::Share(share) if share.ppm() > PPM_MAX => Err(HostReserveError::TooMuch),
        amount => Ok(HostReserve(Some(amount))),
    }
}
