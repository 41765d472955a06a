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
//! * [`Initiator`]: a client's end, with buffers (*slots*) to read into and to write from.
//!
//! Who talks to whom, and with which keys, is agreed elsewhere (a session of `canvas-wire`).
//!
//! Without the feature `verbs` all of it is there but devices: [`Domain::open`] says so.

mod memory;
#[cfg_attr(feature = "verbs", path = "verbs.rs")]
#[cfg_attr(not(feature = "verbs"), path = "absent.rs")]
mod verbs;

pub use memory::Memory;
pub use verbs::{Domain, Initiator, Region, Responder, check};
