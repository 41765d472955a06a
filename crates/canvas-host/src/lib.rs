//! A host's memory, for runs, which leave some of it free, and for donors, which lend it.
//!
//! "Host" is whatever limits a process: the machine, or a control group with a memory limit
//! (version 1 or 2) that contains the process.

#![forbid(unsafe_code)]

pub mod groups;
pub mod memory;

pub use groups::Group;
pub use memory::{Host, HostError, HostMemory};
