//! Far memory of a run: its file on disk, and the process of its agent.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use canvas_agent::Share;
use canvas_agent::daemon::tenant::begin_far;
use canvas_agent::disk;
use canvas_agent::journal::{Journal, PoolGrant};
use canvas_agent::replicas::Policy;
use canvas_agent::worker::{BACKING_FD, FDS_END, JOURNAL_FD, OVER, SEGMENT_FD, SHARE_CHANGED};
use canvas_control::status::AgentStatus;
use canvas_shm::Far;
use canvas_shm::far::{FAR_BYTES, OFFSET};
use canvas_shm::map::copy_above;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::PollFd;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, pipe2};
use tracing::warn;

use crate::control::set::Places;
use crate::error::{ChangeError, RunError};
use crate::launch;
use crate::link::Link;
use crate::options::FarOptions;
use canvas_control::hello::{Change, Hello, VERSION, Wanted};
use canvas_control::terms::Terms;

/// An agent that ends sooner than this has died young. After [`YOUNG_MAX`] of them in a row, and
/// after a failed start, the next start has to wait: twice as long each time, at most this long.
const YOUNG: Duration = Duration::from_secs(1);
const YOUNG_MAX: u32 = 5;
/// How long the replacement of an agent is reported.
const RECENT: Duration = Duration::from_secs(5);
/// Most time that the end of a run waits for its agent.
const END_WAIT: Duration = Duration::from_secs(2);

/// The agent of far memory, from the runner's side.
pub enum Keeper {
    /// The run's own agent.
    Own(Box<AgentProcess>),
    /// The host's agent.
    Host(Box<Link>),
}

impl Keeper {
    /// The far area.
    pub fn far(&self) -> &'static Far {
        match self {
            Keeper::Own(agent) => agent.far,
            Keeper::Host(link) => link.far(),
        }
    }

    /// Checks whether the agent is gone; if so, has another one take over.
    pub fn tend(&mut self) {
        match self {
            Keeper::Own(agent) => agent.tend(),
            Keeper::Host(link) => link.tend(),
        }
    }

    /// Pid of the run's own agent.
    pub fn process(&self) -> Option<u32> {
        match self {
            Keeper::Own(agent) => agent.process.map(|pid| pid.as_raw() as u32),
            Keeper::Host(_) => None,
        }
    }

    /// Descriptor to wait for; the end of the run's own agent is a signal instead.
    pub fn poll_fd(&self) -> Option<PollFd<'_>> {
        match self {
            Keeper::Own(_) => None,
            Keeper::Host(link) => link.poll_fd(),
        }
    }

    /// Time of the next check at the latest.
    pub fn due(&self) -> Option<Instant> {
        match self {
            Keeper::Own(_) => None,
            Keeper::Host(link) => link.due(),
        }
    }

    /// The agent's last report.
    pub fn status(&self) -> Option<AgentStatus> {
        match self {
            Keeper::Own(agent) => agent.status(),
            Keeper::Host(link) => link.status(),
        }
    }

    /// Whether an agent died a moment ago.
    pub fn restarts(&self) -> bool {
        match self {
            Keeper::Own(agent) => agent.restarts(),
            Keeper::Host(link) => !link.is_served(),
        }
    }

    /// The tenant's share of contended resources.
    pub fn share(&self) -> Share {
        match self {
            Keeper::Own(agent) => agent.journal.share().unwrap_or_default(),
            Keeper::Host(link) => link.share(),
        }
    }

    /// The tenant's grant of the host's pool, if the agent limits that.
    pub fn pool(&self) -> Option<PoolGrant> {
        match self {
            Keeper::Own(_) => None,
            Keeper::Host(link) => link.pool(),
        }
    }

    /// Terms of the host agent's operator.
    pub fn terms(&self) -> Terms {
        match self {
            Keeper::Own(_) => Terms::default(),
            Keeper::Host(link) => link.terms().clone(),
        }
    }

    /// Possible places of copies; `None` if only the host's agent knows them.
    pub fn places(&self) -> Option<Places> {
        match self {
            Keeper::Own(agent) => Some(agent.places),
            Keeper::Host(_) => None,
        }
    }

    /// The configured copies.
    pub fn copies(&self) -> Option<Policy> {
        match self {
            Keeper::Own(agent) => agent.journal.copies(),
            Keeper::Host(link) => link.copies(),
        }
    }

    /// Changes what the agent enforces: all of it, or nothing. The number of slabs cannot go below
    /// those in use.
    pub fn change(&mut self, change: Change) -> Result<(), ChangeError> {
        match self {
            Keeper::Own(agent) => agent.change(&change),
            Keeper::Host(link) => link.change(change),
        }
    }

    /// Ends the run. If the tenant has no process left (`all`), its far memory is freed now,
    /// otherwise when the last process has ended.
    pub fn end(self, all: bool) {
        match self {
            Keeper::Own(agent) => agent.end(all),
            Keeper::Host(link) => link.end(all),
        }
    }
}

/// The run's own agent, from the runner's side.
pub struct AgentProcess {
    far: &'static Far,
    /// Its command line flags.
    flags: Vec<String>,
    segment: OwnedFd,
    journal: Journal,
    backing: Vec<File>,
    places: Places,
    /// This end of the agent's control pipe.
    control: File,
    control_read: OwnedFd,
    process: Option<Pid>,
    started: Instant,
    /// Number of agents started.
    starts: u32,
    /// Number of agents in a row that died young or could not be started.
    young: u32,
    /// The last message about such agents, while the problem lasts.
    told: String,
}

/// Checks that the segment can be made. The kernel would kill this process for exceeding its file
/// size limit.
pub fn check_limits() -> Result<(), RunError> {
    let bytes = (OFFSET + FAR_BYTES) as u64;
    match getrlimit(Resource::RLIMIT_FSIZE) {
        Ok((soft, _)) if soft < bytes => {
            Err(RunError::FarLimit(bytes as f64 / (1u64 << 30) as f64))
        }
        _ => Ok(()),
    }
}

/// Sets up far memory in the segment behind `segment_fd`, with its agent.
///
/// `None` if another run has started a tenant of this name at the host's agent meanwhile.
pub fn start(options: &FarOptions, segment_fd: &OwnedFd) -> Result<Option<Keeper>, RunError> {
    let system = |what| move |source| RunError::Far { what, source };
    let far = Far::map(segment_fd).map_err(system("its area cannot be mapped"))?;
    let wait_ms = options.wait.as_millis() as u64;
    begin_far(far, options.slabs, options.spill_percent, wait_ms)
        .map_err(system("random numbers cannot be read"))?;
    far.unit_bytes.store(options.unit.number(), Relaxed);
    far.lanes.set_wanted(options.lanes);
    // The program reads this at its start, which may be before the agent's first report.
    far.lanes
        .set_has_rdma(options.servers.iter().any(|s| s.rdma));
    let segment = segment_fd
        .try_clone()
        .map_err(|e| system("a descriptor cannot be copied")(errno(&e)))?;
    if let Some(host) = &options.host {
        let hello = Hello {
            version: VERSION,
            name: host.name.clone(),
            slabs: options.slabs,
            copies: options.policy.map(Wanted::from),
            asked: options.asked,
        };
        let link = Link::start(host.path.clone(), hello, segment, far)?;
        return Ok(link.map(|link| Keeper::Host(Box::new(link))));
    }
    // Without the host's agent the policy is known here.
    let policy = options.policy.unwrap_or(Policy {
        donors: 0,
        disk: true,
        late: false,
        code: None,
    });
    let (control_read, control) =
        pipe2(OFlag::O_CLOEXEC).map_err(system("a pipe cannot be made"))?;
    let journal = Journal::create().map_err(system("its journal cannot be created"))?;
    journal
        .set_slabs_max(options.slabs as u64)
        .map_err(system("its journal cannot be written"))?;
    journal
        .set_share(Terms::default().share(&options.asked))
        .map_err(system("its journal cannot be written"))?;
    journal
        .set_copies(policy)
        .map_err(system("its journal cannot be written"))?;
    if let Some(key) = &options.key {
        // No other process may open the journal through /proc, and no core dump may contain the
        // key.
        let _ = nix::sys::prctl::set_dumpable(false);
        journal
            .set_cluster_key(&key.to_line())
            .map_err(system("its journal cannot be written"))?;
    }
    // Even if no copy is wanted there now, one may be later.
    let backing = match backing(&options.dirs) {
        Err(why) if policy.disk || !options.dirs.is_empty() => return Err(why),
        backing => backing.unwrap_or_default(),
    };
    let places = Places {
        servers: options.servers.len(),
        gossip: !options.seeds.is_empty(),
        disk: !backing.is_empty(),
    };
    let mut agent = AgentProcess {
        far,
        flags: flags(options, backing.len()),
        segment,
        journal,
        backing,
        places,
        control: control.into(),
        control_read,
        process: None,
        started: Instant::now(),
        starts: 0,
        young: 0,
        told: String::new(),
    };
    agent
        .spawn()
        .map_err(system("its agent cannot be started"))?;
    Ok(Some(Keeper::Own(Box::new(agent))))
}

impl AgentProcess {
    /// The agent's last report.
    fn status(&self) -> Option<AgentStatus> {
        self.journal.status()
    }

    /// Whether an agent died a moment ago.
    fn restarts(&self) -> bool {
        self.process.is_none() || self.starts > 1 && self.started.elapsed() < RECENT
    }

    /// Changes what the agent enforces.
    fn change(&mut self, change: &Change) -> Result<(), ChangeError> {
        if let Some(slabs) = change.slabs {
            self.set_slabs_max(slabs as u64)?;
        }
        let before = self.journal.share().unwrap_or_default();
        let rate = |new: Option<u64>, before| match new {
            None => before,
            Some(0) => None,
            Some(bytes) => Some(bytes),
        };
        let share = Share {
            weight: change.weight.unwrap_or(before.weight),
            swap_in_limit: rate(change.swap_in_limit, before.swap_in_limit),
            swap_out_limit: rate(change.swap_out_limit, before.swap_out_limit),
        };
        let copies = change.copies.map(Policy::from);
        let copies = copies.filter(|c| self.journal.copies() != Some(*c));
        if share == before && copies.is_none() {
            return Ok(());
        }
        let noted = self.journal.set_share(share.clamped());
        noted.map_err(ChangeError::Journal)?;
        if let Some(copies) = copies {
            let noted = self.journal.set_copies(copies);
            noted.map_err(ChangeError::Journal)?;
        }
        // If the pipe is closed, the next agent reads the journal.
        let _ = self.control.write_all(&[SHARE_CHANGED]);
        Ok(())
    }

    /// Changes the tenant's limit on slabs, not below those in use.
    fn set_slabs_max(&self, slabs: u64) -> Result<(), ChangeError> {
        let far = self.far;
        let note = |slabs| {
            let noted = self.journal.set_slabs_max(slabs);
            noted.map_err(ChangeError::Journal)
        };
        let before = far.slabs_max.load(Relaxed);
        // The agent must never allow less than the program uses.
        note(slabs.max(before))?;
        far.slabs_max.store(slabs, SeqCst);
        if far.slabs_used.load(SeqCst) > slabs as i64 {
            far.slabs_max.store(before, Relaxed);
            return Err(ChangeError::InUse);
        }
        note(slabs)
    }

    fn spawn(&mut self) -> Result<(), Errno> {
        self.started = Instant::now();
        self.starts += 1;
        let null = null()?;
        // None of them may have a number that another one is to get.
        let clear = |fd: BorrowedFd, to| Ok::<_, Errno>((copy_above(fd, FDS_END)?, to));
        let mut sources = vec![
            clear(self.control_read.as_fd(), 0)?,
            clear(null.as_fd(), 1)?,
            clear(self.segment.as_fd(), SEGMENT_FD)?,
            clear(self.journal.file().as_fd(), JOURNAL_FD)?,
        ];
        for (number, file) in (BACKING_FD..).zip(&self.backing) {
            sources.push(clear(file.as_fd(), number)?);
        }
        let flags = self.flags.iter().map(String::as_str);
        let argv: Vec<OsString> = ["canvas", "agent-worker"]
            .into_iter()
            .chain(flags)
            .map(OsString::from)
            .collect();
        // It logs where this process does.
        let log = "JOURNAL_STREAM";
        let env: Vec<_> = std::env::var_os(log)
            .map(|stream| (log.into(), stream))
            .into_iter()
            .collect();
        self.process = Some(launch::spawn_self(&argv, &env, &sources)?);
        Ok(())
    }

    /// Checks whether the agent has died; if so, starts another one.
    fn tend(&mut self) {
        if let Some(process) = self.process {
            let Some(how) = ended(process) else {
                return;
            };
            self.process = None;
            if self.started.elapsed() < YOUNG {
                self.young += 1;
            } else {
                self.young = 0;
                self.told.clear();
            }
            let line = format!("the agent of far memory {how}; another one takes over");
            if self.young <= YOUNG_MAX {
                warn!("{line}");
                self.told = line;
            } else {
                self.say_once(line);
            }
        }
        if self.started.elapsed() < pause(self.young) {
            return;
        }
        match self.spawn() {
            Ok(()) => {}
            // A missing resource is still missing a moment later.
            Err(e) => {
                self.young = self.young.max(YOUNG_MAX) + 1;
                self.say_once(format!(
                    "the agent of far memory cannot be started: {}; canvas goes on trying",
                    e.desc()
                ));
            }
        }
    }

    /// Prints a line, unless it was the last one printed.
    fn say_once(&mut self, line: String) {
        if line != self.told {
            warn!("{line}");
            self.told = line;
        }
    }

    /// Ends the run. If the tenant has no process left, the agent ends at once, otherwise when the
    /// last process has ended.
    fn end(mut self, all: bool) {
        if all {
            // If the pipe is closed, the agent has died, which will do.
            let _ = self.control.write_all(&[OVER]);
        }
        drop(self.control);
        if !all {
            return;
        }
        let until = Instant::now() + END_WAIT;
        while self.process.is_some_and(|p| ended(p).is_none()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Pause before the next start, after `young` agents in a row that died young.
fn pause(young: u32) -> Duration {
    match young.checked_sub(YOUNG_MAX) {
        Some(n) => YOUNG.min(Duration::from_millis(50 << n.min(10))),
        None => Duration::ZERO,
    }
}

/// The agent's command line flags.
fn flags(options: &FarOptions, disks: usize) -> Vec<String> {
    let mut flags = vec!["--slabs".to_owned(), options.slabs.to_string()];
    for server in &options.servers {
        flags.extend(["--donor".to_owned(), server.to_string()]);
    }
    flags.extend(["--spin".to_owned(), format!("{}ns", options.spin.ns)]);
    let timeliness = if options.timeliness { "on" } else { "off" };
    flags.extend(["--timeliness".to_owned(), timeliness.to_owned()]);
    for seed in &options.seeds {
        flags.extend(["--gossip".to_owned(), seed.clone()]);
    }
    flags.extend(["--links".to_owned(), options.links.to_string()]);
    if disks > 0 {
        flags.extend(["--disks".to_owned(), disks.to_string()]);
        if !options.dirs.is_empty() {
            flags.push("--disks-keep".to_owned());
        }
        if let Some(reserve) = options.reserve {
            flags.extend(["--far-reserve".to_owned(), reserve.to_string()]);
        }
    }
    if options.of_daemon {
        flags.push("--of-daemon".to_owned());
    }
    flags
}

fn null() -> Result<File, Errno> {
    File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|e| errno(&e))
}

/// How a child ended, if it has.
fn ended(process: Pid) -> Option<String> {
    match waitpid(process, Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::Exited(_, code)) => Some(format!("ended with exit code {code}")),
        Ok(WaitStatus::Signaled(_, signal, _)) => Some(format!("was ended by {signal}")),
        Err(Errno::ECHILD) => Some("is gone".to_owned()),
        _ => None,
    }
}

/// Opens a file in each of `dirs`, or in the default directory.
fn backing(dirs: &[PathBuf]) -> Result<Vec<File>, RunError> {
    let fail = |dir: &Path, source| RunError::FarDir {
        dir: dir.to_owned(),
        source,
    };
    if !dirs.is_empty() {
        let files = dirs
            .iter()
            .map(|dir| disk::create(dir).map_err(|e| fail(dir, e)));
        return files.collect();
    }
    let dir = disk::default_dir();
    fs::create_dir_all(&dir).map_err(|e| fail(&dir, e))?;
    let file = disk::create(&dir).map_err(|e| fail(&dir, e))?;
    Ok(vec![file])
}

fn errno(e: &std::io::Error) -> Errno {
    e.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
