//! The two-dimensional scheduler of far-memory requests (Canvas, NSDI'23, §5.3).
//!
//! Pure: no clock, thread, system call or random number; time comes in as `now_ns`. The agent submits requests
//! ([`Scheduler::submit`]), asks what to do ([`Scheduler::next`]) and reports what has ended ([`Scheduler::done`]); all
//! three cost O(log tenants) and allocate nothing.
//!
//! * **Links.** A [`LinkId`] is a bottleneck that requests share: the network, the disk. Each has a *window* of bytes
//!   under way. Beyond it requests wait here, where the choice is fair, and not in a queue further down, where it is
//!   not. `link.rs` computes the window.
//! * **Vertical**, between tenants: start-time fair queueing (Goyal et al., SIGCOMM '96) on each link, with all classes
//!   charged to their owner by bytes. It was chosen among the virtual-clock algorithms because a request's turn depends
//!   on its tenant's earlier service, and not on its own length: an idle or light tenant goes next, and the class can
//!   be chosen at its turn. With `n` backlogged tenants, the largest request `L` and a tenant's share `s` of the
//!   weights, service is at most `L` ahead of the fluid model and at most `s * (n - 1) * L` behind it: less than one
//!   largest request of each other tenant. Idle time earns little credit: a tenant that comes back starts ahead of the
//!   link's clock by at most what it would have moved in [`CREDIT_NS`].
//! * **Horizontal**, within a tenant: demand before prefetch; `queue.rs` has the rule for writes. Prefetches that would
//!   come too late are dropped (`Decision::Drop`), unless that is switched off ([`Scheduler::set_timeliness`]). Before
//!   submitting one, the caller can ask whether the tenant has too many prefetches under way
//!   ([`Scheduler::is_too_far_ahead`]).
//! * **Limits** in bytes a second, of reads and of writes, hold whether links are idle or not. A tenant that waits for
//!   its limit counts as idle: it blocks nobody, and owes nothing afterwards.
//!
//! A demand that arrives waits for: the bytes under way on its link (less than the window and one request), one request
//! of each tenant with the same virtual start (including others that just came, with their credit), its own tenant's
//! service beyond its share, its tenant's earlier demands, and one write of its own tenant.
//!
//! Each submitted request is sent, dropped or returned by [`Scheduler::remove_tenant`], exactly once. A [`Ticket`]
//! identifies it forever: no other request gets the same one, so a late report about a finished request changes
//! nothing.
#![forbid(unsafe_code)]

mod bucket;
mod fair;
mod heap;
mod histogram;
mod link;
mod queue;
mod scheduler;
mod tenant;

pub use bucket::{BURST_BYTES_MIN, burst_bytes};
pub use fair::{max_min, wmmr};
pub use histogram::Histogram;
pub use link::{
    LinkConfig, LinkStats, PIECE_BYTES_MAX, PIECE_BYTES_MIN, PIECE_NS, ROUND_TRIP_NS_MIN,
    WINDOW_BYTES_MAX, WINDOW_BYTES_MIN, WINDOW_BYTES_START,
};
pub use queue::{SWAP_OUT_PACE, SWAP_OUT_PACE_PRESSED, SWAP_OUT_PRESSED};
pub use scheduler::{AHEAD_NS_MAX, ALONE_NS, CREDIT_BYTES, CREDIT_NS, DEBT_BYTES, Scheduler};
pub use tenant::{
    ClassStats, TIMELINESS_PER_MILLE, TIMELINESS_SAMPLES_MIN, TenantConfig, TenantStats,
};

/// The largest request: an extent of 32 KiB, written three times, with room to spare.
pub const REQUEST_BYTES_MAX: u32 = 128 << 10;
/// Most links of a scheduler.
pub const LINKS_MAX: usize = 16;
/// Most tenants of a scheduler.
pub const TENANTS_MAX: usize = 4096;
/// Most requests of one tenant and class, waiting and under way together. More than a link's window takes, and enough
/// for 8 processes that use all of their mailboxes; the rest waits there.
pub const REQUESTS_MAX: usize = 256;
/// Range of tenants' weights.
pub const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=1000;
/// Default weight.
pub const WEIGHT: u32 = 100;

/// A tenant, by a number of the caller's choice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TenantId(pub u64);

/// A shared bottleneck, from [`Scheduler::add_link`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub(crate) u8);

/// The class of a request, with one queue each (Canvas's virtual queue pairs).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// A read for which a thread waits.
    Demand = 0,
    /// A prefetch.
    Prefetch = 1,
    /// A write: pages that leave the host's memory.
    SwapOut = 2,
}

impl Class {
    /// All classes, by number.
    pub const ALL: [Class; 3] = [Class::Demand, Class::Prefetch, Class::SwapOut];
}

/// Identifies one request; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket {
    pub(crate) index: u32,
    pub(crate) slot: u32,
    pub(crate) serial: u64,
}

/// A request, as it leaves the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The ticket from [`Scheduler::submit`].
    pub ticket: Ticket,
    /// The tenant that is charged for it.
    pub tenant: TenantId,
    /// The caller's tag.
    pub tag: u64,
    /// Its current class: an escalated prefetch is a demand.
    pub class: Class,
    /// Its link.
    pub link: LinkId,
    /// Bytes charged to the tenant and to the link's window.
    pub bytes: u32,
    /// When it was posted, according to the caller.
    pub posted_ns: u64,
}

/// What to do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Start the request, and call [`Scheduler::done`] when it has ended, however it ended.
    Send(Request),
    /// Drop this prefetch, which would come too late: answer it as not done. The scheduler has forgotten it.
    Drop(Request),
}

impl Decision {
    /// The request.
    pub fn request(self) -> Request {
        let (Decision::Send(request) | Decision::Drop(request)) = self;
        request
    }
}

/// Why a request was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The tenant has [`REQUESTS_MAX`] requests of this class: try again when one of them is done.
    Full,
    /// The tenant does not exist.
    NoTenant,
    /// The link does not exist.
    NoLink,
    /// It has more than [`REQUEST_BYTES_MAX`] bytes.
    TooLarge,
}

/// Why a tenant was not added or changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TenantError {
    /// There are [`TENANTS_MAX`] tenants.
    TooMany,
    /// A tenant has this number.
    Exists,
    /// No tenant has this number.
    Unknown,
    /// The weight is outside [`WEIGHTS`].
    Weight,
}

/// Result of [`Scheduler::escalate`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Escalation {
    /// It was a waiting prefetch, and is now a waiting demand.
    Moved,
    /// It already is a waiting demand, or is a write.
    Already,
    /// It was sent and is not done yet: wait for it.
    UnderWay,
    /// It is done, dropped or never existed: a thread that needs it must submit it again.
    Gone,
}
