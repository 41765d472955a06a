//! Errors of RDMA.
//!
//! Each error's text is the sentence that users read.

use std::io;

use crate::library::LibraryError;

/// Why an RDMA operation failed.
#[derive(Debug, thiserror::Error)]
pub enum RdmaError {
    /// The library cannot be loaded.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The kernel's verbs module is missing.
    #[error(
        "this host has no RDMA device (the kernel's module ib_uverbs is not loaded; modprobe \
         ib_uverbs)"
    )]
    NoModule,
    /// The library failed to list the devices.
    #[error("RDMA devices cannot be listed: {}", reason(.0))]
    List(#[source] io::Error),
    /// The kernel has a device for which the library has no driver.
    #[error("libibverbs has no driver for the RDMA device {0} (Debian package ibverbs-providers)")]
    NoDriver(String),
    /// The host has no device.
    #[error("this host has no RDMA device")]
    NoDevice,
    /// The device cannot be opened.
    #[error("RDMA device {device} cannot be opened: {}", reason(.source))]
    Open {
        /// The device's name.
        device: String,
        /// The system's error.
        source: io::Error,
    },
    /// No port of the device is up.
    #[error("RDMA device {0} has no port that is up")]
    NoPort(String),
    /// The device provides no protection domain.
    #[error("no RDMA protection domain: {}", reason(.0))]
    NoDomain(#[source] io::Error),
    /// The kernel provides no memory for buffers.
    #[error("no memory for RDMA: {}", reason(.0))]
    NoMemory(#[source] io::Error),
    /// The kernel does not pin the memory.
    #[error(
        "memory cannot be pinned for RDMA (is the limit on locked memory too low? ulimit -l): {}",
        reason(.0)
    )]
    NotPinned(#[source] io::Error),
    /// The device provides no completion channel.
    #[error("no RDMA completion channel: {}", reason(.0))]
    NoChannel(#[source] io::Error),
    /// The device provides no completion queue.
    #[error("no RDMA completion queue: {}", reason(.0))]
    NoQueue(#[source] io::Error),
    /// The device provides no queue pair.
    #[error("no RDMA queue pair: {}", reason(.0))]
    NoPair(#[source] io::Error),
    /// The queue pair cannot enter the state in which it can be connected.
    #[error("the RDMA queue pair cannot be set up: {}", reason(.0))]
    SetUp(#[source] io::Error),
    /// The queue pair cannot enter the state in which it receives.
    #[error("the RDMA queue pair cannot be connected: {}", reason(.0))]
    Connect(#[source] io::Error),
    /// The queue pair cannot enter the state in which it sends.
    #[error("the RDMA queue pair cannot send: {}", reason(.0))]
    Send(#[source] io::Error),
    /// The queue pair refuses a read or a write.
    #[error("an RDMA request was refused: {}", reason(.0))]
    Request(#[source] io::Error),
    /// The completion queue does not announce completions.
    #[error("RDMA completions cannot be waited for: {}", reason(.0))]
    Wait(#[source] io::Error),
    /// The completion queue returns no completions.
    #[error("RDMA completions cannot be read")]
    Completions,
    /// An operation failed; the text is the library's.
    #[error("RDMA failed: {0}")]
    Failed(String),
}

/// The system's error text, without Rust's "(os error 2)".
fn reason(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}
