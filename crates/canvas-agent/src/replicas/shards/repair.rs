//! Repairs a missing shard: reads just enough other shards, verifies them as an extent, then computes and writes the
//! missing one.
//!
//! The shards are read in parallel, in steps as large as the schedule of the link allows. Where they do not verify, all
//! shards that any donor has are read, and combinations are tried until one verifies.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use canvas_place::replicas::code::GRAIN;
use canvas_place::replicas::{Code, Target};
use canvas_shm::far::{EXTENT_BYTES, SLAB_EXTENTS};
use canvas_wire::frame::Request;

use super::super::{Purpose, Replicas};
use crate::block::Block;
use crate::dispatch::IoLink;
use crate::erasure::{Coder, Piece, assemble, candidates};
use crate::store::{Event, place};

/// A repair of a shard.
pub(in super::super) struct Gathering {
    coder: Arc<Coder>,
    /// The shards to read, and what has been read of them.
    sources: Vec<Target>,
    pieces: Vec<Piece>,
    /// Bytes of each shard that are done, and those under way.
    got: usize,
    step: usize,
    /// Answers awaited, and whether one of this step failed.
    waits: usize,
    failed: bool,
    /// Donors that did not deliver, a bit each.
    tried: u64,
    /// All shards that any donor has are read.
    thorough: bool,
    /// The shard to write.
    out: Vec<u8>,
}

impl Replicas {
    /// Begins the repair in a slot, for a slab in shards.
    pub(in super::super) fn begin_shard_repair(&mut self, slot: usize, code: Code) {
        let coder = self.coder(code);
        self.repairs.shards[slot] = Some(Gathering {
            coder,
            sources: Vec::new(),
            pieces: Vec::new(),
            got: 0,
            step: 0,
            waits: 0,
            failed: false,
            tried: 0,
            thorough: false,
            out: Vec::new(),
        });
        self.gather_for_repair(slot);
    }

    /// Shards to read for the job, each from another donor: just enough of them, or, with `thorough`, all.
    fn repair_sources(&self, slot: usize, thorough: bool) -> Option<Vec<Target>> {
        let job = self.repairs.jobs.job(slot)?;
        let gathering = self.repairs.shards[slot].as_ref()?;
        let (slab, within) = place(job.extent);
        let code = gathering.coder.code();
        let may = |donor: usize| self.donors[donor].is_up() && gathering.tried & 1 << donor == 0;
        let all = &self.map.get(&slab)?.replicas;
        let mut all: Vec<_> = all.iter().filter(|c| may(c.donor)).collect();
        all.sort_by_key(|c| self.donors[c.donor].suspect.is_some());
        let mut shards = 0u32;
        all.retain(|c| {
            let is_new = shards & 1 << c.shard == 0;
            let is_good = c.has(within) && Some(c.donor) != job.to && is_new;
            if thorough || is_good {
                shards |= 1 << c.shard;
            }
            thorough || is_good
        });
        if (shards.count_ones() as usize) < code.data() {
            return None;
        }
        if !thorough {
            all.truncate(code.data());
        }
        Some(all.into_iter().map(Target::of).collect())
    }

    /// Chooses the shards to read, and requests to read them.
    fn gather_for_repair(&mut self, slot: usize) {
        let Some(job) = self.repairs.jobs.job(slot) else {
            return;
        };
        let (slab, within) = place(job.extent);
        let thorough = self.repairs.shards[slot]
            .as_ref()
            .is_some_and(|g| g.thorough);
        let mut sources = self.repair_sources(slot, thorough);
        let is_away = self.is_shard_away(slab, within, true);
        let searches = sources.is_none() && !thorough && !is_away;
        if searches {
            sources = self.repair_sources(slot, true);
        }
        let (Some(sources), Some(gathering)) = (sources, &mut self.repairs.shards[slot]) else {
            self.repairs.jobs.hopeless(slot);
            return self.end_repair(slot, false);
        };
        gathering.thorough |= searches;
        let piece = |source: &Target| Piece {
            shard: source.shard,
            donor: source.donor,
            bytes: Vec::with_capacity(gathering.coder.shard_bytes()),
        };
        gathering.pieces = sources.iter().map(piece).collect();
        gathering.sources = sources;
        gathering.got = 0;
        self.request_shard_move(slot);
    }

    /// Requests to move the rest of the shards that the job reads, or of the one that it writes.
    fn request_shard_move(&mut self, slot: usize) {
        let Some(gathering) = &self.repairs.shards[slot] else {
            return;
        };
        let left = gathering.coder.shard_bytes() - gathering.got;
        let (link, bytes) = match gathering.out.is_empty() {
            true => (IoLink::In, left * gathering.sources.len()),
            false => (IoLink::Out, left),
        };
        self.events.push(Event::MoveWanted {
            slot: slot as u32,
            link,
            bytes: bytes as u32,
        });
    }

    /// The job may move `bytes`.
    pub(in super::super) fn move_shards(&mut self, slot: usize, bytes: usize) {
        let Some(job) = self.repairs.jobs.job(slot) else {
            return self.moved(slot, false);
        };
        let (void, (slab, within)) = (job.void, place(job.extent));
        let Some(gathering) = self.repairs.shards[slot].as_mut().filter(|_| !void) else {
            self.moved(slot, false);
            return self.end_repair(slot, false);
        };
        if !gathering.out.is_empty() {
            return self.write_shard(slot, bytes);
        }
        let shard_bytes = gathering.coder.shard_bytes();
        let sources = gathering.sources.clone();
        let step = bytes / sources.len().max(1) / GRAIN * GRAIN;
        gathering.step = step.clamp(GRAIN, shard_bytes - gathering.got);
        gathering.failed = false;
        let range = canvas_wire::frame::Range {
            offset: (within * shard_bytes + gathering.got) as u32,
            len: gathering.step as u32,
        };
        let (mut waits, mut tried) = (0, 0);
        for source in sources {
            let handle = source.handle;
            let request = Request::Read { handle, range };
            let sent = self.is_there(slab, source)
                && self.submit(source.donor, Purpose::RepairShard(slot), &request);
            waits += usize::from(sent);
            tried |= u64::from(!sent) << source.donor;
        }
        if let Some(gathering) = &mut self.repairs.shards[slot] {
            gathering.waits = waits;
            gathering.tried |= tried;
            gathering.failed = tried != 0;
        }
        if waits == 0 {
            self.moved(slot, false);
            self.gather_for_repair(slot);
        }
    }

    /// A donor has answered a read of a repair, or (`None`) never will.
    pub(in super::super) fn shard_for_repair(
        &mut self,
        donor: usize,
        slot: usize,
        data: Option<&[u8]>,
    ) {
        let Some(gathering) = &mut self.repairs.shards[slot] else {
            return;
        };
        gathering.waits -= 1;
        let data = data.filter(|data| data.len() == gathering.step);
        let mut pieces = gathering.pieces.iter_mut();
        match data.zip(pieces.find(|p| p.donor == donor)) {
            Some((data, piece)) => piece.bytes.extend_from_slice(data),
            None => {
                gathering.failed = true;
                gathering.tried |= 1 << donor;
            }
        }
        if gathering.waits > 0 {
            return;
        }
        let ok = !gathering.failed;
        if ok {
            gathering.got += gathering.step;
        }
        let is_whole = gathering.got == gathering.coder.shard_bytes();
        self.moved(slot, ok);
        match (ok, is_whole) {
            (false, _) => self.gather_for_repair(slot),
            (true, false) => self.request_shard_move(slot),
            (true, true) => self.compute_shard(slot),
        }
    }

    /// All shards have been read: if a combination verifies, computes the missing shard from it.
    fn compute_shard(&mut self, slot: usize) {
        let Some(job) = self.repairs.jobs.job(slot) else {
            return;
        };
        let (extent, seal, to) = (job.extent, job.seal, job.to);
        let (slab, within) = place(extent);
        let Some(gathering) = self.repairs.shards[slot].as_mut().filter(|_| !job.void) else {
            return self.end_repair(slot, false);
        };
        let coder = Arc::clone(&gathering.coder);
        let pieces = std::mem::take(&mut gathering.pieces);
        let pieces = self.judge_pieces(slab, within, pieces);
        let mut block = Block::new();
        let verified = |choice: Vec<&Piece>| {
            let shards = coder.complete(&choice)?;
            assemble(coder.code(), &shards, 0, 0..EXTENT_BYTES, &mut block);
            self.verifies(extent, seal, &block).then_some(shards)
        };
        let shards = candidates(coder.code(), &pieces).find_map(verified);
        let Some(shards) = shards else {
            let shards = pieces.iter().fold(0u32, |bits, p| bits | 1 << p.shard);
            let is_enough = shards.count_ones() as usize >= coder.code().data();
            return self.shards_do_not_verify(slot, is_enough);
        };
        let right: Vec<&[u8]> = shards.iter().map(Vec::as_slice).collect();
        if !self.blame(slab, within, &right, &pieces) {
            self.far.stats.corrupt.fetch_add(1, Relaxed);
        }
        let Some(target) = self.repairs.jobs.computed(slot, &self.map) else {
            return self.end_repair(slot, false);
        };
        let is_there = |p: &Piece| Some(p.donor) == to && right[p.shard] == p.bytes;
        if pieces.iter().any(is_there) {
            // It had the shard all the time.
            return self.end_repair(slot, true);
        }
        if let Some(gathering) = &mut self.repairs.shards[slot] {
            gathering.out = shards[target.shard].clone();
            gathering.got = 0;
        }
        self.request_shard_move(slot);
    }

    /// The shards read do not give the extent. `is_enough`: there are enough of them that they should.
    fn shards_do_not_verify(&mut self, slot: usize, is_enough: bool) {
        let Some((extent, seal)) = self.repairs.jobs.job(slot).map(|j| (j.extent, j.seal)) else {
            return;
        };
        if self.far.seals[extent as usize].load(Acquire) != seal {
            // The tenant has changed the seal itself.
            return self.end_repair(slot, false);
        }
        let gathering = self.repairs.shards[slot].as_mut();
        if let Some(gathering) = gathering.filter(|g| !g.thorough) {
            gathering.thorough = true;
            gathering.tried = 0;
            return self.gather_for_repair(slot);
        }
        if is_enough {
            self.far.stats.corrupt.fetch_add(1, Relaxed);
            self.log_unrepairable(extent);
        }
        self.repairs.jobs.hopeless(slot);
        self.end_repair(slot, false);
    }

    /// Writes the next bytes of the computed shard.
    fn write_shard(&mut self, slot: usize, bytes: usize) {
        let Some((extent, target)) = self
            .repairs
            .jobs
            .job(slot)
            .and_then(|job| Some((job.extent, job.target?)))
        else {
            self.moved(slot, false);
            return self.end_repair(slot, false);
        };
        let Some(mut gathering) = self.repairs.shards[slot].take() else {
            return self.moved(slot, false);
        };
        let shard_bytes = gathering.coder.shard_bytes();
        let piece = gathering.got..(gathering.got + bytes).min(shard_bytes);
        gathering.step = piece.len();
        self.repairs.jobs.sent(slot);
        let within = extent as usize % SLAB_EXTENTS;
        let request = Request::Write {
            handle: target.handle,
            offset: (within * shard_bytes + piece.start) as u32,
            data: &gathering.out[piece],
        };
        let sent = self.is_there(extent / SLAB_EXTENTS as u32, target)
            && self.submit(target.donor, Purpose::RepairWrite(slot), &request);
        self.repairs.shards[slot] = Some(gathering);
        if !sent {
            self.moved(slot, false);
            self.end_repair(slot, false);
        }
    }

    /// The donor has answered a write of the shard.
    pub(in super::super) fn wrote_shard(&mut self, slot: usize, ok: bool) {
        let void = self.repairs.jobs.job(slot).is_none_or(|job| job.void);
        let Some(gathering) = &mut self.repairs.shards[slot] else {
            return;
        };
        gathering.got += gathering.step;
        let more = ok && !void && gathering.got < gathering.coder.shard_bytes();
        self.moved(slot, ok);
        if more {
            self.request_shard_move(slot);
        } else {
            self.end_repair(slot, ok);
        }
    }
}
