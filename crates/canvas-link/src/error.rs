//! Why a link does not do what it should.

use std::fmt;
use std::io;

use canvas_rdma::RdmaError;
use canvas_wire::error::{DecodeError, ErrorCode};
use canvas_wire::key::RandomError;
use canvas_wire::session::SessionError;

/// Why a link is broken, or cannot be made.
#[derive(Debug)]
pub enum LinkError {
    /// No TCP connection to the donor.
    Unreachable(io::Error),
    /// The donor did not answer in time.
    Timeout,
    /// The peer hung up, or answered nonsense, before it knew us: it has another key, or is no
    /// donor.
    NotAdmitted,
    /// The donor knows the key, and said no.
    Refused {
        /// The donor's reason for refusing.
        code: ErrorCode,
        /// The donor's sentence.
        text: String,
    },
    /// The donor hung up.
    Closed,
    /// The connection failed.
    Io(io::Error),
    /// A message does not open: changed on its way.
    Session(SessionError),
    /// A message is no frame.
    Decode(DecodeError),
    /// The donor answers what nobody asked.
    Protocol(&'static str),
    /// The RDMA device of this host, or the connection between both, does not do it.
    Rdma(RdmaError),
    /// The number of its first RDMA packet cannot be drawn.
    Random(RandomError),
    /// The link was broken before.
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
    /// As many requests are outstanding, or as many bytes unsent, as the link takes.
    Full,
    /// The link is broken.
    Down,
    /// The request is more than a frame carries, or not for a caller to send.
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

/// Why [`crate::Link::ask`] has no answer.
#[derive(Debug)]
pub enum AskError {
    /// It was not sent.
    Submit(SubmitError),
    /// It was sent, and no answer came.
    Link(LinkError),
    /// The donor answered with an error.
    Refused {
        /// The kind of error that the donor answered with.
        code: ErrorCode,
        /// The donor's sentence.
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
