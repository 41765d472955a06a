use super::*;
use crate::cells::gather;
use crate::engine::plan::resolve;
use crate::experiments;
use crate::fixture;
use crate::record::{Held, Measured, Outcome};

fn canvas() -> Variant {
    Variant::Canvas(vec![])
}

fn sample(workload: &str, variant: Variant, percent: u32, rate: f64) -> Sample {
    let percent = (variant != Variant::Local).then_some(percent);
    let mut s = fixture::sample(workload, variant, percent, 0, 2.0);
    s.experiment = EXPERIMENT.into();
    s.ops_per_s = Some(rate);
    s
}

fn on_one_processor(mut sample: Sample) -> Sample {
    let (name, value) = ONE_PROCESSOR;
    sample.parameters.insert(name.into(), value.into());
    sample
}

fn judged(samples: &[Sample], place: &str, promise: &str) -> (Verdict, Option<String>) {
    let all = judge(&gather(samples));
    let of = |j: &&Judged| j.place == place && j.promise.contains(promise);
    let j = all.iter().find(of);
    let j = j.unwrap_or_else(|| panic!("no {place}: {promise}"));
    (j.verdict, j.measured.clone())
}

fn met(words: &str) -> (Verdict, Option<String>) {
    (Verdict::Met, Some(words.to_owned()))
}

fn missed(words: &str) -> (Verdict, Option<String>) {
    (Verdict::Missed, Some(words.to_owned()))
}

const UNKNOWN: (Verdict, Option<String>) = (Verdict::Unknown, None);

/// Otherwise the goal would remain "not measured" for good.
#[test]
fn every_target_is_of_a_cell_that_runs_beside_what_it_is_compared_with() {
    let e = experiments::find(EXPERIMENT).unwrap();
    let runs = |t: &Target, variant: &Variant| {
        e.parts.iter().any(|part| {
            part.percents.contains(&t.percent)
                && part.variants.iter().any(|b| resolve(*b) == *variant)
                && part.programs.iter().any(|p| {
                    p.workload == t.workload
                        && p.parameters == t.parameters
                        && p.one_processor == t.one_processor
                })
        })
    };
    for target in TARGETS {
        let mut all = vec![*target];
        if target.is_of_ten() {
            let of = |workload| Target {
                workload,
                ..*target
            };
            all = TEN.map(of).to_vec();
        }
        for t in &all {
            for variant in [canvas(), Variant::Zram, Variant::Zram64k, Variant::Local] {
                assert!(runs(t, &variant), "{t:?} on {variant}");
            }
        }
    }
}

#[test]
fn speeds_are_judged_by_zram_and_told_beside_the_best() {
    let mut all = vec![
        sample("random-read", canvas(), 25, 260.0),
        sample("random-read", Variant::Zram, 25, 100.0),
        on_one_processor(sample("random-read", canvas(), 25, 190.0)),
        on_one_processor(sample("random-read", Variant::Zram, 25, 100.0)),
    ];
    let (two, one) = ("random-read at 25 %", "random-read at 25 %, one processor");
    assert_eq!(judged(&all, two, "at least"), met("2.60×"));
    assert_eq!(judged(&all, one, "at least"), missed("1.90×"));
    let told = |words: &str| (Verdict::Told, Some(words.to_owned()));
    assert_eq!(judged(&all, two, "best"), told("2.60× (zram)"));
    all.push(sample("random-read", Variant::Zram64k, 25, 200.0));
    assert_eq!(judged(&all, two, "best"), told("1.30× (zram-64k)"));
    assert_eq!(judged(&all, two, "at least"), met("2.60×"), "zram judges");
    assert_eq!(judged(&all, "fill at 25 %", "at least"), UNKNOWN);
}

#[test]
fn ten_programs_are_judged_when_all_were_measured() {
    let mut all = Vec::new();
    for (n, workload) in TEN.into_iter().enumerate() {
        // Nine times 2, and once 0.5: the geometric mean is 2^0.8.
        let rate = if n == 3 { 50.0 } else { 200.0 };
        all.push(sample(workload, canvas(), 50, rate));
        all.push(sample(workload, Variant::Zram, 50, 100.0));
    }
    let place = "ten programs at 50 %";
    assert_eq!(judged(&all, place, "mean at least"), met("1.74×"));
    assert_eq!(
        judged(&all, place, "worst at least"),
        missed("0.500× (java)")
    );
    assert_eq!(
        judged(&all, "ten programs at 25 %", "mean at least"),
        UNKNOWN
    );
    // A program that zram did not survive is missing.
    all[1].outcome = Outcome::Oom;
    let (verdict, words) = judged(&all, place, "mean at least");
    assert_eq!(verdict, Verdict::Unknown);
    assert_eq!(words.unwrap(), "1.71× of 9 of 10");
    let (verdict, words) = judged(&all, place, "worst over");
    assert_eq!(verdict, Verdict::Told);
    assert_eq!(words.unwrap(), "0.500× (java) of 9 of 10");
}

/// A pattern's counts before and after the measured part do not matter, and a faster pattern does more work.
#[test]
fn faults_and_processor_time_are_of_the_measured_part_and_its_work() {
    let of = |variant: Variant, rate: f64, faults: f64, cpu_s: f64| {
        let mut s = sample("zipf", variant, 25, rate);
        s.measured_s = Some((1.0, 3.0));
        s.measured = Some(Measured {
            from_s: 1.0,
            to_s: 3.0,
            faults: Some(faults),
            cpu_s: Some(cpu_s),
            ..Measured::default()
        });
        (s.faults, s.cpu_user_s, s.cpu_system_s) = (Some(1 << 40), Some(1e6), Some(1e6));
        s
    };
    // In 2 s: 2000, 400 and 200 operations; each needs 1 ms of processor time itself.
    let all = [
        of(Variant::Local, 1000.0, 0.0, 2.0),
        of(canvas(), 200.0, 40.0, 0.4 + 40.0 * 0.006),
        of(Variant::Zram, 100.0, 25.0, 0.2 + 25.0 * 0.012),
    ];
    let place = "zipf at 25 %";
    assert_eq!(judged(&all, place, "far faults"), met("0.800×"));
    let time = judged(&all, place, "processor time");
    assert_eq!(time, met("0.500×, 6.00 ms of 12.0 ms"));
    let without_local = judged(&all[1..], place, "processor time");
    assert_eq!(without_local, UNKNOWN);
}

#[test]
fn programs_with_a_fixed_amount_of_work_are_compared_as_a_whole() {
    let of = |variant: Variant, faults: u64, cpu_s: f64| {
        let mut s = sample("redis-set-get", variant, 25, 1.0);
        (s.faults, s.cpu_user_s, s.cpu_system_s) = (Some(faults), Some(cpu_s), Some(0.0));
        s
    };
    let mut all = [
        of(Variant::Local, 0, 1.0),
        of(canvas(), 110, 2.0),
        of(Variant::Zram, 100, 2.0),
    ];
    let place = "redis-set-get at 25 %";
    assert_eq!(judged(&all, place, "far faults"), missed("1.10×"));
    let time = judged(&all, place, "processor time");
    assert_eq!(time, missed("0.909×, 9.09 ms of 10.0 ms"));
    // For a server that was loaded before, the time of its last client counts.
    all[1].measured = Some(Measured {
        faults: Some(90.0),
        cpu_s: None,
        ..Measured::default()
    });
    assert_eq!(judged(&all, place, "far faults"), met("0.900×"));
    assert_eq!(judged(&all, place, "processor time"), UNKNOWN);
}

#[test]
fn times_of_faults_have_a_bound_and_zrams() {
    let with = |variant: Variant, slow: u64| {
        let mut s = sample("random-write", variant, 25, 1.0);
        s.access_histogram = vec![(300, 5000), (5000, 95), (slow, 5)];
        s
    };
    let all = [with(canvas(), 24_000), with(Variant::Zram, 40_000)];
    let place = "random-write at 25 %";
    assert_eq!(judged(&all, place, "99 % of faults in"), met("24.0 µs"));
    let share = judged(&all, place, "that of 99 % of faults at most");
    assert_eq!(share, missed("0.600× of 40.0 µs"));
    let told = judged(&all, place, "99.9 % of faults within");
    assert_eq!(told, (Verdict::Told, Some("24.0 µs".into())));
}

#[test]
fn local_memory_is_the_programs_own_but_for_the_cache_and_canvas() {
    let mut s = sample("random-read", canvas(), 100, 1.0);
    s.parameters.insert("local".into(), "64M".into());
    s.limit_bytes = Some(1000);
    s.held = Some(Held {
        resident_bytes: 870,
        cache_bytes: 50,
        native_bytes: 70,
        metadata_bytes: Some(45),
        segment_peak_bytes: 0,
    });
    let place = "random-read, local 64M";
    assert_eq!(judged(&[s.clone()], place, "own"), missed("89.5 %"));
    let cache = judged(&[s.clone()], place, "with the swap cache");
    assert_eq!(cache, (Verdict::Told, Some("94.5 %".into())));
    s.held.as_mut().unwrap().metadata_bytes = None;
    assert_eq!(judged(&[s], place, "own"), UNKNOWN, "it is not known");
}

#[test]
fn all_memory_is_local_and_far_and_what_is_beside() {
    let mut ours = sample("zipf", canvas(), 25, 1.0);
    (ours.limit_bytes, ours.memory_peak_bytes) = (Some(100), Some(99));
    ours.far_peak_bytes = Some(150);
    ours.held = Some(Held {
        segment_peak_bytes: 1,
        ..Held::default()
    });
    let mut zram = sample("zipf", Variant::Zram, 25, 1.0);
    // For zram, the limit of the group, which includes page tables.
    (zram.limit_bytes, zram.memory_peak_bytes) = (Some(100), Some(60));
    zram.far_peak_bytes = Some(100);
    let place = "zipf at 25 %";
    let all = [ours.clone(), zram.clone()];
    assert_eq!(judged(&all, place, "all memory"), missed("1.25×"));
    ours.far_peak_bytes = Some(105);
    assert_eq!(judged(&[ours, zram], place, "all memory"), met("1.02×"));
}
