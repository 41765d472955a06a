//! The two-dimensional scheduler of far-memory requests (Canvas, NSDI'23, §5.3).
//!
//! Pure: no clock, thread, system call or random number; time comes in as `now_ns`. The agent pushes
//! requests in ([`Scheduler::submit`]), asks what is to be done ([`Scheduler::next`]) and says what
//! has ended ([`Scheduler::done`]); all three cost O(log tenants) and allocate nothing.
//!
//! * **Links.** A [`LinkId`] is a bottleneck that requests share: the network, the disk. Each has a
//!   *window* of bytes under way. Beyond it requests wait here, where the choice is fair, and not in
//!   a queue behind, where it is not. `link.rs` says how wide it is.
//! * **Vertical**, between tenants: start-time fair queueing (Goyal et al., SIGCOMM '96) on each link,
//!   all classes charged to their owner by bytes. Of the virtual-clock family this one was chosen
//!   because a request's turn depends on what its tenant was served before, and not on its own
//!   length: who was idle or light goes next, and the class can be chosen when its turn comes. With
//!   `n` backlogged tenants, the largest request `L` and a tenant's share `s` of the weights, service
//!   is at most `L` ahead of the fluid model and at most `s * (n - 1) * L` behind it: less than one
//!   largest request of each other tenant. Idle time is hardly any credit: who comes back begins
//!   what it would have moved in [`CREDIT_NS`] before the link's clock, at most.
//! * **Horizontal**, inside a tenant: demand before prefetch; `queue.rs` has the rule for writes.
//!   Prefetches that would come too late are dropped (`Decision::Drop`), unless that is switched off
//!   ([`Scheduler::set_timeliness`]). Before one is submitted its caller can ask whether the tenant has too much
//!   ahead already ([`Scheduler::is_too_far_ahead`]).
//! * **Limits** in bytes a second, of reads and of writes, hold whether links are idle or not. A tenant
//!   that waits for its limit is as one that is idle: it blocks nobody, and owes nothing afterwards.
//!
//! What a demand that arrives waits for: what is under way on its link (less than the window and one
//! request), one request of each tenant that has the same virtual start (others that just came, too, with
//! their credit), what its own tenant was served beyond its share, its tenant's earlier demands, and one write of its own tenant.
//!
//! Each request that was submitted is sent, dropped or returned by [`Scheduler::remove_tenant`], exactly
//! once. A [`Ticket`] names it for ever: no other request has the same one, so what is said late of a
//! request that is over changes nothing.
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
/// Links of a scheduler.
pub const LINKS_MAX: usize = 16;
/// Tenants of a scheduler.
pub const TENANTS_MAX: usize = 4096;
/// Requests of one tenant and class, waiting and under way together. More than a link's window
/// takes, and enough for 8 processes that use all of their mailboxes; the rest waits there.
pub const REQUESTS_MAX: usize = 256;
/// Weights of tenants.
pub const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=1000;
/// Weight when nothing is said.
pub const WEIGHT: u32 = 100;

/// A tenant, by a number of the caller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TenantId(pub u64);

/// A shared bottleneck, from [`Scheduler::add_link`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub(crate) u8);

/// What kind of request it is: one queue each (Canvas's virtual queue pairs).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// A read that a thread waits for.
    Demand = 0,
    /// A read ahead.
    Prefetch = 1,
    /// What is written: pages that leave the host's memory.
    SwapOut = 2,
}

impl Class {
    /// All, by number.
    pub const ALL: [Class; 3] = [Class::Demand, Class::Prefetch, Class::SwapOut];
}

/// Names one request; never used again for another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket {
    pub(crate) seat: u32,
    pub(crate) slot: u32,
    pub(crate) serial: u64,
}

/// A request, as it leaves the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The name that [`Scheduler::submit`] gave the request.
    pub ticket: Ticket,
    /// The tenant that the request is charged to.
    pub tenant: TenantId,
    /// The caller's, as it was submitted.
    pub tag: u64,
    /// Its class now: a promoted prefetch is a demand.
    pub class: Class,
    /// The link it is for.
    pub link: LinkId,
    /// Bytes that are charged to the tenant and to the link's window.
    pub bytes: u32,
    /// When it was posted, as the caller said.
    pub posted_ns: u64,
}

/// What is to be done now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Begin it, and say [`Scheduler::done`] when it has ended, however it ended.
    Send(Request),
    /// A prefetch that would come too late: answer it as not done. The scheduler has forgotten it.
    Drop(Request),
}

impl Decision {
    /// What it is about.
    pub fn request(self) -> Request {
        let (Decision::Send(request) | Decision::Drop(request)) = self;
        request
    }
}

/// Why a request was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The tenant has [`REQUESTS_MAX`] of this class: try again when one of them is done.
    Full,
    /// There is no such tenant.
    NoTenant,
    /// There is no such link.
    NoLink,
    /// More than [`REQUEST_BYTES_MAX`] bytes.
    TooLarge,
}

/// Why a tenant was not added or changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TenantError {
    /// There are [`TENANTS_MAX`].
    TooMany,
    /// There is one of this number.
    Exists,
    /// There is none of this number.
    Unknown,
    /// A weight outside of [`WEIGHTS`].
    Weight,
}

/// Answer to [`Scheduler::promote`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promoted {
    /// It was a waiting prefetch, and is a waiting demand now.
    Moved,
    /// It is a demand already and waits, or is a write.
    Already,
    /// It was sent and is not done yet: wait for it.
    UnderWay,
    /// It is done, dropped or was never there: who waits for it must ask anew.
    Gone,
}
