//! Which replicas count, which is read, which is released, and when a write is durable.

use super::Policy;

/// A replica of a slab on a donor, as its owner sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Index of the donor.
    pub donor: usize,
    /// The donor is connected and serves.
    pub up: bool,
    /// It serves, or has been away for less than [`GRACE_NS`](super::GRACE_NS).
    pub may_serve: bool,
    /// The copy is complete, as far as is known.
    pub whole: bool,
    /// The donor reclaims it at this time.
    pub leaving_until_ns: Option<u64>,
    /// The shard it has; `None` for a full copy.
    pub shard: Option<usize>,
    /// Its donor may believe that other copies stay, and free this one when it runs out of memory.
    pub may_be_spare: bool,
}

/// Number of copies, or of different shards.
fn count(held: impl Iterator<Item = Held>) -> usize {
    let (mut copies, mut shards) = (0, 0u32);
    for c in held {
        match c.shard {
            None => copies += 1,
            Some(shard) => shards |= 1 << shard,
        }
    }
    copies + shards.count_ones() as usize
}

/// Copies that count: they are not being reclaimed, and their donor may serve. With fewer than the policy wants,
/// another donor is looked for.
pub fn counting(held: impl Iterator<Item = Held>) -> usize {
    let counts = |c: &Held| c.leaving_until_ns.is_none() && c.may_serve;
    count(held.filter(counts))
}

/// Copies that are complete, stay and can be read now. With fewer than the policy wants, the slab is degraded.
pub fn whole(held: impl Iterator<Item = Held>) -> usize {
    let is_whole = |c: &Held| c.leaving_until_ns.is_none() && c.whole && c.up;
    count(held.filter(is_whole))
}

/// Copies that are complete, can be read now, and that no donor believes it may free because others stay.
pub fn kept(held: impl Iterator<Item = Held>) -> usize {
    whole(held.filter(|c| !c.may_be_spare))
}

/// A copy to release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GiveUp {
    /// This donor wants it back: it is answered that it may have it.
    Leaving(usize),
    /// There is one too many: this donor's is freed.
    Surplus(usize),
}

/// The copy of a slab to release now: one that its donor wants back, when enough others are complete, when it can go
/// nowhere and the disk has it, or when the donor's deadline is over; otherwise the worst one beyond what the policy
/// wants, when everything that it wants is there. `on_disk`: the policy wants a copy on the disk, and that copy is
/// complete. `room`: some donor could take another slab.
pub fn give_up(
    held: impl Iterator<Item = Held> + Clone,
    policy: Policy,
    on_disk: bool,
    room: bool,
    now_ns: u64,
) -> Option<GiveUp> {
    let enough = whole(held.clone()) >= policy.donors && (policy.donors > 0 || on_disk);
    let moved = enough || on_disk && !room;
    let leaving = held
        .clone()
        .find(|c| c.leaving_until_ns.is_some_and(|u| moved || now_ns >= u));
    if let Some(c) = leaving {
        return Some(GiveUp::Leaving(c.donor));
    }
    if !enough || policy.disk && !on_disk || held.clone().count() <= policy.donors {
        return None;
    }
    // Of each shard, a complete one stays.
    let is_spare = |c: &Held| {
        let is_other = |o: &Held| o.donor != c.donor && o.shard == c.shard;
        let mut others = held.clone().filter(is_other);
        c.shard.is_none() || others.any(|o| o.up && o.whole && o.leaving_until_ns.is_none())
    };
    held.clone()
        .filter(|c| c.leaving_until_ns.is_none() && is_spare(c))
        .max_by_key(|c| (!c.up, !c.whole, c.may_be_spare))
        .map(|c| GiveUp::Surplus(c.donor))
}

/// A copy of an extent, as its owner sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// Index of the donor.
    pub donor: usize,
    /// The donor is connected and serves.
    pub up: bool,
    /// It has the extent, as far as is known.
    pub has: bool,
    /// It has been silent for longer than usual.
    pub suspect: bool,
}

/// The copy to read next: among the best ones it alternates by `extent`, so that a slab's reads are spread over its
/// donors. `tried` has a bit for each donor that was asked. Suspects come after the others. A donor that lacks the
/// extent, as far as is known, is asked only as a `last_resort` when there is no other: it may have it all the same,
/// and old data do not verify.
pub fn read_next(
    copies: impl Iterator<Item = Source> + Clone,
    extent: usize,
    tried: u64,
    last_resort: bool,
) -> Option<Source> {
    let may = copies.filter(|c| tried & 1 << c.donor == 0 && c.up && (c.has || last_resort));
    let rank = |c: &Source| (!c.has, c.suspect);
    let best = may.clone().map(|c| rank(&c)).min()?;
    let mut equals = may.filter(|c| rank(c) == best);
    let n = equals.clone().count();
    equals.nth(extent % n)
}

/// Whether a copy that cannot be reached now has the extent: it may come back.
pub fn is_away(mut copies: impl Iterator<Item = Source>) -> bool {
    copies.any(|c| c.has && !c.up)
}

/// Whether a write is durable that `donors` have confirmed and whose disk copy is written, is not, or (`None`) is not
/// wanted. With a disk only its copy counts; a donor's is made when there is one. Without any copy a write is not
/// durable, whatever the policy.
pub fn is_durable(policy: Policy, donors: usize, disk: Option<bool>) -> bool {
    disk.unwrap_or(donors >= policy.donors.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn held() -> impl Strategy<Value = Vec<Held>> {
        let one = (any::<[bool; 3]>(), prop::option::of(0..20u64)).prop_map(
            |([up, grace, whole], leaving_until_ns)| Held {
                donor: 0,
                up,
                may_serve: up || grace,
                whole,
                leaving_until_ns,
                shard: None,
                may_be_spare: false,
            },
        );
        prop::collection::vec(one, 0..5).prop_map(|mut all| {
            for (donor, c) in all.iter_mut().enumerate() {
                c.donor = donor;
            }
            all
        })
    }

    proptest! {
        /// A copy released before its deadline leaves as many complete copies as the policy wants, or the disk's; one
        /// that its donor does not want back is released only when everything that the policy wants is there.
        #[test]
        fn nothing_is_given_up_that_is_needed(
            copies in held(), donors in 0..4usize, disk: bool, is_whole: bool, room: bool,
            now in 0..20u64,
        ) {
            let disk = disk || donors == 0;
            let (policy, on_disk) = (Policy { donors, disk, late: false, code: None }, disk && is_whole);
            let Some(given) = give_up(copies.iter().copied(), policy, on_disk, room, now) else {
                // A copy that is over its deadline, or not needed, does not stay.
                let due = |c: &Held| c.leaving_until_ns.is_some_and(|u| now >= u);
                prop_assert!(!copies.iter().any(due));
                return Ok(());
            };
            let (GiveUp::Leaving(donor) | GiveUp::Surplus(donor)) = given;
            let left: Vec<Held> = copies.iter().copied().filter(|c| c.donor != donor).collect();
            let due = copies[donor].leaving_until_ns.is_some_and(|u| now >= u);
            let copies_left = whole(left.iter().copied());
            prop_assert!(due || copies_left + usize::from(on_disk) > 0);
            prop_assert!(due || on_disk && !room || copies_left >= donors);
            prop_assert!(matches!(given, GiveUp::Leaving(_)) || on_disk == disk);
            prop_assert_eq!(
                matches!(given, GiveUp::Leaving(_)),
                copies[donor].leaving_until_ns.is_some()
            );
        }

        #[test]
        fn every_copy_is_asked_once(
            flags in prop::collection::vec(any::<[bool; 3]>(), 0..5), last_resort: bool,
            extent in 0..2048usize,
        ) {
            let all: Vec<Source> = flags
                .iter()
                .enumerate()
                .map(|(donor, &[up, has, suspect])| Source { donor, up, has, suspect })
                .collect();
            let (mut tried, mut asked) = (0, Vec::new());
            while let Some(c) = read_next(all.iter().copied(), extent, tried, last_resort) {
                tried |= 1 << c.donor;
                asked.push(c.donor);
            }
            let may = all.iter().filter(|c| c.up && (c.has || last_resort)).count();
            prop_assert_eq!(asked.len(), may);
            prop_assert!(asked.is_sorted_by_key(|d| (!all[*d].has, all[*d].suspect)));
        }
    }

    #[test]
    fn reads_are_spread_over_equal_copies() {
        let source = |donor, suspect| Source {
            donor,
            up: true,
            has: true,
            suspect,
        };
        let from = |all: &[Source], extent| {
            read_next(all.iter().copied(), extent, 0, false).map(|c| c.donor)
        };
        let all = [source(4, false), source(2, true), source(9, false)];
        let mut reads = [0; 10];
        for extent in 0..100 {
            reads[from(&all, extent).unwrap()] += 1;
        }
        assert_eq!((reads[4], reads[2], reads[9]), (50, 0, 50));
        assert_eq!(from(&all[1..2], 7), Some(2), "there is no other");
    }

    #[test]
    fn a_write_is_durable_by_its_policy() {
        let two = Policy {
            donors: 2,
            disk: false,
            late: false,
            code: None,
        };
        assert!(!is_durable(two, 1, None));
        assert!(is_durable(two, 2, None));
        let (donors, disk) = (0, true);
        assert!(!is_durable(Policy::new(donors, disk), 0, None));
        assert!(is_durable(Policy::new(donors, disk), 1, None));
        let disk = Policy {
            donors: 1,
            disk: true,
            late: false,
            code: None,
        };
        assert!(is_durable(disk, 0, Some(true)));
        assert!(!is_durable(disk, 1, Some(false)));
    }
}
