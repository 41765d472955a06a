//! Guests that swap: stock Linux in qemu, whose memory a balloon shrinks, with redis, memcached and
//! analytics, onto disks, zswap, zram, a ramdisk and canvas.
//!
//! A Python program (`lab/guests`) drives a guest, since the guests' kernel and file system are those of the
//! tests (`tests/vm`). It prints a line of JSON for each row.

use std::fs;
use std::path::Path;
use std::time::Duration;

use canvas_workloads::Quantiles;
use serde_json::Value;

use super::Below;
use crate::engine::program::Fail;
use crate::engine::script::{Case, Script, Stage, failed};
use crate::record::{Outcome, Sample};

/// Timeout of one guest with all its rows.
const PATIENCE: Duration = Duration::from_secs(1800);
/// The part with a pool that overflows; its size follows from the run without a bound.
const SPILL: &str = "spill";
const WANTED_POOL: &str = "wanted_pool_mib";

/// Files of the Python program, with those of the tests that it needs.
const FILES: [(&str, &str); 13] = [
    (
        "guests/__init__.py",
        include_str!("../../../guests/__init__.py"),
    ),
    (
        "guests/__main__.py",
        include_str!("../../../guests/__main__.py"),
    ),
    (
        "guests/figures.py",
        include_str!("../../../guests/figures.py"),
    ),
    (
        "guests/guests.py",
        include_str!("../../../guests/guests.py"),
    ),
    ("guests/host.py", include_str!("../../../guests/host.py")),
    ("guests/parts.py", include_str!("../../../guests/parts.py")),
    (
        "guests/protocol.py",
        include_str!("../../../guests/protocol.py"),
    ),
    ("guests/store.py", include_str!("../../../guests/store.py")),
    ("guests/swaps.py", include_str!("../../../guests/swaps.py")),
    (
        "guests/analytics.c",
        include_str!("../../../guests/analytics.c"),
    ),
    (
        "vm/kernel.py",
        include_str!("../../../../tests/vm/kernel.py"),
    ),
    (
        "vm/initramfs.py",
        include_str!("../../../../tests/vm/initramfs.py"),
    ),
    (
        "vm/machine.py",
        include_str!("../../../../tests/vm/machine.py"),
    ),
];
const INIT: (&str, &str) = ("vm/init.sh", include_str!("../../../../tests/vm/init.sh"));

/// A guest that swaps by itself, and one whose memory canvas manages.
const GUEST: Below = Below::Local;
const CANVAS: Below = Below::Canvas(&[]);

const fn case(
    part: &'static str,
    parameters: &'static [(&'static str, &'static str)],
    below: Below,
) -> Case {
    Case {
        workload: part,
        parameters,
        below,
    }
}

/// Parameters of a case: the device that the guest swaps onto.
macro_rules! onto {
    ($name:literal) => {
        &[("onto", $name)]
    };
}

/// Definition of the experiment.
pub const SCRIPT: Script = Script {
    name: "fastswap",
    about: "guests that swap onto disks, zswap, zram, a ramdisk and canvas: redis, memcached, analytics, a pool that overflows",
    paper: Some("FastSwap, tables I to III and figures 2 and 9 to 11; Infiniswap's applications"),
    cases: &[
        case("redis", onto!("disk"), GUEST),
        case("redis", onto!("slow-disk"), GUEST),
        case("redis", onto!("zswap"), GUEST),
        case("redis", onto!("zram"), GUEST),
        case("redis", onto!("ramdisk"), GUEST),
        case("redis", onto!("none"), CANVAS),
        case("redis", onto!("lz4"), CANVAS),
        case("redis", onto!("donors"), CANVAS),
        case("redis", onto!("under-canvas"), CANVAS),
        case("lr", onto!("disk"), GUEST),
        case("lr", onto!("slow-disk"), GUEST),
        case("lr", onto!("zswap"), GUEST),
        case("lr", onto!("none"), CANVAS),
        case("lr", onto!("lz4"), CANVAS),
        case(SPILL, onto!("lz4"), CANVAS),
        case(SPILL, onto!("spill"), CANVAS),
        case(SPILL, onto!("spill-donors"), CANVAS),
        case(SPILL, onto!("zswap"), GUEST),
        case("redis-set", onto!("slow-disk"), GUEST),
        case("redis-set", onto!("donors"), CANVAS),
        case("redis-set", onto!("donors-nbd"), CANVAS),
        case("memcached-set", onto!("slow-disk"), GUEST),
        case("memcached-set", onto!("donors"), CANVAS),
        case("memcached-set", onto!("donors-nbd"), CANVAS),
    ],
    in_order: true,
    needs: &[
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("qemu-storage-daemon", "qemu-system-common"),
        ("redis-server", "redis-server"),
        ("memcached", "memcached"),
        ("gcc", "gcc"),
        ("busybox", "busybox-static"),
        ("kmod", "kmod"),
        ("python3", "python3"),
    ],
    needs_root: true,
    repeats: 1,
    scale: 1.0,
    run,
};

fn write(dir: &Path) -> Result<(), Fail> {
    for (name, text) in FILES.into_iter().chain([INIT, ("vm/__init__.py", "")]) {
        let path = dir.join(name);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        let written = made.and_then(|()| fs::write(&path, text));
        written.map_err(|e| failed(format!("{}: {e}", path.display())))?;
    }
    Ok(())
}

/// All numbers of a line, named by the path of objects that contain them.
fn numbers(prefix: &str, value: &Value, found: &mut Vec<(String, f64)>) {
    match value {
        Value::Object(all) => {
            for (name, value) in all {
                let name = if prefix.is_empty() {
                    name.clone()
                } else {
                    format!("{prefix}_{name}")
                };
                numbers(&name, value, found);
            }
        }
        Value::Number(n) => found.extend(n.as_f64().map(|n| (prefix.to_owned(), n))),
        _ => {}
    }
}

/// Turns a line into a sample: known figures go to their fields, all others are kept by name.
fn sample_of(line: &Value, mut sample: Sample) -> Sample {
    if let Some(program) = line["program"].as_str() {
        sample.workload = program.to_owned();
    }
    let mut found = Vec::new();
    numbers("", line, &mut found);
    let mut quantiles = Quantiles::default();
    for (name, n) in found {
        match name.as_str() {
            "ops_s" | "zipf_ops_s" => sample.ops_per_s = Some(n),
            "run_s" => sample.seconds = Some(n),
            "p50_us" | "zipf_p50_us" => quantiles.p50 = n * 1e3,
            "p99_us" | "zipf_p99_us" => quantiles.p99 = n * 1e3,
            "longest_us" | "zipf_longest_us" => quantiles.max = Some(n * 1e3),
            "in_memory_pct" => sample.local_percent = Some(n as u32),
            _ => drop(sample.figures.insert(name, n)),
        }
    }
    sample.latency_ns = (quantiles.p50 > 0.0).then_some(quantiles);
    sample.answer = line["answer"].as_str().map(str::to_owned);
    sample
}

/// Whether another guest gave a different answer to the same question.
fn is_wrong(sample: &Sample, earlier: &[Sample]) -> bool {
    let Some(answer) = &sample.answer else {
        return false;
    };
    let same = |s: &&Sample| {
        s.experiment == sample.experiment
            && s.workload == sample.workload
            && s.local_percent == sample.local_percent
            && s.figures.get("mib") == sample.figures.get("mib")
    };
    let other = |s: &Sample| s.answer.as_ref().is_some_and(|a| a != answer);
    earlier.iter().filter(same).any(other)
}

fn run(stage: &Stage, case: &Case) -> Result<Vec<Sample>, Fail> {
    write(&stage.dir)?;
    let onto = case.parameter("onto").unwrap_or_default();
    let seconds = stage.seconds(8.0).as_secs_f64();
    let mut argv = vec!["python3".to_owned(), "-m".to_owned(), "guests".to_owned()];
    argv.extend([case.workload, onto].map(str::to_owned));
    argv.extend([
        format!("--canvas={}", stage.canvas()),
        format!("--place={}", stage.dir.display()),
        format!("--seconds={seconds}"),
    ]);
    if case.workload == SPILL {
        let mut before = stage.earlier.iter().rev();
        let wanted = before.find_map(|s| s.figures.get(WANTED_POOL));
        argv.extend(wanted.map(|mib| format!("--spill-pool-mib={mib}")));
    }
    let mut child = stage.start(argv, "guests")?;
    let ended = stage.until("the end of a guest", PATIENCE, || {
        Ok(child.wait(Duration::ZERO))
    })?;
    if !ended.status.success() {
        return Err(failed(child.complaint()));
    }
    let output = child.output();
    let lines = output
        .lines()
        .filter_map(|l| serde_json::from_str::<Value>(l).ok());
    let samples = lines.map(|line| {
        let mut sample = sample_of(&line, stage.sample());
        if is_wrong(&sample, stage.earlier) {
            sample.outcome = Outcome::Wrong;
        }
        sample
    });
    Ok(samples.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Canvas treats a program whose file contains the device's name as one that runs guests; lab itself
    /// would run in thread mode.
    #[test]
    fn no_file_names_the_device_for_guests() {
        let device = ["/dev", "kvm"].join("/");
        for (name, text) in FILES {
            assert!(!text.contains(&device), "{name}");
        }
    }

    #[test]
    fn a_line_becomes_a_sample() {
        let line = serde_json::json!({
            "program": "lr", "in_memory_pct": 50, "run_s": 4.5, "answer": "x", "mib": 85, "accel": "tcg",
            "redis": {"ops_s": 90}, "per_second": [1, 2], "memory": {"host_mib": 300, "ratio": null},
        });
        let sample = sample_of(&line, Sample::default());
        assert_eq!(
            (sample.workload.as_str(), sample.local_percent),
            ("lr", Some(50))
        );
        assert_eq!(
            (sample.seconds, sample.answer.as_deref()),
            (Some(4.5), Some("x"))
        );
        let names: Vec<&String> = sample.figures.keys().collect();
        assert_eq!(names, ["memory_host_mib", "mib", "redis_ops_s"]);
        let other = Sample {
            answer: Some("y".to_owned()),
            ..sample.clone()
        };
        assert!(is_wrong(&other, std::slice::from_ref(&sample)));
        assert!(!is_wrong(&sample, std::slice::from_ref(&sample)));
    }
}
