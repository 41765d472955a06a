//! Decoders of frames: no panic, and one form of each frame only.
#![no_main]

#[path = "../../crates/canvas-wire/tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| common::decode_any(bytes));
