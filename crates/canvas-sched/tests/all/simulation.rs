//! Tenants in simulated time on links that are queues of their own: the purpose of the scheduler, in figures, which are
//! printed (`--nocapture`). Seeded: `CANVAS_SIM_SEED` chooses another run.

use crate::world::{Load, Pipe, World};
use canvas_sched::{Class, LinkConfig, TenantConfig, TenantId, wmmr};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// 200 Mbit/s, as the experiments cap it, and 10 Gbit/s; both 100 us away.
const SLOW: Pipe = Pipe {
    bytes_s: 25_000_000,
    base_ns: 100_000,
};
const FAST: Pipe = Pipe {
    bytes_s: 1_250_000_000,
    base_ns: 100_000,
};
const PAGE: u32 = 4096;
const EXTENT: u32 = 32 << 10;

fn seed() -> u64 {
    let given = std::env::var("CANVAS_SIM_SEED").ok();
    let seed = given.map_or(1, |s| s.parse().expect("CANVAS_SIM_SEED is a number"));
    println!("seed {seed}");
    seed
}

fn weighted(weight: u32) -> TenantConfig {
    TenantConfig {
        weight,
        ..TenantConfig::default()
    }
}

fn load(class: Class, bytes: u32, outstanding: u32, think_ns: u64) -> Load {
    Load {
        class,
        bytes,
        outstanding,
        think_ns,
        link: 0,
    }
}

#[test]
fn a_capped_link_is_shared_by_weight_and_used() {
    let seed = seed();
    let weights = [100, 200, 400, 800];
    let mut world = World::new(seed, &[SLOW]);
    for (t, weight) in weights.iter().enumerate() {
        // Mixes differ, so that no tenant's share comes from its own sizes.
        let demands = [16, 2, 8, 4][t];
        world.tenant(
            t as u64,
            weighted(*weight),
            &[
                load(Class::Demand, PAGE, demands, 200_000),
                load(Class::Prefetch, EXTENT, 8, 0),
                load(Class::SwapOut, EXTENT, 8, 0),
            ],
        );
    }
    world.run(SECOND);
    world.reset();
    world.run(20 * SECOND);
    let rates: Vec<(f64, u32)> = (0..4)
        .map(|t| (world.bytes(t) as f64, weights[t as usize]))
        .collect();
    let used = world.link_use(0);
    println!(
        "WMMR {:.4} at {:.2} % of 200 Mbit/s, weights {weights:?}",
        wmmr(&rates),
        used * 100.0
    );
    println!("{:?}", world.link_stats(0));
    assert!(wmmr(&rates) >= 0.95 && used >= 0.95, "{rates:?} {used}");
}

/// 99th percentile of a light tenant's demands, alone and beside one that prefetches all it can.
fn light(seed: u64, pipe: Pipe, beside: bool) -> (u64, f64) {
    let mut world = World::new(seed, &[pipe]);
    world.tenant(
        0,
        weighted(100),
        &[load(Class::Demand, PAGE, 2, 40 * pipe.ns(EXTENT))],
    );
    if beside {
        world.tenant(
            1,
            weighted(100),
            &[
                load(Class::Prefetch, EXTENT, 64, 0),
                load(Class::SwapOut, EXTENT, 16, 0),
            ],
        );
    }
    world.run(SECOND);
    world.reset();
    world.run(12 * SECOND);
    (world.latency_ns(0, Class::Demand, 990), world.link_use(0))
}

#[test]
fn a_light_tenants_demands_beside_a_heavy_reader() {
    let seed = seed();
    for (name, pipe) in [("200 Mbit/s", SLOW), ("10 Gbit/s", FAST)] {
        let (solo, _) = light(seed, pipe, false);
        let (beside, used) = light(seed, pipe, true);
        let packet = pipe.ns(EXTENT);
        let packets = beside.saturating_sub(solo) as f64 / packet as f64;
        println!(
            "{name}: demand p99 {} us alone, {} us beside ({packets:.2} packets of {} us more), link used {:.2} %",
            solo / 1000,
            beside / 1000,
            packet / 1000,
            used * 100.0,
        );
        assert!(used >= 0.95, "{used}");
        // Beyond what one round trip holds, one to two requests are under way, so that the link is never idle. Where a
        // round trip is longer than a request takes, that is one and a tenth of the trip.
        let most = solo + solo / 10 + packet * if name == "10 Gbit/s" { 1 } else { 2 };
        assert!(beside <= most, "{beside} > {most}");
    }
}

#[test]
fn the_rule_of_timeliness_bounds_the_latency_of_prefetches() {
    let seed = seed();
    let mut p90 = Vec::new();
    for on in [false, true] {
        let mut world = World::new(seed, &[SLOW]);
        world.sched.set_timeliness(on);
        for t in 0..4 {
            world.tenant(
                t,
                weighted(100),
                &[
                    load(Class::Demand, PAGE, 8, 20 * MS),
                    load(Class::Prefetch, EXTENT, 32, 100 * MS),
                    load(Class::SwapOut, EXTENT, 4, 100 * MS),
                ],
            );
            for k in 0..1000 {
                // Uses after 1 to 50 ms, most of them early.
                world
                    .sched
                    .used_after(TenantId(t), MS + k * k * 49 * MS / 1_000_000, 1);
            }
        }
        world.run(SECOND);
        world.reset();
        world.run(20 * SECOND);
        let latency = world.latency_ns(0, Class::Prefetch, 900);
        let demand = world.latency_ns(0, Class::Demand, 900);
        let c = &world.sched.stats(TenantId(0)).unwrap().classes[Class::Prefetch as usize];
        println!(
            "timeliness {}: prefetch p90 {} ms, {} % dropped, demand p90 {} ms, link used {:.1} %",
            if on { "on" } else { "off" },
            latency / MS,
            100 * c.dropped / c.submitted,
            demand / MS,
            world.link_use(0) * 100.0,
        );
        let threshold = world
            .sched
            .stats(TenantId(0))
            .unwrap()
            .timeliness_ns
            .unwrap();
        p90.push((latency, threshold));
    }
    let [(off, threshold), (on, _)] = p90[..] else {
        unreachable!()
    };
    println!("threshold {} ms", threshold / MS);
    assert!(
        off > 2 * threshold,
        "the load is too much without the rule: {off}"
    );
    assert!(on <= threshold + threshold / 4, "{on}");
}

#[test]
fn hundreds_of_tenants_on_several_links() {
    let seed = seed();
    let mut rng = fastrand::Rng::with_seed(seed);
    let pipes: Vec<Pipe> = (0..6)
        .map(|_| Pipe {
            bytes_s: rng.u64(25_000_000..2_000_000_000),
            base_ns: rng.u64(20_000..300_000),
        })
        .collect();
    let mut world = World::new(seed, &pipes);
    let mut configs = Vec::new();
    for t in 0..300u64 {
        let limit =
            |rng: &mut fastrand::Rng| rng.u8(0..4).eq(&0).then(|| rng.u64(500_000..50_000_000));
        let config = TenantConfig {
            weight: rng.u32(1..=1000),
            swap_in_limit: limit(&mut rng),
            swap_out_limit: limit(&mut rng),
        };
        let link = rng.usize(0..pipes.len());
        let mut loads = vec![
            load(Class::Demand, PAGE, rng.u32(1..16), rng.u64(0..MS)),
            load(Class::Prefetch, EXTENT, rng.u32(1..32), rng.u64(0..MS)),
            load(Class::SwapOut, EXTENT, rng.u32(1..16), rng.u64(0..MS)),
        ];
        loads.iter_mut().for_each(|l| l.link = link);
        // Some use two.
        loads[2].link = rng.usize(0..pipes.len());
        world.tenant(t, config, &loads);
        configs.push(config);
    }
    for _ in 0..20 {
        world.run(50 * MS);
        world.sched.check();
        // One leaves, with its requests under way, and comes back.
        world.replace(rng.u64(0..300));
        world.sched.check();
    }
    world.reset();
    let span = 2 * SECOND;
    world.run(span);
    world.sched.check();
    world.check_counts();
    for (link, pipe) in pipes.iter().enumerate() {
        let stats = world.link_stats(link);
        println!(
            "link of {:5} Mbit/s, {:3} us: used {:.2} %, window {} KiB, pipe {} KiB",
            pipe.bytes_s / 125_000,
            pipe.base_ns / 1000,
            world.link_use(link) * 100.0,
            stats.window_bytes >> 10,
            (pipe.bytes_s * pipe.base_ns / SECOND) >> 10,
        );
        assert!(world.link_use(link) >= 0.95);
    }
    for (t, config) in configs.iter().enumerate() {
        let t = t as u64;
        assert!(world.bytes(t) > 0, "tenant {t} got nothing");
        for (limit, classes) in [
            (config.swap_in_limit, &[Class::Demand, Class::Prefetch][..]),
            (config.swap_out_limit, &[Class::SwapOut][..]),
        ] {
            let Some(rate) = limit else { continue };
            let got: u64 = classes.iter().map(|c| world.class_bytes(t, *c)).sum();
            // Requests under way at the start count here, too.
            let most = rate * span / SECOND + canvas_sched::burst_bytes(rate) + (8 << 20);
            assert!(got <= most, "tenant {t}: {got} of {most}");
        }
    }
}

#[test]
fn the_window_follows_the_link() {
    let seed = seed();
    for pipe in [
        SLOW,
        FAST,
        Pipe {
            bytes_s: 12_500_000_000,
            base_ns: 20_000,
        },
    ] {
        let mut world = World::new(seed, &[pipe]);
        world.tenant(0, weighted(100), &[load(Class::Prefetch, EXTENT, 200, 0)]);
        world.run(21 * SECOND / if pipe.bytes_s > 1 << 30 { 20 } else { 1 });
        let before = world.link_stats(0);
        // The link gets four times slower, and back.
        world.set_rate(0, pipe.bytes_s / 4);
        world.run(SECOND);
        let slower = world.link_stats(0);
        world.reset();
        world.run(SECOND / 4);
        let used_slower = world.link_use(0);
        world.set_rate(0, pipe.bytes_s);
        world.run(SECOND / 4);
        world.reset();
        world.run(SECOND / 4);
        let used = world.link_use(0);
        println!(
            "{:6} Mbit/s: window {} KiB, a quarter of the rate: {} KiB, used {:.1} %; back: used {:.1} %",
            pipe.bytes_s / 125_000,
            before.window_bytes >> 10,
            slower.window_bytes >> 10,
            used_slower * 100.0,
            used * 100.0,
        );
        let floor = LinkConfig::default().window_bytes_min;
        assert!(slower.window_bytes <= before.window_bytes.max(floor));
        // At most two requests wait at the link beside an eighth of its pipe.
        let pipe_bytes = pipe.bytes_s * (pipe.base_ns + pipe.ns(EXTENT)) / SECOND;
        assert!(
            before.window_bytes <= pipe_bytes * 5 / 4 + 2 * u64::from(EXTENT),
            "{before:?}"
        );
        assert!(used >= 0.93 && used_slower >= 0.93, "{used} {used_slower}");
    }
}
