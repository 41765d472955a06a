//! FastSwap for virtual machines (Cao, Liu).

use super::Measure::{
    FarBytes, FaultNs, OpsPerS, OverDisk, PagesInPerS, PagesOutPerS, ProactivePageNs, Seconds,
};
use super::Stated::{Crash, Number};
use super::{Measure, Paper, Row, Stated, Unread};

static PAPER: Paper = Paper {
    name: "FastSwap",
    title: "Dynamic and Transparent Memory Sharing for Accelerating Big Data Analytics Workloads in Virtualized Cloud (Cao, Liu)",
    testbed: "eight-core Xeon E5640, 96 GB, a SCSI disk, virtual machines of 30 GB",
};

const LR: &[&str] = &["spark-lr", "spark-logistic", "logisticregression"];
const KMEANS: &[&str] = &["spark-kmeans", "spark-km"];
const BAYES: &[&str] = &["spark-bayes", "bayes"];
const PAGERANK: &[&str] = &["spark-pagerank", "spark-pr"];
const REDIS: &[&str] = &["redis"];
const NONE: &[&str] = &[];

const DISK: &str = "DiskSwap";
const ZSWAP: &str = "ZSwap";
const PLAIN: &str = "FastSwap without compression";
const OURS: &str = "FastSwap";

/// Table I: speed over that of swapping to disk.
const fn speedup(
    what: &'static str,
    numbers: &'static [(&'static str, Stated)],
    percent: u32,
) -> Row {
    Row {
        experiment: "fastswap-tables",
        paper: &PAPER,
        source: "table I",
        what,
        numbers,
        measure: OverDisk,
        programs: LR,
        local_percent: Some(percent),
        co_run: None,
    }
}

/// Tables II to IV.
const fn row(
    source: &'static str,
    what: &'static str,
    measure: Measure,
    numbers: &'static [(&'static str, Stated)],
    programs: &'static [&'static str],
    percent: Option<u32>,
) -> Row {
    Row {
        experiment: "fastswap-tables",
        paper: &PAPER,
        source,
        what,
        numbers,
        measure,
        programs,
        local_percent: percent,
        co_run: None,
    }
}

const MB: f64 = 1e6;
const MINUTE: f64 = 60.0;

/// Minutes as printed, converted to seconds.
const fn minutes(m: f64) -> Stated {
    Number(m * MINUTE)
}

// Data of 18, 20 and 22 GB are what "can fit in memory with 100% or 75% or 50%" (§VI-A).
#[rustfmt::skip]
pub(super) static ROWS: &[Row] = &[
    speedup("T-1, logistic regression beside Redis, 18 GB", &[(ZSWAP, Number(1.46)), (PLAIN, Number(2.2)), (OURS, Number(2.2))], 100),
    speedup("T-1, logistic regression beside Redis, 20 GB", &[(ZSWAP, Crash), (PLAIN, Number(2.37)), (OURS, Number(2.29))], 75),
    speedup("T-1, logistic regression beside Redis, 22 GB", &[(ZSWAP, Crash), (PLAIN, Number(2.43)), (OURS, Number(2.35))], 50),
    speedup("T-2, logistic regression, Redis in another machine, 18 GB", &[(ZSWAP, Number(1.10)), (PLAIN, Number(1.35)), (OURS, Number(1.38))], 100),
    speedup("T-2, logistic regression, Redis in another machine, 20 GB", &[(ZSWAP, Crash), (PLAIN, Number(2.55)), (OURS, Number(2.58))], 75),
    speedup("T-2, logistic regression, Redis in another machine, 22 GB", &[(ZSWAP, Crash), (PLAIN, Number(8.73)), (OURS, Number(8.35))], 50),
    row("table II", "T-1, pages brought in a second", PagesInPerS, &[(DISK, Number(54.44)), (ZSWAP, Number(62.55)), (PLAIN, Number(1783.98)), (OURS, Number(1657.86))], LR, None),
    row("table II", "T-1, pages put out a second", PagesOutPerS, &[(DISK, Number(1856.43)), (ZSWAP, Number(521.58)), (PLAIN, Number(7003.46)), (OURS, Number(6912.81))], LR, None),
    row("table II", "T-1, swap space", FarBytes, &[(DISK, Number(6788.29 * MB)), (ZSWAP, Number(11864.18 * MB)), (PLAIN, Number(6514.11 * MB)), (OURS, Number(4372.12 * MB))], LR, None),
    row("table II", "T-2, pages brought in a second", PagesInPerS, &[(DISK, Number(598.05)), (ZSWAP, Number(221.28)), (PLAIN, Number(15816.58)), (OURS, Number(14510.55))], LR, None),
    row("table II", "T-2, pages put out a second", PagesOutPerS, &[(DISK, Number(781.88)), (ZSWAP, Number(779.75)), (PLAIN, Number(19460.07)), (OURS, Number(16471.14))], LR, None),
    row("table II", "T-2, swap space", FarBytes, &[(DISK, Number(8159.05 * MB)), (ZSWAP, Number(7910.57 * MB)), (PLAIN, Number(8344.68 * MB)), (OURS, Number(4689.39 * MB))], LR, None),
    row("table III", "time of KMeans", Seconds, &[(DISK, minutes(28.0)), (ZSWAP, Crash), (PLAIN, minutes(8.0)), (OURS, minutes(8.3))], KMEANS, None),
    row("table III", "time of Bayes", Seconds, &[(DISK, Crash), (ZSWAP, Crash), (PLAIN, minutes(13.0)), (OURS, minutes(13.0))], BAYES, None),
    row("table III", "time of NWeight", Seconds, &[(DISK, minutes(25.0)), (ZSWAP, minutes(4.0)), (PLAIN, minutes(2.8)), (OURS, minutes(3.0))], NONE, None),
    row("table III", "time of PageRank", Seconds, &[(DISK, Crash), (ZSWAP, Crash), (PLAIN, minutes(4.5)), (OURS, minutes(4.7))], PAGERANK, None),
    row("table III", "time of logistic regression, 18 GB", Seconds, &[(DISK, minutes(11.0)), (ZSWAP, minutes(10.0)), (PLAIN, minutes(8.1)), (OURS, minutes(8.0))], LR, Some(100)),
    row("table III", "time of logistic regression, 20 GB", Seconds, &[(DISK, minutes(24.0)), (ZSWAP, Crash), (PLAIN, minutes(9.4)), (OURS, minutes(9.3))], LR, Some(75)),
    row("table III", "time of logistic regression, 22 GB", Seconds, &[(DISK, minutes(96.0)), (ZSWAP, Crash), (PLAIN, minutes(11.0)), (OURS, minutes(11.5))], LR, Some(50)),
    row("table IV", "time of bringing in one page (ours: of a fault, median)", FaultNs, &[(DISK, Number(419_660.0)), (PLAIN, Number(5700.0)), ("FastSwap, all pages", Number(9560.0)), ("FastSwap, in parts", Number(9680.0))], NONE, None),
    Row { experiment: "fastswap-recovery", paper: &PAPER, source: "table IV", what: "time of bringing in one page before it is touched", numbers: &[(DISK, Number(419_660.0)), (PLAIN, Number(5700.0)), ("FastSwap, all pages", Number(9560.0)), ("FastSwap, in parts", Number(9680.0))], measure: ProactivePageNs, programs: &["redis-"], local_percent: None, co_run: None },
    Row { experiment: "fastswap-redis", paper: &PAPER, source: "table II", what: "T-1, Redis throughput beside logistic regression", numbers: &[(DISK, Number(46.24)), (ZSWAP, Number(1100.77)), (PLAIN, Number(23898.79)), (OURS, Number(20913.04))], measure: OpsPerS, programs: REDIS, local_percent: None, co_run: None },
];

pub(super) static UNREAD: &[Unread] = &[
    Unread {
        experiment: "fastswap-recovery",
        paper: &PAPER,
        figure: "figure 2, Redis throughput over time while memory is ballooned (the text says only that it takes more than 60 seconds to recover)",
    },
    Unread {
        experiment: "fastswap-redis",
        paper: &PAPER,
        figure: "figure 9, Redis throughput over time while the shared memory overflows to disk (the text says only: lower by 32 % with FastSwap, by 63 % with ZSwap)",
    },
];
