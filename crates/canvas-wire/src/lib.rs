//! The protocol between a client of far memory and a donor that lends it.
//!
//! Three layers; none of them uses a socket, a clock or a thread:
//!
//! * [`frame`]: requests, answers, the donor's calls and the replies to them, as bytes. Encoding
//!   writes into the caller's buffer; decoding accepts or refuses any input, and borrows from it.
//! * [`session`]: a Noise session (`Noise_NNpsk0_25519_AESGCM_SHA256`) that carries frames. Both
//!   sides prove that they have the cluster key before either learns anything about the other.
//! * [`stream`]: splits a stream of bytes into the session's messages.
//!
//! [`key`] makes, writes and reads cluster keys.
//!
//! # On the stream
//!
//! ```text
//! client ──► u16 length, handshake message 1 (48 bytes: ephemeral key, tag)
//! client ◄── u16 length, handshake message 2 (48 bytes)
//! then both ways, any number: u16 length, sealed frame (length <= 65535, tag of 16 bytes included)
//! ```
//!
//! All integers are little endian, in lengths as in frames. The first frame is the client's
//! [`frame::Request::Hello`]; the donor answers with [`frame::Answer::Welcome`], or with an error
//! and closes the connection.
#![forbid(unsafe_code)]

mod bytes;
pub mod error;
pub mod frame;
mod items;
pub mod key;
pub mod session;
pub mod stream;

/// Name of the protocol: part of the session's keys and of its first hash.
pub const PROTOCOL: &str = "canvas-wire/1";
/// Oldest version of the frames that this code speaks.
pub const VERSION_MIN: u16 = 1;
/// Newest version of the frames that this code speaks: 2 added direct read channels, 3 the value of
/// slabs, 4 direct read channels with queue pairs.
pub const VERSION_MAX: u16 = 4;
/// Oldest version with [`frame::Request::Lane`] and the other frames of direct read channels.
pub const VERSION_LANES: u16 = 2;
/// Oldest version with [`frame::Request::Worth`].
pub const VERSION_WORTH: u16 = 3;
/// Oldest version whose direct read channels may join queue pairs (RDMA).
pub const VERSION_LANE_PAIRS: u16 = 4;

/// Size of an extent: the unit of writes.
pub const EXTENT_BYTES: usize = 32 << 10;
/// Extents per slab.
pub const SLAB_EXTENTS: usize = 2048;
/// Size of a slab: the unit that a donor lends.
pub const SLAB_BYTES: usize = EXTENT_BYTES * SLAB_EXTENTS;

/// Most bytes of a frame, header included: what one Noise message holds.
pub const FRAME_BYTES_MAX: usize = 65535 - session::TAG_BYTES;
/// Size of a frame's header.
pub const HEADER_BYTES: usize = 16;
/// Most bytes in a `Write` or a `Read`.
pub const DATA_BYTES_MAX: usize = EXTENT_BYTES;
/// Most bytes in the answer to a `ReadMany`, all ranges together.
pub const READ_MANY_BYTES_MAX: usize = 60 << 10;
/// Most ranges in a `ReadMany`.
pub const READ_MANY_MAX: usize = 64;
/// Pending bytes, unless there are more than this, go to the kernel as a record of their own
/// (`MSG_EOR`) before more is queued. Otherwise the kernel merges several messages into one
/// segment, which crosses a shaped link as a whole: three pieces of 4 KiB would arrive together
/// after the time of all three (500 us at 200 Mbit/s), and messages that arrive in between would
/// wait. Larger amounts occur only on links where that time is negligible.
pub const APART_BYTES_MAX: usize = 16 << 10;
/// Most handles on a page of a `List`.
pub const LIST_MAX: usize = 1024;
/// Most handles in a frame about eviction or the value of slabs.
pub const EVICT_MAX: usize = 256;
/// Most bytes of an error's text.
pub const TEXT_BYTES_MAX: usize = 200;

/// Identifies a client; the client draws it at random when it starts. Slabs belong to a client, not
/// to a connection.
pub type ClientId = [u8; 16];
/// Identifies one run of a donor: random, new at every start. A client that sees a different one
/// than before knows that its slabs there are gone.
pub type DonorId = [u8; 16];
