use super::*;
use crate::cells::gather;
use crate::engine::plan::resolve;
use crate::experiments::{self, How};
use crate::fixture;
use crate::record::{FarTick, Prefetch, Quantiles, Tick};
use proptest::prelude::*;

fn sample(workload: &str, variant: Variant, at: Option<u32>, co_run: Option<&str>) -> Sample {
    let mut s = fixture::sample(workload, variant, at, 0, 1.0);
    s.experiment = EXPERIMENT.into();
    s.co_run = co_run.map(str::to_owned);
    s.at_s = 10.0;
    s
}

/// A reader of this weight that was measured from `from_s` to 100 s, at this rate; three times as fast
/// before.
fn reader(weight: u32, from_s: f64, rate: f64) -> Sample {
    let variant = below(LINK_MBIT, Tenancy::Each);
    let mut s = sample("sequential", variant, Some(10), Some(SEQUENTIALS));
    s.parameters.insert(WEIGHT.into(), weight.to_string());
    s.measured_s = Some((from_s, 100.0));
    s.timeline = (1..=120)
        .map(|n| Tick {
            at_s: f64::from(n),
            far: Some(FarTick {
                in_bytes_per_s: if n <= 20 { 3.0 * rate } else { rate },
                ..FarTick::default()
            }),
            ..Tick::default()
        })
        .collect();
    s
}

fn judged(samples: &[Sample], number: &str, promise: &str) -> (Verdict, Option<String>) {
    let all = judge(&gather(samples));
    let of = |j: &&Judged| {
        j.number == number && j.promise.contains(promise) && j.place.contains("isolated")
    };
    let j = all.iter().find(of).expect(promise);
    (j.verdict, j.measured.clone())
}

/// Otherwise the target would remain "not measured" for good.
#[test]
fn every_target_is_of_a_cell_that_runs() {
    let e = experiments::find(EXPERIMENT).unwrap();
    let names = |p: &experiments::Part| {
        let all: Vec<&str> = p.programs.iter().map(|p| p.workload).collect();
        all.join("+")
    };
    let of_networks = TARGETS.iter().filter(|t| t.part == Part::Network);
    let processors: Vec<Target> = of_networks.map(Target::processors).collect();
    for t in TARGETS.iter().chain(&processors) {
        let has = |p: &experiments::Part, variant: &Variant| {
            p.percents.contains(&t.percent) && p.variants.iter().any(|b| resolve(*b) == *variant)
        };
        let together = e
            .parts
            .iter()
            .any(|p| names(p) == t.co_run && has(p, &t.variant(Tenancy::Each)));
        assert!(together, "{t:?}");
        if matches!(t.promise, Promise::P99(_) | Promise::Throughput(_)) {
            let alone = e.parts.iter().any(|p| {
                let ours = p.programs.iter().any(|p| p.workload == t.workload);
                ours && p.how != How::OnlyTogether && has(p, &t.alone.variant())
            });
            assert!(alone, "{t:?}");
        }
    }
    let spark: Vec<_> = e
        .parts
        .iter()
        .filter(|p| names(p).contains("+spark-"))
        .collect();
    let all = crate::registry::workloads();
    let sparks = all
        .iter()
        .filter(|w| w.name().starts_with("spark-"))
        .count();
    assert_eq!(spark.len(), sparks, "each of Spark's programs");
    for p in spark {
        assert_eq!(p.percents, TABLE_3_PERCENTS);
        let has = |v: Variant| p.variants.iter().any(|b| resolve(*b) == v);
        assert!(has(Variant::Local) && has(Variant::LocalOnHalf) && has(Variant::Zram));
        assert!(has(below(FAST_LINK_MBIT, Tenancy::Each)));
        assert!(has(below(FAST_LINK_MBIT, Tenancy::One)));
        assert!(has(not_adaptive()) && has(isolated_apart()));
    }
}

#[test]
fn shares_are_of_the_time_in_which_all_read() {
    let rate = 1e6;
    let mut all = vec![
        reader(1, 20.0, rate),
        reader(2, 10.0, 2.0 * rate),
        reader(4, 0.0, 4.0 * rate),
        reader(8, 20.0, 8.0 * rate),
    ];
    let ratio = |all: &[Sample]| judged(all, "I1", "weighted");
    assert_eq!(ratio(&all), (Verdict::Met, Some("1.000".into())));
    // One began later: the others' traffic before that does not count.
    all[0].at_s = 30.0;
    assert_eq!(ratio(&all), (Verdict::Met, Some("1.000".into())));
    all[3] = reader(8, 20.0, 9.0 * rate);
    let (verdict, words) = ratio(&all);
    assert_eq!(
        (verdict, words.as_deref()),
        (Verdict::Missed, Some("0.889"))
    );
    assert_eq!(ratio(&all[..3]), (Verdict::Unknown, None), "one is missing");
    all[3].outcome = Outcome::Timeout;
    assert_eq!(ratio(&all), (Verdict::Unknown, None));
}

/// Co-runs with a cheat are judged separately, even if run and repeat are the same.
#[test]
fn who_has_a_cheat_beside_it_is_not_among_the_others() {
    let mut all: Vec<Sample> = [1, 2, 4, 8]
        .map(|w| reader(w, 20.0, f64::from(w) * 1e6))
        .into();
    let mut beside: Vec<Sample> = [1, 2, 4, 8]
        .map(|w| reader(w, 20.0, f64::from(w) * 1e6))
        .into();
    for s in &mut beside {
        s.parameters.insert(CHEAT.into(), "beside".into());
    }
    // The cheat got twice its share before its measured part.
    beside[0].parameters.insert(CHEAT.into(), CHEATS.into());
    beside[0].measured_s = Some((98.0, 130.0));
    for tick in &mut beside[0].timeline {
        tick.far.as_mut().unwrap().in_bytes_per_s *= 2.0;
    }
    all.extend(beside);
    let judged = judge(&gather(&all));
    let shares = |cheats: bool| {
        let of = |j: &&Judged| {
            j.promise.contains("weighted")
                && j.place.contains("isolated")
                && j.place.contains("cheats") == cheats
        };
        let j = judged.iter().find(of).unwrap();
        (j.verdict, j.measured.clone().unwrap())
    };
    assert_eq!(shares(false), (Verdict::Met, "1.000".to_owned()));
    assert_eq!(shares(true), (Verdict::Missed, "0.500".to_owned()));
}

/// Programs of one tenant share their counters: only their own reports distinguish them.
#[test]
fn programs_of_one_tenant_are_told_apart_by_what_they_say() {
    let mut all: Vec<Sample> = [1, 2, 4, 8].map(|w| reader(w, 20.0, 1e6)).into();
    for s in &mut all {
        s.variant = below(LINK_MBIT, Tenancy::One);
        s.ops_per_s = Some(100.0);
    }
    let judged = judge(&gather(&all));
    let one = |j: &&Judged| j.promise.contains("weighted") && j.place.contains("one tenant");
    let j = judged.iter().find(one).unwrap();
    assert_eq!(
        (j.verdict, j.measured.as_deref()),
        (Verdict::Told, Some("0.125"))
    );
}

#[test]
fn links_are_used_to_a_share_of_their_rate() {
    let mut all: Vec<Sample> = [1, 2, 4, 8].map(|w| reader(w, 20.0, 1e6)).into();
    let used = |all: &[Sample]| judged(all, "I1", "link");
    assert_eq!(used(&all), (Verdict::Unknown, None));
    // The link carries 25 MB/s; the run began 10 s before the programs.
    let carried = |at_s: f64| (24.75e6 * at_s) as u64;
    all[2].link_to_host = (0..300)
        .map(|n| f64::from(n) / 2.0)
        .map(|s| (s, carried(s)))
        .collect();
    assert_eq!(used(&all), (Verdict::Met, Some("99.0 %".into())));
    all[2].link_to_host.truncate(100);
    assert_eq!(
        used(&all),
        (Verdict::Unknown, None),
        "not looked at to the end"
    );
}

#[test]
fn company_is_set_against_being_alone() {
    let slow = |mut s: Sample, ops, p99| {
        s.ops_per_s = Some(ops);
        s.latency_ns = Some(Quantiles {
            p99,
            ..Quantiles::default()
        });
        s
    };
    let at = |mbit, co_run| {
        let variant = below(mbit, Tenancy::Each);
        sample("memcached-get95", variant, Some(50), co_run)
    };
    let beside = at(LINK_MBIT, Some("memcached-get95+sequential-write"));
    let confined = Alone {
        mbit: LINK_MBIT / 2,
        cpu_percent: Some(50),
        apart: false,
    };
    let confined = sample("memcached-get95", confined.variant(), Some(50), None);
    let all = [
        slow(beside, 960.0, 1200.0),
        slow(at(LINK_MBIT, None), 2000.0, 500.0),
        slow(at(LINK_MBIT / 2, None), 1000.0, 1000.0),
        slow(confined, 1200.0, 1100.0),
    ];
    let fast = judged(&all, "I3", "as fast");
    assert_eq!(fast, (Verdict::Met, Some("0.960×".into())));
    let p99 = judged(&all, "I3", "percentile");
    assert_eq!(p99, (Verdict::Missed, Some("1.20×".into())));
    let fast = judged(&all, "I3", "as fast as alone at its share (100mbit, 50 %");
    assert_eq!(fast, (Verdict::Missed, Some("0.800×".into())));
    let p99 = judged(&all, "I3", "alone at its share (100mbit, 50 %");
    assert_eq!(p99.0, Verdict::Missed);
    assert_eq!(judged(&all, "I2", "percentile").0, Verdict::Unknown);
}

/// Losses over an uncontended link are not the network's.
#[test]
fn the_networks_part_is_what_the_processors_part_leaves() {
    let p99 = |mbit, co_run: Option<&str>, p99| {
        let variant = Variant::CanvasFar(FarBelow {
            apart: true,
            ..far_below(mbit, Tenancy::Each)
        });
        let mut s = sample("random-read", variant, Some(25), co_run);
        s.latency_ns = Some(Quantiles {
            p99,
            ..Quantiles::default()
        });
        s
    };
    let beside = Some("random-read+sequential");
    let mut all = vec![
        p99(LINK_MBIT, None, 200.0),
        p99(LINK_MBIT, beside, 600.0),
        p99(FAST_LINK_MBIT, None, 100.0),
        p99(FAST_LINK_MBIT, beside, 200.0),
    ];
    let of = |all: &[Sample], words: &str| {
        let mut judged = judge(&gather(all)).into_iter();
        let j = judged
            .find(|j| j.number == "I2" && j.place.contains("apart") && j.promise.ends_with(words));
        j.map(|j| (j.verdict, j.measured)).unwrap()
    };
    assert_eq!(of(&all, "alone"), (Verdict::Missed, Some("3.00×".into())));
    let network = of(&all, "network goes");
    assert_eq!(network, (Verdict::Met, Some("1.50×".into())));
    let processors = of(&all, "processors go");
    assert_eq!(processors, (Verdict::Told, Some("2.00×".into())));
    all.pop();
    assert_eq!(of(&all, "network goes"), (Verdict::Unknown, None));
}

#[test]
fn reading_ahead_is_told_with_the_rule_and_without_it() {
    let at = |variant: &Variant, dropped, p90_ns| {
        let mut s = sample(
            AHEAD,
            variant.clone(),
            Some(AHEAD_PERCENT),
            Some(AHEAD_CO_RUN),
        );
        s.prefetch = Some(Prefetch {
            contribution: Some(0.875),
            ..Prefetch::default()
        });
        s.far = Some(Far {
            pages_promoted: Some(99),
            faults: Some(1),
            ahead: Some(Ahead {
                done: 100 - dropped,
                dropped,
                promoted: 50,
                p50_ns: Some(2e6),
                p90_ns: Some(p90_ns),
            }),
            ..Far::default()
        });
        s
    };
    let told = |all: &[Sample]| {
        let judged = judge(&gather(all)).into_iter().filter(|j| j.number == "I5");
        let words = judged.map(|j| (j.verdict, j.measured.unwrap_or_default()));
        words.collect::<Vec<_>>()
    };
    let e = experiments::find(EXPERIMENT).unwrap();
    let names = |p: &&experiments::Part| {
        let all: Vec<&str> = p.programs.iter().map(|p| p.workload).collect();
        all.join("+") == AHEAD_CO_RUN
    };
    // A cell that runs, so that the report's parameters are real.
    let part = e.parts.iter().find(names).unwrap();
    assert_eq!(part.percents, [AHEAD_PERCENT]);
    let below: Vec<Variant> = part.variants.iter().map(|b| resolve(*b)).collect();
    assert_eq!(told(&[]), vec![(Verdict::Unknown, String::new()); 8]);
    let all = [at(&below[0], 20, 3e6), at(&below[1], 0, 9e6)];
    let words = [
        "2.00 ms, 3.00 ms",
        "99.0 %",
        "87.5 %",
        "20.0 %, 50.0 %",
        "2.00 ms, 9.00 ms",
        "99.0 %",
        "87.5 %",
        "0.0 %, 50.0 %",
    ];
    assert_eq!(told(&all), words.map(|w| (Verdict::Told, w.to_owned())));
    let unknown = told(&all[..1]);
    assert_eq!(unknown[4..], vec![(Verdict::Unknown, String::new()); 4]);
    // A report without latencies of reads ahead.
    let mut old = all[0].clone();
    old.far.as_mut().unwrap().ahead = None;
    assert_eq!(told(&[old])[0].0, Verdict::Unknown);
}

#[test]
fn processors_are_taken_out_of_slowdowns() {
    const SET: &str = "snappy+memcached-get95+xgboost+spark-lr";
    let isolated = || below(FAST_LINK_MBIT, Tenancy::Each);
    let took = |mut s: Sample, seconds| {
        s.seconds = Some(seconds);
        s
    };
    let mut all = Vec::new();
    for (workload, local, ours) in [("snappy", 2.0, 2.0), ("spark-lr", 1.5, 1.56)] {
        for (variant, at, factor) in [(Variant::Local, None, local), (isolated(), Some(25), ours)] {
            all.push(took(sample(workload, variant.clone(), at, None), 10.0));
            all.push(took(
                sample(workload, variant, at, Some(SET)),
                10.0 * factor,
            ));
        }
    }
    let at_25 = |all: &[Sample]| {
        let judged = judge(&gather(all));
        let mut ours = judged
            .into_iter()
            .filter(|j| j.number == "I4" && j.place.ends_with("isolated]"));
        ours.rfind(|j| j.promise.contains("processors taken out"))
            .unwrap()
    };
    let j = at_25(&all);
    assert!(j.place.contains("25 %"), "{j:?}");
    assert_eq!(j.verdict, Verdict::Met);
    let words = j.measured.unwrap();
    assert!(
        words.starts_with("mean 1.02×, 1.00× to 1.04×, σ 0.02"),
        "{words}"
    );
    let last = all.last_mut().unwrap();
    last.seconds = Some(20.0);
    assert_eq!(at_25(&all).verdict, Verdict::Missed);
}

#[test]
fn what_programs_use_of_processors_is_set_against_local() {
    const SET: &str = "snappy+memcached-get95+xgboost+spark-lr";
    let isolated = below(FAST_LINK_MBIT, Tenancy::Each);
    let used = |variant: &Variant, at, co_run, user_s, system_s| {
        let mut s = sample("snappy", variant.clone(), at, co_run);
        (s.cpu_user_s, s.cpu_system_s) = (Some(user_s), Some(system_s));
        s
    };
    let mut all = vec![
        used(&Variant::Local, None, None, 1.5, 0.5),
        used(&Variant::Local, None, Some(SET), 2.0, 0.5),
        used(&isolated, Some(50), None, 2.0, 2.0),
        used(&isolated, Some(50), Some(SET), 4.0, 3.5),
    ];
    let ours = |all: &[Sample]| {
        let place = format!("at 50 %, {isolated}");
        let mut judged = judge(&gather(all)).into_iter();
        judged
            .find(|j| j.promise.contains("own threads") && j.place.ends_with(&place))
            .unwrap()
    };
    // 1.875 over 1.25.
    let told = ours(&all);
    assert_eq!(told.verdict, Verdict::Told);
    assert!(told.measured.unwrap().starts_with("mean 1.50×"));
    // Without a local run the processors' part is unknown.
    all.remove(0);
    assert_eq!(ours(&all).verdict, Verdict::Unknown);
}

/// With agent and donors on processors of their own, the local co-run has half of the processors too.
#[test]
fn what_runs_apart_is_set_against_local_on_the_same_processors() {
    const SET: &str = "snappy+memcached-get95+xgboost+spark-lr";
    let took = |variant: &Variant, at, co_run, seconds| {
        let mut s = sample("snappy", variant.clone(), at, co_run);
        s.seconds = Some(seconds);
        s
    };
    let apart = isolated_apart();
    let mut all = vec![
        took(&Variant::Local, None, None, 1.0),
        took(&Variant::Local, None, Some(SET), 2.0),
        took(&Variant::LocalOnHalf, None, None, 1.5),
        took(&Variant::LocalOnHalf, None, Some(SET), 6.0),
        took(&apart, Some(50), None, 2.0),
        took(&apart, Some(50), Some(SET), 8.4),
    ];
    let ours = |all: &[Sample]| {
        let place = format!("at 50 %, {apart}");
        let mut judged = judge(&gather(all)).into_iter();
        judged
            .find(|j| j.promise.contains("taken out") && j.place.ends_with(&place))
            .unwrap()
    };
    // 4.2 over 4.
    let judged = ours(&all);
    assert_eq!(judged.verdict, Verdict::Met);
    assert!(judged.measured.unwrap().starts_with("mean 1.05×"));
    all[5].seconds = Some(10.0);
    assert_eq!(ours(&all).verdict, Verdict::Missed);
    all.remove(3);
    assert_eq!(ours(&all).verdict, Verdict::Unknown);
}

proptest! {
    /// Shares by weight are fair whatever the tenants' measured times.
    #[test]
    fn rates_by_weight_are_fair(weights in prop::collection::vec(1u32..100, 4), from in prop::collection::vec(20.0f64..90.0, 4)) {
        let all: Vec<Sample> = weights.iter().zip(&from)
            .map(|(w, from)| reader(*w, *from, 1e4 * f64::from(*w)))
            .collect();
        let all: Vec<&Sample> = all.iter().collect();
        let ratio = shares(&all).unwrap();
        prop_assert!((ratio - 1.0).abs() < 1e-9, "{ratio}");
    }
}
