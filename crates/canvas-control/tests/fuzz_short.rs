//! Short runs of the fuzz target for control sockets ([`short`]).

mod common;
#[path = "../../../fuzz/short.rs"]
mod short;

#[test]
fn control() {
    short::short_run("control", 50_000, common::control_any);
}
