//! Reading: carries out what [`canvas_place::replicas::read`] decides.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use canvas_place::pace::{HEDGE_NS_MAX, HEDGE_NS_MIN, Silence};
use canvas_place::paths::{Closed, Paths};
use canvas_place::replicas::read::{self, AfterAnswer, Exhausted, NextCopy, OnDisk};
use canvas_shm::far::EXTENT_BYTES;
use canvas_wire::error::ErrorCode;
use canvas_wire::frame::{Answer, Request};

use super::{Purpose, Replicas, Views};
use crate::block::Block;
use crate::dispatch::IoLink;
use crate::store::{Event, Outcome, Store, place};

/// The disk's numbers for this module's reads begin here. They differ from read ids because a read for which another
/// copy was faster ends before the disk does.
const ON_DISK: u32 = 1 << 30;

/// A read under way.
struct Read {
    extent: u32,
    range: Range<usize>,
    /// Distinguishes it from earlier reads with this id.
    serial: u64,
    /// The disk is read first, whatever donors have.
    disk_first: bool,
    /// The buffer, unless the disk has it or it was returned.
    block: Option<Block>,
    /// Which copies were asked, and which have answered.
    state: read::Read,
    /// When it began.
    since: Instant,
}

/// Where a read goes first: indices into [`ReadBalancer::paths`].
const DONORS: usize = 0;
const DISK: usize = 1;

/// Stands for the local disk in place of a donor's index.
const THE_DISK: usize = usize::MAX;

/// Where donors and the disk both have an extent, reads go to the one that is faster under its load (Colloid's
/// principle).
pub(super) struct ReadBalancer {
    paths: Paths,
    /// By read id, the path chosen and the time the read began.
    under_way: HashMap<u32, (usize, Instant)>,
    /// Silence of the disk, over all reads.
    disk: Silence,
}

impl Default for ReadBalancer {
    fn default() -> ReadBalancer {
        ReadBalancer {
            paths: Paths::first_of(2),
            under_way: HashMap::new(),
            disk: Silence::default(),
        }
    }
}

/// Reads under way.
#[derive(Default)]
pub(super) struct Reads {
    by_id: HashMap<u32, Read>,
    serial: u64,
    balancer: ReadBalancer,
    /// When to ask another copy as well: the time, the read's id and serial number, and the donor that was asked, or
    /// [`THE_DISK`].
    due: BinaryHeap<Reverse<(Instant, u32, u64, usize)>>,
    /// Reads on the disk, by the disk's number: id and serial number.
    on_disk: HashMap<u32, (u32, u64)>,
    disk_serial: u32,
    /// Reads that wait for a donor to come back.
    away: Vec<(u32, u64)>,
}

impl Reads {
    fn get(&mut self, id: u32, serial: u64) -> Option<&mut Read> {
        self.by_id.get_mut(&id).filter(|r| r.serial == serial)
    }

    /// Whether this disk operation is a read of this module.
    pub fn is_ours(&self, number: u32) -> bool {
        self.on_disk.contains_key(&number)
    }

    /// Whether the disk answers sooner than donors, where both have the data.
    pub fn is_disk_first(&self) -> bool {
        self.balancer.is_disk_first()
    }

    /// Time until another copy is to be asked for some read.
    pub fn due_in(&self) -> Option<Duration> {
        let Reverse((due, ..)) = self.due.peek()?;
        Some(due.saturating_duration_since(Instant::now()))
    }
}

impl ReadBalancer {
    /// Mean latencies of donors and the disk in ns, as far as they are known.
    pub(super) fn latencies_ns(&self) -> [Option<f64>; 2] {
        [DONORS, DISK].map(|path| self.paths.latency_ns(path))
    }

    /// Time without an answer of the disk after which a donor is asked as well, in ns.
    fn disk_hedge_ns(&self) -> u64 {
        const TIMES: f64 = 8.0;
        let mean_ns = self.paths.latency_ns(DISK).unwrap_or(0.0);
        ((mean_ns * TIMES) as u64).clamp(HEDGE_NS_MIN, HEDGE_NS_MAX)
    }

    /// A read has ended.
    fn ended(&mut self, id: u32) {
        if let Some((path, since)) = self.under_way.remove(&id) {
            self.paths.took(path, since.elapsed().as_nanos() as u64);
        }
    }
}

impl Replicas {
    /// The links for a read. Where donors and the disk both have the extent, [`ReadBalancer`] chooses.
    pub(super) fn read_link(&mut self, id: u32, extent: u32) -> IoLink {
        let (slab, within) = place(extent);
        let on_disk = self.on_disk(slab, within);
        let donors = Views::of(&self.donors, self.started);
        let at_donors = self.map.get(&slab).is_some_and(|entry| {
            let mut sources = entry.sources(&donors, within);
            sources.any(|source| source.has && source.up)
        });
        let now_ns = self.now_ns();
        let balancer = &mut self.reads.balancer;
        balancer.under_way.remove(&id);
        let path = match (on_disk, at_donors) {
            (OnDisk::Yes, true) => {
                balancer.paths.tick(now_ns);
                let path = balancer.paths.choose(0, now_ns).unwrap_or(DONORS);
                if path == DISK {
                    self.far.stats.reads_by_disk.fetch_add(1, Relaxed);
                }
                balancer.under_way.insert(id, (path, Instant::now()));
                path
            }
            (OnDisk::Yes | OnDisk::First, _) => DISK,
            (OnDisk::No | OnDisk::Unsure, _) => DONORS,
        };
        match &self.disk {
            Some(disk) if path == DISK => disk.link_of(extent),
            _ => IoLink::In,
        }
    }

    /// A read begins, or (`again`) its last result did not verify.
    pub(super) fn begin_read(
        &mut self,
        id: u32,
        extent: u32,
        range: Range<usize>,
        again: bool,
        block: Block,
    ) {
        if let Some(code) = self.code_of(place(extent).0) {
            return self.begin_shards(id, code, extent, range, again, block);
        }
        if again && let Some(r) = self.reads.by_id.get_mut(&id) {
            r.block = Some(block);
            r.range = range;
            if let Some(donor) = r.state.is_bad() {
                let (slab, within) = place(extent);
                self.lacks(slab, donor, within);
            }
            return self.continue_read(id);
        }
        self.reads.serial += 1;
        let turn = self.reads.balancer.under_way.get(&id);
        let read = Read {
            extent,
            disk_first: turn.is_some_and(|(path, _)| *path == DISK),
            range,
            serial: self.reads.serial,
            block: Some(block),
            state: read::Read::default(),
            since: Instant::now(),
        };
        self.reads.by_id.insert(id, read);
        self.continue_read(id);
    }

    /// How long the tenant waits for a copy that cannot be reached.
    pub(super) fn wait_ns_max(&self) -> u64 {
        let ms = &self.far.wait_ms_max;
        let ms = ms.load(std::sync::atomic::Ordering::Relaxed);
        ms.saturating_mul(1_000_000)
    }

    /// Asks the next copy; without one the read waits for answers or for donors that may come back, or ends.
    fn continue_read(&mut self, id: u32) {
        if self.ask_next(id, false) {
            return;
        }
        let wait_ns_max = self.wait_ns_max();
        let Some(r) = self.reads.by_id.get_mut(&id) else {
            return;
        };
        let (slab, within) = place(r.extent);
        let donors = Views::of(&self.donors, self.started);
        let since = r.since;
        let waited_ns = || since.elapsed().as_nanos() as u64;
        let slab = self.map.get(&slab);
        let otherwise = r
            .state
            .on_exhausted(slab, within, &donors, waited_ns, wait_ns_max);
        let outcome = match otherwise {
            Exhausted::AwaitAnswer => return,
            Exhausted::Retry => {
                self.reads.away.push((id, r.serial));
                return;
            }
            Exhausted::Fail { away: true } => Outcome::Away,
            Exhausted::Fail { away: false } => Outcome::NoCopy,
        };
        let block = r.block.take().unwrap_or_default();
        self.reads.by_id.remove(&id);
        self.events.push(Event::Ended { id, outcome, block });
    }

    /// Asks the next copy not tried yet; false when there is none. With `besides`, one that was asked may still answer,
    /// so only a copy that should have the extent is asked.
    fn ask_next(&mut self, id: u32, besides: bool) -> bool {
        loop {
            let Some(r) = self.reads.by_id.get(&id) else {
                return false;
            };
            let (slab, within) = place(r.extent);
            let on_disk = match self.on_disk(slab, within) {
                OnDisk::Yes if r.disk_first => OnDisk::First,
                other => other,
            };
            let donors = Views::of(&self.donors, self.started);
            let slab = self.map.get(&slab);
            let next = r.state.next(slab, within, &donors, on_disk, besides);
            let (donor, handle) = match next {
                NextCopy::Donor(donor, handle) => (donor, handle),
                NextCopy::Disk => {
                    self.ask_disk(id);
                    return true;
                }
                NextCopy::NoneLeft => return false,
            };
            let range = canvas_wire::frame::Range {
                offset: (within * EXTENT_BYTES + r.range.start) as u32,
                len: r.range.len() as u32,
            };
            let serial = r.serial;
            let request = Request::Read { handle, range };
            let sent = self.submit(donor, Purpose::Read(id, serial), &request);
            let due = Instant::now() + Duration::from_nanos(self.donors[donor].pace.hedge_ns());
            let r = self.reads.by_id.get_mut(&id).expect("just seen");
            r.state.on_sent(donor, sent);
            if sent {
                self.reads.due.push(Reverse((due, id, serial, donor)));
                return true;
            }
        }
    }

    fn ask_disk(&mut self, id: u32) {
        let now_ns = self.now_ns();
        let (Some(disk), Some(r)) = (&mut self.disk, self.reads.by_id.get_mut(&id)) else {
            return;
        };
        // A donor that was asked may be faster, and pieces that have arrived must not be lost: the disk then gets a
        // buffer of its own.
        let block = match r.state.on_sent_to_disk() {
            true if r.range.start == 0 => r.block.take(),
            _ => None,
        };
        let number = ON_DISK | (self.reads.disk_serial % ON_DISK);
        self.reads.disk_serial = self.reads.disk_serial.wrapping_add(1);
        self.reads.on_disk.insert(number, (id, r.serial));
        self.reads.balancer.disk.on_sent(now_ns);
        let range = r.range.clone();
        if r.disk_first {
            let due = Instant::now() + Duration::from_nanos(self.reads.balancer.disk_hedge_ns());
            self.reads.due.push(Reverse((due, id, r.serial, THE_DISK)));
        }
        disk.read(number, r.extent, range, 0, block.unwrap_or_default());
    }

    /// A donor has answered a read, or (`None`) never will.
    pub(super) fn donor_read(
        &mut self,
        donor: usize,
        (id, serial): (u32, u64),
        answer: Option<Answer>,
    ) {
        let Some(r) = self.reads.get(id, serial) else {
            return;
        };
        let (slab, within) = place(r.extent);
        let kind = match answer {
            Some(Answer::Data(data)) => read::Answer::Data {
                blank: data.iter().all(|b| *b == 0),
            },
            // It no longer has this slab, and so will not answer later either.
            Some(Answer::Error {
                code: ErrorCode::UnknownHandle,
                ..
            }) => read::Answer::Unknown,
            _ => read::Answer::No,
        };
        match r.state.on_answer(&mut self.map, slab, within, donor, kind) {
            AfterAnswer::Nothing => {}
            AfterAnswer::Deliver => {
                let mut block = r.block.take().unwrap_or_default();
                if let Some(Answer::Data(data)) = answer {
                    block[r.range.clone()].copy_from_slice(data);
                }
                let outcome = Outcome::Done;
                self.reads.balancer.ended(id);
                self.events.push(Event::Ended { id, outcome, block });
            }
            AfterAnswer::TryNext { failover } => {
                if failover {
                    self.failed_over(donor);
                }
                self.continue_read(id);
            }
        }
    }

    /// Another copy was asked because the donor, or [`THE_DISK`], did not deliver.
    pub(super) fn failed_over(&mut self, donor: usize) {
        self.failovers += 1;
        if let Some(donor) = self.donors.get_mut(donor) {
            donor.failovers += 1;
        }
    }

    /// The disk has finished a read.
    pub(super) fn disk_read(&mut self, number: u32, outcome: Outcome, block: Block) {
        let Some((id, serial)) = self.reads.on_disk.remove(&number) else {
            return;
        };
        let now_ns = self.now_ns();
        self.reads.balancer.disk.on_answer(now_ns);
        let Some(extent) = self.reads.get(id, serial).map(|r| r.extent) else {
            return;
        };
        let (slab, within) = place(extent);
        let on_disk = self.on_disk(slab, within);
        let r = self.reads.get(id, serial).expect("just seen");
        let kind = match outcome {
            Outcome::Done => read::Answer::Data {
                blank: block[r.range.clone()].iter().all(|b| *b == 0),
            },
            _ => read::Answer::No,
        };
        match r.state.on_disk_answer(on_disk, kind) {
            AfterAnswer::Nothing => {}
            AfterAnswer::Deliver => {
                let block = match r.block.take() {
                    Some(mut ours) => {
                        ours[r.range.clone()].copy_from_slice(&block[r.range.clone()]);
                        ours
                    }
                    None => block,
                };
                self.reads.balancer.ended(id);
                self.events.push(Event::Ended { id, outcome, block });
            }
            AfterAnswer::TryNext { .. } => {
                r.block.get_or_insert(block);
                self.continue_read(id);
            }
        }
    }

    /// Retries reads that waited for unreachable donors; donors that are up now are asked again.
    pub(super) fn retry_away(&mut self) {
        let donors = self.donors.iter().enumerate();
        let up = donors.fold(0, |up, (i, d)| up | u64::from(d.is_up()) << i);
        for (id, serial) in std::mem::take(&mut self.reads.away) {
            if let Some(r) = self.reads.get(id, serial) {
                r.state.retry(up);
                self.continue_read(id);
            }
        }
    }

    /// Hedges: asks another copy where a donor has been silent for too long.
    pub(super) fn hedge(&mut self) {
        if self.reads.due.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(&Reverse((due, id, serial, donor))) = self.reads.due.peek() {
            let read = self.reads.get(id, serial);
            let waits = read.is_some_and(|r| match donor {
                THE_DISK => r.state.waits_for_disk(),
                donor => r.state.waits_for(donor),
            });
            if waits && due > now {
                return;
            }
            self.reads.due.pop();
            if waits {
                if donor == THE_DISK {
                    self.disk_is_silent();
                } else {
                    self.suspect(donor);
                }
                if self.ask_next(id, true) {
                    self.failed_over(donor);
                }
            }
        }
    }

    /// If the disk answers no read at all, reads go to donors first for a while. One slow read proves nothing; and
    /// where donors are faster there may be no other disk read for a second.
    fn disk_is_silent(&mut self) {
        let now_ns = self.now_ns();
        let balancer = &mut self.reads.balancer;
        if balancer.disk.ns(now_ns) >= HEDGE_NS_MAX {
            balancer.paths.close(DISK, Closed::Silent, now_ns);
        }
    }

    /// Reads prefer other donors until this one answers a ping.
    pub(super) fn suspect(&mut self, donor: usize) {
        let d = &mut self.donors[donor];
        if d.suspect.is_none() {
            let now = Instant::now();
            d.suspect = Some(now);
            d.pinged = now;
            self.submit(donor, Purpose::Ping, &Request::Ping);
        }
    }
}
