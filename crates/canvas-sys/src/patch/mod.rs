//! Redirects the system calls of a library: which sites can be redirected, what replaces them, and code that is
//! prepared once for all processes of a run.
//!
//! Works on slices alone: the caller reads or maps the code. The decoder and [`prepared::append`] allocate.
#![forbid(unsafe_code)]

pub mod calls;
pub mod prepared;
pub mod sites;
