//! A client's end for one thread that must not allocate, lock or wait: a handler of page faults.

use std::sync::Arc;

use canvas_types::rdma::{Exposed, QueuePair};

use crate::Memory;
use crate::abi as sys;
use crate::error::RdmaError;
use crate::verbs::{Domain, Pair, Queue, Registration};

/// The device did not take a read, or did not do it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

/// A queue pair that has one read under way at a time, into a buffer of its own. [`Reader::ask`] and [`Reader::take`] call
/// the device's driver and nothing else: what that does there (`post_send`, `poll_cq`) is made for this.
pub struct Reader {
    pair: Pair,
    psn: u32,
    /// The number of the read that is under way; 0: none is.
    under_way: u64,
    /// Reads so far.
    reads: u64,
    /// Ended behind the pair, so that nothing is under way.
    queue: Queue,
    buffer: Registration,
}

// SAFETY: verbs may be called from any thread; what is here is the owner's alone.
unsafe impl Send for Reader {}

impl Reader {
    /// A queue pair with a buffer of so many bytes, not connected yet; `psn` is a random number.
    ///
    /// # Errors
    ///
    /// There is no memory, or the device refuses.
    pub fn new(domain: &Arc<Domain>, bytes: usize, psn: u32) -> Result<Reader, RdmaError> {
        let memory = Memory::native(bytes).map_err(RdmaError::NoMemory)?;
        let buffer = Registration::new(domain, &Arc::new(memory), sys::IBV_ACCESS_LOCAL_WRITE)?;
        let queue = Queue::new(domain, 1, None)?;
        let reader = Reader {
            pair: Pair::new(domain, &queue, 1)?,
            psn: psn & 0xff_ffff,
            under_way: 0,
            reads: 0,
            queue,
            buffer,
        };
        reader.pair.init(0)?;
        Ok(reader)
    }

    /// This end, for the peer.
    pub fn local(&self) -> QueuePair {
        self.pair.domain.describe(&self.pair, self.psn)
    }

    /// Connects it to the peer's.
    ///
    /// # Errors
    ///
    /// The device refuses.
    pub fn connect(&mut self, peer: &QueuePair) -> Result<(), RdmaError> {
        self.pair.receive_from(peer)?;
        self.pair.send_to(peer, self.psn)
    }

    /// Begins to read `len` bytes of what is exposed, from `offset` on. One read is under way at a time.
    ///
    /// # Errors
    ///
    /// It is not taken; nothing is under way then.
    pub fn ask(&mut self, from: Exposed, offset: u32, len: usize) -> Result<(), Refused> {
        if self.under_way != 0 || len > self.buffer.memory.len() {
            return Err(Refused);
        }
        let address = from.address.checked_add(offset.into()).ok_or(Refused)?;
        let from = Exposed { address, ..from };
        let local = (&self.buffer, 0, len);
        // SAFETY: the buffer is registered until the pair is gone (field order), `len` bytes of it are there, and one read is
        // under way at a time.
        let code = unsafe {
            self.pair
                .post(self.reads + 1, sys::IBV_WR_RDMA_READ, from, local)
        };
        if code != 0 {
            return Err(Refused);
        }
        self.reads += 1;
        self.under_way = self.reads;
        Ok(())
    }

    /// Puts what was asked for into `to`, if it has come; it has as many bytes as were asked for.
    ///
    /// # Errors
    ///
    /// It failed, and with it the connection, or nothing is under way.
    pub fn take(&mut self, to: &mut [u8]) -> Result<bool, Refused> {
        if self.under_way == 0 || to.len() > self.buffer.memory.len() {
            return Err(Refused);
        }
        let mut done = sys::Wc::default();
        // SAFETY: the queue is there; the call writes one entry at most.
        let n = unsafe { sys::poll_cq(self.queue.cq.as_ptr(), 1, &mut done) };
        match n {
            0 => return Ok(false),
            1 if done.status == sys::IBV_WC_SUCCESS && done.wr_id == self.under_way => {}
            _ => return Err(Refused),
        }
        self.under_way = 0;
        self.buffer.memory.read(0, to);
        Ok(true)
    }
}
