//! Access strings generated from a seed, to compare policies without real traces.

use super::{Event, Op, Trace};

/// A small generator (SplitMix64): a seed gives the same numbers on every host.
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
    /// A number from 0 (inclusive) to 1 (exclusive).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Zipf-distributed ranks, by the method of Gray et al. (SIGMOD'94), as YCSB generates them.
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

/// Values have 1 KiB.
const KEYS_PER_PAGE: u64 = 4;

/// Names that [`generate`] knows, each with the program it stands for.
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

/// Generates a first sequential pass over `pages` pages and `accesses` touches after it; returns `None` for
/// an unknown name.
pub fn generate(name: &str, seed: u64, pages: usize, accesses: usize) -> Option<Trace> {
    if pages == 0 || !names().any(|n| n == name) {
        return None;
    }
    let mut g = Gen::new(seed, pages, accesses);
    match name {
        "loop" => g.passes(0, pages as u64, 1, 0),
        "random" => g.random(),
        "zipf" => g.zipf(),
        "kv" => g.gets(),
        "kv-index" => g.kv_index(),
        "scan-zipf" => g.scan_zipf(),
        "phases" => g.phases(),
        "hot-cold" => g.hot_cold(),
        "strided" => g.passes(0, pages as u64, 7, 0),
        "gc" => g.gc(),
        _ => g.threads(),
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
    /// Page of each key, indexed by rank.
    place: Vec<u64>,
}

struct Gen {
    rng: Rng,
    pages: u64,
    limit: usize,
    events: Vec<Event>,
}

/// The access strings, one method per name.
impl Gen {
    /// Uniformly random touches.
    fn random(&mut self) {
        while self.more() {
            let p = self.rng.below(self.pages);
            self.touch(p, 0);
        }
    }

    /// Zipf 0.99 over scattered pages.
    fn zipf(&mut self) {
        let zipf = Zipf::new(self.pages, 0.99);
        let places = self.permutation(self.pages);
        while self.more() {
            let p = places[zipf.rank(&mut self.rng) as usize];
            self.touch(p, 0);
        }
    }

    /// Gets of keys with Zipf-distributed popularity.
    fn gets(&mut self) {
        let kv = self.kv(0, self.pages);
        while self.more() {
            self.get(&kv, 0);
        }
    }

    /// Each get touches a bucket of an index, then the key's page.
    fn kv_index(&mut self) {
        let index = (self.pages / 32).max(1);
        let kv = self.kv(index, self.pages - index.min(self.pages - 1));
        while self.more() {
            let rank = kv.zipf.rank(&mut self.rng);
            let bucket = rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % index;
            self.touch(bucket, 0);
            self.touch(kv.place[rank as usize], 0);
        }
    }

    /// Scans of a tenth of the pages between gets.
    fn scan_zipf(&mut self) {
        let kv = self.kv(0, self.pages);
        let scan = (self.pages / 10).max(1);
        while self.more() {
            for _ in 0..scan * 3 {
                self.get(&kv, 0);
            }
            let from = self.rng.below(self.pages);
            for i in 0..scan {
                self.touch((from + i) % self.pages, 1);
            }
        }
    }

    /// Gets in one of four parts of the pages; the part changes over time.
    fn phases(&mut self) {
        let part = (self.pages / 4).max(1);
        let per_phase = ((self.limit - self.pages as usize) / 8).max(1);
        let kvs: Vec<Kv> = (0..4)
            .map(|i| self.kv((i * part).min(self.pages - 1), part))
            .collect();
        let mut i = 0;
        while self.more() {
            for _ in 0..per_phase {
                self.get(&kvs[i % 4], 0);
            }
            i += 1;
        }
    }

    /// A tenth of the extents gets nine of ten touches.
    fn hot_cold(&mut self) {
        let extents = (self.pages / 16).max(1);
        let order = self.permutation(extents);
        let hot = (extents / 10).max(1);
        while self.more() {
            let is_hot = self.rng.below(10) != 0;
            let e = if is_hot {
                self.rng.below(hot)
            } else {
                self.rng.below(extents)
            };
            let p = order[e as usize] * 16 + self.rng.below(16);
            self.touch(p, 0);
        }
    }

    /// Gets in a nursery, while a second thread passes over the heap.
    fn gc(&mut self) {
        let nursery = (self.pages / 5).max(1);
        let kv = self.kv(0, nursery);
        while self.more() {
            for _ in 0..self.pages * 2 {
                self.get(&kv, 0);
            }
            for p in 0..self.pages {
                self.touch(p, 1);
            }
        }
    }

    /// Four threads: two scan, two get keys.
    fn threads(&mut self) {
        let part = (self.pages / 4).max(1);
        let kvs = [self.kv(0, part), self.kv(part.min(self.pages - 1), part)];
        let (mut a, mut b) = (0, 0);
        while self.more() {
            self.get(&kvs[0], 0);
            self.get(&kvs[1], 1);
            self.touch(2 * part + a % part, 2);
            self.touch(3 * part + b % part, 3);
            a += 1;
            b += 1;
        }
    }
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

#[cfg(test)]
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
