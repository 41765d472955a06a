//! A tenant's agent: carries out the decisions of `canvas_place::replicas` as events.

use canvas_place::choose::{Candidate, choose};
use canvas_place::replicas::placement::{self, Due, PlacementResult, has_room};
use canvas_place::replicas::read::{self, AfterAnswer, Exhausted, NextCopy, OnDisk, Read};
use canvas_place::replicas::{ConnectionState, REPAIRS, REQUEST_NS, is_durable, map};

use crate::agent::{Call, Op, Sent, run_id};
use crate::engine::Ns;
use crate::host::{Life, Refused};
use crate::world::{Answer, Chooser, Event, Request, Via, World};

/// First request number of repairs to the disk.
pub(crate) const OURS: u32 = 1 << 31;
/// Percentage of writes among the requests of a program that has written every extent once.
const WRITES_PERCENT: u32 = 30;

impl World {
    pub(crate) fn place_of(&self, extent: u32) -> (u32, usize) {
        let extents = self.config.extents as u32;
        (extent / extents, (extent % extents) as usize)
    }

    /// Sends a request to a donor; returns false if the donor cannot take it now.
    pub(crate) fn submit(&mut self, a: usize, d: usize, call: Call, request: Request) -> bool {
        if self.agents[a].donors[d].is_down() {
            return false;
        }
        let via = self.via(a, d);
        let tag = self.next_tag;
        self.next_tag += 1;
        let now = self.now();
        let handle = match request {
            Request::Read(handle, _) | Request::Write(handle, ..) => handle,
            _ => 0,
        };
        let sent = Sent {
            donor: d,
            handle,
            call,
            since: now,
        };
        self.agents[a].calls.insert(tag, sent);
        let bytes = match request {
            Request::Write(..) => self.config.part_of(self.config.extent_bytes()),
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

    /// The program's next request: first it writes every extent once, then it reads and writes at random.
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
        // A write that could not be stored left its data with the program, which tries again.
        if writes || agent.seals[extent as usize] == 0 {
            self.begin_write(a, extent);
        } else {
            self.begin_read(a, extent);
        }
    }

    fn new_op(&mut self, a: usize, extent: u32, version: Option<u64>) -> u32 {
        let since = self.now();
        let agent = &mut self.agents[a];
        let id = agent.next_op;
        agent.next_op = (id + 1) % OURS;
        let op = Op {
            extent,
            version,
            read: Read::default(),
            gather: None,
            pieces: Vec::new(),
            searches: false,
            since,
            parts: 0,
            sent: 0,
            confirmed: 0,
            to_disk: false,
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
        let slab_bytes = self.config.part_of(self.config.slab_bytes);
        let chooser = self.config.chooser;
        let agent = &mut self.agents[a];
        let rng = &mut agent.rng;
        let chosen = placement::place(&mut agent.map, slab, &agent.donors, now, |candidates| {
            choose_by(chooser, candidates, slab_bytes, rng)
        });
        let Some(d) = chosen else {
            return false;
        };
        if !self.submit(a, d, Call::Alloc(slab), Request::Alloc(slab)) {
            return false;
        }
        let agent = &mut self.agents[a];
        let free = &mut agent.donors[d].free_bytes;
        *free = free.saturating_sub(slab_bytes);
        if let Some(entry) = agent.map.get_mut(&slab) {
            entry.on_alloc_sent();
        }
        true
    }

    fn allocated(&mut self, a: usize, d: usize, slab: u32, handle: Option<u64>) {
        let (now, extents) = (self.now(), self.config.extents);
        let want = self.config.policy.donors;
        let agent = &mut self.agents[a];
        let (seals, donors) = (&agent.seals, &agent.donors);
        let granted = handle.map(|handle| (run_id(donors[d].run), handle));
        let first = slab as usize * extents;
        let placed = placement::allocated(
            &mut agent.map,
            slab,
            d,
            granted,
            || seals[first..first + extents].iter().any(|s| *s != 0),
            |entry| entry.is_short(donors, want, now),
            donors,
        );
        match placed {
            // Slabs of living tenants are never freed.
            PlacementResult::Useless => return,
            PlacementResult::Yes => self.stats.placed += 1,
            PlacementResult::No { again } => {
                self.stats.refused += 1;
                if again {
                    self.place(a, slab);
                }
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
        let agent = &mut self.agents[a];
        let version = agent.next_seal;
        agent.next_seal += 1;
        agent.seals[extent as usize] = 0;
        let id = self.new_op(a, extent, Some(version));
        let policy = self.config.policy;
        let agent = &mut self.agents[a];
        let entry = agent.map.entry(slab).or_default();
        if entry.replicas.is_empty() && entry.allocating == 0 {
            entry.code = policy.code;
        }
        for _ in 0..entry.to_ask(&agent.donors, policy, now) {
            self.place(a, slab);
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
            .filter(|_| self.config.policy.donors > 0)
            .map(|e| e.replicas.iter().map(|c| (c.donor, c.handle)).collect())
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
            let agent = &mut self.agents[a];
            agent.ops.get_mut(&id).expect("under way").to_disk = true;
            agent.map.entry(slab).or_default().may_be_on_disk = true;
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
        // A copy made after the write was sent does not have it.
        let (slab, within) = self.place_of(op.extent);
        let copies = self.agents[a].map.get_mut(&slab).map(|e| &mut e.replicas);
        for copy in copies.into_iter().flatten() {
            if op.sent & 1 << copy.donor == 0 {
                copy.lacks(within);
            }
        }
        if let Some(entry) = self.agents[a].map.get_mut(&slab) {
            match op.disk {
                Some(_) => entry.disk.fill(within),
                None if self.config.has_disk => _ = entry.disk.add(within),
                None => {}
            }
        }
        // A copy given up after the write was sent does not count.
        let copies = self.agents[a].map.get(&slab).map(|e| &e.replicas);
        let there = copies.into_iter().flatten();
        let confirmed = there.filter(|c| op.confirmed & 1 << c.donor != 0);
        let confirmed = match self.config.policy.code {
            None => confirmed.count(),
            Some(_) => {
                let shards = confirmed.fold(0u32, |bits, c| bits | 1 << c.shard);
                shards.count_ones() as usize
            }
        };
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

    /// Asks the next copy; without one, decides how the read ends.
    fn send_read(&mut self, a: usize, id: u32) {
        if let Some(code) = self.config.policy.code {
            return self.gather(a, id, code);
        }
        if self.ask_next(a, id, false) {
            return;
        }
        let (now, wait_ns) = (self.now(), self.config.wait_ns);
        let Some(extent) = self.agents[a].ops.get(&id).map(|op| op.extent) else {
            return;
        };
        let (slab, within) = self.place_of(extent);
        let agent = &mut self.agents[a];
        let op = agent.ops.get_mut(&id).expect("just seen");
        let waited_ns = || now - op.since;
        let slab = agent.map.get(&slab);
        let otherwise = op
            .read
            .on_exhausted(slab, within, &agent.donors, waited_ns, wait_ns);
        match otherwise {
            Exhausted::AwaitAnswer => {}
            Exhausted::Retry => agent.away.push(id),
            Exhausted::Fail { .. } => {
                agent.ops.remove(&id);
                self.stats.unanswered += 1;
            }
        }
    }

    /// Whether the disk of the tenant's host has an extent, as far as the agent knows.
    fn on_disk(&self, a: usize, extent: u32) -> OnDisk {
        let (slab, within) = self.place_of(extent);
        let slab = self.agents[a].map.get(&slab);
        OnDisk::of(slab, within, self.config.has_disk, self.config.policy)
    }

    /// Asks the next untried copy; returns false if there is none.
    fn ask_next(&mut self, a: usize, id: u32, besides: bool) -> bool {
        loop {
            let agent = &self.agents[a];
            let Some(op) = agent.ops.get(&id) else {
                return false;
            };
            let disk = self.on_disk(a, op.extent);
            let (slab, within) = self.place_of(op.extent);
            let slab = agent.map.get(&slab);
            let next = op.read.next(slab, within, &agent.donors, disk, besides);
            let (d, handle) = match next {
                NextCopy::Donor(d, handle) => (d, handle),
                NextCopy::Disk => {
                    let op = self.agents[a].ops.get_mut(&id).expect("just seen");
                    op.read.on_sent_to_disk();
                    self.use_disk(a, id);
                    return true;
                }
                NextCopy::NoneLeft => return false,
            };
            let sent = self.submit(a, d, Call::Read(id), Request::Read(handle, within));
            let now = self.now();
            let agent = &mut self.agents[a];
            let op = agent.ops.get_mut(&id).expect("just seen");
            op.read.on_sent(d, sent);
            if sent {
                let due = now + agent.donors[d].pace.hedge_ns();
                let event = Event::Hedge(a as u32, agent.id, id, d as u32);
                self.queue.put(due, event);
                return true;
            }
        }
    }

    /// Hedges a read whose donor has been silent for longer than usual.
    pub(crate) fn hedge(&mut self, a: usize, life: u64, id: u32, d: usize) {
        if let Some(code) = self.config.policy.code {
            if self.agents[a].id == life {
                self.hedge_shard(a, id, d, code);
            }
            return;
        }
        let now = self.now();
        let agent = &mut self.agents[a];
        let read = agent.ops.get(&id).filter(|op| op.version.is_none());
        if agent.id != life || !read.is_some_and(|op| op.read.waits_for(d)) {
            return;
        }
        if agent.donors[d].suspect.is_none() {
            agent.donors[d].suspect = Some(now);
            self.submit(a, d, Call::Ping, Request::Ping);
        }
        if self.ask_next(a, id, true) {
            self.stats.hedged += 1;
        }
    }

    fn donor_read(&mut self, a: usize, d: usize, id: u32, said: read::Answer, version: u64) {
        let Some(extent) = self.agents[a].ops.get(&id).map(|op| op.extent) else {
            return;
        };
        let (slab, within) = self.place_of(extent);
        let agent = &mut self.agents[a];
        let op = agent.ops.get_mut(&id).expect("just seen");
        match op.read.on_answer(&mut agent.map, slab, within, d, said) {
            AfterAnswer::Nothing => {}
            AfterAnswer::Deliver => self.hand_out(a, id, version),
            AfterAnswer::TryNext { failover } => {
                self.stats.failovers += u64::from(failover);
                self.send_read(a, id);
            }
        }
    }

    /// Checks a version that arrived: the read ends if it is the right one, otherwise another copy is asked.
    fn hand_out(&mut self, a: usize, id: u32, version: u64) {
        let agent = &mut self.agents[a];
        let op = agent.ops.get_mut(&id).expect("under way");
        let extent = op.extent;
        if version == agent.seals[extent as usize] {
            agent.ops.remove(&id);
            self.stats.reads += 1;
            return;
        }
        self.stats.stale += 1;
        let from = op.read.is_bad();
        let (slab, within) = self.place_of(extent);
        if let Some(d) = from {
            self.lacks(a, slab, d, within);
        }
        self.send_read(a, id);
    }

    /// Retries the reads that wait for absent donors.
    fn retry_away(&mut self, a: usize) {
        let agent = &mut self.agents[a];
        let donors = agent.donors.0.iter().enumerate();
        let up = donors.fold(0, |up, (i, d)| up | u64::from(d.is_up()) << i);
        for id in std::mem::take(&mut agent.away) {
            if let Some(code) = self.config.policy.code {
                self.retry_shards(a, id, code);
                continue;
            }
            if let Some(op) = self.agents[a].ops.get_mut(&id) {
                op.read.retry(up);
                self.send_read(a, id);
            }
        }
    }

    pub(crate) fn disk_did(&mut self, a: usize, life: u64, id: u32) {
        if self.agents[a].id != life || !self.agents[a].alive {
            return;
        }
        if id >= OURS {
            return self.repair_by_disk(a, (id - OURS) as usize);
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
                if op
                    .read
                    .on_disk_answer(OnDisk::Yes, read::Answer::Data { blank: false })
                    == AfterAnswer::Deliver
                {
                    let version = self.agents[a].disk[extent];
                    self.stats.disk_reads += u64::from(version == self.agents[a].seals[extent]);
                    self.hand_out(a, id, version);
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
        self.agents[a].donors[d].state = ConnectionState::Up;
    }

    pub(crate) fn on_answer(&mut self, a: usize, sent: Sent, answer: Option<Answer>) {
        let Sent { donor: d, call, .. } = sent;
        let is_unknown = matches!(answer, Some(Answer::Refused(Refused::Unknown)));
        if is_unknown && sent.handle != 0 {
            map::gone(&mut self.agents[a].map, d, sent.handle);
        }
        if let Some(code) = self.config.policy.code {
            let version = match answer {
                Some(Answer::Data(version)) => Some(version),
                _ => None,
            };
            match call {
                Call::Read(id) => {
                    if version.is_some() {
                        let now = self.now();
                        let pace = &mut self.agents[a].donors[d].pace;
                        pace.on_answer(now - sent.since, now);
                    }
                    return self.shard_read(a, d, id, version, code);
                }
                Call::RepairRead(slot) => {
                    return self.shard_for_repair(a, d, slot, version, code);
                }
                _ => {}
            }
        }
        match (call, answer) {
            (Call::Read(id), Some(Answer::Data(version))) => {
                let now = self.now();
                let pace = &mut self.agents[a].donors[d].pace;
                pace.on_answer(now - sent.since, now);
                let said = read::Answer::Data {
                    blank: version == 0,
                };
                self.donor_read(a, d, id, said, version);
            }
            (Call::Read(id), _) if is_unknown => {
                self.donor_read(a, d, id, read::Answer::Unknown, 0);
            }
            (Call::Read(id), _) => self.donor_read(a, d, id, read::Answer::No, 0),
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
            (
                Call::Ping,
                Some(Answer::Pong {
                    free_bytes,
                    pressure,
                }),
            ) => {
                let donor = &mut self.agents[a].donors[d];
                (donor.free_bytes, donor.pressure) = (free_bytes, pressure);
                donor.suspect = donor.suspect.filter(|since| sent.since < *since);
            }
            (Call::Free | Call::Ping, _) => {}
            (Call::RepairRead(slot), Some(Answer::Data(v))) => self.repair_read(a, slot, Some(v)),
            (Call::RepairRead(slot), _) => self.repair_read(a, slot, None),
            (Call::RepairWrite(slot), answer) => {
                self.end_repair(a, slot, matches!(answer, Some(Answer::Done)));
            }
        }
    }

    /// Sends signs of life. The answer is processed at once: its time on the network is short compared with
    /// the interval between two pings.
    pub(crate) fn ping(&mut self, a: usize) {
        let now = self.now();
        if !self.agents[a].alive {
            return;
        }
        for d in 0..self.agents[a].donors.0.len() {
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
                donor.suspect = None;
            } else {
                self.submit(a, d, Call::Ping, Request::Ping);
            }
        }
    }

    pub(crate) fn asked_activity(&mut self, via: Via, handle: u64) {
        if !self.stands(via) {
            return;
        }
        let (a, d) = (via.agent as usize, via.donor as usize);
        let replica = map::with_handle(&mut self.agents[a].map, d, handle);
        let ops = replica.map_or(0, |(_, c)| std::mem::take(&mut c.ops));
        self.tell(a, d, Request::Activity(handle, ops));
    }

    pub(crate) fn asked_stop(&mut self, via: Via, handle: u64, until: Ns) {
        if !self.stands(via) {
            return;
        }
        let (a, d) = (via.agent as usize, via.donor as usize);
        if !map::wanted_back(&mut self.agents[a].map, d, handle, handle, until) {
            self.tell(a, d, Request::EvictDone(handle));
        }
        self.agents[a].donors[d].pressure = true;
        self.kick(a);
    }

    /// The agent's periodic check of timeouts, repairs and releases.
    pub(crate) fn tick(&mut self, a: usize) {
        self.agents[a].ticking = false;
        if !self.agents[a].alive {
            return;
        }
        let (now, want) = (self.now(), self.config.policy.donors);
        // Tags are in chronological order.
        while let Some((&tag, &sent)) = self.agents[a].calls.first_key_value() {
            if now - sent.since < REQUEST_NS {
                break;
            }
            self.agents[a].calls.remove(&tag);
            self.on_answer(a, sent, None);
            self.lost(a, sent.donor);
        }
        let slabs: Vec<u32> = self.agents[a].map.keys().copied().collect();
        let (mut degraded, mut restless) = (0, false);
        for slab in slabs {
            let agent = &self.agents[a];
            let entry = &agent.map[&slab];
            let Due {
                degraded: short,
                place,
            } = entry.due(&agent.donors, self.config.policy, now);
            degraded += usize::from(short);
            restless |= entry.replicas.len() > want;
            restless |= entry.replicas.iter().any(|c| c.leaving.is_some());
            if place {
                self.place(a, slab);
            }
            self.remove_surplus(a, slab, now);
            self.drop_disk_copy(a, slab, now);
        }
        self.agents[a].degraded = degraded;
        self.retry_away(a);
        self.repair(a);
        let agent = &self.agents[a];
        let idle = agent.calls.is_empty() && agent.ops.is_empty() && agent.repairs.is_idle();
        if degraded > 0 || restless || !idle {
            self.kick(a);
        }
    }

    /// Frees a slab's extents on the disk once the policy does not want them and no write is on its way
    /// there.
    fn drop_disk_copy(&mut self, a: usize, slab: u32, now: Ns) {
        let (policy, extents) = (self.config.policy, self.config.extents);
        let agent = &mut self.agents[a];
        let of_slab = |extent: u32| extent as usize / extents == slab as usize;
        let writes = agent
            .ops
            .values()
            .any(|op| op.to_disk && of_slab(op.extent));
        let mut jobs = (0..REPAIRS).filter_map(|slot| agent.repairs.job(slot));
        let repairs = jobs.any(|job| job.to.is_none() && of_slab(job.extent));
        let entry = agent.map.get_mut(&slab);
        if !self.config.has_disk || writes || repairs {
            return;
        }
        if entry.is_some_and(|e| e.drop_disk_copy(&agent.donors, policy, now)) {
            let first = slab as usize * extents;
            agent.disk[first..first + extents].fill(0);
        }
    }

    fn remove_surplus(&mut self, a: usize, slab: u32, now: Ns) {
        let slab_bytes = self.config.part_of(self.config.slab_bytes);
        let policy = self.config.policy;
        let agent = &mut self.agents[a];
        let donors = &agent.donors;
        let room = || has_room(donors, slab_bytes);
        let entry = agent.map.get_mut(&slab);
        let Some(given) = entry.and_then(|e| e.remove_surplus(donors, policy, room, now)) else {
            return;
        };
        let (d, handle) = (given.donor, given.handle);
        let up = agent.donors[d].is_up();
        if given.call.is_some() {
            self.stats.moved += 1;
            self.tell(a, d, Request::EvictDone(handle));
        } else if up {
            self.submit(a, d, Call::Free, Request::Free(handle));
        }
    }
}

/// Chooses a donor as the product does, or in one of the ways it is compared with.
fn choose_by(
    chooser: Chooser,
    candidates: &[Candidate],
    slab_bytes: u64,
    rng: &mut fastrand::Rng,
) -> Option<usize> {
    if chooser == Chooser::TwoChoices {
        return choose(candidates, slab_bytes, |n| rng.usize(0..n));
    }
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
