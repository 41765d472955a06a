//! Sends donors the value of slabs to their tenant (`canvas_place::replicas::worth`), and handles a donor's report that
//! it had to free some.

use std::collections::{BTreeMap, HashMap};

use canvas_place::early::Worth;
use canvas_place::replicas::AGAIN_NS;
use canvas_wire::frame::{Items, Reply, Request, Valued};
use canvas_wire::{EVICT_MAX, VERSION_WORTH};

use super::donor::Donor;
use super::{Purpose, Replicas, Views};

/// What a message names: the slab, the donor, and its handle there.
type CopyId = (u32, usize, u64);

/// Messages that no donor has confirmed yet, by number.
#[derive(Default)]
pub(super) struct WorthMessages {
    under_way: HashMap<u64, Vec<CopyId>>,
    last: u64,
}

/// Whether the donor understands values of slabs.
fn supports_worth(donor: &Donor) -> bool {
    let link = donor.links.first();
    donor.is_up() && link.is_some_and(|link| link.welcome().version >= VERSION_WORTH)
}

impl Replicas {
    /// Sends donors the changed values of these slabs. A donor that does not understand them frees nothing early and
    /// gets no message.
    pub(super) fn send_worths(&mut self, slabs: &[u32]) {
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
            if !supports_worth(&self.donors[donor]) {
                self.mark_unsupported(donor, &all);
                continue;
            }
            for part in all.chunks(EVICT_MAX) {
                if !self.send_worth(donor, part) {
                    break;
                }
            }
        }
    }

    /// The donor's version frees nothing early: it counts as if it took each slab for the only copy.
    fn mark_unsupported(&mut self, donor: usize, all: &[(u32, u64, Worth)]) {
        if !self.donors[donor].is_up() {
            return;
        }
        for &(slab, _, _) in all {
            if let Some(replica) = self.map.get_mut(&slab).and_then(|e| e.at(donor)) {
                replica.reported.not_supported();
            }
        }
    }

    /// Sends one message; false when nothing more can be sent now.
    fn send_worth(&mut self, donor: usize, part: &[(u32, u64, Worth)]) -> bool {
        let valued: Vec<Valued> = part
            .iter()
            .map(|&(_, handle, worth)| Valued {
                handle,
                worth: worth.number(),
            })
            .collect();
        let slabs = Items::from(&valued[..]);
        let message = self.worths.last + 1;
        if !self.submit(donor, Purpose::Worth(message), &Request::Worth { slabs }) {
            return false;
        }
        self.worths.last = message;
        for &(slab, _, worth) in part {
            if let Some(replica) = self.map.get_mut(&slab).and_then(|e| e.at(donor)) {
                replica.reported.on_sent(worth);
            }
        }
        let of = part.iter().map(|&(slab, handle, _)| (slab, donor, handle));
        self.worths.under_way.insert(message, of.collect());
        true
    }

    /// A donor has confirmed a message, or (not `ok`) may not have received it.
    pub(super) fn on_worth_reply(&mut self, message: u64, ok: bool) {
        let again_ns = self.now_ns() + AGAIN_NS;
        for (slab, donor, handle) in self.worths.under_way.remove(&message).unwrap_or_default() {
            self.upkeep.restless.insert(slab);
            let replica = self.map.get_mut(&slab).and_then(|e| e.at(donor));
            // Only the replica that the message named; there may be another one by now.
            if let Some(replica) = replica.filter(|r| r.handle == handle) {
                replica.reported.on_answer(ok, again_ns);
            }
        }
    }

    /// A donor had to free these slabs at once: reads go to other copies from now on, and the copies are made again.
    pub(super) fn on_freed_early(&mut self, donor: usize, call: u64, handles: &Items<'_, u64>) {
        for handle in handles.iter() {
            self.drop_handle(donor, handle);
            // The link forgets the slab as well.
            self.reply(donor, call, &Reply::EvictDone { handle });
        }
    }
}
