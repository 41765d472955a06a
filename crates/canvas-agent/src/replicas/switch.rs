//! Changes of the copies policy while the tenant runs.
//!
//! Nothing stops for a change: new writes go to the new places, repair copies what was written before (as scheduled for
//! the tenant), and copies that are no longer wanted are released slab by slab, once all wanted copies of a slab are
//! complete. Reads use whatever copy there is.

use canvas_place::replicas::Policy;
use canvas_place::replicas::read::OnDisk;
use canvas_shm::far::SLAB_EXTENTS;

use super::{Replicas, Views};
use crate::store::LogTopic;
use crate::store::{Event, Store};

/// The possible policy nearest to `wanted`: without a disk, copies on donors only.
pub(super) fn possible(wanted: Policy, has_disk: bool) -> Policy {
    let disk = has_disk && (wanted.disk || wanted.donors == 0);
    let donors = if disk {
        wanted.donors
    } else {
        wanted.donors.max(1)
    };
    let both = disk && donors > 0;
    Policy {
        donors,
        disk,
        late: wanted.late && both,
        code: wanted.code.filter(|_| !disk),
    }
}

impl Replicas {
    /// Applies a new copies policy, if there is one.
    pub(super) fn apply_policy(&mut self) {
        let now = possible(self.wanted.get(), self.disk.is_some());
        if now == self.policy {
            return;
        }
        self.policy = now;
        self.upkeep.all = true;
        if now.donors > 0 {
            self.add_unconnected();
        }
        let line = format!("the copies policy is {now} now; far memory moves to the new places");
        self.events.push(Event::Log(LogTopic::Copies, line));
    }

    /// The policy that applies to a slab.
    pub(super) fn policy_of(&self, slab: u32) -> Policy {
        match self.map.get(&slab) {
            Some(entry) => entry.policy(self.policy),
            None => self.policy,
        }
    }

    /// Whether the disk has an extent (an index within its slab), as far as is known.
    pub(super) fn on_disk(&self, slab: u32, within: usize) -> OnDisk {
        OnDisk::of(
            self.map.get(&slab),
            within,
            self.disk.is_some(),
            self.policy,
        )
    }

    /// A write of a slab to the disk is about to begin. The journal records it first: an agent that takes over must
    /// look for the slab there.
    pub(super) fn goes_to_disk(&mut self, slab: u32) {
        let entry = self.map.entry(slab).or_default();
        if !std::mem::replace(&mut entry.may_be_on_disk, true) && !entry.disk.is_none() {
            self.save(slab);
        }
    }

    /// Frees the disk's copy of a slab if it is neither wanted nor needed.
    pub(super) fn drop_disk_copy(&mut self, slab: u32, now: u64) {
        let has_any = self.map.get(&slab).is_some_and(|e| e.may_be_on_disk);
        if self.policy_of(slab).disk || !has_any || self.disk.is_none() || self.disk_is_used(slab) {
            return;
        }
        let donors = Views::of(&self.donors, self.started);
        let entry = self.map.get_mut(&slab);
        if !entry.is_some_and(|e| e.drop_disk_copy(&donors, self.policy, now)) {
            return;
        }
        // Recorded first: an agent that takes over must not rely on the copy.
        self.save(slab);
        self.dropping.insert(slab, Vec::new());
        if let Some(disk) = &mut self.disk {
            disk.free(slab);
        }
    }

    /// Whether the disk is freeing or writing part of the slab.
    fn disk_is_used(&self, slab: u32) -> bool {
        let repairs = (0..super::repair::SLOTS).filter_map(|slot| self.repairs.jobs.job(slot));
        let mut there = repairs.filter(|job| job.to.is_none());
        self.dropping.contains_key(&slab)
            || there.any(|job| job.extent / SLAB_EXTENTS as u32 == slab)
            || self.ops.values().any(|op| op.is_on_way_to_disk(slab))
    }

    /// The disk has freed a slab, perhaps because its copy was no longer wanted.
    pub(super) fn dropped(&mut self, slab: u32) {
        for id in self.dropping.remove(&slab).into_iter().flatten() {
            self.send_write(id);
        }
    }

    /// Records what the disk has of an extent, for a write that did not use the disk or that the disk has answered.
    pub(super) fn noted_on_disk(&mut self, extent: u32, written: bool) {
        if self.disk.is_none() {
            return;
        }
        let (slab, within) = (extent / SLAB_EXTENTS as u32, extent as usize % SLAB_EXTENTS);
        let entry = self.map.entry(slab).or_default();
        if written {
            entry.disk.fill(within);
        } else if entry.disk.add(within) {
            self.save(slab);
        }
    }
}
