//! Programs that hint what they need next (canvas.h), with most of their pages on donors.

use super::{Below, Experiment, How, NO_PROGRAM, Part, Program, behind, far};

/// The program with and without its hints.
const fn both(workload: &'static str) -> [Program; 2] {
    [
        Program {
            workload,
            args: &["plain"],
            parameters: &[("hints", "off")],
            ..NO_PROGRAM
        },
        Program {
            workload,
            parameters: &[("hints", "on")],
            ..NO_PROGRAM
        },
    ]
}

const FAR: &[Below] = &[Below::Local, far("none"), behind(1000)];

const fn part(programs: &'static [Program]) -> Part {
    Part {
        programs,
        variants: FAR,
        percents: &[25],
        how: How::Alone,
    }
}

/// Definition of the experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "hints",
    about: "a scan of a B+ tree and walkers on a graph with hints and without, over loopback and a link",
    paper: None,
    parts: &[part(&both("btree-scan")), part(&both("graph-walk"))],
    not_yet: &[],
    repeats: 3,
    scale: 1.0,
    time_max: None,
};
