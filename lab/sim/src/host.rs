//! A host: its memory, and the donor that lends some of it.
//!
//! What is lent and taken back is decided by `canvas_place::{headroom, victims}`; the order of steps
//! is that of the memory server's keeper.

use std::collections::BTreeMap;

use canvas_place::headroom::{Config, Decision, Headroom, Sample};
use canvas_place::lease;
use canvas_place::victims::{self, Activity};

use crate::engine::{MS, Ns};
use crate::{ClientId, world};

/// Time between two looks of the keeper.
pub const LOOK_NS: Ns = 100 * MS;
/// How long it waits for its clients' activity.
pub const QUERY_NS: Ns = 200 * MS;
/// How long a client has to move a slab.
pub const EVICT_WITHIN_NS: Ns = 10_000 * MS;
/// How long a silent client's slabs are kept.
pub const LEASE_NS: Ns = 30_000 * MS;

/// Whether it works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// It does.
    Up,
    /// It lost everything that it had.
    Dead,
    /// It does nothing, and has everything.
    Hung,
}

/// A slab that is lent.
pub struct Lent {
    /// Who has it.
    pub client: ClientId,
    /// What its owner calls it.
    pub slab: u32,
    /// What was written last, by extent; 0 is nothing.
    pub versions: Vec<u64>,
    /// When it is freed.
    pub deadline: Option<Ns>,
    queried: bool,
    activity: Option<u64>,
    /// Operations on it, and how many there were when it was last sampled.
    ops: u64,
    ops_before: u64,
}

/// Why a donor says no.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// No memory for it.
    NoRoom,
    /// It does not hold that.
    Unknown,
    /// It takes the slab back: it may be read only.
    Evicting,
}

/// What the keeper wants of clients.
#[derive(Default)]
pub struct Orders {
    /// Slabs whose activity is wanted.
    pub query: Vec<(ClientId, u64)>,
    /// Slabs that are to be moved, and until when.
    pub stop: Vec<(ClientId, u64, Ns)>,
    /// Slabs that were taken away at their deadline.
    pub late: usize,
}

/// A host.
pub struct Host {
    /// All its memory.
    pub bytes: u64,
    /// What its own programs use.
    pub own_bytes: u64,
    /// What they will use, and how fast they come to that (bytes a second).
    pub own_target_bytes: u64,
    /// See there.
    pub own_bytes_per_s: u64,
    /// Whether it works.
    pub life: Life,
    /// Which run of the donor it is; 0 is none.
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
    /// Time until which its link to the network is used.
    pub net_busy: Ns,
    /// Time until which its disk is used.
    pub disk_busy: Ns,
}

impl Host {
    /// One that works, and lends as `lends` says.
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

    /// What its programs and its clients leave.
    pub fn available_bytes(&self) -> u64 {
        self.bytes
            .saturating_sub(self.own_bytes)
            .saturating_sub(self.touched_bytes)
    }

    /// What clients have written here.
    pub fn touched_bytes(&self) -> u64 {
        self.touched_bytes
    }

    /// What is lent.
    pub fn lent_bytes(&self) -> u64 {
        self.slabs.len() as u64 * self.slab_bytes
    }

    /// What it leaves to its own programs in any case.
    pub fn reserve_bytes(&self) -> u64 {
        self.headroom.config().reserve_bytes
    }

    /// What it says it could lend.
    pub fn free_bytes(&self) -> u64 {
        self.headroom.free_bytes(self.lent_bytes())
    }

    /// Whether it is short of memory.
    pub fn pressure(&self) -> bool {
        self.headroom.pressure()
    }

    /// A client gave a sign of life.
    pub fn hear(&mut self, client: ClientId, now: Ns) {
        self.heard.insert(client, now);
    }

    /// Lends a slab, or finds the one it lent.
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

    /// What is stored of an extent.
    pub fn read(&self, client: ClientId, handle: u64, extent: usize) -> Result<u64, Refused> {
        let lent = self.slabs.get(&handle).filter(|l| l.client == client);
        Ok(lent.ok_or(Refused::Unknown)?.versions[extent])
    }

    /// A client has read from a slab.
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

    /// A client has moved a slab.
    pub fn evict_done(&mut self, client: ClientId, handle: u64) {
        let lent = self.slabs.get(&handle);
        if lent.is_some_and(|l| l.client == client && l.deadline.is_some()) {
            self.remove(handle);
        }
    }

    /// A client says how much it used a slab.
    pub fn note_activity(&mut self, client: ClientId, handle: u64, ops: u64) {
        let lent = self.slabs.get_mut(&handle).filter(|l| l.client == client);
        if let Some(lent) = lent.filter(|l| l.queried) {
            lent.activity = Some(ops);
        }
    }

    /// The handles of a client's slabs.
    pub fn list(&self, client: ClientId) -> Vec<u64> {
        let its = self.slabs.iter().filter(|(_, l)| l.client == client);
        its.map(|(&h, _)| h).collect()
    }

    /// Slabs of a client that are on their way out.
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

    /// Everything is lost.
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

    /// A new run of the donor, or the old one goes on.
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

    /// Its own programs go on to what they will use.
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

    /// The keeper's look.
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
            // Of a slab whose client has not answered, the donor's own count is taken.
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
