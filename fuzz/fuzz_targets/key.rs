//! Key files.
#![no_main]

#[path = "../../crates/canvas-wire/tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| common::key_any(bytes));
