//! A store that keeps extents at donors, and on the disk of this host if the policy says so.
//!
//! * A write goes to all copies at once. What a copy misses (its donor was away, or said no) is
//!   remembered by extent and made good later: one mechanism serves donors that come back, donors
//!   that are lost for good and donors that take their memory back.
//! * A read goes to one copy, and to the next when that fails; the disk comes last.
//! * Every wait is bounded by the link's timeouts. A donor that does not answer in time is treated as
//!   one that hung up, and nothing waits for it again before it answers anew.
//!
//! The bytes are opaque here. A copy that is old without our knowing (a donor did a write after we had
//! given it up) does not verify at the reader, which then asks for the next copy; that is taken as a
//! sign that the first one misses the extent.

pub mod donor;
pub mod map;
mod repair;
mod status;
mod upkeep;
mod watch;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use canvas_link::{Completion, Completions, LinkConfig, SubmitError, Timeouts};
use canvas_place::choose::{Candidate, choose};
pub use canvas_place::copies::Policy;
use canvas_place::copies::{
    AGAIN_NS, GRACE_NS, Held, Source, TICK_NS, counting, is_away, is_durable, read_next,
};
use canvas_shm::Far;
use canvas_shm::far::{EXTENT_BYTES, SLAB_BYTES, SLAB_EXTENTS};
use canvas_wire::error::ErrorCode;
use canvas_wire::frame::{Answer, Call as Asked, Items, Reply, Request, SlabKey, Used};
use canvas_wire::key::ClusterKey;

use crate::block::Block;
use crate::disk::Disk;
use crate::idle::Waker;
use crate::journal::Journal;
use crate::log::About;
use crate::store::{Event, Outcome, Store};
use donor::{Donor, State};
use map::{COPIES_MAX, Copy, Map, Slab};
use repair::Repairs;
use watch::Watch;

const GRACE: Duration = Duration::from_nanos(GRACE_NS);
const TICK: Duration = Duration::from_nanos(TICK_NS);
/// Lease that is asked for: a donor that hears nothing so long frees our slabs.
const LEASE_MS: u32 = 30_000;
/// Operations of ours on the disk have numbers from here on.
const OURS: u32 = 1 << 31;

/// Donors of one tenant at most.
pub const SERVERS_MAX: usize = 64;

/// What [`Copies`] needs to know.
pub struct Config {
    /// Donors.
    pub servers: Vec<SocketAddr>,
    /// The pool's key.
    pub key: ClusterKey,
    /// How many copies.
    pub policy: Policy,
}

/// What was asked of a donor.
#[derive(Clone, Copy, Debug)]
enum Call {
    Read(u32),
    Write(u32),
    Alloc(u32),
    Free(u32),
    Garbage,
    Ping,
    List,
    RepairRead(usize),
    RepairWrite(usize),
}

/// A read or write under way.
struct Op {
    extent: u32,
    block: Option<Block>,
    /// Read: its range. Write: `None`.
    range: Option<Range<usize>>,
    /// Read: donors that were tried, a bit each, and the one that is.
    tried: u64,
    at: Option<usize>,
    /// Read: those of them that have not answered; they may yet.
    silent: u64,
    /// Read: the disk was tried.
    tried_disk: bool,
    /// When it was asked for.
    since: Instant,
    /// Write: donors that it was sent to, a bit each; answers that are awaited, donors that have it,
    /// what the disk says.
    sent: u64,
    parts: usize,
    donors: usize,
    disk: Option<Outcome>,
}

/// The store.
pub struct Copies {
    far: &'static Far,
    tenant: [u8; 16],
    policy: Policy,
    donors: Vec<Donor>,
    disk: Option<Disk>,
    journal: Journal,
    map: Map,
    ops: HashMap<u32, Op>,
    /// Writes under way by extent, until their end was handed out: only then does the seal tell that
    /// the extent is written.
    writing: HashMap<u32, u32>,
    /// Extents whose writes have ended since the last look.
    wrote: Vec<u32>,
    calls: HashMap<u64, (usize, Call)>,
    next_tag: u64,
    /// Slabs being freed: answers that are awaited.
    freeing: HashMap<u32, usize>,
    repairs: Repairs,
    watch: Watch,
    rng: fastrand::Rng,
    started: Instant,
    ticked: Instant,
    completions: Completions,
    events: Vec<Event>,
    disk_events: Vec<Event>,
    degraded: u64,
    /// Reads that went to another copy, since they were last told.
    failovers: u64,
    /// Reads that wait for a donor to come back.
    away: Vec<u32>,
    /// When the donors were last reported.
    reported: Option<Instant>,
}

impl Copies {
    /// Connects to the donors in the background; what the journal says of slabs is taken over.
    pub fn new(
        far: &'static Far,
        tenant: [u8; 16],
        config: Config,
        journal: Journal,
        disk: Option<Disk>,
        waker: Waker,
    ) -> std::io::Result<Copies> {
        let client = journal.client()?;
        let donors = config
            .servers
            .iter()
            .map(|addr| {
                let link = LinkConfig {
                    lease_ms: LEASE_MS,
                    timeouts: Timeouts {
                        connect: Duration::from_secs(1),
                        handshake: Duration::from_secs(1),
                        request: Duration::from_secs(1),
                    },
                    ..LinkConfig::new(config.key.clone(), client)
                };
                Donor::new(*addr, link, waker)
            })
            .collect::<std::io::Result<Vec<_>>>()?;
        let map = journal
            .lines()
            .iter()
            .map(|(slab, line)| (*slab, Slab::from_line(line)))
            .collect();
        let seed = u64::from_le_bytes(crate::journal::random::<8>()?);
        Ok(Copies {
            far,
            tenant,
            policy: config.policy,
            donors,
            disk,
            journal,
            map,
            ops: HashMap::new(),
            writing: HashMap::new(),
            wrote: Vec::new(),
            calls: HashMap::new(),
            next_tag: 1,
            freeing: HashMap::new(),
            repairs: Repairs::default(),
            watch: Watch::new(waker)?,
            rng: fastrand::Rng::with_seed(seed),
            started: Instant::now(),
            ticked: Instant::now(),
            completions: Completions::new(),
            events: Vec::new(),
            disk_events: Vec::new(),
            degraded: 0,
            failovers: 0,
            away: Vec::new(),
            reported: None,
        })
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Sends a request to a donor; false when that is not possible now.
    fn submit(&mut self, donor: usize, call: Call, request: &Request) -> bool {
        let d = &mut self.donors[donor];
        let Some(link) = &mut d.link else {
            return false;
        };
        let tag = self.next_tag;
        match link.submit(tag, request) {
            Ok(()) => {
                self.next_tag += 1;
                self.calls.insert(tag, (donor, call));
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
        let line = self.map.get(&slab).map_or([0; _], Slab::line);
        self.journal.put(slab, &line);
    }

    fn is_written(far: &Far, extent: u32) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        far.seals[extent as usize].load(Relaxed) != 0
    }

    // Placement.

    /// Asks a donor for a copy of the slab; false when there is none to ask.
    fn place(&mut self, slab: u32) -> bool {
        let now = self.now_ns();
        let Some(entry) = self.map.get_mut(&slab) else {
            return false;
        };
        if entry.again_ns != 0 && now >= entry.again_ns {
            entry.refused = 0;
        }
        let (refused, entry) = (entry.refused, &self.map[&slab]);
        let holds = |slab: Option<u32>, donor| {
            slab.and_then(|s| self.map.get(&s))
                .is_some_and(|e| e.copies.iter().any(|c| c.donor == donor))
        };
        let candidates: Vec<Candidate> = self
            .donors
            .iter()
            .enumerate()
            .map(|(i, d)| Candidate {
                usable: d.is_up() && !d.pressure && refused & 1 << i == 0,
                has_copy: entry.copies.iter().any(|c| c.donor == i),
                has_neighbour: holds(slab.checked_sub(1), i) || holds(slab.checked_add(1), i),
                free_bytes: d.free_bytes,
            })
            .collect();
        let rng = &mut self.rng;
        let Some(donor) = choose(&candidates, SLAB_BYTES as u64, |n| rng.usize(0..n)) else {
            return false;
        };
        let key = SlabKey {
            tenant: self.tenant,
            slab,
        };
        // One at a time: until it is answered the donor counts as one that was asked.
        if let Some(entry) = self.map.get_mut(&slab) {
            entry.refused |= 1 << donor;
            entry.again_ns = now + AGAIN_NS;
        }
        if !self.submit(donor, Call::Alloc(slab), &Request::Alloc(key)) {
            return false;
        }
        let d = &mut self.donors[donor];
        d.free_bytes = d.free_bytes.saturating_sub(SLAB_BYTES as u64);
        if let Some(entry) = self.map.get_mut(&slab) {
            entry.allocating += 1;
        }
        true
    }

    /// The slab's copies, as decisions see them.
    fn held(&self, entry: &Slab) -> Vec<Held> {
        let see = |c: &Copy| Held {
            donor: c.donor,
            up: self.donors[c.donor].is_up(),
            may_serve: self.donors[c.donor].may_serve(GRACE),
            whole: c.missing.is_none(),
            leaving_until_ns: c.leaving.map(|(_, until)| until),
        };
        entry.copies.iter().map(see).collect()
    }

    /// The copies of an extent of it.
    fn sources(&self, entry: &Slab, within: usize) -> impl Iterator<Item = Source> {
        entry.copies.iter().map(move |c| Source {
            donor: c.donor,
            up: self.donors[c.donor].is_up(),
            has: c.has(within),
        })
    }

    /// The answer to a request for a copy.
    fn allocated(&mut self, donor: usize, slab: u32, handle: Option<u64>) {
        let run = self.donors[donor].run;
        let Some(entry) = self.map.get_mut(&slab) else {
            return;
        };
        entry.allocating -= 1;
        if let (Some(handle), Some(run)) = (handle, run) {
            let mut copy = Copy {
                donor,
                run,
                handle,
                missing: None,
                leaving: None,
                ops: 0,
            };
            // What was written before is missing; what is being written finds the copy in its list.
            let first = slab as usize * SLAB_EXTENTS;
            let any = (first..first + SLAB_EXTENTS)
                .any(|extent| Copies::is_written(self.far, extent as u32));
            if any {
                copy.lacks_all();
            }
            entry.refused &= !(1 << donor);
            entry.copies.retain(|c| c.donor != donor);
            entry.copies.push(copy);
            self.save(slab);
        }
        let short = |s: &Copies| {
            s.map
                .get(&slab)
                .is_some_and(|e| counting(&s.held(e)) < s.policy.donors)
        };
        if handle.is_none() && short(self) {
            self.place(slab);
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

    // Writing.

    fn send_write(&mut self, id: u32) {
        let op = self.ops.get_mut(&id).expect("under way");
        let extent = op.extent;
        let slab = extent / SLAB_EXTENTS as u32;
        let within = extent as usize % SLAB_EXTENTS;
        if self.repairs.holds_back(extent, id) {
            return;
        }
        let block = op.block.take().expect("not sent");
        let copies: Vec<(usize, u64)> = self
            .map
            .get(&slab)
            .map(|e| e.copies.iter().map(|c| (c.donor, c.handle)).collect())
            .unwrap_or_default();
        let (mut parts, mut sent_to) = (0, 0);
        for (donor, handle) in copies {
            let request = Request::Write {
                handle,
                offset: (within * EXTENT_BYTES) as u32,
                data: &block,
            };
            let sent = self.donors[donor].is_up() && self.submit(donor, Call::Write(id), &request);
            if sent {
                parts += 1;
                sent_to |= 1 << donor;
            } else {
                self.lacks(slab, donor, within);
            }
        }
        let op = self.ops.get_mut(&id).expect("under way");
        op.parts = parts;
        op.sent = sent_to;
        match &mut self.disk {
            Some(disk) => {
                op.parts += 1;
                disk.write(id, extent, block);
            }
            None => op.block = Some(block),
        }
        self.write_ended(id);
    }

    /// A donor has not got an extent.
    fn lacks(&mut self, slab: u32, donor: usize, within: usize) {
        let was_whole = self
            .map
            .get_mut(&slab)
            .and_then(|e| e.at(donor))
            .is_some_and(|c| c.lacks(within));
        if was_whole {
            self.save(slab);
        }
    }

    fn donor_wrote(&mut self, donor: usize, id: u32, ok: bool) {
        let Some(op) = self.ops.get_mut(&id) else {
            return;
        };
        op.parts -= 1;
        let (slab, within) = (
            op.extent / SLAB_EXTENTS as u32,
            op.extent as usize % SLAB_EXTENTS,
        );
        if ok {
            op.donors += 1;
            if let Some(copy) = self.map.get_mut(&slab).and_then(|e| e.at(donor)) {
                copy.gained(within);
                copy.ops += 1;
            }
        } else {
            self.lacks(slab, donor, within);
        }
        self.write_ended(id);
    }

    /// Ends a write that waits for nothing any more.
    fn write_ended(&mut self, id: u32) {
        if self.ops.get(&id).is_none_or(|op| op.parts > 0) {
            return;
        }
        let op = self.ops.remove(&id).expect("just seen");
        // A copy that was made meanwhile has not got it.
        let slab = op.extent / SLAB_EXTENTS as u32;
        let unsent: Vec<usize> = self.map.get(&slab).map_or_else(Vec::new, |e| {
            let donors = e.copies.iter().map(|c| c.donor);
            donors.filter(|d| op.sent & 1 << d == 0).collect()
        });
        for donor in unsent {
            self.lacks(slab, donor, op.extent as usize % SLAB_EXTENTS);
        }
        self.wrote.push(op.extent);
        let on_disk = op.disk.map(|outcome| outcome == Outcome::Done);
        let outcome = match op.disk {
            _ if is_durable(self.policy, op.donors, on_disk) => Outcome::Done,
            Some(outcome) => outcome,
            None if self.no_other_has_room(slab) => Outcome::NoRoom,
            None => Outcome::Lost,
        };
        self.events.push(Event::Ended {
            id,
            outcome,
            block: op.block.unwrap_or_default(),
        });
    }

    // Reading.

    /// Sends a read to the next copy that was not tried.
    fn send_read(&mut self, id: u32) {
        let op = self.ops.get_mut(&id).expect("under way");
        let (extent, range) = (op.extent, op.range.clone().expect("a read"));
        let slab = extent / SLAB_EXTENTS as u32;
        let within = extent as usize % SLAB_EXTENTS;
        loop {
            let tried = self.ops[&id].tried;
            // One that lacks it, as far as we know, only when there is no other and no disk: it may
            // have it all the same, and cannot deceive the reader.
            let last_resort = self.disk.is_none() && !self.is_away(slab, within);
            let next = self.map.get(&slab).and_then(|e| {
                let donor = read_next(self.sources(e, within), tried, last_resort)?;
                let copy = e.copies.iter().find(|c| c.donor == donor)?;
                Some((donor, copy.handle))
            });
            let Some((donor, handle)) = next else {
                break;
            };
            let range = canvas_wire::frame::Range {
                offset: (within * EXTENT_BYTES + range.start) as u32,
                len: range.len() as u32,
            };
            let sent = self.submit(donor, Call::Read(id), &Request::Read { handle, range });
            let op = self.ops.get_mut(&id).expect("under way");
            op.tried |= 1 << donor;
            if sent {
                op.at = Some(donor);
                return;
            }
            op.silent |= 1 << donor;
        }
        let op = self.ops.get_mut(&id).expect("under way");
        op.at = None;
        let block = op.block.take().expect("not with the disk");
        match &mut self.disk {
            Some(disk) if !op.tried_disk => {
                op.tried_disk = true;
                disk.read(id, extent, range, 0, block);
            }
            _ => {
                let (away, wait_max) = (self.is_away(slab, within), self.wait_max());
                let op = self.ops.get_mut(&id).expect("under way");
                if (away || op.silent != 0) && op.since.elapsed() < wait_max {
                    op.tried &= !std::mem::take(&mut op.silent);
                    op.block = Some(block);
                    self.away.push(id);
                    return;
                }
                self.ops.remove(&id);
                let outcome = if away { Outcome::Away } else { Outcome::NoCopy };
                self.events.push(Event::Ended { id, outcome, block });
            }
        }
    }

    /// How long the tenant waits for what cannot be reached.
    fn wait_max(&self) -> Duration {
        let ms = &self.far.wait_ms_max;
        Duration::from_millis(ms.load(std::sync::atomic::Ordering::Relaxed))
    }

    /// Asks again for what was at donors that were away; those are tried anew.
    fn retry_away(&mut self) {
        let donors = self.donors.iter().enumerate();
        let up = donors.fold(0, |up, (i, d)| up | u64::from(d.is_up()) << i);
        for id in std::mem::take(&mut self.away) {
            if let Some(op) = self.ops.get_mut(&id) {
                op.tried &= up;
                self.send_read(id);
            }
        }
    }

    /// Is there a copy of the extent at a donor that cannot be reached now?
    fn is_away(&self, slab: u32, within: usize) -> bool {
        let entry = self.map.get(&slab);
        entry.is_some_and(|e| is_away(self.sources(e, within)))
    }

    /// A donor has answered a read, or not.
    fn donor_read(&mut self, donor: usize, id: u32, data: Option<&[u8]>) {
        let Some(op) = self.ops.get_mut(&id) else {
            return;
        };
        let slab = op.extent / SLAB_EXTENTS as u32;
        if let (Some(data), Some(range)) = (data, op.range.clone()) {
            let mut block = op.block.take().expect("with us");
            block[range].copy_from_slice(data);
            if let Some(copy) = self.map.get_mut(&slab).and_then(|e| e.at(donor)) {
                copy.ops += 1;
            }
            let outcome = Outcome::Done;
            self.events.push(Event::Ended { id, outcome, block });
        } else {
            self.failovers += 1;
            self.send_read(id);
        }
    }

    // Freeing.

    fn free_now(&mut self, slab: u32) {
        let entry = self.map.remove(&slab).unwrap_or_default();
        self.save(slab);
        let mut awaited = 0;
        for copy in &entry.copies {
            let request = Request::Free {
                handle: copy.handle,
            };
            let up = self.donors[copy.donor].is_up();
            if up && self.submit(copy.donor, Call::Free(slab), &request) {
                awaited += 1;
            }
        }
        if let Some(disk) = &mut self.disk {
            disk.free(slab);
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

    fn poll_donor(&mut self, donor: usize) {
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
        if let Some(link) = &mut self.donors[donor].link
            && let Err(e) = link.poll(&mut completions, Duration::ZERO)
        {
            broken = Some(e.to_string());
        }
        let mut silent = false;
        for completion in completions.iter() {
            match completion {
                Completion::Answer { tag, answer } => {
                    if let Some((_, call)) = self.calls.remove(&tag) {
                        self.answered(donor, call, Some(answer));
                    }
                }
                Completion::TimedOut { tag } | Completion::Lost { tag } => {
                    silent |= matches!(completion, Completion::TimedOut { .. });
                    if let Some((_, call)) = self.calls.remove(&tag) {
                        self.answered(donor, call, None);
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
            .filter(|(_, (d, _))| *d == donor)
            .map(|(tag, _)| *tag)
            .collect();
        for tag in lost {
            if let Some((_, call)) = self.calls.remove(&tag) {
                self.answered(donor, call, None);
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

    /// A donor has answered, or (`None`) never will.
    fn answered(&mut self, donor: usize, call: Call, answer: Option<Answer>) {
        match (call, answer) {
            (Call::Read(id), Some(Answer::Data(data))) => self.donor_read(donor, id, Some(data)),
            (Call::Read(id), answer) => {
                if answer.is_none()
                    && let Some(op) = self.ops.get_mut(&id)
                {
                    op.silent |= 1 << donor;
                }
                self.donor_read(donor, id, None);
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
                d.round_trip = Some(d.pinged.elapsed());
            }
            (Call::Ping, _) => {}
            (Call::List, Some(Answer::Handles { more, slabs })) => {
                let held = &mut self.donors[donor].listed;
                held.extend(slabs.iter().map(|s| s.handle));
                let after = held.last().copied().unwrap_or(0);
                if more {
                    self.submit(donor, Call::List, &Request::List { after });
                } else {
                    self.listed(donor);
                }
            }
            (Call::List, _) => self.donors[donor].lost(),
            (Call::RepairRead(slot), Some(Answer::Data(data))) => {
                self.repair_read(slot, Some(data));
            }
            (Call::RepairRead(slot), _) => self.repair_read(slot, None),
            (Call::RepairWrite(slot), answer) => {
                self.repair_wrote(slot, matches!(answer, Some(Answer::Done)));
            }
        }
    }

    /// A donor asks.
    fn asked(&mut self, donor: usize, id: u64, call: Asked) {
        match call {
            Asked::EvictQuery { handles } => {
                let mut used = Vec::new();
                for handle in handles.iter() {
                    let copy = self
                        .map
                        .values_mut()
                        .filter_map(|e| e.at(donor))
                        .find(|c| c.handle == handle);
                    let ops = copy.map_or(0, |c| std::mem::take(&mut c.ops));
                    used.push(Used { handle, ops });
                }
                self.reply(donor, id, &Reply::Activity(Items::from(&used[..])));
            }
            Asked::EvictStop {
                deadline_ms,
                handles,
            } => {
                let until = self.now_ns() + u64::from(deadline_ms) * 1_000_000;
                let mut unknown = Vec::new();
                for handle in handles.iter() {
                    let copy = self
                        .map
                        .values_mut()
                        .filter_map(|e| e.at(donor))
                        .find(|c| c.handle == handle);
                    match copy {
                        Some(copy) => copy.leaving = Some((id, until)),
                        None => unknown.push(handle),
                    }
                }
                self.donors[donor].pressure = true;
                for handle in unknown {
                    self.reply(donor, id, &Reply::EvictDone { handle });
                }
            }
        }
    }

    fn reply(&mut self, donor: usize, call: u64, reply: &Reply) {
        if let Some(link) = &mut self.donors[donor].link {
            // A donor that gets no answer frees at its deadline.
            let _ = link.reply(call, reply);
        }
    }
}

impl Store for Copies {
    fn write(&mut self, id: u32, extent: u32, block: Block) {
        let slab = extent / SLAB_EXTENTS as u32;
        *self.writing.entry(extent).or_default() += 1;
        self.ops.insert(
            id,
            Op {
                extent,
                block: Some(block),
                range: None,
                tried: 0,
                at: None,
                silent: 0,
                tried_disk: false,
                since: Instant::now(),
                sent: 0,
                parts: 0,
                donors: 0,
                disk: None,
            },
        );
        let now = self.now_ns();
        let entry = self.map.entry(slab).or_default();
        // Without a disk a write with too few copies fails, so a donor that is away is not waited for
        // here: what is one too many later is given up.
        let counts = |c: &&Copy| self.disk.is_some() || self.donors[c.donor].is_up();
        let have = entry.copies.iter().filter(counts).count();
        let missing = self
            .policy
            .donors
            .saturating_sub(have)
            .min(COPIES_MAX.saturating_sub(entry.copies.len()));
        if entry.allocating == 0 && now >= entry.again_ns {
            for _ in 0..missing {
                self.place(slab);
            }
        }
        let entry = self.map.get_mut(&slab).expect("just made");
        if entry.allocating > 0 {
            entry.waiting.push(id);
        } else {
            self.send_write(id);
        }
    }

    fn read(&mut self, id: u32, extent: u32, range: Range<usize>, copy: usize, block: Block) {
        let before = self.ops.remove(&id).filter(|_| copy > 0);
        let mut op = Op {
            extent,
            block: Some(block),
            range: Some(range),
            tried: 0,
            at: None,
            silent: 0,
            tried_disk: false,
            since: Instant::now(),
            sent: 0,
            parts: 0,
            donors: 0,
            disk: None,
        };
        if let Some(before) = before {
            op.tried = before.tried;
            op.tried_disk = before.tried_disk;
            op.since = before.since;
            op.silent = before.silent;
            if let Some(donor) = before.at {
                // It answered, and the reader asks again: what it has is not what was written.
                let (slab, within) = (extent / SLAB_EXTENTS as u32, extent as usize % SLAB_EXTENTS);
                self.lacks(slab, donor, within);
            }
        }
        self.ops.insert(id, op);
        self.send_read(id);
    }

    fn free(&mut self, slab: u32) {
        match self.map.get_mut(&slab) {
            Some(entry) if entry.allocating > 0 => entry.free = true,
            _ => self.free_now(slab),
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        self.watch.take_ready();
        for extent in std::mem::take(&mut self.wrote) {
            if let Some(n) = self.writing.get_mut(&extent) {
                *n -= 1;
                if *n == 0 {
                    self.writing.remove(&extent);
                }
            }
        }
        for donor in 0..self.donors.len() {
            self.poll_donor(donor);
        }
        if let Some(disk) = &mut self.disk {
            disk.poll(&mut self.disk_events);
        }
        let mut from_disk = std::mem::take(&mut self.disk_events);
        for event in from_disk.drain(..) {
            match event {
                Event::Ended { id, outcome, block } if id >= OURS => {
                    self.repair_from_disk((id - OURS) as usize, outcome, block);
                }
                Event::Ended { id, outcome, block } => {
                    let Some(op) = self.ops.get_mut(&id) else {
                        continue;
                    };
                    if op.range.is_some() && outcome != Outcome::Done {
                        op.block = Some(block);
                        self.send_read(id);
                    } else if op.range.is_some() {
                        self.events.push(Event::Ended { id, outcome, block });
                    } else {
                        op.parts -= 1;
                        op.disk = Some(outcome);
                        op.block = Some(block);
                        self.write_ended(id);
                    }
                }
                Event::Freed(slab) => self.freed_part(slab),
                other => self.events.push(other),
            }
        }
        self.disk_events = from_disk;
        if self.ticked.elapsed() >= TICK {
            self.ticked = Instant::now();
            self.tick();
        }
        // What the answers led to goes out now and not after the next look.
        for d in &mut self.donors {
            if let Some(link) = d.link.as_mut().filter(|l| l.has_unsent()) {
                // A broken link says so in its next poll.
                let _ = link.flush();
            }
        }
        events.append(&mut self.events);
    }

    fn expects(&self) -> bool {
        !self.calls.is_empty()
    }

    fn is_ready(&self) -> bool {
        for d in &self.donors {
            if let Some((link, fd)) = d.link.as_ref().and_then(|l| Some((l, l.fd()?))) {
                self.watch.arm(fd, link.has_unsent());
            }
        }
        self.watch.is_ready()
            || !self.events.is_empty()
            || self.disk.as_ref().is_some_and(|d| d.is_ready())
    }
}
