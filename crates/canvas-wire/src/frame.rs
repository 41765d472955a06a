//! Frames: the messages between client and donor.
//!
//! A frame is a header of 16 bytes and a body:
//!
//! ```text
//!  0      1       2        4              8                 16
//! ┌──────┬───────┬────────┬──────────────┬─────────────────┬──────
//! │ type │ flags │ code   │ body_len     │ request_id      │ body
//! │ u8   │ u8 =0 │ u16    │ u32          │ u64             │
//! └──────┴───────┴────────┴──────────────┴─────────────────┴──────
//! ```
//!
//! `code` is zero except in errors. An answer carries its request's id. Each side chooses the ids
//! of its own requests, independently of the other side. Requests may be pipelined, and answers may
//! come in any order.
//!
//! | from | type | body |
//! |---|---|---|
//! | client | 1 Hello | version_min u16, version_max u16, client_id 16, link u32, lease_ms u32 |
//! | client | 2 Alloc | tenant 16, slab u24, parts u8 (0: a whole slab) |
//! | client | 3 Write | handle u64, offset u32, bytes |
//! | client | 4 Read | handle u64, offset u32, len u32 |
//! | client | 5 ReadMany | handle u64, { offset u32, len u32 } … |
//! | client | 6 Free | handle u64 |
//! | client | 7 List | after u64 |
//! | client | 8 Ping | – |
//! | client | 9 Join | number u32, psn u32, gid 16, lid u16, mtu u8, reads u8 |
//! | client | 10 Expose | handle u64 |
//! | client | 11 Lane | tenant 16, secret 32, rate_bytes u64, burst_bytes u32 |
//! | client | 12 LaneRate | lane u64, rate_bytes u64, burst_bytes u32 |
//! | client | 13 LaneEnd | lane u64 |
//! | client | 14 Worth | { handle u64, worth u64 } … |
//! | client | 0xA0 Activity | { handle u64, ops u64 } … |
//! | client | 0xA1 EvictDone | handle u64 |
//! | donor | 0x20 EvictQuery | handle u64 … |
//! | donor | 0x21 EvictStop | deadline_ms u32, handle u64 … |
//! | donor | 0x81 Welcome | version u16, zero u16, lease_ms u32, donor_id 16, slab_bytes u64, memory_bytes u64, free_bytes u64 |
//! | donor | 0x82 Allocated | handle u64 |
//! | donor | 0x83 Done | – |
//! | donor | 0x84 Data | bytes |
//! | donor | 0x87 Handles | more u8, zero 3, { tenant 16, slab u32, handle u64 } … |
//! | donor | 0x88 Pong | free_bytes u64, lent_bytes u64, pressure u8, zero 7 |
//! | donor | 0x89 Joined | as Join |
//! | donor | 0x8A Exposed | address u64, key u32, zero u32 |
//! | donor | 0x8B Ticket | lane u64, ticket 16 |
//! | donor | 0x8C LaneUsed | reads u64, bytes u64 |
//! | donor | 0xFF Error | text (UTF-8, 200 bytes at most); the header's code says which |
//!
//! `Join` and `Expose` are for links with RDMA. Queue pair numbers and memory keys travel in the
//! session, so that only a peer with the cluster key learns them. A donor without RDMA answers with
//! an error.
//!
//! `Lane` and the other frames of direct read channels exist from version 2 on, and only on a
//! client's link 0. `canvas_direct::wire` describes what goes over such a channel. `Worth` exists
//! from version 3 on.
//!
//! A donor that runs out of memory before its clients have moved anything frees slabs at once, and
//! reports it by an `EvictStop` with a deadline of 0; any other deadline is above 0.

pub use canvas_types::rdma::{Exposed, QueuePair};

use crate::bytes::{Reader, Writer};
use crate::error::{DecodeError, EncodeError, ErrorCode};
pub use crate::items::{Item, Items, Lent, Range, SlabKey, Used, Valued};
use crate::{
    ClientId, DATA_BYTES_MAX, DonorId, FRAME_BYTES_MAX, HEADER_BYTES, READ_MANY_BYTES_MAX,
    TEXT_BYTES_MAX,
};

/// A client's request to a donor.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Request<'a> {
    /// The first frame of a link.
    Hello(Hello),
    /// Lend a slab. A client that repeats its key gets the same handle again.
    Alloc(SlabKey),
    /// Store bytes in a slab.
    Write {
        /// The slab's handle, as [`Answer::Allocated`] gave it.
        handle: u64,
        /// Offset in the slab, in bytes.
        offset: u32,
        /// The bytes; at most [`DATA_BYTES_MAX`].
        data: &'a [u8],
    },
    /// Read bytes of a slab. Bytes that were never written read as zeros.
    Read {
        /// The slab's handle, as [`Answer::Allocated`] gave it.
        handle: u64,
        /// The range; at most [`DATA_BYTES_MAX`] long.
        range: Range,
    },
    /// Read several ranges of a slab; the answer has their bytes one after the other.
    ReadMany {
        /// The slab's handle, as [`Answer::Allocated`] gave it.
        handle: u64,
        /// The ranges; together at most [`READ_MANY_BYTES_MAX`] long.
        ranges: Items<'a, Range>,
    },
    /// Give a slab back; its contents are lost.
    Free {
        /// The slab's handle, as [`Answer::Allocated`] gave it.
        handle: u64,
    },
    /// List this client's slabs with handles above `after`, in the order of handles.
    List {
        /// The last handle of the previous page, or 0.
        after: u64,
    },
    /// Sign of life; the answer says how full the donor is.
    Ping,
    /// Connect one of the donor's queue pairs to this one of the client. A second `Join` replaces
    /// the first.
    Join(QueuePair),
    /// Let this link's queue pair read and write the slab.
    Expose {
        /// The slab's handle, as [`Answer::Allocated`] gave it.
        handle: u64,
    },
    /// Open a direct read channel for a program. The answer is a ticket for one connection.
    Lane(Lane),
    /// Set the rate of the tenant's direct read channels, all together.
    LaneRate {
        /// The channel's number, as [`Answer::Ticket`] gave it.
        lane: u64,
        /// The new rate.
        rate: LaneRate,
    },
    /// Close the channel. After the answer the donor serves nothing more that came over it.
    LaneEnd {
        /// The channel's number, as [`Answer::Ticket`] gave it.
        lane: u64,
    },
    /// Set the value of slabs, which decides which the donor frees first when its host runs out of
    /// memory. Handles that the client does not have are ignored.
    Worth {
        /// The slabs and their values.
        slabs: Items<'a, Valued>,
    },
}

/// A direct read channel: a program's own connection to this donor, which only reads slabs of one
/// tenant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Lane {
    /// The tenant whose slabs it reads.
    pub tenant: [u8; 16],
    /// Secret from which the channel's keys are derived; random, for this channel alone.
    pub secret: [u8; 32],
    /// Rate limit of the tenant's channels, all together.
    pub rate: LaneRate,
}

/// Never shows the secret.
impl core::fmt::Debug for Lane {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Lane")
            .field("tenant", &self.tenant)
            .field("rate", &self.rate)
            .finish_non_exhaustive()
    }
}

/// Rate limit of a direct read channel: a token bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneRate {
    /// Bytes per second.
    pub rate_bytes: u64,
    /// Bytes at once, after an idle time.
    pub burst_bytes: u32,
}

impl LaneRate {
    /// No limit. A channel with a limit has no queue pair, because nobody counts what a device
    /// reads.
    pub const UNBOUNDED: LaneRate = LaneRate {
        rate_bytes: 1 << 40,
        burst_bytes: u32::MAX,
    };
}

impl LaneRate {
    fn read(r: &mut Reader<'_>) -> Result<LaneRate, DecodeError> {
        Ok(LaneRate {
            rate_bytes: r.u64()?,
            burst_bytes: r.u32()?,
        })
    }

    fn write(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.u64(self.rate_bytes)?;
        w.u32(self.burst_bytes)
    }
}

/// A client's introduction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Oldest version that the client speaks.
    pub version_min: u16,
    /// Newest version that the client speaks.
    pub version_max: u16,
    /// The client, which owns its slabs whatever link they were allocated over.
    pub client_id: ClientId,
    /// Number of this link among the client's. It replaces an older link with that number; 0, a
    /// client's first link, replaces all older links of the client. Requests that came over
    /// replaced links and were not done before the Welcome are never done.
    pub link: u32,
    /// How long the donor shall keep the client's slabs after its last sign of life; the donor's
    /// own limit applies where it is shorter.
    pub lease_ms: u32,
}

/// A donor's answer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Answer<'a> {
    /// The answer to [`Request::Hello`]: what the donor is and allows.
    Welcome(Welcome),
    /// The answer to [`Request::Alloc`]: a slab of zeros.
    Allocated {
        /// Names the slab; this run of the donor never uses it for another slab.
        handle: u64,
    },
    /// The answer to Write, Free and Worth.
    Done,
    /// The answer to Read and ReadMany: the bytes.
    Data(&'a [u8]),
    /// The answer to [`Request::List`].
    Handles {
        /// Whether there are more handles above the last one here.
        more: bool,
        /// The slabs, in the order of handles.
        slabs: Items<'a, Lent>,
    },
    /// The answer to [`Request::Ping`]: what the donor has free.
    Pong(Pong),
    /// The answer to [`Request::Join`]: the donor's queue pair.
    Joined(QueuePair),
    /// The answer to [`Request::Expose`]: address and key of the slab.
    Exposed(Exposed),
    /// The answer to [`Request::Lane`].
    Ticket {
        /// Names the channel on this link; this run of the donor never uses it for another one.
        lane: u64,
        /// Opens one connection, once.
        ticket: [u8; 16],
    },
    /// The answer to LaneRate and LaneEnd: what was read over the channel.
    LaneUsed {
        /// Reads that were answered with bytes.
        reads: u64,
        /// Bytes in these answers.
        bytes: u64,
    },
    /// The answer to any request that the donor refused.
    Error {
        /// What kind of error it is.
        code: ErrorCode,
        /// For people; at most [`TEXT_BYTES_MAX`] bytes.
        text: &'a str,
    },
}

/// A donor's introduction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// The version that both sides speak from here on.
    pub version: u16,
    /// How long this client's slabs are kept after its last sign of life.
    pub lease_ms: u32,
    /// Identifies this run of the donor.
    pub donor_id: DonorId,
    /// Size of a slab.
    pub slab_bytes: u64,
    /// Limit on lent memory.
    pub memory_bytes: u64,
    /// Memory that the donor could lend now.
    pub free_bytes: u64,
}

/// How full a donor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pong {
    /// Memory that the donor could lend now.
    pub free_bytes: u64,
    /// Memory lent to all clients.
    pub lent_bytes: u64,
    /// Whether the donor is taking memory back from clients, or would lend none.
    pub pressure: bool,
}

/// A donor's request to a client.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Call<'a> {
    /// How much are these slabs used?
    EvictQuery {
        /// The slabs' handles at this donor.
        handles: Items<'a, u64>,
    },
    /// The donor frees these slabs at the deadline; the client should move them before, if there is
    /// time.
    EvictStop {
        /// Time until they are freed in any case; 0: they are freed already.
        deadline_ms: u32,
        /// The slabs' handles at this donor.
        handles: Items<'a, u64>,
    },
}

/// A client's answer to a donor's call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reply<'a> {
    /// The answer to [`Call::EvictQuery`]: how much each slab was used.
    Activity(Items<'a, Used>),
    /// The answer to EvictStop, once for each slab that has been moved: the donor may free it.
    EvictDone {
        /// The slab's handle, as [`Answer::Allocated`] gave it.
        handle: u64,
    },
}

/// A frame from a client.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum FromClient<'a> {
    /// A request, which the donor answers.
    Request(Request<'a>),
    /// The answer to a call of the donor.
    Reply(Reply<'a>),
}

/// A frame from a donor.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum FromDonor<'a> {
    /// The answer to a request of the client.
    Answer(Answer<'a>),
    /// A call, which the client answers.
    Call(Call<'a>),
}

const HELLO: u8 = 1;
const ALLOC: u8 = 2;
const WRITE: u8 = 3;
const READ: u8 = 4;
const READ_MANY: u8 = 5;
const FREE: u8 = 6;
const LIST: u8 = 7;
const PING: u8 = 8;
const JOIN: u8 = 9;
const EXPOSE: u8 = 10;
const LANE: u8 = 11;
const LANE_RATE: u8 = 12;
const LANE_END: u8 = 13;
const WORTH: u8 = 14;
const EVICT_QUERY: u8 = 0x20;
const EVICT_STOP: u8 = 0x21;
const WELCOME: u8 = 0x81;
const ALLOCATED: u8 = 0x82;
const DONE: u8 = 0x83;
const DATA: u8 = 0x84;
const HANDLES: u8 = 0x87;
const PONG: u8 = 0x88;
const JOINED: u8 = 0x89;
const EXPOSED: u8 = 0x8A;
const TICKET: u8 = 0x8B;
const LANE_USED: u8 = 0x8C;
const ACTIVITY: u8 = 0xA0;
const EVICT_DONE: u8 = 0xA1;
const ERROR: u8 = 0xFF;

/// Encodes the header and then the body; returns the frame's length.
fn encode_with(
    out: &mut [u8],
    kind: u8,
    code: u16,
    id: u64,
    body: impl FnOnce(&mut Writer<'_>) -> Result<(), EncodeError>,
) -> Result<usize, EncodeError> {
    let mut w = Writer::new(out);
    w.u8(kind)?;
    w.u8(0)?;
    w.u16(code)?;
    w.u32(0)?;
    w.u64(id)?;
    body(&mut w)?;
    let len = w.len();
    if len > FRAME_BYTES_MAX {
        return Err(EncodeError::Limit);
    }
    let body_len = (len - HEADER_BYTES) as u32;
    w.written()[4..8].copy_from_slice(&body_len.to_le_bytes());
    Ok(len)
}

/// The header of a `Data` answer whose `len` bytes follow, for a donor that has the bytes in place
/// already. `len` is at most [`READ_MANY_BYTES_MAX`].
pub fn data_header(id: u64, len: usize) -> Result<[u8; HEADER_BYTES], EncodeError> {
    check(len <= READ_MANY_BYTES_MAX)?;
    let mut header = [0; HEADER_BYTES];
    encode_with(&mut header, DATA, 0, id, |_| Ok(()))?;
    header[4..8].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(header)
}

/// Decodes the header; returns type, code, id and the body.
fn decode_header(bytes: &[u8]) -> Result<(u8, u16, u64, Reader<'_>), DecodeError> {
    let mut r = Reader(bytes);
    let kind = r.u8()?;
    r.zeros::<1>()?;
    let code = r.u16()?;
    let len = r.u32()?;
    let id = r.u64()?;
    if usize::try_from(len) != Ok(r.0.len()) || bytes.len() > FRAME_BYTES_MAX {
        return Err(DecodeError::Length);
    }
    if code != 0 && kind != ERROR {
        return Err(DecodeError::Reserved);
    }
    Ok((kind, code, id, r))
}

fn data_within<'a>(r: &mut Reader<'a>, max: usize) -> Result<&'a [u8], DecodeError> {
    let data = r.rest();
    if data.len() > max {
        return Err(DecodeError::Limit);
    }
    Ok(data)
}

fn check(within: bool) -> Result<(), EncodeError> {
    if within {
        Ok(())
    } else {
        Err(EncodeError::Limit)
    }
}

/// Sum of the ranges' lengths in bytes.
pub fn total_bytes(ranges: &Items<'_, Range>) -> u64 {
    ranges.iter().map(|r| u64::from(r.len)).sum()
}

impl<'a> Request<'a> {
    /// Encodes the frame into `out` and returns its length.
    pub fn encode(&self, id: u64, out: &mut [u8]) -> Result<usize, EncodeError> {
        match *self {
            Request::Hello(h) => encode_with(out, HELLO, 0, id, |w| {
                w.u16(h.version_min)?;
                w.u16(h.version_max)?;
                w.put(&h.client_id)?;
                w.u32(h.link)?;
                w.u32(h.lease_ms)
            }),
            Request::Alloc(key) => encode_with(out, ALLOC, 0, id, |w| {
                w.put(&key.tenant)?;
                w.u32(key.slab)
            }),
            Request::Write {
                handle,
                offset,
                data,
            } => {
                check(data.len() <= DATA_BYTES_MAX)?;
                encode_with(out, WRITE, 0, id, |w| {
                    w.u64(handle)?;
                    w.u32(offset)?;
                    w.put(data)
                })
            }
            Request::Read { handle, range } => {
                check(range.len as usize <= DATA_BYTES_MAX)?;
                encode_with(out, READ, 0, id, |w| {
                    w.u64(handle)?;
                    w.u32(range.offset)?;
                    w.u32(range.len)
                })
            }
            Request::ReadMany { handle, ranges } => {
                check(total_bytes(&ranges) <= READ_MANY_BYTES_MAX as u64)?;
                encode_with(out, READ_MANY, 0, id, |w| {
                    w.u64(handle)?;
                    ranges.encode(w)
                })
            }
            Request::Free { handle } => encode_with(out, FREE, 0, id, |w| w.u64(handle)),
            Request::List { after } => encode_with(out, LIST, 0, id, |w| w.u64(after)),
            Request::Ping => encode_with(out, PING, 0, id, |_| Ok(())),
            Request::Join(end) => encode_with(out, JOIN, 0, id, |w| write_end(&end, w)),
            Request::Expose { handle } => encode_with(out, EXPOSE, 0, id, |w| w.u64(handle)),
            Request::Lane(lane) => encode_with(out, LANE, 0, id, |w| {
                w.put(&lane.tenant)?;
                w.put(&lane.secret)?;
                lane.rate.write(w)
            }),
            Request::LaneRate { lane, rate } => encode_with(out, LANE_RATE, 0, id, |w| {
                w.u64(lane)?;
                rate.write(w)
            }),
            Request::LaneEnd { lane } => encode_with(out, LANE_END, 0, id, |w| w.u64(lane)),
            Request::Worth { slabs } => encode_with(out, WORTH, 0, id, |w| slabs.encode(w)),
        }
    }

    fn decode(kind: u8, mut r: Reader<'a>) -> Result<Option<Request<'a>>, DecodeError> {
        let request = match kind {
            HELLO => Request::Hello(Hello {
                version_min: r.u16()?,
                version_max: r.u16()?,
                client_id: r.array()?,
                link: r.u32()?,
                lease_ms: r.u32()?,
            }),
            ALLOC => Request::Alloc(SlabKey {
                tenant: r.array()?,
                slab: r.u32()?,
            }),
            WRITE => Request::Write {
                handle: r.u64()?,
                offset: r.u32()?,
                data: data_within(&mut r, DATA_BYTES_MAX)?,
            },
            READ => {
                let handle = r.u64()?;
                let range = Range {
                    offset: r.u32()?,
                    len: r.u32()?,
                };
                if range.len as usize > DATA_BYTES_MAX {
                    return Err(DecodeError::Limit);
                }
                Request::Read { handle, range }
            }
            READ_MANY => {
                let handle = r.u64()?;
                let ranges = Items::decode(&mut r)?;
                if total_bytes(&ranges) > READ_MANY_BYTES_MAX as u64 {
                    return Err(DecodeError::Limit);
                }
                Request::ReadMany { handle, ranges }
            }
            FREE => Request::Free { handle: r.u64()? },
            LIST => Request::List { after: r.u64()? },
            PING => Request::Ping,
            JOIN => Request::Join(read_end(&mut r)?),
            EXPOSE => Request::Expose { handle: r.u64()? },
            LANE => Request::Lane(Lane {
                tenant: r.array()?,
                secret: r.array()?,
                rate: LaneRate::read(&mut r)?,
            }),
            LANE_RATE => Request::LaneRate {
                lane: r.u64()?,
                rate: LaneRate::read(&mut r)?,
            },
            LANE_END => Request::LaneEnd { lane: r.u64()? },
            WORTH => Request::Worth {
                slabs: Items::decode(&mut r)?,
            },
            _ => return Ok(None),
        };
        r.end()?;
        Ok(Some(request))
    }
}

impl<'a> Answer<'a> {
    /// Encodes the frame into `out` and returns its length. `id` is the request's.
    pub fn encode(&self, id: u64, out: &mut [u8]) -> Result<usize, EncodeError> {
        match *self {
            Answer::Welcome(welcome) => encode_with(out, WELCOME, 0, id, |w| {
                w.u16(welcome.version)?;
                w.u16(0)?;
                w.u32(welcome.lease_ms)?;
                w.put(&welcome.donor_id)?;
                w.u64(welcome.slab_bytes)?;
                w.u64(welcome.memory_bytes)?;
                w.u64(welcome.free_bytes)
            }),
            Answer::Allocated { handle } => encode_with(out, ALLOCATED, 0, id, |w| w.u64(handle)),
            Answer::Done => encode_with(out, DONE, 0, id, |_| Ok(())),
            Answer::Data(data) => {
                check(data.len() <= READ_MANY_BYTES_MAX)?;
                encode_with(out, DATA, 0, id, |w| w.put(data))
            }
            Answer::Handles { more, slabs } => encode_with(out, HANDLES, 0, id, |w| {
                w.put(&[u8::from(more), 0, 0, 0])?;
                slabs.encode(w)
            }),
            Answer::Pong(pong) => encode_with(out, PONG, 0, id, |w| {
                w.u64(pong.free_bytes)?;
                w.u64(pong.lent_bytes)?;
                w.u8(u8::from(pong.pressure))?;
                w.put(&[0; 7])
            }),
            Answer::Joined(end) => encode_with(out, JOINED, 0, id, |w| write_end(&end, w)),
            Answer::Exposed(exposed) => encode_with(out, EXPOSED, 0, id, |w| {
                w.u64(exposed.address)?;
                w.u32(exposed.key)?;
                w.u32(0)
            }),
            Answer::Ticket { lane, ticket } => encode_with(out, TICKET, 0, id, |w| {
                w.u64(lane)?;
                w.put(&ticket)
            }),
            Answer::LaneUsed { reads, bytes } => encode_with(out, LANE_USED, 0, id, |w| {
                w.u64(reads)?;
                w.u64(bytes)
            }),
            Answer::Error { code, text } => {
                check(text.len() <= TEXT_BYTES_MAX)?;
                encode_with(out, ERROR, code as u16, id, |w| w.put(text.as_bytes()))
            }
        }
    }

    fn decode(kind: u8, code: u16, mut r: Reader<'a>) -> Result<Option<Answer<'a>>, DecodeError> {
        let answer = match kind {
            WELCOME => {
                let version = r.u16()?;
                r.zeros::<2>()?;
                Answer::Welcome(Welcome {
                    version,
                    lease_ms: r.u32()?,
                    donor_id: r.array()?,
                    slab_bytes: r.u64()?,
                    memory_bytes: r.u64()?,
                    free_bytes: r.u64()?,
                })
            }
            ALLOCATED => Answer::Allocated { handle: r.u64()? },
            DONE => Answer::Done,
            DATA => Answer::Data(data_within(&mut r, READ_MANY_BYTES_MAX)?),
            HANDLES => {
                let more = flag(&mut r)?;
                r.zeros::<3>()?;
                Answer::Handles {
                    more,
                    slabs: Items::decode(&mut r)?,
                }
            }
            PONG => {
                let pong = Pong {
                    free_bytes: r.u64()?,
                    lent_bytes: r.u64()?,
                    pressure: flag(&mut r)?,
                };
                r.zeros::<7>()?;
                Answer::Pong(pong)
            }
            JOINED => Answer::Joined(read_end(&mut r)?),
            EXPOSED => {
                let (address, key) = (r.u64()?, r.u32()?);
                r.zeros::<4>()?;
                Answer::Exposed(Exposed { address, key })
            }
            TICKET => Answer::Ticket {
                lane: r.u64()?,
                ticket: r.array()?,
            },
            LANE_USED => Answer::LaneUsed {
                reads: r.u64()?,
                bytes: r.u64()?,
            },
            ERROR => {
                let text = data_within(&mut r, TEXT_BYTES_MAX)?;
                Answer::Error {
                    code: ErrorCode::from_u16(code).ok_or(DecodeError::UnknownCode(code))?,
                    text: core::str::from_utf8(text).map_err(|_| DecodeError::Text)?,
                }
            }
            _ => return Ok(None),
        };
        r.end()?;
        Ok(Some(answer))
    }
}

fn write_end(end: &QueuePair, w: &mut Writer<'_>) -> Result<(), EncodeError> {
    check(end.is_within())?;
    w.put(&end.to_bytes())
}

fn read_end(r: &mut Reader<'_>) -> Result<QueuePair, DecodeError> {
    QueuePair::from_bytes(&r.array()?).ok_or(DecodeError::Limit)
}

/// Reads a byte that must be 0 or 1.
fn flag(r: &mut Reader<'_>) -> Result<bool, DecodeError> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Reserved),
    }
}

impl<'a> Call<'a> {
    /// Encodes the frame into `out` and returns its length. The donor chooses `id`.
    pub fn encode(&self, id: u64, out: &mut [u8]) -> Result<usize, EncodeError> {
        match *self {
            Call::EvictQuery { handles } => {
                encode_with(out, EVICT_QUERY, 0, id, |w| handles.encode(w))
            }
            Call::EvictStop {
                deadline_ms,
                handles,
            } => encode_with(out, EVICT_STOP, 0, id, |w| {
                w.u32(deadline_ms)?;
                handles.encode(w)
            }),
        }
    }

    fn decode(kind: u8, mut r: Reader<'a>) -> Result<Option<Call<'a>>, DecodeError> {
        Ok(Some(match kind {
            EVICT_QUERY => Call::EvictQuery {
                handles: Items::decode(&mut r)?,
            },
            EVICT_STOP => Call::EvictStop {
                deadline_ms: r.u32()?,
                handles: Items::decode(&mut r)?,
            },
            _ => return Ok(None),
        }))
    }
}

impl<'a> Reply<'a> {
    /// Encodes the frame into `out` and returns its length. `id` is the call's.
    pub fn encode(&self, id: u64, out: &mut [u8]) -> Result<usize, EncodeError> {
        match *self {
            Reply::Activity(used) => encode_with(out, ACTIVITY, 0, id, |w| used.encode(w)),
            Reply::EvictDone { handle } => encode_with(out, EVICT_DONE, 0, id, |w| w.u64(handle)),
        }
    }

    fn decode(kind: u8, mut r: Reader<'a>) -> Result<Option<Reply<'a>>, DecodeError> {
        let reply = match kind {
            ACTIVITY => Reply::Activity(Items::decode(&mut r)?),
            EVICT_DONE => Reply::EvictDone { handle: r.u64()? },
            _ => return Ok(None),
        };
        r.end()?;
        Ok(Some(reply))
    }
}

impl<'a> FromClient<'a> {
    /// Decodes a frame that takes up all of `bytes`; returns its id and contents.
    pub fn decode(bytes: &'a [u8]) -> Result<(u64, FromClient<'a>), DecodeError> {
        let (kind, _, id, r) = decode_header(bytes)?;
        let body = r.0;
        if let Some(request) = Request::decode(kind, Reader(body))? {
            return Ok((id, FromClient::Request(request)));
        }
        let reply = Reply::decode(kind, Reader(body))?.ok_or(DecodeError::UnknownType(kind))?;
        Ok((id, FromClient::Reply(reply)))
    }

    /// Encodes the frame into `out` and returns its length.
    pub fn encode(&self, id: u64, out: &mut [u8]) -> Result<usize, EncodeError> {
        match self {
            FromClient::Request(request) => request.encode(id, out),
            FromClient::Reply(reply) => reply.encode(id, out),
        }
    }
}

impl<'a> FromDonor<'a> {
    /// Decodes a frame that takes up all of `bytes`; returns its id and contents.
    pub fn decode(bytes: &'a [u8]) -> Result<(u64, FromDonor<'a>), DecodeError> {
        let (kind, code, id, r) = decode_header(bytes)?;
        let body = r.0;
        if let Some(answer) = Answer::decode(kind, code, Reader(body))? {
            return Ok((id, FromDonor::Answer(answer)));
        }
        let call = Call::decode(kind, Reader(body))?.ok_or(DecodeError::UnknownType(kind))?;
        Ok((id, FromDonor::Call(call)))
    }

    /// Encodes the frame into `out` and returns its length.
    pub fn encode(&self, id: u64, out: &mut [u8]) -> Result<usize, EncodeError> {
        match self {
            FromDonor::Answer(answer) => answer.encode(id, out),
            FromDonor::Call(call) => call.encode(id, out),
        }
    }
}
