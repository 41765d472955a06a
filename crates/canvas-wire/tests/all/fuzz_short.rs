//! Short runs of this crate's fuzz targets ([`short`]).

use crate::common;
#[path = "../../../../fuzz/short.rs"]
mod short;

use short::short_run;

#[test]
fn frames() {
    short_run("frames", 50_000, common::decode_any);
}

#[test]
fn session() {
    // Each run makes keys, which takes some hundred microseconds.
    short_run("session", 300, common::session_any);
}

#[test]
fn key() {
    short_run("key", 20_000, common::key_any);
}
