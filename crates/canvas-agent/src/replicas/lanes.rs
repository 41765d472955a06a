//! Direct read channels ("lanes", docs/design/lanes.md): what the tenant's processes need to read from donors directly.
//! The agent publishes where slabs are and whether direct reads are allowed, requests tickets from donors, and ends
//! channels.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use canvas_direct::wire::{Keys, Secret, Ticket};
use canvas_link::Address;
use canvas_place::replicas::{Code, Donors, Policy, Replica, RunId, Slab};
use canvas_shm::Far;
use canvas_shm::far::{EXTENT_BYTES, SLABS_MAX};
use canvas_shm::lanes::{DONORS_MAX, DonorAddress, Route, SHARDS_MAX};
use canvas_wire::frame::{Lane, LaneRate, Request};
use canvas_wire::{VERSION_LANE_PAIRS, VERSION_LANES};

use super::donor::Donor;
use super::read::ReadBalancer;
use super::{Purpose, Replicas, SERVERS_MAX, Views};
use crate::store::Direct;

const _: () = assert!(SERVERS_MAX <= DONORS_MAX);
const _: () = assert!(canvas_place::replicas::code::DATA.1 <= SHARDS_MAX);

/// Age at which a ticket that no process has taken is returned; the donor forgets it soon after.
const TICKET_TIME: Duration = Duration::from_secs(8);
/// Pause before a donor that has refused a channel is asked again.
const PAUSE: Duration = Duration::from_secs(1);
/// How often routes are published again: a program may have cleared one for a reason that no longer holds.
const AGAIN: Duration = Duration::from_secs(1);
/// Channels of a donor that are tracked; a donor grants no more.
const LANES_MAX: usize = 256;
/// Delay between withdrawing queue pairs from processes and sending donors with RDMA the rates that end them, so that
/// reads under way complete.
const PAIRS_END: Duration = Duration::from_millis(40);
/// Burst in bytes that a channel may read after a pause, beside other tenants.
const BURST_BYTES: u32 = 128 << 10;
/// A donor gets a new rate when it differs from the old one by more than 1/`NEAR`.
const NEAR: u64 = 8;

/// A channel that a donor has granted.
struct Granted {
    lane: u64,
    /// The rate that the donor has for it.
    rate_bytes: u64,
    /// Bytes read over it, as the donor last reported.
    bytes: u64,
    /// A rate request is under way.
    asked: bool,
}

/// The channels of one donor.
#[derive(Default)]
struct DonorLanes {
    /// The donor process to which channels were last possible.
    run: Option<RunId>,
    /// Whether processes may open channels, as last published.
    open: bool,
    /// The secret of the channel that was requested.
    asked: Option<Secret>,
    /// A ticket that no process may have taken yet, and since when.
    offered: Option<(u64, Instant)>,
    /// Channels that the donor granted.
    granted: Vec<Granted>,
    /// The rate of the channel that was requested.
    asked_rate_bytes: u64,
    /// Bytes that its channels have read lately; an eighth decays at each update.
    lately_bytes: u64,
    /// No request to the donor before this time.
    not_before: Option<Instant>,
}

/// The direct read channels of a tenant.
#[derive(Default)]
pub(super) struct Lanes {
    /// How much the tenant's processes may read directly.
    may: Direct,
    /// Bytes read over channels since the last [`Lanes::take_bytes`].
    bytes: u64,
    /// Processes may read directly. The tenant's own area is no proof of that.
    direct: bool,
    /// When queue pairs were withdrawn from processes.
    pairs_over: Option<Instant>,
    /// A donor has come or gone, so other routes may be better.
    changed: bool,
    /// When routes were last published.
    told: Option<Instant>,
    donors: Vec<DonorLanes>,
}

impl Lanes {
    /// Sets how much the tenant's processes may read directly.
    pub fn set_direct(&mut self, direct: Direct) {
        self.may = direct;
    }

    /// Bytes that the processes have read since the last call.
    pub fn take_bytes(&mut self) -> u64 {
        for of in &mut self.donors {
            of.lately_bytes -= of.lately_bytes / 8;
        }
        std::mem::take(&mut self.bytes)
    }

    /// The rate for all channels of a donor together: a part of the tenant's rate in proportion to the recent reads at
    /// each donor, and at least half of an even part.
    fn rate(&self, donor: usize) -> LaneRate {
        match self.may {
            Direct::All => LaneRate::UNBOUNDED,
            Direct::Rate(rate_bytes) => {
                let parts = self.donors.iter().filter(|d| d.open).count().max(1) as u128;
                let all: u128 = self.donors.iter().map(|d| u128::from(d.lately_bytes)).sum();
                let its = u128::from(self.donors[donor].lately_bytes);
                let rate = u128::from(rate_bytes);
                let by_use = (rate * its).checked_div(all).unwrap_or(rate / parts);
                LaneRate {
                    rate_bytes: by_use.max(rate / (2 * parts)) as u64,
                    burst_bytes: BURST_BYTES,
                }
            }
            Direct::None => LaneRate {
                rate_bytes: 0,
                burst_bytes: 0,
            },
        }
    }

    /// A donor has reported the bytes read over a channel, or (`None`) that it has no such channel.
    pub fn used(&mut self, donor: usize, lane: u64, bytes: Option<u64>) {
        let Some(of) = self.donors.get_mut(donor) else {
            return;
        };
        match (of.granted.iter().position(|l| l.lane == lane), bytes) {
            (Some(at), Some(bytes)) => {
                let granted = &mut of.granted[at];
                granted.asked = false;
                let more = bytes.saturating_sub(granted.bytes);
                self.bytes += more;
                of.lately_bytes += more;
                granted.bytes = granted.bytes.max(bytes);
            }
            (Some(at), None) => {
                of.granted.remove(at);
            }
            (None, _) => {}
        }
    }
}

/// Where the donor grants channels, if it can.
fn address_of(donor: &Donor) -> Option<DonorAddress> {
    let version = donor.links.first()?.welcome().version;
    if !donor.is_up() || version < VERSION_LANES {
        return None;
    }
    let addr: &Address = &donor.addr;
    let mut ip = [0; 16];
    let is_v6 = match addr.addr.ip() {
        IpAddr::V4(v4) => {
            ip[..4].copy_from_slice(&v4.octets());
            false
        }
        IpAddr::V6(v6) => {
            ip = v6.octets();
            true
        }
    };
    Some(DonorAddress {
        ip,
        port: addr.addr.port(),
        is_v6,
        has_rdma: addr.rdma && version >= VERSION_LANE_PAIRS,
    })
}

/// The replicas from which a slab's shard can be read (full copies all have shard 0): complete, not being reclaimed, on
/// donors that are up.
fn good<'m>(
    entry: &'m Slab,
    shard: usize,
    donors: &'m Views<'_>,
) -> impl Iterator<Item = &'m Replica> + Clone {
    entry.replicas.iter().filter(move |c| {
        let view = donors.view(c.donor);
        let is_there = c.missing.is_none() && c.leaving.is_none();
        c.shard == shard && is_there && view.is_up() && !view.suspect
    })
}

/// The copy to read a slab from; slabs spread over the copies.
fn best<'m>(entry: &'m Slab, slab: u32, donors: &'m Views<'_>) -> Option<&'m Replica> {
    let good = good(entry, 0, donors);
    let n = good.clone().count();
    good.clone().nth(slab as usize % n.max(1))
}

/// Publishes where each data shard of a slab is read. False when none can be.
fn publish_shards(routes: &[Route], entry: &Slab, code: Code, donors: &Views<'_>) -> bool {
    let mut any = false;
    for (shard, route) in routes.iter().enumerate().take(code.data()) {
        match good(entry, shard, donors).next() {
            Some(holder) => {
                route.set(holder.donor, holder.handle, false);
                any = true;
            }
            None => route.clear(),
        }
    }
    any
}

impl Replicas {
    /// Publishes whether processes may read directly.
    fn may_read_directly(&mut self) {
        let direct = !matches!(self.lanes.may, Direct::None | Direct::Rate(0));
        let direct = direct && self.far.lanes.is_wanted();
        if self.lanes.direct != direct {
            self.lanes.direct = direct;
            self.lanes.changed = true;
        }
        // The tenant can write to this flag.
        if self.far.lanes.is_direct() != direct {
            self.far.lanes.set_direct(direct);
        }
        // Nobody counts what RDMA devices read, so queue pairs are allowed only without a rate limit.
        let pairs = direct && self.lanes.may == Direct::All;
        if self.far.lanes.pairs().is_some() != pairs {
            self.far.lanes.set_pairs(pairs);
            self.lanes.pairs_over = (!pairs).then(Instant::now);
        }
    }

    /// Takes over from the previous agent and publishes everything again.
    pub(super) fn begin_lanes(&mut self, key: &Secret) {
        self.far.lanes.set_key(key);
        self.far.lanes.set_direct(false);
        self.far.lanes.set_pairs(false);
        let has_rdma = self.donors.iter().any(|d| d.addr.rdma);
        self.far.lanes.set_has_rdma(has_rdma);
        for donor in &self.far.lanes.donors {
            donor.set_address(None);
            donor.drop_ticket();
        }
        let used = self
            .far
            .slabs_high
            .load(std::sync::atomic::Ordering::Acquire);
        for route in self.far.routes.iter().take(SLABS_MAX.min(used as usize)) {
            route.clear();
        }
        self.lanes.changed = true;
    }

    /// Publishes where the slab's records are read.
    pub(super) fn route(&self, slab: u32) {
        let Some(route) = self.far.routes.get(slab as usize) else {
            return;
        };
        let donors = Views::of(&self.donors, self.started);
        let Some(entry) = self.map.get(&slab) else {
            return route.clear();
        };
        if let Some(code) = entry.code {
            let shards = &self.far.shard_routes[slab as usize];
            return match publish_shards(shards, entry, code, &donors) {
                true => route.set_in_shards(code.shard_bytes(EXTENT_BYTES)),
                false => route.clear(),
            };
        }
        match best(entry, slab, &donors) {
            Some(copy) => {
                let policy: Policy = entry.policy(self.policy);
                route.set(copy.donor, copy.handle, policy.disk);
            }
            None => route.clear(),
        }
    }

    /// Periodic work for direct read channels.
    pub(super) fn maintain_lanes(&mut self) {
        self.may_read_directly();
        let n = self.donors.len();
        self.lanes.donors.resize_with(n, DonorLanes::default);
        for donor in 0..n {
            self.maintain_donor_lanes(donor);
        }
        self.far.lanes.set_disk_first(self.reads.is_disk_first());
        let is_due = self.lanes.told.is_none_or(|told| told.elapsed() >= AGAIN);
        if self.lanes.direct && (std::mem::take(&mut self.lanes.changed) || is_due) {
            self.lanes.told = Some(Instant::now());
            for slab in self.map.keys() {
                self.route(*slab);
            }
        }
    }

    fn maintain_donor_lanes(&mut self, donor: usize) {
        let d = &self.donors[donor];
        let there = &self.far.lanes.donors[donor];
        let address = address_of(d);
        let open = address.is_some() && d.suspect.is_none();
        let of = &mut self.lanes.donors[donor];
        if of.run != d.run || !d.is_up() {
            // Its channels end with its link, now or soon.
            (of.asked, of.offered, of.not_before) = (None, None, None);
            of.granted.clear();
            of.run = d.run;
            there.drop_ticket();
        }
        if of.open != open {
            of.open = open;
            self.lanes.changed = true;
            there.set_address(address.filter(|_| open));
        }
        if self.lanes.may == Direct::None || !self.far.lanes.is_wanted() {
            return self.end_lanes(donor);
        }
        self.send_lane_rates(donor);
        let there = &self.far.lanes.donors[donor];
        let of = &mut self.lanes.donors[donor];
        if let Some((lane, since)) = of.offered
            && since.elapsed() > TICKET_TIME
        {
            of.offered = None;
            if there.take_ticket_back() {
                of.granted.retain(|l| l.lane != lane);
                self.submit(donor, Purpose::LaneEnd, &Request::LaneEnd { lane });
            }
            return;
        }
        let rests = of.not_before.is_some_and(|until| Instant::now() < until);
        // Where processes may not read directly, a ticket would not be offered but would still count against those that
        // the donor grants.
        let may_ask = open && self.lanes.direct && !rests && of.asked.is_none();
        if !may_ask || !there.is_wanted() {
            return;
        }
        let Ok(secret) = crate::journal::random::<32>() else {
            return;
        };
        let rate = self.lanes.rate(donor);
        let of = &mut self.lanes.donors[donor];
        (of.asked, of.asked_rate_bytes) = (Some(secret), rate.rate_bytes);
        let tenant = self.tenant;
        let lane = Lane {
            tenant,
            secret,
            rate,
        };
        if !self.submit(donor, Purpose::Lane, &Request::Lane(lane)) {
            self.lanes.donors[donor].asked = None;
        }
    }

    /// Sends the donor the rates of its channels, and asks for the bytes read: where they are counted, and where the
    /// rate changes.
    fn send_lane_rates(&mut self, donor: usize) {
        let over = self.lanes.pairs_over;
        if self.donors[donor].addr.rdma && over.is_some_and(|o| o.elapsed() < PAIRS_END) {
            return;
        }
        let rate = self.lanes.rate(donor);
        let counts = self.lanes.may != Direct::All;
        let mut due = Vec::new();
        for granted in &mut self.lanes.donors[donor].granted {
            let near = granted.rate_bytes.abs_diff(rate.rate_bytes) <= granted.rate_bytes / NEAR;
            if !granted.asked && (counts || !near) {
                granted.asked = true;
                granted.rate_bytes = rate.rate_bytes;
                due.push(granted.lane);
            }
        }
        for lane in due {
            if !self.submit(
                donor,
                Purpose::LaneRate(lane),
                &Request::LaneRate { lane, rate },
            ) {
                self.lanes.used(donor, lane, None);
            }
        }
    }

    /// Ends the donor's channels, whatever processes believe.
    fn end_lanes(&mut self, donor: usize) {
        let of = &mut self.lanes.donors[donor];
        of.offered = None;
        for Granted { lane, .. } in std::mem::take(&mut of.granted) {
            self.submit(donor, Purpose::LaneEnd, &Request::LaneEnd { lane });
        }
        self.far.lanes.donors[donor].drop_ticket();
    }

    /// A donor has granted a channel, or (`None`) refused it.
    pub(super) fn lane_granted(&mut self, donor: usize, granted: Option<(u64, Ticket)>) {
        let Some(of) = self.lanes.donors.get_mut(donor) else {
            return;
        };
        let asked = of.asked.take();
        let Some((lane, ticket)) = granted else {
            of.not_before = Some(Instant::now() + PAUSE);
            return;
        };
        let keys = asked.map(|secret| Keys::new(&secret, &ticket).to_bytes());
        let is_offered = keys.is_some_and(|keys| {
            self.lanes.direct && self.far.lanes.donors[donor].put_ticket(&ticket, &keys)
        });
        if !is_offered {
            self.submit(donor, Purpose::LaneEnd, &Request::LaneEnd { lane });
            return;
        }
        of.offered = Some((lane, Instant::now()));
        // The donor forgets channels whose processes are gone. One that is no longer tracked must not read any more.
        let oldest = (of.granted.len() >= LANES_MAX).then(|| of.granted.remove(0));
        of.granted.push(Granted {
            lane,
            rate_bytes: of.asked_rate_bytes,
            bytes: 0,
            asked: false,
        });
        if let Some(Granted { lane, .. }) = oldest {
            self.submit(donor, Purpose::LaneEnd, &Request::LaneEnd { lane });
        }
    }

    /// Direct reads of the slab, or of its shard, since the last call.
    pub(super) fn reads_by_lane(far: &Far, slab: u32, shard: usize) -> u64 {
        let slab = slab as usize;
        let whole = far.routes.get(slab);
        let route = match whole.and_then(Route::shard_bytes) {
            Some(_) => far.shard_routes[slab].get(shard),
            None => whole,
        };
        route.map_or(0, Route::take_reads)
    }
}

impl ReadBalancer {
    /// Whether the disk is known to answer sooner than donors.
    pub(super) fn is_disk_first(&self) -> bool {
        let [donors, disk] = self.latencies_ns();
        matches!((donors, disk), (Some(donors), Some(disk)) if disk < donors)
    }
}
