//! `canvas agent`: starts the host's agent according to its flags.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use canvas_agent::daemon::memory::HostMemory;
use canvas_agent::daemon::pool::HostPool;
use canvas_agent::daemon::shared::HostShared;
use canvas_agent::daemon::tenant::{FarDir, Service};
use canvas_agent::daemon::{self, socket};
use canvas_agent::disk;
use canvas_agent::dispatch::{Dispatch, THREADS_MAX};
use canvas_agent::finder::Finder;
use canvas_control::settings::table::*;
use canvas_control::settings::{Settings, Threads};
use canvas_control::terms::Terms;
use canvas_place::threads::Width;
use canvas_shm::far::SLAB_BYTES;
use canvas_types::exit;
use canvas_types::units::Size;
use canvas_wire::key::ClusterKey;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;

use crate::args::AgentArgs;
use crate::config::Settled;
use crate::error::Failure;
use crate::options::Places;
use crate::{config, options, signals};

/// Serves until a signal or the next agent ends it.
pub fn run(args: &AgentArgs) -> Result<i32, Failure> {
    let fail = |why: &dyn Display| Failure::usage(format!("agent: {why}"));
    // It holds keys.
    let _ = nix::sys::prctl::set_dumpable(false);
    // Before the first thread, so that all threads block these signals.
    let signals =
        signals().map_err(|e| fail(&format!("signals cannot be received: {}", e.desc())))?;
    let Settled { terms, shared } = match &args.config {
        Some(file) => config::settled(file)?,
        None => Settled::default(),
    };
    let given = &args.settings;
    let service = service(given, terms)?;
    let memory = HostMemory {
        pool: HostPool::new(given.get(POOL), &service.terms).map_err(Failure::usage)?,
        shared: HostShared::new(shared, &service.terms).map_err(Failure::usage)?,
    };
    // Check everything before another agent is asked to hand over.
    let group = given.get(GROUP).as_deref().map(socket::group).transpose();
    let group = group.map_err(|e| fail(&e))?;
    let path = match given.get(SOCKET) {
        Some(path) => path,
        None => socket::own_path().map_err(|e| fail(&e))?,
    };
    daemon::run(daemon::Config {
        path,
        replace: args.replace,
        group,
        service,
        slabs_max: given.get(FAR).map_or(usize::MAX, slabs),
        memory,
        warm: given.value(WARM),
        spin: Duration::from_nanos(given.value(SPIN).ns),
        threads: width(given.value(THREADS)),
        dispatch: Dispatch::new().with_timeliness(given.value(TIMELINESS).0),
        signals,
    })?;
    Ok(exit::OK)
}

/// The number of threads on this host.
fn width(threads: Threads) -> Width {
    match threads {
        Threads::Auto => {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            Width::Elastic(processors.min(THREADS_MAX))
        }
        Threads::Fixed(n) => Width::Fixed(n),
    }
}

/// The agent's configuration for its tenants.
fn service(given: &Settings, terms: BTreeMap<String, Terms>) -> Result<Service, Failure> {
    let usage = |f: Failure| Failure::usage(f.sentence);
    let to = Places::of(given);
    let key_file = given.get(KEY_FILE);
    let servers = options::donors(&to.donors, key_file.is_some()).map_err(usage)?;
    let seeds = options::members("--to gossip:", &to.gossip, key_file.is_some()).map_err(usage)?;
    let gossip = !seeds.is_empty();
    let policy = options::policy(given.get(COPIES), servers.len(), gossip).map_err(usage)?;
    let key = match &key_file {
        Some(file) if !servers.is_empty() || gossip => {
            ClusterKey::read(file).map_err(Failure::usage)?
        }
        _ => ClusterKey::without_secret(),
    };
    let dirs = match (to.dirs.is_empty(), policy.disk) {
        (true, false) => Vec::new(),
        (true, true) => vec![far_dir(None)?],
        (false, _) => {
            let dirs = to.dirs.into_iter().map(|dir| far_dir(Some(dir)));
            dirs.collect::<Result<_, _>>()?
        }
    };
    let finder = Finder::start(&seeds, &key)
        .map_err(|why| Failure::usage(format!("agent: its gossip: {why}")))?;
    Ok(Service {
        finder,
        dirs,
        reserve: given.get(FAR_RESERVE),
        servers,
        key,
        policy,
        terms,
    })
}

fn far_dir(dir: Option<PathBuf>) -> Result<FarDir, Failure> {
    let fail = |dir: &Path, e: std::io::Error| {
        Failure::usage(format!(
            "far memory cannot be kept in {}: {}; write another directory: --to disk:DIR",
            dir.display(),
            crate::reason(&e)
        ))
    };
    let dir = match dir {
        Some(dir) => dir,
        None => {
            let dir = disk::default_dir();
            std::fs::create_dir_all(&dir).map_err(|e| fail(&dir, e))?;
            dir
        }
    };
    FarDir::open(&dir).map_err(|e| fail(&dir, e))
}

/// Slabs of all tenants together.
fn slabs(far_max: Size) -> usize {
    (far_max.bytes / SLAB_BYTES as u64) as usize
}

fn signals() -> Result<SignalFd, Errno> {
    // Without the signal, a limit on file sizes is an error like a full disk.
    SigSet::from(Signal::SIGXFSZ).thread_block()?;
    signals::ends()
}
