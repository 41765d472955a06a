//! What is due from time to time: signs of life, places for slabs that have too few copies, copies
//! that are given up.

use std::time::{Duration, Instant};

use canvas_link::Address;
use canvas_place::replicas::placement::{Due, has_room};
use canvas_place::replicas::{Slab, map};
use canvas_shm::far::SLAB_EXTENTS;
use canvas_wire::frame::{Reply, Request};

use super::donor::{Donor, State};
use super::{Call, Replicas, SERVERS_MAX, Views, shards};
use crate::log::About;
use crate::store::Event;

/// A donor that was away for so long, and holds nothing that is counted on, makes room for another.
const FORGOTTEN: Duration = Duration::from_secs(60);

impl Replicas {
    /// Does what is due.
    pub(super) fn tick(&mut self) {
        while self.policy.donors > 0
            && let Some(addr) = self.meeting.found.as_ref().and_then(|f| f.try_recv().ok())
        {
            if let Some(i) = self.meet(addr.into()) {
                self.line(About::DonorFound(i), i, format_args!("found by gossip"));
            }
        }
        for donor in 0..self.donors.len() {
            let d = &mut self.donors[donor];
            if d.is_up() && d.pinged.elapsed() >= d.ping_every {
                d.pinged = Instant::now();
                self.submit(donor, Call::Ping, &Request::Ping);
            }
        }
        self.follow();
        self.look_after_lanes();
        let now = self.now_ns();
        let slabs: Vec<u32> = self.map.keys().copied().collect();
        let mut degraded = 0;
        for slab in slabs {
            let donors = Views::of(&self.donors, self.started);
            let Due {
                degraded: short,
                place,
            } = self.map[&slab].due(&donors, self.policy, now);
            degraded += u64::from(short);
            if place {
                self.place(slab);
            }
            self.let_go(slab, now);
            self.let_go_of_disk(slab, now);
        }
        self.tell_worths();
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
        self.repair();
        self.report();
    }

    /// Extents that the disk lacks because they are written there late.
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

    /// There is a donor here. Its index, when it was not known.
    pub(super) fn meet(&mut self, addr: Address) -> Option<usize> {
        // However it is reached.
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
        let meeting = &self.meeting;
        // Without a thread for it now, it will be heard of again.
        let donor = Donor::new(addr, meeting.link.clone(), meeting.links, meeting.waker).ok()?;
        self.journal.put_donor(i, addr);
        if i == self.donors.len() {
            self.donors.push(donor);
        } else {
            map::replaced(&mut self.map, i);
            self.donors[i] = donor;
        }
        Some(i)
    }

    /// Gives a replica up that its donor wants back, or that is one too many.
    fn let_go(&mut self, slab: u32, now: u64) {
        let donors = Views::of(&self.donors, self.started);
        let bytes = shards::lent_bytes(self.code_of(slab));
        let room = || has_room(&donors, bytes);
        let entry = self.map.get_mut(&slab);
        let Some(given) = entry.and_then(|e| e.let_go(&donors, self.policy, room, now)) else {
            return;
        };
        self.save(slab);
        let (donor, handle) = (given.donor, given.handle);
        match given.call {
            Some(call) => self.reply(donor, call, &Reply::EvictDone { handle }),
            None if self.donors[donor].is_up() => {
                self.submit(donor, Call::Garbage, &Request::Free { handle });
            }
            // It is asked what it holds when it comes back.
            None => {}
        }
    }

    /// All donors are there, and none that could take one more replica of the slab has room.
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
