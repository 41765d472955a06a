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
    /// `canvas run --far` over donors of the bench's own, with a small pool.
    CanvasFar(FarBelow),
    /// Kernel swap on a zram device of its own, lz4.
    Zram,
    /// Kernel swap on a file on disk, with zswap before it.
    Zswap,
    /// Kernel swap on a file on disk, without zswap.
    Disk,
}

/// Far memory over donors.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FarBelow {
    /// `--copies`.
    pub copies: String,
    /// Whether one of the donors is killed while the program reads.
    pub donor_dies: bool,
    /// Further flags of `canvas run`.
    pub flags: Vec<String>,
}

impl FarBelow {
    /// So many copies, and all donors live.
    pub fn copies(copies: &str) -> FarBelow {
        FarBelow {
            copies: copies.to_owned(),
            ..FarBelow::default()
        }
    }
}

impl Variant {
    /// Whether the kernel's swap is below, which the whole host shares.
    pub fn is_kernel(&self) -> bool {
        matches!(self, Variant::Zram | Variant::Zswap | Variant::Disk)
    }

    /// Whether `canvas run` is below.
    pub fn is_canvas(&self) -> bool {
        matches!(self, Variant::Canvas(_) | Variant::CanvasFar(_))
    }

    /// Whether it is nothing without a limit.
    pub fn needs_limit(&self) -> bool {
        self.is_kernel() || matches!(self, Variant::CanvasFar(_))
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Variant::Local => f.write_str("local"),
            Variant::Canvas(flags) if flags.is_empty() => f.write_str("canvas"),
            Variant::Canvas(flags) => write!(f, "canvas[{}]", flags.join(" ")),
            Variant::CanvasFar(far) => {
                write!(f, "canvas-far[{}", far.copies)?;
                for flag in &far.flags {
                    write!(f, " {flag}")?;
                }
                f.write_str(if far.donor_dies {
                    ", a donor dies]"
                } else {
                    "]"
                })
            }
            Variant::Zram => f.write_str("zram"),
            Variant::Zswap => f.write_str("zswap"),
            Variant::Disk => f.write_str("disk"),
        }
    }
}
