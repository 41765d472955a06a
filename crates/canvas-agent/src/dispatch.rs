//! The way of requests from the tenants' desks to their stores: what may be begun now, and whose turn it is
//! ([`canvas_sched`], Canvas §5.3).
//!
//! Each tenant has three queues ([`Class`]: demand, read ahead, swap-out), which begin in its mailboxes and
//! end here. Links are shared: what comes over the network, what goes out over it (full duplex, so they do
//! not wait for each other), and each far directory of this host. What may be under way on a link is bounded by
//! what it moves in a round trip; the rest waits here, where the choice is fair.

use std::time::Duration;

use canvas_place::paths::PATHS_MAX;
use canvas_sched::{
    Class, Decision, LinkConfig, LinkId, LinkStats, Promoted, Scheduler, TenantConfig, TenantId,
    TenantStats, Ticket,
};
use nix::time::{ClockId, clock_gettime};

/// What a request travels over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// From donors.
    In,
    /// To donors.
    Out,
    /// A far directory of this host, by its number.
    Disk(u8),
}

/// Links: what comes, what goes, and each directory.
const LINKS: usize = 2 + PATHS_MAX;

const _: () = assert!(LINKS <= canvas_sched::LINKS_MAX);

impl Lane {
    fn link(self) -> usize {
        match self {
            Lane::In => 0,
            Lane::Out => 1,
            Lane::Disk(path) => 2 + usize::from(path) % PATHS_MAX,
        }
    }
}

/// The dispatcher of all tenants of one serving thread.
#[derive(Debug)]
pub struct Dispatch {
    sched: Scheduler,
    links: [LinkId; LINKS],
    now_ns: u64,
}

impl Default for Dispatch {
    fn default() -> Dispatch {
        Dispatch::new()
    }
}

/// Monotonic time in ns, the clock of the programs' requests, without a system call where the kernel can.
fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("there is always a monotonic clock");
    Duration::from(time).as_nanos() as u64
}

impl Dispatch {
    /// Without tenants.
    pub fn new() -> Dispatch {
        Dispatch::with(LinkConfig::default())
    }

    /// The same with other bounds of what may be under way.
    pub fn with(config: LinkConfig) -> Dispatch {
        let mut sched = Scheduler::new();
        let links = std::array::from_fn(|_| {
            let link = sched.add_link(config);
            link.expect("fewer links than a scheduler may have")
        });
        Dispatch {
            sched,
            links,
            now_ns: now_ns(),
        }
    }

    /// The same, where what is read ahead and would come too late is not done (`on`, which it is unless told
    /// otherwise), or done all the same.
    pub fn with_timeliness(mut self, on: bool) -> Dispatch {
        self.sched.set_timeliness(on);
        self
    }

    /// One more tenant; nothing when there are too many or there is one of this number: its requests are
    /// then begun as they come.
    pub fn add(&mut self, id: u64, config: TenantConfig) {
        // Weights are judged where they are set.
        let _ = self.sched.add_tenant(TenantId(id), config);
    }

    /// Changes what a tenant may have.
    pub fn set(&mut self, id: u64, config: TenantConfig) {
        let _ = self.sched.set_tenant(TenantId(id), config, self.now_ns);
    }

    /// Forgets a tenant, what it has waiting and what it has under way.
    pub fn remove(&mut self, id: u64) {
        self.sched.remove_tenant(TenantId(id));
    }

    /// Looks at the clock. All that is done until the next look is done at this time.
    pub fn look(&mut self) -> u64 {
        self.now_ns = now_ns();
        self.now_ns
    }

    /// The time of the last look, on the clock of the programs' requests.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Takes a request; [`Dispatch::decide`] says when it may be begun. `None`: now, and nothing is counted.
    pub fn submit(
        &mut self,
        id: u64,
        class: Class,
        lane: Lane,
        bytes: u32,
        tag: u32,
        posted_ns: u64,
    ) -> Option<Ticket> {
        let posted_ns = posted_ns.min(self.now_ns);
        let link = self.links[lane.link()];
        self.sched
            .submit(TenantId(id), class, link, bytes, tag.into(), posted_ns)
            .ok()
    }

    /// Would a read ahead wait too long behind `ahead_bytes` that the tenant has asked for before?
    pub fn is_too_far_ahead(&self, id: u64, lane: Lane, bytes: u32, ahead_bytes: u64) -> bool {
        let link = self.links[lane.link()];
        self.sched
            .is_too_far_ahead(TenantId(id), link, bytes, ahead_bytes)
    }

    /// A request that waits goes before the tenant's others of its class: what is left of one of which pieces are done.
    pub fn put_first(&mut self, ticket: Ticket) {
        self.sched.put_first(ticket);
    }

    /// How large a part of a request should go over a lane at one time, so that nobody waits long for it.
    pub fn piece_bytes(&self, lane: Lane) -> u32 {
        if let Lane::Disk(_) = lane {
            // What is asked of it is done whole.
            return u32::MAX;
        }
        let stats = self.sched.link_stats(self.links[lane.link()]);
        stats.map_or(u32::MAX, |s| s.piece_bytes)
    }

    /// What is to be done now.
    pub fn decide(&mut self) -> Option<Decision> {
        self.sched.next(self.now_ns)
    }

    /// A request that was begun has ended.
    pub fn done(&mut self, ticket: Ticket) {
        self.sched.done(ticket, self.now_ns);
    }

    /// A request that was begun is silent: others need not wait for it.
    pub fn give_up(&mut self, ticket: Ticket) {
        self.sched.give_up(ticket);
    }

    /// A thread waits for what was to be read ahead. True when it goes before others now.
    pub fn promote(&mut self, ticket: Ticket) -> bool {
        self.sched.promote(ticket, self.now_ns) == Promoted::Moved
    }

    /// How long before they were used a tenant's pages were read ahead.
    pub fn used_after(&mut self, id: u64, ns: u64, count: u32) {
        self.sched.used_after(TenantId(id), ns, count);
    }

    /// A tenant has moved so many bytes over a lane without asking here. While others wait for it: how many bytes it is
    /// ahead of its turn.
    pub fn charge(&mut self, id: u64, lane: Lane, bytes: u64) -> Option<u64> {
        self.sched
            .charge(TenantId(id), self.links[lane.link()], bytes)
    }

    /// Time until a limit lets something go.
    pub fn due_in(&self) -> Option<Duration> {
        let due = self.sched.next_due()?;
        Some(Duration::from_nanos(due.saturating_sub(self.now_ns)))
    }

    /// A tenant's counters.
    pub fn stats(&self, id: u64) -> Option<&TenantStats> {
        self.sched.stats(TenantId(id))
    }

    /// A lane's figures.
    pub fn lane(&self, lane: Lane) -> Option<LinkStats> {
        self.sched.link_stats(self.links[lane.link()])
    }
}
