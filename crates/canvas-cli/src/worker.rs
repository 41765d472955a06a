//! The agent process of a run: `canvas agent-worker`, started by [`crate::far`].
//!
//! In a session of its own, so that no terminal stops or ends it, and with no descriptor of the
//! user's but standard error. It ends when its runner says so, or when the runner is gone and the
//! tenant has no process any more.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::Duration;

use canvas_agent::agent::tenant_id;
use canvas_agent::copies::{self, Copies, Policy};
use canvas_agent::disk::Disk;
use canvas_agent::idle::Waker;
use canvas_agent::journal::Journal;
use canvas_agent::lanes::Lanes;
use canvas_agent::seal::Sealer;
use canvas_agent::share::Live;
use canvas_agent::{Agent, Setup};
use canvas_shm::{Far, Segment};
use canvas_types::exit;
use canvas_wire::key::ClusterKey;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};

use crate::args::WorkerArgs;
use crate::error::{Failure, say};
use crate::far::{BACKING_FD, FDS_END, JOURNAL_FD, SEGMENT_FD, SHARE_CHANGED};
use crate::finder::Finder;
use crate::sweep::Orphan;

/// What the runner has said: nothing yet; nothing any more; that the run is over.
const RUNS: u8 = 0;
const GONE: u8 = 1;
const OVER: u8 = 2;

/// Serves until the tenant is gone.
pub fn serve(args: &WorkerArgs) -> Result<i32, Failure> {
    let fail = |what: &str, why: &str| Failure::usage(format!("far memory: {what}: {why}"));
    let fd = |number, what: &str| {
        canvas_shm::map::inherited(number, FDS_END)
            .map_err(|e| fail(&format!("{what} was not handed over"), e.desc()))
    };
    let segment_fd = fd(SEGMENT_FD, "its segment")?;
    let segment = Segment::map(&segment_fd).map_err(|e| fail("its segment", e.desc()))?;
    let far = Far::map(&segment_fd).map_err(|e| fail("its area", e.desc()))?;
    let journal =
        Journal::open(fd(JOURNAL_FD, "its journal")?).map_err(|e| fail("its journal", e.desc()))?;
    let key = journal.key().map_err(|e| fail("its key", e.desc()))?;
    let backing = fd(BACKING_FD, "its file")?;
    let control = fd(0, "the pipe of its runner")?;
    let keep = [
        segment_fd.as_fd(),
        journal.file().as_fd(),
        backing.as_fd(),
        control.as_fd(),
    ];
    alone(&keep).map_err(|e| fail("it cannot be alone", e.desc()))?;

    let waker = Waker(far);
    let notes = journal
        .file()
        .try_clone()
        .map_err(|e| fail("its journal", &crate::reason(&e)))?;
    let notes = Journal::open(notes.into()).map_err(|e| fail("its journal", e.desc()))?;
    let share = Live::new(notes.share().unwrap_or_default());
    let runner = watch(control.into(), waker, notes, share.clone())
        .map_err(|e| fail("no thread", &e.to_string()))?;
    let threads = |e: std::io::Error| fail("no thread", &crate::reason(&e));
    let disk = if args.disk {
        Some(Disk::new(backing.into(), waker).map_err(threads)?)
    } else {
        None
    };
    let tenant = tenant_id(far);
    // The runner may change the bound while the tenant runs.
    let bounds = journal
        .file()
        .try_clone()
        .map_err(|e| fail("its journal", &crate::reason(&e)))?;
    let bounds = Journal::open(bounds.into()).map_err(|e| fail("its journal", e.desc()))?;
    let slabs = args.slabs;
    let setup = Setup {
        far,
        tenant,
        name: format!("{:016x}", u128::from_be_bytes(tenant) >> 64),
        key,
        slabs: Box::new(move || match bounds.slabs_max() {
            0 => slabs,
            noted => noted as usize,
        }),
        spin: Duration::from_nanos(args.spin.ns),
        say: |line| say(line),
        share,
    };
    let lanes = Lanes::new().with_timeliness(args.timeliness.is_on());
    let mut orphan = Orphan::default();
    let is_over = || match runner.load(SeqCst) {
        RUNS => false,
        OVER => true,
        _ => orphan.is_over(segment, far),
    };
    if args.servers.is_empty() && args.seeds.is_empty() {
        let disk = disk.ok_or_else(|| fail("its flags", "there is neither a server nor a disk"))?;
        Agent::new(setup, disk).serve(lanes, is_over);
    } else {
        let key = match journal.cluster_key() {
            Some(line) => {
                ClusterKey::from_line(&line).map_err(|e| fail("the key of the servers", e))?
            }
            None => ClusterKey::without_secret(),
        };
        // It lives as long as the agent serves.
        let finder = Finder::start(&args.seeds, &key).map_err(|why| fail("its gossip", &why))?;
        let found = finder.as_ref().map(|f| f.follow(waker));
        let config = copies::Config {
            servers: args.servers.clone(),
            found,
            key,
            policy: Policy {
                donors: args.donors,
                disk: args.disk,
            },
            sealer: Sealer::new(&setup.key, tenant),
            links: args.links,
        };
        let store = Copies::new(far, tenant, config, journal, disk, waker).map_err(threads)?;
        let mut agent = Agent::new(setup, store);
        agent.serve(lanes, is_over);
        agent.leave();
    }
    Ok(exit::OK)
}

/// A session and a directory of its own; no descriptors but the standard three and `keep`.
fn alone(keep: &[BorrowedFd]) -> Result<(), Errno> {
    // EPERM: it leads a session already, when it was started by hand.
    let _ = nix::unistd::setsid();
    nix::unistd::chdir("/")?;
    // A limit on file sizes is an error like any other full disk.
    SigSet::from_iter([Signal::SIGXFSZ]).thread_block()?;
    let open = fs::read_dir("/proc/self/fd").map_err(|_| Errno::ENOENT)?;
    let numbers: Vec<RawFd> = open
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let keeps = |n: RawFd| (0..=2).contains(&n) || keep.iter().any(|fd| fd.as_raw_fd() == n);
    for number in numbers.into_iter().filter(|n| !keeps(*n)) {
        // The directory's own is closed by now.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

/// Reads what the runner says; the result holds whether it is there. It also says that `notes` have
/// another share.
fn watch(
    mut control: File,
    waker: Waker,
    notes: Journal,
    share: Live,
) -> std::io::Result<Arc<AtomicU8>> {
    let state = Arc::new(AtomicU8::new(RUNS));
    let ours = state.clone();
    std::thread::Builder::new()
        .name("runner".to_owned())
        .spawn(move || {
            let mut byte = [0];
            let said = loop {
                match control.read(&mut byte) {
                    Ok(1) if byte[0] == SHARE_CHANGED => {
                        share.set(notes.share().unwrap_or_default());
                        waker.wake();
                    }
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    said => break matches!(said, Ok(1)),
                }
            };
            state.store(if said { OVER } else { GONE }, SeqCst);
            waker.wake();
        })?;
    Ok(ours)
}
