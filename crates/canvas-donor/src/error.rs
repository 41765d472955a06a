//! Errors of starting a donor, and of setting up RDMA on a link.
//!
//! Each error's text is the sentence that users read.

use std::io;
use std::net::{IpAddr, SocketAddr};

use canvas_host::HostError;
use canvas_rdma::RdmaError;
use canvas_wire::SLAB_BYTES;
use canvas_wire::key::RandomError;
use nix::errno::Errno;

use crate::server::reason;

/// Why a donor does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Without a key it would accept everybody who reaches that address.
    #[error(
        "without a cluster key only this host may connect; listen on 127.0.0.1, or give \
         --key-file FILE (`canvas keygen FILE` makes one) to listen on {0}"
    )]
    NoKey(IpAddr),
    /// It is to lend over RDMA, and cannot.
    #[error("{0}; without --rdma memory is lent over TCP")]
    Rdma(#[source] RdmaError),
    /// It may lend less than one slab.
    #[error(
        "--memory is less than one slab; write {min_mib}M or more",
        min_mib = SLAB_BYTES >> 20
    )]
    NoSlab,
    /// The host's memory cannot be determined.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The reserve is as large as the host's memory.
    #[error(
        "a reserve of {reserve_mib} MiB leaves nothing of this host's {total_mib} MiB; write a \
         smaller one"
    )]
    Reserve {
        /// The reserve, in MiB.
        reserve_mib: u64,
        /// The host's memory, in MiB.
        total_mib: u64,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}: {}", reason(.source))]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// No eventfd, to wake the listener's thread, can be made.
    #[error("no eventfd: {}", .0.desc())]
    NoEventfd(#[source] Errno),
    /// Random identifiers cannot be drawn.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// A thread cannot be started.
    #[error("no thread could be started: {}", reason(.0))]
    Thread(#[source] io::Error),
}

/// Why RDMA cannot be set up on a link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    /// The donor is not configured for RDMA.
    #[error("this donor lends over TCP only (canvas serve --rdma)")]
    TcpOnly,
    /// The device fails.
    #[error(transparent)]
    Rdma(#[from] RdmaError),
    /// The number of the first packet cannot be drawn.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// A thread cannot be started.
    #[error("no thread could be started: {}", reason(.0))]
    Thread(#[source] io::Error),
}
