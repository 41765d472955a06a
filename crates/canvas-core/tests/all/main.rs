//! All of this package's tests but those of its own modules, in one program: each program more is built for seconds.

#![cfg(not(feature = "shuttle"))]

#[path = "../sim/mod.rs"]
mod sim;

mod codec;
mod common;
mod crafted;
mod digests;
mod entry;
mod extents;
mod fsm;
mod hash;
mod pool;
mod pools;
mod shared_model;
mod slots;
mod units;
mod uses;
mod vm_model;

// What compresses and hashes thousands of pages takes hours under Miri.
#[cfg(not(miri))]
mod class_waste;
#[cfg(not(miri))]
mod far_model;
#[cfg(not(miri))]
mod pool_model;
#[cfg(not(miri))]
mod pool_recover;
#[cfg(not(miri))]
mod tier;
#[cfg(not(miri))]
#[path = "../toy/mod.rs"]
mod toy;
