//! Direct reads from donors (docs/design/lanes.md): the process that needs a page reads it over a connection of its own,
//! a direct read channel ("lane").
//!
//! * [`wire`]: what both ends send;
//! * `client`: the reading process's end. Donors and agents do without it, and without the kernel's calls below it.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "client")]
pub mod client;
pub mod wire;
