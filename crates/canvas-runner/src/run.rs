//! One run: the tenant, CMD, and the report at the end.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use canvas_core::pager::trace::{Header, SampleRate};
use canvas_shm::far::SHARED;
use canvas_shm::files::Files;
use canvas_shm::lives::Lives;
use canvas_shm::segment::{Counter, Mode, SEGMENT_BYTES, config_flag};
use canvas_shm::{Far, Segment};
use canvas_types::layout::Bases;
use canvas_types::units::Size;
use canvas_types::{PAGE_SIZE, exit};
use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::{RLIM_INFINITY, Resource, UsageWho, getrlimit, getrusage};
use nix::sys::stat::fstat;
use nix::sys::time::{TimeVal, TimeValLike};

use crate::beside::Sides;
use crate::control::tenant::Tenant;
use crate::error::RunError;
use crate::facts::{Facts, probe_userfaultfd};
use crate::far::Keeper;
use crate::join::{Joined, Start};
use crate::learned::Learned;
use crate::link::Link;
use crate::mode::ModeError;
use crate::options::Options;
use crate::program::Unmanaged;
use crate::recordings::Book;
use crate::stats::{Place, Report, Run};
use crate::supervise::{Cmd, End, Signals, supervise};
use crate::sweep::Peaks;
use crate::tree::Tree;
use crate::{code, far, kvm, launch, mode, notify, numa, preload, program, reserve};
use canvas_agent::members::{any_left, release_dead};
use canvas_control::names;
use canvas_control::peers::Peers;
use canvas_control::text::say;

/// Rate at which a trace samples touched pages.
const TRACE_RATE: SampleRate = SampleRate::one_in(16);

/// The end of a run.
#[derive(Debug)]
pub struct Ended {
    /// The exit code for `canvas`.
    pub code: i32,
    /// The signal that ended its program.
    pub signal: Option<i32>,
    /// The run's measurements, if they are wanted and available.
    pub learned: Option<Learned>,
}

/// Runs a program in a tenant, and returns how it ended; `None` if another run started the tenant
/// meanwhile.
pub fn run(options: &Options, start: Start) -> Result<Option<Ended>, RunError> {
    let place = options.stats.as_deref().map(stats_place).transpose()?;
    let book = options.learn.as_deref().map(Book::open).transpose()?;
    // The parser makes sure that there is a command.
    let name = options.command.first().cloned().unwrap_or_default();
    let file = program::find(&name, std::env::var_os("PATH").as_deref())?;
    let shown = Path::new(&name).display().to_string();

    let unmanaged = unmanaged(&file, &shown, options.require)?;
    let wanted = match &start {
        Start::New | Start::Prepared(_) => options.mode,
        Start::Joined(joined) => joined.mode()?,
    };
    // Shared memory is managed only in signal mode.
    let guests = || options.shared.is_none() && kvm::is_used(&file, &options.command);
    let mode = mode_for(wanted, guests, unmanaged.as_ref())?;
    let mut library = preload::library(std::env::var_os(preload::ENV_PRELOAD_SO))?;
    if mode.is_some() {
        code::append_prepared(library.to_mut());
    }
    launch::check_limits(library.len().max(SEGMENT_BYTES) as u64)?;
    if options.far.is_some() {
        far::check_limits()?;
    }
    numa::check(&options.numa)?;
    let Some((segment_fd, segment, mut agent)) = begin_tenant(options, start, mode)? else {
        return Ok(None);
    };
    if let Some(book) = &book {
        book.fill(&segment.recordings);
    }
    let files = managed_shared(options, mode, segment)?;
    let before = Before::of(segment);
    let shared = agent.as_ref().and_then(|a| in_common(a, &segment_fd));
    let inherit = |fd: OwnedFd| {
        launch::inherit(fd).map_err(system("a descriptor cannot be passed to the program"))
    };
    let sides = Sides::new(&segment_fd).map_err(RunError::Descriptor)?;
    let library_fd = inherit(launch::library_file(&library)?)?;
    let segment_fd = inherit(segment_fd)?;
    let preloaded = mode.is_some() && !unmanaged.as_ref().is_some_and(Unmanaged::chokes_on_preload);
    let mut env = launch::environment(std::env::vars_os(), segment_fd, library_fd, preloaded);
    let notify = notify::stand_in(&mut env);

    let own = || names::name_of(Path::new(&name));
    let name = options.tenant.clone().unwrap_or_else(own);
    let mut peers = asked_by(options.metrics, &name)?;

    let signals = Signals::open().map_err(system("signals cannot be received"))?;
    let start = Instant::now();
    let child = launch::spawn(&file, &options.command, env, &signals)
        .map_err(|e| cannot_execute(&file, e))?;
    let mut peaks = Peaks {
        file_bytes_peak: options.learns.then_some(0),
        ..Peaks::default()
    };
    let aside = segment.stands_aside();
    if aside && unmanaged.is_none() && place.is_none() && options.metrics.is_none() {
        say(format_args!(
            "{shown} runs without a limit, so canvas manages nothing; write --local SIZE, or --local 25%"
        ));
    }
    if let (false, Some(reserve)) = (aside, options.host_reserve) {
        reserve::watch(segment, reserve, child);
    }
    let tree = (aside && place.is_some()).then(|| Tree::new(child));
    let tenant = Tenant {
        name,
        program: shown.clone(),
        mode: mode.filter(|_| unmanaged.is_none() && !aside),
        segment,
        start,
        shared,
        shared_memory: files,
        sides,
        book,
    };
    let cmd = Cmd {
        pid: child,
        signals,
        notify,
    };
    let end = supervise(&cmd, &mut peaks, tree, agent.as_mut(), &tenant, &mut peers).map_err(
        |source| RunError::Wait {
            program: shown.clone(),
            source,
        },
    )?;
    // From now on clients see that the run is over.
    drop(peers);
    let wall = start.elapsed();
    let lives = tenant.sides.lives();
    peaks.sample(lives, segment, tenant.sides.look(agent.as_ref()));

    if let Some(book) = &tenant.book {
        book.save(&segment.recordings);
    }
    let run = finished(&shown, &tenant, end, wall, peaks);
    if let Some(place) = place {
        let far = agent.as_ref().map(|a| a.far());
        let report = Report::new(&run, segment, far, tenant.shared_memory.as_ref());
        write_report(&place, &report);
    }
    let learned = options
        .learns
        .then(|| Learned::new(&run, segment))
        .flatten();
    release_dead(lives, segment, agent.as_ref().map(|a| a.far()));
    if let Some(agent) = agent {
        if let Some(files) = &tenant.shared_memory {
            leave_shared(files, lives, segment, agent.far());
        }
        agent.end(!any_left(segment));
    }
    let expected = unmanaged.is_none();
    let code = judge(&shown, end, segment, before, expected, options.require);
    let signal = match end {
        End::Signal(signal, _) => Some(signal),
        End::Exit(_) => None,
    };
    Ok(Some(Ended {
        code,
        signal,
        learned,
    }))
}

/// Why the program cannot be managed, if so: prints a line, or fails if management is required.
fn unmanaged(file: &Path, shown: &str, require: bool) -> Result<Option<Unmanaged>, RunError> {
    let unmanaged = program::unmanaged(file);
    let unmanaged = match unmanaged {
        Some(why) if require => {
            let program = shown.to_owned();
            return Err(RunError::Unmanaged { program, why });
        }
        unmanaged => unmanaged,
    };
    if let Some(why) = &unmanaged {
        say(format_args!("{shown} {why}; it runs unmanaged"));
    }
    Ok(unmanaged)
}

/// A tenant's segment, and its agent of far memory.
type TenantParts = (OwnedFd, &'static Segment, Option<Keeper>);

/// Makes the tenant, or joins an existing one; `None` if another run started it meanwhile.
fn begin_tenant(
    options: &Options,
    start: Start,
    mode: Option<Mode>,
) -> Result<Option<TenantParts>, RunError> {
    match start {
        Start::Joined(joined) => {
            let parts = parts_of(joined)?;
            parts.1.config.flags.fetch_or(config_flag::JOINED, Relaxed);
            Ok(Some(parts))
        }
        Start::Prepared(prepared) => {
            let parts = parts_of(prepared)?;
            settle(options, parts.1, mode)?;
            if let (Some(far), Some(keeper)) = (&options.far, &parts.2) {
                let there = keeper.far();
                there.spill_percent.store(far.spill_percent, Relaxed);
                there.unit_bytes.store(far.unit.number(), Relaxed);
                there.lanes.set_wanted(far.lanes);
                let wait_ms = far.wait.as_millis() as u64;
                there.wait_ms_max.store(wait_ms, Relaxed);
            }
            Ok(Some(parts))
        }
        Start::New => {
            let (fd, segment) = Segment::create(options.far.is_some())
                .map_err(system("the tenant's segment cannot be created"))?;
            let pool = &segment.config.pool_bytes;
            pool.store(options.pool.bytes, Relaxed);
            settle(options, segment, mode)?;
            let agent = match &options.far {
                None => None,
                Some(far) => match far::start(far, &fd)? {
                    None => return Ok(None),
                    agent => agent,
                },
            };
            Ok(Some((fd, segment, agent)))
        }
    }
}

/// Maps a tenant that the host's agent has passed.
fn parts_of(joined: Joined) -> Result<TenantParts, RunError> {
    let (segment, far) = joined.map()?;
    let fd = joined.segment.try_clone().map_err(RunError::Descriptor)?;
    let link = Link::joined(joined, far)?;
    Ok((fd, segment, Some(Keeper::Host(Box::new(link)))))
}

/// Writes the configuration that the tenant's processes need, except the pool.
fn settle(options: &Options, segment: &Segment, mode: Option<Mode>) -> Result<(), RunError> {
    options.write_but_pool_to(&segment.config);
    segment.config.set_bases(bases()?);
    for (book, bound) in segment.nodes.iter().zip(&options.numa) {
        book.begin(bound.node, bound.size.bytes);
    }
    // Written last, so that runs that join find the configuration complete.
    if let Some(mode) = mode {
        segment.config.mode.store(mode as u32, Relaxed);
    }
    if let Some(trace) = &options.trace {
        let fd = open_trace(trace, segment)?;
        let fd =
            launch::inherit(fd).map_err(system("the trace cannot be passed to the program"))?;
        segment.config.trace_fd.store(fd as u32, Relaxed);
    }
    Ok(())
}

/// The manager of shared memory, if that is requested and possible.
fn managed_shared(
    options: &Options,
    mode: Option<Mode>,
    segment: &Segment,
) -> Result<Option<Files>, RunError> {
    let files = match &options.shared {
        Some(_) if mode == Some(Mode::Thread) => return Err(RunError::SharedInThreadMode),
        Some(bound) => shared_files(*bound, segment)?,
        None => return Ok(None),
    };
    if files.is_none() {
        segment.config.shared_bytes.store(0, Relaxed);
    }
    Ok(files)
}

/// Frees the far memory of the run's shared memory and its part of the host's limit, if the tenant
/// goes on but none of its processes uses it any more.
fn leave_shared(files: &Files, lives: Lives, segment: &Segment, far: &Far) {
    if files.are_in_use(lives) {
        return;
    }
    segment.config.shared_bytes.store(0, Relaxed);
    segment.shared.used_bytes.store(0, Relaxed);
    if files.leave_far(far) && far.notify(SHARED) {
        canvas_sys::proc::futex_wake(&far.asleep, 1);
    }
}

/// The report's data that are not in the segment.
fn finished(shown: &str, tenant: &Tenant, end: End, wall: Duration, peaks: Peaks) -> Run {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
    let time = |of: fn(&nix::sys::resource::Usage) -> TimeVal| {
        usage
            .as_ref()
            .map(|u| Duration::from_micros(of(u).num_microseconds().max(0) as u64))
            .unwrap_or_default()
    };
    Run {
        program: shown.to_owned(),
        mode: tenant.mode,
        end,
        wall,
        user: time(|u| u.user_time()),
        system: time(|u| u.system_time()),
        max_rss_bytes: usage.as_ref().map_or(0, |u| u.max_rss().max(0) as u64) << 10,
        peaks,
    }
}

/// Random addresses for the managed range and the gate of the tenant's processes; inside another
/// tenant, the addresses that its seccomp filter allows.
fn bases() -> Result<Bases, RunError> {
    if let Some(there) = canvas_sys::seccomp::installed() {
        return Ok(there.bases);
    }
    let random = canvas_sys::proc::random()
        .map_err(|e| system("random addresses cannot be drawn")(Errno::from_raw(e.0)))?;
    // Used where /proc is not mounted; most kernels have this value.
    const USUAL_BITS: u32 = 28;
    let bits = std::fs::read_to_string("/proc/sys/vm/mmap_rnd_bits");
    let bits = bits.ok().and_then(|text| text.trim().parse().ok());
    Ok(Bases::draw(random, bits.unwrap_or(USUAL_BITS)))
}

/// Makes the shared state for shared memory; `None`, with one line of output, if the kernel lacks
/// something that it needs: such memory then stays native.
fn shared_files(bound: Size, segment: &Segment) -> Result<Option<Files>, RunError> {
    let native = |why: &str| {
        say(format_args!("shared memory stays native: {why}"));
        Ok(None)
    };
    // The store is a file to the kernel: writing to it would end the program by SIGXFSZ.
    if !matches!(getrlimit(Resource::RLIMIT_FSIZE), Ok((RLIM_INFINITY, _))) {
        return native("the size of files is limited here (ulimit -f unlimited lifts that)");
    }
    // Parts of huge pages would be zeroed in place (docs/SHARED.md).
    let huge = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let chosen = |way: &str| huge.as_ref().is_ok_and(|t| t.contains(&format!("[{way}]")));
    if ["always", "within_size", "force"].into_iter().any(chosen) {
        return native("the kernel makes huge pages of it (transparent_hugepage/shmem_enabled)");
    }
    match canvas_sys::shmem::late_writes_are_seen() {
        Ok(true) => {}
        Ok(false) => {
            return native("this kernel copies pages where canvas needs them moved (splice)");
        }
        Err(e) => return native(Errno::from_raw(e.0).desc()),
    }
    let made = system("the files of shared memory cannot be made");
    let mut key = [0; PAGE_SIZE];
    canvas_sys::proc::random_bytes(&mut key).map_err(|e| made(Errno::from_raw(e.0)))?;
    let pages = (bound.bytes / PAGE_SIZE as u64) as i64;
    let files = Files::create(pages, &key).map_err(made)?;
    let inode = files.inode().map_err(made)?;
    segment.config.shared_inode.store(inode, Relaxed);
    let copies = files.copies().map_err(RunError::Descriptor)?;
    for (fd, place) in copies.into_iter().zip(&segment.config.shared_fds) {
        place.store(launch::inherit(fd).map_err(made)? as u32, Relaxed);
    }
    Ok(Some(files))
}

/// Counters of the tenant's other runs when this one started.
#[derive(Clone, Copy)]
struct Before {
    broken: u64,
    managed: u32,
    unmanaged: u32,
}

impl Before {
    fn of(segment: &Segment) -> Before {
        Before {
            broken: segment.total(Counter::VerifyFailure),
            managed: segment.managed.load(Relaxed),
            unmanaged: segment.unmanaged.load(Relaxed),
        }
    }
}

/// The exit code; prints a line about what the code alone does not show.
fn judge(
    shown: &str,
    end: End,
    segment: &Segment,
    before: Before,
    expected: bool,
    require: bool,
) -> i32 {
    let now = Before::of(segment);
    let broken = now.broken.saturating_sub(before.broken);
    if broken > 0 && matches!(end, End::Signal(libc::SIGBUS, _)) {
        say(format_args!(
            "{shown} was ended by SIGBUS because {broken} of its far pages came back damaged"
        ));
    }
    let managed = now.managed != before.managed;
    let refused = now.unmanaged != before.unmanaged || segment.refused.load(Relaxed) > 0;
    // The library itself reports why it manages nothing; if it was never loaded, only this line
    // does.
    if expected && !managed && !refused && end == End::Exit(exit::OK) {
        say(format_args!(
            "{shown} ran unmanaged: its loader did not load the library (it may have file capabilities)"
        ));
        if require {
            return exit::RUN_FAILED;
        }
    }
    end.code()
}

/// The sockets for metrics, if requested, and for operators.
fn asked_by(metrics: Option<SocketAddr>, tenant: &str) -> Result<Peers, RunError> {
    let mut peers = Peers::new();
    if let Some(addr) = metrics {
        peers.offer_metrics(addr)?;
    }
    if let Err(why) = peers.open(tenant, "run") {
        say(why);
    }
    Ok(peers)
}

/// Identifies the tenant to all its runs at the host's agent. Programs cannot change this, unlike
/// everything in the segment.
fn in_common(agent: &Keeper, segment: &OwnedFd) -> Option<String> {
    let Keeper::Host(_) = agent else { return None };
    let stat = fstat(segment).ok()?;
    Some(format!("{}:{}", stat.st_dev, stat.st_ino))
}

fn write_report(place: &Place, report: &Report) {
    if let Err(e) = place.write(&report.to_json()) {
        say(format_args!(
            "the report cannot be written: {}",
            crate::reason(&e)
        ));
    }
}

fn system(what: &'static str) -> impl Fn(Errno) -> RunError + Copy {
    move |source| RunError::System { what, source }
}

/// The mode of delivering faults. Everything is set up even for an unmanaged program, whose
/// children may be managed, but then a missing feature is not an error.
fn mode_for(
    wanted: Option<Mode>,
    guests: impl Fn() -> bool,
    unmanaged: Option<&Unmanaged>,
) -> Result<Option<Mode>, RunError> {
    match chosen_mode(wanted, guests) {
        Ok(mode) => Ok(Some(mode)),
        Err(_) if unmanaged.is_some() => Ok(None),
        Err(why) => Err(why.into()),
    }
}

/// The requested mode, or the one that works here; for a program with KVM guests thread mode, if it
/// works.
fn chosen_mode(wanted: Option<Mode>, guests: impl Fn() -> bool) -> Result<Mode, ModeError> {
    let facts = Facts::gather(probe_userfaultfd());
    let for_guests = || mode::thread_works(&facts.probe).is_ok() && guests();
    let wanted = wanted.or_else(|| for_guests().then_some(Mode::Thread));
    mode::choose(wanted, &facts).map(|(mode, _)| mode)
}

fn stats_place(file: &Path) -> Result<Place, RunError> {
    Place::new(file).map_err(|source| RunError::Report {
        path: file.to_owned(),
        source,
    })
}

/// Opens the trace and writes its header. Every process of the tenant appends to it.
fn open_trace(path: &Path, segment: &Segment) -> Result<OwnedFd, RunError> {
    let start = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let header = Header {
        rate: TRACE_RATE,
        local_pages: segment
            .local_limit_pages()
            .map_or(0, |n| n.try_into().unwrap_or(u32::MAX)),
        start_unix_s: start.as_secs(),
    };
    let open = || -> std::io::Result<File> {
        File::create(path)?;
        // Readable, too: the library reads the rate from the header.
        let mut file = OpenOptions::new().read(true).append(true).open(path)?;
        file.write_all(&header.encode())?;
        Ok(file)
    };
    match open() {
        Ok(file) => Ok(file.into()),
        Err(source) => Err(RunError::Trace {
            path: path.to_owned(),
            source,
        }),
    }
}

fn cannot_execute(file: &Path, e: Errno) -> RunError {
    let why = match e {
        // The file existed a moment ago, so its interpreter is missing.
        Errno::ENOENT => "the interpreter or loader that it names does not exist",
        Errno::ENOEXEC => {
            "it is neither a program nor a script with a #! line (for a shell script, write sh before it)"
        }
        e => e.desc(),
    };
    RunError::CannotExecute {
        file: file.to_owned(),
        why,
    }
}
