//! Questions and answers at control sockets and at the host agent's.
#![no_main]

#[path = "../../crates/canvas-control/tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| common::control_any(bytes));
