//! Repair of replicas: extent by extent from another copy, a few at a time; in what order and from where.
//!
//! Data are verified before they are copied further: a damaged or old copy is no source, and is itself repaired if
//! there is one. A copy that lacks the extent, as far as is known, is read when there is no other, because an agent
//! that has taken over does not know what was written during the takeover.
//!
//! A write of an extent that is being repaired supersedes the repair: while the old bytes are being read the repair is
//! dropped; while they are on their way to the replica the write waits.

use std::collections::HashSet;

use super::map::{Map, Replica, Target};
use super::{Donors, Policy, REPAIRS, is_away, read_next};

/// Pause before an extent that no copy could give is tried again.
pub const HOPELESS_NS: u64 = 500_000_000;
/// Extents that one slot tries in a row.
pub const TRIES: usize = 64;

/// One repair.
#[derive(Debug)]
pub struct Job {
    /// The extent.
    pub extent: u32,
    /// The seal of its bytes, unless the extent is rewritten.
    pub seal: u64,
    /// The donor that lacks it; `None`: the local disk.
    pub to: Option<usize>,
    /// The copy whose bytes are being read, or were; `None`: the disk's.
    pub from: Option<Target>,
    /// The replica to repair, once it is being written.
    pub target: Option<Target>,
    /// The bytes are verified, and are being written.
    pub writes: bool,
    /// The extent was rewritten meanwhile: what is read is of no use.
    pub void: bool,
    tried: u64,
    tried_disk: bool,
    /// Part of it was sent.
    sent: bool,
    /// Writes that wait for the repair.
    held_back: Vec<u32>,
}

/// The source of a repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RepairSource {
    /// On a donor.
    Donor(Target),
    /// On the local disk.
    Disk,
    /// No copy could give it: the repair ends.
    Unavailable,
}

/// Result of verification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verified {
    /// Write it to this replica; `None`: to the disk.
    Write(Option<Target>),
    /// The replica has it after all: the repair ends well.
    Has,
    /// The repair is no longer needed: it ends.
    End,
    /// This copy lacks it, as was known; another one is asked.
    Lacks,
    /// The bytes of this copy (`None`: the disk) are damaged or old. That is recorded; another one is asked.
    Bad(Option<Target>),
}

/// Repairs of a tenant.
#[derive(Debug)]
pub struct Repairs {
    jobs: [Option<Job>; REPAIRS],
    /// Extents in a slab.
    extents: usize,
    /// Where the next search begins.
    next_slab: u32,
    /// Extents that no copy could give, until they are tried again.
    hopeless: HashSet<u32>,
    hopeless_since_ns: Option<u64>,
    /// Extents and copies (a donor's; `None`: the disk's) that did not verify, until the extent is written, repaired
    /// there or freed.
    bad: HashSet<(u32, Option<usize>)>,
}

impl Repairs {
    /// No repairs; slabs have `extents` extents.
    pub fn new(extents: usize) -> Repairs {
        Repairs {
            jobs: Default::default(),
            extents,
            next_slab: 0,
            hopeless: HashSet::new(),
            hopeless_since_ns: None,
            bad: HashSet::new(),
        }
    }

    /// The repair of a slot.
    pub fn job(&self, slot: usize) -> Option<&Job> {
        self.jobs[slot].as_ref()
    }

    /// Whether no repair is under way.
    pub fn is_idle(&self) -> bool {
        self.jobs.iter().all(Option::is_none)
    }

    /// Whether a write of the extent must wait. It is returned when the repair ends.
    pub fn holds_back(&mut self, extent: u32, id: u32) -> bool {
        self.bad.retain(|(bad, _)| *bad != extent);
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

    /// The slab was freed: forgets what was known of its extents.
    pub fn freed(&mut self, slab: u32) {
        let extents = self.extents as u32;
        self.bad.retain(|(extent, _)| extent / extents != slab);
        self.hopeless.retain(|extent| extent / extents != slab);
    }

    /// A tick: hopeless extents are tried again after a while.
    pub fn tick(&mut self, now_ns: u64) {
        let since = &mut self.hopeless_since_ns;
        if since.is_none_or(|t| now_ns.saturating_sub(t) >= HOPELESS_NS) {
            *since = Some(now_ns);
            self.hopeless.clear();
        }
    }

    /// Finds an extent for an idle slot, slab by slab from where the last one was found. Copies that the policy does
    /// not want are not repaired. `is_writing`: a write of the extent is under way. `seal`: the number under which it
    /// was written, or 0. Also returns slabs of which a copy became complete, because what it lacked had never been
    /// written.
    pub fn find(
        &mut self,
        slot: usize,
        map: &mut Map,
        donors: &(impl Donors + ?Sized),
        policy: Policy,
        is_writing: impl Fn(u32) -> bool,
        seal: impl Fn(u32) -> u64,
    ) -> Found {
        let (from, extents) = (self.next_slab, self.extents);
        let busy = |extent: u32| {
            is_writing(extent)
                || self.hopeless.contains(&extent)
                || self.jobs.iter().flatten().any(|j| j.extent == extent)
        };
        let wraps = map.range(from..).chain(map.range(..from));
        let slabs: Vec<u32> = wraps
            .filter(|(_, e)| {
                let policy = e.policy(policy);
                policy.disk && !e.disk.is_none()
                    || policy.donors > 0 && e.replicas.iter().any(|c| !c.missing.is_none())
            })
            .map(|(slab, _)| *slab)
            .collect();
        let (mut found, mut made_whole) = (None, Vec::new());
        'search: for slab in slabs {
            let entry = map.get_mut(&slab).expect("just seen");
            let first = slab * extents as u32;
            let policy = entry.policy(policy);
            let good = |c: &&mut Replica| {
                policy.donors > 0 && donors.view(c.donor).is_up() && c.leaving.is_none()
            };
            let at_donors = entry.replicas.iter_mut().filter(good);
            let at_donors = at_donors.map(|c| (Some(c.donor), &mut c.missing));
            let on_disk = policy.disk.then_some((None, &mut entry.disk));
            for (to, missing) in at_donors.chain(on_disk) {
                let (next, whole) = missing.next(
                    |e| busy(first + e as u32),
                    |e| e < extents && seal(first + e as u32) != 0,
                );
                if whole {
                    made_whole.push(slab);
                }
                if let Some(e) = next {
                    found = Some((slab, first + e as u32, to));
                    break 'search;
                }
            }
        }
        let Some((slab, extent, to)) = found else {
            return Found {
                is_found: false,
                made_whole,
            };
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
            tried: 0,
            tried_disk: false,
            sent: false,
            held_back: Vec::new(),
        });
        Found {
            is_found: true,
            made_whole,
        }
    }

    /// The next copy that may have the extent: donors that have it, then the disk (also when it is the disk that lacks
    /// it), and then donors that lack it as far as is known (also the one to repair), unless one that has it may come
    /// back.
    pub fn source(
        &mut self,
        slot: usize,
        map: &Map,
        donors: &(impl Donors + ?Sized),
        has_disk: bool,
    ) -> RepairSource {
        let Some(job) = &mut self.jobs[slot] else {
            return RepairSource::Unavailable;
        };
        let slab = map.get(&(job.extent / self.extents as u32));
        let within = job.extent as usize % self.extents;
        let (bad, extent) = (&self.bad, job.extent);
        let is_bad = |donor| bad.contains(&(extent, donor));
        let next = |tried: u64, lacking: bool| {
            let sources = slab?.sources(donors, within);
            if lacking && is_away(sources.clone()) {
                return None;
            }
            let sources = sources.filter(|c| c.has || !is_bad(Some(c.donor)));
            let donor = read_next(sources, within, tried, lacking)?.donor;
            let replica = slab?.replicas.iter().find(|c| c.donor == donor);
            replica.map(Target::of)
        };
        let to = job.to.map_or(0, |donor| 1 << donor);
        job.from = next(job.tried | to, false);
        if job.from.is_none() && has_disk && !job.tried_disk && !is_bad(None) {
            job.tried_disk = true;
            return RepairSource::Disk;
        }
        job.from = job.from.or_else(|| next(job.tried, true));
        let Some(target) = job.from else {
            self.hopeless.insert(job.extent);
            return RepairSource::Unavailable;
        };
        job.tried |= 1 << target.donor;
        RepairSource::Donor(target)
    }

    /// The extent has been read, and (`is_good`) verifies under the job's seal. `seal` is the extent's now: where the
    /// tenant has changed it itself, no copy is to blame.
    pub fn verified(&mut self, slot: usize, map: &Map, is_good: bool, seal: u64) -> Verified {
        let Some(job) = &mut self.jobs[slot] else {
            return Verified::End;
        };
        if job.void {
            return Verified::End;
        }
        let slab = map.get(&(job.extent / self.extents as u32));
        if !is_good {
            if seal != job.seal {
                return Verified::End;
            }
            let within = job.extent as usize % self.extents;
            let donor = job.from.map(|target| target.donor);
            self.bad.insert((job.extent, donor));
            let is_known = slab.is_some_and(|e| match donor {
                Some(donor) => e
                    .replicas
                    .iter()
                    .any(|c| c.donor == donor && !c.has(within)),
                None => e.disk.has(within),
            });
            return match is_known {
                true => Verified::Lacks,
                false => Verified::Bad(job.from),
            };
        }
        if job.from.map(|target| target.donor) == job.to {
            let is_there = |target| slab.is_some_and(|e| e.is_there(target));
            return match job.from.is_none_or(is_there) {
                true => Verified::Has,
                false => Verified::End,
            };
        }
        job.target = slab.and_then(|e| {
            let replica = e.replicas.iter().find(|c| Some(c.donor) == job.to);
            replica.map(Target::of)
        });
        job.writes = slab.is_some() && job.target.is_some() == job.to.is_some();
        match job.writes {
            true => Verified::Write(job.target),
            false => Verified::End,
        }
    }

    /// The extent was restored from shards, and verifies: returns the replica that gets the missing shard. `None`: it
    /// is no longer needed.
    pub fn computed(&mut self, slot: usize, map: &Map) -> Option<Target> {
        let job = self.jobs[slot].as_mut()?;
        let slab = map.get(&(job.extent / self.extents as u32))?;
        let there = slab.replicas.iter().find(|c| Some(c.donor) == job.to);
        job.target = there.filter(|_| !job.void).map(Target::of);
        job.writes = job.target.is_some();
        job.target
    }

    /// The shards that can be read do not restore the extent: it is tried again after a while.
    pub fn hopeless(&mut self, slot: usize) {
        if let Some(job) = &self.jobs[slot] {
            self.hopeless.insert(job.extent);
        }
    }

    /// The first bytes are sent: from now on writes of the extent wait.
    pub fn sent(&mut self, slot: usize) {
        if let Some(job) = &mut self.jobs[slot] {
            job.sent = true;
        }
    }

    /// Ends a repair; with `ok` the copy has the extent now, unless it was rewritten. A disk that could not take it is
    /// not tried again for a while. Returns the writes that waited for it.
    pub fn end(&mut self, slot: usize, map: &mut Map, ok: bool) -> Ended {
        let Some(job) = self.jobs[slot].take() else {
            return Ended::default();
        };
        let slab = map.get_mut(&(job.extent / self.extents as u32));
        let missing = slab.and_then(|e| match job.to {
            Some(donor) => e.at(donor).map(|c| &mut c.missing),
            None => Some(&mut e.disk),
        });
        let gained = missing.filter(|_| ok && !job.void);
        let is_made_good = gained.is_some();
        if let Some(missing) = gained {
            missing.fill(job.extent as usize % self.extents);
            self.bad.remove(&(job.extent, job.to));
        } else if job.to.is_none() && !ok && !job.void {
            self.hopeless.insert(job.extent);
        }
        Ended {
            is_made_good,
            held_back: job.held_back,
        }
    }
}

/// Result of a search for an extent to repair.
#[derive(Debug)]
pub struct Found {
    /// The slot has a repair now.
    pub is_found: bool,
    /// Slabs of which a copy turned out to be complete: what it lacked had never been written.
    pub made_whole: Vec<u32>,
}

/// What is left to do after a repair.
#[derive(Debug, Default)]
pub struct Ended {
    /// The copy has the extent.
    pub is_made_good: bool,
    /// Numbers of the writes that waited.
    pub held_back: Vec<u32>,
}
