//! Cost of the controller of `--slo` when it evicts nothing, and the noise between two equal runs.

use super::{Below, CANVAS, Experiment, How, Part, program};

/// The default, written out.
const SAME: Below = Below::Canvas(&["--slo", "off"]);
/// Far below the slowdown by paging here: the controller runs, and evicts nothing.
const TARGET: Below = Below::Canvas(&["--slo", "0.1%"]);

/// Definition of the experiment.
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
