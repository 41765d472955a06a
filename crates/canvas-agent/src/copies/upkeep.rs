//! What is due from time to time: signs of life, places for slabs that have too few copies, copies
//! that are given up.

use std::time::Instant;

use canvas_shm::far::SLAB_BYTES;
use canvas_wire::frame::{Reply, Request};

use super::map::Copy;
use super::{Call, Copies};
use crate::store::Event;

impl Copies {
    /// Does what is due.
    pub(super) fn tick(&mut self) {
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
            let entry = &self.map[&slab];
            let whole = |c: &&Copy| {
                c.leaving.is_none() && c.missing.is_none() && self.donors[c.donor].is_up()
            };
            let whole = entry.copies.iter().filter(whole).count();
            if whole < want {
                degraded += 1;
            }
            if self.good(entry) < want && entry.allocating == 0 && now >= entry.again_ns {
                self.place(slab);
            }
            self.let_go(slab, whole >= want, now);
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
    }

    /// Gives copies up that their donors want back, or that are one too many, when enough others are
    /// whole.
    fn let_go(&mut self, slab: u32, enough: bool, now: u64) {
        let Some(entry) = self.map.get(&slab) else {
            return;
        };
        let over = entry.copies.iter().find_map(|c| {
            let (call, until) = c.leaving?;
            let moved = enough || self.disk.is_some() && self.no_donor_has_room();
            (moved || now >= until).then_some((c.donor, c.handle, Some(call)))
        });
        let surplus = || {
            let more = enough && entry.copies.len() > self.policy.donors;
            let worst = entry
                .copies
                .iter()
                .filter(|c| c.leaving.is_none())
                .max_by_key(|c| (!self.donors[c.donor].is_up(), c.missing.is_some()))?;
            more.then_some((worst.donor, worst.handle, None))
        };
        let Some((donor, handle, call)) = over.or_else(surplus) else {
            return;
        };
        if let Some(entry) = self.map.get_mut(&slab) {
            entry.copies.retain(|c| c.donor != donor);
        }
        self.save(slab);
        match call {
            Some(call) => self.reply(donor, call, &Reply::EvictDone { handle }),
            None if self.donors[donor].is_up() => {
                self.submit(donor, Call::Garbage, &Request::Free { handle });
            }
            // It is asked what it holds when it comes back.
            None => {}
        }
    }

    /// All donors are there, and none that could take one more copy of the slab has room.
    pub(super) fn no_other_has_room(&self, slab: u32) -> bool {
        let copies = self.map.get(&slab).map_or(&[][..], |e| &e.copies);
        copies.len() < self.policy.donors
            && self.donors.iter().enumerate().all(|(i, d)| {
                let holds = copies.iter().any(|c| c.donor == i);
                d.is_up() && (holds || d.pressure || d.free_bytes < SLAB_BYTES as u64)
            })
    }

    fn no_donor_has_room(&self) -> bool {
        !self
            .donors
            .iter()
            .any(|d| d.is_up() && !d.pressure && d.free_bytes >= SLAB_BYTES as u64)
    }
}
