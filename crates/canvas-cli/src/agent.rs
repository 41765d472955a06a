//! `canvas agent`: the host's agent, from its flags.

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
use canvas_agent::dispatch::Dispatch;
use canvas_agent::finder::Finder;
use canvas_agent::replicas::Policy;
use canvas_control::terms::Terms;
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
use crate::{config, options, signals};

/// Serves until a signal or the next agent ends it.
pub fn run(args: &AgentArgs) -> Result<i32, Failure> {
    let fail = |why: &dyn Display| Failure::usage(format!("agent: {why}"));
    // It has keys.
    let _ = nix::sys::prctl::set_dumpable(false);
    // Before the first thread, so that none of them ever gets one.
    let signals = signals().map_err(|e| fail(&format!("signals cannot be had: {}", e.desc())))?;
    let Settled { terms, shared } = match &args.config {
        Some(file) => config::settled(file)?,
        None => Settled::default(),
    };
    let service = service(args, terms)?;
    let slabs_max = slabs(args.far_max)?;
    let memory = HostMemory {
        pool: HostPool::new(args.pool, &service.terms).map_err(Failure::usage)?,
        shared: HostShared::new(shared, &service.terms).map_err(Failure::usage)?,
    };
    // All that can be wrong, before another agent is asked to leave.
    let group = args.group.as_deref().map(socket::group).transpose();
    let group = group.map_err(|e| fail(&e))?;
    let path = match &args.socket {
        Some(path) => path.clone(),
        None => socket::own_path().map_err(|e| fail(&e))?,
    };
    daemon::run(daemon::Config {
        path,
        replace: args.replace,
        group,
        service,
        slabs_max,
        memory,
        warm: args.warm,
        spin: Duration::from_nanos(args.spin.ns),
        threads: args.threads.width(),
        dispatch: Dispatch::new().with_timeliness(args.timeliness.is_on()),
        signals,
    })?;
    Ok(exit::OK)
}

/// What it does for its tenants.
fn service(args: &AgentArgs, terms: BTreeMap<String, Terms>) -> Result<Service, Failure> {
    let usage = |f: Failure| Failure::usage(f.sentence);
    let servers = options::servers(&args.servers, args.key_file.is_some()).map_err(usage)?;
    let seeds = options::seeds(&args.seeds, args.key_file.is_some()).map_err(usage)?;
    let gossip = !seeds.is_empty();
    let policy: Policy = options::policy(args.copies, servers.len(), gossip).map_err(usage)?;
    let key = match &args.key_file {
        Some(file) if !servers.is_empty() || gossip => {
            ClusterKey::read(file).map_err(Failure::usage)?
        }
        _ => ClusterKey::without_secret(),
    };
    let dirs = options::far_dirs(&args.far_dir).map_err(Failure::usage)?;
    let dirs = match (dirs.is_empty(), policy.disk) {
        (true, false) => Vec::new(),
        (true, true) => vec![far_dir(None)?],
        (false, _) => {
            let dirs = dirs.into_iter().map(|dir| far_dir(Some(dir)));
            dirs.collect::<Result<_, _>>()?
        }
    };
    let finder = Finder::start(&seeds, &key)
        .map_err(|why| Failure::usage(format!("agent: its gossip: {why}")))?;
    Ok(Service {
        finder,
        dirs,
        reserve: args.disk_reserve.far_reserve,
        servers,
        key,
        policy,
        terms,
    })
}

fn far_dir(dir: Option<PathBuf>) -> Result<FarDir, Failure> {
    let fail = |dir: &Path, e: std::io::Error| {
        Failure::usage(format!(
            "far memory cannot be kept in {}: {}; write another directory after --far-dir",
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
fn slabs(far_max: Option<Size>) -> Result<usize, Failure> {
    match far_max {
        None => Ok(usize::MAX),
        Some(size) if size.bytes < SLAB_BYTES as u64 => Err(Failure::usage(format!(
            "--far-max {size} is less than a tenant can have; write 64M or more"
        ))),
        Some(size) => Ok((size.bytes / SLAB_BYTES as u64) as usize),
    }
}

fn signals() -> Result<SignalFd, Errno> {
    // A limit on file sizes is an error like any other full disk.
    SigSet::from(Signal::SIGXFSZ).thread_block()?;
    signals::ends()
}
