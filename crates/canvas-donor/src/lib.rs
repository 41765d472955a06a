//! The memory server: lends slabs of this host's memory to clients of the far pool.
//!
//! ```text
//!  listener ──► a thread a link ──► slab (anonymous map, lock of its own)
//!                 │        ▲
//!      registry ◄─┘        │ calls (eviction)
//!         ▲                │
//!         └──── keeper: every 100 ms: samples memory, ends leases, evicts, writes the state file
//! ```
//!
//! * [`slab`]: the memory of one slab and what of it was written;
//! * [`registry`]: who has which slab; leases; what is on its way out. One lock, never held over a
//!   system call that can wait, and not taken by reads and writes of slabs that a link knows;
//! * [`link`]: the thread of a link, from handshake to end;
//! * `lanes`: who reads from programs' own connections; [`link`] has their threads as well;
//! * [`keeper`]: the watch over memory, leases and evictions;
//! * [`state`], [`log`]: what an operator sees;
//! * [`StartError`]: why there is no server.
//!
//! When the host's memory ends before clients have moved what is evicted, the keeper frees slabs at once
//! ([`canvas_place::early`]): a donor that the kernel kills loses all of them.
//!
//! Nothing that a client does or leaves undone blocks another one: a link that does not take its
//! answers is not read any more, and is closed when it is silent for its lease; an eviction waits for
//! its deadline and not for its client. A link that replaces older ones waits, before its client is
//! welcomed, for the one message of each that is being served (`Outbox::fence`), and not for its client.
#![forbid(unsafe_code)]

mod error;
pub mod handshakes;
mod keeper;
mod lanes;
pub mod link;
pub mod log;
mod outbox;
mod rdma;
pub mod registry;
mod server;
pub mod slab;
pub mod state;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use canvas_wire::key::ClusterKey;

pub use error::StartError;
pub use lanes::{LANES_OF_A_CLIENT_MAX, TICKET_TIME};
pub use server::Server;
pub use state::State;

/// What a server is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Most that it lends.
    pub memory_bytes: u64,
    /// What it leaves to its host in any case; a tenth of the host's memory when not given.
    pub reserve_bytes: Option<u64>,
    /// The pool's key. Without one the server takes everybody, and only on the loopback device.
    pub key: Option<ClusterKey>,
    /// How long slabs are kept after their client's last sign of life, at most.
    pub lease: Duration,
    /// How long a client has to move slabs that are evicted.
    pub evict_within: Duration,
    /// How long a link's thread looks for more after traffic before it sleeps.
    pub spin: Duration,
    /// Where the state is written once a second.
    pub state_json: Option<PathBuf>,
    /// Where `meminfo` is, and what says of this process in which control groups it is (`/proc`).
    pub procfs: PathBuf,
    /// Links at one time, without those that are still shaking hands.
    pub links_max: usize,
    /// Slabs are lent over RDMA, too, to clients that ask for it.
    pub rdma: bool,
}

/// Shortest lease that a client gets, unless the server's own is shorter.
pub const LEASE_MIN: Duration = Duration::from_millis(500);
/// Links of one client.
pub const LINKS_OF_A_CLIENT_MAX: usize = 16;
/// Links that are still shaking hands, at one time.
pub const HANDSHAKES_MAX: usize = 64;
/// Time for handshake and Hello together.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(2);
/// Time between two looks of the keeper.
pub const TICK: Duration = Duration::from_millis(100);
/// The same while the host's memory is near its end.
pub const TICK_NEAR: Duration = Duration::from_millis(20);
/// How long the keeper waits for clients to say how much their slabs are used.
pub const QUERY_TIME: Duration = Duration::from_millis(200);
/// Bytes of answers that wait for a client before its requests are not read any more.
pub const UNSENT_BYTES_MAX: usize = 1 << 20;
