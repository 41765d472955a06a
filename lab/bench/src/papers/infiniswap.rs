//! Infiniswap: the slides of the talk.

use super::Measure::OfLocal;
use super::Stated::Number;
use super::{Paper, Row, Unread};

static PAPER: Paper = Paper {
    name: "Infiniswap",
    title: "Efficient Memory Disaggregation with Infiniswap, NSDI '17 (slides)",
    testbed: "32 machines of 16 cores and 64 GB, 56 Gbit/s InfiniBand",
};

/// Three quarters local: the slides show only disk. The bars have numbers but the text has no names, so the
/// order of the bars is that of the programs below them.
const THREE_QUARTERS: &str = "slides 5 to 13, bars in their order";
/// Half local: disk and Infiniswap.
const HALF: &str = "slides 57 and 58, bars in their order";

const fn row(
    source: &'static str,
    what: &'static str,
    numbers: &'static [(&'static str, super::Stated)],
    programs: &'static [&'static str],
    percent: u32,
) -> Row {
    Row {
        experiment: "infiniswap",
        paper: &PAPER,
        source,
        what,
        numbers,
        measure: OfLocal,
        programs,
        local_percent: Some(percent),
        co_run: Some(false),
    }
}

const NONE: &[&str] = &[];
const MEMCACHED: &[&str] = &["memcached"];
const GRAPH: &[&str] = &["rmat", "graph-", "graph_"];
const GRAPHX: &[&str] = &["spark-pagerank", "spark-pr", "graphx-pagerank"];

#[rustfmt::skip]
pub(super) static ROWS: &[Row] = &[
    row(THREE_QUARTERS, "VoltDB (TPC-C), three quarters of the working set local", &[("disk", Number(0.18))], NONE, 75),
    row(THREE_QUARTERS, "Memcached (Facebook SYS), three quarters of the working set local", &[("disk", Number(0.47))], MEMCACHED, 75),
    row(THREE_QUARTERS, "PowerGraph (TunkRank), three quarters of the working set local", &[("disk", Number(0.94))], GRAPH, 75),
    row(THREE_QUARTERS, "GraphX (PageRank), three quarters of the working set local", &[("disk", Number(0.97))], GRAPHX, 75),
    row(HALF, "VoltDB, half of the working set local", &[("disk", Number(0.04)), ("Infiniswap", Number(0.66))], NONE, 50),
    row(HALF, "Memcached, half of the working set local", &[("disk", Number(0.06)), ("Infiniswap", Number(0.77))], MEMCACHED, 50),
    row(HALF, "PowerGraph, half of the working set local", &[("disk", Number(0.12)), ("Infiniswap", Number(0.61))], GRAPH, 50),
    row(HALF, "GraphX, half of the working set local", &[("disk", Number(0.04)), ("Infiniswap", Number(0.08))], GRAPHX, 50),
];

pub(super) static UNREAD: &[Unread] = &[];
