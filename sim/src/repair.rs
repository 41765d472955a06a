//! Making good what copies miss, as `canvas_agent::copies::repair` does it.

use canvas_place::copies::{REPAIRS, repair_from};

use crate::agent::Call;
use crate::world::{Request, World};

/// Requests of repairs to the disk have numbers from here on.
pub const OURS: u32 = 1 << 31;

struct Job {
    extent: u32,
    to: usize,
    tried: u64,
    tried_disk: bool,
    writes: bool,
    void: bool,
    held_back: Vec<u32>,
    version: u64,
}

/// Repairs under way.
#[derive(Default)]
pub struct Repairs {
    jobs: [Option<Job>; REPAIRS],
    next_slab: u32,
    hopeless: Vec<u32>,
}

impl Repairs {
    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.jobs.iter().all(Option::is_none)
    }

    /// Must a write of the extent wait?
    pub fn holds_back(&mut self, extent: u32, id: u32) -> bool {
        for job in self.jobs.iter_mut().flatten() {
            if job.extent == extent {
                job.void = true;
                if job.writes {
                    job.held_back.push(id);
                    return true;
                }
            }
        }
        false
    }
}

impl World {
    pub(crate) fn repair(&mut self, a: usize) {
        self.agents[a].repairs.hopeless.clear();
        for slot in 0..REPAIRS {
            self.next_repair(a, slot);
        }
    }

    fn next_repair(&mut self, a: usize, slot: usize) {
        let extents = self.config.extents;
        let agent = &mut self.agents[a];
        if agent.repairs.jobs[slot].is_some() {
            return;
        }
        let from = agent.repairs.next_slab;
        let (repairs, donors) = (&agent.repairs, &agent.donors);
        let (seals, ops) = (&agent.seals, &agent.ops);
        let busy = |extent: u32| {
            ops.values()
                .any(|op| op.extent == extent && op.version.is_some())
                || repairs.hopeless.contains(&extent)
                || repairs.jobs.iter().flatten().any(|j| j.extent == extent)
        };
        let wraps = agent.map.range(from..).chain(agent.map.range(..from));
        let slabs: Vec<u32> = wraps
            .filter(|(_, e)| e.copies.iter().any(|c| c.missing.is_some()))
            .map(|(slab, _)| *slab)
            .collect();
        let mut found = None;
        'search: for slab in slabs {
            let entry = agent.map.get_mut(&slab).expect("just seen");
            let first = slab * extents as u32;
            for copy in &mut entry.copies {
                if !donors[copy.donor].is_up() || copy.leaving.is_some() {
                    continue;
                }
                let (next, _) = copy.next_missing(
                    |e| busy(first + e as u32),
                    |e| e < extents && seals[first as usize + e] != 0,
                );
                if let Some(e) = next {
                    found = Some((slab, first + e as u32, copy.donor));
                    break 'search;
                }
            }
        }
        if let Some((slab, extent, to)) = found {
            let repairs = &mut self.agents[a].repairs;
            repairs.next_slab = slab;
            repairs.jobs[slot] = Some(Job {
                extent,
                to,
                tried: 1 << to,
                tried_disk: false,
                writes: false,
                void: false,
                held_back: Vec::new(),
                version: 0,
            });
            self.read_for_repair(a, slot);
        }
    }

    fn read_for_repair(&mut self, a: usize, slot: usize) {
        let Some(job) = &self.agents[a].repairs.jobs[slot] else {
            return;
        };
        let (extent, tried, tried_disk) = (job.extent, job.tried, job.tried_disk);
        let (slab, within) = self.place_of(extent);
        let agent = &mut self.agents[a];
        let source = agent.map.get(&slab).and_then(|e| {
            let d = repair_from(agent.sources(e, within), within, tried)?;
            let copy = e.copies.iter().find(|c| c.donor == d)?;
            Some((d, copy.handle))
        });
        let job = agent.repairs.jobs[slot].as_mut().expect("seen above");
        if let Some((d, handle)) = source {
            job.tried |= 1 << d;
            if !self.submit(a, d, Call::RepairRead(slot), Request::Read(handle, within)) {
                self.read_for_repair(a, slot);
            }
        } else if self.config.policy.disk && !tried_disk {
            job.tried_disk = true;
            self.use_disk(a, OURS + slot as u32);
        } else {
            agent.repairs.hopeless.push(extent);
            self.end_repair(a, slot, false);
        }
    }

    pub(crate) fn repair_read(&mut self, a: usize, slot: usize, version: Option<u64>) {
        match version {
            Some(v) if v > 0 => self.write_for_repair(a, slot, v),
            _ => self.read_for_repair(a, slot),
        }
    }

    pub(crate) fn repair_from_disk(&mut self, a: usize, slot: usize) {
        let agent = &self.agents[a];
        let job = agent.repairs.jobs[slot].as_ref();
        let version = job.map_or(0, |j| agent.disk[j.extent as usize]);
        self.repair_read(a, slot, Some(version).filter(|v| *v > 0));
    }

    fn write_for_repair(&mut self, a: usize, slot: usize, version: u64) {
        let Some(job) = &mut self.agents[a].repairs.jobs[slot] else {
            return;
        };
        job.version = version;
        let (to, extent, void) = (job.to, job.extent, job.void);
        let (slab, within) = self.place_of(extent);
        let agent = &mut self.agents[a];
        let handle = agent
            .map
            .get_mut(&slab)
            .and_then(|e| e.at(to))
            .map(|c| c.handle);
        let (Some(handle), false) = (handle, void) else {
            return self.end_repair(a, slot, false);
        };
        agent.repairs.jobs[slot]
            .as_mut()
            .expect("seen above")
            .writes = true;
        let request = Request::Write(handle, within, version);
        if !self.submit(a, to, Call::RepairWrite(slot), request) {
            self.end_repair(a, slot, false);
        }
    }

    pub(crate) fn end_repair(&mut self, a: usize, slot: usize, ok: bool) {
        let Some(job) = self.agents[a].repairs.jobs[slot].take() else {
            return;
        };
        let (slab, within) = self.place_of(job.extent);
        let copy = self.agents[a].map.get_mut(&slab).and_then(|e| e.at(job.to));
        if let Some(copy) = copy.filter(|_| ok && !job.void) {
            copy.gained(within);
            self.stats.repaired += 1;
        }
        for id in job.held_back {
            self.send_write(a, id);
        }
        if ok {
            self.next_repair(a, slot);
        }
    }
}
