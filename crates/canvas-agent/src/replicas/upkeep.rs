//! Periodic work: pings, replicas for slabs that have too few, and release of unwanted copies.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use canvas_link::Address;
use canvas_place::replicas::placement::{Due, has_room};
use canvas_place::replicas::{Donors, Slab, map};
use canvas_shm::far::SLAB_EXTENTS;
use canvas_wire::frame::{Reply, Request};

use super::donor::{Donor, State};
use super::{Purpose, Replicas, SERVERS_MAX, Views, shards};
use crate::finder::Found;
use crate::store::Event;
use crate::store::LogTopic;

/// A donor that was away for this long, and holds no copy that is relied on, gives up its place to another.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Most donors waiting for a place, and the pause between two attempts.
const UNCONNECTED_MAX: usize = 1024;
const UNCONNECTED_PAUSE: Duration = Duration::from_secs(1);

/// How often all slabs are checked, whatever has changed.
const ALL_EVERY: Duration = Duration::from_secs(1);

/// The properties of a donor on which decisions about slabs depend: it serves, may serve again in a moment, reclaims,
/// has room.
type Seen = (bool, bool, bool, bool);

/// Which slabs to check.
#[derive(Default)]
pub(super) struct Upkeep {
    /// Slabs that have changed or lack something.
    pub restless: BTreeSet<u32>,
    /// Check all slabs at the next tick.
    pub all: bool,
    /// When all were last checked, and the donors' properties then.
    looked: Option<Instant>,
    donors: Vec<Seen>,
    /// Number of slab checks so far.
    pub slabs: u64,
}

impl Replicas {
    /// Number of slab checks so far, for tests.
    pub fn slabs_visited(&self) -> u64 {
        self.upkeep.slabs
    }

    /// Does the work that is due.
    pub(super) fn tick(&mut self) {
        if self.policy.donors > 0 {
            self.add_found_donors();
        }
        for donor in 0..self.donors.len() {
            let d = &mut self.donors[donor];
            if d.is_up() && d.pinged.elapsed() >= d.ping_every {
                d.pinged = Instant::now();
                self.submit(donor, Purpose::Ping, &Request::Ping);
            }
        }
        self.apply_policy();
        self.maintain_lanes();
        let degraded = self.visit_slabs();
        self.behind = self.behind_now();
        let repaired = std::mem::take(&mut self.repairs.done);
        let failovers = std::mem::take(&mut self.failovers);
        if repaired > 0 || failovers > 0 || degraded != self.degraded {
            self.degraded = degraded;
            self.events.push(Event::Health {
                repaired,
                failovers,
                degraded,
            });
        }
        self.retry_away();
        self.retry_shards();
        if !(self.upkeep.restless.is_empty() && self.repairs.jobs.is_idle()) {
            self.repair();
        }
        self.report();
    }

    /// Checks the slabs that have changed or lack something; all slabs once in a while, or when a donor's properties
    /// have changed. Returns how many have fewer complete copies than they should.
    fn visit_slabs(&mut self) -> u64 {
        let now = self.now_ns();
        let views = Views::of(&self.donors, self.started);
        let donors: Vec<Seen> = (0..views.count())
            .map(|i| {
                let view = views.view(i);
                let has_room = view.has_room(shards::lent_bytes(None));
                (view.is_up(), view.may_serve(now), view.pressure, has_room)
            })
            .collect();
        let upkeep = &mut self.upkeep;
        let is_due = upkeep.looked.is_none_or(|t| t.elapsed() >= ALL_EVERY);
        if is_due || donors != upkeep.donors || std::mem::take(&mut upkeep.all) {
            (upkeep.looked, upkeep.donors) = (Some(Instant::now()), donors);
            upkeep.restless.extend(self.map.keys());
        }
        let slabs: Vec<u32> = std::mem::take(&mut upkeep.restless).into_iter().collect();
        let mut degraded = 0;
        for slab in &slabs {
            let Some(entry) = self.map.get(slab) else {
                continue;
            };
            let donors = Views::of(&self.donors, self.started);
            let Due {
                degraded: short,
                place,
            } = entry.due(&donors, self.policy, now);
            degraded += u64::from(short);
            if place {
                self.place(*slab);
            }
            self.remove_surplus(*slab, now);
            self.drop_disk_copy(*slab, now);
            let donors = Views::of(&self.donors, self.started);
            if !self.map[slab].is_settled(&donors, self.policy, now) {
                self.upkeep.restless.insert(*slab);
            }
        }
        self.upkeep.slabs += slabs.len() as u64;
        self.send_worths(&slabs);
        degraded
    }

    /// Extents that the disk lacks because late writes to it are pending.
    fn behind_now(&self) -> u64 {
        if !self.policy.late {
            return 0;
        }
        let of_slab = |(slab, entry): (&u32, &Slab)| {
            let first = slab * SLAB_EXTENTS as u32;
            let is_written = |within| Replicas::is_written(self.far, first + within as u32);
            entry.disk.count(is_written)
        };
        let under_way = self.ops.values().filter(|op| op.is_late()).count();
        (self.map.iter().map(of_slab).sum::<usize>() + under_way) as u64
    }

    /// Connects to donors found by gossip, and to those for which there was no place before.
    fn add_found_donors(&mut self) {
        let found = self.connector.found.as_mut().and_then(Found::changed);
        for addr in found.into_iter().flatten() {
            let addr = Address::from(addr);
            match self.add_donor(addr) {
                Some(i) => self.line(LogTopic::DonorFound(i), i, format_args!("found by gossip")),
                None => self.queue_donor(addr),
            }
        }
        if self.connector.unconnected.is_empty()
            || self.connector.tried.elapsed() < UNCONNECTED_PAUSE
        {
            return;
        }
        self.connector.tried = Instant::now();
        self.add_unconnected();
    }

    /// Connects to known donors without connections.
    pub(super) fn add_unconnected(&mut self) {
        for addr in std::mem::take(&mut self.connector.unconnected) {
            if self.add_donor(addr).is_none() {
                self.queue_donor(addr);
            }
        }
    }

    /// Keeps a donor for later, because there is no place or no thread for it now; does nothing if it is connected.
    fn queue_donor(&mut self, addr: Address) {
        let is_one = |known: &Address| known.addr == addr.addr;
        let is_connected = self.donors.iter().any(|d| is_one(&d.addr));
        if !is_connected
            && !self.connector.unconnected.iter().any(is_one)
            && self.connector.unconnected.len() < UNCONNECTED_MAX
        {
            self.connector.unconnected.push(addr);
        }
    }

    /// Adds a donor. Returns its index, unless it was known or there is no place.
    pub(super) fn add_donor(&mut self, addr: Address) -> Option<usize> {
        // Whichever transport reaches it.
        if self.donors.iter().any(|d| d.addr.addr == addr.addr) {
            return None;
        }
        let holds = |i| {
            let mut copies = self.map.values().flat_map(|e| &e.replicas);
            copies.any(|c| c.donor == i)
        };
        let gone = |(i, d): (usize, &Donor)| {
            matches!(d.state, State::Down(since) if since.elapsed() > FORGOTTEN) && !holds(i)
        };
        let i = match self.donors.len() {
            n if n < SERVERS_MAX => n,
            _ => self.donors.iter().enumerate().position(gone)?,
        };
        let connector = &self.connector;
        // Without a thread for it now, it is tried again later.
        let donor = Donor::new(
            addr,
            connector.link.clone(),
            connector.links,
            connector.waker,
        )
        .ok()?;
        self.journal.put_donor(i, addr);
        if i == self.donors.len() {
            self.donors.push(donor);
        } else {
            map::replaced(&mut self.map, i);
            self.donors[i] = donor;
        }
        Some(i)
    }

    /// Releases a replica that its donor wants back, or that is one too many.
    fn remove_surplus(&mut self, slab: u32, now: u64) {
        let donors = Views::of(&self.donors, self.started);
        let bytes = shards::lent_bytes(self.code_of(slab));
        let room = || has_room(&donors, bytes);
        let entry = self.map.get_mut(&slab);
        let Some(given) = entry.and_then(|e| e.remove_surplus(&donors, self.policy, room, now))
        else {
            return;
        };
        self.save(slab);
        let (donor, handle) = (given.donor, given.handle);
        match given.call {
            Some(call) => self.reply(donor, call, &Reply::EvictDone { handle }),
            None if self.donors[donor].is_up() => {
                self.submit(donor, Purpose::Garbage, &Request::Free { handle });
            }
            // When it comes back, it is asked what it holds.
            None => {}
        }
    }

    /// Whether all donors are connected and none that could take another replica of the slab has room.
    pub(super) fn no_other_has_room(&self, slab: u32) -> bool {
        let donors = Views::of(&self.donors, self.started);
        let want = self.policy_of(slab).donors;
        let bytes = shards::lent_bytes(self.code_of(slab));
        match self.map.get(&slab) {
            Some(entry) => entry.no_other_has_room(&donors, want, bytes),
            None => Slab::default().no_other_has_room(&donors, want, bytes),
        }
    }
}
