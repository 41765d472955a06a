//! Which donors hold which slab, what is missing there, and what donors' words change of that.

use std::collections::{BTreeMap, HashSet};

use super::code::{Code, SHARDS_MAX};
use super::worth::Told;
use super::{Donors, EXTENTS_MAX, Held, Policy, RunId, Source};

/// Copies of a slab that a write asks for at most, those that are being moved included.
pub const COPIES_MAX: usize = 4;
/// The same of a slab that lies in shards, which is the most that any has.
pub const REPLICAS_MAX: usize = SHARDS_MAX + 2;

/// Extents (numbers within a slab) that a copy lacks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gaps(Option<Box<[u64; EXTENTS_MAX / 64]>>);

impl Gaps {
    /// Of a copy that has nothing.
    pub fn all() -> Gaps {
        Gaps(Some(Box::new([!0; EXTENTS_MAX / 64])))
    }
    /// Is there none?
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }
    /// Is the extent one?
    pub fn has(&self, extent: usize) -> bool {
        self.0
            .as_ref()
            .is_some_and(|m| m[extent / 64] & 1 << (extent % 64) != 0)
    }
    /// The extent is one. True when it is the first.
    pub fn add(&mut self, extent: usize) -> bool {
        let was_none = self.0.is_none();
        let m = self
            .0
            .get_or_insert_with(|| Box::new([0; EXTENTS_MAX / 64]));
        m[extent / 64] |= 1 << (extent % 64);
        was_none
    }
    /// How many there are of which `is_written`.
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
    /// The extent is none any more.
    pub fn fill(&mut self, extent: usize) {
        if let Some(m) = &mut self.0 {
            m[extent / 64] &= !(1 << (extent % 64));
        }
    }
    /// The first one that `is_written`; what is not is nothing to lack. Those to `skip` are left as they are. True in
    /// the second place when that was the last one.
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
    /// The run of the donor that lent it.
    pub run: RunId,
    /// What the donor calls it.
    pub handle: u64,
    /// Which shard it has, where the slab lies in shards; otherwise 0.
    pub shard: usize,
    /// What it lacks.
    pub missing: Gaps,
    /// The donor takes it back: its call, and until when (ns).
    pub leaving: Option<(u64, u64)>,
    /// Operations since the donor last asked.
    pub ops: u64,
    /// What its donor was told that it is worth.
    pub told: Told,
}

impl Replica {
    /// A whole one, which nobody takes back.
    pub fn whole(donor: usize, run: RunId, handle: u64) -> Replica {
        Replica {
            donor,
            run,
            handle,
            shard: 0,
            missing: Gaps::default(),
            leaving: None,
            ops: 0,
            told: Told::default(),
        }
    }
    /// Has it the extent (a number within the slab)?
    pub fn has(&self, extent: usize) -> bool {
        !self.missing.has(extent)
    }
    /// It lacks the extent. True when it was whole before.
    pub fn lacks(&mut self, extent: usize) -> bool {
        self.missing.add(extent)
    }
    /// It has the extent now.
    pub fn gained(&mut self, extent: usize) {
        self.missing.fill(extent);
    }
    /// It lacks everything.
    pub fn lacks_all(&mut self) {
        self.missing = Gaps::all();
    }
}

/// A replica that is read or written in pieces: the one at this donor may be another one by the next
/// piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The donor.
    pub donor: usize,
    /// Its run.
    pub run: RunId,
    /// What it calls the slab.
    pub handle: u64,
    /// Which shard it has, where the slab lies in shards; otherwise 0.
    pub shard: usize,
}

impl Target {
    /// The replica as it is now.
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
    /// They are shards of this code, and not copies.
    pub code: Option<Code>,
    /// What the disk of this host lacks of it, where that keeps copies.
    pub disk: Gaps,
    /// Something may be on that disk: it was written there, or an agent before this one may have.
    pub may_be_on_disk: bool,
    /// Requests for a copy under way.
    pub allocating: usize,
    /// Writes that wait for these.
    pub waiting: Vec<u32>,
    /// It is to be freed when these have ended.
    pub free: bool,
    /// Donors that had no room, or have not answered yet, a bit each,
    pub refused: u64,
    /// until then (ns).
    pub refused_until_ns: u64,
    /// When to look for another donor again.
    pub again_ns: u64,
}

impl Slab {
    /// What is wanted of it, where `wanted` is of the tenant. A slab stays in the form in which it was begun:
    /// shards stay shards; and where shards are wanted, one that is there in copies gets so many of them at
    /// donors that as many donors may be lost.
    pub fn policy(&self, wanted: Policy) -> Policy {
        match (self.code, wanted.code) {
            (Some(code), _) => Policy::coded(code),
            (None, Some(code)) => Policy::new(code.parity() + 1, false),
            (None, None) => wanted,
        }
    }

    /// The shard for one more replica: one that nobody has who serves and stays, else the one that fewest have.
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

    /// The copy at a donor.
    pub fn at(&mut self, donor: usize) -> Option<&mut Replica> {
        self.replicas.iter_mut().find(|c| c.donor == donor)
    }

    /// Is the replica there still the one that it was?
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
                may_be_spare: c.told.may_be_spare(),
            }
        })
    }

    /// The copies of one of its extents (a number within the slab).
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

/// All slabs that were ever written and not freed.
pub type Map = BTreeMap<u32, Slab>;

/// Forgets copies at a donor; the slabs that had them.
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

/// There is a new connection to a donor, and this run of it: what an earlier run lent is gone, and what
/// it wanted back over the old connection it calls for again, before it says what it holds. The slabs
/// that had a copy there.
pub fn connected(map: &mut Map, donor: usize, run: RunId) -> Vec<u32> {
    for copy in map.values_mut().filter_map(|e| e.at(donor)) {
        copy.leaving = None;
    }
    forget(map, donor, |copy| copy.run != run)
}

/// A donor says which handles it holds: the slabs that had a copy there and have none any more, and
/// handles that it holds for nothing.
pub fn listed(map: &mut Map, donor: usize, held: &[u64]) -> (Vec<u32>, Vec<u64>) {
    let holds: HashSet<u64> = held.iter().copied().collect();
    let changed = forget(map, donor, |copy| !holds.contains(&copy.handle));
    let copies = map.values_mut().filter_map(|e| e.at(donor));
    let known: HashSet<u64> = copies.map(|c| c.handle).collect();
    let garbage = held.iter().copied().filter(|h| !known.contains(h));
    (changed, garbage.collect())
}

/// A donor has not got what it called `handle` any more: it was freed there, or never came to a client
/// that was stopped for longer than its lease. The slabs that had a replica so; they may be placed anew
/// at once, there as well.
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

/// The replica that the donor calls so.
pub fn with_handle(map: &mut Map, donor: usize, handle: u64) -> Option<(u32, &mut Replica)> {
    let mut there = map
        .iter_mut()
        .filter_map(|(slab, e)| Some((*slab, e.at(donor)?)));
    there.find(|(_, c)| c.handle == handle)
}

/// A donor wants a slab back until then, and called so for it. False: nothing is known of it here, and
/// it may have it now.
pub fn wanted_back(map: &mut Map, donor: usize, handle: u64, call: u64, until_ns: u64) -> bool {
    let replica = with_handle(map, donor, handle);
    replica
        .map(|(_, r)| r.leaving = Some((call, until_ns)))
        .is_some()
}

/// A donor is not the one any more that it was: what it refused says nothing of the new one.
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

    /// The donor calls for what is leaving as soon as it is connected, so before it lists what it has.
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
        // Not written yet, as far as the seal tells; but it is about to be.
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
