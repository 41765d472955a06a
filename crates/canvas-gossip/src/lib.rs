//! Membership of donors without a central list: each donor announces what it lends, and every
//! member passes on what it has heard (scuttlebutt, by the crate `chitchat`).
//!
//! A new member knows one other member (a seed) and learns the rest within a few rounds of half a
//! second. Gossip is never on the path of a page: its own thread runs a tokio runtime, and callers
//! read the last known state. Gossip only brings donors and clients together. A donor that gossip
//! declares dead loses no slab by that: links decide.
//!
//! Datagrams are sealed with a key derived from the cluster key ([`seal`]). A sender without that
//! key gets no answer.
#![forbid(unsafe_code)]

mod error;
pub mod seal;
mod socket;

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use canvas_wire::key::{ClusterKey, random_bytes};
use chitchat::{
    ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, NodeState, spawn_chitchat,
};
use tokio::sync::Notify;

pub use error::GossipError;
use socket::SealedUdp;

/// Time between two rounds.
pub const ROUND: Duration = Duration::from_millis(500);
/// Threshold of the failure detector (phi accrual, Hayashibara et al., 2004): how unlikely a
/// member's silence must be, given its usual rhythm, before it counts as dead.
const PHI: f64 = 8.0;
/// Dead members are forgotten after this time, since members come and go.
const FORGET: Duration = Duration::from_secs(600);

/// Keys of a member's state.
mod field {
    pub const LENDS: &str = "lends";
    pub const FREE: &str = "free_bytes";
    pub const LENT: &str = "lent_bytes";
    pub const VERSION: &str = "version";
    pub const STARTED: &str = "started";
}

/// A donor's announcement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Donor {
    /// Address where it lends.
    pub addr: SocketAddr,
    /// Memory that it could lend, in bytes.
    pub free_bytes: u64,
    /// Memory that it lends, in bytes.
    pub lent_bytes: u64,
    /// Its version of canvas.
    pub version: String,
    /// Time of its start, in seconds since 1970.
    pub started_s: u64,
}

/// A donor as other members know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its latest announcement.
    pub donor: Donor,
    /// Whether it was heard of, directly or not, within its usual time.
    pub live: bool,
}

/// Configuration for [`Gossip::start`].
pub struct Config {
    /// UDP address to listen on. Port 0 takes a free one. For an unspecified address (0.0.0.0) the
    /// others are given the address that reaches the first seed.
    pub listen: SocketAddr,
    /// Known members, a host and a port each. Names are resolved again and again, and all their
    /// addresses are contacted.
    pub seeds: Vec<String>,
    /// The cluster key.
    pub key: ClusterKey,
    /// Address where this member lends, if it does. If unspecified: the address of the gossip.
    pub lends: Option<SocketAddr>,
    /// Called from the gossip's thread with the known donors when they have changed.
    pub changed: Changed,
}

/// Receives changes of the known donors.
pub type Changed = Box<dyn Fn(&[Member]) + Send>;

#[derive(Default)]
struct Shared {
    members: Mutex<Vec<Member>>,
    /// Free and lent bytes to announce.
    own: Mutex<(u64, u64)>,
    own_changed: Notify,
    end: Notify,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running member. Dropping it ends it; the others notice its silence.
pub struct Gossip {
    shared: Arc<Shared>,
    listening: SocketAddr,
    refused: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Gossip {
    /// Starts the gossip's thread.
    pub fn start(config: Config) -> Result<Gossip, GossipError> {
        let listen = config.listen;
        let socket = UdpSocket::bind(listen).map_err(|source| GossipError::Listen {
            addr: listen,
            source,
        })?;
        let mut listening = socket.local_addr().map_err(GossipError::NoAddress)?;
        if listening.ip().is_unspecified() {
            listening.set_ip(our_ip(&config)?);
        }
        let lends = config.lends.map(|mut addr| {
            if addr.ip().is_unspecified() {
                addr.set_ip(listening.ip());
            }
            addr
        });
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let name: [u8; 8] = random_bytes()?;
        let name: String = name.iter().map(|b| format!("{b:02x}")).collect();
        let chitchat = ChitchatConfig {
            chitchat_id: ChitchatId::new(name, now.as_millis() as u64, listening),
            cluster_id: "canvas".to_owned(),
            gossip_interval: ROUND,
            listen_addr: listen,
            seed_nodes: config.seeds.clone(),
            failure_detector_config: FailureDetectorConfig::new(PHI, 100, 4 * ROUND, ROUND, FORGET),
            marked_for_deletion_grace_period: FORGET,
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let mut state = Vec::new();
        if let Some(addr) = lends {
            let fields = [
                (field::LENDS, addr.to_string()),
                (field::VERSION, env!("CARGO_PKG_VERSION").to_owned()),
                (field::STARTED, now.as_secs().to_string()),
            ];
            state.extend(fields.map(|(name, value)| (name.to_owned(), value)));
        }
        let refused = Arc::new(AtomicU64::new(0));
        let transport = SealedUdp {
            socket,
            key: config.key,
            refused: refused.clone(),
        };
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let (tell, told) = channel();
        let thread = std::thread::Builder::new()
            .name("gossip".to_owned())
            .spawn(move || run(chitchat, state, transport, &theirs, &*config.changed, &tell))
            .map_err(GossipError::Thread)?;
        match told.recv() {
            Ok(Ok(())) => Ok(Gossip {
                shared,
                listening,
                refused,
                thread: Some(thread),
            }),
            Ok(Err(why)) => Err(why),
            Err(_) => Err(GossipError::Ended),
        }
    }

    /// Address at which others reach this member.
    pub fn listening(&self) -> SocketAddr {
        self.listening
    }

    /// Sets what this donor announces: memory it could lend and memory it lends, in bytes.
    pub fn announce(&self, free_bytes: u64, lent_bytes: u64) {
        let mut own = lock(&self.shared.own);
        if *own != (free_bytes, lent_bytes) {
            *own = (free_bytes, lent_bytes);
            self.shared.own_changed.notify_one();
        }
    }

    /// All known donors, including silent ones.
    pub fn members(&self) -> Vec<Member> {
        lock(&self.shared.members).clone()
    }

    /// Number of refused datagrams: sealed with another key, changed, repeated, or no gossip at
    /// all.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }
}

impl Drop for Gossip {
    fn drop(&mut self) {
        self.shared.end.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// This host's address on the route to the first seed.
fn our_ip(config: &Config) -> Result<IpAddr, GossipError> {
    let given = config
        .lends
        .map(|a| a.ip())
        .filter(|ip| !ip.is_unspecified());
    if let Some(ip) = given {
        return Ok(ip);
    }
    let of_our_kind = |ip: &IpAddr| ip.is_ipv4() == config.listen.is_ipv4();
    let found = (addresses(&config.seeds).iter())
        .filter_map(|seed| reached_from(*seed))
        .find(of_our_kind);
    found.ok_or(GossipError::UnknownAddress)
}

/// Addresses that these hosts and ports resolve to now, in this order.
pub fn addresses(names: &[String]) -> Vec<SocketAddr> {
    let all = names.iter().filter_map(|name| name.to_socket_addrs().ok());
    all.flatten().collect()
}

/// This host's address on the route to `addr`, if there is a route. Sends nothing.
pub fn reached_from(addr: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = match addr {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(addr).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Main function of the gossip's thread.
fn run(
    config: ChitchatConfig,
    state: Vec<(String, String)>,
    transport: SealedUdp,
    shared: &Shared,
    changed: &dyn Fn(&[Member]),
    tell: &Sender<Result<(), GossipError>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(e) => {
            let _ = tell.send(Err(GossipError::Runtime(e)));
            return;
        }
    };
    runtime.block_on(async {
        let handle = match spawn_chitchat(config, state, &transport).await {
            Ok(handle) => handle,
            Err(e) => {
                let _ = tell.send(Err(GossipError::Membership(e)));
                return;
            }
        };
        let _ = tell.send(Ok(()));
        loop {
            tokio::select! {
                () = shared.end.notified() => break,
                () = shared.own_changed.notified() => {
                    let (free, lent) = *lock(&shared.own);
                    handle
                        .with_chitchat(|c| {
                            let own = c.self_node_state();
                            own.set(field::FREE, free);
                            own.set(field::LENT, lent);
                        })
                        .await;
                }
                () = tokio::time::sleep(ROUND / 2) => {}
            }
            let now = members(&handle).await;
            if *lock(&shared.members) != now {
                changed(&now);
                *lock(&shared.members) = now;
            }
        }
        let _ = handle.shutdown().await;
    });
}

async fn members(handle: &ChitchatHandle) -> Vec<Member> {
    handle
        .with_chitchat(|c| {
            let live: Vec<ChitchatId> = c.live_nodes().cloned().collect();
            let mut all: Vec<Member> = c
                .node_states()
                .iter()
                .filter_map(|(id, state)| {
                    Some(Member {
                        donor: donor(state)?,
                        live: live.contains(id),
                    })
                })
                .collect();
            // A restarted donor is a new member at an old address: the live one counts, or the
            // latest.
            all.sort_by_key(|m| (m.donor.addr, !m.live, std::cmp::Reverse(m.donor.started_s)));
            all.dedup_by_key(|m| m.donor.addr);
            all
        })
        .await
}

/// Parses a member's announcement, if it lends. Members have the key, but may send invalid values.
fn donor(state: &NodeState) -> Option<Donor> {
    let number = |name| state.get(name).and_then(|v| v.parse().ok()).unwrap_or(0);
    let version = state.get(field::VERSION).unwrap_or("");
    Some(Donor {
        addr: state.get(field::LENDS)?.parse().ok()?,
        free_bytes: number(field::FREE),
        lent_bytes: number(field::LENT),
        version: version.chars().take(40).collect(),
        started_s: number(field::STARTED),
    })
}
