//! Operating runs: redis under a load whose every answer is checked, observed and changed by an
//! operator's commands.
//!
//! Timeouts are far above real times; no test depends on speed.

#[path = "../common/command.rs"]
mod command;
mod load;
mod metrics;
mod refusals;
mod terminal;
mod units;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use command::{CANVAS, LONG, wait_for};
use load::Load;
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn signal(pid: u32, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), signal).unwrap();
}

/// A simulated host: a directory for control sockets and everything else.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Host {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        fs::set_permissions(dir.path().join("run"), PermissionsExt::from_mode(0o700)).unwrap();
        Host { dir }
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// `canvas` on this host.
    fn canvas(&self, args: &[&str]) -> Command {
        let mut c = command::canvas(args);
        c.env("CANVAS_RUN_DIR", self.run_dir());
        c.stdin(Stdio::null());
        c
    }

    /// Its exit code, standard output and standard error.
    fn ask(&self, args: &[&str]) -> (i32, String, String) {
        let Output {
            status,
            stdout,
            stderr,
        } = self.canvas(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code().unwrap(), text(stdout), text(stderr))
    }

    /// `canvas status t --json`, with its exit code.
    fn status(&self) -> (i32, Value) {
        let (code, out, err) = self.ask(&["status", "t", "--json"]);
        assert_eq!(err, "");
        (code, serde_json::from_str(&out).unwrap())
    }

    /// Waits until the status of `t` satisfies `so`.
    fn wait_status(&self, what: &str, so: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let until = Instant::now() + LONG;
        while Instant::now() < until {
            last = self.status().1;
            if so(&last) {
                return last;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("in vain waited for: {what}; {last:#}");
    }

    fn set(&self, changes: &[&str]) {
        let args = [&["set", "t"], changes].concat();
        assert_eq!(self.ask(&args), (0, String::new(), String::new()));
    }
}

/// Sums of figures in a status.
fn used(status: &Value, what: &str) -> u64 {
    status["used"][what].as_u64().unwrap()
}

/// Codes of the problems.
fn codes(status: &Value) -> Vec<&str> {
    let health = status["health"].as_array().unwrap();
    health.iter().map(|p| p["code"].as_str().unwrap()).collect()
}

/// redis under `canvas run --tenant t`.
struct Redis {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Redis {
    fn start(host: &Host, flags: &[&str]) -> Redis {
        let socket = host.dir.path().join("redis.sock");
        let log = host.dir.path().join("log");
        let dir = host.dir.path().to_str().unwrap();
        let child = host
            .canvas(&["run", "--tenant", "t"])
            .args(flags)
            .args(
                flags
                    .contains(&"--far")
                    .then(|| ["--to".to_owned(), format!("disk:{dir}")])
                    .into_iter()
                    .flatten(),
            )
            .args(["--", "redis-server", "--port", "0", "--save", ""])
            .args(["--dir", dir, "--unixsocket"])
            .arg(&socket)
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let redis = Redis { child, socket, log };
        wait_for("redis", || {
            std::os::unix::net::UnixStream::connect(&redis.socket).ok()
        });
        redis
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for a successful end.
    fn end(mut self) {
        signal(self.child.id(), nix::sys::signal::Signal::SIGTERM);
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // redis ends with its `canvas run` only after a signal.
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.child.id() as i32),
            nix::sys::signal::Signal::SIGTERM,
        );
        let until = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait().is_ok_and(|s| s.is_none()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A donor.
struct Donor {
    child: Child,
    addr: String,
}

impl Donor {
    fn start(host: &Host, flags: &[&str]) -> Donor {
        let mut child = host
            .canvas(&["serve", "--listen", "127.0.0.1:0", "--memory", "1G"])
            .args(["--reserve", "64M"])
            .args(flags)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        std::thread::spawn(move || lines.for_each(drop));
        let addr = first.split("listening on ").nth(1).unwrap();
        let addr = addr.split(',').next().unwrap().to_owned();
        Donor { child, addr }
    }
}

impl Drop for Donor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn bounds_change_under_a_load_and_the_program_follows() {
    let host = Host::new();
    let donors = [Donor::start(&host, &[]), Donor::start(&host, &[])];
    let servers = format!("{},{}", donors[0].addr, donors[1].addr);
    let flags = [
        "--local", "160M", "--pool", "200M", "--far", "256M", "--to", &servers,
    ];
    let redis = Redis::start(&host, &flags);
    let mut load = Load::fill(&redis.socket, 80 * MIB);
    let first = host.wait_status("both donors", |s| {
        let donors = s["donors"].as_array().unwrap();
        donors.len() == 2 && donors.iter().all(|d| d["state"] == "up")
    });
    assert!(used(&first, "local_bytes") > 80 * MIB, "{first:#}");
    assert_eq!(first["limits"]["local_bytes"], 160 * MIB);
    assert_eq!(first["program"], "redis-server");
    assert_eq!((host.status().0, codes(&first)), (0, vec![]), "{first:#}");

    load.go();
    host.set(&["local=48M"]);
    host.wait_status("less local memory", |s| {
        used(s, "local_bytes") <= 48 * MIB && used(s, "resident_bytes") < 48 * MIB
    });
    load.wait_for_more(2000);
    // The limit holds while the load goes on.
    let now = host.status().1;
    assert!(used(&now, "local_bytes") <= 52 * MIB, "{now:#}");
    assert!(used(&now, "pool_bytes") > 8 * MIB, "{now:#}");
    assert_eq!(used(&now, "far_bytes"), 0, "the pool has room: {now:#}");

    // What the pool cannot hold goes to the donors.
    host.set(&["pool=12M", "spill-at=50", "far-wait=20s"]);
    let now = host.wait_status("less in the pool", |s| {
        used(s, "pool_bytes") <= 12 * MIB && used(s, "far_bytes") >= 64 * MIB
    });
    assert_eq!(now["limits"]["spill_at_percent"], 50);
    assert_eq!(now["limits"]["far_wait_ms"], 20_000);
    load.wait_for_more(2000);
    let far = host.status().1["far"].clone();
    assert!(far["bytes_in"].as_u64().unwrap() > 0, "{far:#}");
    let donors_now = host.wait_status("a round trip", |s| {
        let d = s["donors"].as_array().unwrap();
        d.iter().all(|d| d["round_trip_us"].is_u64()) && d.iter().any(|d| d["slabs"] != 0)
    });
    assert!(donors_now["donors"][0]["free_bytes"].as_u64().unwrap() > 0);

    // All or nothing.
    let before = host.status().1["limits"].clone();
    for (change, why) in [
        (["local=64M", "colour=red"], "there is no key colour"),
        (["prefetch=none", "far=3T"], "write 2T or less"),
        (["pool=1G", "local=1M"], "it is too small"),
    ] {
        let (code, out, err) = host.ask(&[&["set", "t"][..], &change].concat());
        assert_eq!((code, out.as_str()), (2, ""));
        assert!(err.contains(why) && err.lines().count() == 1, "{err}");
    }
    assert_eq!(host.status().1["limits"], before);

    // Raise the limits again, with more far memory than at the start.
    host.set(&["local=200M", "pool=200M", "far=512M", "prefetch=none"]);
    let limits = host.status().1["limits"].clone();
    assert_eq!(limits["far_bytes"], 512 * MIB);
    assert_eq!(limits["prefetch"], "none");
    load.wait_for_more(2000);
    load.end();
    Load::check(&redis.socket, 80 * MIB);
    redis.end();
    assert_eq!(host.ask(&["status", "t"]).0, 2, "it is over");
    assert_eq!(fs::read_dir(host.run_dir()).unwrap().count(), 0);
}

#[test]
fn more_far_memory_can_be_had_while_a_program_runs() {
    let host = Host::new();
    let flags = ["--local", "24M", "--pool", "16M", "--far", "64M"];
    let redis = Redis::start(&host, &flags);
    host.set(&["far=320M"]);
    // More than fitted before.
    let load = Load::fill(&redis.socket, 200 * MIB);
    let now = host.status().1;
    assert!(used(&now, "far_bytes") > 64 * MIB, "{now:#}");
    assert_eq!(now["far"]["agents"], 1);
    load.end();
    Load::check(&redis.socket, 200 * MIB);
    assert_eq!(redis.log(), "");
    redis.end();
}

/// Others use all connections of the run's socket for a while: a client that is disconnected tries
/// again, instead of reporting that there is no such run.
#[test]
fn a_run_that_many_ask_is_not_said_to_be_over() {
    use std::os::unix::net::UnixStream;
    let host = Host::new();
    let redis = Redis::start(&host, &["--local", "24M", "--pool", "16M"]);
    host.wait_status("the run", |s| s["program"] == "redis-server");
    let socket = fs::read_dir(host.run_dir())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|e| e == "sock"))
        .unwrap();
    let silent: Vec<_> = (0..40)
        .map(|_| UnixStream::connect(&socket).unwrap())
        .collect();
    let leave = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        drop(silent);
    });
    assert_eq!(host.status().1["program"], "redis-server");
    leave.join().unwrap();
    redis.end();
}

/// Flags of a run with most of its memory on a donor.
fn far_flags<'a>(local: &'a str, donor: &'a Donor) -> [&'a str; 8] {
    let addr = &donor.addr;
    [
        "--local", local, "--pool", "16M", "--far", "256M", "--to", addr,
    ]
}

#[test]
fn what_is_wrong_is_said_and_is_over_when_it_is_over() {
    use nix::sys::signal::Signal;
    let host = Host::new();
    let donor = Donor::start(&host, &[]);
    let flags = far_flags("32M", &donor);
    let redis = Redis::start(&host, &flags);
    let mut load = Load::fill(&redis.socket, 60 * MIB);
    host.wait_status("health", |s| {
        s["healthy"] == true && s["donors"][0]["state"] == "up"
    });
    load.go();
    signal(donor.child.id(), Signal::SIGSTOP);
    let sick = host.wait_status("a donor that is away", |s| codes(s).contains(&"C001"));
    assert_eq!(host.status().0, 1);
    let text = host.ask(&["status"]);
    assert_eq!(text.0, 1);
    let addr = &donor.addr;
    let line = format!("C001 donor-unreachable: donor {addr} cannot be reached");
    assert!(
        text.1.contains(&line) && text.1.contains("degraded"),
        "{}",
        text.1
    );
    assert_eq!(sick["donors"][0]["state"], "down");
    load.wait_for_more(500);
    signal(donor.child.id(), Signal::SIGCONT);
    host.wait_status("health again", |s| s["healthy"] == true);
    assert_eq!(host.status().0, 0);

    // The agent is killed: another one takes over, which is reported for a while.
    let agent = agent_of(redis.child.id());
    signal(agent, Signal::SIGKILL);
    host.wait_status("a new agent", |s| codes(s).contains(&"C005"));
    // A write of the dead agent may reach the donor after the next agent's write of the same
    // extent. A read detects that, takes the disk's copy and repairs the donor's, and C011 reports
    // it.
    let well = |s: &Value| codes(s).iter().all(|code| *code == "C011");
    let once_more = host.wait_status("health once more", well);
    assert_eq!(once_more["far"]["agents"], 2);
    let told = codes(&once_more).len() as u64;
    assert!(once_more["far"]["corrupt"].as_u64().unwrap() >= told);

    // A run that does not answer.
    signal(redis.child.id(), Signal::SIGSTOP);
    let (code, silent) = host.status();
    assert_eq!((code, codes(&silent)), (1, vec!["C012"]), "{silent:#}");
    signal(redis.child.id(), Signal::SIGCONT);
    host.wait_status("an answer", well);
    load.end();
    Load::check(&redis.socket, 60 * MIB);
    redis.end();
}

fn agent_of(runner: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{runner}/task/{runner}/children")).unwrap();
    let pids = children.split_whitespace().map(|pid| pid.parse().unwrap());
    let is_agent = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.contains("agent-worker"))
    };
    pids.into_iter().find(is_agent).unwrap()
}

#[test]
fn rates_are_those_of_the_load() {
    let host = Host::new();
    let redis = Redis::start(&host, &["--local", "32M", "--pool", "300M"]);
    let mut load = Load::fill(&redis.socket, 60 * MIB);
    load.go();
    let (code, out, err) = host.ask(&["stat", "t", "-i", "300ms", "-n", "4", "--json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let lines: Vec<Value> = out
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(lines.len(), 4);
    for l in &lines {
        assert_eq!(
            (&l["schema"], &l["tenant"]),
            (&"canvas-stat/1".into(), &"t".into())
        );
        assert!(l["interval_s"].as_f64().unwrap() > 0.1, "{l:#}");
        assert!(l["local_bytes"].as_u64().unwrap() > MIB, "{l:#}");
    }
    let some = |name: &str| lines.iter().any(|l| l[name].as_f64().unwrap() > 0.0);
    assert!(some("faults_far_per_s") && some("pages_in_per_s") && some("pages_out_per_s"));
    assert!(
        lines
            .iter()
            .any(|l| l["fault_p50_ns"].as_u64().unwrap_or(0) > 0),
        "{out}"
    );
    let (code, out, _) = host.ask(&["stat", "-i", "0.1", "-n", "2"]);
    assert_eq!((code, out.lines().count()), (0, 4), "{out}");
    // It ends with the run.
    let mut stat = host
        .canvas(&["stat", "t", "-i", "100ms"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(stat.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        lines.next().unwrap().unwrap();
    }
    load.end();
    redis.end();
    assert!(lines.all(|l| l.is_ok()), "it goes on until the end");
    assert_eq!(stat.wait().unwrap().code(), Some(0));
}
