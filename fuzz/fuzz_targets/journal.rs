//! The journal that an agent leaves to the next, and what it says there of itself.
#![no_main]
#![allow(dead_code)]

#[path = "../../crates/canvas-agent/tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| common::journal_any(bytes));
