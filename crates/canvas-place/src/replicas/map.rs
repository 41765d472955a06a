//! The table of slabs: which donors hold which slab, what copies lack, and how donors' messages change that.

use std::collections::{BTreeMap, HashSet};

use super::code::{Code, SHARDS_MAX};
use super::worth::ReportedWorth;
use super::{Donors, EXTENTS_MAX, Held, Policy, RunId, Source};

/// Most copies of a slab that a write asks for, including those being moved.
pub const COPIES_MAX: usize = 4;
/// Most replicas of any slab: those of a slab in shards.
pub const REPLICAS_MAX: usize = SHARDS_MAX + 2;

/// Extents (indices within a slab) that a copy lacks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gaps(Option<Box<[u64; EXTENTS_MAX / 64]>>);

impl Gaps {
    /// For a copy that has nothing.
    pub fn all() -> Gaps {
        Gaps(Some(Box::new([!0; EXTENTS_MAX / 64])))
    }
    /// Whether no extent is missing.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }
    /// Whether the extent is missing.
    pub fn has(&self, extent: usize) -> bool {
        self.0
            .as_ref()
            .is_some_and(|m| m[extent / 64] & 1 << (extent % 64) != 0)
    }
    /// Adds an extent. True when it is the first.
    pub fn add(&mut self, extent: usize) -> bool {
        let was_none = self.0.is_none();
        let m = self
            .0
            .get_or_insert_with(|| Box::new([0; EXTENTS_MAX / 64]));
        m[extent / 64] |= 1 << (extent % 64);
        was_none
    }
    /// Number of missing extents for which `is_written` holds.
    pub fn count(&self, is_written: impl Fn(usize) -> bool) -> usize {
        let words = self.0.iter().flat_map(|m| m.iter().enumerate());
        let there = |(w, word): (usize, &u64)| {
            let mut bits = *word;
            let mut n = 0;
            while bits != 0 {
                n += usize::from(is_written(w * 64 + bits.trailing_zeros() as usize));
                bits &= bits - 1;
            }
            n
        };
        words.map(there).sum()
    }
    /// Removes an extent.
    pub fn fill(&mut self, extent: usize) {
        if let Some(m) = &mut self.0 {
            m[extent / 64] &= !(1 << (extent % 64));
        }
    }
    /// The first missing extent that `is_written`; others are removed, since an unwritten extent cannot be missing.
    /// Those to `skip` are left unchanged. The second value is true when the last one was removed.
    pub fn next(
        &mut self,
        skip: impl Fn(usize) -> bool,
        is_written: impl Fn(usize) -> bool,
    ) -> (Option<usize>, bool) {
        let Some(m) = &mut self.0 else {
            return (None, false);
        };
        let mut left = false;
        for (w, word) in m.iter_mut().enumerate() {
            let mut bits = *word;
            while bits != 0 {
                let extent = w * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if skip(extent) {
                    left = true;
                } else if !is_written(extent) {
                    *word &= !(1 << (extent % 64));
                } else {
                    return (Some(extent), false);
                }
            }
        }
        if !left {
            self.0 = None;
        }
        (None, !left)
    }
}

/// One donor's copy of a slab.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replica {
    /// Index of the donor.
    pub donor: usize,
    /// The donor process that lent it.
    pub run: RunId,
    /// The donor's handle for it.
    pub handle: u64,
    /// Which shard it has, where the slab is in shards; otherwise 0.
    pub shard: usize,
    /// The extents that it lacks.
    pub missing: Gaps,
    /// The donor reclaims it: the number of its call, and its deadline (ns).
    pub leaving: Option<(u64, u64)>,
    /// Operations since the donor last asked.
    pub ops: u64,
    /// What its donor was sent about its worth.
    pub reported: ReportedWorth,
}

impl Replica {
    /// A complete copy that is not being reclaimed.
    pub fn whole(donor: usize, run: RunId, handle: u64) -> Replica {
        Replica {
            donor,
            run,
            handle,
            shard: 0,
            missing: Gaps::default(),
            leaving: None,
            ops: 0,
            reported: ReportedWorth::default(),
        }
    }
    /// Whether it has the extent (an index within the slab).
    pub fn has(&self, extent: usize) -> bool {
        !self.missing.has(extent)
    }
    /// Records that it lacks the extent. True when it was complete before.
    pub fn lacks(&mut self, extent: usize) -> bool {
        self.missing.add(extent)
    }
    /// Records that it has the extent.
    pub fn gained(&mut self, extent: usize) {
        self.missing.fill(extent);
    }
    /// Records that it lacks everything.
    pub fn lacks_all(&mut self) {
        self.missing = Gaps::all();
    }
}

/// Identifies a replica that is read or written in pieces: by the next piece, another replica may be on this donor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The donor.
    pub donor: usize,
    /// Its process.
    pub run: RunId,
    /// Its handle for the slab.
    pub handle: u64,
    /// Which shard it has, where the slab is in shards; otherwise 0.
    pub shard: usize,
}

impl Target {
    /// Identifies the replica.
    pub fn of(replica: &Replica) -> Target {
        Target {
            donor: replica.donor,
            run: replica.run,
            handle: replica.handle,
            shard: replica.shard,
        }
    }
}

/// A slab's replicas, and what is under way for it.
#[derive(Default, Debug)]
pub struct Slab {
    /// Its replicas.
    pub replicas: Vec<Replica>,
    /// The code of its shards; `None` for full copies.
    pub code: Option<Code>,
    /// Extents that the local disk lacks, where the disk keeps copies.
    pub disk: Gaps,
    /// The disk may have part of it: this agent or an earlier one may have written it there.
    pub may_be_on_disk: bool,
    /// Requests for a replica under way.
    pub allocating: usize,
    /// Writes that wait for these requests.
    pub waiting: Vec<u32>,
    /// It is to be freed when these have ended.
    pub free: bool,
    /// Donors that had no room, or have not answered yet, a bit each,
    pub refused: u64,
    /// valid until this time (ns).
    pub refused_until_ns: u64,
    /// When to look for another donor again (ns).
    pub again_ns: u64,
}

impl Slab {
    /// The policy that applies to it, where `wanted` is the tenant's. A slab stays in the form in which it was started:
    /// shards stay shards; and where shards are wanted, a slab in copies gets enough of them that as many donors may be
    /// lost.
    pub fn policy(&self, wanted: Policy) -> Policy {
        match (self.code, wanted.code) {
            (Some(code), _) => Policy::coded(code),
            (None, Some(code)) => Policy::new(code.parity() + 1, false),
            (None, None) => wanted,
        }
    }

    /// The shard for one more replica: one that no serving donor keeps, otherwise the one that fewest keep.
    pub fn next_shard(&self, donors: &(impl Donors + ?Sized)) -> usize {
        let holders = |shard: usize| {
            let all = self.replicas.iter().filter(move |c| c.shard == shard);
            let stays = all.clone().filter(|c| c.leaving.is_none());
            let serves = stays.filter(|c| donors.view(c.donor).is_up()).count();
            (serves, all.count(), shard)
        };
        let shards = self.code.map_or(1, Code::shards);
        (0..shards).min_by_key(|n| holders(*n)).unwrap_or(0)
    }

    /// The copy on a donor.
    pub fn at(&mut self, donor: usize) -> Option<&mut Replica> {
        self.replicas.iter_mut().find(|c| c.donor == donor)
    }

    /// Whether this replica still exists.
    pub fn is_there(&self, target: Target) -> bool {
        self.replicas.iter().any(|c| Target::of(c) == target)
    }

    /// The replicas as [`judge`](super::judge) sees them.
    pub fn held(
        &self,
        donors: &(impl Donors + ?Sized),
        now_ns: u64,
    ) -> impl Iterator<Item = Held> + Clone {
        self.replicas.iter().map(move |c| {
            let donor = donors.view(c.donor);
            Held {
                donor: c.donor,
                up: donor.is_up(),
                may_serve: donor.may_serve(now_ns),
                whole: c.missing.is_none(),
                shard: self.code.map(|_| c.shard),
                leaving_until_ns: c.leaving.map(|(_, until)| until),
                may_be_spare: c.reported.may_be_spare(),
            }
        })
    }

    /// The copies of one of its extents (an index within the slab).
    pub fn sources(
        &self,
        donors: &(impl Donors + ?Sized),
        extent: usize,
    ) -> impl Iterator<Item = Source> + Clone {
        self.replicas.iter().map(move |c| {
            let donor = donors.view(c.donor);
            Source {
                donor: c.donor,
                up: donor.is_up(),
                has: c.has(extent),
                suspect: donor.suspect,
            }
        })
    }
}

/// All slabs that were written and not freed.
pub type Map = BTreeMap<u32, Slab>;

/// Removes the copies on a donor for which `gone` holds; returns the slabs that had them.
pub fn forget(map: &mut Map, donor: usize, gone: impl Fn(&Replica) -> bool) -> Vec<u32> {
    let mut changed = Vec::new();
    for (slab, entry) in map {
        let before = entry.replicas.len();
        entry.replicas.retain(|c| c.donor != donor || !gone(c));
        if entry.replicas.len() != before {
            changed.push(*slab);
        }
    }
    changed
}

/// A new connection to a donor, and its process: removes copies that an earlier process lent, and forgets calls for
/// slabs, because the donor repeats them before it lists its handles. Returns the slabs that lost a copy.
pub fn connected(map: &mut Map, donor: usize, run: RunId) -> Vec<u32> {
    for copy in map.values_mut().filter_map(|e| e.at(donor)) {
        copy.leaving = None;
    }
    forget(map, donor, |copy| copy.run != run)
}

/// A donor lists its handles: returns the slabs that lost their copy there, and handles that belong to no slab.
pub fn listed(map: &mut Map, donor: usize, held: &[u64]) -> (Vec<u32>, Vec<u64>) {
    let holds: HashSet<u64> = held.iter().copied().collect();
    let changed = forget(map, donor, |copy| !holds.contains(&copy.handle));
    let copies = map.values_mut().filter_map(|e| e.at(donor));
    let known: HashSet<u64> = copies.map(|c| c.handle).collect();
    let garbage = held.iter().copied().filter(|h| !known.contains(h));
    (changed, garbage.collect())
}

/// A donor no longer has `handle`: it freed the slab, or the handle never reached a client that was stopped for longer
/// than its lease. Returns the slabs that had this replica; they may be placed again at once, on this donor as well.
pub fn gone(map: &mut Map, donor: usize, handle: u64) -> Vec<u32> {
    let changed = forget(map, donor, |replica| replica.handle == handle);
    for slab in &changed {
        if let Some(slab) = map.get_mut(slab) {
            slab.refused &= !(1 << donor);
            slab.again_ns = 0;
        }
    }
    changed
}

/// The replica with this handle.
pub fn with_handle(map: &mut Map, donor: usize, handle: u64) -> Option<(u32, &mut Replica)> {
    let mut there = map
        .iter_mut()
        .filter_map(|(slab, e)| Some((*slab, e.at(donor)?)));
    there.find(|(_, c)| c.handle == handle)
}

/// A donor wants a slab back by `until_ns`, by its call `call`. False: the handle is unknown here, and the donor may
/// have the slab now.
pub fn wanted_back(map: &mut Map, donor: usize, handle: u64, call: u64, until_ns: u64) -> bool {
    let replica = with_handle(map, donor, handle);
    replica
        .map(|(_, r)| r.leaving = Some((call, until_ns)))
        .is_some()
}

/// A donor was replaced by another one: refusals of the old one do not count for it.
pub fn replaced(map: &mut Map, donor: usize) {
    for slab in map.values_mut() {
        slab.refused &= !(1 << donor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn copy(donor: usize) -> Replica {
        Replica::whole(donor, [donor as u8; 16], 77 + donor as u64)
    }

    /// The donor calls for slabs that it reclaims as soon as it is connected, before it lists its handles.
    #[test]
    fn a_call_between_connection_and_list_is_kept() {
        let leaving = |handle| Replica {
            handle,
            leaving: Some((1, 100)),
            ..copy(2)
        };
        let mut map = Map::new();
        for (slab, handle) in [(0, 7), (1, 8), (2, 9)] {
            let entry: &mut Slab = map.entry(slab).or_default();
            entry.replicas = vec![copy(0), leaving(handle)];
        }
        assert!(connected(&mut map, 2, [2; 16]).is_empty());
        assert!(map.values_mut().all(|e| e.at(2).unwrap().leaving.is_none()));
        map.get_mut(&1).unwrap().at(2).unwrap().leaving = Some((5, 200));
        assert_eq!(listed(&mut map, 2, &[8, 9, 40]), (vec![0], vec![40]));
        assert_eq!(map[&1].replicas[1].leaving, Some((5, 200)));
        assert_eq!(map[&0].replicas, [copy(0)]);
        assert_eq!(connected(&mut map, 2, [3; 16]), [1, 2]);
    }

    #[test]
    fn what_is_being_written_is_not_forgotten() {
        let mut c = copy(0);
        c.lacks(5);
        // Not written yet, by its seal; but it is about to be.
        assert_eq!(c.missing.next(|e| e == 5, |_| false), (None, false));
        assert!(!c.has(5));
        assert_eq!(c.missing.next(|_| false, |_| true), (Some(5), false));
        assert_eq!(c.missing.next(|_| false, |_| false), (None, true));
        assert!(c.has(5));
    }

    proptest! {
        #[test]
        fn what_is_missing_is_as_a_set_has_it(
            steps in prop::collection::vec((0..2048usize, 0..3u8), 0..200),
            written in prop::collection::btree_set(0..2048usize, 0..40),
        ) {
            let mut c = copy(1);
            let mut missing = std::collections::BTreeSet::new();
            for (extent, kind) in steps {
                match kind {
                    0 | 1 => {
                        let whole = c.missing.is_none();
                        prop_assert_eq!(c.lacks(extent), whole);
                        missing.insert(extent);
                    }
                    _ => {
                        c.gained(extent);
                        missing.remove(&extent);
                    }
                }
                prop_assert_eq!(c.has(extent), !missing.contains(&extent));
            }
            let had_any = !c.missing.is_none();
            let mut got = Vec::new();
            loop {
                match c.missing.next(|_| false, |e| written.contains(&e)) {
                    (Some(e), false) => {
                        got.push(e);
                        c.gained(e);
                    }
                    (None, whole) => {
                        prop_assert_eq!(whole, had_any);
                        break;
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            let want: Vec<_> = missing.intersection(&written).copied().collect();
            prop_assert_eq!(got, want);
            prop_assert!(c.missing.is_none());
        }
    }
}
