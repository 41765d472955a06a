//! Tenants with a bounded number of requests in a closed loop, and links that move bytes one request after the other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use canvas_sched::{
    Class, Decision, LinkConfig, LinkId, LinkStats, PIECE_BYTES_MAX, PIECE_BYTES_MIN, Scheduler,
    TenantConfig, TenantId, Ticket, WINDOW_BYTES_MAX, WINDOW_BYTES_MIN,
};

/// Hosts that answer at once: the shortest round trip is all of it.
const IDEAL: LinkConfig = LinkConfig {
    window_bytes_min: WINDOW_BYTES_MIN,
    window_bytes_max: WINDOW_BYTES_MAX,
    round_trip_ns_min: 0,
    piece_bytes: (PIECE_BYTES_MIN, PIECE_BYTES_MAX),
};

/// A link: first come, first served at `bytes_s`, and half of `base_ns` each way.
#[derive(Clone, Copy)]
pub struct Pipe {
    pub bytes_s: u64,
    pub base_ns: u64,
}

impl Pipe {
    /// A request's time on the link alone.
    pub fn ns(&self, bytes: u32) -> u64 {
        u64::from(bytes) * 1_000_000_000 / self.bytes_s
    }
}

/// Requests of one kind that a tenant keeps submitting: `outstanding` at a time, each again after `think_ns` on
/// average.
#[derive(Clone, Copy)]
pub struct Load {
    pub class: Class,
    pub bytes: u32,
    pub outstanding: u32,
    pub think_ns: u64,
    pub link: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Post {
        tenant: u64,
        load: usize,
        life: u32,
    },
    Done {
        tenant: u64,
        load: usize,
        ticket: Ticket,
        posted_ns: u64,
        bytes: u32,
        life: u32,
    },
}

struct Tenant {
    config: TenantConfig,
    loads: Vec<Load>,
    /// Grows with each [`World::replace`]: events of the former tenant belong to nobody.
    life: u32,
    bytes: [u64; 3],
    latencies: [Vec<u64>; 3],
    submitted: u64,
    over: u64,
}

pub struct World {
    pub sched: Scheduler,
    now: u64,
    since: u64,
    rng: fastrand::Rng,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    pipes: Vec<Pipe>,
    links: Vec<LinkId>,
    free_ns: Vec<u64>,
    moved: Vec<u64>,
    tenants: Vec<Tenant>,
    /// Ends of requests whose tenants had already left.
    strays: u64,
}

impl World {
    pub fn new(seed: u64, pipes: &[Pipe]) -> World {
        let mut sched = Scheduler::new();
        let links = pipes
            .iter()
            .map(|_| sched.add_link(IDEAL).unwrap())
            .collect();
        World {
            sched,
            now: 0,
            since: 0,
            rng: fastrand::Rng::with_seed(seed),
            events: BinaryHeap::new(),
            order: 0,
            pipes: pipes.to_vec(),
            links,
            free_ns: vec![0; pipes.len()],
            moved: vec![0; pipes.len()],
            tenants: Vec::new(),
            strays: 0,
        }
    }

    /// Tenants have the numbers 0, 1, ...
    pub fn tenant(&mut self, id: u64, config: TenantConfig, loads: &[Load]) {
        assert_eq!(id as usize, self.tenants.len());
        self.sched.add_tenant(TenantId(id), config).unwrap();
        self.tenants.push(Tenant {
            config,
            loads: loads.to_vec(),
            life: 0,
            bytes: [0; 3],
            latencies: Default::default(),
            submitted: 0,
            over: 0,
        });
        self.start(id);
    }

    fn start(&mut self, tenant: u64) {
        let t = &self.tenants[tenant as usize];
        let life = t.life;
        for (load, l) in t.loads.clone().into_iter().enumerate() {
            for _ in 0..l.outstanding {
                self.think(Event::Post { tenant, load, life }, l.think_ns.max(1000));
            }
        }
    }

    /// The tenant leaves, with requests under way, and starts again.
    pub fn replace(&mut self, id: u64) {
        let gone = self.sched.remove_tenant(TenantId(id)).unwrap().len() as u64;
        let t = &mut self.tenants[id as usize];
        t.over += gone;
        t.life += 1;
        self.sched.add_tenant(TenantId(id), t.config).unwrap();
        self.start(id);
    }

    fn at(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    fn think(&mut self, event: Event, mean_ns: u64) {
        let ns = -(1.0 - self.rng.f64()).ln() * mean_ns as f64;
        self.at(self.now + ns as u64, event);
    }

    pub fn run(&mut self, ns: u64) {
        let end = self.now + ns;
        loop {
            self.pump();
            let event = self.events.peek().map_or(end, |Reverse((at, ..))| *at);
            let due = self.sched.next_due().unwrap_or(end);
            assert!(due > self.now, "a limit that is over");
            self.now = event.min(due).min(end);
            if self.now == end {
                break;
            }
            while let Some(Reverse((at, ..))) = self.events.peek()
                && *at <= self.now
            {
                let Reverse((_, _, event)) = self.events.pop().unwrap();
                self.apply(event);
            }
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Post { tenant, load, life } => {
                let t = &mut self.tenants[tenant as usize];
                if t.life != life {
                    return;
                }
                let l = t.loads[load];
                t.submitted += 1;
                let (id, link) = (TenantId(tenant), self.links[l.link]);
                let tag = load as u64 | u64::from(life) << 32;
                self.sched
                    .submit(id, l.class, link, l.bytes, tag, self.now)
                    .unwrap();
            }
            Event::Done {
                tenant,
                load,
                ticket,
                posted_ns,
                bytes,
                life,
            } => {
                let t = &mut self.tenants[tenant as usize];
                // The end of a request whose tenant has left changes nothing.
                let counts = t.life == life;
                assert_eq!(self.sched.done(ticket, self.now), counts);
                self.strays += u64::from(!counts);
                t.over += 1;
                let l = t.loads[load];
                t.bytes[l.class as usize] += u64::from(bytes);
                self.moved[l.link] += u64::from(bytes);
                t.latencies[l.class as usize].push(self.now - posted_ns);
                if t.life == life {
                    self.think(Event::Post { tenant, load, life }, l.think_ns);
                }
            }
        }
    }

    fn pump(&mut self) {
        while let Some(decision) = self.sched.next(self.now) {
            match decision {
                Decision::Send(r) => {
                    let (tenant, load, life) =
                        (r.tenant.0, r.tag as u32 as usize, (r.tag >> 32) as u32);
                    let at = self.tenants[tenant as usize].loads[load].link;
                    let pipe = self.pipes[at];
                    let begin = self.free_ns[at].max(self.now + pipe.base_ns / 2);
                    self.free_ns[at] = begin + pipe.ns(r.bytes);
                    let (ticket, posted_ns, bytes) = (r.ticket, r.posted_ns, r.bytes);
                    let done = Event::Done {
                        tenant,
                        load,
                        ticket,
                        posted_ns,
                        bytes,
                        life,
                    };
                    self.at(self.free_ns[at] + pipe.base_ns / 2, done);
                }
                Decision::Drop(r) => {
                    let (tenant, load, life) =
                        (r.tenant.0, r.tag as u32 as usize, (r.tag >> 32) as u32);
                    let t = &mut self.tenants[tenant as usize];
                    t.over += 1;
                    let l = t.loads[load];
                    self.think(Event::Post { tenant, load, life }, l.think_ns.max(1000));
                }
            }
        }
    }

    /// Restarts the statistics.
    pub fn reset(&mut self) {
        self.since = self.now;
        self.moved.fill(0);
        for t in &mut self.tenants {
            t.bytes = [0; 3];
            t.latencies = Default::default();
        }
    }

    pub fn set_rate(&mut self, link: usize, bytes_s: u64) {
        self.pipes[link].bytes_s = bytes_s;
    }

    pub fn bytes(&self, tenant: u64) -> u64 {
        self.tenants[tenant as usize].bytes.iter().sum()
    }

    pub fn class_bytes(&self, tenant: u64, class: Class) -> u64 {
        self.tenants[tenant as usize].bytes[class as usize]
    }

    /// Bytes moved over bytes that could have been moved.
    pub fn link_use(&self, link: usize) -> f64 {
        let could = self.pipes[link].bytes_s as f64 * (self.now - self.since) as f64 / 1e9;
        self.moved[link] as f64 / could
    }

    pub fn link_stats(&self, link: usize) -> LinkStats {
        self.sched.link_stats(self.links[link]).unwrap()
    }

    /// Times from posting to the end, of ended requests.
    pub fn latency_ns(&mut self, tenant: u64, class: Class, per_mille: usize) -> u64 {
        let all = &mut self.tenants[tenant as usize].latencies[class as usize];
        all.sort_unstable();
        all[(all.len() * per_mille / 1000).min(all.len() - 1)]
    }

    /// Every submitted request has ended, waits, or is under way.
    pub fn check_counts(&self) {
        let mut under_way = 0;
        for Reverse((_, _, event)) in &self.events {
            under_way += u64::from(matches!(event, Event::Done { .. }));
        }
        let (mut submitted, mut over, mut queued) = (0, 0, 0);
        for (id, t) in self.tenants.iter().enumerate() {
            submitted += t.submitted;
            over += t.over;
            let stats = self.sched.stats(TenantId(id as u64)).unwrap();
            queued += stats
                .classes
                .iter()
                .map(|c| u64::from(c.queued))
                .sum::<u64>();
        }
        assert_eq!(submitted, over + queued + under_way);
        assert_eq!(self.sched.strays(), self.strays);
    }
}
