//! Why a member does not begin.
//!
//! The text of each is the sentence that its user reads.

use std::io;
use std::net::SocketAddr;

use canvas_wire::key::RandomError;

/// Why gossip does not start.
#[derive(Debug, thiserror::Error)]
pub enum GossipError {
    /// The socket cannot be bound.
    #[error("gossip cannot listen on {addr} (UDP): {source}")]
    Listen {
        /// Where it was to listen.
        addr: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The system does not say where the socket listens.
    #[error("gossip has no address: {0}")]
    NoAddress(#[source] io::Error),
    /// Nothing tells which address the others reach.
    #[error(
        "gossip does not know its own address; write the one that others reach, such as \
         10.0.0.5:7071"
    )]
    UnknownAddress,
    /// The member's name cannot be drawn.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// The system gives no thread.
    #[error("the thread of gossip cannot be started: {0}")]
    Thread(#[source] io::Error),
    /// The system does not give what the thread's runtime waits with.
    #[error("the runtime of gossip cannot be started: {0}")]
    Runtime(#[source] io::Error),
    /// The membership refuses to begin.
    #[error("gossip cannot begin: {0}")]
    Membership(#[source] anyhow::Error),
    /// The thread is gone, and has said nothing.
    #[error("gossip ended before it began")]
    Ended,
}
