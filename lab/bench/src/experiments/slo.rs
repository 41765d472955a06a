//! How much memory a target saves, and at what slowdown, beside TMO's loop over the kernel's reclaim.

use super::{Below, Experiment, How, Part, Program, program};

/// So much local memory and pool that the target alone decides; and without one, for what canvas itself costs.
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

/// A part for each program, so that `--with` chooses it alone.
const fn part(programs: &'static [Program], variants: &'static [Below]) -> Part {
    Part {
        programs,
        variants,
        percents: &[],
        how: How::SideBySide,
    }
}

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "slo",
    about: "what targets of --slo save beside TMO's loop over zram, each side by side with the plain program",
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
