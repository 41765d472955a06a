//! The kernel as canvas uses it.
//!
//! Raw system calls through one instruction at a fixed address, userfaultfd, memory, signals, seccomp, lz4's block
//! functions and carry-less products. Nothing here calls libc or allocates, because all of it may run between a fault
//! and the moment the faulting thread continues. (Except in `patch`, before the program starts.)
#![no_std]

#[cfg(feature = "patch")]
extern crate alloc;

#[cfg(feature = "command")]
pub mod child;
pub mod clmul;
// A sanitizer intercepts some of these functions itself.
#[cfg(not(canvas_sanitizer))]
pub mod compat;
pub mod delivery;
pub mod descriptors;
pub mod file;
pub mod gate;
pub mod lock;
pub mod lz4;
pub mod mem;
pub mod net;
pub mod numa;
pub mod pagemap;
#[cfg(feature = "patch")]
pub mod patch;
pub mod probe;
pub mod proc;
pub mod process;
pub mod seccomp;
pub mod shmem;
pub mod signal;
pub mod trial;
pub mod uapi;
pub mod uffd;

pub use gate::{Errno, sys0, sys1, sys2, sys3, sys4, sys6};
