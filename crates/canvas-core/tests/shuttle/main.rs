//! The lock-free parts under shuttle's scheduler: `cargo test -p canvas-core --features shuttle --test shuttle`.

#![cfg(feature = "shuttle")]

#[path = "../sim/mod.rs"]
mod sim;
#[path = "../toy/mod.rs"]
mod toy;

mod far;
mod locks;
mod nearby;
mod pool;
mod slots;
mod vm;
mod words;
