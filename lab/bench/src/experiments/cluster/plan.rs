//! Schedule of events on the hosts of a cluster; all of it follows from the seed.

/// Infiniswap's memory constraints: share of a container's working set that may be local, in percent.
pub const PERCENTS: [u32; 3] = [100, 75, 50];
/// Programs that are not servers; one container in [`BATCH_EVERY`] runs one of them.
const BATCH: [&str; 3] = ["rmat-pagerank", "quicksort", "snappy"];
const BATCH_EVERY: usize = 4;
/// Share of a host's memory that the scheduler assigns.
const FULL: f64 = 0.85;
/// Assumed duration of batch programs; below, rate of filling a server and of reading all of it, in MiB/s.
const BATCH_S: f64 = 15.0;
const FILL_MIB: f64 = 25.0;

/// Kind of program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Redis,
    Memcached,
    Batch(&'static str),
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Redis => "redis",
            Kind::Memcached => "memcached",
            Kind::Batch(name) => name,
        }
    }

    pub fn is_server(self) -> bool {
        !matches!(self, Kind::Batch(_))
    }
}

/// A program with its data on a host; a server has a client for some seconds once it is filled.
#[derive(Clone, Debug, PartialEq)]
pub struct Container {
    pub name: String,
    pub kind: Kind,
    pub mib: u64,
    pub percent: u32,
    pub host: usize,
    pub at_s: f64,
    pub seconds: f64,
    pub seed: u64,
    /// Rate at which its client fills it, in bytes per second; `None` for as fast as possible.
    pub fill_bytes_s: Option<f64>,
}

impl Container {
    /// Estimated end.
    pub fn until_s(&self) -> f64 {
        self.at_s
            + match self.kind {
                Kind::Batch(_) => BATCH_S,
                _ => self.mib as f64 / FILL_MIB + self.seconds,
            }
    }

    /// Size of its local memory.
    fn limit_mib(&self) -> f64 {
        self.mib as f64 * f64::from(self.percent) / 100.0
    }
}

/// Size of a cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub hosts: usize,
    pub host_mib: u64,
    pub containers: usize,
    /// Time in which containers come and go.
    pub length_s: f64,
    /// Further time for the containers that are running then.
    pub patience_s: f64,
}

/// Containers, the last of which is the hungry one; and the host that dies with all its containers and comes
/// back.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub size: Size,
    pub containers: Vec<Container>,
    pub dies: usize,
    pub dies_s: f64,
    pub back_s: f64,
}

fn used_mib(containers: &[Container], host: usize, at_s: f64) -> f64 {
    let there = |c: &&Container| c.host == host && c.at_s <= at_s && at_s < c.until_s();
    containers
        .iter()
        .filter(there)
        .map(Container::limit_mib)
        .sum()
}

/// Peak memory of the containers on a host in a time.
fn most_mib(containers: &[Container], host: usize, from_s: f64, to_s: f64) -> f64 {
    let comes = containers.iter().map(|c| c.at_s);
    let moments = comes.filter(|at_s| (from_s..to_s).contains(at_s));
    let moments = std::iter::once(from_s).chain(moments);
    moments
        .map(|at_s| used_mib(containers, host, at_s))
        .fold(0.0, f64::max)
}

fn least(hosts: impl Iterator<Item = usize>, by: impl Fn(usize) -> f64) -> usize {
    let all: Vec<(usize, f64)> = hosts.map(|h| (h, by(h))).collect();
    let found = all.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    found.map_or(0, |(host, _)| *host)
}

impl Plan {
    /// Half of the containers start at once, equally many of each constraint; most are servers.
    pub fn new(seed: u64, size: Size) -> Plan {
        let mut random = fastrand::Rng::with_seed(seed);
        let between =
            |random: &mut fastrand::Rng, low: f64, high: f64| low + (high - low) * random.f64();
        let mut percents: Vec<u32> = (0..size.containers)
            .map(|i| PERCENTS[i % PERCENTS.len()])
            .collect();
        random.shuffle(&mut percents);
        let mut placed: Vec<Container> = Vec::new();
        for (i, percent) in percents.into_iter().enumerate() {
            let turn = i / BATCH_EVERY;
            let kind = if i % BATCH_EVERY == BATCH_EVERY - 1 {
                Kind::Batch(BATCH[turn % BATCH.len()])
            } else {
                [Kind::Redis, Kind::Memcached][(i + turn) % 2]
            };
            let latest = if i < size.containers / 2 { 0.06 } else { 0.5 };
            let at_s = between(&mut random, 0.0, latest) * size.length_s;
            let share = match kind {
                Kind::Batch(_) => between(&mut random, 0.16, 0.25),
                _ => between(&mut random, 0.25, 0.5),
            };
            let mut c = Container {
                name: format!("{}-{i}", kind.name()),
                kind,
                mib: (share * size.host_mib as f64) as u64,
                percent,
                host: 0,
                at_s,
                seconds: between(&mut random, 0.55, 0.85) * (size.length_s - at_s),
                seed: random.u64(1..1 << 30),
                fill_bytes_s: None,
            };
            let full_mib = FULL * size.host_mib as f64;
            let has_room =
                |h: &usize| most_mib(&placed, *h, c.at_s, c.until_s()) + c.limit_mib() <= full_mib;
            let room: Vec<usize> = (0..size.hosts).filter(has_room).collect();
            if let Some(host) = random.choice(room) {
                c.host = host;
                placed.push(c);
            }
        }
        let hungry = hungry(&placed, &size, random.u64(1..1 << 30));
        let hungry_host = hungry.host;
        placed.push(hungry);
        let dies_s = 0.72 * size.length_s;
        // The emptiest host lends most; prefers hosts on which something runs.
        let others = (0..size.hosts).filter(|h| *h != hungry_host);
        let dies = least(others, |h| match used_mib(&placed, h, dies_s) {
            used if used > 0.0 => used,
            _ => f64::MAX,
        });
        Plan {
            size,
            containers: placed,
            dies,
            dies_s,
            back_s: dies_s + 0.08 * size.length_s,
        }
    }

    /// The program that wants the rest of the emptiest host's memory.
    pub fn hungry(&self) -> &Container {
        &self.containers[self.containers.len() - 1]
    }
}

fn hungry(placed: &[Container], size: &Size, seed: u64) -> Container {
    let mut c = Container {
        name: "hungry".to_owned(),
        kind: Kind::Redis,
        mib: 0,
        percent: 100,
        host: 0,
        at_s: 0.4 * size.length_s,
        seconds: 0.15 * size.length_s,
        seed,
        fill_bytes_s: Some(f64::from(48 << 20)),
    };
    let until_s = c.until_s() + size.host_mib as f64 / FILL_MIB;
    let most = |h: usize| most_mib(placed, h, c.at_s, until_s);
    let host = least(0..size.hosts, most);
    let left = (FULL * size.host_mib as f64 - most(host)) as u64;
    c.mib = left.max(size.host_mib / 8);
    c.host = host;
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size {
        hosts: 5,
        host_mib: 768,
        containers: 18,
        length_s: 100.0,
        patience_s: 40.0,
    };

    #[test]
    fn a_seed_says_all() {
        assert_eq!(Plan::new(7, SIZE), Plan::new(7, SIZE));
        assert_ne!(Plan::new(7, SIZE), Plan::new(8, SIZE));
    }

    #[test]
    fn hosts_are_never_fuller_than_a_scheduler_makes_them() {
        for seed in 1..30 {
            let plan = Plan::new(seed, SIZE);
            let hungry = plan.hungry();
            for host in 0..SIZE.hosts {
                let most = most_mib(&plan.containers, host, 0.0, 1000.0);
                // The hungry program has an eighth of the host even where less is left.
                let more = if host == hungry.host {
                    768.0 / 8.0
                } else {
                    0.0
                };
                assert!(
                    most <= FULL * 768.0 + more,
                    "seed {seed}: {most} MiB on {host}"
                );
            }
            assert_ne!(plan.dies, hungry.host);
            assert!(0.0 < plan.dies_s && plan.dies_s < plan.back_s && plan.back_s < 100.0);
        }
    }

    #[test]
    fn constraints_are_as_many_of_each() {
        let plan = Plan::new(
            1,
            Size {
                hosts: 64,
                containers: 90,
                ..SIZE
            },
        );
        let of = |p: u32| {
            plan.containers[..90]
                .iter()
                .filter(|c| c.percent == p)
                .count()
        };
        assert_eq!(PERCENTS.map(of), [30, 30, 30]);
        let batch = plan.containers.iter().filter(|c| !c.kind.is_server());
        assert_eq!(batch.count(), 22);
    }
}
