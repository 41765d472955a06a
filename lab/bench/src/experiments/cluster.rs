//! A cluster of five hosts that run programs and lend memory at the same time.
//!
//! Containers come and go on randomly chosen hosts; a limit keeps a part of each one's working set local.
//! Later a program wants nearly all memory of the emptiest host, and a lending host dies and comes back. All
//! events follow from the seed and are the same under each variant. The first variant, `local`, has no
//! limits, and measures the working sets.

mod client;
mod container;
mod machine;
mod plan;

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::{Below, FAR, FarParts};
use crate::engine::program::Fail;
use crate::engine::script::{Case, Script, Stage, failed};
use crate::host::swap::Swap;
use crate::host::switch::Switch;
use crate::rate::Rate;
use crate::record::{Outcome, Sample};
use crate::stats::median;
use crate::variant::{Tenancy, Variant};
use container::{Bound, Contained, How, quantiles};
use machine::Machine;
use plan::{Container, PERCENTS, Plan, Size};

const HOSTS: usize = 5;
/// Rate of the hosts' links.
const LINK: Rate = Rate::mbit(1000);
const STEP: Duration = Duration::from_millis(50);
/// Interval of a step.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The memory of containers is sampled once per this number of steps.
const LOOK_STEPS: u32 = 4;
/// Time after the host's death, and after the start of the hungry program, in which answers are evaluated.
const DEATH_S: f64 = 10.0;
const HUNGRY_S: f64 = 20.0;
/// Suffix of the name of a container that restarts after its host died.
const AGAIN: &str = "-again";
/// Names of the result rows for all containers, and for all hosts.
const ANSWERS: &str = "answers";
const ALL: &str = "cluster";

const fn case(below: Below) -> Case {
    Case {
        workload: ALL,
        parameters: &[],
        below,
    }
}

const fn lent(copies: &'static str) -> Case {
    case(Below::CanvasFar(FarParts {
        copies,
        link: Some(LINK),
        tenancy: Tenancy::Each,
        ..FAR
    }))
}

/// Definition of the experiment.
pub const SCRIPT: Script = Script {
    name: "cluster",
    about: "five hosts that run programs and lend memory at the same time; one needs its memory back, one dies",
    paper: Some("Infiniswap (NSDI '17), the experiment on 32 machines"),
    cases: &[
        case(Below::Local),
        case(Below::Disk),
        case(Below::Zram),
        lent("1+disk"),
    ],
    in_order: true,
    needs: &[
        ("ip", "iproute2"),
        ("tc", "iproute2"),
        ("nsenter", "util-linux"),
        ("redis-server", "redis-server"),
        ("memcached", "memcached"),
    ],
    needs_root: true,
    repeats: 1,
    scale: 1.0,
    run,
};

/// Size of the cluster; a scale below a half gives a small cluster.
fn size(scale: f64) -> Size {
    if scale < 0.5 {
        return Size {
            hosts: HOSTS,
            host_mib: 512,
            containers: 10,
            length_s: 24.0,
            patience_s: 80.0,
        };
    }
    Size {
        hosts: HOSTS,
        host_mib: 768,
        containers: 14,
        length_s: 90.0 * scale,
        patience_s: 40.0,
    }
}

/// A sample of the hosts: time, memory in use on each, and memory that each lends.
struct Look {
    at_s: f64,
    used: Vec<u64>,
    lent: Vec<u64>,
}

/// State of a run: containers that come and go, and the host that dies.
struct Churn<'a> {
    stage: &'a Stage<'a>,
    plan: &'a Plan,
    copies: Option<String>,
    switch: &'a Switch,
    // Fields drop in this order: programs, their hosts, and their swap.
    running: Vec<Contained>,
    machines: Vec<Machine>,
    swap: Option<Swap>,
    donors: Vec<String>,
    began: Instant,
    waiting: Vec<Container>,
    samples: Vec<Sample>,
    /// Host and answers of each server that has ended.
    answers: Vec<(usize, u32, Vec<client::Answer>)>,
    looks: Vec<Look>,
}

impl Churn<'_> {
    fn now_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Limit of a container, from the run without limits.
    fn bound(&self, c: &Container) -> Result<Bound, Fail> {
        let variant = self.stage.sample().variant;
        if variant.is_local() || c.percent == 100 {
            return Ok(Bound::Nothing);
        }
        let name = c.name.trim_end_matches(AGAIN);
        let peak = plain(self.stage, name).and_then(|s| s.memory_peak_bytes);
        let peak = peak.ok_or_else(|| {
            failed("the variant `local` measures the working sets; run it as well")
        })?;
        let bytes = peak / 100 * u64::from(c.percent);
        Ok(match variant.is_canvas() {
            true => Bound::Canvas(bytes),
            false => Bound::Kernel(bytes),
        })
    }

    /// Samples the memory in use on each host, and writes it to the host's meminfo file.
    fn look(&mut self) -> Result<(), Fail> {
        let used = self.machines.iter().map(Machine::look);
        let mut used = used.collect::<Result<Vec<u64>, Fail>>()?;
        if let Some(swap) = self.swap.as_ref().filter(|s| s.is_zram()) {
            // Charges each host for its share of the zram device's memory.
            let swapped: Vec<u64> = self.machines.iter().map(Machine::swapped_bytes).collect();
            let all: u64 = swapped.iter().sum::<u64>().max(1);
            let stored = swap.far_bytes();
            for (used, swapped) in used.iter_mut().zip(swapped) {
                *used += (u128::from(stored) * u128::from(swapped) / u128::from(all)) as u64;
            }
        }
        self.looks.push(Look {
            at_s: self.now_s(),
            used,
            lent: self.machines.iter().map(|m| m.lent().bytes).collect(),
        });
        Ok(())
    }

    fn start_what_is_due(&mut self) -> Result<(), Fail> {
        let now_s = self.now_s();
        let is_due = |c: &Container, all: &[Machine]| c.at_s <= now_s && all[c.host].is_up;
        let all = std::mem::take(&mut self.waiting);
        let (due, later) = all.into_iter().partition(|c| is_due(c, &self.machines));
        self.waiting = later;
        let due: Vec<Container> = due;
        for c in due {
            let bound = self.bound(&c)?;
            let host = &self.machines[c.host];
            self.running
                .push(Contained::start(self.stage, host, c, bound)?);
        }
        Ok(())
    }

    fn over(&mut self, contained: Contained, how: How) {
        let (host, percent) = (contained.plan.host, contained.plan.percent);
        let answers = std::sync::Arc::clone(&contained.answers);
        let mut sample = contained.end(how, self.stage.sample());
        let name = sample
            .parameters
            .get("container")
            .cloned()
            .unwrap_or_default();
        let known = plain(self.stage, name.trim_end_matches(AGAIN));
        if let (Some(known), Some(answer)) = (known.and_then(|s| s.answer.as_ref()), &sample.answer)
            && known != answer
        {
            sample.outcome = Outcome::Wrong;
        }
        let answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
        self.answers.push((host, percent, answers.clone()));
        self.samples.push(sample);
    }

    /// Kills one host and all that runs on it.
    fn host_dies(&mut self) -> Result<(), Fail> {
        let dies = self.plan.dies;
        self.machines[dies].die(self.stage, self.switch)?;
        let all = std::mem::take(&mut self.running);
        let (dead, alive) = all.into_iter().partition(|c| c.plan.host == dies);
        self.running = alive;
        let dead: Vec<Contained> = dead;
        for contained in dead {
            let mut c = contained.plan.clone();
            c.name += AGAIN;
            c.seconds = (c.until_s() - self.plan.back_s).max(0.1 * self.plan.size.length_s);
            c.at_s = self.plan.back_s;
            self.waiting.push(c);
            self.over(contained, How::Died);
        }
        Ok(())
    }

    fn host_is_back(&mut self) -> Result<(), Fail> {
        let (copies, donors) = (self.copies.as_deref(), &self.donors);
        self.machines[self.plan.dies].come_back(self.stage, self.switch, copies, donors)
    }

    fn step_all(&mut self, with_look: bool) -> Result<(), Fail> {
        for mut contained in std::mem::take(&mut self.running) {
            if with_look {
                contained.look();
            }
            match contained.step(self.began) {
                Ok(Some(how)) => self.over(contained, how),
                Ok(None) => self.running.push(contained),
                Err(Fail::Error(e)) => self.over(contained, How::Failed(e.to_string())),
                Err(stopped) => return Err(stopped),
            }
        }
        Ok(())
    }

    fn go(&mut self) -> Result<(), Fail> {
        let Size {
            length_s,
            patience_s,
            ..
        } = self.plan.size;
        let (mut has_died, mut is_back, mut steps) = (false, false, 0u32);
        while !(self.waiting.is_empty() && self.running.is_empty() && is_back) {
            self.stage.check_stop()?;
            if !has_died && self.now_s() >= self.plan.dies_s {
                has_died = true;
                self.host_dies()?;
            }
            if !is_back && self.now_s() >= self.plan.back_s {
                is_back = true;
                self.host_is_back()?;
            }
            self.start_what_is_due()?;
            self.step_all(steps % LOOK_STEPS == 0)?;
            for machine in &mut self.machines {
                machine.look_after(self.stage, self.copies.as_deref(), &self.donors)?;
            }
            let is_late = |last: &Look| {
                self.began.elapsed().as_secs_f64() - last.at_s >= LOOK_EVERY.as_secs_f64()
            };
            if self.looks.last().is_none_or(is_late) {
                self.look()?;
            }
            if self.now_s() > length_s + patience_s {
                self.waiting.clear();
                for contained in std::mem::take(&mut self.running) {
                    self.over(contained, How::Unfinished);
                }
            }
            steps += 1;
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Longest answer in a time, in ms, over the hosts that `is_there` selects.
    fn longest_ms(&self, from_s: f64, to_s: f64, is_there: impl Fn(usize) -> bool) -> Option<f64> {
        let there = self.answers.iter().filter(|(host, ..)| is_there(*host));
        let answers = there.flat_map(|(_, _, answers)| answers);
        let then = answers.filter(|(at_s, _)| (from_s..to_s).contains(at_s));
        then.map(|(_, us)| us / 1e3).reduce(f64::max)
    }

    /// Result rows of all containers with the same limit, and of all hosts.
    fn rows(&self, busy: f64) -> Vec<Sample> {
        let mut rows = Vec::new();
        for percent in PERCENTS {
            let of = self.answers.iter().filter(|(_, p, _)| *p == percent);
            let mut row = self.stage.sample();
            row.workload = ANSWERS.to_owned();
            row.local_percent = Some(percent);
            row.latency_ns = quantiles(of.flat_map(|(_, _, answers)| answers).map(|a| a.1));
            let times = self
                .samples
                .iter()
                .filter(|s| s.local_percent == Some(percent));
            let over = times.filter_map(|s| {
                let name = s.parameters.get("container")?;
                Some(s.seconds? / plain_or(self.stage, &self.samples, name)?.seconds?)
            });
            if let Some(middle) = median(&over.collect::<Vec<_>>()) {
                row.figures
                    .insert("completion_times_local".to_owned(), middle);
            }
            rows.push(row);
        }
        let mut whole = self.stage.sample();
        let (dies_s, hungry_s) = (self.plan.dies_s, self.plan.hungry().at_s);
        let slabs = self.machines.iter().map(|m| m.lent().evicted);
        let slabs = slabs.fold([0, 0], |a, b| [a[0] + b[0], a[1] + b[1]]);
        let ended = |name: &str| {
            self.samples
                .iter()
                .filter(|s| s.figures.contains_key(name))
                .count()
        };
        let ooms: u32 = self.machines.iter().map(|m| m.ooms).sum();
        let figures = [
            ("processors_busy_pct", Some(busy)),
            (
                "longest_after_death_ms",
                self.longest_ms(dies_s, dies_s + DEATH_S, |h| h != self.plan.dies),
            ),
            (
                "longest_after_hungry_ms",
                self.longest_ms(hungry_s, hungry_s + HUNGRY_S, |_| true),
            ),
            ("evicted_slabs", Some(slabs[0] as f64)),
            ("evicted_late_slabs", Some(slabs[1] as f64)),
            ("services_oom", Some(f64::from(ooms))),
            ("died", Some(ended("died") as f64)),
            ("unfinished", Some(ended("unfinished") as f64)),
        ];
        let figures = figures
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        whole.figures.extend(figures);
        whole.figures.extend(in_use(&self.looks, &self.plan.size));
        rows.push(whole);
        rows
    }
}

/// Sample of a container in the run without limits.
fn plain<'s>(stage: &'s Stage, name: &str) -> Option<&'s Sample> {
    let blank = stage.sample();
    stage.earlier.iter().rev().find(|s| {
        s.experiment == blank.experiment
            && s.variant == Variant::Local
            && s.parameters.get("container").is_some_and(|n| n == name)
    })
}

/// Sample of a container in the run without limits, which may be this run.
fn plain_or<'s>(stage: &'s Stage, own: &'s [Sample], name: &str) -> Option<&'s Sample> {
    let is_own = |s: &&Sample| s.parameters.get("container").is_some_and(|n| n == name);
    match stage.sample().variant.is_local() {
        true => own.iter().find(is_own),
        false => plain(stage, name.trim_end_matches(AGAIN)),
    }
}

/// Mean used shares of hosts' memory while containers came and went, and their spread.
fn in_use(looks: &[Look], size: &Size) -> Vec<(String, f64)> {
    let looks: Vec<&Look> = looks.iter().filter(|l| l.at_s < size.length_s).collect();
    if looks.is_empty() {
        return Vec::new();
    }
    let percent = |bytes: f64| bytes / (size.host_mib << 20) as f64 * 100.0;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let hosts = (0..looks[0].used.len()).map(|h| {
        let used = looks.iter().map(|l| percent(l.used[h] as f64));
        mean(&used.collect::<Vec<_>>())
    });
    let hosts: Vec<f64> = hosts.collect();
    let middle = mean(&hosts);
    let squares: Vec<f64> = hosts.iter().map(|h| (h - middle).powi(2)).collect();
    let fullest = looks
        .iter()
        .flat_map(|l| &l.used)
        .max()
        .copied()
        .unwrap_or(0);
    let lent = looks
        .iter()
        .map(|l| l.lent.iter().sum::<u64>() as f64 / f64::from(1 << 20));
    let lent: Vec<f64> = lent.collect();
    let most = lent.iter().copied().fold(0.0, f64::max);
    [
        ("memory_mean_pct", middle),
        ("memory_deviation_pct", mean(&squares).sqrt()),
        ("memory_fullest_pct", percent(fullest as f64)),
        ("lent_mean_mib", mean(&lent)),
        ("lent_most_mib", most),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

/// Busy and total time of this machine's processors, in clock ticks.
fn processors() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let all: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|w| w.parse().ok())
        .collect();
    let whole: f64 = all.iter().sum();
    let idle: f64 = all.iter().skip(3).take(2).sum();
    (whole - idle, whole)
}

fn run(stage: &Stage, case: &Case) -> Result<Vec<Sample>, Fail> {
    let plan = Plan::new(stage.seed(), size(stage.scale));
    let variant = case.variant();
    let size = plan.size;
    let wrong = |e: &dyn std::fmt::Display| failed(e.to_string());
    let key = stage.dir.join("cluster.key");
    stage.ask(&["keygen", &key.to_string_lossy()])?;
    let bytes = 2 * size.hosts as u64 * (size.host_mib << 20);
    let swap = Swap::on(&variant, bytes, stage.cache(), &[], stage.undo());
    let swap = swap.map_err(|e| wrong(&e))?;
    let switch = Switch::start(LINK, stage.undo()).map_err(|e| wrong(&e))?;
    let is_limited = !variant.is_local();
    let sockets = stage.socket_dir()?;
    let machines = (0..size.hosts)
        .map(|n| Machine::new(stage, &switch, n, &size, is_limited, (&key, &sockets)))
        .collect::<Result<Vec<_>, Fail>>()?;
    let copies = match &variant {
        Variant::CanvasFar(below) => Some(below.copies.clone()),
        _ => None,
    };
    let mut churn = Churn {
        stage,
        plan: &plan,
        copies,
        switch: &switch,
        donors: machine::donors(&machines),
        machines,
        swap,
        began: Instant::now(),
        waiting: plan.containers.clone(),
        running: Vec::new(),
        samples: Vec::new(),
        answers: Vec::new(),
        looks: Vec::new(),
    };
    if let Some(copies) = churn.copies.clone() {
        for machine in &mut churn.machines {
            machine.lend(stage)?;
        }
        for machine in &mut churn.machines {
            machine.keep(stage, &copies, &churn.donors)?;
        }
    }
    churn.began = Instant::now();
    let before = processors();
    churn.go()?;
    let after = processors();
    // Donors write their state once a second.
    if churn.copies.is_some() {
        stage.pause(Duration::from_millis(1100))?;
    }
    let rows = churn.rows((after.0 - before.0) / (after.1 - before.1).max(1.0) * 100.0);
    churn.samples.extend(rows);
    Ok(std::mem::take(&mut churn.samples))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_of_the_time() {
        let look = |at_s, used: [u64; 2], lent: [u64; 2]| Look {
            at_s,
            used: used.to_vec(),
            lent: lent.to_vec(),
        };
        const MIB: u64 = 1 << 20;
        let size = Size {
            host_mib: 1000,
            length_s: 2.0,
            ..size(1.0)
        };
        let looks = [
            look(0.0, [100 * MIB, 300 * MIB], [0, 2 * MIB]),
            look(1.0, [300 * MIB, 300 * MIB], [2 * MIB, 2 * MIB]),
            look(2.0, [900 * MIB, 900 * MIB], [0, 0]),
        ];
        let found: Vec<f64> = in_use(&looks, &size).into_iter().map(|f| f.1).collect();
        assert_eq!(found, [25.0, 5.0, 30.0, 3.0, 4.0]);
        assert!(in_use(&looks[2..], &size).is_empty());
    }
}
