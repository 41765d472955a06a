//! One direct read channel: a connection to a donor, from its opening on.

use canvas_shm::lanes::{KEYS_BYTES, ReadTarget};
use canvas_shm::mailbox::RequestFields;
use canvas_sys::gate;
use canvas_sys::net::Stream;
use canvas_types::contention::Contention;
use canvas_types::spin::SpinBudget;

use super::Process;
use super::pairing::{Pairing, PairingContext, ReadMethod};
use super::pairs::{Pairs, Refused};
use crate::wire::record::RecordKey;
use crate::wire::{Caller, Code, HEAD_BYTES, Keys, READ_BYTES_MAX, Read, Ticket};

/// How long to poll for an answer at least before sleeping, where the donor may run on another processor: a near donor
/// takes less. On a single processor it cannot answer meanwhile.
const SPIN_NS: u64 = 50_000;
/// A donor that takes longer is left to the agent.
const PATIENCE_NS: u64 = 20_000_000;
/// Time limit for opening a channel.
pub const OPENING_NS: u64 = 1_000_000_000;
/// Pause between polls for what a device reads, after those that do not sleep.
const NAP_NS: u64 = 20_000;
/// How often a channel's socket may be missing behind its descriptor (as in threads with their own descriptor table)
/// before it counts as gone.
const STRIKES: u32 = 8;

/// State of a channel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// There is no connection.
    Closed,
    /// Connecting since this time (ns).
    Connecting(u64),
    /// The opening was sent at this time (ns).
    Opening(u64),
    Open,
}

/// Why a channel did not read a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed {
    /// The channel is unusable.
    Broken,
    /// The result is no valid record, or the donor lacks the slab: another copy may be better.
    Elsewhere,
    /// Not possible now.
    Busy,
}

pub struct Lane {
    stage: Stage,
    stream: Option<Stream>,
    caller: Option<Caller>,
    records: Option<RecordKey>,
    ticket: Ticket,
    /// Bytes of an answer received so far.
    got: usize,
    /// Another processor is available for the donor.
    may_spin: bool,
    /// Recent answer times.
    spin: SpinBudget,
    has_slept: bool,
    strikes: u32,
    pairing: Pairing,
    answer: [u8; HEAD_BYTES + READ_BYTES_MAX],
}

/// The record to read, and how it may be read.
pub struct RecordRead<'r> {
    pub target: &'r ReadTarget<'r>,
    pub ask: &'r RequestFields,
    /// The record's seal number.
    pub seal: u64,
    /// The current period in which queue pairs may be used, if they may.
    pub pairs: Option<u32>,
}

/// How a record was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadVia {
    Connection,
    Pair,
}

impl Lane {
    /// A closed channel.
    pub const fn new() -> Lane {
        Lane {
            stage: Stage::Closed,
            stream: None,
            caller: None,
            records: None,
            ticket: [0; 16],
            got: 0,
            may_spin: false,
            spin: SpinBudget::new(SPIN_NS),
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

    /// Whether the last read slept.
    pub fn has_slept(&self) -> bool {
        self.has_slept
    }

    /// Ends the channel with number `index`. The caller closes the socket.
    pub fn close(&mut self, index: usize, process: &impl Process) -> Option<Stream> {
        self.pairing.end(index, process.pairs());
        self.stage = Stage::Closed;
        (self.caller, self.records) = (None, None);
        self.stream.take()
    }

    /// Starts to open a channel over a new connection, to a donor that may have queue pairs. Its keys follow.
    pub fn begin(
        &mut self,
        stream: Stream,
        (ticket, has_pairs): (Ticket, bool),
        may_spin: bool,
        now_ns: u64,
    ) {
        self.pairing.begin(has_pairs);
        self.stage = Stage::Connecting(now_ns);
        self.stream = Some(stream);
        (self.ticket, self.may_spin) = (ticket, may_spin);
        (self.got, self.strikes) = (0, 0);
        (self.spin, self.has_slept) = (SpinBudget::new(SPIN_NS), false);
    }

    /// Sets the keys of its messages.
    #[cold]
    #[inline(never)]
    pub fn set_caller(&mut self, keys: &[u8; KEYS_BYTES]) {
        self.caller = Some(Caller::new(&Keys::from_bytes(keys)));
    }

    /// Sets the key of the tenant's records.
    #[cold]
    #[inline(never)]
    pub fn set_records(&mut self, key: &[u8; 32], tenant: [u8; 16]) {
        self.records = Some(RecordKey::new(key, tenant));
    }

    /// Advances the opening as far as possible without waiting.
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
            // Created only once: an opening that was not sent is created again, and no other message has its number.
            let opening = caller.opening(&self.ticket).map_err(|_| Failed::Broken)?;
            match stream.send(&opening) {
                Ok(true) => self.stage = Stage::Opening(now_ns),
                Ok(false) => {
                    caller.undo_opening();
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
            let answer = caller.decode_head(head).map_err(|_| Failed::Broken)?;
            if answer.code != Code::Done || stream.set_patience(PATIENCE_NS).is_err() {
                return Err(Failed::Broken);
            }
            self.stage = Stage::Open;
        }
        Ok(())
    }

    /// Reads the wanted record into `answer`, after the head, and verifies it. `index` is the channel's number.
    #[inline(never)]
    pub fn read(
        &mut self,
        index: usize,
        wanted: &RecordRead<'_>,
        contention: &Contention,
        process: &impl Process,
    ) -> Result<ReadVia, Failed> {
        let (Some(stream), Some(caller)) = (self.stream, &mut self.caller) else {
            return Err(Failed::Broken);
        };
        is_here(stream, &mut self.strikes)?;
        let mut with = PairingContext {
            lane: index,
            pairs: process.pairs(),
            stream,
            caller,
            now_ns: process.now_ns(),
        };
        let by = self
            .pairing
            .read_method((wanted.pairs, wanted.target.handle), &mut with)?;
        let mut wait = Wait {
            stream,
            contention,
            process,
            begun_ns: with.now_ns,
            spin_ns: if self.may_spin {
                self.spin.limit_ns()
            } else {
                0
            },
            sleeps: false,
            got: 0,
        };
        let record = HEAD_BYTES..HEAD_BYTES + wanted.ask.len as usize;
        let came = match by {
            ReadMethod::Connection => {
                receive(caller, &mut wait, wanted, &mut self.answer[..record.end])?;
                ReadVia::Connection
            }
            ReadMethod::Pair(exposed) => {
                let pairs = process.pairs();
                let offset = wanted.target.offset;
                if pairs
                    .post_read(index, exposed, offset, record.len())
                    .is_err()
                {
                    // The connection is unaffected.
                    self.pairing.refuse(index, pairs);
                    return Err(Failed::Busy);
                }
                // The answer needs no processor.
                wait.spin_ns = self.spin.limit_ns();
                wait.poll_device(index, &mut self.answer[record.clone()])?;
                ReadVia::Pair
            }
        };
        self.has_slept = wait.sleeps;
        self.spin
            .record(process.now_ns().saturating_sub(wait.begun_ns));
        let RecordRead { ask, seal, .. } = *wanted;
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

/// Requests the wanted record from the donor, and receives it, with its head.
fn receive(
    caller: &mut Caller,
    wait: &mut Wait<'_, impl Process>,
    wanted: &RecordRead<'_>,
    answer: &mut [u8],
) -> Result<(), Failed> {
    let read = Read {
        handle: wanted.target.handle,
        offset: wanted.target.offset,
        len: wanted.ask.len,
    };
    let message = caller.read(read).map_err(|_| Failed::Broken)?;
    if wait.stream.send(&message) != Ok(true) {
        return Err(Failed::Broken);
    }
    // The record follows the head, usually together with it.
    wait.fill(answer, HEAD_BYTES)?;
    let head = answer.first_chunk::<HEAD_BYTES>();
    let head = head.and_then(|head| caller.decode_head(head).ok());
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

/// No byte may go to another peer: checks that the socket is still behind its descriptor, in this thread.
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

/// Waits for an answer: polls at first, then sleeps.
struct Wait<'w, P> {
    stream: Stream,
    contention: &'w Contention,
    process: &'w P,
    begun_ns: u64,
    /// Time to poll before sleeping.
    spin_ns: u64,
    sleeps: bool,
    /// Bytes received.
    got: usize,
}

impl<P: Process> Wait<'_, P> {
    /// Waits until `least` bytes of the answer have arrived, and takes more if they have.
    fn fill(&mut self, answer: &mut [u8], least: usize) -> Result<(), Failed> {
        while self.got < least {
            let now = self.process.now_ns();
            let waited = now.saturating_sub(self.begun_ns);
            if waited > PATIENCE_NS {
                return Err(Failed::Broken);
            }
            // Nothing can have arrived just after the request was sent, so yield to the peer first.
            self.sleeps |= !self.spin_once(now, waited);
            let came = self.stream.receive(&mut answer[self.got..], self.sleeps);
            self.got += came.map_err(|_| Failed::Broken)?;
        }
        Ok(())
    }

    /// Yields the processor once, while it is not yet time to sleep. False when it is.
    fn spin_once(&self, now: u64, waited: u64) -> bool {
        let spins = waited < self.spin_ns && !self.contention.is_contended(now);
        if spins {
            gate::give_way();
            self.contention.record_yield(now, self.process.now_ns());
        }
        spins
    }

    /// Waits for what the channel's device was asked to read. There is nothing to sleep on.
    fn poll_device(&mut self, index: usize, record: &mut [u8]) -> Result<(), Failed> {
        let broken = |Refused| Failed::Broken;
        let pairs = self.process.pairs();
        while !pairs.poll_read(index, record).map_err(broken)? {
            let now = self.process.now_ns();
            let waited = now.saturating_sub(self.begun_ns);
            if waited > PATIENCE_NS {
                return Err(Failed::Broken);
            }
            if !self.spin_once(now, waited) {
                self.sleeps = true;
                gate::wait(NAP_NS);
            }
        }
        Ok(())
    }
}
