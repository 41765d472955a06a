//! Error codes of a donor, and errors of encoding and decoding.

use core::fmt;

/// Why a donor refused a request. The number goes over the wire; a number never changes its
/// meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u16)]
pub enum ErrorCode {
    /// Client and donor have no protocol version in common. The donor closes the connection.
    Version = 1,
    /// The donor does not accept this request at this point. The donor closes the connection.
    Protocol = 2,
    /// The donor has nothing to lend now: its limit or its reserve is reached. Another donor may
    /// lend.
    NoRoom = 3,
    /// The client has no such handle: it was never given, was freed, or is from an earlier run of
    /// the donor.
    UnknownHandle = 4,
    /// Offset and length reach beyond the slab, or are more than a frame carries.
    OutOfRange = 5,
    /// The slab is being evicted: it can be read until its deadline, but not written.
    Evicting = 6,
    /// The client has more links than the donor serves. The donor closes the connection.
    TooManyLinks = 7,
    /// The donor is shutting down and frees all slabs.
    Ending = 8,
    /// The donor failed internally; its log says why.
    Internal = 9,
    /// The donor has no RDMA device, does not lend over RDMA, or its device refuses. TCP works.
    NoRdma = 10,
    /// The client has as many direct read channels as the donor serves, or none with this number.
    NoLane = 11,
}

/// All codes, for tables and tests.
pub const ERROR_CODES: [ErrorCode; 11] = [
    ErrorCode::Version,
    ErrorCode::Protocol,
    ErrorCode::NoRoom,
    ErrorCode::UnknownHandle,
    ErrorCode::OutOfRange,
    ErrorCode::Evicting,
    ErrorCode::TooManyLinks,
    ErrorCode::Ending,
    ErrorCode::Internal,
    ErrorCode::NoRdma,
    ErrorCode::NoLane,
];

impl ErrorCode {
    /// The code with this number, if there is one.
    pub fn from_u16(number: u16) -> Option<ErrorCode> {
        ERROR_CODES.into_iter().find(|&c| c as u16 == number)
    }

    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            ErrorCode::Version => "version",
            ErrorCode::Protocol => "protocol",
            ErrorCode::NoRoom => "no-room",
            ErrorCode::UnknownHandle => "unknown-handle",
            ErrorCode::OutOfRange => "out-of-range",
            ErrorCode::Evicting => "evicting",
            ErrorCode::TooManyLinks => "too-many-links",
            ErrorCode::Ending => "ending",
            ErrorCode::Internal => "internal",
            ErrorCode::NoRdma => "no-rdma",
            ErrorCode::NoLane => "no-lane",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why bytes cannot be decoded as a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// The bytes end inside the header or the body.
    Truncated,
    /// There are bytes after the body.
    Trailing,
    /// The header's body length differs from the number of bytes that follow.
    Length,
    /// No frame of this direction has this type.
    UnknownType(u8),
    /// A flag is set, or a reserved field is not zero.
    Reserved,
    /// A count or length is over its limit, or is not a whole number of items.
    Limit,
    /// No error code has this number.
    UnknownCode(u16),
    /// The text is not UTF-8.
    Text,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Truncated => f.write_str("the frame ends too early"),
            DecodeError::Trailing => f.write_str("there are bytes after the frame's body"),
            DecodeError::Length => f.write_str("the frame's length is not that of its body"),
            DecodeError::UnknownType(n) => write!(f, "a frame of type {n} is not allowed here"),
            DecodeError::Reserved => f.write_str("a reserved field is set"),
            DecodeError::Limit => f.write_str("a count or length is over its limit"),
            DecodeError::UnknownCode(n) => write!(f, "no error has code {n}"),
            DecodeError::Text => f.write_str("a text is not UTF-8"),
        }
    }
}

impl core::error::Error for DecodeError {}

/// Why a frame cannot be encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EncodeError {
    /// The buffer is too short; [`crate::FRAME_BYTES_MAX`] bytes always suffice.
    Space,
    /// The frame has more data, ranges or handles than its type allows.
    Limit,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EncodeError::Space => "the buffer is too short for the frame",
            EncodeError::Limit => "the frame carries more than its type allows",
        })
    }
}

impl core::error::Error for EncodeError {}
