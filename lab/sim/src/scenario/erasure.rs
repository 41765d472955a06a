//! Compares copies with erasure codes: memory used, bytes moved by repairs, and loss when several hosts die
//! at once.
//!
//! The product's code places the slabs of each tenant at some of the 64 donors it knows. Then hosts die:
//! random ones, or all of a rack, which placement does not know about. Losses are counted at once, before any
//! repair; the bytes of repairs follow from what the dead hosts held, and the time of repairs from the
//! busiest link.

use std::fmt::Write;

use canvas_place::choose::choose;
use canvas_place::replicas::placement::{self, PlacementResult};
use canvas_place::replicas::{Code, ConnectionState, DonorView, GRACE_NS, Map, Policy};

use super::Size;
use crate::agent::DONORS_MAX;
use crate::{SLAB_BYTES, audit};

/// Policies to compare.
pub const POLICIES: [&str; 6] = ["2", "3", "2+1", "4+2", "6+2", "8+2"];
/// Slabs of a tenant; each host has one tenant.
const SLABS: u32 = 16;
/// Memory that each host lends.
const LEND_BYTES: u64 = 16 << 30;
/// Hosts of a rack.
pub const RACK: usize = 40;
/// Half of a 10 Gbit/s link, which is what repairs may use.
const REPAIR_BYTES_PER_S: u64 = 1_250_000_000 / 2;
/// Random draws of dying hosts.
const TRIALS: usize = 200;

/// Slabs placed at donors, in a pool without traffic.
pub struct Pool {
    policy: Policy,
    /// Each tenant's donors, by host, and its slabs.
    tenants: Vec<(Vec<u32>, Map)>,
    lent_bytes: Vec<u64>,
}

/// Effect of the death of hosts on a pool.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Deaths {
    /// Slabs of living tenants.
    pub slabs: u64,
    /// Slabs that are lost.
    pub lost: u64,
    /// Slabs that lack a copy or shard and can be repaired.
    pub short: u64,
    /// Bytes that repairs read.
    pub read_bytes: u64,
    /// Bytes that repairs write.
    pub written_bytes: u64,
    /// Duration of the repairs in seconds, if links of tenants are the only limit.
    pub repair_s: f64,
}

impl Pool {
    /// Places the slabs of one tenant on each of `hosts` hosts.
    pub fn new(seed: u64, hosts: usize, policy: Policy) -> Pool {
        let mut rng = fastrand::Rng::with_seed(seed);
        let part = part_bytes(policy);
        let mut lent_bytes = vec![0; hosts];
        let mut tenants = Vec::with_capacity(hosts);
        let all: Vec<u32> = (0..hosts as u32).collect();
        for host in 0..hosts as u32 {
            let others: Vec<u32> = all.iter().copied().filter(|h| *h != host).collect();
            let count = DONORS_MAX.min(others.len());
            let known = canvas_place::victims::sample(&mut rng, &others, count);
            let mut map = Map::new();
            for slab in 0..SLABS {
                map.entry(slab).or_default().code = policy.code;
                for _ in 0..policy.donors {
                    place(&mut map, slab, &known, &mut lent_bytes, part, &mut rng);
                }
                assert_eq!(map[&slab].replicas.len(), policy.donors, "seed {seed}");
            }
            tenants.push((known, map));
        }
        Pool {
            policy,
            tenants,
            lent_bytes,
        }
    }

    /// Bytes of donors' memory per byte stored.
    pub fn space(&self) -> f64 {
        let kept = self.tenants.len() as u64 * u64::from(SLABS) * SLAB_BYTES;
        self.lent_bytes.iter().sum::<u64>() as f64 / kept as f64
    }

    /// Kills these hosts at once, and repairs what they held.
    pub fn die(&self, dead: &[usize]) -> Deaths {
        let mut is_dead = vec![false; self.tenants.len()];
        dead.iter().for_each(|h| is_dead[*h] = true);
        let enough = self.policy.code.map_or(1, Code::data);
        let part = part_bytes(self.policy);
        let mut deaths = Deaths::default();
        for (host, (known, map)) in self.tenants.iter().enumerate() {
            if is_dead[host] {
                continue;
            }
            deaths.slabs += map.len() as u64;
            if !known.iter().any(|h| is_dead[*h as usize]) {
                continue;
            }
            let views: Vec<DonorView> = known
                .iter()
                .map(|h| view(!is_dead[*h as usize], 0))
                .collect();
            let mut moved = 0;
            for entry in map.values() {
                let left = audit::serving(entry, &views[..]);
                if left < enough {
                    deaths.lost += 1;
                } else if entry.due(&views[..], self.policy, GRACE_NS).degraded {
                    let lacking = (self.policy.donors - left) as u64;
                    deaths.short += 1;
                    deaths.read_bytes += lacking * enough as u64 * part;
                    deaths.written_bytes += lacking * part;
                    moved += lacking * enough as u64 * part;
                }
            }
            let s = GRACE_NS as f64 / 1e9 + moved as f64 / REPAIR_BYTES_PER_S as f64;
            if moved > 0 {
                deaths.repair_s = deaths.repair_s.max(s);
            }
        }
        deaths
    }
}

/// Bytes that a donor lends for a slab.
fn part_bytes(policy: Policy) -> u64 {
    let data = policy.code.map_or(1, Code::data) as u64;
    SLAB_BYTES.div_ceil(data)
}

fn view(is_up: bool, free_bytes: u64) -> DonorView {
    let connection = match is_up {
        true => ConnectionState::Up,
        false => ConnectionState::Down { since_ns: 0 },
    };
    DonorView {
        connection,
        pressure: false,
        free_bytes,
        suspect: false,
    }
}

/// Places one more replica of a slab, at the donor that the product chooses.
fn place(
    map: &mut Map,
    slab: u32,
    known: &[u32],
    lent_bytes: &mut [u64],
    part: u64,
    rng: &mut fastrand::Rng,
) {
    let free = |h: &u32| LEND_BYTES - lent_bytes[*h as usize];
    let views: Vec<DonorView> = known.iter().map(|h| view(true, free(h))).collect();
    let chosen = placement::place(map, slab, &views[..], 0, |all| {
        choose(all, part, |n| rng.usize(0..n))
    });
    let donor = chosen.expect("there is room");
    if let Some(entry) = map.get_mut(&slab) {
        entry.on_alloc_sent();
    }
    lent_bytes[known[donor] as usize] += part;
    let handle = u64::from(slab) + 1;
    let placed = placement::allocated(
        map,
        slab,
        donor,
        Some(([0; 16], handle)),
        || false,
        |_| false,
        &views[..],
    );
    assert_eq!(placed, PlacementResult::Yes);
}

/// A named way to draw the hosts that die.
type Deed = (&'static str, fn(&mut fastrand::Rng, usize) -> Vec<usize>);

fn drawn(rng: &mut fastrand::Rng, hosts: usize, n: usize) -> Vec<usize> {
    let all: Vec<u64> = (0..hosts as u64).collect();
    let some = canvas_place::victims::sample(rng, &all, n);
    some.into_iter().map(|h| h as usize).collect()
}

fn racks(rng: &mut fastrand::Rng, hosts: usize, n: usize) -> Vec<usize> {
    let first = drawn(rng, hosts.div_ceil(RACK), n);
    let of = |rack: usize| rack * RACK..((rack + 1) * RACK).min(hosts);
    first.into_iter().flat_map(of).collect()
}

const DEEDS: [Deed; 5] = [
    ("1 host", |rng, hosts| drawn(rng, hosts, 1)),
    ("2 hosts", |rng, hosts| drawn(rng, hosts, 2)),
    ("1 % of them", |rng, hosts| {
        drawn(rng, hosts, hosts.div_ceil(100))
    }),
    ("a rack of 40", |rng, hosts| racks(rng, hosts, 1)),
    ("3 racks", |rng, hosts| racks(rng, hosts, 3)),
];

/// Runs the experiment; returns its figures as text.
pub fn report(seed: u64, size: Size) -> String {
    let hosts = match size {
        Size::Short => 400,
        Size::Full => 10_000,
        Size::Hosts(n) => n,
    };
    let trials = if hosts > 1000 { TRIALS / 4 } else { TRIALS };
    let mut text = format!(
        "copies and codes (seed {seed}): {hosts} hosts that keep 1 GiB each at donors, {trials} draws of hosts that die at \
         one time\n  copies  space  repair of a host's GiB: read, written (GiB), after (s)  "
    );
    text.push_str("slabs lost of a million when there die:");
    for (name, _) in DEEDS {
        let _ = write!(text, "  {name}");
    }
    text.push('\n');
    for name in POLICIES {
        let policy = Policy::named(name).expect("they are named");
        let pool = Pool::new(seed, hosts, policy);
        let mut rng = fastrand::Rng::with_seed(seed);
        let _ = write!(text, "  {name:<6}  {:>5.3}  ", pool.space());
        let mut lost = Vec::new();
        for (n, (_, deed)) in DEEDS.iter().enumerate() {
            let mut sum = Deaths::default();
            let mut held = 0;
            for _ in 0..trials {
                let dead = deed(&mut rng, hosts);
                held += dead.iter().map(|h| pool.lent_bytes[*h]).sum::<u64>();
                let d = pool.die(&dead);
                sum.slabs += d.slabs;
                sum.lost += d.lost;
                sum.read_bytes += d.read_bytes;
                sum.written_bytes += d.written_bytes;
                sum.repair_s += d.repair_s / trials as f64;
            }
            if n == 0 {
                let of = |bytes: u64| bytes as f64 / held as f64;
                let (read, written) = (of(sum.read_bytes), of(sum.written_bytes));
                let _ = write!(
                    text,
                    "{read:>22.2}  {written:>5.2}  {:>5.2}  ",
                    sum.repair_s
                );
            }
            let borne = policy.code.map_or(policy.donors - 1, Code::parity);
            assert!(
                n >= 2 || n + 1 > borne || sum.lost == 0,
                "seed {seed}: {name}"
            );
            lost.push(sum.lost as f64 * 1e6 / sum.slabs as f64);
        }
        for lost in lost {
            let _ = write!(text, "  {lost:>10.2}");
        }
        text.push('\n');
    }
    text
}
