//! Variants: what a program's memory is backed by.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::link::{Delay, Link};
use crate::rate::Rate;

/// What a program's memory is backed by.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// All in local memory, no limit.
    #[default]
    Local,
    /// All in local memory, on the first half of the processors, which programs have when agent and donors
    /// have the other half.
    LocalOnHalf,
    /// `canvas run` with flags besides --local and --pool (none for the defaults).
    Canvas(Vec<String>),
    /// `canvas run --far` with a small pool, over donors that the bench starts.
    CanvasFar(FarBelow),
    /// Kernel swap on a new zram device, lz4.
    Zram,
    /// Kernel swap on zram, with memory in folios of 64 KiB (multi-size huge pages), which the kernel swaps
    /// whole where it can.
    #[serde(rename = "zram_64k")]
    Zram64k,
    /// Kernel swap on a file, with zswap.
    Zswap,
    /// Kernel swap on a file, without zswap.
    Disk,
    /// Kernel swap on a disk made by the bench whose reads take 100 us, without zswap.
    #[serde(rename = "disk_100us")]
    SlowDisk,
    /// No limit, swap on zram, and TMO's loop, which reclaims memory as long as less than this percentage of
    /// the time is lost to it.
    Tmo(u32),
}

/// Parameters of far memory over donors.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FarBelow {
    /// `--copies`.
    pub copies: String,
    /// Whether one of the donors is killed while the program reads.
    pub donor_dies: bool,
    /// Further flags of `canvas run`.
    pub flags: Vec<String>,
    /// Rate of the link between this host and the donors, in each direction; the loopback device if absent.
    #[serde(
        default,
        rename = "link_bits_per_s",
        skip_serializing_if = "Option::is_none"
    )]
    pub link: Option<Rate>,
    /// One-way delay of packets with data between this host and the donors.
    #[serde(
        default,
        rename = "link_delay_ns",
        skip_serializing_if = "Option::is_none"
    )]
    pub delay: Option<Delay>,
    /// Which programs share an agent.
    #[serde(default, skip_serializing_if = "Tenancy::is_own")]
    pub tenancy: Tenancy,
    /// Further flags of a shared agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agent_flags: Vec<String>,
    /// Share of the processors for program, agent and donors together, in percent; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u32>,
    /// Whether programs have the first half of the processors, and agent and donors the second.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub apart: bool,
    /// Limit on the reads per second of the disk that holds copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_reads_per_s: Option<u32>,
}

/// Which programs of a co-run share an agent and donors.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Tenancy {
    /// Each program has its own agent and donors.
    #[default]
    Own,
    /// All programs share an agent as one tenant: first come, first served.
    One,
    /// All programs share an agent, each as a tenant of its own.
    Each,
}

impl Tenancy {
    /// Whether programs share no agent.
    pub fn is_own(&self) -> bool {
        *self == Tenancy::Own
    }
}

impl FarBelow {
    /// The link to the donors, if there is one.
    pub fn whole_link(&self) -> Option<Link> {
        (self.link.is_some() || self.delay.is_some()).then_some(Link {
            rate: self.link,
            delay: self.delay,
        })
    }

    /// The value of `--copies`. Results write one copy on a donor as `none`, its former spelling.
    pub fn copies_flag(&self) -> String {
        let copies = match self.copies.as_str() {
            "none" => "1",
            copies => copies,
        };
        format!("--copies={copies}")
    }

    /// This number of copies, without a killed donor.
    pub fn copies(copies: &str) -> FarBelow {
        FarBelow {
            copies: copies.to_owned(),
            ..FarBelow::default()
        }
    }
}

/// The kernel's variants, in the order of tables.
pub const KERNEL: [Variant; 5] = [
    Variant::Zram,
    Variant::Zram64k,
    Variant::Zswap,
    Variant::Disk,
    Variant::SlowDisk,
];

impl Variant {
    /// Whether the variant uses the kernel's swap, which the whole host shares.
    pub fn is_kernel(&self) -> bool {
        KERNEL.contains(self) || matches!(self, Variant::Tmo(_))
    }

    /// Whether programs may have huge pages, whose size the variant sets.
    pub fn has_huge_pages(&self) -> bool {
        *self == Variant::Zram64k
    }

    /// Whether the program runs under `canvas run`.
    pub fn is_canvas(&self) -> bool {
        matches!(self, Variant::Canvas(_) | Variant::CanvasFar(_))
    }

    /// The link to the donors, if there is one.
    pub fn link(&self) -> Option<Link> {
        match self {
            Variant::CanvasFar(far) => far.whole_link(),
            _ => None,
        }
    }

    /// Share of the processors, in percent; `None` for all.
    pub fn cpu_percent(&self) -> Option<u32> {
        match self {
            Variant::CanvasFar(far) => far.cpu_percent,
            _ => None,
        }
    }

    /// Whether all memory is local, without a limit.
    pub fn is_local(&self) -> bool {
        matches!(self, Variant::Local | Variant::LocalOnHalf)
    }

    /// Whether programs have only the first half of the processors.
    pub fn is_on_half(&self) -> bool {
        match self {
            Variant::LocalOnHalf => true,
            Variant::CanvasFar(far) => far.apart,
            _ => false,
        }
    }

    /// Limit on the disk's reads per second, if there is one.
    pub fn disk_reads_per_s(&self) -> Option<u32> {
        match self {
            Variant::CanvasFar(far) => far.disk_reads_per_s,
            _ => None,
        }
    }

    /// Which programs share an agent.
    pub fn tenancy(&self) -> Tenancy {
        match self {
            Variant::CanvasFar(far) => far.tenancy,
            _ => Tenancy::Own,
        }
    }

    /// Whether the variant makes sense only with a limit.
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

    /// Results of versions without links and shared agents are read, and written unchanged.
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
