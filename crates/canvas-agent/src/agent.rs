//! The agent itself: events in, actions out, one thread.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::time::Duration;

use canvas_shm::Far;
use canvas_shm::far::{EXTENTS_MAX, SLAB_EXTENTS, SLABS_MAX, slab_state};
use canvas_shm::mailbox::{Ask, Kind, Status};
use canvas_shm::segment::PROCS_MAX;
use canvas_swap::extent::EXTENT_BYTES;
use canvas_sys::proc::futex_wake;

use crate::block::Block;
use crate::desk::{Begun, Desk, From, Limits};
use crate::host::Served;
use crate::idle::Idle;
use crate::log::{About, Log};
use crate::seal::{Bad, KEY_BYTES, Sealer, is_readable};
use crate::store::{Event, Outcome, Store};

/// Operations under way at one time.
const DEMANDS: usize = 128;
const FETCHES: usize = 64;
/// Not more than a link takes unsent beside repairs: a read behind them must not be refused.
const WRITES: usize = 16;

/// What an agent is made for.
pub struct Setup {
    /// The tenant's far area.
    pub far: &'static Far,
    /// Who the tenant is.
    pub tenant: [u8; 16],
    /// The tenant's key.
    pub key: [u8; KEY_BYTES],
    /// Slabs that the tenant may fill; asked again for each new one.
    pub slabs: Box<dyn Fn() -> usize + Send>,
    /// How long to look for requests after the last one before sleeping.
    pub spin: Duration,
    /// Writes a line for the user.
    pub say: fn(&str),
}

/// A request being served.
struct Work {
    from: From,
    ask: Ask,
    /// The seal of what is read or written.
    seal: u64,
    /// The copy that is tried, or was last.
    copy: usize,
    /// Has a copy been reached that did not verify?
    corrupt: bool,
    /// Has there been one that could not be read?
    unread: bool,
    /// While the agent has it and not the store.
    block: Option<Block>,
}

/// Who the tenant is, as its far area says.
pub fn tenant_id(far: &Far) -> [u8; 16] {
    let mut id = [0; 16];
    for (bytes, word) in id.chunks_exact_mut(8).zip(&far.tenant_id) {
        bytes.copy_from_slice(&word.load(Relaxed).to_le_bytes());
    }
    id
}

/// Serves one tenant from one store.
pub struct Agent<S> {
    far: &'static Far,
    tenant: u64,
    desk: Desk,
    slabs: Box<dyn Fn() -> usize + Send>,
    sealer: Sealer,
    store: S,
    idle: Idle,
    log: Log,
    /// By operation.
    work: Vec<Option<Work>>,
    /// Blocks not in use.
    blocks: Vec<Block>,
    events: Vec<Event>,
    /// Least number that the next seal may have.
    seal_min: u64,
}

impl<S: Store> Agent<S> {
    /// Takes the tenant over: what an agent before this one was at work on is done again.
    pub fn new(setup: Setup, store: S) -> Agent<S> {
        let far = setup.far;
        let slabs = (setup.slabs)();
        let mut desk = Desk::new(Limits {
            demands: DEMANDS,
            fetches: FETCHES,
            writes: WRITES,
            slabs,
        });
        far.agent.fetch_add(1, AcqRel);
        let used = |slab: &u32| far.slabs[*slab as usize].state.load(Acquire) == slab_state::USED;
        for slab in (0..slabs_high(far)).filter(used).take(slabs) {
            desk.found(slab);
        }
        for proc in 0..PROCS_MAX {
            desk.post(proc, far.mailboxes[proc].recover());
        }
        // Slabs may have been released while no agent looked.
        far.released.store(1, SeqCst);
        Agent {
            far,
            tenant: u64::from_le_bytes(*setup.tenant.first_chunk().expect("8 bytes")),
            desk,
            slabs: setup.slabs,
            sealer: Sealer::new(&setup.key, setup.tenant),
            store,
            idle: Idle::new(setup.spin),
            log: Log::new(setup.say),
            work: (0..DEMANDS + FETCHES + WRITES).map(|_| None).collect(),
            blocks: Vec::new(),
            events: Vec::new(),
            seal_min: 1,
        }
    }

    /// Serves until `is_over` says so; it is asked between two looks, also after a quiet tenth of a
    /// second.
    pub fn serve(&mut self, mut is_over: impl FnMut() -> bool) {
        while !is_over() {
            let worked = self.turn();
            let expects = self.store.expects();
            let due_in = if worked { None } else { self.store.due_in() };
            self.idle
                .pause(worked, expects, due_in, self.far, || self.store.is_ready());
        }
    }

    /// Looks once at everything. True when there was something to do.
    pub fn turn(&mut self) -> bool {
        self.turn_of(usize::MAX)
    }

    /// The same, with `most` requests begun at most; what has ended is bounded by what may be under way.
    /// What is left waits for the next turn, so this has found something to do then.
    pub fn turn_of(&mut self, most: usize) -> bool {
        let (far, desk) = (self.far, &mut self.desk);
        let mut worked = far.rung(|proc| desk.post(proc, far.mailboxes[proc].collect()));
        if far.released.load(Relaxed) != 0 && far.released.swap(0, SeqCst) != 0 {
            self.look_for_released();
            worked = true;
        }
        for _ in 0..most {
            let Some(from) = self.desk.take() else {
                break;
            };
            self.begin(from);
            worked = true;
        }
        let mut events = std::mem::take(&mut self.events);
        self.store.poll(&mut events);
        worked |= !events.is_empty();
        for event in events.drain(..) {
            self.apply(event);
        }
        self.events = events;
        worked
    }

    fn look_for_released(&mut self) {
        for slab in 0..slabs_high(self.far) {
            if self.far.is_released(slab) && self.desk.release(slab) {
                self.store.free(slab);
            }
        }
    }

    /// Takes a request and starts it, or answers at once.
    fn begin(&mut self, from: From) {
        let Some((ask, _)) = self.far.mailboxes[from.proc].take(from.i) else {
            return;
        };
        if let Err(why) = self.judge(from, ask) {
            match why {
                Some(why) => self.refuse(from, format_args!("{why}")),
                None => self.answer(from, Status::Refused),
            }
            return;
        }
        if ask.kind == Kind::Write && !self.desk.knows(ask.extent) {
            self.desk.set_slabs_max((self.slabs)());
        }
        let begun = self.desk.begin(from, ask.kind, ask.extent);
        let (Begun::Run(id) | Begun::Waits(id)) = begun else {
            match begun {
                Begun::NoRoom => self.answer(from, Status::NoRoom),
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
            seal: 0,
            copy: 0,
            corrupt: false,
            unread: false,
            block: Some(block),
        });
        if let Begun::Run(id) = begun {
            self.run(id);
        }
    }

    /// Does a request make sense, as far as can be told without its bytes? Without a reason: it is of a
    /// process that has ended meanwhile, and what it names may be another's by now.
    fn judge(&self, from: From, ask: Ask) -> Result<(), Option<&'static str>> {
        if ask.extent as usize >= EXTENTS_MAX {
            return Err(Some("there is no such extent"));
        }
        let slab = &self.far.slabs[ask.extent as usize / SLAB_EXTENTS];
        if !slab.refers(from.proc) {
            return Err(None);
        }
        // Released by mistake it is put back here.
        self.far.is_released(ask.extent / SLAB_EXTENTS as u32);
        if slab.state.load(Acquire) != slab_state::USED {
            return Err(Some("the slab is nobody's"));
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
                work.seal = seal.load(Acquire);
                if work.seal == 0 {
                    self.finish(id, Status::Refused);
                    return;
                }
                self.read(id);
            }
            Kind::Write => {
                let mut block = work.block.take().expect("not started");
                // A copy of our own first: the tenant can write to the buffer at any time.
                let len = ask.len as usize;
                self.far.copy_out(from.proc, from.i, 0, &mut block[..len]);
                block[len..].fill(0);
                // Whatever comes of the write, the extent's former content is gone.
                seal.store(0, SeqCst);
                work.seal = self.far.seal_next.fetch_add(1, SeqCst).max(self.seal_min);
                let number = work.seal;
                self.seal_min = number.saturating_add(1);
                match self.sealer.seal(ask.extent, number, &mut block) {
                    Ok(()) if self.seal_min != u64::MAX => self.store.write(id, ask.extent, block),
                    Ok(()) => self.refuse_work(id, block, "the tenant's seal numbers are used up"),
                    Err(why) => self.refuse_bytes(id, block, why),
                }
            }
        }
    }

    fn read(&mut self, id: u32) {
        let work = self.work[id as usize].as_mut().expect("begun");
        let block = work.block.take().unwrap_or_default();
        let from = work.ask.offset as usize;
        let range = from..from + work.ask.len as usize;
        self.store
            .read(id, work.ask.extent, range, work.copy, block);
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Ended { id, outcome, block } => self.ended(id, outcome, block),
            Event::Freed(slab) => {
                self.desk.freed(slab);
                self.far.slab_freed(slab);
            }
            Event::Line(about, text) => self.log.line(about, text),
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

    /// The store is through with an operation.
    fn ended(&mut self, id: u32, outcome: Outcome, block: Block) {
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
                    self.finish(id, Status::Ok);
                    return;
                }
                stats.corrupt.fetch_add(1, Relaxed);
                work.corrupt = true;
                self.log.line(
                    About::Corrupt,
                    format_args!(
                        "tenant {:016x}: a copy of extent {} is damaged or old",
                        self.tenant, ask.extent
                    ),
                );
            }
            Outcome::NoCopy | Outcome::Away => {
                // A copy that is away, or cannot be read now, may be whole: the last word is not
                // spoken.
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
        work.copy += 1;
        self.read(id);
    }

    fn refuse_bytes(&mut self, id: u32, block: Block, why: Bad) {
        self.refuse_work(id, block, &format!("an extent cannot be sealed: {why}"));
    }

    fn refuse_work(&mut self, id: u32, block: Block, why: &str) {
        let work = self.work[id as usize].as_mut().expect("begun");
        work.block = Some(block);
        let from = work.from;
        self.refused_line(from, format_args!("{why}"));
        self.finish(id, Status::Refused);
    }

    fn refuse(&mut self, from: From, why: std::fmt::Arguments) {
        self.refused_line(from, why);
        self.answer(from, Status::Refused);
    }

    fn refused_line(&mut self, from: From, why: std::fmt::Arguments) {
        self.log.line(
            About::Refused,
            format_args!(
                "tenant {:016x}: a request of process {} is refused: {why}",
                self.tenant, from.proc
            ),
        );
    }

    /// Ends an operation, and starts what waited for it.
    fn finish(&mut self, id: u32, status: Status) {
        let work = self.work[id as usize].take().expect("begun");
        self.blocks.extend(work.block);
        self.answer(work.from, status);
        let ended = self.desk.end(id);
        if let Some(slab) = ended.free {
            self.store.free(slab);
        }
        if let Some(next) = ended.next {
            self.run(next);
        }
    }

    fn answer(&self, from: From, status: Status) {
        let mailbox = &self.far.mailboxes[from.proc];
        if mailbox.complete(from.i, status) {
            futex_wake(mailbox.word(from.i), u32::MAX >> 1);
        }
    }
}

impl<S: Store + Send> Served for Agent<S> {
    fn turn_of(&mut self, most: usize) -> bool {
        Agent::turn_of(self, most)
    }
    fn expects(&self) -> bool {
        self.store.expects()
    }
    fn is_ready(&self) -> bool {
        self.store.is_ready()
    }
    fn far(&self) -> &'static Far {
        self.far
    }
}

/// One past the highest slab that may be in use; the tenant can write anything there.
fn slabs_high(far: &Far) -> u32 {
    far.slabs_high.load(Acquire).min(SLABS_MAX as u32)
}
