//! Handshake, sealed messages and the cutting of the stream: strangers' bytes are refused.
#![no_main]

#[path = "../../crates/canvas-wire/tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| common::session_any(bytes));
