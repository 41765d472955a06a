//! Runs the cells of experiments, interleaved and repeated, and appends the samples to the results.

mod budget;
pub(crate) mod child;
pub(crate) mod donors;
pub mod error;
mod pairs;
pub mod plan;
pub(crate) mod program;
mod progress;
mod results;
pub(crate) mod script;
mod shared;
pub mod table;
mod tcp;
#[cfg(test)]
pub(crate) mod tests;
mod working_set;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use budget::Budget;
use error::{BenchError, NeedError, ResultsError};
use nix::unistd::mkdtemp;
use plan::{Cell, Plan, Request, Set};
pub(crate) use program::run_dir;
use program::{Context, Fail, Job, Stopped};
use progress::Progress;
use results::Results;
use shared::{Seen, Shared, Watched};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use working_set::WorkingSets;

use crate::host::cgroup::Controller;
use crate::host::error::ConfineError;
use crate::host::facts;
use crate::host::lock::{self, Taken};
use crate::host::net::Network;
use crate::host::processors::Confined;
use crate::host::reverse::Host;
use crate::host::step::Step;
use crate::host::swap::Swap;
use crate::host::turns::{Side, Turns};
use crate::host::undo::Undo;
use crate::record::{Line, Machine, Outcome, Run, SCHEMA, Sample, Skip};
use crate::registry;
use crate::variant::{FarBelow, Tenancy, Variant};
use crate::workload::{Place, Workload, WorkloadError};

/// Least local memory of any limited run under all variants; canvas needs this much.
const LIMIT_BYTES_MIN: u64 = 8 << 20;
/// Parameter of the samples of side-by-side comparisons: names the variant that is not the base.
pub const PAIR: &str = "pair";
/// Interval at which a program's memory is sampled.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Outcome of a run of the bench.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All cells that can run here were run.
    Done,
    /// Number of runs that were wrong, failed or hung.
    SomeFailed(u32),
    /// Stopped by this signal; all changes to the host are undone.
    Stopped(i32),
}

pub(crate) fn run_line(
    request: &Request,
    run_id: &str,
    machine: Machine,
    scale: f64,
    repeats: u32,
) -> Run {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Run {
        schema: SCHEMA.to_owned(),
        run_id: run_id.to_owned(),
        started_unix_s: now.as_secs(),
        canvas_version: request.canvas_version.clone(),
        argv: request.argv.clone(),
        scale,
        repeats,
        seed: request.seed,
        machine,
    }
}

/// An identifier that is unique over all files: time and pid.
fn new_run_id() -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    format!("{}-{}", now.as_millis(), std::process::id())
}

/// Registers the signals that stop a bench; returns a flag that is 0 until one arrives, then its number. A
/// second signal ends the bench at once, and the guardian undoes its changes.
fn signals() -> Result<Arc<AtomicUsize>, BenchError> {
    let stop = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let flag = Arc::new(std::sync::atomic::AtomicBool::new(false));
        // The order matters: the first signal finds the flag unset and sets it, and the second takes its
        // default action.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, flag))
            .and_then(|_| {
                signal_hook::flag::register_usize(signal, Arc::clone(&stop), signal as usize)
            })
            .map_err(BenchError::Signals)?;
    }
    Ok(stop)
}

/// State shared by all cells of one run of the bench.
struct Bench<'a> {
    request: &'a Request,
    all: &'a [Box<dyn Workload>],
    context: Context<'a>,
    run_id: String,
    scratch: PathBuf,
    results: Results,
    progress: Progress,
    sets: WorkingSets,
    samples: Vec<Sample>,
    failed: u32,
    numbers: AtomicU32,
    budget: Budget,
    /// Cells that hung, which are not repeated.
    hung: Vec<(Variant, Option<u32>, Vec<plan::Member>)>,
}

/// Environment of all programs of a cell.
struct Beneath<'b> {
    needs: &'b [working_set::Need],
    /// Far memory of each program, in bytes.
    far: &'b [u64],
    arguments: &'b [Vec<String>],
    /// Number of programs still running, without those that run as company only.
    left: &'b AtomicUsize,
    network: Option<&'b Network>,
    shared: Option<&'b Shared>,
    swap: Option<&'b Swap>,
}

/// Arguments of a member, with those for company.
fn with_company(member: &plan::Member) -> Vec<String> {
    let more = member.company.as_deref().unwrap_or_default();
    [&member.args, more].concat()
}

/// Runs the request and passes the table to `print`. Fails if the request is invalid or the host cannot run
/// it; all changes to the host are undone then.
pub fn run(request: &Request, print: impl FnOnce(&str)) -> Result<Ended, BenchError> {
    run_with(request, &registry::workloads(), print)
}

/// Creates a directory for the run, which is removed at its end. It is journalled only after it exists, since
/// a directory of a predictable name could belong to someone else. (A kill in between leaves an empty
/// directory.)
pub(crate) fn own_dir(dir: &Path, undo: &Undo) -> Result<PathBuf, BenchError> {
    let template = dir.join(format!("canvas-bench-{}-XXXXXX", std::process::id()));
    let path = match mkdtemp(&template) {
        Ok(path) => path,
        Err(error) => return Err(BenchError::OwnDirectory { template, error }),
    };
    let noted = undo.note(Step::RemoveTree { path: path.clone() });
    if let Err(e) = noted {
        let _ = fs::remove_dir(&path);
        return Err(e.into());
    }
    Ok(path)
}

pub(crate) fn run_with(
    request: &Request,
    all: &[Box<dyn Workload>],
    print: impl FnOnce(&str),
) -> Result<Ended, BenchError> {
    let began = Instant::now();
    // Invalid requests fail first, even if another bench is running.
    let asked = plan::make(request, all, |_| None)?;
    let lock = lock::take()?;
    if let Taken::Others(pid) = &lock {
        refuse_beside(*pid, &asked)?;
    }
    let mut plan = plan::make(request, all, |v| plan::missing_here(request, v))?;
    plan::leave_out_scripts(&mut plan, request)?;
    plan::leave_out_tenants(&mut plan, |flags| {
        plan::flags_missing(&request.canvas, flags)
    });
    if let Taken::Others(pid) = &lock {
        eprintln!(
            "lab: {} too; the figures of both will be disturbed",
            another(*pid)
        );
    }
    let results = Results::open(&request.out)?;
    fs::create_dir_all(&request.cache).map_err(|source| BenchError::Directory {
        path: request.cache.clone(),
        source,
    })?;
    let undo = Undo::begin(&Host, &request.guardian)?;
    let run_id = new_run_id();
    let scratch = own_dir(&std::env::temp_dir(), &undo)?;
    let stop = signals()?;
    let controller = Controller::find().ok();
    let budget = Budget::new(began, plan.time_max);
    let mut bench = Bench {
        request,
        all,
        context: Context {
            undo: &undo,
            controller: controller.as_ref(),
            stop: &stop,
            canvas: &request.canvas,
            began,
            until: budget.until(),
        },
        run_id,
        scratch,
        results,
        progress: Progress::new(total_runs(&plan), cfg!(test)),
        sets: WorkingSets::default(),
        samples: Vec::new(),
        failed: 0,
        numbers: AtomicU32::new(0),
        budget,
        hung: Vec::new(),
    };
    let result = bench.all_of(plan);
    bench.progress.end();
    let (samples, failed) = (bench.samples, bench.failed);
    let not_undone = undo.finish();
    drop(lock);
    for sentence in &not_undone {
        eprintln!("lab: {sentence}");
    }
    match result {
        Err(Fail::Error(e)) => Err(e),
        Err(Fail::Stopped(signal)) => {
            print(&table::table(&samples));
            Ok(Ended::Stopped(signal))
        }
        Ok(()) => {
            print(&table::table(&samples));
            let failed = failed + not_undone.len() as u32;
            Ok(if failed == 0 {
                Ended::Done
            } else {
                Ended::SomeFailed(failed)
            })
        }
    }
}

/// "another bench (process 42) runs".
fn another(pid: Option<u32>) -> String {
    let number = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
    format!("another bench{number} runs")
}

/// Refuses variants with kernel swap, which all of the host shares, while another bench runs. (Without root
/// the plan has refused them.)
fn refuse_beside(pid: Option<u32>, asked: &Plan) -> Result<(), BenchError> {
    let sets = asked.sets.iter().flat_map(|s| s.variants.clone());
    let cases = asked.scripts.iter().flat_map(|c| c.cases(0));
    let mut all = sets.chain(cases.map(script::Case::variant));
    match all.find(Variant::is_kernel) {
        Some(variant) if nix::unistd::geteuid().is_root() => Err(BenchError::WouldDisturb {
            other: another(pid),
            variant: Box::new(variant),
        }),
        _ => Ok(()),
    }
}

fn total_runs(plan: &Plan) -> u64 {
    let of = |s: &Set| (0..s.repeats).map(|r| s.cells(r).len() as u64).sum::<u64>();
    let in_scripts = |c: &plan::Course| c.cases(0).len() as u64 * u64::from(c.repeats);
    plan.sets.iter().map(of).sum::<u64>() + plan.scripts.iter().map(in_scripts).sum::<u64>()
}

impl<'a> Bench<'a> {
    fn all_of(&mut self, plan: Plan) -> Result<(), Fail> {
        self.head(&plan)?;
        let scripts = plan.scripts;
        let sets = self.prepare(plan.sets)?;
        let repeats = sets.iter().map(|s| s.repeats).max().unwrap_or(0);
        // Repeats are the outermost loop, so that a noisy minute does not hit all repeats of a cell.
        'all: for repeat in 0..repeats {
            for (number, set) in sets.iter().enumerate().filter(|(_, s)| repeat < s.repeats) {
                for cell in set.cells(repeat) {
                    if self.budget.is_over() {
                        break 'all;
                    }
                    let key = budget::key(number, &cell);
                    let began = Instant::now();
                    // A later, shorter cell may still fit.
                    if self.budget.has_room_for(&key) && self.cell(&cell, repeat)? {
                        self.budget.dealt_with(key, began.elapsed());
                    }
                }
            }
        }
        let left_out = self.budget.left_out(&sets);
        let mut was_short = !left_out.is_empty();
        for skip in left_out {
            self.skip(skip)?;
        }
        for course in &scripts {
            was_short |= !self.course(course)?;
        }
        if was_short && self.samples.is_empty() {
            return Err(BenchError::TooLittleTime.into());
        }
        Ok(())
    }

    /// Appends the run's header, and a line for each thing that is not run, with the reason.
    fn head(&mut self, plan: &Plan) -> Result<(), ResultsError> {
        let machine = facts::machine(&self.request.canvas);
        let of_sets = plan.sets.iter().map(|s| (s.scale, s.repeats));
        let of_scripts = plan.scripts.iter().map(|c| (c.scale, c.repeats));
        let (scale, repeats) = of_sets.chain(of_scripts).next().unwrap_or((1.0, 0));
        let run = run_line(self.request, &self.run_id, machine, scale, repeats);
        self.results.add(&Line::Run(run))?;
        for skip in &plan.skips {
            self.skip(skip.clone())?;
        }
        for later in &plan.not_yet {
            let mut later = later.clone();
            later.run_id.clone_from(&self.run_id);
            self.progress.say(&format!(
                "left out: {}: {}",
                later.experiment, later.waits_for
            ));
            self.results.add(&Line::NotYet(later))?;
        }
        Ok(())
    }

    fn skip(&mut self, mut skip: Skip) -> Result<(), ResultsError> {
        skip.run_id.clone_from(&self.run_id);
        let about = match (&skip.variant, &skip.workload) {
            (Some(v), Some(w)) => format!("{}: {w} on {v}", skip.experiment),
            (Some(v), None) => format!("{} on {v}", skip.experiment),
            // Reasons of a workload already begin with its name, except those about time.
            (None, Some(w)) if !skip.reason.starts_with(w.as_str()) => {
                format!("{}: {w}", skip.experiment)
            }
            _ => skip.experiment.clone(),
        };
        self.progress
            .say(&format!("skipped: {about}: {}", skip.reason));
        self.results.add(&Line::Skip(skip))
    }

    /// Downloads and generates what the workloads need. Skips sets that cannot be prepared, unless the user
    /// named them.
    fn prepare(&mut self, sets: Vec<Set>) -> Result<Vec<Set>, Fail> {
        let mut done: HashMap<(String, u64), Result<(), Arc<WorkloadError>>> = HashMap::new();
        let mut kept = Vec::new();
        for set in sets {
            let mut reason = None;
            for m in &set.members {
                self.check_stop()?;
                let Some(w) = registry::find(self.all, &m.workload) else {
                    continue;
                };
                let scale = m.scale(set.scale);
                let place = plan::place(self.request, scale, &self.scratch);
                self.progress.now(&format!("preparing {}", m.workload));
                let key = (m.workload.clone(), scale.to_bits());
                let prepare = || w.prepare(&place).map_err(Arc::new);
                let result = done.entry(key).or_insert_with(prepare);
                if let Err(e) = result {
                    reason = Some((m.workload.clone(), Arc::clone(e)));
                }
            }
            self.check_stop()?;
            match reason {
                None => kept.push(set),
                Some((workload, source)) if self.request.names.contains(&workload) => {
                    return Err(BenchError::Unprepared { workload, source }.into());
                }
                Some((workload, source)) => {
                    let reason = format!("{workload}: {source}");
                    let lost = total_runs(&Plan {
                        sets: vec![set.clone()],
                        ..Plan::default()
                    });
                    self.progress.advance(lost, None);
                    self.skip(Skip {
                        run_id: String::new(),
                        experiment: set.experiment,
                        workload: Some(workload),
                        variant: None,
                        reason,
                    })?;
                }
            }
        }
        Ok(kept)
    }

    fn check_stop(&self) -> Result<(), Stopped> {
        match self.context.stop.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Stopped(signal as i32)),
        }
    }

    fn next_number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs one cell, and returns one sample per program. Returns false when the time limit of the run cut it
    /// short; the cell then counts as not run.
    fn cell(&mut self, cell: &Cell, repeat: u32) -> Result<bool, Fail> {
        let key = (cell.variant.clone(), cell.percent, cell.set.members.clone());
        if self.hung.contains(&key) {
            self.progress.advance(1, None);
            return Ok(true);
        }
        let what = describe(cell);
        self.progress.now(&what);
        self.check_stop()?;
        let mut needs = Vec::new();
        for member in &cell.set.members {
            let need = self.working_set(cell.set, member)?;
            needs.push(need.and_then(|n| match (cell.percent, n.bytes) {
                (Some(_), 0) if member.ratio_of_bytes.is_none() => Err(NeedError::TooShort),
                _ => Ok(n),
            }));
        }
        if self.budget.is_over() {
            return Ok(false);
        }
        let samples = match needs.into_iter().collect::<Result<Vec<_>, NeedError>>() {
            Ok(needs) => self.run_cell(cell, repeat, &needs)?,
            // Without a working set there is no limit to apply.
            Err(e) => self.failures(cell, repeat, &e.to_string()),
        };
        let hung = |s: &Sample| s.outcome == Outcome::Timeout;
        if self.budget.is_over() && samples.iter().any(hung) {
            return Ok(false);
        }
        let mut words = Vec::new();
        for sample in samples {
            if sample.outcome == Outcome::Timeout {
                self.hung.push(key.clone());
            }
            words.push(self.keep(&what, sample)?);
        }
        self.progress
            .advance(1, Some(&format!("{what}: {}", words.join(", "))));
        Ok(true)
    }

    /// Appends a sample to the results; returns a description of how its program ended.
    fn keep(&mut self, what: &str, sample: Sample) -> Result<String, Fail> {
        let words = match &sample.outcome {
            Outcome::Ok => match (sample.seconds, sample.ops_per_s) {
                (Some(seconds), _) => format!("{seconds:.2} s"),
                (None, Some(rate)) => format!("{rate:.0}/s"),
                // A program that ran as company has no time.
                (None, None) => "ok".to_owned(),
            },
            Outcome::Failed(why) => {
                self.progress.say(&format!("{what}: {why}"));
                format!("FAILED: {why}")
            }
            other => table::word(other).to_owned(),
        };
        if !matches!(sample.outcome, Outcome::Ok | Outcome::Oom) {
            self.failed += 1;
        }
        self.results.add(&Line::Sample(Box::new(sample.clone())))?;
        self.samples.push(sample);
        Ok(words)
    }

    /// Runs a script; returns false when there was not enough time for all of its cases.
    fn course(&mut self, course: &plan::Course) -> Result<bool, Fail> {
        for repeat in 0..course.repeats {
            for case in course.cases(repeat) {
                self.check_stop()?;
                if self.budget.is_over() {
                    self.skip(Skip {
                        run_id: String::new(),
                        experiment: course.script.name.to_owned(),
                        workload: None,
                        variant: None,
                        reason: "the time was over before all of it had run".to_owned(),
                    })?;
                    return Ok(false);
                }
                self.case(course, case, repeat)?;
            }
        }
        Ok(true)
    }

    /// Runs one case of a script.
    fn case(
        &mut self,
        course: &plan::Course,
        case: &script::Case,
        repeat: u32,
    ) -> Result<(), Fail> {
        let what = format!("{}: {}", course.script.name, case.words());
        self.progress.now(&what);
        let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        let blank = Sample {
            run_id: self.run_id.clone(),
            experiment: course.script.name.to_owned(),
            workload: case.workload.to_owned(),
            parameters: case.parameters.iter().map(own).collect(),
            variant: case.variant(),
            repeat,
            at_s: self.context.began.elapsed().as_secs_f64(),
            ..Sample::default()
        };
        let dir = program::run_dir(&self.scratch, self.next_number())?;
        let stage = script::Stage {
            context: &self.context,
            request: self.request,
            blank: blank.clone(),
            scale: course.scale,
            dir: dir.clone(),
            earlier: &self.samples,
        };
        let result = (course.script.run)(&stage, case);
        let _ = fs::remove_dir_all(&dir);
        let samples = match result {
            Ok(samples) => samples,
            Err(Fail::Stopped(signal)) => return Err(Fail::Stopped(signal)),
            Err(Fail::Error(e)) => vec![Sample {
                outcome: Outcome::Failed(e.to_string()),
                ..blank
            }],
        };
        let mut words = Vec::new();
        for sample in samples {
            words.push(self.keep(&what, sample)?);
        }
        self.progress
            .advance(1, Some(&format!("{what}: {}", words.join(", "))));
        Ok(())
    }

    fn blank(&self, cell: &Cell, index: usize, repeat: u32) -> Sample {
        let member = &cell.set.members[index];
        let together: Vec<&str> = cell
            .set
            .members
            .iter()
            .map(|m| m.workload.as_str())
            .collect();
        Sample {
            run_id: self.run_id.clone(),
            experiment: cell.set.experiment.clone(),
            workload: member.workload.clone(),
            parameters: member.parameters.clone(),
            variant: cell.variant.clone(),
            local_percent: cell.percent,
            co_run: (together.len() > 1).then(|| together.join("+")),
            repeat,
            at_s: self.context.began.elapsed().as_secs_f64(),
            ..Sample::default()
        }
    }

    fn failures(&self, cell: &Cell, repeat: u32, sentence: &str) -> Vec<Sample> {
        let failed = |i| Sample {
            outcome: Outcome::Failed(sentence.to_owned()),
            ..self.blank(cell, i, repeat)
        };
        (0..cell.set.members.len()).map(failed).collect()
    }

    /// Records why the environment of a cell cannot be set up, without samples.
    fn cannot_run(&mut self, cell: &Cell, reason: String) -> Result<Vec<Sample>, Fail> {
        self.skip(Skip {
            run_id: String::new(),
            experiment: cell.set.experiment.clone(),
            workload: None,
            variant: Some(cell.variant.clone()),
            reason,
        })?;
        Ok(Vec::new())
    }

    /// Runs the programs of a cell at the same time.
    fn run_cell(
        &mut self,
        cell: &Cell,
        repeat: u32,
        needs: &[working_set::Need],
    ) -> Result<Vec<Sample>, Fail> {
        let total: u64 = needs.iter().map(|n| n.bytes).sum();
        // Twice the memory that can become far, so that the size of the swap area has no influence.
        let swap_bytes = round_to_mib(2 * total) + (256 << 20);
        let swap = match Swap::on(
            cell.variant,
            swap_bytes,
            &self.request.cache,
            &self.request.disk_server,
            self.context.undo,
        ) {
            Ok(swap) => swap,
            Err(e) => return self.cannot_run(cell, e.to_string()),
        };
        // Confines first what serves the programs, then the programs, until the cell ends.
        let serving = match confine(cell, true) {
            Ok(confined) => confined,
            Err(e) => return self.cannot_run(cell, e.to_string()),
        };
        // All programs of a cell share one link, as on a real host.
        let link = cell.variant.link();
        let network = match link
            .map(|link| Network::start(link, self.context.undo))
            .transpose()
        {
            Ok(network) => network,
            Err(e) => return self.cannot_run(cell, e.to_string()),
        };
        let tenancy = cell.variant.tenancy();
        let far: Vec<u64> = needs.iter().map(|n| donors::far_bytes(n.bytes)).collect();
        let shared = match cell.variant {
            Variant::CanvasFar(below) if tenancy != Tenancy::Own => {
                match self.share(below, far.iter().sum(), network.as_ref()) {
                    Ok(shared) => Some(shared),
                    Err(e) => return Ok(self.failures(cell, repeat, &e.to_string())),
                }
            }
            _ => None,
        };
        drop(serving);
        let _confined = match confine(cell, false) {
            Ok(confined) => confined,
            Err(e) => return self.cannot_run(cell, e.to_string()),
        };
        let alone = cell.set.members.len() == 1;
        let members = cell.set.members.iter();
        let left = AtomicUsize::new(members.filter(|m| m.company.is_none()).count());
        let arguments: Vec<Vec<String>> = cell.set.members.iter().map(with_company).collect();
        let beneath = Beneath {
            needs,
            far: &far,
            arguments: &arguments,
            left: &left,
            network: network.as_ref(),
            shared: shared.as_ref(),
            swap: swap.as_ref(),
        };
        let base = cell.set.beside.as_ref().map(|variant| Cell {
            set: cell.set,
            variant,
            percent: cell.percent.filter(|_| !variant.is_local()),
        });
        let sides = [Side::default(), Side::default()];
        let turns = match base.as_ref().map(|_| Turns::new()).transpose() {
            Ok(turns) => turns,
            Err(e) => return self.cannot_run(cell, e.to_string()),
        };
        let jobs = self.jobs(cell, base.as_ref(), &sides, repeat, &beneath)?;
        let watched = shared.as_ref().map(|shared| Watched {
            agent: shared.agent(),
            network: network.as_ref().filter(|_| !alone),
        });
        let eyes = Eyes {
            watched: watched.as_ref(),
            turns: turns.as_ref().map(|turns| (turns, &sides)),
        };
        let (results, seen) = at_once(&self.context, jobs, &left, &eyes);
        drop(swap);
        let mut samples = results.into_iter().collect::<Result<Vec<_>, _>>()?;
        let work_of_all = shared::work_of(&samples, &seen.agent);
        let work = shared.map(Shared::end);
        if let (Some((agent_cpu_s, work)), [one]) = (work, samples.as_mut_slice())
            && let Some(far) = &mut one.far
        {
            far.agent_cpu_s = Some(agent_cpu_s);
            (far.donors_cpu_s, far.donors_bytes) = (Some(work.cpu_s), Some(work.bytes));
        }
        if let Some(first) = samples.first_mut() {
            first.link_to_host = seen.carried;
            first.agent = work_of_all;
        }
        Ok(samples)
    }

    /// Jobs of the programs of a cell; a program with a `base` has two, one on each side.
    fn jobs<'b>(
        &mut self,
        cell: &'b Cell,
        base: Option<&'b Cell>,
        sides: &'b [Side; 2],
        repeat: u32,
        beneath: &Beneath<'b>,
    ) -> Result<Vec<(Job<'b>, Sample)>, Fail>
    where
        'a: 'b,
    {
        let Some(base) = base else {
            let all = 0..cell.set.members.len();
            return all.map(|i| self.job(cell, repeat, i, beneath)).collect();
        };
        let mut jobs = Vec::new();
        for (side, of) in sides.iter().zip([base, cell]) {
            let (job, mut sample) = self.job(of, repeat, 0, beneath)?;
            let pair = cell.variant.to_string();
            sample.parameters.insert(PAIR.to_owned(), pair);
            let side = Some(side);
            jobs.push((Job { side, ..job }, sample));
        }
        Ok(jobs)
    }

    /// The job of one program of a cell, and the part of its sample that is known in advance.
    fn job<'b>(
        &mut self,
        cell: &'b Cell,
        repeat: u32,
        i: usize,
        beneath: &Beneath<'b>,
    ) -> Result<(Job<'b>, Sample), Fail>
    where
        'a: 'b,
    {
        let (member, need) = (&cell.set.members[i], &beneath.needs[i]);
        let alone = cell.set.members.len() == 1;
        let tenancy = cell.variant.tenancy();
        // A single tenant has the sum of the programs' budgets.
        let sum = |all: Vec<u64>, own: u64| match tenancy {
            Tenancy::One => all.into_iter().sum(),
            _ => own,
        };
        let limit_of = |m: &plan::Member, n: &working_set::Need| {
            let whole = m.ratio_of_bytes.unwrap_or(n.bytes);
            cell.percent.map(|p| limit_bytes(whole, p))
        };
        let pool_of = |n: &working_set::Need| match cell.variant {
            Variant::CanvasFar(_) => donors::pool_bytes(n.bytes),
            _ => round_to_mib(2 * n.bytes) + (64 << 20),
        };
        let number = self.next_number();
        let all = cell.set.members.iter().zip(beneath.needs);
        let limits = || all.filter_map(|(m, n)| limit_of(m, n)).collect();
        let limit = limit_of(member, need).map(|own| sum(limits(), own));
        let mut sample = self.blank(cell, i, repeat);
        sample.limit_bytes = limit;
        let workload = registry::find(self.all, &member.workload)
            .ok_or_else(|| BenchError::Gone(member.workload.clone()))?;
        let scratch = program::run_dir(&self.scratch, number)?;
        let far_bytes = sum(beneath.far.to_vec(), beneath.far[i]);
        let place = Place {
            huge_pages: cell.variant.has_huge_pages(),
            ..plan::place(self.request, member.scale(cell.set.scale), &scratch)
        };
        let flags = match (beneath.shared, cell.variant) {
            (Some(shared), Variant::CanvasFar(below)) => {
                Some(shared.flags(below, far_bytes, number, &member.tenant_flags))
            }
            _ => None,
        };
        let job = Job {
            workload,
            args: &beneath.arguments[i],
            variant: cell.variant,
            limit_bytes: limit,
            pool_bytes: sum(beneath.needs.iter().map(pool_of).collect(), pool_of(need)),
            far_bytes,
            network: beneath.network,
            shared: flags,
            company: member.company.is_some().then_some(beneath.left),
            alone,
            swap: beneath.swap.filter(|_| alone && cell.variant.is_kernel()),
            may_swap: beneath.swap.is_some() && cell.variant.is_kernel(),
            side: None,
            place,
            number,
            look_every: LOOK_EVERY,
            expected: need.answer.as_deref(),
        };
        Ok((job, sample))
    }

    /// Starts an agent for all programs of a cell, and its donors.
    fn share(
        &self,
        below: &FarBelow,
        far_bytes: u64,
        network: Option<&Network>,
    ) -> Result<Shared, BenchError> {
        let dir = program::run_dir(&self.scratch, self.next_number())?;
        let far_dir = program::far_dir(&self.request.cache)?;
        let (canvas, undo) = (self.context.canvas, self.context.undo);
        Shared::start(canvas, below, far_bytes, network, &dir, &far_dir, undo)
    }
}

/// Decrements the count of running programs when dropped, unless the program is company.
struct Leaves<'a>(Option<&'a AtomicUsize>);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        if let Some(left) = self.0 {
            left.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Confines this thread and its children to the processors of a cell's programs, or to those of their agent
/// and donors if `serves`.
fn confine(cell: &Cell, serves: bool) -> Result<Option<Confined>, ConfineError> {
    if cell.set.is_on_one_processor() {
        Confined::to_one().map(Some)
    } else if cell.variant.is_on_half() {
        Confined::to_half(serves).map(Some)
    } else {
        cell.variant.cpu_percent().map(Confined::to).transpose()
    }
}

/// Monitors that run beside the programs.
struct Eyes<'a> {
    /// Agent and link to sample.
    watched: Option<&'a Watched<'a>>,
    /// Sides that swap processors.
    turns: Option<(&'a Turns, &'a [Side; 2])>,
}

/// Runs programs at the same time, and samples their agent and its link meanwhile. `left` counts the programs
/// that are not company.
fn at_once(
    context: &Context,
    jobs: Vec<(Job, Sample)>,
    left: &AtomicUsize,
    eyes: &Eyes,
) -> (Vec<Result<Sample, Stopped>>, Seen) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = eyes
            .watched
            .map(|w| scope.spawn(|| shared::watch(w, context.began, &over)));
        if let Some((turns, sides)) = eyes.turns {
            scope.spawn(|| turns.take(sides, &over));
        }
        let mut threads = Vec::new();
        for (job, sample) in jobs {
            threads.push(scope.spawn(move || {
                let _leaves = Leaves(job.company.is_none().then_some(left));
                let result = program::run(context, &job, sample);
                let _ = fs::remove_dir_all(&job.place.scratch);
                result
            }));
        }
        let joined: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        over.store(true, Ordering::Relaxed);
        let seen = watch.and_then(|thread| thread.join().ok());
        let own = |result| match result {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let results = joined.into_iter().map(own).collect();
        (results, seen.unwrap_or_default())
    })
}

fn round_to_mib(bytes: u64) -> u64 {
    bytes.next_multiple_of(1 << 20)
}

/// `percent` of the working set in whole pages, but at least the minimum.
fn limit_bytes(working_set: u64, percent: u32) -> u64 {
    let share = (u128::from(working_set) * u128::from(percent) / 100) as u64;
    share.max(LIMIT_BYTES_MIN).next_multiple_of(4096)
}

fn describe(cell: &Cell) -> String {
    let of = |m: &plan::Member| {
        let parameters: String = m
            .parameters
            .iter()
            .map(|(k, v)| format!(" {k}={v}"))
            .collect();
        format!("{}{parameters}", m.workload)
    };
    let names: Vec<String> = cell.set.members.iter().map(of).collect();
    let percent = cell.percent.map_or(String::new(), |p| format!(" {p}%"));
    format!(
        "{}: {} on {}{percent}",
        cell.set.experiment,
        names.join(" + "),
        cell.variant
    )
}

/// Text of `lab run --list`.
pub fn list(request: &Request) -> String {
    list_of(&registry::workloads(), &request.cache, request)
}

fn list_of(all: &[Box<dyn Workload>], cache: &Path, request: &Request) -> String {
    use std::fmt::Write;
    let mut text = "Experiments:\n".to_owned();
    let names = crate::experiments::EXPERIMENTS.iter().map(|e| e.name);
    let names = names.chain(all.iter().map(|w| w.name()));
    let width = names.map(str::len).max().unwrap_or(0);
    for e in crate::experiments::EXPERIMENTS {
        let _ = writeln!(text, "  {:width$} {}", e.name, e.about);
        if let Some(paper) = e.paper {
            let _ = writeln!(text, "  {:width$}   mirrors {paper}", "");
        }
        for sentence in e.not_yet {
            let _ = writeln!(text, "  {:width$}   left out: {sentence}", "");
        }
    }
    for s in crate::experiments::SCRIPTS {
        let missing = s.missing();
        let missing = missing.map_or(String::new(), |m| format!(" (not here: {m})"));
        let _ = writeln!(text, "  {:width$} {}{missing}", s.name, s.about);
        if let Some(paper) = s.paper {
            let _ = writeln!(text, "  {:width$}   mirrors {paper}", "");
        }
    }
    text.push_str("\nVariants:\n");
    let variants = crate::experiments::ALL_BELOW;
    for below in variants.into_iter().chain([crate::experiments::FAR_PLAIN]) {
        let (variant, about) = plan::variant_about(below);
        let missing = crate::host::swap::missing(&variant, cache);
        let missing = missing.map_or(String::new(), |m| format!(" (not here: {m})"));
        let _ = writeln!(text, "  {:width$} {about}{missing}", variant.to_string());
    }
    text.push_str("\nWorkloads:\n");
    let place = plan::place(
        request,
        request.scale.unwrap_or(1.0),
        Path::new("/nonexistent"),
    );
    for w in all {
        let missing = w
            .missing(&place)
            .map_or(String::new(), |m| format!(" (not here: {m})"));
        let _ = writeln!(text, "  {:width$} {}{missing}", w.name(), w.about());
    }
    text
}
