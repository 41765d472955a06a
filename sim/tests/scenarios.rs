//! The experiments at a short size; at full size by `canvas-sim --full` (`make test-slow`).

use canvas_sim::engine::SEC;
use canvas_sim::scenario::failures::{POLICIES, Step, filled, step};
use canvas_sim::scenario::{Size, balance, failures, pressure, slabs, utilization};
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
    // All run to the same few donors.
    assert!(two.deviation < 0.5 * best.deviation && two.max < best.max);
}

#[test]
fn donors_give_memory_back_in_time_and_nothing_is_lost() {
    for (name, policy) in &POLICIES[..3] {
        let f = pressure::run(SEED, 8, *policy, 512);
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

/// One seed, one trace; another seed, another one.
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
