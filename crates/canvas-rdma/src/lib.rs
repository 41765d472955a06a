//! RDMA: one-sided reads and writes of a peer's memory, over reliable connections.
//!
//! The one crate of the far pool with `unsafe` in it: verbs are a C interface, and memory that a
//! peer's device writes to is no Rust slice. What is outside of it sees:
//!
//! * [`Memory`]: bytes that a device may change at any time; they are only ever copied in and out;
//! * [`Domain`]: an opened device with a protection domain of its own. What is exposed in a domain can
//!   be reached by the queue pairs of that domain and by no other: a donor has one for each link, so a
//!   key that is guessed or stolen by another client opens nothing;
//! * [`Region`]: memory that is exposed in a domain, until it is dropped. It holds the memory, so
//!   what a device can reach stays mapped;
//! * [`Responder`]: a donor's end of a connection. It serves without the processor's help;
//! * [`Initiator`]: a client's end, with buffers (*slots*) to read into and to write from;
//! * [`Reader`]: a client's end that only reads, one read at a time, from within a page fault.
//!
//! Who talks to whom, and with which keys, is agreed elsewhere (a session of `canvas-wire`).
//!
//! libibverbs is opened when it is first needed, and nothing of it is needed to build: where it is
//! missing, [`Domain::open`] and [`check`] say what to install. A program's own heap, which may be paged, is none for a
//! driver's structures: there [`load_apart`] comes first.

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
