//! Which crate uses which, so that a new dependency is a decision. (Cargo rules out cycles.)

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Each crate with the crates of the workspace that it may use, except in tests; lower crates
/// first.
const MAY_USE: [(&str, &[&str]); 26] = [
    ("types", &[]),
    ("place", &["types"]),
    ("testing", &[]),
    ("wire", &["types"]),
    ("workloads", &[]),
    ("shm", &["types"]),
    ("sys", &["types"]),
    ("core", &["shm", "types"]),
    ("sched", &["types"]),
    ("replay", &["core", "types"]),
    ("direct", &["shm", "sys", "types"]),
    (
        "preload",
        &["core", "direct", "rdma", "shm", "sys", "types"],
    ),
    ("disk", &["core", "direct", "shm", "sys", "types"]),
    ("bench", &["core", "shm", "sys", "types", "workloads"]),
    ("gossip", &["wire"]),
    ("rdma", &["types"]),
    ("link", &["rdma", "wire"]),
    ("host", &[]),
    (
        "donor",
        &["direct", "host", "link", "place", "rdma", "types", "wire"],
    ),
    ("control", &["place", "sched", "shm", "types"]),
    (
        "agent",
        &[
            "control", "core", "direct", "gossip", "link", "place", "sched", "shm", "sys", "types",
            "wire",
        ],
    ),
    (
        "runner",
        &[
            "agent", "control", "core", "host", "link", "place", "rdma", "shm", "sys", "types",
            "wire",
        ],
    ),
    (
        "cli",
        &[
            "agent", "control", "core", "disk", "donor", "gossip", "host", "link", "place", "rdma",
            "runner", "shm", "sys", "types", "wire",
        ],
    ),
    ("sim", &["place", "wire"]),
    (
        "lab",
        &[
            "bench",
            "control",
            "direct",
            "replay",
            "shm",
            "sim",
            "sys",
            "types",
            "workloads",
        ],
    ),
    (
        "fuzz",
        &[
            "agent", "control", "core", "disk", "gossip", "shm", "types", "wire",
        ],
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Directory of each crate, by its name without `canvas-`.
fn homes() -> BTreeMap<String, PathBuf> {
    let mut homes = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let home = entry.unwrap().path();
        if home.join("Cargo.toml").exists() {
            let name = home.file_name().unwrap().to_str().unwrap();
            homes.insert(name.strip_prefix("canvas-").unwrap().to_owned(), home);
        }
    }
    for part in ["bench", "replay", "sim", "workloads"] {
        homes.insert(part.to_owned(), root().join("lab").join(part));
    }
    homes.insert("lab".to_owned(), root().join("lab"));
    homes.insert("fuzz".to_owned(), root().join("fuzz"));
    homes
}

/// Names in a manifest's `[dependencies]`.
fn dependencies(home: &Path) -> Vec<String> {
    let text = fs::read_to_string(home.join("Cargo.toml")).unwrap();
    let lines = text.lines().skip_while(|l| *l != "[dependencies]").skip(1);
    lines
        .take_while(|l| !l.starts_with('['))
        .filter_map(|l| l.split_once(" = "))
        .map(|(name, _)| name.trim().to_owned())
        .collect()
}

#[test]
fn crates_use_what_they_may_and_no_more() {
    let homes = homes();
    let known: Vec<&str> = homes.keys().map(String::as_str).collect();
    let mut listed = MAY_USE.map(|(name, _)| name);
    listed.sort_unstable();
    assert_eq!(known, listed, "each crate is in the list");
    for (name, may) in MAY_USE {
        let mut ours: Vec<String> = dependencies(&homes[name])
            .iter()
            .filter_map(|d| d.strip_prefix("canvas-").map(str::to_owned))
            .collect();
        ours.sort_unstable();
        assert_eq!(ours, may, "canvas-{name}");
    }
}

#[test]
fn only_commands_know_flags() {
    for (name, home) in homes() {
        let has = dependencies(&home).iter().any(|d| d == "clap");
        assert!(!has || name == "cli" || name == "lab", "{name}");
    }
}
