//! The agent process of a run: `canvas agent-worker`, started by [`crate::far`].
//!
//! In a session of its own, so that no terminal stops or ends it, and with no descriptor of the
//! user's but standard error. It ends when its runner says so, or when the runner is gone and the
//! tenant has no process any more.

use std::fs::{self, File};
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use canvas_agent::agent::tenant_id;
use canvas_agent::copies::{self, Copies, Policy};
use canvas_agent::disk::Disk;
use canvas_agent::idle::Waker;
use canvas_agent::journal::Journal;
use canvas_agent::seal::Sealer;
use canvas_agent::{Agent, Setup};
use canvas_gossip::Gossip;
use canvas_shm::{Far, Segment};
use canvas_types::exit;
use canvas_wire::key::ClusterKey;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};

use crate::args::WorkerArgs;
use crate::error::{Failure, say};
use crate::far::{BACKING_FD, FDS_END, JOURNAL_FD, SEGMENT_FD};
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
    let runner = watch(control.into(), waker).map_err(|e| fail("no thread", &e.to_string()))?;
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
        key,
        slabs: Box::new(move || match bounds.slabs_max() {
            0 => slabs,
            noted => noted as usize,
        }),
        spin: Duration::from_nanos(args.spin.ns),
        say: |line| say(line),
    };
    let mut orphan = Orphan::default();
    let is_over = || match runner.load(SeqCst) {
        RUNS => false,
        OVER => true,
        _ => orphan.is_over(segment, far),
    };
    if args.servers.is_empty() && args.seeds.is_empty() {
        let disk = disk.ok_or_else(|| fail("its flags", "there is neither a server nor a disk"))?;
        Agent::new(setup, disk).serve(is_over);
    } else {
        let key = match journal.cluster_key() {
            Some(line) => {
                ClusterKey::from_line(&line).map_err(|e| fail("the key of the servers", e))?
            }
            None => ClusterKey::without_secret(),
        };
        // It lives as long as the agent serves.
        let (_gossip, found) = match args.seeds.first() {
            Some(seed) => {
                let (gossip, found) = listen(args, *seed, key.clone(), waker)
                    .map_err(|why| fail("its gossip", &why))?;
                (Some(gossip), Some(found))
            }
            None => (None, None),
        };
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
        Agent::new(setup, store).serve(is_over);
    }
    Ok(exit::OK)
}

/// Listens to the gossip of donors; the agent learns of those that live.
fn listen(
    args: &WorkerArgs,
    seed: SocketAddr,
    key: ClusterKey,
    waker: Waker,
) -> Result<(Gossip, Receiver<SocketAddr>), String> {
    let (tell, found) = channel();
    // Without a secret only this host is believed.
    let this_host = key == ClusterKey::without_secret();
    let ip: IpAddr = match seed.ip() {
        IpAddr::V4(ip) if ip.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_loopback() => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let gossip = Gossip::start(canvas_gossip::Config {
        listen: SocketAddr::new(ip, 0),
        seeds: args.seeds.clone(),
        key,
        lends: None,
        changed: Box::new(move |members| {
            for member in members.iter().filter(|m| m.live) {
                let addr = member.donor.addr;
                if !this_host || addr.ip().is_loopback() {
                    let _ = tell.send(addr);
                }
            }
            waker.wake();
        }),
    })?;
    Ok((gossip, found))
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

/// Reads what the runner says; the result holds it.
fn watch(mut control: File, waker: Waker) -> std::io::Result<Arc<AtomicU8>> {
    let state = Arc::new(AtomicU8::new(RUNS));
    let ours = state.clone();
    std::thread::Builder::new()
        .name("runner".to_owned())
        .spawn(move || {
            let mut byte = [0];
            let said = matches!(control.read(&mut byte), Ok(1));
            state.store(if said { OVER } else { GONE }, SeqCst);
            waker.wake();
        })?;
    Ok(ours)
}
