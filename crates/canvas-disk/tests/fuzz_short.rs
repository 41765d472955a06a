//! This crate's fuzz target, shortly ([`short`]).

mod common;
#[path = "../../../fuzz/short.rs"]
mod short;

#[test]
fn nbd() {
    short::short_run("nbd", 3_000, common::nbd_any);
}
