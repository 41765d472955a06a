//! All of this package's tests but those of its own modules, in one program: each program more is built for seconds.

#![cfg(not(feature = "shuttle"))]

#[path = "../sim/mod.rs"]
mod sim;
#[path = "../toy/mod.rs"]
mod toy;

mod class_waste;
mod codec;
mod common;
mod crafted;
mod digests;
mod entry;
mod extents;
mod far_model;
mod fsm;
mod hash;
mod pool;
mod pool_model;
mod pool_recover;
mod pools;
mod shared_model;
mod slots;
mod tier;
mod units;
mod uses;
mod vm_model;
