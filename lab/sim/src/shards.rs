//! Slabs in shards: carries out what `canvas_place::replicas::code` decides, an extent at a time.
//!
//! A version stands for the bytes of each shard: enough shards of one version give the extent of that
//! version, and shards of different versions give data that verifies under no seal.

use canvas_place::replicas::Code;
use canvas_place::replicas::code::{Gather, Holder};

use crate::agent::Call;
use crate::world::{Event, Request, World};

/// A donor's shard of an extent, and its version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Number of the shard.
    pub shard: usize,
    /// The donor that sent it.
    pub donor: usize,
    /// Version written last; 0 if there is none.
    pub version: u64,
}

/// A repair of a shard.
#[derive(Default)]
pub struct Gathering {
    pieces: Vec<Piece>,
    waits: usize,
    failed: bool,
    /// Mask of the donors that gave nothing.
    tried: u64,
    thorough: bool,
}

/// Number of different shards of this version.
fn shards_of(pieces: &[Piece], version: u64) -> usize {
    let those = pieces.iter().filter(|p| p.version == version);
    let shards = those.fold(0u32, |bits, p| bits | 1 << p.shard);
    shards.count_ones() as usize
}

impl World {
    /// Continues a read of an extent in shards.
    pub(crate) fn gather(&mut self, a: usize, id: u32, code: Code) {
        loop {
            let agent = &mut self.agents[a];
            let Some(op) = agent.ops.get_mut(&id) else {
                return;
            };
            let (slab, within) = (
                op.extent / self.config.extents as u32,
                op.extent as usize % self.config.extents,
            );
            let wants = 1 << (within % code.data());
            let gather = op.gather.get_or_insert_with(|| Gather::new(code, wants));
            let entry = agent.map.get(&slab);
            let Some(holder) = entry.and_then(|e| gather.next(e, within, &agent.donors)) else {
                break;
            };
            self.ask_holder(a, id, within, holder);
        }
        let Some(gather) = self.agents[a]
            .ops
            .get(&id)
            .and_then(|op| op.gather.as_ref())
        else {
            return;
        };
        if gather.is_ready() {
            self.gathered(a, id, code);
        } else if !gather.waits() {
            self.gathers_in_vain(a, id, code);
        }
    }

    fn ask_holder(&mut self, a: usize, id: u32, within: usize, holder: Holder) {
        let d = holder.donor;
        let request = Request::Read(holder.handle, within);
        let sent = self.submit(a, d, Call::Read(id), request);
        let now = self.now();
        let agent = &mut self.agents[a];
        let gather = agent.ops.get_mut(&id).and_then(|op| op.gather.as_mut());
        if let Some(gather) = gather {
            gather.on_sent(holder, sent);
        }
        if sent {
            let due = now + agent.donors[d].pace.hedge_ns();
            let event = Event::Hedge(a as u32, agent.id, id, d as u32);
            self.queue.put(due, event);
        }
    }

    /// A donor has answered a read, or will never answer.
    pub(crate) fn shard_read(
        &mut self,
        a: usize,
        d: usize,
        id: u32,
        version: Option<u64>,
        code: Code,
    ) {
        let Some(op) = self.agents[a].ops.get_mut(&id) else {
            return;
        };
        let gather = op.gather.as_mut();
        let shard = gather.and_then(|g| g.on_answer(d, version.is_some()));
        match shard.zip(version) {
            Some((shard, version)) => op.pieces.push(Piece {
                shard,
                donor: d,
                version,
            }),
            None => self.stats.failovers += 1,
        }
        self.gather(a, id, code);
    }

    /// Hedges a read whose donor has been silent for longer than usual.
    pub(crate) fn hedge_shard(&mut self, a: usize, id: u32, d: usize, code: Code) {
        let now = self.now();
        let agent = &mut self.agents[a];
        let gather = agent.ops.get_mut(&id).and_then(|op| op.gather.as_mut());
        let Some(gather) = gather.filter(|g| g.waits_for(d)) else {
            return;
        };
        gather.late(d);
        if agent.donors[d].suspect.is_none() {
            agent.donors[d].suspect = Some(now);
            self.submit(a, d, Call::Ping, Request::Ping);
        }
        self.stats.hedged += 1;
        self.gather(a, id, code);
    }

    /// Whether a donor that does not serve may have a shard; with `certain`, only donors that the agent knows
    /// to have it.
    fn is_shard_away(&self, a: usize, extent: u32, certain: bool) -> bool {
        let (slab, within) = self.place_of(extent);
        let agent = &self.agents[a];
        let replicas = agent.map.get(&slab).map(|e| &e.replicas);
        let mut all = replicas.into_iter().flatten();
        all.any(|c| !agent.donors[c.donor].is_up() && (!certain || c.has(within)))
    }

    fn gathers_in_vain(&mut self, a: usize, id: u32, code: Code) {
        let (now, wait_ns) = (self.now(), self.config.wait_ns);
        let Some(op) = self.agents[a].ops.get(&id) else {
            return;
        };
        let away = self.is_shard_away(a, op.extent, true);
        let failed = op.gather.as_ref().is_some_and(Gather::failed);
        let waits = now - op.since < wait_ns;
        if (away || failed) && waits {
            self.agents[a].away.push(id);
        } else if away {
            self.agents[a].ops.remove(&id);
            self.stats.unanswered += 1;
        } else {
            self.search(a, id, code);
        }
    }

    /// Asks all donors that may have a shard.
    fn search(&mut self, a: usize, id: u32, code: Code) {
        if let Some(op) = self.agents[a].ops.get_mut(&id) {
            op.gather = Some(Gather::thorough(code));
            op.searches = true;
            op.pieces.clear();
        }
        self.gather(a, id, code);
    }

    /// Ends or extends a read when the requested shards have arrived, or all that exist.
    fn gathered(&mut self, a: usize, id: u32, code: Code) {
        let (now, wait_ns) = (self.now(), self.config.wait_ns);
        let Some(op) = self.agents[a].ops.get(&id) else {
            return;
        };
        let (extent, searches) = (op.extent, op.searches);
        let seal = self.agents[a].seals[extent as usize];
        let computed = op.gather.as_ref().is_some_and(Gather::is_computed);
        let taken = if computed {
            code.data()
        } else {
            op.pieces.len()
        };
        let good = match searches {
            true => shards_of(&op.pieces, seal) >= code.data(),
            false => op.pieces.iter().take(taken).all(|p| p.version == seal),
        };
        let (pieces, since) = (op.pieces.clone(), op.since);
        if good {
            self.agents[a].ops.remove(&id);
            self.stats.reads += 1;
            self.blame(a, extent, seal, &pieces);
        } else if !searches {
            self.stats.stale += 1;
            self.search(a, id, code);
        } else if self.is_shard_away(a, extent, false) && now - since < wait_ns {
            self.agents[a].away.push(id);
        } else {
            self.agents[a].ops.remove(&id);
            self.stats.unanswered += 1;
        }
    }

    /// Marks as lacking the shards whose version is not `seal`.
    fn blame(&mut self, a: usize, extent: u32, seal: u64, pieces: &[Piece]) {
        let (slab, within) = self.place_of(extent);
        for p in pieces.iter().filter(|p| p.version != seal) {
            self.lacks(a, slab, p.donor, within);
        }
    }

    /// Retries reads of shards that wait for absent donors.
    pub(crate) fn retry_shards(&mut self, a: usize, id: u32, code: Code) {
        let Some(op) = self.agents[a].ops.get_mut(&id) else {
            return;
        };
        if op.searches {
            return self.search(a, id, code);
        }
        op.gather.iter_mut().for_each(Gather::retry);
        self.gather(a, id, code);
    }

    // Repair.

    /// Chooses the shards to read for a repair, and requests them.
    pub(crate) fn gather_for_repair(&mut self, a: usize, slot: usize, code: Code) {
        let agent = &mut self.agents[a];
        let Some(job) = agent.repairs.job(slot) else {
            return;
        };
        let (extent, to) = (job.extent, job.to);
        let (slab, within) = self.place_of(extent);
        let agent = &self.agents[a];
        let gathering = &agent.gatherings[slot];
        let sources = |thorough: bool| -> Option<Vec<Holder>> {
            let mut shards = 0u32;
            let mut all = Vec::new();
            for c in &agent.map.get(&slab)?.replicas {
                let may = agent.donors[c.donor].is_up() && gathering.tried & 1 << c.donor == 0;
                let is_good = c.has(within) && Some(c.donor) != to && shards & 1 << c.shard == 0;
                if may && (thorough || is_good && all.len() < code.data()) {
                    shards |= 1 << c.shard;
                    all.push(Holder {
                        donor: c.donor,
                        handle: c.handle,
                        shard: c.shard,
                    });
                }
            }
            (shards.count_ones() as usize >= code.data()).then_some(all)
        };
        let mut thorough = gathering.thorough;
        let mut found = sources(thorough);
        if found.is_none() && !thorough && !self.is_shard_away(a, extent, true) {
            thorough = true;
            found = sources(true);
        }
        let Some(found) = found else {
            self.agents[a].repairs.hopeless(slot);
            return self.end_repair(a, slot, false);
        };
        let gathering = &mut self.agents[a].gatherings[slot];
        gathering.pieces.clear();
        (gathering.thorough, gathering.failed, gathering.waits) = (thorough, false, 0);
        for holder in found {
            let request = Request::Read(holder.handle, within);
            let sent = self.submit(a, holder.donor, Call::RepairRead(slot), request);
            let gathering = &mut self.agents[a].gatherings[slot];
            gathering.pieces.push(Piece {
                shard: holder.shard,
                donor: holder.donor,
                version: 0,
            });
            if sent {
                gathering.waits += 1;
            } else {
                gathering.tried |= 1 << holder.donor;
                gathering.failed = true;
            }
        }
        if self.agents[a].gatherings[slot].waits == 0 {
            self.gather_for_repair(a, slot, code);
        }
    }

    /// A donor has answered a read of a repair, or will never answer.
    pub(crate) fn shard_for_repair(
        &mut self,
        a: usize,
        d: usize,
        slot: usize,
        version: Option<u64>,
        code: Code,
    ) {
        let gathering = &mut self.agents[a].gatherings[slot];
        gathering.waits -= 1;
        let mut pieces = gathering.pieces.iter_mut();
        match version.zip(pieces.find(|p| p.donor == d)) {
            Some((version, piece)) => piece.version = version,
            None => {
                gathering.failed = true;
                gathering.tried |= 1 << d;
            }
        }
        if gathering.waits > 0 {
            return;
        }
        if gathering.failed {
            return self.gather_for_repair(a, slot, code);
        }
        self.compute_shard(a, slot, code);
    }

    fn compute_shard(&mut self, a: usize, slot: usize, code: Code) {
        let agent = &mut self.agents[a];
        let Some(job) = agent.repairs.job(slot) else {
            return;
        };
        let (extent, seal, to, void) = (job.extent, job.seal, job.to, job.void);
        let (slab, within) = (
            extent / self.config.extents as u32,
            extent as usize % self.config.extents,
        );
        if void || agent.seals[extent as usize] != seal {
            return self.end_repair(a, slot, false);
        }
        let gathering = &mut agent.gatherings[slot];
        let pieces = gathering.pieces.clone();
        if shards_of(&pieces, seal) < code.data() {
            self.stats.stale += 1;
            if !gathering.thorough {
                (gathering.thorough, gathering.tried) = (true, 0);
                return self.gather_for_repair(a, slot, code);
            }
            agent.repairs.hopeless(slot);
            return self.end_repair(a, slot, false);
        }
        self.blame(a, extent, seal, &pieces);
        let agent = &mut self.agents[a];
        let Some(target) = agent.repairs.computed(slot, &agent.map) else {
            return self.end_repair(a, slot, false);
        };
        if pieces
            .iter()
            .any(|p| Some(p.donor) == to && p.version == seal)
        {
            return self.end_repair(a, slot, true);
        }
        debug_assert!(agent.map[&slab].is_there(target));
        agent.repairs.sent(slot);
        let request = Request::Write(target.handle, within, seal);
        if !self.submit(a, target.donor, Call::RepairWrite(slot), request) {
            self.end_repair(a, slot, false);
        }
    }
}
