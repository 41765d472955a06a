//! Programs whose local memory grows while they run.

use super::{Below, CANVAS, Experiment, How, Part, REPEATS, program};

/// Pages come back only when they are touched.
const ON_DEMAND: Below = Below::Canvas(&["-o", "proactive-threshold=off"]);

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "fastswap-recovery",
    about: "redis when a sibling exits, or its limit is raised, with and without proactive swap-in",
    paper: Some("FastSwap, table IV and figure 2"),
    parts: &[
        Part {
            programs: &[program("redis-sibling-exits")],
            variants: &[CANVAS, ON_DEMAND],
            percents: &[60],
            how: How::Alone,
        },
        Part {
            programs: &[program("redis-limit-raised")],
            variants: &[CANVAS, ON_DEMAND],
            percents: &[50],
            how: How::Alone,
        },
    ],
    not_yet: &[],
    repeats: REPEATS,
    scale: 1.0,
    time_max: None,
};
