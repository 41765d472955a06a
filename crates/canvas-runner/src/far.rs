//! Far memory of a run: the file behind it, and the agent process that keeps it.

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

use crate::control::set::Places;
use crate::error::{ChangeError, RunError};
use crate::launch;
use crate::link::Link;
use crate::options::FarOptions;
use canvas_control::hello::{Change, Hello, VERSION, Wanted};
use canvas_control::terms::Terms;
use canvas_control::text::say;

/// An agent that ends sooner has died young. After [`YOUNG_MAX`] of them in a row the next one has to
/// wait, twice as long each time, at most this long. So has the next try after one that cannot be started.
const YOUNG: Duration = Duration::from_secs(1);
const YOUNG_MAX: u32 = 5;
/// How long it is told that an agent was replaced.
const RECENT: Duration = Duration::from_secs(5);
/// How long the end of a run waits for its agent.
const END_WAIT: Duration = Duration::from_secs(2);

/// Who keeps far memory, as the runner sees it.
pub enum Keeper {
    /// An agent of this run's own.
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

    /// Looks whether the agent is gone, and has another one take over then.
    pub fn tend(&mut self) {
        match self {
            Keeper::Own(agent) => agent.tend(),
            Keeper::Host(link) => link.tend(),
        }
    }

    /// The agent process of this run alone.
    pub fn process(&self) -> Option<u32> {
        match self {
            Keeper::Own(agent) => agent.process.map(|pid| pid.as_raw() as u32),
            Keeper::Host(_) => None,
        }
    }

    /// What to wait for; the end of an agent of our own is a signal.
    pub fn poll_fd(&self) -> Option<PollFd<'_>> {
        match self {
            Keeper::Own(_) => None,
            Keeper::Host(link) => link.poll_fd(),
        }
    }

    /// When to look again at the latest.
    pub fn due(&self) -> Option<Instant> {
        match self {
            Keeper::Own(_) => None,
            Keeper::Host(link) => link.due(),
        }
    }

    /// How the agent was when it last said so.
    pub fn status(&self) -> Option<AgentStatus> {
        match self {
            Keeper::Own(agent) => agent.status(),
            Keeper::Host(link) => link.status(),
        }
    }

    /// Has an agent died a moment ago?
    pub fn restarts(&self) -> bool {
        match self {
            Keeper::Own(agent) => agent.restarts(),
            Keeper::Host(link) => !link.is_served(),
        }
    }

    /// What the tenant gets where it is not alone.
    pub fn share(&self) -> Share {
        match self {
            Keeper::Own(agent) => agent.journal.share().unwrap_or_default(),
            Keeper::Host(link) => link.share(),
        }
    }

    /// What of the host's pool the tenant is granted, if its agent bounds that.
    pub fn pool(&self) -> Option<PoolGrant> {
        match self {
            Keeper::Own(_) => None,
            Keeper::Host(link) => link.pool(),
        }
    }

    /// What the operator of the host's agent has settled.
    pub fn terms(&self) -> Terms {
        match self {
            Keeper::Own(_) => Terms::default(),
            Keeper::Host(link) => link.terms().clone(),
        }
    }

    /// Where the agent can keep copies; `None` where the host's agent knows that.
    pub fn places(&self) -> Option<Places> {
        match self {
            Keeper::Own(agent) => Some(agent.places),
            Keeper::Host(_) => None,
        }
    }

    /// The copies that are wanted.
    pub fn copies(&self) -> Option<Policy> {
        match self {
            Keeper::Own(agent) => agent.journal.copies(),
            Keeper::Host(link) => link.copies(),
        }
    }

    /// Changes what the agent keeps: all of it, or nothing. Slabs not
    /// to fewer than there are.
    pub fn change(&mut self, change: Change) -> Result<(), ChangeError> {
        match self {
            Keeper::Own(agent) => agent.change(&change),
            Keeper::Host(link) => link.change(change),
        }
    }

    /// The run is over. When the tenant has no process left (`all`) its far memory is given back now;
    /// else when the last one has ended.
    pub fn end(self, all: bool) {
        match self {
            Keeper::Own(agent) => agent.end(all),
            Keeper::Host(link) => link.end(all),
        }
    }
}

/// The agent of a run, as its runner sees it.
pub struct AgentProcess {
    far: &'static Far,
    /// Its flags.
    flags: Vec<String>,
    segment: OwnedFd,
    journal: Journal,
    backing: Vec<File>,
    places: Places,
    /// The agent has the other end.
    control: File,
    control_read: OwnedFd,
    process: Option<Pid>,
    started: Instant,
    /// Agents so far.
    starts: u32,
    /// Agents in a row that died young, or could not be started.
    young: u32,
    /// What was last said about that, while it lasts.
    told: String,
}

/// Can the segment be made? The kernel would end this process for a file beyond its limit.
pub fn check_limits() -> Result<(), RunError> {
    let bytes = (OFFSET + FAR_BYTES) as u64;
    match getrlimit(Resource::RLIMIT_FSIZE) {
        Ok((soft, _)) if soft < bytes => {
            Err(RunError::FarLimit(bytes as f64 / (1u64 << 30) as f64))
        }
        _ => Ok(()),
    }
}

/// Prepares far memory in the segment behind `segment_fd`, and has an agent keep it.
///
/// `None` when another run has begun a tenant of the same name at the host's agent meanwhile.
pub fn start(options: &FarOptions, segment_fd: &OwnedFd) -> Result<Option<Keeper>, RunError> {
    let system = |what| move |source| RunError::Far { what, source };
    let far = Far::map(segment_fd).map_err(system("its area cannot be mapped"))?;
    let wait_ms = options.wait.as_millis() as u64;
    begin_far(far, options.slabs, options.spill_percent, wait_ms)
        .map_err(system("random numbers cannot be read"))?;
    far.unit_bytes.store(options.unit.number(), Relaxed);
    far.lanes.set_wanted(options.lanes);
    // The program looks when it starts, which may be before the agent has said so.
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
    // Without the host's agent it is settled.
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
        // Nobody else opens the journal by /proc, and no core has the key.
        let _ = nix::sys::prctl::set_dumpable(false);
        journal
            .set_cluster_key(&key.to_line())
            .map_err(system("its journal cannot be written"))?;
    }
    // Where no copy is wanted there now, one may be later.
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
    /// How the agent was when it last said so.
    fn status(&self) -> Option<AgentStatus> {
        self.journal.status()
    }

    /// Has an agent died a moment ago?
    fn restarts(&self) -> bool {
        self.process.is_none() || self.starts > 1 && self.started.elapsed() < RECENT
    }

    /// Changes what the agent keeps.
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
        // A closed pipe: the next agent reads the journal.
        let _ = self.control.write_all(&[SHARE_CHANGED]);
        Ok(())
    }

    /// Changes how many slabs the tenant may fill: not to fewer than it has.
    fn set_slabs_max(&self, slabs: u64) -> Result<(), ChangeError> {
        let far = self.far;
        let note = |slabs| {
            let noted = self.journal.set_slabs_max(slabs);
            noted.map_err(ChangeError::Journal)
        };
        let before = far.slabs_max.load(Relaxed);
        // The agent must never allow less than the program takes.
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
        // None of them lies where another one is to go.
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
        let argv: Vec<&str> = ["canvas", "agent-worker"]
            .into_iter()
            .chain(flags)
            .collect();
        self.process = Some(launch::spawn_self(&argv, &sources)?);
        Ok(())
    }

    /// Looks whether the agent has died, and starts another one then.
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
                say(&line);
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
            // What is missing is missing a moment later, too.
            Err(e) => {
                self.young = self.young.max(YOUNG_MAX) + 1;
                self.say_once(format!(
                    "the agent of far memory cannot be started: {}; canvas goes on trying",
                    e.desc()
                ));
            }
        }
    }

    /// Says a line, unless it was the last one.
    fn say_once(&mut self, line: String) {
        if line != self.told {
            say(&line);
            self.told = line;
        }
    }

    /// The run is over. When the tenant has no process left the agent ends at once; else when the
    /// last one has.
    fn end(mut self, all: bool) {
        if all {
            // A closed pipe: it has died, which is an end too.
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

/// How long after the last try the next agent is started, when `young` in a row have ended at once.
fn pause(young: u32) -> Duration {
    match young.checked_sub(YOUNG_MAX) {
        Some(n) => YOUNG.min(Duration::from_millis(50 << n.min(10))),
        None => Duration::ZERO,
    }
}

/// The agent's flags.
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
    flags
}

fn null() -> Result<File, Errno> {
    File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|e| errno(&e))
}

/// How a child of ours ended, if it has.
fn ended(process: Pid) -> Option<String> {
    match waitpid(process, Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::Exited(_, code)) => Some(format!("ended with exit code {code}")),
        Ok(WaitStatus::Signaled(_, signal, _)) => Some(format!("was ended by {signal}")),
        Err(Errno::ECHILD) => Some("is gone".to_owned()),
        _ => None,
    }
}

/// A file in each of `dirs`, or in the default directory.
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
