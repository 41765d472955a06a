//! Gossip: strangers' datagrams are refused, and what members say is judged.
#![no_main]

#[path = "../../crates/canvas-gossip/tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| common::gossip_any(bytes));
