//! Lanes: what a program and a donor say to each other on a connection of their own, which only
//! reads.
//!
//! The agent asks a donor for a lane over its link 0 and gets a ticket. It hands the ticket and the
//! lane's two keys to one process of the tenant, which opens one connection with them. A ticket
//! opens one connection, once.
//!
//! ```text
//! program ──► u16 length, ticket 16, tag 16                          message 0: the opening
//! program ◄── head 16 (code u16, zero u16, len u32, count u64), tag 16        its answer
//! program ──► u16 length, sealed: handle u64, offset u32, len u32; tag 16     message 1, 2, …
//! program ◄── head, tag, then `len` bytes as they are stored
//! ```
//!
//! All integers are little endian. A message's number is its nonce, so one that is changed,
//! repeated, left out or moved does not open. A head is in clear and bound into its tag. The
//! stored bytes are not encrypted once more: they are a record that the agent has sealed for its
//! tenant, extent, version and place. Whoever uses them opens them first.
//!
//! One request is under way at a time. Any error of a peer ends the lane.
//!
//! Nothing here touches a socket or a clock, allocates, or calls libc.
#![no_std]
#![forbid(unsafe_code)]

use core::fmt;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::hkdf::{self, HKDF_SHA256};

pub mod record;

/// Names a lane while nobody has opened it.
pub type Ticket = [u8; 16];
/// What both keys of a lane follow from: random, from the agent, for one lane.
pub type Secret = [u8; 32];
/// The key of one direction.
pub type Key = [u8; 32];

/// Bytes of the length in front of each message of a program's.
pub const LENGTH_BYTES: usize = 2;
/// Bytes of a message of a program's, without its length. (A handshake's message has 48, by which
/// a donor knows what a connection is.)
pub const MESSAGE_BYTES: usize = BODY_BYTES + TAG_BYTES;
/// Bytes of an answer before what was read.
pub const HEAD_BYTES: usize = BODY_BYTES + TAG_BYTES;
/// Bytes that one read gives at most: a record with an incompressible page, its hash and its tag.
pub const READ_BYTES_MAX: usize = 16 + 4096 + 16;
/// Messages of one lane at most: AES-GCM's bound for one key is about 2^32.
pub const MESSAGES_MAX: u64 = 1 << 32;

const BODY_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
const PURPOSE: &[u8] = b"canvas-wire/1 lane";

/// Why a lane cannot go on. Both sides give it up then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bad {
    /// It does not open: of another lane, changed, repeated, left out or moved.
    Message,
    /// It opens and makes no sense: another length or code than there can be.
    Form,
    /// The lane has sent all that it may, or an answer is awaited still.
    Order,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bad::Message => "a message of the lane does not open",
            Bad::Form => "a message of the lane makes no sense",
            Bad::Order => "the lane has no message to send now",
        })
    }
}

impl core::error::Error for Bad {}

/// The two keys of a lane.
#[derive(Clone)]
pub struct Keys {
    /// Of what the program sends.
    pub up: Key,
    /// Of what the donor sends.
    pub down: Key,
}

impl Keys {
    /// One after the other. Whoever opens a lane is given these: to derive them takes more stack than a fault may have.
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&self.up);
        bytes[32..].copy_from_slice(&self.down);
        bytes
    }

    /// From these.
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
    /// By HKDF-SHA256, with the ticket as salt.
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

/// What a program asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// The slab's handle at the donor.
    pub handle: u64,
    /// Where, in bytes from the slab's beginning.
    pub offset: u32,
    /// How much; at most [`READ_BYTES_MAX`].
    pub len: u32,
}

/// How a donor answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Code {
    /// With what was read, or, to the opening, with nothing.
    Done = 0,
    /// The handle is none of this tenant's.
    UnknownHandle = 1,
    /// Offset and length do not lie in the slab, or are more than a lane reads.
    OutOfRange = 2,
    /// The lane is over its rate. The donor takes its next request when that has passed.
    OverRate = 3,
}

impl Code {
    fn from_u16(number: u16) -> Option<Code> {
        [
            Code::Done,
            Code::UnknownHandle,
            Code::OutOfRange,
            Code::OverRate,
        ]
        .into_iter()
        .find(|&c| c as u16 == number)
    }
}

/// An answer's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// What became of the request.
    pub code: Code,
    /// Bytes that follow: as many as were asked for, or none.
    pub len: u32,
}

/// A program's end of a lane. Every message has a number of its own under its key: an end that was
/// copied (by fork) must not be used.
pub struct Caller {
    up: LessSafeKey,
    down: LessSafeKey,
    /// Number of the next message.
    next: u64,
    /// Bytes that the answer which is awaited may bring.
    awaited: Option<u32>,
}

impl Caller {
    /// With its keys. (It is a KiB, of which a frame of its own would be one more copy on the caller's stack.)
    #[inline(always)]
    pub fn new(keys: &Keys) -> Caller {
        Caller {
            up: cipher(&keys.up),
            down: cipher(&keys.down),
            next: 0,
            awaited: None,
        }
    }

    fn seal(&mut self, bound: &[u8], body: &mut [u8], awaited: u32) -> Result<Tag, Bad> {
        if self.awaited.is_some() || self.next >= MESSAGES_MAX {
            return Err(Bad::Order);
        }
        self.awaited = Some(awaited);
        self.up
            .seal_in_place_separate_tag(nonce(self.next), Aad::from(bound), body)
            .map_err(|_| Bad::Order)
    }

    /// The first message. The donor's answer is awaited before any other is sent: so no two messages
    /// have one number, however often a ticket is tried.
    pub fn opening(&mut self, ticket: &Ticket) -> Result<[u8; LENGTH_BYTES + MESSAGE_BYTES], Bad> {
        if self.next != 0 {
            return Err(Bad::Order);
        }
        let tag = self.seal(ticket, &mut [], 0)?;
        Ok(message(ticket, &tag))
    }

    /// The opening was not sent: it may be made once more.
    pub fn take_back(&mut self) {
        if self.next == 0 {
            self.awaited = None;
        }
    }

    /// The message that asks for this.
    pub fn ask(&mut self, read: Read) -> Result<[u8; LENGTH_BYTES + MESSAGE_BYTES], Bad> {
        if self.next == 0 {
            return Err(Bad::Order);
        }
        let mut body = [0; BODY_BYTES];
        body[..8].copy_from_slice(&read.handle.to_le_bytes());
        body[8..12].copy_from_slice(&read.offset.to_le_bytes());
        body[12..].copy_from_slice(&read.len.to_le_bytes());
        let tag = self.seal(&[], &mut body, read.len)?;
        Ok(message(&body, &tag))
    }

    /// What the answer's head says.
    pub fn answered(&mut self, head: &[u8; HEAD_BYTES]) -> Result<Head, Bad> {
        let len_max = self.awaited.ok_or(Bad::Order)?;
        let (body, tag) = head.split_at(BODY_BYTES);
        let mut tag: [u8; TAG_BYTES] = tag.try_into().map_err(|_| Bad::Form)?;
        self.down
            .open_in_place(nonce(self.next), Aad::from(body), &mut tag)
            .map_err(|_| Bad::Message)?;
        let code = Code::from_u16(u16::from_le_bytes([body[0], body[1]])).ok_or(Bad::Form)?;
        let len = u32_at(body, 4);
        let expected = if code == Code::Done { len_max } else { 0 };
        if body[2..4] != [0; 2] || body[8..] != self.next.to_le_bytes() || len != expected {
            return Err(Bad::Form);
        }
        self.awaited = None;
        self.next += 1;
        Ok(Head { code, len })
    }
}

fn message(body: &[u8; BODY_BYTES], tag: &Tag) -> [u8; LENGTH_BYTES + MESSAGE_BYTES] {
    let mut message = [0; LENGTH_BYTES + MESSAGE_BYTES];
    message[..LENGTH_BYTES].copy_from_slice(&(MESSAGE_BYTES as u16).to_le_bytes());
    message[LENGTH_BYTES..][..BODY_BYTES].copy_from_slice(body);
    put_tag(tag, &mut message[LENGTH_BYTES + BODY_BYTES..]);
    message
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The ticket of an opening; `None` for bytes that are none.
pub fn ticket(opening: &[u8]) -> Option<Ticket> {
    let opening: &[u8; MESSAGE_BYTES] = opening.try_into().ok()?;
    opening.first_chunk().copied()
}

/// A donor's end of a lane.
pub struct Answerer {
    up: LessSafeKey,
    down: LessSafeKey,
    /// Number of the message that comes next, or is to be answered.
    next: u64,
    /// Whether it is to be answered.
    asked: bool,
}

impl Answerer {
    /// A lane is opened with this message, without its length. It is answered next.
    pub fn admit(keys: &Keys, opening: &[u8]) -> Result<Answerer, Bad> {
        let (ticket, tag) = opening.split_first_chunk::<BODY_BYTES>().ok_or(Bad::Form)?;
        let mut tag: [u8; TAG_BYTES] = tag.try_into().map_err(|_| Bad::Form)?;
        let up = cipher(&keys.up);
        up.open_in_place(nonce(0), Aad::from(ticket), &mut tag)
            .map_err(|_| Bad::Message)?;
        Ok(Answerer {
            up,
            down: cipher(&keys.down),
            next: 0,
            asked: true,
        })
    }

    /// What a message, without its length, asks for. It is answered next.
    pub fn asked(&mut self, message: &[u8]) -> Result<Read, Bad> {
        if self.asked || self.next >= MESSAGES_MAX {
            return Err(Bad::Order);
        }
        let mut message: [u8; MESSAGE_BYTES] = message.try_into().map_err(|_| Bad::Form)?;
        let body = self
            .up
            .open_in_place(nonce(self.next), Aad::empty(), &mut message)
            .map_err(|_| Bad::Message)?;
        self.asked = true;
        Ok(Read {
            handle: u64::from(u32_at(body, 0)) | u64::from(u32_at(body, 4)) << 32,
            offset: u32_at(body, 8),
            len: u32_at(body, 12),
        })
    }

    /// The head of the answer to what was asked; `len` bytes follow.
    pub fn answer(&mut self, code: Code, len: u32) -> Result<[u8; HEAD_BYTES], Bad> {
        if !self.asked {
            return Err(Bad::Order);
        }
        let mut head = [0; HEAD_BYTES];
        head[..2].copy_from_slice(&(code as u16).to_le_bytes());
        head[4..8].copy_from_slice(&len.to_le_bytes());
        head[8..16].copy_from_slice(&self.next.to_le_bytes());
        let (body, tag) = head.split_at_mut(BODY_BYTES);
        let sealed = self
            .down
            .seal_in_place_separate_tag(nonce(self.next), Aad::from(&*body), &mut [])
            .map_err(|_| Bad::Order)?;
        put_tag(&sealed, tag);
        self.asked = false;
        self.next += 1;
        Ok(head)
    }
}

#[cfg(test)]
mod tests;
