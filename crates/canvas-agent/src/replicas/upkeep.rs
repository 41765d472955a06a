//! What is due from time to time: signs of life, places for slabs that have too few copies, copies
//! that are given up.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use canvas_link::Address;
use canvas_place::replicas::placement::{Due, has_room};
use canvas_place::replicas::{Slab, map};
use canvas_shm::far::SLAB_BYTES;
use canvas_wire::frame::{Reply, Request};

use super::donor::{Donor, State};
use super::{Call, Replicas, SERVERS_MAX, Views};
use crate::log::About;
use crate::store::Event;

/// A donor that was away for so long, and holds nothing that is counted on, makes room for another.
const FORGOTTEN: Duration = Duration::from_secs(60);

impl Replicas {
    /// Does what is due.
    pub(super) fn tick(&mut self) {
        while let Some(addr) = self.meeting.found.as_ref().and_then(|f| f.try_recv().ok()) {
            self.meet(addr);
        }
        for donor in 0..self.donors.len() {
            let d = &mut self.donors[donor];
            if d.is_up() && d.pinged.elapsed() >= d.ping_every {
                d.pinged = Instant::now();
                self.submit(donor, Call::Ping, &Request::Ping);
            }
        }
        let (now, want) = (self.now_ns(), self.policy.donors);
        let slabs: Vec<u32> = self.map.keys().copied().collect();
        let mut degraded = 0;
        for slab in slabs {
            let donors = Views::of(&self.donors, self.started);
            let Due {
                degraded: short,
                place,
            } = self.map[&slab].due(&donors, want, now);
            degraded += u64::from(short);
            if place {
                self.place(slab);
            }
            self.let_go(slab, now);
        }
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
        self.repair();
        self.report();
    }

    /// Somebody has heard of a donor.
    fn meet(&mut self, addr: SocketAddr) {
        // However it is reached.
        if self.donors.iter().any(|d| d.addr.addr == addr) {
            return;
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
            _ => match self.donors.iter().enumerate().position(gone) {
                Some(i) => i,
                None => return,
            },
        };
        let meeting = &self.meeting;
        let addr = Address::from(addr);
        let Ok(donor) = Donor::new(addr, meeting.link.clone(), meeting.links, meeting.waker) else {
            // No thread for it now; it will be heard of again.
            return;
        };
        self.journal.put_donor(i, addr);
        if i == self.donors.len() {
            self.donors.push(donor);
        } else {
            map::replaced(&mut self.map, i);
            self.donors[i] = donor;
        }
        self.line(About::DonorFound(i), i, format_args!("found by gossip"));
    }

    /// Gives a replica up that its donor wants back, or that is one too many.
    fn let_go(&mut self, slab: u32, now: u64) {
        let donors = Views::of(&self.donors, self.started);
        let room = || has_room(&donors, SLAB_BYTES as u64);
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
        let (want, bytes) = (self.policy.donors, SLAB_BYTES as u64);
        match self.map.get(&slab) {
            Some(entry) => entry.no_other_has_room(&donors, want, bytes),
            None => Slab::default().no_other_has_room(&donors, want, bytes),
        }
    }
}
