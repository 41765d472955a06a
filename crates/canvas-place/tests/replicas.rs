//! Decisions about replicas against naive models, which keep sets and check everything. On a failure proptest shrinks
//! the case and prints its seed.

use std::collections::{BTreeMap, BTreeSet};

use canvas_place::choose::choose;
use canvas_place::replicas::map::Gaps;
use canvas_place::replicas::placement::{self, PlacementResult, has_room};
use canvas_place::replicas::read::{AfterAnswer, Answer, Exhausted, NextCopy, OnDisk, Read};
use canvas_place::replicas::repair::{HOPELESS_NS, RepairSource, Repairs, Verified};
use canvas_place::replicas::{
    AGAIN_NS, ConnectionState, DonorView, GRACE_NS, Map, Policy, REPAIRS, Replica, Slab, map,
};
use proptest::prelude::*;

const DONORS: usize = 5;
const SLABS: u32 = 4;
const SLAB_BYTES: u64 = 10;

fn replica(donor: usize, handle: u64) -> Replica {
    Replica::whole(donor, [1; 16], handle)
}

fn view(up: bool, suspect: bool) -> DonorView {
    DonorView {
        connection: match up {
            true => ConnectionState::Up,
            false => ConnectionState::Down { since_ns: 0 },
        },
        pressure: false,
        free_bytes: 30,
        suspect,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Place(u32, usize),
    /// The oldest request of the slab is answered: granted or not.
    Answer(u32, bool),
    Stand(usize, u8),
    Room(usize, bool, u64),
    WantBack(u32, usize, u64),
    LetGo(u32),
    Forgets(u32, usize),
    /// Switches to the next policy.
    Policy,
    /// The disk lacks an extent of the slab, has all of it, or may lose it.
    DiskLacks(u32),
    DiskGains(u32),
    LetGoOfDisk(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let slab = || 0..SLABS;
    let times = prop_oneof![1..AGAIN_NS, GRACE_NS - AGAIN_NS..GRACE_NS + AGAIN_NS];
    let one = prop_oneof![
        2 => times.prop_map(Step::Wait),
        6 => (slab(), any::<usize>()).prop_map(|(s, d)| Step::Place(s, d)),
        6 => (slab(), any::<bool>()).prop_map(|(s, ok)| Step::Answer(s, ok)),
        2 => (0..DONORS, 0..4u8).prop_map(|(d, s)| Step::Stand(d, s)),
        2 => (0..DONORS, any::<bool>(), 0..40u64).prop_map(|(d, p, f)| Step::Room(d, p, f)),
        1 => (slab(), 0..DONORS, 0..2 * AGAIN_NS).prop_map(|(s, d, t)| Step::WantBack(s, d, t)),
        3 => slab().prop_map(Step::LetGo),
        1 => (slab(), 0..DONORS).prop_map(|(s, d)| Step::Forgets(s, d)),
        1 => Just(Step::Policy),
        1 => slab().prop_map(Step::DiskLacks),
        1 => slab().prop_map(Step::DiskGains),
        2 => slab().prop_map(Step::LetGoOfDisk),
    ];
    prop::collection::vec(one, 1..120)
}

/// A replica in the model.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Naive {
    donor: usize,
    handle: u64,
    until: Option<u64>,
}

#[derive(Default)]
struct Oracle {
    now: u64,
    slabs: BTreeMap<u32, Vec<Naive>>,
    refused: BTreeSet<(u32, usize)>,
    /// When donors that refused may be asked again: a grant of another donor does not change that.
    refused_until: BTreeMap<u32, u64>,
    again: BTreeMap<u32, u64>,
    asked: BTreeMap<u32, Vec<usize>>,
    donors: Vec<DonorView>,
    /// Slabs of which the disk lacks something, and everything.
    off_disk: BTreeSet<u32>,
    nothing_on_disk: BTreeSet<u32>,
}

impl Oracle {
    fn has(&self, slab: i64, donor: usize) -> bool {
        let slab = u32::try_from(slab).ok().and_then(|s| self.slabs.get(&s));
        slab.is_some_and(|all| all.iter().any(|c| c.donor == donor))
    }

    /// Donors to which a slab may go: ones without its neighbours, if there are any.
    fn may_take(&self, slab: u32) -> BTreeSet<usize> {
        let open = |d: &usize| {
            let donor = &self.donors[*d];
            donor.connection == ConnectionState::Up
                && !donor.pressure
                && donor.free_bytes >= SLAB_BYTES
                && !self.has(slab.into(), *d)
                && !self.refused.contains(&(slab, *d))
        };
        let all: BTreeSet<usize> = (0..DONORS).filter(open).collect();
        let s = i64::from(slab);
        let beside = |d: &usize| self.has(s - 1, *d) || self.has(s + 1, *d);
        let strangers: BTreeSet<usize> = all.iter().copied().filter(|d| !beside(d)).collect();
        if strangers.is_empty() { all } else { strangers }
    }

    fn serves(&self, donor: usize, or_soon: bool) -> bool {
        match self.donors[donor].connection {
            ConnectionState::Up => true,
            ConnectionState::Listing => or_soon,
            ConnectionState::Down { since_ns } => or_soon && self.now - since_ns < GRACE_NS,
        }
    }

    fn count(&self, slab: u32, or_soon: bool) -> usize {
        let stays = |c: &&Naive| c.until.is_none() && self.serves(c.donor, or_soon);
        self.slabs[&slab].iter().filter(stays).count()
    }

    /// What must hold for a released replica, or when none is released.
    fn judge_let_go(&self, slab: u32, policy: Policy, given: Option<(usize, bool)>) -> bool {
        let room = (0..DONORS).any(|d| {
            let donor = &self.donors[d];
            self.serves(d, false) && !donor.pressure && donor.free_bytes >= SLAB_BYTES
        });
        assert_eq!(has_room(&self.donors[..], SLAB_BYTES), room);
        let (all, whole) = (&self.slabs[&slab], self.count(slab, false));
        let on_disk = policy.disk && !self.off_disk.contains(&slab);
        let enough = whole >= policy.donors && (policy.donors > 0 || on_disk);
        let may_go = |until: u64| self.now >= until || enough || on_disk && !room;
        let wanted = all.iter().find(|c| c.until.is_some_and(may_go));
        let mut stay = all.iter().filter(|c| c.until.is_none());
        let complete = enough && policy.disk == on_disk;
        let surplus = complete && all.len() > policy.donors && stay.clone().count() > 0;
        match (given, wanted) {
            (Some((donor, called)), Some(first)) => called && donor == first.donor,
            // A serving replica is released only when all that stay serve.
            (Some((donor, called)), None) => {
                let best = !self.serves(donor, false) || stay.all(|c| self.serves(c.donor, false));
                !called && surplus && best
            }
            (None, wanted) => wanted.is_none() && !surplus,
        }
    }
}

proptest! {
    #[test]
    fn placement_is_as_sets_have_it(
        steps in steps(),
        policies in prop::collection::vec((0..4usize, any::<bool>()), 1..4),
    ) {
        let policy_of = |(donors, disk)| Policy { donors, disk: disk || donors == 0, late: false, code: None };
        let mut policies = policies.into_iter().map(policy_of).cycle();
        let mut policy = policies.next().unwrap();
        let mut map: Map = (0..SLABS).map(|s| (s, Slab::default())).collect();
        let mut o = Oracle {
            slabs: (0..SLABS).map(|s| (s, Vec::new())).collect(),
            donors: vec![view(true, false); DONORS],
            now: 1,
            nothing_on_disk: (0..SLABS).collect(),
            ..Oracle::default()
        };
        let mut handles = 0;
        for step in steps {
            let Policy { donors: want, disk, .. } = policy;
            match step {
                Step::Wait(ns) => o.now += ns,
                Step::Policy => policy = policies.next().unwrap(),
                Step::DiskLacks(slab) => {
                    map.get_mut(&slab).unwrap().disk.add(3);
                    o.off_disk.insert(slab);
                }
                Step::DiskGains(slab) => {
                    let entry = map.get_mut(&slab).unwrap();
                    (entry.disk, entry.may_be_on_disk) = (Gaps::default(), true);
                    o.off_disk.remove(&slab);
                    o.nothing_on_disk.remove(&slab);
                }
                Step::LetGoOfDisk(slab) => {
                    let goes = map.get_mut(&slab).unwrap().drop_disk_copy(&o.donors[..], policy, o.now);
                    let enough = want > 0 && o.count(slab, false) >= want;
                    prop_assert_eq!(goes, !disk && enough && !o.nothing_on_disk.contains(&slab));
                    if goes {
                        o.off_disk.insert(slab);
                        o.nothing_on_disk.insert(slab);
                    }
                }
                Step::Place(slab, draw) => {
                    if o.refused_until.get(&slab).is_none_or(|until| o.now >= *until) {
                        o.refused.retain(|(s, _)| *s != slab);
                    }
                    let may_take = o.may_take(slab);
                    let got = placement::place(&mut map, slab, &o.donors[..], o.now, |all| {
                        choose(all, SLAB_BYTES, |n| draw % n)
                    });
                    prop_assert_eq!(got.is_none(), may_take.is_empty());
                    if let Some(d) = got {
                        prop_assert!(may_take.contains(&d), "{} of {:?}", d, may_take);
                        o.refused.insert((slab, d));
                        o.again.insert(slab, o.now + AGAIN_NS);
                        o.refused_until.insert(slab, o.now + AGAIN_NS);
                        o.asked.entry(slab).or_default().push(d);
                        map.get_mut(&slab).unwrap().on_alloc_sent();
                    }
                }
                Step::Answer(slab, ok) => {
                    let asked = o.asked.entry(slab).or_default();
                    if asked.is_empty() {
                        continue;
                    }
                    let donor = asked.remove(0);
                    handles += 1;
                    let granted = ok.then_some(([1; 16], handles));
                    let short = |e: &Slab| e.is_short(&o.donors[..], want, o.now);
                    let got = placement::allocated(&mut map, slab, donor, granted, || false, short, &o.donors[..]);
                    let again = o.count(slab, true) < want;
                    prop_assert_eq!(got, if ok { PlacementResult::Yes } else { PlacementResult::No { again } });
                    if ok {
                        o.refused.remove(&(slab, donor));
                        o.again.remove(&slab);
                        let all = o.slabs.get_mut(&slab).unwrap();
                        all.retain(|c| c.donor != donor);
                        all.push(Naive { donor, handle: handles, until: None });
                    }
                }
                Step::Stand(d, connection) => {
                    o.donors[d].connection = match connection {
                        0 => ConnectionState::Down { since_ns: o.now },
                        1 => ConnectionState::Listing,
                        _ => ConnectionState::Up,
                    };
                }
                Step::Room(d, pressure, free) => {
                    (o.donors[d].pressure, o.donors[d].free_bytes) = (pressure, free);
                }
                Step::WantBack(slab, d, within) => {
                    let until = o.now + within;
                    let mut all = o.slabs.get_mut(&slab).unwrap().iter_mut();
                    let it = all.find(|c| c.donor == d);
                    let handle = it.as_ref().map_or(0, |c| c.handle);
                    let known = map::wanted_back(&mut map, d, handle, 7, until);
                    prop_assert_eq!(known, it.is_some());
                    if let Some(c) = it {
                        c.until = Some(until);
                    }
                }
                Step::LetGo(slab) => {
                    let entry = map.get_mut(&slab).unwrap();
                    let room = || has_room(&o.donors[..], SLAB_BYTES);
                    let given = entry.remove_surplus(&o.donors[..], policy, room, o.now);
                    let seen = given.as_ref().map(|g| (g.donor, g.call.is_some()));
                    prop_assert!(o.judge_let_go(slab, policy, seen), "{:?}", given);
                    if let Some(given) = given {
                        o.slabs.get_mut(&slab).unwrap().retain(|c| c.donor != given.donor);
                    }
                }
                Step::Forgets(slab, d) => {
                    let all = o.slabs.get_mut(&slab).unwrap();
                    if let Some(at) = all.iter().position(|c| c.donor == d) {
                        let handle = all.remove(at).handle;
                        prop_assert_eq!(map::gone(&mut map, d, handle), vec![slab]);
                        o.refused.remove(&(slab, d));
                        o.again.remove(&slab);
                    }
                }
            }
            let Policy { donors: want, disk, .. } = policy;
            for slab in 0..SLABS {
                let (entry, naive) = (&map[&slab], &o.slabs[&slab]);
                let got: Vec<_> = entry.replicas.iter().map(|c| (c.donor, c.handle)).collect();
                let all: Vec<_> = naive.iter().map(|c| (c.donor, c.handle)).collect();
                prop_assert_eq!(got, all);
                let asked = o.asked.get(&slab).is_some_and(|a| !a.is_empty());
                let is_time = o.again.get(&slab).is_none_or(|again| o.now >= *again);
                let due = entry.due(&o.donors[..], policy, o.now);
                let on_disk = !disk || !o.off_disk.contains(&slab);
                prop_assert_eq!(due.degraded, o.count(slab, false) < want || !on_disk);
                prop_assert_eq!(due.place, !asked && is_time && o.count(slab, true) < want);
                let counts = |c: &&Naive| disk || o.serves(c.donor, false);
                let have = naive.iter().filter(counts).count();
                let more = want.saturating_sub(have).min(4usize.saturating_sub(naive.len()));
                let to_ask = entry.to_ask(&o.donors[..], policy, o.now);
                prop_assert_eq!(to_ask, if asked || !is_time { 0 } else { more });
            }
        }
    }

    /// Whatever answers arrive in whatever order: no donor is asked twice, a suspect only when no other is left, bytes
    /// are returned once, and a read ends without bytes only when nobody can give any.
    #[test]
    fn a_read_asks_everybody_and_ends_once(
        flags in prop::collection::vec(any::<[bool; 3]>(), 0..DONORS),
        disk in prop::sample::select(vec![OnDisk::No, OnDisk::Yes, OnDisk::Unsure, OnDisk::First]),
        good in prop::collection::btree_set(0..DONORS, 0..DONORS),
        disk_is_good: bool,
        events in prop::collection::vec((0..4u8, any::<usize>()), 0..60),
    ) {
        let donors: Vec<DonorView> = flags.iter().map(|f| view(f[0], f[1])).collect();
        let has_disk = matches!(disk, OnDisk::Yes | OnDisk::First);
        let mut slab = Slab::default();
        for (d, f) in flags.iter().enumerate() {
            let mut one = replica(d, d as u64);
            if !f[2] {
                one.lacks(3);
            }
            slab.replicas.push(one);
        }
        let mut map = Map::from([(0, slab)]);
        let mut read = Read::default();
        let (mut awaited, mut disk_awaited) = (BTreeSet::new(), false);
        let (mut tried, mut tried_disk) = (BTreeSet::new(), false);
        let mut asks = true;
        for (kind, which) in events {
            if std::mem::take(&mut asks) {
                let untried = |d: &usize| {
                    !tried.contains(d) && donors[*d].is_up() && map[&0].replicas[*d].has(3)
                };
                let untried: BTreeSet<usize> = (0..flags.len()).filter(untried).collect();
                let fit = |d: &&usize| !donors[**d].suspect;
                let fit: BTreeSet<usize> = untried.iter().filter(fit).copied().collect();
                match read.next(map.get(&0), 3, &donors[..], disk, false) {
                    NextCopy::Donor(d, handle) => {
                        prop_assert!(tried.insert(d) && donors[d].is_up() && handle == d as u64);
                        prop_assert!(fit.contains(&d) || fit.is_empty());
                        prop_assert!(!fit.is_empty() || tried_disk || !has_disk);
                        prop_assert!(disk != OnDisk::First || tried_disk);
                        read.on_sent(d, true);
                        awaited.insert(d);
                    }
                    NextCopy::Disk => {
                        prop_assert!(!tried_disk);
                        let may = match disk {
                            OnDisk::No => false,
                            OnDisk::Unsure => untried.is_empty(),
                            OnDisk::Yes => fit.is_empty(),
                            OnDisk::First => true,
                        };
                        prop_assert!(may);
                        read.on_sent_to_disk();
                        (tried_disk, disk_awaited) = (true, true);
                    }
                    NextCopy::NoneLeft => {
                        prop_assert!(untried.is_empty() && (tried_disk || !has_disk));
                        let has = |(d, f): (usize, &[bool; 3])| f[2] && map[&0].replicas[d].has(3);
                        let mut all = flags.iter().enumerate();
                        let away = all.any(|(d, f)| !f[0] && has((d, f)));
                        prop_assert!(disk != OnDisk::Unsure || tried_disk || away);
                        let waits = !awaited.is_empty() || disk_awaited;
                        match read.on_exhausted(map.get(&0), 3, &donors[..], || 5, 5) {
                            Exhausted::AwaitAnswer => prop_assert!(waits),
                            Exhausted::Retry => prop_assert!(false, "its time is over"),
                            Exhausted::Fail { .. } => {
                                prop_assert!(!waits);
                                return Ok(());
                            }
                        }
                    }
                }
            }
            let is_good = if kind == 0 && disk_awaited {
                disk_awaited = false;
                prop_assert_eq!(read.on_disk_answer(OnDisk::Yes, Answer::Data { blank: false }), AfterAnswer::Deliver);
                disk_is_good
            } else if awaited.is_empty() {
                continue;
            } else {
                let d = *awaited.iter().nth(which % awaited.len()).unwrap();
                awaited.remove(&d);
                prop_assert!(read.waits_for(d));
                if kind == 1 {
                    let then = read.on_answer(&mut map, 0, 3, d, Answer::No);
                    prop_assert_eq!(then, AfterAnswer::TryNext { failover: true });
                    asks = true;
                    continue;
                }
                let then = read.on_answer(&mut map, 0, 3, d, Answer::Data { blank: false });
                prop_assert_eq!(then, AfterAnswer::Deliver);
                good.contains(&d)
            };
            if is_good {
                for d in awaited {
                    let then = read.on_answer(&mut map, 0, 3, d, Answer::Data { blank: false });
                    prop_assert_eq!(then, AfterAnswer::Nothing);
                }
                return Ok(());
            }
            if let Some(d) = read.is_bad() {
                map.get_mut(&0).unwrap().at(d).unwrap().lacks(3);
            }
            asks = true;
        }
    }

    /// Repairs that run until nothing is left to do repair everything possible, and write nothing that does not verify,
    /// whatever is written meanwhile.
    #[test]
    fn everything_is_repaired_that_can_be(
        mut seals in prop::collection::vec(0..3u64, 8),
        mut at in prop::collection::vec(prop::collection::vec(0..3u64, 8), 3),
        mut on_disk in prop::option::of(prop::collection::vec(0..3u64, 8)),
        disk_lacks in prop::collection::btree_set(0..8usize, 0..9),
        wants_disk: bool,
        wants_donors: bool,
        lacks in prop::collection::vec(prop::collection::btree_set(0..4usize, 0..5), 6),
        up in any::<[bool; 3]>(),
        leaves in prop::option::of((0..2u32, 0..3usize)),
        written in prop::collection::vec((0..20usize, 0..8usize), 0..4),
    ) {
        let donors: Vec<DonorView> = up.iter().map(|up| view(*up, false)).collect();
        let mut map = Map::new();
        for (i, lacks) in lacks.iter().enumerate() {
            let mut one = replica(i % 3, i as u64 / 3);
            lacks.iter().for_each(|e| _ = one.lacks(*e));
            map.entry(i as u32 / 3).or_default().replicas.push(one);
        }
        let policy = Policy {
            donors: usize::from(wants_donors || on_disk.is_none()),
            disk: on_disk.is_some() && (wants_disk || !wants_donors),
            late: false,
            code: None,
        };
        for extent in disk_lacks.iter().filter(|_| on_disk.is_some()) {
            map.get_mut(&(*extent as u32 / 4)).unwrap().disk.add(extent % 4);
        }
        if let Some((slab, d)) = leaves {
            map.get_mut(&slab).unwrap().at(d).unwrap().leaving = Some((1, 9));
        }
        let mut repairs = Repairs::new(4);
        // The extent whose bytes are on the way to the donor. An extent that no copy can give is retried forever, which
        // does not count as work.
        let mut sent = [false; REPAIRS];
        let mut last_work = 0;
        let mut round = 0;
        while round < last_work + 10 || round < 30 {
            prop_assert!(round < 500, "it comes to an end");
            round += 1;
            repairs.tick(round as u64 * HOPELESS_NS / 4);
            for &(_, extent) in written.iter().filter(|(at, _)| *at == round) {
                if !repairs.holds_back(extent as u32, extent as u32) {
                    write(&mut map, &mut at, &mut seals, up, on_disk.is_some(), extent);
                }
            }
            for (slot, sent) in sent.iter_mut().enumerate() {
                if std::mem::take(sent) {
                    let job = repairs.job(slot).unwrap();
                    let held = job.to.map_or_else(|| on_disk.as_mut().unwrap(), |to| &mut at[to]);
                    held[job.extent as usize] = job.seal;
                    for id in repairs.end(slot, &mut map, true).held_back {
                        write(&mut map, &mut at, &mut seals, up, on_disk.is_some(), id as usize);
                    }
                }
                let seal = |e: u32| seals[e as usize];
                if !repairs.find(slot, &mut map, &donors[..], policy, |_| false, seal).is_found {
                    continue;
                }
                let (extent, to) = repairs.job(slot).map(|j| (j.extent, j.to)).unwrap();
                prop_assert!(seal(extent) != 0);
                match to {
                    Some(to) => prop_assert!(
                        policy.donors > 0 && up[to] && Some((extent / 4, to)) != leaves
                    ),
                    None => prop_assert!(policy.disk),
                }
                loop {
                    let has_disk = on_disk.is_some();
                    let version = match repairs.source(slot, &map, &donors[..], has_disk) {
                        RepairSource::Donor(t) => {
                            prop_assert!(up[t.donor]);
                            at[t.donor][extent as usize]
                        }
                        RepairSource::Disk => on_disk.as_ref().unwrap()[extent as usize],
                        RepairSource::Unavailable => {
                            repairs.end(slot, &mut map, false);
                            break;
                        }
                    };
                    let from = repairs.job(slot).unwrap().from.map(|t| t.donor);
                    let good = version == seal(extent);
                    match repairs.verified(slot, &map, good, seal(extent)) {
                        Verified::Write(t) => {
                            prop_assert!(good && t.map(|t| t.donor) == to);
                            repairs.sent(slot);
                            *sent = true;
                            last_work = round;
                            break;
                        }
                        Verified::Has => {
                            prop_assert!(good && from == to);
                            repairs.end(slot, &mut map, true);
                            last_work = round;
                            break;
                        }
                        Verified::End => prop_assert!(false, "it is wanted"),
                        Verified::Lacks => {
                            prop_assert!(!good);
                            let within = extent as usize % 4;
                            let slab = map.get_mut(&(extent / 4)).unwrap();
                            let lacks = match from {
                                Some(donor) => !slab.at(donor).unwrap().has(within),
                                None => slab.disk.has(within),
                            };
                            prop_assert!(lacks);
                            last_work = round;
                        }
                        Verified::Bad(source) => {
                            prop_assert!(!good);
                            last_work = round;
                            if let Some(t) = source {
                                let one = map.get_mut(&(extent / 4)).unwrap().at(t.donor);
                                one.unwrap().lacks(extent as usize % 4);
                            }
                        }
                    }
                }
            }
        }
        for (extent, &seal) in seals.iter().enumerate().filter(|(_, seal)| **seal != 0) {
            let (slab, within) = (&map[&(extent as u32 / 4)], extent % 4);
            // A donor that lacks it, as far as is known, is asked only when no other may come back.
            let away = slab.replicas.iter().any(|c| !up[c.donor] && c.has(within));
            let may_give = |c: &&Replica| up[c.donor] && (c.has(within) || !away);
            let mut gives = slab.replicas.iter().filter(may_give);
            let at_donor = gives.any(|c| at[c.donor][extent] == seal);
            let given = at_donor || on_disk.as_ref().is_some_and(|disk| disk[extent] == seal);
            for c in slab.replicas.iter().filter(|c| up[c.donor] && c.leaving.is_none()) {
                let unwanted = policy.donors == 0;
                prop_assert!(unwanted || !given || c.has(within), "extent {} at {}", extent, c.donor);
            }
            let lacks = policy.disk && slab.disk.has(within);
            prop_assert!(!lacks || !given, "extent {} on the disk", extent);
        }
    }
}

/// What the disk lacked, and got later, can be repaired from it.
#[test]
fn a_disk_that_was_asked_in_vain_is_asked_again_when_it_has_the_extent() {
    let policy = Policy {
        donors: 2,
        disk: true,
        late: false,
        code: None,
    };
    let mut map = Map::new();
    let slab = map.entry(0).or_default();
    slab.replicas = vec![replica(0, 7), replica(1, 8)];
    slab.disk.add(0);
    slab.at(1).unwrap().lacks(0);
    let mut repairs = Repairs::new(4);
    let seal = |extent| u64::from(extent == 0);
    let view_of = |first| [view(first, false), view(true, false)];
    // The only donor that has it is away, and the disk lacks it.
    let donors = view_of(false);
    assert!(
        repairs
            .find(0, &mut map, &donors[..], policy, |_| false, seal)
            .is_found
    );
    assert_eq!(
        repairs.source(0, &map, &donors[..], true),
        RepairSource::Disk
    );
    assert_eq!(repairs.verified(0, &map, false, 1), Verified::Lacks);
    assert_eq!(
        repairs.source(0, &map, &donors[..], true),
        RepairSource::Unavailable
    );
    repairs.end(0, &mut map, false);
    // It comes back, and both are repaired.
    repairs.tick(0);
    let donors = view_of(true);
    for to in [Some(1), None] {
        assert!(
            repairs
                .find(0, &mut map, &donors[..], policy, |_| false, seal)
                .is_found
        );
        assert_eq!(repairs.job(0).unwrap().to, to);
        assert!(matches!(
            repairs.source(0, &map, &donors[..], true),
            RepairSource::Donor(_)
        ));
        assert!(matches!(
            repairs.verified(0, &map, true, 1),
            Verified::Write(_)
        ));
        repairs.sent(0);
        repairs.end(0, &mut map, true);
    }
    // Another one lacks it now, and the donor is away again.
    map.get_mut(&0).unwrap().at(1).unwrap().lacks(0);
    let donors = view_of(false);
    assert!(
        repairs
            .find(0, &mut map, &donors[..], policy, |_| false, seal)
            .is_found
    );
    assert_eq!(
        repairs.source(0, &map, &donors[..], true),
        RepairSource::Disk
    );
}

/// An agent takes over: as far as it knows, donors lack what its predecessor wrote there last, and nobody else has it.
#[test]
fn what_a_donor_has_without_anybody_knowing_is_found_there() {
    let policy = Policy {
        donors: 2,
        disk: false,
        late: false,
        code: None,
    };
    let (donors, seal) = ([view(true, false); 2], |extent| u64::from(extent == 0));
    for has_it in [[true, true], [false, true]] {
        let mut map = Map::new();
        let slab = map.entry(0).or_default();
        slab.replicas = vec![replica(0, 7), replica(1, 8)];
        slab.replicas.iter_mut().for_each(|c| _ = c.lacks(0));
        slab.disk.add(0);
        let mut repairs = Repairs::new(4);
        for to in 0..2 {
            let found = repairs.find(0, &mut map, &donors[..], policy, |_| false, seal);
            assert!(found.is_found);
            assert_eq!(repairs.job(0).unwrap().to, Some(to));
            let ends = loop {
                let good = match repairs.source(0, &map, &donors[..], true) {
                    RepairSource::Disk => false,
                    RepairSource::Donor(t) => has_it[t.donor] || map[&0].replicas[t.donor].has(0),
                    RepairSource::Unavailable => panic!("the second one has it"),
                };
                match repairs.verified(0, &map, good, 1) {
                    Verified::Lacks => {}
                    ends => break ends,
                }
            };
            // The second one is repaired from the first.
            let is_written = to == 1 || !has_it[0];
            assert_eq!(matches!(ends, Verified::Write(_)), is_written);
            assert_eq!(ends == Verified::Has, !is_written);
            repairs.end(0, &mut map, true);
        }
        assert!(map[&0].replicas.iter().all(|c| c.has(0)));
    }
}

/// Where the disk gets its copies late it always lacks some: a surplus copy is released all the same, but not before
/// the disk has nearly everything.
#[test]
fn a_copy_too_many_does_not_wait_for_what_is_written_late() {
    let late = Policy::named("1+disk-async").unwrap();
    let (donors, at_once) = ([view(true, false); 2], Policy::named("1+disk").unwrap());
    for (lacking, policy, goes) in [
        (128, late, true),
        (129, late, false),
        (1, at_once, false),
        (0, at_once, true),
    ] {
        let mut slab = Slab {
            replicas: vec![replica(0, 7), replica(1, 8)],
            ..Slab::default()
        };
        (0..lacking).for_each(|extent| _ = slab.disk.add(extent));
        let given = slab.remove_surplus(&donors[..], policy, || true, 1);
        assert_eq!(given.is_some(), goes, "{lacking} with {policy}");
        // Never the last one.
        let next = slab.remove_surplus(&donors[..], policy, || true, 1);
        assert!(next.is_none());
    }
}

/// A write that gets to all serving donors, and to no disk, if there is one.
fn write(
    map: &mut Map,
    at: &mut [Vec<u64>],
    seals: &mut [u64],
    up: [bool; 3],
    has_disk: bool,
    extent: usize,
) {
    seals[extent] += 10;
    let slab = map.get_mut(&(extent as u32 / 4)).unwrap();
    if has_disk {
        slab.disk.add(extent % 4);
    }
    for (d, held) in at.iter_mut().enumerate() {
        let one = slab.at(d).unwrap();
        if up[d] {
            held[extent] = seals[extent];
            one.gained(extent % 4);
        } else {
            one.lacks(extent % 4);
        }
    }
}

/// Where the disk keeps only a part of a slab, what it never had is lost with the donor, and nothing is damaged.
#[test]
fn a_blank_answer_of_a_disk_that_is_not_sure_is_no_copy() {
    let blank = Answer::Data { blank: true };
    let mut unsure = Read::default();
    assert_eq!(
        unsure.on_disk_answer(OnDisk::Unsure, blank),
        AfterAnswer::TryNext { failover: false }
    );
    assert_eq!(unsure.is_bad(), None);
    let donors: &[canvas_place::replicas::DonorView] = &[];
    let ends = unsure.on_exhausted(None, 0, donors, || 0, 1);
    assert_eq!(ends, Exhausted::Fail { away: false });
    let mut sure = Read::default();
    assert_eq!(
        sure.on_disk_answer(OnDisk::Yes, blank),
        AfterAnswer::Deliver
    );
}
