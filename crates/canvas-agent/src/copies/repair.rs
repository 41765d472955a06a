//! Making good what copies miss: extent by extent from another copy, a few at a time.
//!
//! What was read is verified before it is written on: a copy that is damaged or old is no source, and
//! is itself made good if there is one.
//!
//! A write of an extent that is being repaired supersedes the repair: while the old bytes are being
//! read the repair is given up; while they are on their way to the copy the write waits for that.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use canvas_place::copies::{REPAIRS, repair_from};
use canvas_shm::far::{EXTENT_BYTES, SLAB_EXTENTS};
use canvas_wire::frame::Request;

use super::{Call, Copies, OURS};
use crate::block::Block;
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
    /// The donor whose bytes are being read.
    from: Option<usize>,
    /// The donor that lacks it.
    to: usize,
    /// Donors that were asked for it, a bit each.
    tried: u64,
    tried_disk: bool,
    /// The bytes are on their way to the donor.
    writes: bool,
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
                if job.writes {
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
                tried: 1 << to,
                tried_disk: false,
                writes: false,
                void: false,
                held_back: Vec::new(),
                block: Some(Block::new()),
            });
            self.read_for_repair(slot);
        }
        found.is_some()
    }

    /// Reads the extent from the next copy that may have it.
    fn read_for_repair(&mut self, slot: usize) {
        let Some(job) = &self.repairs.jobs[slot] else {
            return;
        };
        let (extent, tried) = (job.extent, job.tried);
        let slab = extent / SLAB_EXTENTS as u32;
        let within = extent as usize % SLAB_EXTENTS;
        let source = self.map.get(&slab).and_then(|e| {
            let donor = repair_from(self.sources(e, within), within, tried)?;
            let copy = e.copies.iter().find(|c| c.donor == donor)?;
            Some((donor, copy.handle))
        });
        let Some(job) = &mut self.repairs.jobs[slot] else {
            return;
        };
        if let Some((donor, handle)) = source {
            job.tried |= 1 << donor;
            job.from = Some(donor);
            let range = canvas_wire::frame::Range {
                offset: (within * EXTENT_BYTES) as u32,
                len: EXTENT_BYTES as u32,
            };
            let request = Request::Read { handle, range };
            if self.submit(donor, Call::RepairRead(slot), &request) {
                return;
            }
            return self.read_for_repair(slot);
        }
        match &mut self.disk {
            Some(disk) if !job.tried_disk && !self.repairs.bad_on_disk.contains(&extent) => {
                job.tried_disk = true;
                job.from = None;
                let block = job.block.take().unwrap_or_default();
                disk.read(OURS + slot as u32, extent, WHOLE, 0, block);
            }
            _ => {
                self.repairs.hopeless.insert(extent);
                self.end_repair(slot, false);
            }
        }
    }

    pub(super) fn repair_read(&mut self, slot: usize, data: Option<&[u8]>) {
        let Some(job) = &mut self.repairs.jobs[slot] else {
            return;
        };
        match data {
            Some(data) => {
                let mut block = job.block.take().unwrap_or_default();
                block.copy_from_slice(data);
                self.write_for_repair(slot, block);
            }
            None => self.read_for_repair(slot),
        }
    }

    pub(super) fn repair_from_disk(&mut self, slot: usize, outcome: Outcome, block: Block) {
        if outcome == Outcome::Done {
            self.write_for_repair(slot, block);
        } else {
            self.read_for_repair(slot);
        }
    }

    fn write_for_repair(&mut self, slot: usize, block: Block) {
        let Some(job) = &mut self.repairs.jobs[slot] else {
            return;
        };
        let (to, extent, seal) = (job.to, job.extent, job.seal);
        if !job.void && !self.verifies(extent, seal, &block) {
            return self.is_bad(slot, block);
        }
        let Some(job) = &mut self.repairs.jobs[slot] else {
            return;
        };
        let slab = extent / SLAB_EXTENTS as u32;
        let handle = self
            .map
            .get_mut(&slab)
            .and_then(|e| e.at(to))
            .map(|c| c.handle);
        let (Some(handle), false) = (handle, job.void) else {
            return self.end_repair(slot, false);
        };
        let request = Request::Write {
            handle,
            offset: (extent as usize % SLAB_EXTENTS * EXTENT_BYTES) as u32,
            data: &block,
        };
        job.writes = true;
        if !self.submit(to, Call::RepairWrite(slot), &request) {
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
    fn is_bad(&mut self, slot: usize, block: Block) {
        let Some(job) = &mut self.repairs.jobs[slot] else {
            return;
        };
        job.block = Some(block);
        let (extent, from) = (job.extent, job.from);
        if self.far.seals[extent as usize].load(Acquire) != job.seal {
            // The tenant has changed its seals itself.
            return self.end_repair(slot, false);
        }
        match from {
            Some(donor) => {
                let within = extent as usize % SLAB_EXTENTS;
                self.lacks(extent / SLAB_EXTENTS as u32, donor, within);
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
        self.end_repair(slot, ok);
    }

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
