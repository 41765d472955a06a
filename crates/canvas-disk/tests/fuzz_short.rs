//! Short runs of this crate's fuzz targets ([`short`]).

mod common;
#[path = "common/ring.rs"]
mod ring;
#[path = "../../../fuzz/short.rs"]
mod short;

#[test]
fn nbd() {
    short::short_run("nbd", 3_000, common::nbd_any);
}

#[test]
fn ring() {
    short::short_run("ring", 3_000, ring::ring_any);
}
