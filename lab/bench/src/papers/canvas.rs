//! Canvas (Wang, Qiao et al.).

use super::Measure::{Accuracy, CoRunSlowdown, Contribution, EntriesPerS, OverZram, PagesOutPerS};
use super::Stated::{About, Number, UpTo};
use super::{Measure, Paper, Row, Stated, Unread};

static PAPER: Paper = Paper {
    name: "Canvas",
    title: "Canvas: Isolated and Adaptive Swapping for Multi-Applications on Remote Memory, NSDI '23",
    testbed: "two Xeon Gold 6252, remote memory over 40 Gbit/s InfiniBand, Linux 5.5",
};

const NATIVE: &[&str] = &["snappy", "memcached", "xgboost"];
const SNAPPY: &[&str] = &["snappy"];
const MEMCACHED: &[&str] = &["memcached"];
const XGBOOST: &[&str] = &["xgboost"];
const SPARK: &[&str] = &["spark", "graphx"];
const LR: &[&str] = &["spark-lr", "spark-logistic"];
const KM: &[&str] = &["spark-km", "spark-kmeans"];
const TC: &[&str] = &["spark-tc", "spark-triangle", "graphx-triangle"];
const ALL: &[&str] = &[""];

const LINUX: &str = "Linux 5.5";
const CANVAS: &str = "Canvas";

const fn row(
    experiment: &'static str,
    source: &'static str,
    what: &'static str,
    measure: Measure,
    numbers: &'static [(&'static str, Stated)],
    programs: &'static [&'static str],
) -> Row {
    Row {
        experiment,
        paper: &PAPER,
        source,
        what,
        numbers,
        measure,
        programs,
        local_percent: Some(25),
        co_run: Some(true),
    }
}

/// Table 3: slowdown in a co-run with each of nine Spark programs.
macro_rules! table_3 {
    ($what:literal, $programs:expr, $mean:literal / $mean_linux:literal, $least:literal / $least_linux:literal, $most:literal / $most_linux:literal) => {
        row(
            "canvas-fig2",
            "table 3",
            concat!($what, ", slowdown beside each of nine Spark programs"),
            CoRunSlowdown,
            &[
                ("Canvas, mean", Number($mean)),
                ("Linux 5.5, mean", Number($mean_linux)),
                ("Canvas, least", Number($least)),
                ("Linux 5.5, least", Number($least_linux)),
                ("Canvas, greatest", Number($most)),
                ("Linux 5.5, greatest", Number($most_linux)),
            ],
            $programs,
        )
    };
}

/// Table 5: three prefetchers for one program.
macro_rules! table_5 {
    ($what:literal, $measure:expr, $programs:expr, $leap:literal, $kernel:literal, $canvas:literal) => {
        row(
            "canvas-table5",
            "table 5",
            $what,
            $measure,
            &[
                ("LEAP", Number($leap / 100.0)),
                ("kernel", Number($kernel / 100.0)),
                ("Canvas two-tier", Number($canvas / 100.0)),
            ],
            $programs,
        )
    };
}

#[rustfmt::skip]
pub(super) static ROWS: &[Row] = &[
    row("canvas-fig2", "§3, figure 2", "three native programs beside Spark PageRank, overall slowdown", CoRunSlowdown, &[(LINUX, Number(2.24))], NATIVE),
    row("canvas-fig2", "§3, figure 2", "three native programs beside Spark logistic regression, overall slowdown", CoRunSlowdown, &[(LINUX, Number(3.75))], NATIVE),
    row("canvas-fig2", "§1", "any program in a co-run, greatest slowdown", CoRunSlowdown, &[(LINUX, UpTo(6.4))], ALL),
    table_3!("Snappy", SNAPPY, 1.03 / 1.23, 1.03 / 1.09, 1.05 / 1.53),
    table_3!("Memcached", MEMCACHED, 1.09 / 2.74, 1.03 / 1.35, 1.17 / 5.27),
    table_3!("XGBoost", XGBOOST, 1.10 / 3.31, 1.06 / 1.90, 1.17 / 6.44),
    table_3!("the three together", NATIVE, 1.08 / 2.42, 1.03 / 1.09, 1.17 / 6.44),
    row("canvas-fig2", "§6.1, figure 9", "co-runs, all optimisations, over Linux 5.5, a quarter of the working set local (ours: over zram)", OverZram, &[("Canvas, mean", Number(2.35)), (CANVAS, UpTo(6.1))], ALL),
    Row { local_percent: Some(50), ..row("canvas-fig2", "§6.1, figure 9", "co-runs, all optimisations, over Linux 5.5, half of the working set local (ours: over zram)", OverZram, &[("Canvas, mean", Number(1.33)), (CANVAS, UpTo(3.6))], ALL) },
    row("canvas-fig2", "§6.2, figure 10", "native programs in co-runs, isolation alone, over Linux 5.5 (ours: over zram)", OverZram, &[("Canvas, mean", Number(2.22)), (CANVAS, UpTo(5.65))], NATIVE),
    row("canvas-fig2", "§6.2, figure 10", "Memcached in co-runs, isolation alone, over Linux 5.5 (ours: over zram)", OverZram, &[(CANVAS, Number(2.48))], MEMCACHED),
    Row { co_run: Some(false), ..row("canvas-fig4", "§3, figure 4a", "swap entries allocated a second, programs alone, added up (ours: of each program)", EntriesPerS, &[(LINUX, About(450_000.0))], ALL) },
    row("canvas-fig4", "§3, figure 4b", "swap entries allocated a second, programs together, added up (ours: of each program)", EntriesPerS, &[(LINUX, About(200_000.0))], ALL),
    Row { co_run: None, local_percent: None, ..row("canvas-table4", "table 4", "pages put out a second, Spark programs, mean", PagesOutPerS, &[(LINUX, Number(98_000.0)), ("Canvas without adaptive allocation", Number(164_000.0)), (CANVAS, Number(295_000.0))], SPARK) },
    Row { co_run: None, local_percent: None, ..row("canvas-table4", "table 4", "pages put out a second, all programs, mean", PagesOutPerS, &[(LINUX, Number(185_000.0)), ("Canvas without adaptive allocation", Number(309_000.0)), (CANVAS, Number(468_000.0))], ALL) },
    table_5!("contribution, Spark logistic regression", Contribution, LR, 23.4, 63.3, 79.2),
    table_5!("contribution, Spark KMeans", Contribution, KM, 25.8, 68.0, 79.3),
    table_5!("contribution, Spark triangle counting", Contribution, TC, 42.2, 65.9, 75.3),
    table_5!("accuracy, Spark logistic regression", Accuracy, LR, 16.8, 95.6, 94.3),
    table_5!("accuracy, Spark KMeans", Accuracy, KM, 17.2, 96.4, 94.8),
    table_5!("accuracy, Spark triangle counting", Accuracy, TC, 35.9, 93.9, 94.9),
];

const fn unread(experiment: &'static str, figure: &'static str) -> Unread {
    Unread {
        experiment,
        paper: &PAPER,
        figure,
    }
}

pub(super) static UNREAD: &[Unread] = &[
    unread(
        "canvas-fig2",
        "figure 2, the slowdown of each single program (the text gives the two overall slowdowns only)",
    ),
    unread(
        "canvas-fig2",
        "figures 9 and 10, the time of each single program (the text gives means and extremes only)",
    ),
    unread("canvas-fig4", "figure 4, allocation throughput over time"),
    unread(
        "canvas-table4",
        "figure 12, allocation rate and time by number of cores (the text says: 13 times faster than Linux 5.14 at 48 cores)",
    ),
    unread(
        "canvas-table5",
        "figure 3, LEAP's contribution for each program (the text says: 3.19 times lower in co-runs)",
    ),
];
