//! Programs over each place of far memory, and whether disk and donor together give the sum of both rates.

use super::{
    Below, CANVAS, Experiment, FAR, FarParts, How, NO_PROGRAM, Part, Program, far, program,
};
use crate::rate::Rate;

/// Limit on the disk's reads per second, and a donors' link of about the same rate.
const DISK: Option<u32> = Some(4000);
const LINK: Option<Rate> = Some(Rate::mbit(100));

/// A far variant with these limits.
const fn bound(copies: &'static str, disk: Option<u32>, link: Option<Rate>) -> Below {
    Below::CanvasFar(FarParts {
        copies,
        link,
        disk_reads_per_s: disk,
        ..FAR
    })
}

/// A reader nearly all of whose reads go beyond the pool.
const READER: Program = Program {
    workload: "random-read",
    args: &["--mib", "128", "--seconds", "12", "--threads", "8"],
    parameters: &[("threads", "8")],
    ..NO_PROGRAM
};

/// Each place of far memory, and the kernel's swap on zram and on the same disk.
const EACH: &[Below] = &[
    Below::Local,
    CANVAS,
    far("disk"),
    far("none"),
    far("1+disk"),
    Below::Zram,
    Below::Disk,
];

/// A part per program, so that `--with` can choose it.
const fn over_each(programs: &'static [Program]) -> Part {
    Part {
        programs,
        variants: EACH,
        percents: &[25],
        how: How::Alone,
    }
}

/// Definition of the experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "backends",
    about: "far memory on a disk, a donor and both, with and without limits on their rates; programs over the pool, disk, donor and both, against swap",
    paper: Some("xDM (SC '24), several backends at once"),
    parts: &[
        Part {
            programs: &[READER],
            variants: &[
                bound("disk", DISK, None),
                bound("none", None, LINK),
                bound("1+disk", DISK, LINK),
                far("disk"),
                far("none"),
                far("1+disk"),
            ],
            percents: &[12],
            how: How::Alone,
        },
        over_each(&[program("random-read")]),
        over_each(&[program("random-write")]),
        over_each(&[program("sequential")]),
        over_each(&[program("zipf")]),
        over_each(&[program("redis-get95")]),
        over_each(&[program("memcached-get95")]),
    ],
    not_yet: &["the path that `canvas tune` chooses while a program runs"],
    repeats: 3,
    scale: 0.5,
    time_max: None,
};
