use super::judged::{Judged, Verdict};
use super::pager::{EXPERIMENT, Promise, TARGETS, budgets};
use super::{judge, text};
use crate::cells::gather;
use crate::experiments::{self, Below};
use crate::fixture;
use crate::record::{Outcome, Quantiles, Sample};
use crate::variant::Variant;

fn canvas() -> Variant {
    Variant::Canvas(vec![])
}

fn sample(workload: &str, variant: Variant, percent: Option<u32>, seconds: f64) -> Sample {
    let mut s = fixture::sample(workload, variant, percent, 0, seconds);
    s.experiment = EXPERIMENT.into();
    s
}

fn rate(workload: &str, variant: Variant, percent: Option<u32>, ops: f64) -> Sample {
    Sample {
        ops_per_s: Some(ops),
        ..sample(workload, variant, percent, 3.0)
    }
}

fn judged(samples: &[Sample], place: &str, promise: &str) -> Judged {
    let all = judge(&gather(samples));
    let found = all
        .into_iter()
        .find(|j| j.place == place && j.promise.contains(promise));
    found.unwrap_or_else(|| panic!("no {place}: {promise}"))
}

/// Otherwise the target would remain "not measured" for good.
#[test]
fn every_target_is_of_a_cell_that_runs() {
    let e = experiments::find(EXPERIMENT).unwrap();
    for t in TARGETS {
        let runs = |below: Below, percent: Option<u32>, threads: Option<&str>| {
            e.parts.iter().any(|part| {
                let percents = match below {
                    Below::Local => None,
                    _ => percent,
                };
                let at = match percents {
                    Some(p) => part.percents.contains(&p),
                    None => below == Below::Local || part.percents.is_empty(),
                };
                let program = part.programs.iter().any(|p| {
                    let n = p.parameters.iter().find(|(k, _)| *k == "threads");
                    p.workload == t.workload && n.map(|(_, v)| *v) == threads
                });
                at && program && part.variants.contains(&below)
            })
        };
        assert!(runs(Below::Canvas(&[]), t.percent, t.threads), "{t:?}");
        let other = match t.promise {
            Promise::OverZram(_) => runs(Below::Zram, t.percent, t.threads),
            Promise::OfLocal(_) | Promise::MoreThanLocalS(_) => runs(Below::Local, None, t.threads),
            Promise::AsWithThreads(n) => runs(Below::Canvas(&[]), t.percent, Some(n)),
            Promise::FaultP50Ns(_) | Promise::OperationNs(_) => true,
        };
        assert!(other, "{t:?}: what it is compared with does not run");
    }
}

#[test]
fn ratios_are_of_speeds_whether_rates_or_times() {
    let samples = [
        rate("random-read", canvas(), Some(25), 290.0),
        rate("random-read", Variant::Zram, Some(25), 100.0),
        sample("java", canvas(), Some(25), 2.0),
        sample("java", Variant::Zram, Some(25), 6.5),
    ];
    let j = judged(&samples, "random-read at 25 %", "zram");
    assert_eq!(
        (j.verdict, j.measured.as_deref()),
        (Verdict::Missed, Some("2.90×"))
    );
    let j = judged(&samples, "java at 25 %", "zram");
    assert_eq!(
        (j.verdict, j.measured.as_deref()),
        (Verdict::Met, Some("3.25×"))
    );
    let j = judged(&samples, "fill at 25 %", "zram");
    assert_eq!((j.verdict, j.measured), (Verdict::Unknown, None));
}

#[test]
fn bounds_in_time_are_upper_ones() {
    let mut fast = rate("sequential", canvas(), Some(25), 1e9 / 1400.0);
    let j = judged(&[fast.clone()], "sequential at 25 %", "an operation");
    assert_eq!(j.verdict, Verdict::Met);
    fast.ops_per_s = Some(1e9 / 1600.0);
    let j = judged(&[fast], "sequential at 25 %", "an operation");
    assert_eq!(j.verdict, Verdict::Missed);
    for (p50, verdict) in [(4999.0, Verdict::Met), (5001.0, Verdict::Missed)] {
        let mut s = rate("random-read", canvas(), Some(25), 1.0);
        s.fault_ns = Some(Quantiles {
            p50,
            ..Quantiles::default()
        });
        let j = judged(&[s], "random-read at 25 %", "median fault");
        assert_eq!(j.verdict, verdict);
    }
    for (more, verdict) in [(0.04, Verdict::Met), (0.06, Verdict::Missed)] {
        let samples = [
            sample("start-up", Variant::Local, None, 0.01),
            sample("start-up", canvas(), None, 0.01 + more),
        ];
        let j = judged(&samples, "start-up without a limit", "more than");
        assert_eq!(j.verdict, verdict);
    }
}

#[test]
fn threads_are_compared_with_fewer() {
    let with = |n: &str, ops| {
        let mut s = rate("random-read", canvas(), Some(25), ops);
        s.parameters.insert("threads".into(), n.into());
        s
    };
    let samples = [with("1", 100.0), with("2", 98.0), with("4", 90.0)];
    let at = |n| format!("random-read, {n} threads at 25 %");
    assert_eq!(
        judged(&samples, &at("2"), "as with 1").verdict,
        Verdict::Met
    );
    assert_eq!(
        judged(&samples, &at("4"), "as with 2").verdict,
        Verdict::Missed
    );
    assert_eq!(
        judged(&samples, &at("8"), "as with 4").verdict,
        Verdict::Unknown
    );
}

#[test]
fn a_peer_out_of_memory_is_beaten_only_by_who_ends_well() {
    let mut dead = sample("java", Variant::Zram, Some(25), 1.0);
    dead.outcome = Outcome::Oom;
    let mut ours = sample("java", canvas(), Some(25), 1.0);
    let j = judged(&[dead.clone(), ours.clone()], "java at 25 %", "zram");
    assert_eq!(j.verdict, Verdict::MetByOom);
    ours.outcome = Outcome::Wrong;
    let j = judged(&[dead, ours], "java at 25 %", "zram");
    assert_eq!(j.verdict, Verdict::Unknown);
}

#[test]
fn budgets_are_looked_at_from_outside() {
    let mut good = sample("fill", canvas(), Some(25), 1.0);
    good.limit_bytes = Some(100 << 20);
    good.local_sampled_peak_bytes = Some(103 << 20);
    let mut bad = sample("java", canvas(), Some(25), 1.0);
    bad.limit_bytes = Some(100 << 20);
    bad.local_sampled_peak_bytes = Some(110 << 20);
    let all = budgets(&gather(&[good.clone(), bad]));
    let words: Vec<(&str, Verdict)> = all.iter().map(|j| (j.place.as_str(), j.verdict)).collect();
    assert_eq!(
        words,
        [
            ("all limited cells", Verdict::Met),
            ("java at 25 %", Verdict::Missed)
        ]
    );
    assert_eq!(all[1].measured.as_deref(), Some("6.00 MiB over"));
    good.local_sampled_peak_bytes = None;
    assert_eq!(budgets(&gather(&[good])), []);
}

#[test]
fn other_experiments_have_no_targets() {
    let other = fixture::sample("random-read", canvas(), Some(25), 0, 1.0);
    assert_eq!(text(&gather(&[other])), "");
    let text = text(&gather(&[rate("fill", canvas(), Some(25), 1.0)]));
    assert!(
        text.contains("V4  fill at 25 %: at least 2.50× zram: -: not measured"),
        "{text}"
    );
    assert!(
        text.ends_with("targets: 0 met, 0 missed, 19 not measured\n"),
        "{text}"
    );
}
