//! Properties that hold for any load: shares, starvation, limits, idle time, promotion.

use canvas_sched::{
    AHEAD_NS_MAX, ALONE_NS, BURST_BYTES_MIN, CREDIT_BYTES, CREDIT_NS, Class, DEBT_BYTES, Decision,
    Escalation, LinkConfig, LinkId, PIECE_BYTES_MAX, PIECE_BYTES_MIN, REQUEST_BYTES_MAX,
    REQUESTS_MAX, Refused, Request, Scheduler, TenantConfig, TenantError, TenantId, Ticket,
    burst_bytes,
};
use proptest::prelude::*;

/// One request under way at a time: the link of the fluid model.
const ONE: LinkConfig = LinkConfig {
    window_bytes_min: 1,
    window_bytes_max: 1,
    round_trip_ns_min: 0,
    piece_bytes: (PIECE_BYTES_MIN, PIECE_BYTES_MAX),
};

fn with(weights: &[u32], link: LinkConfig) -> (Scheduler, LinkId) {
    let mut s = Scheduler::new();
    let id = s.add_link(link).unwrap();
    for (t, weight) in weights.iter().enumerate() {
        let config = TenantConfig {
            weight: *weight,
            ..TenantConfig::default()
        };
        s.add_tenant(TenantId(t as u64), config).unwrap();
    }
    (s, id)
}

fn sent(d: Option<Decision>) -> Option<Request> {
    match d {
        Some(Decision::Send(r)) => Some(r),
        Some(Decision::Drop(r)) => panic!("dropped {r:?}"),
        None => None,
    }
}

/// Sends one and ends it; returns the tenant and its bytes.
fn step(s: &mut Scheduler, now: u64) -> Request {
    let r = sent(s.next(now)).expect("somebody waits");
    assert!(s.done(r.ticket, now));
    r
}

/// As above, and the request takes this long.
fn step_in(s: &mut Scheduler, now: &mut u64, ns: u64) -> Request {
    let r = sent(s.next(*now)).expect("somebody waits");
    *now += ns;
    assert!(s.done(r.ticket, *now));
    r
}

/// Sizes and classes of a tenant's requests, in turn.
type Load = Vec<(u8, u32)>;

fn load() -> impl Strategy<Value = (u32, Load)> {
    let request = (
        0..3u8,
        prop_oneof![Just(4096u32), Just(32 << 10), 1..=REQUEST_BYTES_MAX],
    );
    (1..=1000u32, prop::collection::vec(request, 1..8))
}

/// Keeps every tenant backlogged: `refill` submits until each class of the load is there.
struct Backlog {
    loads: Vec<Load>,
    given: Vec<usize>,
    waiting: Vec<usize>,
}

impl Backlog {
    fn new(loads: Vec<Load>) -> Backlog {
        let n = loads.len();
        Backlog {
            loads,
            given: vec![0; n],
            waiting: vec![0; n],
        }
    }

    fn refill(&mut self, s: &mut Scheduler, link: LinkId, now: u64) {
        for (t, load) in self.loads.iter().enumerate() {
            while self.waiting[t] < 8 {
                let (class, bytes) = load[self.given[t] % load.len()];
                let class = Class::ALL[class as usize];
                s.submit(TenantId(t as u64), class, link, bytes, 0, now)
                    .unwrap();
                self.given[t] += 1;
                self.waiting[t] += 1;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// All backlogged from the start, largest request L, share s: at any time the service of each is at most L ahead of
    /// the fluid model, and at most s * (n - 1) * L behind it.
    #[test]
    fn near_the_fluid_model(tenants in prop::collection::vec(load(), 1..12), steps in 50..400usize) {
        let (weights, loads): (Vec<u32>, Vec<Load>) = tenants.into_iter().unzip();
        let (mut s, link) = with(&weights, ONE);
        let largest = loads.iter().flatten().map(|(_, b)| *b).max().unwrap() as f64;
        let all: u32 = weights.iter().sum();
        let mut backlog = Backlog::new(loads);
        let mut service = vec![0.0; weights.len()];
        for _ in 0..steps {
            backlog.refill(&mut s, link, 0);
            let r = step(&mut s, 0);
            let t = r.tenant.0 as usize;
            backlog.waiting[t] -= 1;
            service[t] += f64::from(r.bytes);
            let total: f64 = service.iter().sum();
            for (got, weight) in service.iter().zip(&weights) {
                let share = f64::from(*weight) / f64::from(all);
                let ahead = got - total * share;
                let others = (weights.len() - 1) as f64;
                prop_assert!(ahead <= largest + 1.0, "{ahead} ahead");
                prop_assert!(-ahead <= share * others * largest + 1.0, "{} behind", -ahead);
            }
        }
        s.check();
    }

    /// However late they are and whatever uses were recorded: with the rule off every prefetch is sent, and with it on
    /// again waiting ones are judged.
    #[test]
    fn without_the_rule_nothing_is_dropped(
        prefetches in prop::collection::vec((1..=REQUEST_BYTES_MAX, 0..50_000_000u64), 1..200),
        demands in 0..50usize,
        uses_ns in prop::collection::vec(1..1_000_000u64, 64..200),
        took_ns in 1..5_000_000u64,
    ) {
        let (mut s, link) = with(&[100], ONE);
        let t = TenantId(0);
        s.set_timeliness(false);
        s.submit(t, Class::Demand, link, 4096, 0, 0).unwrap();
        let first = sent(s.next(0)).unwrap();
        s.done(first.ticket, took_ns);
        for ns in uses_ns {
            s.used_after(t, ns, 1);
        }
        let mut now = 100_000_000;
        for (bytes, waited_ns) in &prefetches {
            s.submit(t, Class::Prefetch, link, *bytes, 1, now - waited_ns).unwrap();
        }
        for _ in 0..demands {
            s.submit(t, Class::Demand, link, 4096, 0, now).unwrap();
        }
        let mut ahead = 0;
        while let Some(r) = sent(s.next(now)) {
            ahead += r.tag as usize;
            now += took_ns;
            s.done(r.ticket, now);
        }
        prop_assert_eq!(ahead, prefetches.len());
        let threshold = s.stats(t).unwrap().timeliness_ns;
        prop_assert!(threshold.is_some(), "uses are learned from all the same");
        // However slow the link appears.
        now += 1_000_000_000_000;
        s.submit(t, Class::Prefetch, link, 4096, 1, 0).unwrap();
        s.set_timeliness(true);
        let last = s.next(now);
        prop_assert!(matches!(last, Some(Decision::Drop(_))), "{last:?}");
        s.check();
    }

    /// A tenant that comes back after any idle time, or comes late, is little more ahead than one that was there.
    #[test]
    fn idle_time_is_hardly_any_credit(
        alone in 1..200usize,
        weight in 1..=1000u32,
        other in 1..=1000u32,
        took_ns in 1_000..2_000_000u64,
    ) {
        let mut now = 0;
        let (mut s, link) = with(&[weight, other], ONE);
        let mut backlog = Backlog::new(vec![vec![(0, 4096)], vec![]]);
        let submit = |s: &mut Scheduler| s.submit(TenantId(1), Class::Demand, link, 4096, 0, 0).unwrap();
        submit(&mut s);
        step_in(&mut s, &mut now, took_ns);
        backlog.waiting[1] = 8;
        for _ in 0..alone {
            backlog.refill(&mut s, link, now);
            backlog.waiting[0] -= 1;
            prop_assert_eq!(step_in(&mut s, &mut now, took_ns).tenant.0, 0);
        }
        let rate = s.link_stats(link).unwrap().rate_bytes_s as f64;
        let share = rate * CREDIT_NS as f64 / 1e9 / f64::from(weight + other);
        let credit = share.max(CREDIT_BYTES as f64 / f64::from(other));
        (0..REQUESTS_MAX).for_each(|_| { submit(&mut s); });
        let mut service = [0.0; 2];
        for _ in 0..REQUESTS_MAX {
            backlog.refill(&mut s, link, now);
            let t = step_in(&mut s, &mut now, took_ns).tenant.0 as usize;
            service[t] += 4096.0;
            if t == 0 {
                backlog.waiting[0] -= 1;
            }
            let (a, b) = (service[0] / f64::from(weight), service[1] / f64::from(other));
            let packets = 4096.0 / f64::from(weight) + 4096.0 / f64::from(other);
            prop_assert!(a - b <= packets + 1e-3, "{a} {b}");
            prop_assert!(b - a <= packets + credit + 1e-3, "{a} {b}");
        }
    }

    /// In no interval more than rate and burst, whatever is submitted and when; and the limited tenant gets its rate.
    #[test]
    fn limits_are_hard(
        rate in 1_000_000..2_000_000_000u64,
        load in prop::collection::vec((0..3u8, 1..=REQUEST_BYTES_MAX, 0..200_000u64), 20..150),
    ) {
        let (mut s, link) = with(&[100], LinkConfig {
            window_bytes_min: 1 << 40,
            window_bytes_max: 1 << 40,
            ..LinkConfig::default()
        });
        let limit = |rate| TenantConfig { swap_in_limit: Some(rate), swap_out_limit: Some(rate / 2), ..Default::default() };
        s.set_tenant(TenantId(0), limit(rate), 0).unwrap();
        let mut sends: [Vec<(u64, u64)>; 2] = Default::default();
        let mut now = 0;
        let mut drain = |s: &mut Scheduler, now: u64| {
            while let Some(r) = sent(s.next(now)) {
                sends[(r.class == Class::SwapOut) as usize].push((now, u64::from(r.bytes)));
            }
        };
        for (class, bytes, gap) in load {
            s.submit(TenantId(0), Class::ALL[class as usize], link, bytes, 0, now).unwrap();
            drain(&mut s, now);
            now += gap;
        }
        drain(&mut s, now);
        while let Some(due) = s.next_due() {
            prop_assert!(due > now);
            now = due;
            drain(&mut s, now);
        }
        for (sends, rate) in sends.iter().zip([rate, rate / 2]) {
            for from in 0..sends.len() {
                let mut sum = 0;
                for (at, bytes) in &sends[from..] {
                    sum += bytes;
                    let time = u128::from(at - sends[from].0);
                    let most = u128::from(rate) * time / 1_000_000_000 + u128::from(burst_bytes(rate));
                    prop_assert!(u128::from(sum) <= most + 1, "{sum} of {most}");
                }
            }
        }
        let left = s.stats(TenantId(0)).unwrap().classes.iter().map(|c| c.queued).sum::<u32>();
        prop_assert_eq!(left, 0);
    }

    /// Every tenant's turn comes, and within it that of its demands and writes, however much the others and its own
    /// other classes have.
    #[test]
    fn nobody_starves(weights in prop::collection::vec(1..=1000u32, 2..10), slow in 0..10usize) {
        let slow = slow % weights.len();
        let (mut s, link) = with(&weights, ONE);
        let mut loads: Vec<Load> = vec![vec![(0, 32 << 10), (1, 32 << 10)]; weights.len()];
        loads[slow] = vec![(0, 4096), (0, 4096), (2, 32 << 10)];
        let mut backlog = Backlog::new(loads);
        let all: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        // A write's bytes at the tenant's share, with its demands before it, and a request of each other tenant.
        let own = (16 + 1) * (32u64 << 10) * all / u64::from(weights[slow]);
        let most = own + weights.len() as u64 * (32 << 10) * 2;
        let mut since = 0;
        let mut writes = 0;
        while writes < 3 {
            backlog.refill(&mut s, link, 0);
            let r = step(&mut s, 0);
            backlog.waiting[r.tenant.0 as usize] -= 1;
            since += u64::from(r.bytes);
            if r.class == Class::SwapOut {
                writes += 1;
                since = 0;
            }
            prop_assert!(since <= most, "{since} bytes without a write");
        }
    }
}

#[test]
fn a_newcomer_goes_next() {
    let (mut s, link) = with(&[1000, 1], ONE);
    for _ in 0..50 {
        s.submit(TenantId(0), Class::Demand, link, 32 << 10, 0, 0)
            .unwrap();
    }
    for _ in 0..20 {
        step(&mut s, 0);
    }
    s.submit(TenantId(1), Class::Prefetch, link, 32 << 10, 0, 0)
        .unwrap();
    assert_eq!(step(&mut s, 0).tenant, TenantId(1));
}

#[test]
fn demand_goes_before_prefetch_and_seldom_waits_for_a_write() {
    let (mut s, link) = with(&[100], ONE);
    let t = TenantId(0);
    for class in [Class::Prefetch, Class::SwapOut, Class::Demand] {
        for _ in 0..200 {
            let bytes = if class == Class::Demand {
                4096
            } else {
                32 << 10
            };
            s.submit(t, class, link, bytes, 0, 0).unwrap();
        }
    }
    let order: Vec<Class> = (0..600).map(|_| step(&mut s, 0).class).collect();
    let first = &order[..200];
    assert_eq!(first.iter().filter(|c| **c == Class::Prefetch).count(), 0);
    // Pressed: 32 KiB of writes for 4 x 32 KiB of demands.
    let writes = first.iter().filter(|c| **c == Class::SwapOut).count();
    assert!((5..=6).contains(&writes), "{writes}");
    assert!(!first.windows(2).any(|w| w == [Class::SwapOut; 2]));
    // Then writes and prefetches by bytes in turn.
    let rest = &order[220..400];
    let writes = rest.iter().filter(|c| **c == Class::SwapOut).count();
    assert!(writes.abs_diff(90) <= 1, "{writes}");
}

#[test]
fn a_limited_tenant_blocks_nobody_and_owes_nothing() {
    let (mut s, link) = with(&[100, 100], ONE);
    // 8 MB/s: the credit of a tenant that comes back is the least.
    let mut now = 0;
    let mut next = |s: &mut Scheduler| step_in(s, &mut now, 4_000_000);
    let limited = TenantConfig {
        swap_in_limit: Some(1_000),
        ..TenantConfig::default()
    };
    s.set_tenant(TenantId(0), limited, 0).unwrap();
    for t in 0..2 {
        for _ in 0..200 {
            s.submit(TenantId(t), Class::Demand, link, 32 << 10, 0, 0)
                .unwrap();
        }
    }
    let served: Vec<u64> = (0..100).map(|_| next(&mut s).tenant.0).collect();
    let burst = BURST_BYTES_MIN as usize / (32 << 10);
    assert_eq!(
        served.iter().filter(|t| **t == 0).count(),
        burst,
        "the burst"
    );
    // Its writes are not held back by its reads' limit.
    s.submit(TenantId(0), Class::SwapOut, link, 4096, 0, 0)
        .unwrap();
    assert_eq!(next(&mut s).class, Class::SwapOut);
    s.set_tenant(TenantId(0), TenantConfig::default(), 1 << 30)
        .unwrap();
    let served: Vec<u64> = (0..100).map(|_| next(&mut s).tenant.0).collect();
    let mine = served.iter().filter(|t| **t == 0).count();
    let credit = CREDIT_BYTES as usize / (32 << 10) / 2;
    assert!(
        (49..=51 + credit).contains(&mine),
        "half of it again: {mine}"
    );
    s.check();
}

#[test]
fn a_late_prefetch_is_dropped_when_the_rule_is_on() {
    for on in [false, true] {
        let (mut s, link) = with(&[100], ONE);
        let t = TenantId(0);
        s.set_timeliness(on);
        // One round trip of 100 us is known.
        s.submit(t, Class::Demand, link, 4096, 0, 0).unwrap();
        let first = sent(s.next(0)).unwrap();
        s.done(first.ticket, 100_000);
        let prefetch = |s: &mut Scheduler, tag, posted| {
            s.submit(t, Class::Prefetch, link, 4096, tag, posted)
                .unwrap()
        };
        s.used_after(t, 300_000, 63);
        prefetch(&mut s, 1, 0);
        assert!(
            sent(s.next(10_000_000)).is_some_and(|r| s.done(r.ticket, 10_100_000)),
            "too few uses"
        );
        s.used_after(t, 300_000, 1000);
        let now = 20_000_000;
        let late = prefetch(&mut s, 2, now - 250_000);
        prefetch(&mut s, 3, now - 150_000);
        let got = s.next(now);
        if on {
            assert!(
                matches!(got, Some(Decision::Drop(r)) if r.tag == 2),
                "{got:?}"
            );
            assert_eq!(s.escalate(late, now), Escalation::Gone);
            assert!(!s.done(late, now), "a late answer changes nothing");
            assert_eq!(sent(s.next(now)).unwrap().tag, 3);
        } else {
            assert_eq!(sent(got).unwrap().tag, 2);
        }
        s.check();
    }
}

#[test]
fn what_a_tenant_has_ahead_is_bounded_by_its_share_of_the_link() {
    let (mut s, link) = with(&[100, 300], ONE);
    let t = TenantId(0);
    let far = |s: &Scheduler, ahead| s.is_too_far_ahead(t, link, 4096, ahead);
    assert!(!far(&s, u64::MAX / 2), "nothing is known of the link");
    // 4 KiB in 100 us, all of which counts as the round trip.
    for i in 0..100 {
        s.submit(t, Class::Demand, link, 4096, 0, 0).unwrap();
        let r = sent(s.next(i * 100_000)).unwrap();
        s.done(r.ticket, (i + 1) * 100_000);
    }
    let rate = s.link_stats(link).unwrap().rate_bytes_s;
    let round_trips_ns = 2 * s.arrival_ns(link, 0);
    let most = rate * (AHEAD_NS_MAX + round_trips_ns) / 1_000_000_000;
    assert!(!far(&s, most - 4096 - 10) && far(&s, most), "{most} alone");
    assert!(!s.is_too_far_ahead(t, link, 1 << 20, 0), "the first one");
    s.submit(TenantId(1), Class::Demand, link, 4096, 0, 0)
        .unwrap();
    s.submit(t, Class::Demand, link, 4096, 0, 0).unwrap();
    assert!(
        !far(&s, most / 4 - 4096 - 10) && far(&s, most / 4),
        "a quarter of it beside a heavier one"
    );
    s.set_timeliness(false);
    assert!(!far(&s, u64::MAX / 2), "without the rule");
    assert!(
        !s.is_too_far_ahead(TenantId(9), link, 4096, u64::MAX / 2),
        "of nobody"
    );
}

#[test]
fn demands_ahead_count_for_the_arrival_and_drops_do_not_hold_them_up() {
    let (mut s, link) = with(&[100], ONE);
    let t = TenantId(0);
    s.submit(t, Class::Demand, link, 4096, 0, 0).unwrap();
    let first = sent(s.next(0)).unwrap();
    s.done(first.ticket, 100_000);
    s.used_after(t, 300_000, 1000);
    let now = 1_000_000;
    for tag in 0..3 {
        s.submit(t, Class::Prefetch, link, 4096, tag, now).unwrap();
    }
    for tag in 10..20 {
        s.submit(t, Class::Demand, link, 4096, tag, now).unwrap();
    }
    // Ten demands of 100 us each go first: 300 us are over by then.
    assert!(matches!(s.next(now), Some(Decision::Drop(r)) if r.tag == 0));
    let second = sent(s.next(now)).unwrap();
    assert_eq!(second.tag, 10);
    s.done(second.ticket, now + 100_000);
    assert!(matches!(s.next(now + 100_000), Some(Decision::Drop(r)) if r.tag == 1));
}

#[test]
fn escalated_once_and_counted() {
    let (mut s, link) = with(&[100], ONE);
    let t = TenantId(0);
    let ahead: Vec<Ticket> = (0..5)
        .map(|tag| {
            s.submit(t, Class::Prefetch, link, 32 << 10, tag, 0)
                .unwrap()
        })
        .collect();
    assert_eq!(s.escalate(ahead[3], 0), Escalation::Moved);
    assert_eq!(s.escalate(ahead[3], 0), Escalation::Already);
    let r = sent(s.next(7_000)).unwrap();
    assert_eq!((r.tag, r.class), (3, Class::Demand));
    assert_eq!(s.escalate(ahead[3], 0), Escalation::UnderWay);
    assert!(s.done(ahead[3], 8_000) && !s.done(ahead[3], 8_000));
    assert_eq!((s.escalate(ahead[3], 0), s.strays()), (Escalation::Gone, 1));
    let stats = s.stats(t).unwrap();
    let [demand, prefetch, _] = &stats.classes;
    assert_eq!(
        (prefetch.submitted, prefetch.promoted, prefetch.queued),
        (5, 1, 4)
    );
    assert_eq!(
        (demand.submitted, demand.promoted, demand.sent, demand.done),
        (0, 1, 1, 1)
    );
    assert_eq!(
        (demand.bytes, demand.waited_ns, demand.waits.total()),
        (32 << 10, 7_000, 1)
    );
    s.check();
}

#[test]
fn a_tenant_that_left_and_came_back_is_another_one() {
    let (mut s, link) = with(&[100], LinkConfig::default());
    let t = TenantId(0);
    let old: Vec<Ticket> = (0..40)
        .map(|tag| s.submit(t, Class::Demand, link, 32 << 10, tag, 0).unwrap())
        .collect();
    let mut under_way = 0;
    while sent(s.next(0)).is_some() {
        under_way += 1;
    }
    assert!(s.link_stats(link).unwrap().under_way_bytes > 0);
    let gone = s.remove_tenant(t).unwrap();
    assert_eq!(gone.len() + under_way, old.len());
    assert!(s.remove_tenant(t).is_none() && s.stats(t).is_none());
    s.add_tenant(t, TenantConfig::default()).unwrap();
    s.check();
    let new = s.submit(t, Class::Demand, link, 4096, 99, 0).unwrap();
    // Nobody is left who would report its end.
    assert_eq!(s.link_stats(link).unwrap().under_way_bytes, 0);
    for ticket in old {
        assert!(!s.done(ticket, 2000));
        assert_eq!(s.escalate(ticket, 0), Escalation::Gone);
    }
    assert_eq!(s.escalate(new, 0), Escalation::Already);
    assert_eq!(s.stats(t).unwrap().classes[0].sent, 0);
    s.check();
}

#[test]
fn what_is_refused() {
    let (mut s, link) = with(&[100], LinkConfig::default());
    let t = TenantId(0);
    let mut other = Scheduler::new();
    let mut far = other.add_link(LinkConfig::default()).unwrap();
    for _ in 0..3 {
        far = other.add_link(LinkConfig::default()).unwrap();
    }
    assert_eq!(
        s.submit(t, Class::Demand, far, 1, 0, 0),
        Err(Refused::NoLink)
    );
    assert_eq!(
        s.submit(TenantId(9), Class::Demand, link, 1, 0, 0),
        Err(Refused::NoTenant)
    );
    let large = REQUEST_BYTES_MAX + 1;
    assert_eq!(
        s.submit(t, Class::Demand, link, large, 0, 0),
        Err(Refused::TooLarge)
    );
    for _ in 0..REQUESTS_MAX {
        s.submit(t, Class::SwapOut, link, 4096, 0, 0).unwrap();
    }
    assert_eq!(
        s.submit(t, Class::SwapOut, link, 4096, 0, 0),
        Err(Refused::Full)
    );
    s.submit(t, Class::Demand, link, 4096, 0, 0)
        .expect("the other classes have room");
    let heavy = TenantConfig {
        weight: 1001,
        ..TenantConfig::default()
    };
    assert_eq!(s.add_tenant(TenantId(1), heavy), Err(TenantError::Weight));
    assert_eq!(
        s.add_tenant(t, TenantConfig::default()),
        Err(TenantError::Exists)
    );
    assert_eq!(
        s.set_tenant(TenantId(1), TenantConfig::default(), 0),
        Err(TenantError::Unknown)
    );
    s.check();
}

#[test]
fn an_escalated_prefetch_is_none_in_the_turns_with_writes() {
    let (mut s, link) = with(&[100], ONE);
    let t = TenantId(0);
    let submit = |s: &mut Scheduler, class| s.submit(t, class, link, 32 << 10, 0, 0).unwrap();
    submit(&mut s, Class::Prefetch);
    let second = submit(&mut s, Class::Prefetch);
    (0..3).for_each(|_| {
        submit(&mut s, Class::SwapOut);
    });
    assert_eq!(step(&mut s, 0).class, Class::Prefetch);
    assert_eq!(s.escalate(second, 0), Escalation::Moved);
    // No prefetch waits any more: the next one begins without a debt.
    submit(&mut s, Class::Prefetch);
    let order: Vec<Class> = (0..3).map(|_| step(&mut s, 0).class).collect();
    assert_eq!(order, [Class::Demand, Class::Prefetch, Class::SwapOut]);
}

/// Two tenants of one weight on a link of 32 MB/s, which has just moved something of the second one's; `charged` bytes
/// of the first one went over it without a request. Both have much waiting, the second one once its current requests
/// are done.
fn owing(charged: u64) -> (Scheduler, LinkId, u64) {
    let (mut s, link) = with(&[100, 100], ONE);
    let mut now = 0;
    extents(&mut s, link, 1, 1);
    step_in(&mut s, &mut now, 1_000_000);
    extents(&mut s, link, 0, 200);
    extents(&mut s, link, 1, 1);
    s.charge(TenantId(0), link, charged);
    assert_eq!(step_in(&mut s, &mut now, 1_000_000).tenant.0, 1);
    (s, link, now)
}

const EXTENT: u32 = 32 << 10;

fn extents(s: &mut Scheduler, link: LinkId, tenant: u64, n: usize) {
    for _ in 0..n {
        s.submit(TenantId(tenant), Class::Demand, link, EXTENT, 0, 0)
            .unwrap();
    }
}

/// Requests of the second tenant that go before the first one's turn.
fn before_the_first(s: &mut Scheduler, mut now: u64) -> usize {
    let mut n = 0;
    while step_in(s, &mut now, 1_000_000).tenant.0 == 1 {
        n += 1;
    }
    n
}

/// Other tenants want nothing for moments in which they do: bytes that a tenant moved directly are not forgotten in one
/// of them.
#[test]
fn what_was_moved_by_itself_is_owed_though_nobody_waits_for_a_moment() {
    let (mut s, link, mut now) = owing(DEBT_BYTES);
    // Now it is served, because nobody else waits.
    for _ in 0..20 {
        assert_eq!(step_in(&mut s, &mut now, 1_000_000).tenant.0, 0);
    }
    extents(&mut s, link, 1, 200);
    // It also owes what it was served in these moments.
    let owed = (DEBT_BYTES / u64::from(EXTENT)) as usize + 20;
    let waits = before_the_first(&mut s, now);
    assert!(waits.abs_diff(owed) <= 2, "{waits} instead of {owed}");
    s.check();
}

/// And no more than the credit of the others.
#[test]
fn what_a_tenant_owes_is_bounded() {
    let (mut s, link, mut now) = owing(1 << 30);
    assert_eq!(step_in(&mut s, &mut now, 1_000_000).tenant.0, 0);
    let rate = s.link_stats(link).unwrap().rate_bytes_s;
    // The other one has that as credit, and the first one owes it.
    let ns = 2 * CREDIT_NS;
    let most = (u128::from(rate / 2) * u128::from(ns) / 1_000_000_000) as usize;
    let mut waits = 0;
    for _ in 0..4 {
        extents(&mut s, link, 1, 200);
        for _ in 0..200 {
            let r = step_in(&mut s, &mut now, 1_000_000);
            if r.tenant.0 == 0 {
                let owed = most / EXTENT as usize;
                assert!(
                    waits > 0 && usize::abs_diff(waits, owed) <= 2,
                    "{waits} instead of {owed}"
                );
                return;
            }
            waits += 1;
        }
    }
    panic!("{waits} waits, and no turn");
}

/// Where nobody else wants the link for longer than moments, nothing is owed afterwards.
#[test]
fn who_was_alone_for_long_owes_nothing() {
    let (mut s, link, mut now) = owing(2 * DEBT_BYTES);
    for _ in 0..=ALONE_NS / 1_000_000 {
        assert_eq!(step_in(&mut s, &mut now, 1_000_000).tenant.0, 0);
    }
    extents(&mut s, link, 1, 200);
    let rate = s.link_stats(link).unwrap().rate_bytes_s;
    let credit = (rate / 2 * (CREDIT_NS / 1_000_000) / 1_000).max(CREDIT_BYTES);
    let waits = before_the_first(&mut s, now);
    let most = credit as usize / EXTENT as usize + 2;
    assert!(
        waits <= most,
        "{waits}: more than who comes back may have, {most}"
    );
    s.check();
}

/// A tenant may prefetch what its share brings soon, plus its credit, which is served at once. Otherwise a stream that
/// could not submit for a while would lose what it missed, as it would never have enough waiting.
#[test]
fn who_is_behind_may_have_more_ahead() {
    let (mut s, link) = with(&[100, 100], ONE);
    let mut now = 0;
    let t = TenantId(0);
    let ahead_max = |s: &Scheduler| {
        let far = |pages: &u64| s.is_too_far_ahead(t, link, 4096, pages * 4096);
        (1..4096).find(far).unwrap() * 4096
    };
    for _ in 0..50 {
        extents(&mut s, link, 0, 1);
        extents(&mut s, link, 1, 1);
        (0..2).for_each(|_| {
            step_in(&mut s, &mut now, 1_000_000);
        });
    }
    let even = ahead_max(&s);
    // It submits nothing meanwhile.
    extents(&mut s, link, 1, 4);
    (0..4).for_each(|_| {
        step_in(&mut s, &mut now, 1_000_000);
    });
    let behind = ahead_max(&s);
    let limited = TenantConfig {
        swap_in_limit: Some(1 << 20),
        ..TenantConfig::default()
    };
    s.set_tenant(t, limited, now).unwrap();
    assert_eq!(ahead_max(&s), even, "behind by its own limit");
    s.set_tenant(t, TenantConfig::default(), now).unwrap();
    // The clock of a link is the start of the request that it moves.
    let missed = 3 * u64::from(EXTENT);
    assert!(
        behind.abs_diff(even + missed) <= 8192,
        "{even}, then {behind}"
    );
    // After a long time it is bounded by the credit.
    extents(&mut s, link, 1, 200);
    (0..200).for_each(|_| {
        step_in(&mut s, &mut now, 1_000_000);
    });
    let rate = s.link_stats(link).unwrap().rate_bytes_s;
    let credit = (rate * (CREDIT_NS / 1_000_000) / 1_000).max(CREDIT_BYTES);
    let long = ahead_max(&s);
    assert!(
        long <= even + credit + u64::from(EXTENT),
        "{even}, then {long}"
    );
}
