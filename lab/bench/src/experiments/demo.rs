//! The bench's part of `make demo`; the script itself has the third scene, in which a donor is killed.

use std::time::Duration;

use super::{Below, Experiment, FAR, FarParts, How, NO_PROGRAM, PEERS, Part, Program, program};
use crate::rate::Rate;
use crate::variant::Tenancy;

/// One agent with a tenant per program; its donors are behind one link.
const ONE_LINK: Below = Below::CanvasFar(FarParts {
    link: Some(Rate::mbit(200)),
    tenancy: Tenancy::Each,
    ..FAR
});

/// A reader in address order, which takes all of the link it can get.
const fn reader(
    parameters: &'static [(&'static str, &'static str)],
    tenant_flags: &'static [&'static str],
) -> Program {
    Program {
        workload: "sequential",
        args: &["--mib", "96", "--seconds", "15"],
        parameters,
        tenant_flags,
        ..NO_PROGRAM
    }
}

/// Definition of the experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "demo",
    about: "the scenes of `make demo`: redis at a quarter of its memory against zram; tenants with weights 1 and 4 on one link",
    paper: None,
    parts: &[
        Part {
            programs: &[program("redis-set-get")],
            variants: PEERS,
            percents: &[25],
            how: How::Alone,
        },
        Part {
            programs: &[
                reader(&[("weight", "1")], &["-o", "weight=1"]),
                reader(&[("weight", "4")], &["-o", "weight=4"]),
            ],
            variants: &[ONE_LINK],
            percents: &[10],
            how: How::OnlyTogether,
        },
    ],
    not_yet: &[],
    repeats: 1,
    scale: 2.0,
    time_max: Some(Duration::from_secs(200)),
};
