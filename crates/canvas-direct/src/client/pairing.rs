//! A channel's queue pair: whether it is requested, joined to the donor's, and which slabs it can read.

use canvas_sys::net::Stream;
use canvas_types::rdma::{Exposed, QUEUE_PAIR_BYTES, QueuePair};

use super::lane::{Failed, OPENING_NS};
use super::pairs::{PairState, Pairs};
use crate::wire::{Caller, Code, HEAD_BYTES, TAIL_BYTES, Tail, exposed_from_bytes, tail_bytes};

const _: () = assert!(QUEUE_PAIR_BYTES == TAIL_BYTES);

/// Slabs whose keys a channel remembers. Later ones replace earlier ones.
const KEYS: usize = 32;

/// State of the queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// There is none, or the last one is being ended.
    None,
    /// It is being created.
    Making,
    /// The donor was asked for its end at this time (ns).
    Joining(u64),
    /// The donor's end is known.
    Connecting,
    Ready,
    /// The donor was asked to expose this slab at this time (ns).
    Exposing(u64, u64),
    /// It could not be created in this period.
    Refused,
    /// The donor has no RDMA.
    Never,
}

/// What is known about a slab.
#[derive(Clone, Copy)]
struct CachedKey {
    handle: u64,
    /// `None`: it is not exposed.
    exposed: Option<Exposed>,
}

/// How to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadMethod {
    /// Over the channel's connection.
    Connection,
    /// By its queue pair.
    Pair(Exposed),
}

/// The queue pair of a channel.
pub struct Pairing {
    stage: Stage,
    /// The period ([`canvas_shm::lanes::Lanes::pairs`]) in which it was requested.
    number: u32,
    known: [Option<CachedKey>; KEYS],
    /// Bytes of an answer received so far.
    got: usize,
    answer: [u8; HEAD_BYTES + TAIL_BYTES],
}

impl Pairing {
    /// No queue pair.
    pub const fn new() -> Pairing {
        Pairing {
            stage: Stage::None,
            number: 0,
            known: [None; KEYS],
            got: 0,
            answer: [0; HEAD_BYTES + TAIL_BYTES],
        }
    }

    /// The channel is opened, to a donor with RDMA (`may`) or without.
    pub fn begin(&mut self, may: bool) {
        self.stage = if may { Stage::None } else { Stage::Never };
    }

    /// The channel has ended.
    pub fn end(&mut self, lane: usize, pairs: &impl Pairs) {
        self.forget(lane, pairs);
        self.stage = Stage::Never;
    }

    /// No queue pair is created in this period any more.
    #[cold]
    pub fn refuse(&mut self, lane: usize, pairs: &impl Pairs) {
        self.forget(lane, pairs);
        self.stage = Stage::Refused;
    }

    /// Ends the queue pair, if there is one.
    fn forget(&mut self, lane: usize, pairs: &impl Pairs) {
        if pairs.state(lane) != PairState::None {
            pairs.end(lane);
        }
        // In place, because a fault may have a small stack.
        self.known.fill(None);
        self.got = 0;
        self.stage = Stage::None;
    }

    fn place(handle: u64) -> usize {
        handle as usize % KEYS
    }

    fn exposed(&self, handle: u64) -> Option<Option<Exposed>> {
        let known = self.known[Pairing::place(handle)].filter(|k| k.handle == handle)?;
        Some(known.exposed)
    }

    /// How to read from the slab now. `number` is the current period in which queue pairs may be used. An error when
    /// the channel is waiting for an answer other than data.
    #[inline]
    pub fn read_method(
        &mut self,
        (number, handle): (Option<u32>, u64),
        with: &mut PairingContext<'_, impl Pairs>,
    ) -> Result<ReadMethod, Failed> {
        match self.stage {
            Stage::Never => Ok(ReadMethod::Connection),
            Stage::None if number.is_none() => Ok(ReadMethod::Connection),
            Stage::Refused if number.is_none_or(|n| n == self.number) => Ok(ReadMethod::Connection),
            Stage::Ready if number == Some(self.number) => match self.exposed(handle) {
                Some(exposed) => Ok(exposed.map_or(ReadMethod::Connection, ReadMethod::Pair)),
                None => self.step((number, handle), with),
            },
            _ => self.step((number, handle), with),
        }
    }

    /// Advances by one step.
    #[cold]
    #[inline(never)]
    fn step(
        &mut self,
        (number, handle): (Option<u32>, u64),
        with: &mut PairingContext<'_, impl Pairs>,
    ) -> Result<ReadMethod, Failed> {
        let lane = with.lane;
        // A pending answer must be received, whatever its use.
        match self.stage {
            Stage::Joining(since) => {
                let given = self.answered(since, with)?;
                let peer = given.and_then(|g| QueuePair::from_bytes(&g).ok_or(Code::NoPair));
                match peer {
                    Ok(peer) => {
                        with.pairs.connect(lane, &peer);
                        self.stage = Stage::Connecting;
                    }
                    Err(_) => self.refuse(lane, with.pairs),
                }
            }
            Stage::Exposing(of, since) => {
                let exposed = self.answered(since, with)?.map(|g| exposed_from_bytes(&g));
                self.stage = Stage::Ready;
                if exposed != Err(Code::UnknownHandle) {
                    self.known[Pairing::place(of)] = Some(CachedKey {
                        handle: of,
                        exposed: exposed.ok(),
                    });
                } else if of == handle {
                    return Err(Failed::Elsewhere);
                }
            }
            _ => {}
        }
        if self.stage != Stage::None && number != Some(self.number) {
            self.forget(lane, with.pairs);
        }
        match (self.stage, with.pairs.state(lane), number) {
            (Stage::None, PairState::None, Some(number)) => {
                if let Some(local) = with.stream.local() {
                    with.pairs.make(lane, local);
                    (self.stage, self.number) = (Stage::Making, number);
                }
            }
            (Stage::Making, PairState::Made(end), _) => {
                let message = with.caller.join(&end).map_err(|_| Failed::Broken)?;
                with.send(&message)?;
                self.stage = Stage::Joining(with.now_ns);
                return Err(Failed::Busy);
            }
            (Stage::Connecting, PairState::Ready, _) => self.stage = Stage::Ready,
            (Stage::Making | Stage::Connecting, PairState::Failed | PairState::None, _) => {
                self.refuse(lane, with.pairs);
            }
            _ => {}
        }
        if self.stage != Stage::Ready {
            return Ok(ReadMethod::Connection);
        }
        match self.exposed(handle) {
            Some(exposed) => Ok(exposed.map_or(ReadMethod::Connection, ReadMethod::Pair)),
            None => {
                let message = with.caller.expose(handle).map_err(|_| Failed::Broken)?;
                with.send(&message)?;
                self.stage = Stage::Exposing(handle, with.now_ns);
                Err(Failed::Busy)
            }
        }
    }

    /// What the donor sent, or its error code, when its answer has arrived.
    fn answered(
        &mut self,
        since_ns: u64,
        with: &mut PairingContext<'_, impl Pairs>,
    ) -> Result<Result<Tail, Code>, Failed> {
        let broken = |_| Failed::Broken;
        loop {
            let head = self.answer[..self.got].first_chunk::<HEAD_BYTES>();
            let whole = HEAD_BYTES + head.map_or(0, |h| tail_bytes(h).min(TAIL_BYTES));
            if self.got >= whole && self.got >= HEAD_BYTES {
                break;
            }
            let rest = &mut self.answer[self.got..whole];
            match with
                .stream
                .receive(rest, false)
                .map_err(|_| Failed::Broken)?
            {
                0 if with.now_ns.saturating_sub(since_ns) > OPENING_NS => {
                    return Err(Failed::Broken);
                }
                0 => return Err(Failed::Busy),
                n => self.got += n,
            }
        }
        let (head, given) = self
            .answer
            .split_first_chunk::<HEAD_BYTES>()
            .ok_or(Failed::Broken)?;
        let came = self.got - HEAD_BYTES;
        self.got = 0;
        if came == 0 {
            let code = with.caller.decode_head(head).map_err(broken)?.code;
            return Ok(Err(code));
        }
        let given: Tail = given.try_into().map_err(|_| Failed::Broken)?;
        with.caller.decode_tail(head, &given).map_err(broken)?;
        Ok(Ok(given))
    }
}

/// What a channel provides for this.
pub struct PairingContext<'w, P> {
    /// The channel's number.
    pub lane: usize,
    pub pairs: &'w P,
    pub stream: Stream,
    pub caller: &'w mut Caller,
    pub now_ns: u64,
}

impl<P> PairingContext<'_, P> {
    fn send(&self, message: &[u8]) -> Result<(), Failed> {
        if self.stream.send(message) == Ok(true) {
            Ok(())
        } else {
            Err(Failed::Broken)
        }
    }
}
