//! Repair of replicas: carries out what `canvas_place::replicas::repair` decides, an extent at a time.

use canvas_place::replicas::REPAIRS;
use canvas_place::replicas::repair::{RepairSource, TRIES, Verified};

use crate::agent::Call;
use crate::client::OURS;
use crate::shards::Gathering;
use crate::world::{Request, World};

impl World {
    pub(crate) fn repair(&mut self, a: usize) {
        let now = self.now();
        self.agents[a].repairs.tick(now);
        for slot in 0..REPAIRS {
            self.next_repair(a, slot);
        }
    }

    fn next_repair(&mut self, a: usize, slot: usize) {
        for _ in 0..TRIES {
            if self.agents[a].repairs.job(slot).is_some() || !self.find_repair(a, slot) {
                return;
            }
        }
    }

    fn find_repair(&mut self, a: usize, slot: usize) -> bool {
        let agent = &mut self.agents[a];
        let (seals, ops) = (&agent.seals, &agent.ops);
        let writes = |extent: u32| {
            let mut all = ops.values();
            all.any(|op| op.extent == extent && op.version.is_some())
        };
        let found = agent.repairs.find(
            slot,
            &mut agent.map,
            &agent.donors,
            self.config.policy,
            writes,
            |extent| seals[extent as usize],
        );
        if found.is_found
            && let Some(code) = self.config.policy.code
        {
            self.agents[a].gatherings[slot] = Gathering::default();
            self.gather_for_repair(a, slot, code);
        } else if found.is_found {
            self.read_for_repair(a, slot);
        }
        found.is_found
    }

    fn read_for_repair(&mut self, a: usize, slot: usize) {
        let disk = self.config.has_disk;
        loop {
            let agent = &mut self.agents[a];
            let Some(extent) = agent.repairs.job(slot).map(|job| job.extent) else {
                return;
            };
            match agent.repairs.source(slot, &agent.map, &agent.donors, disk) {
                RepairSource::Donor(source) => {
                    let (_, within) = self.place_of(extent);
                    let request = Request::Read(source.handle, within);
                    if self.submit(a, source.donor, Call::RepairRead(slot), request) {
                        return;
                    }
                }
                RepairSource::Disk => return self.use_disk(a, OURS + slot as u32),
                RepairSource::Unavailable => return self.end_repair(a, slot, false),
            }
        }
    }

    pub(crate) fn repair_read(&mut self, a: usize, slot: usize, version: Option<u64>) {
        match version {
            Some(version) => self.write_for_repair(a, slot, version),
            None => self.read_for_repair(a, slot),
        }
    }

    /// The disk has finished a read or write of a repair.
    pub(crate) fn repair_by_disk(&mut self, a: usize, slot: usize) {
        let agent = &mut self.agents[a];
        let Some(job) = agent.repairs.job(slot) else {
            return;
        };
        let there = &mut agent.disk[job.extent as usize];
        if job.writes {
            *there = job.seal;
            self.end_repair(a, slot, true);
        } else {
            let version = *there;
            self.repair_read(a, slot, Some(version));
        }
    }

    fn write_for_repair(&mut self, a: usize, slot: usize, version: u64) {
        let agent = &mut self.agents[a];
        let Some(job) = agent.repairs.job(slot) else {
            return;
        };
        let extent = job.extent;
        // A version verifies only under its own seal.
        let (good, seal) = (version == job.seal, agent.seals[extent as usize]);
        let (slab, within) = self.place_of(extent);
        let agent = &mut self.agents[a];
        match agent.repairs.verified(slot, &agent.map, good, seal) {
            Verified::Write(None) => {
                agent.repairs.sent(slot);
                agent.map.entry(slab).or_default().may_be_on_disk = true;
                self.use_disk(a, OURS + slot as u32);
            }
            Verified::Has => self.end_repair(a, slot, true),
            Verified::Write(Some(target)) => {
                agent.repairs.sent(slot);
                let request = Request::Write(target.handle, within, version);
                if !self.submit(a, target.donor, Call::RepairWrite(slot), request) {
                    self.end_repair(a, slot, false);
                }
            }
            Verified::End => self.end_repair(a, slot, false),
            Verified::Lacks => self.read_for_repair(a, slot),
            Verified::Bad(source) => {
                self.stats.stale += 1;
                if let Some(source) = source {
                    self.lacks(a, slab, source.donor, within);
                }
                self.read_for_repair(a, slot);
            }
        }
    }

    pub(crate) fn end_repair(&mut self, a: usize, slot: usize, ok: bool) {
        let agent = &mut self.agents[a];
        let ended = agent.repairs.end(slot, &mut agent.map, ok);
        self.stats.repaired += u64::from(ended.is_made_good);
        for id in ended.held_back {
            self.send_write(a, id);
        }
        if ok {
            self.next_repair(a, slot);
        }
    }
}
