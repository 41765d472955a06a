//! Tests of the `lab` command as a user calls it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// Output and exit status of a command.
struct Answer {
    code: i32,
    out: String,
    err: String,
}

/// Runs `lab` with these arguments in an empty directory.
fn ask(args: &[&str]) -> Answer {
    let dir = TempDir::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    let output = command
        .args(args)
        .current_dir(&dir)
        .env_remove("CANVAS")
        .output();
    let output = output.unwrap();
    Answer {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Checks that `lab` exits with code 2 and that its message has this text.
fn refuses(args: &[&str], text: &str) {
    let got = ask(args);
    assert_eq!(
        (got.code, got.out.as_str()),
        (2, ""),
        "{args:?}: {}",
        got.err
    );
    assert!(
        got.err.contains(text),
        "{args:?}: {} does not say {text}",
        got.err
    );
}

/// Writes a file in `dir` and returns its path.
fn file(dir: &TempDir, name: &str, text: &str) -> String {
    let path = dir.path().join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_list_names_experiments_and_variants() {
    let got = ask(&["run", "--list"]);
    assert_eq!((got.code, got.err.as_str()), (0, ""));
    for name in [
        "quick",
        "sweep",
        "infiniswap",
        "fastswap-tables",
        "canvas-fig2",
        "xdm-sweep",
        "zram-64k",
        "zswap",
    ] {
        let line = got.out.lines().find(|l| l.trim_start().starts_with(name));
        assert!(line.is_some(), "{name} in:\n{}", got.out);
    }
}

#[test]
fn replay_prints_a_row_for_each_percentage() {
    let made_up = "replay --synthetic zipf --memory 1M --accesses 5000 --percent 25,50";
    let args: Vec<&str> = made_up.split(' ').collect();
    let got = ask(&args);
    assert_eq!(got.code, 0, "{}", got.err);
    for percent in ["25%", "50%"] {
        let rows = got
            .out
            .lines()
            .filter(|l| l.trim_start().starts_with(percent));
        assert_eq!(rows.count(), 1, "{}", got.out);
    }
    assert_eq!(
        ask(&args).out,
        got.out,
        "the same seed gives the same table"
    );
}

#[test]
fn a_simulation_prints_its_figures() {
    let got = ask(&["sim", "utilization"]);
    assert_eq!((got.code, got.err.as_str()), (0, ""));
    assert!(got.out.lines().count() > 3, "{}", got.out);
}

/// The long flags in a text, except those that clap adds to every command.
fn flags(text: &str) -> Vec<&str> {
    let all = text.match_indices("--").filter_map(|(at, _)| {
        let rest = &text[at + 2..];
        let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '-');
        rest.get(..end.unwrap_or(rest.len()))
    });
    let usual = ["", "help", "version"];
    all.filter(|f| !usual.contains(f)).collect()
}

#[test]
fn the_page_on_workloads_has_their_names_and_flags() {
    let help = ask(&["workload", "--help"]);
    assert_eq!((help.code, help.err.as_str()), (0, ""));
    let document = include_str!("../WORKLOADS.md");
    for flag in flags(&help.out) {
        assert!(document.contains(&format!("`--{flag}")), "--{flag}");
    }
    for name in ["sequential", "fill", "quicksort", "rmat-bfs", "snappy"] {
        assert!(help.out.contains(name), "{name} in:\n{}", help.out);
        assert!(document.contains(&format!("\n| `{name}` |")), "{name}");
    }
}

#[test]
fn a_workload_prints_one_object() {
    let args = ["workload", "quicksort", "--mib", "4", "--seed", "3"];
    let answer = |args: &[&str]| {
        let got = ask(args);
        assert_eq!((got.code, got.err.as_str()), (0, ""));
        assert_eq!(got.out.lines().count(), 1, "{}", got.out);
        let v: serde_json::Value = serde_json::from_str(&got.out).unwrap();
        assert!(v["seconds"].as_f64().unwrap() > 0.0);
        assert!(v["ops_per_s"].as_f64().unwrap() > 0.0);
        v["answer"].as_str().unwrap().to_owned()
    };
    let first = answer(&args);
    assert!(
        first.starts_with("quicksort ints=524288 digest="),
        "{first}"
    );
    assert_eq!(answer(&args), first);
    assert_ne!(answer(&["workload", "quicksort", "--mib", "4"]), first);
}

/// First line of a results file.
const RUN: &str = r#"{"kind":"run","schema":"canvas-bench/1","run_id":"a","started_unix_s":1,"canvas_version":"0","argv":[],"scale":1.0,"repeats":1,"seed":1,"machine":{"cpu":"","cpus":1,"is_virtual":false,"memory_bytes":1,"kernel":"","cgroup_version":null,"features":{},"load_average":0.0}}"#;

#[test]
fn report_writes_a_page_or_says_why_not() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let results = file(&dir, "results.jsonl", &format!("{RUN}\n"));
    // `lab run` and `lab report` each accept the other's name of the output flag.
    for (n, flag) in ["-o", "--output", "--out"].into_iter().enumerate() {
        let page = path(&format!("page-{n}.html"));
        let got = ask(&["report", &results, flag, &page]);
        assert_eq!(
            (got.code, got.out.as_str(), got.err.as_str()),
            (0, "", ""),
            "{flag}"
        );
        assert!(
            fs::read_to_string(&page)
                .unwrap()
                .starts_with("<!DOCTYPE html>")
        );
        let there = path("there-is-no-directory/x");
        refuses(
            &["run", "quicksort", "--scale", "0.01", flag, &there],
            &there,
        );
    }

    let damaged = file(&dir, "damaged", &format!("{RUN}\n{{\"kind\":"));
    let none = path("none.html");
    refuses(&["report", &damaged, "-o", &none], "line 2 is damaged");
    refuses(
        &["report", &path("absent"), "-o", &none],
        "absent cannot be read",
    );
    refuses(
        &["report", &results, "-o", &results],
        "would be overwritten",
    );
    refuses(
        &["report", &results, "-o", &path("no/such/dir")],
        "cannot be written",
    );
    assert!(!Path::new(&none).exists());
    assert_eq!(fs::read_to_string(&results).unwrap(), format!("{RUN}\n"));
}

#[test]
fn compare_tells_faster_from_slower() {
    let dir = TempDir::new().unwrap();
    let results = |name: &str, zipf_s: f64, quicksort_s: f64| {
        let mut text = format!("{RUN}\n");
        for (workload, seconds) in [("zipf", zipf_s), ("quicksort", quicksort_s)] {
            for repeat in 0..5 {
                let seconds = seconds * (1.0 + 0.01 * f64::from(repeat));
                text += &format!(
                    r#"{{"kind":"sample","run_id":"a","experiment":"sweep","workload":"{workload}","variant":{{"canvas":[]}},"local_percent":25,"repeat":{repeat},"at_s":0.0,"outcome":"ok","seconds":{seconds},"answer":"x"}}"#
                );
                text.push('\n');
            }
        }
        file(&dir, name, &text)
    };
    let (old, new) = (results("old", 2.0, 1.0), results("new", 1.0, 2.0));
    let got = ask(&["compare", &old, &new]);
    assert_eq!((got.code, got.err.as_str()), (0, ""));
    let row = |name: &str| {
        let row = got.out.lines().find(|l| l.contains(name));
        row.unwrap_or_else(|| panic!("{name} in:\n{}", got.out))
    };
    assert!(row("zipf").contains("2.000") && row("zipf").ends_with("faster"));
    assert!(row("quicksort").contains("0.500") && row("quicksort").ends_with("slower"));
}

#[test]
fn bad_arguments_of_run_are_2_and_change_nothing() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("r.jsonl");
    // A stub of canvas that accepts only --good, as `canvas run` would accept its flags.
    let canvas = file(
        &dir,
        "canvas",
        "#!/bin/sh\n[ \"$*\" = 'run --good --help' ]\n",
    );
    fs::set_permissions(&canvas, fs::Permissions::from_mode(0o755)).unwrap();
    for (args, text) in [
        ("quack", "there is no experiment or workload quack"),
        (
            "quack --canvas-flags --good",
            "there is no experiment or workload quack",
        ),
        ("", "there is nothing to run"),
        ("quick --variants local,ram", "'ram'"),
        ("quick --ratios 50,0", "--ratios"),
        ("quick --ratios 101", "--ratios"),
        ("quick --ratios half", "--ratios"),
        ("quick --repeats 0", "--repeats"),
        ("quick --scale 0", "it is out of range"),
        ("quick --scale big", "it is not a number"),
        ("quick --time-max 3", "it has no unit"),
        ("quick --time-max 0s", "it is out of range"),
        ("quick --time-max soonm", "it does not start with a number"),
        ("quick --far-link 1gbit,fast", "it is not a rate"),
        ("quick --far-link 1000gbit", "it is out of range"),
        ("quick --far-link 1gbit+1ms", "it is not a rate"),
        ("quick --far-link 200us", "its delay is out of range"),
        ("quick --co-run", "name two or more"),
        (
            "quick --canvas-flags --local=1G",
            "--local=1G is set by the bench itself",
        ),
        (
            "quick --canvas-flags --bad",
            "canvas run does not accept these flags",
        ),
    ] {
        let before = ["run", "--canvas", &canvas, "--out", out.to_str().unwrap()];
        let all: Vec<&str> = before.into_iter().chain(args.split_whitespace()).collect();
        refuses(&all, text);
        assert!(!out.exists(), "{args}");
    }
    // An experiment with nothing to run: only the file can be wrong.
    let other = file(&dir, "notes.txt", "mine\n");
    refuses(
        &["run", "canvas-fig10", "--out", &other],
        "is not a results file",
    );
    assert_eq!(fs::read_to_string(&other).unwrap(), "mine\n");
}

#[test]
fn bad_arguments_of_the_others_are_2() {
    let dir = TempDir::new().unwrap();
    let empty = file(&dir, "empty.jsonl", "");
    let damaged = file(&dir, "damaged.jsonl", "{\n");
    let text = file(&dir, "text", "not a trace");
    for (args, said) in [
        (&["compare"][..], "<OLD>"),
        (&["compare", &empty], "<NEW>"),
        (&["compare", &empty, &empty, &empty], "unexpected argument"),
        (&["compare", "/no/such", &empty], "/no/such cannot be read"),
        (&["compare", &empty, &empty], "is empty"),
        (&["compare", &damaged, &damaged], "line 1 is damaged"),
        (&["replay"], "<FILE>"),
        (
            &["replay", "/no/such/trace"],
            "/no/such/trace cannot be read",
        ),
        (&["replay", &text], "is not a canvas trace"),
        (&["replay", "--synthetic", "nonsense"], "'nonsense'"),
        (
            &["replay", "--synthetic", "loop", "--memory", "1"],
            "--memory 1 is out of range",
        ),
        (
            &["replay", "--synthetic", "loop", &text],
            "cannot be used with",
        ),
        (&["replay", "--percent", "0", &text], "0 is not in 1..=100"),
        (&["workload"], "<NAME>"),
        (&["workload", "nonsense"], "'nonsense'"),
        (
            &["workload", "zipf", "--threads", "17"],
            "--threads 17 is out of range; write 1 to 16",
        ),
        (
            &["workload", "quicksort", "--stride", "2"],
            "quicksort takes no --stride",
        ),
        (&["sim", "nonsense"], "'nonsense'"),
        (&["sim", "--hosts", "7"], "--hosts"),
    ] {
        refuses(args, said);
    }
}
