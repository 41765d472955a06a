//! Where replicas are placed, and when one is released.

use super::map::{COPIES_MAX, Gaps, Map, REPLICAS_MAX, Replica, Slab};
use super::{AGAIN_NS, Donors, EXTENTS_MAX, GiveUp, Policy, RunId, counting, give_up, kept, whole};
use crate::choose::Candidate;

/// What a slab needs now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Due {
    /// It has fewer complete replicas than the policy wants.
    pub degraded: bool,
    /// It has fewer that count, and it is time to look for a donor.
    pub place: bool,
}

/// Result of an answer to a request for a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlacementResult {
    /// The slab has a new replica.
    Yes,
    /// There is no new replica.
    No {
        /// Whether to ask another donor now.
        again: bool,
    },
    /// The slab was freed meanwhile: what the donor lent is of no use.
    Useless,
}

/// A replica that was removed from its slab.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemovedReplica {
    /// The donor that has it.
    pub donor: usize,
    /// The donor's handle for it.
    pub handle: u64,
    /// The donor's call for it; `None`: there was one too many.
    pub call: Option<u64>,
}

/// Chooses the donor to ask for a replica of a slab, and records it: donors are asked one at a time, so until it has
/// answered it counts as having refused. The caller reports with [`Slab::on_alloc_sent`] that the request was sent.
pub fn place(
    map: &mut Map,
    slab: u32,
    donors: &(impl Donors + ?Sized),
    now_ns: u64,
    choose: impl FnOnce(&[Candidate]) -> Option<usize>,
) -> Option<usize> {
    let entry = map.get_mut(&slab)?;
    // Not by `again_ns`: another donor's grant resets that, and then this one would never be asked again.
    if now_ns >= entry.refused_until_ns {
        entry.refused = 0;
    }
    let entry = &map[&slab];
    let holders = |slab: &Slab| slab.replicas.iter().fold(0, |bits, c| bits | 1 << c.donor);
    let neighbour = |slab: Option<u32>| slab.and_then(|s| map.get(&s)).map_or(0, holders);
    let beside: u64 = neighbour(slab.checked_sub(1)) | neighbour(slab.checked_add(1));
    let here: u64 = holders(entry);
    let candidates: Vec<Candidate> = (0..donors.count())
        .map(|i| {
            let donor = donors.view(i);
            Candidate {
                usable: donor.is_up() && !donor.pressure && entry.refused & 1 << i == 0,
                has_copy: here & 1 << i != 0,
                has_neighbour: beside & 1 << i != 0,
                free_bytes: donor.free_bytes,
            }
        })
        .collect();
    let donor = choose(&candidates)?;
    let entry = map.get_mut(&slab)?;
    entry.refused |= 1 << donor;
    entry.again_ns = now_ns + AGAIN_NS;
    entry.refused_until_ns = entry.again_ns;
    Some(donor)
}

/// A donor has answered a request for a replica: granted, with its process and handle, or refused. `is_written`:
/// anything was written to the slab before; writes under way find the replica in its list.
pub fn allocated(
    map: &mut Map,
    slab: u32,
    donor: usize,
    granted: Option<(RunId, u64)>,
    is_written: impl FnOnce() -> bool,
    is_short: impl FnOnce(&Slab) -> bool,
    donors: &(impl Donors + ?Sized),
) -> PlacementResult {
    let Some(entry) = map.get_mut(&slab) else {
        return PlacementResult::Useless;
    };
    entry.allocating -= 1;
    let Some((run, handle)) = granted else {
        return PlacementResult::No {
            again: is_short(entry),
        };
    };
    entry.replicas.retain(|c| c.donor != donor);
    let mut replica = Replica::whole(donor, run, handle);
    replica.shard = entry.next_shard(donors);
    if is_written() {
        replica.lacks_all();
    }
    entry.refused &= !(1 << donor);
    // If it needs yet another replica, there is nothing to wait for.
    entry.again_ns = 0;
    entry.replicas.push(replica);
    PlacementResult::Yes
}

/// Whether some donor could take another slab.
pub fn has_room(donors: &(impl Donors + ?Sized), slab_bytes: u64) -> bool {
    (0..donors.count()).any(|i| donors.view(i).has_room(slab_bytes))
}

impl Slab {
    /// A request for a replica was sent.
    pub fn on_alloc_sent(&mut self) {
        self.allocating += 1;
    }

    /// How many donors a write asks for replicas before it starts. Where no disk keeps what is written, donors that are
    /// away do not count, since the write would fail: a surplus replica is released later.
    pub fn to_ask(&self, donors: &(impl Donors + ?Sized), policy: Policy, now_ns: u64) -> usize {
        if self.allocating > 0 || now_ns < self.again_ns {
            return 0;
        }
        let policy = self.policy(policy);
        let counts = |c: &&Replica| policy.disk || donors.view(c.donor).is_up();
        let have = match self.code {
            None => self.replicas.iter().filter(counts).count(),
            Some(_) => {
                let there = self.replicas.iter().filter(counts);
                let shards = there.fold(0u32, |bits, c| bits | 1 << c.shard);
                shards.count_ones() as usize
            }
        };
        let most = self.code.map_or(COPIES_MAX, |_| REPLICAS_MAX);
        let most = most.saturating_sub(self.replicas.len());
        policy.donors.saturating_sub(have).min(most)
    }

    /// What it needs at a tick.
    pub fn due(&self, donors: &(impl Donors + ?Sized), policy: Policy, now_ns: u64) -> Due {
        let policy = self.policy(policy);
        let (held, want) = (self.held(donors, now_ns), policy.donors);
        Due {
            degraded: whole(held.clone()) < want
                || policy.disk && !policy.late && !self.disk.is_none(),
            place: self.allocating == 0 && now_ns >= self.again_ns && counting(held) < want,
        }
    }

    /// Whether it needs nothing, and will need nothing until it, or a donor, changes. Messages about its worth are not
    /// considered.
    pub fn is_settled(&self, donors: &(impl Donors + ?Sized), wanted: Policy, now_ns: u64) -> bool {
        let policy = self.policy(wanted);
        let Due { degraded, .. } = self.due(donors, wanted, now_ns);
        let is_whole = |c: &Replica| c.missing.is_none() && c.leaving.is_none();
        !degraded
            && self.allocating == 0
            && self.replicas.len() <= policy.donors
            && self.replicas.iter().all(is_whole)
            && !self.is_short(donors, policy.donors, now_ns)
            && (self.disk.is_none() || !policy.disk)
            && (policy.disk || !self.may_be_on_disk)
    }

    /// Whether it has fewer replicas that count than wanted.
    pub fn is_short(&self, donors: &(impl Donors + ?Sized), want: usize, now_ns: u64) -> bool {
        counting(self.held(donors, now_ns)) < want
    }

    /// Removes the replica that is to be released now, if any. `room`: [`has_room`].
    pub fn remove_surplus(
        &mut self,
        donors: &(impl Donors + ?Sized),
        policy: Policy,
        room: impl FnOnce() -> bool,
        now_ns: u64,
    ) -> Option<RemovedReplica> {
        let policy = self.policy(policy);
        // No donor wants one back, and there is none too many.
        if self.replicas.len() <= policy.donors && self.replicas.iter().all(|c| c.leaving.is_none())
        {
            return None;
        }
        let on_disk = policy.disk && self.disk.is_none();
        // The disk always lacks some of what is written late.
        let lacks_few = self.disk.count(|_| true) <= EXTENTS_MAX / 16;
        let policy = Policy {
            disk: policy.disk && !(policy.late && lacks_few),
            ..policy
        };
        let given = give_up(self.held(donors, now_ns), policy, on_disk, room(), now_ns)?;
        let (GiveUp::Leaving(donor) | GiveUp::Surplus(donor)) = given;
        let at = self.replicas.iter().position(|c| c.donor == donor)?;
        let is_over = self.replicas[at].leaving.is_some_and(|(_, u)| now_ns >= u);
        // The remaining ones may be marked as free to go, because this one stayed.
        let left = |c: &super::Held| c.donor != donor;
        let is_enough = || kept(self.held(donors, now_ns).filter(left)) >= self.needed();
        if !is_over && !on_disk && !is_enough() {
            return None;
        }
        let replica = self.replicas.remove(at);
        Some(RemovedReplica {
            donor,
            handle: replica.handle,
            call: replica.leaving.map(|(call, _)| call),
        })
    }

    /// Releases the disk's copy if the policy wants none and donors have as many complete copies as it wants. False
    /// when it stays, or there is none.
    pub fn drop_disk_copy(
        &mut self,
        donors: &(impl Donors + ?Sized),
        policy: Policy,
        now_ns: u64,
    ) -> bool {
        let policy = self.policy(policy);
        let goes = !policy.disk
            && policy.donors > 0
            && self.may_be_on_disk
            && whole(self.held(donors, now_ns)) >= policy.donors
            && kept(self.held(donors, now_ns)) >= self.needed();
        if goes {
            self.disk = Gaps::all();
            self.may_be_on_disk = false;
        }
        goes
    }

    /// Whether all donors are connected and none without a replica of it has room: then a write that lacks replicas
    /// fails for lack of room, and not because a donor is away.
    pub fn no_other_has_room(
        &self,
        donors: &(impl Donors + ?Sized),
        want: usize,
        slab_bytes: u64,
    ) -> bool {
        let holds = |i| self.replicas.iter().any(|c| c.donor == i);
        self.replicas.len() < want
            && donors.count() > 0
            && (0..donors.count()).all(|i| {
                let donor = donors.view(i);
                donor.is_up() && (holds(i) || donor.pressure || donor.free_bytes < slab_bytes)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicas::{ConnectionState, DonorView};

    /// One donor dies while it is asked, and another one grants after that: the first is asked again when it is back.
    #[test]
    fn a_refusal_is_over_whatever_others_have_granted() {
        let up = DonorView {
            connection: ConnectionState::Up,
            pressure: false,
            free_bytes: 1 << 30,
            suspect: false,
        };
        let donors = [up, up];
        let mut map = Map::from([(0, Slab::default())]);
        let asked = |map: &mut Map, now_ns| {
            place(map, 0, &donors[..], now_ns, |candidates| {
                candidates.iter().position(|c| c.usable && !c.has_copy)
            })
        };
        assert_eq!([asked(&mut map, 1), asked(&mut map, 1)], [Some(0), Some(1)]);
        map.get_mut(&0).unwrap().allocating = 2;
        let told = |map: &mut Map, donor, granted| {
            allocated(map, 0, donor, granted, || false, |_| false, &donors[..])
        };
        assert_eq!(
            told(&mut map, 0, None),
            PlacementResult::No { again: false }
        );
        assert_eq!(told(&mut map, 1, Some(([1; 16], 7))), PlacementResult::Yes);
        assert_eq!(asked(&mut map, 2), None, "not at once");
        assert_eq!(asked(&mut map, 1 + AGAIN_NS), Some(0));
    }
}
