//! A running container: its program, its memory limit, and its client.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use canvas_workloads::Output;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::client::{self, Answer, Broken, Took, Work};
use super::machine::Machine;
use super::plan::{Container, Kind};
use crate::engine::child::{Child, Ended};
use crate::engine::plan::strings;
use crate::engine::program::Fail;
use crate::engine::script::{Stage, failed};
use crate::host::cgroup::Group;
use crate::record::{Far, Outcome, Quantiles, Sample};

/// Requests per second of a client.
const RATE: f64 = 100.0;
/// Canvas's pool has at least this part of the container's limit.
const POOL_PART: u64 = 8;
const POOL_BYTES_MIN: u64 = 4 << 20;
/// Timeout of a server's start, and of its end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Timeout of the end of a server that has closed its connection. All other containers wait meanwhile.
const SOON: Duration = Duration::from_secs(1);
/// Canvas's message when no memory is left for a page, before it ends the program with SIGBUS.
const FULL: &str = "local and far memory are both full";

/// Memory limit of a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    Nothing,
    Kernel(u64),
    Canvas(u64),
}

/// How a container ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum How {
    Ok,
    /// Its host died.
    Died,
    /// It was still running when the time was over.
    Unfinished,
    /// The kernel killed it, or canvas had no memory left.
    Oom,
    /// Any other failure, as a sentence.
    Failed(String),
}

/// A running container.
pub struct Contained {
    pub plan: Container,
    pub answers: Arc<Mutex<Vec<Answer>>>,
    began: Instant,
    program: Child,
    client: Option<JoinHandle<Result<Took, Broken>>>,
    took: Option<Took>,
    ending: Option<Instant>,
    bound: Bound,
    report: PathBuf,
    socket: PathBuf,
    peak: u64,
    group: Group,
}

/// Values of `--local` and `--pool` that together make up a limit.
fn shares(limit: u64) -> (u64, u64) {
    let pool = (limit / POOL_PART).max(POOL_BYTES_MIN);
    (limit.saturating_sub(pool) & !1023, pool & !1023)
}

impl Contained {
    /// Starts a container on its host.
    pub fn start(
        stage: &Stage,
        machine: &Machine,
        plan: Container,
        bound: Bound,
    ) -> Result<Contained, Fail> {
        let tag = stage.unique(&plan.name);
        let group = machine.group(stage, &plan.name)?;
        let socket = machine.sockets.join(format!("{tag}.sock"));
        let report = stage.dir.join(format!("{tag}.json"));
        let mut argv = Vec::new();
        match bound {
            Bound::Nothing => {}
            Bound::Kernel(bytes) => group.limit(bytes)?,
            Bound::Canvas(bytes) => {
                let (local, pool) = shares(bytes);
                argv = vec![
                    stage.canvas(),
                    "run".to_owned(),
                    format!("--to=agent:{}", machine.socket().display()),
                    format!("--tenant={tag}"),
                    format!("--local={local}"),
                    format!("--pool={pool}"),
                    format!("--far={}M", 4 * plan.mib),
                    format!("--stats={}", report.display()),
                    "--".to_owned(),
                ];
            }
        }
        let listen = socket.display().to_string();
        argv.extend(match plan.kind {
            Kind::Redis => strings(&[
                "redis-server",
                "--port",
                "0",
                "--save",
                "",
                "--unixsocket",
                &listen,
            ]),
            Kind::Memcached => strings(&[
                "memcached",
                "-t",
                "1",
                "-u",
                "root",
                "-o",
                "no_lru_crawler",
                "-s",
                &listen,
                "-m",
                &(4 * plan.mib).to_string(),
            ]),
            Kind::Batch(name) => strings(&[
                &stage.lab(),
                "workload",
                name,
                "--mib",
                &plan.mib.to_string(),
                "--seed",
                &plan.seed.to_string(),
            ]),
        });
        Ok(Contained {
            program: machine.start(stage, &group, argv, &tag)?,
            plan,
            answers: Arc::default(),
            began: Instant::now(),
            client: None,
            took: None,
            ending: None,
            bound,
            report,
            socket,
            peak: 0,
            group,
        })
    }

    /// Samples its memory.
    pub fn look(&mut self) {
        self.peak = self.peak.max(self.group.anonymous_bytes());
    }

    /// One step; returns how the container ended, once it has.
    pub fn step(&mut self, began: Instant) -> Result<Option<How>, Fail> {
        let ended = self.program.wait(Duration::ZERO);
        if !self.plan.kind.is_server() {
            return ended.map(|e| self.of_batch(&e)).transpose();
        }
        if let Some(since) = self.ending {
            return match ended {
                Some(e) if is_good(&e) => Ok(Some(How::Ok)),
                Some(e) => self.ended(&e).map(Some),
                None if since.elapsed() > PATIENCE => Err(self.failed("it does not end")),
                None => Ok(None),
            };
        }
        if let Some(e) = ended {
            return self.ended(&e).map(Some);
        }
        match self.client.take() {
            Some(client) if client.is_finished() => self.of_client(client)?,
            Some(client) => self.client = Some(client),
            None if self.socket.exists() => self.begin(began),
            None if self.began.elapsed() > PATIENCE => {
                return Err(self.failed("it does not listen"));
            }
            None => {}
        }
        Ok(None)
    }

    fn begin(&mut self, began: Instant) {
        let work = Work {
            socket: self.socket.clone(),
            container: self.plan.clone(),
            rate: RATE,
            began,
            answers: Arc::clone(&self.answers),
        };
        self.client = Some(std::thread::spawn(move || client::run(&work)));
    }

    fn failed(&self, why: &str) -> Fail {
        failed(format!(
            "{}: {why}: {}",
            self.plan.name,
            self.program.complaint()
        ))
    }

    fn of_client(&mut self, client: JoinHandle<Result<Took, Broken>>) -> Result<(), Fail> {
        let result = client.join();
        match result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
            Ok(took) => {
                self.took = Some(took);
                self.program.terminate();
                self.ending = Some(Instant::now());
                Ok(())
            }
            Err(Broken::Wrong) => {
                Err(self.failed("it returned a value different from the stored one"))
            }
            // The server's exit status gives the reason.
            Err(Broken::HungUp(_)) if self.program.wait(SOON).is_some() => Ok(()),
            Err(Broken::HungUp(e)) => Err(self.failed(&format!("its connection broke: {e}"))),
        }
    }

    fn of_batch(&mut self, ended: &Ended) -> Result<How, Fail> {
        if ended.status.success() {
            return Ok(How::Ok);
        }
        self.ended(ended)
    }

    /// How a program ended that was not stopped.
    fn ended(&self, ended: &Ended) -> Result<How, Fail> {
        let is = |signal: Signal| signal_of(ended) == Some(signal as i32);
        let is_full = is(Signal::SIGBUS) && self.program.log().contains(FULL);
        if is(Signal::SIGKILL) || is_full {
            return Ok(How::Oom);
        }
        Err(self.failed("it ended by itself"))
    }

    /// Stops the container and completes its sample.
    pub fn end(mut self, how: How, mut sample: Sample) -> Sample {
        let batch_s = self.began.elapsed().as_secs_f64();
        self.program.end();
        if let Some(client) = self.client.take() {
            // Its server has ended.
            let _ = client.join();
        }
        sample.workload = self.plan.kind.name().to_owned();
        let name = self.plan.name.clone();
        sample.parameters.insert("container".to_owned(), name);
        sample.local_percent = Some(self.plan.percent);
        sample.limit_bytes = match self.bound {
            Bound::Nothing => None,
            Bound::Kernel(bytes) | Bound::Canvas(bytes) => Some(bytes),
        };
        sample.memory_peak_bytes = Some(self.peak);
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        sample.latency_ns = quantiles(answers.iter().map(|a| a.1));
        match how {
            How::Ok => {
                sample.seconds = Some(self.took.map_or(batch_s, |t| t.fill_s + t.check_s));
                if !self.plan.kind.is_server() {
                    let answer: Result<Output, _> = serde_json::from_str(&self.program.last_line());
                    sample.answer = answer.ok().map(|a| a.answer);
                }
            }
            How::Oom => sample.outcome = Outcome::Oom,
            How::Failed(why) => sample.outcome = Outcome::Failed(why),
            How::Died => drop(sample.figures.insert("died".to_owned(), 1.0)),
            How::Unfinished => drop(sample.figures.insert("unfinished".to_owned(), 1.0)),
        }
        let report = std::fs::read_to_string(&self.report).unwrap_or_default();
        if let Ok(report) = serde_json::from_str(&report) {
            match far_of(&report) {
                Ok(far) => sample.far = Some(far),
                Err(why) => sample.outcome = Outcome::Failed(why),
            }
        }
        sample
    }
}

/// The signal that ended the program; for `canvas run`, the signal that ended its program.
fn signal_of(ended: &Ended) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt;
    let code = ended.status.code().filter(|c| *c > 128);
    ended.status.signal().or(code.map(|c| c - 128))
}

fn is_good(ended: &Ended) -> bool {
    ended.status.success() || signal_of(ended) == Some(Signal::SIGTERM as i32)
}

/// Far-memory figures in the report of `canvas run`. Fails if the report lists damage.
fn far_of(report: &Value) -> Result<Far, String> {
    let damage = [
        ("verify_failures", &report["verify_failures"]),
        ("anomalies", &report["counters"]["anomalies"]),
        ("corrupt", &report["far"]["corrupt"]),
    ];
    if let Some((name, n)) = damage.iter().find(|(_, n)| n.as_u64().unwrap_or(0) > 0) {
        return Err(format!("the report of canvas says {name} {n}"));
    }
    let far = |name: &str| report["far"][name].as_u64();
    Ok(Far {
        faults: report["counters"]["faults_beyond_pool"].as_u64(),
        reads: far("reads"),
        in_bytes: far("bytes_in"),
        out_bytes: far("bytes_out"),
        failovers: far("failovers"),
        repairs: far("repairs"),
        ..Far::default()
    })
}

/// Quantiles of times given in us; `None` if there are none.
pub fn quantiles(times_us: impl Iterator<Item = f64>) -> Option<Quantiles> {
    let mut all: Vec<f64> = times_us.collect();
    all.sort_by(f64::total_cmp);
    let last = all.len().checked_sub(1)?;
    let at = |part: f64| all[last.min((all.len() as f64 * part) as usize)] * 1e3;
    Some(Quantiles {
        p50: at(0.5),
        p99: at(0.99),
        p999: Some(at(0.999)),
        max: Some(all[last] * 1e3),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_memory_and_pool_are_the_limit() {
        let (local, pool) = shares(100 << 20);
        assert_eq!(
            (local + pool, pool),
            (100 << 20, ((100 << 20) / POOL_PART) & !1023)
        );
        assert_eq!(shares(8 << 20), (4 << 20, POOL_BYTES_MIN));
    }

    #[test]
    fn quantiles_are_those_of_a_count() {
        let found = quantiles((1..=1000).rev().map(f64::from)).unwrap();
        assert_eq!((found.p50, found.p99), (501e3, 991e3));
        assert_eq!((found.p999, found.max), (Some(1000e3), Some(1000e3)));
        assert_eq!(quantiles(std::iter::empty()), None);
    }

    #[test]
    fn damage_is_an_error() {
        let report = |corrupt: u64| {
            serde_json::json!({"verify_failures": 0, "counters": {"anomalies": 0, "faults_beyond_pool": 7},
                "far": {"corrupt": corrupt, "reads": 9, "failovers": 3}})
        };
        let far = far_of(&report(0)).unwrap();
        assert_eq!(
            (far.faults, far.reads, far.failovers),
            (Some(7), Some(9), Some(3))
        );
        assert!(far_of(&report(1)).is_err());
    }
}
