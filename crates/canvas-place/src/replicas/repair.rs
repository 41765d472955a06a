//! Making good what replicas lack: extent by extent from another copy, a few at a time, in what order
//! and from where.
//!
//! What was read is verified before it is written on: a copy that is damaged or old is no source, and
//! is itself made good if there is one. A copy that lacks the extent, as far as is known, is read when there is no
//! other: an agent that has taken over does not know what was written while it took over.
//!
//! A write of an extent that is being repaired supersedes the repair: while the old bytes are being
//! read the repair is given up; while they are on their way to the replica the write waits for that.

use std::collections::HashSet;

use super::map::{Map, Replica, Target};
use super::{Donors, Policy, REPAIRS, is_away, read_next};

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
    /// The donor that lacks it; none: the disk of this host.
    pub to: Option<usize>,
    /// The copy whose bytes are being read, or were; none: the disk's.
    pub from: Option<Target>,
    /// The replica there, once it is written to.
    pub target: Option<Target>,
    /// It is verified, and goes where it is lacking.
    pub writes: bool,
    /// It was written anew meanwhile: what is read is of no use.
    pub void: bool,
    tried: u64,
    tried_disk: bool,
    /// Some of it is on its way there, or has arrived.
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
    /// It is written to this replica; none: to the disk.
    Write(Option<Target>),
    /// It is where it was thought to lack: the repair ends well.
    Has,
    /// Nobody wants it any more: the repair ends.
    End,
    /// This copy has not got it, as was known; another one is asked.
    Lacks,
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
    /// Extents and copies (a donor's; none: the disk's) that did not verify, until the extent is written, repaired
    /// there or freed.
    bad: HashSet<(u32, Option<usize>)>,
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
            bad: HashSet::new(),
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

    /// The slab is freed: what was known of its extents is not true any more.
    pub fn freed(&mut self, slab: u32) {
        let extents = self.extents as u32;
        self.bad.retain(|(extent, _)| extent / extents != slab);
        self.hopeless.retain(|extent| extent / extents != slab);
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
    /// or says that there is none. What the policy does not want is not made good. `is_writing`: a write of the
    /// extent is under way. `seal`: the number under which it was written, or 0. Slabs of which a copy
    /// became whole are put into `made_whole`: what they lacked had never been written.
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

    /// The next copy that may have the extent: donors that have it, then the disk, also for itself, and then donors
    /// that lack it as far as is known, also for themselves, unless one that has it may come back.
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
            return From::Disk;
        }
        job.from = job.from.or_else(|| next(job.tried, true));
        let Some(target) = job.from else {
            self.hopeless.insert(job.extent);
            return From::Nowhere;
        };
        job.tried |= 1 << target.donor;
        From::Donor(target)
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

    /// The extent was put together from shards, and verifies: the shard that lacks goes to this replica. `None`:
    /// nobody wants it any more.
    pub fn computed(&mut self, slot: usize, map: &Map) -> Option<Target> {
        let job = self.jobs[slot].as_mut()?;
        let slab = map.get(&(job.extent / self.extents as u32))?;
        let there = slab.replicas.iter().find(|c| Some(c.donor) == job.to);
        job.target = there.filter(|_| !job.void).map(Target::of);
        job.writes = job.target.is_some();
        job.target
    }

    /// The shards that can be had do not give the extent: it is tried again after a while.
    pub fn hopeless(&mut self, slot: usize) {
        if let Some(job) = &self.jobs[slot] {
            self.hopeless.insert(job.extent);
        }
    }

    /// The first bytes go where they lack: from now on writes of the extent wait.
    pub fn sent(&mut self, slot: usize) {
        if let Some(job) = &mut self.jobs[slot] {
            job.sent = true;
        }
    }

    /// A repair ends, and (`ok`) the copy has the extent now: unless it was written anew. A disk that could not take
    /// it is not asked to again for a while. Writes that waited for it.
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

/// What a search for an extent to repair has found.
#[derive(Debug)]
pub struct Found {
    /// There is one: the slot has a repair now.
    pub is_found: bool,
    /// Slabs of which a copy turned out to be whole: what it lacked had never been written.
    pub made_whole: Vec<u32>,
}

/// What the end of a repair leaves to do.
#[derive(Debug, Default)]
pub struct Ended {
    /// The copy has the extent.
    pub is_made_good: bool,
    /// Writes that waited, by their numbers.
    pub held_back: Vec<u32>,
}
