//! Where sealed extents are kept.

use std::ops::Range;
use std::time::Duration;

use canvas_shm::far::SLAB_EXTENTS;

use crate::block::Block;
pub use crate::direct::Direct;
use crate::dispatch::IoLink;

/// One transfer over a link, in the unit of [`Store::link`].
pub const TRANSFER_COST: u32 = 840;

/// How many moves of its own a store has under way at a time.
pub const MOVES_MAX: usize = canvas_place::replicas::REPAIRS;

/// The extent's slab, and its index there.
pub(crate) fn place(extent: u32) -> (u32, usize) {
    (extent / SLAB_EXTENTS as u32, extent as usize % SLAB_EXTENTS)
}

/// How an operation on a store ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The write is durable by the tenant's policy, or the bytes are read.
    Done,
    /// The copy cannot be reached.
    Lost,
    /// Write: there is no room.
    NoRoom,
    /// Read: no copy has this number.
    NoCopy,
    /// Read: there are, or may be, more copies, but none of them can be read now.
    Away,
}

/// What a line of a store is about; the log bounds the lines about each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogTopic {
    /// A copy does not verify.
    Corrupt,
    /// The far directory's file system is full.
    Full,
    /// A backing file cannot be read, written or shrunk.
    Disk,
    /// This donor cannot be used.
    DonorLost(usize),
    /// This donor can be used again.
    DonorBack(usize),
    /// This donor is new.
    DonorFound(usize),
    /// The tenant's copies policy changed.
    Copies,
    /// This donor has lost slabs that it lent.
    DonorForgot(usize),
}

/// What a store reports.
#[derive(Debug)]
pub enum Event {
    /// A read or write has ended.
    Ended {
        /// The operation's number.
        id: u32,
        /// Its result.
        outcome: Outcome,
        /// The buffer; bytes that were read are at their offset in the extent.
        block: Block,
    },
    /// The part of a write that was allowed to go has arrived; more is left ([`Store::continue_write`]).
    WriteAdvanced(u32),
    /// The store wants to move bytes of its own, to repair copies ([`Store::grant_move`]). Each of the [`MOVES_MAX`]
    /// slots has at most one such request at a time.
    MoveWanted {
        /// Index of the slot.
        slot: u32,
        /// Links that the move needs.
        link: IoLink,
        /// Bytes left.
        bytes: u32,
    },
    /// A move of a slot has ended, or (not `ok`) was given up.
    MoveEnded {
        /// Index of the slot.
        slot: u32,
        /// The bytes were transferred.
        ok: bool,
    },
    /// The store keeps nothing of the slab any more.
    Freed(u32),
    /// A message for the log.
    Log(LogTopic, String),
    /// Counts of repaired slabs, failovers and degraded slabs.
    Health {
        /// Slabs whose lost copy was rebuilt since the last report.
        repaired: u64,
        /// Reads since the last report that failed over to another copy.
        failovers: u64,
        /// Slabs that have too few copies now.
        degraded: u64,
    },
}

/// Keeps sealed extents. The store does not interpret the bytes; the reader verifies them.
///
/// The caller has at most one writing operation on an extent at a time, frees a slab only when none of its operations
/// is under way, and bounds the number of operations. No call blocks except [`Store::free_all`].
pub trait Store {
    /// Writes an extent. Over a link its first `to` bytes may go now; when they have arrived and a donor accepts more,
    /// [`Event::WriteAdvanced`] reports it. A store that needs no link writes the whole extent at once.
    fn write(&mut self, id: u32, extent: u32, block: Block, to: usize);
    /// After [`Event::WriteAdvanced`]: the write may continue up to byte `to`.
    fn continue_write(&mut self, _id: u32, _to: usize) {
        debug_assert!(false, "no Event::WriteAdvanced was reported");
    }
    /// After [`Event::MoveWanted`]: `bytes` of them may move now. [`Event::MoveEnded`] follows.
    fn grant_move(&mut self, _slot: u32, _bytes: usize) {
        debug_assert!(false, "no Event::MoveWanted was reported");
    }
    /// Reads a range of an extent from copy number `copy`, 0 being the preferred one. The store may read beyond the
    /// range; the bytes before it stay unchanged in `block` or become the copy's.
    fn read(&mut self, id: u32, extent: u32, range: Range<usize>, copy: usize, block: Block);
    /// The links that operation `id`, a write of an extent or a read, uses, and its cost: [`TRANSFER_COST`] for each
    /// transfer. The caller starts the operation next, when its turn has come; for an operation in pieces it asks
    /// before each piece.
    fn link(&mut self, id: u32, extent: u32, writes: bool) -> (IoLink, u32);
    /// Frees a slab.
    fn free(&mut self, slab: u32);
    /// Appends what has happened to `events`, and does work that is due.
    fn poll(&mut self, events: &mut Vec<Event>);
    /// Sends what was begun since the last call.
    fn flush(&mut self) {}
    /// Sets what the tenant's processes may read from donors directly.
    fn set_direct(&mut self, _direct: Direct) {}
    /// Bytes that the tenant's processes have read directly since the last call, as far as donors have reported them.
    fn take_direct_bytes(&mut self) -> u64 {
        0
    }
    /// The tenant has ended: frees what donors keep for it, as far as that is possible within `patience`. The only call
    /// that blocks, and the last one.
    fn free_all(&mut self, _patience: Duration) {}
    /// Whether no operation on a local disk is under way. One that is could land after a write of the next agent.
    fn is_quiet(&self) -> bool {
        true
    }
    /// Whether an answer is on its way that takes less time than a sleep and a wake-up.
    fn expects(&self) -> bool {
        false
    }
    /// Sleeps until one of the pending answers has arrived, `time` at most. False when none came, and at once when the
    /// store cannot wait for answers. Nothing else wakes it meanwhile.
    fn await_answer(&self, _time: Duration) -> bool {
        false
    }
    /// Time until [`Store::poll`] has work for which nobody wakes the agent.
    fn due_in(&self) -> Option<Duration> {
        None
    }
    /// Whether [`Store::poll`] has work. The agent calls this before it sleeps; whoever makes it true later wakes the
    /// agent.
    fn is_ready(&self) -> bool;
}
