//! Backends: where far pages are.
//!
//! * [`backend`]: the [`Backend`] trait, batches in and completions out, for every kind of far
//!   memory and for decorators over them;
//! * [`pool`]: [`LocalPool`], the compressed pool in this process's own memory, with direct calls
//!   for the fault and reclaim paths;
//! * [`queue`]: [`LocalQueue`], a [`Backend`] over a [`LocalPool`].
//!
//! No allocation, no system call, no thread identity: all arrays come from the caller, and a forked
//! child goes on with its own copy.
#![no_std]
#![forbid(unsafe_code)]

pub mod backend;
pub mod pool;
pub mod queue;

pub use backend::{Backend, BufId, Completion, Done, Failure, Op, PageBuffers, Request};
pub use canvas_swap::{Chosen, Lz, LzScratch, PoolBudget};
pub use pool::{
    Kind, LoadError, LocalPool, Outcome, PoolArrays, PoolForkGuard, PoolStats, Scratch, SlotMem,
    Spared, StoreError,
};
pub use queue::LocalQueue;
