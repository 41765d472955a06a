//! Sends donors the value of slabs to their tenant (`canvas_place::replicas::worth`), and handles a donor's report that
//! it had to free some.

use std::collections::{BTreeMap, HashMap};

use canvas_place::early::Worth;
use canvas_place::replicas::AGAIN_NS;
use canvas_wire::frame::{Items, Reply, Request, Valued};
use canvas_wire::{EVICT_MAX, VERSION_WORTH};

use super::donor::Donor;
use super::{Call, Replicas, Views};

/// What a message names: the slab, the donor, and its handle there.
type Of = (u32, usize, u64);

/// Messages that no donor has confirmed yet, by number.
#[derive(Default)]
pub(super) struct Tellings {
    under_way: HashMap<u64, Vec<Of>>,
    last: u64,
}

/// Whether the donor understands values of slabs.
fn hears(donor: &Donor) -> bool {
    let link = donor.links.first();
    donor.is_up() && link.is_some_and(|link| link.welcome().version >= VERSION_WORTH)
}

impl Replicas {
    /// Sends donors the changed values of these slabs. A donor that does not understand them frees nothing early and
    /// gets no message.
    pub(super) fn tell_worths(&mut self, slabs: &[u32]) {
        let now = self.now_ns();
        let donors = Views::of(&self.donors, self.started);
        let mut due: BTreeMap<usize, Vec<(u32, u64, Worth)>> = BTreeMap::new();
        for &slab in slabs {
            let Some(entry) = self.map.get(&slab) else {
                continue;
            };
            for (donor, handle, worth) in entry.worths(slab, &donors, self.policy, now) {
                due.entry(donor).or_default().push((slab, handle, worth));
            }
        }
        for (donor, all) in due {
            self.upkeep
                .restless
                .extend(all.iter().map(|(slab, ..)| slab));
            if !hears(&self.donors[donor]) {
                self.needs_no_telling(donor, &all);
                continue;
            }
            for part in all.chunks(EVICT_MAX) {
                if !self.tell(donor, part) {
                    break;
                }
            }
        }
    }

    /// The donor's version frees nothing early: it counts as if it took each slab for the only copy.
    fn needs_no_telling(&mut self, donor: usize, all: &[(u32, u64, Worth)]) {
        if !self.donors[donor].is_up() {
            return;
        }
        for &(slab, _, _) in all {
            if let Some(replica) = self.map.get_mut(&slab).and_then(|e| e.at(donor)) {
                replica.told.deaf();
            }
        }
    }

    /// Sends one message; false when nothing more can be sent now.
    fn tell(&mut self, donor: usize, part: &[(u32, u64, Worth)]) -> bool {
        let valued: Vec<Valued> = part
            .iter()
            .map(|&(_, handle, worth)| Valued {
                handle,
                worth: worth.number(),
            })
            .collect();
        let slabs = Items::from(&valued[..]);
        let telling = self.worths.last + 1;
        if !self.submit(donor, Call::Worth(telling), &Request::Worth { slabs }) {
            return false;
        }
        self.worths.last = telling;
        for &(slab, _, worth) in part {
            if let Some(replica) = self.map.get_mut(&slab).and_then(|e| e.at(donor)) {
                replica.told.tell(worth);
            }
        }
        let of = part.iter().map(|&(slab, handle, _)| (slab, donor, handle));
        self.worths.under_way.insert(telling, of.collect());
        true
    }

    /// A donor has confirmed a message, or (not `ok`) may not have received it.
    pub(super) fn told_worth(&mut self, telling: u64, ok: bool) {
        let again_ns = self.now_ns() + AGAIN_NS;
        for (slab, donor, handle) in self.worths.under_way.remove(&telling).unwrap_or_default() {
            self.upkeep.restless.insert(slab);
            let replica = self.map.get_mut(&slab).and_then(|e| e.at(donor));
            // Only the replica that the message named; there may be another one by now.
            if let Some(replica) = replica.filter(|r| r.handle == handle) {
                replica.told.answered(ok, again_ns);
            }
        }
    }

    /// A donor had to free these slabs at once: reads go to other copies from now on, and the copies are made again.
    pub(super) fn freed_there(&mut self, donor: usize, call: u64, handles: &Items<'_, u64>) {
        for handle in handles.iter() {
            self.gone(donor, handle);
            // The link forgets the slab as well.
            self.reply(donor, call, &Reply::EvictDone { handle });
        }
    }
}
