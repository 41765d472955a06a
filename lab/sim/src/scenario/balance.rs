//! How evenly donors are used when tenants choose the better of two, one at random, or the best of all they
//! know, while their knowledge is out of date.

use std::fmt::Write;

use canvas_place::replicas::Policy;

use super::{Size, spread};
use crate::engine::{MS, SEC};
use crate::world::{Chooser, Config, World};
use crate::{SLAB_BYTES, audit};

/// Figures of one run: used memory as a fraction of a host's memory.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Mean over all hosts.
    pub mean: f64,
    /// Standard deviation between hosts.
    pub deviation: f64,
    /// Maximum over all hosts.
    pub max: f64,
    /// Refused requests for a slab per granted request.
    pub refused: f64,
}

/// Memory that each host borrows.
const BORROWED_BYTES: u64 = 6 << 30;

/// Simulates hosts that all lend and borrow, and start at the same time. `age_s` is the interval of pings to
/// donors.
pub fn run(seed: u64, hosts: usize, chooser: Chooser, age_s: u64) -> Figures {
    run_in_slabs(seed, hosts, chooser, age_s, SLAB_BYTES)
}

/// Like `run`, with slabs of another size but the same memory.
pub fn run_in_slabs(
    seed: u64,
    hosts: usize,
    chooser: Chooser,
    age_s: u64,
    slab_bytes: u64,
) -> Figures {
    let policy = Policy {
        donors: 1,
        disk: true,
        late: false,
        code: None,
    };
    let mut world = World::new(Config {
        chooser,
        slab_bytes,
        slabs: (BORROWED_BYTES / slab_bytes) as usize,
        extents: 1,
        load_ns: 20 * MS,
        depth: 4,
        ping_ns: age_s * SEC,
        net_bytes_per_us: 1 << 30,
        disk_bytes_per_us: 1 << 30,
        ..Config::new(seed, hosts, policy)
    });
    let done = world.run_while(120 * SEC, |w| {
        audit::filled(w) && audit::short_slabs(w) == 0
    });
    assert!(
        done.is_some(),
        "seed {seed}: {hosts} hosts have room for all slabs"
    );
    assert_eq!(world.stats.below_reserve, 0, "seed {seed}");
    let used: Vec<f64> = world
        .hosts
        .iter()
        .map(|h| (h.own_bytes + h.lent_bytes()) as f64 / h.bytes as f64)
        .collect();
    let (mean, deviation) = spread(&used);
    Figures {
        mean,
        deviation,
        max: used.iter().copied().fold(0.0, f64::max),
        refused: world.stats.refused as f64 / world.stats.placed as f64,
    }
}

/// Runs the experiment; returns its figures as text.
pub fn report(seed: u64, size: Size) -> String {
    let sizes = match size {
        Size::Short => vec![32, 128],
        Size::Full => vec![32, 100, 1000, 10_000],
        Size::Hosts(n) => vec![n],
    };
    let mut text = format!(
        "memory in use by host, in % (seed {seed}; tenants know 64 donors at most)\n  \
         hosts  age  chooser      mean  deviation   max  refused per placed\n"
    );
    for hosts in sizes {
        for age_s in [1, 10] {
            let of = |chooser| {
                let f = run(seed, hosts, chooser, age_s);
                (chooser, f)
            };
            let all = [Chooser::TwoChoices, Chooser::Random, Chooser::Best].map(of);
            for (chooser, f) in &all {
                let _ = writeln!(
                    text,
                    "  {hosts:>5}  {age_s:>2}s  {:<10}  {:>5.1}  {:>9.2}  {:>5.1}  {:.3}",
                    format!("{chooser:?}"),
                    f.mean * 100.0,
                    f.deviation * 100.0,
                    f.max * 100.0,
                    f.refused
                );
            }
            let [two, random, _] = all.map(|(_, f)| f);
            assert!(
                two.deviation < 0.8 * random.deviation && two.max <= random.max,
                "seed {seed}: two choices are fairer than one: {two:?}, {random:?}"
            );
        }
    }
    text
}
