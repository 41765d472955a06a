//! Reads of slabs in shards: carries out what [`canvas_place::replicas::code::Gather`] decides.
//!
//! * A read is divided into parts, each of which needs one range of several shards. A record is usually in one shard:
//!   that is one part and one donor. One that crosses into the next shard is two parts. An extent, or a large piece of
//!   one, is one part, for which one shard more than necessary is requested.
//! * The reader verifies what is computed here, as everything. When it does not verify, or too few donors are known to
//!   have their shard, all shards that any donor has are gathered, and combinations are tried until one verifies.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use canvas_place::replicas::Code;
use canvas_place::replicas::code::{GRAIN, Gather, Holder, ShardRange};
use canvas_shm::far::EXTENT_BYTES;
use canvas_wire::frame::Request;

use super::super::{Purpose, Replicas, Views};
use crate::block::Block;
use crate::erasure::{Coder, Piece, assemble, candidates};
use crate::store::{Event, Outcome, place};

/// A read under way.
struct Read {
    extent: u32,
    code: Code,
    range: Range<usize>,
    serial: u64,
    block: Block,
    parts: Vec<Part>,
    /// It gathers all shards that any donor has.
    thorough: bool,
    /// The previous result did not verify.
    again: bool,
    since: Instant,
}

/// One range of several shards.
struct Part {
    window: Range<usize>,
    /// The parts of the range that are wanted.
    places: Vec<ShardRange>,
    gather: Gather,
    pieces: Vec<Piece>,
}

/// The time, the read's id, its serial number, its part, and the donor.
type Due = (Instant, u32, u64, usize, usize);

/// Reads under way.
#[derive(Default)]
pub(in super::super) struct Reads {
    by_id: HashMap<u32, Read>,
    serial: u64,
    /// When to stop counting on an answer.
    due: BinaryHeap<Reverse<Due>>,
    /// Reads that wait for donors to come back.
    away: Vec<(u32, u64)>,
}

impl Reads {
    fn get(&mut self, id: u32, serial: u64) -> Option<&mut Read> {
        self.by_id.get_mut(&id).filter(|r| r.serial == serial)
    }

    /// Time until others are to be asked in place of a silent donor.
    pub fn due_in(&self) -> Option<Duration> {
        let Reverse((due, ..)) = self.due.peek()?;
        Some(due.saturating_duration_since(Instant::now()))
    }
}

/// Divides a read into parts.
fn parts(code: Code, range: Range<usize>) -> Vec<Part> {
    let places: Vec<ShardRange> = code.shard_ranges(EXTENT_BYTES, range).collect();
    let apart: usize = places.iter().map(|p| p.range.len()).sum();
    let shards = places.len();
    let together = part(code, places.clone());
    // As one part they would mostly be bytes that nobody wants.
    if 2 * apart <= shards * together.window.len() {
        return places.into_iter().map(|p| part(code, vec![p])).collect();
    }
    vec![together]
}

fn part(code: Code, places: Vec<ShardRange>) -> Part {
    let from = places.iter().map(|p| p.range.start).min().unwrap_or(0);
    let to = places.iter().map(|p| p.range.end).max().unwrap_or(0);
    let wants = places.iter().fold(0, |bits, p| bits | 1 << p.shard);
    Part {
        window: from / GRAIN * GRAIN..to.next_multiple_of(GRAIN),
        places,
        gather: Gather::new(code, wants),
        pieces: Vec::new(),
    }
}

impl Read {
    /// From here on it gathers all shards that any donor has.
    fn search(&mut self) {
        let places = self.code.shard_ranges(EXTENT_BYTES, self.range.clone());
        let mut all = part(self.code, places.collect());
        all.gather = Gather::thorough(self.code);
        self.parts = vec![all];
        self.thorough = true;
    }

    /// Copies gathered or computed bytes to their place. True when something was computed; `None` when it cannot be.
    fn put_together(&mut self, coder: &Coder) -> Option<bool> {
        let shard_bytes = coder.shard_bytes();
        let mut is_computed = false;
        for part in &self.parts {
            let computed = match part.gather.is_computed() {
                true => {
                    is_computed = true;
                    let enough = part.pieces.iter().take(self.code.data());
                    Some(coder.complete(&enough.collect::<Vec<_>>())?)
                }
                false => None,
            };
            for place in &part.places {
                let bytes = match &computed {
                    Some(shards) => &shards[place.shard],
                    None => {
                        let mut pieces = part.pieces.iter();
                        &pieces.find(|p| p.shard == place.shard)?.bytes
                    }
                };
                let from = place.range.start - part.window.start;
                let at = place.shard * shard_bytes + place.range.start;
                let len = place.range.len();
                self.block[at..at + len].copy_from_slice(&bytes[from..from + len]);
            }
        }
        Some(is_computed)
    }
}

impl Replicas {
    /// A read of a slab in shards begins, or (`again`) its last result did not verify.
    pub(in super::super) fn begin_shards(
        &mut self,
        id: u32,
        code: Code,
        extent: u32,
        range: Range<usize>,
        again: bool,
        block: Block,
    ) {
        self.shard_reads.serial += 1;
        let mut read = Read {
            extent,
            code,
            parts: parts(code, range.clone()),
            range,
            serial: self.shard_reads.serial,
            block,
            thorough: false,
            again,
            since: Instant::now(),
        };
        if again {
            read.search();
        }
        self.shard_reads.by_id.insert(id, read);
        self.continue_gathering(id);
    }

    /// Sends requests to the donors that remain. A complete read is returned; one that cannot continue ends or waits.
    fn continue_gathering(&mut self, id: u32) {
        let Some(read) = self.shard_reads.by_id.get(&id) else {
            return;
        };
        for part in 0..read.parts.len() {
            while let Some(holder) = self.next_holder(id, part) {
                self.ask_holder(id, part, holder);
            }
        }
        let Some(read) = self.shard_reads.by_id.get(&id) else {
            return;
        };
        let open = |part: &&Part| !part.gather.is_ready();
        if !read.parts.iter().any(|part| open(&part)) {
            self.gathered(id);
        } else if read.parts.iter().filter(open).any(|p| !p.gather.waits()) {
            self.gathers_in_vain(id);
        }
    }

    fn next_holder(&self, id: u32, part: usize) -> Option<Holder> {
        let read = self.shard_reads.by_id.get(&id)?;
        let (slab, within) = place(read.extent);
        let donors = Views::of(&self.donors, self.started);
        let gather = &read.parts.get(part)?.gather;
        gather.next(self.map.get(&slab)?, within, &donors)
    }

    fn ask_holder(&mut self, id: u32, part: usize, holder: Holder) {
        let Some(read) = self.shard_reads.by_id.get(&id) else {
            return;
        };
        let (_, within) = place(read.extent);
        let window = read.parts[part].window.clone();
        let range = canvas_wire::frame::Range {
            offset: (within * read.code.shard_bytes(EXTENT_BYTES) + window.start) as u32,
            len: window.len() as u32,
        };
        let serial = read.serial;
        let request = Request::Read {
            handle: holder.handle,
            range,
        };
        let sent = self.submit(holder.donor, Purpose::Shard(id, serial, part), &request);
        let hedge_ns = self.donors[holder.donor].pace.hedge_ns();
        let Some(read) = self.shard_reads.by_id.get_mut(&id) else {
            return;
        };
        read.parts[part].gather.on_sent(holder, sent);
        if sent {
            let due = Instant::now() + Duration::from_nanos(hedge_ns);
            let due = Reverse((due, id, serial, part, holder.donor));
            self.shard_reads.due.push(due);
        }
    }

    /// A donor has answered, or (`None`) never will.
    pub(in super::super) fn shard_read(
        &mut self,
        donor: usize,
        (id, serial, part): (u32, u64, usize),
        data: Option<&[u8]>,
    ) {
        let Some(read) = self.shard_reads.get(id, serial) else {
            return;
        };
        let (slab, _) = place(read.extent);
        let Some(part) = read.parts.get_mut(part) else {
            return;
        };
        let data = data.filter(|data| data.len() == part.window.len());
        let shard = part.gather.on_answer(donor, data.is_some());
        match data.zip(shard) {
            Some((data, shard)) => {
                part.pieces.push(Piece {
                    shard,
                    donor,
                    bytes: data.to_vec(),
                });
                if let Some(replica) = self.map.get_mut(&slab).and_then(|e| e.at(donor)) {
                    replica.ops += 1;
                }
            }
            None => self.failed_over(donor),
        }
        self.continue_gathering(id);
    }

    /// No donor is left that could give the missing shards.
    fn gathers_in_vain(&mut self, id: u32) {
        let wait_ns_max = self.wait_ns_max();
        let Some(read) = self.shard_reads.by_id.get(&id) else {
            return;
        };
        let (slab, within) = place(read.extent);
        let away = self.is_shard_away(slab, within, true);
        let failed = read.parts.iter().any(|part| part.gather.failed());
        let waited_ns = read.since.elapsed().as_nanos() as u64;
        if (away || failed) && waited_ns < wait_ns_max {
            let waiting = (id, read.serial);
            self.shard_reads.away.push(waiting);
        } else if away {
            self.end_gathering(id, Outcome::Away);
        } else if let Some(read) = self.shard_reads.by_id.get_mut(&id) {
            // A donor that lacks its shard, as far as is known, may have it all the same.
            self.shard_reads.serial += 1;
            read.serial = self.shard_reads.serial;
            read.search();
            self.continue_gathering(id);
        }
    }

    fn end_gathering(&mut self, id: u32, outcome: Outcome) {
        if let Some(read) = self.shard_reads.by_id.remove(&id) {
            let block = read.block;
            self.events.push(Event::Ended { id, outcome, block });
        }
    }

    /// Everything that was requested has arrived.
    fn gathered(&mut self, id: u32) {
        let Some(read) = self.shard_reads.by_id.get(&id) else {
            return;
        };
        let (code, thorough) = (read.code, read.thorough);
        let coder = self.coder(code);
        if thorough {
            return self.search_choices(id, &coder);
        }
        let Some(read) = self.shard_reads.by_id.get_mut(&id) else {
            return;
        };
        // When the shards cannot be computed, treat it as if they did not verify.
        let is_computed = read.put_together(&coder).unwrap_or(true);
        if is_computed {
            self.far.stats.decoded.fetch_add(1, Relaxed);
        }
        self.end_gathering(id, Outcome::Done);
    }

    /// All shards that any donor has are here: returns a combination that verifies.
    fn search_choices(&mut self, id: u32, coder: &Coder) {
        let Some(read) = self.shard_reads.by_id.get_mut(&id) else {
            return;
        };
        let (extent, range, code) = (read.extent, read.range.clone(), read.code);
        let (slab, within) = place(extent);
        let part = &mut read.parts[0];
        let (window, pieces) = (part.window.clone(), std::mem::take(&mut part.pieces));
        let pieces = self.judge_pieces(slab, within, pieces);
        let seal = self.far.seals[extent as usize].load(Acquire);
        let mut scratch = Block::new();
        let mut first = None;
        let mut found = None;
        for choice in candidates(code, &pieces) {
            let Some(shards) = coder.complete(&choice) else {
                continue;
            };
            assemble(code, &shards, window.start, range.clone(), &mut scratch);
            let bytes = &mut scratch[range.clone()];
            let opened = match range.start {
                0 => self.sealer.open_extent(extent, seal, bytes),
                from => self.sealer.open_record(extent, seal, from, bytes),
            };
            if opened.is_ok() {
                found = Some(shards);
                break;
            }
            first.get_or_insert(shards);
        }
        if let Some(shards) = &found {
            let right: Vec<&[u8]> = shards.iter().map(Vec::as_slice).collect();
            self.blame(slab, within, &right, &pieces);
            self.far.stats.decoded.fetch_add(1, Relaxed);
        }
        let away = self.is_shard_away(slab, within, false);
        let wait_ns_max = self.wait_ns_max();
        let Some(read) = self.shard_reads.by_id.get_mut(&id) else {
            return;
        };
        if found.is_none() && away && (read.since.elapsed().as_nanos() as u64) < wait_ns_max {
            let waiting = (id, read.serial);
            self.shard_reads.away.push(waiting);
            return;
        }
        // A piece of an extent cannot be verified alone: the reader notices, and requests all of it again.
        let handed = found.or(first.filter(|_| !read.again && !away));
        let outcome = match &handed {
            Some(_) => Outcome::Done,
            None if away => Outcome::Away,
            None => Outcome::NoCopy,
        };
        if let Some(shards) = handed {
            assemble(code, &shards, window.start, range, &mut read.block);
        }
        self.end_gathering(id, outcome);
    }

    /// Retries reads that waited for unreachable donors.
    pub(in super::super) fn retry_shards(&mut self) {
        for (id, serial) in std::mem::take(&mut self.shard_reads.away) {
            let next = self.shard_reads.serial + 1;
            let Some(read) = self.shard_reads.get(id, serial) else {
                continue;
            };
            if read.thorough {
                // Answers to earlier requests are of no use.
                read.serial = next;
                read.search();
                self.shard_reads.serial = next;
            } else {
                read.parts.iter_mut().for_each(|p| p.gather.retry());
            }
            self.continue_gathering(id);
        }
    }

    /// Hedges: asks other donors where some have been silent for too long.
    pub(in super::super) fn hedge_shards(&mut self) {
        if self.shard_reads.due.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(&Reverse((due, id, serial, part, donor))) = self.shard_reads.due.peek() {
            let read = self.shard_reads.get(id, serial);
            let gather = read
                .and_then(|r| r.parts.get_mut(part))
                .map(|p| &mut p.gather);
            let waiting = gather.filter(|gather| gather.waits_for(donor));
            if waiting.is_some() && due > now {
                return;
            }
            let is_late = waiting.is_some();
            waiting.into_iter().for_each(|gather| gather.late(donor));
            self.shard_reads.due.pop();
            if is_late {
                self.failed_over(donor);
                self.suspect(donor);
                self.continue_gathering(id);
            }
        }
    }
}
