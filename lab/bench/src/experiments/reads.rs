//! Cost of a single-page read from a donor, by the program itself and by its agent.

use super::{Below, Experiment, FAR, FarParts, How, NO_PROGRAM, Part, Program};
use crate::rate::Rate;

/// The program reads over its own direct read channels.
const BY_ITSELF: &[&str] = &["-o", "lanes=on"];
/// The agent reads for the program.
const BY_AGENT: &[&str] = &["-o", "lanes=off"];

/// One copy, over the loopback device or behind a link.
const fn one_copy(link: Option<Rate>, flags: &'static [&'static str]) -> Below {
    Below::CanvasFar(FarParts { link, flags, ..FAR })
}

/// Long enough for stable figures, at any scale.
const READER: Program = Program {
    workload: "random-read",
    args: &["--mib", "128", "--seconds", "4"],
    ..NO_PROGRAM
};

/// Definition of the experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "reads",
    about: "single pages read from donors, by the program or its agent: over loopback and links, on all processors and one",
    paper: None,
    parts: &[Part {
        programs: &[
            READER,
            Program {
                one_processor: true,
                ..READER
            },
        ],
        variants: &[
            one_copy(None, BY_ITSELF),
            one_copy(None, BY_AGENT),
            one_copy(Some(Rate::mbit(1000)), BY_ITSELF),
            one_copy(Some(Rate::mbit(1000)), BY_AGENT),
            one_copy(Some(Rate::mbit(2500)), BY_ITSELF),
            one_copy(Some(Rate::mbit(2500)), BY_AGENT),
        ],
        percents: &[25],
        how: How::Alone,
    }],
    not_yet: &["processor time of the agent apart from that of the program"],
    repeats: 3,
    scale: 1.0,
    time_max: None,
};
