//! The donor: lends slabs of this host's memory to clients.
//!
//! ```text
//!  listener ──► a thread a link ──► slab (anonymous map, lock of its own)
//!                 │        ▲
//!      registry ◄─┘        │ calls (eviction)
//!         ▲                │
//!         └──── watchdog: every 100 ms: samples memory, ends leases, evicts, writes the state file
//! ```
//!
//! * [`slab`]: the memory of one slab, and which of its pages were written;
//! * [`registry`]: which client has which slab; leases; slabs being evicted. One lock, never held
//!   over a system call that can block, and not taken by reads and writes of slabs that a link
//!   knows;
//! * [`link`]: the thread of a link, from handshake to end;
//! * `lanes`: programs' direct read channels; [`link`] has their threads as well;
//! * [`watchdog`]: memory, leases and evictions;
//! * [`state`]: what an operator sees;
//! * [`StartError`]: why a donor does not start.
//!
//! If the host runs out of memory before clients have moved evicted slabs, the watchdog frees slabs
//! at once ([`canvas_place::early`]): a donor killed by the kernel would lose all of them.
//!
//! No client can block another one, whatever it does. A link whose client does not read its answers
//! is not read any more, and is closed after a silent lease. An eviction waits for its deadline,
//! not for its client. A link that replaces older ones waits, before its client is welcomed, only
//! for the message of each that is just being served (`Outbox::fence`), not for the client.
#![forbid(unsafe_code)]

mod error;
pub mod handshakes;
mod lanes;
pub mod link;
mod outbox;
mod rdma;
pub mod registry;
mod server;
pub mod slab;
pub mod state;
mod watchdog;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use canvas_wire::key::ClusterKey;

pub use error::StartError;
pub use lanes::{LANES_OF_A_CLIENT_MAX, TICKET_TIME};
pub use server::Server;
pub use state::State;

/// Configuration of a donor.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Limit on lent memory.
    pub memory_bytes: u64,
    /// Memory that always stays free for the host; by default a tenth of its memory.
    pub reserve_bytes: Option<u64>,
    /// The cluster key. Without one the donor accepts everybody, but listens only on the loopback
    /// device.
    pub key: Option<ClusterKey>,
    /// Longest lease: how long slabs are kept after their client's last sign of life.
    pub lease: Duration,
    /// Time for clients to move evicted slabs.
    pub evict_within: Duration,
    /// How long a link's thread polls after traffic before it sleeps.
    pub spin: Duration,
    /// File for the state, written once a second.
    pub state_json: Option<PathBuf>,
    /// Directory of `meminfo` and of this process's control groups (`/proc`).
    pub procfs: PathBuf,
    /// Most established links.
    pub links_max: usize,
    /// Whether slabs are also lent over RDMA, to clients that request it.
    pub rdma: bool,
}

/// Shortest lease of a client, unless the donor's own is shorter.
pub const LEASE_MIN: Duration = Duration::from_millis(500);
/// Most links of a client.
pub const LINKS_OF_A_CLIENT_MAX: usize = 16;
/// Most pending connections.
pub const HANDSHAKES_MAX: usize = 64;
/// Most time for handshake and Hello together.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(2);
/// Interval of the watchdog's ticks.
pub const TICK: Duration = Duration::from_millis(100);
/// Interval of its ticks while the host's memory is nearly used up.
pub const TICK_NEAR: Duration = Duration::from_millis(20);
/// How long the watchdog waits for clients' activity reports.
pub const QUERY_TIME: Duration = Duration::from_millis(200);
/// Bytes of unsent answers above which a client's requests are not read.
pub const UNSENT_BYTES_MAX: usize = 1 << 20;
