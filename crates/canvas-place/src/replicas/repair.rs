//! Making good what replicas lack: extent by extent from another copy, a few at a time, in what order
//! and from where.
//!
//! What was read is verified before it is written on: a copy that is damaged or old is no source, and
//! is itself made good if there is one.
//!
//! A write of an extent that is being repaired supersedes the repair: while the old bytes are being
//! read the repair is given up; while they are on their way to the replica the write waits for that.

use std::collections::HashSet;

use super::map::{Map, Target};
use super::{Donors, REPAIRS, repair_from};

/// Before an extent that no copy could give is tried again.
pub const HOPELESS_NS: u64 = 500_000_000;
/// Extents that one slot tries in a row.
pub const TRIES: usize = 64;

/// One repair.
#[derive(Debug)]
pub struct Job {
    /// Which extent.
    pub extent: u32,
    /// The seal that its bytes have, unless they are written anew.
    pub seal: u64,
    /// The donor that lacks it.
    pub to: usize,
    /// The copy whose bytes are being read, or were; none: the disk's.
    pub from: Option<Target>,
    /// The replica there, once it is written to.
    pub target: Option<Target>,
    /// It is verified, and goes to the donor.
    pub writes: bool,
    /// It was written anew meanwhile: what is read is of no use.
    pub void: bool,
    tried: u64,
    tried_disk: bool,
    /// Some of it is on its way to the donor, or there.
    sent: bool,
    /// Writes that wait.
    held_back: Vec<u32>,
}

/// Where a repair reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// At a donor.
    Donor(Target),
    /// On the disk of this host.
    Disk,
    /// No copy could give it: the repair ends.
    Nowhere,
}

/// What verification led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verified {
    /// It is written to this replica.
    Write(Target),
    /// Nobody wants it any more: the repair ends.
    End,
    /// What this copy (`None`: the disk) gave is damaged or old. It is noted; another one is asked.
    Bad(Option<Target>),
}

/// Repairs of a tenant.
#[derive(Debug)]
pub struct Repairs {
    jobs: [Option<Job>; REPAIRS],
    /// Extents of a slab.
    extents: usize,
    /// Where the next search begins.
    next_slab: u32,
    /// Extents that no copy could give, until they are tried again.
    hopeless: HashSet<u32>,
    hopeless_since_ns: Option<u64>,
    /// Extents whose copy on the disk does not verify, until they are written or freed.
    bad_on_disk: HashSet<u32>,
}

impl Repairs {
    /// None yet, of slabs with so many extents.
    pub fn new(extents: usize) -> Repairs {
        Repairs {
            jobs: Default::default(),
            extents,
            next_slab: 0,
            hopeless: HashSet::new(),
            hopeless_since_ns: None,
            bad_on_disk: HashSet::new(),
        }
    }

    /// The repair of a slot.
    pub fn job(&self, slot: usize) -> Option<&Job> {
        self.jobs[slot].as_ref()
    }

    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.jobs.iter().all(Option::is_none)
    }

    /// Must a write of the extent wait? It is sent when the repair is over.
    pub fn holds_back(&mut self, extent: u32, id: u32) -> bool {
        self.bad_on_disk.remove(&extent);
        for job in self.jobs.iter_mut().flatten() {
            if job.extent == extent {
                job.void = true;
                if job.sent {
                    job.held_back.push(id);
                    return true;
                }
            }
        }
        false
    }

    /// The slab is freed: what was known of its extents is not true any more.
    pub fn freed(&mut self, slab: u32) {
        let extents = self.extents as u32;
        let stays = |extent: &u32| extent / extents != slab;
        self.bad_on_disk.retain(stays);
        self.hopeless.retain(stays);
    }

    /// A tick: what was hopeless is tried again after a while.
    pub fn tick(&mut self, now_ns: u64) {
        let since = &mut self.hopeless_since_ns;
        if since.is_none_or(|t| now_ns.saturating_sub(t) >= HOPELESS_NS) {
            *since = Some(now_ns);
            self.hopeless.clear();
        }
    }

    /// Finds an extent for a slot without a repair, slab after slab from where the last one was found;
    /// false when there is none. `is_writing`: a write of the extent is under way. `seal`: the number
    /// under which it was written, or 0. Slabs of which a replica became whole are put into
    /// `made_whole`: what they lacked had never been written.
    pub fn find(
        &mut self,
        slot: usize,
        map: &mut Map,
        donors: &(impl Donors + ?Sized),
        is_writing: impl Fn(u32) -> bool,
        seal: impl Fn(u32) -> u64,
        made_whole: &mut Vec<u32>,
    ) -> bool {
        let (from, extents) = (self.next_slab, self.extents);
        let busy = |extent: u32| {
            is_writing(extent)
                || self.hopeless.contains(&extent)
                || self.jobs.iter().flatten().any(|j| j.extent == extent)
        };
        let wraps = map.range(from..).chain(map.range(..from));
        let slabs: Vec<u32> = wraps
            .filter(|(_, e)| e.replicas.iter().any(|c| c.missing.is_some()))
            .map(|(slab, _)| *slab)
            .collect();
        let mut found = None;
        'search: for slab in slabs {
            let entry = map.get_mut(&slab).expect("just seen");
            let first = slab * extents as u32;
            for replica in &mut entry.replicas {
                if !donors.view(replica.donor).is_up() || replica.leaving.is_some() {
                    continue;
                }
                let (next, whole) = replica.next_missing(
                    |e| busy(first + e as u32),
                    |e| e < extents && seal(first + e as u32) != 0,
                );
                if whole {
                    made_whole.push(slab);
                }
                if let Some(e) = next {
                    found = Some((slab, first + e as u32, replica.donor));
                    break 'search;
                }
            }
        }
        let Some((slab, extent, to)) = found else {
            return false;
        };
        self.next_slab = slab;
        self.jobs[slot] = Some(Job {
            extent,
            seal: seal(extent),
            to,
            from: None,
            target: None,
            writes: false,
            void: false,
            tried: 1 << to,
            tried_disk: false,
            sent: false,
            held_back: Vec::new(),
        });
        true
    }

    /// The next copy that may have the extent.
    pub fn source(
        &mut self,
        slot: usize,
        map: &Map,
        donors: &(impl Donors + ?Sized),
        has_disk: bool,
    ) -> From {
        let Some(job) = &mut self.jobs[slot] else {
            return From::Nowhere;
        };
        let slab = job.extent / self.extents as u32;
        let within = job.extent as usize % self.extents;
        job.from = map.get(&slab).and_then(|e| {
            let donor = repair_from(e.sources(donors, within), within, job.tried)?;
            let replica = e.replicas.iter().find(|c| c.donor == donor);
            replica.map(Target::of)
        });
        if let Some(target) = job.from {
            job.tried |= 1 << target.donor;
            From::Donor(target)
        } else if has_disk && !job.tried_disk && !self.bad_on_disk.contains(&job.extent) {
            job.tried_disk = true;
            From::Disk
        } else {
            self.hopeless.insert(job.extent);
            From::Nowhere
        }
    }

    /// All has been read, and it verifies (`is_good`) under the seal of the job, or not. `seal` is the
    /// extent's now: where the tenant has changed it itself, nobody is to blame.
    pub fn verified(&mut self, slot: usize, map: &Map, is_good: bool, seal: u64) -> Verified {
        let Some(job) = &mut self.jobs[slot] else {
            return Verified::End;
        };
        if job.void {
            return Verified::End;
        }
        if !is_good {
            if seal != job.seal {
                return Verified::End;
            }
            if job.from.is_none() {
                self.bad_on_disk.insert(job.extent);
            }
            return Verified::Bad(job.from);
        }
        let slab = map.get(&(job.extent / self.extents as u32));
        let replica = slab.and_then(|e| e.replicas.iter().find(|c| c.donor == job.to));
        job.target = replica.map(Target::of);
        job.writes = job.target.is_some();
        job.target.map_or(Verified::End, Verified::Write)
    }

    /// The first bytes go to the donor: from now on writes of the extent wait.
    pub fn sent(&mut self, slot: usize) {
        if let Some(job) = &mut self.jobs[slot] {
            job.sent = true;
        }
    }

    /// A repair ends, and (`ok`) the replica has the extent now: unless it was written anew. Writes that
    /// waited for it.
    pub fn end(&mut self, slot: usize, map: &mut Map, ok: bool) -> Ended {
        let Some(job) = self.jobs[slot].take() else {
            return Ended::default();
        };
        let slab = job.extent / self.extents as u32;
        let replica = map.get_mut(&slab).and_then(|e| e.at(job.to));
        let gained = replica.filter(|_| ok && !job.void);
        let is_made_good = gained.is_some();
        if let Some(replica) = gained {
            replica.gained(job.extent as usize % self.extents);
        }
        Ended {
            is_made_good,
            held_back: job.held_back,
        }
    }
}

/// What the end of a repair leaves to do.
#[derive(Debug, Default)]
pub struct Ended {
    /// The replica has the extent.
    pub is_made_good: bool,
    /// Writes that waited, by their numbers.
    pub held_back: Vec<u32>,
}
