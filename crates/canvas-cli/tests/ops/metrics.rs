//! Metrics from a scraper's view: every line of them is parsed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;

/// A free port of this host, most likely still free when it is used.
fn port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn http(addr: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Samples by name and labels; every line is checked by the format's rules.
fn scrape(addr: &str) -> BTreeMap<String, f64> {
    let (head, body) = http(addr, "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("application/openmetrics-text; version=1.0.0"));
    assert!(body.ends_with("# EOF\n"), "{body}");
    let mut samples = BTreeMap::new();
    let mut families: BTreeMap<String, String> = BTreeMap::new();
    let mut helped = BTreeSet::new();
    let mut family = String::new();
    for line in body.strip_suffix("# EOF\n").unwrap().lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(
                help.ends_with('.') && helped.insert(name.to_owned()),
                "{line}"
            );
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(
                name.starts_with("canvas_") && helped.contains(name),
                "{line}"
            );
            assert!(
                families.insert(name.to_owned(), kind.to_owned()).is_none(),
                "{line}"
            );
            family = name.to_owned();
            continue;
        }
        assert!(!line.starts_with('#') && !line.is_empty(), "{line}");
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap();
        let labels = labels.strip_suffix('}').unwrap();
        for label in labels.split("\",").map(|l| l.trim_end_matches('"')) {
            let (key, value) = label.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(key.chars().all(|c| c.is_ascii_lowercase()), "{line}");
            assert!(!value.contains('"'), "{line}");
        }
        let end = name.strip_prefix(family.as_str());
        let ends: &[&str] = match families[&family].as_str() {
            "counter" => &["_total"],
            "gauge" => &[""],
            _ => &["_bucket", "_count", "_sum"],
        };
        assert!(end.is_some_and(|e| ends.contains(&e)), "{line} in {family}");
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(value >= 0.0, "{line}");
        assert!(
            samples.insert(series.to_owned(), value).is_none(),
            "twice: {line}"
        );
    }
    samples
}

#[test]
fn of_a_run_under_a_load() {
    let host = Host::new();
    let donor = Donor::start(&host, &[]);
    let addr = format!("127.0.0.1:{}", port());
    let mut flags = far_flags("32M", &donor).to_vec();
    flags.extend(["--metrics", &addr]);
    let redis = Redis::start(&host, &flags);
    let mut load = Load::fill(&redis.socket, 60 * MIB);
    load.go();
    load.wait_for_more(500);
    host.wait_status("a round trip", |s| s["donors"][0]["round_trip_us"].is_u64());
    let first = scrape(&addr);
    load.wait_for_more(2000);
    let second = scrape(&addr);
    let of = |s: &BTreeMap<String, f64>, name: &str| s[&format!("{name}{{tenant=\"t\"}}")];
    for name in [
        "canvas_faults_far_total",
        "canvas_pages_out_total",
        "canvas_remote_read_bytes_total",
        "canvas_fault_seconds_count",
        "canvas_fault_seconds_sum",
        "canvas_cpu_seconds_total",
    ] {
        assert!(of(&second, name) > of(&first, name), "{name}");
    }
    // Counters never decrease.
    for (series, before) in &first {
        let counts = series.contains("_total{") || series.contains("_bucket{");
        assert!(!counts || second[series] >= *before, "{series}");
    }
    for name in [
        "canvas_fragment_ratio",
        "canvas_store_ratio",
        "canvas_hot_ratio",
        "canvas_stall_ratio",
    ] {
        let ratio = of(&second, name);
        assert!((0.0..=1.0).contains(&ratio), "{name}: {ratio}");
    }
    assert!(of(&second, "canvas_slowdown") > 0.0);
    let refaults = second
        .iter()
        .filter(|(s, _)| s.starts_with("canvas_refaults_total{"));
    let faults: f64 = refaults.map(|(_, n)| n).sum();
    assert!(faults >= of(&first, "canvas_faults_far_total"), "{faults}");
    assert_eq!(of(&second, "canvas_local_limit_bytes"), (32 * MIB) as f64);
    let infinite = second
        .iter()
        .find(|(s, _)| s.contains("canvas_fault_seconds_bucket") && s.contains("le=\"+Inf\""));
    assert_eq!(
        infinite.unwrap().1,
        &of(&second, "canvas_fault_seconds_count")
    );
    let donor_up = second
        .iter()
        .find(|(s, _)| s.starts_with("canvas_donor_up{"));
    let (series, up) = donor_up.unwrap();
    assert!(
        series.contains(&format!("donor=\"{}\"", donor.addr)) && *up == 1.0,
        "{series}"
    );
    let problems: Vec<_> = second
        .iter()
        .filter(|(s, _)| s.starts_with("canvas_problem{"))
        .collect();
    assert!(
        // All problems except a silent runner, since the runner itself answers.
        problems.len() == canvas_control::health::Code::ALL.len() - 1
            && problems.iter().all(|(_, v)| **v == 0.0),
        "{problems:?}"
    );
    assert!(http(&addr, "/").0.starts_with("HTTP/1.1 404"));
    load.end();
    redis.end();
}

#[test]
fn of_a_server() {
    let host = Host::new();
    let addr = format!("127.0.0.1:{}", port());
    let donor = Donor::start(&host, &["--metrics", &addr]);
    let of =
        |s: &BTreeMap<String, f64>, name: &str| s[&format!("{name}{{listen=\"{}\"}}", donor.addr)];
    let before = scrape(&addr);
    assert_eq!(
        of(&before, "canvas_serve_memory_bytes"),
        (1024 * MIB) as f64
    );
    let flags = far_flags("24M", &donor);
    let redis = Redis::start(&host, &flags);
    let load = Load::fill(&redis.socket, 60 * MIB);
    let after = wait_for("what was written", || {
        let now = scrape(&addr);
        (of(&now, "canvas_serve_written_bytes_total") > 0.0).then_some(now)
    });
    assert!(of(&after, "canvas_serve_lent_bytes") >= (64 * MIB) as f64);
    load.end();
    redis.end();
}

#[test]
fn an_address_that_is_taken_is_an_error() {
    let host = Host::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let (code, out, err) = host.ask(&["run", "--metrics", &addr, "--", "true"]);
    assert_eq!((code, out.as_str()), (125, ""));
    assert!(
        err.contains("metrics cannot be offered") && err.lines().count() == 1,
        "{err}"
    );
    let serve = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--memory",
        "64M",
        "--metrics",
        &addr,
    ];
    let (code, _, err) = host.ask(&serve);
    assert_eq!(code, 2);
    assert!(
        err.contains("metrics cannot be offered") && err.lines().count() == 1,
        "{err}"
    );
}
