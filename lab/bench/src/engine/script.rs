//! Scripts: experiments that change something while a program runs, or that measure something other than a
//! program with an answer.
//!
//! A module in `experiments` lists its cases and has one function, which runs a case once and returns its
//! samples. This module does the rest: what the host lacks, repeats, results, signals, and undoing the case's
//! changes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::child::Child;
use super::donors::Donors;
use super::error::BenchError;
use super::own_dir;
use super::plan::{Request, resolve};
use super::program::{Context, Fail, Stopped};
use crate::experiments::Below;
use crate::external::tools;
use crate::host::cgroup::{Controller, Group};
use crate::host::net::{self, Network};
use crate::host::swap;
use crate::host::undo::Undo;
use crate::link::Link;
use crate::record::Sample;
use crate::variant::Variant;
use crate::workload::Argv;

/// Interval of polls for a condition.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// An experiment that is a script.
#[derive(Debug)]
pub struct Script {
    /// Name of the experiment.
    pub name: &'static str,
    /// Description of one line.
    pub about: &'static str,
    /// The part of a paper that it mirrors.
    pub paper: Option<&'static str>,
    /// Cases to compare. Every second repeat starts with the last one.
    pub cases: &'static [Case],
    /// Whether a case needs samples of earlier ones, so that every repeat has the same order.
    pub in_order: bool,
    /// Programs that it needs, each with its Debian package.
    pub needs: &'static [(&'static str, &'static str)],
    /// Whether it needs root.
    pub needs_root: bool,
    /// Default number of repeats.
    pub repeats: u32,
    /// Default size of the workloads.
    pub scale: f64,
    /// Runs a case once.
    pub run: fn(&Stage, &Case) -> Result<Vec<Sample>, Fail>,
}

/// One row of a script's results, or several related ones.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Name of the program in the results.
    pub workload: &'static str,
    /// Parameters that distinguish the case from others.
    pub parameters: &'static [(&'static str, &'static str)],
    /// Kind of variant.
    pub below: Below,
}

impl Case {
    /// Its variant, as in the results.
    pub fn variant(&self) -> Variant {
        resolve(self.below)
    }

    /// Value of one of its parameters.
    pub fn parameter(&self, name: &str) -> Option<&'static str> {
        let found = self.parameters.iter().find(|(n, _)| *n == name);
        found.map(|(_, value)| *value)
    }

    /// Description: `redis (place=donor) on canvas`.
    pub fn words(&self) -> String {
        let pairs = self.parameters.iter().map(|(k, v)| format!(" {k}={v}"));
        let pairs: String = pairs.collect();
        format!("{}{pairs} on {}", self.workload, self.variant())
    }
}

impl Script {
    /// Reason why the script cannot run here.
    pub fn missing(&self) -> Option<String> {
        if self.needs_root && !nix::unistd::geteuid().is_root() {
            return Some("it needs root".to_owned());
        }
        let lacks = |(program, _): &&(&str, &str)| tools::find(program).is_none();
        let lacking: Vec<_> = self.needs.iter().filter(lacks).collect();
        let names: Vec<&str> = lacking.iter().map(|(program, _)| *program).collect();
        let packages: Vec<&str> = lacking.iter().map(|(_, package)| *package).collect();
        (!names.is_empty()).then(|| {
            format!(
                "{} not installed; install the Debian packages: {}",
                names.join(", "),
                packages.join(" ")
            )
        })
    }

    /// The cases of a repeat in order.
    pub fn cases(&self, repeat: u32) -> Vec<&'static Case> {
        let mut cases: Vec<&Case> = self.cases.iter().collect();
        if repeat % 2 == 1 && !self.in_order {
            cases.reverse();
        }
        cases
    }
}

/// A failure of a script's case, with one sentence.
pub fn failed(sentence: impl Into<String>) -> Fail {
    Fail::Error(BenchError::Script(sentence.into()))
}

/// Seconds since 1970, in the format of the bench's programs.
pub fn now_unix_s() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

/// Environment of one run of a case.
pub struct Stage<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) request: &'a Request,
    /// A sample with only the identity of the run.
    pub(super) blank: Sample,
    /// Size of the workloads; 1 is their design size.
    pub scale: f64,
    /// Directory of the run's files, removed afterwards.
    pub dir: PathBuf,
    /// Samples of the earlier cases in this run of the bench.
    pub earlier: &'a [Sample],
}

impl Stage<'_> {
    /// A sample to fill in.
    pub fn sample(&self) -> Sample {
        self.blank.clone()
    }

    /// A sample with a further parameter.
    pub fn sample_with(&self, name: &str, value: impl ToString) -> Sample {
        let mut sample = self.sample();
        sample.parameters.insert(name.to_owned(), value.to_string());
        sample
    }

    /// Size of data in MiB: `at_scale_1` times the scale, but at least 8.
    pub fn mib(&self, at_scale_1: u64) -> u64 {
        ((at_scale_1 as f64 * self.scale).round() as u64).max(8)
    }

    /// Duration: `at_scale_1` seconds times the scale, but at least half a second.
    pub fn seconds(&self, at_scale_1: f64) -> Duration {
        Duration::from_secs_f64((at_scale_1 * self.scale.min(1.0)).max(0.5))
    }

    /// The `canvas` command.
    pub fn canvas(&self) -> String {
        self.request.canvas.to_string_lossy().into_owned()
    }

    /// The `lab` command.
    pub fn lab(&self) -> String {
        self.request.lab.to_string_lossy().into_owned()
    }

    /// Directory of downloads and generated data.
    pub fn cache(&self) -> &Path {
        &self.request.cache
    }

    /// Seed of all generated data.
    pub fn seed(&self) -> u64 {
        self.request.seed
    }

    /// Journal of changes to the host.
    pub fn undo(&self) -> &Arc<Undo> {
        self.context.undo
    }

    /// A name that is unique on this host.
    pub fn unique(&self, what: &str) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        format!("{what}-{}-{n}", std::process::id())
    }

    /// A directory for sockets, whose paths must be short, unlike those in [`Stage::dir`]. Removed after the
    /// run.
    pub fn socket_dir(&self) -> Result<PathBuf, BenchError> {
        own_dir(Path::new("/tmp"), self.undo())
    }

    /// Starts a program, with its output in files; it is ended with the case.
    pub fn start(&self, argv: Vec<String>, tag: &str) -> Result<Child, BenchError> {
        let env = Vec::new();
        Child::start(&Argv { argv, env }, &self.dir, tag, self.undo())
    }

    /// Starts a program with a pipe as its standard input ([`Child::input`]).
    pub fn start_with_input(&self, argv: Vec<String>, tag: &str) -> Result<Child, BenchError> {
        let env = Vec::new();
        Child::start_with_input(&Argv { argv, env }, &self.dir, tag, self.undo())
    }

    /// Runs a `canvas` command and returns its output. Exit code 1 with output is no error: it reports an
    /// unhealthy state.
    pub fn ask(&self, args: &[&str]) -> Result<String, BenchError> {
        let out = Command::new(&self.request.canvas).args(args).output();
        let out = out.map_err(|source| BenchError::CannotRunCanvas {
            canvas: self.request.canvas.clone(),
            source,
        })?;
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        let looked = out.status.code() == Some(1) && !said.is_empty();
        if out.status.success() || looked {
            return Ok(said);
        }
        let why = String::from_utf8_lossy(&out.stderr);
        let args = args.join(" ");
        Err(BenchError::Script(format!("canvas {args}: {}", why.trim())))
    }

    /// Output of `canvas status` for a tenant. Fails before the tenant exists and after its end.
    pub fn status(&self, tenant: &str) -> Result<Value, BenchError> {
        let said = self.ask(&["status", tenant, "--json"])?;
        serde_json::from_str(&said).map_err(|e| BenchError::Script(format!("canvas status: {e}")))
    }

    /// Fails if the user asked to stop.
    pub fn check_stop(&self) -> Result<(), Stopped> {
        match self.context.stop.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Stopped(signal as i32)),
        }
    }

    /// Waits for `time`. Fails if the user asks to stop.
    pub fn pause(&self, time: Duration) -> Result<(), Stopped> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.check_stop()?;
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
        Ok(())
    }

    /// Polls until `look` returns a value. The error says that `what` did not happen in time.
    pub fn until<T>(
        &self,
        what: &str,
        patience: Duration,
        mut look: impl FnMut() -> Result<Option<T>, Fail>,
    ) -> Result<T, Fail> {
        let until = Instant::now() + patience;
        loop {
            self.check_stop()?;
            if let Some(found) = look()? {
                return Ok(found);
            }
            if Instant::now() > until {
                let seconds = patience.as_secs();
                return Err(failed(format!("{what} did not happen in {seconds} s")));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Creates a network namespace behind a link, removed when dropped.
    pub fn network(&self, link: Link) -> Result<Network, Fail> {
        let network = Network::start(link, self.undo());
        network.map_err(|e| failed(e.to_string()))
    }

    /// Starts `count` donors that lend `bytes` each, in a network namespace if given.
    pub fn donors(
        &self,
        count: u32,
        bytes: u64,
        network: Option<&Network>,
    ) -> Result<Donors, BenchError> {
        let canvas = &self.request.canvas;
        Donors::start(canvas, count, bytes, network, &self.dir, self.undo())
    }

    /// Creates a control group with this limit, whose programs may be swapped.
    pub fn group(&self, name: &str, limit_bytes: Option<u64>) -> Result<Group, BenchError> {
        let found;
        let controller = match self.context.controller {
            Some(controller) => controller,
            None => {
                found = Controller::find()?;
                &found
            }
        };
        let name = self.unique(name);
        Ok(Group::new(
            controller,
            self.undo(),
            &name,
            limit_bytes,
            true,
        )?)
    }
}

/// Reason why a case's variant cannot run here.
pub(super) fn variant_missing(request: &Request, case: &Case) -> Option<String> {
    let variant = case.variant();
    if variant.is_kernel() {
        return swap::missing(&variant, &request.cache).map(|e| e.to_string());
    }
    let link = variant.link().and_then(net::missing);
    link.map(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::SCRIPTS;

    const CASES: &[Case] = &[
        Case {
            workload: "a",
            parameters: &[("killed", "2")],
            below: Below::Local,
        },
        Case {
            workload: "b",
            parameters: &[],
            below: Below::Zram,
        },
    ];

    fn script(needs: &'static [(&'static str, &'static str)]) -> Script {
        Script {
            name: "s",
            about: "",
            paper: None,
            cases: CASES,
            in_order: false,
            needs,
            needs_root: false,
            repeats: 1,
            scale: 1.0,
            run: |_, _| Ok(Vec::new()),
        }
    }

    #[test]
    fn what_is_missing_is_named_with_its_packages() {
        assert_eq!(script(&[("sh", "dash")]).missing(), None);
        let lacking = script(&[("sh", "dash"), ("no-such-a", "pa"), ("no-such-b", "pb")]);
        let said = lacking.missing().unwrap();
        assert_eq!(
            said,
            "no-such-a, no-such-b not installed; install the Debian packages: pa pb"
        );
    }

    #[test]
    fn every_second_repeat_goes_back_unless_the_order_matters() {
        let names = |s: &Script, repeat| -> Vec<&str> {
            s.cases(repeat).iter().map(|c| c.workload).collect()
        };
        let mut s = script(&[]);
        assert_eq!(
            (names(&s, 0), names(&s, 1)),
            (vec!["a", "b"], vec!["b", "a"])
        );
        s.in_order = true;
        assert_eq!(names(&s, 1), ["a", "b"]);
        assert_eq!(CASES[0].words(), "a killed=2 on local");
        assert_eq!(CASES[0].parameter("killed"), Some("2"));
    }

    #[test]
    fn scripts_have_names_of_their_own_and_cases() {
        for (i, s) in SCRIPTS.iter().enumerate() {
            let others = SCRIPTS[..i].iter().map(|o| o.name);
            let others = others.chain(crate::experiments::EXPERIMENTS.iter().map(|e| e.name));
            assert!(others.into_iter().all(|o| o != s.name), "{}", s.name);
            assert!(
                !s.cases.is_empty() && s.repeats > 0 && s.scale > 0.0,
                "{}",
                s.name
            );
        }
    }
}
