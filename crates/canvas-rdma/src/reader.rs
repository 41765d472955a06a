//! A client's end for a page fault handler, which must not allocate, lock or wait.

use std::sync::Arc;

use canvas_types::rdma::{Exposed, QueuePair};

use crate::Memory;
use crate::abi as sys;
use crate::error::RdmaError;
use crate::verbs::{Domain, Pair, Queue, Registration};

/// The device refused a read, or failed to do it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

/// A queue pair with one read under way at a time, into its own buffer. [`Reader::ask`] and
/// [`Reader::take`] call only the device's driver, whose `post_send` and `poll_cq` are made for
/// such use.
pub struct Reader {
    pair: Pair,
    psn: u32,
    /// Number of the read under way; 0: none.
    under_way: u64,
    /// Number of reads so far.
    reads: u64,
    /// Dropped after the pair, so that nothing is under way.
    queue: Queue,
    buffer: Registration,
}

// SAFETY: verbs may be called from any thread, and everything else here belongs to the owner alone.
unsafe impl Send for Reader {}

impl Reader {
    /// Makes an unconnected queue pair with a buffer of `bytes` bytes; `psn` is a random number.
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

    /// This end's description for the peer.
    pub fn local(&self) -> QueuePair {
        self.pair.domain.describe(&self.pair, self.psn)
    }

    /// Connects it to the peer's queue pair.
    ///
    /// # Errors
    ///
    /// The device refuses.
    pub fn connect(&mut self, peer: &QueuePair) -> Result<(), RdmaError> {
        self.pair.receive_from(peer)?;
        self.pair.send_to(peer, self.psn)
    }

    /// Starts to read `len` bytes of exposed memory, from `offset` on. Only one read may be under
    /// way.
    ///
    /// # Errors
    ///
    /// The device refused; nothing is under way then.
    pub fn ask(&mut self, from: Exposed, offset: u32, len: usize) -> Result<(), Refused> {
        if self.under_way != 0 || len > self.buffer.memory.len() {
            return Err(Refused);
        }
        let address = from.address.checked_add(offset.into()).ok_or(Refused)?;
        let from = Exposed { address, ..from };
        let local = (&self.buffer, 0, len);
        // SAFETY: the buffer is registered until the pair is gone (field order), has `len` bytes,
        // and only one read is under way at a time.
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

    /// Copies the bytes read into `to`, if they have arrived; `to` must have the requested length.
    ///
    /// # Errors
    ///
    /// The read failed, and with it the connection, or nothing is under way.
    pub fn take(&mut self, to: &mut [u8]) -> Result<bool, Refused> {
        if self.under_way == 0 || to.len() > self.buffer.memory.len() {
            return Err(Refused);
        }
        let mut done = sys::Wc::default();
        // SAFETY: the queue exists; the call writes at most one entry.
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
