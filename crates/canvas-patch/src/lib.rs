//! How the system calls of a library are led elsewhere: which sites can be, what takes their place, and code that is
//! prepared once for all processes of a run.
//!
//! Works on slices alone: whoever has the code in memory, or is to map it, does that.
#![forbid(unsafe_code)]

pub mod calls;
pub mod prepared;
pub mod sites;
