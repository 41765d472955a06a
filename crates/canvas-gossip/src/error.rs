//! Errors of starting gossip.
//!
//! Each error's text is the sentence that users read.

use std::io;
use std::net::SocketAddr;

use canvas_wire::key::RandomError;

/// Why gossip does not start.
#[derive(Debug, thiserror::Error)]
pub enum GossipError {
    /// The socket cannot be bound.
    #[error("gossip cannot listen on {addr} (UDP): {source}")]
    Listen {
        /// The address to listen on.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The system does not report the socket's address.
    #[error("gossip has no address: {0}")]
    NoAddress(#[source] io::Error),
    /// The address that others can reach is unknown.
    #[error(
        "gossip does not know its own address; write the one that others reach, such as \
         10.0.0.5:7071"
    )]
    UnknownAddress,
    /// The member's random name cannot be drawn.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// The thread cannot be started.
    #[error("the thread of gossip cannot be started: {0}")]
    Thread(#[source] io::Error),
    /// The thread's runtime cannot be started.
    #[error("the runtime of gossip cannot be started: {0}")]
    Runtime(#[source] io::Error),
    /// The membership library refuses to start.
    #[error("gossip cannot begin: {0}")]
    Membership(#[source] anyhow::Error),
    /// The thread ended without reporting an error.
    #[error("gossip ended before it began")]
    Ended,
}
