//! Access strings made from a seed, so that policies can be compared before real traces exist.

use super::{Event, Op, Trace};

/// A small generator (SplitMix64): the same string for the same seed everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number below `n` (not 0).
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }
    /// A number from 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Zipf-distributed ranks (Gray et al., SIGMOD'94, as YCSB does it).
struct Zipf {
    n: u64,
    theta: f64,
    zeta: f64,
    eta: f64,
    alpha: f64,
}

impl Zipf {
    fn new(n: u64, theta: f64) -> Zipf {
        let zeta: f64 = (1..=n).map(|i| (i as f64).powf(-theta)).sum();
        let zeta2 = 1.0 + 0.5f64.powf(theta);
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - theta)) / (1.0 - zeta2 / zeta);
        Zipf {
            n,
            theta,
            zeta,
            eta,
            alpha: 1.0 / (1.0 - theta),
        }
    }
    fn rank(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(self.theta) {
            return 1;
        }
        let r = (self.n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64;
        r.min(self.n - 1)
    }
}

/// Values of 1 KiB: keys on a page.
const KEYS_PER_PAGE: u64 = 4;

/// The names that [`generate`] knows, each with what it stands for.
pub const NAMES: &[(&str, &str)] = &[
    (
        "loop",
        "sequential passes over all pages (training, table scans)",
    ),
    ("random", "uniformly random pages"),
    ("zipf", "zipf 0.99 over pages in random places"),
    (
        "kv",
        "zipf 0.99 over keys, 4 to a page, scattered (redis, memcached)",
    ),
    (
        "kv-index",
        "as kv, with a hash table of 1/32 of the pages touched first",
    ),
    (
        "scan-zipf",
        "three quarters kv, with sequential scans of a tenth of the pages between",
    ),
    ("phases", "kv on one quarter of the pages after the other"),
    (
        "hot-cold",
        "90 % of the touches on 10 % of the pages, in extents of 16 pages",
    ),
    ("strided", "passes with a stride of 7 pages"),
    (
        "gc",
        "kv on a nursery, with a full sequential pass (a collection) now and then",
    ),
    (
        "threads",
        "four threads: two scan their own ranges, two do kv",
    ),
];

/// The names that [`generate`] knows.
pub fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(n, _)| *n)
}

/// `accesses` touches over `pages` pages after a first sequential pass that touches each once;
/// `None` for an unknown name.
pub fn generate(name: &str, seed: u64, pages: usize, accesses: usize) -> Option<Trace> {
    if pages == 0 || !names().any(|n| n == name) {
        return None;
    }
    let mut g = Gen::new(seed, pages, accesses);
    match name {
        "loop" => g.passes(0, pages as u64, 1, 0),
        "random" => {
            while g.more() {
                let p = g.rng.below(pages as u64);
                g.touch(p, 0);
            }
        }
        "zipf" => {
            let zipf = Zipf::new(pages as u64, 0.99);
            let places = g.permutation(pages as u64);
            while g.more() {
                let p = places[zipf.rank(&mut g.rng) as usize];
                g.touch(p, 0);
            }
        }
        "kv" => {
            let kv = g.kv(0, pages as u64);
            while g.more() {
                g.get(&kv, 0);
            }
        }
        "kv-index" => {
            let index = (pages as u64 / 32).max(1);
            let kv = g.kv(index, pages as u64 - index.min(pages as u64 - 1));
            while g.more() {
                let rank = kv.zipf.rank(&mut g.rng);
                let bucket = rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % index;
                g.touch(bucket, 0);
                g.touch(kv.place[rank as usize], 0);
            }
        }
        "scan-zipf" => {
            let kv = g.kv(0, pages as u64);
            let scan = (pages as u64 / 10).max(1);
            while g.more() {
                for _ in 0..scan * 3 {
                    g.get(&kv, 0);
                }
                let from = g.rng.below(pages as u64);
                for i in 0..scan {
                    g.touch((from + i) % pages as u64, 1);
                }
            }
        }
        "phases" => {
            let part = (pages as u64 / 4).max(1);
            let per_phase = (accesses / 8).max(1);
            let kvs: Vec<Kv> = (0..4)
                .map(|i| g.kv((i * part).min(pages as u64 - 1), part))
                .collect();
            let mut i = 0;
            while g.more() {
                for _ in 0..per_phase {
                    g.get(&kvs[i % 4], 0);
                }
                i += 1;
            }
        }
        "hot-cold" => {
            let extents = (pages as u64 / 16).max(1);
            let order = g.permutation(extents);
            let hot = (extents / 10).max(1);
            while g.more() {
                let is_hot = g.rng.below(10) != 0;
                let e = if is_hot {
                    g.rng.below(hot)
                } else {
                    g.rng.below(extents)
                };
                let p = order[e as usize] * 16 + g.rng.below(16);
                g.touch(p, 0);
            }
        }
        "strided" => g.passes(0, pages as u64, 7, 0),
        "gc" => {
            let nursery = (pages as u64 / 5).max(1);
            let kv = g.kv(0, nursery);
            while g.more() {
                for _ in 0..pages * 2 {
                    g.get(&kv, 0);
                }
                for p in 0..pages as u64 {
                    g.touch(p, 1);
                }
            }
        }
        _ => {
            let part = (pages as u64 / 4).max(1);
            let kvs = [g.kv(0, part), g.kv(part.min(pages as u64 - 1), part)];
            let (mut a, mut b) = (0, 0);
            while g.more() {
                g.get(&kvs[0], 0);
                g.get(&kvs[1], 1);
                g.touch(2 * part + a % part, 2);
                g.touch(3 * part + b % part, 3);
                a += 1;
                b += 1;
            }
        }
    }
    Some(Trace {
        name: format!("{name} (seed {seed})"),
        share: 1.0,
        pages: g.pages as usize,
        events: g.events,
    })
}

struct Kv {
    zipf: Zipf,
    /// Page of each key, by rank.
    place: Vec<u64>,
}

struct Gen {
    rng: Rng,
    pages: u64,
    limit: usize,
    events: Vec<Event>,
}

impl Gen {
    fn new(seed: u64, pages: usize, accesses: usize) -> Gen {
        let mut g = Gen {
            rng: Rng(seed),
            pages: pages as u64,
            limit: pages + accesses,
            events: Vec::new(),
        };
        for p in 0..pages as u64 {
            g.touch(p, 0);
        }
        g
    }
    fn more(&self) -> bool {
        self.events.len() < self.limit
    }
    fn touch(&mut self, page: u64, thread: u16) {
        let page = page.min(self.pages - 1) as u32;
        if self.more() {
            self.events.push(Event {
                page,
                thread,
                op: Op::Touch,
            });
        }
    }
    fn permutation(&mut self, n: u64) -> Vec<u64> {
        let mut v: Vec<u64> = (0..n).collect();
        for i in (1..v.len()).rev() {
            v.swap(i, self.rng.below(i as u64 + 1) as usize);
        }
        v
    }
    fn kv(&mut self, first: u64, pages: u64) -> Kv {
        let keys = pages * KEYS_PER_PAGE;
        let place = self
            .permutation(keys)
            .into_iter()
            .map(|k| first + k / KEYS_PER_PAGE)
            .collect();
        Kv {
            zipf: Zipf::new(keys, 0.99),
            place,
        }
    }
    fn get(&mut self, kv: &Kv, thread: u16) {
        let rank = kv.zipf.rank(&mut self.rng);
        self.touch(kv.place[rank as usize], thread);
    }
    fn passes(&mut self, first: u64, pages: u64, stride: u64, thread: u16) {
        while self.more() {
            for offset in 0..stride.min(pages) {
                for p in (offset..pages).step_by(stride as usize) {
                    self.touch(first + p, thread);
                }
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn every_name_gives_a_string_of_the_wanted_length() {
        for name in names() {
            let t = generate(name, 7, 1000, 5000).unwrap();
            assert_eq!(t.events.len(), 6000, "{name}");
            assert_eq!(t.footprint(), 1000, "{name}");
            assert!(
                t.events.iter().all(|e| (e.page as usize) < t.pages),
                "{name}"
            );
        }
        assert!(generate("no such", 7, 1000, 10).is_none());
    }

    #[test]
    fn tiny_strings_work() {
        for name in names() {
            for pages in [1, 2, 5] {
                assert_eq!(
                    generate(name, 1, pages, 30).unwrap().events.len(),
                    pages + 30,
                    "{name} {pages}"
                );
            }
        }
    }

    #[test]
    fn the_seed_decides() {
        for name in ["random", "kv", "phases"] {
            let of = |seed| generate(name, seed, 500, 2000).unwrap().events;
            assert_eq!(of(3), of(3));
            assert_ne!(of(3), of(4));
        }
    }

    #[test]
    fn zipf_is_skewed_as_it_should_be() {
        let zipf = Zipf::new(1000, 0.99);
        let mut rng = Rng(5);
        let n = 100_000;
        let mut count = vec![0u32; 1000];
        for _ in 0..n {
            count[zipf.rank(&mut rng) as usize] += 1;
        }
        for rank in [0usize, 1] {
            let want = n as f64 / ((rank + 1) as f64).powf(0.99) / zipf.zeta;
            assert!(
                (f64::from(count[rank]) - want).abs() < want * 0.1,
                "rank {rank}: {} of {want}",
                count[rank]
            );
        }
        assert!(count[999] < count[1] / 20);
    }
}
