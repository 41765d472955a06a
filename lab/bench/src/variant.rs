//! What may lie below a program.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::link::{Delay, Link};
use crate::rate::Rate;

/// What lies below a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// All in memory, no limit.
    #[default]
    Local,
    /// The same, with the processors that programs have where agent and donors are apart: the first half.
    LocalOnHalf,
    /// `canvas run`, with flags beside --local and --pool (none for the defaults).
    Canvas(Vec<String>),
    /// `canvas run --far` over donors of the bench's own, with a small pool.
    CanvasFar(FarBelow),
    /// Kernel swap on a zram device of its own, lz4.
    Zram,
    /// The same, and the kernel gives programs memory in folios of 64 KiB (multi-size huge pages), which
    /// leave and come back whole where it can.
    #[serde(rename = "zram_64k")]
    Zram64k,
    /// Kernel swap on a file on disk, with zswap before it.
    Zswap,
    /// Kernel swap on a file on disk, without zswap.
    Disk,
    /// Kernel swap on a disk of the bench's own whose reads take 100 us, without zswap.
    #[serde(rename = "disk_100us")]
    SlowDisk,
    /// No limit, swap on zram, and TMO's loop, which takes memory as long as less than so many percent of the time
    /// are lost for it.
    Tmo(u32),
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
    /// Rate of the link between this host and the donors, in either direction; over the loopback
    /// device without one.
    #[serde(
        default,
        rename = "link_bits_per_s",
        skip_serializing_if = "Option::is_none"
    )]
    pub link: Option<Rate>,
    /// Time that a packet with data takes between this host and the donors, in either direction.
    #[serde(
        default,
        rename = "link_delay_ns",
        skip_serializing_if = "Option::is_none"
    )]
    pub delay: Option<Delay>,
    /// Whose agent keeps it.
    #[serde(default, skip_serializing_if = "Tenancy::is_own")]
    pub tenancy: Tenancy,
    /// Further flags of an agent that programs share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agent_flags: Vec<String>,
    /// Part of the processors that all of it has, program, agent and donors, in percent; all without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u32>,
    /// Whether agent and donors have processors of their own, the second half of them, and programs the first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub apart: bool,
    /// Reads a second that the disk is bound to which holds copies, where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_reads_per_s: Option<u32>,
}

/// Whose agent keeps the far memory of programs that run together, and on which donors.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Tenancy {
    /// Each program's own, with donors of its own.
    #[default]
    Own,
    /// One for all, and all are one tenant: first come, first served.
    One,
    /// One for all, and each is a tenant of its own.
    Each,
}

impl Tenancy {
    /// Whether nothing is shared.
    pub fn is_own(&self) -> bool {
        *self == Tenancy::Own
    }
}

impl FarBelow {
    /// The link that donors are behind, if they are behind one.
    pub fn whole_link(&self) -> Option<Link> {
        (self.link.is_some() || self.delay.is_some()).then_some(Link {
            rate: self.link,
            delay: self.delay,
        })
    }

    /// The flag for its copies. Results call one copy at a donor `none`, as it was written once.
    pub fn copies_flag(&self) -> String {
        let copies = match self.copies.as_str() {
            "none" => "1",
            copies => copies,
        };
        format!("--copies={copies}")
    }

    /// So many copies, and all donors live.
    pub fn copies(copies: &str) -> FarBelow {
        FarBelow {
            copies: copies.to_owned(),
            ..FarBelow::default()
        }
    }
}

/// What the kernel has in place of canvas, in the order in which tables show it.
pub const KERNEL: [Variant; 5] = [
    Variant::Zram,
    Variant::Zram64k,
    Variant::Zswap,
    Variant::Disk,
    Variant::SlowDisk,
];

impl Variant {
    /// Whether the kernel's swap is below, which the whole host shares.
    pub fn is_kernel(&self) -> bool {
        KERNEL.contains(self) || matches!(self, Variant::Tmo(_))
    }

    /// Whether programs may have huge pages, of which the size is the variant's.
    pub fn has_huge_pages(&self) -> bool {
        *self == Variant::Zram64k
    }

    /// Whether `canvas run` is below.
    pub fn is_canvas(&self) -> bool {
        matches!(self, Variant::Canvas(_) | Variant::CanvasFar(_))
    }

    /// The link that donors are behind, if they are behind one.
    pub fn link(&self) -> Option<Link> {
        match self {
            Variant::CanvasFar(far) => far.whole_link(),
            _ => None,
        }
    }

    /// Part of the processors that it has, in percent, if not all.
    pub fn cpu_percent(&self) -> Option<u32> {
        match self {
            Variant::CanvasFar(far) => far.cpu_percent,
            _ => None,
        }
    }

    /// Whether all is in memory, without a limit.
    pub fn is_local(&self) -> bool {
        matches!(self, Variant::Local | Variant::LocalOnHalf)
    }

    /// Whether programs have the first half of the processors; agent and donors, if there are any, have the second.
    pub fn is_on_half(&self) -> bool {
        match self {
            Variant::LocalOnHalf => true,
            Variant::CanvasFar(far) => far.apart,
            _ => false,
        }
    }

    /// Reads a second that its disk is bound to, if it is.
    pub fn disk_reads_per_s(&self) -> Option<u32> {
        match self {
            Variant::CanvasFar(far) => far.disk_reads_per_s,
            _ => None,
        }
    }

    /// Whose agent keeps far memory.
    pub fn tenancy(&self) -> Tenancy {
        match self {
            Variant::CanvasFar(far) => far.tenancy,
            _ => Tenancy::Own,
        }
    }

    /// Whether it is nothing without a limit.
    pub fn needs_limit(&self) -> bool {
        KERNEL.contains(self) || matches!(self, Variant::CanvasFar(_))
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Variant::Local => f.write_str("local"),
            Variant::LocalOnHalf => f.write_str("local[on half of the processors]"),
            Variant::Canvas(flags) if flags.is_empty() => f.write_str("canvas"),
            Variant::Canvas(flags) => write!(f, "canvas[{}]", flags.join(" ")),
            Variant::CanvasFar(far) => {
                write!(f, "canvas-far[{}", far.copies)?;
                for flag in &far.flags {
                    write!(f, " {flag}")?;
                }
                if let Some(link) = far.whole_link() {
                    write!(f, ", link {link}")?;
                }
                f.write_str(match far.tenancy {
                    Tenancy::Own => "",
                    Tenancy::One => ", one tenant",
                    Tenancy::Each => ", isolated",
                })?;
                if !far.agent_flags.is_empty() {
                    write!(f, ", agent {}", far.agent_flags.join(" "))?;
                }
                if let Some(percent) = far.cpu_percent {
                    write!(f, ", on {percent} % of the processors")?;
                }
                if far.apart {
                    f.write_str(", agent and donors apart")?;
                }
                if let Some(reads) = far.disk_reads_per_s {
                    write!(f, ", disk at {reads} reads/s")?;
                }
                f.write_str(if far.donor_dies {
                    ", a donor dies]"
                } else {
                    "]"
                })
            }
            Variant::Zram => f.write_str("zram"),
            Variant::Zram64k => f.write_str("zram-64k"),
            Variant::Zswap => f.write_str("zswap"),
            Variant::Disk => f.write_str("disk"),
            Variant::SlowDisk => f.write_str("disk-100us"),
            Variant::Tmo(percent) => write!(f, "tmo[{percent}%]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of before there were links and shared agents are read, and written as they were.
    #[test]
    fn old_results_are_read() {
        let old = r#"{"canvas_far":{"copies":"2","donor_dies":false,"flags":[]}}"#;
        let variant: Variant = serde_json::from_str(old).unwrap();
        assert_eq!(variant, Variant::CanvasFar(FarBelow::copies("2")));
        assert_eq!(serde_json::to_string(&variant).unwrap(), old);
        let new = Variant::CanvasFar(FarBelow {
            link: Some(Rate::mbit(200)),
            tenancy: Tenancy::Each,
            ..FarBelow::copies("none")
        });
        let text = serde_json::to_string(&new).unwrap();
        assert!(
            text.contains(r#""link_bits_per_s":200000000,"tenancy":"each""#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Variant>(&text).unwrap(), new);
        assert_eq!(new.to_string(), "canvas-far[none, link 200mbit, isolated]");
        let Variant::CanvasFar(below) = new else {
            unreachable!()
        };
        let flagged = Variant::CanvasFar(FarBelow {
            agent_flags: vec!["-o".into(), "timeliness=off".into()],
            ..below
        });
        let text = serde_json::to_string(&flagged).unwrap();
        assert_eq!(serde_json::from_str::<Variant>(&text).unwrap(), flagged);
        let shown = "canvas-far[none, link 200mbit, isolated, agent -o timeliness=off]";
        assert_eq!(flagged.to_string(), shown);
        let confined = Variant::CanvasFar(FarBelow {
            cpu_percent: Some(50),
            ..FarBelow::copies("none")
        });
        let text = serde_json::to_string(&confined).unwrap();
        assert_eq!(serde_json::from_str::<Variant>(&text).unwrap(), confined);
        let shown = "canvas-far[none, on 50 % of the processors]";
        assert_eq!(confined.to_string(), shown);
        let long = Variant::CanvasFar(FarBelow {
            delay: Some(Delay::ns(25_000)),
            ..FarBelow::copies("none")
        });
        let text = serde_json::to_string(&long).unwrap();
        assert!(text.contains(r#""link_delay_ns":25000"#), "{text}");
        assert_eq!(serde_json::from_str::<Variant>(&text).unwrap(), long);
        assert_eq!(long.to_string(), "canvas-far[none, link 25us]");
        let apart = Variant::CanvasFar(FarBelow {
            apart: true,
            ..FarBelow::copies("none")
        });
        let text = serde_json::to_string(&apart).unwrap();
        assert_eq!(serde_json::from_str::<Variant>(&text).unwrap(), apart);
        assert!(apart.is_on_half());
        let shown = "canvas-far[none, agent and donors apart]";
        assert_eq!(apart.to_string(), shown);
        let bound = Variant::CanvasFar(FarBelow {
            disk_reads_per_s: Some(4000),
            ..FarBelow::copies("disk")
        });
        let text = serde_json::to_string(&bound).unwrap();
        assert_eq!(serde_json::from_str::<Variant>(&text).unwrap(), bound);
        assert_eq!(bound.to_string(), "canvas-far[disk, disk at 4000 reads/s]");
    }

    #[test]
    fn all_in_memory_on_half_of_the_processors_is_local_too() {
        let half = Variant::LocalOnHalf;
        assert_eq!(serde_json::to_string(&half).unwrap(), "\"local_on_half\"");
        assert_eq!(half.to_string(), "local[on half of the processors]");
        assert!(half.is_local() && half.is_on_half() && !half.needs_limit());
        assert!(Variant::Local.is_local() && !Variant::Local.is_on_half());
        assert!(!Variant::Zram.is_local() && !Variant::Zram.is_on_half());
    }

    #[test]
    fn the_kernels_have_names_of_their_own() {
        for variant in KERNEL {
            let text = serde_json::to_string(&variant).unwrap();
            assert_eq!(text, format!("\"{variant}\"").replace('-', "_"));
            assert_eq!(serde_json::from_str::<Variant>(&text).unwrap(), variant);
            assert!(variant.is_kernel() && variant.needs_limit(), "{variant}");
        }
        let tmo = Variant::Tmo(5);
        assert_eq!(serde_json::to_string(&tmo).unwrap(), r#"{"tmo":5}"#);
        assert_eq!(tmo.to_string(), "tmo[5%]");
        assert!(tmo.is_kernel() && !tmo.needs_limit());
        assert!(!Variant::Local.is_kernel() && !Variant::Canvas(vec![]).is_kernel());
    }
}
