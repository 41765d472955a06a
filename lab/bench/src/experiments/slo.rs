//! Memory that a target saves, and the slowdown, compared with TMO's loop over the kernel's reclaim.

use super::{Below, Experiment, How, Part, Program, program};

/// Enough local memory and pool for only the target to matter; used without a target for the cost of canvas
/// itself.
const NO_TARGET: Below = Below::Canvas(&["--local", "4G", "--pool", "2G"]);
const TWO: Below = Below::Canvas(&["--local", "4G", "--pool", "2G", "--slo", "2%"]);
const FIVE: Below = Below::Canvas(&["--local", "4G", "--pool", "2G", "--slo", "5%"]);
const TEN: Below = Below::Canvas(&["--local", "4G", "--pool", "2G", "--slo", "10%"]);

const TARGETS: &[Below] = &[
    Below::Local,
    NO_TARGET,
    TWO,
    FIVE,
    TEN,
    Below::Tmo(2),
    Below::Tmo(5),
    Below::Tmo(10),
    Below::Tmo(20),
];
const ONE_TARGET: &[Below] = &[Below::Local, NO_TARGET, FIVE, Below::Tmo(5)];

/// A part per program, so that `--with` can choose it.
const fn part(programs: &'static [Program], variants: &'static [Below]) -> Part {
    Part {
        programs,
        variants,
        percents: &[],
        how: How::SideBySide,
    }
}

/// Definition of the experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "slo",
    about: "memory that targets of --slo save, against TMO's loop over zram, each side by side with the plain program",
    paper: Some("TMO (ASPLOS '22), section 3.3"),
    parts: &[
        part(&[program("redis-load")], TARGETS),
        part(&[program("memcached-load")], TARGETS),
        part(&[program("tables")], TARGETS),
        part(&[program("redis-phases")], ONE_TARGET),
        part(&[program("redis-diurnal")], ONE_TARGET),
    ],
    not_yet: &[],
    repeats: 3,
    scale: 1.0,
    time_max: None,
};
