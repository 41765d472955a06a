//! Help, manual and completions name the same flags.

use super::*;
use std::collections::BTreeSet;

/// The commands for users.
const COMMANDS: [&str; 20] = [
    "run",
    "doctor",
    "man",
    "completions",
    "serve",
    "keygen",
    "agent",
    "disk",
    "config",
    "status",
    "stat",
    "top",
    "set",
    "advise",
    "dispatch",
    "tune",
    "swap-in",
    "read",
    "dump",
    "end",
];

/// The long flags in a text, except those that clap adds everywhere.
fn flags(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("--") {
        let before = text[..at].chars().next_back();
        let name: String = text[at + 2..]
            .chars()
            .take_while(|c| c.is_ascii_lowercase() || *c == '-')
            .collect();
        let alone = before.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '-');
        if alone && name.starts_with(|c: char| c.is_ascii_lowercase()) {
            found.insert(name);
        }
    }
    for usual in ["help", "version"] {
        found.remove(usual);
    }
    found
}

fn expected(command: &str) -> &'static [&'static str] {
    match command {
        "run" => &[
            "copies", "far", "key-file", "local", "metrics", "mode", "numa", "pool", "require",
            "shared", "slo", "stats", "tenant", "to",
        ],
        "doctor" => &["containers", "json", "seccomp"],
        "dispatch" => &["dry-run", "json", "socket"],
        "tune" => &["dry-run", "interval", "json", "once"],
        "swap-in" => &[
            "batch", "cgroup", "free", "interval", "json", "pid", "watch",
        ],
        "advise" => &["check", "interval", "json", "speed", "tries"],
        "man" => &["dir"],
        "completions" => &[],
        "serve" => &[
            "config",
            "gossip",
            "join",
            "key-file",
            "listen",
            "memory",
            "metrics",
            "rdma",
            "reserve",
            "state-json",
        ],
        "disk" => &[
            "copies",
            "far",
            "group",
            "key-file",
            "metrics",
            "nbd",
            "pool",
            "queues",
            "size",
            "state-json",
            "swap-host",
            "tenant",
            "to",
            "vhost-user",
        ],
        "keygen" | "config" | "set" => &[],
        "agent" => &[
            "config", "copies", "far", "group", "key-file", "pool", "replace", "socket", "to",
            "warm",
        ],
        "status" => &["json"],
        "read" => &["output", "raw"],
        "dump" => &["output"],
        "end" => &["force", "socket"],
        "stat" => &["count", "features", "prefetch", "interval", "json"],
        "top" => &["interval"],
        _ => unreachable!(),
    }
}

#[test]
fn help_lists_every_flag_and_no_other() {
    for command in COMMANDS {
        let got = ask(&[command, "--help"]);
        assert_eq!((got.code, got.err.as_str()), (0, ""));
        let mut listed = BTreeSet::new();
        for line in got.out.lines().filter(|l| l.trim_start().starts_with('-')) {
            listed.extend(flags(line));
        }
        let want: BTreeSet<String> = expected(command).iter().map(|s| (*s).to_owned()).collect();
        assert_eq!(listed, want, "canvas {command} --help:\n{}", got.out);
    }
}

#[test]
fn the_manual_names_every_flag() {
    let scratch = Scratch::new();
    assert_eq!(ask(&["man", "--dir", scratch.0.to_str().unwrap()]).code, 0);
    for command in COMMANDS {
        let page = fs::read_to_string(scratch.path(&format!("canvas-{command}.1")))
            .unwrap()
            .replace("\\-", "-");
        for flag in expected(command) {
            assert!(
                page.contains(&format!("--{flag}")),
                "canvas-{command}.1 does not name --{flag}"
            );
        }
    }
    assert!(scratch.path("canvas.1").exists());
}

#[test]
fn help_names_every_variable() {
    let help = ask(&["run", "--help"]).out;
    for variable in [
        "CANVAS_LOCAL",
        "CANVAS_FAR",
        "CANVAS_TENANT",
        "CANVAS_OPTIONS",
    ] {
        assert!(help.contains(variable), "help: {variable}");
    }
}

/// Few flags, and where to find the other settings.
#[test]
fn help_leads_to_the_tunables() {
    for command in ["run", "disk", "agent", "serve"] {
        let help = ask(&[command, "--help"]).out;
        assert!(help.contains("canvas help tunables"), "{command}: {help}");
        assert!(expected(command).len() <= 15, "{command}");
    }
    let all = ask(&["help", "tunables"]);
    assert_eq!((all.code, all.err.as_str()), (0, ""));
    for name in [
        "spill-at=PERCENT",
        "prefetch=streams|",
        "lease=TIME",
        "threads=auto|N",
    ] {
        assert!(
            all.out.contains(&format!("\n  {name}")),
            "{name}: {}",
            all.out
        );
    }
    let scratch = Scratch::new();
    assert_eq!(ask(&["man", "--dir", scratch.0.to_str().unwrap()]).code, 0);
    let page = fs::read_to_string(scratch.path("canvas-tunables.7")).unwrap();
    assert!(page.contains("spill\\-at"), "{page}");
}

#[test]
fn commands_in_the_readme_are_those_that_there_are() {
    let (mut in_block, mut count) = (false, 0);
    for line in include_str!("../../../../README.md").lines() {
        in_block ^= line.starts_with("```");
        let Some(words) = line.strip_prefix("canvas ").filter(|_| in_block) else {
            continue;
        };
        // The rest is a comment, or the program's.
        let words = words.split(" #").next().unwrap();
        let words = words.split(" -- ").next().unwrap();
        let command = words.split_whitespace().next().unwrap();
        assert!(COMMANDS.contains(&command), "{line}");
        for flag in flags(words) {
            let known = expected(command).contains(&flag.as_str());
            assert!(known, "README.md: {line}: --{flag}");
        }
        count += 1;
    }
    assert!(count >= 2, "README.md has only {count} commands");
}

#[test]
fn every_command_has_help_and_is_listed() {
    let top = ask(&["--help"]).out;
    for command in COMMANDS {
        assert!(
            top.lines().any(|l| l.trim_start().starts_with(command)),
            "{top}"
        );
        assert_eq!(ask(&["help", command]).code, 0);
    }
    for code in ["125", "126", "127", "128+n"] {
        assert!(top.contains(code), "exit code {code} in:\n{top}");
    }
}

#[test]
fn the_manual_and_the_version() {
    let page = ask(&["man"]);
    assert_eq!(page.code, 0);
    assert!(page.out.contains(".TH canvas 1"), "{}", page.out);
    assert_eq!(
        ask(&["--version"]).out,
        format!("canvas {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn completions_know_the_flags() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let got = ask(&["completions", shell]);
        assert_eq!(got.code, 0, "{shell}");
        for flag in expected("run") {
            assert!(got.out.contains(flag), "{shell}: {flag}");
        }
    }
}

#[test]
fn without_a_command_there_is_help_and_exit_2() {
    let got = ask(&[]);
    assert_eq!((got.code, got.out.as_str()), (2, ""));
    assert!(got.err.contains("Usage: canvas"), "{}", got.err);
}

#[test]
fn doctor_answers_in_words_and_in_json() {
    let json = ask(&["doctor", "--json"]);
    let v: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(v["schema"], "canvas-doctor/1");
    assert_eq!(json.code, if v["ok"] == true { 0 } else { 1 });
    let text = ask(&["doctor"]);
    assert_eq!(text.code, json.code);
    let mode = v["mode"].as_str().unwrap_or("none");
    let why = v["why"].as_str().unwrap();
    assert!(
        text.out
            .lines()
            .any(|l| l.starts_with("mode") && l.ends_with(&format!("{mode}: {why}"))),
        "{}",
        text.out
    );
    for line in v["advice"].as_array().unwrap() {
        assert!(text.out.contains(line.as_str().unwrap()));
    }
}
