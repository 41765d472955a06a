//! Queue pairs of lanes (RDMA): what this crate needs of who has devices.
//!
//! To make one, to connect it and to end it takes milliseconds and memory of a library's, so another thread does that;
//! whoever has claimed a lane asks for it, and looks later. To read by one takes neither.

use canvas_sys::net::Address;
use canvas_types::rdma::{Exposed, QueuePair};

/// How a lane's queue pair stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// There is none.
    None,
    /// It is being made, connected or ended.
    Busy,
    /// It is as the peer must know it, and not connected.
    Made(QueuePair),
    /// It reads.
    Ready,
    /// It could not be made or connected. It is to be ended.
    Failed,
}

/// The device did not do what it was asked to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

/// Queue pairs of a process, one for each of its lanes, by their numbers. Only who has claimed a lane calls these for it.
pub trait Pairs {
    /// Can there be any?
    fn are_there(&self) -> bool;
    /// How the lane's one stands.
    fn standing(&self, lane: usize) -> Standing;
    /// One is to be made, on the device that has this address of ours.
    fn make(&self, lane: usize, local: Address);
    /// It is to be connected to this one.
    fn connect(&self, lane: usize, peer: &QueuePair);
    /// It is to be ended, whatever it is doing.
    fn end(&self, lane: usize);
    /// Begins to read so many bytes, at most [`READ_BYTES_MAX`](canvas_lane::READ_BYTES_MAX), `offset` bytes behind the
    /// beginning of an exposed slab.
    fn ask(&self, lane: usize, from: Exposed, offset: u32, len: usize) -> Result<(), Refused>;
    /// Puts what was asked for into `to`, if it has come.
    fn take(&self, lane: usize, to: &mut [u8]) -> Result<bool, Refused>;
}

/// No queue pairs.
pub struct NoPairs;

impl Pairs for NoPairs {
    fn are_there(&self) -> bool {
        false
    }
    fn standing(&self, _: usize) -> Standing {
        Standing::None
    }
    fn make(&self, _: usize, _: Address) {}
    fn connect(&self, _: usize, _: &QueuePair) {}
    fn end(&self, _: usize) {}
    fn ask(&self, _: usize, _: Exposed, _: u32, _: usize) -> Result<(), Refused> {
        Err(Refused)
    }
    fn take(&self, _: usize, _: &mut [u8]) -> Result<bool, Refused> {
        Err(Refused)
    }
}
