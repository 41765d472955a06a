use super::*;
use proptest::prelude::*;

/// A tenant that keeps to its limit: data for the pool, and what of it is there.
#[derive(Clone, Debug)]
struct Honest {
    id: u64,
    /// Bytes that it would put into its pool if there were room.
    wants: u64,
    used: u64,
    /// Pages that it swaps in a round.
    pages: u64,
    /// What it fills and demotes in a round.
    fills: u64,
    writes: u64,
}

impl Honest {
    fn new(id: u64, wants: u64, pages: u64) -> Honest {
        Honest {
            id,
            wants,
            used: 0,
            pages,
            fills: u64::MAX,
            writes: 5 * SLAB_BYTES,
        }
    }

    /// A round: it fills its grant up to its mark, and demotes what is above, not all of it at once.
    fn live(&mut self, grant: u64) {
        let mark = grant * SLAB_BYTES / 100 * 80;
        self.used = if self.used > mark {
            let least = mark.min(self.wants);
            self.used.saturating_sub(self.writes).max(least)
        } else {
            let filled = self.used.saturating_add(self.fills);
            self.wants.min(mark).min(filled)
        };
    }

    fn reading(&self) -> Reading {
        Reading {
            used_bytes: self.used,
            spill_percent: 80,
            pinned_bytes: 0,
            pages: self.pages,
        }
    }
}

/// Pages of a slab.
const SLAB_PAGES: u64 = SLAB_BYTES / 4096;

/// A tenant that touches random pages of a working set.
#[derive(Clone, Debug)]
struct Worker {
    set: u64,
    resident: u64,
    touches: u64,
    /// Page-ins of the last round.
    came: u64,
}

impl Worker {
    /// A round with at most this many pages resident. The surplus is evicted, whether it is needed or not.
    fn live(&mut self, grant: u64) {
        self.resident = self.resident.min(grant);
        self.came = self.touches * (self.set - self.resident) / self.set;
        self.resident = (self.resident + self.came)
            .min(self.set)
            .min(grant / 16 * 15);
    }

    fn reading(&self) -> Reading {
        Reading {
            used_bytes: self.resident * 4096,
            spill_percent: 93,
            pinned_bytes: 0,
            pages: self.came,
        }
    }
}

fn bounds(weight: u32, floor: Option<u64>, ceiling: u64) -> Bounds {
    Bounds {
        weight,
        floor,
        ceiling,
    }
}

fn newcomer(id: u64, bounds: Bounds) -> Newcomer {
    Newcomer {
        id,
        bounds,
        had: None,
        reading: Reading::default(),
    }
}

fn rounds(pools: &mut Pools, tenants: &mut [Honest], n: usize) {
    for _ in 0..n {
        for t in tenants.iter_mut() {
            t.live(pools.grant(t.id));
            pools.read(t.id, t.reading());
        }
        pools.round();
    }
}

fn grants(pools: &Pools) -> Vec<u64> {
    pools.tenants.values().map(|t| t.grant).collect()
}

const ALL: u64 = 1 << 40;

#[test]
fn the_only_tenant_has_all_but_the_reserve() {
    let mut pools = Pools::new(320);
    pools.admit(&[newcomer(1, bounds(100, None, 1000))]);
    assert_eq!(
        (pools.grant(1), pools.floor(1), pools.free()),
        (310, 80, 10)
    );
    pools.set_bounds(1, bounds(100, None, 40));
    assert_eq!((pools.grant(1), pools.floor(1)), (40, 40));
}

#[test]
fn what_an_idle_tenant_has_goes_to_one_that_swaps_and_no_sooner() {
    let mut pools = Pools::new(320);
    let mut tenants = [Honest::new(1, ALL, 1000), Honest::new(2, 0, 0)];
    pools.admit(&[newcomer(1, bounds(100, None, 1000))]);
    rounds(&mut pools, &mut tenants[..1], 20);
    tenants[0].pages = 0;
    pools.admit(&[newcomer(2, bounds(100, None, 1000))]);
    let floor = pools.floor(2);
    assert_eq!((floor, pools.floor(1)), (40, 40));
    rounds(&mut pools, &mut tenants, 40);
    // No tenant swaps: none loses more than the other one's floor and the reserve.
    assert_eq!(grants(&pools), [270, 40]);
    tenants[1] = Honest::new(2, ALL, 1000);
    rounds(&mut pools, &mut tenants, 60);
    assert_eq!(grants(&pools), [40, 270]);
    // The reverse, when the first becomes busy and the second idle.
    (tenants[0].pages, tenants[1].pages) = (1000, 0);
    rounds(&mut pools, &mut tenants, 80);
    assert_eq!(grants(&pools), [270, 40]);
}

#[test]
fn weights_count_among_those_that_use_what_they_have() {
    let mut pools = Pools::new(1000);
    let weights = [100, 100, 200, 100];
    let newcomers: Vec<Newcomer> = (0..4)
        .map(|i| newcomer(i, bounds(weights[i as usize], Some(10), 1000)))
        .collect();
    pools.admit(&newcomers);
    // The last one swaps, but 50 slabs are enough for it.
    let mut tenants: Vec<Honest> = (0..4).map(|i| Honest::new(i, ALL, 1000 + i)).collect();
    tenants[3].wants = 40 * SLAB_BYTES;
    rounds(&mut pools, &mut tenants, 200);
    let now = grants(&pools);
    let rest = (1000 - 31 - now[3]) / 4;
    assert!((50..=60).contains(&now[3]), "{now:?}");
    for (got, want) in now.iter().zip([rest, rest, 2 * rest]) {
        assert!(got.abs_diff(want) <= 2, "{now:?}");
    }
    let before = now;
    rounds(&mut pools, &mut tenants, 200);
    assert_eq!(grants(&pools), before);
}

#[test]
fn a_newcomer_is_never_left_with_nothing() {
    let mut pools = Pools::new(64);
    let mut tenants = Vec::new();
    for id in 0..16 {
        assert!(tenants.len() < pools.tenants_max());
        pools.admit(&[newcomer(id, bounds(100, None, 64))]);
        assert!(pools.grant(id) >= 1, "{id}: {:?}", grants(&pools));
        tenants.push(Honest::new(id, ALL, 1000));
        for t in &mut tenants {
            // All of it, past the mark.
            t.used = t.used.max(pools.grant(t.id) * SLAB_BYTES);
            pools.read(t.id, t.reading());
        }
    }
    assert_eq!(tenants.len(), pools.tenants_max());
    rounds(&mut pools, &mut tenants, 60);
    assert!(grants(&pools).iter().all(|g| (3..=5).contains(g)));
}

#[test]
fn a_tenant_with_nowhere_to_write_keeps_its_part_and_no_more() {
    let mut pools = Pools::new(320);
    let pinned = Reading {
        used_bytes: 300 * SLAB_BYTES,
        spill_percent: 80,
        pinned_bytes: 300 * SLAB_BYTES,
        pages: 0,
    };
    pools.admit(&[newcomer(1, bounds(100, None, 1000))]);
    pools.read(1, pinned);
    pools.admit(&[newcomer(2, bounds(100, None, 1000))]);
    let mut other = [Honest::new(2, ALL, 1000)];
    for _ in 0..100 {
        pools.read(1, pinned);
        rounds(&mut pools, &mut other, 1);
    }
    assert_eq!(grants(&pools), [155, 155]);
    assert!(pools.is_overdue(1) && !pools.is_overdue(2));
}

#[test]
fn another_agent_goes_on_from_what_was_granted() {
    let mut pools = Pools::new(320);
    let had = |id, had, used: u64| Newcomer {
        had: Some(had),
        reading: Reading {
            used_bytes: used * SLAB_BYTES,
            spill_percent: 80,
            ..Reading::default()
        },
        ..newcomer(id, bounds(100, None, 1000))
    };
    pools.admit(&[had(1, 40, 40), had(2, 270, 270)]);
    assert_eq!(grants(&pools), [40, 270]);
    // An agent with a smaller pool divides it.
    let mut pools = Pools::new(160);
    pools.admit(&[had(1, 40, 40), had(2, 270, 270)]);
    assert_eq!(grants(&pools), [40, 115]);
}

/// Two tenants that want everything, after one of them was alone in using the pool; a round fills and demotes a twelfth
/// of the pool.
fn two(slabs: u64) -> (Pools, [Honest; 2]) {
    let mut pools = Pools::new(slabs);
    let mut tenants = [1, 2].map(|id| Honest {
        fills: slabs * SLAB_BYTES / 12,
        writes: slabs * SLAB_BYTES / 12,
        ..Honest::new(id, ALL, 0)
    });
    let newcomers = [1, 2].map(|id| newcomer(id, bounds(100, None, slabs)));
    pools.admit(&newcomers);
    tenants[0].pages = 1000;
    rounds(&mut pools, &mut tenants, 100);
    (pools, tenants)
}

#[test]
fn who_has_more_pages_come_in_pulls_more_strongly_and_not_without_bound() {
    for (pages, [first, second]) in [
        ([1000, 1000], [155, 155]),
        ([250, 1000], [119, 191]),
        ([100, 1_000_000], [103, 207]),
    ] {
        let mut pools = Pools::pulling(320);
        let mut tenants = [1, 2].map(|id| Honest::new(id, ALL, pages[id as usize - 1]));
        pools.admit(&[1, 2].map(|id| newcomer(id, bounds(100, None, 1000))));
        rounds(&mut pools, &mut tenants, 200);
        let now = grants(&pools);
        assert!(
            now[0].abs_diff(first) <= 1 && now[1].abs_diff(second) <= 1,
            "{now:?}"
        );
        // The others do not count the amount.
        let mut pools = Pools::new(320);
        pools.admit(&[1, 2].map(|id| newcomer(id, bounds(100, None, 1000))));
        rounds(&mut pools, &mut tenants, 200);
        assert_eq!(grants(&pools), [155, 155]);
    }
}

/// Page-ins in 200 s of a tenant whose set is 22 % of the pool, beside one whose set is twice the pool.
fn come_beside_a_greedy_one(mut pools: Pools, touches: u64) -> u64 {
    let slabs = pools.slabs();
    let mut tenants = [22, 200].map(|percent| Worker {
        set: slabs * percent / 100 * SLAB_PAGES,
        resident: 0,
        touches,
        came: 0,
    });
    pools.admit(&[0, 1].map(|id| newcomer(id, bounds(100, None, slabs))));
    let mut come = 0;
    for round in 0..1600 {
        for (t, id) in tenants.iter_mut().zip(0..) {
            t.live(pools.grant(id) * SLAB_PAGES);
            pools.read(id, t.reading());
        }
        pools.round();
        come += if round < 800 { 0 } else { tenants[0].came };
    }
    come
}

#[test]
fn a_set_that_is_all_in_memory_is_seldom_taken_for_idle_where_hits_are_not_seen() {
    for (slabs, touches, sets_max) in [
        (100, 4000, 3),
        (100, 45_000, 6),
        (350, 4000, 2),
        (350, 45_000, 2),
    ] {
        let come = come_beside_a_greedy_one(Pools::pulling(slabs), touches);
        let set = slabs * 22 / 100 * SLAB_PAGES;
        assert!(come < sets_max * set, "{come} of {set}");
        // Divided as pools are, it costs several times as much.
        let plain = come_beside_a_greedy_one(Pools::new(slabs), touches);
        assert!(plain > 3 * come, "{plain} and {come} of {set}");
    }
}

/// A possible event.
#[derive(Clone, Debug)]
enum Event {
    Arrive(Bounds, Option<u64>),
    Leave(usize),
    Change(usize, Bounds),
    Round,
}

fn any_bounds() -> impl Strategy<Value = Bounds> {
    (0u32..=1000, prop::option::of(0u64..30), 0u64..300).prop_map(|(w, f, c)| bounds(w, f, c))
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => (any_bounds(), prop::option::of(any::<u64>())).prop_map(|(b, h)| Event::Arrive(b, h)),
        1 => any::<usize>().prop_map(Event::Leave),
        1 => (any::<usize>(), any_bounds()).prop_map(|(i, b)| Event::Change(i, b)),
        6 => Just(Event::Round),
    ]
}

fn lie() -> impl Strategy<Value = Reading> {
    let bytes = || prop_oneof![any::<u64>(), 0u64..300 * SLAB_BYTES];
    (bytes(), any::<u64>(), bytes(), any::<u64>()).prop_map(|(used, percent, pinned, pages)| {
        Reading {
            used_bytes: used,
            spill_percent: percent,
            pinned_bytes: pinned,
            pages,
        }
    })
}

proptest! {
    /// Whatever is read and whoever comes and goes.
    #[test]
    fn promises_hold_at_every_moment(
        slabs in 128u64..400,
        pulls: bool,
        events in prop::collection::vec((event(), prop::collection::vec(lie(), 12)), 1..120),
    ) {
        let mut pools = if pulls { Pools::pulling(slabs) } else { Pools::new(slabs) };
        let mut next = 0;
        // Rounds since any floor could last change.
        let mut quiet = 0;
        for (event, lies) in events {
            let ids: Vec<u64> = pools.tenants.keys().copied().collect();
            for (id, lie) in ids.iter().zip(&lies) {
                pools.read(*id, *lie);
            }
            let before = pools.clone();
            let pick = |i: usize| ids.get(i % ids.len().max(1)).copied();
            quiet = if matches!(event, Event::Round) { quiet + 1 } else { 0 };
            match event {
                // Configured floors fit, as the agent ensures.
                Event::Arrive(b, had) if ids.len() < 3 => {
                    pools.admit(&[Newcomer { had, ..newcomer(next, b) }]);
                    prop_assert!(pools.grant(next) >= 1);
                    next += 1;
                }
                Event::Arrive(b, _) if ids.len() < 12 => {
                    pools.admit(&[newcomer(next, Bounds { floor: None, ..b })]);
                    prop_assert!(pools.grant(next) >= 1);
                    next += 1;
                }
                Event::Arrive(..) => {}
                Event::Leave(i) => pick(i).into_iter().for_each(|id| pools.remove(id)),
                Event::Change(i, b) => if let Some(id) = pick(i) {
                    pools.set_bounds(id, Bounds { floor: pools.tenants[&id].bounds.floor, ..b });
                },
                Event::Round => pools.round(),
            }
            let held: u64 = pools.tenants.values().map(|t| t.held).sum();
            prop_assert!(held <= slabs, "{held} of {slabs}");
            for (id, t) in &pools.tenants {
                prop_assert!(t.grant <= t.held && t.grant <= t.bounds.ceiling, "{t:?}");
                prop_assert!(t.grant >= t.floor.min(before.grant(*id)), "{t:?}");
                prop_assert!(quiet <= PATIENCE || t.grant >= t.floor, "{quiet} {t:?}");
            }
        }
    }

    /// A tenant that writes anything into its counters gets what its weight gives.
    #[test]
    fn a_liar_gets_its_part_at_most(
        weights in prop::array::uniform3(1u32..=300),
        pulls: bool,
        lies in prop::collection::vec(lie(), 300),
    ) {
        let mut pools = if pulls { Pools::pulling(600) } else { Pools::new(600) };
        // Where the amount counts, one of the tenants pulls with up to twice its weight, whichever it is.
        let twice = if pulls { 2 } else { 1 };
        // It was there first, and had everything.
        pools.admit(&[newcomer(0, bounds(weights[0], None, 1000))]);
        let mut honest: Vec<Honest> = (1..3).map(|id| Honest::new(id, ALL, 5000)).collect();
        for t in &honest {
            pools.admit(&[newcomer(t.id, bounds(weights[t.id as usize], None, 1000))]);
        }
        for (n, lie) in lies.into_iter().enumerate() {
            pools.read(0, lie);
            rounds(&mut pools, &mut honest, 1);
            if n < 200 {
                continue;
            }
            let sum: u64 = weights.iter().map(|w| u64::from(*w)).sum();
            let part = |id: u64, times: u64| {
                let weight = u64::from(weights[id as usize]);
                582 * times * weight / (sum - weight + times * weight)
            };
            let most = part(0, twice).max(pools.floor(0));
            // Whole slabs: less than one for each tenant cannot be divided.
            prop_assert!(pools.grant(0) <= most + 3, "{} > {most}", pools.grant(0));
            for t in &honest {
                // The others' floors may leave less than a share.
                let floors = 2 * pools.floor(0);
                let others = twice * sum - (twice - 1) * u64::from(weights[t.id as usize]);
                let least = 582 * u64::from(weights[t.id as usize]) / others;
                let least = least.min(582 - floors).saturating_sub(floors + 3).max(pools.floor(t.id));
                prop_assert!(pools.grant(t.id) >= least);
            }
        }
    }

    /// However hard the first has swapped: within two seconds most of its pool goes to the other, back and forth; a
    /// faint load is noticed in its third round instead of its second, and has one round more.
    #[test]
    fn loads_that_alternate_are_followed(
        slabs in 16u64..320,
        pages in prop::array::uniform2(prop_oneof![100u64..200, 100u64..1 << 20]),
        phases in prop::collection::vec(SHORT as usize..60, 1..8),
    ) {
        let (mut pools, mut tenants) = two(slabs);
        for (i, phase) in phases.into_iter().enumerate() {
            let used = (i + 1) % 2;
            tenants[used].pages = pages[used];
            tenants[1 - used].pages = 0;
            let seen_late = usize::from(pages[used] < 9 * BUSY_PAGES);
            rounds(&mut pools, &mut tenants, 2 * ROUNDS_IN_S + seen_late);
            let now = grants(&pools);
            prop_assert!(now[used] >= 2 * now[1 - used], "{now:?} to {used} in phase {i}");
            rounds(&mut pools, &mut tenants, phase);
            let now = grants(&pools);
            prop_assert_eq!(now[1 - used], pools.floor(1 + (1 - used) as u64), "{:?}", now);
        }
    }

    /// Too short pauses are waited out: pools come to rest.
    #[test]
    fn loads_with_short_pauses_keep_their_pools(
        slabs in 16u64..320,
        pauses in prop::array::uniform2(1usize..12),
        loads in prop::array::uniform2(1usize..40),
        pages in prop::array::uniform2(300u64..1 << 20),
    ) {
        let (mut pools, mut tenants) = two(slabs);
        let mut rest = Vec::new();
        for round in 0..1200 {
            for (i, t) in tenants.iter_mut().enumerate() {
                let pauses = round % (loads[i] + pauses[i]) >= loads[i];
                t.pages = if pauses { 0 } else { pages[i] };
            }
            rounds(&mut pools, &mut tenants, 1);
            match round {
                0..800 => rest = grants(&pools),
                _ => prop_assert_eq!(&grants(&pools), &rest, "round {}", round),
            }
        }
        prop_assert!(rest[0].abs_diff(rest[1]) <= 1, "{rest:?}");
    }

    /// Whatever it swaps and when: a tenant that is back soon is rarely taken for idle.
    #[test]
    fn pauses_are_seldom_mistaken(
        bursts in prop::collection::vec((1usize..30, 1usize..40, 0u64..3000), 1..100),
    ) {
        let mut pools = Pools::new(64);
        pools.admit(&[newcomer(1, bounds(100, None, 64))]);
        // Short pauses that were taken for idleness, and long ones.
        let (mut mistakes, mut longs) = (0, 0);
        let mut pause = None;
        for (load, quiet, pages) in bursts {
            for n in std::iter::repeat_n(pages, load).chain(std::iter::repeat_n(0, quiet)) {
                let before = pools.tenants[&1].clone();
                pools.read(1, Reading { pages: n, ..Reading::default() });
                pools.round();
                let now = &pools.tenants[&1];
                pause = match (before.busy, now.busy, pause) {
                    (true, false, _) => Some(now.quiet),
                    (false, true, Some(rounds)) => {
                        match rounds + 1 < SHORT {
                            true => mistakes += 1,
                            false => longs += 1,
                        }
                        None
                    }
                    (_, _, pause) => pause.map(|rounds| rounds + 1),
                };
                prop_assert!(mistakes <= 3 + longs, "{mistakes} and {longs}: {now:?}");
                prop_assert!((QUIET..=SHORT).contains(&now.quiet_max));
            }
        }
    }

    /// Two tenants go through working sets at random, equally often, which do not fit together: each has most of what
    /// it needs or of its share most of the time, also when its set is resident and so no page comes in; and the one
    /// that lacks more has more.
    #[test]
    fn working_sets_are_not_taken_for_idle_memory(
        slabs in 64u64..600,
        percents in prop::array::uniform2(20u64..300),
        touches in 2000u64..50_000,
    ) {
        prop_assume!(percents[0] + percents[1] > 110);
        let mut pools = Pools::pulling(slabs);
        let mut tenants = [0, 1].map(|id| Worker {
            set: slabs * percents[id as usize] / 100 * SLAB_PAGES,
            resident: 0,
            touches,
            came: 0,
        });
        pools.admit(&[0, 1].map(|id| newcomer(id, bounds(100, None, 2 * slabs))));
        let mut sums = [0, 0];
        for round in 0..1600 {
            for (t, id) in tenants.iter_mut().zip(0..) {
                t.live(pools.grant(id) * SLAB_PAGES);
                pools.read(id, t.reading());
            }
            pools.round();
            if round >= 800 {
                for (sum, t) in sums.iter_mut().zip(&tenants) {
                    *sum += t.resident / SLAB_PAGES;
                }
            }
        }
        let means = sums.map(|sum| sum / 800);
        for (mean, t) in means.iter().zip(&tenants) {
            // The other one may pull with twice the weight, and a grant is not kept full.
            let part = (slabs * 31 / 32 / 3 * 15 / 16).min(t.set / SLAB_PAGES);
            prop_assert!(*mean + 3 >= part * 7 / 8, "{means:?} of {slabs}, {tenants:?}");
        }
        let (less, more) = if tenants[0].set <= tenants[1].set { (0, 1) } else { (1, 0) };
        prop_assert!(means[more] + slabs / 16 + 2 >= means[less], "{means:?} of {slabs}, {tenants:?}");
    }

    /// With tenants that behave constantly grants come to rest, and equal tenants have equal grants.
    #[test]
    fn it_comes_to_rest(
        slabs in 64u64..2000,
        pulls: bool,
        kinds in prop::collection::vec((0usize..3, 0usize..2, 0usize..2), 1..9),
        order: bool,
    ) {
        let mut pools = if pulls { Pools::pulling(slabs) } else { Pools::new(slabs) };
        let mut tenants: Vec<Honest> = kinds
            .iter()
            .zip(0..)
            .map(|((want, pages, _), id)| {
                let wants = [ALL, slabs * SLAB_BYTES / 10, 0][*want];
                Honest::new(id, wants, [5000, 0][*pages])
            })
            .collect();
        let newcomers: Vec<Newcomer> = kinds
            .iter()
            .zip(0..)
            .map(|((_, _, w), id)| newcomer(id, bounds([100, 300][*w], None, slabs)))
            .collect();
        if order {
            pools.admit(&newcomers);
        } else {
            for new in newcomers.iter().rev() {
                pools.admit(&[*new]);
                rounds(&mut pools, &mut tenants, 3);
            }
        }
        rounds(&mut pools, &mut tenants, 400);
        let rest = grants(&pools);
        for _ in 0..50 {
            rounds(&mut pools, &mut tenants, 1);
            prop_assert_eq!(grants(&pools), rest.clone());
        }
        for (a, b) in (0..kinds.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
            // Equal, and wanting all that they can get.
            if kinds[a] == kinds[b] && (kinds[a].0, kinds[a].1) == (0, 0) {
                prop_assert!(rest[a].abs_diff(rest[b]) <= 1, "{rest:?} {kinds:?}");
            }
        }
    }
}
