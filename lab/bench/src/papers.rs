//! Figures of the papers, as data: only numbers that their text, tables or slides state, each with its place.
//! Figures whose numbers the text does not state are listed without numbers.

mod canvas;
mod fastswap;
mod infiniswap;
mod xdm;

/// A paper or a talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paper {
    /// Short name: "Canvas".
    pub name: &'static str,
    /// Title and where it appeared.
    pub title: &'static str,
    /// Testbed in short; absolute numbers mean little on other machines.
    pub testbed: &'static str,
}

/// Figure of the bench's cells that compares with a paper's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Speed as a share of the all-local run's (1 is equal).
    OfLocal,
    /// Speed over that of swapping to disk.
    OverDisk,
    /// Speed over that of swapping to zram, the kernel's fastest variant.
    OverZram,
    /// Time in a co-run over time alone, same variant and limit.
    CoRunSlowdown,
    /// Operations per second.
    OpsPerS,
    /// Time, in seconds.
    Seconds,
    /// Median time of a fault, in ns.
    FaultNs,
    /// Time of a proactive swap-in of one page, in ns.
    ProactivePageNs,
    /// Pages faulted in per second.
    PagesInPerS,
    /// Pages evicted per second.
    PagesOutPerS,
    /// Swap entries allocated under a lock, per second.
    EntriesPerS,
    /// Peak bytes on the far side.
    FarBytes,
    /// Share of faults on prefetched pages, 0 to 1.
    Contribution,
    /// Share of prefetched pages that were used, 0 to 1.
    Accuracy,
    /// Local memory that swapping to disk needs, over the local memory that the variant needs, to be at most
    /// a quarter slower than all-local.
    LocalSaved,
}

/// One number of a paper, in the unit of the row's [`Measure`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stated {
    /// An exact number.
    Number(f64),
    /// A number printed with a ~.
    About(f64),
    /// A number printed as "up to".
    UpTo(f64),
    /// The program did not finish.
    Crash,
}

/// A row of related numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Name of the experiment that mirrors it.
    pub experiment: &'static str,
    /// The paper.
    pub paper: &'static Paper,
    /// Section, table, figure or slide.
    pub source: &'static str,
    /// Description of the measurement.
    pub what: &'static str,
    /// The numbers, each with the system it belongs to.
    pub numbers: &'static [(&'static str, Stated)],
    /// Figure of the bench that compares with it.
    pub measure: Measure,
    /// Substrings of the names of comparable workloads; empty if the bench has none.
    pub programs: &'static [&'static str],
    /// Corresponding local share, in percent.
    pub local_percent: Option<u32>,
    /// Whether comparable cells ran with others (`true`), alone (`false`) or either.
    pub co_run: Option<bool>,
}

/// A figure that the experiment mirrors, without numbers in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Name of the experiment that mirrors it.
    pub experiment: &'static str,
    /// The paper.
    pub paper: &'static Paper,
    /// The figure, and what it shows.
    pub figure: &'static str,
}

/// All rows, in the order of the papers.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [infiniswap::ROWS, fastswap::ROWS, canvas::ROWS, xdm::ROWS]
        .into_iter()
        .flatten()
}

/// All figures without numbers.
pub fn unread() -> impl Iterator<Item = &'static Unread> {
    [
        infiniswap::UNREAD,
        fastswap::UNREAD,
        canvas::UNREAD,
        xdm::UNREAD,
    ]
    .into_iter()
    .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Experiments that mirror a paper.
    const MIRRORS: [&str; 9] = [
        "infiniswap",
        "fastswap-recovery",
        "fastswap-redis",
        "fastswap-tables",
        "canvas-fig2",
        "canvas-fig4",
        "canvas-table4",
        "canvas-table5",
        "xdm-sweep",
    ];

    #[test]
    fn every_mirror_has_rows_and_no_row_is_lost() {
        let named: BTreeSet<&str> = rows().map(|r| r.experiment).collect();
        assert_eq!(named, BTreeSet::from(MIRRORS));
        assert!(unread().all(|u| MIRRORS.contains(&u.experiment)));
    }

    #[test]
    fn rows_have_a_place_and_sensible_numbers() {
        let mut seen = BTreeSet::new();
        for row in rows() {
            assert!(!row.numbers.is_empty(), "{}", row.what);
            assert!(
                ["§", "table", "slide", "fig", "abstract"]
                    .iter()
                    .any(|w| row.source.to_lowercase().contains(w)),
                "{}: {}",
                row.what,
                row.source
            );
            assert!(
                seen.insert((row.experiment, row.source, row.what)),
                "twice: {} {}",
                row.source,
                row.what
            );
            for (who, stated) in row.numbers {
                let value = match stated {
                    Stated::Number(v) | Stated::About(v) | Stated::UpTo(v) => *v,
                    Stated::Crash => continue,
                };
                let most = match row.measure {
                    Measure::OfLocal | Measure::Contribution | Measure::Accuracy => 1.0,
                    _ => f64::INFINITY,
                };
                assert!(value > 0.0 && value <= most, "{}: {who}", row.what);
            }
        }
    }

    /// Checks the rows against summaries elsewhere in the papers, to reveal slips.
    #[test]
    fn the_papers_own_summaries_follow() {
        let numbers = |what: &str| rows().find(|r| r.what.contains(what)).unwrap().numbers;
        let number = |what: &str, who: &str| {
            let found = numbers(what).iter().find(|(w, _)| *w == who).unwrap();
            match found.1 {
                Stated::Number(v) => v,
                _ => panic!("{what}, {who}: no number"),
            }
        };
        // Infiniswap, slide 57: "improved by 2-16x".
        let gains: Vec<f64> = ["VoltDB", "Memcached", "PowerGraph", "GraphX"]
            .iter()
            .map(|app| {
                let what = format!("{app}, half of the working set local");
                number(&what, "Infiniswap") / number(&what, "disk")
            })
            .collect();
        assert_eq!(
            gains.iter().copied().fold(f64::INFINITY, f64::min).round(),
            2.0
        );
        assert_eq!(gains.iter().copied().fold(0.0, f64::max).floor(), 16.0);
        // Canvas §6.3.1: "improves the throughput by 1.67x ... additional improvement of 1.51x".
        let table4 = |who| number("pages put out a second, all programs", who);
        let isolation = table4("Canvas without adaptive allocation") / table4("Linux 5.5");
        assert!((isolation - 1.67).abs() < 0.01, "{isolation}");
        let adaptive = table4("Canvas") / table4("Canvas without adaptive allocation");
        assert!((adaptive - 1.51).abs() < 0.01, "{adaptive}");
        // FastSwap §VI-A: "452x and 516x respectively".
        let redis = |who| number("Redis throughput beside", who);
        assert_eq!((redis("FastSwap") / redis("DiskSwap")).round(), 452.0);
        assert_eq!(
            (redis("FastSwap without compression") / redis("DiskSwap")).floor(),
            516.0
        );
        // FastSwap §VI-A: "at only 11.9% (11.5 mins) of the time".
        let lr = |who| number("logistic regression, 22 GB", who);
        assert!((lr("FastSwap") / lr("DiskSwap") - 0.119).abs() < 0.001);
        // FastSwap table IV: 74x, 44x, 43x.
        let page = |who| number("bringing in one page (ours: of a fault", who);
        for (who, gain) in [
            ("FastSwap without compression", 74.0),
            ("FastSwap, all pages", 44.0),
            ("FastSwap, in parts", 43.0),
        ] {
            let got = page("DiskSwap") / page(who);
            assert!((got - gain).abs() < 0.7, "{who}: {got}");
        }
    }
}
