//! Writes an extent to all its copies at once, over a slow link in pieces.
//!
//! * The caller says how far a write may go ([`Store::write`](crate::store::Store::write)); when all copies have that
//!   much, the store asks it for more. The local disk gets the whole extent at the beginning.
//! * The copies of a write are those that the slab had when it began. A copy that refuses a piece, whose donor hangs
//!   up, or that was replaced, misses the extent and gets no more of it; a copy made meanwhile misses it too.
//! * Where the disk gets its copy late, the write ends when donors have the extent; repair writes it to the disk
//!   afterwards. This holds while the disk is not too far behind ([`LATE_BYTES_MAX`]) and a donor takes the extent.
//! * Where too few donors take an extent, and there is a disk for which the policy does not ask, the disk keeps it
//!   until enough donors do.
//! * Until the end the extent has no seal, so nobody reads half of it.

use std::sync::Arc;

use canvas_place::replicas::{LATE_BYTES_MAX, Target};
use canvas_shm::far::{EXTENT_BYTES, SLAB_EXTENTS};
use canvas_wire::frame::Request;

use super::{Purpose, Replicas, Views, is_durable};
use crate::block::Block;
use crate::erasure::Coder;
use crate::store::{Event, Outcome, Store};

/// A write under way.
pub(super) struct Op {
    extent: u32,
    /// The extent, until the disk gets it.
    block: Option<Block>,
    /// Its shards, concatenated, where its slab is in shards.
    shards: Option<(Arc<Coder>, Vec<u8>)>,
    /// Bytes that may be sent, and bytes that were.
    to: usize,
    sent: usize,
    /// Copies that have all that was sent, or are being sent it.
    targets: Vec<Target>,
    /// Donors' answers awaited.
    parts: usize,
    /// The agent was asked how much further the write may go.
    waits: bool,
    /// Donors that have the whole extent.
    donors: usize,
    /// The disk's answer is awaited; its answer.
    to_disk: bool,
    disk: Option<Outcome>,
}

impl Op {
    fn slab(&self) -> u32 {
        self.extent / SLAB_EXTENTS as u32
    }

    /// Whether this write of the slab uses the disk, answered or not.
    pub(super) fn is_on_way_to_disk(&self, slab: u32) -> bool {
        (self.to_disk || self.disk.is_some()) && self.slab() == slab
    }

    /// Whether it has gone only to donors so far.
    pub(super) fn is_late(&self) -> bool {
        self.sent > 0 && !self.to_disk && self.disk.is_none()
    }

    fn within(&self) -> usize {
        self.extent as usize % SLAB_EXTENTS
    }
}

impl Replicas {
    /// Takes a write, of which the first `to` bytes may be sent now.
    pub(super) fn begin_write(&mut self, id: u32, extent: u32, block: Block, to: usize) {
        *self.writing.entry(extent).or_default() += 1;
        let op = Op {
            extent,
            block: Some(block),
            shards: None,
            to,
            sent: 0,
            targets: Vec::new(),
            parts: 0,
            waits: false,
            donors: 0,
            to_disk: false,
            disk: None,
        };
        let slab = op.slab();
        self.ops.insert(id, op);
        let now = self.now_ns();
        self.choose_form(slab);
        self.upkeep.restless.insert(slab);
        let entry = self.map.entry(slab).or_default();
        let donors = Views::of(&self.donors, self.started);
        for _ in 0..entry.to_ask(&donors, self.policy, now) {
            self.place(slab);
        }
        let entry = self.map.get_mut(&slab).expect("just made");
        if entry.allocating > 0 {
            entry.waiting.push(id);
        } else {
            self.send_write(id);
        }
    }

    /// Decides the form (copies or shards) of a slab that holds nothing: the one that the policy wants.
    fn choose_form(&mut self, slab: u32) {
        let code = self.policy.code;
        let entry = self.map.entry(slab).or_default();
        let is_new = entry.replicas.is_empty() && entry.allocating == 0 && !entry.may_be_on_disk;
        if entry.code != code && is_new && !Replicas::is_slab_written(self.far, slab) {
            entry.code = code;
            self.save(slab);
        }
    }

    /// Computes the shards, where the slab is in shards.
    fn encode(&mut self, id: u32) {
        let slab = self.ops[&id].slab();
        let Some(code) = self.code_of(slab) else {
            return;
        };
        let coder = self.coder(code);
        let op = self.ops.get_mut(&id).expect("under way");
        if let Some(block) = &op.block {
            let shards = coder.encode(block);
            op.shards = Some((coder, shards));
        }
    }

    /// Starts a write whose slab has as many copies as it will get.
    pub(super) fn send_write(&mut self, id: u32) {
        let policy = self.policy_of(self.ops[&id].slab());
        let op = self.ops.get_mut(&id).expect("under way");
        if self.repairs.jobs.holds_back(op.extent, id) {
            return;
        }
        if let Some(waiting) = self.dropping.get_mut(&op.slab())
            && policy.disk
        {
            waiting.push(id);
            return;
        }
        // Copies that are being released, because the policy wants none on donors any more, get nothing new.
        if let Some(entry) = self.map.get(&op.slab())
            && policy.donors > 0
        {
            op.targets = entry.replicas.iter().map(Target::of).collect();
        }
        self.encode(id);
        self.send_piece(id);
        let has_target = !self.ops[&id].targets.is_empty();
        let is_near = self.behind * EXTENT_BYTES as u64 + (EXTENT_BYTES as u64) <= LATE_BYTES_MAX;
        if policy.late && has_target && is_near {
            self.behind += 1;
        } else if policy.disk {
            self.write_to_disk(id);
        }
        self.write_ended(id);
    }

    /// Writes the whole extent to the disk.
    fn write_to_disk(&mut self, id: u32) {
        if self.disk.is_none() {
            return;
        }
        let slab = self.ops[&id].slab();
        self.goes_to_disk(slab);
        let (Some(disk), Some(op)) = (&mut self.disk, self.ops.get_mut(&id)) else {
            return;
        };
        let mut block = op.block.take().expect("just sent from it");
        if op.sent < EXTENT_BYTES {
            // The donors get the rest of it later.
            let mut ours = self.spare.pop().unwrap_or_default();
            ours.copy_from_slice(&block);
            std::mem::swap(&mut ours, &mut block);
            op.block = Some(ours);
        }
        op.to_disk = true;
        disk.write(id, op.extent, block, EXTENT_BYTES);
    }

    /// A write may continue up to byte `to`.
    pub(super) fn advance_write(&mut self, id: u32, to: usize) {
        let Some(op) = self.ops.get_mut(&id) else {
            debug_assert!(false, "a write ends after its last piece only");
            return;
        };
        op.waits = false;
        op.to = to;
        self.send_piece(id);
        self.write_ended(id);
    }

    /// Sends the next piece to the copies that have all before it.
    fn send_piece(&mut self, id: u32) {
        let op = self.ops.get_mut(&id).expect("under way");
        let (slab, within, piece) = (op.slab(), op.within(), op.sent..op.to);
        debug_assert!(piece.start < piece.end && piece.end <= EXTENT_BYTES);
        op.sent = op.to;
        let block = op.block.take().expect("kept until all is sent");
        let shards = op.shards.take();
        let mut targets = std::mem::take(&mut op.targets);
        let coder = shards.as_ref().map(|(coder, _)| coder);
        let (unit, piece) = match coder {
            Some(coder) => (coder.shard_bytes(), coder.piece(piece)),
            None => (EXTENT_BYTES, piece),
        };
        let is_nothing = piece.is_empty();
        targets.retain(|target| {
            let bytes = match &shards {
                Some((_, shards)) => &shards[target.shard * unit..][..unit],
                None => &block[..],
            };
            let request = Request::Write {
                handle: target.handle,
                offset: (within * unit + piece.start) as u32,
                data: &bytes[piece.clone()],
            };
            if is_nothing {
                return true;
            }
            let sent = self.is_there(slab, *target)
                && self.donors[target.donor].is_up()
                && self.submit(target.donor, Purpose::Write(id), &request);
            if !sent {
                self.lacks(slab, target.donor, within);
            }
            sent
        });
        let op = self.ops.get_mut(&id).expect("under way");
        op.block = Some(block);
        op.shards = shards;
        op.parts = if is_nothing { 0 } else { targets.len() };
        op.targets = targets;
    }

    /// Whether the slab's copy on this donor is still the one that was targeted.
    pub(super) fn is_there(&self, slab: u32, target: Target) -> bool {
        let entry = self.map.get(&slab);
        entry.is_some_and(|e| e.is_there(target))
    }

    /// Records that a donor lacks an extent.
    pub(super) fn lacks(&mut self, slab: u32, donor: usize, within: usize) {
        let was_whole = self
            .map
            .get_mut(&slab)
            .and_then(|e| e.at(donor))
            .is_some_and(|c| c.lacks(within));
        if was_whole {
            self.save(slab);
        }
    }

    /// A donor's answer to the last piece.
    pub(super) fn donor_wrote(&mut self, donor: usize, id: u32, ok: bool) {
        let Some(op) = self.ops.get_mut(&id) else {
            return;
        };
        op.parts -= 1;
        let (slab, within) = (op.slab(), op.within());
        if !ok {
            // A copy made there meanwhile lacks it as well.
            op.targets.retain(|t| t.donor != donor);
            self.lacks(slab, donor, within);
        } else if op.sent == EXTENT_BYTES {
            op.donors += 1;
            if let Some(copy) = self.map.get_mut(&slab).and_then(|e| e.at(donor)) {
                copy.gained(within);
                copy.ops += 1;
            }
        }
        self.write_ended(id);
    }

    /// The disk's answer.
    pub(super) fn disk_wrote(&mut self, id: u32, outcome: Outcome, block: Block) {
        let Some(op) = self.ops.get_mut(&id) else {
            return;
        };
        op.to_disk = false;
        op.disk = Some(outcome);
        match op.block {
            None => op.block = Some(block),
            Some(_) => self.spare.push(block),
        }
        self.write_ended(id);
    }

    /// How many donors have the whole extent: copies, or different shards. A copy that was released meanwhile does not
    /// count.
    fn donors_with(&self, op: &Op) -> usize {
        let slab = op.slab();
        let there = op.targets.iter().filter(|t| self.is_there(slab, **t));
        match op.shards {
            None => there.count().min(op.donors),
            Some(_) if op.donors < op.targets.len() => 0,
            Some(_) => {
                let shards = there.fold(0u32, |bits, t| bits | 1 << t.shard);
                shards.count_ones() as usize
            }
        }
    }

    /// Continues a write whose donors have answered, or ends it when nothing is pending.
    fn write_ended(&mut self, id: u32) {
        let Some(op) = self.ops.get_mut(&id) else {
            return;
        };
        let slab = op.slab();
        if op.parts > 0 || op.waits {
            return;
        }
        if op.sent < EXTENT_BYTES && !op.targets.is_empty() {
            op.waits = true;
            self.events.push(Event::WriteAdvanced(id));
            return;
        }
        if op.to_disk {
            return;
        }
        let is_open = self.disk.is_some() && !self.dropping.contains_key(&slab);
        let policy = self.policy_of(slab);
        let donors = self.donors_with(&self.ops[&id]);
        let op = &self.ops[&id];
        let is_lost = match policy.disk {
            // In the end no donor has taken it.
            true => op.donors == 0,
            // Too few donors have it: the disk keeps it until enough have. The disk cannot keep shards.
            false => self.disk_keeps && policy.code.is_none() && !is_durable(policy, donors, None),
        };
        if is_lost && op.disk.is_none() && is_open {
            return self.write_to_disk(id);
        }
        let op = self.ops.remove(&id).expect("just seen");
        // A copy that was made meanwhile lacks it.
        let unsent: Vec<usize> = self.map.get(&slab).map_or_else(Vec::new, |e| {
            let donors = e.replicas.iter().map(|c| c.donor);
            let has = |donor: &usize| op.targets.iter().any(|t| t.donor == *donor);
            donors.filter(|donor| !has(donor)).collect()
        });
        for donor in unsent {
            self.lacks(slab, donor, op.within());
        }
        // An extent that the disk could not take has no seal, so the disk lacks nothing.
        match op.disk {
            Some(Outcome::Done) => self.noted_on_disk(op.extent, true),
            None => self.noted_on_disk(op.extent, false),
            Some(_) => {}
        }
        self.wrote.push(op.extent);
        let on_disk = op.disk.map(|outcome| outcome == Outcome::Done);
        let outcome = match op.disk {
            _ if is_durable(policy, donors, on_disk) => Outcome::Done,
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
}
