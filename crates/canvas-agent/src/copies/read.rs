//! Reading: which copy is asked, and what is done when it is silent.
//!
//! A donor that does not answer within its usual time ([`canvas_place::pace`]) is suspect: the next
//! copy is asked as well, the first answer is taken, and others are asked before the suspect until it
//! answers a ping. An answer that does not verify at the reader ends nothing: the reader asks for the
//! next copy, and those that were asked already may still answer.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;
use std::time::{Duration, Instant};

use canvas_place::copies::{Source, is_away, read_next};
use canvas_shm::far::{EXTENT_BYTES, SLAB_EXTENTS};
use canvas_wire::error::ErrorCode;
use canvas_wire::frame::{Answer, Request};

use super::{Call, Copies};
use crate::block::Block;
use crate::store::{Event, Outcome, Store};

/// The disk knows our reads by numbers of their own from here on: a read that another copy was faster
/// for is over before the disk is.
const ON_DISK: u32 = 1 << 30;

/// A read under way.
struct Read {
    extent: u32,
    range: Range<usize>,
    /// Tells it from earlier ones of its id.
    serial: u64,
    /// While it is not with the disk, and not handed out.
    block: Option<Block>,
    /// Donors, a bit each: that were tried; whose answer is awaited; that gave none, but may yet.
    tried: u64,
    asked: u64,
    silent: u64,
    tried_disk: bool,
    asked_disk: bool,
    /// The disk could not read.
    disk_failed: bool,
    /// Bytes were handed out; these are from this donor, or (`None`) from the disk.
    handed: bool,
    from: Option<usize>,
    /// When it was asked for.
    since: Instant,
}

/// Reads under way.
#[derive(Default)]
pub(super) struct Reads {
    by_id: HashMap<u32, Read>,
    serial: u64,
    /// When to ask another copy as well: the time, the read and the donor that has been asked.
    due: BinaryHeap<Reverse<(Instant, u32, u64, usize)>>,
    /// What the disk has to do.
    on_disk: HashMap<u32, (u32, u64)>,
    disk_serial: u32,
    /// Those that wait for a donor to come back.
    away: Vec<(u32, u64)>,
}

impl Reads {
    fn get(&mut self, id: u32, serial: u64) -> Option<&mut Read> {
        self.by_id.get_mut(&id).filter(|r| r.serial == serial)
    }

    /// Is this a number of ours with the disk?
    pub fn is_ours(&self, number: u32) -> bool {
        self.on_disk.contains_key(&number)
    }

    /// Time until another copy is to be asked for one of them.
    pub fn due_in(&self) -> Option<Duration> {
        let Reverse((due, ..)) = self.due.peek()?;
        Some(due.saturating_duration_since(Instant::now()))
    }
}

fn place(extent: u32) -> (u32, usize) {
    (extent / SLAB_EXTENTS as u32, extent as usize % SLAB_EXTENTS)
}

impl Copies {
    /// A read begins, or (`again`) what was handed out did not verify.
    pub(super) fn begin_read(
        &mut self,
        id: u32,
        extent: u32,
        range: Range<usize>,
        again: bool,
        block: Block,
    ) {
        if again && let Some(r) = self.reads.by_id.get_mut(&id) {
            r.block = Some(block);
            r.range = range;
            r.handed = false;
            if let Some(donor) = r.from.take() {
                let (slab, within) = place(extent);
                self.lacks(slab, donor, within);
            }
            return self.go_on(id);
        }
        self.reads.serial += 1;
        let read = Read {
            extent,
            range,
            serial: self.reads.serial,
            block: Some(block),
            tried: 0,
            asked: 0,
            silent: 0,
            tried_disk: false,
            asked_disk: false,
            disk_failed: false,
            handed: false,
            from: None,
            since: Instant::now(),
        };
        self.reads.by_id.insert(id, read);
        self.go_on(id);
    }

    /// The copies of an extent of a slab.
    pub(super) fn sources(
        &self,
        entry: &super::Slab,
        within: usize,
    ) -> impl Iterator<Item = Source> + Clone {
        entry.copies.iter().map(move |c| Source {
            donor: c.donor,
            up: self.donors[c.donor].is_up(),
            has: c.has(within),
            suspect: self.donors[c.donor].suspect.is_some(),
        })
    }

    /// Is there a copy of the extent at a donor that cannot be reached now?
    fn is_away(&self, slab: u32, within: usize) -> bool {
        let entry = self.map.get(&slab);
        entry.is_some_and(|e| is_away(self.sources(e, within)))
    }

    /// How long the tenant waits for what cannot be reached.
    fn wait_max(&self) -> Duration {
        let ms = &self.far.wait_ms_max;
        Duration::from_millis(ms.load(std::sync::atomic::Ordering::Relaxed))
    }

    /// Asks the next copy; without one the read waits for those that were asked, or for donors that
    /// may come back, or ends.
    fn go_on(&mut self, id: u32) {
        if self.ask_next(id, false) {
            return;
        }
        let Some(r) = self.reads.by_id.get(&id) else {
            return;
        };
        if r.asked != 0 || r.asked_disk {
            return;
        }
        let (slab, within) = place(r.extent);
        let (away, wait_max) = (self.is_away(slab, within), self.wait_max());
        let holders = self.map.get(&slab).map_or(0, |e| {
            e.copies.iter().fold(0, |bits, c| bits | 1 << c.donor)
        });
        let r = self.reads.by_id.get_mut(&id).expect("just seen");
        r.silent &= holders;
        let may_come = away || r.silent != 0;
        if may_come && r.since.elapsed() < wait_max {
            r.tried &= !std::mem::take(&mut r.silent);
            self.reads.away.push((id, r.serial));
            return;
        }
        let outcome = if may_come || r.disk_failed {
            Outcome::Away
        } else {
            Outcome::NoCopy
        };
        let block = r.block.take().unwrap_or_default();
        self.reads.by_id.remove(&id);
        self.events.push(Event::Ended { id, outcome, block });
    }

    /// Asks the next copy that was not tried; false when there is none. `besides` one that may still
    /// answer, only a copy that should have the extent is worth it.
    fn ask_next(&mut self, id: u32, besides: bool) -> bool {
        loop {
            let Some(r) = self.reads.by_id.get(&id) else {
                return false;
            };
            let (slab, within) = place(r.extent);
            let disk = self.disk.is_some() && !r.tried_disk;
            // One that lacks it, as far as we know, only when there is no other and no disk: it may
            // have it all the same, and cannot deceive the reader.
            let last_resort = self.disk.is_none() && !besides && !self.is_away(slab, within);
            let next = self.map.get(&slab).and_then(|e| {
                let source = read_next(self.sources(e, within), within, r.tried, last_resort)?;
                let copy = e.copies.iter().find(|c| c.donor == source.donor)?;
                Some((source, copy.handle))
            });
            let (donor, handle) = match next {
                // The disk answers for certain.
                Some((source, handle)) if !source.suspect || !disk => (source.donor, handle),
                _ if disk => {
                    self.ask_disk(id);
                    return true;
                }
                _ => return false,
            };
            let range = canvas_wire::frame::Range {
                offset: (within * EXTENT_BYTES + r.range.start) as u32,
                len: r.range.len() as u32,
            };
            let serial = r.serial;
            let request = Request::Read { handle, range };
            let sent = self.submit(donor, Call::Read(id, serial), &request);
            let due = Instant::now() + Duration::from_nanos(self.donors[donor].pace.hedge_ns());
            let r = self.reads.by_id.get_mut(&id).expect("just seen");
            r.tried |= 1 << donor;
            if sent {
                r.asked |= 1 << donor;
                self.reads.due.push(Reverse((due, id, serial, donor)));
                return true;
            }
            r.silent |= 1 << donor;
        }
    }

    fn ask_disk(&mut self, id: u32) {
        let (Some(disk), Some(r)) = (&mut self.disk, self.reads.by_id.get_mut(&id)) else {
            return;
        };
        r.tried_disk = true;
        r.asked_disk = true;
        // A donor that has been asked may be faster, and pieces that came before must not be lost: then the disk gets
        // a block of its own.
        let block = match r.asked {
            0 if r.range.start == 0 => r.block.take(),
            _ => None,
        };
        let number = ON_DISK | (self.reads.disk_serial % ON_DISK);
        self.reads.disk_serial = self.reads.disk_serial.wrapping_add(1);
        self.reads.on_disk.insert(number, (id, r.serial));
        let range = r.range.clone();
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
        r.asked &= !(1 << donor);
        if r.handed {
            // If what was handed out does not verify, this one can be asked anew.
            r.tried &= !(1 << donor);
            return;
        }
        let (slab, within) = place(r.extent);
        let lacks = |map: &mut super::map::Map| {
            let copy = map.get_mut(&slab).and_then(|e| e.at(donor));
            copy.is_none_or(|c| !c.has(within))
        };
        if let Some(Answer::Data(data)) = answer
            && data.iter().all(|b| *b == 0)
            && lacks(&mut self.map)
        {
            // A copy that was placed anew, and nothing has been written there: it is not damaged.
            return self.go_on(id);
        }
        if let Some(Answer::Data(data)) = answer {
            let mut block = r.block.take().unwrap_or_default();
            block[r.range.clone()].copy_from_slice(data);
            r.handed = true;
            r.from = Some(donor);
            if let Some(copy) = self.map.get_mut(&slab).and_then(|e| e.at(donor)) {
                copy.ops += 1;
            }
            let outcome = Outcome::Done;
            self.events.push(Event::Ended { id, outcome, block });
            return;
        }
        // What it has not got any more it will not give.
        let is_gone =
            matches!(answer, Some(Answer::Error { code, .. }) if code == ErrorCode::UnknownHandle);
        if !is_gone {
            r.silent |= 1 << donor;
        }
        self.failovers += 1;
        self.go_on(id);
    }

    /// The disk is through with a read.
    pub(super) fn disk_read(&mut self, number: u32, outcome: Outcome, block: Block) {
        let Some((id, serial)) = self.reads.on_disk.remove(&number) else {
            return;
        };
        let Some(r) = self.reads.get(id, serial) else {
            return;
        };
        r.asked_disk = false;
        if r.handed {
            r.tried_disk = false;
        } else if outcome == Outcome::Done {
            r.handed = true;
            r.from = None;
            let block = match r.block.take() {
                Some(mut ours) => {
                    ours[r.range.clone()].copy_from_slice(&block[r.range.clone()]);
                    ours
                }
                None => block,
            };
            self.events.push(Event::Ended { id, outcome, block });
        } else {
            r.disk_failed = true;
            r.block.get_or_insert(block);
            self.go_on(id);
        }
    }

    /// Asks again for what was at donors that were away; those are tried anew.
    pub(super) fn retry_away(&mut self) {
        let donors = self.donors.iter().enumerate();
        let up = donors.fold(0, |up, (i, d)| up | u64::from(d.is_up()) << i);
        for (id, serial) in std::mem::take(&mut self.reads.away) {
            if let Some(r) = self.reads.get(id, serial) {
                r.tried &= up;
                self.go_on(id);
            }
        }
    }

    /// Asks another copy for what a donor has been silent about for too long.
    pub(super) fn hedge(&mut self) {
        if self.reads.due.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(&Reverse((due, id, serial, donor))) = self.reads.due.peek() {
            let read = self.reads.get(id, serial);
            let waits = read.is_some_and(|r| !r.handed && r.asked & 1 << donor != 0);
            if waits && due > now {
                return;
            }
            self.reads.due.pop();
            if waits {
                self.suspect(donor);
                if self.ask_next(id, true) {
                    self.failovers += 1;
                }
            }
        }
    }

    /// The donor is asked after others until it answers a ping.
    fn suspect(&mut self, donor: usize) {
        let d = &mut self.donors[donor];
        if d.suspect.is_none() {
            let now = Instant::now();
            d.suspect = Some(now);
            d.pinged = now;
            self.submit(donor, Call::Ping, &Request::Ping);
        }
    }
}
