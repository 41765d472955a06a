//! Memory layouts that canvas processes share.
//!
//! `canvas run` creates one *tenant segment* (a memfd), every process of the tenant maps it, and the reader at exit (or
//! `canvas run` itself) turns it into the report. Everything in it is an atomic, so a process that dies at any
//! instruction leaves a readable segment and no lock.
#![no_std]
#[cfg(feature = "std")]
extern crate std;

pub mod far;
#[cfg(feature = "std")]
pub mod files;
pub mod histogram;
pub mod host;
pub mod lanes;
pub mod learn;
pub mod lend;
pub mod lives;
pub mod mailbox;
#[cfg(feature = "std")]
pub mod map;
pub mod nodes;
#[cfg(feature = "std")]
pub mod pass;
pub mod segment;
pub mod shared;
pub mod slow;

pub use far::Far;
pub use mailbox::Mailbox;
pub use segment::{Config, Counter, Mode, ProcSlot, Segment};
