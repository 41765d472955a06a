//! What every backend offers: batches of requests in, completions out.
//!
//! Pages travel through numbered buffers ([`PageBuffers`]), not references: a request outlives the
//! call that submits it, and the buffers lie in memory that the backend's other side may share.
//!
//! Rules:
//! * [`Backend::submit`] takes a prefix of the batch, as much as there is room for, and never waits;
//! * from submit to completion the buffer and the entry belong to the backend; at most one request
//!   an entry may be in flight;
//! * every accepted request completes exactly once, in any order, with its tag;
//! * a load that does not complete with [`Done::Loaded`] leaves unspecified bytes in its buffer.

use canvas_types::{PageBuf, SwapEntry};

use crate::pool::{LoadError, Outcome, StoreError};

/// A page buffer, by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BufId(pub u32);

/// The buffers that requests name.
pub trait PageBuffers {
    /// Calls `with` on a buffer's bytes; false, without a call, when there is no such buffer.
    fn read(&self, buf: BufId, with: &mut dyn FnMut(&PageBuf)) -> bool;
    /// The same for a buffer to fill.
    fn write(&self, buf: BufId, with: &mut dyn FnMut(&mut PageBuf)) -> bool;
}

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Bring the entry's page into the buffer.
    Load {
        /// Where to.
        buf: BufId,
    },
    /// Make the buffer's page the entry's far copy.
    Store {
        /// Where from.
        buf: BufId,
        /// The entry holds an earlier copy of the same page: if it is equal, nothing is written.
        has_far_copy: bool,
    },
    /// Forget the far copy, keep the entry.
    DropCopy,
    /// Forget the far copy and free the entry.
    Release,
}

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The submitter's own; comes back with the completion.
    pub tag: u64,
    /// The page's entry; may be none for a store, which then allocates one.
    pub entry: SwapEntry,
    /// What to do.
    pub op: Op,
}

/// How a request succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// The page is in the buffer, verified.
    Loaded,
    /// The page is stored, as this says.
    Stored(Outcome),
    /// The copy, or the copy and the entry, are gone.
    Dropped,
}

/// How a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// A load.
    Load(LoadError),
    /// A store.
    Store(StoreError),
    /// The request names a buffer that does not exist.
    NoBuffer,
}

/// The end of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Of the request.
    pub tag: u64,
    /// How it ended.
    pub result: Result<Done, Failure>,
}

/// Far memory. Implementations belong to one thread at a time; several may share what is below.
pub trait Backend {
    /// Starts a prefix of `batch`; how many were taken. Never waits. Fewer than all means that
    /// [`Backend::poll`] must make room.
    fn submit(&mut self, batch: &[Request], buffers: &dyn PageBuffers) -> usize;
    /// Collects ended requests into `done`; how many. Never waits.
    fn poll(&mut self, done: &mut [Completion], buffers: &dyn PageBuffers) -> usize;
    /// Requests submitted and not yet collected.
    fn in_flight(&self) -> usize;
    /// Most requests that can be in flight.
    fn depth(&self) -> usize;
}
