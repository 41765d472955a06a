//! Repairs replicas: carries out what [`canvas_place::replicas::repair`] decides.
//!
//! The bytes that a repair moves count as its tenant's, and are scheduled on the links like its writes: a job requests
//! what it wants to move next ([`Event::MoveWanted`]), is granted some of it ([`Replicas::grant_move`]), and reports
//! when that is done ([`Event::MoveEnded`]).

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use canvas_place::replicas::REPAIRS;
use canvas_place::replicas::repair::{self, Found, RepairSource, TRIES, Verified};
use canvas_shm::far::{EXTENT_BYTES, SLAB_EXTENTS};
use canvas_wire::frame::Request;

use super::shards::Gathering;
use super::{OURS, Purpose, Replicas, Views};
use crate::block::Block;
use crate::dispatch::IoLink;
use crate::store::LogTopic;
use crate::store::{Event, Outcome, Store, place};

pub(super) const SLOTS: usize = REPAIRS;
const WHOLE: Range<usize> = 0..EXTENT_BYTES;

/// Progress of a job's transfer.
#[derive(Default)]
struct Moving {
    /// Bytes that are read or written, and those of the piece under way.
    got: usize,
    piece: usize,
    block: Option<Block>,
}

/// Repairs under way.
pub struct Repairs {
    /// The jobs: what is repaired from where.
    pub jobs: repair::Repairs,
    moving: [Moving; SLOTS],
    /// Repairs of shards, by slot.
    pub shards: [Option<Gathering>; SLOTS],
    /// Slabs repaired since the last report.
    pub done: u64,
    /// Buffer in which a copy is opened to verify it.
    scratch: Option<Block>,
}

impl Repairs {
    /// No repairs.
    pub fn new() -> Repairs {
        Repairs {
            jobs: repair::Repairs::new(SLAB_EXTENTS),
            moving: Default::default(),
            shards: Default::default(),
            done: 0,
            scratch: None,
        }
    }
}

impl Replicas {
    /// Starts repairs; called in every tick.
    pub(super) fn repair(&mut self) {
        let now = self.now_ns();
        self.repairs.jobs.tick(now);
        for slot in 0..SLOTS {
            self.next_repair(slot);
        }
    }

    /// Finds a job for an idle slot. Candidates that prove hopeless at once do not keep the others waiting.
    fn next_repair(&mut self, slot: usize) {
        for _ in 0..TRIES {
            if self.repairs.jobs.job(slot).is_some() || !self.find_repair(slot) {
                return;
            }
        }
    }

    /// Finds an extent to repair and begins; false when there is none.
    fn find_repair(&mut self, slot: usize) -> bool {
        let (far, writing) = (self.far, &self.writing);
        let donors = Views::of(&self.donors, self.started);
        let Found {
            is_found,
            made_whole,
        } = self.repairs.jobs.find(
            slot,
            &mut self.map,
            &donors,
            self.policy,
            |extent| writing.contains_key(&extent),
            |extent| far.seals[extent as usize].load(Acquire),
        );
        self.repairs.done += made_whole.len() as u64;
        for slab in made_whole {
            self.save(slab);
        }
        if is_found {
            self.repairs.moving[slot] = Moving {
                block: Some(Block::new()),
                ..Moving::default()
            };
            let extent = self.repairs.jobs.job(slot).map_or(0, |job| job.extent);
            match self.code_of(place(extent).0) {
                Some(code) => self.begin_shard_repair(slot, code),
                None => self.read_for_repair(slot),
            }
        }
        is_found
    }

    /// Chooses the next copy that may have the extent, and requests to read it.
    fn read_for_repair(&mut self, slot: usize) {
        if self.repairs.jobs.job(slot).is_none() {
            return;
        }
        self.repairs.moving[slot].got = 0;
        let donors = Views::of(&self.donors, self.started);
        let has_disk = self.disk.is_some();
        match self.repairs.jobs.source(slot, &self.map, &donors, has_disk) {
            RepairSource::Donor(_) => self.request_move(slot, IoLink::In),
            RepairSource::Disk => self.request_move(slot, self.disk_link(slot)),
            RepairSource::Unavailable => self.end_repair(slot, false),
        }
    }

    /// The path of a job's extent to the disk and back.
    fn disk_link(&self, slot: usize) -> IoLink {
        let extent = self.repairs.jobs.job(slot).map_or(0, |job| job.extent);
        let disk = self.disk.as_ref();
        disk.map_or(IoLink::Disk(0), |disk| disk.link_of(extent))
    }

    /// Requests to move the rest of what a job reads or writes.
    fn request_move(&mut self, slot: usize, link: IoLink) {
        self.events.push(Event::MoveWanted {
            slot: slot as u32,
            link,
            bytes: (EXTENT_BYTES - self.repairs.moving[slot].got) as u32,
        });
    }

    /// A granted move is done, or (not `ok`) failed.
    pub(super) fn moved(&mut self, slot: usize, ok: bool) {
        let slot = slot as u32;
        self.events.push(Event::MoveEnded { slot, ok });
    }

    /// A job may move `bytes`.
    pub(super) fn grant_move(&mut self, slot: usize, bytes: usize) {
        let Some(job) = self.repairs.jobs.job(slot) else {
            debug_assert!(false, "a job ends only when it has no request pending");
            return self.moved(slot, false);
        };
        if self.repairs.shards[slot].is_some() {
            return self.move_shards(slot, bytes);
        }
        let moving = &mut self.repairs.moving[slot];
        moving.piece = bytes;
        if job.void {
            self.moved(slot, false);
            return self.end_repair(slot, false);
        }
        if job.writes && job.to.is_none() {
            return self.write_to_disk_for_repair(slot);
        }
        if job.writes {
            return self.write_piece_for_repair(slot);
        }
        let Some(source) = job.from else {
            let (extent, block) = (job.extent, moving.block.take().unwrap_or_default());
            if let Some(disk) = &mut self.disk {
                disk.read(OURS + slot as u32, extent, WHOLE, 0, block);
            }
            return;
        };
        let range = canvas_wire::frame::Range {
            offset: (job.extent as usize % SLAB_EXTENTS * EXTENT_BYTES + moving.got) as u32,
            len: bytes as u32,
        };
        let slab = job.extent / SLAB_EXTENTS as u32;
        let handle = source.handle;
        let request = Request::Read { handle, range };
        if !self.is_there(slab, source)
            || !self.submit(source.donor, Purpose::RepairRead(slot), &request)
        {
            self.moved(slot, false);
            self.read_for_repair(slot);
        }
    }

    pub(super) fn repair_read(&mut self, slot: usize, data: Option<&[u8]>) {
        if self.repairs.jobs.job(slot).is_none() {
            return;
        }
        let moving = &mut self.repairs.moving[slot];
        let piece = moving.got..moving.got + moving.piece;
        match data {
            Some(data) if data.len() == moving.piece => {
                let block = moving.block.get_or_insert_default();
                block[piece.clone()].copy_from_slice(data);
                moving.got = piece.end;
                let whole = moving.got == EXTENT_BYTES;
                self.moved(slot, true);
                if whole {
                    self.write_for_repair(slot);
                } else {
                    self.request_move(slot, IoLink::In);
                }
            }
            _ => {
                self.moved(slot, false);
                self.read_for_repair(slot);
            }
        }
    }

    /// The disk has read or written for a repair.
    pub(super) fn repair_by_disk(&mut self, slot: usize, outcome: Outcome, block: Block) {
        self.moved(slot, outcome == Outcome::Done);
        if self.repairs.jobs.job(slot).is_some_and(|job| job.writes) {
            return self.end_repair(slot, outcome == Outcome::Done);
        }
        self.repairs.moving[slot].block = Some(block);
        if outcome == Outcome::Done {
            self.write_for_repair(slot);
        } else {
            self.read_for_repair(slot);
        }
    }

    /// The extent has been read: if it verifies, requests to write it to the copy that lacks it.
    fn write_for_repair(&mut self, slot: usize) {
        let Some(job) = self.repairs.jobs.job(slot) else {
            return;
        };
        let (extent, seal, void) = (job.extent, job.seal, job.void);
        let Some(block) = self.repairs.moving[slot].block.take() else {
            return;
        };
        let good = void || self.verifies(extent, seal, &block);
        self.repairs.moving[slot].block = Some(block);
        let seal = self.far.seals[extent as usize].load(Acquire);
        match self.repairs.jobs.verified(slot, &self.map, good, seal) {
            Verified::Write(target) => {
                self.repairs.moving[slot].got = 0;
                let link = target.map_or_else(|| self.disk_link(slot), |_| IoLink::Out);
                self.request_move(slot, link);
            }
            Verified::Has => self.end_repair(slot, true),
            Verified::End => self.end_repair(slot, false),
            Verified::Lacks => self.read_for_repair(slot),
            Verified::Bad(source) => {
                if let Some(source) = source {
                    let within = extent as usize % SLAB_EXTENTS;
                    self.lacks(extent / SLAB_EXTENTS as u32, source.donor, within);
                }
                self.far.stats.corrupt.fetch_add(1, Relaxed);
                let line = format!(
                    "a copy of extent {extent} is damaged or old; it is not used for repair"
                );
                self.events.push(Event::Log(LogTopic::Corrupt, line));
                self.read_for_repair(slot);
            }
        }
    }

    /// Writes the whole extent to the disk, unless its slab is being freed there.
    fn write_to_disk_for_repair(&mut self, slot: usize) {
        let extent = self.repairs.jobs.job(slot).map_or(0, |job| job.extent);
        let block = self.repairs.moving[slot].block.take();
        let slab = extent / SLAB_EXTENTS as u32;
        let is_dropped = self.dropping.contains_key(&slab);
        if !is_dropped {
            self.goes_to_disk(slab);
        }
        match (&mut self.disk, block) {
            (Some(disk), Some(block)) if !is_dropped => {
                self.repairs.jobs.sent(slot);
                disk.write(OURS + slot as u32, extent, block, EXTENT_BYTES);
            }
            _ => {
                self.moved(slot, false);
                self.end_repair(slot, false);
            }
        }
    }

    fn write_piece_for_repair(&mut self, slot: usize) {
        let Some(job) = self.repairs.jobs.job(slot) else {
            return;
        };
        let (extent, target) = (job.extent, job.target);
        let moving = &mut self.repairs.moving[slot];
        let piece = moving.got..moving.got + moving.piece;
        let Some((target, block)) = target.zip(moving.block.take()) else {
            return;
        };
        self.repairs.jobs.sent(slot);
        let request = Request::Write {
            handle: target.handle,
            offset: (extent as usize % SLAB_EXTENTS * EXTENT_BYTES + piece.start) as u32,
            data: &block[piece],
        };
        let sent = self.is_there(extent / SLAB_EXTENTS as u32, target)
            && self.submit(target.donor, Purpose::RepairWrite(slot), &request);
        self.repairs.moving[slot].block = Some(block);
        if !sent {
            self.moved(slot, false);
            self.end_repair(slot, false);
        }
    }

    /// Whether these are the bytes of the extent that were sealed under this number.
    pub(super) fn verifies(&mut self, extent: u32, seal: u64, block: &Block) -> bool {
        let scratch = self.repairs.scratch.get_or_insert_default();
        scratch.copy_from_slice(block);
        self.sealer.open_extent(extent, seal, scratch).is_ok()
    }

    pub(super) fn repair_wrote(&mut self, slot: usize, ok: bool) {
        if self.repairs.shards[slot].is_some() {
            return self.wrote_shard(slot, ok);
        }
        let Some(job) = self.repairs.jobs.job(slot) else {
            return;
        };
        let moving = &mut self.repairs.moving[slot];
        moving.got += moving.piece;
        let more = ok && !job.void && moving.got < EXTENT_BYTES;
        self.moved(slot, ok);
        if more {
            self.request_move(slot, IoLink::Out);
        } else {
            self.end_repair(slot, ok);
        }
    }

    /// Ends a job that has no transfer under way and no request pending.
    pub(super) fn end_repair(&mut self, slot: usize, ok: bool) {
        if self.repairs.jobs.job(slot).is_none() {
            return;
        }
        self.repairs.moving[slot] = Moving::default();
        self.repairs.shards[slot] = None;
        for id in self.repairs.jobs.end(slot, &mut self.map, ok).held_back {
            self.send_write(id);
        }
        if ok {
            self.next_repair(slot);
        }
    }
}
