//! The bench: real programs run under canvas, kernel swap and all-local memory, side by side.
//!
//! An *experiment* is a set of *cells* (workload × variant × local ratio, alone or in a co-run);
//! the engine runs them interleaved and repeated, and appends one [`record::Sample`] a run to a
//! results file. The report and the comparison read nothing but such files.
#![forbid(unsafe_code)]

pub mod builtin;
pub mod cells;
pub mod compare;
#[cfg(test)]
mod fixture;
pub mod papers;
pub mod read;
pub mod external;
pub mod record;
pub mod report;
pub mod stats;
pub mod variant;
pub mod words;
pub mod workload;
