//! Queue pairs (RDMA) of direct read channels: what this crate requires of the code that has the devices.
//!
//! Creating, connecting and ending a queue pair takes milliseconds and a library's memory, so another thread does that;
//! the thread that has claimed a channel requests it, and checks later. Reading by one needs neither.

use canvas_sys::net::Address;
use canvas_types::rdma::{Exposed, QueuePair};

/// State of a channel's queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PairState {
    /// There is none.
    None,
    /// It is being created, connected or ended.
    Busy,
    /// It is created and not connected; this is its end for the peer.
    Made(QueuePair),
    /// It can read.
    Ready,
    /// It could not be created or connected. It must be ended.
    Failed,
}

/// The device failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

/// Queue pairs of a process, one for each of its channels, by their numbers. Only the thread that has claimed a channel
/// calls these for it.
pub trait Pairs {
    /// Whether there can be any.
    fn available(&self) -> bool;
    /// The state of the channel's queue pair.
    fn state(&self, lane: usize) -> PairState;
    /// Requests creation, on the device with this local address.
    fn make(&self, lane: usize, local: Address);
    /// Requests to connect it to `peer`.
    fn connect(&self, lane: usize, peer: &QueuePair);
    /// Requests to end it, whatever it is doing.
    fn end(&self, lane: usize);
    /// Starts to read `len` bytes, at most [`READ_BYTES_MAX`](crate::wire::READ_BYTES_MAX), from `offset` in an exposed
    /// slab.
    fn post_read(&self, lane: usize, from: Exposed, offset: u32, len: usize)
    -> Result<(), Refused>;
    /// Copies what was read into `to`; false when it has not arrived.
    fn poll_read(&self, lane: usize, to: &mut [u8]) -> Result<bool, Refused>;
}

/// No queue pairs.
pub struct NoPairs;

impl Pairs for NoPairs {
    fn available(&self) -> bool {
        false
    }
    fn state(&self, _: usize) -> PairState {
        PairState::None
    }
    fn make(&self, _: usize, _: Address) {}
    fn connect(&self, _: usize, _: &QueuePair) {}
    fn end(&self, _: usize) {}
    fn post_read(&self, _: usize, _: Exposed, _: u32, _: usize) -> Result<(), Refused> {
        Err(Refused)
    }
    fn poll_read(&self, _: usize, _: &mut [u8]) -> Result<bool, Refused> {
        Err(Refused)
    }
}
