//! Short runs of this crate's fuzz targets ([`short`]).

use crate::common;
#[path = "../../../../fuzz/short.rs"]
mod short;

use short::short_run;

#[test]
fn journal() {
    short_run("journal", 20_000, common::journal_any);
}

#[test]
fn extent() {
    short_run("extent", 10_000, common::extent_any);
}
