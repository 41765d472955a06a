//! `canvas agent`: one agent for all tenants of a host.
//!
//! | module | has |
//! |---|---|
//! | [`hello`] | the messages at its socket |
//! | [`socket`] | where it listens, and who may connect |
//! | [`tenant`] | a tenant's descriptors, judged, and what serves it |
//! | [`door`] | connections and tenants |
//! | [`pool`] | one pool for all tenants, by swap traffic |
//! | [`replace`] | one agent takes another one's tenants over |
//! | [`terms`] | what the operator settles for a tenant |
//! | [`flags`] | the same, out of the agent's file and into a run's flags |
//! | [`link`] | the other side: a runner's connection |
//! | [`join`] | the same: how a run begins, alone or in a tenant that is there |

mod door;
mod flags;
pub mod hello;
pub mod join;
pub mod link;
pub mod pool;
mod replace;
pub mod socket;
mod tenant;
pub mod terms;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use canvas_agent::copies::Policy;
use canvas_agent::lanes::Lanes;
use canvas_shm::far::SLAB_BYTES;
use canvas_types::exit;
use canvas_types::units::Size;
use canvas_wire::key::ClusterKey;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;

use crate::args::AgentArgs;
use crate::error::{Failure, say};
use crate::finder::Finder;
use crate::{config, far, options, signals};
use door::{Door, End};
use pool::HostPool;
use replace::Taken;
use socket::Listening;
use tenant::{FarDir, Service, Tenant};

/// Serves until a signal or the next agent ends it.
pub fn run(args: &AgentArgs) -> Result<i32, Failure> {
    let fail = |sentence: String| Failure::usage(format!("agent: {sentence}"));
    // Before the first thread, so that none of them ever gets one.
    let signals = signals().map_err(|e| fail(format!("signals cannot be had: {}", e.desc())))?;
    let service = service(args)?;
    let slabs_max = slabs(args.far_max)?;
    let pool = HostPool::new(args.pool, &service.terms)?;
    // All that can be wrong, before another agent is asked to leave.
    let group = args.group.as_deref().map(socket::group).transpose();
    let group = group.map_err(fail)?;
    let path = match &args.socket {
        Some(path) => path.clone(),
        None => socket::own_path().map_err(fail)?,
    };
    // A tenant has up to seven descriptors, and two a server.
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    let Taken { listening, tenants } = listen(&path, args.replace)?;
    if let Err(why) = socket::permit(&path, group) {
        // Those of an agent that has left go on: their runners ask again.
        let _ = std::fs::remove_file(&path);
        return Err(fail(why));
    }
    let spin = Duration::from_nanos(args.spin.ns);
    let lanes = Lanes::new().with_timeliness(args.timeliness.is_on());
    let mut door = Door::new(service, slabs_max, pool, spin, lanes, listening, signals)
        .map_err(|e| fail(format!("there is no thread: {}", crate::reason(&e))))?;
    let n = tenants.len();
    for (given, fds) in tenants {
        let name = given.hello.name.clone();
        let added = Tenant::given(given, fds, door.service())
            .and_then(|(tenant, links)| door.add(tenant, links));
        if let Err(why) = added {
            say(format_args!("agent: tenant {name} is not served: {why}"));
        }
    }
    door.begin_pools();
    say(format_args!(
        "agent: listening at {}{}",
        path.display(),
        match n {
            0 => String::new(),
            n => format!(", {n} tenants taken over"),
        }
    ));
    match door.serve() {
        End::Signal(signal) => {
            let _ = std::fs::remove_file(&path);
            say(format_args!(
                "agent: {signal}: ending; {} tenants wait for another agent",
                door.seated.len()
            ));
        }
        End::Replaced => say("agent: another one has taken over"),
    }
    Ok(exit::OK)
}

/// Listens at `path`, with the tenants of the agent that did before.
fn listen(path: &Path, replace: bool) -> Result<Taken, Failure> {
    if replace {
        match replace::take(path) {
            Ok(Some(taken)) => return Ok(taken),
            Ok(None) => {}
            Err(why) => {
                return Err(Failure {
                    code: exit::NEGATIVE,
                    sentence: format!(
                        "agent: the one at {} is not replaced and goes on: {why}",
                        path.display()
                    ),
                });
            }
        }
    }
    match Listening::open(path) {
        Ok(Some(listening)) => Ok(Taken {
            listening,
            tenants: Vec::new(),
        }),
        Ok(None) => Err(Failure::usage(format!(
            "agent: there is one at {} already; write --replace to take its tenants over, or another place after --socket",
            path.display()
        ))),
        Err(e) => Err(Failure::usage(format!(
            "agent: {} cannot be listened at: {}; write another place after --socket",
            path.display(),
            crate::reason(&e)
        ))),
    }
}

/// What it does for its tenants.
fn service(args: &AgentArgs) -> Result<Service, Failure> {
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
    let dir = match (&args.far_dir, policy.disk) {
        (None, false) => None,
        (dir, _) => Some(far_dir(dir.clone())?),
    };
    let terms = match &args.config {
        Some(file) => config::tenants(file)?,
        None => BTreeMap::new(),
    };
    let finder = Finder::start(&seeds, &key)
        .map_err(|why| Failure::usage(format!("agent: its gossip: {why}")))?;
    Ok(Service {
        finder,
        dir,
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
            let dir = far::default_dir();
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
