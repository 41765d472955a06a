//! A tenant's limits by its agent's operator, and their changes at run time.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use canvas_shm::mailbox::Status;

use super::client::Client;
use super::{CANVAS, Host, load};

/// Takes slabs until there are none, twice, and prints their number.
pub fn grow() {
    let c = Client::join();
    let mut slabs = 0;
    for _ in 0..2 {
        while let Some(first) = c.take_slab() {
            write(&c, first);
            slabs += 1;
        }
        println!("{slabs} slabs");
        load::wait_to_go_on();
    }
}

/// Writes an extent as soon as there is a donor for it: gossip may not have found one yet.
fn write(c: &Client, extent: u32) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match c.write(extent, 1) {
            Status::Unreachable if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            status => return assert_eq!(status, Status::Ok),
        }
    }
}

/// Stays in the tenant until told to go.
pub fn one() {
    // The process keeps its entry as long as it lives.
    Client::join();
    load::wait_to_go_on();
}

#[test]
fn far_memory_is_bounded_anew_while_a_run_goes_on() {
    let mut host = Host::new();
    let mut agent = host.agent(&["--far", "256M"]);
    let mut run = host.run("grow", &["--far", "128M", "--tenant", "web"]);
    run.wait_for("2 slabs");
    for (change, want) in [
        ("far=64M", "128M of far memory are in use"),
        ("far=320M", "256 MiB of far memory are left"),
        ("far=3T", "write 2T or less"),
    ] {
        let (code, said) = host.ask(&["set", "web", change]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(want), "{said}");
    }
    let (code, said) = host.ask(&["set", "web", "far=192M"]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert_eq!(host.limits("web")["far_bytes"], 192u64 << 20);
    // The next agent has it from the file, whatever the runner sent to the first one.
    agent.kill();
    let _next = host.agent(&["--far", "256M"]);
    run.wait_for("ready");
    run.go_on();
    run.wait_for("3 slabs");
    let err = host.run("short", &["--far", "128M"]).refused();
    assert!(err.contains("64 MiB of far memory are left"), "{err}");
    run.go_on();
    run.finish();
}

#[test]
fn the_operators_sections_are_defaults_and_bounds() {
    let mut host = Host::new();
    let file = host.dir.path().join("canvas.toml");
    let write = |text: &str| fs::write(&file, text).unwrap();
    write("[tenant.web]\nfar = \"128M\"\npool = \"64M\"\nweight = 50\nswap_in_limit = \"10M/s\"\n");
    let config = ["--config", file.to_str().unwrap()];
    let mut agent = host.agent(&config);
    for (flags, want) in [
        (
            ["--far", "129M"],
            "--far 129M is more than the agent's operator allows",
        ),
        (
            ["--pool", "65M"],
            "--pool 65M is more than the agent's operator allows",
        ),
        (
            ["-o", "weight=51"],
            "weight 51 is more than the agent's operator allows",
        ),
        (
            ["-o", "swap-in-limit=none"],
            "-o swap-in-limit=none is more than",
        ),
    ] {
        let err = host
            .run("one", &[&flags[..], &["--tenant", "web"]].concat())
            .refused();
        assert!(err.contains(want), "{want}: {err}");
    }
    let mut run = host.run("one", &["--tenant", "web", "-o", "swap-out-limit=1M/s"]);
    run.wait_for("ready");
    let limits = host.limits("web");
    let get = |limits: &serde_json::Value| {
        [
            "far_bytes",
            "pool_bytes",
            "weight",
            "swap_in_limit_bytes_per_s",
            "swap_out_limit_bytes_per_s",
        ]
        .map(|key| limits[key].as_u64())
    };
    let m = |n: u64| Some(n << 20);
    assert_eq!(get(&limits), [m(128), m(64), Some(50), m(10), m(1)]);
    for (change, want) in [
        ("weight=51", "weight 51 is more than"),
        (
            "swap-in-limit=11M/s",
            "a swap-in limit of 11M/s is more than",
        ),
        ("swap-in-limit=none", "no swap-in limit is more than"),
        ("far=192M", "192M of far memory is more than"),
        ("pool=65M", "pool=65M is more than"),
    ] {
        let (code, said) = host.ask(&["set", "web", change]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(want), "{want}: {said}");
    }
    let (code, said) = host.ask(&["set", "web", "swap-in-limit=2M/s", "weight=7"]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    // A new file applies to running tenants: what they requested, within the file's limits.
    write("[tenant.web]\nweight = 5\nswap_out_limit = \"512K/s\"\n");
    let next = host.agent(&[&config[..], &["--replace"]].concat());
    assert_eq!(agent.end().code(), Some(0), "{}", agent.said());
    let limits = host.limits("web");
    assert_eq!(
        get(&limits),
        [m(128), m(64), Some(5), m(2), Some(512 << 10)]
    );
    // After a crash as well.
    agent = next;
    agent.kill();
    write("[tenant.web]\n");
    let _agent = host.agent(&config);
    let until = Instant::now() + Duration::from_secs(30);
    while get(&host.limits("web")) != [m(128), m(64), Some(7), m(2), m(1)] {
        assert!(Instant::now() < until, "{}", host.limits("web"));
        std::thread::sleep(Duration::from_millis(20));
    }
    run.go_on();
    run.finish();
}

/// A donor that announces itself by gossip, and the gossip's address.
fn gossiping() -> (Killed, String) {
    let mut child = Command::new(CANVAS)
        .args(["serve", "--memory", "512M", "--reserve", "64M"])
        .args(["--listen", "127.0.0.1:0", "--gossip", "127.0.0.1:0"])
        .env_remove("CANVAS_KEY_FILE")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    err.read_line(&mut line).unwrap();
    // Keeps reading its output.
    std::thread::spawn(move || std::io::copy(&mut err, &mut std::io::sink()));
    let gossip = line.trim().split("gossip on ").nth(1).unwrap().to_owned();
    (Killed(child), gossip)
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn one_node_finds_donors_for_all_tenants() {
    let mut host = Host::new();
    let (_donor, gossip) = gossiping();
    let flags = ["--to", &format!("gossip:{gossip}"), "--copies", "1"];
    let _agent = host.agent(&flags);
    let mut runs: Vec<_> = ["one", "two"]
        .map(|name| host.run("grow", &["--far", "64M", "--tenant", name]))
        .into();
    for run in &runs {
        // Written, although no donor was named.
        run.wait_for("1 slabs");
    }
    // The agent reports its donors twice a second.
    let until = Instant::now() + Duration::from_secs(30);
    for name in ["one", "two"] {
        loop {
            let (_, said) = host.ask(&["status", "--json", name]);
            let status: serde_json::Value = serde_json::from_str(said.trim()).expect(&said);
            if status["donors"].as_array().unwrap().len() == 1 {
                break;
            }
            assert!(Instant::now() < until, "{said}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    for mut run in runs.drain(..) {
        run.wait_for("ready");
        run.go_on();
        run.wait_for("1 slabs");
        run.go_on();
        run.finish();
    }
}
