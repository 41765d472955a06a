//! One lane: a connection to a donor, from its opening on.

use canvas_lane::record::RecordKey;
use canvas_lane::{Caller, Code, HEAD_BYTES, Keys, READ_BYTES_MAX, Read, Ticket};
use canvas_shm::lanes::{KEYS_BYTES, Way};
use canvas_shm::mailbox::Ask;
use canvas_sys::gate;
use canvas_sys::net::Stream;
use canvas_types::contention::Contention;
use canvas_types::look::Look;

use crate::Process;
use crate::pairing::{By, Pairing, With};
use crate::pairs::{Pairs, Refused};

/// An answer is looked for so long at least before the thread sleeps, where there is another processor that the donor
/// may run on: a near donor takes less. On one processor it cannot answer meanwhile.
const LOOK_NS: u64 = 50_000;
/// A donor that takes longer is the agent's to deal with.
const PATIENCE_NS: u64 = 20_000_000;
/// The same for the opening of a lane.
pub const OPENING_NS: u64 = 1_000_000_000;
/// Between looks for what a device reads, after those that do not sleep.
const NAP_NS: u64 = 20_000;
/// So often a lane's socket may not be behind its descriptor (in threads with descriptors of their own it is not)
/// before it is taken to be gone.
const STRIKES: u32 = 8;

/// How far a lane is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// There is none.
    Closed,
    /// Since then.
    Connecting(u64),
    /// The opening was sent; since then.
    Opening(u64),
    Open,
}

/// Why a lane did not read a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed {
    /// The lane is of no use any more.
    Broken,
    /// What came is no record that opens, or the donor has not got the slab: another copy may be better.
    Elsewhere,
    /// Not now.
    Busy,
}

pub struct Lane {
    stage: Stage,
    stream: Option<Stream>,
    caller: Option<Caller>,
    records: Option<RecordKey>,
    ticket: Ticket,
    /// What has come of an answer.
    got: usize,
    /// There is another processor for who answers.
    looks: bool,
    /// How long answers have taken.
    look: Look,
    has_slept: bool,
    strikes: u32,
    pairing: Pairing,
    answer: [u8; HEAD_BYTES + READ_BYTES_MAX],
}

/// What a read is of, and how it may go.
pub struct Wanted<'r> {
    pub way: &'r Way<'r>,
    pub ask: &'r Ask,
    /// The number that the record is sealed by.
    pub seal: u64,
    /// The number under which queue pairs may be read by.
    pub pairs: Option<u32>,
}

/// How a record came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    OverConnection,
    ByPair,
}

impl Lane {
    /// Closed.
    pub const fn new() -> Lane {
        Lane {
            stage: Stage::Closed,
            stream: None,
            caller: None,
            records: None,
            ticket: [0; 16],
            got: 0,
            looks: false,
            look: Look::new(LOOK_NS),
            has_slept: false,
            strikes: 0,
            pairing: Pairing::new(),
            answer: [0; HEAD_BYTES + READ_BYTES_MAX],
        }
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The last answer: its head, and the record if there is one.
    pub fn answer(&self) -> &[u8] {
        &self.answer
    }

    /// Did the last read sleep?
    pub fn has_slept(&self) -> bool {
        self.has_slept
    }

    /// Its end, as lane number `index`. The caller closes the socket.
    pub fn close(&mut self, index: usize, process: &impl Process) -> Option<Stream> {
        self.pairing.end(index, process.pairs());
        self.stage = Stage::Closed;
        (self.caller, self.records) = (None, None);
        self.stream.take()
    }

    /// A connection that was begun is to become it, to a donor that may have queue pairs. Its keys follow.
    pub fn begin(
        &mut self,
        stream: Stream,
        (ticket, has_pairs): (Ticket, bool),
        looks: bool,
        now_ns: u64,
    ) {
        self.pairing.begin(has_pairs);
        self.stage = Stage::Connecting(now_ns);
        self.stream = Some(stream);
        (self.ticket, self.looks) = (ticket, looks);
        (self.got, self.strikes) = (0, 0);
        (self.look, self.has_slept) = (Look::new(LOOK_NS), false);
    }

    /// The keys of its messages.
    #[cold]
    #[inline(never)]
    pub fn set_caller(&mut self, keys: &[u8; KEYS_BYTES]) {
        self.caller = Some(Caller::new(&Keys::from_bytes(keys)));
    }

    /// The key of what its donor keeps.
    #[cold]
    #[inline(never)]
    pub fn set_records(&mut self, key: &[u8; 32], tenant: [u8; 16]) {
        self.records = Some(RecordKey::new(key, tenant));
    }

    /// One step of the opening after the other, as long as nothing has to be waited for.
    #[cold]
    #[inline(never)]
    pub fn step(&mut self, now_ns: u64) -> Result<(), Failed> {
        let (Some(stream), Some(caller)) = (self.stream, &mut self.caller) else {
            return Err(Failed::Broken);
        };
        is_here(stream, &mut self.strikes)?;
        let waits = |since: u64| {
            if now_ns.saturating_sub(since) > OPENING_NS {
                Failed::Broken
            } else {
                Failed::Busy
            }
        };
        if let Stage::Connecting(since) = self.stage {
            // Asked once only: an opening that was not sent is made anew, and nothing else has its number.
            let opening = caller.opening(&self.ticket).map_err(|_| Failed::Broken)?;
            match stream.send(&opening) {
                Ok(true) => self.stage = Stage::Opening(now_ns),
                Ok(false) => {
                    caller.take_back();
                    return Err(waits(since));
                }
                Err(_) => return Err(Failed::Broken),
            }
        }
        if let Stage::Opening(since) = self.stage {
            let rest = &mut self.answer[self.got..HEAD_BYTES];
            self.got += stream.receive(rest, false).map_err(|_| Failed::Broken)?;
            let Some(head) = self.answer[..self.got].first_chunk::<HEAD_BYTES>() else {
                return Err(waits(since));
            };
            let answer = caller.answered(head).map_err(|_| Failed::Broken)?;
            if answer.code != Code::Done || stream.set_patience(PATIENCE_NS).is_err() {
                return Err(Failed::Broken);
            }
            self.stage = Stage::Open;
        }
        Ok(())
    }

    /// Reads the record that is wanted into `answer`, behind the head, and opens it. `index` is the lane's number.
    #[inline(never)]
    pub fn read(
        &mut self,
        index: usize,
        wanted: &Wanted<'_>,
        contention: &Contention,
        process: &impl Process,
    ) -> Result<Came, Failed> {
        let (Some(stream), Some(caller)) = (self.stream, &mut self.caller) else {
            return Err(Failed::Broken);
        };
        is_here(stream, &mut self.strikes)?;
        let mut with = With {
            lane: index,
            pairs: process.pairs(),
            stream,
            caller,
            now_ns: process.now_ns(),
        };
        let by = self
            .pairing
            .by((wanted.pairs, wanted.way.handle), &mut with)?;
        let mut wait = Wait {
            stream,
            contention,
            process,
            begun_ns: with.now_ns,
            look_ns: if self.looks { self.look.limit_ns() } else { 0 },
            sleeps: false,
            got: 0,
        };
        let record = HEAD_BYTES..HEAD_BYTES + wanted.ask.len as usize;
        let came = match by {
            By::Connection => {
                receive(caller, &mut wait, wanted, &mut self.answer[..record.end])?;
                Came::OverConnection
            }
            By::Pair(exposed) => {
                let pairs = process.pairs();
                let offset = wanted.way.offset;
                if pairs.ask(index, exposed, offset, record.len()).is_err() {
                    // The connection is as good as before.
                    self.pairing.refuse(index, pairs);
                    return Err(Failed::Busy);
                }
                // No processor is needed for the answer.
                wait.look_ns = self.look.limit_ns();
                wait.look(index, &mut self.answer[record.clone()])?;
                Came::ByPair
            }
        };
        self.has_slept = wait.sleeps;
        self.look
            .came(process.now_ns().saturating_sub(wait.begun_ns));
        let Wanted { ask, seal, .. } = *wanted;
        let records = self.records.as_ref().ok_or(Failed::Broken)?;
        records
            .open(
                (ask.extent, seal),
                ask.offset as usize,
                &[],
                &mut self.answer[record],
            )
            .map_err(|_| Failed::Elsewhere)?;
        Ok(came)
    }
}

/// Asks the donor for what is wanted, and receives it, with its head.
fn receive(
    caller: &mut Caller,
    wait: &mut Wait<'_, impl Process>,
    wanted: &Wanted<'_>,
    answer: &mut [u8],
) -> Result<(), Failed> {
    let read = Read {
        handle: wanted.way.handle,
        offset: wanted.way.offset,
        len: wanted.ask.len,
    };
    let message = caller.ask(read).map_err(|_| Failed::Broken)?;
    if wait.stream.send(&message) != Ok(true) {
        return Err(Failed::Broken);
    }
    // The record comes behind the head, mostly at one time with it.
    wait.fill(answer, HEAD_BYTES)?;
    let head = answer.first_chunk::<HEAD_BYTES>();
    let head = head.and_then(|head| caller.answered(head).ok());
    let code = head.ok_or(Failed::Broken)?.code;
    if code != Code::Done && wait.got > HEAD_BYTES {
        return Err(Failed::Broken);
    }
    match code {
        Code::Done => {}
        Code::OverRate | Code::NoPair => return Err(Failed::Busy),
        Code::UnknownHandle | Code::OutOfRange => return Err(Failed::Elsewhere),
    }
    let whole = answer.len();
    wait.fill(answer, whole)
}

/// Not a byte goes to a stranger: is the socket still behind its descriptor, in this thread?
fn is_here(stream: Stream, strikes: &mut u32) -> Result<(), Failed> {
    if stream.is_here() {
        *strikes = 0;
        return Ok(());
    }
    *strikes += 1;
    Err(if *strikes > STRIKES {
        Failed::Broken
    } else {
        Failed::Busy
    })
}

/// Waits for what comes: looks for it at first, then sleeps.
struct Wait<'w, P> {
    stream: Stream,
    contention: &'w Contention,
    process: &'w P,
    begun_ns: u64,
    /// So long it looks before it sleeps.
    look_ns: u64,
    sleeps: bool,
    /// Bytes that have come.
    got: usize,
}

impl<P: Process> Wait<'_, P> {
    /// Waits until so many bytes of the answer are there, and takes more of it where it has come.
    fn fill(&mut self, answer: &mut [u8], least: usize) -> Result<(), Failed> {
        while self.got < least {
            let now = self.process.now_ns();
            let waited = now.saturating_sub(self.begun_ns);
            if waited > PATIENCE_NS {
                return Err(Failed::Broken);
            }
            // Nothing has come when the request has just gone, so who answers goes first.
            self.sleeps |= !self.looks_on(now, waited);
            let came = self.stream.receive(&mut answer[self.got..], self.sleeps);
            self.got += came.map_err(|_| Failed::Broken)?;
        }
        Ok(())
    }

    /// Gives the processor up for a turn, where it is not yet time to sleep.
    fn looks_on(&self, now: u64, waited: u64) -> bool {
        let looks = waited < self.look_ns && !self.contention.is_here(now);
        if looks {
            gate::give_way();
            self.contention.gave_way(now, self.process.now_ns());
        }
        looks
    }

    /// Waits for what the lane's device was asked to read. There is nothing to sleep on.
    fn look(&mut self, index: usize, record: &mut [u8]) -> Result<(), Failed> {
        let broken = |Refused| Failed::Broken;
        let pairs = self.process.pairs();
        while !pairs.take(index, record).map_err(broken)? {
            let now = self.process.now_ns();
            let waited = now.saturating_sub(self.begun_ns);
            if waited > PATIENCE_NS {
                return Err(Failed::Broken);
            }
            if !self.looks_on(now, waited) {
                self.sleeps = true;
                gate::wait(NAP_NS);
            }
        }
        Ok(())
    }
}
