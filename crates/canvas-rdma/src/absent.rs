//! No verbs in this build: everything that needs a device says so. The values of these types cannot
//! be made.

use std::convert::Infallible;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use canvas_wire::frame::{Exposed, QueuePair};

use crate::Memory;

const WHY: &str = "this canvas was built without RDMA (build it where cmake and libclang are, with \
                   `make build` or --features rdma)";

/// Whether there is a device; never.
pub fn check() -> Result<(), String> {
    Err(WHY.to_owned())
}

/// An opened device; see the crate with the feature `verbs`.
pub struct Domain(Infallible);

impl Domain {
    /// Says that there is none.
    pub fn open(_local: IpAddr) -> Result<Arc<Domain>, String> {
        Err(WHY.to_owned())
    }
}

/// Exposed memory.
pub struct Region(Infallible);

impl Region {
    /// Cannot be called: there is no domain.
    pub fn expose(domain: &Arc<Domain>, _memory: &Arc<Memory>) -> Result<Region, String> {
        match domain.0 {}
    }

    /// Cannot be called.
    pub fn exposed(&self) -> Exposed {
        match self.0 {}
    }
}

/// A donor's end of a connection.
pub struct Responder(Infallible);

impl Responder {
    /// Cannot be called: there is no domain.
    pub fn connect(
        domain: &Arc<Domain>,
        _peer: &QueuePair,
        _psn: u32,
    ) -> Result<Responder, String> {
        match domain.0 {}
    }

    /// Cannot be called.
    pub fn local(&self) -> QueuePair {
        match self.0 {}
    }
}

/// A client's end of a connection.
pub struct Initiator(Infallible);

impl Initiator {
    /// Cannot be called: there is no domain.
    pub fn new(
        domain: &Arc<Domain>,
        _slots: usize,
        _slot_bytes: usize,
        _psn: u32,
    ) -> Result<Initiator, String> {
        match domain.0 {}
    }

    /// Cannot be called.
    pub fn local(&self) -> QueuePair {
        match self.0 {}
    }

    /// Cannot be called.
    pub fn connect(&mut self, _peer: &QueuePair) -> Result<(), String> {
        match self.0 {}
    }

    /// Cannot be called.
    pub fn read(&mut self, _slot: usize, _len: usize, _at: u64, _key: u32) -> Result<(), String> {
        match self.0 {}
    }

    /// Cannot be called.
    pub fn write(&mut self, _slot: usize, _data: &[u8], _at: u64, _key: u32) -> Result<(), String> {
        match self.0 {}
    }

    /// Cannot be called.
    pub fn poll(&mut self, _done: impl FnMut(usize, &Memory, usize)) -> Result<usize, String> {
        match self.0 {}
    }

    /// Cannot be called.
    pub fn arm(&self) -> Result<bool, String> {
        match self.0 {}
    }

    /// Cannot be called.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }
}
