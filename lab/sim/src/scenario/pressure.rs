//! Programs of some hosts grow while donors have lent their memory: donors take it back in time, nothing is
//! lost, and the evicted slabs move to other donors.

use std::fmt::Write;

use canvas_place::replicas::Policy;

use super::Size;
use crate::engine::SEC;
use crate::world::{Config, Stats, World};
use crate::{SLAB_BYTES, audit};

/// Figures of a run.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Counters of the simulation.
    pub stats: Stats,
    /// Seconds from the beginning of the growth until every slab had all its copies again.
    pub settled_s: f64,
    /// Number of extents lost.
    pub lost: usize,
}

/// Memory that each tenant keeps at donors.
const FAR_BYTES: u64 = 1536 << 20;
const EXTENT_BYTES: u64 = 4 << 20;

/// Lets the programs of a quarter of the hosts grow by `mib_per_s` until only the reserve is left.
pub fn run(seed: u64, hosts: usize, policy: Policy, mib_per_s: u64) -> Figures {
    run_in_slabs(seed, hosts, policy, mib_per_s, FAR_BYTES, SLAB_BYTES)
}

/// Like `run`, with `far_bytes` per tenant in slabs of another size.
pub fn run_in_slabs(
    seed: u64,
    hosts: usize,
    policy: Policy,
    mib_per_s: u64,
    far_bytes: u64,
    slab_bytes: u64,
) -> Figures {
    let mut world = World::new(Config {
        slab_bytes,
        slabs: (far_bytes / slab_bytes) as usize,
        extents: (slab_bytes / EXTENT_BYTES) as usize,
        ..Config::new(seed, hosts, policy)
    });
    // Extents of 4 MiB take sixteen times as long on the network as the product's; the network is made
    // sixteen times as fast.
    world.config.net_bytes_per_us *= 16;
    world.config.disk_bytes_per_us *= 16;
    let filled = world.run_while(120 * SEC, |w| {
        audit::filled(w) && audit::short_slabs(w) == 0
    });
    assert!(filled.is_some(), "seed {seed}: the pool fills");
    for h in 0..hosts / 4 {
        let host = &mut world.hosts[h];
        host.own_target_bytes = host.bytes - host.reserve_bytes();
        host.own_bytes_per_s = mib_per_s << 20;
    }
    let start = world.now();
    let grown = world.run_while(600 * SEC, |w| {
        w.hosts.iter().all(|h| h.own_bytes == h.own_target_bytes)
    });
    assert!(grown.is_some());
    let settled = world.run_while(120 * SEC, |w| {
        let empty = |h: &crate::host::Host| h.slabs.is_empty();
        audit::short_slabs(w) == 0 && w.hosts[..hosts / 4].iter().all(empty)
    });
    let wrong = audit::false_beliefs(&world);
    assert_eq!(wrong, Vec::<String>::new(), "seed {seed}");
    assert!(
        settled.is_some(),
        "seed {seed}: every slab finds another home"
    );
    Figures {
        settled_s: (world.now() - start) as f64 / SEC as f64,
        lost: audit::lost(&world),
        stats: world.stats,
    }
}

/// Runs the experiment; returns its figures as text.
pub fn report(seed: u64, size: Size) -> String {
    let (hosts, rates): (usize, &[u64]) = match size {
        Size::Short => (16, &[512, 4096]),
        Size::Hosts(n) => (n, &[512, 4096]),
        Size::Full => (64, &[128, 512, 1024, 2048, 4096]),
    };
    let policies = [(1, true), (2, false)].map(|(donors, disk)| Policy {
        donors,
        disk,
        late: false,
        code: None,
    });
    let mut text = format!(
        "programs of {} of {hosts} hosts grow to all but the reserve (seed {seed})\n  \
         MiB/s  copies  evicted  moved  late  below the reserve by (MiB)  settled after (s)  lost\n",
        hosts / 4
    );
    for policy in policies {
        for &rate in rates {
            let f = run(seed, hosts, policy, rate);
            let _ = writeln!(
                text,
                "  {rate:>5}  {:>6}  {:>7}  {:>5}  {:>4}  {:>26}  {:>17.1}  {:>4}",
                if policy.disk { "1+disk" } else { "2" },
                f.stats.evicted,
                f.stats.moved,
                f.stats.evicted_late,
                f.stats.below_reserve_bytes_max >> 20,
                f.settled_s,
                f.lost,
            );
            assert!(f.stats.evicted > 0, "seed {seed}: there was pressure");
            assert_eq!(f.lost, 0, "seed {seed}");
            if rate <= 512 {
                assert_eq!(f.stats.below_reserve, 0, "seed {seed}: the reserve is left");
            }
        }
    }
    text
}
