//! A store that keeps extents on donors, and on the local disk if the copies policy asks for it.
//!
//! * The copies policy may change while the tenant runs ([`switch`]).
//! * A write goes to all copies at once. What a copy misses (because its donor was unreachable or refused) is recorded
//!   by extent and repaired later: one mechanism serves donors that come back, donors that are lost for good and donors
//!   that reclaim their memory.
//! * A read goes to one copy, and fails over to the next when that one fails or is silent; the disk comes last
//!   ([`read`]).
//! * Every wait is bounded by the link's timeouts. A donor that does not answer in time is treated as one that closed
//!   the connection, and nothing waits for it before it answers again.
//!
//! * A donor may damage its data, or hold old data unknown to the agent (it did a write that the agent had given up).
//!   Such data do not verify at the reader, which then reads the next copy and records that the first one misses the
//!   extent. Data are verified before they are copied from one place to another.

pub mod donor;
mod free_all;
mod lanes;
pub mod line;
mod read;
mod repair;
mod shards;
mod status;
mod switch;
mod upkeep;
mod watch;
mod worth;
mod write;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use canvas_link::{Address, Completion, Completions, LinkConfig, SubmitError, Timeouts};
use canvas_place::choose::choose;
pub use canvas_place::replicas::Policy;
use canvas_place::replicas::placement::{self, PlacementResult};
use canvas_place::replicas::{
    ConnectionState, DonorView, Donors, Map, REQUEST_NS, Slab, TICK_NS, is_durable, map,
};
use canvas_shm::Far;
use canvas_shm::far::{SLAB_EXTENTS, SLABS_MAX, slab_state};
use canvas_wire::error::ErrorCode;
use canvas_wire::frame::{Answer, Call, Items, Reply, Request, SlabKey, Used};
use canvas_wire::key::ClusterKey;

use crate::block::Block;
use crate::copies::LiveCopies;
use crate::disk::Disk;
use crate::dispatch::IoLink;
use crate::erasure::Coder;
use crate::finder::Found;
use crate::idle::Waker;
use crate::journal::Journal;
use crate::seal::Sealer;
use crate::store::LogTopic;
use crate::store::{Direct, Event, Store, TRANSFER_COST};
use donor::{Donor, PROMPT_BYTES, State};
use line::{from_line, to_line};
use read::Reads;
use repair::Repairs;
use watch::Watch;
use write::Op;

const TICK: Duration = Duration::from_nanos(TICK_NS);
/// How often a link that owes no answer is polled while the agent is awake.
const QUIET: Duration = Duration::from_millis(1);
/// Lease requested from donors: a donor that hears nothing for this long frees the tenant's slabs.
const LEASE_MS: u32 = 30_000;
/// Disk operations of the store itself have numbers from here on.
const OURS: u32 = 1 << 31;

const _: () = assert!(SLAB_EXTENTS == canvas_place::replicas::EXTENTS_MAX);

/// Slabs that a donor can hold for the tenant: all of its slabs, and as many left from earlier agents.
const LISTED_MAX: usize = 2 * SLABS_MAX;

/// Connections to each donor, unless configured.
pub const LINKS: u8 = 2;

/// Most donors of one tenant.
pub const SERVERS_MAX: usize = 64;

/// Configuration of [`Replicas`].
pub struct Config {
    /// Known donors.
    pub servers: Vec<Address>,
    /// Source of donors found by gossip.
    pub found: Option<Found>,
    /// The pool's key.
    pub key: ClusterKey,
    /// The copies policy.
    pub copies: LiveCopies,
    /// The disk keeps extents for which there are too few donors, even where the policy wants no copy there.
    pub disk_keeps: bool,
    /// Opens extents sealed by the tenant's agent, to verify a copy before it is copied further.
    pub sealer: Sealer,
    /// Connections to each donor.
    pub links: usize,
    /// The key of the tenant's records, where its processes may read directly.
    pub lanes: Option<[u8; 32]>,
}

/// The purpose of a request to a donor.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// A read: its id and serial number.
    Read(u32, u64),
    /// A shard for a read: its id, serial number and part.
    Shard(u32, u64, usize),
    Write(u32),
    Alloc(u32),
    Free(u32),
    Garbage,
    Ping,
    List,
    /// Values of slabs: the number of the message.
    Worth(u64),
    Lane,
    LaneRate(u64),
    LaneEnd,
    RepairRead(usize),
    RepairWrite(usize),
    RepairShard(usize),
}

/// A request that awaits its answer.
#[derive(Clone, Copy)]
struct Sent {
    donor: usize,
    /// The handle that the request names, or 0.
    handle: u64,
    since: Instant,
    purpose: Purpose,
}

/// What is needed to connect to donors that were unknown at the start.
struct Connector {
    /// Known donors without connections: the policy wants no copies on donors, or there are [`SERVERS_MAX`].
    unconnected: Vec<Address>,
    /// When these were last tried.
    tried: Instant,
    found: Option<Found>,
    link: LinkConfig,
    links: usize,
    waker: Waker,
}

/// The store.
pub struct Replicas {
    far: &'static Far,
    tenant: [u8; 16],
    wanted: LiveCopies,
    policy: Policy,
    donors: Vec<Donor>,
    connector: Connector,
    disk: Option<Disk>,
    /// [`Config::disk_keeps`].
    disk_keeps: bool,
    /// Slabs whose unwanted copy on the disk is being freed, and the writes that wait for that.
    dropping: HashMap<u32, Vec<u32>>,
    journal: Journal,
    map: Map,
    sealer: Sealer,
    reads: Reads,
    lanes: lanes::Lanes,
    /// Reads of slabs in shards.
    shard_reads: shards::Reads,
    /// Encoders, one for each code in use so far.
    coders: Vec<Arc<Coder>>,
    /// Writes under way.
    ops: HashMap<u32, Op>,
    /// Buffers of writes in pieces, returned by the disk.
    spare: Vec<Block>,
    /// Number of writes under way by extent, until their end was reported: only then does the seal show that the extent
    /// is written.
    writing: HashMap<u32, u32>,
    /// Extents whose writes have ended since the last poll.
    wrote: Vec<u32>,
    calls: HashMap<u64, Sent>,
    next_tag: u64,
    /// Slabs that donors still lend to a tenant that has ended ([`Replicas::free_all`]): donor and handle.
    useless: Vec<(usize, u64)>,
    /// Slab values being sent to donors.
    worths: worth::WorthMessages,
    /// Slabs being freed, and the number of answers awaited.
    freeing: HashMap<u32, usize>,
    repairs: Repairs,
    watch: Watch,
    upkeep: upkeep::Upkeep,
    rng: fastrand::Rng,
    started: Instant,
    ticked: Instant,
    /// When all links were last polled.
    looked_at_all: Instant,
    completions: Completions,
    events: Vec<Event>,
    disk_events: Vec<Event>,
    degraded: u64,
    /// Extents that the disk may lack because late writes to it are pending.
    behind: u64,
    /// Failed-over reads since the last report.
    failovers: u64,
    /// When the donors' status was last written.
    reported: Option<Instant>,
}

impl Replicas {
    /// Takes over the slabs in the journal, and connects to the donors in the background.
    pub fn new(
        far: &'static Far,
        tenant: [u8; 16],
        config: Config,
        journal: Journal,
        disk: Option<Disk>,
        waker: Waker,
    ) -> std::io::Result<Replicas> {
        let client = journal.client()?;
        let link = LinkConfig {
            lease_ms: LEASE_MS,
            timeouts: Timeouts {
                connect: Duration::from_secs(1),
                handshake: Duration::from_secs(1),
                request: Duration::from_nanos(REQUEST_NS),
            },
            ..LinkConfig::new(config.key, client)
        };
        let policy = switch::possible(config.copies.get(), disk.is_some());
        // The previous agent's donors come first, because slabs' lines refer to them by index. The others are connected
        // when the policy wants copies on donors ([`Replicas::follow`]).
        let mut servers = journal.donors();
        let mut unconnected = config.servers;
        unconnected.retain(|addr| !servers.contains(addr));
        if policy.donors > 0 {
            let room = SERVERS_MAX.saturating_sub(servers.len());
            for addr in unconnected.drain(..room.min(unconnected.len())) {
                journal.put_donor(servers.len(), addr);
                servers.push(addr);
            }
        }
        let donors = servers
            .iter()
            .map(|addr| Donor::new(*addr, link.clone(), config.links, waker))
            .collect::<std::io::Result<Vec<_>>>()?;
        let connector = Connector {
            unconnected,
            tried: Instant::now(),
            found: config.found,
            link,
            links: config.links,
            waker,
        };
        let mut map: Map = journal
            .lines()
            .iter()
            .map(|(slab, line)| {
                let mut slab_of = from_line(line);
                // The previous agent may have had more donors.
                slab_of.replicas.retain(|c| c.donor < servers.len());
                (*slab, slab_of)
            })
            .collect();
        if disk.is_some() {
            // An extent that an earlier agent has written, without a line in the journal, can only be on the disk.
            let used = far.slabs_high.load(Ordering::SeqCst) as usize;
            for (slab, there) in (0..).zip(far.slabs.iter().take(used)) {
                let is_used = there.state.load(Ordering::SeqCst) != slab_state::FREE;
                if is_used && !map.contains_key(&slab) && Replicas::is_slab_written(far, slab) {
                    let entry: &mut Slab = map.entry(slab).or_default();
                    entry.may_be_on_disk = true;
                }
            }
        }
        let seed = u64::from_le_bytes(crate::journal::random::<8>()?);
        let mut replicas = Replicas {
            far,
            tenant,
            policy,
            wanted: config.copies,
            donors,
            connector,
            disk,
            disk_keeps: config.disk_keeps,
            dropping: HashMap::new(),
            journal,
            map,
            sealer: config.sealer,
            reads: Reads::default(),
            lanes: lanes::Lanes::default(),
            shard_reads: shards::Reads::default(),
            coders: Vec::new(),
            ops: HashMap::new(),
            spare: Vec::new(),
            writing: HashMap::new(),
            wrote: Vec::new(),
            calls: HashMap::new(),
            next_tag: 1,
            useless: Vec::new(),
            worths: worth::WorthMessages::default(),
            freeing: HashMap::new(),
            repairs: Repairs::new(),
            watch: Watch::new(waker)?,
            upkeep: upkeep::Upkeep::default(),
            rng: fastrand::Rng::with_seed(seed),
            started: Instant::now(),
            ticked: Instant::now(),
            looked_at_all: Instant::now(),
            completions: Completions::new(),
            events: Vec::new(),
            disk_events: Vec::new(),
            degraded: 0,
            behind: 0,
            failovers: 0,
            reported: None,
        };
        if let Some(key) = config.lanes {
            replicas.begin_lanes(&key);
        }
        Ok(replicas)
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Sends a request to a donor; false when that is not possible now.
    fn submit(&mut self, donor: usize, purpose: Purpose, request: &Request) -> bool {
        let d = &mut self.donors[donor];
        let Some(link) = d.link_for(request) else {
            return false;
        };
        let tag = self.next_tag;
        match link.submit(tag, request) {
            Ok(()) => {
                self.next_tag += 1;
                let handle = match *request {
                    Request::Read { handle, .. } | Request::Write { handle, .. } => handle,
                    _ => 0,
                };
                let sent = Sent {
                    donor,
                    handle,
                    since: Instant::now(),
                    purpose,
                };
                self.calls.insert(tag, sent);
                true
            }
            Err(SubmitError::Down) => {
                d.lost();
                false
            }
            Err(SubmitError::Full | SubmitError::Invalid) => false,
        }
    }

    fn save(&mut self, slab: u32) {
        let line = self.map.get(&slab).map_or([0; _], to_line);
        self.journal.put(slab, &line);
        self.route(slab);
        self.upkeep.restless.insert(slab);
    }

    fn is_written(far: &Far, extent: u32) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        far.seals[extent as usize].load(Relaxed) != 0
    }

    fn is_slab_written(far: &Far, slab: u32) -> bool {
        let first = slab as usize * SLAB_EXTENTS;
        let mut extents = first..first + SLAB_EXTENTS;
        extents.any(|extent| Replicas::is_written(far, extent as u32))
    }

    // Placement.

    /// Requests a replica of the slab from a donor; false when there is no suitable donor.
    fn place(&mut self, slab: u32) -> bool {
        let now = self.now_ns();
        let code = self.code_of(slab);
        let bytes = shards::lent_bytes(code);
        let donors = Views::of(&self.donors, self.started);
        let rng = &mut self.rng;
        let chosen = placement::place(&mut self.map, slab, &donors, now, |candidates| {
            choose(candidates, bytes, |n| rng.usize(0..n))
        });
        let Some(donor) = chosen else {
            return false;
        };
        let tenant = self.tenant;
        let key = match code {
            Some(code) => SlabKey::part(tenant, slab, code.data()),
            None => SlabKey { tenant, slab },
        };
        if !self.submit(donor, Purpose::Alloc(slab), &Request::Alloc(key)) {
            return false;
        }
        let d = &mut self.donors[donor];
        d.free_bytes = d.free_bytes.saturating_sub(bytes);
        if let Some(entry) = self.map.get_mut(&slab) {
            entry.on_alloc_sent();
        }
        true
    }

    /// The answer to a request for a replica.
    fn allocated(&mut self, donor: usize, slab: u32, handle: Option<u64>) {
        let (now, want, far) = (self.now_ns(), self.policy_of(slab).donors, self.far);
        let donors = Views::of(&self.donors, self.started);
        let granted = self.donors[donor].run.zip(handle);
        let placed = placement::allocated(
            &mut self.map,
            slab,
            donor,
            granted,
            || Replicas::is_slab_written(far, slab),
            |entry| entry.is_short(&donors, want, now),
            &donors,
        );
        match placed {
            PlacementResult::Useless => {
                self.useless.extend(handle.map(|handle| (donor, handle)));
                return;
            }
            PlacementResult::Yes => self.save(slab),
            PlacementResult::No { again: true } => {
                self.place(slab);
            }
            PlacementResult::No { again: false } => {}
        }
        self.placed(slab);
    }

    /// Starts writes that waited for copies, when no more copies are pending.
    fn placed(&mut self, slab: u32) {
        let Some(entry) = self.map.get_mut(&slab) else {
            return;
        };
        if entry.allocating > 0 {
            return;
        }
        if entry.free {
            self.free_now(slab);
            return;
        }
        for id in std::mem::take(&mut entry.waiting) {
            self.send_write(id);
        }
    }

    // Freeing.

    fn free_now(&mut self, slab: u32) {
        let entry = self.map.remove(&slab).unwrap_or_default();
        self.save(slab);
        self.repairs.jobs.freed(slab);
        let mut awaited = 0;
        for copy in &entry.replicas {
            let request = Request::Free {
                handle: copy.handle,
            };
            let up = self.donors[copy.donor].is_up();
            if up && self.submit(copy.donor, Purpose::Free(slab), &request) {
                awaited += 1;
            }
        }
        if let Some(disk) = &mut self.disk {
            if !self.dropping.contains_key(&slab) {
                disk.free(slab);
            }
            awaited += 1;
        }
        self.freeing.insert(slab, awaited + 1);
        self.freed_part(slab);
    }

    fn freed_part(&mut self, slab: u32) {
        if let Some(left) = self.freeing.get_mut(&slab) {
            *left -= 1;
            if *left == 0 {
                self.freeing.remove(&slab);
                self.events.push(Event::Freed(slab));
            }
        }
    }

    // Donors.

    fn line(&mut self, about: LogTopic, donor: usize, text: std::fmt::Arguments) {
        let addr = self.donors[donor].addr;
        self.events
            .push(Event::Log(about, format!("donor {addr}: {text}")));
    }

    /// Polls a donor's links: `all` of them, or those that owe an answer.
    fn poll_donor(&mut self, donor: usize, all: bool) {
        if let Some(connected) = self.donors[donor].connected() {
            match connected {
                Ok(()) => self.connected(donor),
                Err(why) if !self.donors[donor].told => {
                    self.donors[donor].told = true;
                    self.line(LogTopic::DonorLost(donor), donor, format_args!("{why}"));
                }
                Err(_) => {}
            }
        }
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        let mut broken = None;
        for link in &mut self.donors[donor].links {
            // Each poll of a link is a system call; of many donors hardly any has something to say.
            if !all && link.outstanding() == 0 && !link.has_unsent() {
                continue;
            }
            if let Err(e) = link.poll(&mut completions, Duration::ZERO) {
                broken = Some(e.to_string());
            }
        }
        let mut silent = false;
        for completion in completions.iter() {
            match completion {
                Completion::Answer { tag, answer } => {
                    if let Some(sent) = self.calls.remove(&tag) {
                        self.on_answer(sent, Some(answer));
                    }
                }
                Completion::TimedOut { tag } | Completion::Lost { tag } => {
                    silent |= matches!(completion, Completion::TimedOut { .. });
                    if let Some(sent) = self.calls.remove(&tag) {
                        self.on_answer(sent, None);
                    }
                }
                Completion::Call { id, call } => self.on_call(donor, id, call),
            }
        }
        self.completions = completions;
        if silent && broken.is_none() {
            broken = Some("it does not answer in time".to_owned());
        }
        if let Some(why) = broken {
            self.donors[donor].lost();
            self.donors[donor].told = true;
            self.line(LogTopic::DonorLost(donor), donor, format_args!("{why}"));
        }
        while std::mem::take(&mut self.donors[donor].orphans) {
            self.fail_pending(donor);
        }
    }

    /// Ends the requests that were sent over a link that has closed.
    fn fail_pending(&mut self, donor: usize) {
        let lost: Vec<u64> = self
            .calls
            .iter()
            .filter(|(_, sent)| sent.donor == donor)
            .map(|(tag, _)| *tag)
            .collect();
        for tag in lost {
            if let Some(sent) = self.calls.remove(&tag) {
                self.on_answer(sent, None);
            }
        }
    }

    /// A new connection: forgets the copies that this donor no longer holds, and frees those that it holds for nothing.
    fn connected(&mut self, donor: usize) {
        let run = self.donors[donor].run;
        if let Some(run) = run {
            for slab in map::connected(&mut self.map, donor, run) {
                self.save(slab);
            }
        }
        self.submit(donor, Purpose::List, &Request::List { after: 0 });
    }

    /// A donor violated the protocol: treats it as one that closed the connection.
    fn fail_donor(&mut self, donor: usize, why: &str) {
        let d = &mut self.donors[donor];
        d.listed = Vec::new();
        d.lost();
        if !std::mem::replace(&mut d.told, true) {
            self.line(LogTopic::DonorLost(donor), donor, format_args!("{why}"));
        }
    }

    fn on_list(&mut self, donor: usize) {
        let held = std::mem::take(&mut self.donors[donor].listed);
        let (changed, garbage) = map::listed(&mut self.map, donor, &held);
        for slab in changed {
            self.save(slab);
        }
        for handle in garbage {
            self.submit(donor, Purpose::Garbage, &Request::Free { handle });
        }
        self.donors[donor].state = State::Up;
        if std::mem::take(&mut self.donors[donor].told) {
            self.line(
                LogTopic::DonorBack(donor),
                donor,
                format_args!("it serves again"),
            );
        }
    }

    /// A donor no longer has a slab that it lent: it freed it, or the slab's handle never reached an agent that was
    /// stopped for longer than its lease. The slab is placed again, possibly there.
    fn drop_handle(&mut self, donor: usize, handle: u64) {
        for slab in map::gone(&mut self.map, donor, handle) {
            self.save(slab);
            self.line(
                LogTopic::DonorForgot(donor),
                donor,
                format_args!("it no longer has slab {slab}; its pages are copied again"),
            );
        }
    }

    /// A donor has answered, or (`None`) never will.
    fn on_answer(&mut self, sent: Sent, answer: Option<Answer>) {
        let Sent { donor, purpose, .. } = sent;
        let now_ns = self.now_ns();
        let took_ns = sent.since.elapsed().as_nanos() as u64;
        if let Some(Answer::Error { code, .. }) = answer
            && code == ErrorCode::UnknownHandle
            && sent.handle != 0
        {
            self.drop_handle(donor, sent.handle);
        }
        match (purpose, answer) {
            (Purpose::Read(id, serial), answer) => {
                if let Some(Answer::Data(data)) = answer
                    && data.len() <= PROMPT_BYTES
                {
                    self.donors[donor].pace.on_answer(took_ns, now_ns);
                }
                self.donor_read(donor, (id, serial), answer);
            }
            (Purpose::Shard(id, serial, part), answer) => {
                let data = match answer {
                    Some(Answer::Data(data)) => Some(data),
                    _ => None,
                };
                if data.is_some_and(|data| data.len() <= PROMPT_BYTES) {
                    self.donors[donor].pace.on_answer(took_ns, now_ns);
                }
                self.shard_read(donor, (id, serial, part), data);
            }
            (Purpose::Write(id), answer) => {
                let ok = matches!(answer, Some(Answer::Done));
                self.donor_wrote(donor, id, ok);
            }
            (Purpose::Alloc(slab), Some(Answer::Allocated { handle })) => {
                self.allocated(donor, slab, Some(handle));
            }
            (Purpose::Alloc(slab), answer) => {
                if let Some(Answer::Error { code, .. }) = answer
                    && matches!(code, ErrorCode::NoRoom | ErrorCode::Ending)
                {
                    // Until it reports free memory again.
                    self.donors[donor].free_bytes = 0;
                }
                self.allocated(donor, slab, None);
            }
            (Purpose::Free(slab), _) => self.freed_part(slab),
            (Purpose::Garbage, _) => {}
            (Purpose::Ping, Some(Answer::Pong(pong))) => {
                let d = &mut self.donors[donor];
                d.free_bytes = pong.free_bytes;
                d.pressure = pong.pressure;
                d.suspect = d.suspect.filter(|since| sent.since < *since);
                d.round_trips.on_answer(took_ns, now_ns);
            }
            (Purpose::Ping, _) => {}
            (Purpose::List, Some(Answer::Handles { more, slabs })) => {
                let held = &mut self.donors[donor].listed;
                let before = held.len();
                held.extend(slabs.iter().map(|s| s.handle));
                let after = held.last().copied().unwrap_or(0);
                let (endless, empty) = (held.len() > LISTED_MAX, held.len() == before);
                if !more {
                    self.on_list(donor);
                } else if endless || empty {
                    self.fail_donor(donor, "its list of slabs does not end");
                } else {
                    self.submit(donor, Purpose::List, &Request::List { after });
                }
            }
            (Purpose::Worth(telling), answer) => {
                self.on_worth_reply(telling, matches!(answer, Some(Answer::Done)));
            }
            (Purpose::Lane, Some(Answer::Ticket { lane, ticket })) => {
                self.lane_granted(donor, Some((lane, ticket)));
            }
            (Purpose::Lane, _) => self.lane_granted(donor, None),
            (Purpose::LaneRate(lane), Some(Answer::LaneUsed { bytes, .. })) => {
                self.lanes.used(donor, lane, Some(bytes));
            }
            (Purpose::LaneRate(lane), _) => self.lanes.used(donor, lane, None),
            (Purpose::LaneEnd, _) => {}
            (Purpose::List, _) => self.donors[donor].lost(),
            (Purpose::RepairRead(slot), Some(Answer::Data(data))) => {
                self.repair_read(slot, Some(data));
            }
            (Purpose::RepairRead(slot), _) => self.repair_read(slot, None),
            (Purpose::RepairWrite(slot), answer) => {
                self.repair_wrote(slot, matches!(answer, Some(Answer::Done)));
            }
            (Purpose::RepairShard(slot), answer) => {
                let data = match answer {
                    Some(Answer::Data(data)) => Some(data),
                    _ => None,
                };
                self.shard_for_repair(donor, slot, data);
            }
        }
    }

    /// A request from a donor.
    fn on_call(&mut self, donor: usize, id: u64, call: Call) {
        match call {
            Call::EvictQuery { handles } => {
                let mut used = Vec::new();
                for handle in handles.iter() {
                    let replica = map::with_handle(&mut self.map, donor, handle);
                    let ops = replica.map_or(0, |(slab, c)| {
                        Replicas::reads_by_lane(self.far, slab, c.shard)
                            + std::mem::take(&mut c.ops)
                    });
                    used.push(Used { handle, ops });
                }
                self.reply(donor, id, &Reply::Activity(Items::from(&used[..])));
            }
            Call::EvictStop {
                deadline_ms,
                handles,
            } => {
                self.donors[donor].pressure = true;
                self.upkeep.all = true;
                if deadline_ms == 0 {
                    return self.on_freed_early(donor, id, &handles);
                }
                let until = self.now_ns() + u64::from(deadline_ms) * 1_000_000;
                let mut unknown = Vec::new();
                for handle in handles.iter() {
                    if !map::wanted_back(&mut self.map, donor, handle, id, until) {
                        unknown.push(handle);
                    }
                }
                for handle in unknown {
                    self.reply(donor, id, &Reply::EvictDone { handle });
                }
            }
        }
    }

    fn reply(&mut self, donor: usize, call: u64, reply: &Reply) {
        // Donors' requests arrive over the first link.
        if let Some(link) = self.donors[donor].links.first_mut() {
            // A donor that gets no answer frees at its deadline.
            let _ = link.reply(call, reply);
        }
    }
}

/// The donors, as the decisions in `canvas_place` see them.
struct Views<'a> {
    donors: &'a [Donor],
    started: Instant,
}

impl<'a> Views<'a> {
    fn of(donors: &'a [Donor], started: Instant) -> Views<'a> {
        Views { donors, started }
    }
}

impl Donors for Views<'_> {
    fn count(&self) -> usize {
        self.donors.len()
    }

    fn view(&self, donor: usize) -> DonorView {
        let d = &self.donors[donor];
        DonorView {
            connection: match d.state {
                State::Down(since) => ConnectionState::Down {
                    since_ns: since.saturating_duration_since(self.started).as_nanos() as u64,
                },
                State::Listing => ConnectionState::Listing,
                State::Up => ConnectionState::Up,
            },
            pressure: d.pressure,
            free_bytes: d.free_bytes,
            suspect: d.suspect.is_some(),
        }
    }
}

impl Store for Replicas {
    fn link(&mut self, id: u32, extent: u32, writes: bool) -> (IoLink, u32) {
        let slab = extent / SLAB_EXTENTS as u32;
        if !writes && self.code_of(slab).is_some() {
            return (IoLink::In, TRANSFER_COST);
        }
        if !writes {
            return (self.read_link(id, extent), TRANSFER_COST);
        }
        let policy = self.policy_of(slab);
        let share = policy
            .code
            .map_or(TRANSFER_COST, |code| TRANSFER_COST / code.data() as u32);
        match &mut self.disk {
            Some(disk) if policy.donors == 0 => disk.link(id, extent, writes),
            _ => (IoLink::Out, policy.donors.max(1) as u32 * share),
        }
    }

    fn write(&mut self, id: u32, extent: u32, block: Block, to: usize) {
        self.begin_write(id, extent, block, to);
    }

    fn continue_write(&mut self, id: u32, to: usize) {
        self.advance_write(id, to);
    }

    fn grant_move(&mut self, slot: u32, bytes: usize) {
        self.grant_move(slot as usize, bytes);
    }

    fn read(&mut self, id: u32, extent: u32, range: Range<usize>, copy: usize, block: Block) {
        self.begin_read(id, extent, range, copy > 0, block);
    }

    fn free(&mut self, slab: u32) {
        match self.map.get_mut(&slab) {
            Some(entry) if entry.allocating > 0 => entry.free = true,
            _ => self.free_now(slab),
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        let all = self.watch.take_ready() || self.looked_at_all.elapsed() >= QUIET;
        if all {
            self.looked_at_all = Instant::now();
        }
        for extent in std::mem::take(&mut self.wrote) {
            if let Some(n) = self.writing.get_mut(&extent) {
                *n -= 1;
                if *n == 0 {
                    self.writing.remove(&extent);
                }
            }
        }
        for donor in 0..self.donors.len() {
            self.poll_donor(donor, all);
        }
        if let Some(disk) = &mut self.disk {
            disk.poll(&mut self.disk_events);
        }
        let mut from_disk = std::mem::take(&mut self.disk_events);
        for event in from_disk.drain(..) {
            match event {
                Event::Ended { id, outcome, block } if id >= OURS => {
                    self.repair_by_disk((id - OURS) as usize, outcome, block);
                }
                Event::Ended { id, outcome, block } if self.reads.is_ours(id) => {
                    self.disk_read(id, outcome, block);
                }
                Event::Ended { id, outcome, block } => self.disk_wrote(id, outcome, block),
                Event::Freed(slab) => {
                    self.dropped(slab);
                    self.freed_part(slab);
                }
                other => self.events.push(other),
            }
        }
        self.disk_events = from_disk;
        if self.ticked.elapsed() >= TICK {
            self.ticked = Instant::now();
            self.tick();
        }
        self.hedge();
        self.hedge_shards();
        // Sends what the answers caused now, not after the next poll.
        self.flush();
        events.append(&mut self.events);
    }

    fn flush(&mut self) {
        for link in self.donors.iter_mut().flat_map(|d| &mut d.links) {
            if link.has_unsent() {
                // The next poll of a broken link reports the error.
                let _ = link.flush();
            }
        }
    }

    fn set_direct(&mut self, direct: Direct) {
        self.lanes.set_direct(direct);
    }

    fn take_direct_bytes(&mut self) -> u64 {
        self.lanes.take_bytes()
    }

    fn free_all(&mut self, patience: Duration) {
        self.free_all(patience);
    }

    fn is_quiet(&self) -> bool {
        self.disk.as_ref().is_none_or(Store::is_quiet)
    }

    fn expects(&self) -> bool {
        !self.calls.is_empty()
    }

    fn await_answer(&self, time: Duration) -> bool {
        let links = self.donors.iter().flat_map(|d| &d.links);
        let links = links.filter(|link| link.outstanding() > 0);
        // An idle disk does not notify.
        let disk = self.disk.as_ref().filter(|disk| disk.is_busy());
        watch::await_any(links, disk, time)
    }

    fn due_in(&self) -> Option<Duration> {
        let dues = [self.reads.due_in(), self.shard_reads.due_in()];
        dues.into_iter().flatten().min()
    }

    fn is_ready(&self) -> bool {
        let mut came = false;
        for link in self.donors.iter().flat_map(|d| &d.links) {
            // Other messages of a donor are read when the agent wakes by itself, within a tenth of a second: that is
            // sooner than any donor's deadline, and arming every link costs a system call each.
            if link.outstanding() == 0 && !link.has_unsent() {
                continue;
            }
            if let Some(fd) = link.fd() {
                self.watch.arm(fd, link.has_unsent());
                came |= link.arm();
            }
        }
        came || self.watch.is_ready()
            || !self.events.is_empty()
            || self.disk.as_ref().is_some_and(|d| d.is_ready())
    }
}
