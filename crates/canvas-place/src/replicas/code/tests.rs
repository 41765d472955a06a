use proptest::prelude::*;

use super::*;
use crate::replicas::{ConnectionState, DonorView, GiveUp, Held, Policy, Replica, give_up, whole};

const EXTENT: usize = 32 << 10;

fn codes() -> impl Strategy<Value = Code> {
    (DATA.0..=DATA.1, PARITY.0..=PARITY.1).prop_map(|(k, m)| Code::new(k, m).unwrap())
}

#[test]
fn codes_are_written_as_they_are_read() {
    for data in 0..12 {
        for parity in 0..5 {
            let name = format!("{data}+{parity}");
            let good = (2..=8).contains(&data) && (1..=2).contains(&parity);
            assert_eq!(Code::named(&name).is_some(), good, "{name}");
            assert_eq!(Code::new(data, parity), Code::named(&name));
            if let Some(code) = Code::named(&name) {
                assert_eq!(code.to_string(), name);
            }
        }
    }
    for bad in [
        "", "+", "4", "4+", "+2", "04+2", "4+02", "4 +2", "4+2+1", "1+disk", "-4+2",
    ] {
        assert_eq!(Code::named(bad), None, "{bad}");
    }
}

proptest! {
    /// The shards of a range are its bytes in order, each once.
    #[test]
    fn a_range_lies_in_shards_in_order(code in codes(), from in 0..EXTENT, len in 0..EXTENT) {
        let range = from..(from + len).min(EXTENT);
        let shard = code.shard_bytes(EXTENT);
        prop_assert!(shard % GRAIN == 0 && shard * code.data() >= EXTENT);
        prop_assert!(shard * code.data() < EXTENT + GRAIN * code.data());
        let mut at = range.start;
        for place in code.shard_ranges(EXTENT, range.clone()) {
            prop_assert!(place.shard < code.data() && place.range.end <= shard);
            prop_assert_eq!(place.shard * shard + place.range.start, at);
            at += place.range.len();
        }
        prop_assert_eq!(at, range.end.max(range.start));
    }

    /// Shards are written forward, and completely when the extent is.
    #[test]
    fn shards_grow_with_the_extent(code in codes(), a in 0..=EXTENT, b in 0..=EXTENT) {
        let (a, b) = (a.min(b), a.max(b));
        let to = |n| code.shard_to(EXTENT, n);
        prop_assert!(to(a) <= to(b) && to(b).is_multiple_of(GRAIN));
        prop_assert_eq!(to(EXTENT), code.shard_bytes(EXTENT));
        prop_assert!(b == EXTENT || to(b) < code.shard_bytes(EXTENT));
    }

    /// Gathering succeeds whenever enough shards can be had, whoever fails or is late; for a healthy slab no unneeded
    /// donor is asked, and never more than one besides the needed ones.
    #[test]
    fn enough_is_gathered_where_there_is_enough(
        code in codes(),
        wants in prop_oneof![Just(u32::MAX), (0..8u32).prop_map(|n| 1 << n)],
        up in any::<u32>(), suspect in any::<u32>(), lacking in any::<u32>(),
        twice in prop::option::of(0..10usize),
        mut answers in prop::collection::vec((any::<prop::sample::Index>(), 0..4u8), 40),
    ) {
        let data = code.data();
        let wants = match wants & ((1 << data) - 1) {
            0 => 1,
            wants => wants,
        };
        let mut slab = Slab { code: Some(code), ..Slab::default() };
        let shards = (0..code.shards()).chain(twice.filter(|n| *n < code.shards()));
        for (donor, shard) in shards.enumerate() {
            let mut replica = Replica::whole(donor, [0; 16], donor as u64 + 70);
            replica.shard = shard;
            if lacking & 1 << donor != 0 && lacking & 1 << 20 != 0 {
                replica.lacks(7);
            }
            slab.replicas.push(replica);
        }
        let bit = |bits: u32, donor: usize| bits & 1 << donor != 0;
        let donors: Vec<DonorView> = (0..slab.replicas.len())
            .map(|donor| DonorView {
                connection: match bit(up, donor) || !bit(up, 20) {
                    true => ConnectionState::Up,
                    false => ConnectionState::Down { since_ns: 0 },
                },
                pressure: false,
                free_bytes: 0,
                suspect: bit(suspect, donor) && bit(suspect, 20),
            })
            .collect();
        let can_give = |donor: usize| donors[donor].is_up() && slab.replicas[donor].has(7);
        let healthy = (0..donors.len()).all(|d| can_give(d) && !donors[d].suspect);
        let mut gather = Gather::new(code, wants);
        let (mut awaited, mut got, mut failed) = (Vec::new(), 0u32, 0u32);
        let mut late = 0u32;
        loop {
            while let Some(holder) = gather.next(&slab, 7, &donors[..]) {
                prop_assert!(can_give(holder.donor));
                prop_assert_eq!(slab.replicas[holder.donor].shard, holder.shard);
                prop_assert_eq!(slab.replicas[holder.donor].handle, holder.handle);
                gather.on_sent(holder, true);
                prop_assert!(!awaited.contains(&holder.donor));
                awaited.push(holder.donor);
            }
            let enough = wants & !got == 0 || got.count_ones() as usize >= data;
            prop_assert_eq!(gather.is_ready(), enough);
            prop_assert_eq!(gather.waits(), !awaited.is_empty());
            if healthy && failed == 0 && late == 0 {
                let wide = wants.count_ones() as usize == data;
                let most = wants.count_ones() as usize + usize::from(wide);
                prop_assert!(got.count_ones() as usize + awaited.len() <= most);
            }
            if enough {
                prop_assert_eq!(gather.is_computed(), wants & !got != 0);
                break;
            }
            let Some((which, what)) = answers.pop().filter(|_| !awaited.is_empty()) else {
                if awaited.is_empty() {
                    // Every donor that could have given something was asked.
                    let left = (0..donors.len()).filter(|d| can_give(*d) && !bit(failed, *d));
                    let shards = left.fold(0u32, |bits, d| bits | 1 << slab.replicas[d].shard);
                    prop_assert!((shards.count_ones() as usize) < data && wants & !shards != 0);
                }
                break;
            };
            let at = which.index(awaited.len());
            let donor = awaited[at];
            match what {
                0 => {
                    gather.late(donor);
                    late |= 1 << donor;
                    prop_assert!(!gather.waits_for(donor));
                }
                1 => {
                    awaited.remove(at);
                    prop_assert_eq!(gather.on_answer(donor, false), None);
                    failed |= 1 << donor;
                }
                _ => {
                    awaited.remove(at);
                    let shard = slab.replicas[donor].shard;
                    prop_assert_eq!(gather.on_answer(donor, true), Some(shard));
                    got |= 1 << shard;
                }
            }
        }
    }
}

/// A slab in shards is judged by its shards: two copies of one shard do not count as two.
#[test]
fn two_donors_of_one_shard_count_once() {
    let code = Code::new(2, 1).unwrap();
    let view = |up: bool| DonorView {
        connection: if up {
            ConnectionState::Up
        } else {
            ConnectionState::Down { since_ns: 0 }
        },
        pressure: false,
        free_bytes: 0,
        suspect: false,
    };
    let mut slab = Slab {
        code: Some(code),
        ..Slab::default()
    };
    let mut donors = [view(true); 4];
    for donor in 0..3 {
        let mut replica = Replica::whole(donor, [0; 16], 1);
        replica.shard = slab.next_shard(&donors[..]);
        assert_eq!(replica.shard, donor);
        slab.replicas.push(replica);
    }
    let policy = Policy::coded(code);
    assert!(!slab.due(&donors[..], policy, 0).degraded);
    donors[1] = view(false);
    // It is away: its shard is missing.
    assert_eq!(slab.next_shard(&donors[..]), 1);
    assert_eq!(slab.to_ask(&donors[..], policy, 0), 1);
    let mut again = Replica::whole(3, [0; 16], 1);
    again.shard = 1;
    again.lacks_all();
    slab.replicas.push(again);
    assert!(slab.due(&donors[..], policy, 0).degraded);
    assert_eq!(slab.to_ask(&donors[..], policy, 0), 0);
    assert_eq!(slab.remove_surplus(&donors[..], policy, || true, 0), None);
    donors[1] = view(true);
    // It is back, and the other one has nothing yet: that one is too many.
    let given = slab
        .remove_surplus(&donors[..], policy, || true, 0)
        .unwrap();
    assert_eq!(given.donor, 3);
    assert_eq!(slab.remove_surplus(&donors[..], policy, || true, 0), None);
}

/// A slab in copies stays in copies when the policy changes to shards, with enough of them that as many donors may die.
#[test]
fn a_slab_stays_in_the_form_in_which_it_was_begun() {
    let coded = Policy::named("4+2").unwrap();
    let slab = |code| Slab {
        code,
        ..Slab::default()
    };
    let code = coded.code;
    assert_eq!(slab(code).policy(Policy::named("1+disk").unwrap()), coded);
    assert_eq!(slab(None).policy(coded), Policy::named("3").unwrap());
    assert_eq!(
        slab(None).policy(Policy::named("2+1").unwrap()),
        Policy::named("2").unwrap()
    );
    assert_eq!((coded.donors, coded.to_string().as_str()), (6, "4+2"));
}

proptest! {
    /// Releasing a replica of a slab in shards leaves every shard that was complete, unless its deadline is over.
    #[test]
    fn no_shard_is_given_up_that_is_the_only_one(
        code in codes(),
        held in prop::collection::vec((0..10usize, any::<[bool; 2]>(), prop::option::of(0..20u64)), 0..12),
        now in 0..20u64,
    ) {
        let held = held.into_iter().enumerate().map(|(donor, (shard, [up, whole], leaving_until_ns))| Held {
            donor,
            up,
            may_serve: up,
            whole,
            leaving_until_ns,
            shard: Some(shard % code.shards()),
            may_be_spare: false,
        });
        let held: Vec<Held> = held.collect();
        let given = give_up(held.iter().copied(), Policy::coded(code), false, true, now);
        let Some(GiveUp::Leaving(donor) | GiveUp::Surplus(donor)) = given else {
            return Ok(());
        };
        let left = held.iter().copied().filter(|c| c.donor != donor);
        let is_due = held[donor].leaving_until_ns.is_some_and(|until| now >= until);
        prop_assert!(is_due || whole(left) == code.shards());
    }
}
