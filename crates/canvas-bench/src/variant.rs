//! What may lie below a program.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What lies below a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// All in memory, no limit.
    #[default]
    Local,
    /// `canvas run`, with flags beside --local and --pool (none for the defaults).
    Canvas(Vec<String>),
    /// Kernel swap on a zram device of its own, lz4.
    Zram,
    /// Kernel swap on a file on disk, with zswap before it.
    Zswap,
    /// Kernel swap on a file on disk, without zswap.
    Disk,
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Variant::Local => f.write_str("local"),
            Variant::Canvas(flags) if flags.is_empty() => f.write_str("canvas"),
            Variant::Canvas(flags) => write!(f, "canvas[{}]", flags.join(" ")),
            Variant::Zram => f.write_str("zram"),
            Variant::Zswap => f.write_str("zswap"),
            Variant::Disk => f.write_str("disk"),
        }
    }
}
