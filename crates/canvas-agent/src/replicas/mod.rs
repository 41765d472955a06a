//! A store that keeps extents at donors, and on the disk of this host if the policy says so.
//!
//! * Which copies there are to be may change while the tenant runs ([`switch`]).
//! * A write goes to all copies at once. What a copy misses (its donor was away, or said no) is
//!   remembered by extent and made good later: one mechanism serves donors that come back, donors
//!   that are lost for good and donors that take their memory back.
//! * A read goes to one copy, and to the next when that fails or is silent; the disk comes last
//!   ([`read`]).
//! * Every wait is bounded by the link's timeouts. A donor that does not answer in time is treated as
//!   one that hung up, and nothing waits for it again before it answers anew.
//!
//! * A donor may damage what it holds, or hold what is old without our knowing (it did a write after we
//!   had given it up). That does not verify at the reader, which then asks for the next copy, and is
//!   taken as a sign that the first one misses the extent. What is copied from one place to another is
//!   verified before.

pub mod donor;
mod lanes;
mod leave;
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
use canvas_place::replicas::placement::{self, Placed};
use canvas_place::replicas::{
    DonorView, Donors, Map, REQUEST_NS, Slab, Standing, TICK_NS, is_durable, map,
};
use canvas_shm::Far;
use canvas_shm::far::{SLAB_EXTENTS, SLABS_MAX, slab_state};
use canvas_wire::error::ErrorCode;
use canvas_wire::frame::{Answer, Call as Asked, Items, Reply, Request, SlabKey, Used};
use canvas_wire::key::ClusterKey;

use crate::block::Block;
use crate::copies::LiveCopies;
use crate::disk::Disk;
use crate::dispatch::Lane;
use crate::erasure::Coder;
use crate::finder::Found;
use crate::idle::Waker;
use crate::journal::Journal;
use crate::log::About;
use crate::seal::Sealer;
use crate::store::{Direct, Event, ONCE, Store};
use donor::{Donor, PROMPT_BYTES, State};
use line::{from_line, to_line};
use read::Reads;
use repair::Repairs;
use watch::Watch;
use write::Op;

const TICK: Duration = Duration::from_nanos(TICK_NS);
/// A link that owes no answer is looked at so often while the agent is awake.
const QUIET: Duration = Duration::from_millis(1);
/// Lease that is asked for: a donor that hears nothing so long frees our slabs.
const LEASE_MS: u32 = 30_000;
/// Operations of ours on the disk have numbers from here on.
const OURS: u32 = 1 << 31;

const _: () = assert!(SLAB_EXTENTS == canvas_place::replicas::EXTENTS_MAX);

/// Slabs that a donor can hold for us: all that there are, and as many of agents before this one.
const LISTED_MAX: usize = 2 * SLABS_MAX;

/// Connections to each server, unless told otherwise.
pub const LINKS: u8 = 2;

/// Donors of one tenant at most.
pub const SERVERS_MAX: usize = 64;

/// What [`Replicas`] needs to know.
pub struct Config {
    /// Donors that are known.
    pub servers: Vec<Address>,
    /// Where news of others come from.
    pub found: Option<Found>,
    /// The pool's key.
    pub key: ClusterKey,
    /// Which copies there are to be.
    pub copies: LiveCopies,
    /// The disk keeps what too few donors take, where no copy is wanted there.
    pub disk_keeps: bool,
    /// Opens what the tenant's agent sealed: a copy is verified before it is copied on.
    pub sealer: Sealer,
    /// Connections to each donor.
    pub links: usize,
    /// What the tenant's records are sealed with, where its processes may read by themselves.
    pub lanes: Option<[u8; 32]>,
}

/// What was asked of a donor.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// A read, and which of its id.
    Read(u32, u64),
    /// A shard for a read, and for which of its parts.
    Shard(u32, u64, usize),
    Write(u32),
    Alloc(u32),
    Free(u32),
    Garbage,
    Ping,
    List,
    /// What slabs are worth, and which telling of that.
    Worth(u64),
    Lane,
    LaneRate(u64),
    LaneEnd,
    RepairRead(usize),
    RepairWrite(usize),
    RepairShard(usize),
}

/// A request that waits for its answer.
#[derive(Clone, Copy)]
struct Sent {
    donor: usize,
    /// The slab that it names, or 0.
    handle: u64,
    since: Instant,
    call: Call,
}

/// What is needed to meet donors that nobody knew of at the start.
struct Meeting {
    /// Donors that are known, and not connected to: no copies are wanted at any, or there are [`SERVERS_MAX`].
    unmet: Vec<Address>,
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
    meeting: Meeting,
    disk: Option<Disk>,
    /// [`Config::disk_keeps`].
    disk_keeps: bool,
    /// Slabs whose copy on the disk is being freed, because it is not wanted any more, and writes that wait for that.
    dropping: HashMap<u32, Vec<u32>>,
    journal: Journal,
    map: Map,
    sealer: Sealer,
    reads: Reads,
    lanes: lanes::Lanes,
    /// Reads of what lies in shards.
    shard_reads: shards::Reads,
    /// What computes shards, of each code that there was.
    coders: Vec<Arc<Coder>>,
    /// Writes.
    ops: HashMap<u32, Op>,
    /// Blocks of writes in pieces that the disk has given back.
    spare: Vec<Block>,
    /// Writes under way by extent, until their end was handed out: only then does the seal tell that
    /// the extent is written.
    writing: HashMap<u32, u32>,
    /// Extents whose writes have ended since the last look.
    wrote: Vec<u32>,
    calls: HashMap<u64, Sent>,
    next_tag: u64,
    /// Slabs that donors lend to a tenant that is over ([`Replicas::leave`]): donor and handle.
    useless: Vec<(usize, u64)>,
    /// What donors are being told of what slabs are worth.
    worths: worth::Tellings,
    /// Slabs being freed: answers that are awaited.
    freeing: HashMap<u32, usize>,
    repairs: Repairs,
    watch: Watch,
    upkeep: upkeep::Upkeep,
    rng: fastrand::Rng,
    started: Instant,
    ticked: Instant,
    /// When all links were last looked at.
    looked_at_all: Instant,
    completions: Completions,
    events: Vec<Event>,
    disk_events: Vec<Event>,
    degraded: u64,
    /// Extents that the disk may lack because they are written there late.
    behind: u64,
    /// Reads that went to another copy, since they were last told.
    failovers: u64,
    /// When the donors were last reported.
    reported: Option<Instant>,
}

impl Replicas {
    /// Connects to the donors in the background; what the journal says of slabs is taken over.
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
        // Those of the agent before this one first: slabs' lines number them. The others are met when copies are
        // wanted there ([`Replicas::follow`]).
        let mut servers = journal.donors();
        let mut unmet = config.servers;
        unmet.retain(|addr| !servers.contains(addr));
        if policy.donors > 0 {
            let room = SERVERS_MAX.saturating_sub(servers.len());
            for addr in unmet.drain(..room.min(unmet.len())) {
                journal.put_donor(servers.len(), addr);
                servers.push(addr);
            }
        }
        let donors = servers
            .iter()
            .map(|addr| Donor::new(*addr, link.clone(), config.links, waker))
            .collect::<std::io::Result<Vec<_>>>()?;
        let meeting = Meeting {
            unmet,
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
                // The agent before this one may have had more servers.
                slab_of.replicas.retain(|c| c.donor < servers.len());
                (*slab, slab_of)
            })
            .collect();
        if disk.is_some() {
            // What an agent before this one has written, and had nothing to note of, is on the disk, if anywhere.
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
            meeting,
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
            worths: worth::Tellings::default(),
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
    fn submit(&mut self, donor: usize, call: Call, request: &Request) -> bool {
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
                    call,
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

    /// Asks a donor for a replica of the slab; false when there is none to ask.
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
        if !self.submit(donor, Call::Alloc(slab), &Request::Alloc(key)) {
            return false;
        }
        let d = &mut self.donors[donor];
        d.free_bytes = d.free_bytes.saturating_sub(bytes);
        if let Some(entry) = self.map.get_mut(&slab) {
            entry.asked();
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
            Placed::Useless => {
                self.useless.extend(handle.map(|handle| (donor, handle)));
                return;
            }
            Placed::Yes => self.save(slab),
            Placed::No { again: true } => {
                self.place(slab);
            }
            Placed::No { again: false } => {}
        }
        self.placed(slab);
    }

    /// Lets writes go that waited for copies, when no more are on their way.
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
            if up && self.submit(copy.donor, Call::Free(slab), &request) {
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

    fn line(&mut self, about: About, donor: usize, text: std::fmt::Arguments) {
        let addr = self.donors[donor].addr;
        self.events
            .push(Event::Line(about, format!("donor {addr}: {text}")));
    }

    /// Looks at a donor's links: at `all` of them, or at those that owe an answer.
    fn poll_donor(&mut self, donor: usize, all: bool) {
        if let Some(connected) = self.donors[donor].connected() {
            match connected {
                Ok(()) => self.connected(donor),
                Err(why) if !self.donors[donor].told => {
                    self.donors[donor].told = true;
                    self.line(About::DonorLost(donor), donor, format_args!("{why}"));
                }
                Err(_) => {}
            }
        }
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        let mut broken = None;
        for link in &mut self.donors[donor].links {
            // Each look at a link is a system call; with many donors hardly any of them has something to say.
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
                        self.answered(sent, Some(answer));
                    }
                }
                Completion::TimedOut { tag } | Completion::Lost { tag } => {
                    silent |= matches!(completion, Completion::TimedOut { .. });
                    if let Some(sent) = self.calls.remove(&tag) {
                        self.answered(sent, None);
                    }
                }
                Completion::Call { id, call } => self.asked(donor, id, call),
            }
        }
        self.completions = completions;
        if silent && broken.is_none() {
            broken = Some("it does not answer in time".to_owned());
        }
        if let Some(why) = broken {
            self.donors[donor].lost();
            self.donors[donor].told = true;
            self.line(About::DonorLost(donor), donor, format_args!("{why}"));
        }
        while std::mem::take(&mut self.donors[donor].orphans) {
            self.orphans(donor);
        }
    }

    /// Ends what was asked over a link that is gone.
    fn orphans(&mut self, donor: usize) {
        let lost: Vec<u64> = self
            .calls
            .iter()
            .filter(|(_, sent)| sent.donor == donor)
            .map(|(tag, _)| *tag)
            .collect();
        for tag in lost {
            if let Some(sent) = self.calls.remove(&tag) {
                self.answered(sent, None);
            }
        }
    }

    /// A new connection: what this donor does not hold any more is forgotten, what it holds for
    /// nothing is freed.
    fn connected(&mut self, donor: usize) {
        let run = self.donors[donor].run;
        if let Some(run) = run {
            for slab in map::connected(&mut self.map, donor, run) {
                self.save(slab);
            }
        }
        self.submit(donor, Call::List, &Request::List { after: 0 });
    }

    /// What a donor says cannot be: it is as one that hung up.
    fn lies(&mut self, donor: usize, why: &str) {
        let d = &mut self.donors[donor];
        d.listed = Vec::new();
        d.lost();
        if !std::mem::replace(&mut d.told, true) {
            self.line(About::DonorLost(donor), donor, format_args!("{why}"));
        }
    }

    fn listed(&mut self, donor: usize) {
        let held = std::mem::take(&mut self.donors[donor].listed);
        let (changed, garbage) = map::listed(&mut self.map, donor, &held);
        for slab in changed {
            self.save(slab);
        }
        for handle in garbage {
            self.submit(donor, Call::Garbage, &Request::Free { handle });
        }
        self.donors[donor].state = State::Up;
        if std::mem::take(&mut self.donors[donor].told) {
            self.line(
                About::DonorBack(donor),
                donor,
                format_args!("it serves again"),
            );
        }
    }

    /// A donor has not got a slab any more that it lent us: it was freed there, or never came to an
    /// agent that was stopped for longer than its lease. The slab is placed anew, maybe there.
    fn gone(&mut self, donor: usize, handle: u64) {
        for slab in map::gone(&mut self.map, donor, handle) {
            self.save(slab);
            self.line(
                About::DonorForgot(donor),
                donor,
                format_args!("it has not got slab {slab} any more; its pages are copied anew"),
            );
        }
    }

    /// A donor has answered, or (`None`) never will.
    fn answered(&mut self, sent: Sent, answer: Option<Answer>) {
        let Sent { donor, call, .. } = sent;
        let now_ns = self.now_ns();
        let took_ns = sent.since.elapsed().as_nanos() as u64;
        if let Some(Answer::Error { code, .. }) = answer
            && code == ErrorCode::UnknownHandle
            && sent.handle != 0
        {
            self.gone(donor, sent.handle);
        }
        match (call, answer) {
            (Call::Read(id, serial), answer) => {
                if let Some(Answer::Data(data)) = answer
                    && data.len() <= PROMPT_BYTES
                {
                    self.donors[donor].pace.answered(took_ns, now_ns);
                }
                self.donor_read(donor, (id, serial), answer);
            }
            (Call::Shard(id, serial, part), answer) => {
                let data = match answer {
                    Some(Answer::Data(data)) => Some(data),
                    _ => None,
                };
                if data.is_some_and(|data| data.len() <= PROMPT_BYTES) {
                    self.donors[donor].pace.answered(took_ns, now_ns);
                }
                self.shard_read(donor, (id, serial, part), data);
            }
            (Call::Write(id), answer) => {
                let ok = matches!(answer, Some(Answer::Done));
                self.donor_wrote(donor, id, ok);
            }
            (Call::Alloc(slab), Some(Answer::Allocated { handle })) => {
                self.allocated(donor, slab, Some(handle));
            }
            (Call::Alloc(slab), answer) => {
                if let Some(Answer::Error { code, .. }) = answer
                    && matches!(code, ErrorCode::NoRoom | ErrorCode::Ending)
                {
                    // Until it says otherwise.
                    self.donors[donor].free_bytes = 0;
                }
                self.allocated(donor, slab, None);
            }
            (Call::Free(slab), _) => self.freed_part(slab),
            (Call::Garbage, _) => {}
            (Call::Ping, Some(Answer::Pong(pong))) => {
                let d = &mut self.donors[donor];
                d.free_bytes = pong.free_bytes;
                d.pressure = pong.pressure;
                d.suspect = d.suspect.filter(|since| sent.since < *since);
                d.round_trips.answered(took_ns, now_ns);
            }
            (Call::Ping, _) => {}
            (Call::List, Some(Answer::Handles { more, slabs })) => {
                let held = &mut self.donors[donor].listed;
                let before = held.len();
                held.extend(slabs.iter().map(|s| s.handle));
                let after = held.last().copied().unwrap_or(0);
                let (endless, empty) = (held.len() > LISTED_MAX, held.len() == before);
                if !more {
                    self.listed(donor);
                } else if endless || empty {
                    self.lies(donor, "it never comes to the end of what it says it holds");
                } else {
                    self.submit(donor, Call::List, &Request::List { after });
                }
            }
            (Call::Worth(telling), answer) => {
                self.told_worth(telling, matches!(answer, Some(Answer::Done)));
            }
            (Call::Lane, Some(Answer::Ticket { lane, ticket })) => {
                self.lane_granted(donor, Some((lane, ticket)));
            }
            (Call::Lane, _) => self.lane_granted(donor, None),
            (Call::LaneRate(lane), Some(Answer::LaneUsed { bytes, .. })) => {
                self.lanes.used(donor, lane, Some(bytes));
            }
            (Call::LaneRate(lane), _) => self.lanes.used(donor, lane, None),
            (Call::LaneEnd, _) => {}
            (Call::List, _) => self.donors[donor].lost(),
            (Call::RepairRead(slot), Some(Answer::Data(data))) => {
                self.repair_read(slot, Some(data));
            }
            (Call::RepairRead(slot), _) => self.repair_read(slot, None),
            (Call::RepairWrite(slot), answer) => {
                self.repair_wrote(slot, matches!(answer, Some(Answer::Done)));
            }
            (Call::RepairShard(slot), answer) => {
                let data = match answer {
                    Some(Answer::Data(data)) => Some(data),
                    _ => None,
                };
                self.shard_for_repair(donor, slot, data);
            }
        }
    }

    /// A donor asks.
    fn asked(&mut self, donor: usize, id: u64, call: Asked) {
        match call {
            Asked::EvictQuery { handles } => {
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
            Asked::EvictStop {
                deadline_ms,
                handles,
            } => {
                self.donors[donor].pressure = true;
                self.upkeep.all = true;
                if deadline_ms == 0 {
                    return self.freed_there(donor, id, &handles);
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
        // Calls come over the first link.
        if let Some(link) = self.donors[donor].links.first_mut() {
            // A donor that gets no answer frees at its deadline.
            let _ = link.reply(call, reply);
        }
    }
}

/// The donors as decisions see them.
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
            standing: match d.state {
                State::Down(since) => Standing::Down {
                    since_ns: since.saturating_duration_since(self.started).as_nanos() as u64,
                },
                State::Listing => Standing::Listing,
                State::Up => Standing::Up,
            },
            pressure: d.pressure,
            free_bytes: d.free_bytes,
            suspect: d.suspect.is_some(),
        }
    }
}

impl Store for Replicas {
    fn lane(&mut self, id: u32, extent: u32, writes: bool) -> (Lane, u32) {
        let slab = extent / SLAB_EXTENTS as u32;
        if !writes && self.code_of(slab).is_some() {
            return (Lane::In, ONCE);
        }
        if !writes {
            return (self.read_lane(id, extent), ONCE);
        }
        let policy = self.policy_of(slab);
        let share = policy.code.map_or(ONCE, |code| ONCE / code.data() as u32);
        match &mut self.disk {
            Some(disk) if policy.donors == 0 => disk.lane(id, extent, writes),
            _ => (Lane::Out, policy.donors.max(1) as u32 * share),
        }
    }

    fn write(&mut self, id: u32, extent: u32, block: Block, to: usize) {
        self.begin_write(id, extent, block, to);
    }

    fn write_on(&mut self, id: u32, to: usize) {
        self.go_on_writing(id, to);
    }

    fn move_own(&mut self, slot: u32, bytes: usize) {
        self.move_own(slot as usize, bytes);
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
        // What the answers led to goes out now and not after the next look.
        self.flush();
        events.append(&mut self.events);
    }

    fn flush(&mut self) {
        for link in self.donors.iter_mut().flat_map(|d| &mut d.links) {
            if link.has_unsent() {
                // A broken link says so in its next poll.
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

    fn leave(&mut self, patience: Duration) {
        self.leave(patience);
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
        // A disk with nothing to do does not ring.
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
            // What else a donor has to say is heard when the agent wakes by itself, in a tenth of a second at most:
            // that is sooner than any donor's deadline, and to be woken for each link is a system call each.
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
