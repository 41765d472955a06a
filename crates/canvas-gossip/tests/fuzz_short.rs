//! Short runs of this crate's fuzz target ([`short`]).

mod common;
#[path = "../../../fuzz/short.rs"]
mod short;

#[test]
fn gossip() {
    short::short_run("gossip", 20_000, common::gossip_any);
}
