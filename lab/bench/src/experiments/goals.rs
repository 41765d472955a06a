//! Compares the pager with what a user would choose instead: patterns and programs, on all processors and on
//! one.

use super::{Below, CANVAS, Experiment, How, NO_PROGRAM, Part, Program, REPEATS};
use crate::targets::goals::{DATA_1G, LOCAL_1G, LOCAL_64M};

/// Without zswap: once it was on, the kernel faults in no whole folios.
const BESIDE: &[Below] = &[Below::Local, CANVAS, Below::Zram, Below::Zram64k];

/// One part per program, so that `--with` can choose it.
const fn part(programs: &'static [Program], percents: &'static [u32]) -> Part {
    Part {
        programs,
        variants: BESIDE,
        percents,
        how: How::Alone,
    }
}

/// On all processors, and on one.
const fn twice(workload: &'static str) -> [Program; 2] {
    both(Program {
        workload,
        ..NO_PROGRAM
    })
}

const fn both(program: Program) -> [Program; 2] {
    [
        program,
        Program {
            one_processor: true,
            ..program
        },
    ]
}

/// Reads `mib` MiB of pages within a fixed limit.
const fn reads_within(
    args: &'static [&'static str],
    mib: u64,
    parameters: &'static [(&'static str, &'static str)],
) -> Program {
    Program {
        workload: "random-read",
        args,
        parameters,
        ratio_of_bytes: Some(mib << 20),
        ..NO_PROGRAM
    }
}

const READS_64M: Program = reads_within(&["--mib", "256"], 64, LOCAL_64M);
const READS_1G: Program = reads_within(&["--mib", "4096"], 1024, LOCAL_1G);

/// 1.2 GB of data.
const REDIS_1G: Program = Program {
    workload: "redis-set-get",
    parameters: DATA_1G,
    larger: Some(10),
    ..NO_PROGRAM
};

/// A limit of about a quarter of its memory.
const REDIS_64M: Program = Program {
    workload: "redis-set-get",
    parameters: LOCAL_64M,
    larger: Some(2),
    ratio_of_bytes: Some(64 << 20),
    ..NO_PROGRAM
};

/// Definition of the experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: crate::targets::goals::EXPERIMENT,
    about: "the pager's goals against zram with pages and with folios of 64 KiB: patterns and ten programs, on all processors and on one",
    paper: None,
    parts: &[
        part(&twice("random-read"), &[25]),
        part(&twice("random-write"), &[25]),
        part(&twice("fill"), &[25]),
        part(&twice("sequential"), &[25]),
        part(&twice("zipf"), &[50, 25]),
        part(&both(READS_64M), &[100]),
        part(&both(READS_1G), &[100]),
        part(&both(REDIS_64M), &[100]),
        part(&both(REDIS_1G), &[25]),
        // The ten programs of the mean and the worst.
        part(&twice("redis-get95"), &[50, 25]),
        part(&twice("redis-set-get"), &[50, 25]),
        part(&twice("memcached-get95"), &[50, 25]),
        part(&twice("java"), &[50, 25]),
        part(&twice("xgboost"), &[50, 25]),
        part(&twice("sklearn-kmeans"), &[50, 25]),
        part(&twice("spark-lr"), &[50, 25]),
        part(&twice("spark-pagerank"), &[50, 25]),
        part(&twice("snappy"), &[50, 25]),
        part(&twice("quicksort"), &[50, 25]),
    ],
    not_yet: &["a 7.x kernel in a guest on this host"],
    repeats: REPEATS,
    scale: 1.0,
    time_max: None,
};
