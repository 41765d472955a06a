use super::*;
use crate::sweep::Sample;

fn run(end: End) -> Run {
    Run {
        program: "redis-server".into(),
        mode: Some(Mode::Signal),
        end,
        wall: Duration::from_millis(1500),
        user: Duration::from_micros(250),
        system: Duration::ZERO,
        max_rss_bytes: 4096,
        peaks: Peaks::default(),
    }
}

fn json(run: &Run, segment: &Segment) -> Value {
    serde_json::from_str(&Report::new(run, segment, None, None).to_json()).unwrap()
}

fn segment() -> &'static Segment {
    Segment::create(false).unwrap().1
}

#[test]
fn a_run_in_which_nothing_happened() {
    let v = json(&run(End::Exit(3)), segment());
    assert_eq!(v["schema"], "canvas-stats/1");
    assert_eq!(v["exit"]["code"], 3);
    assert_eq!(v["exit"]["signal"], Value::Null);
    assert_eq!(v["time"]["wall_s"], 1.5);
    assert_eq!(v["time"]["user_s"], 0.00025);
    assert_eq!(
        v["prefetch"]["contribution"],
        Value::Null,
        "nothing to divide by"
    );
    assert_eq!(v["limits"]["local_bytes"], Value::Null);
    assert_eq!(v["limits"]["local_effective_bytes"], Value::Null);
    assert_eq!(v["fault_time_ns"]["p99"], 0);
    assert_eq!(v["verify_failures"], 0);
}

#[test]
fn every_counter_is_there_by_its_name() {
    let s = segment();
    for (i, c) in Counter::ALL.iter().enumerate() {
        s.count(i, *c, 100 + i as u64);
    }
    let v = json(&run(End::Exit(0)), s);
    let counters = v["counters"].as_object().unwrap();
    assert_eq!(counters.len(), Counter::ALL.len());
    for (i, c) in Counter::ALL.iter().enumerate() {
        assert_eq!(counters[c.json_name()], 100 + i as u64);
    }
}

#[test]
fn ratios_as_canvas_defines_them() {
    let s = segment();
    for (c, n) in [
        (Counter::FaultFar, 25),
        (Counter::PrefetchUsed, 75),
        (Counter::PrefetchIssued, 100),
    ] {
        s.count(1, c, n);
    }
    let v = json(&run(End::Exit(0)), s);
    assert_eq!(v["prefetch"]["contribution"], 0.75);
    assert_eq!(v["prefetch"]["accuracy"], 0.75);
    // The number of used pages is extrapolated from a sample, and may exceed those issued.
    s.count(1, Counter::PrefetchUsed, 1000);
    assert_eq!(json(&run(End::Exit(0)), s)["prefetch"]["accuracy"], 1.0);
}

#[test]
fn fault_times_come_from_all_stripes() {
    let s = segment();
    for (i, stripe) in s.stripes.iter().enumerate() {
        for _ in 0..100 {
            stripe.fault_ns.record(3000);
        }
        stripe.fault_ns.record(1_000_000 + i as u64);
    }
    let v = &json(&run(End::Exit(0)), s)["fault_time_ns"];
    assert_eq!(v["count"], 8 * 101);
    assert_eq!(v["max"], 1_000_007);
    let buckets = v["histogram"].as_array().unwrap();
    let faults: u64 = buckets.iter().map(|b| b[1].as_u64().unwrap()).sum();
    assert_eq!((buckets.len(), faults), (2, 8 * 101));
    let p999 = v["p999"].as_u64().unwrap();
    assert!((900_000..=1_000_007).contains(&p999), "{p999}");
    // One value in 101 is large; the others are in one bucket.
    let [p50, p90, p99] = ["p50", "p90", "p99"].map(|q| v[q].as_u64().unwrap());
    assert!((2560..=3584).contains(&p50), "{p50}");
    assert!(p50 < p90 && p90 < p99 && p99 <= 3584, "{p50} {p90} {p99}");
}

#[test]
fn a_quantile_is_never_past_the_largest_value() {
    let s = segment();
    s.stripes[0].fault_ns.record(2561);
    let v = &json(&run(End::Exit(0)), s)["fault_time_ns"];
    assert_eq!(
        (v["p50"].as_u64(), v["max"].as_u64()),
        (Some(2561), Some(2561))
    );
}

#[test]
fn reads_beyond_the_pool_have_times_of_their_own() {
    let (fd, s) = Segment::create(true).unwrap();
    let far = Far::map(&fd).unwrap();
    far.stats.read_ns.record(40_000);
    let text = Report::new(&run(End::Exit(0)), s, Some(far), None).to_json();
    let v: Value = serde_json::from_str(&text).unwrap();
    let ahead = &v["far"]["prefetch_time_ns"];
    assert_eq!((&ahead["count"], &ahead["max"]), (&0.into(), &0.into()));
    far.stats.prefetch_ns.record(1_000_000);
    far.stats.prefetch_ns.record(9_000_000);
    let text = Report::new(&run(End::Exit(0)), s, Some(far), None).to_json();
    let later: Value = serde_json::from_str(&text).unwrap();
    let ahead = &later["far"]["prefetch_time_ns"];
    assert_eq!(
        (&ahead["count"], &ahead["max"]),
        (&2.into(), &9_000_000.into())
    );
    assert!(ahead["p50"].as_u64() < ahead["p90"].as_u64(), "{ahead}");
    let times = &v["far"]["read_time_ns"];
    assert_eq!(
        (&times["count"], &times["max"]),
        (&1.into(), &40_000.into())
    );
    assert_eq!(v["fault_time_ns"]["count"], 0);
}

#[test]
fn signals_limits_levels_and_classes() {
    let s = segment();
    s.config.local_ppm.store(250_000, Relaxed);
    s.footprint_pages_peak.store(40_000, Relaxed);
    s.local_pages.store(-1, Relaxed);
    s.local_pages_peak.store(10, Relaxed);
    let mut r = run(End::Signal(7, true));
    r.mode = None;
    r.peaks.last = Sample {
        resident_pages: 2,
        ..Sample::default()
    };
    r.peaks.peak = Sample {
        resident_pages: 7,
        ..Sample::default()
    };
    r.peaks.peak.class_bytes[1] = 384;
    let v = json(&r, s);
    assert_eq!(v["mode"], Value::Null);
    assert_eq!(v["exit"]["code"], Value::Null);
    assert_eq!(v["exit"]["signal"], 7);
    assert_eq!(v["exit"]["core_dumped"], true);
    assert_eq!(v["limits"]["local_percent"], 25.0);
    assert_eq!(v["limits"]["local_effective_bytes"], 10_000 * 4096);
    assert_eq!(v["memory"]["local_bytes"]["now"], 0, "never negative");
    assert_eq!(v["memory"]["local_bytes"]["peak"], 40_960);
    assert_eq!(v["memory"]["resident_bytes"]["now"], 8192);
    assert_eq!(v["memory"]["resident_bytes"]["peak"], 28_672);
    let classes = v["classes"].as_array().unwrap();
    assert_eq!(classes.len(), CLASS_BYTES.len());
    assert_eq!(classes[1]["slot_bytes"], u64::from(CLASS_BYTES[1]));
    assert_eq!(classes[1]["peak_bytes"], 384);
}

/// docs/STATS.md names every field of a report, and no other counter.
#[test]
fn the_schema_is_complete() {
    let doc = include_str!("../../../../docs/STATS.md");
    fn walk(prefix: &str, v: &Value, doc: &str) {
        match v {
            Value::Object(map) => {
                for (name, v) in map {
                    let path = if prefix.is_empty() {
                        name.clone()
                    } else {
                        format!("{prefix}.{name}")
                    };
                    let level = v.get("now").is_some() && v.get("peak").is_some();
                    if !v.is_object() || level {
                        assert!(
                            doc.contains(&format!("`{path}`")),
                            "docs/STATS.md does not name {path}"
                        );
                    }
                    if !level {
                        walk(&path, v, doc);
                    }
                }
            }
            Value::Array(items) => items
                .iter()
                .take(1)
                .for_each(|v| walk(&format!("{prefix}[]"), v, doc)),
            _ => {}
        }
    }
    walk("", &json(&run(End::Exit(0)), segment()), doc);
    for c in Counter::ALL {
        let line = format!("| `counters.{}` | {} |", c.json_name(), c.describe());
        assert!(
            doc.contains(&line),
            "docs/STATS.md needs this line:\n{line}"
        );
    }
    let rows = doc
        .lines()
        .filter(|l| l.starts_with("| `counters."))
        .count();
    assert_eq!(
        rows,
        Counter::ALL.len(),
        "docs/STATS.md names a counter that is gone"
    );
}

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("canvas-stats-test-{}-{name}", std::process::id()));
    fs::create_dir(&dir).unwrap();
    dir
}

#[test]
fn a_report_replaces_the_file_at_once() {
    let dir = scratch("replace");
    let file = dir.join("report.json");
    fs::write(&file, "old").unwrap();
    let place = Place::new(&file).unwrap();
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        "old",
        "checking changes nothing"
    );
    let mut reader = File::open(&file).unwrap();
    place.write("new").unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    let mut seen = String::new();
    io::Read::read_to_string(&mut reader, &mut seen).unwrap();
    assert_eq!(
        seen, "old",
        "who had it open reads the old report to its end"
    );
    assert_eq!(
        fs::read_dir(&dir).unwrap().count(),
        1,
        "nothing is left behind"
    );
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn unwritable_places() {
    let dir = scratch("unwritable");
    assert!(Place::new(&dir).is_err(), "a directory");
    assert!(Place::new(&dir.join("no/such/dir.json")).is_err());
    assert!(Place::new(Path::new("/proc/canvas.json")).is_err());
    Place::new(Path::new("/dev/null"))
        .unwrap()
        .write("x")
        .unwrap();
    fs::remove_dir_all(&dir).unwrap();
}
