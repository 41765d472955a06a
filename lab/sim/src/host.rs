//! A host: its memory, and the donor that lends some of it.
//!
//! `canvas_place::{headroom, victims}` decides what is lent and taken back; the steps follow in the order of
//! the donor's watchdog.

use std::collections::BTreeMap;

use canvas_place::headroom::{Config, Decision, Headroom, Sample};
use canvas_place::lease;
use canvas_place::victims::{self, Activity};

use crate::engine::{MS, Ns};
use crate::{ClientId, world};

/// Interval of the watchdog.
pub const LOOK_NS: Ns = 100 * MS;
/// Time that the watchdog waits for its clients' activity.
pub const QUERY_NS: Ns = 200 * MS;
/// Time that a client has to move a slab.
pub const EVICT_WITHIN_NS: Ns = 10_000 * MS;
/// Time after which a silent client's slabs are freed.
pub const LEASE_NS: Ns = 30_000 * MS;

/// Health of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// It works.
    Up,
    /// It has lost all its memory.
    Dead,
    /// It does nothing, but keeps its memory.
    Hung,
}

/// A slab lent to a client.
pub struct Lent {
    /// The client that owns it.
    pub client: ClientId,
    /// The owner's number of the slab.
    pub slab: u32,
    /// Version of each extent; 0 if it was never written.
    pub versions: Vec<u64>,
    /// Time at which it is freed, if it is being evicted.
    pub deadline: Option<Ns>,
    queried: bool,
    activity: Option<u64>,
    /// Operations on it; the next field has their number at the last sample.
    ops: u64,
    ops_before: u64,
}

/// Reason for which a donor refuses a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Not enough memory.
    NoRoom,
    /// The donor does not hold the slab or extent.
    Unknown,
    /// The slab is being evicted, and may only be read.
    Evicting,
}

/// Requests of the watchdog to clients.
#[derive(Default)]
pub struct Orders {
    /// Slabs whose activity the client is asked for.
    pub query: Vec<(ClientId, u64)>,
    /// Slabs to move, with the deadline.
    pub stop: Vec<(ClientId, u64, Ns)>,
    /// Number of slabs freed at their deadline.
    pub late: usize,
}

/// A host.
pub struct Host {
    /// Size of its memory.
    pub bytes: u64,
    /// Memory of its own programs.
    pub own_bytes: u64,
    /// Memory that its own programs will grow to.
    pub own_target_bytes: u64,
    /// Rate at which they grow to it, in bytes per second.
    pub own_bytes_per_s: u64,
    /// Health of the host.
    pub life: Life,
    /// Number of the donor's run; 0 if none.
    pub run: u64,
    /// Slabs by handle.
    pub slabs: BTreeMap<u64, Lent>,
    by_key: BTreeMap<(ClientId, u32), u64>,
    heard: BTreeMap<ClientId, Ns>,
    headroom: Headroom,
    budget: u64,
    query: Option<(usize, Ns)>,
    looked: Option<Ns>,
    next_handle: u64,
    slab_bytes: u64,
    extent_bytes: u64,
    extents: usize,
    touched_bytes: u64,
    rng: fastrand::Rng,
    /// Time until which its network link is busy.
    pub net_busy: Ns,
    /// Time until which its disk is busy.
    pub disk_busy: Ns,
}

impl Host {
    /// A working host with a donor of configuration `lends`.
    pub fn new(lends: Config, world: &world::Config, own_bytes: u64, seed: u64) -> Host {
        let bytes = world.host_bytes;
        assert!(lends.reserve_bytes < bytes && own_bytes <= bytes);
        let mut host = Host {
            bytes,
            own_bytes,
            own_target_bytes: own_bytes,
            own_bytes_per_s: 0,
            life: Life::Up,
            run: 1,
            slabs: BTreeMap::new(),
            by_key: BTreeMap::new(),
            heard: BTreeMap::new(),
            headroom: Headroom::new(lends),
            budget: 0,
            query: None,
            looked: None,
            next_handle: 1,
            slab_bytes: world.part_of(world.slab_bytes),
            extent_bytes: world.part_of(world.extent_bytes()),
            extents: world.extents,
            touched_bytes: 0,
            rng: fastrand::Rng::with_seed(seed),
            net_busy: 0,
            disk_busy: 0,
        };
        host.observe();
        host
    }

    /// Memory that neither its programs nor its clients use.
    pub fn available_bytes(&self) -> u64 {
        self.bytes
            .saturating_sub(self.own_bytes)
            .saturating_sub(self.touched_bytes)
    }

    /// Memory that clients have written.
    pub fn touched_bytes(&self) -> u64 {
        self.touched_bytes
    }

    /// Memory that is lent.
    pub fn lent_bytes(&self) -> u64 {
        self.slabs.len() as u64 * self.slab_bytes
    }

    /// Memory reserved for its own programs.
    pub fn reserve_bytes(&self) -> u64 {
        self.headroom.config().reserve_bytes
    }

    /// Memory that it offers to lend.
    pub fn free_bytes(&self) -> u64 {
        self.headroom.free_bytes(self.lent_bytes())
    }

    /// Whether it is under memory pressure.
    pub fn pressure(&self) -> bool {
        self.headroom.pressure()
    }

    /// Records a client's sign of life.
    pub fn hear(&mut self, client: ClientId, now: Ns) {
        self.heard.insert(client, now);
    }

    /// Lends a slab, or returns the handle if it was lent before.
    pub fn alloc(&mut self, client: ClientId, slab: u32) -> Result<u64, Refused> {
        if let Some(&handle) = self.by_key.get(&(client, slab)) {
            return Ok(handle);
        }
        if !self.headroom.admits(self.lent_bytes()) {
            return Err(Refused::NoRoom);
        }
        let handle = self.next_handle;
        self.next_handle += 1;
        self.by_key.insert((client, slab), handle);
        let lent = Lent {
            client,
            slab,
            versions: vec![0; self.extents],
            deadline: None,
            queried: false,
            activity: None,
            ops: 0,
            ops_before: 0,
        };
        self.slabs.insert(handle, lent);
        assert_eq!(self.by_key.len(), self.slabs.len());
        Ok(handle)
    }

    /// Stores a version of an extent.
    pub fn write(
        &mut self,
        client: ClientId,
        handle: u64,
        extent: usize,
        version: u64,
    ) -> Result<(), Refused> {
        assert!(version > 0 && extent < self.extents);
        let left = self.available_bytes().saturating_sub(self.reserve_bytes());
        let lent = self.slabs.get_mut(&handle).filter(|l| l.client == client);
        let lent = lent.ok_or(Refused::Unknown)?;
        if lent.deadline.is_some() {
            return Err(Refused::Evicting);
        }
        if lent.versions[extent] == 0 {
            if self.budget < self.extent_bytes {
                self.budget = left;
            }
            if self.budget < self.extent_bytes {
                return Err(Refused::NoRoom);
            }
            self.budget -= self.extent_bytes;
            self.touched_bytes += self.extent_bytes;
        }
        lent.versions[extent] = version;
        lent.ops += 1;
        Ok(())
    }

    /// The stored version of an extent.
    pub fn read(&self, client: ClientId, handle: u64, extent: usize) -> Result<u64, Refused> {
        let lent = self.slabs.get(&handle).filter(|l| l.client == client);
        Ok(lent.ok_or(Refused::Unknown)?.versions[extent])
    }

    /// Counts a client's read of a slab.
    pub fn note_read(&mut self, handle: u64) {
        if let Some(lent) = self.slabs.get_mut(&handle) {
            lent.ops += 1;
        }
    }

    /// Frees a client's slab.
    pub fn free(&mut self, client: ClientId, handle: u64) {
        if self.slabs.get(&handle).is_some_and(|l| l.client == client) {
            self.remove(handle);
        }
    }

    /// Frees a slab that its client has moved.
    pub fn evict_done(&mut self, client: ClientId, handle: u64) {
        let lent = self.slabs.get(&handle);
        if lent.is_some_and(|l| l.client == client && l.deadline.is_some()) {
            self.remove(handle);
        }
    }

    /// Records a client's activity on a slab.
    pub fn note_activity(&mut self, client: ClientId, handle: u64, ops: u64) {
        let lent = self.slabs.get_mut(&handle).filter(|l| l.client == client);
        if let Some(lent) = lent.filter(|l| l.queried) {
            lent.activity = Some(ops);
        }
    }

    /// Handles of a client's slabs.
    pub fn list(&self, client: ClientId) -> Vec<u64> {
        let its = self.slabs.iter().filter(|(_, l)| l.client == client);
        its.map(|(&h, _)| h).collect()
    }

    /// A client's slabs that are being evicted, with their deadlines.
    pub fn leaving(&self, client: ClientId) -> Vec<(u64, Ns)> {
        let its = self.slabs.iter().filter(|(_, l)| l.client == client);
        its.filter_map(|(&h, l)| Some((h, l.deadline?))).collect()
    }

    fn remove(&mut self, handle: u64) {
        if let Some(lent) = self.slabs.remove(&handle) {
            self.by_key.remove(&(lent.client, lent.slab));
            let written = lent.versions.iter().filter(|v| **v != 0).count() as u64;
            assert!(self.touched_bytes >= written * self.extent_bytes);
            self.touched_bytes -= written * self.extent_bytes;
        }
    }

    /// The host dies and loses everything.
    pub fn die(&mut self) {
        self.life = Life::Dead;
        self.slabs.clear();
        self.by_key.clear();
        self.heard.clear();
        self.touched_bytes = 0;
        self.query = None;
        self.looked = None;
        self.headroom = Headroom::new(*self.headroom.config());
    }

    /// The host works again: a dead one with a new run of its donor, a hung one where it stopped.
    pub fn rise(&mut self) {
        if self.life == Life::Dead {
            self.run += 1;
            self.own_bytes = 0;
        }
        self.life = Life::Up;
        self.observe();
    }

    fn observe(&mut self) -> Decision {
        let leaving = self.slabs.values().filter(|l| l.deadline.is_some());
        let leaving_bytes = leaving
            .flat_map(|l| &l.versions)
            .filter(|v| **v != 0)
            .count() as u64
            * self.extent_bytes;
        self.budget = self.available_bytes().saturating_sub(self.reserve_bytes());
        self.headroom.observe(Sample {
            available_bytes: self.available_bytes(),
            lent_bytes: self.lent_bytes(),
            touched_bytes: self.touched_bytes,
            leaving_bytes,
        })
    }

    /// Grows or shrinks its own programs towards their target.
    pub fn grow(&mut self, elapsed_ns: Ns) {
        let step =
            (u128::from(self.own_bytes_per_s) * u128::from(elapsed_ns) / 1_000_000_000) as u64;
        self.own_bytes = if self.own_target_bytes >= self.own_bytes {
            self.own_target_bytes.min(self.own_bytes + step)
        } else {
            self.own_target_bytes
                .max(self.own_bytes.saturating_sub(step))
        };
    }

    /// One pass of the watchdog.
    pub fn look(&mut self, now: Ns) -> Orders {
        let mut orders = Orders::default();
        let before = self.looked.replace(now).unwrap_or(now);
        if let Some(gap) = lease::gap(before, now, LOOK_NS) {
            for heard in self.heard.values_mut() {
                *heard = lease::postponed(*heard, gap, now);
            }
            for deadline in self.slabs.values_mut().filter_map(|l| l.deadline.as_mut()) {
                *deadline += gap;
            }
        }
        let late: Vec<ClientId> = self
            .heard
            .iter()
            .filter(|(_, heard)| lease::is_over(**heard, LEASE_NS, now))
            .map(|(c, _)| *c)
            .collect();
        for client in late {
            self.heard.remove(&client);
            for handle in self.list(client) {
                self.remove(handle);
            }
        }
        let due = |l: &Lent| l.deadline.is_some_and(|d| d <= now);
        let due: Vec<u64> = self
            .slabs
            .iter()
            .filter(|(_, l)| due(l))
            .map(|(&h, _)| h)
            .collect();
        orders.late = due.len();
        for handle in due {
            self.remove(handle);
        }
        if let Decision::Evict { slabs } = self.observe()
            && self.query.is_none()
        {
            let staying = self.slabs.iter().filter(|(_, l)| l.deadline.is_none());
            let staying: Vec<u64> = staying.map(|(&h, _)| h).collect();
            let count = slabs as usize;
            let sampled = victims::sample(&mut self.rng, &staying, count + victims::EXTRA);
            for handle in &sampled {
                let lent = self.slabs.get_mut(handle).expect("sampled of these");
                (lent.queried, lent.activity) = (true, None);
                orders.query.push((lent.client, *handle));
            }
            if !sampled.is_empty() {
                self.query = Some((count, now + QUERY_NS));
            }
        }
        self.go_on_with_query(now, &mut orders);
        orders
    }

    fn go_on_with_query(&mut self, now: Ns, orders: &mut Orders) {
        let Some((count, until)) = self.query else {
            return;
        };
        let answered = |l: &Lent| !l.queried || l.activity.is_some();
        if now < until && !self.slabs.values().all(answered) {
            return;
        }
        self.query = None;
        let mut sampled = Vec::new();
        for (&slab, l) in self.slabs.iter_mut().filter(|(_, l)| l.queried) {
            l.queried = false;
            // Without an answer from its client, a slab has the donor's own count.
            let own = l.ops - l.ops_before;
            l.ops_before = l.ops;
            let ops = l.activity.take().unwrap_or(own);
            sampled.push(Activity { slab, ops });
        }
        let deadline = now + EVICT_WITHIN_NS;
        for handle in victims::least_active(&sampled, count) {
            let lent = self.slabs.get_mut(&handle).expect("sampled of these");
            if lent.deadline.is_none() {
                lent.deadline = Some(deadline);
                orders.stop.push((lent.client, handle, deadline));
            }
        }
    }
}
