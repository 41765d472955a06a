//! Vocabulary shared by all canvas crates. No I/O, no allocation, no unsafe.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(not(all(
    target_os = "linux",
    target_arch = "x86_64",
    target_pointer_width = "64"
)))]
compile_error!("canvas is for Linux on x86-64: its system calls, code and layouts are of that ABI");

pub mod buckets;
pub mod contention;
pub mod controller;
pub mod elf;
pub mod exit;
pub mod layout;
pub mod lz;
pub mod magazine;
pub mod numa;
pub mod page;
pub mod policy;
pub mod proactive;
pub mod procfs;
pub mod rdma;
pub mod score;
pub mod slo;
pub mod spin;
pub mod sync;
pub mod unit;
pub mod units;

pub use lz::LzScratch;
pub use numa::{NodeBound, NodeBoundError};
pub use page::{ExtentRef, PAGE_SHIFT, PAGE_SIZE, PageBuf, PageId, SwapEntry};
pub use policy::{AppTier, Codec, Prefetch};
pub use proactive::Threshold;
pub use slo::Slo;
pub use unit::{ReadUnit, ReadUnitError};
