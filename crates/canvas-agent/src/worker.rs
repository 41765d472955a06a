//! The agent process of a run: `canvas agent-worker`, started by its runner.
//!
//! It runs in a session of its own, so that no terminal stops or ends it, and keeps none of the user's descriptors but
//! standard error. It ends when its runner says so, or when the runner is gone and the tenant has no process left.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::Duration;

use crate::copies::LiveCopies;
use crate::disk::Disk;
use crate::dispatch::Dispatch;
use crate::idle::Waker;
use crate::journal::Journal;
use crate::numbers::SealNumbers;
use crate::replicas::{self, Replicas};
use crate::seal::Sealer;
use crate::share::LiveShare;
use crate::{Agent, Setup};
use canvas_gossip::GossipError;
use canvas_link::Address;
use canvas_place::paths::PATHS_MAX;
use canvas_shm::lives::Lives;
use canvas_shm::{Far, Segment};
use canvas_wire::key::{ClusterKey, LineError};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};

use crate::finder::Finder;
use crate::members::RunnerlessTenant;
use canvas_control::text::reason;
use canvas_types::units::Amount;

/// The segment's descriptor. Descriptor 0 is a pipe that closes when the runner ends.
pub const SEGMENT_FD: RawFd = 3;
/// The journal's descriptor.
pub const JOURNAL_FD: RawFd = 4;
/// Descriptor of the first backing file.
pub const BACKING_FD: RawFd = 5;
/// One past the last descriptor.
pub const FDS_END: RawFd = BACKING_FD + PATHS_MAX as RawFd;

/// Byte in the runner's pipe: the run is over.
pub const OVER: u8 = b'e';
/// Byte in the runner's pipe: the tenant's share in the journal has changed.
pub const SHARE_CHANGED: u8 = b's';

/// State of the runner: it is alive; it is gone; it has ended the run.
const RUNNING: u8 = 0;
const RUNNER_GONE: u8 = 1;
const RUN_OVER: u8 = 2;

/// Configuration of the agent, from its flags.
#[derive(Debug)]
pub struct Config {
    /// Slabs that the tenant may fill, unless the journal has another limit.
    pub slabs: usize,
    /// Donors.
    pub servers: Vec<Address>,
    /// Members of the donors' gossip.
    pub seeds: Vec<String>,
    /// Number of backing files, each on a disk of its own.
    pub disks: usize,
    /// The disk keeps extents for which there are too few donors, even where the copies policy needs no disk.
    pub disks_keep: bool,
    /// Space to leave free on each of these disks.
    pub reserve: Option<Amount>,
    /// Connections to each donor.
    pub links: usize,
    /// How long the agent polls for requests before it sleeps.
    pub spin: Duration,
    /// Drops prefetches that would arrive too late.
    pub timeliness: bool,
}

/// Why the agent does not serve.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The runner did not pass a descriptor.
    #[error("far memory: {what} was not handed over: {}", .source.desc())]
    NotHandedOver {
        /// The descriptor's content.
        what: &'static str,
        /// The system's error.
        source: Errno,
    },
    /// A descriptor's content is unusable, or a system call failed.
    #[error("far memory: {what}: {}", .source.desc())]
    System {
        /// What failed.
        what: &'static str,
        /// The system's error.
        source: Errno,
    },
    /// No thread or no descriptor could be created.
    #[error("far memory: cannot start a thread: {}", reason(.0))]
    Thread(#[source] std::io::Error),
    /// There is neither a donor nor a disk.
    #[error("far memory: the agent has neither a donor nor a disk; name one with --to")]
    NoPlace,
    /// The journal's key is invalid.
    #[error("far memory: the donors' key: {0}")]
    Key(#[source] LineError),
    /// The gossip could not start.
    #[error("far memory: gossip: {0}")]
    Gossip(#[source] GossipError),
}

/// Serves until the tenant has ended.
pub fn serve(args: &Config) -> Result<(), WorkerError> {
    let fail = |what| move |source| WorkerError::System { what, source };
    let fd = |number, what| {
        canvas_shm::map::inherited(number, FDS_END)
            .map_err(|source| WorkerError::NotHandedOver { what, source })
    };
    let segment_fd = fd(SEGMENT_FD, "its segment")?;
    let segment = Segment::map(&segment_fd).map_err(fail("its segment"))?;
    let far = Far::map(&segment_fd).map_err(fail("its area"))?;
    let journal = Journal::open(fd(JOURNAL_FD, "its journal")?).map_err(fail("its journal"))?;
    let key = journal.key().map_err(fail("its key"))?;
    let backing = (BACKING_FD..FDS_END).take(args.disks);
    let backing = backing.map(|number| fd(number, "its file"));
    let backing = backing.collect::<Result<Vec<_>, _>>()?;
    let control = fd(0, "the pipe of its runner")?;
    let mut keep = vec![segment_fd.as_fd(), journal.file().as_fd(), control.as_fd()];
    keep.extend(backing.iter().map(AsFd::as_fd));
    alone(&keep).map_err(fail("it cannot detach from its runner"))?;

    let waker = Waker(far);
    let again = || {
        let again = journal.try_clone();
        again.map_err(fail("its journal"))
    };
    let notes = again()?;
    let share = LiveShare::new(notes.share().unwrap_or_default());
    let copies = notes.copies().ok_or(Errno::ENODATA);
    let copies = LiveCopies::new(copies.map_err(fail("its copies"))?);
    let follows = (share.clone(), copies.clone());
    let runner = watch(control.into(), waker, notes, follows).map_err(WorkerError::Thread)?;
    let threads = WorkerError::Thread;
    let files: Vec<File> = backing.into_iter().map(File::from).collect();
    let disk = match files.is_empty() {
        true => None,
        false => Some(Disk::new(files, args.reserve, waker).map_err(threads)?),
    };
    let tenant = far.tenant();
    // The runner may change the limit while the tenant runs.
    let bounds = again()?;
    let numbers = SealNumbers::new(again()?);
    let slabs = args.slabs;
    let setup = Setup {
        far,
        tenant,
        name: format!("{:016x}", u128::from_be_bytes(tenant) >> 64),
        key,
        numbers,
        slabs: Box::new(move || match bounds.slabs_max() {
            0 => slabs,
            noted => noted as usize,
        }),
        spin: args.spin,
        share,
    };
    let dispatch = Dispatch::new().with_timeliness(args.timeliness);
    let mut runnerless = RunnerlessTenant::default();
    let lives = Lives::of(&segment_fd);
    let is_over = || match runner.load(SeqCst) {
        RUNNING => false,
        RUN_OVER => true,
        _ => runnerless.is_over(lives, segment, far),
    };
    if args.servers.is_empty() && args.seeds.is_empty() {
        let disk = disk.ok_or(WorkerError::NoPlace)?;
        Agent::new(setup, disk).serve(dispatch, is_over);
    } else {
        let key = match journal.cluster_key() {
            Some(line) => ClusterKey::from_line(&line).map_err(WorkerError::Key)?,
            None => ClusterKey::without_secret(),
        };
        // Lives as long as the agent serves.
        let finder = Finder::start(&args.seeds, &key).map_err(WorkerError::Gossip)?;
        let found = finder.as_ref().map(|f| f.follow(waker));
        let config = replicas::Config {
            servers: args.servers.clone(),
            found,
            key,
            copies,
            disk_keeps: args.disks_keep,
            sealer: Sealer::new(&setup.key, tenant),
            links: args.links,
            lanes: Some(setup.key),
        };
        let store = Replicas::new(far, tenant, config, journal, disk, waker).map_err(threads)?;
        let mut agent = Agent::new(setup, store);
        agent.serve(dispatch, is_over);
        agent.free_all();
    }
    Ok(())
}

/// Makes the process a session leader in `/`, and closes all descriptors but the standard three and `keep`.
fn alone(keep: &[BorrowedFd]) -> Result<(), Errno> {
    // EPERM: it already leads a session, because it was started by hand.
    let _ = nix::unistd::setsid();
    nix::unistd::chdir("/")?;
    // Exceeding a file size limit then is an error, as a full disk is.
    SigSet::from_iter([Signal::SIGXFSZ]).thread_block()?;
    let open = fs::read_dir("/proc/self/fd").map_err(|_| Errno::ENOENT)?;
    let numbers: Vec<RawFd> = open
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let keeps = |n: RawFd| (0..=2).contains(&n) || keep.iter().any(|fd| fd.as_raw_fd() == n);
    for number in numbers.into_iter().filter(|n| !keeps(*n)) {
        // The directory's own descriptor is closed by now.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

/// Watches the runner's pipe on a thread of its own; the result holds the runner's state. Each message that the share
/// changed makes it read the share and the copies policy from `notes`.
fn watch(
    mut control: File,
    waker: Waker,
    notes: Journal,
    (share, copies): (LiveShare, LiveCopies),
) -> std::io::Result<Arc<AtomicU8>> {
    let state = Arc::new(AtomicU8::new(RUNNING));
    let ours = state.clone();
    std::thread::Builder::new()
        .name("runner".to_owned())
        .spawn(move || {
            let mut byte = [0];
            let said = loop {
                match control.read(&mut byte) {
                    Ok(1) if byte[0] == SHARE_CHANGED => {
                        share.set(notes.share().unwrap_or_default());
                        if let Some(policy) = notes.copies() {
                            copies.set(policy);
                        }
                        waker.wake();
                    }
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    said => break matches!(said, Ok(1)),
                }
            };
            state.store(if said { RUN_OVER } else { RUNNER_GONE }, SeqCst);
            waker.wake();
        })?;
    Ok(ours)
}
