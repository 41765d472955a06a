//! RDMA: one-sided reads and writes of a peer's memory, over reliable connections.
//!
//! This is the only crate for links to donors that contains `unsafe`: verbs are a C interface, and
//! memory that a peer's device writes cannot be a Rust slice. The public types are:
//!
//! * [`Memory`]: bytes that a device may change at any time; they are only copied in and out;
//! * [`Domain`]: an opened device with its own protection domain. Only queue pairs of a domain can
//!   reach memory exposed in it. A donor has a domain per link, so a key that another client
//!   guesses or steals opens nothing;
//! * [`Region`]: memory exposed in a domain, until it is dropped. It owns the memory, so that what
//!   a device can reach stays mapped;
//! * [`Responder`]: a donor's end of a connection. The device serves it without the processor;
//! * [`Initiator`]: a client's end, with buffers (*slots*) to read into and write from;
//! * [`Reader`]: a client's end that only reads, one read at a time, inside a page fault.
//!
//! Peers exchange queue pairs and keys elsewhere, over a session of `canvas-wire`.
//!
//! libibverbs is loaded on first use and not needed for building: where it is missing,
//! [`Domain::open`] and [`check`] say what to install. A driver must not keep its structures on a
//! heap that may be paged: in a managed program [`load_apart`] must be called first.

mod abi;
mod error;
mod library;
mod memory;
mod reader;
mod verbs;

pub use error::RdmaError;
pub use library::{LibraryError, load_apart};
pub use memory::Memory;
pub use reader::{Reader, Refused};
pub use verbs::{Access, Domain, Initiator, Region, Responder, check, kernel_devices};
