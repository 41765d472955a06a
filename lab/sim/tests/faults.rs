//! Random failures, one at a time, in small pools: nothing is lost, agents know the truth, and all copies are
//! restored. Proptest shrinks a failing case and prints its seed.

use canvas_place::replicas::Policy;
use canvas_sim::engine::{MS, SEC};
use canvas_sim::scenario::failures::{POLICIES, Step, filled, step};
use canvas_sim::world::{Config, World};
use proptest::prelude::*;

fn steps() -> impl Strategy<Value = Vec<(usize, u64, Step)>> {
    let one = prop_oneof![
        (1..8000u64).prop_map(|ms| Step::Hang(ms * MS)),
        (25..45u64).prop_map(|s| Step::Hang(s * SEC)),
        (0..6000u64).prop_map(|ms| Step::Die(Some(ms * MS))),
        (1..60u64, 28..34u32).prop_map(|(s, rate)| Step::Squeeze(s * SEC, 1 << rate)),
        (20..60u64, 30..36u32, 0..9000u64, 600..5000u64).prop_map(|(s, rate, after, ms)| {
            Step::SqueezeAndHang(s * SEC, 1 << rate, after * MS, ms * MS)
        }),
    ];
    prop::collection::vec((0..HOSTS, 0..2000u64, one), 1..4)
}

/// Applies one failure after another: nothing is lost, and each is repaired.
fn made_good(
    world: &mut World,
    schedule: Vec<(usize, u64, Step)>,
    copies: &str,
) -> Result<(), TestCaseError> {
    for (host, gap_ms, what) in schedule {
        world.run_until(world.now() + gap_ms * MS);
        let outcome = step(world, host, what);
        prop_assert_eq!(
            outcome.lost,
            0,
            "copies={}, host {}: {:?}",
            copies,
            host,
            what
        );
        prop_assert!(
            outcome.redundant_after.is_some(),
            "copies={}, host {}: {:?} is not made good",
            copies,
            host,
            what
        );
    }
    Ok(())
}

const HOSTS: usize = 5;

/// Number of schedules to try; `make test-slow` makes it higher.
fn cases() -> u32 {
    let scale = std::env::var("CANVAS_TEST_SCALE");
    8 * scale.map_or(1, |n| n.parse().expect("CANVAS_TEST_SCALE is a number"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn one_failure_at_a_time(
        seed: u64,
        policy in 0..3usize,
        slabs in 1..4usize,
        disk_bytes_per_us in prop_oneof![Just(500u64), 20..200u64],
        load_ms in 1..8u64,
        schedule in steps(),
    ) {
        let (name, policy) = POLICIES[policy];
        let mut world = filled(Config {
            slabs,
            extents: 16,
            disk_bytes_per_us: disk_bytes_per_us * 16,
            net_bytes_per_us: 1250 * 16,
            load_ns: load_ms * MS,
            ..Config::new(seed, HOSTS, policy)
        });
        made_good(&mut world, schedule, name)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 200, ..ProptestConfig::default() })]

    /// One failure at a time, with slabs in shards.
    #[test]
    fn one_failure_at_a_time_of_shards(
        seed: u64,
        code in prop::sample::select(vec!["2+1", "2+2", "3+1", "4+2"]),
        slabs in 1..4usize,
        load_ms in 1..8u64,
        schedule in steps(),
    ) {
        let policy = Policy::named(code).unwrap();
        let mut world = filled(Config {
            slabs,
            extents: 16,
            net_bytes_per_us: 1250 * 16,
            load_ns: load_ms * MS,
            ..Config::new(seed, policy.donors + 2, policy)
        });
        made_good(&mut world, schedule, code)?;
    }
}

/// Policies of copies; there is a disk.
fn policy() -> impl Strategy<Value = Policy> {
    let all = [(1, true), (2, false), (3, false), (0, true), (2, true)];
    prop::sample::select(
        all.map(|(donors, disk)| Policy {
            donors,
            disk,
            late: false,
            code: None,
        })
        .to_vec(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 200, ..ProptestConfig::default() })]

    /// Copies move while programs write and read, and a host dies in the middle of that.
    #[test]
    fn switches_of_copies_lose_nothing(
        seed: u64,
        first in policy(),
        slabs in 1..4usize,
        disk_bytes_per_us in prop_oneof![Just(500u64), 20..200u64],
        load_ms in 1..8u64,
        schedule in prop::collection::vec((0..HOSTS, 0..2000u64, policy()), 1..4),
    ) {
        let mut world = filled(Config {
            slabs,
            extents: 16,
            has_disk: true,
            disk_bytes_per_us: disk_bytes_per_us * 16,
            net_bytes_per_us: 1250 * 16,
            load_ns: load_ms * MS,
            ..Config::new(seed, 2 * HOSTS, first)
        });
        for (host, after_ms, policy) in schedule {
            let outcome = step(&mut world, host, Step::SwitchAndDie(policy, after_ms * MS));
            prop_assert_eq!(outcome.lost, 0, "to {}", policy);
            prop_assert!(outcome.redundant_after.is_some(), "to {}: not made good", policy);
        }
    }
}

/// A regression found by the first test above: the donor repeated its request for a slab before it had listed
/// its slabs; the request was lost, and the agent counted on that copy for good.
#[test]
fn a_donor_hangs_while_it_takes_memory_back() {
    let mut world = filled(Config {
        slabs: 1,
        extents: 16,
        disk_bytes_per_us: 500 * 16,
        net_bytes_per_us: 1250 * 16,
        load_ns: MS,
        ..Config::new(10826447790867983800, HOSTS, POLICIES[0].1)
    });
    let what = Step::SqueezeAndHang(20 * SEC, 1 << 32, 8061 * MS, 600 * MS);
    let outcome = step(&mut world, 2, what);
    assert!(
        outcome.lost == 0 && outcome.redundant_after.is_some(),
        "{outcome:?}"
    );
}
