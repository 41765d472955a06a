//! Results for tests, generated from a seed.

use std::collections::BTreeMap;

use crate::read::Results;
use crate::record::{Line, Machine, NotYet, Prefetch, Quantiles, Run, SCHEMA, Sample, Skip, Tick};
use crate::variant::Variant;

/// A run line.
pub fn run(id: &str) -> Run {
    Run {
        schema: SCHEMA.into(),
        run_id: format!("run-{id}"),
        started_unix_s: 1_700_000_000,
        canvas_version: "0.1.0".into(),
        argv: vec!["lab".into(), "run".into(), "quick".into()],
        scale: 1.0,
        repeats: 5,
        seed: 1,
        machine: Machine {
            cpu: "Test CPU".into(),
            cpus: 2,
            is_virtual: true,
            memory_bytes: 8 << 30,
            kernel: "6.18.0".into(),
            cgroup_version: Some(2),
            features: BTreeMap::from([("thp".into(), "madvise".into())]),
            load_average: 0.25,
        },
    }
}

/// A good sample of the experiment "quick" with only a duration.
pub fn sample(
    workload: &str,
    variant: Variant,
    percent: Option<u32>,
    repeat: u32,
    seconds: f64,
) -> Sample {
    Sample {
        run_id: "run-1".into(),
        experiment: "quick".into(),
        workload: workload.into(),
        variant,
        local_percent: percent,
        limit_bytes: percent.map(|p| u64::from(p) * 1_000_000),
        repeat,
        at_s: f64::from(repeat),
        seconds: Some(seconds),
        answer: Some("42".into()),
        ..Sample::default()
    }
}

/// Sets all figures of a sample.
pub fn fill(sample: &mut Sample, random: &mut fastrand::Rng) {
    let noise = |random: &mut fastrand::Rng| 0.9 + 0.2 * random.f64();
    sample.ops_per_s = Some(100_000.0 / sample.seconds.unwrap_or(1.0));
    let p50 = 20_000.0 * noise(random);
    sample.latency_ns = Some(Quantiles {
        p50,
        p99: p50 * 9.0,
        p999: Some(p50 * 40.0),
        max: Some(p50 * 90.0),
    });
    sample.latency_histogram = (0..12)
        .map(|n| (1000 << n, 1 + random.u64(0..1000) * (12 - n)))
        .collect();
    // Most accesses are local, some are faults.
    sample.access_histogram = [(60, 40_000), (120, 9000), (700, 50)]
        .into_iter()
        .chain((0..9).map(|n| (1000 << n, 1 + random.u64(0..500) * (9 - n))))
        .collect();
    if matches!(sample.variant, Variant::Canvas(_)) {
        sample.fault_histogram = (0..9)
            .map(|n| (1000 << n, 1 + random.u64(0..500) * (9 - n)))
            .collect();
    }
    sample.faults = Some(random.u64(1000..100_000));
    sample.fault_ns = Some(Quantiles {
        p50: p50 / 4.0,
        p99: p50,
        p999: Some(p50 * 3.0),
        max: None,
    });
    sample.swap_in_pages = Some(random.u64(1000..500_000));
    sample.swap_out_pages = Some(random.u64(1000..500_000));
    sample.cpu_user_s = Some(noise(random));
    sample.cpu_system_s = Some(noise(random) / 3.0);
    sample.memory_peak_bytes = Some(random.u64(50..200) << 20);
    sample.far_peak_bytes = Some(random.u64(50..200) << 20);
    sample.prefetch = Some(Prefetch {
        issued: 1000,
        used: 900,
        contribution: Some(0.61),
        accuracy: Some(0.9),
    });
    sample.timeline = (0..30)
        .map(|n| Tick {
            at_s: f64::from(n) / 10.0,
            in_pages_per_s: 5000.0 * noise(random),
            out_pages_per_s: 4000.0 * noise(random),
            ops_per_s: Some(80_000.0 * noise(random)),
            far: None,
        })
        .collect();
}

/// Two workloads, four variants, two limits and a co-run set, three repeats, one skip, one
/// not-yet.
pub fn small(id: &str, seed: u64) -> Results {
    let mut random = fastrand::Rng::with_seed(seed);
    let run = run(id);
    let mut samples = Vec::new();
    let variants = [
        Variant::Canvas(vec![]),
        Variant::Canvas(vec!["-o".into(), "prefetch=none".into()]),
        Variant::Zram,
        Variant::Disk,
    ];
    for workload in ["redis-ycsb-a", "xgboost"] {
        for repeat in 0..3 {
            let noise = 0.95 + 0.1 * random.f64();
            samples.push(sample(workload, Variant::Local, None, repeat, noise));
            for (n, variant) in variants.iter().enumerate() {
                for percent in [25, 50] {
                    for co_run in [None, Some("redis-ycsb-a+xgboost".to_owned())] {
                        let mut seconds = (1.0 + n as f64) * 100.0 / f64::from(percent)
                            * (0.95 + 0.1 * random.f64());
                        if co_run.is_some() {
                            seconds *= 1.5 + n as f64 / 2.0;
                        }
                        let mut one =
                            sample(workload, variant.clone(), Some(percent), repeat, seconds);
                        one.co_run = co_run;
                        samples.push(one);
                    }
                }
            }
        }
    }
    for one in &mut samples {
        one.run_id.clone_from(&run.run_id);
        fill(one, &mut random);
    }
    Results {
        skips: vec![Skip {
            run_id: run.run_id.clone(),
            experiment: "quick".into(),
            workload: None,
            variant: Some(Variant::Zswap),
            reason: format!("this kernel has no zswap ({id})"),
        }],
        not_yet: vec![NotYet {
            run_id: run.run_id.clone(),
            experiment: "canvas-table5".into(),
            waits_for: format!("a choice of prefetchers ({id})"),
        }],
        runs: vec![run],
        samples,
    }
}

/// The results as `lab run` would write them.
pub fn text(results: &Results) -> String {
    let mut lines: Vec<Line> = results.runs.iter().cloned().map(Line::Run).collect();
    lines.extend(
        results
            .samples
            .iter()
            .cloned()
            .map(|s| Line::Sample(Box::new(s))),
    );
    lines.extend(results.skips.iter().cloned().map(Line::Skip));
    lines.extend(results.not_yet.iter().cloned().map(Line::NotYet));
    let lines: Vec<String> = lines
        .iter()
        .map(|l| serde_json::to_string(l).unwrap())
        .collect();
    lines.join("\n")
}
