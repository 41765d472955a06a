//! The named experiments, as data.
//!
//! An experiment is a list of parts; a part is a list of programs under variants at local ratios, each alone
//! or all of them together. `not_yet` names what an experiment leaves out of its paper.

mod backends;
mod cluster;
mod cost;
mod demo;
mod erasure;
mod fastswap;
mod goals;
mod hints;
mod isolation;
mod pointers;
mod pressure;
mod reads;
mod recovery;
mod resume;
mod serving;
mod slo;
mod steady;
mod switch;

use std::time::Duration;

use crate::engine::script::Script;
use crate::link::Delay;
use crate::rate::Rate;
use crate::targets;
use crate::variant::Tenancy;

/// Kinds of variants; [`Below::Canvas`] stands for canvas with the flags of the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Below {
    /// All in local memory.
    Local,
    /// All in local memory, on the first half of the processors.
    LocalOnHalf,
    /// Canvas, with these flags before those of the command line.
    Canvas(&'static [&'static str]),
    /// Canvas with far memory over donors that the bench starts.
    CanvasFar(FarParts),
    /// Swap on zram.
    Zram,
    /// Swap on zram, and folios of 64 KiB.
    Zram64k,
    /// zswap before a swap file.
    Zswap,
    /// A swap file.
    Disk,
    /// Swap on a disk whose reads take 100 us.
    SlowDisk,
    /// TMO's loop with this target, in percent of the time.
    Tmo(u32),
}

/// Parameters of [`Below::CanvasFar`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FarParts {
    /// `--copies`.
    pub copies: &'static str,
    /// Whether a donor is killed while the program reads.
    pub donor_dies: bool,
    /// Further flags of `canvas run`.
    pub flags: &'static [&'static str],
    /// Rate of the link to the donors.
    pub link: Option<Rate>,
    /// One-way delay of the link to the donors.
    pub delay: Option<Delay>,
    /// Which programs share an agent.
    pub tenancy: Tenancy,
    /// Flags of a shared agent.
    pub agent_flags: &'static [&'static str],
    /// Share of the processors for programs, agent and donors together, in percent.
    pub cpu_percent: Option<u32>,
    /// Whether agent and donors have processors of their own.
    pub apart: bool,
    /// Limit on the reads per second of the disk that holds copies; each program then has its own agent.
    pub disk_reads_per_s: Option<u32>,
}

/// One copy over the loopback device, all else off.
const FAR: FarParts = FarParts {
    copies: "none",
    donor_dies: false,
    flags: &[],
    link: None,
    delay: None,
    tenancy: Tenancy::Own,
    agent_flags: &[],
    cpu_percent: None,
    apart: false,
    disk_reads_per_s: None,
};

/// How the programs of a part run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// One after the other.
    Alone,
    /// All at once, and each alone too, for the slowdown.
    Together,
    /// All at once, and none alone.
    OnlyTogether,
    /// Each runs twice at the same time, under the first variant and under one of the others, on a processor
    /// each. The two runs swap processors, so that a disturbance hits both.
    SideBySide,
}

/// A program of a part: its workload, and what distinguishes this run of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Program {
    /// Name of the workload.
    pub workload: &'static str,
    /// Arguments appended to those of the workload's program.
    pub args: &'static [&'static str],
    /// Parameters, for the results ("threads", "4").
    pub parameters: &'static [(&'static str, &'static str)],
    /// Flags of `canvas run` if the program is a tenant of its own.
    pub tenant_flags: &'static [&'static str],
    /// Set for company, which does not run alone: further arguments, with which it runs until the others have
    /// ended.
    pub company: Option<&'static [&'static str]>,
    /// Size that the ratio refers to, in bytes, if not the working set.
    pub ratio_of_bytes: Option<u64>,
    /// Factor on the size that the scale gives.
    pub larger: Option<u32>,
    /// Whether its whole cell runs on one processor, which the results record as a parameter.
    pub one_processor: bool,
}

/// A part of an experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Programs; if empty, the workloads named on the command line, or all that can run here.
    pub programs: &'static [Program],
    /// Variants.
    pub variants: &'static [Below],
    /// Local memory in percent of the working set; no limit if empty.
    pub percents: &'static [u32],
    /// Alone or together.
    pub how: How,
}

/// A named experiment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Experiment {
    /// Its name.
    pub name: &'static str,
    /// Description of one line.
    pub about: &'static str,
    /// The part of a paper that it mirrors.
    pub paper: Option<&'static str>,
    /// Its parts.
    pub parts: &'static [Part],
    /// What it leaves out of the paper, or of the goal; one sentence each.
    pub not_yet: &'static [&'static str],
    /// Default number of repeats.
    pub repeats: u32,
    /// Default size of the workloads.
    pub scale: f64,
    /// Default time limit, after which nothing more is started.
    pub time_max: Option<Duration>,
}

const fn program(workload: &'static str) -> Program {
    Program {
        workload,
        ..NO_PROGRAM
    }
}

/// A program with a limit in bytes instead of a share of its working set.
const fn within(
    workload: &'static str,
    mib: u64,
    parameters: &'static [(&'static str, &'static str)],
) -> Program {
    Program {
        workload,
        parameters,
        ratio_of_bytes: Some(mib << 20),
        ..NO_PROGRAM
    }
}

const NO_PROGRAM: Program = Program {
    workload: "",
    args: &[],
    parameters: &[],
    tenant_flags: &[],
    company: None,
    ratio_of_bytes: None,
    larger: None,
    one_processor: false,
};

const CANVAS: Below = Below::Canvas(&[]);
/// All six kinds, in the order of tables.
pub const ALL_BELOW: [Below; 6] = [
    Below::Local,
    CANVAS,
    Below::Zram,
    Below::Zram64k,
    Below::Zswap,
    Below::Disk,
];
/// A limit that is never reached: canvas manages the program, and evicts nothing.
const ROOMY: Below = Below::Canvas(&["--local", "16G"]);
const NO_RESERVATIONS: Below = Below::Canvas(&["-o", "reservations=off"]);
const UNCOMPRESSED: Below = Below::Canvas(&["-o", "codec=none"]);
const fn far(copies: &'static str) -> Below {
    Below::CanvasFar(FarParts { copies, ..FAR })
}

/// One copy over donors behind a link of this rate, in Mbit/s.
const fn behind(mbit: u32) -> Below {
    Below::CanvasFar(FarParts {
        link: Some(Rate::mbit(mbit)),
        ..FAR
    })
}

/// One copy over donors with this one-way delay, in ns.
const fn away(ns: u32) -> Below {
    Below::CanvasFar(FarParts {
        delay: Some(Delay::ns(ns)),
        ..FAR
    })
}

/// Far memory over donors, and the kernel's variants.
const FAR_BESIDE: &[Below] = &[
    Below::Local,
    far("2"),
    far("1+disk"),
    far("none"),
    Below::Zram,
    Below::Disk,
    Below::SlowDisk,
];
/// Far memory over donors, and the kernel's variants that its targets compare with.
const JUDGED_BY: &[Below] = &[Below::Local, far("2"), Below::Zram, Below::SlowDisk];
/// Two copies over donors, one of which is killed.
const DONOR_DIES: &[Below] = &[Below::CanvasFar(FarParts {
    copies: "2",
    donor_dies: true,
    ..FAR
})];
/// The variant that `canvas-far` stands for by default.
pub const FAR_PLAIN: Below = far("2");
const PEERS: &[Below] = &[Below::Local, CANVAS, Below::Zram];
/// FastSwap's tables: with and without compression, and the kernel's variants.
const TABLES: &[Below] = &[
    Below::Local,
    CANVAS,
    UNCOMPRESSED,
    Below::Zswap,
    Below::Disk,
];
/// A part whose programs run alone.
const fn alone(
    programs: &'static [Program],
    variants: &'static [Below],
    percents: &'static [u32],
) -> Part {
    Part {
        programs,
        variants,
        percents,
        how: How::Alone,
    }
}

/// Default number of repeats.
pub const REPEATS: u32 = 5;

/// The experiment of workloads named on the command line.
pub const SWEEP: &str = "sweep";

/// The experiments that are scripts.
pub const SCRIPTS: &[Script] = &[
    erasure::SCRIPT,
    switch::SCRIPT,
    resume::SCRIPT,
    cluster::SCRIPT,
    fastswap::SCRIPT,
];

/// All other experiments.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "quick",
        about: "built-in workloads at a small scale against zram, in three minutes",
        paper: None,
        parts: &[Part {
            programs: &[
                program("zipf"),
                program("random-read"),
                program("sequential"),
                program("quicksort"),
            ],
            variants: PEERS,
            percents: &[50, 25],
            how: How::Alone,
        }],
        not_yet: &[],
        repeats: 3,
        scale: 0.125,
        time_max: Some(Duration::from_secs(180)),
    },
    Experiment {
        name: SWEEP,
        about: "the workloads named with it (or all) at 100, 75, 50 and 25 % local memory",
        paper: None,
        parts: &[Part {
            programs: &[],
            variants: &ALL_BELOW,
            percents: &[100, 75, 50, 25],
            how: How::Alone,
        }],
        not_yet: &[],
        repeats: REPEATS,
        scale: 1.0,
        time_max: None,
    },
    Experiment {
        name: "tight",
        about: "several processes, forks and mapping calls at a tight limit, against zram",
        paper: None,
        parts: &[Part {
            programs: &[
                within("crowd", 48, &[("local", "48M")]),
                within("fork-storm", 32, &[("local", "32M")]),
                within("redis-tests", 48, &[("local", "48M")]),
                within("redis-tests", 96, &[("local", "96M")]),
                within("stress-fork", 64, &[("local", "64M")]),
                within("stress-malloc", 64, &[("local", "64M")]),
                within("stress-mremap", 64, &[("local", "64M")]),
                within("stress-brk", 64, &[("local", "64M")]),
                within("stress-bigheap", 64, &[("local", "64M")]),
            ],
            variants: PEERS,
            percents: &[100],
            how: How::Alone,
        }],
        not_yet: &[],
        repeats: 3,
        scale: 1.0,
        time_max: None,
    },
    Experiment {
        name: targets::pager::EXPERIMENT,
        about: "the pager's targets: patterns, threads, servers, Java, learning; without a limit; starting",
        paper: None,
        parts: &[
            Part {
                programs: &[
                    program("redis-set-get"),
                    program("java"),
                    program("start-up"),
                ],
                variants: &[Below::Local, CANVAS, ROOMY],
                percents: &[],
                how: How::Alone,
            },
            Part {
                programs: &[
                    program("random-read"),
                    program("random-write"),
                    program("sequential"),
                    program("fill"),
                    program("zipf"),
                    program("redis-get95"),
                    program("memcached-get95"),
                    program("java"),
                ],
                variants: PEERS,
                percents: &[25],
                how: How::Alone,
            },
            Part {
                programs: &READERS,
                variants: &[CANVAS, Below::Zram],
                percents: &[25],
                how: How::Alone,
            },
            Part {
                programs: &[program("xgboost"), program("spark-lr")],
                variants: PEERS,
                percents: &[50],
                how: How::Alone,
            },
        ],
        not_yet: &[],
        repeats: REPEATS,
        scale: 1.0,
        time_max: None,
    },
    Experiment {
        name: targets::far::EXPERIMENT,
        about: "far memory over three donors against zram, disks and plain TCP, also over links of 1 and 2.5 Gbit/s and with a delay of 25 us; a donor that dies",
        paper: None,
        parts: &[
            // First, since it takes longest: a time limit leaves out the last cells.
            alone(&[program("memcached-get95")], JUDGED_BY, &[50]),
            alone(&[program("redis-get95")], FAR_BESIDE, &[50]),
            alone(&[program("redis-set-get")], FAR_BESIDE, &[50]),
            alone(&[program("random-read")], FAR_BESIDE, &[50]),
            alone(&[program("sequential")], FAR_BESIDE, &[50]),
            // Nearly all pages are far, to compare with the donors' bandwidth. The loopback device is faster
            // than any network, so there are links of several rates as well.
            alone(
                &[program("sequential")],
                &[far("none"), behind(1000), behind(2500)],
                &[10],
            ),
            alone(
                &[program("random-read")],
                &[behind(1000), behind(2500)],
                &[50],
            ),
            // A network with a delay of 25 us in each direction.
            alone(
                &[program("random-read")],
                &[away(12_500), away(25_000)],
                &[50],
            ),
            alone(&[program("random-read")], DONOR_DIES, &[50]),
            alone(&[program("redis-get95")], DONOR_DIES, &[50]),
        ],
        not_yet: &[],
        repeats: REPEATS,
        scale: 1.0,
        time_max: None,
    },
    goals::EXPERIMENT,
    isolation::EXPERIMENT,
    recovery::EXPERIMENT,
    demo::EXPERIMENT,
    pressure::EXPERIMENT,
    reads::EXPERIMENT,
    backends::EXPERIMENT,
    pointers::EXPERIMENT,
    hints::EXPERIMENT,
    slo::EXPERIMENT,
    cost::EXPERIMENT,
    serving::EXPERIMENT,
    Experiment {
        name: "infiniswap",
        about: "application performance with 100, 75 and 50 % of the working set in memory",
        paper: Some(
            "Infiniswap (NSDI '17), slides 5-13 and 57-59: VoltDB, Memcached, PowerGraph, GraphX",
        ),
        parts: &[Part {
            programs: &[
                program("memcached-get95"),
                program("memcached-ycsb-a"),
                program("redis-ycsb-a"),
                program("rmat-pagerank"),
                program("spark-pagerank"),
            ],
            variants: &[Below::Local, CANVAS, Below::Disk],
            percents: &[100, 75, 50],
            how: How::Alone,
        }],
        not_yet: &[
            "donors on other machines: those of the bench (experiment far) run on this host",
        ],
        repeats: REPEATS,
        scale: 1.0,
        time_max: None,
    },
    Experiment {
        name: "fastswap-redis",
        about: "redis throughput over time, half of it local",
        paper: Some("FastSwap (shared memory swapping for virtual machines), figures 2 and 9"),
        parts: &[Part {
            programs: &[program("redis-ycsb-a"), program("redis-ycsb-c")],
            variants: &[Below::Local, CANVAS, Below::Zswap, Below::Disk],
            percents: &[50],
            how: How::Alone,
        }],
        not_yet: &["figure 9's hybrid swap-out: experiment far has pools that overflow"],
        repeats: REPEATS,
        scale: 1.0,
        time_max: None,
    },
    Experiment {
        name: "fastswap-tables",
        about: "Spark and redis on disk, on zswap and on canvas with and without compression: speed, pages a second, far bytes",
        paper: Some("FastSwap, tables I-III"),
        parts: &[
            Part {
                programs: &[
                    program("spark-lr"),
                    program("spark-kmeans"),
                    program("spark-bayes"),
                    program("spark-pagerank"),
                ],
                variants: TABLES,
                percents: &[75, 50],
                how: How::Alone,
            },
            Part {
                programs: &[program("spark-lr"), program("redis-ycsb-c")],
                variants: TABLES,
                percents: &[50],
                how: How::Together,
            },
        ],
        not_yet: &[],
        repeats: REPEATS,
        scale: 1.0,
        time_max: None,
    },
    Experiment {
        name: "canvas-fig2",
        about: "slowdown of programs that run together against each alone, at 25 % local memory",
        paper: Some("Canvas (NSDI '23), figure 2"),
        parts: &[
            Part {
                programs: &[
                    program("snappy"),
                    program("memcached-get95"),
                    program("xgboost"),
                    program("spark-pagerank"),
                ],
                variants: PEERS,
                percents: &[25],
                how: How::Together,
            },
            Part {
                programs: &[
                    program("snappy"),
                    program("memcached-get95"),
                    program("xgboost"),
                    program("spark-lr"),
                ],
                variants: PEERS,
                percents: &[25],
                how: How::Together,
            },
        ],
        not_yet: &[],
        repeats: REPEATS,
        scale: 1.0,
        time_max: None,
    },
    Experiment {
        name: "canvas-fig4",
        about: "allocation of swap entries and swap-out with 1 to 16 threads, with and without reservations",
        paper: Some("Canvas, figure 4 (and figure 12)"),
        parts: &[Part {
            programs: &THREADS,
            variants: &[CANVAS, NO_RESERVATIONS, Below::Zram],
            percents: &[25],
            how: How::Alone,
        }],
        not_yet: &[],
        repeats: REPEATS,
        scale: 1.0,
        time_max: None,
    },
    Experiment {
        name: "canvas-table4",
        about: "swap-out throughput of programs that run together, with and without reservations",
        paper: Some("Canvas, table 4"),
        parts: &[Part {
            programs: &[
                program("snappy"),
                program("memcached-get95"),
                program("xgboost"),
                program("spark-lr"),
            ],
            variants: &[CANVAS, NO_RESERVATIONS, Below::Zram],
            percents: &[25],
            how: How::Together,
        }],
        not_yet: &[],
        repeats: REPEATS,
        scale: 1.0,
        time_max: None,
    },
    Experiment {
        name: "canvas-table5",
        about: "contribution and accuracy of prefetchers, Leap's, the kernel's and canvas's with both tiers: Spark with three native programs",
        paper: Some("Canvas, table 5"),
        parts: &[
            prefetchers_beside(&[
                program("spark-lr"),
                program("snappy"),
                program("memcached-get95"),
                program("xgboost"),
            ]),
            prefetchers_beside(&[
                program("spark-kmeans"),
                program("snappy"),
                program("memcached-get95"),
                program("xgboost"),
            ]),
            prefetchers_beside(&[
                program("spark-triangles"),
                program("snappy"),
                program("memcached-get95"),
                program("xgboost"),
            ]),
        ],
        not_yet: &[],
        repeats: 3,
        scale: 0.5,
        time_max: None,
    },
    Experiment {
        name: "xdm-sweep",
        about: "the share that can be far at an equal slowdown: local memory from 100 down to 10 %",
        paper: Some("xDM (SC '24), offloadable share at equal latency"),
        parts: &[Part {
            programs: &[],
            variants: PEERS,
            percents: &[100, 90, 80, 70, 60, 50, 40, 30, 20, 10],
            how: How::Alone,
        }],
        not_yet: &[
            "backends among which `canvas dispatch` chooses; for several at once see `backends`",
        ],
        repeats: 3,
        scale: 0.5,
        time_max: None,
    },
    Experiment {
        name: "canvas-fig10",
        about: "slowdown under isolation alone",
        paper: Some("Canvas, figures 9-11 and 13, table 3"),
        parts: &[],
        not_yet: &[
            "these figures: experiment isolation has their programs together, with and without shares",
        ],
        repeats: REPEATS,
        scale: 1.0,
        time_max: None,
    },
];

/// Programs together under each prefetcher, and canvas's with and without the application tier.
const fn prefetchers_beside(programs: &'static [Program]) -> Part {
    Part {
        programs,
        variants: &[
            Below::Canvas(&["-o", "prefetch=leap"]),
            Below::Canvas(&["-o", "prefetch=readahead"]),
            Below::Canvas(&["-o", "app-tier=off"]),
            Below::Canvas(&["-o", "app-tier=threads"]),
            CANVAS,
        ],
        percents: &[25],
        how: How::OnlyTogether,
    }
}

const fn writers(
    args: &'static [&'static str],
    parameters: &'static [(&'static str, &'static str)],
) -> Program {
    Program {
        workload: "random-write",
        args,
        parameters,
        ..NO_PROGRAM
    }
}

const fn readers(
    args: &'static [&'static str],
    parameters: &'static [(&'static str, &'static str)],
) -> Program {
    Program {
        workload: "random-read",
        args,
        parameters,
        ..NO_PROGRAM
    }
}

/// Random reads with increasing numbers of threads.
const READERS: [Program; 4] = [
    readers(&["--threads", "1"], &[("threads", "1")]),
    readers(&["--threads", "2"], &[("threads", "2")]),
    readers(&["--threads", "4"], &[("threads", "4")]),
    readers(&["--threads", "8"], &[("threads", "8")]),
];

/// Random writes with increasing numbers of threads.
const THREADS: [Program; 5] = [
    writers(&["--threads", "1"], &[("threads", "1")]),
    writers(&["--threads", "2"], &[("threads", "2")]),
    writers(&["--threads", "4"], &[("threads", "4")]),
    writers(&["--threads", "8"], &[("threads", "8")]),
    writers(&["--threads", "16"], &[("threads", "16")]),
];

/// Finds an experiment by name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|e| e.name == name)
}

/// Finds a script by name.
pub fn find_script(name: &str) -> Option<&'static Script> {
    SCRIPTS.iter().find(|s| s.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_have_names_of_their_own_and_something_to_say() {
        for (i, e) in EXPERIMENTS.iter().enumerate() {
            assert!(
                EXPERIMENTS[..i].iter().all(|o| o.name != e.name),
                "{}",
                e.name
            );
            assert!(!e.parts.is_empty() || !e.not_yet.is_empty(), "{}", e.name);
            // The demonstration only shows figures, so one repeat is enough.
            let repeats = if e.name == "demo" { 1 } else { 3 };
            assert!(e.repeats >= repeats && e.scale > 0.0, "{}", e.name);
            for part in e.parts {
                assert!(!part.variants.is_empty(), "{}", e.name);
                assert!(
                    part.percents.iter().all(|p| (1..=100).contains(p)),
                    "{}",
                    e.name
                );
                assert!(
                    matches!(part.how, How::Alone | How::SideBySide) || part.programs.len() > 1,
                    "{}",
                    e.name
                );
                // Company without other programs would never end.
                let own = part.programs.iter().filter(|p| p.company.is_none());
                assert!(part.programs.is_empty() || own.count() > 0, "{}", e.name);
                let company = part.programs.iter().any(|p| p.company.is_some());
                assert!(!company || part.how != How::Alone, "{}", e.name);
            }
        }
        assert!(find("quick").is_some() && find(SWEEP).is_some() && find("no").is_none());
    }

    #[test]
    fn every_workload_of_an_experiment_is_one_of_ours() {
        let all = crate::registry::workloads();
        let programs = EXPERIMENTS
            .iter()
            .flat_map(|e| e.parts)
            .flat_map(|p| p.programs);
        for p in programs {
            assert!(
                crate::registry::find(&all, p.workload).is_some(),
                "{}",
                p.workload
            );
        }
    }
}
