//! What becomes of a tenant's slabs at donors: where their replicas are placed, which of them count,
//! which is read, which is repaired from, which is given up, and when a write is durable.
//!
//! A tenant's agent and the simulator ask the same questions of the same functions, and keep the same
//! tables: what a replica lacks ([`map`]), a read under way ([`read`]), repairs under way ([`repair`]).
//! How bytes travel, and what time it is, is the caller's business. Times are nanoseconds since a
//! moment of the caller's choice.

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

/// Tells one run of a donor from the next: what an earlier one lent is gone.
pub type RunId = [u8; 16];

/// How many replicas there are to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// How many there should be at donors.
    pub donors: usize,
    /// On the disk of this host.
    pub disk: bool,
    /// The disk gets its copy after the write has ended: what donors have is durable (as in Infiniswap).
    pub late: bool,
    /// Donors have shards of this code, each another one, and no whole copies.
    pub code: Option<Code>,
}

/// Bytes that the disk may lack of what was written late; what is written past that waits for the disk. So much may
/// be lost with a donor.
pub const LATE_BYTES_MAX: u64 = 64 << 20;

impl Policy {
    /// Those that can be asked for, by the names that `--copies` has.
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

    /// The one of this name, or of this code (`4+2`).
    pub fn named(name: &str) -> Option<Policy> {
        let mut all = Policy::NAMED.iter();
        let named = all.find(|(n, _)| *n == name).map(|(_, policy)| *policy);
        named.or_else(|| Code::named(name).map(Policy::coded))
    }

    /// All that can be written, for a sentence.
    pub fn names() -> String {
        let names = Policy::NAMED.map(|(name, _)| name).join(", ");
        let ((k, k_max), (m, m_max)) = (code::DATA, code::PARITY);
        format!("{names}, or a code from {k}+{m} to {k_max}+{m_max}")
    }

    /// A shard at each of as many donors as the code has shards.
    pub const fn coded(code: Code) -> Policy {
        let donors = Policy::new(code.shards(), false);
        Policy {
            code: Some(code),
            ..donors
        }
    }

    /// So many at donors, and one on the disk or none.
    pub const fn new(donors: usize, disk: bool) -> Policy {
        Policy {
            donors,
            disk,
            late: false,
            code: None,
        }
    }
}

/// By its name, if it has one.
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

/// Extents of a slab, at most.
pub const EXTENTS_MAX: usize = 2048;
/// A donor that is away is waited for so long before its slabs are copied elsewhere.
pub const GRACE_NS: u64 = 2_000_000_000;
/// Time between two looks at everything.
pub const TICK_NS: u64 = 20_000_000;
/// Before a donor that had no room is asked again, and before a slab is placed again.
pub const AGAIN_NS: u64 = 500_000_000;
/// Extents of a tenant that are repaired at one time.
pub const REPAIRS: usize = 4;
/// A donor that does not answer a request for so long is treated as one that hung up.
pub const REQUEST_NS: u64 = 1_000_000_000;
/// First pause between two tries to connect to a donor; each is twice as long as the one before,
pub const CONNECT_PAUSE_NS: u64 = 50_000_000;
/// up to this.
pub const CONNECT_PAUSE_NS_MAX: u64 = 1_000_000_000;
/// The longest time between two signs of life that a client asks of a donor: [`ping_every_ns`].
pub const PING_NS_MAX: u64 = 1_000_000_000;

/// How often a client whose lease is so long asks its donor for a sign of life, which is one of its own
/// as well: three times a lease at least.
pub fn ping_every_ns(lease_ns: u64) -> u64 {
    (lease_ns / 3).min(PING_NS_MAX)
}

/// Where a donor stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// No link, since then.
    Down {
        /// When it was lost.
        since_ns: u64,
    },
    /// Connected; what it still holds is being asked for.
    Listing,
    /// It serves.
    Up,
}

/// A donor as its client sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DonorView {
    /// Where it stands.
    pub standing: Standing,
    /// It takes memory back, or lends none.
    pub pressure: bool,
    /// What it could lend, in bytes, as it said last.
    pub free_bytes: u64,
    /// It has been silent for longer than it usually is.
    pub suspect: bool,
}

impl DonorView {
    /// Serves it?
    pub fn is_up(&self) -> bool {
        self.standing == Standing::Up
    }

    /// Serves it, or may it again in a moment?
    pub fn may_serve(&self, now_ns: u64) -> bool {
        match self.standing {
            Standing::Down { since_ns } => now_ns.saturating_sub(since_ns) < GRACE_NS,
            Standing::Listing | Standing::Up => true,
        }
    }

    /// Does it lend another slab, as far as is known?
    pub fn has_room(&self, slab_bytes: u64) -> bool {
        self.is_up() && !self.pressure && self.free_bytes >= slab_bytes
    }
}

/// The donors that a client knows, by number.
pub trait Donors {
    /// How many; 64 at most, since sets of donors are kept as bits.
    fn count(&self) -> usize;
    /// How one of them is.
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
