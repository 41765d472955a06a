//! Programs that follow pointers, with most of their pages on donors behind a link.

use super::{Below, Experiment, FAR, FarParts, How, Part, program};
use crate::rate::Rate;

/// A variant with this setting of the application tier.
const fn tier(flags: &'static [&'static str]) -> Below {
    Below::CanvasFar(FarParts {
        link: Some(Rate::mbit(1000)),
        flags,
        ..FAR
    })
}

/// Definition of the experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "pointers",
    about: "lists, trees and maps with nodes in random order, on donors behind a link, with and without the application tier",
    paper: None,
    parts: &[Part {
        programs: &[
            program("linked-list"),
            program("linked-tree"),
            program("linked-python"),
            program("java-linkedlist"),
            program("java-hashmap"),
            program("java-treemap"),
        ],
        variants: &[
            Below::Local,
            tier(&["-o", "app-tier=off"]),
            tier(&["-o", "app-tier=auto"]),
            tier(&["-o", "app-tier=refs"]),
        ],
        percents: &[25],
        how: How::Alone,
    }],
    not_yet: &[],
    repeats: 3,
    scale: 1.0,
    time_max: None,
};
