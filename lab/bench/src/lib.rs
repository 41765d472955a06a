//! The bench: runs real programs under canvas, kernel swap and all-local memory, and compares them.
//!
//! An *experiment* is a set of *cells* (workload × variant × local ratio, alone or in a co-run); the engine
//! runs them interleaved and repeated, and appends one [`record::Sample`] per run to a results file. Report
//! and comparison read only such files.
#![forbid(unsafe_code)]

pub mod builtin;
mod canvas_report;
pub mod cells;
pub mod codec;
pub mod compare;
mod counts;
pub mod engine;
pub mod experiments;
pub mod external;
#[cfg(test)]
mod fixture;
pub mod host;
pub mod link;
pub mod moved;
mod outside;
pub mod papers;
pub mod processes;
pub mod rate;
pub mod read;
pub mod record;
pub mod registry;
pub mod report;
mod sampler;
pub mod stats;
pub mod targets;
pub mod variant;
pub mod words;
pub mod workload;
