//! A tenant's slabs on donors: where replicas are placed, which of them count, which is read, which is the source of a
//! repair, which is released, and when a write is durable.
//!
//! A tenant's agent and the simulator call these functions, and keep these tables: what a replica lacks ([`map`]), a
//! read under way ([`read`]), repairs under way ([`repair`]). Transport and clock are the caller's. Times are
//! nanoseconds since a moment of the caller's choice.

use std::fmt;

pub mod code;
pub mod judge;
pub mod map;
pub mod placement;
pub mod read;
pub mod repair;
pub mod worth;

pub use code::Code;
pub use judge::{
    GiveUp, Held, Source, counting, give_up, is_away, is_durable, kept, read_next, whole,
};
pub use map::{Map, Replica, Slab, Target};

/// Identifies a donor process: what an earlier process lent is gone.
pub type RunId = [u8; 16];

/// The copies policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Number of donors with a copy or shard.
    pub donors: usize,
    /// Whether the local disk has a copy.
    pub disk: bool,
    /// The disk gets its copy after the write has ended: a copy on donors counts as durable (as in Infiniswap).
    pub late: bool,
    /// Donors have different shards of this code instead of full copies.
    pub code: Option<Code>,
}

/// Most bytes of late writes that the disk may lack; further writes wait for the disk. This much may be lost with a
/// donor.
pub const LATE_BYTES_MAX: u64 = 64 << 20;

impl Policy {
    /// The policies with a name in `--copies`.
    pub const NAMED: [(&'static str, Policy); 6] = [
        ("1+disk", Policy::new(1, true)),
        (
            "1+disk-async",
            Policy {
                late: true,
                ..Policy::new(1, true)
            },
        ),
        ("2", Policy::new(2, false)),
        ("3", Policy::new(3, false)),
        ("1", Policy::new(1, false)),
        ("disk", Policy::new(0, true)),
    ];

    /// Parses a name, or a code (`4+2`).
    pub fn named(name: &str) -> Option<Policy> {
        let mut all = Policy::NAMED.iter();
        let named = all.find(|(n, _)| *n == name).map(|(_, policy)| *policy);
        named.or_else(|| Code::named(name).map(Policy::coded))
    }

    /// All accepted names, for a message.
    pub fn names() -> String {
        let names = Policy::NAMED.map(|(name, _)| name).join(", ");
        let ((k, k_max), (m, m_max)) = (code::DATA, code::PARITY);
        format!("{names}, or a code from {k}+{m} to {k_max}+{m_max}")
    }

    /// One shard on each of as many donors as the code has shards.
    pub const fn coded(code: Code) -> Policy {
        let donors = Policy::new(code.shards(), false);
        Policy {
            code: Some(code),
            ..donors
        }
    }

    /// Full copies on `donors`, and one on the disk or none.
    pub const fn new(donors: usize, disk: bool) -> Policy {
        Policy {
            donors,
            disk,
            late: false,
            code: None,
        }
    }
}

/// Its name, if it has one.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Policy::NAMED.iter().find(|(_, policy)| policy == self);
        match (named, self.code) {
            (Some((name, _)), _) => f.write_str(name),
            (None, Some(code)) => write!(f, "{code}"),
            (None, None) if self.disk => write!(f, "{}+disk", self.donors),
            (None, None) => write!(f, "{}", self.donors),
        }
    }
}

/// Most extents of a slab.
pub const EXTENTS_MAX: usize = 2048;
/// How long a donor may be away before its slabs are copied elsewhere.
pub const GRACE_NS: u64 = 2_000_000_000;
/// Time between two ticks.
pub const TICK_NS: u64 = 20_000_000;
/// Pause before a donor without room is asked again, and before a slab is placed again.
pub const AGAIN_NS: u64 = 500_000_000;
/// Most extents of a tenant that are repaired at one time.
pub const REPAIRS: usize = 4;
/// A donor that does not answer a request for this long is treated as one that closed the connection.
pub const REQUEST_NS: u64 = 1_000_000_000;
/// First pause between two attempts to connect to a donor; it doubles each time,
pub const CONNECT_PAUSE_NS: u64 = 50_000_000;
/// up to this.
pub const CONNECT_PAUSE_NS_MAX: u64 = 1_000_000_000;
/// Longest time between two pings of a donor: [`ping_every_ns`].
pub const PING_NS_MAX: u64 = 1_000_000_000;

/// Time between two pings of a donor by a client with this lease, which also renew the lease: at least three in a
/// lease.
pub fn ping_every_ns(lease_ns: u64) -> u64 {
    (lease_ns / 3).min(PING_NS_MAX)
}

/// Connection state of a donor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionState {
    /// No link.
    Down {
        /// When the link was lost.
        since_ns: u64,
    },
    /// Connected; the list of what it still holds is being fetched.
    Listing,
    /// It serves.
    Up,
}

/// A donor, as its client sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DonorView {
    /// Its connection state.
    pub connection: ConnectionState,
    /// It is reclaiming memory, or lends none.
    pub pressure: bool,
    /// Memory that it could lend, in bytes, as last reported.
    pub free_bytes: u64,
    /// It has been silent for longer than usual.
    pub suspect: bool,
}

impl DonorView {
    /// Whether it serves.
    pub fn is_up(&self) -> bool {
        self.connection == ConnectionState::Up
    }

    /// Whether it serves, or may serve again in a moment.
    pub fn may_serve(&self, now_ns: u64) -> bool {
        match self.connection {
            ConnectionState::Down { since_ns } => now_ns.saturating_sub(since_ns) < GRACE_NS,
            ConnectionState::Listing | ConnectionState::Up => true,
        }
    }

    /// Whether it can lend another slab, as far as is known.
    pub fn has_room(&self, slab_bytes: u64) -> bool {
        self.is_up() && !self.pressure && self.free_bytes >= slab_bytes
    }
}

/// The donors that a client knows, by index.
pub trait Donors {
    /// Number of donors; 64 at most, since sets of donors are bit masks.
    fn count(&self) -> usize;
    /// The state of one donor.
    fn view(&self, donor: usize) -> DonorView;
}

impl Donors for [DonorView] {
    fn count(&self) -> usize {
        self.len()
    }
    fn view(&self, donor: usize) -> DonorView {
        self[donor]
    }
}
