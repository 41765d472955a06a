//! `canvas run`.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use canvas_pager::trace::{Header, SampleRate};
use canvas_shm::Segment;
use canvas_shm::files::Files;
use canvas_shm::segment::{Counter, Mode, SEGMENT_BYTES};
use canvas_types::units::Size;
use canvas_types::{PAGE_SIZE, exit};
use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, UsageWho, getrlimit, getrusage};
use nix::sys::signal::Signal;
use nix::sys::stat::fstat;
use nix::sys::time::{TimeVal, TimeValLike};

use crate::args::{ModeArg, RunArgs};
use crate::control::peers::Peers;
use crate::control::place::{self, Name};
use crate::control::tenant::Tenant;
use crate::error::{Failure, say};
use crate::facts::{Facts, ram_bytes};
use crate::far::Keeper;
use crate::host::join::{self, Begun};
use crate::host::link::Link;
use crate::options::{self, Options};
use crate::program::Unmanaged;
use crate::stats::{Place, Report, Run};
use crate::supervise::{End, Signals, supervise};
use crate::sweep::{Peaks, any_left, release_dead};
use crate::tree::Tree;
use crate::{doctor, far, launch, preload, program};

/// Share of the pages whose touches a trace records.
const TRACE_RATE: SampleRate = SampleRate::one_in(16);

/// Runs that begin a tenant of one name at one time find each other after so many tries at most.
const TRIES: u32 = 20;

/// Runs CMD and returns the exit code for `canvas`.
pub fn run(args: &RunArgs) -> Result<i32, Failure> {
    for _ in 0..TRIES {
        if let Some(code) = try_run(args)? {
            return Ok(code);
        }
    }
    Err(Failure::run(
        "the tenant ends and begins all the time; try again, or write another name after --tenant",
    ))
}

/// The same; `None` when another run has begun the tenant meanwhile.
fn try_run(args: &RunArgs) -> Result<Option<i32>, Failure> {
    let begun = options::host(args)?.map(join::begin).transpose()?;
    let (args, joined) = match begun {
        None => (args.clone(), None),
        Some(Begun::Vacant(terms)) => (terms.fill(args.clone())?, None),
        Some(Begun::Joined(joined)) => (joined.fill(args.clone())?, Some(joined)),
    };
    let args = &args;
    let options = Options::new(args, ram_bytes())?;
    let place = options.stats.as_deref().map(stats_place).transpose()?;
    // Argument parsing sees to it that there is one.
    let name = args.command.first().cloned().unwrap_or_default();
    let file = program::find(&name, std::env::var_os("PATH").as_deref())?;
    let shown = Path::new(&name).display().to_string();

    let unmanaged = program::unmanaged(&file);
    if let Some(why) = &unmanaged {
        if options.require {
            return Err(Failure::run(format!(
                "{shown} {why}, so it cannot be managed; leave out --require to run it all the same"
            )));
        }
        say(format_args!("{shown} {why}; it runs unmanaged"));
    }
    // Children of an unmanaged program may be managed, so everything is set up for them, but what
    // is missing is no error then.
    let wanted = match &joined {
        None => options.mode,
        Some(joined) => joined.mode()?,
    };
    let mode = match chosen_mode(wanted) {
        Ok(mode) => Some(mode),
        Err(_) if unmanaged.is_some() => None,
        Err(why) => return Err(Failure::run(why)),
    };

    let library = preload::library(std::env::var_os(preload::ENV_PRELOAD_SO))?;
    launch::check_limits(library.len().max(SEGMENT_BYTES) as u64)?;
    if options.far.is_some() {
        far::check_limits()?;
    }
    let (segment_fd, segment, mut agent) = match joined {
        Some(joined) => {
            let (segment, far) = joined.map()?;
            let fd = joined.segment.try_clone();
            let fd = fd.map_err(|e| Failure::run(crate::reason(&e)))?;
            let link = Link::joined(joined, far)?;
            (fd, segment, Some(Keeper::Host(Box::new(link))))
        }
        None => {
            let (fd, segment) = Segment::create(options.far.is_some())
                .map_err(|e| system("the tenant's segment cannot be created", e))?;
            options.write_to(&segment.config);
            // Whoever joins it finds it complete.
            if let Some(mode) = mode {
                segment.config.mode.store(mode as u32, Relaxed);
            }
            if let Some(trace) = &options.trace {
                let fd = open_trace(trace, segment)?;
                let fd = launch::inherit(fd)
                    .map_err(|e| system("the trace cannot be handed to the program", e))?;
                segment.config.trace_fd.store(fd as u32, Relaxed);
            }
            let agent = match &options.far {
                None => None,
                Some(far) => match far::start(far, &fd)? {
                    None => return Ok(None),
                    agent => agent,
                },
            };
            (fd, segment, agent)
        }
    };
    let files = match &options.shared {
        Some(_) if mode == Some(Mode::Thread) => {
            return Err(Failure::run(options::THREAD_MODE_SHARES_NOTHING));
        }
        Some(bound) => shared_files(*bound, segment)?,
        None => None,
    };
    let before = Before::of(segment);
    // The programs cannot change this, as they can all that lies in the segment.
    let shared = match &agent {
        Some(Keeper::Host(_)) => fstat(&segment_fd)
            .ok()
            .map(|s| format!("{}:{}", s.st_dev, s.st_ino)),
        _ => None,
    };
    let inherit = |fd: OwnedFd| {
        launch::inherit(fd).map_err(|e| system("a descriptor cannot be handed to the program", e))
    };
    let library_fd = inherit(launch::library_file(&library)?)?;
    let segment_fd = inherit(segment_fd)?;
    let preloaded = mode.is_some() && !unmanaged.as_ref().is_some_and(Unmanaged::chokes_on_preload);
    let env = launch::environment(std::env::vars_os(), segment_fd, library_fd, preloaded);

    let name = args
        .tenant
        .clone()
        .unwrap_or_else(|| place::name_of(Path::new(&name)));
    let mut peers = Peers::new();
    if let Some(addr) = args.metrics {
        peers.offer_metrics(addr).map_err(Failure::run)?;
    }
    listen(&mut peers, &name);

    let signals = Signals::open().map_err(|e| system("signals cannot be received", e))?;
    let start = Instant::now();
    let child = launch::spawn(&file, &args.command, &env, &signals.before)
        .map_err(|e| cannot_execute(&file, e))?;
    let mut peaks = Peaks::default();
    let aside = segment.stands_aside();
    let tree = (aside && place.is_some()).then(|| Tree::new(child.as_raw() as u32));
    let tenant = Tenant {
        name,
        program: shown.clone(),
        mode: mode.filter(|_| unmanaged.is_none() && !aside),
        segment,
        start,
        shared,
        shared_memory: files,
    };
    let end = supervise(
        child,
        &signals,
        &mut peaks,
        tree,
        agent.as_mut(),
        &tenant,
        &mut peers,
    )
    .map_err(|e| system(&format!("{shown} cannot be waited for"), e))?;
    // Who asks now is told that the run is over.
    drop(peers);
    let wall = start.elapsed();
    peaks.sample(segment);

    if let Some(place) = place {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
        let time = |of: fn(&nix::sys::resource::Usage) -> TimeVal| {
            usage
                .as_ref()
                .map(|u| Duration::from_micros(of(u).num_microseconds().max(0) as u64))
                .unwrap_or_default()
        };
        let run = Run {
            program: shown.clone(),
            mode: tenant.mode,
            end,
            wall,
            user: time(|u| u.user_time()),
            system: time(|u| u.system_time()),
            max_rss_bytes: usage.as_ref().map_or(0, |u| u.max_rss().max(0) as u64) << 10,
            peaks,
        };
        if let Err(e) = place.write(
            &Report::new(
                &run,
                segment,
                agent.as_ref().map(|a| a.far()),
                tenant.shared_memory.as_ref(),
            )
            .to_json(),
        ) {
            say(format_args!(
                "the report cannot be written: {}",
                crate::reason(&e)
            ));
        }
    }
    release_dead(segment, agent.as_ref().map(|a| a.far()));
    if let Some(agent) = agent {
        agent.end(!any_left(segment));
    }
    let expected = unmanaged.is_none();
    let code = judge(&shown, end, segment, before, expected, options.require);
    Ok(Some(code))
}

/// Makes what processes share about shared memory; `None`, with one line, where the kernel does not do what that
/// needs: such memory stays native then.
fn shared_files(bound: Size, segment: &Segment) -> Result<Option<Files>, Failure> {
    let native = |why: &str| {
        say(format_args!("shared memory stays native: {why}"));
        Ok(None)
    };
    // What is written to the store, which is a file to the kernel, would end the program by SIGXFSZ.
    if !matches!(getrlimit(Resource::RLIMIT_FSIZE), Ok((RLIM_INFINITY, _))) {
        return native("the size of files is limited here (ulimit -f unlimited lifts that)");
    }
    // Pieces of huge pages would be zeroed in place (docs/SHARED.md).
    let huge = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let chosen = |way: &str| huge.as_ref().is_ok_and(|t| t.contains(&format!("[{way}]")));
    if ["always", "within_size", "force"].into_iter().any(chosen) {
        return native("the kernel makes huge pages of it (transparent_hugepage/shmem_enabled)");
    }
    match canvas_sys::shmem::late_writes_are_seen() {
        Ok(true) => {}
        Ok(false) => return native("this kernel copies pages where it should hand them over"),
        Err(e) => return native(Errno::from_raw(e.0).desc()),
    }
    let made = |e| system("the files of shared memory cannot be made", e);
    let files = Files::create((bound.bytes / PAGE_SIZE as u64) as i64).map_err(made)?;
    let copies = files
        .copies()
        .map_err(|e| Failure::run(crate::reason(&e)))?;
    for (fd, place) in copies.into_iter().zip(&segment.config.shared_fds) {
        place.store(launch::inherit(fd).map_err(made)? as u32, Relaxed);
    }
    Ok(Some(files))
}

/// What other runs of the tenant had counted when this one began.
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

/// The exit code, with a line for what the code alone does not tell.
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
    if broken > 0 && matches!(end, End::Signal(Signal::SIGBUS, _)) {
        say(format_args!(
            "{shown} was ended by SIGBUS because {broken} of its far pages came back damaged"
        ));
    }
    let managed = now.managed != before.managed;
    let refused = now.unmanaged != before.unmanaged || segment.refused.load(Relaxed) > 0;
    // The library says itself why it stayed out; when it was never loaded, nobody else does.
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

/// Opens the run to `canvas status` and its like. It goes on without.
fn listen(peers: &mut Peers, tenant: &str) {
    let name = Name {
        tenant: tenant.to_owned(),
        pid: std::process::id(),
    };
    let listening =
        place::Place::own().and_then(|place| place.listen(name).map_err(|e| crate::reason(&e)));
    match listening {
        Ok(listening) => peers.listen_to_control(listening),
        Err(why) => say(format_args!(
            "`canvas status` will not see this run, whose socket cannot be made: {why}"
        )),
    }
}

fn system(what: &str, e: Errno) -> Failure {
    Failure::run(format!("{what}: {}", e.desc()))
}

fn chosen_mode(wanted: ModeArg) -> Result<Mode, String> {
    let facts = Facts::gather(canvas_sys::uffd::probe());
    doctor::choose(wanted, &facts).map(|(mode, _)| mode)
}

fn stats_place(file: &Path) -> Result<Place, Failure> {
    Place::new(file).map_err(|e| {
        Failure::run(format!(
            "the report cannot be written to {}: {}",
            file.display(),
            crate::reason(&e)
        ))
    })
}

/// Opens the trace and writes its header. Every process of the tenant appends to it.
fn open_trace(path: &Path, segment: &Segment) -> Result<OwnedFd, Failure> {
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
        // Readable too: the library looks up the rate in the header.
        let mut file = OpenOptions::new().read(true).append(true).open(path)?;
        file.write_all(&header.encode())?;
        Ok(file)
    };
    match open() {
        Ok(file) => Ok(file.into()),
        Err(e) => Err(Failure::run(format!(
            "the trace cannot be written to {}: {}",
            path.display(),
            crate::reason(&e)
        ))),
    }
}

fn cannot_execute(file: &Path, e: Errno) -> Failure {
    let why = match e {
        // The file was there a moment ago: what is missing is what runs it.
        Errno::ENOENT => "the interpreter or loader that it names does not exist",
        Errno::ENOEXEC => {
            "it is neither a program nor a script with a #! line (for a shell script, write sh before it)"
        }
        e => e.desc(),
    };
    Failure {
        code: exit::CANNOT_EXEC,
        sentence: format!("{} cannot be executed: {why}", file.display()),
    }
}
