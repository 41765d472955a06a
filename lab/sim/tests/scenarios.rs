//! The experiments at the short size; `lab sim --full` runs them at full size (`make test-slow`).

use canvas_place::replicas::Policy;
use canvas_sim::engine::SEC;
use canvas_sim::scenario::failures::{POLICIES, Step, filled, step};
use canvas_sim::scenario::{
    Size, balance, contention, erasure, failures, pressure, slabs, utilization,
};
use canvas_sim::world::{Chooser, Config};

const SEED: u64 = 1;

#[test]
fn the_pool_uses_memory_that_lay_idle() {
    println!("{}", utilization::report(SEED, Size::Short));
}

#[test]
fn two_choices_are_fairer_than_one_and_than_the_best_of_old_news() {
    let of = |chooser| balance::run(SEED, 48, chooser, 10);
    let two = of(Chooser::TwoChoices);
    let (random, best) = (of(Chooser::Random), of(Chooser::Best));
    println!("seed {SEED}: {two:?} {random:?} {best:?}");
    assert!(two.deviation < 0.5 * random.deviation && two.max < random.max);
    // With `Best`, all tenants choose the same few donors.
    assert!(two.deviation < 0.5 * best.deviation && two.max < best.max);
}

#[test]
fn donors_give_memory_back_in_time_and_nothing_is_lost() {
    for (name, policy) in &POLICIES[..3] {
        let f = pressure::run(SEED, 8, *policy, 2048);
        println!("seed {SEED}, copies={name}: {f:?}");
        assert!(f.stats.evicted > 0);
        assert_eq!((f.lost, f.stats.below_reserve), (0, 0));
    }
}

#[test]
fn slabs_of_every_size_lose_nothing() {
    println!("{}", slabs::report(SEED, Size::Short));
}

#[test]
fn one_failure_at_a_time_loses_nothing() {
    println!("{}", failures::report(SEED, Size::Short));
}

/// Holds the relations between the figures in lab/SIMULATION.md.
#[test]
fn codes_take_less_than_copies_that_bear_as_many_deaths() {
    println!("{}", erasure::report(SEED, Size::Hosts(100)));
    let pool = |name| erasure::Pool::new(SEED, 100, Policy::named(name).unwrap());
    let (three, coded) = (pool("3"), pool("4+2"));
    assert_eq!((three.space(), coded.space()), (3.0, 1.5));
    let (copies, shards) = (three.die(&[7]), coded.die(&[7]));
    assert_eq!((copies.lost, shards.lost), (0, 0));
    // A lost shard is a quarter of a slab, and is computed from four.
    assert_eq!(copies.read_bytes, copies.written_bytes);
    assert_eq!(shards.read_bytes, 4 * shards.written_bytes);
}

/// A seed has one trace, and another seed has another.
#[test]
fn the_seed_decides_everything() {
    let trace = |seed| {
        let mut world = filled(Config::new(seed, 6, POLICIES[1].1));
        step(&mut world, 3, Step::Die(Some(SEC)));
        step(&mut world, 2, Step::Hang(3 * SEC));
        (world.trace, world.stats)
    };
    let (one, again, other) = (trace(11), trace(11), trace(12));
    println!(
        "seed 11: trace {:016x} of {} words",
        one.0.hash, one.0.words
    );
    assert_eq!(one, again);
    assert_ne!(one.0, other.0);
}

/// Holds the relations between the figures in lab/SIMULATION.md.
#[test]
fn reservations_help_as_far_as_no_other_lock_is_in_the_way() {
    let at =
        |scheme, n| contention::cell(SEED, scheme, contention::TRANSFERS_NS[0], n, Size::Short);
    let [each, batches, reserved, both] = contention::SCHEMES;
    // With one lock the time per page grows with the processors, and reservations alone do not help, since
    // the swap cache has a lock as well.
    assert!(at(each, 48).page_ns > 8.0 * at(each, 1).page_ns);
    assert!(at(reserved, 48).page_ns > 8.0 * at(reserved, 1).page_ns);
    // With batches all processors make progress.
    for scheme in [batches, both] {
        assert!(at(scheme, 48).page_ns < 1.05 * at(scheme, 1).page_ns);
    }
    // Entries alone: figure 12 b of Canvas has a factor of 13 at 48 processors.
    let [one_by_one, stocked] = contention::ENTRIES_ONLY;
    assert!(at(one_by_one, 48).locked_ns > 13.0 * at(stocked, 48).locked_ns);
    // Few contexts limit what many processors can do.
    let few = canvas_sim::contention::Scheme {
        contexts: 4,
        ..both
    };
    assert!(at(few, 64).pages_per_s < 1.05 * at(both, 4).pages_per_s);
    // A seed has one result.
    assert_eq!(at(each, 16), at(each, 16));
}
