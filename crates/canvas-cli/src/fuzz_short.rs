//! The fuzz target for what comes over control sockets, shortly ([`short`]).

#[path = "../tests/common/messages.rs"]
mod messages;
#[path = "../../../fuzz/short.rs"]
mod short;

#[test]
fn control() {
    short::short_run("control", 50_000, messages::control_any);
}
