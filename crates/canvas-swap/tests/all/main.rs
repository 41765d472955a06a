//! All of this package's tests but those of its own modules, in one program: each program more is built for seconds.

#![cfg(not(feature = "shuttle"))]

mod class_waste;
mod codec;
mod common;
mod crafted;
mod digests;
mod entry;
mod extents;
mod fsm;
mod hash;
mod pool;
mod pool_model;
mod pool_recover;
mod pools;
mod slots;
mod units;
mod uses;
