//! Runs one program of a cell once, and returns a sample.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use canvas_shm::far::EXTENT_BYTES;

use super::child::{Child, Ended};
use super::donors::{DONORS, Death, Donors};
use super::error::BenchError;
use super::tcp;
use crate::canvas_report;
use crate::host::cgroup::{Controller, Group};
use crate::host::net::Network;
use crate::host::senpai::Senpai;
use crate::host::swap::Swap;
use crate::host::throttle;
use crate::host::turns::Side;
use crate::host::undo::Undo;
use crate::record::{Far, Outcome, Sample};
use crate::sampler::{Sampler, Watch, merge_rates};
use crate::variant::{FarBelow, Variant};
use crate::workload::{Answer, Argv, Place, Plan, Workload};

/// Timeout of a server's start, and of its end.
const SERVER_START: Duration = Duration::from_secs(120);
const SERVER_END: Duration = Duration::from_secs(60);
const COMPANY_END: Duration = Duration::from_secs(20);
/// Memory of the agent, and of the segment it shares with the program, within the backstop limit.
const AGENT_BYTES: u64 = 256 << 20;
/// Approximate maximum of the memory per page beyond the pool, with its hash and tag.
const PAGE_BYTES: u64 = 4096 + 32;
/// Extra time of a program whose donors are behind a link.
const OVER_A_LINK: Duration = Duration::from_secs(600);
const A_DAY: Duration = Duration::from_secs(86_400);
/// Interval of the timeline.
const TICK: Duration = Duration::from_millis(250);

/// State shared by the programs of a run.
pub struct Context<'a> {
    /// Journal of all changes to the host.
    pub undo: &'a Arc<Undo>,
    /// The memory controller, if one can be used.
    pub controller: Option<&'a Controller>,
    /// Number of the signal that asks to stop, or 0.
    pub stop: &'a AtomicUsize,
    /// The `canvas` command.
    pub canvas: &'a Path,
    /// Time at which the run began.
    pub began: Instant,
    /// End of the run's time limit, which also ends programs.
    pub until: Option<Instant>,
}

/// What to run, and how.
pub struct Job<'a> {
    /// The workload.
    pub workload: &'a dyn Workload,
    /// Arguments appended to those of the workload's program.
    pub args: &'a [String],
    /// The variant.
    pub variant: &'a Variant,
    /// Limit on local memory; `None` for no limit.
    pub limit_bytes: Option<u64>,
    /// For canvas: size of the pool.
    pub pool_bytes: u64,
    /// For canvas over donors: size of the far memory.
    pub far_bytes: u64,
    /// Network namespace of the donors, behind a link; `None` for this host's network.
    pub network: Option<&'a Network>,
    /// Flags for an agent shared with other programs; without them the program has its own agent and donors.
    pub shared: Option<Vec<String>>,
    /// Set for company: the number of other programs still running; at 0 the company is ended.
    pub company: Option<&'a AtomicUsize>,
    /// Whether no other program runs at the same time.
    pub alone: bool,
    /// Swap used by this program alone; `None` in a co-run.
    pub swap: Option<&'a Swap>,
    /// Whether the kernel may swap the program.
    pub may_swap: bool,
    /// Directories of its files.
    pub place: Place,
    /// Number of the run, unique within the bench.
    pub number: u32,
    /// Interval at which its memory is sampled.
    pub look_every: Duration,
    /// Side of a program that swaps processors with another one.
    pub side: Option<&'a Side>,
    /// Answer of the local run.
    pub expected: Option<&'a str>,
}

/// The signal that asked the bench to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped(pub i32);

/// Reason why a program's run, or the bench's, ended early.
#[derive(Debug)]
pub enum Fail {
    /// An error.
    Error(BenchError),
    /// Stopped by this signal.
    Stopped(i32),
}

impl<E: Into<BenchError>> From<E> for Fail {
    fn from(error: E) -> Fail {
        Fail::Error(error.into())
    }
}

impl From<Stopped> for Fail {
    fn from(stopped: Stopped) -> Fail {
        Fail::Stopped(stopped.0)
    }
}

/// Reason why waiting for a process ended before the process did.
enum Cut {
    Stopped(i32),
    Timeout,
    Oom,
    /// The process was company, and the other programs have ended.
    NobodyLeft,
}

enum End {
    Ended(Ended),
    Cut(Cut),
}

/// A running program: its processes and its monitors.
struct Running<'a> {
    context: &'a Context<'a>,
    group: Option<&'a Group>,
    sampler: Sampler<'a>,
    look_every: Duration,
    deadline: Instant,
    company: Option<&'a AtomicUsize>,
    side: Option<&'a Side>,
}

impl Running<'_> {
    /// Waits for `child`, and samples the program's memory meanwhile.
    fn wait(&mut self, child: &mut Child) -> End {
        loop {
            if let Some(ended) = child.wait(self.look_every) {
                return End::Ended(ended);
            }
            if let Some(cut) = self.look() {
                return End::Cut(cut);
            }
        }
    }

    fn look(&mut self) -> Option<Cut> {
        self.sampler.sample();
        match self.context.stop.load(Ordering::Relaxed) {
            0 => {}
            signal => return Some(Cut::Stopped(signal as i32)),
        }
        if self.group.is_some_and(|g| g.oom_kills() > 0) {
            return Some(Cut::Oom);
        }
        if self
            .company
            .is_some_and(|left| left.load(Ordering::Relaxed) == 0)
        {
            return Some(Cut::NobodyLeft);
        }
        (Instant::now() > self.deadline).then_some(Cut::Timeout)
    }
}

/// Command line of `canvas run` for a program.
fn under_canvas(
    job: &Job,
    context: &Context,
    flags: &[String],
    command: &Argv,
    stats: &Path,
) -> Argv {
    let mut argv = vec![
        context.canvas.to_string_lossy().into_owned(),
        "run".to_owned(),
    ];
    argv.extend(flags.iter().cloned());
    if let Some(limit) = job.limit_bytes {
        argv.extend(["--local".to_owned(), limit.to_string()]);
        argv.extend(["--pool".to_owned(), job.pool_bytes.to_string()]);
    }
    argv.extend(["--stats".to_owned(), stats.to_string_lossy().into_owned()]);
    argv.extend(["--require".to_owned(), "--".to_owned()]);
    argv.extend(command.argv.iter().cloned());
    Argv {
        argv,
        env: command.env.clone(),
    }
}

/// Whether the server accepts connections at "unix:PATH" or "HOST:PORT".
fn accepts(socket: &str) -> bool {
    match socket.strip_prefix("unix:") {
        Some(path) => UnixStream::connect(path).is_ok(),
        None => TcpStream::connect(socket).is_ok(),
    }
}

/// Answer of a program, in the workload's own format or from its last line.
fn said_by(workload: &dyn Workload, child: &Child) -> Result<Answer, BenchError> {
    let own = workload.answer(&child.output(), &child.log());
    own.map_or_else(|| answer_of(child), Ok)
}

/// Parses the answer in a program's last line.
fn answer_of(child: &Child) -> Result<Answer, BenchError> {
    let line = child.last_line();
    serde_json::from_str(&line).map_err(|_| BenchError::NoAnswer(line.chars().take(80).collect()))
}

fn describe(name: &str, child: &Child, ended: &Ended) -> Outcome {
    use std::os::unix::process::ExitStatusExt;
    let how = match (ended.status.code(), ended.status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or(0)),
    };
    Outcome::Failed(format!("{name} ended with {how}: {}", child.complaint()))
}

/// Runs one program. The fields of `sample` that say what ran must be filled in.
pub fn run(context: &Context, job: &Job, sample: Sample) -> Result<Sample, Stopped> {
    let mut sample = sample;
    sample.at_s = context.began.elapsed().as_secs_f64();
    let outcome = match try_run(context, job, &mut sample) {
        Ok(outcome) => outcome,
        Err(Fail::Stopped(signal)) => return Err(Stopped(signal)),
        Err(Fail::Error(e)) => Outcome::Failed(e.to_string()),
    };
    let wrong = matches!((job.expected, &sample.answer), (Some(e), Some(a)) if e != a);
    sample.outcome = if outcome == Outcome::Ok && wrong {
        Outcome::Wrong
    } else {
        outcome
    };
    Ok(sample)
}

/// Directory of disk copies: on a disk, as the run's own directory may be in memory.
pub fn far_dir(cache: &Path) -> Result<PathBuf, BenchError> {
    let path = cache.join("far");
    match std::fs::create_dir_all(&path) {
        Ok(()) => Ok(path),
        Err(source) => Err(BenchError::Directory { path, source }),
    }
}

/// Donors started for one program, and the request for them.
type OwnDonors<'a> = (Donors, &'a FarBelow);

/// Command line of the program under its variant, and the donors started for it, if any.
fn below<'a>(
    context: &Context,
    job: &Job<'a>,
    main: &Argv,
    stats_path: &Path,
    sample: &mut Sample,
) -> Result<(Argv, Option<OwnDonors<'a>>), Fail> {
    match job.variant {
        Variant::Canvas(flags) => Ok((under_canvas(job, context, flags, main, stats_path), None)),
        Variant::CanvasFar(below) => {
            let mut donors = None;
            let flags = if let Some(flags) = &job.shared {
                flags.clone()
            } else {
                let (bytes, net) = (job.far_bytes, job.network);
                let dir = &job.place.scratch;
                let started = Donors::start(context.canvas, DONORS, bytes, net, dir, context.undo)?;
                let flags = started.flags(below, &far_dir(&job.place.cache)?);
                donors = Some((started, below));
                flags
            };
            sample.far = Some(Far {
                donors: DONORS,
                pool_bytes: job.pool_bytes,
                ..Far::default()
            });
            Ok((under_canvas(job, context, &flags, main, stats_path), donors))
        }
        _ => Ok((main.clone(), None)),
    }
}

/// Control group of a run, if it can have one.
fn group_of(context: &Context, job: &Job) -> Result<Option<Group>, Fail> {
    let Some(controller) = context.controller else {
        return Ok(None);
    };
    // Under canvas only a backstop: budgets are equal because the pool is added.
    let beside = match job.variant {
        Variant::Canvas(_) => job.pool_bytes,
        Variant::CanvasFar(_) => job.pool_bytes + AGENT_BYTES,
        _ => 0,
    };
    let limit = job.limit_bytes.map(|l| l + beside);
    let name = job.number.to_string();
    let group = Group::new(controller, context.undo, &name, limit, job.may_swap)?;
    Ok(Some(group))
}

fn try_run(context: &Context, job: &Job, sample: &mut Sample) -> Result<Outcome, Fail> {
    let dir = job.place.scratch.clone();
    let plan = job.workload.plan(&job.place, job.number)?;
    let (mut main, socket, clients) = match plan {
        Plan::Program(argv) => (argv, None, Vec::new()),
        Plan::Server {
            server,
            socket,
            clients,
        } => (server, Some(socket), clients),
    };
    main.argv.extend(job.args.iter().cloned());
    let stats_path = dir.join("stats.json");
    let is_canvas = job.variant.is_canvas();
    let (mut main, donors) = below(context, job, &main, &stats_path, sample)?;
    let group = group_of(context, job)?;
    if let Some(group) = &group {
        main = group.wrap(&main);
    }
    let slow = match (job.variant.disk_reads_per_s(), &group) {
        (Some(reads_per_s), Some(group)) => {
            let dir = far_dir(&job.place.cache)?;
            let name = format!("disk-{}", job.number);
            throttle::bind(group, context.undo, &name, &dir, reads_per_s)?
        }
        _ => None,
    };
    if let Some(slow) = &slow {
        main = slow.wrap(&main);
    }
    let mut child = Child::start(&main, &dir, "program", context.undo)?;
    sample.at_s = child.started.duration_since(context.began).as_secs_f64();
    let _senpai = takes_turns(job, &child, group.as_ref());
    let dying = donors.as_ref().filter(|(_, below)| below.donor_dies);
    let death = dying.map(|(donors, _)| donors.one_dies(child.pid()));
    let watch = Watch {
        group: group.as_ref(),
        pid: child.pid(),
        start_ticks: child.start_ticks,
        is_canvas,
        is_far: sample.far.is_some(),
        swap: job.swap,
    };
    let slower = job.network.map_or(Duration::ZERO, |_| OVER_A_LINK);
    let own = Duration::from_secs(job.workload.timeout_s(&job.place)) + slower;
    // Company ends with the others.
    let own = child.started + if job.company.is_some() { A_DAY } else { own };
    let mut running = Running {
        context,
        group: group.as_ref(),
        sampler: Sampler::new(watch, child.started, TICK),
        look_every: job.look_every,
        deadline: context.until.map_or(own, |until| own.min(until)),
        company: job.company,
        side: job.side,
    };
    let result = match &socket {
        None => batch(&mut running, &mut child, job),
        Some(socket) => serve(&mut running, &mut child, socket, &clients, &dir),
    };
    running.sampler.sample();
    let oom = group.as_ref().is_some_and(|g| g.oom_kills() > 0);
    let recovery_s = death.and_then(Death::recovery_s);
    let outcome = finish(&mut running, &mut child, result, oom, sample);
    seen_outside(job, group.as_ref(), &mut running, sample);
    let outcome = outcome?;
    if let (Some(told), Outcome::Ok) = &outcome {
        let began_unix_s = unix_s() - child.started.elapsed().as_secs_f64();
        sample.measured_s = told
            .answer
            .measured_unix_s
            .map(|(from, to)| (from - began_unix_s, to - began_unix_s));
        let offset_s = sample.measured_s.map_or(told.from_s, |(from_s, _)| from_s);
        let client = told.to_s.map(|to_s| (told.from_s, to_s));
        let counted = sample.measured_s.or(client);
        sample.measured =
            counted.and_then(|(from_s, to_s)| running.sampler.looks.between(from_s, to_s));
        take_answer(&told.answer, offset_s, sample);
    }
    let mut outcome = outcome.1;
    if is_canvas {
        let report = std::fs::read_to_string(&stats_path).unwrap_or_default();
        if let Err(e) = canvas_report::apply(&report, sample)
            && outcome == Outcome::Ok
        {
            outcome = Outcome::Failed(e.to_string());
        }
    }
    seen_far(job, donors, &running, recovery_s, sample)?;
    Ok(outcome)
}

/// Puts a program on its side, and starts Senpai if the variant uses it.
fn takes_turns(job: &Job, child: &Child, group: Option<&Group>) -> Option<Senpai> {
    if let Some(side) = job.side {
        side.add_tree(child.pid(), child.start_ticks);
    }
    let Variant::Tmo(percent) = job.variant else {
        return None;
    };
    let senpai = Senpai::start(group?.reclaimer(), f64::from(*percent) / 100.0);
    if let (Some(side), Some(worker)) = (job.side, senpai.worker) {
        // Each side pays for its own reclaim.
        side.add_thread(worker);
    }
    Some(senpai)
}

/// Adds the figures of kernel and sampler to the sample of a run that ended, while its group still exists.
fn seen_outside(job: &Job, group: Option<&Group>, running: &mut Running, sample: &mut Sample) {
    if let Some(group) = group {
        if !job.variant.is_canvas() {
            sample.faults = group.figures().major_faults;
        }
        if let Some((user_s, system_s)) = group.cpu_s() {
            (sample.cpu_user_s, sample.cpu_system_s) = (Some(user_s), Some(system_s));
        }
    }
    if !job.variant.is_canvas() {
        // Under canvas the group includes the pool; canvas's report separates them.
        sample.memory_peak_bytes = Some(running.sampler.memory_peak_bytes);
    }
    if job.limit_bytes.is_some() {
        sample.local_sampled_peak_bytes = running.sampler.local_peak_bytes;
    }
    sample.far_peak_bytes = running.sampler.far_peak_bytes;
    sample.disk_read_ns = job.swap.and_then(Swap::mean_read_ns);
    if let Some((pages_in, pages_out)) = running.sampler.swapped() {
        (sample.swap_in_pages, sample.swap_out_pages) = (Some(pages_in), Some(pages_out));
    }
    sample.prefetch = running.sampler.readahead(sample.faults);
    sample.timeline = std::mem::take(&mut running.sampler.ticks);
}

/// Adds the far-memory figures of a run that ended.
fn seen_far(
    job: &Job,
    donors: Option<OwnDonors<'_>>,
    running: &Running,
    recovery_s: Option<f64>,
    sample: &mut Sample,
) -> Result<(), Fail> {
    let measured_s = sample.measured_s;
    let Some(far) = &mut sample.far else {
        return Ok(());
    };
    if let Some((donors, _)) = donors {
        let work = donors.end();
        (far.donors_cpu_s, far.donors_bytes) = (Some(work.cpu_s), Some(work.bytes));
    }
    far.agent_peak_bytes = running.sampler.agent_peak_bytes;
    far.recovery_s = recovery_s;
    if let Some((from_s, to_s)) = measured_s {
        far.measured_read_ns = running.sampler.reads_between(from_s, to_s);
    }
    if job.alone {
        far.tcp = Some(tcp::measure(
            read_bytes(far).unwrap_or(PAGE_BYTES),
            job.network,
        )?);
    }
    Ok(())
}

fn unix_s() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

/// Mean bytes per single-page read: all reads but those of extents.
fn read_bytes(far: &Far) -> Option<u64> {
    let (reads, bytes, pages) = (far.reads?, far.in_bytes?, far.faults?);
    let extents = reads.saturating_sub(pages) * EXTENT_BYTES as u64;
    let each = bytes.saturating_sub(extents).checked_div(pages)?;
    Some(each.clamp(64, PAGE_BYTES))
}

/// An answer, and the time in which the process that printed it ran.
struct Spoken {
    answer: Answer,
    /// Its start, in seconds since the program's start.
    from_s: f64,
    /// Its end, if it is not the program itself.
    to_s: Option<f64>,
}

type Told = Option<Spoken>;

fn batch(running: &mut Running, child: &mut Child, job: &Job) -> Result<(Told, Outcome), Cut> {
    match running.wait(child) {
        End::Cut(Cut::NobodyLeft) => {
            // SIGTERM, so that the program writes its report; its answer is not needed.
            child.terminate();
            child.wait(COMPANY_END);
            Ok((None, Outcome::Ok))
        }
        End::Cut(cut) => Err(cut),
        End::Ended(e) if !e.status.success() => {
            Ok((None, describe(job.workload.name(), child, &e)))
        }
        End::Ended(e) => Ok(match said_by(job.workload, child) {
            Ok(mut answer) => {
                let whole = (e.at - child.started).as_secs_f64();
                answer.seconds.get_or_insert(whole);
                let told = Spoken {
                    answer,
                    from_s: 0.0,
                    to_s: None,
                };
                (Some(told), Outcome::Ok)
            }
            Err(e) => (None, Outcome::Failed(e.to_string())),
        }),
    }
}

fn serve(
    running: &mut Running,
    server: &mut Child,
    socket: &str,
    clients: &[Argv],
    dir: &Path,
) -> Result<(Told, Outcome), Cut> {
    let until = Instant::now() + SERVER_START;
    while !accepts(socket) {
        if let Some(ended) = server.wait(Duration::from_millis(20)) {
            return Ok((None, describe("the server", server, &ended)));
        }
        if let Some(cut) = running.look() {
            return Err(cut);
        }
        if Instant::now() > until {
            let sentence = format!("the server does not accept connections at {socket}");
            return Ok((None, Outcome::Failed(sentence)));
        }
    }
    let mut told = None;
    for (i, client) in clients.iter().enumerate() {
        let fail = |e: BenchError| Ok((None, Outcome::Failed(e.to_string())));
        let mut child = match Child::start(client, dir, &format!("client{i}"), running.context.undo)
        {
            Ok(child) => child,
            Err(e) => return fail(e),
        };
        if let Some(side) = running.side {
            side.add_tree(child.pid(), child.start_ticks);
        }
        let ended = match running.wait(&mut child) {
            End::Ended(ended) => ended,
            End::Cut(cut) => return Err(cut),
        };
        if let Some(ended) = server.wait(Duration::ZERO) {
            return Ok((None, describe("the server", server, &ended)));
        }
        if !ended.status.success() {
            return Ok((None, describe("its client", &child, &ended)));
        }
        if i + 1 == clients.len() {
            match answer_of(&child) {
                Ok(mut answer) => {
                    let whole = (ended.at - child.started).as_secs_f64();
                    answer.seconds.get_or_insert(whole);
                    told = Some(Spoken {
                        answer,
                        from_s: (child.started - server.started).as_secs_f64(),
                        to_s: Some((ended.at - server.started).as_secs_f64()),
                    });
                }
                Err(e) => return fail(e),
            }
        }
    }
    server.terminate();
    running.deadline = running.deadline.max(Instant::now() + SERVER_END);
    match running.wait(server) {
        End::Cut(Cut::Timeout) => Ok((None, Outcome::Failed("the server does not end".to_owned()))),
        End::Cut(cut) => Err(cut),
        // The program has answered; its exit status after SIGTERM does not matter.
        End::Ended(_) => Ok((told, Outcome::Ok)),
    }
}

/// Kills processes that still run, and returns the outcome of the run.
fn finish(
    running: &mut Running,
    child: &mut Child,
    result: Result<(Told, Outcome), Cut>,
    oom: bool,
    sample: &mut Sample,
) -> Result<(Told, Outcome), Fail> {
    if child.wait(Duration::ZERO).is_none() {
        child.end();
    }
    if let Some(group) = running.group {
        group.kill_all();
    }
    if let Some(ended) = child.wait(Duration::ZERO) {
        (sample.cpu_user_s, sample.cpu_system_s) = (Some(ended.user_s), Some(ended.system_s));
    }
    match result {
        Err(Cut::Stopped(signal)) => Err(Fail::Stopped(signal)),
        Err(Cut::Oom) => Ok((None, Outcome::Oom)),
        Err(Cut::Timeout) => Ok((None, Outcome::Timeout)),
        Err(Cut::NobodyLeft) => Ok((None, Outcome::Ok)),
        // When the kernel kills the server, its client fails.
        Ok(_) if oom => Ok((None, Outcome::Oom)),
        Ok(told) => Ok(told),
    }
}

fn take_answer(answer: &Answer, offset_s: f64, sample: &mut Sample) {
    sample.seconds = answer.seconds;
    sample.ops_per_s = answer.ops_per_s;
    sample.latency_ns = answer.latency_ns;
    sample
        .latency_histogram
        .clone_from(&answer.latency_histogram);
    sample.access_ns = answer.access_ns;
    sample.access_histogram.clone_from(&answer.access_histogram);
    sample.answer = Some(answer.answer.clone());
    merge_rates(&mut sample.timeline, &answer.rates, offset_s);
}

/// Creates a directory for the files of one run, accessible to a server that gives up root.
pub fn run_dir(scratch: &Path, number: u32) -> Result<PathBuf, BenchError> {
    use std::os::unix::fs::PermissionsExt;
    let dir = scratch.join(format!("run-{number}"));
    let fail = |source| BenchError::Directory {
        path: dir.clone(),
        source,
    };
    std::fs::create_dir(&dir).map_err(fail)?;
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o1777)).map_err(fail)?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_read_by_itself_is_what_extents_leave() {
        let far = |reads, in_bytes, faults| Far {
            reads: Some(reads),
            in_bytes: Some(in_bytes),
            faults: Some(faults),
            ..Far::default()
        };
        let extent = EXTENT_BYTES as u64;
        // Ten pages of 1,700 bytes and three extents.
        let both = far(13, 17_000 + 3 * extent, 10);
        assert_eq!(read_bytes(&both), Some(1700));
        assert_eq!(read_bytes(&far(3, 3 * extent, 0)), None);
        // Faults of processes that died are counted without an answer.
        assert_eq!(read_bytes(&far(3, 12_000, 900)), Some(64));
        assert_eq!(read_bytes(&far(1, 1 << 30, 1)), Some(PAGE_BYTES));
        assert_eq!(read_bytes(&Far::default()), None);
    }
}
