//! Programs by where their far memory is, and whether disk and donor together give the sum of both.

use super::{
    Below, CANVAS, Experiment, FAR, FarParts, How, NO_PROGRAM, Part, Program, far, program,
};
use crate::rate::Rate;

/// Reads a second that the disk is bound to, and the link of the donors, which gives about as many.
const DISK: Option<u32> = Some(4000);
const LINK: Option<Rate> = Some(Rate::mbit(100));

/// One way, bound.
const fn bound(copies: &'static str, disk: Option<u32>, link: Option<Rate>) -> Below {
    Below::CanvasFar(FarParts {
        copies,
        link,
        disk_reads_per_s: disk,
        ..FAR
    })
}

/// Nearly all of its reads go beyond the pool.
const READER: Program = Program {
    workload: "random-read",
    args: &["--mib", "128", "--seconds", "12", "--threads", "8"],
    parameters: &[("threads", "8")],
    ..NO_PROGRAM
};

/// Where far memory may be, and the kernel's swap on zram and on the same disk.
const EACH: &[Below] = &[
    Below::Local,
    CANVAS,
    far("disk"),
    far("none"),
    far("1+disk"),
    Below::Zram,
    Below::Disk,
];

/// A part for each program, so that `--with` chooses it alone.
const fn over_each(programs: &'static [Program]) -> Part {
    Part {
        programs,
        variants: EACH,
        percents: &[25],
        how: How::Alone,
    }
}

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "backends",
    about: "far memory on a disk, a donor and both, bound and as they are; programs over the pool, disk, donor and both, beside swap",
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
