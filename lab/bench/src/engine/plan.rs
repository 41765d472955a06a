//! Turns a request into the cells to run. Changes nothing on the host.

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

/// A request from the command line; `None` leaves the choice to the experiment.
#[derive(Clone, Debug)]
pub struct Request {
    /// Names of experiments and workloads.
    pub names: Vec<String>,
    /// Runs only parts of experiments with one of these workloads; empty: all parts.
    pub with: Vec<String>,
    /// Variants to run; canvas without flags stands for canvas with each of `canvas_flags`.
    pub variants: Option<Vec<Variant>>,
    /// Flags of `canvas run` to compare; may be empty.
    pub canvas_flags: Vec<Vec<String>>,
    /// Links between this host and the donors, for far variants without a link of their own; may be empty.
    pub far_links: Vec<Link>,
    /// Local memory in percent of the working set.
    pub percents: Option<Vec<u32>>,
    /// Whether the named workloads run at the same time.
    pub co_run: bool,
    /// Repeats of each cell.
    pub repeats: Option<u32>,
    /// Size of the workloads.
    pub scale: Option<f64>,
    /// Time after which nothing more is started.
    pub time_max: Option<Duration>,
    /// Seed of all generated data.
    pub seed: u64,
    /// Path of the results file.
    pub out: PathBuf,
    /// Directory of downloads and generated data.
    pub cache: PathBuf,
    /// The `canvas` command.
    pub canvas: PathBuf,
    /// The `lab` command.
    pub lab: PathBuf,
    /// Command line of the bench.
    pub argv: Vec<String>,
    /// Version of the `canvas` command.
    pub canvas_version: String,
    /// Command that calls [`crate::host::undo::guard`]; the journal's path is appended.
    pub guardian: Vec<std::ffi::OsString>,
    /// Command that calls [`crate::host::slow_disk::server::run`]; a path and a number of bytes are appended.
    pub disk_server: Vec<std::ffi::OsString>,
}

/// One program of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Name of the workload.
    pub workload: String,
    /// Arguments appended to those of the program.
    pub args: Vec<String>,
    /// Parameters for the results.
    pub parameters: BTreeMap<String, String>,
    /// Flags of `canvas run` if the program is a tenant of its own.
    pub tenant_flags: Vec<String>,
    /// Set for company: further arguments, with which the program runs until the others have ended.
    pub company: Option<Vec<String>>,
    /// Size that the ratio refers to, in bytes, if not the working set.
    pub ratio_of_bytes: Option<u64>,
    /// Factor on the size that the scale gives.
    pub larger: Option<u32>,
    /// Whether its whole cell runs on one processor.
    pub one_processor: bool,
}

impl Member {
    /// Scale of its workload in a set of scale `scale`.
    pub fn scale(&self, scale: f64) -> f64 {
        scale * f64::from(self.larger.unwrap_or(1))
    }
}

/// Programs of an experiment that run together (or one alone), with their variants.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    /// Name of the experiment.
    pub experiment: String,
    /// The programs.
    pub members: Vec<Member>,
    /// Variants in the order of the experiment; rotated from repeat to repeat.
    pub variants: Vec<Variant>,
    /// Local memory in percent of the working set; if empty, no cell has a limit.
    pub percents: Vec<u32>,
    /// Repeats.
    pub repeats: u32,
    /// Size of the workloads.
    pub scale: f64,
    /// For side-by-side comparisons: the variant that runs at the same time on another processor.
    pub beside: Option<Variant>,
}

/// A cell: a set under one variant at one ratio.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell<'a> {
    /// The set.
    pub set: &'a Set,
    /// The variant.
    pub variant: &'a Variant,
    /// Local memory; `None` without a limit.
    pub percent: Option<u32>,
}

impl Set {
    /// Whether the cells run on one processor.
    pub fn is_on_one_processor(&self) -> bool {
        self.members.iter().any(|m| m.one_processor)
    }

    /// All cells of the set, without repeats.
    pub fn places(&self) -> Vec<Cell<'_>> {
        let mut places: Vec<Cell<'_>> = Vec::new();
        for repeat in 0..self.repeats.min(1) {
            places.extend(self.cells(repeat));
        }
        places
    }

    /// The cells of one repeat in order: all variants at each ratio. Each repeat begins with another variant.
    pub fn cells(&self, repeat: u32) -> Vec<Cell<'_>> {
        let n = self.variants.len();
        let rotated = |i: usize| &self.variants[(i + repeat as usize) % n];
        let cell = |variant, percent| Cell {
            set: self,
            variant,
            percent,
        };
        // Without a limit there is only one cell, which runs at one of the ratios.
        let home = repeat as usize % self.percents.len().max(1);
        let mut cells = Vec::new();
        if self.percents.is_empty() {
            // The other variants need a limit.
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

/// A script with the cases to run.
#[derive(Clone, Debug)]
pub struct Course {
    /// The script.
    pub script: &'static Script,
    /// Descriptions of the cases left out.
    pub left_out: Vec<String>,
    /// Number of repeats.
    pub repeats: u32,
    /// Size of the workloads.
    pub scale: f64,
}

impl Course {
    /// The cases of a repeat in order.
    pub fn cases(&self, repeat: u32) -> Vec<&'static script::Case> {
        let mut cases = self.script.cases(repeat);
        cases.retain(|c| !self.left_out.contains(&c.words()));
        cases
    }
}

/// What will run, and what will not with the reasons.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Sets to run, in order.
    pub sets: Vec<Set>,
    /// Scripts to run after the sets.
    pub scripts: Vec<Course>,
    /// What is left out.
    pub skips: Vec<Skip>,
    /// Features that canvas does not have yet.
    pub not_yet: Vec<NotYet>,
    /// Time after which nothing more is started.
    pub time_max: Option<Duration>,
}

/// The variant of a kind, without flags from the command line.
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

/// The variant of a kind, with a description.
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

/// Variants of a part for this request.
fn variants_of(part: &Part, request: &Request) -> Vec<Variant> {
    let base: Vec<Variant> = match &request.variants {
        Some(asked) => {
            // The experiment's own variants of a kind stay, since they are its subject.
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

/// The variant over each of the requested links, if it uses donors and its experiment sets no link.
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

/// Parameter that marks runs on one processor in the results.
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

/// Owned copies of flags.
pub(crate) fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|w| (*w).to_owned()).collect()
}

/// Names of a request, resolved.
struct Named<'a> {
    experiments: Vec<&'static Experiment>,
    scripts: Vec<&'static Script>,
    workloads: Vec<&'a str>,
}

/// Sorts names into experiments, scripts and workloads.
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

/// Whether the part names this workload, or company as samples write it (`zipf+snappy`).
fn names_it(part: &Part, workload: &str) -> bool {
    let mut names = part.programs.iter().map(|p| p.workload);
    if workload.contains('+') {
        return names.eq(workload.split('+'));
    }
    names.any(|name| name == workload)
}

/// Whether the part runs programs of `other` alone, as a baseline for it.
fn goes_with(part: &Part, other: &Part) -> bool {
    part.how == How::Alone
        && other.how != How::Alone
        && part.percents == other.percents
        && !part.programs.is_empty()
        && part.programs.iter().all(|p| other.programs.contains(p))
}

/// Whether the request includes this part of an experiment: all parts unless `--with` names workloads, except
/// those that were `named` by themselves. A part comes with its baselines.
fn is_asked_for(e: &Experiment, part: &Part, named: &[&str], request: &Request) -> bool {
    let is_of_named = part.programs.is_empty() && !named.is_empty();
    let is_named = |part: &Part| request.with.iter().any(|w| names_it(part, w));
    is_of_named
        || request.with.is_empty()
        || is_named(part)
        || e.parts.iter().any(|o| is_named(o) && goes_with(part, o))
}

/// Checks that the workloads of `--with` exist and that each runs in the request.
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

/// The sets of a part.
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
        // A part without limits has none whatever the request says.
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

/// Makes the plan. `missing` returns the reason why a variant cannot run here. Fails with one sentence if the
/// request is invalid or nothing of it can run.
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
        // The time limit of one experiment does not hold for several.
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
                // A program that runs alone in two parts runs only once.
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

/// Whether the request includes this case: all cases unless `--with` or `--variants` name some.
fn is_case_asked_for(case: &script::Case, request: &Request) -> bool {
    let variant = case.variant();
    let same = |v: &Variant| discriminant(v) == discriminant(&variant);
    let by_variant = request
        .variants
        .as_ref()
        .is_none_or(|all| all.iter().any(same));
    by_variant && (request.with.is_empty() || request.with.iter().any(|w| w == case.workload))
}

/// Adds a script without the cases not requested. Fails if it cannot run here.
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

/// Removes scripts that cannot run here, and cases whose variant cannot. Fails if nothing is left.
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

/// Removes variants that this host cannot run. Fails if nothing of the request is left.
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
    // All-local runs alone compare with nothing: another requested variant must be left.
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

/// Removes workloads that cannot run here. Fails if the user named one of them, or nothing is left.
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

/// Removes cells whose programs need flags that `canvas run` does not have. `missing` returns the reason why
/// a list of flags cannot be used.
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
            // One line for all programs that lack the same flags.
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

/// Reason why `canvas run` does not accept these flags.
pub fn flags_missing(canvas: &Path, flags: &[String]) -> Option<String> {
    // An unknown flag is an error even before --help; any other word would be taken for a program, which does
    // not exist.
    let out = Command::new(canvas)
        .env("PATH", "/nonexistent")
        .arg("run")
        .args(flags)
        .arg("--help")
        .output();
    match out {
        Ok(out) if out.status.success() => None,
        Ok(_) => Some(format!(
            "this canvas cannot divide resources among tenants (`canvas run` does not accept {})",
            flags.join(" ")
        )),
        Err(e) => Some(format!("{} cannot be run: {e}", canvas.display())),
    }
}

/// Directories and parameters of a run.
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

/// Reason why a variant cannot run on this host.
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

/// Reason, from `canvas doctor`, why `canvas run` works in no mode here.
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
