//! Errors of links.

use std::fmt;
use std::io;

use canvas_rdma::RdmaError;
use canvas_wire::error::{DecodeError, ErrorCode};
use canvas_wire::key::RandomError;
use canvas_wire::session::SessionError;

/// Why a link broke, or could not be set up.
#[derive(Debug)]
pub enum LinkError {
    /// No TCP connection to the donor could be made.
    Unreachable(io::Error),
    /// The donor did not answer in time.
    Timeout,
    /// The peer closed the connection or sent an invalid answer during the handshake: it has
    /// another key, or is not a donor.
    NotAdmitted,
    /// The donor has the key, and refused.
    Refused {
        /// The donor's reason for refusing.
        code: ErrorCode,
        /// The donor's error text.
        text: String,
    },
    /// The donor closed the connection.
    Closed,
    /// The connection failed.
    Io(io::Error),
    /// A message does not open: it was changed in transit.
    Session(SessionError),
    /// A message is not a frame.
    Decode(DecodeError),
    /// The donor sent an answer to no request, or one that does not fit.
    Protocol(&'static str),
    /// This host's RDMA device, or the connection between both devices, failed.
    Rdma(RdmaError),
    /// The number of the first RDMA packet could not be drawn.
    Random(RandomError),
    /// The link was broken already.
    Down,
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Unreachable(e) => write!(f, "the donor cannot be reached: {e}"),
            LinkError::Timeout => f.write_str("the donor does not answer in time"),
            LinkError::NotAdmitted => f.write_str(
                "the peer closed the connection during the handshake: it has another cluster key, or is not a canvas donor",
            ),
            LinkError::Refused { code, text } => write!(f, "the donor refuses ({code}): {text}"),
            LinkError::Closed => f.write_str("the donor closed the connection"),
            LinkError::Io(e) => write!(f, "the connection failed: {e}"),
            LinkError::Session(e) => write!(f, "{e}"),
            LinkError::Decode(e) => write!(f, "the donor sent a bad frame: {e}"),
            LinkError::Protocol(what) => write!(f, "the donor broke the protocol: {what}"),
            LinkError::Rdma(e) => write!(f, "{e}"),
            LinkError::Random(e) => write!(f, "{e}"),
            LinkError::Down => f.write_str("the link is down"),
        }
    }
}

impl std::error::Error for LinkError {}

/// Why a request was not queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitError {
    /// Too many requests are outstanding, or too many bytes unsent.
    Full,
    /// The link is broken.
    Down,
    /// The request is larger than a frame, or is not one that callers may send.
    Invalid,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::Full => "the link is full",
            SubmitError::Down => "the link is down",
            SubmitError::Invalid => "a link does not send such a request",
        })
    }
}

impl std::error::Error for SubmitError {}

/// Why [`crate::Link::ask`] returned no answer.
#[derive(Debug)]
pub enum AskError {
    /// The request was not sent.
    Submit(SubmitError),
    /// The request was sent, and no answer came.
    Link(LinkError),
    /// The donor answered with an error.
    Refused {
        /// The donor's error code.
        code: ErrorCode,
        /// The donor's error text.
        text: String,
    },
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AskError::Submit(e) => write!(f, "{e}"),
            AskError::Link(e) => write!(f, "{e}"),
            AskError::Refused { code, text } => write!(f, "the donor refuses ({code}): {text}"),
        }
    }
}

impl std::error::Error for AskError {}
