//! Throughput of an agent's serving threads: bytes that tenants read, their cost, and the load of each
//! thread.

use super::{Below, Experiment, FAR, FarParts, How, NO_PROGRAM, Part, Program};
use crate::variant::Tenancy;

/// Agent and donors over the loopback device; the agent reads for the programs.
const fn threads(agent_flags: &'static [&'static str]) -> Below {
    Below::CanvasFar(FarParts {
        flags: &["-o", "lanes=off"],
        tenancy: Tenancy::Each,
        agent_flags,
        ..FAR
    })
}

const THREADS: &[Below] = &[
    threads(&["-o", "threads=1"]),
    threads(&["-o", "threads=2"]),
    threads(&["-o", "threads=auto"]),
];

const RANDOM: Program = Program {
    workload: "random-read",
    args: &["--mib", "128", "--seconds", "5"],
    ..NO_PROGRAM
};
const IN_ORDER: Program = Program {
    workload: "sequential",
    ..RANDOM
};

const fn tenants(programs: &'static [Program]) -> Part {
    Part {
        programs,
        variants: THREADS,
        percents: &[25],
        how: How::OnlyTogether,
    }
}

/// Definition of the experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "serving",
    about: "two and four tenants read through an agent with one serving thread, two, and a number that it chooses",
    paper: None,
    parts: &[
        tenants(&[RANDOM; 2]),
        tenants(&[RANDOM; 4]),
        tenants(&[IN_ORDER; 2]),
        tenants(&[IN_ORDER; 4]),
    ],
    not_yet: &["machines with more processors than tenants keep busy"],
    repeats: 3,
    scale: 1.0,
    time_max: None,
};
