//! xDM: the slides of the talk.

use super::Measure::{LocalSaved, OverDisk};
use super::Stated::{Number, UpTo};
use super::{Paper, Row, Unread};

static PAPER: Paper = Paper {
    name: "xDM",
    title: "Boosting Data Center Performance via Intelligently Managed Multi-backend Disaggregated Memory (slides)",
    testbed: "virtual machines over RDMA, several SSDs and simulated CXL memory",
};

/// Table VI: swap performance over the baseline of each backend: Linux swap on SSD, Fastswap on
/// RDMA and on DRAM.
macro_rules! speedup {
    ($what:literal, $programs:expr, $dram:literal, $ssd:literal, $rdma:literal) => {
        Row {
            experiment: "xdm-sweep",
            paper: &PAPER,
            source: "slides, table VI",
            what: concat!(
                $what,
                ", swap performance over the baseline (ours: over disk)"
            ),
            numbers: &[
                ("xDM on DRAM", Number($dram)),
                ("xDM on SSD", Number($ssd)),
                ("xDM on RDMA", Number($rdma)),
            ],
            measure: OverDisk,
            programs: $programs,
            local_percent: None,
            co_run: Some(false),
        }
    };
}

#[rustfmt::skip]
pub(super) static ROWS: &[Row] = &[
    speedup!("Stream", &["stream"], 1.32, 1.01, 1.25),
    speedup!("Linpack", &["linpack"], 1.18, 1.52, 1.09),
    speedup!("k-means of scikit-learn", &["sklearn", "scikit"], 1.64, 0.88, 1.40),
    speedup!("quicksort", &["quicksort", "sort"], 1.05, 0.86, 1.40),
    speedup!("Spark PageRank", &["spark-pagerank", "spark-pr"], 1.44, 1.01, 1.37),
    speedup!("BFS on GridGraph", &["bfs", "rmat"], 1.29, 1.18, 1.19),
    speedup!("inference in Tensorflow", &["inference"], 1.88, 1.51, 2.70),
    Row {
        experiment: "xdm-sweep",
        paper: &PAPER,
        source: "slides, experimental results",
        what: "swap performance at the same latency, greatest gain (ours: over disk)",
        numbers: &[("xDM", UpTo(3.9))],
        measure: OverDisk,
        programs: &[""],
        local_percent: None,
        co_run: Some(false),
    },
    Row {
        experiment: "xdm-sweep",
        paper: &PAPER,
        source: "slides, experimental results",
        what: "local memory saved at the same latency, greatest (ours: against disk, at most a quarter slower than all-local)",
        numbers: &[("xDM", UpTo(5.0))],
        measure: LocalSaved,
        programs: &[""],
        local_percent: None,
        co_run: Some(false),
    },
];

pub(super) static UNREAD: &[Unread] = &[Unread {
    experiment: "xdm-sweep",
    paper: &PAPER,
    figure: "the figure of the offloadable share of each program at equal latency",
}];
