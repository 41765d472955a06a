use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn host(available_mib: u64, fall_mib_s: u64) -> HostSample {
    HostSample {
        available_bytes: available_mib * MIB,
        swap_free_bytes: 0,
        reserve_bytes: 1024 * MIB,
        fall_bytes_s: fall_mib_s * MIB,
    }
}

fn lent(slab: u32, worth: Worth, ops: u64) -> Lent<u32> {
    Lent {
        slab,
        bytes: 64 * MIB,
        worth,
        is_leaving: false,
        ops,
    }
}

fn due(sample: HostSample, slabs: &[Lent<u32>]) -> Vec<u32> {
    sample.due(slabs).iter().map(|s| s.slab).collect()
}

#[test]
fn each_worth_has_its_mark() {
    let slabs = [
        lent(0, Worth::Sole, 0),
        lent(1, Worth::Kept, 0),
        lent(2, Worth::Spare, 9),
        lent(3, Worth::Spare, 5),
    ];
    assert_eq!(
        due(host(512, 0), &slabs),
        [0; 0],
        "clients have time to move"
    );
    assert_eq!(due(host(511, 0), &slabs), [3], "the less used spare one");
    assert_eq!(due(host(448 - 1, 0), &slabs), [3, 2]);
    assert_eq!(due(host(300, 0), &slabs), [3, 2], "others wait");
    // A quarter is 256, of which the freed slabs make up 128.
    assert_eq!(due(host(128, 0), &slabs), [3, 2]);
    assert_eq!(due(host(127, 0), &slabs), [3, 2, 1]);
    // With these 192 the last mark (128) is not reached.
    assert_eq!(due(host(0, 0), &slabs), [3, 2, 1]);
    assert_eq!(due(host(0, 0), &slabs[..2]), [1, 0], "nothing else is left");
    assert_eq!(due(host(127, 0), &slabs[..1]), [0]);
    assert_eq!(due(host(128, 0), &slabs[..1]), [0; 0]);
}

#[test]
fn the_faster_it_falls_the_sooner() {
    let spare = [lent(7, Worth::Spare, 0)];
    let sole = [lent(8, Worth::Sole, 0)];
    assert_eq!(due(host(1000, 400), &spare), [0; 0]);
    assert_eq!(
        due(host(1000, 500), &spare),
        [7],
        "below half within a second"
    );
    assert!(due(host(1000, 3000), &sole).is_empty());
    assert_eq!(
        due(host(1000, 4000), &sole),
        [8],
        "below an eighth in 250 ms"
    );
}

#[test]
fn what_was_told_to_go_is_first_and_what_saves_nobody_stays() {
    let mut leaving = lent(1, Worth::Kept, 100);
    leaving.is_leaving = true;
    let mut tiny = lent(2, Worth::Spare, 0);
    tiny.bytes = MIB - 1;
    let slabs = [lent(0, Worth::Kept, 0), leaving, tiny];
    assert_eq!(due(host(250, 0), &slabs), [1]);
    assert_eq!(due(host(0, 0), &slabs), [1, 0]);
}

#[test]
fn a_host_that_can_swap_needs_no_sole_copy() {
    let slabs = [lent(0, Worth::Sole, 0), lent(1, Worth::Kept, 0)];
    let swaps = HostSample {
        swap_free_bytes: 200 * MIB,
        ..host(10, 0)
    };
    assert_eq!(due(swaps, &slabs), [1]);
    assert_eq!(due(host(10, 0), &slabs), [1, 0]);
}

/// With almost no reserve the marks are still above zero.
#[test]
fn no_mark_is_at_the_very_end() {
    let bare = HostSample {
        reserve_bytes: 0,
        ..host(31, 0)
    };
    assert_eq!(due(bare, &[lent(0, Worth::Sole, 0)]), [0]);
    let enough = HostSample {
        available_bytes: MARK_BYTES_MIN,
        ..bare
    };
    assert!(!enough.is_short());
}

/// A program that takes much at once may have it; one that continues may not.
#[test]
fn a_single_fall_is_no_rate() {
    let mut watch = Watch::default();
    let mut now_ms = 0;
    let mut see = |mib: u64| {
        watch.sample(now_ms, mib * MIB);
        now_ms += 100;
        watch.fall_bytes_s() / MIB
    };
    assert_eq!([32_000, 1000, 1000, 1000].map(&mut see), [0; 4]);
    let falling = [990, 980, 970, 960, 950].map(&mut see);
    assert_eq!(falling, [0, 100, 100, 100, 100]);
    // Calls in between are no samples.
    let mut watch = Watch::default();
    for ms in 0..1000 {
        watch.sample(ms, (100_000 - ms) * MIB);
    }
    assert_eq!(watch.fall_bytes_s(), 1000 * MIB);
}

#[test]
fn what_was_freed_does_not_hide_the_rate_and_is_not_freed_twice() {
    let mut watch = Watch::default();
    let mut available = 1000;
    for sample in 0..8 {
        let now_ms = sample * 100;
        watch.sample(now_ms, available * MIB);
        watch.freed(now_ms, available * MIB, 64 * MIB);
        assert!(watch.is_stale(now_ms + 199, available * MIB));
        assert!(!watch.is_stale(now_ms + 200, available * MIB));
        assert!(!watch.is_stale(now_ms + 20, available * MIB + 4096));
        available = available + 64 - 10;
    }
    assert_eq!(watch.fall_bytes_s(), 100 * MIB);
}

fn any_slabs() -> impl Strategy<Value = Vec<Lent<usize>>> {
    let one = (0..3u64, 0..128 * MIB, any::<bool>(), 0..20u64);
    prop::collection::vec(one, 0..40).prop_map(|all| {
        let slab = |(slab, (worth, bytes, is_leaving, ops))| Lent {
            slab,
            bytes,
            worth: Worth::of_number(worth),
            is_leaving,
            ops,
        };
        all.into_iter().enumerate().map(slab).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Oracle: free one slab at a time, and check again after each.
    #[test]
    fn as_if_looked_at_after_each(
        slabs in any_slabs(), available in 0..2048 * MIB, swap in prop_oneof![Just(0), 0..1024 * MIB],
        reserve in 0..2048 * MIB, fall in 0..4096 * MIB,
    ) {
        let sample = HostSample {
            available_bytes: available,
            swap_free_bytes: swap,
            reserve_bytes: reserve,
            fall_bytes_s: fall,
        };
        let mut left: Vec<_> = slabs.iter().filter(|s| s.bytes >= GAIN_BYTES_MIN).copied().collect();
        let mut expected = Vec::new();
        let mut freed = 0;
        loop {
            let short = |worth: Worth| {
                let (part, ms) = match worth {
                    Worth::Spare => (2, 1000),
                    Worth::Kept => (4, 500),
                    Worth::Sole => (8, 250),
                };
                let has = available + freed + if worth == Worth::Sole { swap } else { 0 };
                has < (reserve / part).max(MARK_BYTES_MIN) + fall * ms / 1000
            };
            let may = left.iter().filter(|s| short(s.worth));
            // A slab that is worth more goes only when no slab is left that is worth less.
            let least = left.iter().map(|s| s.worth.number()).max();
            let may = may.filter(|s| Some(s.worth.number()) == least);
            let Some(next) = may.min_by_key(|s| (!s.is_leaving, s.ops, s.slab)).copied() else {
                break;
            };
            freed += next.bytes;
            left.retain(|s| s.slab != next.slab);
            expected.push(next.slab);
        }
        let got: Vec<usize> = sample.due(&slabs).iter().map(|s| s.slab).collect();
        prop_assert_eq!(&got, &expected);
        prop_assert!(got.is_empty() || sample.is_short());
    }

    /// A host whose programs grow steadily, by up to three quarters of the reserve in a second, runs out of memory only
    /// when nothing is lent any more, and no sole copy is freed while another slab is there.
    #[test]
    fn a_donor_outlives_a_program_that_grows(
        slabs in any_slabs(), reserve_mib in 64..1024u64, part in 1..=100u64, phase in 0..100u64,
    ) {
        let reserve = reserve_mib * MIB;
        let grows_ms = reserve * 3 / 4 * part / 100 / 1000;
        let mut lent = slabs;
        let mut available = reserve * 2 + reserve / 4;
        let (mut watch, mut look_ms) = (Watch::default(), phase);
        for now_ms in 0..60_000 {
            let useful = |lent: &[Lent<usize>]| lent.iter().any(|s| s.bytes >= GAIN_BYTES_MIN);
            if available < grows_ms {
                prop_assert!(!useful(&lent), "killed with {} slabs", lent.len());
                return Ok(());
            }
            available -= grows_ms;
            if now_ms < look_ms {
                continue;
            }
            watch.sample(now_ms, available);
            let sample = HostSample {
                available_bytes: available,
                swap_free_bytes: 0,
                reserve_bytes: reserve,
                fall_bytes_s: watch.fall_bytes_s(),
            };
            look_ms = now_ms + if sample.is_near() { 20 } else { 100 };
            if watch.is_stale(now_ms, available) {
                continue;
            }
            let goes = sample.due(&lent);
            let freed: u64 = goes.iter().map(|s| s.bytes).sum();
            for s in &goes {
                lent.retain(|l| l.slab != s.slab);
            }
            if goes.iter().any(|s| s.worth == Worth::Sole) {
                prop_assert!(lent.iter().all(|l| l.worth == Worth::Sole || l.bytes < GAIN_BYTES_MIN));
            }
            if freed > 0 {
                watch.freed(now_ms, available, freed);
                available += freed;
            }
        }
    }
}
