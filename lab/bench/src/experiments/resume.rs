//! Resuming idle programs whose pages have all been evicted: with a recording of an earlier resumption (`-o
//! learn`) and without.

mod redis;

use std::io::Write;
use std::path::Path;
use std::process::{ChildStdin, Command};
use std::time::{Duration, Instant};

use canvas_shm::segment::{Counter, Segment};

use super::{Below, FAR, FarParts};
use crate::engine::child::Child;
use crate::engine::plan::strings;
use crate::engine::program::Fail;
use crate::engine::script::{Case, Script, Stage, failed};
use crate::external::tools;
use crate::rate::Rate;
use crate::record::Sample;
use crate::sampler;
use crate::stats::median;
use crate::variant::Variant;

/// Number of resumptions measured, after a first one that is recorded.
const RESUMPTIONS: usize = 4;
/// Timeout of filling a program's memory, and of using all of it.
const PATIENCE: Duration = Duration::from_secs(120);
/// Pause before a resumption.
const QUIET: Duration = Duration::from_secs(2);
/// Eviction counts as finished when local memory stays the same over samples at this interval; below, their
/// number.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const SAME_LOOKS: u32 = 4;
/// More than the memory that an idle program keeps.
const IDLE_BYTES: u64 = 40 << 20;

const OBJECTS: &str = include_str!("resume/objects.py");
const ARRAYS: &str = include_str!("../../../../tests/java/Resume.java");

/// All far memory is in the pool.
const POOL: Below = Below::Canvas(&[]);
const POOL_LEARNS: Below = Below::Canvas(&["-o", "learn"]);
/// Most far memory is on a donor behind a link.
const DONOR: FarParts = FarParts {
    link: Some(Rate::mbit(1000)),
    ..FAR
};
const DONOR_LEARNS: FarParts = FarParts {
    flags: &["-o", "learn"],
    ..DONOR
};

const fn case(workload: &'static str, below: Below) -> Case {
    Case {
        workload,
        parameters: &[],
        below,
    }
}

/// Definition of the experiment.
pub const SCRIPT: Script = Script {
    name: "resume",
    about: "idle programs that resume, with their pages in the pool or on a donor, with and without -o learn",
    paper: None,
    cases: &[
        case("idle-redis", POOL),
        case("idle-redis", POOL_LEARNS),
        case("idle-redis", Below::CanvasFar(DONOR)),
        case("idle-redis", Below::CanvasFar(DONOR_LEARNS)),
        case("idle-java", POOL),
        case("idle-java", POOL_LEARNS),
        case("idle-java", Below::CanvasFar(DONOR)),
        case("idle-java", Below::CanvasFar(DONOR_LEARNS)),
        case("idle-python", POOL),
        case("idle-python", POOL_LEARNS),
        case("idle-python", Below::CanvasFar(DONOR)),
        case("idle-python", Below::CanvasFar(DONOR_LEARNS)),
    ],
    in_order: false,
    needs: &[
        ("redis-server", "redis-server"),
        ("javac", "default-jdk-headless"),
        ("python3", "python3"),
    ],
    needs_root: true,
    repeats: 2,
    scale: 1.0,
    run,
};

/// A program, its data, and the least local memory that it needs while idle.
struct Program {
    argv: Vec<String>,
    mib: u64,
    least_mib: u64,
}

fn program(stage: &Stage, workload: &str, socket: &Path) -> Result<Program, Fail> {
    let (mib, dir) = (stage.mib(128), stage.dir.display().to_string());
    Ok(match workload {
        "idle-redis" => Program {
            argv: strings(&[
                "redis-server",
                "--port",
                "0",
                "--unixsocket",
                &socket.display().to_string(),
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
                &dir,
            ]),
            mib: (redis::KEYS * (redis::VALUE_BYTES + 160)) as u64 / (1 << 20) + 8,
            least_mib: 8,
        },
        "idle-python" => Program {
            argv: strings(&["python3", "-c", OBJECTS, &((mib << 20) / 3040).to_string()]),
            mib: mib + 12,
            least_mib: 8,
        },
        _ => {
            compile(&stage.dir)?;
            Program {
                argv: strings(&[
                    "java",
                    "-XX:+UseSerialGC",
                    "-XX:-UsePerfData",
                    "-Xms256m",
                    "-Xmx256m",
                    "-cp",
                    &dir,
                    "Resume",
                    &mib.to_string(),
                ]),
                mib: mib + 160,
                least_mib: 24,
            }
        }
    })
}

fn compile(dir: &Path) -> Result<(), Fail> {
    let source = dir.join("Resume.java");
    let written = std::fs::write(&source, ARRAYS);
    written.map_err(|e| failed(format!("{}: {e}", source.display())))?;
    let javac = tools::need("javac", "default-jdk-headless").map_err(|e| failed(e.to_string()))?;
    let out = Command::new(javac).arg("-d").arg(dir).arg(&source).output();
    match out {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => Err(failed(String::from_utf8_lossy(&out.stderr).into_owned())),
        Err(e) => Err(failed(format!("javac cannot be run: {e}"))),
    }
}

/// How a program is made to use all its data.
enum User {
    Redis(redis::Client),
    /// The program does so for each line of its input, and prints the time it took.
    Lines(ChildStdin),
}

impl User {
    fn begin(
        stage: &Stage,
        child: &mut Child,
        socket: &Path,
        workload: &str,
    ) -> Result<User, Fail> {
        let broken = |e: std::io::Error| failed(format!("redis cannot be filled: {e}"));
        if workload == "idle-redis" {
            stage.until("the start of redis", PATIENCE, || {
                check(child)?;
                Ok(socket.exists().then_some(()))
            })?;
            let client = redis::Client::fill(socket, stage.seed()).map_err(broken)?;
            return Ok(User::Redis(client));
        }
        let input = child.input().ok_or_else(|| failed("it has no input"))?;
        stage.until("the filling of its memory", PATIENCE, || {
            check(child)?;
            Ok(child.output().starts_with("ready\n").then_some(()))
        })?;
        Ok(User::Lines(input))
    }

    /// Requests of the `n`-th resumption.
    fn prepared(&self, n: usize) -> Option<redis::Everything> {
        match self {
            User::Redis(client) => Some(client.everything(n as u64)),
            User::Lines(_) => None,
        }
    }

    /// Uses all data; returns the time it took, in seconds.
    fn resume(
        &mut self,
        stage: &Stage,
        child: &mut Child,
        n: usize,
        all: Option<&redis::Everything>,
    ) -> Result<f64, Fail> {
        match (self, all) {
            (User::Redis(client), Some(all)) => {
                let took = client.ask(all).map_err(|e| failed(e.to_string()))?;
                Ok(took.as_secs_f64())
            }
            (User::Lines(input), _) => {
                let told = input.write_all(b"all\n").and_then(|()| input.flush());
                told.map_err(|e| failed(format!("the program has ended: {e}")))?;
                stage.until("its resumption", PATIENCE, || {
                    check(child)?;
                    Ok(touched_s(&child.output(), n))
                })
            }
            (User::Redis(_), None) => Err(failed("nothing is asked for")),
        }
    }
}

/// Time in the `n`-th such line of the output, counted from 0; `None` before it is printed.
fn touched_s(output: &str, n: usize) -> Option<f64> {
    let whole = output.rsplit_once('\n')?.0;
    let mut times = whole.lines().filter_map(|l| l.strip_prefix("touched "));
    let us: f64 = times.nth(n)?.parse().ok()?;
    Some(us / 1e6)
}

fn check(child: &mut Child) -> Result<(), Fail> {
    match child.wait(Duration::ZERO) {
        None => Ok(()),
        Some(_) => Err(failed(format!("it has ended: {}", child.complaint()))),
    }
}

/// Evicts all but a few pages, then restores the limit and pauses.
fn idle(stage: &Stage, tenant: &str, program: &Program) -> Result<(), Fail> {
    stage.ask(&["set", tenant, &format!("local={}M", program.least_mib)])?;
    let (mut last, mut same, mut looked) = (u64::MAX, 0, Instant::now());
    stage.until("the leaving of its pages", Duration::from_secs(30), || {
        if looked.elapsed() < LOOK_EVERY {
            return Ok(None);
        }
        looked = Instant::now();
        let status = stage.status(tenant)?;
        let used = status["used"]["resident_bytes"]
            .as_u64()
            .unwrap_or(u64::MAX);
        let is_same = used.saturating_add(64 << 10) >= last && used < IDLE_BYTES;
        same = if is_same { same + 1 } else { 0 };
        last = used;
        Ok((same >= SAME_LOOKS).then_some(()))
    })?;
    stage.ask(&["set", tenant, &format!("local={}M", 2 * program.mib)])?;
    Ok(stage.pause(QUIET)?)
}

/// A resumption: its duration, the faults that read a far copy, and whether a recording was replayed.
struct Resumption {
    seconds: f64,
    faults_far: u64,
    is_replayed: bool,
}

fn resumption(
    stage: &Stage,
    child: &mut Child,
    user: &mut User,
    (n, counters): (usize, &Segment),
    idle: impl FnOnce() -> Result<(), Fail>,
) -> Result<Resumption, Fail> {
    let all = user.prepared(n);
    idle()?;
    let before = (
        counters.total(Counter::FaultFar),
        counters.total(Counter::LearnReplays),
    );
    let seconds = user.resume(stage, child, n, all.as_ref())?;
    stage.pause(Duration::from_secs(1))?;
    Ok(Resumption {
        seconds,
        faults_far: counters.total(Counter::FaultFar) - before.0,
        is_replayed: counters.total(Counter::LearnReplays) > before.1,
    })
}

/// `canvas run` for a program, and the donors that it needs, with their network namespace.
fn canvas_run(stage: &Stage, below: &Variant, tenant: &str, mib: u64) -> Vec<String> {
    let flags = match below {
        Variant::Canvas(flags) => flags,
        Variant::CanvasFar(far) => &far.flags,
        _ => return Vec::new(),
    };
    let mut argv = vec![stage.canvas(), "run".to_owned()];
    argv.extend([
        format!("--tenant={tenant}"),
        format!("--local={}M", 2 * mib),
        "-oproactive-threshold=off".to_owned(),
    ]);
    if !flags.is_empty() {
        let recordings = stage.dir.join("recordings");
        argv.push(format!("-olearn={}", recordings.display()));
    }
    argv
}

fn run(stage: &Stage, case: &Case) -> Result<Vec<Sample>, Fail> {
    let variant = case.variant();
    let socket = stage.socket_dir()?.join("redis.sock");
    let program = program(stage, case.workload, &socket)?;
    let (mib, tenant) = (program.mib, stage.unique(case.workload));
    let mut argv = canvas_run(stage, &variant, &tenant, mib);
    let network = variant.link().map(|l| stage.network(l)).transpose()?;
    let donors = match &variant {
        Variant::CanvasFar(_) => Some(stage.donors(1, 2 << 30, network.as_ref())?),
        _ => None,
    };
    match &donors {
        Some(donors) => {
            argv.extend(["--pool=16M".to_owned(), format!("--far={}M", 4 * mib)]);
            argv.push("--copies=1".to_owned());
            argv.extend(donors.servers());
        }
        None => argv.push(format!("--pool={}M", 2 * mib)),
    }
    argv.push("--".to_owned());
    argv.extend(program.argv.iter().cloned());
    let mut child = stage.start_with_input(argv, case.workload)?;
    let mut user = User::begin(stage, &mut child, &socket, case.workload)?;
    let counters = sampler::counters_of(child.pid());
    let counters = counters.ok_or_else(|| failed("its counters cannot be read"))?;
    let mut found = Vec::new();
    for n in 0..=RESUMPTIONS {
        let idle = || idle(stage, &tenant, &program);
        found.push(resumption(
            stage,
            &mut child,
            &mut user,
            (n, counters),
            idle,
        )?);
    }
    let last = (RESUMPTIONS + 1, counters);
    let warm = resumption(stage, &mut child, &mut user, last, || Ok(()))?;
    check(&mut child)?;
    child.terminate();
    let (first, later) = (&found[0], &found[1..]);
    let middle = |of: fn(&Resumption) -> f64| median(&later.iter().map(of).collect::<Vec<_>>());
    let mut sample = stage.sample();
    sample.seconds = middle(|r| r.seconds);
    sample.faults = middle(|r| r.faults_far as f64).map(|n| n as u64);
    let replayed = later.iter().filter(|r| r.is_replayed).count();
    for (name, value) in [
        ("first_ms", first.seconds * 1e3),
        ("warm_ms", warm.seconds * 1e3),
        ("far_faults", middle(|r| r.faults_far as f64).unwrap_or(0.0)),
        ("replayed", replayed as f64),
    ] {
        sample.figures.insert(name.to_owned(), value);
    }
    Ok(vec![sample])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_when_its_line_is_whole() {
        let output = "ready\ntouched 1500\ntouched 25";
        assert_eq!(touched_s(output, 0), Some(0.0015));
        assert_eq!(touched_s(output, 1), None);
        assert_eq!(touched_s("", 0), None);
    }
}
