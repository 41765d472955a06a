//! Extents: those that a program gives to the agent, and those that come back from donors.
#![no_main]
#![allow(dead_code)]

#[path = "../../crates/canvas-agent/tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| common::extent_any(bytes));
