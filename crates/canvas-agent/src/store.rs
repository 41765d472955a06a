//! Where sealed extents are kept.

use std::ops::Range;
use std::time::Duration;

use canvas_shm::far::SLAB_EXTENTS;

use crate::block::Block;
pub use crate::direct::Direct;
use crate::dispatch::Lane;
use crate::log::About;

/// What goes over a lane once, in the measure of [`Store::lane`].
pub const ONCE: u32 = 840;

/// What a store moves for itself at one time.
pub const OWN_MAX: usize = canvas_place::replicas::REPAIRS;

/// The slab of an extent, and its number there.
pub(crate) fn place(extent: u32) -> (u32, usize) {
    (extent / SLAB_EXTENTS as u32, extent as usize % SLAB_EXTENTS)
}

/// How an operation on a store ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Written, durable by the tenant's policy; or read.
    Done,
    /// The copy cannot be reached.
    Lost,
    /// Write: there is no room.
    NoRoom,
    /// Read: there are not so many copies.
    NoCopy,
    /// Read: there are more copies, or may be, and none of them can be read now.
    Away,
}

/// What a store reports.
#[derive(Debug)]
pub enum Event {
    /// A read or write has ended.
    Ended {
        /// The operation.
        id: u32,
        /// How.
        outcome: Outcome,
        /// The bytes; those of a read at their place in the extent.
        block: Block,
    },
    /// What a write was let send has arrived; there is more of it ([`Store::write_on`]).
    Part(u32),
    /// The store wants to move bytes of its own, to make copies good ([`Store::move_own`]); one wish for each of
    /// [`OWN_MAX`] slots at a time.
    Wants {
        /// Which.
        slot: u32,
        /// Over what.
        lane: Lane,
        /// How much is left.
        bytes: u32,
    },
    /// What a slot was let move is through, or (not `ok`) given up.
    Moved {
        /// Which.
        slot: u32,
        /// It went over the link.
        ok: bool,
    },
    /// Nothing of the slab is kept any more.
    Freed(u32),
    /// Something to tell.
    Line(About, String),
    /// Slabs whose lost copy was made anew, and slabs that have fewer copies than they should, now.
    Health {
        /// Repaired since the last report.
        repaired: u64,
        /// Reads since the last report that a copy did not answer and that went to another.
        failovers: u64,
        /// With too few copies now.
        degraded: u64,
    },
}

/// Keeps sealed extents. Bytes are opaque here: who reads verifies.
///
/// The caller has one operation on an extent at a time that writes, frees a slab only when nothing of
/// it is under way, and bounds how many operations are. No call waits but [`Store::leave`].
pub trait Store {
    /// Writes an extent. Over a link its first `to` bytes may go now; when they have arrived, and there is anybody who
    /// takes more, that is told by [`Event::Part`]. What needs no link is written whole.
    fn write(&mut self, id: u32, extent: u32, block: Block, to: usize);
    /// After [`Event::Part`]: the write may go on, as far as `to`.
    fn write_on(&mut self, _id: u32, _to: usize) {
        debug_assert!(false, "told of no Event::Part");
    }
    /// After [`Event::Wants`]: so many of these bytes may move now. [`Event::Moved`] follows.
    fn move_own(&mut self, _slot: u32, _bytes: usize) {
        debug_assert!(false, "told of no Event::Wants");
    }
    /// Reads a range of an extent from copy number `copy`, counted from the one to try first. The
    /// bytes may reach beyond the range; those before it stay as they are in `block`, or become what a copy has there.
    fn read(&mut self, id: u32, extent: u32, range: Range<usize>, copy: usize, block: Block);
    /// What operation `id`, a write of an extent or a read, travels over, and how often: [`ONCE`] for each time. It comes next, when its turn
    /// has come; of one that goes on in pieces this is asked for each.
    fn lane(&mut self, id: u32, extent: u32, writes: bool) -> (Lane, u32);
    /// Forgets a slab.
    fn free(&mut self, slab: u32);
    /// Adds what has happened to `events`, and does what is due.
    fn poll(&mut self, events: &mut Vec<Event>);
    /// What was begun since the last call goes out now.
    fn flush(&mut self) {}
    /// What the tenant's processes may read by themselves from now on.
    fn set_direct(&mut self, _direct: Direct) {}
    /// Bytes that they have read by themselves since this was last asked, as far as donors have told.
    fn take_direct_bytes(&mut self) -> u64 {
        0
    }
    /// The tenant is over: what is kept for it in other places is given back, as far as that is done within `patience`.
    /// The only call that waits, and the last one.
    fn leave(&mut self, _patience: Duration) {}
    /// Is nothing on its way to or from a disk of this host? What is could come after what the next agent writes.
    fn is_quiet(&self) -> bool {
        true
    }
    /// Is an answer on its way that takes less time than to sleep and be woken?
    fn expects(&self) -> bool {
        false
    }
    /// Sleeps until one of the answers that are on their way is there, `time` at most. False when it did not come, and
    /// at once when they are not waited for like that. Nobody else is heard meanwhile.
    fn await_answer(&self, _time: Duration) -> bool {
        false
    }
    /// Time until [`Store::poll`] has something to do that nobody wakes the agent for.
    fn due_in(&self) -> Option<Duration> {
        None
    }
    /// Is there something for [`Store::poll`]? Asked before sleeping; whoever makes it true later
    /// wakes the agent.
    fn is_ready(&self) -> bool;
}
