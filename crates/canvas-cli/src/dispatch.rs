//! `canvas dispatch`: runs a program in a suitable tenant ([`canvas_place::dispatch`] decides),
//! with settings that follow from its earlier runs ([`past`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use canvas_agent::daemon::socket::path_to_ask;
use canvas_control::hello::{Offers, Take, VERSION, Wanted};
use canvas_control::names::name_of;
use canvas_control::wire::{Ask, Reply, Status};
use canvas_place::dispatch::{Free, Host, Known, Online, SPEED, Settings, Step, settings, steps};
use canvas_place::replicas::Policy;
use canvas_runner::Ended;
use canvas_runner::join::{self, Begun, Joined, Start};
use canvas_runner::options::{HostOptions, Options};
use canvas_shm::far::{SLAB_BYTES, SLABS_MAX};
use canvas_types::exit;
use canvas_types::slo::Slo;
use canvas_types::units::{Amount, Size};
use serde::Serialize;

use crate::args::{Command, DispatchArgs, RunArgs};
use crate::config::{self, Wrong};
use crate::control::client::Runs;
use crate::error::{Failure, parser_answer, say};
use crate::options::Places;
use crate::table::{Bytes, plain, print};
use crate::tune::spare_bytes;
use crate::{joined_flags, options, run};
use canvas_control::settings::table::*;
use canvas_control::settings::{
    Command as Owner, Destination, OPTIONS_VARIABLE, Setting, settings_of,
};
use past::{Key, Past, Record};

mod past;

/// Most time for a run to report its status: a stopped run is not waited for.
const LOOK: Duration = Duration::from_millis(500);

/// A tenant with running programs.
struct Running {
    name: String,
    /// Identifies the tenant; equal for all its runs.
    id: String,
}

/// Output of `--dry-run`.
#[derive(Serialize, Debug)]
struct Told {
    schema: &'static str,
    program: String,
    /// Number of recorded runs.
    runs: u64,
    need_bytes: Option<u64>,
    local_bytes: u64,
    pool_bytes: Option<u64>,
    far_bytes: u64,
    copies: String,
    /// `join`, `prepared`, `switch` or `new`.
    tenant: &'static str,
    /// The tenant to join.
    name: Option<String>,
    /// Socket of the host's agent.
    agent: Option<PathBuf>,
    why: String,
}

/// Input of the decision.
struct Case {
    /// The run's flags from the environment.
    args: RunArgs,
    agent: Option<PathBuf>,
    record: Option<Record>,
    settings: Settings,
    far_bytes: u64,
    online: Vec<Online>,
    running: Vec<Running>,
    /// Copies of the prepared tenants.
    free: Vec<Policy>,
}

/// Runs CMD, or prints the decision.
pub fn run(args: &DispatchArgs) -> Result<i32, Failure> {
    dispatched(args).map_err(|failure| Failure {
        sentence: with_variables(&failure.sentence),
        ..failure
    })
}

/// A sentence about flags of `canvas run`, rewritten for the variables that replace them here.
fn with_variables(sentence: &str) -> String {
    let flags = settings_of(Owner::Run).filter(|row| row.is_flag_of(Owner::Run));
    let written = |row: &Setting| match row.variable {
        Some(variable) => variable.to_owned(),
        None => format!("{} in {OPTIONS_VARIABLE}", row.name),
    };
    let variables: BTreeMap<String, String> = flags
        .map(|row| (format!("--{}", row.name), written(row)))
        .collect();
    let is_flags = |c: char| c == '-' || c.is_ascii_alphanumeric();
    let ends = sentence.match_indices(|c| !is_flags(c)).map(|(at, _)| at);
    let (mut out, mut from) = (String::new(), 0);
    for end in ends.chain([sentence.len()]) {
        let word = &sentence[from..end];
        out += variables.get(word).map_or(word, String::as_str);
        let after = sentence[end..].chars().next().map_or(0, char::len_utf8);
        out += &sentence[end..end + after];
        from = end + after;
    }
    out
}

fn dispatched(args: &DispatchArgs) -> Result<i32, Failure> {
    let name = args.command[0].clone();
    let file = canvas_runner::find(&name, std::env::var_os("PATH").as_deref())?;
    let key = Key::of(&file, &args.command);
    let Some(flags) = run_flags(args)? else {
        return Ok(exit::RUN_FAILED);
    };
    let past = Past::own();
    let record = match past.as_ref().map(|p| p.of(&key)) {
        Ok(Ok(record)) => record,
        Ok(Err(why)) => {
            ignored(&why);
            None
        }
        Err(why) => {
            ignored(why);
            None
        }
    };
    let case = case(args, flags, record)?;
    if args.dry_run {
        let told = told(&case, &name_of(Path::new(&name)));
        let text = match args.json {
            true => serde_json::to_string_pretty(&told).unwrap_or_default() + "\n",
            false => sentences(&told),
        };
        print(&text);
        return Ok(exit::OK);
    }
    let ended = go(&case)?;
    if let (exit::OK, Some(learned), Ok(past)) = (ended.code, &ended.learned, &past)
        && let Err(why) = past.note(&key, learned)
    {
        say(format_args!("this run is not recorded: {why}"));
    }
    Ok(ended.code)
}

fn ignored(why: &past::PastError) {
    say(format_args!("earlier runs are ignored: {why}"));
}

/// The flags of `canvas run` from the environment; `None` if they are invalid, which is reported.
fn run_flags(args: &DispatchArgs) -> Result<Option<RunArgs>, Failure> {
    let words = ["canvas", "run", "--"].map(Into::into).into_iter();
    let argv: Vec<_> = words.chain(args.command.iter().cloned()).collect();
    let flags = match config::parse(&argv) {
        Err(Wrong::Arguments(e)) => {
            parser_answer(&e, &argv);
            return Ok(None);
        }
        Err(Wrong::File(failure)) => return Err(failure),
        Ok(cli) => match cli.command {
            Command::Run(flags) => flags,
            _ => return Err(Failure::run("the command line is not that of a run")),
        },
    };
    if flags.settings.has(TENANT) {
        return Err(Failure::run(
            "CANVAS_TENANT names a tenant, and canvas dispatch chooses one; unset it, or use canvas run",
        ));
    }
    Ok(Some(flags))
}

/// Socket of the host's agent, if it is to be used.
fn agent_of(args: &DispatchArgs, flags: &RunArgs) -> Result<Option<PathBuf>, Failure> {
    if let Some(path) = &args.socket {
        return Ok(Some(path.clone()));
    }
    let to = Places::of(&flags.settings);
    if let Some(Some(path)) = to.agent {
        return Ok(Some(path));
    }
    let path = path_to_ask();
    // These settings need a tenant of the run's own.
    let is_own = to.has_donors() || !to.dirs.is_empty() || flags.settings.has(SHARED);
    let is_there = to.agent.is_some() || !is_own && path.exists();
    Ok(is_there.then_some(path))
}

/// Collects the input of the decision.
fn case(args: &DispatchArgs, flags: RunArgs, record: Option<Record>) -> Result<Case, Failure> {
    let agent = agent_of(args, &flags)?;
    let offers = match &agent {
        Some(path) => join::offers(path)?,
        None => own_offers(&flags)?,
    };
    let host = host(&offers);
    let known = record.as_ref().map(Record::known);
    let mut settings = settings(known.as_ref(), &host);
    wishes(&mut settings, &flags);
    let far_bytes = far_bytes(&flags, known.as_ref(), offers.slabs);
    let (mut online, mut running) = (Vec::new(), Vec::new());
    // A program whose need is unknown, or given as a share, gets its own tenant.
    let is_size = !matches!(flags.settings.get(LOCAL), Some(Amount::Share(_)));
    if agent.is_some() && is_size && settings.need_bytes.is_some() {
        (online, running) = look(host.spare_bytes).into_iter().unzip();
    }
    Ok(Case {
        args: flags,
        agent,
        record,
        settings,
        far_bytes,
        online,
        running,
        free: offers.prepared.into_iter().map(Policy::from).collect(),
    })
}

/// Offers of a run's own agent.
fn own_offers(flags: &RunArgs) -> Result<Offers, Failure> {
    let given = &flags.settings;
    let to = Places::of(given);
    let has_seeds = !to.gossip.is_empty();
    let servers = options::donors(&to.donors, given.has(KEY_FILE))?;
    Ok(Offers {
        version: VERSION,
        copies: options::policy(given.get(COPIES), servers.len(), has_seeds)?.into(),
        has_donors: !servers.is_empty() || has_seeds,
        has_disk: true,
        slabs: SLABS_MAX,
        prepared: Vec::new(),
    })
}

fn host(offers: &Offers) -> Host {
    let usable_bytes = canvas_runner::host_memory().usable_bytes;
    let spare = spare_bytes().unwrap_or(usable_bytes);
    Host {
        spare_bytes: spare.min(usable_bytes),
        pool_bytes_max: usable_bytes / 2,
        copies: offers.copies.into(),
        has_donors: offers.has_donors,
        has_disk: offers.has_disk,
    }
}

/// Applies the user's settings, which win.
fn wishes(settings: &mut Settings, flags: &RunArgs) {
    let given = &flags.settings;
    if let Some(copies) = given.get(COPIES) {
        settings.copies = copies;
        settings.why = "CANVAS_OPTIONS says so".to_owned();
    }
    if let Some(Amount::Size(size)) = given.get(LOCAL) {
        settings.local_bytes = size.bytes;
        settings.need_bytes = settings.need_bytes.map(|_| size.bytes);
    }
    settings.pool_bytes = given.get(POOL).map(|p| p.bytes).or(settings.pool_bytes);
}

/// Far memory of a new tenant: a quarter more than its whole footprint so far, or as much as this
/// host's memory.
fn far_bytes(flags: &RunArgs, known: Option<&Known>, slabs: usize) -> u64 {
    let slab = SLAB_BYTES as u64;
    let all = known.map(|k| k.footprint_bytes).filter(|bytes| *bytes > 0);
    let wanted = match (flags.settings.get(FAR), all) {
        (Some(far), _) => return far.bytes,
        (None, Some(all)) => all.saturating_add(all / 4),
        (None, None) => canvas_runner::host_memory().ram_bytes,
    };
    let most = slabs.clamp(1, SLABS_MAX) as u64;
    wanted.div_ceil(slab).clamp(1, most) * slab
}

/// This user's tenants with running programs that another one could join.
fn look(spare_bytes: u64) -> Vec<(Online, Running)> {
    let runs = Runs::look();
    let mut found: Vec<(Online, Running)> = Vec::new();
    for run in runs.find(None).iter().filter(|run| runs.is_own(run)) {
        let Ok(Reply::Status(status)) = runs.ask_within(run, Ask::Status, LOOK) else {
            continue;
        };
        let Some((online, running)) = joinable(&status, spare_bytes) else {
            continue;
        };
        if found.iter().all(|(_, r)| r.id != running.id) {
            found.push((online, running));
        }
    }
    found
}

/// A run's tenant, if another program can join it.
fn joinable(status: &Status, spare_bytes: u64) -> Option<(Online, Running)> {
    let (limits, used) = (&status.limits, &status.used);
    status.mode.as_ref()?;
    let id = status.shared.clone()?;
    let copies = limits.copies.as_deref().and_then(Policy::named)?;
    let room = limits.local_bytes?.saturating_sub(used.local_bytes);
    let online = Online {
        copies,
        room_bytes: room.min(spare_bytes),
    };
    let name = status.tenant.clone();
    Some((online, Running { name, id }))
}

/// Tries one option after the other until one accepts CMD, and waits for CMD's end.
fn go(case: &Case) -> Result<Ended, Failure> {
    for step in steps(&case.settings, &case.online, &case.free) {
        let ended = match step {
            Step::Join(at) => joined(case, &case.running[at])?,
            Step::Take(_) => prepared(case)?,
            Step::New => None,
        };
        if let Some(ended) = ended {
            return Ok(ended);
        }
    }
    let mut flags = own_flags(case);
    // At an agent, the tenant needs a unique name.
    if case.agent.is_some() {
        let [number] = canvas_sys::proc::random().unwrap_or([std::process::id().into()]);
        let name = format!("dispatched-{:08x}", number as u32);
        flags.settings.put(TENANT, &name);
    }
    run::until_it_ends(&flags, true)
}

/// Runs CMD in an existing tenant; `None` if that does not accept it.
fn joined(case: &Case, there: &Running) -> Result<Option<Ended>, Failure> {
    let Some(path) = case.agent.clone() else {
        return Ok(None);
    };
    let host = HostOptions {
        path: path.clone(),
        name: there.name.clone(),
        is_named: true,
    };
    // The tenant has ended, was replaced by another, or accepts no more runs.
    let Ok(Begun::Joined(joined)) = join::begin(host) else {
        return Ok(None);
    };
    if joined.id().as_ref() != Some(&there.id) {
        return Ok(None);
    }
    let mut flags = case.args.clone();
    let agent = Destination::Agent(Some(path));
    flags.settings.put(TO, &vec![agent]);
    flags.settings.put(TENANT, &there.name);
    let Ok(flags) = joined_flags::fill(&joined, flags) else {
        return Ok(None);
    };
    let options = options::of_run(&flags, canvas_runner::host_memory())?;
    Ok(canvas_runner::run(&options, Start::Joined(joined))?)
}

/// Runs CMD in a prepared tenant; `None` if none is available.
fn prepared(case: &Case) -> Result<Option<Ended>, Failure> {
    let Some(path) = &case.agent else {
        return Ok(None);
    };
    let mut options = options::of_run(&own_flags(case), canvas_runner::host_memory())?;
    let Some(joined) = take(path, case, &options) else {
        return Ok(None);
    };
    options.tenant = Some(joined.host.name.clone());
    options.learns = true;
    Ok(canvas_runner::run(&options, Start::Prepared(joined))?)
}

fn take(path: &Path, case: &Case, options: &Options) -> Option<Joined> {
    let far = options.far.as_ref()?;
    let take = Take {
        version: VERSION,
        slabs: far.slabs,
        copies: Some(Wanted::from(case.settings.copies)),
        pool_bytes: options.pool.bytes,
        asked: far.asked,
    };
    // If the agent refuses here, it refuses a new tenant, too, and gives the reason there.
    join::take(path, take).ok()?
}

/// The flags of a run in a new tenant.
fn own_flags(case: &Case) -> RunArgs {
    let settings = &case.settings;
    let mut flags = case.args.clone();
    let given = &mut flags.settings;
    if !given.has(LOCAL) {
        let local = Size::from_bytes(settings.local_bytes);
        given.put(LOCAL, &Amount::Size(local));
    }
    match settings.pool_bytes {
        Some(bytes) => given.put(POOL, &Size::from_bytes(bytes)),
        None => given.remove(POOL),
    }
    given.put(FAR, &Size::from_bytes(case.far_bytes));
    given.put(COPIES, &settings.copies);
    if let Some(path) = &case.agent {
        given.put(TO, &vec![Destination::Agent(Some(path.clone()))]);
    }
    if !given.has(SLO) {
        let ppm = ((1.0 - SPEED) * 1e6).round();
        given.put(SLO, &Slo::Slowdown(ppm as u32));
    }
    flags
}

fn told(case: &Case, program: &str) -> Told {
    let settings = &case.settings;
    let steps = steps(settings, &case.online, &case.free);
    let (tenant, name) = match steps.first() {
        Some(Step::Join(at)) => ("join", Some(case.running[*at].name.clone())),
        Some(Step::Take(Free::Same(_))) => ("prepared", None),
        Some(Step::Take(Free::Switch(_))) => ("switch", None),
        Some(Step::New) | None => ("new", None),
    };
    Told {
        schema: "canvas-dispatch/1",
        program: program.to_owned(),
        runs: case.record.as_ref().map_or(0, |r| r.runs),
        need_bytes: settings.need_bytes,
        local_bytes: settings.local_bytes,
        pool_bytes: settings.pool_bytes,
        far_bytes: case.far_bytes,
        copies: settings.copies.to_string(),
        tenant,
        name,
        agent: case.agent.clone(),
        why: settings.why.clone(),
    }
}

/// The decision as sentences for users.
fn sentences(t: &Told) -> String {
    let place = match (t.tenant, &t.name) {
        ("join", Some(name)) => format!("would join tenant {}", plain(name)),
        ("prepared", _) => "would get a prepared tenant".to_owned(),
        ("switch", _) => "would get a prepared tenant, whose copies are switched".to_owned(),
        _ => "would get a new tenant".to_owned(),
    };
    let local = match t.need_bytes {
        Some(need) if need > t.local_bytes => format!(
            "{} of the {} of local memory that it needs, because there is no more to spare",
            Bytes(t.local_bytes),
            Bytes(need)
        ),
        Some(need) => format!("the {} of local memory that it needs", Bytes(need)),
        None => format!(
            "{} of local memory, which can be spared",
            Bytes(t.local_bytes)
        ),
    };
    format!(
        "{} {place} with copies={} ({}) and {local}.\n",
        plain(&t.program),
        t.copies,
        t.why,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sentence_says_of_flags_it_says_of_variables() {
        for (sentence, want) in [
            (
                "--to without --far has no effect; write --far too",
                "to in CANVAS_OPTIONS without CANVAS_FAR has no effect; write CANVAS_FAR too",
            ),
            (
                "--socket /x: \u{e4}, (--local)",
                "--socket /x: \u{e4}, (CANVAS_LOCAL)",
            ),
            ("--to-nowhere", "--to-nowhere"),
            ("", ""),
        ] {
            assert_eq!(with_variables(sentence), want);
        }
    }
}
