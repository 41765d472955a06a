//! What the controller of `--slo` costs where it takes nothing, and how far from nothing two equal runs are.

use super::{Below, CANVAS, Experiment, How, Part, program};

/// The same, written out.
const SAME: Below = Below::Canvas(&["--slo", "off"]);
/// Far below what paging takes here: the controller looks, and lets nothing leave.
const TARGET: Below = Below::Canvas(&["--slo", "0.1%"]);

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "cost",
    about: "redis with half of its memory local, with the controller of --slo and without, side by side",
    paper: None,
    parts: &[Part {
        programs: &[program("redis-load")],
        variants: &[CANVAS, SAME, TARGET],
        percents: &[50],
        how: How::SideBySide,
    }],
    not_yet: &[],
    repeats: 4,
    scale: 0.6,
    time_max: None,
};
