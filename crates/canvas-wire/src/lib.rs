//! What goes over the network between a client of far memory and a donor that lends it.
//!
//! Three layers, none of which touches a socket, a clock or a thread:
//!
//! * [`frame`]: requests, answers, the donor's calls and the replies to them, as bytes. Encoding
//!   goes into the caller's buffer; decoding is total and borrows from the bytes it is given.
//! * [`session`]: a Noise session (`Noise_NNpsk0_25519_AESGCM_SHA256`) that carries frames. Both
//!   sides prove that they have the cluster key before either learns anything of the other.
//! * [`stream`]: cuts a stream of bytes into the session's messages.
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
//! [`frame::Request::Hello`]; the donor answers [`frame::Answer::Welcome`] or an error and closes.
#![forbid(unsafe_code)]

mod bytes;
pub mod error;
pub mod frame;
mod items;
pub mod key;
pub mod session;
pub mod stream;

/// Name of the protocol: bound into the session's keys and its first hash.
pub const PROTOCOL: &str = "canvas-wire/1";
/// Oldest version of the frames that this code speaks.
pub const VERSION_MIN: u16 = 1;
/// Newest version of the frames that this code speaks: 2 has lanes, 3 what slabs are worth, 4 lanes with
/// queue pairs.
pub const VERSION_MAX: u16 = 4;
/// Oldest version that has [`frame::Request::Lane`] and what follows from it.
pub const VERSION_LANES: u16 = 2;
/// Oldest version that has [`frame::Request::Worth`].
pub const VERSION_WORTH: u16 = 3;
/// Oldest version whose lanes may join queue pairs (RDMA).
pub const VERSION_LANE_PAIRS: u16 = 4;

/// Bytes of an extent: the unit that is written at once.
pub const EXTENT_BYTES: usize = 32 << 10;
/// Extents of a slab.
pub const SLAB_EXTENTS: usize = 2048;
/// Bytes of a slab: the unit that a donor lends.
pub const SLAB_BYTES: usize = EXTENT_BYTES * SLAB_EXTENTS;

/// Bytes of a frame at most, header included: what one Noise message holds.
pub const FRAME_BYTES_MAX: usize = 65535 - session::TAG_BYTES;
/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 16;
/// Bytes that a `Write` or a `Read` carries at most.
pub const DATA_BYTES_MAX: usize = EXTENT_BYTES;
/// Bytes that the answer to a `ReadMany` carries at most, all ranges together.
pub const READ_MANY_BYTES_MAX: usize = 60 << 10;
/// Ranges of a `ReadMany` at most.
pub const READ_MANY_MAX: usize = 64;
/// What waits to be sent goes to the kernel before more is put behind it, and with the mark of a record's end
/// (`MSG_EOR`), unless it is more than this. Else the kernel makes one segment of several messages, which goes over a
/// shaped link as a whole: three pieces of 4 KiB then come all at once after the time of all three (500 us at
/// 200 Mbit/s), and what arrives meanwhile waits for that. What is larger is of links on which that is nothing.
pub const APART_BYTES_MAX: usize = 16 << 10;
/// Handles on a page of a `List` at most.
pub const LIST_MAX: usize = 1024;
/// Handles of an eviction frame, and of one that tells what slabs are worth, at most.
pub const EVICT_MAX: usize = 256;
/// Bytes of an error's text at most.
pub const TEXT_BYTES_MAX: usize = 200;

/// Names a client: random, chosen by it when it starts. Slabs belong to it, not to a connection.
pub type ClientId = [u8; 16];
/// Names one run of a donor: random, new at every start. A client that sees another one than before
/// knows that its slabs there are gone.
pub type DonorId = [u8; 16];
