//! Questions and answers at control sockets and at the host agent's.
#![no_main]
// Modules of the command, of which this needs the decoders.
#![allow(dead_code)]

mod options {
    /// As it is there; nothing decoded here depends on it.
    pub const SMALL_MIN: canvas_types::units::Size = canvas_types::units::Size::from_bytes(1 << 20);
}
#[path = "../../crates/canvas-cli/src/control"]
mod control {
    pub mod wire;
}
#[path = "../../crates/canvas-cli/src/host"]
mod host {
    pub mod hello;
    pub mod terms;
}

#[path = "../../crates/canvas-cli/tests/common/messages.rs"]
mod messages;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| messages::control_any(bytes));
