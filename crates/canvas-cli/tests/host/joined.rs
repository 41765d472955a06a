//! Several programs in one tenant: one budget, and each with its own end.

use std::fs;
use std::os::unix::process::ExitStatusExt;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Host, Run, wait_served};

/// The pid of a run's program.
fn program(run: &Run) -> Pid {
    let runner = run.child.id();
    let children = format!("/proc/{runner}/task/{runner}/children");
    let pids = fs::read_to_string(children).unwrap();
    Pid::from_raw(pids.split_whitespace().next().unwrap().parse().unwrap())
}

#[test]
fn programs_join_a_tenant_and_it_is_over_with_the_last() {
    let mut host = Host::new();
    let mut agent = host.agent(&["--far", "384M"]);
    let mut first = host.run("load", &["--far", "384M", "--tenant", "web"]);
    first.wait_for("ready");
    // The tenant has all of the far memory, so the second run can only join it.
    let mut second = host.run("load", &["--tenant", "web"]);
    second.wait_for("ready");
    let mut third = host.run("load", &["--tenant", "web", "--far", "384M"]);
    third.wait_for("ready");

    // All are handed over, and all find the next agent when theirs has died.
    let next = host.agent(&["--replace", "--far", "384M"]);
    assert_eq!(agent.end().code(), Some(0), "{}", agent.said());
    next.wait_for("tenants taken over: 1");
    agent = next;
    agent.kill();
    let _agent = host.agent(&["--far", "384M"]);
    wait_served(&[&first, &second, &third]);

    // Each ends by itself.
    kill(program(&second), Signal::SIGKILL).unwrap();
    assert_eq!(second.child.wait().unwrap().signal(), Some(9));
    first.go_on();
    let (far, _) = first.finish();
    assert_eq!(far["corrupt"], 0, "{far}");
    let err = host.run("short", &["--far", "64M"]).refused();
    assert!(err.contains("0 MiB of far memory are left"), "{err}");
    third.go_on();
    let (far, _) = third.finish();
    assert_eq!(far["corrupt"], 0, "{far}");
    // The name and the memory are free.
    let (far, err) = host
        .run("short", &["--far", "64M", "--tenant", "web"])
        .finish();
    assert_eq!((&far["agents"], err.as_str()), (&1.into(), ""));
}

#[test]
fn runs_that_begin_at_one_time_find_each_other() {
    let mut host = Host::new();
    let agent = host.agent(&["--far", "64M"]);
    for _ in 0..3 {
        let runs: Vec<Run> = (0..4)
            .map(|_| host.run("one", &["--far", "64M", "--tenant", "web"]))
            .collect();
        for run in &runs {
            run.wait_for("ready");
        }
        for mut run in runs {
            run.go_on();
            let (far, err) = run.finish();
            assert_eq!((&far["agents"], err.as_str()), (&1.into(), ""));
        }
    }
    assert_eq!(agent.said().lines().count(), 1, "{}", agent.said());
}

#[test]
fn what_a_joining_run_says_is_what_there_is() {
    let mut host = Host::new();
    let _agent = host.agent(&[]);
    let flags = ["--far", "128M", "--tenant", "web", "-o", "weight=70"];
    let first = host.run("load", &flags);
    first.wait_for("ready");
    for (flags, want) in [
        (
            ["--far", "64M"],
            "--far 64M differs from the tenant's setting, 128M",
        ),
        (
            ["-o", "weight=71"],
            "-o weight 71 differs from the tenant's setting, 70",
        ),
        (
            ["--pool", "1M"],
            "--pool 1M differs from the tenant's setting",
        ),
        (
            ["--copies", "2"],
            "--copies 2 differs from the tenant's setting, disk",
        ),
        (
            ["-o", "swap-in-limit=1M/s"],
            "-o swap-in-limit 1M/s differs from the tenant's setting, none",
        ),
        (
            ["-o", "prefetch=leap"],
            "-o prefetch leap differs from the tenant's setting, streams",
        ),
        (
            ["-o", "spill-at=70"],
            "-o spill-at 70 differs from the tenant's setting, 80",
        ),
        (
            ["-o", "far-wait=5s"],
            "-o far-wait 5s differs from the tenant's setting, 30s",
        ),
        (["-o", "trace=/dev/null"], "a trace belongs to one run"),
    ] {
        let err = host
            .run("one", &[&flags[..], &["--tenant", "web"]].concat())
            .refused();
        assert!(err.contains("tenant web exists already: "), "{err}");
        assert!(err.contains(want), "{want}: {err}");
    }
    let same = [
        "--far",
        "100M",
        "-o",
        "weight=70",
        "--copies",
        "disk",
        "--tenant",
        "web",
    ];
    let second = host.run("one", &same);
    second.wait_for("ready");
    // Each of them answers for the tenant.
    let (code, said) = host.ask(&["set", "web", "weight=30", "local=512M"]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let limits = host.limits("web");
    assert_eq!(limits["weight"], 30);
    assert_eq!(limits["local_bytes"], 512u64 << 20);
    let (_, said) = host.ask(&["status", "--json", "web"]);
    assert_eq!(said.lines().count(), 2, "{said}");
    for line in said.lines() {
        assert!(line.contains("\"weight\":30"), "{line}");
    }
    for mut run in [first, second] {
        run.go_on();
        run.finish();
    }
}
