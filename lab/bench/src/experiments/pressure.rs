//! Far memory that is nearly full: above 75 %, hot pages lose their reservations, and above 90 % each page
//! gives up its entry when it is faulted in (Canvas §5.1, figure 7).

use super::{Below, CANVAS, Experiment, How, NO_PROGRAM, NO_RESERVATIONS, Part, Program, REPEATS};

/// The copies of 256 MiB of the bench's patterns take 120 MiB, those of the evicted part 92 MiB: this pool is
/// under pressure as long as all copies are kept.
const TIGHT: Below = Below::Canvas(&["--pool", "140M"]);
/// This pool hardly holds the evicted part.
const NEARLY_FULL: Below = Below::Canvas(&["--pool", "110M"]);

/// 256 MiB of data, in bytes as the pool is.
const fn of_256_mib(workload: &'static str) -> Program {
    Program {
        workload,
        args: &["--mib", "256", "--seconds", "5"],
        ..NO_PROGRAM
    }
}

/// Definition of the experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "canvas-fig7",
    about: "reservations with plenty of far memory, above 75 % of it and nearly full; and no reservations",
    paper: Some("Canvas, figure 7"),
    parts: &[Part {
        programs: &[of_256_mib("zipf"), of_256_mib("random-write")],
        variants: &[CANVAS, TIGHT, NEARLY_FULL, NO_RESERVATIONS],
        percents: &[25],
        how: How::Alone,
    }],
    not_yet: &[],
    repeats: REPEATS,
    scale: 1.0,
    time_max: None,
};
