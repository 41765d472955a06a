//! The far tier of this process, for other modules: [`canvas_core::far`], if the tenant has far memory.

use canvas_core::far::fetch::{Lost, Stored};
use canvas_core::far::{Owner, channel, compact, demote, fetch, resident_copies, room};
use canvas_core::swap::extent::EXTENT_BYTES;
use canvas_types::ExtentRef;
use core::sync::atomic::Ordering;

use crate::far_tier::{
    extents::unhold,
    ours::{Ours, beyond},
};
use crate::runtime::state;

/// Whether there is far memory beyond the pool.
pub fn is_there() -> bool {
    beyond().is_some()
}

/// Reads a record of a shared page.
pub fn read(
    place: ExtentRef,
    scratch: &mut Stored,
    decode: impl FnMut(&[u8]) -> bool,
) -> Result<(), Lost> {
    beyond().map_or(Err(Lost::Unreachable), |b| {
        fetch::read(&b, place, scratch, decode)
    })
}

/// Reads a whole extent, a shared page of which is needed now, and calls `on` with its bytes.
pub fn read_whole<R>(extent: u32, on: impl FnOnce(&[u8; EXTENT_BYTES]) -> R) -> Result<R, Lost> {
    beyond().map_or(Err(Lost::Unreachable), |b| {
        fetch::read_whole(&b, extent, on)
    })
}

/// Whether the pool has, or can make, room for pages on their way to local memory.
#[inline]
pub fn pool_makes_way() -> bool {
    beyond().is_some_and(|b| resident_copies::pool_makes_way(&b))
}

/// Whether far memory has stopped answering, or takes no pages.
pub fn is_stalled() -> bool {
    room::is_stalled(&Ours) || is_closed()
}

/// Whether nothing can be written beyond the pool, although what is there can be read.
pub fn is_closed() -> bool {
    is_there() && room::is_closed(&Ours)
}

/// Bytes used beyond the pool, and their limit.
pub fn used_and_limit() -> (u64, u64) {
    beyond().map_or((0, 0), |b| room::used_and_limit(&b))
}

/// Runs one round of the reclaim thread's part. Returns whether it did anything.
pub fn background_round() -> bool {
    beyond().is_some_and(|b| demote::background_round(&b))
}

/// Whether pages in the swap cache keep a slab from being freed.
pub fn waits_for_cached() -> bool {
    compact::waits_for_cached(&Ours)
}

/// How long the reclaim thread may sleep.
pub fn idle_ns() -> u64 {
    demote::idle_ns(&Ours)
}

/// Frees what other processes of the tenant ask for: empty slabs first, then slabs with copies of resident pages, then
/// those of the pages evicted longest ago, once they have been written. Returns true if something was freed, or will
/// be.
pub fn give_to_others() -> bool {
    let wanted = &state::slot().pool_wanted_bytes;
    let bytes = wanted.load(Ordering::Relaxed);
    if bytes <= 0 {
        return false;
    }
    let given = resident_copies::give_slabs(&Ours, bytes);
    let mut worked = given > 0;
    if given < bytes
        && let Some(b) = beyond()
    {
        worked |= demote::write_for_others(&b, bytes);
    }
    wanted.store(0, Ordering::Relaxed);
    worked
}

/// In a fork's child: forgets the parent's requests.
pub fn forget() {
    channel::forget(Ours.state(), unhold);
    room::after_fork_in_child(&Ours);
}
