//! Making good what copies miss: extent by extent from another copy, a few at a time.
//!
//! What was read is verified before it is written on: a copy that is damaged or old is no source, and
//! is itself made good if there is one.
//!
//! A write of an extent that is being repaired supersedes the repair: while the old bytes are being
//! read the repair is given up; while they are on their way to the copy the write waits for that.
//!
//! What a repair moves is its tenant's, and takes its turn on the links as what is written does: a job says what it
//! wants to move next ([`Event::Wants`]), is told how much of that it may ([`Copies::move_own`]), and says when that
//! is through ([`Event::Moved`]).

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use canvas_place::copies::{REPAIRS, repair_from};
use canvas_shm::far::{EXTENT_BYTES, SLAB_EXTENTS};
use canvas_wire::frame::Request;

use super::write::Target;
use super::{Call, Copies, OURS};
use crate::block::Block;
use crate::lanes::Lane;
use crate::log::About;
use crate::store::{Event, Outcome, Store};

const SLOTS: usize = REPAIRS;
const WHOLE: Range<usize> = 0..EXTENT_BYTES;
/// Before an extent that no copy could give is tried again.
const HOPELESS: Duration = Duration::from_millis(500);
/// Extents that one slot tries in a row.
const TRIES: usize = 64;

struct Job {
    extent: u32,
    /// The seal that its bytes have, unless they are written anew.
    seal: u64,
    /// The copy whose bytes are being read, or were; none: the disk's.
    from: Option<Target>,
    /// The donor that lacks it, and the copy there once it is written to.
    to: usize,
    target: Option<Target>,
    /// Donors that were asked for it, a bit each.
    tried: u64,
    tried_disk: bool,
    /// It is verified, and goes to the donor. With `sent`: some of it is on its way there, or there.
    writes: bool,
    sent: bool,
    /// Bytes that are through, of those that are read or written, and those that go next.
    got: usize,
    piece: usize,
    /// It was written anew meanwhile, or its slab is gone.
    void: bool,
    /// Writes that wait.
    held_back: Vec<u32>,
    block: Option<Block>,
}

/// Repairs under way.
#[derive(Default)]
pub struct Repairs {
    jobs: [Option<Job>; SLOTS],
    /// Slabs made whole since they were last told.
    pub done: u64,
    /// Where the next search begins.
    next_slab: u32,
    /// Extents that no copy could give, until they are tried again.
    hopeless: HashSet<u32>,
    hopeless_since: Option<Instant>,
    /// Extents whose copy on the disk does not verify, until they are written or freed.
    bad_on_disk: HashSet<u32>,
    /// Where what was read is opened, to see whether it verifies.
    scratch: Option<Block>,
}

impl Repairs {
    /// Must a write of the extent wait? It is sent when the repair is over.
    pub fn holds_back(&mut self, extent: u32, id: u32) -> bool {
        self.bad_on_disk.remove(&extent);
        for job in self.jobs.iter_mut().flatten() {
            if job.extent == extent {
                job.void = true;
                if job.sent {
                    job.held_back.push(id);
                    return true;
                }
            }
        }
        false
    }

    /// The slab is freed: what was known of its extents is not true any more.
    pub fn freed(&mut self, slab: u32) {
        let stays = |extent: &u32| extent / SLAB_EXTENTS as u32 != slab;
        self.bad_on_disk.retain(stays);
        self.hopeless.retain(stays);
    }
}

impl Copies {
    /// Starts repairs; called in every tick.
    pub(super) fn repair(&mut self) {
        let since = &mut self.repairs.hopeless_since;
        if since.is_none_or(|t| t.elapsed() >= HOPELESS) {
            *since = Some(Instant::now());
            self.repairs.hopeless.clear();
        }
        for slot in 0..SLOTS {
            self.next_repair(slot);
        }
    }

    /// Finds something to do for a slot that has nothing. What turns out at once to be hopeless does
    /// not keep the rest from its turn.
    fn next_repair(&mut self, slot: usize) {
        for _ in 0..TRIES {
            if self.repairs.jobs[slot].is_some() || !self.find_repair(slot) {
                return;
            }
        }
    }

    /// Finds an extent to repair, and begins; false when there is none.
    fn find_repair(&mut self, slot: usize) -> bool {
        let from = self.repairs.next_slab;
        let far = self.far;
        let mut found = None;
        let mut made_whole = Vec::new();
        let (repairs, donors, writing) = (&self.repairs, &self.donors, &self.writing);
        let busy = |extent: u32| {
            writing.contains_key(&extent)
                || repairs.hopeless.contains(&extent)
                || repairs.jobs.iter().flatten().any(|j| j.extent == extent)
        };
        let wraps = self.map.range(from..).chain(self.map.range(..from));
        let slabs: Vec<u32> = wraps
            .filter(|(_, e)| e.copies.iter().any(|c| c.missing.is_some()))
            .map(|(slab, _)| *slab)
            .collect();
        'search: for slab in slabs {
            let entry = self.map.get_mut(&slab).expect("just seen");
            for copy in &mut entry.copies {
                if !donors[copy.donor].is_up() || copy.leaving.is_some() {
                    continue;
                }
                let first = slab * SLAB_EXTENTS as u32;
                let (next, whole) = copy.next_missing(
                    |e| busy(first + e as u32),
                    |e| Copies::is_written(far, first + e as u32),
                );
                if whole {
                    made_whole.push(slab);
                }
                if let Some(e) = next {
                    found = Some((slab, first + e as u32, copy.donor));
                    break 'search;
                }
            }
        }
        self.repairs.done += made_whole.len() as u64;
        for slab in made_whole {
            self.save(slab);
        }
        if let Some((slab, extent, to)) = found {
            self.repairs.next_slab = slab;
            self.repairs.jobs[slot] = Some(Job {
                extent,
                seal: far.seals[extent as usize].load(Acquire),
                from: None,
                to,
                target: None,
                tried: 1 << to,
                tried_disk: false,
                writes: false,
                sent: false,
                got: 0,
                piece: 0,
                void: false,
                held_back: Vec::new(),
                block: Some(Block::new()),
            });
            self.read_for_repair(slot);
        }
        found.is_some()
    }

    /// Chooses the next copy that may have the extent, and asks for leave to read it.
    fn read_for_repair(&mut self, slot: usize) {
        let Some(job) = &self.repairs.jobs[slot] else {
            return;
        };
        let (extent, tried) = (job.extent, job.tried);
        let slab = extent / SLAB_EXTENTS as u32;
        let within = extent as usize % SLAB_EXTENTS;
        let source = self.map.get(&slab).and_then(|e| {
            let donor = repair_from(self.sources(e, within), within, tried)?;
            e.copies.iter().find(|c| c.donor == donor).map(Target::of)
        });
        let Some(job) = &mut self.repairs.jobs[slot] else {
            return;
        };
        job.got = 0;
        job.from = source;
        if let Some(source) = source {
            job.tried |= 1 << source.donor;
            return self.want(slot, Lane::In);
        }
        if self.disk.is_some() && !job.tried_disk && !self.repairs.bad_on_disk.contains(&extent) {
            job.tried_disk = true;
            return self.want(slot, Lane::Disk);
        }
        self.repairs.hopeless.insert(extent);
        self.end_repair(slot, false);
    }

    /// A job wants to move what is left of what it reads or writes.
    fn want(&mut self, slot: usize, lane: Lane) {
        let Some(job) = &self.repairs.jobs[slot] else {
            return;
        };
        self.events.push(Event::Wants {
            slot: slot as u32,
            lane,
            bytes: (EXTENT_BYTES - job.got) as u32,
        });
    }

    /// What a job was let move is through, or (not `ok`) will not be.
    fn moved(&mut self, slot: usize, ok: bool) {
        let slot = slot as u32;
        self.events.push(Event::Moved { slot, ok });
    }

    /// A job may move so many bytes.
    pub(super) fn move_own(&mut self, slot: usize, bytes: usize) {
        let Some(job) = &mut self.repairs.jobs[slot] else {
            debug_assert!(false, "a job ends when nothing of it waits for its turn");
            return self.moved(slot, false);
        };
        job.piece = bytes;
        if job.void {
            self.moved(slot, false);
            return self.end_repair(slot, false);
        }
        if job.writes {
            return self.write_piece_for_repair(slot);
        }
        let Some(source) = job.from else {
            let (extent, block) = (job.extent, job.block.take().unwrap_or_default());
            if let Some(disk) = &mut self.disk {
                disk.read(OURS + slot as u32, extent, WHOLE, 0, block);
            }
            return;
        };
        let range = canvas_wire::frame::Range {
            offset: (job.extent as usize % SLAB_EXTENTS * EXTENT_BYTES + job.got) as u32,
            len: bytes as u32,
        };
        let slab = job.extent / SLAB_EXTENTS as u32;
        let handle = source.handle;
        let request = Request::Read { handle, range };
        if !self.is_there(slab, source)
            || !self.submit(source.donor, Call::RepairRead(slot), &request)
        {
            self.moved(slot, false);
            self.read_for_repair(slot);
        }
    }

    pub(super) fn repair_read(&mut self, slot: usize, data: Option<&[u8]>) {
        let Some(job) = &mut self.repairs.jobs[slot] else {
            return;
        };
        let piece = job.got..job.got + job.piece;
        match data {
            Some(data) if data.len() == job.piece => {
                let block = job.block.get_or_insert_default();
                block[piece.clone()].copy_from_slice(data);
                job.got = piece.end;
                let whole = job.got == EXTENT_BYTES;
                self.moved(slot, true);
                if whole {
                    self.write_for_repair(slot);
                } else {
                    self.want(slot, Lane::In);
                }
            }
            _ => {
                self.moved(slot, false);
                self.read_for_repair(slot);
            }
        }
    }

    pub(super) fn repair_from_disk(&mut self, slot: usize, outcome: Outcome, block: Block) {
        self.moved(slot, outcome == Outcome::Done);
        if let Some(job) = &mut self.repairs.jobs[slot] {
            job.block = Some(block);
        }
        if outcome == Outcome::Done {
            self.write_for_repair(slot);
        } else {
            self.read_for_repair(slot);
        }
    }

    /// All has been read: if it verifies, asks for leave to write it to the copy that lacks it.
    fn write_for_repair(&mut self, slot: usize) {
        let Some(job) = &mut self.repairs.jobs[slot] else {
            return;
        };
        let (to, extent, seal, void) = (job.to, job.extent, job.seal, job.void);
        let Some(block) = job.block.take() else {
            return;
        };
        let good = void || self.verifies(extent, seal, &block);
        let slab = extent / SLAB_EXTENTS as u32;
        let target = self.map.get_mut(&slab).and_then(|e| e.at(to));
        let target = target.map(|c| Target::of(c));
        let Some(job) = &mut self.repairs.jobs[slot] else {
            return;
        };
        job.block = Some(block);
        if !good {
            return self.is_bad(slot);
        }
        if target.is_none() || void {
            return self.end_repair(slot, false);
        }
        (job.target, job.writes, job.got) = (target, true, 0);
        self.want(slot, Lane::Out);
    }

    fn write_piece_for_repair(&mut self, slot: usize) {
        let Some(job) = &mut self.repairs.jobs[slot] else {
            return;
        };
        let (extent, piece) = (job.extent, job.got..job.got + job.piece);
        let Some((target, block)) = job.target.zip(job.block.take()) else {
            return;
        };
        job.sent = true;
        let request = Request::Write {
            handle: target.handle,
            offset: (extent as usize % SLAB_EXTENTS * EXTENT_BYTES + piece.start) as u32,
            data: &block[piece],
        };
        let sent = self.is_there(extent / SLAB_EXTENTS as u32, target)
            && self.submit(target.donor, Call::RepairWrite(slot), &request);
        if let Some(job) = &mut self.repairs.jobs[slot] {
            job.block = Some(block);
        }
        if !sent {
            self.moved(slot, false);
            self.end_repair(slot, false);
        }
    }

    /// Are these the bytes of the extent that were sealed under this number?
    fn verifies(&mut self, extent: u32, seal: u64, block: &Block) -> bool {
        let scratch = self.repairs.scratch.get_or_insert_default();
        scratch.copy_from_slice(block);
        self.sealer.open_extent(extent, seal, scratch).is_ok()
    }

    /// What a repair has read is damaged or old: it goes nowhere, and another copy is looked for.
    fn is_bad(&mut self, slot: usize) {
        let Some(job) = &mut self.repairs.jobs[slot] else {
            return;
        };
        let (extent, from) = (job.extent, job.from);
        if self.far.seals[extent as usize].load(Acquire) != job.seal {
            // The tenant has changed its seals itself.
            return self.end_repair(slot, false);
        }
        match from {
            Some(source) => {
                let within = extent as usize % SLAB_EXTENTS;
                self.lacks(extent / SLAB_EXTENTS as u32, source.donor, within);
            }
            None => {
                self.repairs.bad_on_disk.insert(extent);
            }
        }
        self.far.stats.corrupt.fetch_add(1, Relaxed);
        let line = format!("a copy of extent {extent} is damaged or old; it is not copied on");
        self.events.push(Event::Line(About::Corrupt, line));
        self.read_for_repair(slot);
    }

    pub(super) fn repair_wrote(&mut self, slot: usize, ok: bool) {
        let Some(job) = &mut self.repairs.jobs[slot] else {
            return;
        };
        job.got += job.piece;
        let more = ok && !job.void && job.got < EXTENT_BYTES;
        self.moved(slot, ok);
        if more {
            self.want(slot, Lane::Out);
        } else {
            self.end_repair(slot, ok);
        }
    }

    /// Ends a job of which nothing is under way, and nothing waits for its turn.
    fn end_repair(&mut self, slot: usize, ok: bool) {
        let Some(job) = self.repairs.jobs[slot].take() else {
            return;
        };
        let slab = job.extent / SLAB_EXTENTS as u32;
        if ok
            && !job.void
            && let Some(copy) = self.map.get_mut(&slab).and_then(|e| e.at(job.to))
        {
            copy.gained(job.extent as usize % SLAB_EXTENTS);
        }
        for id in job.held_back {
            self.send_write(id);
        }
        if ok {
            self.next_repair(slot);
        }
    }
}
