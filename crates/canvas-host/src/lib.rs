//! What a host has of memory: for runs, which leave some of it to others, and for donors, which lend it.
//!
//! The host is whatever holds a process: the machine, or a control group with a limit on memory (of version 1 or
//! 2) that the process or an ancestor of its group is in.

#![forbid(unsafe_code)]

pub mod groups;
pub mod memory;

pub use groups::Group;
pub use memory::{Host, HostError, HostMemory};
