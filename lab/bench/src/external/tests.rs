//! Checks of the workloads without running them; `tests/e2e/external.py` runs them.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::*;
use crate::workload::{Answer, Argv, Plan};

fn place(dir: &Path, scale: f64) -> Place {
    Place {
        cache: dir.join("cache"),
        scratch: dir.join("scratch"),
        scale,
        seed: 7,
        canvas: "canvas".into(),
        lab: "lab".into(),
        huge_pages: false,
    }
}

fn workload(name: &str) -> Box<dyn Workload> {
    all().into_iter().find(|w| w.name() == name).unwrap()
}

/// The value of `-p NAME=`.
fn property<'a>(client: &'a Argv, name: &str) -> &'a str {
    let found = client
        .argv
        .windows(2)
        .filter(|w| w[0] == "-p")
        .find_map(|w| w[1].strip_prefix(name)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("no property {name} in {:?}", client.argv))
}

fn server_plan(name: &str, place: &Place) -> Option<(Argv, String, Vec<Argv>)> {
    // Without the programs there is no plan, only an error.
    let w = workload(name);
    match w.plan(place, 0) {
        Ok(Plan::Server {
            server,
            socket,
            clients,
        }) => Some((server, socket, clients)),
        Ok(Plan::Program(_)) => panic!("{name} is a server"),
        Err(e) => {
            let e = e.to_string();
            assert!(e.contains("install it"), "{e}");
            canvas_testing::skip(&e);
            None
        }
    }
}

#[test]
fn names_are_unique_and_complete() {
    let all = all();
    let names: HashSet<&str> = all.iter().map(|w| w.name()).collect();
    assert_eq!(names.len(), all.len());
    for mix in ["a", "b", "c", "d", "e", "f"] {
        assert!(names.contains(format!("redis-ycsb-{mix}").as_str()));
        let has = names.contains(format!("memcached-ycsb-{mix}").as_str());
        assert_eq!(has, mix != "e");
    }
    for name in [
        "redis-get95",
        "memcached-get95",
        "xgboost",
        "sklearn-kmeans",
    ] {
        assert!(names.contains(name), "{name}");
    }
    for name in "lr kmeans pagerank skewed-groupby bayes cc sssp triangles".split(' ') {
        assert!(names.contains(format!("spark-{name}").as_str()), "{name}");
    }
    assert!(workload("memcached-ycsb-a").about().contains("no E"));
    for w in &all {
        assert!(!w.about().is_empty() && !w.about().contains('\n'));
        assert!(
            w.name()
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        );
    }
}

#[test]
fn proportions_are_ycsbs() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(dir.path(), 1.0);
    // read, update, insert, scan, read-modify-write, distribution: as in YCSB's workloads/workload*.
    let expected = [
        ("redis-ycsb-a", ["0.5", "0.5", "0", "0", "0", "zipfian"]),
        ("redis-ycsb-b", ["0.95", "0.05", "0", "0", "0", "zipfian"]),
        ("redis-ycsb-c", ["1", "0", "0", "0", "0", "zipfian"]),
        ("redis-ycsb-d", ["0.95", "0", "0.05", "0", "0", "latest"]),
        ("redis-ycsb-e", ["0", "0", "0.05", "0.95", "0", "zipfian"]),
        ("redis-ycsb-f", ["0.5", "0", "0", "0", "0.5", "zipfian"]),
        ("redis-get95", ["0.95", "0.05", "0", "0", "0", "zipfian"]),
    ];
    for (name, values) in expected {
        let Some((_, _, clients)) = server_plan(name, &place) else {
            return;
        };
        let names = [
            "readproportion",
            "updateproportion",
            "insertproportion",
            "scanproportion",
            "readmodifywriteproportion",
            "requestdistribution",
        ];
        assert_eq!(names.map(|n| property(&clients[1], n)), values, "{name}");
    }
}

#[test]
fn clients_know_the_servers_port_and_the_phases_agree() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(dir.path(), 0.02);
    for name in ["redis-ycsb-a", "memcached-ycsb-a", "memcached-get95"] {
        let Some((server, socket, clients)) = server_plan(name, &place) else {
            return;
        };
        let port = socket.strip_prefix("127.0.0.1:").unwrap();
        assert!(port.parse::<u16>().unwrap() > 0);
        assert!(server.argv.iter().any(|a| a == port), "{:?}", server.argv);
        assert_eq!(clients.len(), 2);
        for (client, phase, mode) in [
            (&clients[0], "load", "-load"),
            (&clients[1], "requests", "-t"),
        ] {
            assert_eq!(property(client, "canvas.port"), port);
            assert_eq!(client.argv[3], phase);
            assert_eq!(client.argv[4], property(client, "recordcount"));
            assert_eq!(client.argv[5], property(client, "operationcount"));
            assert!(client.argv.iter().any(|a| a == mode));
            assert_eq!(client.argv[4].parse::<u64>().unwrap() % 2, 0);
            assert_eq!(client.argv[5].parse::<u64>().unwrap() % 8, 0);
        }
        // Both phases must use the same values.
        for p in [
            "canvas.seed",
            "fieldcount",
            "fieldlength",
            "canvas.plain",
            "canvas.skewedsizes",
        ] {
            assert_eq!(property(&clients[0], p), property(&clients[1], p));
        }
        let all_fields = property(&clients[1], "writeallfields");
        assert_eq!(all_fields == "true", name.starts_with("memcached"));
        let again = server_plan(name, &place).unwrap().1;
        assert_ne!(again, socket, "two runs at one time need two ports");
    }
}

#[test]
fn sizes_follow_the_scale() {
    let dir = tempfile::tempdir().unwrap();
    let records = |scale| {
        let (_, _, clients) = server_plan("redis-ycsb-a", &place(dir.path(), scale))?;
        property(&clients[0], "recordcount").parse::<u64>().ok()
    };
    if let (Some(one), Some(half)) = (records(1.0), records(0.5)) {
        assert_eq!(one, 2 * half);
        assert!(records(0.0001).unwrap() >= 1000);
    }
    for w in all() {
        let patience = |scale| w.timeout_s(&place(dir.path(), scale));
        assert!(patience(0.02) >= 600 && patience(2.0) > patience(1.0));
    }
}

#[test]
fn what_is_not_prepared_is_planned_but_nothing_is_fetched_by_looking() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(dir.path(), 0.02);
    for w in all() {
        if let Some(reason) = w.missing(&place).map(|e| e.to_string()) {
            assert!(
                reason.contains("Debian's package"),
                "{}: {reason}",
                w.name()
            );
            assert!(!reason.contains('\n'));
        }
    }
    assert!(!place.cache.exists(), "missing() must not write");
}

#[test]
fn data_are_kept_apart_by_seed_and_size() {
    let dir = tempfile::tempdir().unwrap();
    let one = place(dir.path(), 1.0);
    let mut other = one.clone();
    other.seed += 1;
    let path = python::data_path(&one, "higgs", 1000);
    assert_ne!(path, python::data_path(&other, "higgs", 1000));
    assert_ne!(path, python::data_path(&one, "higgs", 1001));
    assert_ne!(path, python::data_path(&one, "blobs", 1000));
    assert!(path.starts_with(&one.cache));
}

#[test]
fn scripts_are_written_once_and_whole() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(dir.path(), 1.0);
    python::prepare_scripts(&place).unwrap();
    let path = python::script(&place, "ycsb.py");
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        include_str!("scripts/ycsb.py")
    );
    let written = fs::metadata(&path).unwrap().modified().unwrap();
    python::prepare_scripts(&place).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written);
}

/// Parses shortened output of YCSB 0.17.0 with the wrapper's parser.
fn parse(
    phase: &str,
    records: &str,
    operations: &str,
    out: &str,
    err: &str,
) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let script = file("ycsb.py", include_str!("scripts/ycsb.py"));
    let result = Command::new(tools::find("python3").expect("python3 (tests/packages.txt)"))
        .arg(script)
        .args(["parse", phase, records, operations])
        .arg(file("out", out))
        .arg(file("err", err))
        .output()
        .unwrap();
    (
        result.status.code(),
        String::from_utf8(result.stdout).unwrap(),
        String::from_utf8(result.stderr).unwrap(),
    )
}

const A_OUT: &str = include_str!("fixtures/redis-a.out");
const A_ERR: &str = include_str!("fixtures/redis-a.err");
const F_OUT: &str = include_str!("fixtures/memcached-f.out");
const F_ERR: &str = include_str!("fixtures/memcached-f.err");

fn answer(stdout: &str) -> Answer {
    serde_json::from_str(stdout.lines().last().unwrap()).unwrap()
}

#[test]
fn ycsbs_output_becomes_an_answer() {
    let (code, out, err) = parse("requests", "5000", "20000", A_OUT, A_ERR);
    assert_eq!(code, Some(0), "{err}");
    let a = answer(&out);
    assert_eq!(
        a.answer,
        "5000 records, 20000 requests answered, 5000 records read back, 0 wrong"
    );
    assert_eq!(a.seconds, Some(3.148));
    assert_eq!(a.ops_per_s, Some(6353.240152477763));
    let q = a.latency_ns.unwrap();
    assert_eq!((q.p50, q.p99), (108_000.0, 5_123_000.0));
    assert_eq!((q.p999, q.max), (Some(35_359_000.0), Some(133_759_000.0)));
    assert_eq!(
        a.latency_histogram,
        [(41_000, 5), (48_000, 222), (163_840_000, 3)]
    );
    // 3313.54 covers less than a second after the last full one, and is not a rate of its own.
    assert_eq!(a.rates, [(2.0, 740.55), (3.0, 17048.69)]);
}

#[test]
fn a_read_modify_write_is_one_request() {
    let (code, out, err) = parse("requests", "5000", "20000", F_OUT, F_ERR);
    assert_eq!(code, Some(0), "{err}");
    let a = answer(&out);
    assert!(a.answer.contains("20000 requests answered"), "{}", a.answer);
    assert_eq!(a.rates.len(), 5);
}

#[test]
fn what_is_wrong_under_ycsb_is_no_answer() {
    let refused = |operations, out: &str, err: &str| {
        let (code, stdout, stderr) = parse("requests", "5000", operations, out, err);
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
        stderr.lines().last().unwrap().to_owned()
    };
    assert_eq!(
        refused("20008", A_OUT, A_ERR),
        "ycsb: 20000 of 20008 requests were answered, 0 failed, 0 values were wrong"
    );
    let wrong = A_ERR.replace("\"wrong\": 0", "\"wrong\": 3");
    assert!(refused("20000", A_OUT, &wrong).ends_with("3 values were wrong"));
    let failed = A_ERR.replace("\"failed\": 0", "\"failed\": 1");
    assert!(refused("20000", A_OUT, &failed).contains("1 failed"));
    // The server died: YCSB itself exits with 0.
    let died: String = A_ERR.lines().filter(|l| !l.starts_with("CHECK")).collect();
    assert_eq!(
        refused("20000", A_OUT, &died),
        "ycsb: YCSB ended before its values were read back"
    );
    let cut = A_OUT.replace("[OVERALL], RunTime(ms), 3148", "");
    assert!(refused("20000", &cut, A_ERR).contains("RunTime(ms)"));
}
