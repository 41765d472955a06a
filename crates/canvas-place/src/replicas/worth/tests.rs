use proptest::prelude::*;

use super::*;
use crate::replicas::map::Gaps;
use crate::replicas::{Code, ConnectionState, DonorView};

fn view(up: bool) -> DonorView {
    let connection = match up {
        true => ConnectionState::Up,
        false => ConnectionState::Down { since_ns: 0 },
    };
    DonorView {
        connection,
        pressure: false,
        free_bytes: 1 << 30,
        suspect: false,
    }
}

fn slab_at(donors: usize) -> Slab {
    let replica = |d: usize| Replica::whole(d, [d as u8; 16], 100 + d as u64);
    Slab {
        replicas: (0..donors).map(replica).collect(),
        disk: Gaps::all(),
        ..Slab::default()
    }
}

/// Sends what is due, and has it confirmed.
fn settle(entry: &mut Slab, number: u32, donors: &[DonorView], policy: Policy) -> Vec<Worth> {
    for _ in 0..4 {
        for (donor, _, worth) in entry.worths(number, donors, policy, 0) {
            let told = &mut entry.at(donor).unwrap().reported;
            told.on_sent(worth);
            told.on_answer(true, 0);
        }
    }
    assert_eq!(
        entry.worths(number, donors, policy, 0),
        [],
        "it comes to rest"
    );
    entry
        .replicas
        .iter()
        .map(|c| c.reported.confirmed)
        .collect()
}

#[test]
fn one_of_two_copies_is_kept_and_each_donor_has_some_to_free() {
    use Worth::{Kept, Sole, Spare};
    let policy = Policy::new(2, false);
    let donors = [view(true), view(true)];
    let mut entry = slab_at(2);
    // After a new agent took over, the spare one's donor is notified only when the kept one's has confirmed.
    let mut anew = slab_at(2);
    for replica in &mut anew.replicas {
        replica.reported = ReportedWorth::unknown();
    }
    assert_eq!(anew.worths(0, &donors[..], policy, 0), [(0, 100, Kept)]);
    assert_eq!(settle(&mut anew, 0, &donors, policy), [Kept, Spare]);
    assert_eq!(settle(&mut entry, 0, &donors, policy), [Kept, Spare]);
    assert_eq!(settle(&mut slab_at(2), 1, &donors, policy), [Spare, Kept]);
    // The kept one's donor is away, or wants it back: the other one is not spare any more.
    let away = [view(false), view(true)];
    assert_eq!(entry.worths(0, &away[..], policy, 0), [(1, 101, Sole)]);
    entry.replicas[0].leaving = Some((1, 1000));
    assert_eq!(settle(&mut entry, 0, &donors, policy), [Spare, Sole]);
    // One that lacks something does not count.
    let mut entry = slab_at(2);
    entry.replicas[0].lacks(7);
    assert_eq!(settle(&mut entry, 0, &donors, policy), [Spare, Sole]);
    entry.replicas[1].lacks(8);
    assert_eq!(settle(&mut entry, 0, &donors, policy), [Sole, Sole]);
}

#[test]
fn the_disk_frees_nothing() {
    use Worth::{Kept, Sole, Spare};
    let donors = [view(true)];
    let on_disk = |policy: Policy, lacks: usize| {
        let mut entry = slab_at(1);
        entry.may_be_on_disk = true;
        entry.disk = Gaps::default();
        (0..lacks).for_each(|extent| {
            entry.disk.add(extent);
        });
        settle(&mut entry, 3, &donors, policy)
    };
    let named = |name| Policy::named(name).unwrap();
    assert_eq!(on_disk(named("1+disk"), 0), [Spare]);
    assert_eq!(on_disk(named("1+disk"), 1), [Sole]);
    assert_eq!(on_disk(named("1+disk-async"), 0), [Kept]);
    assert_eq!(on_disk(named("1+disk-async"), EXTENTS_MAX / 2), [Sole]);
    assert_eq!(on_disk(named("1"), 0), [Sole], "that copy is to go");
}

#[test]
fn as_many_shards_are_kept_as_the_code_needs() {
    let code = Code::new(4, 2).unwrap();
    let mut entry = slab_at(7);
    entry.code = Some(code);
    for (at, replica) in entry.replicas.iter_mut().enumerate() {
        replica.shard = at % 6;
    }
    let donors = [view(true); 7];
    let told = settle(&mut entry, 5, &donors, Policy::coded(code));
    let of = |worth| told.iter().filter(|w| **w == worth).count();
    assert_eq!(
        [of(Worth::Kept), of(Worth::Spare), of(Worth::Sole)],
        [4, 3, 0]
    );
    for replica in &mut entry.replicas[4..] {
        replica.lacks(1);
    }
    let told = settle(&mut entry, 5, &donors, Policy::coded(code));
    assert_eq!(told[..4], [Worth::Sole; 4]);
}

/// A donor that refuses is not asked endlessly.
#[test]
fn who_refuses_is_told_again_later() {
    let mut entry = slab_at(2);
    let (donors, policy) = ([view(true); 2], Policy::new(2, false));
    entry.replicas[0].reported.on_sent(Worth::Kept);
    assert_eq!(
        entry.worths(0, &donors[..], policy, 0)[..],
        [(1, 101, Worth::Spare)]
    );
    entry.replicas[0].reported.on_answer(false, 500);
    let told = |entry: &Slab, now_ns| {
        let all = entry.worths(0, &donors[..], policy, now_ns);
        all.contains(&(0, 100, Worth::Kept))
    };
    assert!(!told(&entry, 499));
    assert!(told(&entry, 500));
}

#[derive(Clone, Debug)]
enum Step {
    Tick,
    /// A message to a donor arrives, and its answer does, too.
    Heard(usize),
    /// It arrives, and the answer is lost.
    Unconfirmed(usize),
    /// It never arrives.
    Lost(usize),
    Up(usize, bool),
    Leaving(usize, bool),
    /// Another agent takes over.
    Anew,
    /// Copies are wanted on the disk, too, or no longer.
    Disk(bool),
    /// The disk has all of it.
    Copied,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        4 => Just(Step::Tick),
        6 => (0..7usize).prop_map(Step::Heard),
        1 => (0..7usize).prop_map(Step::Unconfirmed),
        1 => (0..7usize).prop_map(Step::Lost),
        2 => (0..7usize, any::<bool>()).prop_map(|(d, up)| Step::Up(d, up)),
        1 => (0..7usize, any::<bool>()).prop_map(|(d, is)| Step::Leaving(d, is)),
        1 => Just(Step::Anew),
        1 => any::<bool>().prop_map(Step::Disk),
        1 => Just(Step::Copied),
    ];
    prop::collection::vec(one, 0..200)
}

proptest! {
    /// Whatever is lost on the way, and whoever is away: if at any moment all donors freed what they believe to be
    /// spare, what is left restores everything.
    #[test]
    fn what_all_donors_may_free_is_never_everything(
        steps in steps(), n in 2..5usize, is_coded: bool, number in 0..9u32,
    ) {
        let code = is_coded.then(|| Code::new(4, 2).unwrap());
        let n = if is_coded { 6 } else { n };
        let mut entry = slab_at(n);
        entry.code = code;
        for (at, replica) in entry.replicas.iter_mut().enumerate() {
            replica.shard = if is_coded { at } else { 0 };
        }
        let mut policy = code.map_or(Policy::new(n, false), Policy::coded);
        let mut donors = vec![view(true); n];
        let mut believes = vec![Worth::Sole; n];
        let mut under_way: Vec<Option<Worth>> = vec![None; n];
        for step in steps {
            match step {
                Step::Tick => {
                    for (donor, _, worth) in entry.worths(number, &donors[..], policy, 0) {
                        prop_assert!(under_way[donor].replace(worth).is_none());
                        entry.at(donor).unwrap().reported.on_sent(worth);
                    }
                    entry.drop_disk_copy(&donors[..], policy, 0);
                }
                Step::Heard(d) | Step::Unconfirmed(d) | Step::Lost(d) => {
                    let Some(worth) = under_way.get_mut(d).and_then(Option::take) else { continue };
                    if !matches!(step, Step::Lost(_)) {
                        believes[d] = worth;
                    }
                    entry.replicas[d].reported.on_answer(matches!(step, Step::Heard(_)), 0);
                }
                Step::Up(d, up) if d < n => donors[d] = view(up),
                Step::Leaving(d, is) if d < n => {
                    entry.replicas[d].leaving = is.then_some((1, u64::MAX));
                }
                Step::Anew => {
                    under_way.fill(None);
                    entry.replicas.iter_mut().for_each(|c| c.reported = ReportedWorth::unknown());
                }
                Step::Disk(is) if !is_coded => policy.disk = is,
                Step::Copied if policy.disk => {
                    entry.disk = Gaps::default();
                    entry.may_be_on_disk = true;
                }
                _ => {}
            }
            let left = believes.iter().filter(|w| **w != Worth::Spare).count();
            let on_disk = entry.may_be_on_disk && entry.disk.is_none();
            prop_assert!(on_disk || left >= entry.needed(), "{:?}", believes);
        }
        // When all is well again, every possible replica is spare.
        donors.fill(view(true));
        for d in 0..n {
            entry.replicas[d].leaving = None;
            entry.replicas[d].reported.on_answer(false, 0);
        }
        let told = settle(&mut entry, number, &donors, policy);
        let spare = told.iter().filter(|w| **w == Worth::Spare).count();
        let on_disk = policy.disk && entry.may_be_on_disk && entry.disk.is_none();
        prop_assert_eq!(spare, if on_disk { n } else { n - entry.needed() });
    }
}
