//! What a tenant's agent does: the loop of `canvas_agent::copies`, step by step, over events.

use canvas_agent::copies::map::{self, Copy};
use canvas_place::choose::{Candidate, choose};
use canvas_place::copies::{
    AGAIN_NS, GiveUp, counting, give_up, is_away, is_durable, read_next, whole,
};

use crate::agent::{Call, Op, State, run_id};
use crate::engine::Ns;
use crate::host::{Life, Refused};
use crate::repair::OURS;
use crate::world::{Answer, Chooser, Event, REQUEST_NS, Request, Via, World};

/// Of a hundred requests of a program that has written everything once, so many write.
const WRITES_PERCENT: u32 = 30;

impl World {
    pub(crate) fn place_of(&self, extent: u32) -> (u32, usize) {
        let extents = self.config.extents as u32;
        (extent / extents, (extent % extents) as usize)
    }

    /// Sends a request to a donor; false when that is not possible now.
    pub(crate) fn submit(&mut self, a: usize, d: usize, call: Call, request: Request) -> bool {
        if matches!(self.agents[a].donors[d].state, State::Down(_)) {
            return false;
        }
        let via = self.via(a, d);
        let tag = self.next_tag;
        self.next_tag += 1;
        let now = self.now();
        self.agents[a].calls.insert(tag, (d, call, now));
        let bytes = match request {
            Request::Write(..) => self.config.extent_bytes(),
            _ => 64,
        };
        let to = self.agents[a].donors[d].host as usize;
        let at = self.transfer(to, bytes);
        self.queue.put(at, Event::Request(via, tag, request));
        self.kick(a);
        true
    }

    fn tell(&mut self, a: usize, d: usize, request: Request) {
        let via = self.via(a, d);
        let at = self.now() + self.config.latency_ns;
        self.queue.put(at, Event::Request(via, 0, request));
    }

    // The program.

    /// The program's next request: everything is written once, then it reads and writes at random.
    pub(crate) fn load(&mut self, a: usize) {
        let depth = self.config.depth;
        let agent = &mut self.agents[a];
        if !agent.alive || agent.ops.len() >= depth {
            return;
        }
        if agent.fill < agent.seals.len() {
            let extent = agent.fill as u32;
            agent.fill += 1;
            return self.begin_write(a, extent);
        }
        let extent = agent.program.u32(0..agent.seals.len() as u32);
        let writes = agent.program.u32(0..100) < WRITES_PERCENT;
        if agent.is_busy(extent) {
            return;
        }
        // What could not be stored is still with the program, which tries again.
        if writes || agent.seals[extent as usize] == 0 {
            self.begin_write(a, extent);
        } else {
            self.begin_read(a, extent);
        }
    }

    fn new_op(&mut self, a: usize, extent: u32, version: Option<u64>) -> u32 {
        let agent = &mut self.agents[a];
        let id = agent.next_op;
        agent.next_op = (id + 1) % OURS;
        let op = Op {
            extent,
            version,
            tried: 0,
            at: None,
            tried_disk: false,
            parts: 0,
            sent: 0,
            confirmed: 0,
            disk: None,
        };
        assert!(
            !agent.is_busy(extent),
            "one request for an extent at a time"
        );
        assert!(agent.ops.insert(id, op).is_none());
        id
    }

    // Placement.

    fn place(&mut self, a: usize, slab: u32) -> bool {
        let now = self.now();
        let (chooser, slab_bytes) = (self.config.chooser, self.config.slab_bytes);
        let agent = &mut self.agents[a];
        let Some(entry) = agent.map.get_mut(&slab) else {
            return false;
        };
        if entry.again_ns != 0 && now >= entry.again_ns {
            entry.refused = 0;
        }
        let (refused, entry) = (entry.refused, &agent.map[&slab]);
        let holds = |slab: Option<u32>, donor| {
            slab.and_then(|s| agent.map.get(&s))
                .is_some_and(|e| e.copies.iter().any(|c| c.donor == donor))
        };
        let candidates: Vec<Candidate> = agent
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
        let rng = &mut agent.rng;
        let chosen = match chooser {
            Chooser::TwoChoices => choose(&candidates, slab_bytes, |n| rng.usize(0..n)),
            Chooser::Random | Chooser::Best => {
                let fits = |c: &Candidate| c.usable && !c.has_copy && c.free_bytes >= slab_bytes;
                let fit: Vec<usize> = (0..candidates.len())
                    .filter(|i| fits(&candidates[*i]))
                    .collect();
                match chooser {
                    _ if fit.is_empty() => None,
                    Chooser::Random => Some(fit[rng.usize(0..fit.len())]),
                    _ => fit.into_iter().max_by_key(|i| candidates[*i].free_bytes),
                }
            }
        };
        let Some(d) = chosen else {
            return false;
        };
        let entry = agent.map.get_mut(&slab).expect("seen above");
        entry.refused |= 1 << d;
        entry.again_ns = now + AGAIN_NS;
        if !self.submit(a, d, Call::Alloc(slab), Request::Alloc(slab)) {
            return false;
        }
        let agent = &mut self.agents[a];
        let free = &mut agent.donors[d].free_bytes;
        *free = free.saturating_sub(slab_bytes);
        agent.map.get_mut(&slab).expect("seen above").allocating += 1;
        true
    }

    fn allocated(&mut self, a: usize, d: usize, slab: u32, handle: Option<u64>) {
        let (now, extents) = (self.now(), self.config.extents);
        let want = self.config.policy.donors;
        let agent = &mut self.agents[a];
        let run = agent.donors[d].run;
        let Some(entry) = agent.map.get_mut(&slab) else {
            return;
        };
        entry.allocating -= 1;
        if let Some(handle) = handle {
            let mut copy = Copy {
                donor: d,
                run: run_id(run),
                handle,
                missing: None,
                leaving: None,
                ops: 0,
            };
            let first = slab as usize * extents;
            if agent.seals[first..first + extents].iter().any(|s| *s != 0) {
                copy.lacks_all();
            }
            entry.refused &= !(1 << d);
            entry.copies.retain(|c| c.donor != d);
            entry.copies.push(copy);
            self.stats.placed += 1;
        } else {
            self.stats.refused += 1;
            let agent = &self.agents[a];
            if counting(&agent.held(&agent.map[&slab], now)) < want {
                self.place(a, slab);
            }
        }
        let Some(entry) = self.agents[a].map.get_mut(&slab) else {
            return;
        };
        if entry.allocating == 0 {
            for id in std::mem::take(&mut entry.waiting) {
                self.send_write(a, id);
            }
        }
    }

    // Writing.

    pub(crate) fn begin_write(&mut self, a: usize, extent: u32) {
        let now = self.now();
        let (slab, _) = self.place_of(extent);
        let want = self.config.policy.donors;
        let agent = &mut self.agents[a];
        let version = agent.next_seal;
        agent.next_seal += 1;
        agent.seals[extent as usize] = 0;
        let id = self.new_op(a, extent, Some(version));
        let disk = self.config.policy.disk;
        let agent = &mut self.agents[a];
        let entry = agent.map.entry(slab).or_default();
        // A donor that is away is not waited for where the write would fail without it.
        let counts = |c: &&Copy| disk || agent.donors[c.donor].is_up();
        let have = entry.copies.iter().filter(counts).count();
        let missing = want
            .saturating_sub(have)
            .min(map::COPIES_MAX.saturating_sub(entry.copies.len()));
        if entry.allocating == 0 && now >= entry.again_ns {
            for _ in 0..missing {
                self.place(a, slab);
            }
        }
        let entry = self.agents[a].map.get_mut(&slab).expect("made above");
        if entry.allocating > 0 {
            entry.waiting.push(id);
        } else {
            self.send_write(a, id);
        }
        self.kick(a);
    }

    pub(crate) fn send_write(&mut self, a: usize, id: u32) {
        let agent = &mut self.agents[a];
        let Some(op) = agent.ops.get(&id) else {
            return;
        };
        let (extent, version) = (op.extent, op.version.expect("a write"));
        if agent.repairs.holds_back(extent, id) {
            return;
        }
        let (slab, within) = self.place_of(extent);
        let agent = &mut self.agents[a];
        let copies: Vec<(usize, u64)> = agent
            .map
            .get(&slab)
            .map(|e| e.copies.iter().map(|c| (c.donor, c.handle)).collect())
            .unwrap_or_default();
        let (mut parts, mut sent_to) = (0, 0);
        for (d, handle) in copies {
            let request = Request::Write(handle, within, version);
            let up = self.agents[a].donors[d].is_up();
            if up && self.submit(a, d, Call::Write(id), request) {
                parts += 1;
                sent_to |= 1 << d;
            } else {
                self.lacks(a, slab, d, within);
            }
        }
        if self.config.policy.disk {
            parts += 1;
            self.use_disk(a, id);
        }
        let op = self.agents[a].ops.get_mut(&id).expect("under way");
        (op.parts, op.sent) = (parts, sent_to);
        self.write_ended(a, id);
    }

    pub(crate) fn use_disk(&mut self, a: usize, id: u32) {
        let (host, life) = (self.agents[a].host, self.agents[a].id);
        let at = self.disk_takes(host as usize);
        self.queue.put(at, Event::Disk(a as u32, life, id));
    }

    pub(crate) fn lacks(&mut self, a: usize, slab: u32, d: usize, within: usize) {
        if let Some(copy) = self.agents[a].map.get_mut(&slab).and_then(|e| e.at(d)) {
            copy.lacks(within);
        }
    }

    fn donor_wrote(&mut self, a: usize, d: usize, id: u32, ok: bool) {
        let Some(op) = self.agents[a].ops.get_mut(&id) else {
            return;
        };
        op.parts -= 1;
        let extent = op.extent;
        if ok {
            op.confirmed |= 1 << d;
        }
        let (slab, within) = self.place_of(extent);
        if ok {
            if let Some(copy) = self.agents[a].map.get_mut(&slab).and_then(|e| e.at(d)) {
                copy.gained(within);
                copy.ops += 1;
            }
        } else {
            self.lacks(a, slab, d, within);
        }
        self.write_ended(a, id);
    }

    fn write_ended(&mut self, a: usize, id: u32) {
        if self.agents[a].ops.get(&id).is_none_or(|op| op.parts > 0) {
            return;
        }
        let op = self.agents[a].ops.remove(&id).expect("just seen");
        // A copy that was made meanwhile has not got it.
        let (slab, within) = self.place_of(op.extent);
        let copies = self.agents[a].map.get_mut(&slab).map(|e| &mut e.copies);
        for copy in copies.into_iter().flatten() {
            if op.sent & 1 << copy.donor == 0 {
                copy.lacks(within);
            }
        }
        let confirmed = op.confirmed.count_ones() as usize;
        if is_durable(self.config.policy, confirmed, op.disk) {
            self.agents[a].seals[op.extent as usize] = op.version.expect("a write");
            self.stats.writes += 1;
        } else {
            self.stats.writes_refused += 1;
        }
    }

    // Reading.

    pub(crate) fn begin_read(&mut self, a: usize, extent: u32) {
        let id = self.new_op(a, extent, None);
        self.send_read(a, id);
        self.kick(a);
    }

    fn send_read(&mut self, a: usize, id: u32) {
        let extent = self.agents[a].ops[&id].extent;
        let (slab, within) = self.place_of(extent);
        let disk = self.config.policy.disk;
        loop {
            let agent = &self.agents[a];
            let tried = agent.ops[&id].tried;
            let next = agent.map.get(&slab).and_then(|e| {
                let last_resort = !disk && !is_away(agent.sources(e, within));
                let d = read_next(agent.sources(e, within), within, tried, last_resort)?.donor;
                let copy = e.copies.iter().find(|c| c.donor == d)?;
                Some((d, copy.handle))
            });
            let Some((d, handle)) = next else {
                break;
            };
            let sent = self.submit(a, d, Call::Read(id), Request::Read(handle, within));
            let op = self.agents[a].ops.get_mut(&id).expect("under way");
            op.tried |= 1 << d;
            if sent {
                op.at = Some(d);
                return;
            }
        }
        let op = self.agents[a].ops.get_mut(&id).expect("under way");
        op.at = None;
        if disk && !op.tried_disk {
            op.tried_disk = true;
            self.use_disk(a, id);
        } else {
            self.agents[a].ops.remove(&id);
            self.stats.unanswered += 1;
        }
    }

    fn donor_read(&mut self, a: usize, d: usize, id: u32, version: Option<u64>) {
        let Some(op) = self.agents[a].ops.get(&id) else {
            return;
        };
        let extent = op.extent;
        let (slab, within) = self.place_of(extent);
        match version {
            Some(v) if v == self.agents[a].seals[extent as usize] => {
                if let Some(copy) = self.agents[a].map.get_mut(&slab).and_then(|e| e.at(d)) {
                    copy.ops += 1;
                }
                self.agents[a].ops.remove(&id);
                self.stats.reads += 1;
            }
            Some(_) => {
                // It does not verify: not believed, and the copy lacks it.
                self.stats.stale += 1;
                self.lacks(a, slab, d, within);
                self.send_read(a, id);
            }
            None => {
                self.stats.failovers += 1;
                self.send_read(a, id);
            }
        }
    }

    pub(crate) fn disk_did(&mut self, a: usize, life: u64, id: u32) {
        if self.agents[a].id != life || !self.agents[a].alive {
            return;
        }
        if id >= OURS {
            return self.repair_from_disk(a, (id - OURS) as usize);
        }
        let Some(op) = self.agents[a].ops.get_mut(&id) else {
            return;
        };
        let extent = op.extent as usize;
        match op.version {
            Some(version) => {
                op.parts -= 1;
                op.disk = Some(true);
                self.agents[a].disk[extent] = version;
                self.write_ended(a, id);
            }
            None => {
                let agent = &mut self.agents[a];
                agent.ops.remove(&id);
                if agent.disk[extent] == agent.seals[extent] {
                    self.stats.reads += 1;
                    self.stats.disk_reads += 1;
                } else {
                    self.stats.unanswered += 1;
                }
            }
        }
    }

    // Donors.

    pub(crate) fn connected(&mut self, a: usize, d: usize) {
        let agent = &mut self.agents[a];
        let run = run_id(agent.donors[d].run);
        map::connected(&mut agent.map, d, run);
        self.submit(a, d, Call::List, Request::List);
    }

    fn listed(&mut self, a: usize, d: usize, held: &[u64]) {
        let (_, garbage) = map::listed(&mut self.agents[a].map, d, held);
        for handle in garbage {
            self.submit(a, d, Call::Free, Request::Free(handle));
        }
        self.agents[a].donors[d].state = State::Up;
    }

    pub(crate) fn answered(&mut self, a: usize, d: usize, call: Call, answer: Option<Answer>) {
        match (call, answer) {
            (Call::Read(id), Some(Answer::Data(v))) => self.donor_read(a, d, id, Some(v)),
            (Call::Read(id), _) => self.donor_read(a, d, id, None),
            (Call::Write(id), answer) => {
                self.donor_wrote(a, d, id, matches!(answer, Some(Answer::Done)));
            }
            (Call::Alloc(slab), Some(Answer::Allocated(h))) => self.allocated(a, d, slab, Some(h)),
            (Call::Alloc(slab), answer) => {
                if matches!(answer, Some(Answer::Refused(Refused::NoRoom))) {
                    self.agents[a].donors[d].free_bytes = 0;
                }
                self.allocated(a, d, slab, None);
            }
            (Call::List, Some(Answer::Handles(held))) => self.listed(a, d, &held),
            (Call::List, _) => self.lost(a, d),
            (Call::Free | Call::Ping, _) => {}
            (Call::RepairRead(slot), Some(Answer::Data(v))) => self.repair_read(a, slot, Some(v)),
            (Call::RepairRead(slot), _) => self.repair_read(a, slot, None),
            (Call::RepairWrite(slot), answer) => {
                self.end_repair(a, slot, matches!(answer, Some(Answer::Done)));
            }
        }
    }

    /// Signs of life. An answer that would come is taken at once: its way is short beside the time
    /// between two of them.
    pub(crate) fn ping(&mut self, a: usize) {
        let now = self.now();
        if !self.agents[a].alive {
            return;
        }
        for d in 0..self.agents[a].donors.len() {
            let agent = &mut self.agents[a];
            let donor = &mut agent.donors[d];
            if !donor.is_up() {
                continue;
            }
            let host = &mut self.hosts[donor.host as usize];
            if host.life == Life::Up && host.run == donor.run {
                host.hear(agent.id, now);
                donor.free_bytes = host.free_bytes();
                donor.pressure = host.pressure();
            } else {
                self.next_tag += 1;
                agent.calls.insert(self.next_tag, (d, Call::Ping, now));
                self.next_tag += 1;
                self.kick(a);
            }
        }
    }

    pub(crate) fn asked_activity(&mut self, via: Via, handle: u64) {
        if !self.stands(via) {
            return;
        }
        let (a, d) = (via.agent as usize, via.donor as usize);
        let copies = self.agents[a].map.values_mut().filter_map(|e| e.at(d));
        let copy = copies.into_iter().find(|c| c.handle == handle);
        let ops = copy.map_or(0, |c| std::mem::take(&mut c.ops));
        self.tell(a, d, Request::Activity(handle, ops));
    }

    pub(crate) fn asked_stop(&mut self, via: Via, handle: u64, until: Ns) {
        if !self.stands(via) {
            return;
        }
        let (a, d) = (via.agent as usize, via.donor as usize);
        let mut copies = self.agents[a].map.values_mut().filter_map(|e| e.at(d));
        match copies.find(|c| c.handle == handle) {
            Some(copy) => copy.leaving = Some((handle, until)),
            None => self.tell(a, d, Request::EvictDone(handle)),
        }
        self.agents[a].donors[d].pressure = true;
        self.kick(a);
    }

    /// The agent's look at everything.
    pub(crate) fn tick(&mut self, a: usize) {
        self.agents[a].ticking = false;
        if !self.agents[a].alive {
            return;
        }
        let (now, want) = (self.now(), self.config.policy.donors);
        // Requests are in order of their times.
        while let Some((&tag, &(d, call, since))) = self.agents[a].calls.first_key_value() {
            if now - since < REQUEST_NS {
                break;
            }
            self.agents[a].calls.remove(&tag);
            self.answered(a, d, call, None);
            self.lost(a, d);
        }
        let slabs: Vec<u32> = self.agents[a].map.keys().copied().collect();
        let (mut degraded, mut restless) = (0, false);
        for slab in slabs {
            let agent = &self.agents[a];
            let entry = &agent.map[&slab];
            let held = agent.held(entry, now);
            if whole(&held) < want {
                degraded += 1;
            }
            restless |= held.len() > want || held.iter().any(|c| c.leaving_until_ns.is_some());
            if counting(&held) < want && entry.allocating == 0 && now >= entry.again_ns {
                self.place(a, slab);
            }
            self.let_go(a, slab, now);
        }
        self.agents[a].degraded = degraded;
        self.repair(a);
        let agent = &self.agents[a];
        let idle = agent.calls.is_empty() && agent.ops.is_empty() && agent.repairs.is_idle();
        if degraded > 0 || restless || !idle {
            self.kick(a);
        }
    }

    fn let_go(&mut self, a: usize, slab: u32, now: Ns) {
        let (policy, slab_bytes) = (self.config.policy, self.config.slab_bytes);
        let agent = &self.agents[a];
        let Some(entry) = agent.map.get(&slab) else {
            return;
        };
        let room = agent
            .donors
            .iter()
            .any(|d| d.is_up() && !d.pressure && d.free_bytes >= slab_bytes);
        let given = give_up(&agent.held(entry, now), policy, room, now);
        let Some(GiveUp::Leaving(d) | GiveUp::Surplus(d)) = given else {
            return;
        };
        let copy = entry
            .copies
            .iter()
            .find(|c| c.donor == d)
            .expect("given up");
        let (handle, leaving) = (copy.handle, copy.leaving.is_some());
        let up = agent.donors[d].is_up();
        let entry = self.agents[a].map.get_mut(&slab).expect("seen above");
        entry.copies.retain(|c| c.donor != d);
        if leaving {
            self.stats.moved += 1;
            self.tell(a, d, Request::EvictDone(handle));
        } else if up {
            self.submit(a, d, Call::Free, Request::Free(handle));
        }
    }
}
