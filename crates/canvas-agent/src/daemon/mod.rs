//! The host's agent: one for all tenants of a host.
//!
//! | module | has |
//! |---|---|
//! | [`socket`] | where it listens, and who may connect |
//! | [`tenant`] | a tenant's descriptors, judged, and what serves it |
//! | [`listener`] | connections and tenants |
//! | [`threads`] | the threads that serve, and which tenants each has |
//! | [`pool`] | one pool for all tenants, by swap traffic |
//! | [`shared`] | one bound for all tenants on memory that forks share, by use |
//! | [`memory`] | both of these |
//! | [`prepared`] | tenants for runs to come |
//! | [`replace`] | one agent takes another one's tenants over |
//! | [`error`] | why not, of all of these |

pub mod error;
pub mod listener;
pub mod memory;
pub mod pool;
pub mod prepared;
pub mod replace;
pub mod shared;
pub mod socket;
pub mod tenant;
pub mod threads;

use std::path::{Path, PathBuf};
use std::time::Duration;

use canvas_place::threads::Width;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signalfd::SignalFd;
use nix::sys::stat::{Mode, umask};
use nix::unistd::Gid;
use tracing::{error, info};

use crate::dispatch::Dispatch;
use error::DaemonError;
use listener::{End, Listener};
use memory::HostMemory;
use replace::Handover;
use socket::ListeningSocket;
use tenant::{Service, Tenant};
use threads::ServingThreads;

/// Configuration of the host's agent.
pub struct Config {
    /// The socket's path.
    pub path: PathBuf,
    /// Take over from the agent that listens there.
    pub replace: bool,
    /// The group whose members may connect; without one, only the agent's own user.
    pub group: Option<Gid>,
    /// The configuration for tenants.
    pub service: Service,
    /// Slabs of all tenants together.
    pub slabs_max: usize,
    /// The host's memory that tenants share.
    pub memory: HostMemory,
    /// Number of prepared tenants, up to [`prepared::WARM_MAX`].
    pub warm: u8,
    /// How long a thread polls for requests before it sleeps.
    pub spin: Duration,
    /// The dispatcher.
    pub dispatch: Dispatch,
    /// Number of serving threads.
    pub threads: Width,
    /// The signals that end it.
    pub signals: SignalFd,
}

/// Raises this process's limit on open descriptors to its hard limit.
pub fn raise_descriptors() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Serves until a signal or the next agent ends it.
pub fn run(config: Config) -> Result<(), DaemonError> {
    let path = config.path;
    // A tenant has up to seven descriptors, and two for each donor.
    raise_descriptors();
    // Files that the agent creates from here on are its user's alone, unless it sets other modes.
    umask(Mode::from_bits_retain(0o077));
    let Handover { listening, tenants } = listen(&path, config.replace)?;
    if let Err(why) = socket::permit(&path, config.group) {
        // Tenants of a replaced agent live on: their runners connect again.
        listening.remove(&path);
        return Err(why.into());
    }
    let threads = ServingThreads::start(config.threads, config.spin, config.dispatch)
        .map_err(DaemonError::Thread)?;
    let mut listener = Listener::new(
        config.service,
        config.slabs_max,
        config.memory,
        threads,
        listening,
        config.signals,
    );
    let n = tenants.len();
    for (given, fds) in tenants {
        let name = given.hello.name.clone();
        let added = Tenant::given(given, fds, listener.service())
            .and_then(|(tenant, links)| listener.add(tenant, links));
        if let Err(why) = added {
            error!(tenant = %name, "the tenant is not served: {why}");
        }
    }
    listener.begin_memory();
    listener.keep_warm(config.warm);
    info!(
        "listening at {}{}",
        path.display(),
        match n {
            0 => String::new(),
            n => format!("; tenants taken over: {n}"),
        }
    );
    match listener.serve() {
        End::Signal(signal) => {
            listener.listening.remove(&path);
            info!(
                "{signal}: ending; tenants that wait for another agent: {}",
                listener.entries.len()
            );
        }
        End::Replaced => info!("another one has taken over"),
    }
    Ok(())
}

/// Listens at `path`, with the tenants of the previous agent.
fn listen(path: &Path, replace: bool) -> Result<Handover, DaemonError> {
    if replace {
        match replace::take_over(path) {
            Ok(Some(taken)) => return Ok(taken),
            Ok(None) => {}
            Err(source) => {
                let path = path.to_owned();
                return Err(DaemonError::NotReplaced { path, source });
            }
        }
    }
    match ListeningSocket::open(path) {
        Ok(Some(listening)) => Ok(Handover {
            listening,
            tenants: Vec::new(),
        }),
        Ok(None) => Err(DaemonError::Occupied(path.to_owned())),
        Err(source) => {
            let path = path.to_owned();
            Err(DaemonError::Listen { path, source })
        }
    }
}
