//! The protocol of direct read channels ("lanes"): what a program and a donor send to each other on their own
//! connection, which only reads.
//!
//! The agent requests a channel from a donor over its link 0 and gets a ticket. It passes the ticket and the channel's
//! two keys to one process of the tenant, which opens one connection with them. A ticket opens one connection, once.
//!
//! ```text
//! program ──► u16 length, ticket 16, tag 16                          message 0: the opening
//! program ◄── head 16 (code u16, zero u16, len u32, count u64), tag 16        its answer
//! program ──► u16 length, sealed: handle u64, offset u32, len u32; tag 16     message 1, 2, …
//! program ◄── head, tag, then `len` bytes as they are stored
//! ```
//!
//! A donor with RDMA also accepts two other messages, distinguished by their lengths ([`LaneRequest`]): the program's
//! end of a queue pair, answered with the donor's, and a slab to be exposed to it, answered with its key. What follows
//! the head of these answers ([`TAIL_BYTES`]) is authenticated with the head's tag.
//!
//! All integers are little endian. A message's number is its nonce, so a message that is changed, repeated, omitted or
//! reordered does not verify. A head is in clear and authenticated by its tag. The stored bytes are not encrypted
//! again: they are a record that the agent has sealed for its tenant, extent, version and place, and the reader
//! verifies it before use.
//!
//! One request is under way at a time. Any error of a peer ends the channel.
//!
//! Nothing here touches a socket or a clock, allocates, or calls libc.

use core::fmt;

use canvas_types::rdma::{Exposed, QUEUE_PAIR_BYTES, QueuePair};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::hkdf::{self, HKDF_SHA256};

pub mod record;

/// Identifies a channel until it is opened.
pub type Ticket = [u8; 16];
/// The secret from which both keys of a channel are derived: random, from the agent, for one channel.
pub type Secret = [u8; 32];
/// The key of one direction.
pub type Key = [u8; 32];

/// Bytes of the length before each message of a program.
pub const LENGTH_BYTES: usize = 2;
/// Bytes of a program's message, without its length. (A handshake message has 48, by which a donor recognises the kind
/// of connection.)
pub const MESSAGE_BYTES: usize = BODY_BYTES + TAG_BYTES;
/// Bytes of a message that joins a queue pair, without its length.
pub const JOIN_BYTES: usize = QUEUE_PAIR_BYTES + TAG_BYTES;
/// Bytes of a message that exposes a slab, without its length.
pub const EXPOSE_BYTES: usize = HANDLE_BYTES + TAG_BYTES;
/// Bytes after the head of an answer to [`LaneRequest::Join`] or [`LaneRequest::Expose`]: an end of a queue pair, or an
/// address (u64), a key (u32) and zeros.
pub const TAIL_BYTES: usize = QUEUE_PAIR_BYTES;
/// The bytes after the head of such an answer.
pub type Tail = [u8; TAIL_BYTES];
/// Bytes of an answer before the data.
pub const HEAD_BYTES: usize = BODY_BYTES + TAG_BYTES;
/// Most bytes of one read: a record with an incompressible page, its hash and its tag.
pub const READ_BYTES_MAX: usize = 16 + 4096 + 16;
/// Most messages of one channel: AES-GCM's limit for one key is about 2^32.
pub const MESSAGES_MAX: u64 = 1 << 32;

const BODY_BYTES: usize = 16;
const HANDLE_BYTES: usize = 8;
const TAG_BYTES: usize = 16;
/// The longest message is the one that joins a queue pair.
const MESSAGE_BYTES_MAX: usize = JOIN_BYTES;
const PURPOSE: &[u8] = b"canvas-wire/1 lane";

/// Why a channel cannot continue. Both sides then close it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneError {
    /// The message does not verify: it is of another channel, or was changed, repeated, omitted or reordered.
    Message,
    /// The message verifies and is invalid: an impossible length or code.
    Form,
    /// The channel has sent all that it may, or an answer is still awaited.
    Order,
}

impl fmt::Display for LaneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LaneError::Message => "a message of the lane does not verify",
            LaneError::Form => "a message of the lane is invalid",
            LaneError::Order => "the lane has no message to send now",
        })
    }
}

impl core::error::Error for LaneError {}

/// The two keys of a channel.
#[derive(Clone)]
pub struct Keys {
    /// Key of the program's messages.
    pub up: Key,
    /// Key of the donor's messages.
    pub down: Key,
}

impl Keys {
    /// The keys, concatenated. The process that opens a channel gets them in this form, because deriving them takes
    /// more stack than a fault may use.
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&self.up);
        bytes[32..].copy_from_slice(&self.down);
        bytes
    }

    /// The reverse of [`Keys::to_bytes`].
    pub fn from_bytes(bytes: &[u8; 64]) -> Keys {
        let (mut up, mut down) = ([0; 32], [0; 32]);
        up.copy_from_slice(&bytes[..32]);
        down.copy_from_slice(&bytes[32..]);
        Keys { up, down }
    }
}

/// Never shows the keys.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(secret)")
    }
}

impl Keys {
    /// Derives the keys by HKDF-SHA256, with the ticket as salt.
    pub fn new(secret: &Secret, ticket: &Ticket) -> Keys {
        let prk = hkdf::Salt::new(HKDF_SHA256, ticket).extract(secret);
        let key = |direction: &[u8]| {
            let mut key = [0; 32];
            prk.expand(&[PURPOSE, direction], HKDF_SHA256)
                .and_then(|okm| okm.fill(&mut key))
                .expect("HKDF gives as many bytes as its hash has");
            key
        };
        Keys {
            up: key(b" up"),
            down: key(b" down"),
        }
    }
}

fn cipher(key: &Key) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("a key of 32 bytes"))
}

fn nonce(count: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&count.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn put_tag(tag: &Tag, to: &mut [u8]) {
    to.copy_from_slice(tag.as_ref());
}

/// A read request of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// The slab's handle on the donor.
    pub handle: u64,
    /// Offset in the slab, in bytes.
    pub offset: u32,
    /// Length in bytes; at most [`READ_BYTES_MAX`].
    pub len: u32,
}

/// Encodes an exposed slab.
pub fn exposed_to_bytes(exposed: &Exposed) -> Tail {
    let mut bytes = [0; TAIL_BYTES];
    bytes[..8].copy_from_slice(&exposed.address.to_le_bytes());
    bytes[8..12].copy_from_slice(&exposed.key.to_le_bytes());
    bytes
}

/// Decodes an exposed slab.
pub fn exposed_from_bytes(bytes: &Tail) -> Exposed {
    Exposed {
        address: u64_at(bytes, 0),
        key: u32_at(bytes, 8),
    }
}

/// A program's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneRequest {
    /// Read bytes.
    Read(Read),
    /// Connect a queue pair to this one.
    Join(QueuePair),
    /// Expose the slab with this handle for the queue pair to read.
    Expose(u64),
}

/// A donor's result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Code {
    /// Done; the data follow, or, after the opening, nothing.
    Done = 0,
    /// The tenant has no such handle.
    UnknownHandle = 1,
    /// The range is not inside the slab, or longer than a channel reads.
    OutOfRange = 2,
    /// The channel is over its rate. The donor accepts its next request when that has passed.
    OverRate = 3,
    /// The channel has no queue pair, or may have none now.
    NoPair = 4,
}

impl Code {
    fn from_u16(number: u16) -> Option<Code> {
        [
            Code::Done,
            Code::UnknownHandle,
            Code::OutOfRange,
            Code::OverRate,
            Code::NoPair,
        ]
        .into_iter()
        .find(|&c| c as u16 == number)
    }
}

/// An answer's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The result of the request.
    pub code: Code,
    /// Bytes that follow: as many as were requested, or none.
    pub len: u32,
}

/// A program's end of a channel. Every message has a unique number under its key, so an end that was copied (by fork)
/// must not be used.
pub struct Caller {
    up: LessSafeKey,
    down: LessSafeKey,
    /// Number of the next message.
    next: u64,
    /// Most bytes that the awaited answer may bring, if one is awaited.
    awaited: Option<u32>,
}

impl Caller {
    /// With its keys. (It is a KiB large, and a frame of its own would be one more copy on the caller's stack.)
    #[inline(always)]
    pub fn new(keys: &Keys) -> Caller {
        Caller {
            up: cipher(&keys.up),
            down: cipher(&keys.down),
            next: 0,
            awaited: None,
        }
    }

    fn seal(&mut self, bound: &[u8], body: &mut [u8], awaited: u32) -> Result<Tag, LaneError> {
        if self.awaited.is_some() || self.next >= MESSAGES_MAX {
            return Err(LaneError::Order);
        }
        self.awaited = Some(awaited);
        self.up
            .seal_in_place_separate_tag(nonce(self.next), Aad::from(bound), body)
            .map_err(|_| LaneError::Order)
    }

    /// The first message. The donor's answer must arrive before any other message is sent: so no two messages have one
    /// number, however often a ticket is tried.
    pub fn opening(
        &mut self,
        ticket: &Ticket,
    ) -> Result<[u8; LENGTH_BYTES + MESSAGE_BYTES], LaneError> {
        if self.next != 0 {
            return Err(LaneError::Order);
        }
        let tag = self.seal(ticket, &mut [], 0)?;
        Ok(message(ticket, &tag))
    }

    /// The opening was not sent: it may be created again.
    pub fn undo_opening(&mut self) {
        if self.next == 0 {
            self.awaited = None;
        }
    }

    /// The message that requests this read.
    pub fn read(&mut self, read: Read) -> Result<[u8; LENGTH_BYTES + MESSAGE_BYTES], LaneError> {
        self.check_open()?;
        let mut body = [0; BODY_BYTES];
        body[..8].copy_from_slice(&read.handle.to_le_bytes());
        body[8..12].copy_from_slice(&read.offset.to_le_bytes());
        body[12..].copy_from_slice(&read.len.to_le_bytes());
        let tag = self.seal(&[], &mut body, read.len)?;
        Ok(message(&body, &tag))
    }

    /// The message that joins a queue pair. The answer brings the peer's.
    pub fn join(&mut self, pair: &QueuePair) -> Result<[u8; LENGTH_BYTES + JOIN_BYTES], LaneError> {
        self.check_open()?;
        let mut body = pair.to_bytes();
        let tag = self.seal(&[], &mut body, TAIL_BYTES as u32)?;
        Ok(message(&body, &tag))
    }

    /// The message that exposes a slab to it. The answer brings its key.
    pub fn expose(&mut self, handle: u64) -> Result<[u8; LENGTH_BYTES + EXPOSE_BYTES], LaneError> {
        self.check_open()?;
        let mut body = handle.to_le_bytes();
        let tag = self.seal(&[], &mut body, TAIL_BYTES as u32)?;
        Ok(message(&body, &tag))
    }

    fn check_open(&self) -> Result<(), LaneError> {
        if self.next == 0 {
            return Err(LaneError::Order);
        }
        Ok(())
    }

    /// Verifies and decodes an answer's head.
    pub fn decode_head(&mut self, head: &[u8; HEAD_BYTES]) -> Result<Head, LaneError> {
        self.decode_answer(head, &[])
    }

    /// Verifies and decodes an answer's head and what follows it.
    pub fn decode_tail(
        &mut self,
        head: &[u8; HEAD_BYTES],
        given: &Tail,
    ) -> Result<Head, LaneError> {
        self.decode_answer(head, given)
    }

    fn decode_answer(&mut self, head: &[u8; HEAD_BYTES], given: &[u8]) -> Result<Head, LaneError> {
        let len_max = self.awaited.ok_or(LaneError::Order)?;
        let (body, tag) = head.split_at(BODY_BYTES);
        let mut tag: [u8; TAG_BYTES] = tag.try_into().map_err(|_| LaneError::Form)?;
        self.down
            .open_in_place(nonce(self.next), bound(body, given), &mut tag)
            .map_err(|_| LaneError::Message)?;
        let code = Code::from_u16(u16::from_le_bytes([body[0], body[1]])).ok_or(LaneError::Form)?;
        let len = u32_at(body, 4);
        let expected = if code == Code::Done { len_max } else { 0 };
        if body[2..4] != [0; 2] || body[8..] != self.next.to_le_bytes() || len != expected {
            return Err(LaneError::Form);
        }
        self.awaited = None;
        self.next += 1;
        Ok(Head { code, len })
    }
}

/// A message of `N` bytes with its length; the body fills what the tag leaves.
fn message<const N: usize>(body: &[u8], tag: &Tag) -> [u8; N] {
    let mut message = [0; N];
    message[..LENGTH_BYTES].copy_from_slice(&((N - LENGTH_BYTES) as u16).to_le_bytes());
    let (to, of_tag) = message[LENGTH_BYTES..].split_at_mut(body.len());
    to.copy_from_slice(body);
    put_tag(tag, of_tag);
    message
}

/// What a head's tag authenticates: the head, and what follows it where that is not a record.
fn bound(head: &[u8], given: &[u8]) -> Aad<Bound<{ BODY_BYTES + TAIL_BYTES }>> {
    Bound::of(&[head, given])
}

/// Additional data: a buffer, and how many of its bytes count.
struct Bound<const MAX: usize>([u8; MAX], usize);

impl<const MAX: usize> Bound<MAX> {
    /// These parts, concatenated.
    fn of(parts: &[&[u8]]) -> Aad<Bound<MAX>> {
        let (mut bytes, mut len) = ([0; MAX], 0);
        for part in parts {
            bytes[len..][..part.len()].copy_from_slice(part);
            len += part.len();
        }
        Aad::from(Bound(bytes, len))
    }
}

impl<const MAX: usize> AsRef<[u8]> for Bound<MAX> {
    fn as_ref(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

/// How many bytes follow a head, before the head was verified.
pub fn tail_bytes(head: &[u8; HEAD_BYTES]) -> usize {
    u32_at(head, 4) as usize
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The ticket of an opening; `None` for bytes of another length.
pub fn ticket(opening: &[u8]) -> Option<Ticket> {
    let opening: &[u8; MESSAGE_BYTES] = opening.try_into().ok()?;
    opening.first_chunk().copied()
}

/// A donor's end of a channel.
pub struct Answerer {
    up: LessSafeKey,
    down: LessSafeKey,
    /// Number of the message that comes next, or is to be answered.
    next: u64,
    /// Whether that message is to be answered.
    pending: bool,
}

impl Answerer {
    /// Opens a channel with this message, without its length. It is answered next.
    pub fn admit(keys: &Keys, opening: &[u8]) -> Result<Answerer, LaneError> {
        let (ticket, tag) = opening
            .split_first_chunk::<BODY_BYTES>()
            .ok_or(LaneError::Form)?;
        let mut tag: [u8; TAG_BYTES] = tag.try_into().map_err(|_| LaneError::Form)?;
        let up = cipher(&keys.up);
        up.open_in_place(nonce(0), Aad::from(ticket), &mut tag)
            .map_err(|_| LaneError::Message)?;
        Ok(Answerer {
            up,
            down: cipher(&keys.down),
            next: 0,
            pending: true,
        })
    }

    /// Verifies and decodes a message, without its length. It is answered next.
    pub fn decode_request(&mut self, message: &[u8]) -> Result<LaneRequest, LaneError> {
        if self.pending || self.next >= MESSAGES_MAX {
            return Err(LaneError::Order);
        }
        let mut copy = [0; MESSAGE_BYTES_MAX];
        let copy = copy.get_mut(..message.len()).ok_or(LaneError::Form)?;
        copy.copy_from_slice(message);
        let body = self
            .up
            .open_in_place(nonce(self.next), Aad::empty(), copy)
            .map_err(|_| LaneError::Message)?;
        let ask = match body.len() {
            BODY_BYTES => LaneRequest::Read(Read {
                handle: u64_at(body, 0),
                offset: u32_at(body, 8),
                len: u32_at(body, 12),
            }),
            HANDLE_BYTES => LaneRequest::Expose(u64_at(body, 0)),
            QUEUE_PAIR_BYTES => {
                let pair: &[u8; QUEUE_PAIR_BYTES] =
                    (&*body).try_into().map_err(|_| LaneError::Form)?;
                LaneRequest::Join(QueuePair::from_bytes(pair).ok_or(LaneError::Form)?)
            }
            _ => return Err(LaneError::Form),
        };
        self.pending = true;
        Ok(ask)
    }

    /// The head of the answer to the request; `len` bytes follow.
    pub fn answer(&mut self, code: Code, len: u32) -> Result<[u8; HEAD_BYTES], LaneError> {
        self.encode_answer(code, len, &[])
    }

    /// The head of the answer that `given` follows.
    pub fn answer_with_tail(&mut self, given: &Tail) -> Result<[u8; HEAD_BYTES], LaneError> {
        self.encode_answer(Code::Done, TAIL_BYTES as u32, given)
    }

    fn encode_answer(
        &mut self,
        code: Code,
        len: u32,
        given: &[u8],
    ) -> Result<[u8; HEAD_BYTES], LaneError> {
        if !self.pending {
            return Err(LaneError::Order);
        }
        let mut head = [0; HEAD_BYTES];
        head[..2].copy_from_slice(&(code as u16).to_le_bytes());
        head[4..8].copy_from_slice(&len.to_le_bytes());
        head[8..16].copy_from_slice(&self.next.to_le_bytes());
        let (body, tag) = head.split_at_mut(BODY_BYTES);
        let sealed = self
            .down
            .seal_in_place_separate_tag(nonce(self.next), bound(body, given), &mut [])
            .map_err(|_| LaneError::Order)?;
        put_tag(&sealed, tag);
        self.pending = false;
        self.next += 1;
        Ok(head)
    }
}

#[cfg(test)]
mod tests;
