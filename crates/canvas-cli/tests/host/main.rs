//! The host agent from its users' view: several tenants at once, killed, replaced, and attacked,
//! under programs that check every byte. The program is this file again, run under `canvas run --to
//! agent`.

#[path = "../agent/client.rs"]
mod client;
mod hostile;
mod joined;
#[path = "../agent/load.rs"]
mod load;
mod pools;
#[path = "../common/program.rs"]
mod program;
mod replaced;
mod shared;
mod terms;
mod users;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use canvas_shm::mailbox::Status;
use client::Client;
use program::{CANVAS, play, stub};

type Run = program::Run<PathBuf>;

/// The part that runs under `canvas run`; without a part it does nothing.
#[test]
#[ignore = "not a test: a part of the other tests"]
fn program() {
    match program::part().as_str() {
        "load" => load::load(),
        "short" => short(),
        "steady" => hostile::steady(),
        "orphan" => orphan(),
        "grow" => terms::grow(),
        "one" => terms::one(),
        "swaps" => pools::swaps(),
        "lies" => pools::lies(),
        "shares" => shared::shares(),
        "shared-lies" => shared::lies(),
        other => panic!("no part: {other:?}"),
    }
}

/// A directory with agents and runs.
struct Host {
    dir: tempfile::TempDir,
    agents: usize,
    runs: std::cell::Cell<usize>,
}

/// An agent process.
struct Agent {
    child: Child,
    err: PathBuf,
}

impl Agent {
    fn said(&self) -> String {
        fs::read_to_string(&self.err).unwrap()
    }

    fn wait_for(&self, want: &str) {
        let until = Instant::now() + Duration::from_secs(60);
        while !self.said().contains(want) {
            assert!(Instant::now() < until, "no '{want}': {}", self.said());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for it to end by itself.
    fn end(&mut self) -> ExitStatus {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "it does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Host {
    fn new() -> Host {
        Host {
            dir: tempfile::tempdir().unwrap(),
            agents: 0,
            runs: 0.into(),
        }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("agent.sock")
    }

    /// Starts an agent, which may fail.
    fn begin(&mut self, flags: &[&str]) -> Agent {
        let dir = self.dir.path().to_owned();
        self.begin_at(&dir, flags)
    }

    /// [`Host::begin`] with another far directory.
    fn begin_at(&mut self, far: &Path, flags: &[&str]) -> Agent {
        self.agents += 1;
        let err = self.dir.path().join(format!("agent-{}", self.agents));
        let child = Command::new(CANVAS)
            .args(["agent", "--socket"])
            .arg(self.socket())
            .arg(format!("--to=disk:{}", far.display()))
            .args(flags)
            .stderr(fs::File::create(&err).unwrap())
            .spawn()
            .unwrap();
        Agent { child, err }
    }

    /// Starts an agent and waits until it listens.
    fn agent(&mut self, flags: &[&str]) -> Agent {
        let agent = self.begin(flags);
        agent.wait_for("listening at");
        agent
    }

    fn command(&self, part: &str, flags: &[&str]) -> (Command, PathBuf) {
        let n = self.runs.replace(self.runs.get() + 1);
        let dir = self.dir.path().join(format!("run-{n}"));
        fs::create_dir(&dir).unwrap();
        let mut command = Command::new(CANVAS);
        command
            .args(["run", "--local", "1G", "--stats"])
            .arg(dir.join("stats.json"))
            .arg(format!("--to=agent:{}", self.socket().display()))
            .args(flags)
            .env("CANVAS_RUN_DIR", self.dir.path().join("control"));
        play(&mut command, &dir, part);
        (command, dir)
    }

    /// Runs `canvas` with these arguments for the runs here: its exit code and output.
    fn ask(&self, words: &[&str]) -> (Option<i32>, String) {
        let out = Command::new(CANVAS)
            .args(words)
            .env("CANVAS_RUN_DIR", self.dir.path().join("control"))
            .output()
            .unwrap();
        let said = [out.stdout, out.stderr].concat();
        (out.status.code(), String::from_utf8(said).unwrap())
    }

    /// A tenant's limits, from the status of one of its runs.
    fn limits(&self, tenant: &str) -> serde_json::Value {
        let (_, said) = self.ask(&["status", "--json", tenant]);
        let first = said.lines().next().unwrap_or_default();
        let status: serde_json::Value = serde_json::from_str(first).expect(&said);
        status["limits"].clone()
    }

    /// Starts `part` of this program with these flags.
    fn run(&self, part: &str, flags: &[&str]) -> Run {
        let (command, dir) = self.command(part, flags);
        Run::of(dir, command)
    }

    /// This many runs that use far memory until told to go on.
    fn loaded(&self, runs: usize) -> Vec<Run> {
        let runs: Vec<Run> = (0..runs)
            .map(|_| self.run("load", &["--far", "128M"]))
            .collect();
        for run in &runs {
            run.wait_for("ready");
        }
        runs
    }
}

impl Run {
    /// The error of a run that could not start.
    fn refused(mut self) -> String {
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(125), "{}", self.stderr());
        self.stderr()
    }
}

/// Waits until an agent serves these runs again.
fn wait_served(runs: &[&Run]) {
    let until = Instant::now() + Duration::from_secs(30);
    while !runs
        .iter()
        .all(|run| run.stderr().ends_with("serves again"))
    {
        let said: Vec<String> = runs.iter().map(|run| run.stderr()).collect();
        assert!(Instant::now() < until, "{said:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Tells them all to go on; then waits for their ends.
fn ends(mut runs: Vec<Run>) -> impl Iterator<Item = (serde_json::Value, String)> {
    for run in &mut runs {
        run.go_on();
    }
    runs.into_iter().map(Run::finish)
}

/// Writes and reads a little.
fn short() {
    let c = Client::join();
    let first = c.take_slab().unwrap();
    for extent in first..first + 20 {
        assert_eq!(c.write(extent, 1), Status::Ok);
    }
    for extent in first..first + 20 {
        assert_eq!(c.read_record(extent, 1, 100), Status::Ok);
    }
}

#[test]
fn one_agent_serves_several_tenants_at_once() {
    let mut host = Host::new();
    let agent = host.agent(&[]);
    let runs = host.loaded(3);
    for (far, err) in ends(runs) {
        assert_eq!((&far["agents"], err.as_str()), (&1.into(), ""), "{far}");
        assert_eq!(far["corrupt"], 0);
        assert!(far["extents_out"].as_u64().unwrap() > 10, "{far}");
    }
    assert_eq!(agent.said().lines().count(), 1, "{}", agent.said());
}

#[test]
fn a_name_is_free_again_when_its_run_is_over() {
    let mut host = Host::new();
    let agent = host.agent(&["--far", "64M"]);
    for _ in 0..5 {
        let run = host.run("short", &["--far", "64M", "--tenant", "web"]);
        let (far, err) = run.finish();
        assert_eq!((&far["agents"], err.as_str()), (&1.into(), ""));
    }
    assert_eq!(agent.said().lines().count(), 1, "{}", agent.said());
}

#[test]
fn an_agent_may_be_killed_at_any_time() {
    let kills = u64::from(canvas_testing::random::scaled(10));
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut host = Host::new();
    let mut agent = host.agent(&[]);
    let runs = host.loaded(2);
    for _ in 0..kills {
        std::thread::sleep(Duration::from_micros(rng.u64(0..100_000)));
        agent.kill();
        agent = host.agent(&[]);
    }
    // Both are served again before they end.
    wait_served(&[&runs[0], &runs[1]]);
    for (far, err) in ends(runs) {
        let agents = far["agents"].as_u64().unwrap();
        assert!((2..=kills + 1).contains(&agents), "{far} {err}");
        assert_eq!(far["corrupt"], 0, "{err}");
        let gone = err.matches("is gone; far pages wait").count();
        assert!((1..=kills as usize).contains(&gone), "{err}");
    }
}

#[test]
fn an_agent_is_replaced_under_load() {
    let mut host = Host::new();
    let mut agent = host.agent(&[]);
    let runs = host.loaded(2);
    let replaced = u64::from(canvas_testing::random::scaled(5));
    for _ in 0..replaced {
        let next = host.agent(&["--replace"]);
        assert_eq!(agent.end().code(), Some(0), "{}", agent.said());
        next.wait_for("tenants taken over: 2");
        agent = next;
        std::thread::sleep(Duration::from_millis(50));
    }
    for (far, err) in ends(runs) {
        // Nothing was reported.
        assert_eq!(err, "");
        assert_eq!(
            (&far["agents"], &far["corrupt"]),
            (&(replaced + 1).into(), &0.into())
        );
    }
}

#[test]
fn tenants_without_a_runner_are_handed_over_and_end() {
    let mut host = Host::new();
    let mut agent = host.agent(&["--far", "64M"]);
    let mut run = host.run("orphan", &["--far", "64M", "--tenant", "web"]);
    run.wait_for("ready");
    run.child.kill().unwrap();
    // Waiting closes the program's input.
    let mut input = run.child.stdin.take().unwrap();
    run.child.wait().unwrap();
    let next = host.agent(&["--replace", "--far", "64M"]);
    assert_eq!(agent.end().code(), Some(0), "{}", agent.said());
    writeln!(input, "go").unwrap();
    run.wait_for("all there");
    let second = host.run("short", &["--far", "64M"]).refused();
    assert!(second.contains("0 MiB of far memory are left"), "{second}");
    // The program ends; its process entry is free after two checks.
    drop(input);
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let mut third = host.run("short", &["--far", "64M"]);
        if third.child.wait().unwrap().success() {
            break;
        }
        assert!(Instant::now() < until, "{}", third.stderr());
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(next);
}

/// An operator ends a tenant that nothing else would end.
#[test]
fn an_operator_ends_a_tenant_that_no_run_has_any_more() {
    let mut host = Host::new();
    let _agent = host.agent(&["--far", "64M"]);
    let mut run = host.run("orphan", &["--far", "64M", "--tenant", "web"]);
    run.wait_for("ready");
    let end = |name: &str, more: &[&str]| {
        let out = Command::new(CANVAS)
            .args(["end", name, "--socket"])
            .arg(host.socket())
            .args(more)
            .output()
            .unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        (out.status.code(), said)
    };
    let refused = |name: &str, more: &[&str], want: &str| {
        let (code, said) = end(name, more);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(want), "{said}");
    };
    refused("db", &[], "there is no tenant db; there is web");
    refused("a b", &[], "it is not a tenant's name");
    refused("web", &["--force"], "end that run");
    run.child.kill().unwrap();
    // Waiting closes the program's input.
    let input = run.child.stdin.take().unwrap();
    run.child.wait().unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while !end("web", &[]).1.contains("has processes (") {
        assert!(Instant::now() < until, "{:?}", end("web", &[]));
    }
    assert_eq!(end("web", &["--force"]), (Some(0), String::new()));
    refused("web", &["--force"], "nor any other");
    // Its resources are free.
    let mut next = host.run("short", &["--far", "64M", "--tenant", "web"]);
    assert!(next.child.wait().unwrap().success(), "{}", next.stderr());
    drop(input);
}

fn orphan() {
    let c = Client::join();
    let first = c.take_slab().unwrap();
    for extent in first..first + 50 {
        assert_eq!(c.write(extent, 1), Status::Ok);
    }
    load::wait_to_go_on();
    for extent in first..first + 50 {
        assert_eq!(c.read_record(extent, 1, 0), Status::Ok);
        assert_eq!(c.write(extent, 2), Status::Ok);
    }
    println!("all there");
    while std::io::stdin().lines().next().is_some() {}
}

#[test]
fn without_an_agent_a_run_says_so() {
    let mut host = Host::new();
    let err = host.run("short", &["--far", "64M"]).refused();
    assert!(err.contains("start one with `canvas agent`"), "{err}");
    for flags in [&["--to", "127.0.0.1:1"][..], &["--to", "disk:/"]] {
        let err = host
            .run("short", &[&["--far", "64M"], flags].concat())
            .refused();
        assert!(err.contains("has destinations of its own"), "{err}");
    }
    // Its operator could have set a limit.
    let _agent = host.agent(&[]);
    let err = host.run("short", &[]).refused();
    assert!(err.contains("--to without --far has no effect"), "{err}");
}

#[test]
fn an_agent_that_does_not_answer_is_not_replaced() {
    let mut host = Host::new();
    let old = host.agent(&[]);
    let pid = nix::unistd::Pid::from_raw(old.child.id() as i32);
    let mut second = host.begin(&[]);
    assert_eq!(second.end().code(), Some(2));
    assert!(
        second.said().contains("with --replace"),
        "{}",
        second.said()
    );
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let mut next = host.begin(&["--replace"]);
    assert_eq!(next.end().code(), Some(1), "{}", next.said());
    assert!(
        next.said().contains("it does not answer"),
        "{}",
        next.said()
    );
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    old.wait_for("this one keeps serving");
    let (_, err) = host.run("short", &["--far", "64M"]).finish();
    assert_eq!(err, "");
}

#[test]
fn a_signal_ends_it_and_the_next_one_serves() {
    let mut host = Host::new();
    let mut agent = host.agent(&[]);
    let mut run = host.run("load", &["--far", "128M"]);
    run.wait_for("ready");
    let pid = nix::unistd::Pid::from_raw(agent.child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(agent.end().code(), Some(0));
    assert!(!host.socket().exists());
    assert!(!host.dir.path().join("agent.sock.lock").exists());
    let _next = host.agent(&[]);
    wait_served(&[&run]);
    run.go_on();
    let (far, _) = run.finish();
    assert_eq!((&far["agents"], &far["corrupt"]), (&2.into(), &0.into()));
}

/// A change that an agent does not answer in time may still be made; the command says so, and a
/// late answer is not taken for another change's. A signal to the run ends the wait.
#[test]
fn an_agent_that_answers_late_confuses_nobody() {
    let mut host = Host::new();
    let agent = host.agent(&["--far", "256M"]);
    let mut run = host.run("load", &["--far", "128M", "--tenant", "web"]);
    run.wait_for("ready");
    let [runner, agent_pid] = [&run.child, &agent.child].map(|c| Pid::from_raw(c.id() as i32));
    kill(agent_pid, Signal::SIGSTOP).unwrap();
    let (code, said) = host.ask(&["set", "web", "weight=5"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("may still be made"), "{said}");
    let over = AtomicBool::new(false);
    let (code, said) = std::thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                kill(runner, Signal::SIGWINCH).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let asked = host.ask(&["set", "web", "weight=6"]);
        over.store(true, Ordering::Relaxed);
        asked
    });
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("Interrupted"), "{said}");
    // Both answers are there when the next change is requested.
    kill(agent_pid, Signal::SIGCONT).unwrap();
    let (code, said) = host.ask(&["set", "web", "far=1T"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("MiB of far memory are left"), "{said}");
    assert_eq!(host.limits("web")["weight"], 6);
    let (code, said) = host.ask(&["set", "web", "weight=7"]);
    assert_eq!(code, Some(0), "{said}");
    // A stopped run reads its requests later, too.
    kill(runner, Signal::SIGSTOP).unwrap();
    let (code, said) = host.ask(&["set", "web", "weight=8"]);
    kill(runner, Signal::SIGCONT).unwrap();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("may still be made"), "{said}");
    run.go_on();
    run.finish();
}

#[test]
fn the_file_gives_what_no_flag_says() {
    let mut host = Host::new();
    let file = host.dir.path().join("canvas.toml");
    fs::write(
        &file,
        "[agent]\nfar = \"128M\"\n[tenant.web]\nfar = \"192M\"\nlocal = \"2G\"\n",
    )
    .unwrap();
    let _agent = host.agent(&["--config", file.to_str().unwrap()]);
    let run = |flags: &[&str]| {
        let (mut command, dir) = host.command("short", flags);
        let mut child = command.env("CANVAS_CONFIG", &file).spawn().unwrap();
        let code = child.wait().unwrap().code();
        (code, fs::read_to_string(dir.join("stderr")).unwrap())
    };
    // The tenant's section requests more than the agent's allows.
    let (code, err) = run(&["--tenant", "web"]);
    assert_eq!(code, Some(125), "{err}");
    assert!(err.contains("and web wants 192"), "{err}");
    let (code, err) = run(&["--tenant", "web", "--far", "128M"]);
    assert_eq!(code, Some(0), "a flag wins: {err}");
    fs::write(&file, "[tenant.web]\nfra = \"1G\"\n").unwrap();
    let (code, err) = run(&["--tenant", "web"]);
    assert_eq!(code, Some(125), "{err}");
    assert!(err.contains("canvas.toml:2: there is no key fra"), "{err}");
    // Errors in other sections do not affect this tenant.
    let others = "x = 1\n[serve]\nmemroy = \"1G\"\n[agent]\nfar = [\n[tenant.web2]\nfra = 1\n";
    fs::write(
        &file,
        format!("{others}[tenant.web]\nfar = \"192M\"\n[disk\n"),
    )
    .unwrap();
    let (code, err) = run(&["--tenant", "web"]);
    assert!(err.contains("and web wants 192"), "{code:?} {err}");
    let (code, err) = run(&["--tenant", "web", "--far", "128M"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(!err.contains("canvas.toml"), "{err}");
    for own in [
        "[tenant.web]\nfra = \"1G\"\n",
        "[tenant.web\nfar = \"1G\"\n",
    ] {
        fs::write(&file, format!("{others}{own}")).unwrap();
        let (code, err) = run(&["--tenant", "web"]);
        assert_eq!(code, Some(125), "{err}");
        assert!(err.contains("canvas.toml:"), "{err}");
    }
}
