//! The agent of one tenant: events in, actions out, one thread.
//!
//! A request goes from the mailbox to the request table, which decides whether it may run ([`Agent::gather`]); to the
//! dispatcher, which decides when ([`crate::dispatch`]); to the store ([`Agent::start`]); and the store's result goes
//! back into the mailbox ([`Agent::reap`]).

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

use canvas_core::swap::extent::EXTENT_BYTES;
use canvas_sched::{Class, Decision, Ticket};
use canvas_shm::Far;
use canvas_shm::far::{EXTENTS_MAX, SHARED, SLAB_EXTENTS, SLABS_MAX, slab_state};
use canvas_shm::histogram::{BUCKETS, bucket_floor_ns};
use canvas_shm::mailbox::{self, Kind, REQUESTS, RequestFields, Status};
use canvas_shm::segment::PROCS_MAX;
use canvas_sys::proc::futex_wake;
use nix::errno::Errno;
use tracing::{error, info, warn};

use crate::block::Block;
use crate::dispatch::{Dispatch, IoLink};
use crate::idle::Idle;
use crate::numbers::SealNumbers;
use crate::request_table::{Admission, Limits, Origin, RequestTable};
use crate::seal::{KEY_BYTES, SealError, Sealer, is_readable};
use crate::serve_loop::{Gathered, TenantAgent};
use crate::share::LiveShare;
use crate::store::{Direct, Event, LogTopic, MOVES_MAX, Outcome, Store, TRANSFER_COST};

/// Most operations under way, by class.
const DEMANDS: usize = 128;
const FETCHES: usize = 64;
/// Not more than a link can queue beside repairs: a read behind them must not be refused.
const WRITES: usize = 16;
/// A request under way for this long is taken off its link, because its donor is silent. 32 KiB take less time on any
/// link faster than 1.3 Mbit/s.
const SILENT_NS: u64 = 200_000_000;
/// How often the programs' statistics and silent requests are checked.
const CHECK_NS: u64 = 50_000_000;
/// The cost of a turn is bounded, whatever the tenant's processes claim: mailboxes read,
const MAILBOXES: usize = 64;
/// slabs scanned,
const SLABS: u32 = 512;
/// and slabs being freed at a time.
const FREES: usize = 32;
/// Upper bound on the age of a request, whatever it claims.
const WAITED_NS_MAX: u64 = 60_000_000_000;
/// Prefetch lead times that count in one check, per bucket: many more than the scheduler remembers.
const USES_MAX: u64 = 1 << 16;
/// Operations have numbers below; moves of the store itself have numbers from here on.
const MOVES: u32 = 1 << 31;
/// How long a tenant's end waits for its store: as long as one request to a donor may take.
const FREE_WAIT: Duration = Duration::from_secs(1);
/// The number of a tenant that is served alone.
const ALONE: u64 = 0;

/// Configuration of an agent.
pub struct Setup {
    /// The tenant's far area.
    pub far: &'static Far,
    /// The tenant's id.
    pub tenant: [u8; 16],
    /// The tenant's name in log lines. It does not come from the segment, where the tenant could write another one.
    pub name: String,
    /// The tenant's key.
    pub key: [u8; KEY_BYTES],
    /// Allocator of seal numbers for this key.
    pub numbers: SealNumbers,
    /// Returns how many slabs the tenant may fill; called for each new one.
    pub slabs: Box<dyn Fn() -> usize + Send>,
    /// How long to poll after the last request before sleeping.
    pub spin: Duration,
    /// The tenant's share; it may change at any time.
    pub share: LiveShare,
}

/// A request being served.
struct Work {
    from: Origin,
    ask: RequestFields,
    class: Class,
    posted_ns: u64,
    /// The dispatcher's ticket, while it has the request.
    ticket: Option<Ticket>,
    /// The link of its last submission.
    link: Option<IoLink>,
    /// Start time of the request or of its last piece; 0 before.
    begun_ns: u64,
    /// Bytes that are done, and bytes under way or next.
    got: u32,
    piece: u32,
    /// A thread waits for this prefetch.
    escalated: bool,
    /// Seal number of the extent that is read or written.
    seal: u64,
    /// Number of the copy that is read, or was last.
    copy: usize,
    /// A copy was read that did not verify.
    corrupt: bool,
    /// A copy could not be read.
    unread: bool,
    /// The buffer, while the agent has it and not the store.
    block: Option<Block>,
}

impl Work {
    /// Bytes to move in all: writes are of whole extents.
    fn bytes(&self) -> u32 {
        match self.ask.kind {
            Kind::Read => self.ask.len,
            Kind::Write => EXTENT_BYTES as u32,
        }
    }
}

/// A move of the store itself.
#[derive(Clone, Copy, Default)]
struct StoreMove {
    /// What it wants to move next, until the dispatcher has the request.
    wants: Option<(IoLink, u32)>,
    /// The dispatcher's ticket, while it has the request.
    ticket: Option<Ticket>,
    bytes: u32,
    begun_ns: u64,
}

/// Serves one tenant from one store.
pub struct Agent<S> {
    far: &'static Far,
    name: String,
    requests: RequestTable,
    slabs: Box<dyn Fn() -> usize + Send>,
    sealer: Sealer,
    store: S,
    idle: Idle,
    share: LiveShare,
    /// Version of the share that the dispatcher has.
    share_seen: u32,
    /// How much the tenant's processes may read directly.
    direct: Direct,
    /// Requests, by operation number.
    work: Vec<Option<Work>>,
    /// Unused buffers.
    blocks: Vec<Block>,
    events: Vec<Event>,
    numbers: SealNumbers,
    /// Operations that may run and are not with the dispatcher yet.
    ready: VecDeque<u32>,
    /// The store's own moves, by slot.
    moves: [StoreMove; MOVES_MAX],
    /// Sleeping threads whose requests were answered.
    to_wake: Vec<Origin>,
    /// Tickets of operations that have ended; true when bytes went over the link.
    ended: Vec<(Ticket, bool)>,
    /// Histogram of [`canvas_shm::far::FarStats::ahead_ns`] at the last check.
    ahead_seen: Box<[u64; BUCKETS]>,
    checked_ns: u64,
    /// Processes that have notified the agent and were not checked yet, a bit each.
    notified: [u64; PROCS_MAX / 64],
    /// The next slab to scan for released ones; `None` when the scan is complete.
    released: Option<u32>,
}

impl<S: Store> Agent<S> {
    /// Takes the tenant over: requests that an earlier agent left unfinished are done again.
    pub fn new(setup: Setup, store: S) -> Agent<S> {
        let far = setup.far;
        let slabs = (setup.slabs)();
        let mut requests = RequestTable::new(Limits {
            demands: DEMANDS,
            fetches: FETCHES,
            writes: WRITES,
            slabs,
        });
        far.agent.fetch_add(1, AcqRel);
        let used = |slab: &u32| far.slabs[*slab as usize].state.load(Acquire) == slab_state::USED;
        for slab in (0..slabs_high(far)).filter(used).take(slabs) {
            requests.found(slab);
        }
        for proc in 0..PROCS_MAX {
            requests.post(proc, far.mailboxes[proc].recover());
        }
        // Slabs may have been released while no agent was running.
        far.released.store(1, SeqCst);
        Agent {
            far,
            name: setup.name,
            requests,
            slabs: setup.slabs,
            sealer: Sealer::new(&setup.key, setup.tenant),
            store,
            idle: Idle::new(setup.spin),
            share_seen: setup.share.version(),
            share: setup.share,
            direct: Direct::None,
            work: (0..DEMANDS + FETCHES + WRITES).map(|_| None).collect(),
            blocks: Vec::new(),
            events: Vec::new(),
            numbers: setup.numbers,
            ready: VecDeque::new(),
            moves: [StoreMove::default(); MOVES_MAX],
            to_wake: Vec::new(),
            ended: Vec::new(),
            ahead_seen: Box::new([0; BUCKETS]),
            checked_ns: 0,
            notified: [0; PROCS_MAX / 64],
            released: None,
        }
    }

    /// Serves this tenant alone, on a dispatcher without other tenants, until `is_over` returns true. `is_over` is
    /// called between turns, at least every tenth of a second.
    pub fn serve(&mut self, mut dispatch: Dispatch, mut is_over: impl FnMut() -> bool) {
        dispatch.add(ALONE, self.share.get().into());
        self.set_direct(Direct::All);
        while !is_over() {
            let worked = self.turn(&mut dispatch);
            let expects = self.store.expects();
            let dues = if worked {
                [None; 2]
            } else {
                [self.store.due_in(), dispatch.due_in()]
            };
            let due_in = dues.into_iter().flatten().min();
            let (store, idle) = (&self.store, &mut self.idle);
            let await_answer = |time| store.await_answer(time);
            idle.pause(worked, expects, due_in, self.far, await_answer, || {
                store.is_ready()
            });
        }
    }

    /// The tenant has ended: frees its slabs, waiting at most a second. Nothing of the tenant may be served afterwards.
    /// Donors that cannot be reached free the slabs when its lease expires.
    pub fn free_all(&mut self) {
        self.store.free_all(FREE_WAIT);
    }

    /// One turn over everything. True when there was work.
    fn turn(&mut self, dispatch: &mut Dispatch) -> bool {
        let began = Instant::now();
        dispatch.tick();
        let found = self.gather(dispatch, ALONE, usize::MAX);
        let mut worked = found.work || found.more;
        dispatch.tick();
        while let Some(decision) = dispatch.decide() {
            self.start(decision, dispatch.now_ns());
            worked = true;
        }
        self.store.flush();
        worked |= self.reap(dispatch, ALONE);
        if worked {
            let ns = began.elapsed().as_nanos() as u64;
            self.far.stats.agent_ns.fetch_add(ns, Relaxed);
        }
        worked
    }

    /// Sets how much the tenant's processes may read directly. A limit on the tenant's read rate is enforced in this
    /// thread, so with such a limit they may not.
    fn set_direct(&mut self, direct: Direct) {
        self.direct = direct;
        let is_limited = self.share.get().swap_in_limit.is_some();
        self.store
            .set_direct(if is_limited { Direct::None } else { direct });
    }

    /// Takes at most `most` requests of the tenant's processes, and submits those that may run to the dispatcher, where
    /// the tenant's number is `id`. The rest waits for the next turn.
    pub fn gather(&mut self, dispatch: &mut Dispatch, id: u64, most: usize) -> Gathered {
        let far = self.far;
        let version = self.share.version();
        if version != self.share_seen {
            self.share_seen = version;
            dispatch.set(id, self.share.get().into());
            self.set_direct(self.direct);
        }
        let mut found = Gathered::default();
        if self.notified.iter().all(|word| *word == 0) {
            // A process that notifies while others wait for their turn comes after them.
            far.take_notified(|proc| self.notified[proc / 64] |= 1 << (proc % 64));
        }
        for _ in 0..MAILBOXES {
            let Some(w) = self.notified.iter().position(|word| *word != 0) else {
                break;
            };
            let proc = w * 64 + self.notified[w].trailing_zeros() as usize;
            self.notified[w] &= self.notified[w] - 1;
            found.work |= self.read_mailbox(dispatch, proc);
        }
        found.more = self.notified.iter().any(|word| *word != 0);
        if self.released.is_none()
            && far.released.load(Relaxed) != 0
            && far.released.swap(0, SeqCst) != 0
        {
            self.released = Some(0);
        }
        found.work |= self.scan_released();
        // At the limit of slabs being freed, the end of one of them wakes the agent.
        found.more |= self.released.is_some() && self.requests.releasing() < FREES;
        while found.taken < most {
            let Some((from, class)) = self.requests.take() else {
                break;
            };
            self.begin(from, class, dispatch.now_ns());
            found.taken += 1;
            found.work = true;
        }
        found.held_back = self.requests.may_take();
        found.more |= found.held_back;
        self.submit_ready(dispatch, id);
        self.wake_all();
        found
    }

    /// Reads the mailbox of a process that has notified. False when it is empty.
    fn read_mailbox(&mut self, dispatch: &mut Dispatch, proc: usize) -> bool {
        let mailbox = &self.far.mailboxes[proc];
        let (posted, escalated) = mailbox.take_new();
        self.requests.post(proc, posted);
        let escalated = escalated & mailbox::FETCHES;
        let moved = escalated != 0 && self.escalate(dispatch, proc, escalated);
        posted != 0 || moved
    }

    /// Starts one of this tenant's operations, as the dispatcher has decided.
    pub fn start(&mut self, decision: Decision, now_ns: u64) {
        let request = decision.request();
        let id = request.tag as u32;
        if id >= MOVES {
            let own = &mut self.moves[(id - MOVES) as usize];
            own.begun_ns = now_ns;
            return self.store.grant_move(id - MOVES, own.bytes as usize);
        }
        let stats = &self.far.stats;
        let Some(work) = self.work.get_mut(id as usize).and_then(Option::as_mut) else {
            debug_assert!(false, "the dispatcher has only operations that run");
            return;
        };
        if let Decision::Drop(_) = decision {
            work.ticket = None;
            stats.dropped.fetch_add(1, Relaxed);
            self.finish(id, Status::Late);
            return self.wake_all();
        }
        let class = request.class as usize;
        work.begun_ns = now_ns;
        if work.got == 0 {
            let waited = now_ns.saturating_sub(work.posted_ns);
            stats.waited_ns[class].fetch_add(waited, Relaxed);
            stats.sent[class].fetch_add(1, Relaxed);
        }
        stats.sent_bytes[class].fetch_add(request.bytes.into(), Relaxed);
        let (mailbox, i) = (&self.far.mailboxes[work.from.proc], work.from.i);
        if work.ask.kind == Kind::Read && !mailbox.is_awaited(i) {
            self.finish(id, Status::Refused);
        } else {
            self.run(id);
        }
        self.wake_all();
    }

    /// Processes the store's events, and answers. True when there were any.
    pub fn reap(&mut self, dispatch: &mut Dispatch, id: u64) -> bool {
        let mut events = std::mem::take(&mut self.events);
        self.store.poll(&mut events);
        let worked = !events.is_empty();
        if worked {
            // Read the clock after the events: with an earlier time (the thread may have waited for a processor since)
            // links would seem faster than they are.
            dispatch.tick();
        }
        for event in events.drain(..) {
            self.apply(event, dispatch.now_ns());
        }
        self.events = events;
        self.submit_ready(dispatch, id);
        self.wake_all();
        if dispatch.now_ns() > self.checked_ns + CHECK_NS {
            self.checked_ns = dispatch.now_ns();
            self.report_lead_times(dispatch, id);
            self.drop_silent(dispatch);
        }
        worked
    }

    /// Reports ended operations to the dispatcher, and submits those that may run.
    fn submit_ready(&mut self, dispatch: &mut Dispatch, id: u64) {
        for (ticket, moved) in self.ended.drain(..) {
            if moved {
                dispatch.done(ticket);
            } else {
                dispatch.give_up(ticket);
            }
        }
        while let Some(op) = self.ready.pop_front() {
            let work = self.work[op as usize].as_mut().expect("begun");
            let (link, times) = self
                .store
                .link(op, work.ask.extent, work.ask.kind == Kind::Write);
            let class = if work.escalated {
                Class::Demand
            } else {
                work.class
            };
            let left = work.bytes() - work.got;
            let is_new = work.got == 0 && class == Class::Prefetch;
            if is_new && dispatch.is_too_far_ahead(id, link, left, self.ahead_bytes(link)) {
                self.far.stats.dropped.fetch_add(1, Relaxed);
                self.finish(op, Status::Late);
                continue;
            }
            let work = self.work[op as usize].as_mut().expect("begun");
            work.piece = left.min(dispatch.piece_bytes(link));
            let (posted_ns, piece) = (work.posted_ns, u64::from(work.piece));
            let bytes = (piece * u64::from(times) / u64::from(TRANSFER_COST)) as u32;
            work.begun_ns = 0;
            work.link = Some(link);
            work.ticket = dispatch.submit(id, class, link, bytes, op, posted_ns);
            match work.ticket {
                Some(ticket) if work.got > 0 => dispatch.put_first(ticket),
                Some(_) => {}
                None => self.run(op),
            }
        }
        self.submit_moves(dispatch, id);
    }

    /// Bytes of prefetches on a link for which no thread waits.
    fn ahead_bytes(&self, link: IoLink) -> u64 {
        let ahead = |w: &&Work| {
            w.class == Class::Prefetch && !w.escalated && w.ticket.is_some() && w.link == Some(link)
        };
        let all = self.work.iter().flatten().filter(ahead);
        all.map(|w| u64::from(w.bytes() - w.got)).sum()
    }

    /// Submits the store's own moves to the dispatcher. They count as writes on every link, so demand reads and
    /// prefetches go first, and the moves never starve.
    fn submit_moves(&mut self, dispatch: &mut Dispatch, id: u64) {
        for (slot, own) in self.moves.iter_mut().enumerate() {
            let Some((link, left)) = own.wants.take() else {
                continue;
            };
            own.bytes = left.min(dispatch.piece_bytes(link));
            own.begun_ns = 0;
            let (tag, now_ns) = (MOVES + slot as u32, dispatch.now_ns());
            own.ticket = dispatch.submit(id, Class::SwapOut, link, own.bytes, tag, now_ns);
            if own.ticket.is_none() {
                self.store.grant_move(slot as u32, own.bytes as usize);
            }
        }
    }

    /// Threads wait for these prefetches, a bit each. False when none of them is waiting here.
    fn escalate(&mut self, dispatch: &mut Dispatch, proc: usize, escalated: u64) -> bool {
        let waits =
            |i: &usize| escalated & 1 << i != 0 && self.requests.escalate(Origin { proc, i: *i });
        let mut count = (0..REQUESTS).filter(waits).count();
        // One pass, however many are escalated.
        for work in self.work.iter_mut().flatten() {
            if work.from.proc != proc || escalated & 1 << work.from.i == 0 {
                continue;
            }
            // The rest of a request that is under way goes as a demand read.
            let rest = work.begun_ns != 0 && work.got + work.piece < work.ask.len;
            let moved = match work.ticket {
                Some(ticket) if work.begun_ns == 0 => dispatch.escalate(ticket),
                _ => rest && !work.escalated,
            };
            work.escalated = true;
            count += usize::from(moved);
        }
        let stats = &self.far.stats;
        stats.promoted.fetch_add(count as u64, Relaxed);
        count > 0
    }

    /// Reports to the dispatcher how long before their use pages were prefetched, since the last check.
    fn report_lead_times(&mut self, dispatch: &mut Dispatch, id: u64) {
        let mut now = [0; BUCKETS];
        self.far.stats.ahead_ns.add_to(&mut now);
        for (bucket, (now, seen)) in now.iter().zip(self.ahead_seen.iter_mut()).enumerate() {
            let count = now.saturating_sub(*seen).min(USES_MAX);
            *seen = *now;
            if count > 0 {
                dispatch.used_after(id, bucket_floor_ns(bucket), count as u32);
            }
        }
    }

    /// Gives up the tickets of operations that have been silent for long, so that they delay no others.
    fn drop_silent(&mut self, dispatch: &mut Dispatch) {
        let before = dispatch.now_ns().saturating_sub(SILENT_NS);
        let mut judge = |begun_ns: u64, ticket: &mut Option<Ticket>| {
            if begun_ns != 0
                && begun_ns < before
                && let Some(ticket) = ticket.take()
            {
                dispatch.give_up(ticket);
            }
        };
        for work in self.work.iter_mut().flatten() {
            judge(work.begun_ns, &mut work.ticket);
        }
        for own in &mut self.moves {
            judge(own.begun_ns, &mut own.ticket);
        }
    }

    /// Continues the scan for released slabs. True when there was one.
    fn scan_released(&mut self) -> bool {
        let Some(from) = self.released else {
            return false;
        };
        let high = slabs_high(self.far);
        let before = self.requests.releasing();
        let mut next = from;
        while next < high.min(from.saturating_add(SLABS)) && self.requests.releasing() < FREES {
            if self.far.is_released(next) && self.requests.release(next) {
                self.store.free(next);
            }
            next += 1;
        }
        self.released = (next < high).then_some(next);
        self.requests.releasing() > before
    }

    /// Takes a request, which may run now or later, or answers it at once.
    fn begin(&mut self, from: Origin, class: Class, now_ns: u64) {
        let Some((ask, posted_ns)) = self.far.mailboxes[from.proc].take(from.i) else {
            return;
        };
        let posted_ns = posted_ns.clamp(now_ns.saturating_sub(WAITED_NS_MAX), now_ns);
        if let Err(why) = self.validate(from, ask) {
            match why {
                Some(why) => self.refuse(from, format_args!("{why}")),
                None => self.answer(from, Status::Refused),
            }
            return;
        }
        if ask.kind == Kind::Write && !self.requests.has_data(ask.extent) {
            self.requests.set_slabs_max((self.slabs)());
        }
        let begun = self.requests.begin(class, ask.kind, ask.extent);
        let (Admission::Run(id) | Admission::Waits(id)) = begun else {
            match begun {
                Admission::NoRoom => self.answer(from, Status::NoRoom),
                _ => self.refuse(
                    from,
                    format_args!("extent {} is being freed or written", ask.extent),
                ),
            }
            return;
        };
        let block = self.blocks.pop().unwrap_or_default();
        self.work[id as usize] = Some(Work {
            from,
            ask,
            class,
            posted_ns,
            ticket: None,
            link: None,
            begun_ns: 0,
            got: 0,
            piece: ask.len,
            escalated: false,
            seal: 0,
            copy: 0,
            corrupt: false,
            unread: false,
            block: Some(block),
        });
        if let Admission::Run(id) = begun {
            self.ready.push_back(id);
        }
    }

    /// Validates a request as far as possible without its bytes. An error without a reason: the request is of a process
    /// that has ended, and the extent it names may belong to another process by now.
    fn validate(&self, from: Origin, ask: RequestFields) -> Result<(), Option<&'static str>> {
        if ask.extent as usize >= EXTENTS_MAX {
            return Err(Some("the extent's number is out of range"));
        }
        let slab = &self.far.slabs[ask.extent as usize / SLAB_EXTENTS];
        // Every process may read shared pages.
        let is_shared = ask.kind == Kind::Read && slab.refers(SHARED);
        if !slab.refers(from.proc) && !is_shared {
            return Err(None);
        }
        // If it was released by mistake, take it back.
        self.far.is_released(ask.extent / SLAB_EXTENTS as u32);
        if slab.state.load(Acquire) != slab_state::USED {
            return Err(Some("no process uses the slab"));
        }
        // The mailbox index determines the class, which determines limits and charges.
        if (mailbox::WRITES & 1 << from.i != 0) != (ask.kind == Kind::Write) {
            return Err(Some(
                "its index in the mailbox is for the other kind of request",
            ));
        }
        match ask.kind {
            Kind::Write if ask.offset != 0 || ask.len as usize > EXTENT_BYTES => {
                Err(Some("a write must be of one extent from its beginning"))
            }
            Kind::Read if !is_readable(ask.offset, ask.len) => Err(Some(
                "a read must be of one record, or of an extent from its beginning",
            )),
            _ => Ok(()),
        }
    }

    /// Starts an operation that may run.
    fn run(&mut self, id: u32) {
        let work = self.work[id as usize].as_mut().expect("begun");
        let (from, ask) = (work.from, work.ask);
        let seal = &self.far.seals[ask.extent as usize];
        match ask.kind {
            Kind::Read => {
                let now = seal.load(Acquire);
                if work.got == 0 {
                    work.seal = now;
                }
                if work.seal == 0 || work.seal != now {
                    self.finish(id, Status::Refused);
                    return;
                }
                self.read(id);
            }
            Kind::Write if work.got > 0 => {
                let to = work.got + work.piece;
                self.store.continue_write(id, to as usize);
            }
            Kind::Write => {
                let to = work.piece as usize;
                let mut block = work.block.take().expect("not started");
                // Copy first: the tenant can write to the buffer at any time.
                let len = ask.len as usize;
                self.far.copy_out(from.proc, from.i, 0, &mut block[..len]);
                block[len..].fill(0);
                let number = match self.numbers.take() {
                    Ok(number) => number,
                    Err(e) => return self.no_number(id, block, e),
                };
                // Whatever becomes of the write, the extent's former content is gone.
                seal.store(0, SeqCst);
                work.seal = number;
                match self.sealer.seal(ask.extent, number, &mut block) {
                    Ok(()) => self.store.write(id, ask.extent, block, to),
                    Err(why) => self.refuse_bytes(id, block, why),
                }
            }
        }
    }

    /// Without an unused number nothing may be sealed: the pages stay in the pool.
    fn no_number(&mut self, id: u32, block: Block, e: Errno) {
        let work = self.work[id as usize].as_mut().expect("begun");
        work.block = Some(block);
        error!(
            tenant = %self.name,
            "pages cannot be written, because the tenant's journal takes no more seal numbers: {}",
            e.desc()
        );
        self.finish(id, Status::NoRoom);
    }

    fn read(&mut self, id: u32) {
        let work = self.work[id as usize].as_mut().expect("begun");
        let block = work.block.take().unwrap_or_default();
        let from = (work.ask.offset + work.got) as usize;
        let range = from..from + work.piece as usize;
        self.store
            .read(id, work.ask.extent, range, work.copy, block);
    }

    fn apply(&mut self, event: Event, now_ns: u64) {
        match event {
            Event::Ended { id, outcome, block } => self.ended(id, outcome, block, now_ns),
            Event::WriteAdvanced(id) => self.piece_ended(id),
            Event::MoveWanted { slot, link, bytes } => {
                self.moves[slot as usize].wants = Some((link, bytes));
            }
            Event::MoveEnded { slot, ok } => {
                let own = &mut self.moves[slot as usize];
                own.begun_ns = 0;
                self.ended.extend(own.ticket.take().map(|t| (t, ok)));
            }
            Event::Freed(slab) => {
                self.requests.freed(slab);
                self.far.slab_freed(slab);
            }
            Event::Log(about, text) => self.log(about, &text),
            Event::Health {
                repaired,
                failovers,
                degraded,
            } => {
                let stats = &self.far.stats;
                stats.failovers.fetch_add(failovers, Relaxed);
                stats.repairs.fetch_add(repaired, Relaxed);
                stats.degraded_slabs.store(degraded as i64, Relaxed);
            }
        }
    }

    /// Logs a line of the store.
    fn log(&self, about: LogTopic, text: &str) {
        let tenant = &self.name;
        match about {
            LogTopic::Corrupt => error!(%tenant, "{text}"),
            LogTopic::Full => warn!(%tenant, "{text}"),
            LogTopic::Disk => error!(%tenant, "{text}"),
            LogTopic::DonorLost(about) => warn!(%tenant, about, "{text}"),
            LogTopic::DonorBack(about) => info!(%tenant, about, "{text}"),
            LogTopic::DonorFound(about) => info!(%tenant, about, "{text}"),
            LogTopic::Copies => info!(%tenant, "{text}"),
            LogTopic::DonorForgot(about) => warn!(%tenant, about, "{text}"),
        }
    }

    /// The store has finished an operation.
    fn ended(&mut self, id: u32, outcome: Outcome, block: Block, now_ns: u64) {
        let stats = &self.far.stats;
        let work = self.work[id as usize].as_mut().expect("begun");
        work.block = Some(block);
        let ask = work.ask;
        if ask.kind == Kind::Write {
            let status = match outcome {
                Outcome::Done => {
                    stats.extents_out.fetch_add(1, Relaxed);
                    stats.bytes_out.fetch_add(EXTENT_BYTES as u64, Relaxed);
                    self.far.seals[ask.extent as usize].store(work.seal, SeqCst);
                    Status::Ok
                }
                Outcome::NoRoom => Status::NoRoom,
                Outcome::Lost | Outcome::NoCopy | Outcome::Away => Status::Unreachable,
            };
            self.finish(id, status);
            return;
        }
        match outcome {
            Outcome::Done if work.got + work.piece < ask.len => {
                return self.piece_ended(id);
            }
            Outcome::Done => {
                let block = work.block.as_mut().expect("just given back");
                let (from, len) = (ask.offset as usize, ask.len as usize);
                let bytes = &mut block[from..from + len];
                let opened = if from == 0 {
                    self.sealer.open_extent(ask.extent, work.seal, bytes)
                } else {
                    self.sealer.open_record(ask.extent, work.seal, from, bytes)
                };
                if opened.is_ok() {
                    stats.reads.fetch_add(1, Relaxed);
                    stats.bytes_in.fetch_add(len as u64, Relaxed);
                    if work.copy > 0 {
                        stats.failovers.fetch_add(1, Relaxed);
                    }
                    let at = work.from;
                    self.far.copy_in(at.proc, at.i, from, bytes);
                    // By its index: a prefetch that a thread came to wait for is a demand read by now.
                    if mailbox::FETCHES & 1 << at.i != 0 {
                        let ns = now_ns.saturating_sub(work.posted_ns);
                        stats.prefetch_ns.record(ns);
                    }
                    self.finish(id, Status::Ok);
                    return;
                }
                stats.corrupt.fetch_add(1, Relaxed);
                work.corrupt = true;
                error!(tenant = %self.name, "a copy of extent {} is damaged or old", ask.extent);
            }
            Outcome::NoCopy | Outcome::Away => {
                // A copy that is unreachable, or cannot be read now, may be good: a later read may succeed.
                let status = if work.unread || outcome == Outcome::Away {
                    Status::Unreachable
                } else if work.corrupt {
                    Status::Corrupt
                } else {
                    Status::Lost
                };
                self.finish(id, status);
                return;
            }
            Outcome::Lost | Outcome::NoRoom => work.unread = true,
        }
        if work.got > 0 {
            // Which copy gave the bad piece is unknown. From here on the range is read in one piece, from each copy in
            // turn.
            work.got = 0;
            work.corrupt = false;
        } else {
            work.copy += 1;
        }
        work.piece = ask.len;
        self.read(id);
    }

    /// A piece is done and more are left: the next one waits for its turn.
    fn piece_ended(&mut self, id: u32) {
        let work = self.work[id as usize].as_mut().expect("begun");
        work.got += work.piece;
        self.ended.extend(work.ticket.take().map(|t| (t, true)));
        self.ready.push_back(id);
    }

    fn refuse_bytes(&mut self, id: u32, block: Block, why: SealError) {
        self.refuse_work(id, block, &format!("an extent cannot be sealed: {why}"));
    }

    fn refuse_work(&mut self, id: u32, block: Block, why: &str) {
        let work = self.work[id as usize].as_mut().expect("begun");
        work.block = Some(block);
        let from = work.from;
        self.refused_line(from, format_args!("{why}"));
        self.finish(id, Status::Refused);
    }

    fn refuse(&mut self, from: Origin, why: std::fmt::Arguments) {
        self.refused_line(from, why);
        self.answer(from, Status::Refused);
    }

    fn refused_line(&mut self, from: Origin, why: std::fmt::Arguments) {
        warn!(
            tenant = %self.name,
            "a request of process {} is refused: {why}",
            from.proc
        );
    }

    /// Ends an operation, and starts a write that waited for it.
    fn finish(&mut self, id: u32, status: Status) {
        let work = self.work[id as usize].take().expect("begun");
        let moved = status == Status::Ok;
        self.ended.extend(work.ticket.map(|t| (t, moved)));
        self.blocks.extend(work.block);
        self.answer(work.from, status);
        let ended = self.requests.end(id);
        if let Some(slab) = ended.free {
            self.store.free(slab);
        }
        self.ready.extend(ended.next);
    }

    fn answer(&mut self, from: Origin, status: Status) {
        if self.far.mailboxes[from.proc].complete(from.i, status) {
            self.to_wake.push(from);
        }
    }

    /// Wakes the sleeping threads whose requests were answered: after all answers, because a wake-up takes longer than
    /// an answer.
    fn wake_all(&mut self) {
        for from in self.to_wake.drain(..) {
            futex_wake(self.far.mailboxes[from.proc].word(from.i), u32::MAX >> 1);
        }
    }
}

impl<S: Store + Send> TenantAgent for Agent<S> {
    fn gather(&mut self, dispatch: &mut Dispatch, id: u64, most: usize) -> Gathered {
        Agent::gather(self, dispatch, id, most)
    }
    fn start(&mut self, decision: Decision, now_ns: u64) {
        Agent::start(self, decision, now_ns);
    }
    fn flush(&mut self) {
        self.store.flush();
    }
    fn reap(&mut self, dispatch: &mut Dispatch, id: u64) -> bool {
        Agent::reap(self, dispatch, id)
    }
    fn expects(&self) -> bool {
        self.store.expects()
    }
    fn await_answer(&self, time: Duration) -> bool {
        self.store.await_answer(time)
    }
    fn is_ready(&self) -> bool {
        self.store.is_ready()
    }
    fn due_in(&self) -> Option<Duration> {
        self.store.due_in()
    }
    fn set_direct(&mut self, direct: Direct) {
        if self.direct != direct {
            Agent::set_direct(self, direct);
        }
    }
    fn take_direct_bytes(&mut self) -> u64 {
        self.store.take_direct_bytes()
    }
    fn is_busy(&self) -> bool {
        self.requests.under_way() > 0 || self.requests.releasing() > 0
    }
    fn is_quiet(&self) -> bool {
        self.store.is_quiet()
    }
    fn free_all(&mut self) {
        Agent::free_all(self);
    }
    fn far(&self) -> &'static Far {
        self.far
    }
    fn share(&self) -> &LiveShare {
        &self.share
    }
}

/// One past the highest slab that may be in use. The tenant can write any number there, so it is clamped.
fn slabs_high(far: &Far) -> u32 {
    far.slabs_high.load(Acquire).min(SLABS_MAX as u32)
}
