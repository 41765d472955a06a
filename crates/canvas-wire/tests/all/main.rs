//! All of this package's tests but those of its own modules, in one program: each program more is built for seconds.

#[path = "../common/mod.rs"]
mod common;
mod frames;
mod fuzz_short;
mod golden;
mod sessions;
