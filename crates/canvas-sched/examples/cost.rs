//! What a request costs in the scheduler: submit, next and done, in nanoseconds, by the number of tenants
//! that take turns. `fast`: the link never fills, each request is begun at once. `full`: every tenant has
//! requests waiting all the time.

use std::hint::black_box;
use std::time::Instant;

use canvas_sched::{Class, Decision, LinkConfig, LinkId, Scheduler, TenantConfig, TenantId};

const REQUESTS: u64 = 2_000_000;

fn with(tenants: u64, window: u64) -> (Scheduler, LinkId) {
    let mut s = Scheduler::new();
    let config = LinkConfig {
        window_bytes_min: window,
        window_bytes_max: window,
        ..LinkConfig::default()
    };
    let link = s.add_link(config).expect("the first");
    for t in 0..tenants {
        let config = TenantConfig {
            weight: 1 + (t * 37 % 1000) as u32,
            ..TenantConfig::default()
        };
        s.add_tenant(TenantId(t), config).expect("a new one");
    }
    (s, link)
}

fn send(s: &mut Scheduler, now: u64) -> Option<canvas_sched::Request> {
    match s.next(now) {
        Some(Decision::Send(r)) => Some(r),
        _ => None,
    }
}

fn fast(tenants: u64) -> f64 {
    let (mut s, link) = with(tenants, 1 << 30);
    let begin = Instant::now();
    for k in 0..REQUESTS {
        let (t, now) = (TenantId(k % tenants), k * 100);
        s.submit(t, Class::Demand, link, 4096, k, now)
            .expect("room");
        let r = send(&mut s, now).expect("it goes");
        assert!(s.done(r.ticket, now + 50) && send(&mut s, now + 50).is_none());
    }
    begin.elapsed().as_nanos() as f64 / REQUESTS as f64
}

fn full(tenants: u64) -> f64 {
    let (mut s, link) = with(tenants, 256 << 10);
    let mut under_way = std::collections::VecDeque::new();
    for t in 0..tenants {
        for class in [Class::Demand, Class::Prefetch, Class::SwapOut] {
            for _ in 0..8 {
                s.submit(TenantId(t), class, link, 4096, 0, 0)
                    .expect("room");
            }
        }
    }
    let begin = Instant::now();
    for k in 0..REQUESTS {
        let now = k * 100;
        while let Some(r) = send(&mut s, now) {
            under_way.push_back(r);
        }
        let r = under_way.pop_front().expect("the window is full");
        s.done(r.ticket, now);
        s.submit(r.tenant, r.class, link, 4096, k, now)
            .expect("one was done");
    }
    black_box(&s);
    begin.elapsed().as_nanos() as f64 / REQUESTS as f64
}

fn main() {
    println!("tenants  fast ns  full ns");
    for tenants in [1, 10, 100, 1000] {
        println!("{tenants:7} {:8.0} {:8.0}", fast(tenants), full(tenants));
    }
}
