//! Why RDMA cannot be had here, or fails.
//!
//! The text of each is the sentence that its user reads.

use std::io;

use crate::library::LibraryError;

/// Why verbs do not do what they should.
#[derive(Debug, thiserror::Error)]
pub enum RdmaError {
    /// The library cannot be used.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The kernel's part of verbs is missing.
    #[error(
        "this host has no RDMA device (the kernel's module ib_uverbs is not loaded; modprobe \
         ib_uverbs)"
    )]
    NoModule,
    /// The library does not list the devices.
    #[error("RDMA devices cannot be listed: {}", reason(.0))]
    List(#[source] io::Error),
    /// The kernel knows the device, and the library does not.
    #[error("libibverbs has no driver for the RDMA device {0} (Debian package ibverbs-providers)")]
    NoDriver(String),
    /// There is none.
    #[error("this host has no RDMA device")]
    NoDevice,
    /// The device does not open.
    #[error("RDMA device {device} cannot be opened: {}", reason(.source))]
    Open {
        /// Its name.
        device: String,
        /// What the system says.
        source: io::Error,
    },
    /// The device has no connection.
    #[error("RDMA device {0} has no port that is up")]
    NoPort(String),
    /// The device gives no protection domain.
    #[error("no RDMA protection domain: {}", reason(.0))]
    NoDomain(#[source] io::Error),
    /// The kernel gives no memory for slots.
    #[error("no memory for RDMA: {}", reason(.0))]
    NoMemory(#[source] io::Error),
    /// The kernel does not keep the memory where it is.
    #[error(
        "memory cannot be pinned for RDMA (is the limit on locked memory too low? ulimit -l): {}",
        reason(.0)
    )]
    NotPinned(#[source] io::Error),
    /// The device gives no completion channel.
    #[error("no RDMA completion channel: {}", reason(.0))]
    NoChannel(#[source] io::Error),
    /// The device gives no completion queue.
    #[error("no RDMA completion queue: {}", reason(.0))]
    NoQueue(#[source] io::Error),
    /// The device gives no queue pair.
    #[error("no RDMA queue pair: {}", reason(.0))]
    NoPair(#[source] io::Error),
    /// The queue pair does not become ready for a peer.
    #[error("the RDMA queue pair cannot be set up: {}", reason(.0))]
    SetUp(#[source] io::Error),
    /// The queue pair does not take the peer's packets.
    #[error("the RDMA queue pair cannot be connected: {}", reason(.0))]
    Connect(#[source] io::Error),
    /// The queue pair sends nothing.
    #[error("the RDMA queue pair cannot send: {}", reason(.0))]
    Send(#[source] io::Error),
    /// The queue pair does not take a read or a write.
    #[error("an RDMA request was refused: {}", reason(.0))]
    Request(#[source] io::Error),
    /// The completion queue does not tell when something completes.
    #[error("RDMA completions cannot be waited for: {}", reason(.0))]
    Wait(#[source] io::Error),
    /// The completion queue does not say what has completed.
    #[error("RDMA completions cannot be read")]
    Completions,
    /// An operation failed, for what the library calls so.
    #[error("RDMA failed: {0}")]
    Failed(String),
}

/// What the system says, without Rust's "(os error 2)".
fn reason(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}
