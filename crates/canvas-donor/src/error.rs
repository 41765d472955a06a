//! Why a server does not start, and why a link has no RDMA.
//!
//! The text of each is the sentence that its user reads.

use std::io;
use std::net::{IpAddr, SocketAddr};

use canvas_host::HostError;
use canvas_rdma::RdmaError;
use canvas_wire::SLAB_BYTES;
use canvas_wire::key::RandomError;
use nix::errno::Errno;

use crate::server::reason;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Without a key it would take everybody who reaches that address.
    #[error(
        "without a cluster key only this host may connect; listen on 127.0.0.1, or give \
         --key-file FILE (`canvas keygen FILE` makes one) to listen on {0}"
    )]
    NoKey(IpAddr),
    /// It is to lend over RDMA, and cannot.
    #[error("{0}; without --rdma memory is lent over TCP")]
    Rdma(#[source] RdmaError),
    /// It may lend less than the unit.
    #[error(
        "--memory is less than one slab; write {min_mib}M or more",
        min_mib = SLAB_BYTES >> 20
    )]
    NoSlab,
    /// The host does not say how much memory it has.
    #[error(transparent)]
    Host(#[from] HostError),
    /// What it leaves to its host is all of the host's memory.
    #[error(
        "a reserve of {reserve_mib} MiB leaves nothing of this host's {total_mib} MiB; write a \
         smaller one"
    )]
    Reserve {
        /// What it is to leave, in MiB.
        reserve_mib: u64,
        /// What the host has, in MiB.
        total_mib: u64,
    },
    /// It cannot listen there.
    #[error("cannot listen on {addr}: {}", reason(.source))]
    Listen {
        /// Where.
        addr: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// There is nothing to wake the listener's thread with.
    #[error("no eventfd: {}", .0.desc())]
    NoEventfd(#[source] Errno),
    /// Its names cannot be drawn.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// The system gives no thread.
    #[error("no thread could be started: {}", reason(.0))]
    Thread(#[source] io::Error),
}

/// Why a link has no RDMA side.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    /// The server is not told to.
    #[error("this donor lends over TCP only (canvas serve --rdma)")]
    TcpOnly,
    /// The device does not do it.
    #[error(transparent)]
    Rdma(#[from] RdmaError),
    /// The first packet's number cannot be drawn.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// The system gives no thread.
    #[error("no thread could be started: {}", reason(.0))]
    Thread(#[source] io::Error),
}
