//! All hosts and tenants, the network between them, and injected faults.

use canvas_place::headroom;
use canvas_place::pace::Pace;
use canvas_place::replicas::repair::Repairs;
use canvas_place::replicas::{
    CONNECT_PAUSE_NS, CONNECT_PAUSE_NS_MAX, ConnectionState, Map, Policy, TICK_NS,
};

use crate::agent::{Agent, DONORS_MAX, Donor, Known, OPS_MAX, Sent};
use crate::engine::{MS, Ns, Queue, SEC, Trace, US};
use crate::host::{Host, LOOK_NS, Life, Refused};
use crate::{EXTENTS_MAX, SLAB_BYTES};

/// Most hosts of a simulation.
pub const HOSTS_MAX: usize = 10_000;
/// Duration of a failing attempt to connect: the agent's timeout.
const CONNECT_NS: Ns = SEC;

/// How a tenant chooses a donor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chooser {
    /// As the product does: the better of two random donors.
    TwoChoices,
    /// A random donor with enough memory.
    Random,
    /// The donor with the most free memory, as far as the tenant knows.
    Best,
}

/// Configuration of a simulation.
#[derive(Clone, Debug)]
pub struct Config {
    /// Seed of all random numbers.
    pub seed: u64,
    /// Number of hosts, all of which lend.
    pub hosts: usize,
    /// Number of tenants; the n-th runs on host n modulo hosts.
    pub tenants: usize,
    /// Number of donors that a tenant knows, drawn from all other hosts.
    pub donors: usize,
    /// Copies or shards of each slab; may change during the run ([`World::switch`]).
    pub policy: Policy,
    /// Whether tenants have a disk, even if the policy does not use it.
    pub has_disk: bool,
    /// How tenants choose donors.
    pub chooser: Chooser,
    /// Memory of a host.
    pub host_bytes: u64,
    /// Range of the memory of a host's own programs, from which it is drawn.
    pub own_bytes: (u64, u64),
    /// Memory reserved for a host's own programs.
    pub reserve_bytes: u64,
    /// Most memory that a host lends.
    pub lend_bytes: u64,
    /// Size of a slab; the product's by default.
    pub slab_bytes: u64,
    /// Number of slabs of a tenant.
    pub slabs: usize,
    /// Host and number of slabs of each tenant, if they differ.
    pub mix: Vec<(u32, usize)>,
    /// Memory of each host's own programs, if it is not drawn.
    pub own: Vec<u64>,
    /// Simulated extents per slab; each stands for an equal part of it.
    pub extents: usize,
    /// Interval between two requests of a tenant's program.
    pub load_ns: Ns,
    /// Most requests of a program outstanding at one time.
    pub depth: usize,
    /// Interval of pings, which is the age of what placement knows of donors.
    pub ping_ns: Ns,
    /// Time that a read waits for absent donors (`far-wait`).
    pub wait_ns: Ns,
    /// One-way latency of the network.
    pub latency_ns: Ns,
    /// Bandwidth of a host's link in bytes per microsecond (1250 is 10 Gbit/s).
    pub net_bytes_per_us: u64,
    /// Bandwidth of a host's disk in bytes per microsecond.
    pub disk_bytes_per_us: u64,
}

impl Config {
    /// A small pool: hosts of 64 GiB, a tenth of that in reserve, 10 Gbit/s, disks of 500 MB/s.
    pub fn new(seed: u64, hosts: usize, policy: Policy) -> Config {
        Config {
            seed,
            hosts,
            tenants: hosts,
            donors: (hosts - 1).min(DONORS_MAX),
            policy,
            has_disk: policy.disk,
            chooser: Chooser::TwoChoices,
            host_bytes: 64 << 30,
            own_bytes: (16 << 30, 32 << 30),
            reserve_bytes: (64 << 30) / 10,
            lend_bytes: 64 << 30,
            slab_bytes: SLAB_BYTES,
            slabs: 8,
            mix: Vec::new(),
            own: Vec::new(),
            depth: 16,
            extents: 16,
            load_ns: 2 * MS,
            ping_ns: SEC,
            wait_ns: 30 * SEC,
            latency_ns: 25 * US,
            net_bytes_per_us: 1250,
            disk_bytes_per_us: 500,
        }
    }

    fn check(&self) {
        assert!((2..=HOSTS_MAX).contains(&self.hosts), "2 to 10,000 hosts");
        assert!(self.tenants >= 1 && self.tenants <= 4 * HOSTS_MAX);
        assert!((1..=DONORS_MAX.min(self.hosts - 1)).contains(&self.donors));
        assert!((1..=EXTENTS_MAX).contains(&self.extents) && self.extents.is_power_of_two());
        assert!((1..=OPS_MAX).contains(&self.depth));
        assert!(self.slab_bytes.is_power_of_two() && self.slab_bytes <= self.lend_bytes);
        assert!(self.slabs >= 1 && self.slabs <= 4096);
        assert!(self.policy.donors <= 3 || self.policy.code.is_some());
        assert!(self.policy.donors >= 1 || self.policy.disk);
        assert!(self.has_disk || !self.policy.disk);
        assert!(self.own_bytes.0 <= self.own_bytes.1 && self.own_bytes.1 <= self.host_bytes);
        assert!(self.load_ns > 0 && self.ping_ns > 0);
    }

    /// Bytes that one donor stores for `bytes`: all, or a shard.
    pub fn part_of(&self, bytes: u64) -> u64 {
        self.policy
            .code
            .map_or(bytes, |code| bytes / code.data() as u64)
    }

    /// Bytes that a simulated extent stands for.
    pub fn extent_bytes(&self) -> u64 {
        self.slab_bytes / self.extents as u64
    }
}

/// A fault, or its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The host dies and loses its memory, and its tenants die with it.
    Die,
    /// Its donor hangs; messages to it wait.
    Hang,
    /// The host works again: a dead one with empty memory, a hung one with all of it.
    Rise,
}

/// A request to a donor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    Alloc(u32),
    Write(u64, usize, u64),
    Read(u64, usize),
    Free(u64),
    List,
    Ping,
    Activity(u64, u64),
    EvictDone(u64),
}

/// A donor's answer, or its own request.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Allocated(u64),
    Refused(Refused),
    Done,
    Data(u64),
    Handles(Vec<u64>),
    Pong { free_bytes: u64, pressure: bool },
}

/// Context of a message: tenant, the tenant's donor, connection, run of the donor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Via {
    pub agent: u32,
    pub donor: u32,
    pub link: u32,
    pub run: u64,
    pub client: u64,
}

pub(crate) enum Event {
    Tick(u32),
    Ping(u32),
    Load(u32),
    Look(u32),
    Connect(u32, u32),
    Request(Via, u64, Request),
    Answer(Via, u64, Answer),
    Query(Via, u64),
    Stop(Via, u64, Ns),
    /// A donor has been silent about a read for too long: tenant, its life, request, donor.
    Hedge(u32, u64, u32, u32),
    /// The disk has finished: tenant, its life, request (or repair from [`crate::client::OURS`] on).
    Disk(u32, u64, u32),
}

/// Counters of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Writes that became durable.
    pub writes: u64,
    /// Writes that did not become durable; the program keeps its own copy.
    pub writes_refused: u64,
    /// Reads answered with the right version.
    pub reads: u64,
    /// Reads answered by the disk.
    pub disk_reads: u64,
    /// Times that a read moved on to another copy.
    pub failovers: u64,
    /// Times that another copy was asked as well because a donor was silent.
    pub hedged: u64,
    /// Times that a copy had another version than the program's and was rejected.
    pub stale: u64,
    /// Reads that no copy could answer at that time.
    pub unanswered: u64,
    /// Extents repaired.
    pub repaired: u64,
    /// Slabs placed.
    pub placed: u64,
    /// Requests for a slab that were refused.
    pub refused: u64,
    /// Slabs evicted by donors.
    pub evicted: u64,
    /// Evicted slabs freed at the deadline, before their owners had moved them.
    pub evicted_late: u64,
    /// Copies that their owners moved because the donor evicts them.
    pub moved: u64,
    /// Passes of the watchdog that found a host with lent memory below its reserve.
    pub below_reserve: u64,
    /// Largest shortfall below the reserve, in bytes.
    pub below_reserve_bytes_max: u64,
    /// Number of events.
    pub events: u64,
}

/// State of a simulation.
pub struct World {
    /// Its configuration.
    pub config: Config,
    /// Hosts.
    pub hosts: Vec<Host>,
    /// Tenants.
    pub agents: Vec<Agent>,
    /// Its counters.
    pub stats: Stats,
    /// Hash of its events.
    pub trace: Trace,
    pub(crate) queue: Queue<Event>,
    pub(crate) next_tag: u64,
    /// Events waiting for hung hosts.
    backlog: Vec<(u32, Event)>,
    lives: u64,
}

impl World {
    /// A new world: nothing is lent, and all connections are established.
    pub fn new(config: Config) -> World {
        config.check();
        let mut rng = fastrand::Rng::with_seed(config.seed);
        let bounds =
            headroom::Config::new(config.lend_bytes, config.reserve_bytes, config.slab_bytes);
        let hosts: Vec<Host> = (0..config.hosts)
            .map(|h| {
                let drawn = rng.u64(config.own_bytes.0..=config.own_bytes.1);
                let own = config.own.get(h).copied().unwrap_or(drawn);
                Host::new(bounds, &config, own, rng.u64(..))
            })
            .collect();
        let mut world = World {
            hosts,
            agents: Vec::with_capacity(config.tenants),
            stats: Stats::default(),
            trace: Trace::default(),
            queue: Queue::default(),
            next_tag: 1,
            backlog: Vec::new(),
            lives: 0,
            config,
        };
        for i in 0..world.config.tenants {
            let alike = ((i % world.config.hosts) as u32, world.config.slabs);
            let (host, slabs) = world.config.mix.get(i).copied().unwrap_or(alike);
            let agent = world.tenant(host, slabs, &mut rng);
            world.agents.push(agent);
            let a = i as u32;
            // Staggers the pings.
            let at = rng.u64(0..world.config.ping_ns);
            world.queue.put(at, Event::Ping(a));
            let at = rng.u64(0..world.config.load_ns);
            world.queue.put(at, Event::Load(a));
        }
        for h in 0..world.config.hosts {
            world.queue.put(rng.u64(0..LOOK_NS), Event::Look(h as u32));
        }
        world
    }

    /// A new tenant on a host, connected to donors drawn from the other hosts.
    fn tenant(&mut self, host: u32, slabs: usize, rng: &mut fastrand::Rng) -> Agent {
        self.lives += 1;
        let id = self.lives;
        let others = self.hosts.len() - 1;
        let mut known: Vec<u32> = Vec::with_capacity(self.config.donors);
        let numbers: Vec<u32> = (0..others as u32).collect();
        for n in canvas_place::victims::sample(rng, &numbers, self.config.donors) {
            known.push(if n >= host { n + 1 } else { n });
        }
        let donors = known
            .into_iter()
            .map(|h| {
                let there = &mut self.hosts[h as usize];
                there.hear(id, 0);
                Donor {
                    host: h,
                    state: ConnectionState::Up,
                    link: 0,
                    run: there.run,
                    free_bytes: there.free_bytes(),
                    pressure: there.pressure(),
                    pace: Pace::default(),
                    suspect: None,
                    pause_ns: CONNECT_PAUSE_NS,
                }
            })
            .collect();
        let donors = Known(donors);
        let extents = slabs * self.config.extents;
        Agent {
            id,
            host,
            alive: true,
            donors,
            map: Map::new(),
            seals: vec![0; extents],
            disk: vec![0; extents],
            next_seal: 1,
            ops: Default::default(),
            next_op: 0,
            calls: Default::default(),
            away: Vec::new(),
            repairs: Repairs::new(self.config.extents),
            gatherings: Default::default(),
            ticking: false,
            degraded: 0,
            fill: 0,
            rng: fastrand::Rng::with_seed(rng.u64(..)),
            program: fastrand::Rng::with_seed(rng.u64(..)),
        }
    }

    /// The simulated time.
    pub fn now(&self) -> Ns {
        self.queue.now()
    }

    /// Runs all events up to a time.
    pub fn run_until(&mut self, until: Ns) {
        while let Some(event) = self.queue.next(until) {
            self.handle(event);
        }
    }

    /// Runs until `done`, at most for `at_most`; returns the duration, or `None` if it was too short.
    pub fn run_while(&mut self, at_most: Ns, mut done: impl FnMut(&World) -> bool) -> Option<Ns> {
        let (start, step) = (self.now(), TICK_NS);
        while !done(self) {
            if self.now() - start >= at_most {
                return None;
            }
            self.run_until(self.now() + step);
        }
        Some(self.now() - start)
    }

    fn handle(&mut self, event: Event) {
        self.stats.events += 1;
        let now = self.now();
        let words: [u64; 3] = match &event {
            Event::Tick(a) => [1, (*a).into(), 0],
            Event::Ping(a) => [2, (*a).into(), 0],
            Event::Load(a) => [3, (*a).into(), 0],
            Event::Look(h) => [4, (*h).into(), self.hosts[*h as usize].touched_bytes()],
            Event::Connect(a, d) => [5, (*a).into(), (*d).into()],
            Event::Request(via, tag, _) => [6, via.client, *tag],
            Event::Answer(via, tag, _) => [7, via.client, *tag],
            Event::Query(via, handle) => [8, via.client, *handle],
            Event::Stop(via, handle, _) => [9, via.client, *handle],
            Event::Disk(a, _, id) => [10, (*a).into(), (*id).into()],
            Event::Hedge(_, life, id, _) => [12, *life, (*id).into()],
        };
        self.trace.add(&[now, words[0], words[1], words[2]]);
        match event {
            Event::Tick(a) => self.tick(a as usize),
            Event::Ping(a) => {
                self.queue.put(now + self.config.ping_ns, Event::Ping(a));
                self.ping(a as usize);
            }
            Event::Load(a) => {
                self.queue.put(now + self.config.load_ns, Event::Load(a));
                self.load(a as usize);
            }
            Event::Look(h) => self.look(h),
            Event::Connect(a, d) => self.connect(a as usize, d as usize),
            Event::Request(via, tag, request) => self.request(via, tag, request),
            Event::Answer(via, tag, answer) => {
                if let Some(sent) = self.heard(via, tag) {
                    self.on_answer(via.agent as usize, sent, Some(answer));
                }
            }
            Event::Query(via, handle) => self.asked_activity(via, handle),
            Event::Stop(via, handle, until) => self.asked_stop(via, handle, until),
            Event::Disk(a, life, id) => self.disk_did(a as usize, life, id),
            Event::Hedge(a, life, id, d) => self.hedge(a as usize, life, id, d as usize),
        }
    }

    /// Whether the connection of a message is still the present one.
    pub(crate) fn stands(&self, via: Via) -> bool {
        let agent = &self.agents[via.agent as usize];
        let donor = &agent.donors[via.donor as usize];
        agent.alive && agent.id == via.client && donor.link == via.link && !donor.is_down()
    }

    fn heard(&mut self, via: Via, tag: u64) -> Option<Sent> {
        if !self.stands(via) {
            return None;
        }
        let calls = &mut self.agents[via.agent as usize].calls;
        calls.remove(&tag)
    }

    pub(crate) fn via(&self, a: usize, d: usize) -> Via {
        let agent = &self.agents[a];
        Via {
            agent: a as u32,
            donor: d as u32,
            link: agent.donors[d].link,
            run: agent.donors[d].run,
            client: agent.id,
        }
    }

    /// Time at which `bytes` sent now, to or from a host, have arrived.
    pub(crate) fn transfer(&mut self, host: usize, bytes: u64) -> Ns {
        let takes = bytes * US / self.config.net_bytes_per_us;
        let now = self.now();
        let busy = &mut self.hosts[host].net_busy;
        *busy = (*busy).max(now) + takes;
        *busy + self.config.latency_ns
    }

    /// Time at which a host's disk has read or written an extent.
    pub(crate) fn disk_takes(&mut self, host: usize) -> Ns {
        let takes = 100 * US + self.config.extent_bytes() * US / self.config.disk_bytes_per_us;
        let now = self.now();
        let busy = &mut self.hosts[host].disk_busy;
        *busy = (*busy).max(now) + takes;
        *busy
    }

    /// Delivers a request to a donor.
    fn request(&mut self, via: Via, tag: u64, request: Request) {
        let h = self.agents[via.agent as usize].donors[via.donor as usize].host;
        let host = &mut self.hosts[h as usize];
        match host.life {
            Life::Dead => return,
            // The kernel accepts the message and keeps it for the process.
            Life::Hung => {
                self.backlog.push((h, Event::Request(via, tag, request)));
                return;
            }
            Life::Up => {}
        }
        if host.run != via.run {
            return;
        }
        let now = self.queue.now();
        host.hear(via.client, now);
        let client = via.client;
        let or = |r: Refused| Answer::Refused(r);
        let answer = match request {
            Request::Alloc(slab) => host.alloc(client, slab).map_or_else(or, Answer::Allocated),
            Request::Write(handle, within, version) => host
                .write(client, handle, within, version)
                .map_or_else(or, |()| Answer::Done),
            Request::Read(handle, within) => {
                let read = host.read(client, handle, within);
                if read.is_ok() {
                    host.note_read(handle);
                }
                read.map_or_else(or, Answer::Data)
            }
            Request::Free(handle) => {
                host.free(client, handle);
                Answer::Done
            }
            Request::List => Answer::Handles(host.list(client)),
            Request::Ping => Answer::Pong {
                free_bytes: host.free_bytes(),
                pressure: host.pressure(),
            },
            Request::Activity(handle, ops) => return host.note_activity(client, handle, ops),
            Request::EvictDone(handle) => return host.evict_done(client, handle),
        };
        let bytes = match answer {
            Answer::Data(_) => self.config.part_of(self.config.extent_bytes()),
            _ => 64,
        };
        let at = self.transfer(h as usize, bytes);
        self.queue.put(at, Event::Answer(via, tag, answer));
    }

    /// Runs the watchdog of a host's donor.
    fn look(&mut self, h: u32) {
        let now = self.now();
        self.queue.put(now + LOOK_NS, Event::Look(h));
        let host = &mut self.hosts[h as usize];
        host.grow(LOOK_NS);
        if host.life != Life::Up {
            return;
        }
        let orders = host.look(now);
        let short = host.reserve_bytes().saturating_sub(host.available_bytes());
        let short = short.min(host.touched_bytes());
        if short > 0 {
            self.stats.below_reserve += 1;
            self.stats.below_reserve_bytes_max = self.stats.below_reserve_bytes_max.max(short);
        }
        self.stats.evicted_late += orders.late as u64;
        for (client, handle) in orders.query {
            if let Some(via) = self.owner(h, client) {
                let at = now + self.config.latency_ns;
                self.queue.put(at, Event::Query(via, handle));
            }
        }
        for (client, handle, until) in orders.stop {
            self.stats.evicted += 1;
            if let Some(via) = self.owner(h, client) {
                let at = now + self.config.latency_ns;
                self.queue.put(at, Event::Stop(via, handle, until));
            }
        }
    }

    /// The connection of a donor's client, if it is established.
    fn owner(&self, h: u32, client: u64) -> Option<Via> {
        let a = self.agent_of(client)?;
        let d = self.agents[a].donors.0.iter().position(|d| d.host == h)?;
        let via = self.via(a, d);
        self.stands(via).then_some(via)
    }

    fn agent_of(&self, client: u64) -> Option<usize> {
        // Tenants in their first life are numbered in order; later lives are few.
        let first = client as usize - 1;
        if self.agents.get(first).is_some_and(|a| a.id == client) {
            return Some(first);
        }
        self.agents.iter().position(|a| a.id == client)
    }

    /// Ends an attempt to connect.
    fn connect(&mut self, a: usize, d: usize) {
        let agent = &self.agents[a];
        if !agent.alive || !agent.donors[d].is_down() {
            return;
        }
        let (id, h, now) = (agent.id, agent.donors[d].host as usize, self.now());
        if self.hosts[h].life != Life::Up {
            let donor = &mut self.agents[a].donors[d];
            let pause = donor.pause_ns;
            donor.pause_ns = (2 * pause).min(CONNECT_PAUSE_NS_MAX);
            let at = now + CONNECT_NS + pause;
            self.queue.put(at, Event::Connect(a as u32, d as u32));
            return;
        }
        let host = &mut self.hosts[h];
        host.hear(id, now);
        let (run, free_bytes, leaving) = (host.run, host.free_bytes(), host.leaving(id));
        let donor = &mut self.agents[a].donors[d];
        donor.state = ConnectionState::Listing;
        donor.suspect = None;
        (donor.run, donor.free_bytes, donor.pressure) = (run, free_bytes, false);
        self.connected(a, d);
        let via = self.via(a, d);
        for (handle, until) in leaving {
            self.queue.put(
                now + self.config.latency_ns,
                Event::Stop(via, handle, until),
            );
        }
    }

    /// Closes the connection to a donor and schedules the next attempt.
    pub(crate) fn lost(&mut self, a: usize, d: usize) {
        let now = self.now();
        let agent = &mut self.agents[a];
        let donor = &mut agent.donors[d];
        if donor.is_down() {
            return;
        }
        donor.state = ConnectionState::Down { since_ns: now };
        donor.link += 1;
        donor.pause_ns = CONNECT_PAUSE_NS;
        // The first attempt is made at once.
        let at = now + 4 * self.config.latency_ns;
        self.queue.put(at, Event::Connect(a as u32, d as u32));
        let its = |c: &Sent| c.donor == d;
        let tags: Vec<u64> = agent
            .calls
            .iter()
            .filter(|(_, c)| its(c))
            .map(|(t, _)| *t)
            .collect();
        for tag in tags {
            if let Some(sent) = self.agents[a].calls.remove(&tag) {
                self.on_answer(a, sent, None);
            }
        }
        self.kick(a);
    }

    /// Schedules an early tick of an agent.
    pub(crate) fn kick(&mut self, a: usize) {
        let at = self.now() + TICK_NS;
        let agent = &mut self.agents[a];
        if !agent.ticking && agent.alive {
            agent.ticking = true;
            self.queue.put(at, Event::Tick(a as u32));
        }
    }

    /// Injects a fault now.
    pub fn fault(&mut self, h: usize, fault: Fault) {
        let now = self.now();
        self.trace.add(&[now, 11, h as u64, fault as u64]);
        match (fault, self.hosts[h].life) {
            (Fault::Die, Life::Up | Life::Hung) => {
                self.hosts[h].die();
                self.backlog.retain(|(host, _)| *host as usize != h);
                for a in 0..self.agents.len() {
                    if self.agents[a].host as usize == h {
                        self.end_tenant(a);
                    }
                }
            }
            (Fault::Hang, Life::Up) => self.hosts[h].life = Life::Hung,
            (Fault::Rise, Life::Dead) => self.hosts[h].rise(),
            (Fault::Rise, Life::Hung) => {
                self.hosts[h].rise();
                // Messages that the kernel kept are processed before new ones.
                let (its, others) = std::mem::take(&mut self.backlog)
                    .into_iter()
                    .partition(|(host, _)| *host as usize == h);
                self.backlog = others;
                let its: Vec<(u32, Event)> = its;
                for (_, event) in its {
                    self.handle(event);
                }
            }
            _ => {}
        }
    }

    /// Changes the policy of all tenants.
    pub fn switch(&mut self, policy: Policy) {
        // The form of a slab cannot change, and all slabs of a world have one form.
        assert!(self.config.policy.code.is_none() && policy.code.is_none());
        self.config.policy = policy;
        self.config.check();
        for a in 0..self.agents.len() {
            self.kick(a);
        }
    }

    fn end_tenant(&mut self, a: usize) {
        let agent = &mut self.agents[a];
        agent.alive = false;
        agent.ops.clear();
        agent.calls.clear();
        agent.map.clear();
        agent.seals.fill(0);
        agent.disk.fill(0);
        agent.away.clear();
        agent.repairs = Repairs::new(self.config.extents);
        agent.gatherings = Default::default();
        agent.degraded = 0;
    }
}
