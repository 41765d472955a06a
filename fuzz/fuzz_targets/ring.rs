//! A guest's memory with a queue of a virtio disk in it.
#![no_main]

#[path = "../../crates/canvas-disk/tests/common/ring.rs"]
mod ring;

libfuzzer_sys::fuzz_target!(|image: &[u8]| ring::ring_any(image));
