//! Memory use of machines with and without the pool: 90 containers on 32 hosts (Infiniswap, NSDI'17: 40.8 %
//! without, 60 % with).
//!
//! The slides say "mixing all applications and memory constraints"; so a third of the containers each has
//! all, three quarters and half of its working set as its limit. Working sets are drawn so that the mean use
//! without the pool equals the paper's; the use with the pool is the result.

use canvas_place::replicas::Policy;

use super::{Size, spread};
use crate::engine::{MS, SEC};
use crate::world::{Config, World};
use crate::{SLAB_BYTES, audit};

const HOSTS: usize = 32;
const CONTAINERS: usize = 90;
const HOST_BYTES: u64 = 64 << 30;
/// Mean use without the pool, in thousandths, as in the paper.
const WITHOUT_PERMILLE: u64 = 408;

/// Figures of one seed.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Mean and deviation of the used fraction of hosts' memory, without the pool.
    pub without: (f64, f64),
    /// Mean and deviation with the pool.
    pub with: (f64, f64),
    /// Memory that the containers need beyond their limits, as a fraction of all memory.
    pub wanted: f64,
}

/// Runs the experiment with one seed.
pub fn run(seed: u64) -> Figures {
    let mut rng = fastrand::Rng::with_seed(seed);
    // Equal numbers of the three limits, in quarters; working sets from 0.5 to 1.5 times the mean.
    let mut sets: Vec<(u64, u64)> = (0..CONTAINERS)
        .map(|i| (rng.u64(500..=1500), 4 - (i % 3) as u64))
        .collect();
    rng.shuffle(&mut sets);
    let local: u64 = sets.iter().map(|(set, quarters)| set * quarters / 4).sum();
    let unit = HOSTS as u64 * HOST_BYTES / 1000 * WITHOUT_PERMILLE / local;
    let reserve = HOST_BYTES / 10;
    let mut own = vec![0; HOSTS];
    let mut mix = Vec::new();
    for (set, quarters) in sets {
        let (set, here) = (set * unit, set * unit * quarters / 4);
        // Any host with enough memory, as a scheduler would choose without knowledge of the use.
        let host = std::iter::repeat_with(|| rng.usize(0..HOSTS))
            .take(10_000)
            .find(|h| own[*h] + here <= HOST_BYTES - reserve)
            .expect("a mix that fits");
        own[host] += here;
        let slabs = ((set - here) / SLAB_BYTES) as usize;
        if slabs > 0 {
            mix.push((host as u32, slabs));
        }
    }
    let part = |bytes: u64| bytes as f64 / HOST_BYTES as f64;
    let before: Vec<f64> = own.iter().map(|b| part(*b)).collect();
    let wanted: usize = mix.iter().map(|(_, slabs)| slabs).sum();
    let policy = Policy {
        donors: 1,
        disk: true,
        late: false,
        code: None,
    };
    let mut world = World::new(Config {
        tenants: mix.len(),
        mix,
        own,
        extents: 1,
        load_ns: 5 * MS,
        // Each extent stands for a whole slab; its time on the network does not matter here.
        net_bytes_per_us: 1 << 30,
        disk_bytes_per_us: 1 << 30,
        ..Config::new(seed, HOSTS, policy)
    });
    let filled = world.run_while(60 * SEC, |w| audit::filled(w) && audit::short_slabs(w) == 0);
    assert!(
        filled.is_some(),
        "seed {seed}: what is wanted beyond limits is at donors"
    );
    let used = |h: &crate::host::Host| part(h.own_bytes + h.touched_bytes());
    let after: Vec<f64> = world.hosts.iter().map(used).collect();
    assert_eq!(world.stats.below_reserve, 0, "seed {seed}");
    assert_eq!(audit::lost(&world), 0, "seed {seed}");
    Figures {
        without: spread(&before),
        with: spread(&after),
        wanted: wanted as f64 * SLAB_BYTES as f64 / HOST_BYTES as f64 / HOSTS as f64,
    }
}

/// Runs the experiment; returns its figures as text.
pub fn report(seed: u64, size: Size) -> String {
    let seeds = match size {
        Size::Short | Size::Hosts(_) => 3,
        Size::Full => 20,
    };
    let all: Vec<Figures> = (seed..seed + seeds).map(run).collect();
    let mean = |f: fn(&Figures) -> f64| all.iter().map(f).sum::<f64>() / all.len() as f64 * 100.0;
    for f in &all {
        assert!(
            (f.with.0 - f.without.0 - f.wanted).abs() < 0.01,
            "all of it is used: {f:?}"
        );
        assert!(
            f.with.1 / f.with.0 < 0.8 * f.without.1 / f.without.0,
            "hosts are used more evenly: {f:?}"
        );
    }
    format!(
        "memory in use, {CONTAINERS} containers on {HOSTS} hosts (mean of {seeds} runs, seeds from {seed}):\n  \
         without the pool {:.1} % of memory (paper 40.8), deviation between hosts {:.1} points\n  \
         with the pool    {:.1} % of memory (paper 60.0), deviation between hosts {:.1} points\n",
        mean(|f| f.without.0),
        mean(|f| f.without.1),
        mean(|f| f.with.0),
        mean(|f| f.with.1),
    )
}
