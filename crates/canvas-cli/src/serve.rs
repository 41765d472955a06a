//! `canvas serve`: the donor, from its flags to its end.

mod metrics;

use std::time::{Duration, Instant};

use canvas_donor::{Config, Server};
use canvas_gossip::Gossip;
use canvas_types::exit;
use canvas_wire::key::ClusterKey;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use std::os::fd::AsFd;
use tracing::{info, warn};

use crate::args::ServeArgs;
use crate::error::Failure;
use crate::{options, signals};
use canvas_control::peers::{Asked, Peers};
use canvas_control::settings::table::*;

/// Interval of checking the progress of draining.
const DRAIN_TICK_MS: u16 = 20;
/// Interval of updating the announcement.
const GOSSIP_TICK_MS: u16 = 500;
/// Interval of serving metrics clients.
const PEERS_TICK_MS: u16 = 100;

/// Runs the donor until a signal ends it.
pub fn run(args: &ServeArgs) -> Result<i32, Failure> {
    // It holds the key.
    let _ = nix::sys::prctl::set_dumpable(false);
    let given = &args.settings;
    let missing =
        |key: &str| Failure::usage(format!("--{key} is missing; see `canvas serve --help`"));
    let listen = given.get(LISTEN).ok_or_else(|| missing("listen"))?;
    let memory = given.get(MEMORY).ok_or_else(|| missing("memory"))?;
    let key = match given.get(KEY_FILE) {
        Some(file) => Some(ClusterKey::read(&file).map_err(Failure::usage)?),
        None => None,
    };
    let gossip = given.get(GOSSIP);
    let join = given.get(JOIN).unwrap_or_default();
    if gossip.is_none() && !join.is_empty() {
        return Err(Failure::usage(
            "--join without --gossip has no effect; write --gossip ADDR:PORT too",
        ));
    }
    let seeds = options::members("--join ", &join, key.is_some())
        .map_err(|e| Failure::usage(e.sentence))?;
    if let Some(addr) = gossip
        && key.is_none()
        && !addr.ip().is_loopback()
    {
        return Err(Failure::usage(format!(
            "without a cluster key only this host may gossip; write 127.0.0.1, or give --key-file FILE (`canvas keygen FILE` makes one) to gossip on {}",
            addr.ip()
        )));
    }
    let mut peers = Peers::new();
    if let Some(addr) = given.get(METRICS) {
        peers.offer_metrics(addr).map_err(Failure::usage)?;
    }
    // Each link uses two descriptors.
    canvas_agent::daemon::raise_descriptors();
    // Before the first thread, so that all threads block these signals.
    let signals = signals::ends()
        .map_err(|e| Failure::usage(format!("signals cannot be waited for: {}", e.desc())))?;
    let server = Server::start(Config {
        listen,
        memory_bytes: memory.bytes,
        reserve_bytes: given.get(RESERVE).map(|s| s.bytes),
        key: key.clone(),
        lease: given.value(LEASE).into(),
        evict_within: given.value(EVICT_WITHIN).into(),
        spin: given.value(SPIN).into(),
        state_json: given.get(STATE_JSON),
        procfs: given.value(PROCFS),
        links_max: usize::from(given.value(CONNECTIONS)),
        rdma: given.value(RDMA).0,
    })
    .map_err(Failure::usage)?;
    let gossip = match gossip {
        Some(listen) => Some(
            Gossip::start(canvas_gossip::Config {
                listen,
                seeds,
                key: key.unwrap_or_else(ClusterKey::without_secret),
                lends: Some(server.listening()),
                changed: Box::new(|_| ()),
            })
            .map_err(Failure::usage)?,
        ),
        None => None,
    };
    let gossips = gossip
        .as_ref()
        .map_or_else(String::new, |g| format!(", gossip on {}", g.listening()));
    info!(
        "listening on {}, lending up to {} MiB, leaving {} MiB to this host{gossips}",
        server.listening(),
        memory.bytes >> 20,
        server.reserve_bytes() >> 20
    );
    let signal = loop {
        if let Some(gossip) = &gossip {
            let (free, lent) = server.free_and_lent_bytes();
            gossip.announce(free, lent);
        }
        let tick = gossip.as_ref().map(|_| GOSSIP_TICK_MS);
        let signal = wait(&signals, tick, &mut peers, &server);
        if signal.is_some() {
            break signal;
        }
    };
    let drain = Duration::from(given.value(DRAIN));
    let lent = server.drain(drain);
    if let Some(gossip) = &gossip {
        let (free, lent) = server.free_and_lent_bytes();
        gossip.announce(free, lent);
    }
    if let Some(signal) = signal {
        info!("{signal}: ending; slabs lent: {lent}");
    }
    let until = Instant::now() + drain;
    while server.lent_slabs() > 0 && Instant::now() < until {
        if wait(&signals, Some(DRAIN_TICK_MS), &mut peers, &server).is_some() {
            break;
        }
    }
    let left = server.lent_slabs();
    if left > 0 {
        warn!("slabs freed before their clients moved them: {left}");
    }
    server.stop();
    Ok(exit::OK)
}

/// Waits up to `ms` (forever if `None`) for a signal, and serves metrics clients meanwhile.
fn wait(
    signals: &SignalFd,
    ms: Option<u16>,
    peers: &mut Peers,
    server: &Server,
) -> Option<&'static str> {
    let until = ms.map(|ms| Instant::now() + Duration::from_millis(ms.into()));
    loop {
        if let Ok(Some(info)) = signals.read_signal() {
            return Some(
                Signal::try_from(info.ssi_signo as i32).map_or("a signal", Signal::as_str),
            );
        }
        let own = PollFd::new(signals.as_fd(), PollFlags::POLLIN);
        let mut fds: Vec<_> = [own].into_iter().chain(peers.poll_fds()).collect();
        // Slow clients are disconnected in time.
        let limit = if peers.any() {
            Some(PEERS_TICK_MS)
        } else {
            None
        };
        let timeout = ms.into_iter().chain(limit).min();
        // An error is either over in the next round, or found again.
        let _ = poll(
            &mut fds,
            timeout.map_or(PollTimeout::NONE, PollTimeout::from),
        );
        drop(fds);
        peers.serve(|asked| match asked {
            Asked::Metrics => metrics::of_server(server.state()),
            // There is no control socket.
            Asked::Line(_) => String::new(),
        });
        if until.is_some_and(|t| Instant::now() >= t) {
            return None;
        }
    }
}
