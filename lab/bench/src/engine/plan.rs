//! From what was asked for to the cells that run. Nothing is changed here.

use std::collections::BTreeMap;
use std::mem::discriminant;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::error::{NotHere, PlanError};
use super::script::{self, Script};
use super::shared::needed_flags;
use crate::experiments::{self, Below, Experiment, How, Part};
use crate::host::{net, swap, throttle};
use crate::link::Link;
use crate::record::{NotYet, Skip};
use crate::registry;
use crate::variant::{FarBelow, Variant};
use crate::workload::{Place, Workload};

/// What was asked for on the command line; `None` leaves it to the experiment.
#[derive(Clone, Debug)]
pub struct Request {
    /// Experiments and workloads by name.
    pub names: Vec<String>,
    /// Of the experiments, only parts in which one of these workloads runs; empty: all parts.
    pub with: Vec<String>,
    /// Which variants; canvas without flags stands for canvas with each of `canvas_flags`.
    pub variants: Option<Vec<Variant>>,
    /// Flags of `canvas run` to compare; empty: none.
    pub canvas_flags: Vec<Vec<String>>,
    /// Links between this host and the donors, for far variants that have none of their own; empty:
    /// none.
    pub far_links: Vec<Link>,
    /// Local memory in percent of the working set.
    pub percents: Option<Vec<u32>>,
    /// Run the named workloads at the same time.
    pub co_run: bool,
    /// Repeats of each cell.
    pub repeats: Option<u32>,
    /// Size of the workloads.
    pub scale: Option<f64>,
    /// After so much time nothing further is begun.
    pub time_max: Option<Duration>,
    /// Seed of all generated data.
    pub seed: u64,
    /// The results file.
    pub out: PathBuf,
    /// Downloads and data that stay.
    pub cache: PathBuf,
    /// The `canvas` command.
    pub canvas: PathBuf,
    /// The `lab` command.
    pub lab: PathBuf,
    /// How the bench was called.
    pub argv: Vec<String>,
    /// Version of the `canvas` command.
    pub canvas_version: String,
    /// Command that comes to [`crate::host::undo::guard`] with a path put behind it.
    pub guardian: Vec<std::ffi::OsString>,
    /// Command that comes to [`crate::host::slow_disk::server::run`] with a path and a number of bytes
    /// put behind it.
    pub disk_server: Vec<std::ffi::OsString>,
}

/// One program of a set, by its place in the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Name of the workload.
    pub workload: String,
    /// Put behind the arguments of its program.
    pub args: Vec<String>,
    /// For the results.
    pub parameters: BTreeMap<String, String>,
    /// Flags of `canvas run` where it is a tenant of its own.
    pub tenant_flags: Vec<String>,
    /// For company only: further arguments, with which it runs until the others have ended.
    pub company: Option<Vec<String>>,
    /// What the ratio is of, in bytes, where that is not the working set.
    pub ratio_of_bytes: Option<u64>,
    /// So many times the size that the scale says.
    pub larger: Option<u32>,
    /// Whether all of its cell runs on one processor.
    pub one_processor: bool,
}

impl Member {
    /// The scale of its workload, where the set's is `scale`.
    pub fn scale(&self, scale: f64) -> f64 {
        scale * f64::from(self.larger.unwrap_or(1))
    }
}

/// Programs that run together (one: alone) in an experiment, and below what.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    /// Experiment.
    pub experiment: String,
    /// The programs.
    pub members: Vec<Member>,
    /// Variants in the order of the experiment; rotated from repeat to repeat.
    pub variants: Vec<Variant>,
    /// Local memory in percent of the working set; empty: none of the cells has a limit.
    pub percents: Vec<u32>,
    /// Repeats.
    pub repeats: u32,
    /// Size of the workloads.
    pub scale: f64,
    /// What its program runs under at the same time, to be compared with, on a processor of its own.
    pub beside: Option<Variant>,
}

/// A cell: a set under one variant at one ratio.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell<'a> {
    /// Which set.
    pub set: &'a Set,
    /// Below it.
    pub variant: &'a Variant,
    /// Local memory; `None` without a limit.
    pub percent: Option<u32>,
}

impl Set {
    /// Whether its cells run on one processor.
    pub fn is_on_one_processor(&self) -> bool {
        self.members.iter().any(|m| m.one_processor)
    }

    /// Its cells, each once, however many repeats there are.
    pub fn places(&self) -> Vec<Cell<'_>> {
        let mut places: Vec<Cell<'_>> = Vec::new();
        for repeat in 0..self.repeats.min(1) {
            places.extend(self.cells(repeat));
        }
        places
    }

    /// The cells of one repeat, in turn: at each ratio all variants, each repeat beginning with
    /// another one.
    pub fn cells(&self, repeat: u32) -> Vec<Cell<'_>> {
        let n = self.variants.len();
        let rotated = |i: usize| &self.variants[(i + repeat as usize) % n];
        let cell = |variant, percent| Cell {
            set: self,
            variant,
            percent,
        };
        // Without a limit there is one cell, which takes its turn at one of the ratios.
        let home = repeat as usize % self.percents.len().max(1);
        let mut cells = Vec::new();
        if self.percents.is_empty() {
            // Most variants are nothing without a limit.
            let free = (0..n).map(rotated).filter(|v| !v.needs_limit());
            cells.extend(free.map(|v| cell(v, None)));
        }
        for (at, percent) in self.percents.iter().enumerate() {
            for i in 0..n {
                match rotated(i) {
                    local if local.is_local() => {
                        if at == home {
                            cells.push(cell(local, None));
                        }
                    }
                    other => cells.push(cell(other, Some(*percent))),
                }
            }
        }
        cells
    }
}

/// A script with those of its cases that run.
#[derive(Clone, Debug)]
pub struct Course {
    /// The script.
    pub script: &'static Script,
    /// Words of the cases that do not run.
    pub left_out: Vec<String>,
    /// Repeats.
    pub repeats: u32,
    /// Size.
    pub scale: f64,
}

impl Course {
    /// The cases of a repeat, in turn.
    pub fn cases(&self, repeat: u32) -> Vec<&'static script::Case> {
        let mut cases = self.script.cases(repeat);
        cases.retain(|c| !self.left_out.contains(&c.words()));
        cases
    }
}

/// What will run, and what will not and why.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// What runs, in order.
    pub sets: Vec<Set>,
    /// Courses of events, which run then.
    pub scripts: Vec<Course>,
    /// What does not.
    pub skips: Vec<Skip>,
    /// What canvas cannot do yet.
    pub not_yet: Vec<NotYet>,
    /// After so much time nothing further is begun.
    pub time_max: Option<Duration>,
}

/// The variant of a kind, without flags of the command line.
pub fn resolve(below: Below) -> Variant {
    match below {
        Below::Local => Variant::Local,
        Below::LocalOnHalf => Variant::LocalOnHalf,
        Below::Canvas(flags) => Variant::Canvas(strings(flags)),
        Below::CanvasFar(far) => Variant::CanvasFar(FarBelow {
            copies: far.copies.to_owned(),
            donor_dies: far.donor_dies,
            flags: strings(far.flags),
            link: far.link,
            delay: far.delay,
            tenancy: far.tenancy,
            agent_flags: strings(far.agent_flags),
            cpu_percent: far.cpu_percent,
            apart: far.apart,
            disk_reads_per_s: far.disk_reads_per_s,
        }),
        Below::Zram => Variant::Zram,
        Below::Zram64k => Variant::Zram64k,
        Below::Zswap => Variant::Zswap,
        Below::Disk => Variant::Disk,
        Below::SlowDisk => Variant::SlowDisk,
        Below::Tmo(percent) => Variant::Tmo(percent),
    }
}

/// A kind of variant and what it is, for people.
pub fn variant_about(below: Below) -> (Variant, &'static str) {
    let about = match below {
        Below::Local => "all in memory, no limit",
        Below::LocalOnHalf => "all in memory, no limit, on the first half of the processors",
        Below::Canvas(_) => "canvas run, limited to the budget",
        Below::CanvasFar(_) => {
            "canvas run with a small pool, and far memory on donors of the bench's own"
        }
        Below::Zram => "kernel swap on zram (lz4), in a control group",
        Below::Zram64k => "the same where the kernel gives programs folios of 64 KiB",
        Below::Zswap => "kernel swap on a file on disk behind zswap, in a control group",
        Below::Disk => "kernel swap on a file on disk, in a control group",
        Below::Tmo(_) => "kernel swap on zram, from which TMO's loop takes memory by a target",
        Below::SlowDisk => "kernel swap on a disk whose reads take 100 us, in a control group",
    };
    (resolve(below), about)
}

/// Variants of a part under what was asked for.
fn variants_of(part: &Part, request: &Request) -> Vec<Variant> {
    let base: Vec<Variant> = match &request.variants {
        Some(asked) => {
            // The experiment's own of a kind stay: they are what it is about.
            let mut all: Vec<Variant> = Vec::new();
            for variant in asked {
                let same = |v: &Variant| {
                    discriminant(v) == discriminant(variant) || (v.is_local() && variant.is_local())
                };
                let own = part.variants.iter().map(|b| resolve(*b)).filter(same);
                let own: Vec<Variant> = own.collect();
                if own.is_empty() {
                    all.push(variant.clone());
                }
                all.extend(own);
            }
            all
        }
        None => part.variants.iter().map(|b| resolve(*b)).collect(),
    };
    let mut all = Vec::new();
    for variant in base {
        match variant {
            Variant::Canvas(own) if !request.canvas_flags.is_empty() => {
                let with =
                    |flags: &Vec<String>| Variant::Canvas([own.clone(), flags.clone()].concat());
                all.extend(request.canvas_flags.iter().map(with));
            }
            Variant::CanvasFar(own) if !request.canvas_flags.is_empty() => {
                let with = |flags: &Vec<String>| {
                    Variant::CanvasFar(FarBelow {
                        flags: [own.flags.clone(), flags.clone()].concat(),
                        ..own.clone()
                    })
                };
                all.extend(request.canvas_flags.iter().map(with));
            }
            other => all.push(other),
        }
    }
    let mut unique: Vec<Variant> = Vec::new();
    let all = all
        .into_iter()
        .flat_map(|v| behind_links(v, &request.far_links));
    for variant in all {
        if !unique.contains(&variant) {
            unique.push(variant);
        }
    }
    unique
}

/// A variant over each of the links that were asked for, when it is one over donors and its
/// experiment does not say which.
fn behind_links(variant: Variant, links: &[Link]) -> Vec<Variant> {
    match variant {
        Variant::CanvasFar(own) if own.whole_link().is_none() && !links.is_empty() => {
            let over = |link: &Link| {
                Variant::CanvasFar(FarBelow {
                    link: link.rate,
                    delay: link.delay,
                    ..own.clone()
                })
            };
            links.iter().map(over).collect()
        }
        other => vec![other],
    }
}

/// What tells runs on one processor from others in the results.
pub const ONE_PROCESSOR: (&str, &str) = ("processors", "1");

fn member(program: &experiments::Program) -> Member {
    let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
    let one = program.one_processor.then_some(&ONE_PROCESSOR);
    Member {
        workload: program.workload.to_owned(),
        args: strings(program.args),
        parameters: program.parameters.iter().chain(one).map(own).collect(),
        tenant_flags: strings(program.tenant_flags),
        company: program.company.map(strings),
        ratio_of_bytes: program.ratio_of_bytes,
        larger: program.larger,
        one_processor: program.one_processor,
    }
}

fn plain(workload: &str) -> Member {
    Member {
        workload: workload.to_owned(),
        ..Member::default()
    }
}

/// Flags, owned.
pub(crate) fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|w| (*w).to_owned()).collect()
}

/// What names stand for.
struct Named<'a> {
    experiments: Vec<&'static Experiment>,
    scripts: Vec<&'static Script>,
    workloads: Vec<&'a str>,
}

/// Names, split into experiments, courses of events and workloads.
fn names<'a>(request: &'a Request, all: &[Box<dyn Workload>]) -> Result<Named<'a>, PlanError> {
    if request.names.is_empty() {
        return Err(PlanError::Nothing);
    }
    let (mut chosen, mut scripts, mut workloads) = (Vec::new(), Vec::new(), Vec::new());
    for name in &request.names {
        if let Some(e) = experiments::find(name) {
            chosen.push(e);
        } else if let Some(script) = experiments::find_script(name) {
            scripts.push(script);
        } else if registry::find(all, name).is_some() {
            workloads.push(name.as_str());
        } else {
            return Err(PlanError::UnknownName(name.clone()));
        }
    }
    let takes_any = |e: &&Experiment| e.parts.iter().any(|p| p.programs.is_empty());
    if !workloads.is_empty() && !chosen.iter().any(takes_any) {
        chosen.extend(experiments::find(experiments::SWEEP));
    }
    if request.co_run && workloads.len() < 2 {
        return Err(PlanError::NoCompany);
    }
    Ok(Named {
        experiments: chosen,
        scripts,
        workloads,
    })
}

/// Does the part itself name this workload, or is this its company, as samples write it (`zipf+snappy`)?
fn names_it(part: &Part, workload: &str) -> bool {
    let mut names = part.programs.iter().map(|p| p.workload);
    if workload.contains('+') {
        return names.eq(workload.split('+'));
    }
    names.any(|name| name == workload)
}

/// Does the part run programs of the other one alone, for that to be compared with?
fn goes_with(part: &Part, other: &Part) -> bool {
    part.how == How::Alone
        && other.how != How::Alone
        && part.percents == other.percents
        && !part.programs.is_empty()
        && part.programs.iter().all(|p| other.programs.contains(p))
}

/// Whether this part of an experiment is asked for: all are unless `--with` names workloads, which says nothing of those
/// that were `named` by themselves. What a part is compared with comes with it.
fn is_asked_for(e: &Experiment, part: &Part, named: &[&str], request: &Request) -> bool {
    let is_of_named = part.programs.is_empty() && !named.is_empty();
    let is_named = |part: &Part| request.with.iter().any(|w| names_it(part, w));
    is_of_named
        || request.with.is_empty()
        || is_named(part)
        || e.parts.iter().any(|o| is_named(o) && goes_with(part, o))
}

/// The workloads of `--with` must be there, and each must run in what was asked for.
fn judge_with(request: &Request, named: &Named) -> Result<(), PlanError> {
    for workload in &request.with {
        let mut parts = named.experiments.iter().flat_map(|e| e.parts);
        let mut cases = named.scripts.iter().flat_map(|s| s.cases);
        if !parts.any(|p| names_it(p, workload)) && !cases.any(|c| c.workload == workload) {
            return Err(PlanError::NoPartWith(workload.clone()));
        }
    }
    Ok(())
}

/// Sets of a part.
fn sets_of(
    e: &Experiment,
    part: &Part,
    named: &[&str],
    all: &[Box<dyn Workload>],
    request: &Request,
) -> Vec<Set> {
    let members: Vec<Member> = match (part.programs.is_empty(), named.is_empty()) {
        (false, _) => part.programs.iter().map(member).collect(),
        (true, false) => named.iter().map(|n| plain(n)).collect(),
        (true, true) => all.iter().map(|w| plain(w.name())).collect(),
    };
    let first = part.variants.first().map(|b| resolve(*b));
    let beside = first.filter(|_| part.how == How::SideBySide);
    let mut variants = variants_of(part, request);
    variants.retain(|v| Some(v) != beside.as_ref());
    let set = |members: Vec<Member>| Set {
        experiment: e.name.to_owned(),
        members,
        variants: variants.clone(),
        beside: beside.clone(),
        // A part without limits is about having none.
        percents: match &request.percents {
            Some(asked) if !part.percents.is_empty() => asked.clone(),
            _ => part.percents.to_vec(),
        },
        repeats: request.repeats.unwrap_or(e.repeats),
        scale: request.scale.unwrap_or(e.scale),
    };
    let mut alone: Vec<Member> = Vec::new();
    if part.how != How::OnlyTogether {
        for m in members.iter().filter(|m| m.company.is_none()) {
            if !alone.contains(m) {
                alone.push(m.clone());
            }
        }
    }
    let mut sets: Vec<Set> = alone.into_iter().map(|m| set(vec![m])).collect();
    let alone_too = matches!(part.how, How::Alone | How::SideBySide);
    let co_run = !alone_too || (part.programs.is_empty() && request.co_run);
    if co_run {
        sets.push(set(members));
    }
    sets
}

/// Makes the plan. `missing` says why a variant cannot be had. An error is one sentence about what
/// was asked for.
pub fn make(
    request: &Request,
    all: &[Box<dyn Workload>],
    missing: impl Fn(&Variant) -> Option<String>,
) -> Result<Plan, PlanError> {
    let found = names(request, all)?;
    judge_with(request, &found)?;
    let Named {
        experiments: chosen,
        scripts,
        workloads: named,
    } = found;
    let own = match chosen[..] {
        [one] => one.time_max,
        // The time of one experiment says nothing about several.
        _ => None,
    };
    let mut plan = Plan {
        time_max: request.time_max.or(own),
        ..Plan::default()
    };
    for e in &chosen {
        plan.not_yet.extend(e.not_yet.iter().map(|sentence| NotYet {
            run_id: String::new(),
            experiment: e.name.to_owned(),
            waits_for: (*sentence).to_owned(),
        }));
        let is_asked_for = |part: &&Part| is_asked_for(e, part, &named, request);
        for part in e.parts.iter().filter(is_asked_for) {
            for set in sets_of(e, part, &named, all, request) {
                // A program that runs alone in two parts runs once.
                match plan.sets.iter_mut().find(|s| {
                    s.experiment == set.experiment
                        && s.members == set.members
                        && s.percents == set.percents
                        && s.beside == set.beside
                }) {
                    Some(same) => {
                        let new = set
                            .variants
                            .into_iter()
                            .filter(|v| !same.variants.contains(v));
                        let new: Vec<Variant> = new.collect();
                        same.variants.extend(new);
                    }
                    None => plan.sets.push(set),
                }
            }
        }
    }
    leave_out_variants(&mut plan, request, missing)?;
    leave_out_workloads(&mut plan, request, all, &named)?;
    for script in scripts {
        courses_of(&mut plan, script, request)?;
    }
    Ok(plan)
}

/// Whether the user asked for this case: all are unless `--with` and `--variants` name some.
fn is_case_asked_for(case: &script::Case, request: &Request) -> bool {
    let variant = case.variant();
    let same = |v: &Variant| discriminant(v) == discriminant(&variant);
    let by_variant = request
        .variants
        .as_ref()
        .is_none_or(|all| all.iter().any(same));
    by_variant && (request.with.is_empty() || request.with.iter().any(|w| w == case.workload))
}

/// Adds a script without the cases that were not asked for; an error when it cannot run here.
fn courses_of(
    plan: &mut Plan,
    script: &'static Script,
    request: &Request,
) -> Result<(), PlanError> {
    let asked = |c: &&script::Case| is_case_asked_for(c, request);
    let left_out = script.cases.iter().filter(|c| !asked(c));
    let course = Course {
        script,
        left_out: left_out.map(script::Case::words).collect(),
        repeats: request.repeats.unwrap_or(script.repeats),
        scale: request.scale.unwrap_or(script.scale),
    };
    if course.cases(0).is_empty() {
        let reason = format!("{}: none of its cases has these --variants", script.name);
        return Err(PlanError::NoVariantLeft(reason));
    }
    plan.scripts.push(course);
    Ok(())
}

/// Takes out scripts that cannot run here, and cases whose variant cannot be had; an error when nothing is left.
pub fn leave_out_scripts(plan: &mut Plan, request: &Request) -> Result<(), PlanError> {
    let had_some = !plan.scripts.is_empty();
    let mut first = None;
    let mut skip = |script: &Script, case: Option<&script::Case>, reason: String| {
        first.get_or_insert_with(|| format!("{}: {reason}", script.name));
        Skip {
            run_id: String::new(),
            experiment: script.name.to_owned(),
            workload: case.map(|c| c.workload.to_owned()),
            variant: case.map(script::Case::variant),
            reason,
        }
    };
    for course in &mut plan.scripts {
        let whole = course.script.missing();
        let whole = whole.or_else(|| canvas_missing(&request.canvas));
        if let Some(reason) = whole {
            plan.skips.push(skip(course.script, None, reason));
            course.left_out = course
                .script
                .cases
                .iter()
                .map(script::Case::words)
                .collect();
        }
        for case in course.cases(0) {
            if let Some(reason) = script::variant_missing(request, case) {
                plan.skips.push(skip(course.script, Some(case), reason));
                course.left_out.push(case.words());
            }
        }
    }
    plan.scripts.retain(|c| !c.cases(0).is_empty());
    match first {
        Some(reason) if had_some && plan.scripts.is_empty() && plan.sets.is_empty() => {
            Err(PlanError::NoVariantLeft(reason))
        }
        _ => Ok(()),
    }
}

/// Takes out what this host cannot do; an error when nothing is left of what was asked for.
fn leave_out_variants(
    plan: &mut Plan,
    request: &Request,
    missing: impl Fn(&Variant) -> Option<String>,
) -> Result<(), PlanError> {
    let mut kinds: Vec<(String, Variant)> = Vec::new();
    for set in &plan.sets {
        for v in &set.variants {
            let key = (set.experiment.clone(), v.clone());
            if !kinds.contains(&key) {
                kinds.push(key);
            }
        }
    }
    let had_sets = !plan.sets.is_empty();
    let mut reasons: Vec<(Variant, String)> = Vec::new();
    for (experiment, variant) in kinds {
        let known = reasons
            .iter()
            .find(|(v, _)| *v == variant)
            .map(|(_, r)| r.clone());
        let Some(reason) = known.or_else(|| missing(&variant)) else {
            continue;
        };
        for set in plan.sets.iter_mut().filter(|s| s.experiment == experiment) {
            set.variants.retain(|v| *v != variant);
        }
        plan.skips.push(Skip {
            run_id: String::new(),
            experiment,
            workload: None,
            variant: Some(variant.clone()),
            reason: reason.clone(),
        });
        reasons.push((variant, reason));
    }
    // Runs in memory alone compare with nothing: of what was asked for, something must be left.
    let asked_beyond_local = request
        .variants
        .as_ref()
        .is_none_or(|v| v.iter().any(|v| !v.is_local()));
    let beyond_local = |s: &Set| s.variants.iter().any(|v| !v.is_local());
    if had_sets
        && asked_beyond_local
        && !plan.sets.iter().any(beyond_local)
        && let Some((_, reason)) = reasons.into_iter().next()
    {
        return Err(PlanError::NoVariantLeft(reason));
    }
    plan.sets.retain(|s| !s.variants.is_empty());
    Ok(())
}

/// Takes out workloads that cannot run here; an error when the user named one of them, or when
/// nothing is left.
fn leave_out_workloads(
    plan: &mut Plan,
    request: &Request,
    all: &[Box<dyn Workload>],
    named: &[&str],
) -> Result<(), PlanError> {
    let had_sets = !plan.sets.is_empty();
    let mut first = None;
    let mut sets = Vec::new();
    for set in std::mem::take(&mut plan.sets) {
        let cannot = set.members.iter().find_map(|m| {
            let place = place(request, m.scale(set.scale), Path::new("/nonexistent"));
            let why = match registry::find(all, &m.workload) {
                Some(w) => w.missing(&place)?.into(),
                None => NotHere::NotBuilt,
            };
            Some((m.workload.clone(), why))
        });
        let Some((workload, why)) = cannot else {
            sets.push(set);
            continue;
        };
        let is_named = named.contains(&workload.as_str());
        let cannot = PlanError::CannotRun {
            workload: workload.clone(),
            why,
        };
        if is_named {
            return Err(cannot);
        }
        let skip = Skip {
            run_id: String::new(),
            experiment: set.experiment.clone(),
            workload: Some(workload),
            variant: None,
            reason: cannot.to_string(),
        };
        first.get_or_insert(cannot);
        if !plan.skips.contains(&skip) {
            plan.skips.push(skip);
        }
    }
    plan.sets = sets;
    match first {
        Some(cannot) if had_sets && plan.sets.is_empty() => Err(cannot),
        _ => Ok(()),
    }
}

/// Takes out cells whose programs need flags of `canvas run` that there are not. `missing` says why a
/// list of flags cannot be had.
pub fn leave_out_tenants(plan: &mut Plan, missing: impl Fn(&[String]) -> Option<String>) {
    for set in &mut plan.sets {
        let needs = |v: &Variant| {
            let of = |m: &Member| needed_flags(v.tenancy(), &m.tenant_flags);
            let mut each = set.members.iter().map(of).filter(|f| !f.is_empty());
            each.find_map(|flags| missing(&flags))
        };
        let reasons: Vec<Option<String>> = set.variants.iter().map(needs).collect();
        let names: Vec<&str> = set.members.iter().map(|m| m.workload.as_str()).collect();
        for (variant, reason) in set.variants.iter().zip(&reasons) {
            let Some(reason) = reason else {
                continue;
            };
            // One line for all programs that lack the same.
            let same = plan.skips.iter_mut().find(|s| {
                s.experiment == set.experiment
                    && s.variant.as_ref() == Some(variant)
                    && s.reason == *reason
            });
            match same.and_then(|s| s.workload.as_mut()) {
                Some(others) => *others += &format!(", {}", names.join("+")),
                None => plan.skips.push(Skip {
                    run_id: String::new(),
                    experiment: set.experiment.clone(),
                    workload: Some(names.join("+")),
                    variant: Some(variant.clone()),
                    reason: reason.clone(),
                }),
            }
        }
        let mut kept = reasons.iter().map(Option::is_none);
        set.variants.retain(|_| kept.next().unwrap_or(true));
    }
    plan.sets.retain(|s| !s.variants.is_empty());
}

/// Why `canvas run` does not take these flags.
pub fn flags_missing(canvas: &Path, flags: &[String]) -> Option<String> {
    // A flag that is not known is an error before help is given, and a word would be a program, which
    // is not found.
    let out = Command::new(canvas)
        .env("PATH", "/nonexistent")
        .arg("run")
        .args(flags)
        .arg("--help")
        .output();
    match out {
        Ok(out) if out.status.success() => None,
        Ok(_) => Some(format!(
            "this canvas shares nothing out between tenants (`canvas run` does not take {})",
            flags.join(" ")
        )),
        Err(e) => Some(format!("{} cannot be run: {e}", canvas.display())),
    }
}

/// Where things of a run go.
pub fn place(request: &Request, scale: f64, scratch: &Path) -> Place {
    Place {
        cache: request.cache.clone(),
        scratch: scratch.to_owned(),
        scale,
        seed: request.seed,
        canvas: request.canvas.clone(),
        lab: request.lab.clone(),
        huge_pages: false,
    }
}

/// Why a variant cannot be had on this host.
pub fn missing_here(request: &Request, variant: &Variant) -> Option<String> {
    match variant {
        Variant::Canvas(_) | Variant::CanvasFar(_) => {
            let link = || variant.link().and_then(net::missing);
            let disk = || {
                variant.disk_reads_per_s()?;
                throttle::missing(&request.cache)
            };
            canvas_missing(&request.canvas)
                .or_else(|| link().map(|e| e.to_string()))
                .or_else(|| disk().map(|e| e.to_string()))
        }
        _ => swap::missing(variant, &request.cache).map(|e| e.to_string()),
    }
}

/// Why `canvas run` works in no mode here, as its doctor says.
fn canvas_missing(canvas: &Path) -> Option<String> {
    let out = match Command::new(canvas).args(["doctor", "--json"]).output() {
        Ok(out) => out,
        Err(e) => return Some(format!("{} cannot be run: {e}", canvas.display())),
    };
    let v: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
    if v["library_bytes"] == 0 && std::env::var_os("CANVAS_PRELOAD_SO").is_none() {
        return Some("this canvas was built without its library; build it again".to_owned());
    }
    let why = || {
        v["why"]
            .as_str()
            .unwrap_or("canvas doctor does not answer")
            .to_owned()
    };
    (v["ok"] != true).then(why)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
