//! Clients of a disk over NBD: the handshake, and requests.
#![no_main]

#[path = "../../crates/canvas-disk/tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| common::nbd_any(bytes));
